//! A simulated vLLM server: the step model of an engine behind real sockets, with faults on command.
//!
//! - [`step`] is the pure model in virtual time: queue, batches, KV blocks, durations.
//! - [`Engine`] serves it over HTTP/1.1 as vLLM 0.32 does, byte for byte where a proxy could tell the difference.
//! - [`fault`] names what it can be told to do wrong.
//! - [`text`] and [`openai`] say what any request must be answered with, so that a client can verify every byte.
//!
//! It shares no code with what it tests.
#![forbid(unsafe_code)]

mod answer;
pub mod fault;
mod http;
pub mod kv_events;
mod metrics;
pub mod openai;
mod pages;
mod pump;
mod record;
mod serve;
pub mod step;
pub mod text;
mod tls;

pub use kv_events::KvEvents;
pub use record::{Outcome, RequestRecord, Stats};
pub use serve::{Embeddings, Engine, Settings};
pub use tls::Tls;
