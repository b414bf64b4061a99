//! The gateway as a process, on real sockets, in front of simulated engines: what clients, engines and operators see of it.
//!
//! Every test runs once for each I/O driver. Where the kernel refuses io_uring, its half is passed over with a note.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

#[macro_use]
mod support;

mod balancers;
mod beliefs;
mod changes;
#[cfg(feature = "kubernetes")]
mod cluster;
mod config_reload;
mod decisions;
mod exact;
mod faults;
mod handover;
mod http;
mod kv_events;
mod limits;
mod policies;
mod shutdown;
mod spread;
mod stream;
mod tags;
mod upstream;
