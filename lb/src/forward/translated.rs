//! Answers in the words of another API: made into what clients read before anything else looks at them.

use bedrock::ChatStream;

use super::framing::Source;
use super::{Cut, Output, Pass, Patience, Presentation};
use crate::conn::{Client, push_status_line};
use crate::error::Refused;
use crate::http1::rewrite::push_header;
use crate::io::{Buf, SizeClass, Stop, until};
use crate::provider::{self, Shown};
use crate::tls::Transport;
use crate::upstream::Answer;

/// Most of an error's body that is read.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// What an answer is made of.
pub(super) enum Translated {
    /// A document, of one.
    Whole(Shown),
    /// Events, of a stream of frames.
    Events(Box<Events>),
}

/// A stream of frames that becomes one of events.
pub(super) struct Events {
    /// Where the frames end.
    pub(super) raw: Source,
    pub(super) stream: Box<ChatStream>,
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
        Translated::Whole(_) => b"application/json",
        Translated::Events(_) => b"text/event-stream; charset=utf-8",
    };
    push_status_line(to, 200, b"OK");
    push_header(to, b"content-type", media);
    to.extend_from_slice(&shown.rate_limits);
    push_header(to, b"x-request-id", shown.request_id.as_bytes());
    to.extend_from_slice(&shown.decision_headers);
}

impl<F: FnMut(u64, Output)> Pass<'_, F> {
    /// The events made of what was received; what was received where nothing is to be made of it. An error of the provider
    /// behind something for the client is one more event, the last.
    pub(super) fn events_of(&mut self, received: Buf) -> Result<Buf, Broken> {
        let Some(Translated::Events(events)) = &mut self.translated else { return Ok(received) };
        let Events { raw, stream } = &mut **events;
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
        let ended = fed.and_then(|()| if raw.is_done() { stream.end(&mut text).map(|()| true) } else { Ok(false) });
        let ended = match ended {
            Ok(ended) => ended,
            Err(failure) => {
                self.upstream_keeps = false;
                if text.is_empty() && self.response_bytes == 0 {
                    return Err(Broken::Said(provider::failed(&failure, None)));
                }
                failure.push_event(&mut text);
                true
            }
        };
        if ended {
            self.source = Source::Length(text.len() as u64);
        }
        let mut buf = Buf::with_room(text.len());
        buf.extend(&text);
        Ok(buf)
    }

    /// The document made of the one that came.
    pub(super) fn document_of(&mut self, body: Buf) -> Result<Buf, Broken> {
        let Some(Translated::Whole(shown)) = &self.translated else { return Ok(body) };
        let made = bedrock::completion(&body, shown.reply());
        let made = made.map_err(|failure| Broken::Said(provider::failed(&failure, None)))?;
        let mut buf = Buf::with_room(made.body.len());
        buf.extend(&made.body);
        Ok(buf)
    }
}

/// The beginning of an error's body, as much as comes in time; `None` when the client leaves meanwhile. The head stays in
/// `answer.received`.
pub(crate) async fn collect(client: &Client, answer: &mut Answer, patience: Patience) -> Option<Vec<u8>> {
    let mut source = Source::new(answer.head.framing);
    let mut body = Vec::new();
    let mut received = Buf::pooled(SizeClass::Small);
    received.extend(answer.received.get(answer.head.head_bytes..).unwrap_or_default());
    let watch = answer.conn.watch_shared();
    // Each turn receives something, or ends.
    loop {
        let read = source.read(&received, |range| body.extend_from_slice(&received[range]));
        if read.is_err() || source.is_done() || body.len() > ERROR_BYTES_MAX || patience.deadline.has_passed() {
            return Some(body);
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
            Ok(_) | Err(Stop::TimedOut) => return Some(body),
        };
    }
}
