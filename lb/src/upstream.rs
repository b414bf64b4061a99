//! One attempt to have a request answered by one endpoint: connect or reuse, send, wait for the head of the answer.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use policy::{Backend, UpstreamHeader};

use crate::body::{BodyEncoding, Message};
use crate::conn::Client;
use crate::endpoints::Endpoint;
use crate::error::UpstreamError;
use crate::http1::rewrite::{is_for_providers, push_decimal, push_header, request_headers};
use crate::http1::target::{origin_form, provider_target};
use crate::http1::{Method, Name, ResponseHead};
use crate::io::{self, Buf, Conn, SizeClass, Stop, Watch, until};
use crate::openai::edit::Edits;
use crate::plan::EndpointSpec;
use crate::provider::{self, Translated, Translation};
use crate::shard::{Shard, duration_us, unix_ms};
use crate::tls::{Connector, Sent, TlsFault, Transport};

/// Longest head of an answer.
const RESPONSE_HEAD_BYTES_MAX: usize = 64 << 10;
/// Longer requests are watched for an answer that comes while they are sent; shorter ones fit into the sockets' buffers.
const EARLY_ANSWER_BYTES_MIN: usize = 256 << 10;
/// What our own lines add to the client's head, mostly.
const HEAD_BYTES_ADDED: usize = 256;
/// Most interim (1xx) answers before the real one.
const INTERIM_ANSWERS_MAX: u32 = 8;

/// The beginning of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) conn: Transport,
    pub(crate) head: ResponseHead,
    /// The head, and what came with it.
    pub(crate) received: Buf,
    /// What makes it one for the client, where it is not one as it comes.
    pub(crate) translation: Option<Translation>,
}

/// How an attempt ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The client has gone: nobody is to blame, nothing to be tried again.
    ClientGone,
    /// The endpoint failed before any byte of an answer; another may be tried.
    Failed(UpstreamError),
    /// As `Failed`, but there must be no other attempt: the request's bytes are lost with the connection, or the endpoint
    /// may be at work on it.
    Lost(UpstreamError),
}

/// What is sent, and to whom.
pub(crate) struct Upstream<'a> {
    pub(crate) endpoint: &'a Rc<Endpoint>,
    pub(crate) content: Content<'a>,
    pub(crate) request_id: &'a str,
    /// When it must be over.
    pub(crate) deadline: Deadline,
}

/// What an endpoint is sent.
pub(crate) enum Content<'a> {
    /// The client's request.
    Passed(Passed<'a>),
    /// One in the words of the endpoint's own API.
    Translated(&'a Translated),
}

/// How the client's request changes on its way.
pub(crate) struct Passed<'a> {
    pub(crate) edits: &'a Edits,
    /// Path and query; `None` takes what the client sent.
    pub(crate) target: Option<&'a [u8]>,
    /// The answer must not be compressed: it is to be read.
    pub(crate) encoding: Encoding,
    /// What the rule adds, each in place of what the client sent under its name.
    pub(crate) headers: &'a [UpstreamHeader],
}

/// When an attempt must be over, answer included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// On the process clock; `None`: whenever.
    at_us: Option<u64>,
}

impl Deadline {
    /// For an attempt that begins now.
    pub(crate) fn after(total: Option<Duration>) -> Self {
        Self { at_us: total.map(|total| io::now_us().saturating_add(duration_us(total))) }
    }

    /// Of the time for one phase, what is left.
    pub(crate) fn within(self, phase: Duration) -> Duration {
        match self.at_us {
            None => phase,
            Some(at_us) => phase.min(Duration::from_micros(at_us.saturating_sub(io::now_us()))),
        }
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(self) -> bool {
        self.at_us.is_some_and(|at_us| at_us <= io::now_us())
    }
}

/// Whether `Accept-Encoding` travels on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// The client's wish is passed on.
    AsAsked,
    /// The upstream is to send plain bytes.
    Plain,
}

/// Sends the request and waits for the head of the answer. `message` stays with the caller unless the result says it
/// is lost.
pub(crate) async fn attempt(
    shard: &Rc<Shard>,
    client: &mut Client,
    upstream: &Upstream<'_>,
    message: &mut Message,
) -> Result<Answer, NoAnswer> {
    let keep_alive_us = duration_us(upstream.endpoint.keep_alive(&shard.settings));
    let reused = upstream.endpoint.take_idle(io::now_us(), keep_alive_us);
    if let Some(conn) = reused {
        shard.metrics.borrow_mut().upstream_reuses += 1;
        match ask(shard, client, upstream, message, conn).await {
            // The engine closed it while the request was on its way: not a failure of the endpoint.
            Err(NoAnswer::Failed(UpstreamError::Reset)) => shard.metrics.borrow_mut().replays += 1,
            other => return other,
        }
    }
    let conn = connect(shard, client.conn.watch(), upstream).await?;
    shard.metrics.borrow_mut().upstream_connects += 1;
    ask(shard, client, upstream, message, conn).await
}

/// A connection that is ready for a request: within one time for all that it takes.
async fn connect(shard: &Rc<Shard>, client: &Watch, upstream: &Upstream<'_>) -> Result<Transport, NoAnswer> {
    let endpoint = upstream.endpoint;
    let timeout = endpoint.spec.timeouts.connect.unwrap_or(shard.settings.connect_timeout);
    let deadline = shard.reactor.deadline(upstream.deadline.within(timeout));
    let conn = match until(io::connect(&shard.reactor, endpoint.address()), Some(client), deadline.watch()).await {
        Ok(Ok(conn)) => conn,
        Ok(Err(error)) if is_ours(&error) => return Err(NoAnswer::Lost(UpstreamError::OutOfSockets)),
        Ok(Err(_)) | Err(Stop::TimedOut) => {
            endpoint.turn_address();
            return Err(NoAnswer::Failed(UpstreamError::Connect));
        }
        Err(Stop::Gone) => return Err(NoAnswer::ClientGone),
    };
    match endpoint.connector() {
        None => Ok(Transport::Plain(conn)),
        // In a box: plain connections would hold the room for it.
        Some(connector) => Box::pin(shake_hands(shard, client, endpoint, conn, connector, deadline.watch())).await,
    }
}

async fn shake_hands(
    shard: &Shard,
    client: &Watch,
    endpoint: &Endpoint,
    conn: Conn,
    connector: &Connector,
    deadline: &Watch,
) -> Result<Transport, NoAnswer> {
    let failed = |fault: TlsFault| {
        if matches!(fault, TlsFault::Closed | TlsFault::TimedOut) {
            endpoint.turn_address();
        }
        NoAnswer::Failed(UpstreamError::Tls(fault))
    };
    match until(Transport::connect(conn, connector), Some(client), deadline).await {
        Ok(Ok(conn)) => {
            shard.metrics.borrow_mut().upstream_tls_handshakes += 1;
            Ok(conn)
        }
        Ok(Err(fault)) => Err(failed(fault)),
        Err(Stop::TimedOut) => Err(failed(TlsFault::TimedOut)),
        Err(Stop::Gone) => Err(NoAnswer::ClientGone),
    }
}

/// This process, or its host, has no more descriptors, ports or memory: no fault of the endpoint, and no other one helps.
fn is_ours(error: &std::io::Error) -> bool {
    const OURS: [i32; 5] = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| OURS.contains(&code))
}

async fn ask(
    shard: &Rc<Shard>,
    client: &mut Client,
    upstream: &Upstream<'_>,
    message: &mut Message,
    mut conn: Transport,
) -> Result<Answer, NoAnswer> {
    put_request(client, upstream, message);
    let timeouts = &upstream.endpoint.spec.timeouts;
    let watch = conn.watch_shared();
    watch.arm(upstream.deadline.within(timeouts.idle.unwrap_or(shard.settings.idle_timeout)));
    let out = std::mem::take(&mut client.out);
    let sent = match &mut conn {
        Transport::Plain(conn) if out.len() <= EARLY_ANSWER_BYTES_MIN => {
            until(conn.send(out), Some(client.conn.watch()), &watch).await
        }
        Transport::Plain(plain) => {
            let socket = plain.raw_fd();
            let sending = until(plain.send(out), Some(client.conn.watch()), &watch);
            // In a box: few requests need it, and every connection would hold the room for it.
            match Box::pin(io::unless(sending, io::speaks(socket))).await {
                Some(sent) => sent,
                None => return Box::pin(early_answer(client, upstream, shard, conn)).await,
            }
        }
        Transport::Tls(tls) if out.len() <= EARLY_ANSWER_BYTES_MIN => {
            until(tls.send(out), Some(client.conn.watch()), &watch).await
        }
        Transport::Tls(tls) => match until(tls.send_until_answered(out), Some(client.conn.watch()), &watch).await {
            Ok(Sent::All(out)) => Ok((Ok(()), out)),
            Ok(Sent::Answered) => return Box::pin(early_answer(client, upstream, shard, conn)).await,
            Err(stop) => Err(stop),
        },
    };
    match sent {
        Ok((_, mut out)) => {
            let sent = std::mem::take(out.data());
            match &upstream.content {
                Content::Passed(_) => message.bytes = sent,
                Content::Translated(translated) => translated.body.set(sent),
            }
            out.clear();
            client.out = out;
            // A server may answer before it has read everything (413), so a failed send is told by the receive.
        }
        Err(Stop::Gone) => return Err(NoAnswer::ClientGone),
        Err(Stop::TimedOut) => return Err(NoAnswer::Lost(UpstreamError::Timeout)),
    }
    first_bytes(client, upstream, shard, conn).await
}

/// Waits for the head of the answer, within the time for its first byte.
async fn first_bytes(
    client: &Client,
    upstream: &Upstream<'_>,
    shard: &Rc<Shard>,
    conn: Transport,
) -> Result<Answer, NoAnswer> {
    let watch = conn.watch_shared();
    let first_byte = upstream.endpoint.spec.timeouts.first_byte.unwrap_or(shard.settings.first_byte_timeout);
    watch.arm(upstream.deadline.within(first_byte));
    let answer = receive_head(client.conn.watch(), client.head.method, &watch, conn).await;
    watch.disarm();
    answer
}

/// The server answers (413, mostly) before it has read the body: the rest is not sent, the connection is not used again.
async fn early_answer(
    client: &Client,
    upstream: &Upstream<'_>,
    shard: &Rc<Shard>,
    conn: Transport,
) -> Result<Answer, NoAnswer> {
    match first_bytes(client, upstream, shard, conn).await {
        Ok(mut answer) => {
            answer.head.keep_alive = false;
            Ok(answer)
        }
        Err(NoAnswer::Failed(error)) => Err(NoAnswer::Lost(error)),
        Err(gone_or_lost @ (NoAnswer::ClientGone | NoAnswer::Lost(_))) => Err(gone_or_lost),
    }
}

async fn receive_head(client: &Watch, method: Method, watch: &Watch, mut conn: Transport) -> Result<Answer, NoAnswer> {
    let mut received = Buf::pooled(SizeClass::Small);
    let mut head = ResponseHead::default();
    let mut interim = 0;
    loop {
        let before = received.len();
        let receiving = match &mut conn {
            Transport::Plain(conn) => until(conn.recv(received), Some(client), watch).await,
            Transport::Tls(conn) => until(conn.recv(received), Some(client), watch).await,
        };
        let (result, buf) = match receiving {
            Ok(done) => done,
            Err(Stop::Gone) => return Err(NoAnswer::ClientGone),
            // The engine may well be at work on it: a second one must not begin the same.
            Err(Stop::TimedOut) => return Err(NoAnswer::Lost(UpstreamError::Timeout)),
        };
        received = buf;
        match result {
            Ok(0) | Err(_) if before == 0 && interim == 0 => return Err(NoAnswer::Failed(UpstreamError::Reset)),
            Ok(0) | Err(_) => return Err(NoAnswer::Failed(UpstreamError::BadAnswer)),
            Ok(_) => {}
        }
        while head.parse(&received, method).map_err(|_| NoAnswer::Failed(UpstreamError::BadAnswer))? {
            if head.head_bytes > RESPONSE_HEAD_BYTES_MAX {
                return Err(NoAnswer::Failed(UpstreamError::BadAnswer));
            }
            if head.status >= 200 {
                return Ok(Answer { conn, head, received, translation: None });
            }
            interim += 1;
            if interim > INTERIM_ANSWERS_MAX || head.status == 101 {
                return Err(NoAnswer::Failed(UpstreamError::BadAnswer));
            }
            received.consume(head.head_bytes);
        }
        if received.len() > RESPONSE_HEAD_BYTES_MAX {
            return Err(NoAnswer::Failed(UpstreamError::BadAnswer));
        }
        received.make_room();
    }
}

/// Puts the upstream's request into the client's `out`: a head of our making, the body with its splices.
fn put_request(client: &mut Client, upstream: &Upstream<'_>, message: &mut Message) {
    let mut out = std::mem::take(&mut client.out);
    out.clear();
    match &upstream.content {
        Content::Passed(passed) => {
            out.small_with(|to| push_head(to, client, upstream, passed, message));
            passed.edits.push(&mut out, message.body_start..message.body_end);
            *out.data() = std::mem::take(&mut message.bytes);
        }
        Content::Translated(translated) => {
            out.push_small(&translated.head);
            let body = translated.body.take();
            out.push_data(0..body.len());
            *out.data() = body;
        }
    }
    client.out = out;
}

fn push_head(to: &mut Vec<u8>, client: &Client, upstream: &Upstream<'_>, passed: &Passed<'_>, message: &Message) {
    let bytes: &[u8] = &message.bytes;
    let body_bytes = passed.edits.body_bytes(message.body_end - message.body_start);
    let spec = &upstream.endpoint.spec;
    to.reserve(message.body_start + HEAD_BYTES_ADDED);
    to.extend_from_slice(client.head.method_name.of(bytes));
    to.push(b' ');
    let target = passed.target.unwrap_or_else(|| origin_form(client.head.target.of(bytes)));
    let target = match spec.backend {
        Backend::Local => Cow::Borrowed(target),
        Backend::External => provider_target(target),
    };
    let path = match spec.path_prefix.is_empty() {
        true => &*target,
        false => target.strip_prefix(b"/v1").unwrap_or(&target),
    };
    to.extend_from_slice(spec.path_prefix.as_bytes());
    to.extend_from_slice(path);
    to.extend_from_slice(b" HTTP/1.1\r\n");
    push_header(to, b"host", spec.host_header.as_bytes());
    request_headers(&client.head.headers, bytes, |known, name, value| {
        let kept = match (passed.encoding, message.encoding) {
            (Encoding::Plain, _) if known == Name::AcceptEncoding => false,
            (_, BodyEncoding::Removed) => !known.speaks_of_encoded_body(),
            (Encoding::AsAsked | Encoding::Plain, BodyEncoding::AsSent) => true,
        };
        // The client's own header of a name that we send is not added to ours, least of all beside a credential.
        let mut ours = passed.headers.iter().map(|header| &header.name).chain(spec.credential.iter().map(|c| &c.name));
        let travels = match spec.backend {
            Backend::Local => true,
            Backend::External => is_for_providers(name),
        };
        if kept && travels && !ours.any(|ours| name.eq_ignore_ascii_case(ours.as_bytes())) {
            push_header(to, name, value);
        }
    });
    provider::push_rule_headers(to, spec, passed.headers);
    // An empty body is told where the client did, and where one is expected (RFC 9110, 8.6).
    let told = client.head.headers.first(bytes, Name::ContentLength).is_some();
    if body_bytes > 0 || told || client.head.method == Method::Post {
        to.extend_from_slice(b"content-length: ");
        push_decimal(to, body_bytes as u64);
        to.extend_from_slice(b"\r\n");
    }
    push_header(to, b"x-request-id", upstream.request_id.as_bytes());
    match spec.backend {
        Backend::Local => push_forwarded(to, client, bytes),
        // Whose request it is, and from which address, is nothing for a provider.
        Backend::External => {}
    }
    if spec.signer.is_some() {
        push_signature(to, client, spec, passed, message, path);
    }
    provider::push_credential(to, spec);
    to.extend_from_slice(b"\r\n");
}

/// Signs the request as it is sent; `path` is what stands behind the endpoint's own prefix. Of the client's headers only the
/// type of the body is signed: the others are nothing to AWS.
fn push_signature(
    to: &mut Vec<u8>,
    client: &Client,
    spec: &EndpointSpec,
    passed: &Passed<'_>,
    message: &Message,
    path: &[u8],
) {
    let bytes: &[u8] = &message.bytes;
    // What is no text gets a signature that does not hold: no AWS service takes it anyway.
    let target = format!("{}{}", spec.path_prefix, String::from_utf8_lossy(path));
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut media = client.head.headers.all(bytes, Name::ContentType);
    let signed = provider::Signed {
        method: &String::from_utf8_lossy(client.head.method_name.of(bytes)),
        path,
        query,
        content_type: media.next().filter(|_| media.next().is_none()).and_then(|media| std::str::from_utf8(media).ok()),
        headers: passed.headers,
    };
    provider::push_signature(to, spec, signed, &passed.edits.pieces(message.body()), unix_ms() / 1_000);
}

/// Who asked, by way of whom, and how.
fn push_forwarded(to: &mut Vec<u8>, client: &Client, bytes: &[u8]) {
    to.extend_from_slice(b"x-forwarded-for: ");
    for earlier in client.head.headers.all(bytes, Name::XForwardedFor) {
        to.extend_from_slice(earlier);
        to.extend_from_slice(b", ");
    }
    to.extend_from_slice(client.peer_ip.as_bytes());
    to.extend_from_slice(b"\r\n");
    push_header(to, b"x-forwarded-proto", client.conn.scheme().as_str().as_bytes());
}
