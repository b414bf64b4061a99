//! Load for OpenAI-compatible endpoints, and simulated engines to send it to.
//!
//! Reading order: [`workload`] makes requests, [`pace`] says when they are due, [`load`] sends them over [`http`] and
//! [`sse`], [`verify`] judges the answers, [`tally`] counts, [`report`] tells. [`chaos`] judges proxies by named faults. [`cli`] is the command line.
#![forbid(unsafe_code)]

pub mod chaos;
pub mod cli;
pub mod http;
pub mod load;
pub mod pace;
pub mod random;
pub mod replay;
pub mod report;
pub mod run;
pub mod simulate;
pub mod sse;
pub mod tally;
pub mod verify;
pub mod workload;
