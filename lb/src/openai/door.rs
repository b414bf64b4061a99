//! Doors of this room for fuzzing (see [`crate::probe`]): what was understood, as plain data.

use std::ops::Range;

use policy::{Api, Rewrite};
use predictor::prefix::chain::Chain;

use super::edit::{Edits, usage_asked};
use super::prompt::{self, Media, Piece};
use super::request::{Delivery, Purpose, Request, has_stream_options};
use super::response::{Content, Document};
use super::sse::{Event, EventReader};
use super::{form, scan};
use crate::io::Out;

/// A member of an object: its raw key, and where its value stands.
pub type Member = (Vec<u8>, Range<usize>);

/// The members of the object at the start of `json`, and where it stands.
#[must_use]
pub fn members(json: &[u8]) -> Option<(Range<usize>, Vec<Member>)> {
    let mut found = Vec::new();
    let whole = scan::members(json, 0..json.len(), |key, value| found.push((key.to_vec(), value.outer())))?;
    Some((whole, found))
}

/// Where the elements of the array at the start of `json` stand.
#[must_use]
pub fn elements(json: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut found = Vec::new();
    scan::elements(json, 0..json.len(), |value| found.push(value.outer()))?;
    Some(found)
}

/// The text of a string's raw content.
#[must_use]
pub fn unescape(raw: &[u8]) -> String {
    scan::unescape(raw).into_owned()
}

/// `text` as a JSON string.
#[must_use]
pub fn json_string(text: &str) -> Vec<u8> {
    let mut json = Vec::new();
    scan::push_json_string(&mut json, text);
    json
}

/// The value of every field of a form that is not a file: its name and where it stands.
#[must_use]
pub fn form_fields(content_type: &[u8], body: &[u8]) -> Option<Vec<Member>> {
    let mut found = Vec::new();
    form::fields(body, form::boundary(content_type)?, |name, value| found.push((name.to_vec(), value)))?;
    Some(found)
}

/// The boundary that a `Content-Type` names.
#[must_use]
pub fn form_boundary(content_type: &[u8]) -> Option<&[u8]> {
    form::boundary(content_type)
}

/// What routing needs of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routing {
    /// The model asked for.
    pub model: String,
    /// Where it stands.
    pub model_at: Range<usize>,
    /// The answer is to be streamed.
    pub streamed: bool,
    /// Usage is asked for in the stream.
    pub includes_usage: bool,
    /// Longest answer in tokens.
    pub output_tokens_max: Option<u64>,
}

/// Reads a body.
///
/// # Errors
/// Why there is no model to route by.
pub fn routing(api: Api, content_type: &[u8], body: &[u8]) -> Result<Routing, String> {
    let request = Request::read(api, content_type, body).map_err(|error| format!("{error:?}"))?;
    Ok(Routing {
        includes_usage: request.includes_usage(body),
        streamed: request.delivery == Delivery::Streamed,
        model_at: request.model_at,
        model: request.model,
        output_tokens_max: request.output_tokens_max,
    })
}

/// A piece of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// What follows is said by this role.
    By(String),
    /// Text.
    Text(String),
    /// Raw JSON, or the text of a form.
    Raw(Vec<u8>),
    /// An item that is no text, of this kind.
    Item(String, Vec<u8>),
    /// A raw array of token ids.
    TokenIds(Vec<u8>),
}

/// The pieces of a prompt, in order.
#[must_use]
pub fn prompt(api: Api, content_type: &[u8], body: &[u8]) -> Option<Vec<Said>> {
    let request = Request::read(api, content_type, body).ok()?;
    let mut pieces = Vec::new();
    prompt::walk(&request, body, &mut |piece| {
        pieces.push(match piece {
            Piece::Turn(role) | Piece::Again(role) => Said::By(format!("{role:?}")),
            Piece::Text(raw) => Said::Text(scan::unescape(raw).into_owned()),
            Piece::Plain(raw) | Piece::Json(raw) => Said::Raw(raw.to_vec()),
            Piece::Media(kind, raw) => Said::Item(
                match kind {
                    Media::Image => String::from("image"),
                    Media::Audio => String::from("audio"),
                    Media::Other => String::from("other"),
                },
                raw.to_vec(),
            ),
            Piece::TokenIds(raw) => Said::TokenIds(raw.to_vec()),
        });
    });
    Some(pieces)
}

/// The prefix chain of a body, in the memory of `recycled`.
#[must_use]
pub fn chain(api: Api, content_type: &[u8], body: &[u8], recycled: Chain) -> Option<Chain> {
    let request = Request::read(api, content_type, body).ok()?;
    Some(prompt::chain(&request, body, "model", 256, recycled))
}

/// The body as it is sent to a server that knows the model as `upstream_model`, and the length that is told of it.
#[must_use]
pub fn edited(api: Api, content_type: &[u8], body: &[u8], upstream_model: &str) -> Option<(Vec<u8>, usize)> {
    let request = Request::read(api, content_type, body).ok()?;
    let usage = usage_asked(&request, body, has_stream_options(api));
    let edits = Edits::new(&request, body, upstream_model, usage);
    let mut out = Out::default();
    out.data().extend(body);
    edits.push(&mut out, 0..body.len());
    Some((out.slices().collect::<Vec<_>>().concat(), edits.body_bytes(body.len())))
}

/// The body of a chat with the parameters that a rule changes.
#[must_use]
pub fn rewritten(body: &[u8], rewrites: &[Rewrite]) -> Option<Vec<u8>> {
    let api = Api::ChatCompletions;
    let request = Request { purpose: Purpose::Generate, ..Request::parse(body).ok()? };
    let usage = usage_asked(&request, body, true);
    let edits = Edits::new(&request, body, &request.model, usage).rewriting(rewrites, api, &request, body);
    let mut out = Out::default();
    out.data().extend(body);
    edits.push(&mut out, 0..body.len());
    Some(out.slices().collect::<Vec<_>>().concat())
}

/// The number that the requests of one conversation share.
#[must_use]
pub fn conversation(body: &[u8], tenant: &str) -> Option<u64> {
    prompt::conversation(&Request::parse(body).ok()?, body, tenant)
}

/// What was read of one document of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// Where the model's name stands.
    pub model_at: Option<Range<usize>>,
    /// Tokens of the prompt, of the answer, and cached, where usage is told.
    pub usage: Option<[Option<u64>; 3]>,
    /// There is output in it.
    pub output: bool,
    /// `choices` is there and empty.
    pub choices_empty: bool,
    /// It tells of an error.
    pub is_error: bool,
}

/// Reads one document of an answer; `None` when it is no object.
#[must_use]
pub fn document(json: &[u8]) -> Option<Answered> {
    Document::parse(json).map(answered)
}

/// Reads the model and the usage of an answer that is one document; `None` when it has none.
#[must_use]
pub fn frame(json: &[u8]) -> Option<Answered> {
    Document::parse_frame(json).map(answered)
}

fn answered(document: Document) -> Answered {
    Answered {
        usage: document.usage.map(|usage| [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens]),
        output: document.content != Content::None,
        choices_empty: document.choices_empty,
        is_error: document.is_error,
        model_at: document.model_at,
    }
}

/// Reads a stream of events, as the observer does.
#[derive(Debug, Default)]
pub struct Events {
    reader: EventReader,
}

impl Events {
    /// Reads what came next; calls `each` with every event that ends in it, and its data.
    pub fn feed(&mut self, payload: &[u8], mut each: impl FnMut(&[u8], Vec<u8>)) {
        self.reader.feed(payload, |event| each(event.bytes, data_of(&event)));
        self.reader.bound();
    }

    /// What has come of an event that is not over.
    #[must_use]
    pub fn carried(&self) -> &[u8] {
        self.reader.carried()
    }
}

fn data_of(event: &Event<'_>) -> Vec<u8> {
    match event.data() {
        Some(data) => event.bytes[data].to_vec(),
        None => event.joined_data(),
    }
}
