//! Receiving the body of a request: whole, contiguous behind its head, within limits, and decoded where it is to be read.

mod budget;
mod coding;
pub mod door;

use std::rc::Rc;

pub(crate) use self::budget::{BodyMemory, Budget};
pub(crate) use self::coding::{ACCEPTED as CODINGS_ACCEPTED, Broken};
use self::coding::{Coding, Decoder, Named, Step, ZSTD_WINDOW_BYTES_MAX};
use crate::conn::{Client, Fault};
use crate::error::Refused;
use crate::http1::head::Headers;
use crate::http1::{BodyFraming, ChunkedDecoder, Name};
use crate::io::{self, Buf, SizeClass};
use crate::shard::Shard;

/// Decoding pauses after this many bytes, for this long, so that other requests of the thread go on.
const PAUSE_EVERY_BYTES: usize = 1 << 20;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// A request in one buffer: its head, its body, and perhaps the beginning of the next request.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Buf,
    /// Where the body begins.
    pub(crate) body_start: usize,
    /// Where the body ends.
    pub(crate) body_end: usize,
    /// Whether the body is as `Content-Encoding` says.
    pub(crate) encoding: BodyEncoding,
    /// Memory taken for it.
    budget: Budget,
}

/// Whether a body is as its `Content-Encoding` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyEncoding {
    /// It is.
    AsSent,
    /// It has been decoded: the header is true no more.
    Removed,
}

impl Message {
    /// The body.
    pub(crate) fn body(&self) -> &[u8] {
        self.bytes.get(self.body_start..self.body_end).unwrap_or_default()
    }

    /// Memory taken for it, and for what was made of it.
    pub(crate) fn held_bytes(&self) -> usize {
        self.budget.bytes()
    }

    /// Takes memory until it has so many bytes, waiting for a while when there is none; or gives back what it has above.
    pub(crate) async fn hold(&mut self, bytes: usize) -> Result<(), Refused> {
        self.budget.shrink_to(bytes);
        self.budget.grow(bytes - self.budget.bytes()).await
    }

    /// Gives back what it has above so many bytes.
    pub(crate) fn let_go(&mut self, bytes: usize) {
        self.budget.shrink_to(bytes);
    }

    /// What was received after the body. Holds no memory where there is nothing, as mostly.
    pub(crate) fn take_rest(&mut self) -> Buf {
        let mut rest = Buf::default();
        rest.extend(self.bytes.get(self.body_end..).unwrap_or_default());
        self.bytes.truncate(self.body_end);
        rest
    }
}

/// Why there is no whole body.
#[derive(Debug)]
pub(crate) enum NoBody {
    /// Answer with this.
    Refused(Refused),
    /// The client has gone.
    Gone,
}

impl From<Refused> for NoBody {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Takes the request whose head is parsed off the connection.
pub(crate) async fn receive(shard: &Rc<Shard>, client: &mut Client) -> Result<Message, NoBody> {
    let limit = shard.settings.request_body_bytes_max;
    match client.head.framing {
        BodyFraming::None | BodyFraming::UntilClose => {
            let end = client.head.head_bytes;
            Ok(message(client, end, Budget::new(&shard.body_memory)))
        }
        BodyFraming::Length(bytes) => {
            let bytes = usize::try_from(bytes).ok().filter(|&n| n <= limit).ok_or(Refused::BodyTooLong(limit))?;
            let mut budget = Budget::new(&shard.body_memory);
            receive_length(shard, client, bytes, &mut budget).await?;
            let end = client.head.head_bytes + bytes;
            Ok(message(client, end, budget))
        }
        BodyFraming::Chunked => receive_chunked(shard, client, limit).await,
    }
}

fn message(client: &mut Client, body_end: usize, budget: Budget) -> Message {
    let bytes = std::mem::take(&mut client.inbox);
    let body_start = client.head.head_bytes;
    Message { bytes, body_start, body_end, encoding: BodyEncoding::AsSent, budget }
}

/// Memory is charged as bytes come, at most twice what has come: a length that is only announced takes nothing from others.
async fn receive_length(shard: &Shard, client: &mut Client, bytes: usize, budget: &mut Budget) -> Result<(), NoBody> {
    let head_bytes = client.head.head_bytes;
    let end = head_bytes + bytes;
    charge(budget, client.inbox.len().saturating_sub(head_bytes), bytes).await?;
    if client.inbox.len() >= end {
        return Ok(());
    }
    say_continue(shard, client).await?;
    while client.inbox.len() < end {
        // Room up to what is charged: the kernel cannot fill more.
        let room = (budget.bytes() + head_bytes).min(end) - client.inbox.len();
        client.inbox.reserve(room.max(1));
        receive_some(shard, client).await?;
        charge(budget, client.inbox.len() - head_bytes, bytes).await?;
    }
    Ok(())
}

/// Takes memory for what has come, and for as much again: at least for a small body, at most for the whole.
async fn charge(budget: &mut Budget, received: usize, whole: usize) -> Result<(), Refused> {
    let wanted = (2 * received).max(SizeClass::Large.bytes()).min(whole);
    if received >= budget.bytes() && wanted > budget.bytes() {
        budget.grow(wanted - budget.bytes()).await?;
    }
    Ok(())
}

async fn receive_chunked(shard: &Rc<Shard>, client: &mut Client, limit: usize) -> Result<Message, NoBody> {
    let head_bytes = client.head.head_bytes;
    let mut budget = Budget::new(&shard.body_memory);
    budget.grow(SizeClass::Medium.bytes()).await?;
    let mut whole = Buf::pooled(SizeClass::Medium);
    whole.extend(&client.inbox[..head_bytes]);
    client.inbox.consume(head_bytes);
    let mut decoder = ChunkedDecoder::default();
    let mut told = false;
    loop {
        let payload = &mut whole;
        let raw = &client.inbox;
        let taken =
            decoder.decode(raw, |range| payload.extend(&raw[range])).map_err(|error| Refused::BodyCoding(error.0))?;
        client.inbox.consume(taken);
        if whole.len() - head_bytes > limit {
            return Err(Refused::BodyTooLong(limit).into());
        }
        if whole.len() > budget.bytes() {
            budget.grow(whole.len() - budget.bytes()).await?;
        }
        if decoder.is_done() {
            break;
        }
        if !told {
            told = true;
            say_continue(shard, client).await?;
        }
        client.inbox.reserve(SizeClass::Medium.bytes());
        receive_some(shard, client).await?;
    }
    let body_end = whole.len();
    whole.extend(&client.inbox);
    client.inbox.clear();
    Ok(Message { bytes: whole, body_start: head_bytes, body_end, encoding: BodyEncoding::AsSent, budget })
}

async fn receive_some(shard: &Shard, client: &mut Client) -> Result<(), NoBody> {
    client.conn.watch().arm(shard.settings.request_body_idle_timeout);
    let received = client.receive(None).await;
    client.conn.watch().disarm();
    match received {
        Ok(0) | Err(Fault::Io) => Err(NoBody::Gone),
        Ok(_) => Ok(()),
        Err(Fault::Stopped(_)) => Err(Refused::BodyTimeout.into()),
    }
}

/// Answers `Expect: 100-continue`: the head was found acceptable, the client may send (RFC 9110, 10.1.1).
async fn say_continue(shard: &Shard, client: &mut Client) -> Result<(), NoBody> {
    if !client.head.expects_continue {
        return Ok(());
    }
    client.out.clear();
    client.out.push_small(b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send(shard.settings.client_idle_timeout).await.map_err(|_| NoBody::Gone)
}

/// Which bodies are to be read, hence decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inspection {
    /// The body must be understood.
    Needed,
    /// It is read where it can be, and passes as it is where not.
    WherePossible,
}

/// Bytes that are made before the other connections get a turn: half a millisecond of gzip, a whole one of zstd.
const STEP_BYTES: usize = SizeClass::Large.bytes();

/// Decodes the body, under the same limit and budget, where it is compressed and is to be read.
pub(crate) async fn decode(
    shard: &Shard,
    client: &Client,
    message: &mut Message,
    inspection: Inspection,
) -> Result<(), Refused> {
    let headers = &client.head.headers;
    let coding = match (Named::of(headers, &message.bytes), inspection) {
        (Named::Plain, _) => return Ok(()),
        (Named::Known(coding), Inspection::Needed) => coding,
        (Named::Known(coding), Inspection::WherePossible) if is_json(headers, &message.bytes) => coding,
        (Named::Unknown, Inspection::Needed) => return Err(Refused::ContentEncoding),
        (Named::Known(_) | Named::Unknown, Inspection::WherePossible) => return Ok(()),
    };
    if message.body().is_empty() {
        return Ok(());
    }
    let limit = shard.settings.request_body_bytes_max;
    let mut budget = std::mem::replace(&mut message.budget, Budget::new(&shard.body_memory));
    let sent_bytes = budget.bytes();
    match (decoded(message, coding, limit, &mut budget).await, inspection) {
        (Ok(whole), _) => {
            message.body_end = whole.len();
            message.bytes = whole;
            message.encoding = BodyEncoding::Removed;
            budget.shrink_to(message.body_end - message.body_start);
        }
        // Whoever gets it may see more in it.
        (Err(Refused::ContentCoding(_)), Inspection::WherePossible) => budget.shrink_to(sent_bytes),
        (Err(refused), _) => return Err(refused),
    }
    message.budget = budget;
    Ok(())
}

fn is_json(headers: &Headers, bytes: &[u8]) -> bool {
    let media = headers.first(bytes, Name::ContentType).unwrap_or_default().split(|&b| b == b';').next();
    media.is_some_and(|media| media.trim_ascii().eq_ignore_ascii_case(b"application/json"))
}

/// The head as it was, and the decoded body behind it.
async fn decoded(message: &Message, coding: Coding, limit: usize, budget: &mut Budget) -> Result<Buf, Refused> {
    let mut whole = Buf::pooled(SizeClass::Large);
    whole.extend(message.bytes.get(..message.body_start).unwrap_or_default());
    if coding == Coding::Zstd {
        budget.grow(ZSTD_WINDOW_BYTES_MAX.min(limit)).await?;
    }
    let mut decoder = Decoder::new(coding, message.body());
    let mut made = vec![0; STEP_BYTES];
    let mut pause_at = PAUSE_EVERY_BYTES;
    loop {
        match decoder.step(&mut made).map_err(|Broken(why)| Refused::ContentCoding(why))? {
            Step::Made(bytes) => {
                if whole.len() - message.body_start + bytes > limit {
                    return Err(Refused::BodyTooLong(limit));
                }
                budget.grow(bytes).await?;
                whole.extend(&made[..bytes]);
            }
            Step::End => return Ok(whole),
        }
        // A task that wakes itself would starve the others: only a timer lets them run.
        if whole.len() >= pause_at {
            pause_at = whole.len() + PAUSE_EVERY_BYTES;
            io::sleep(PAUSE).await;
        }
    }
}
