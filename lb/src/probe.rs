//! Doors for micro-benchmarks and fuzzing: each takes bytes as a peer would send them and gives a number that depends on all
//! that was understood, so that no work can be left out. Not for use in the server.

use crate::http1::{ChunkedDecoder, Method, RequestHead, ResponseHead};
use crate::openai::response::{Content, Document};
use crate::openai::sse::EventReader;
use crate::openai::{Request, prompt};
use predictor::prefix::chain::Chain;

/// Parses a request head, and as a response head; bytes of what was found.
#[must_use]
pub fn heads(bytes: &[u8]) -> usize {
    let mut head = RequestHead::default();
    let request = match head.parse(bytes) {
        Ok(true) => {
            head.head_bytes + head.headers.iter(bytes).map(|(name, value)| name.len() + value.len()).sum::<usize>()
        }
        Ok(false) | Err(_) => 0,
    };
    let mut head = ResponseHead::default();
    match head.parse(bytes, Method::Get) {
        Ok(true) => request + head.head_bytes,
        Ok(false) | Err(_) => request,
    }
}

/// Parses a request head only; its length.
#[must_use]
pub fn request_head(head: &mut Head, bytes: &[u8]) -> usize {
    match head.0.parse(bytes) {
        Ok(true) => head.0.head_bytes,
        Ok(false) | Err(_) => 0,
    }
}

/// Memory for [`request_head`] that is used again.
#[derive(Debug, Default)]
pub struct Head(RequestHead);

/// Finds the routing fields of a body; a sum of their places.
#[must_use]
pub fn scan(body: &[u8]) -> usize {
    match Request::parse(body) {
        Ok(request) => {
            let of = |value: &Option<crate::openai::scan::Value>| value.as_ref().map_or(0, |value| value.range.end);
            request.model.len()
                + request.model_at.end
                + of(&request.messages)
                + of(&request.tools)
                + of(&request.prompt)
        }
        Err(_) => 0,
    }
}

/// Finds the fields and hashes the prompt; the number of blocks.
#[must_use]
pub fn chain(body: &[u8]) -> usize {
    match Request::parse(body) {
        Ok(request) => prompt::chain(&request, body, "model", 256, Chain::default()).blocks().len(),
        Err(_) => 0,
    }
}

/// Decodes chunked bytes given in two parts; bytes of payload.
#[must_use]
pub fn chunked(first: &[u8], second: &[u8]) -> usize {
    let mut decoder = ChunkedDecoder::default();
    let mut payload = 0;
    for part in [first, second] {
        if decoder.decode(part, |range| payload += range.len()).is_err() {
            return 0;
        }
    }
    payload
}

/// Reads a stream of events given in two parts as the observer does; events with content.
#[must_use]
pub fn events(first: &[u8], second: &[u8]) -> usize {
    let mut reader = EventReader::default();
    let mut content = 0;
    for part in [first, second] {
        reader.feed(part, |event| {
            let document = match event.data() {
                Some(data) => Document::parse(&event.bytes[data]),
                None => Document::parse(&event.joined_data()),
            };
            content += usize::from(document.is_some_and(|document| document.content != Content::None));
        });
        reader.bound();
    }
    content
}
