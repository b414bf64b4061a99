//! The gateway's TLS listeners as a process, on real sockets: what clients with and without certificates see of them.
//!
//! Every test runs once for each I/O driver, as in the gateway's own tests, whose support is used here too.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

#[macro_use]
#[path = "../gateway/support.rs"]
#[allow(dead_code, unused_imports, reason = "the gateway's own tests use the rest")]
mod support;

mod callers;
mod listener;
mod pki;
mod refusals;
mod reload;
mod requests;
