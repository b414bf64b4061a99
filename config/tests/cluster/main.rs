//! A followed API server: what is handed out, what is written back, and every way a server can go wrong.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod support;

mod secrets;
mod statuses;
mod traps;
mod what_is_handed_out;
