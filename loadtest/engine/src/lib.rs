//! A simulated vLLM server.
#![forbid(unsafe_code)]

pub mod step;
