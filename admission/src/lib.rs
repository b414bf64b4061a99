//! Who may come in, how much, and in which order: rate limits of callers ([`Account`]), signed tokens ([`jwt`]), and the
//! queue of requests that wait for room ([`FairQueue`]).
//!
//! Pure: no I/O, no clock, no runtime. Time comes in as an argument, in nanoseconds of any monotonic clock or in seconds since
//! 1970, so that every rule here can be tested at any moment. The one thing shared between threads is an [`Account`], by
//! atomics and without a lock.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod account;
mod bucket;
pub mod jwt;
mod queue;

pub use account::{Account, Admitted, Exceeded, Limits, Standing};
pub use bucket::{Bucket, Level, Rate};
pub use queue::{FairQueue, Ticket};
