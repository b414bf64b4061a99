//! Estimates: what is cached where, how busy each endpoint is, and how long the first token will take.
//!
//! Everything here is pure. Time comes in as `now_us` (monotonic microseconds of one clock), the seed comes in as a
//! number, and nothing reads a file, a socket or a global. One [`fleet::Fleet`] lives on each data thread; the threads
//! are replicas that apply the same events, so two of them that saw the same events believe the same things.
//!
//! Reading order: [`prefix::chain`] (a prompt becomes block hashes), [`prefix::index`] (which endpoint holds which
//! block), [`window`] (means over the last seconds), [`ledger`] (own requests per endpoint), [`ttft`] (the online
//! model), [`tokens`] (bytes to tokens), [`fleet`] (all of them behind one door).
#![forbid(unsafe_code)]

pub mod classify;
pub mod fleet;
pub mod kv_event;
pub mod kv_mirror;
pub mod ledger;
pub mod prefix;
pub mod tokens;
pub mod ttft;
pub mod window;
