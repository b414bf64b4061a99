//! Receiving the body of a request: whole, contiguous behind its head, within limits.

use std::rc::Rc;
use std::time::Duration;

use crate::conn::{Client, Fault};
use crate::error::Refused;
use crate::http1::{BodyFraming, ChunkedDecoder};
use crate::io::{self, Buf, SizeClass};
use crate::shard::Shard;

/// How long a body waits for memory to become free.
const BUDGET_WAIT: Duration = Duration::from_secs(1);
const BUDGET_LOOK: Duration = Duration::from_millis(20);

/// A request in one buffer: its head, its body, and perhaps the beginning of the next request.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Buf,
    /// Where the body begins.
    pub(crate) body_start: usize,
    /// Where the body ends.
    pub(crate) body_end: usize,
    /// Memory taken for it.
    _budget: Budget,
}

impl Message {
    /// The body.
    pub(crate) fn body(&self) -> &[u8] {
        self.bytes.get(self.body_start..self.body_end).unwrap_or_default()
    }

    /// What was received after the body.
    pub(crate) fn take_rest(&mut self) -> Buf {
        let mut rest = Buf::pooled(SizeClass::Small);
        rest.extend(self.bytes.get(self.body_end..).unwrap_or_default());
        self.bytes.truncate(self.body_end);
        rest
    }
}

/// Bytes taken from the thread's share for bodies; given back when dropped.
struct Budget {
    shard: Rc<Shard>,
    bytes: usize,
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Budget").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Budget {
    async fn take(shard: &Rc<Shard>, bytes: usize) -> Result<Self, Refused> {
        let mut budget = Self { shard: shard.clone(), bytes: 0 };
        budget.grow(bytes).await?;
        Ok(budget)
    }

    /// Takes more, waiting for a while when there is none. A body larger than the whole share may go alone.
    async fn grow(&mut self, bytes: usize) -> Result<(), Refused> {
        let waits = BUDGET_WAIT.as_millis() / BUDGET_LOOK.as_millis();
        for _ in 0..=waits {
            let held = self.shard.body_bytes.get();
            if held + bytes <= self.shard.body_bytes_max || held == self.bytes {
                self.shard.body_bytes.set(held + bytes);
                self.bytes += bytes;
                return Ok(());
            }
            io::sleep(BUDGET_LOOK).await;
        }
        Err(Refused::BodyBudget)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.shard.body_bytes.set(self.shard.body_bytes.get().saturating_sub(self.bytes));
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
            let budget = Budget::take(shard, 0).await?;
            let end = client.head.head_bytes;
            Ok(message(client, end, budget))
        }
        BodyFraming::Length(bytes) => {
            let bytes = usize::try_from(bytes).ok().filter(|&n| n <= limit).ok_or(Refused::BodyTooLong(limit))?;
            let budget = Budget::take(shard, bytes).await?;
            receive_length(shard, client, bytes).await?;
            let end = client.head.head_bytes + bytes;
            Ok(message(client, end, budget))
        }
        BodyFraming::Chunked => receive_chunked(shard, client, limit).await,
    }
}

fn message(client: &mut Client, body_end: usize, budget: Budget) -> Message {
    let bytes = std::mem::take(&mut client.inbox);
    Message { bytes, body_start: client.head.head_bytes, body_end, _budget: budget }
}

async fn receive_length(shard: &Shard, client: &mut Client, bytes: usize) -> Result<(), NoBody> {
    let end = client.head.head_bytes + bytes;
    if client.inbox.len() >= end {
        return Ok(());
    }
    say_continue(shard, client).await?;
    client.inbox.reserve(end - client.inbox.len());
    while client.inbox.len() < end {
        receive_some(shard, client).await?;
    }
    Ok(())
}

async fn receive_chunked(shard: &Rc<Shard>, client: &mut Client, limit: usize) -> Result<Message, NoBody> {
    let head_bytes = client.head.head_bytes;
    let mut budget = Budget::take(shard, SizeClass::Medium.bytes()).await?;
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
        if whole.len() > budget.bytes {
            let more = whole.len() - budget.bytes;
            budget.grow(more).await?;
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
    Ok(Message { bytes: whole, body_start: head_bytes, body_end, _budget: budget })
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
