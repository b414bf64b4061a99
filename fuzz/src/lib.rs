//! What must hold of every parser of bytes from outside, as one function per parser: it takes any bytes, and panics when
//! something does not hold. [`TARGETS`] is the list.
//!
//! The same bodies run in three ways: in the test command over the committed inputs (`corpus/NAME/`) and some thousand changed
//! ones (`tests/corpus.rs`), under libFuzzer with coverage for as long as one likes (`targets/`), and on one file, to look at a
//! finding. A body is a function of its bytes: choices come from them ([`input`]). What it compares with is written again,
//! slowly and obviously, or is another implementation.
//!
//! An input that failed once stays in the corpus, named for what it found.
#![forbid(unsafe_code)]

mod bedrock;
mod control;
mod documents;
mod http;
pub mod input;
mod json;
mod kv;
mod openai;
mod prompt;
mod stream;
mod tls;
mod token;
mod tokenize;

pub use bedrock::{aws_frames, converse_answer, converse_request, converse_stream};
pub use control::{access_log, admin, balancers, exposition, journal, learned, scrape};
pub use documents::{documents_in_force, server_file, values, yaml};
pub use http::{chunked, request_head, response_head, target};
pub use kv::{kv_event, kv_mirror, zmtp};
pub use openai::{document, form, json_scan, request, rewrites};
pub use prompt::{prompt, tags};
pub use stream::{coding, events, long_events, stream};
pub use tls::{certificate, tls_session};
pub use token::token;
pub use tokenize::tokenize;

/// A parser and what must hold of it.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the body, of its corpus folder and of its libFuzzer binary.
    pub name: &'static str,
    /// Panics when something does not hold.
    pub body: fn(&[u8]),
    /// Changed inputs that the test command tries: fewer where one takes long.
    pub mutations: usize,
}

macro_rules! targets {
    ($($name:ident: $mutations:literal,)*) => {
        &[$(Target { name: stringify!($name), body: $name, mutations: $mutations },)*]
    };
}

/// Every parser.
pub const TARGETS: &[Target] = targets! {
    request_head: 400,
    response_head: 400,
    chunked: 400,
    target: 400,
    json_scan: 400,
    request: 400,
    rewrites: 300,
    form: 400,
    prompt: 300,
    document: 400,
    events: 300,
    long_events: 10,
    stream: 100,
    coding: 100,
    scrape: 200,
    learned: 60,
    yaml: 200,
    documents_in_force: 60,
    server_file: 60,
    values: 400,
    exposition: 30,
    access_log: 300,
    journal: 300,
    admin: 60,
    tls_session: 10,
    certificate: 40,
    tags: 30,
    aws_frames: 100,
    converse_request: 400,
    converse_answer: 400,
    converse_stream: 100,
    token: 400,
    tokenize: 60,
    kv_event: 400,
    kv_mirror: 300,
    zmtp: 200,
    balancers: 400,
};
