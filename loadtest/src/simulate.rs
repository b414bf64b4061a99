//! A fleet in virtual time: traces against simulated engines, under the product's own decisions, those of other routers,
//! and an oracle that sees everything.
//!
//! Nothing here waits: a step of an engine is an event, thousands of requests pass in a second of wall time, and the same
//! seed gives the same run. The engines are those of `loadtest engine` ([`engine::step`]); Kinference's choice is its own
//! fleet of beliefs and its policy's decision, not a copy of them.

pub mod bars;
pub mod cells;
pub mod ours;
pub mod page;
pub mod pods;
pub mod router;
pub mod run;
pub mod summary;
pub mod trace;
