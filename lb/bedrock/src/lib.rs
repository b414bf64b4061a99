//! Amazon Bedrock for clients that speak OpenAI's chat completions: the pure part of a provider of type `Bedrock`.
//!
//! In order of a request: [`converse`] makes Converse's request of the client's and refuses what Converse does not have;
//! [`path`] names the model; [`sigv4`] signs; [`completion`] or, for streams, [`ChatStream`] (over [`frames`]) makes the answer
//! that OpenAI's clients read; [`Failure`] tells what an error means and whether trying again may help.
//!
//! Bytes in, bytes out: no sockets, no clock, no randomness. Nothing from outside makes it panic, and what it holds of a
//! stream is bounded by one frame. `Debug` and `Display` show neither prompts nor credentials.
#![forbid(unsafe_code)]

mod answer;
mod failure;
mod fields;
pub mod frames;
mod json;
mod refusal;
mod request;
pub mod sigv4;
mod stream;

pub use answer::{Completion, Reply, Usage, completion};
pub use failure::{Failure, Fault};
pub use fields::{FIELDS, Field, Treatment};
pub use frames::FRAME_BYTES_MAX;
pub use refusal::{Refusal, Retry};
pub use request::{Converse, Delivery, converse, path};
pub use stream::ChatStream;
