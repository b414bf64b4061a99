//! Doors of this room for fuzzing (see [`crate::probe`]): what was understood, as plain data.

use policy::Api;

use super::chunked::push_chunk_head;
use super::head::{BodyFraming, Headers, Method, RequestHead, ResponseHead, Version};
use super::rewrite::{request_headers, response_headers};
use super::{ChunkedDecoder, target};
use crate::local;
use crate::openai::request::api_of_path;

/// Header lines: names and values.
pub type Lines = Vec<(Vec<u8>, Vec<u8>)>;

/// How the end of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    /// This many bytes.
    Length(u64),
    /// Chunks.
    Chunked,
    /// All bytes until the connection ends.
    UntilClose,
}

/// A head that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The method, or the status code in decimal.
    pub first: Vec<u8>,
    /// The target, or the reason phrase.
    pub second: Vec<u8>,
    /// 0 or 1.
    pub minor_version: u8,
    /// Every line.
    pub lines: Lines,
    /// The lines that travel on.
    pub travelling: Lines,
    /// Bytes of the head.
    pub head_bytes: usize,
    /// Where the body ends.
    pub framing: Framing,
    /// The sender keeps the connection.
    pub keep_alive: bool,
    /// The sender waits for `100 Continue`.
    pub expects_continue: bool,
}

/// Reads the head of a request; `None` when it is not all there.
///
/// # Errors
/// Why it never becomes a good one.
pub fn request_head(bytes: &[u8]) -> Result<Option<Seen>, String> {
    let mut head = RequestHead::default();
    if !head.parse(bytes).map_err(|error| format!("{error:?}"))? {
        return Ok(None);
    }
    let mut travelling = Vec::new();
    request_headers(&head.headers, bytes, |_, name, value| travelling.push((name.to_vec(), value.to_vec())));
    Ok(Some(Seen {
        first: head.method_name.of(bytes).to_vec(),
        second: head.target.of(bytes).to_vec(),
        minor_version: minor(head.version),
        lines: lines(&head.headers, bytes),
        travelling,
        head_bytes: head.head_bytes,
        framing: framing(head.framing),
        keep_alive: head.keep_alive,
        expects_continue: head.expects_continue,
    }))
}

/// Reads the head of an answer to a request with the method `asked`; `None` when it is not all there.
///
/// # Errors
/// Why it never becomes a good one.
pub fn response_head(bytes: &[u8], asked: &str) -> Result<Option<Seen>, String> {
    let method = if asked == "HEAD" { Method::Head } else { Method::Post };
    let mut head = ResponseHead::default();
    if !head.parse(bytes, method).map_err(|error| format!("{error:?}"))? {
        return Ok(None);
    }
    let mut travelling = Vec::new();
    response_headers(&head.headers, bytes, |name, value| travelling.push((name.to_vec(), value.to_vec())));
    Ok(Some(Seen {
        first: head.status.to_string().into_bytes(),
        second: head.reason.of(bytes).to_vec(),
        minor_version: minor(head.version),
        lines: lines(&head.headers, bytes),
        travelling,
        head_bytes: head.head_bytes,
        framing: framing(head.framing),
        keep_alive: head.keep_alive,
        expects_continue: false,
    }))
}

fn minor(version: Version) -> u8 {
    match version {
        Version::Http10 => 0,
        Version::Http11 => 1,
    }
}

fn lines(headers: &Headers, bytes: &[u8]) -> Lines {
    headers.iter(bytes).map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

fn framing(framing: BodyFraming) -> Framing {
    match framing {
        BodyFraming::None => Framing::None,
        BodyFraming::Length(bytes) => Framing::Length(bytes),
        BodyFraming::Chunked => Framing::Chunked,
        BodyFraming::UntilClose => Framing::UntilClose,
    }
}

/// A decoder of the chunked coding.
#[derive(Debug, Clone, Default)]
pub struct Chunked {
    decoder: ChunkedDecoder,
}

impl Chunked {
    /// Appends the payload in `input` to `payload`; bytes taken.
    ///
    /// # Errors
    /// When the coding is broken.
    pub fn decode(&mut self, input: &[u8], payload: &mut Vec<u8>) -> Result<usize, &'static str> {
        self.decoder.decode(input, |range| payload.extend_from_slice(&input[range])).map_err(|error| error.0)
    }

    /// The body has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.decoder.is_done()
    }
}

/// `payload` as one chunk.
#[must_use]
pub fn chunk_of(payload: &[u8]) -> Vec<u8> {
    let mut chunk = Vec::new();
    push_chunk_head(&mut chunk, payload.len());
    chunk.extend_from_slice(payload);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// What a request target comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Without scheme and authority.
    pub origin_form: Vec<u8>,
    /// Without query and trailing slashes.
    pub path: Vec<u8>,
    /// The interface behind it.
    pub api: Api,
    /// What the upstream is asked for.
    pub upstream: Vec<u8>,
}

/// Reads a request target.
#[must_use]
pub fn target(bytes: &[u8]) -> Target {
    let origin_form = target::origin_form(bytes);
    let path = target::path_of(origin_form);
    let api = api_of_path(path);
    let upstream = target::upstream_target(api, origin_form, path).unwrap_or_else(|| origin_form.to_vec());
    Target { origin_form: origin_form.to_vec(), path: path.to_vec(), api, upstream }
}

/// The name of a model in a path, decoded.
#[must_use]
pub fn percent_decoded(raw: &[u8]) -> String {
    local::percent_decoded(raw)
}

/// A client's request id, where it may stand in a header and a log line.
#[must_use]
pub fn request_id(bytes: &[u8]) -> Option<String> {
    local::sane_request_id(bytes)
}
