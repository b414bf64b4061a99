//! The whole request surface on real sockets: every interface besides chat, forms, compressed bodies, paths that nobody
//! knows, the memory that bodies may take, pings.
//!
//! Every test runs once for each I/O driver, in front of a server whose bytes the test says.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

#[macro_use]
#[path = "../gateway"]
#[allow(dead_code, unused_imports, reason = "shared with the gateway tests, which use the rest")]
mod gateway {
    #[macro_use]
    pub(crate) mod support;
}
use gateway::support;

mod backend;
mod budget;
mod encoding;
mod forms;
mod interfaces;
mod other_paths;
mod ping;
