//! Answers in the words of another API: made into what clients read before anything else looks at them.

use bedrock::{ChatStream, Delivery, FRAME_BYTES_MAX, Failure, Reply};

use super::framing::Source;
use super::{Cut, Output, Pass, Patience, Presentation, Received, Upstream};
use crate::body::Budget;
use crate::conn::{Client, push_status_line};
use crate::error::{Refused, UpstreamError};
use crate::http1::BodyFraming;
use crate::http1::rewrite::push_header;
use crate::io::{Buf, SizeClass, Stop, until};
use crate::provider::{self, Shown, Translation};
use crate::tls::Transport;
use crate::upstream::{Answer, NoAnswer};

/// Most of a stream that is read before the client is told that it has begun: the first event has some hundred bytes.
const BEGINNING_BYTES_MAX: usize = 4 << 10;
/// Most of an error's body that is read.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// What an answer is made of. What is kept of it meanwhile is counted.
pub(super) enum Translated {
    /// A document, of one.
    Whole(Shown, Budget),
    /// Events, of a stream of frames.
    Events(Box<Events>),
}

/// A stream of frames that becomes one of events.
pub(super) struct Events {
    /// Where the frames end.
    pub(super) raw: Source,
    pub(super) stream: Box<ChatStream>,
    pub(super) held: Budget,
    /// It cannot be read on, which the client has been told.
    pub(super) broken: Option<Cut>,
}

/// Why there is nothing for the client in what came.
pub(super) enum Broken {
    /// It was cut off.
    Cut(Cut),
    /// The provider says so.
    Said(Refused),
}

impl Broken {
    /// What it is to the access log and to the endpoint's health.
    pub(super) fn cut(&self) -> Cut {
        match self {
            Self::Cut(cut) => *cut,
            Self::Said(_) => Cut::Garbled,
        }
    }
}

/// Head lines of our own: the upstream's speak of its own API.
pub(super) fn push_translated_head_lines(to: &mut Vec<u8>, translated: &Translated, shown: &Presentation<'_>) {
    let media: &[u8] = match translated {
        Translated::Whole(..) => b"application/json",
        Translated::Events(_) => b"text/event-stream; charset=utf-8",
    };
    push_status_line(to, 200, b"OK");
    push_header(to, b"content-type", media);
    to.extend_from_slice(&shown.rate_limits);
    push_header(to, b"x-request-id", shown.request_id.as_bytes());
    to.extend_from_slice(&shown.decision_headers);
}

impl<F: FnMut(u64, Output)> Pass<'_, F> {
    /// The events made of what was received; what was received where nothing is to be made of it. What the provider says in
    /// place of the rest, or that the rest cannot be read, is one more event, the last.
    pub(super) fn events_of(&mut self, received: Buf) -> Result<Buf, Broken> {
        let Some(Translated::Events(events)) = &mut self.translated else { return Ok(received) };
        let Events { raw, stream, held, broken } = &mut **events;
        let mut text = Vec::new();
        let mut fed = Ok(());
        let taken = raw.read(&received, |range| {
            if fed.is_ok() {
                fed = stream.feed(&received[range], &mut text);
            }
        });
        let taken = taken.map_err(Broken::Cut)?;
        // Bytes behind the end of the body: the connection cannot be trusted any more.
        self.upstream_keeps &= taken == received.len();
        // Where the body ends with its connection, the answer's own end is the end: nobody need wait for the other.
        let said_all = matches!(raw, Source::UntilClose) && stream.is_done();
        self.upstream_keeps &= !said_all;
        let over = raw.is_done() || said_all;
        let ended = fed.and_then(|()| if over { stream.end(&mut text).map(|()| true) } else { Ok(false) });
        let ended = match ended {
            Ok(ended) => ended,
            Err(failure) => {
                self.upstream_keeps = false;
                if text.is_empty() && self.response_bytes == 0 {
                    return Err(Broken::Said(provider::failed(&failure, None)));
                }
                // Whatever comes behind `[DONE]`, the client has the whole answer.
                if !stream.is_done() {
                    *broken = provider::unreadable(failure.fault()).then_some(Cut::Garbled);
                    failure.push_event(&mut text);
                }
                true
            }
        };
        if ended {
            self.source = Source::Length(text.len() as u64);
        }
        held.set(stream.held_bytes() + text.len());
        Ok(text.into())
    }

    /// The upstream said no more, and nothing is missing: what ends with its connection has ended, or the answer has said
    /// itself that it has.
    pub(super) fn is_whole_after(&self, received: &Received) -> bool {
        match &self.translated {
            None => matches!(received, Received::End) && matches!(self.source, Source::UntilClose),
            Some(Translated::Events(events)) => {
                events.stream.is_done() && matches!(received, Received::End | Received::Broken | Received::Silent)
            }
            Some(Translated::Whole(..)) => false,
        }
    }

    /// What cut the answer off, where the client was told so by an event of it.
    pub(super) fn broken_off(&self) -> Option<Cut> {
        match &self.translated {
            Some(Translated::Events(events)) => events.broken,
            Some(Translated::Whole(..)) | None => None,
        }
    }

    /// Counts what is kept of a document that is to be another.
    pub(super) fn hold(&mut self, bytes: usize) {
        match &mut self.translated {
            Some(Translated::Whole(_, held)) => held.set(bytes),
            Some(Translated::Events(_)) | None => {}
        }
    }

    /// The document made of the one that came.
    pub(super) fn document_of(&mut self, body: Buf) -> Result<Buf, Broken> {
        let Some(Translated::Whole(shown, held)) = &mut self.translated else { return Ok(body) };
        let made = bedrock::completion(&body, shown.reply());
        let made = made.map_err(|failure| Broken::Said(provider::failed(&failure, None)))?;
        held.set(made.body.len());
        Ok(made.body.into())
    }
}

/// What the bytes of a stream say so far.
enum Look {
    /// There is something for the client.
    Answers,
    /// There is nothing, and this is why.
    Fails(Failure),
    /// Nothing yet.
    More,
}

/// Reads what has come of a stream, and keeps nothing of it.
fn look(answer: &Answer) -> Look {
    let body = answer.received.get(answer.head.head_bytes..).unwrap_or_default();
    let reply = Reply { id: "", created_unix_s: 0, model: "" };
    let mut stream = ChatStream::new(reply, Delivery::Streamed, FRAME_BYTES_MAX);
    let (mut source, mut text, mut fed) = (Source::new(answer.head.framing), Vec::new(), Ok(()));
    let read = source.read(body, |range| {
        if fed.is_ok() {
            fed = stream.feed(&body[range], &mut text);
        }
    });
    if fed.is_ok() && source.is_done() {
        fed = stream.end(&mut text);
    }
    match (fed, read) {
        // What is no HTTP is for whoever forwards it.
        _ if !text.is_empty() => Look::Answers,
        (_, Err(_)) => Look::Answers,
        (Err(failure), Ok(_)) => Look::Fails(failure),
        (Ok(()), Ok(_)) => Look::More,
    }
}

/// Receives until a stream has something for the client, or says why it has nothing: then another endpoint may be asked, as
/// the client has been told nothing. What has come stays in `answer.received`.
pub(crate) async fn beginning(
    client: &Client,
    answer: &mut Answer,
    patience: Patience,
) -> Result<Option<Failure>, NoAnswer> {
    match answer.translation {
        Some(Translation::Streamed(_)) => {}
        Some(Translation::Whole(_)) | None => return Ok(None),
    }
    let watch = answer.conn.watch_shared();
    // Each turn receives something, or ends.
    loop {
        match look(answer) {
            Look::More if answer.received.len() - answer.head.head_bytes < BEGINNING_BYTES_MAX => {}
            Look::More | Look::Answers => break,
            Look::Fails(failure) => {
                answer.head.keep_alive = false;
                return Ok(Some(failure));
            }
        }
        if patience.deadline.has_passed() {
            return Err(NoAnswer::Lost(UpstreamError::Timeout));
        }
        let mut received = std::mem::take(&mut answer.received);
        received.make_room();
        watch.arm(patience.left());
        let result = match &mut answer.conn {
            Transport::Plain(conn) => until(conn.recv(received), Some(client.conn.watch()), &watch).await,
            Transport::Tls(conn) => until(conn.recv(received), Some(client.conn.watch()), &watch).await,
        };
        answer.received = match result {
            Ok((Ok(n), buf)) if n > 0 => buf,
            Ok(_) => return Err(NoAnswer::Failed(UpstreamError::Reset)),
            Err(Stop::TimedOut) => return Err(NoAnswer::Lost(UpstreamError::Timeout)),
            Err(Stop::Gone) => return Err(NoAnswer::ClientGone),
        };
    }
    watch.disarm();
    Ok(None)
}

/// The beginning of an error's body, as much as comes in time, and what becomes of the connection; `None` when the client
/// leaves meanwhile. The head stays in `answer.received`.
pub(crate) async fn collect(client: &Client, answer: &mut Answer, patience: Patience) -> Option<(Vec<u8>, Upstream)> {
    let mut source = Source::new(answer.head.framing);
    let mut body = Vec::new();
    let mut received = Buf::pooled(SizeClass::Small);
    received.extend(answer.received.get(answer.head.head_bytes..).unwrap_or_default());
    let watch = answer.conn.watch_shared();
    // Each turn receives something, or ends.
    loop {
        let read = source.read(&received, |range| body.extend_from_slice(&received[range]));
        // A server that sends a body where there is none by the head would give it to the next client.
        let whole = source.is_done() && answer.head.framing != BodyFraming::None;
        if whole && answer.head.keep_alive && read.is_ok_and(|taken| taken == received.len()) {
            return Some((body, Upstream::Keeps));
        }
        if read.is_err() || source.is_done() || body.len() > ERROR_BYTES_MAX || patience.deadline.has_passed() {
            return Some((body, Upstream::Ends));
        }
        received.clear();
        watch.arm(patience.left());
        let result = match &mut answer.conn {
            Transport::Plain(conn) => until(conn.recv(received), Some(client.conn.watch()), &watch).await,
            Transport::Tls(conn) => until(conn.recv(received), Some(client.conn.watch()), &watch).await,
        };
        received = match result {
            Ok((Ok(n), buf)) if n > 0 => buf,
            Err(Stop::Gone) => return None,
            // What came is enough to tell what is wrong, or as little as there will be.
            Ok(_) | Err(Stop::TimedOut) => return Some((body, Upstream::Ends)),
        };
    }
}
