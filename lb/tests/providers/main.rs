//! Hosted providers over HTTPS, as a process, on real sockets: what clients, providers and operators see.
//!
//! Every test runs once for each I/O driver, as in the gateway's own tests, whose support is used here too.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

#[macro_use]
#[path = "../gateway/support.rs"]
#[allow(dead_code, unused_imports, reason = "the gateway's own tests use the rest")]
mod support;

#[path = "../tls/pki.rs"]
#[allow(dead_code, reason = "the tests of listeners use the rest")]
mod pki;

mod bedrock;
mod classifiers;
mod failures;
mod hosted;
mod limits;
mod overflow;
mod requests;
mod server;
mod signature;
mod signed;
mod streams;
mod under_way;
