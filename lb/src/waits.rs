//! What tasks of a data thread wait for besides sockets: their next turn, and answers of classifying services.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

/// Tags of an answer by their places; none when there is no answer.
pub(crate) type Places = Option<Box<[u16]>>;

/// The tasks that wait.
#[derive(Default)]
pub(crate) struct Waits {
    yielded: RefCell<Vec<Waker>>,
    answers: RefCell<HashMap<u64, Awaited, ahash::RandomState>>,
    next_ticket: Cell<u64>,
}

/// An answer that somebody waits for.
struct Awaited {
    waker: Waker,
    answer: Option<Places>,
}

/// A place in the queue for an answer, given up when nobody waits any more.
pub(crate) struct Ticket<'w> {
    waits: &'w Waits,
    pub(crate) number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.waits.answers.borrow_mut().remove(&self.number);
    }
}

impl Ticket<'_> {
    /// The answer.
    pub(crate) async fn answer(self) -> Places {
        poll_fn(|cx| {
            let mut answers = self.waits.answers.borrow_mut();
            let Some(awaited) = answers.get_mut(&self.number) else { return Poll::Ready(None) };
            awaited.waker = cx.waker().clone();
            awaited.answer.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Waits {
    /// Ends in a later turn; `ask` asks for that turn.
    pub(crate) fn turn(&self, ask: impl FnOnce()) -> impl Future<Output = ()> {
        let mut ask = Some(ask);
        poll_fn(move |cx| match ask.take() {
            Some(ask) => {
                self.yielded.borrow_mut().push(cx.waker().clone());
                ask();
                Poll::Pending
            }
            None => Poll::Ready(()),
        })
    }

    /// The turn has come.
    pub(crate) fn wake_yielded(&self) {
        for waker in self.yielded.take() {
            waker.wake();
        }
    }

    /// A ticket for an answer that is about to be asked for.
    pub(crate) fn ticket(&self) -> Ticket<'_> {
        let number = self.next_ticket.get();
        self.next_ticket.set(number.wrapping_add(1));
        self.answers.borrow_mut().insert(number, Awaited { waker: Waker::noop().clone(), answer: None });
        Ticket { waits: self, number }
    }

    /// An answer has come. Whoever asked may have stopped waiting.
    pub(crate) fn answered(&self, ticket: u64, places: Places) {
        if let Some(awaited) = self.answers.borrow_mut().get_mut(&ticket) {
            awaited.answer = Some(places);
            awaited.waker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_reaches_its_own_ticket_and_late_ones_nobody() {
        let waits = Waits::default();
        let (one, other) = (waits.ticket(), waits.ticket());
        let numbers = (one.number, other.number);
        let (mut one, mut other) = (pin!(one.answer()), Box::pin(other.answer()));
        assert!(poll(one.as_mut()).is_pending() && poll(other.as_mut()).is_pending());
        waits.answered(numbers.0, Some(Box::new([3])));
        assert_eq!(poll(one.as_mut()), Poll::Ready(Some(Box::from([3]))));
        assert!(poll(other.as_mut()).is_pending());
        drop(other);
        waits.answered(numbers.1, None);
        assert!(waits.answers.borrow().is_empty(), "what was answered or given up is forgotten");
    }

    #[test]
    fn a_turn_ends_after_it_was_asked_for_once() {
        let (waits, asked) = (Waits::default(), Cell::new(0));
        let mut turn = pin!(waits.turn(|| asked.set(asked.get() + 1)));
        assert!(poll(turn.as_mut()).is_pending());
        waits.wake_yielded();
        assert!(poll(turn.as_mut()).is_ready());
        assert_eq!(asked.get(), 1);
    }
}
