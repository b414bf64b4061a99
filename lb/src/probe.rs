//! Doors for micro-benchmarks and fuzzing: each takes bytes as a peer would send them and gives a number that depends on all
//! that was understood, so that no work can be left out. Not for use in the server.

use config::Snapshot;
use policy::Api;

use crate::http1::{ChunkedDecoder, Method, RequestHead, ResponseHead};
use crate::log::Entry;
use crate::openai::response::{Content, Document};
use crate::openai::sse::EventReader;
use crate::openai::{Request, prompt};
use crate::tags::Tagger;
use predictor::prefix::chain::Chain;

pub use crate::body::door as body;
pub use crate::control::door as control;
pub use crate::decide::door as decide;
pub use crate::forward::door as forward;
pub use crate::http1::door as http1;
pub use crate::openai::door as openai;
pub use crate::tls::door as tls;

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

/// Names of a request as they may come from outside or from the configuration.
#[derive(Debug, Clone, Copy, Default)]
pub struct Names<'a> {
    /// The path asked for.
    pub path: &'a str,
    /// The model asked for.
    pub model: &'a str,
    /// The tenant.
    pub tenant: &'a str,
    /// A tag.
    pub tag: &'a str,
}

/// The line of the access log about a request with these names.
#[must_use]
pub fn access_log_line(names: &Names<'_>, time_unix_ms: u64, duration_us: u64) -> Vec<u8> {
    let entry = Entry {
        time_unix_ms,
        duration_us,
        ttft_us: Some(duration_us / 2),
        path: names.path.to_owned().into(),
        model: names.model.to_owned(),
        tenant: names.tenant,
        tags: vec![names.tag],
        outcome: "ok",
        ..Entry::default()
    };
    let mut line = Vec::new();
    entry.push(&mut line);
    line
}

/// The classifiers of the pools of a snapshot.
#[derive(Debug)]
pub struct Taggers {
    taggers: Vec<Tagger>,
}

impl Taggers {
    /// Compiles them.
    #[must_use]
    pub fn new(snapshot: &Snapshot) -> Self {
        Self { taggers: snapshot.pools.iter().map(|pool| Tagger::for_pool(snapshot, pool).0).collect() }
    }

    /// The tags of a body in each pool; nothing when there is no model to route by.
    #[must_use]
    pub fn tags(&self, api: Api, content_type: &[u8], body: &[u8]) -> Vec<Vec<String>> {
        let Ok(request) = Request::read(api, content_type, body) else { return Vec::new() };
        let of = |tagger: &Tagger| tagger.tags(api, &request, body).into_iter().map(str::to_owned).collect();
        self.taggers.iter().map(of).collect()
    }
}
