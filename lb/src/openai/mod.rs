//! The OpenAI protocol, as far as a balancer must understand it: the few request fields it needs, the text of the prompt,
//! the events of a stream, the usage. Bodies are looked at in place and never re-serialised.

pub mod door;
pub(crate) mod edit;
pub(crate) mod form;
pub(crate) mod prompt;
mod quote;
pub(crate) mod request;
pub(crate) mod response;
mod rewrite;
pub(crate) mod scan;
pub(crate) mod sse;

pub(crate) use request::Request;
pub(crate) use response::Usage;
