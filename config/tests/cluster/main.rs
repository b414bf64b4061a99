//! A followed API server: what is handed out, what is written back, and every way a server can go wrong.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test waits for one kind of news")]
#![allow(clippy::needless_pass_by_value, reason = "objects are written where they are used")]

mod support;

mod secrets;
mod statuses;
mod traps;
mod what_is_handed_out;
