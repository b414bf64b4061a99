//! From the first byte of an answer to its end: bytes through, the observer reads along.
//!
//! A whole document is collected (within a bound), read, and sent with its model name replaced. A stream goes through as it
//! comes: each received buffer is sent at once, as it is where nothing in it must change, else as chunks of ours whose
//! pieces still are ranges of that buffer.

mod document;
pub mod door;
mod events;
mod framing;
mod stream;
mod translated;

use std::rc::Rc;
use std::time::Duration;

use policy::Backend;

use self::events::{Kept, Observer};
use self::framing::{Sink, Source};
use self::translated::{Events, Translated, push_translated_head_lines};
pub(crate) use self::translated::{beginning, collect};
use crate::body::Budget;
use crate::conn::{Client, EventNames, push_connection, push_status_line};
use crate::exchange::After;
use crate::http1::rewrite::{is_from_providers, push_decimal, push_header, response_headers};
use crate::http1::{BodyFraming, Name, ResponseHead};
use crate::io::{Buf, Stop, until};
use crate::openai::Usage;
use crate::openai::edit::UsageAsked;
use crate::provider::Translation;
use crate::shard::Shard;
use crate::tls::Transport;
use crate::upstream::{Answer, Deadline};

/// Longest document that is collected to be read; a longer one passes unread.
const DOCUMENT_BYTES_MAX: usize = config::limits::RESPONSE_DOCUMENT_BYTES_MAX;

/// How the answer is shown to the client.
#[derive(Debug)]
pub(crate) struct Presentation<'a> {
    /// Whose answer it is: of a hosted provider's head not everything is for clients.
    pub(crate) backend: Backend,
    /// The name to show in place of the upstream's; `None` shows what came.
    pub(crate) model_shown: Option<&'a str>,
    pub(crate) usage_asked: UsageAsked,
    pub(crate) event_names: EventNames,
    pub(crate) request_id: &'a str,
    /// `x-kinference-...` lines, ready to be sent.
    pub(crate) decision_headers: Vec<u8>,
    /// What is left of the tenant's limits, ready to be sent, in place of what the upstream says of ours.
    pub(crate) rate_limits: Vec<u8>,
    /// Whether the client connection may be kept.
    pub(crate) after: After,
    /// The answer has no body (HEAD).
    pub(crate) head_only: bool,
}

/// How long the upstream may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Between two bytes.
    pub(crate) idle: Duration,
    /// For the whole answer.
    pub(crate) deadline: Deadline,
}

impl Patience {
    /// How long to wait for the next byte.
    fn left(self) -> Duration {
        self.deadline.within(self.idle)
    }

    /// What it is when no byte has come in that time.
    fn cut(self) -> Cut {
        if self.deadline.has_passed() { Cut::Late } else { Cut::Silent }
    }
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Forwarded {
    pub(crate) end: End,
    pub(crate) usage: Usage,
    /// Events with output; streamed answers only.
    pub(crate) pieces: u64,
    pub(crate) response_bytes: u64,
    /// When the first output came, on the process clock; streamed answers only.
    pub(crate) first_content_us: Option<u64>,
    /// Whether the upstream connection can be used again.
    pub(crate) upstream: Upstream,
    pub(crate) after: After,
    /// The status that the client saw, where it is not the upstream's.
    pub(crate) replaced_status: Option<u16>,
}

/// What becomes of an upstream connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upstream {
    /// It has given its answer, no more, and takes the next request.
    Keeps,
    /// It is of no more use.
    Ends,
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
    /// It took longer as a whole than it may.
    Late,
    /// Bytes that are not HTTP.
    Garbled,
}

/// Output of a streamed answer that came by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// The first.
    First,
    /// One piece more.
    More,
}

/// Sends the answer to the client. `heard` is called when output comes, and when.
pub(crate) async fn forward(
    shard: &Rc<Shard>,
    client: &mut Client,
    answer: &mut Answer,
    shown: &Presentation<'_>,
    patience: Patience,
    heard: impl FnMut(u64, Output),
) -> Forwarded {
    let Answer { conn, head, received, translation } = answer;
    let (head, mut received) = (&*head, std::mem::take(received));
    let mut source = Source::new(head.framing);
    let (kind, translated) = match translation.take() {
        None => (content_kind(head, &received), None),
        Some(Translation::Whole(shown)) => {
            (Kind::Document, Some(Translated::Whole(shown, Budget::new(&shard.body_memory))))
        }
        Some(Translation::Streamed(stream)) => {
            // What is read from now on are the events made of it.
            let raw = std::mem::replace(&mut source, Source::UntilClose);
            let held = Budget::new(&shard.body_memory);
            (Kind::Events, Some(Translated::Events(Box::new(Events { raw, stream, held, broken: None }))))
        }
    };
    client.out.clear();
    client.out.small_with(|to| match &translated {
        None => push_head_lines(to, head, &received, shown),
        Some(translated) => push_translated_head_lines(to, translated, shown),
    });
    let mut pass = Pass {
        shard,
        client,
        conn,
        shown,
        patience,
        source,
        translated,
        upstream_keeps: head.keep_alive,
        sink: Sink::Nothing,
        observer: Observer::new(kind, shown),
        usage: Usage::default(),
        pieces: 0,
        first_content_us: None,
        heard,
        response_bytes: 0,
        after: shown.after,
        kept: Vec::new(),
        texts: Vec::new(),
        verbatim_end: false,
        replaced_status: None,
    };
    let told_length =
        head.headers.first(&received, Name::ContentLength).and_then(|v| std::str::from_utf8(v).ok()?.parse().ok());
    received.consume(head.head_bytes);
    let is_document =
        kind == Kind::Document && (pass.translated.is_some() || !is_longer(&pass.source, DOCUMENT_BYTES_MAX));
    let end = if head.framing == BodyFraming::None && pass.translated.is_none() {
        // To HEAD and 304 the length of what would have been sent may be told; else there simply is none.
        let length =
            if shown.head_only || head.status == 304 { told_length } else { (head.status != 204).then_some(0) };
        // A server that sends a body all the same would give it to the next client. Only an answer that says itself that it
        // has none is believed.
        pass.upstream_keeps &= received.is_empty() && told_length == Some(0);
        pass.stream(Buf::default(), BodyRead::Bodiless(length)).await
    } else if is_document {
        pass.document(received).await
    } else {
        pass.stream(received, BodyRead::NotYet).await
    };
    pass.finish(end)
}

fn is_longer(source: &Source, bytes_max: usize) -> bool {
    match source {
        Source::Length(n) => *n > bytes_max as u64,
        Source::Nothing | Source::Chunked(_) | Source::UntilClose => false,
    }
}

/// How the names of headers about rate limits begin.
const RATE_LIMIT: &[u8] = b"x-ratelimit-";

/// The status line and all lines that do not depend on how the body is framed.
fn push_head_lines(to: &mut Vec<u8>, head: &ResponseHead, bytes: &[u8], shown: &Presentation<'_>) {
    push_status_line(to, head.status, head.reason.of(bytes));
    let theirs =
        |name: &[u8]| name.get(..RATE_LIMIT.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(RATE_LIMIT));
    response_headers(&head.headers, bytes, |name, value| {
        let travels = match shown.backend {
            Backend::Local => shown.rate_limits.is_empty() || !theirs(name),
            Backend::External => is_from_providers(name),
        };
        if travels {
            push_header(to, name, value);
        }
    });
    to.extend_from_slice(&shown.rate_limits);
    push_header(to, b"x-request-id", shown.request_id.as_bytes());
    to.extend_from_slice(&shown.decision_headers);
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
    let value = head.headers.first(bytes, Name::ContentType).unwrap_or_default();
    let media = value.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
    let encoded = head
        .headers
        .first(bytes, Name::ContentEncoding)
        .is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity"));
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

struct Pass<'a, F> {
    shard: &'a Rc<Shard>,
    client: &'a mut Client,
    conn: &'a mut Transport,
    shown: &'a Presentation<'a>,
    patience: Patience,
    source: Source,
    translated: Option<Translated>,
    upstream_keeps: bool,
    sink: Sink,
    observer: Observer,
    usage: Usage,
    pieces: u64,
    first_content_us: Option<u64>,
    heard: F,
    response_bytes: u64,
    after: After,
    kept: Vec<Kept>,
    texts: Vec<u8>,
    /// The end of the body went out with the bytes received.
    verbatim_end: bool,
    /// The status that went out instead of the upstream's.
    replaced_status: Option<u16>,
}

/// What a receive brought.
enum Received {
    Some(Buf),
    /// The upstream closed in good order.
    End,
    /// The connection broke.
    Broken,
    Silent,
    ClientGone,
}

impl<F: FnMut(u64, Output)> Pass<'_, F> {
    async fn receive(&mut self, buf: Buf) -> Received {
        // Bytes that keep coming put off what is armed: the end of the whole is looked at before each wait.
        if self.patience.deadline.has_passed() {
            return Received::Silent;
        }
        let watch = self.conn.watch_shared();
        watch.arm(self.patience.left());
        let before = buf.len();
        let received = match &mut *self.conn {
            Transport::Plain(conn) => until(conn.recv(buf), Some(self.client.conn.watch()), &watch).await,
            Transport::Tls(conn) => until(conn.recv(buf), Some(self.client.conn.watch()), &watch).await,
        };
        match received {
            Ok((Ok(_), buf)) if buf.len() > before => Received::Some(buf),
            Ok((Ok(_), _)) => Received::End,
            Ok((Err(_), _)) => Received::Broken,
            Err(Stop::Gone) => Received::ClientGone,
            Err(Stop::TimedOut) => Received::Silent,
        }
    }

    fn finish(self, end: End) -> Forwarded {
        let whole = matches!(end, End::Complete | End::ErrorEvent) && self.source.is_done();
        Forwarded {
            end,
            usage: self.usage,
            pieces: self.pieces,
            response_bytes: self.response_bytes,
            first_content_us: self.first_content_us,
            upstream: if whole && self.upstream_keeps { Upstream::Keeps } else { Upstream::Ends },
            after: self.after,
            replaced_status: self.replaced_status,
        }
    }

    /// Ends the head in `client.out`, which has [`push_head_lines`] already.
    fn end_head(&mut self) {
        let version = self.client.head.version;
        if self.sink == Sink::UntilClose && self.after == After::KeepAlive {
            self.after = After::Close;
        }
        let (sink, after) = (self.sink, self.after);
        self.client.out.small_with(|to| {
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
}
