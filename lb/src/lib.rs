//! The data plane and the server around it: everything that touches the kernel, the clock or the network.
//!
//! Reading order: `server` (threads), `shard` (one data thread), `conn` (one client connection), `exchange` (one request in
//! eight steps), then the rooms each step enters.

mod allowance;
mod ask;
mod attempt;
mod body;
mod charge;
pub mod cli;
mod conn;
mod control;
mod decide;
mod decisions;
mod endpoints;
mod error;
mod exact;
mod exchange;
mod flight;
mod forward;
mod handover;
mod http1;
mod io;
mod keyring;
mod local;
mod log;
mod mailbox;
mod metrics;
mod openai;
mod pace;
mod peer;
mod plan;
#[doc(hidden)]
pub mod probe;
mod provider;
mod queue;
mod quota;
mod record;
mod routed;
mod server;
mod settings;
mod shard;
mod sys;
mod tags;
mod tenant;
mod time;
mod tls;
mod upstream;
mod verdict;
mod waits;

pub use io::{Driver, DriverInUse};

/// Microseconds of the process clock: monotonic, the same on every thread.
pub(crate) fn clock_us() -> u64 {
    io::now_us()
}
