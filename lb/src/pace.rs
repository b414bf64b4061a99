//! Long work in turns: after every stretch of it the other requests of the thread go on, so that a long prompt costs its own time only.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::shard::Shard;

/// Classified bytes after which others go on: some 30 us, ten times that on text made to be slow.
const STRETCH_BYTES: usize = predictor::classify::SLICE_BYTES;

/// Bytes that are searched, hashed or checked in the time that it takes to classify one.
const SEARCHED_WHILE_ONE_IS_CLASSIFIED: usize = 16;

/// Who else waits.
#[derive(Clone, Copy)]
pub(crate) enum Pace<'s> {
    /// Nobody: a command, a test, a short prompt.
    AtOnce,
    /// The other requests of a data thread.
    Turns(&'s Shard),
}

/// Lets others go on when enough has been done since they last did.
pub(crate) struct Breath<'s> {
    pace: Pace<'s>,
    bytes: usize,
}

impl<'s> Breath<'s> {
    pub(crate) fn new(pace: Pace<'s>) -> Self {
        Self { pace, bytes: 0 }
    }

    pub(crate) fn pace(&self) -> Pace<'s> {
        self.pace
    }

    /// After so many bytes have been classified, or decoded.
    pub(crate) async fn after(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes < STRETCH_BYTES {
            return;
        }
        self.bytes = 0;
        match self.pace {
            Pace::AtOnce => {}
            Pace::Turns(shard) => shard.yield_now().await,
        }
    }

    /// After so many bytes have been searched, hashed or checked.
    pub(crate) async fn after_search(&mut self, bytes: usize) {
        self.after(bytes / SEARCHED_WHILE_ONE_IS_CLASSIFIED).await;
    }
}

/// What a future gives that waits for nothing; `None` when it waits all the same.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
