//! From the first byte of an answer to its end: bytes through, the observer reads along.
//!
//! A whole document is collected (within a bound), read, and sent with its model name replaced. A stream goes through as it
//! comes: each received buffer is sent at once, as it is where nothing in it must change, else as chunks of ours whose
//! pieces still are ranges of that buffer.

use std::ops::Range;
use std::rc::Rc;

use crate::conn::{Client, LocalAnswer, push_connection, push_error_event, push_status_line};
use crate::error::{Refused, UpstreamError};
use crate::exchange::After;
use crate::http1::chunked::push_chunk_head;
use crate::http1::rewrite::{push_decimal, push_header, response_headers};
use crate::http1::{BodyFraming, ChunkedDecoder, ResponseHead, Version};
use crate::io::{self, Buf, Conn, SizeClass, Stop, until};
use crate::openai::edit::UsageAsked;
use crate::openai::response::{Content, Document};
use crate::openai::scan::push_json_string;
use crate::openai::sse::{Event, EventReader, Place};
use crate::openai::Usage;
use crate::shard::Shard;
use crate::upstream::Answer;

/// Longest document that is collected to be read; a longer one passes unread.
const DOCUMENT_BYTES_MAX: usize = config::limits::RESPONSE_DOCUMENT_BYTES_MAX;

/// How the answer is shown to the client.
#[derive(Debug)]
pub(crate) struct Presentation {
    /// The name to show in place of the upstream's; `None` shows what came.
    pub(crate) model_shown: Option<String>,
    pub(crate) usage_asked: UsageAsked,
    pub(crate) request_id: String,
    /// `x-kinference-...` lines, ready to be sent.
    pub(crate) decision_headers: Vec<u8>,
    /// Whether the client connection may be kept.
    pub(crate) after: After,
    /// The answer has no body (HEAD).
    pub(crate) head_only: bool,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Forwarded {
    pub(crate) end: End,
    pub(crate) usage: Usage,
    pub(crate) response_bytes: u64,
    /// When the first output came, on the process clock; streamed answers only.
    pub(crate) first_content_us: Option<u64>,
    /// The upstream connection, when it can be used again.
    pub(crate) reusable: Option<Conn>,
    pub(crate) after: After,
    /// The status that the client saw, where it is not the upstream's.
    pub(crate) replaced_status: Option<u16>,
}

/// How the answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// In full.
    Complete,
    /// In full, and it was an error event of the engine.
    ErrorEvent,
    /// The upstream ended early.
    Truncated(Cut),
    /// The client left.
    ClientGone,
}

/// What cut an answer off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The connection ended.
    Reset,
    /// Silence.
    Silent,
    /// Bytes that are not HTTP.
    Garbled,
}

/// Sends the answer to the client. `first_content` is called when the first output is seen.
pub(crate) async fn forward(
    shard: &Rc<Shard>,
    client: &mut Client,
    answer: Answer,
    shown: &Presentation,
    idle_timeout: std::time::Duration,
    first_content: impl FnMut(u64),
) -> Forwarded {
    let Answer { conn, head, mut received } = answer;
    let kind = content_kind(&head, &received);
    let pass = Pass {
        shard,
        client,
        conn,
        shown,
        idle_timeout,
        source: Source::new(head.framing),
        upstream_keeps: head.keep_alive,
        sink: Sink::Nothing,
        observer: Observer::new(kind, shown),
        usage: Usage::default(),
        first_content_us: None,
        first_content,
        response_bytes: 0,
        after: shown.after,
        kept: Vec::new(),
        texts: Vec::new(),
        head_lines: head_lines(&head, &received, shown),
        verbatim_end: false,
        replaced_status: None,
    };
    let told_length = head.headers.first(&received, "content-length").and_then(|v| std::str::from_utf8(v).ok()?.parse().ok());
    received.consume(head.head_bytes);
    if head.framing == BodyFraming::None {
        // To HEAD and 304 the length of what would have been sent may be told; else there simply is none.
        let length = if shown.head_only || head.status == 304 { told_length } else { (head.status != 204).then_some(0) };
        pass.stream(Buf::default(), BodyRead::Bodiless(length)).await
    } else if kind == Kind::Document && !is_longer(&pass.source, DOCUMENT_BYTES_MAX) {
        pass.document(received).await
    } else {
        pass.stream(received, BodyRead::NotYet).await
    }
}

fn is_longer(source: &Source, bytes_max: usize) -> bool {
    match source {
        Source::Length(n) => *n > bytes_max as u64,
        Source::Nothing | Source::Chunked(_) | Source::UntilClose => false,
    }
}

/// The status line and all lines that do not depend on how the body is framed.
fn head_lines(head: &ResponseHead, bytes: &[u8], shown: &Presentation) -> Vec<u8> {
    let mut lines = Vec::with_capacity(512);
    push_status_line(&mut lines, head.status, head.reason.of(bytes));
    response_headers(&head.headers, bytes, |name, value| push_header(&mut lines, name, value));
    push_header(&mut lines, b"x-request-id", shown.request_id.as_bytes());
    lines.extend_from_slice(&shown.decision_headers);
    lines
}

/// Whether the first bytes of a streamed body are still to be read.
#[derive(Debug, Clone, Copy)]
enum BodyRead {
    /// They are as they were received.
    NotYet,
    /// They are payload, collected before.
    Already,
    /// There is no body; perhaps a length is told all the same.
    Bodiless(Option<u64>),
}

/// What the body is, by `Content-Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Events,
    Document,
    Opaque,
}

fn content_kind(head: &ResponseHead, bytes: &[u8]) -> Kind {
    let value = head.headers.first(bytes, "content-type").unwrap_or_default();
    let media = value.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
    let encoded = head.headers.first(bytes, "content-encoding").is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity"));
    if encoded {
        Kind::Opaque
    } else if media.eq_ignore_ascii_case(b"text/event-stream") {
        Kind::Events
    } else if media.eq_ignore_ascii_case(b"application/json") {
        Kind::Document
    } else {
        Kind::Opaque
    }
}

/// Where the body ends, as the upstream tells it.
#[derive(Debug)]
enum Source {
    Nothing,
    Length(u64),
    Chunked(ChunkedDecoder),
    UntilClose,
}

impl Source {
    fn new(framing: BodyFraming) -> Self {
        match framing {
            BodyFraming::None => Self::Nothing,
            BodyFraming::Length(n) => Self::Length(n),
            BodyFraming::Chunked => Self::Chunked(ChunkedDecoder::default()),
            BodyFraming::UntilClose => Self::UntilClose,
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Length(left) => *left == 0,
            Self::Chunked(decoder) => decoder.is_done(),
            Self::UntilClose => false,
        }
    }

    /// Calls `payload` with the ranges of body bytes in `raw`; the number of bytes of `raw` that belong to the body.
    fn read(&mut self, raw: &[u8], mut payload: impl FnMut(Range<usize>)) -> Result<usize, Cut> {
        match self {
            Self::Nothing => Ok(0),
            Self::Length(left) => {
                let n = (*left).min(raw.len() as u64);
                *left -= n;
                payload(0..n as usize);
                Ok(n as usize)
            }
            Self::Chunked(decoder) => decoder.decode(raw, payload).map_err(|_| Cut::Garbled),
            Self::UntilClose => {
                payload(0..raw.len());
                Ok(raw.len())
            }
        }
    }

    fn is_between_chunks(&self) -> bool {
        match self {
            Self::Chunked(decoder) => decoder.is_between_chunks(),
            Self::Nothing | Self::Length(_) | Self::UntilClose => true,
        }
    }
}

/// Where the body ends, as we tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    Nothing,
    Length(u64),
    Chunked,
    UntilClose,
}

/// A piece of payload to be sent.
#[derive(Debug)]
enum Kept {
    /// A range of the received buffer.
    Received(Range<usize>),
    /// A range of `texts`.
    Text(Range<usize>),
}

impl Kept {
    fn len(&self) -> usize {
        match self {
            Self::Received(range) | Self::Text(range) => range.len(),
        }
    }
}

#[derive(Debug)]
enum Observer {
    Events(Events),
    Unread,
}

/// Reads a stream of events, and says what of it is shown.
#[derive(Debug)]
struct Events {
    reader: EventReader,
    /// Events are held back until they are whole, because some are changed or not shown.
    edits: Edits,
    saw_error: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edits {
    None,
    Some,
}

impl Observer {
    fn new(kind: Kind, shown: &Presentation) -> Self {
        match kind {
            Kind::Events => Self::Events(Events {
                reader: EventReader::default(),
                edits: match (&shown.model_shown, shown.usage_asked) {
                    (None, UsageAsked::ByClient) => Edits::None,
                    (Some(_), _) | (_, UsageAsked::ByUs) => Edits::Some,
                },
                saw_error: false,
            }),
            Kind::Document | Kind::Opaque => Self::Unread,
        }
    }
}

struct Pass<'a, F> {
    shard: &'a Rc<Shard>,
    client: &'a mut Client,
    conn: Conn,
    shown: &'a Presentation,
    idle_timeout: std::time::Duration,
    source: Source,
    upstream_keeps: bool,
    sink: Sink,
    observer: Observer,
    usage: Usage,
    first_content_us: Option<u64>,
    first_content: F,
    response_bytes: u64,
    after: After,
    kept: Vec<Kept>,
    texts: Vec<u8>,
    /// See [`head_lines`].
    head_lines: Vec<u8>,
    /// The end of the body went out with the bytes received.
    verbatim_end: bool,
    /// The status that went out instead of the upstream's.
    replaced_status: Option<u16>,
}

/// What a receive brought.
enum Received {
    Some(Buf),
    /// The upstream closed.
    End,
    Silent,
    ClientGone,
}

impl<F: FnMut(u64)> Pass<'_, F> {
    async fn receive(&mut self, buf: Buf) -> Received {
        let watch = self.conn.watch_shared();
        watch.arm(self.idle_timeout);
        let before = buf.len();
        match until(self.conn.recv(buf), Some(self.client.conn.watch()), &watch).await {
            Ok((Ok(_), buf)) if buf.len() > before => Received::Some(buf),
            Ok(_) => Received::End,
            Err(Stop::Gone) => Received::ClientGone,
            Err(Stop::TimedOut) => Received::Silent,
        }
    }

    fn finish(self, end: End) -> Forwarded {
        let whole = matches!(end, End::Complete | End::ErrorEvent) && self.source.is_done();
        let reusable = (whole && self.upstream_keeps).then_some(self.conn);
        let (usage, response_bytes, first_content_us) = (self.usage, self.response_bytes, self.first_content_us);
        Forwarded { end, usage, response_bytes, first_content_us, reusable, after: self.after, replaced_status: self.replaced_status }
    }

    /// Appends the head to `client.out`.
    fn put_head(&mut self) {
        let version = self.client.head.version;
        if self.sink == Sink::UntilClose && self.after == After::KeepAlive {
            self.after = After::Close;
        }
        let (sink, after, lines) = (self.sink, self.after, &self.head_lines);
        self.client.out.small_with(|to| {
            to.extend_from_slice(lines);
            match sink {
                Sink::Length(n) => {
                    to.extend_from_slice(b"content-length: ");
                    push_decimal(to, n);
                    to.extend_from_slice(b"\r\n");
                }
                Sink::Chunked => to.extend_from_slice(b"transfer-encoding: chunked\r\n"),
                Sink::Nothing | Sink::UntilClose => {}
            }
            push_connection(to, version, after);
            to.extend_from_slice(b"\r\n");
        });
    }

    async fn send(&mut self) -> Result<(), End> {
        self.response_bytes += self.client.out.len() as u64;
        let timeout = self.shard.settings.client_idle_timeout;
        self.client.send(timeout).await.map_err(|_| End::ClientGone)
    }

    // ---- whole documents ----

    /// `received` is what came of the body already.
    async fn document(mut self, mut received: Buf) -> Forwarded {
        let mut body = Buf::default();
        if let Source::Length(bytes) = self.source {
            body = Buf::with_room(usize::try_from(bytes).unwrap_or(0).min(DOCUMENT_BYTES_MAX));
        }
        loop {
            let collected = &mut body;
            match self.source.read(&received, |range| collected.extend(&received[range])) {
                // Bytes behind the end of the body: the connection cannot be trusted any more.
                Ok(n) if n < received.len() => self.upstream_keeps = false,
                Ok(_) => {}
                Err(cut) => return self.cut_off(cut).await,
            }
            if self.source.is_done() {
                return self.send_document(body).await;
            }
            if body.len() > DOCUMENT_BYTES_MAX {
                return self.stream(body, BodyRead::Already).await;
            }
            received.clear();
            if received.room() == 0 || body.len() > SizeClass::Medium.bytes() {
                received = Buf::pooled(SizeClass::Large);
            }
            received = match self.receive(received).await {
                Received::Some(buf) => buf,
                Received::End if matches!(self.source, Source::UntilClose) => {
                    self.upstream_keeps = false;
                    return self.send_document(body).await;
                }
                Received::End => return self.cut_off(Cut::Reset).await,
                Received::Silent => return self.cut_off(Cut::Silent).await,
                Received::ClientGone => return self.finish(End::ClientGone),
            };
        }
    }

    async fn send_document(mut self, body: Buf) -> Forwarded {
        let document = Document::parse(&body).unwrap_or_default();
        if let Some(usage) = document.usage {
            self.usage.merge(usage);
        }
        let renamed = self.shown.model_shown.as_deref().zip(document.model_at);
        self.client.out.clear();
        let mut text = Vec::new();
        let (bytes, at) = match renamed {
            Some((name, at)) => {
                push_json_string(&mut text, name);
                (body.len() - at.len() + text.len(), at)
            }
            None => (body.len(), 0..0),
        };
        self.sink = Sink::Length(bytes as u64);
        self.put_head();
        let out = &mut self.client.out;
        out.push_data(0..at.start);
        out.push_small(&text);
        out.push_data(at.end..body.len());
        out.data = body;
        match self.send().await {
            Ok(()) => self.finish(End::Complete),
            Err(end) => self.finish(end),
        }
    }

    /// The upstream failed before anything of the document was sent: the client gets an error instead.
    async fn cut_off(mut self, cut: Cut) -> Forwarded {
        let refused = Refused::Upstream(match cut {
            Cut::Reset => UpstreamError::Reset,
            Cut::Silent => UpstreamError::Timeout,
            Cut::Garbled => UpstreamError::BadAnswer,
        });
        let mut body = Vec::new();
        refused.push_body(&mut body);
        let request_id = self.shown.request_id.clone();
        let headers = [("x-request-id", request_id.as_bytes())];
        let answer =
            LocalAnswer { status: refused.status(), body: &body, headers: &headers, after: self.after, with_body: true };
        self.client.put_answer(&answer);
        self.replaced_status = Some(refused.status());
        match self.send().await {
            Ok(()) => self.finish(End::Truncated(cut)),
            Err(end) => self.finish(end),
        }
    }

    // ---- streams ----

    /// `received` is what came of the body already: as it came, or read already.
    async fn stream(mut self, mut received: Buf, state: BodyRead) -> Forwarded {
        self.client.out.clear();
        self.sink = self.stream_sink(state);
        self.put_head();
        if let BodyRead::Already = state {
            self.kept.clear();
            self.kept.push(Kept::Received(0..received.len()));
            self.put_kept();
            self.client.out.data = received;
            received = Buf::default();
        }
        let mut begun = false;
        loop {
            if !received.is_empty()
                && let Err(cut) = self.put_received(received)
            {
                // While the client has not been sent a byte, it gets a plain error.
                return if begun { self.break_off(cut).await } else { self.cut_off(cut).await };
            }
            let done = self.source.is_done();
            if done && self.sink == Sink::Chunked && !self.verbatim_end {
                self.client.out.push_small(b"0\r\n\r\n");
            }
            if !self.client.out.is_empty()
                && let Err(end) = self.send().await
            {
                return self.finish(end);
            }
            begun = true;
            if done {
                let end = if self.observer.saw_error() { End::ErrorEvent } else { End::Complete };
                return self.finish(end);
            }
            let buf = self.next_buffer();
            received = match self.receive(buf).await {
                Received::Some(buf) => buf,
                Received::End if matches!(self.source, Source::UntilClose) => {
                    self.source = Source::Nothing;
                    self.upstream_keeps = false;
                    Buf::default()
                }
                Received::End => return self.break_off(Cut::Reset).await,
                Received::Silent => return self.break_off(Cut::Silent).await,
                Received::ClientGone => return self.finish(End::ClientGone),
            };
        }
    }

    fn stream_sink(&self, state: BodyRead) -> Sink {
        let framed = match (&self.source, self.client.head.version) {
            (Source::Length(left), _) if self.observer.edits() == Edits::None => Sink::Length(*left),
            (_, Version::Http11) => Sink::Chunked,
            (_, Version::Http10) => Sink::UntilClose,
        };
        match state {
            BodyRead::Bodiless(length) => length.map_or(Sink::Nothing, Sink::Length),
            BodyRead::NotYet | BodyRead::Already => framed,
        }
    }

    /// The buffer for the next receive: that of the last one where its size still fits.
    fn next_buffer(&mut self) -> Buf {
        let mut last = std::mem::take(&mut self.client.out.data);
        let (len, capacity) = (last.len(), last.len() + last.room());
        self.client.out.clear();
        let class = if len > 0 && len == capacity {
            SizeClass::larger_than(capacity)
        } else if len * 4 <= SizeClass::Small.bytes() {
            SizeClass::Small
        } else {
            SizeClass::Medium
        };
        if capacity == class.bytes() {
            last.clear();
            return last;
        }
        Buf::pooled(class)
    }

    /// Reads a received buffer and puts what is shown of it into `client.out`.
    fn put_received(&mut self, received: Buf) -> Result<(), Cut> {
        self.kept.clear();
        self.texts.clear();
        let was_between = self.source.is_between_chunks();
        let held_back = self.observer.holds_back();
        let mut shows_all = was_between && !held_back;
        let (observer, kept, texts) = (&mut self.observer, &mut self.kept, &mut self.texts);
        let mut seen = Seen::default();
        let mut reading = Reading { shown: self.shown, raw: &received, kept, texts, seen: &mut seen };
        let taken = self.source.read(&received, |range| observer.read(&mut reading, range))?;
        if self.source.is_done()
            && let Observer::Events(events) = &mut self.observer
            && events.edits == Edits::Some
        {
            // The last event may lack its empty line: it is shown as it came.
            seen.changed |= events.reader.is_inside_event();
            self.kept.push(push_text(&mut self.texts, events.reader.carried()));
            events.edits = Edits::None;
        }
        if taken < received.len() {
            self.upstream_keeps = false;
            shows_all = false;
        }
        shows_all &= !seen.changed && self.source.is_between_chunks() && !self.observer.holds_back();
        self.usage.merge(seen.usage);
        if seen.content && self.first_content_us.is_none() {
            let now_us = io::now_us();
            self.first_content_us = Some(now_us);
            (self.first_content)(now_us);
        }
        let same_framing = match (&self.source, self.sink) {
            (Source::Chunked(_), Sink::Chunked) => true,
            (Source::Length(_) | Source::UntilClose, Sink::Length(_) | Sink::UntilClose) => true,
            (Source::Nothing | Source::Chunked(_) | Source::Length(_) | Source::UntilClose, _) => false,
        };
        if shows_all && same_framing {
            self.client.out.push_data(0..taken);
            self.verbatim_end = self.source.is_done();
        } else {
            self.put_kept();
        }
        self.client.out.data = received;
        Ok(())
    }

    /// Puts the kept pieces into `client.out`, as one chunk where the sink is chunked.
    fn put_kept(&mut self) {
        let bytes: usize = self.kept.iter().map(Kept::len).sum();
        if bytes == 0 {
            return;
        }
        let out = &mut self.client.out;
        let chunked = self.sink == Sink::Chunked;
        if chunked {
            out.small_with(|to| push_chunk_head(to, bytes));
        }
        for piece in &self.kept {
            match piece {
                Kept::Received(range) => out.push_data(range.clone()),
                Kept::Text(range) => out.push_small(&self.texts[range.clone()]),
            }
        }
        if chunked {
            out.push_small(b"\r\n");
        }
    }

    /// The upstream failed within the stream: one error event, then the end; never a second attempt, never a `[DONE]`.
    async fn break_off(mut self, cut: Cut) -> Forwarded {
        self.after = After::Abort;
        let Observer::Events(events) = &self.observer else { return self.finish(End::Truncated(cut)) };
        if matches!(self.sink, Sink::Length(_) | Sink::Nothing) {
            return self.finish(End::Truncated(cut));
        }
        let mut event = Vec::new();
        if events.edits == Edits::None && events.reader.is_inside_event() {
            event.extend_from_slice(b"\n\n");
        }
        let (message, code) = match cut {
            Cut::Reset => ("The endpoint closed the connection within the answer.", "upstream_reset"),
            Cut::Silent => ("The endpoint stopped answering within the answer.", "upstream_timeout"),
            Cut::Garbled => ("The endpoint's answer is not valid HTTP/1.1.", "upstream_bad_answer"),
        };
        push_error_event(&mut event, message, code);
        self.client.out.clear();
        self.texts = event;
        self.kept.clear();
        self.kept.push(Kept::Text(0..self.texts.len()));
        self.put_kept();
        if self.sink == Sink::Chunked {
            self.client.out.push_small(b"0\r\n\r\n");
        }
        self.after = After::Close;
        match self.send().await {
            Ok(()) => self.finish(End::Truncated(cut)),
            Err(end) => self.finish(end),
        }
    }
}

/// What one received buffer told.
#[derive(Debug, Default)]
struct Seen {
    usage: Usage,
    content: bool,
    /// What is shown is not what was received.
    changed: bool,
}

/// One received buffer being read.
struct Reading<'a> {
    shown: &'a Presentation,
    raw: &'a [u8],
    kept: &'a mut Vec<Kept>,
    texts: &'a mut Vec<u8>,
    seen: &'a mut Seen,
}

impl Observer {
    fn edits(&self) -> Edits {
        match self {
            Self::Events(events) => events.edits,
            Self::Unread => Edits::None,
        }
    }

    /// Bytes were received that are not sent yet.
    fn holds_back(&self) -> bool {
        match self {
            Self::Events(events) => events.edits == Edits::Some && events.reader.is_inside_event(),
            Self::Unread => false,
        }
    }

    fn saw_error(&self) -> bool {
        match self {
            Self::Events(events) => events.saw_error,
            Self::Unread => false,
        }
    }

    /// Reads a range of payload and appends what is shown of it.
    fn read(&mut self, reading: &mut Reading<'_>, range: Range<usize>) {
        match self {
            Self::Events(events) => events.read(reading, range),
            Self::Unread => reading.kept.push(Kept::Received(range)),
        }
    }
}

impl Events {
    fn read(&mut self, reading: &mut Reading<'_>, range: Range<usize>) {
        let Self { reader, edits, saw_error } = self;
        let edited = *edits == Edits::Some;
        if !edited {
            reading.kept.push(Kept::Received(range.clone()));
        }
        let payload = &reading.raw[range.clone()];
        let (shown, kept, texts, seen) = (reading.shown, &mut *reading.kept, &mut *reading.texts, &mut *reading.seen);
        reader.feed(payload, |event| {
            let (document, data_start) = read_event(&event);
            seen.usage.merge(document.usage.unwrap_or_default());
            seen.content |= document.content != Content::None;
            *saw_error |= document.is_error;
            if !edited {
                return;
            }
            let usage_alone = document.choices_empty && document.usage.is_some();
            if usage_alone && shown.usage_asked == UsageAsked::ByUs {
                seen.changed = true;
                return;
            }
            let rename = shown.model_shown.as_deref().zip(document.model_at).zip(data_start);
            let rename = rename.map(|((name, at), start)| (name, at.start + start..at.end + start));
            let at_received = match event.place {
                Place::Payload(place) => Some(range.start + place.start),
                Place::Carried(_) => None,
            };
            seen.changed |= rename.is_some() || at_received.is_none();
            let mut keep = |part: Range<usize>| match at_received {
                Some(at) => kept.push(Kept::Received(at + part.start..at + part.end)),
                None => kept.push(push_text(texts, &event.bytes[part])),
            };
            match rename {
                None => keep(0..event.bytes.len()),
                Some((name, at)) => {
                    keep(0..at.start);
                    let start = texts.len();
                    push_json_string(texts, name);
                    kept.push(Kept::Text(start..texts.len()));
                    let mut keep = |part: Range<usize>| match at_received {
                        Some(at) => kept.push(Kept::Received(at + part.start..at + part.end)),
                        None => kept.push(push_text(texts, &event.bytes[part])),
                    };
                    keep(at.end..event.bytes.len());
                }
            }
        });
        if edited && reader.is_overlong() {
            // Too long to be held back: from here on the stream passes as it comes.
            reading.kept.push(push_text(reading.texts, reader.carried()));
            reading.seen.changed = true;
            *edits = Edits::None;
        }
        reader.bound();
    }
}

fn push_text(texts: &mut Vec<u8>, bytes: &[u8]) -> Kept {
    let start = texts.len();
    texts.extend_from_slice(bytes);
    Kept::Text(start..texts.len())
}

/// The document of an event, and where its data begins in the event (when it stands on one line).
fn read_event(event: &Event<'_>) -> (Document, Option<usize>) {
    match event.data() {
        Some(data) => (Document::parse(&event.bytes[data.clone()]).unwrap_or_default(), Some(data.start)),
        None => (Document::parse(&event.joined_data()).unwrap_or_default(), None),
    }
}
