//! Answers on the wire, right or wrong as the faults command.

use std::{io, time::Duration};

use crate::{
    fault::{Afterwards, Cut, CutKind, LineEnd, Part, Writes},
    http::{self, Connection, Persistence},
    openai::{self, Api, ApiError, Call, Delivery, Renderer, StreamUsage, Usage},
    pump::{Progress, Ticket},
    record::Outcome,
    serve::{End, Exchange, unix_s},
    step::{Refusal, Request},
    text,
};

/// A silent engine lets go of its client at last.
const HANG_MAX: Duration = Duration::from_secs(3600);

/// Head of an answer with a JSON body; `extra` holds whole header lines.
pub(crate) fn json_head(status: u16, body_bytes: usize, extra: &str, persistence: Persistence) -> String {
    full_head(status, Some("application/json"), body_bytes, extra, persistence)
}

fn full_head(
    status: u16,
    content_type: Option<&str>,
    body_bytes: usize,
    extra: &str,
    persistence: Persistence,
) -> String {
    let start = http::head_start(status, unix_s());
    let content_type = content_type.map_or(String::new(), |content_type| format!("content-type: {content_type}\r\n"));
    let connection = connection_line(persistence);
    format!("{start}{extra}content-length: {body_bytes}\r\n{content_type}vary: Origin\r\n{connection}\r\n")
}

fn connection_line(persistence: Persistence) -> &'static str {
    match persistence {
        Persistence::KeepAlive => "",
        Persistence::Close => "connection: close\r\n",
    }
}

/// Delays, cuts and error statuses that come before any answer. `None`: go on.
pub(crate) async fn faults_before_head(connection: &mut Connection, exchange: &mut Exchange<'_>) -> Option<End> {
    let plan = exchange.plan;
    if !plan.head_delay.is_zero() && pause(connection, plan.head_delay).await == Peer::Gone {
        exchange.end(Outcome::Aborted);
        return Some(End::Close);
    }
    if let Cut::BeforeHead(kind) = plan.cut {
        return Some(cut(connection, exchange, kind).await);
    }
    let (status, retry_after_s) = plan.status?;
    let retry_after = retry_after_s.map_or(String::new(), |seconds| format!("retry-after: {seconds}\r\n"));
    let kind = if status == 503 { "Service Unavailable" } else { "Fault" };
    let error = ApiError::new(status, kind, "The engine was told to answer with this status.", None);
    Some(send_whole(connection, exchange, error.status, Some("application/json"), &retry_after, &error.body).await)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    There,
    Gone,
}

/// Waits, but not for a client that has left.
async fn pause(connection: &mut Connection, time: Duration) -> Peer {
    tokio::select! {
        () = tokio::time::sleep(time) => Peer::There,
        () = connection.gone() => Peer::Gone,
    }
}

async fn cut(connection: &mut Connection, exchange: &mut Exchange<'_>, kind: CutKind) -> End {
    match kind {
        CutKind::Hang => {
            let peer = pause(connection, HANG_MAX).await;
            exchange.end(if peer == Peer::Gone { Outcome::Aborted } else { Outcome::Faulted });
            End::Close
        }
        CutKind::Reset => {
            exchange.end(Outcome::Faulted);
            End::Reset
        }
        CutKind::Close | CutKind::ErrorEvent => {
            exchange.end(Outcome::Faulted);
            End::Close
        }
    }
}

/// An error answer.
pub(crate) async fn error(connection: &mut Connection, exchange: &mut Exchange<'_>, error: &ApiError) -> End {
    let allow = if error.status == 405 { "allow: GET, POST\r\n" } else { "" };
    send_whole(connection, exchange, error.status, Some("application/json"), allow, &error.body).await
}

/// A page that does not run the model.
pub(crate) async fn page(
    connection: &mut Connection,
    exchange: &mut Exchange<'_>,
    content_type: Option<&str>,
    body: &str,
) -> End {
    send_whole(connection, exchange, 200, content_type, "", body).await
}

async fn send_whole(
    connection: &mut Connection,
    exchange: &mut Exchange<'_>,
    status: u16,
    content_type: Option<&str>,
    extra: &str,
    body: &str,
) -> End {
    exchange.amend(|record| record.status = Some(status));
    let mut bytes = full_head(status, content_type, body.len(), extra, exchange.persistence).into_bytes();
    let shortened = match exchange.plan.cut {
        Cut::AfterEvents(kind, _) if kind != CutKind::ErrorEvent => Some(kind),
        Cut::AfterEvents(..) | Cut::BeforeHead(_) | Cut::Never => None,
    };
    let sent_bytes = if shortened.is_some() { body.len() / 2 } else { body.len() };
    bytes.extend_from_slice(&body.as_bytes()[..sent_bytes]);
    let written = match exchange.plan.writes {
        Writes::PerByte => connection.write_byte_wise(&bytes).await,
        Writes::PerEvent | Writes::Coalesced(_) | Writes::SplitChunks(_) => connection.write_all(&bytes).await,
    };
    if written.is_err() {
        exchange.end(Outcome::Aborted);
        return End::Close;
    }
    match shortened {
        Some(kind) => cut(connection, exchange, kind).await,
        None => {
            exchange.end(Outcome::Completed);
            End::Answered(exchange.plan.afterwards)
        }
    }
}

/// Runs the model for a request and answers.
pub(crate) async fn model(connection: &mut Connection, exchange: &mut Exchange<'_>, api: Api, body: &[u8]) -> End {
    let shared = exchange.shared;
    let call = match openai::parse_call(api, body, shared.served()) {
        Ok(call) => call,
        Err(refused) => return error(connection, exchange, &refused).await,
    };
    let prompt_tokens = u32::try_from(call.prompt.len()).unwrap_or(u32::MAX);
    exchange.amend(|record| {
        record.model = Some(call.model.clone());
        record.prompt_hash = Some(text::prompt_hash(&call.prompt));
        record.prompt_tokens = Some(prompt_tokens.into());
    });
    let block_tokens = shared.settings.parameters.block_tokens;
    let blocks = text::block_hashes(call.cache_seed, &call.prompt, call.answer, call.output_tokens, block_tokens);
    if let Some(publisher) = &shared.publisher {
        publisher.describe(&call, &blocks);
    }
    let request = Request { id: 0, prompt_tokens, output_tokens: call.output_tokens, blocks };
    let ticket = match shared.pump.submit(request) {
        Ok(ticket) => ticket,
        Err(refusal) => return error(connection, exchange, &refused(refusal)).await,
    };
    let id = exchange.id.clone();
    let mut renderer = Renderer::new(&call, &id, unix_s(), shared.settings.prompt_details);
    renderer.pad(exchange.plan.pad_bytes);
    match call.delivery {
        Delivery::Whole => whole(connection, exchange, ticket, renderer).await,
        Delivery::Stream(usage) => {
            let usage = match exchange.plan.usage {
                Part::Sent => usage,
                Part::LeftOut => StreamUsage::None,
            };
            stream(connection, exchange, ticket, renderer, &call, usage).await
        }
    }
}

fn refused(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::QueueFull => ApiError::new(
            503,
            "Service Unavailable",
            "The engine is currently busy and cannot accept new requests. Please try again later or on a different \
             instance.",
            None,
        ),
        Refusal::TooLong => ApiError::new(400, "BadRequestError", "The request exceeds the KV cache.", None),
        Refusal::DuplicateId => ApiError::new(500, "InternalServerError", "Duplicate request id.", None),
    }
}

/// The next news of a request, or `None` when the client has left.
async fn progress(connection: &mut Connection, ticket: &mut Ticket) -> Option<Progress> {
    tokio::select! {
        biased;
        progress = ticket.progress() => progress,
        () = connection.gone() => None,
    }
}

async fn whole(
    connection: &mut Connection,
    exchange: &mut Exchange<'_>,
    mut ticket: Ticket,
    mut renderer: Renderer<'_>,
) -> End {
    loop {
        match progress(connection, &mut ticket).await {
            Some(Progress::Admitted { cached_tokens }) => {
                renderer.cached_tokens = cached_tokens;
                exchange.amend(|record| record.cached_tokens = Some(cached_tokens.into()));
            }
            Some(Progress::Token) => {}
            Some(Progress::LastToken) => break,
            None => {
                exchange.end(Outcome::Aborted);
                return End::Close;
            }
        }
    }
    if pause_first(connection, exchange).await == Peer::Gone {
        return End::Close;
    }
    let usage = match exchange.plan.usage {
        Part::Sent => Usage::Sent,
        Part::LeftOut => Usage::LeftOut,
    };
    if let Cut::AfterEvents(CutKind::ErrorEvent, _) = exchange.plan.cut {
        return error(connection, exchange, &engine_error()).await;
    }
    let body = renderer.whole(usage);
    send_whole(connection, exchange, 200, Some("application/json"), "", &body).await
}

async fn pause_first(connection: &mut Connection, exchange: &mut Exchange<'_>) -> Peer {
    let delay = exchange.plan.first_token_delay;
    if delay.is_zero() {
        return Peer::There;
    }
    let peer = pause(connection, delay).await;
    if peer == Peer::Gone {
        exchange.end(Outcome::Aborted);
    }
    peer
}

fn engine_error() -> ApiError {
    ApiError::new(
        500,
        "InternalServerError",
        "EngineCore encountered an issue. See stack trace for the root cause.",
        None,
    )
}

async fn stream(
    connection: &mut Connection,
    exchange: &mut Exchange<'_>,
    ticket: Ticket,
    renderer: Renderer<'_>,
    call: &Call,
    usage: StreamUsage,
) -> End {
    exchange.amend(|record| record.status = Some(200));
    // vLLM sends the head at once and the first event only with the first token.
    let head = format!(
        "{}content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\n{}transfer-encoding: chunked\r\n\r\n",
        http::head_start(200, unix_s()),
        connection_line(exchange.persistence)
    );
    let mut events = EventWriter { connection, exchange, chunk: Vec::new(), wire: Vec::new(), held: 0, written: 0 };
    let result = match events.write(head.as_bytes()).await {
        Ok(()) => stream_events(&mut events, ticket, renderer, call, usage).await,
        Err(error) => Err(Stopped::from(error)),
    };
    match result {
        Ok(()) => {
            exchange.end(Outcome::Completed);
            End::Answered(exchange.plan.afterwards)
        }
        Err(Stopped::ClientGone) => {
            exchange.end(Outcome::Aborted);
            End::Close
        }
        Err(Stopped::Cut(kind)) => cut(connection, exchange, kind).await,
        Err(Stopped::ErrorEvent) => {
            exchange.end(Outcome::Faulted);
            End::Answered(Afterwards::AsAgreed)
        }
    }
}

/// Why a stream did not come to its proper end.
enum Stopped {
    ClientGone,
    Cut(CutKind),
    /// It ended properly, with an error event.
    ErrorEvent,
}

impl From<io::Error> for Stopped {
    fn from(_: io::Error) -> Self {
        Self::ClientGone
    }
}

async fn stream_events(
    events: &mut EventWriter<'_, '_>,
    mut ticket: Ticket,
    mut renderer: Renderer<'_>,
    call: &Call,
    usage: StreamUsage,
) -> Result<(), Stopped> {
    let mut position = 0;
    let mut json = String::new();
    while position < call.output_tokens {
        match progress(events.connection, &mut ticket).await {
            None => return Err(Stopped::ClientGone),
            Some(Progress::Admitted { cached_tokens }) => {
                renderer.cached_tokens = cached_tokens;
                events.exchange.amend(|record| record.cached_tokens = Some(cached_tokens.into()));
            }
            Some(Progress::Token | Progress::LastToken) => {
                if position == 0 {
                    if pause_first(events.connection, events.exchange).await == Peer::Gone {
                        return Err(Stopped::ClientGone);
                    }
                    if let Some(role) = renderer.role_event(usage) {
                        events.event(&role).await?;
                    }
                }
                json.clear();
                renderer.token_event(usage, position, &mut json);
                events.event(&json).await?;
                position += 1;
            }
        }
    }
    if usage != StreamUsage::None {
        events.event(&renderer.usage_event()).await?;
    }
    if events.exchange.plan.done == Part::Sent {
        events.event("[DONE]").await?;
    }
    events.finish().await?;
    Ok(())
}

/// Puts events into chunks and chunks on the wire, as the plan commands.
struct EventWriter<'a, 'b> {
    connection: &'a mut Connection,
    exchange: &'a mut Exchange<'b>,
    /// Events of the chunk being filled.
    chunk: Vec<u8>,
    /// Scratch: chunks with their framing.
    wire: Vec<u8>,
    /// Events in `chunk`.
    held: u32,
    /// Events so far.
    written: u32,
}

impl EventWriter<'_, '_> {
    async fn event(&mut self, json: &str) -> Result<(), Stopped> {
        if let Cut::AfterEvents(kind, after) = self.exchange.plan.cut
            && self.written == after
        {
            self.flush().await?;
            if kind != CutKind::ErrorEvent {
                return Err(Stopped::Cut(kind));
            }
            self.push(&engine_error().body);
            self.push("[DONE]");
            self.finish().await?;
            return Err(Stopped::ErrorEvent);
        }
        self.push(json);
        self.written += 1;
        match self.exchange.plan.writes {
            Writes::Coalesced(events) if self.held < events => Ok(()),
            Writes::PerEvent | Writes::PerByte | Writes::Coalesced(_) | Writes::SplitChunks(_) => {
                Ok(self.flush().await?)
            }
        }
    }

    fn push(&mut self, json: &str) {
        let line_end: &[u8] = match self.exchange.plan.line_end {
            LineEnd::Lf => b"\n",
            LineEnd::CrLf => b"\r\n",
        };
        self.chunk.extend_from_slice(self.exchange.plan.data_prefix.as_bytes());
        self.chunk.extend_from_slice(json.as_bytes());
        self.chunk.extend_from_slice(line_end);
        self.chunk.extend_from_slice(line_end);
        self.held += 1;
    }

    /// Sends the events held back.
    async fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk_bytes = match self.exchange.plan.writes {
            Writes::SplitChunks(bytes) => bytes as usize,
            Writes::PerEvent | Writes::PerByte | Writes::Coalesced(_) => self.chunk.len(),
        };
        self.wire.clear();
        for piece in self.chunk.chunks(chunk_bytes) {
            self.wire.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            self.wire.extend_from_slice(piece);
            self.wire.extend_from_slice(b"\r\n");
        }
        self.chunk.clear();
        self.held = 0;
        let wire = std::mem::take(&mut self.wire);
        let result = self.write(&wire).await;
        self.wire = wire;
        result
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.write(b"0\r\n\r\n").await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.exchange.plan.writes {
            Writes::PerByte => self.connection.write_byte_wise(bytes).await,
            Writes::PerEvent | Writes::Coalesced(_) | Writes::SplitChunks(_) => self.connection.write_all(bytes).await,
        }
    }
}
