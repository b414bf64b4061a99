//! Answers of helper threads that exchanges of this data thread wait for.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::Answer;
use crate::shard::Shard;

/// Who waits for what, by the number of the ticket. As many as there are exchanges that wait.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    last: Cell<u64>,
    waiting: RefCell<HashMap<u64, Rc<Slot>>>,
}

#[derive(Debug, Default)]
struct Slot {
    answer: RefCell<Option<Answer>>,
    answered: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Awaited {
    /// An answer has come. Nobody may be waiting for it any more.
    pub(crate) fn arrived(&self, ticket: u64, answer: Answer) {
        let Some(slot) = self.waiting.borrow().get(&ticket).cloned() else { return };
        *slot.answer.borrow_mut() = Some(answer);
        slot.answered.set(true);
        if let Some(waker) = slot.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// A place for one answer. Dropped, it is waited for no more.
pub(crate) struct Ticket {
    shard: Rc<Shard>,
    number: u64,
    slot: Rc<Slot>,
}

impl Ticket {
    pub(crate) fn new(shard: &Rc<Shard>) -> Self {
        let awaited = &shard.awaited;
        let number = awaited.last.get().wrapping_add(1);
        awaited.last.set(number);
        let slot = Rc::<Slot>::default();
        awaited.waiting.borrow_mut().insert(number, slot.clone());
        Self { shard: shard.clone(), number, slot }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Waits for the answer.
    pub(crate) async fn answered(&self) {
        poll_fn(|cx| {
            if self.slot.answered.get() {
                return Poll::Ready(());
            }
            *self.slot.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The answer, once; `None` while there is none.
    pub(crate) fn take(&self) -> Option<Answer> {
        self.slot.answer.borrow_mut().take()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shard.awaited.waiting.borrow_mut().remove(&self.number);
    }
}
