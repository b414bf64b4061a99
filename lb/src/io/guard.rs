//! A panic in one task must not take the thread down, nor go unnoticed.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs `task`; `Err` when it panicked (the panic hook has said where).
pub(crate) fn catching<F: Future<Output = ()>>(task: F) -> Catching<F> {
    Catching { task }
}

/// The task ended by a panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

/// See [`catching`]. It is to be awaited once.
#[derive(Debug)]
pub(crate) struct Catching<F> {
    task: F,
}

impl<F: Future<Output = ()>> Future for Catching<F> {
    type Output = Result<(), Panicked>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: the task is pinned with `self` and is only ever dropped in place, never moved.
        let running = unsafe { self.map_unchecked_mut(|this| &mut this.task) };
        // What a panic may leave half-done is this task's own; shared state is borrowed only between two awaits, and a
        // broken borrow of it shows as another panic, not as wrong data.
        match catch_unwind(AssertUnwindSafe(|| running.poll(cx))) {
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Ok(Poll::Pending) => Poll::Pending,
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    }
}
