//! One client connection: takes requests off it, in order, until either side has had enough.

use std::cell::{Cell, RefCell};
use std::io as std_io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use config::snapshot::PoolScope;

use crate::error::{Refused, push_error_object, reason};
use crate::exchange::{self, After};
use crate::handover::Arrival;
use crate::http1::rewrite::{push_decimal, push_header};
use crate::http1::{RequestHead, Version};
use crate::io::{self, Accepted, Buf, Conn, Listener, Out, SizeClass, Stop, until};
use crate::shard::Shard;
use crate::sys;
use crate::tls::{Acceptor, Established, NotEstablished, Transport};

/// After an answer that could not wait for the end of the request, this much more is read so that the client sees it.
const LINGER_BYTES_MAX: usize = 64 << 20;
/// And for this long.
const LINGER: Duration = Duration::from_secs(1);
/// Most connections taken from a queue at once.
const ACCEPT_WAITING_MAX: usize = 4096;
/// Rest after a failed accept (out of descriptors, mostly): the backlog keeps what comes meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a listener of this thread makes of the connections it takes.
#[derive(Debug)]
pub(crate) struct Entrance {
    /// Its place among the listeners, the same on every thread.
    pub(crate) number: usize,
    /// The pools served there.
    pub(crate) scope: Rc<PoolScope>,
    /// What TLS connections are accepted with, replaced when the certificate changes; `None` for plain ones.
    pub(crate) acceptor: RefCell<Option<Acceptor>>,
}

/// How long connections wait at most for a process that has just begun: it may share its addresses with another one that
/// could answer them.
const OPENS_WITHIN_US: u64 = 2_000_000;
/// How often a thread that has just begun looks whether it may take connections.
const OPENING_LOOK: Duration = Duration::from_millis(5);

/// Waits until requests can be answered: a configuration is in force, and every endpoint has been asked. Until then the kernel
/// keeps connections waiting, which is better than telling the first clients of a new process that nobody is ready.
async fn opens(shard: &Shard) {
    let begun_us = io::now_us();
    while !shard.knows_its_endpoints() && io::now_us().saturating_sub(begun_us) < OPENS_WITHIN_US {
        io::sleep(OPENING_LOOK).await;
    }
}

/// Takes connections for ever, or until the thread drains.
pub(crate) async fn accept(shard: Rc<Shard>, listener: Listener, entrance: Rc<Entrance>) {
    opens(&shard).await;
    loop {
        let taken = match listener.accept().await {
            Ok(accepted) => take(&shard, accepted, &entrance),
            Err(error) => Err(error),
        };
        match taken {
            Ok(()) => {}
            Err(_) if shard.draining.get() => return,
            Err(_) => {
                shard.metrics.borrow_mut().accept_errors += 1;
                io::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a connection that was accepted here, or has a lighter thread do so.
fn take(shard: &Rc<Shard>, accepted: Accepted, entrance: &Entrance) -> std_io::Result<()> {
    if let Some(lighter) = shard.lighter_peer()
        && let Ok(stream) = accepted.duplicate()
        && lighter.pass(Arrival { listener: entrance.number, stream, peer: accepted.peer }).is_ok()
    {
        shard.metrics.borrow_mut().connections_handed_over += 1;
        return Ok(());
    }
    // What came back was a second descriptor; the connection is as it was.
    let peer = accepted.peer;
    admit(shard, accepted.keep(&shard.reactor)?, peer, entrance);
    Ok(())
}

/// Takes a connection that another thread accepted.
pub(crate) fn admit_arrival(shard: &Rc<Shard>, arrival: Arrival, entrance: &Entrance) {
    match io::adopt(arrival.stream, &shard.reactor) {
        Ok(conn) => admit(shard, conn, arrival.peer, entrance),
        Err(_) => shard.metrics.borrow_mut().accept_errors += 1,
    }
}

/// Takes the connections that wait at a listening socket now.
pub(crate) fn admit_waiting(shard: &Rc<Shard>, socket: RawFd, entrance: &Entrance) {
    // As many as a backlog may hold.
    for _ in 0..ACCEPT_WAITING_MAX {
        let Some(stream) = sys::accept_waiting(socket) else { return };
        // One that has gone meanwhile has no peer.
        if let Ok(peer) = stream.peer_addr() {
            admit_arrival(shard, Arrival { listener: entrance.number, stream, peer }, entrance);
        }
    }
}

fn admit(shard: &Rc<Shard>, conn: Conn, peer: SocketAddr, entrance: &Entrance) {
    {
        let mut metrics = shard.metrics.borrow_mut();
        if metrics.connections_open >= shard.settings.connections_per_thread_max as u64 {
            metrics.connections_refused += 1;
            return;
        }
        metrics.connections_accepted += 1;
    }
    let open = OpenConnection::new(shard);
    let Ok(conn) = Transport::accepted(conn, entrance.acceptor.borrow().as_ref()) else {
        shard.metrics.borrow_mut().tls_handshakes_failed += 1;
        return;
    };
    let client = Client {
        conn,
        peer_ip: peer.ip().to_string().into(),
        inbox: Buf::default(),
        head: RequestHead::default(),
        out: Out::default(),
        scope: entrance.scope.clone(),
    };
    io::spawn(async move {
        if io::catching(serve(&open, client)).await.is_err() {
            open.shard.metrics.borrow_mut().panics += 1;
        }
    });
}

/// Counts a connection until it is dropped.
struct OpenConnection {
    shard: Rc<Shard>,
    /// Whether its first request has come.
    known: Cell<bool>,
}

impl OpenConnection {
    fn new(shard: &Rc<Shard>) -> Self {
        shard.connection_begins();
        Self { shard: shard.clone(), known: Cell::new(false) }
    }

    /// A request has come.
    fn is_known(&self) {
        if !self.known.replace(true) {
            self.shard.connection_is_known();
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.is_known();
        self.shard.connection_ends();
    }
}

/// A client connection and what has been received on it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) conn: Transport,
    /// The client's address, as `X-Forwarded-For` has it.
    pub(crate) peer_ip: Box<str>,
    /// Received and not yet used; a request begins at its start.
    pub(crate) inbox: Buf,
    /// The head of the current request.
    pub(crate) head: RequestHead,
    /// For what is sent.
    pub(crate) out: Out,
    /// The pools that may serve it.
    pub(crate) scope: Rc<PoolScope>,
}

async fn serve(open: &OpenConnection, mut client: Client) {
    let shard = &open.shard;
    match client.conn.establish(shard.settings.request_head_timeout).await {
        Ok(Established::Plain) => {}
        Ok(Established::Tls) => shard.metrics.borrow_mut().tls_handshakes += 1,
        Err(failed) => {
            shard.metrics.borrow_mut().tls_handshakes_failed += 1;
            match failed {
                // Whoever is that slow is not told about it.
                NotEstablished::TimedOut => {}
                NotEstablished::Refused => Box::pin(client.drain_raw()).await,
            }
            return;
        }
    }
    loop {
        let incoming = client.receive_head(shard).await;
        open.is_known();
        match incoming {
            Ok(Incoming::Request) => {}
            Ok(Incoming::Closed) => return,
            Err(refused) => {
                Box::pin(exchange::refuse_head(shard, &mut client, &refused)).await;
                Box::pin(client.linger()).await;
                return;
            }
        }
        match exchange::run(shard, &mut client).await {
            After::KeepAlive => {}
            After::Close => {
                client.conn.shutdown().await;
                return;
            }
            After::Linger => {
                Box::pin(client.linger()).await;
                return;
            }
            After::Abort => return,
        }
    }
}

enum Incoming {
    /// `head` is filled.
    Request,
    /// The client has gone, or has been idle for too long.
    Closed,
}

impl Client {
    async fn receive_head(&mut self, shard: &Shard) -> Result<Incoming, Refused> {
        let settings = &shard.settings;
        let mut parsed_to = 0;
        let first_byte_pending = self.inbox.is_empty();
        self.out.release();
        self.conn.watch().arm(if first_byte_pending {
            settings.client_idle_timeout
        } else {
            settings.request_head_timeout
        });
        loop {
            // Parsing again only makes sense when a line has ended.
            if memchr::memchr(b'\n', &self.inbox[parsed_to..]).is_some() {
                self.skip_empty_lines();
                if self.head.parse(&self.inbox).map_err(Refused::Head)? {
                    self.conn.watch().disarm();
                    if self.head.head_bytes > settings.request_head_bytes_max {
                        return Err(Refused::HeadTooLong(settings.request_head_bytes_max));
                    }
                    return Ok(Incoming::Request);
                }
                parsed_to = self.inbox.len();
            }
            if self.inbox.len() >= settings.request_head_bytes_max {
                return Err(Refused::HeadTooLong(settings.request_head_bytes_max));
            }
            let was_empty = self.inbox.is_empty();
            self.inbox.make_room();
            match self.receive(None).await {
                Ok(0) | Err(Fault::Io) => return Ok(Incoming::Closed),
                Ok(_) if was_empty => self.conn.watch().arm(settings.request_head_timeout),
                Ok(_) => {}
                Err(Fault::Stopped(_)) if was_empty => return Ok(Incoming::Closed),
                Err(Fault::Stopped(_)) => return Err(Refused::HeadTimeout),
            }
        }
    }

    /// A robust server ignores an empty line before a request (RFC 9112, 2.2).
    fn skip_empty_lines(&mut self) {
        let empty = self.inbox.iter().take(4).take_while(|b| matches!(b, b'\r' | b'\n')).count();
        self.inbox.consume(empty);
    }

    /// Receives more into the inbox, within the deadline that is armed. On a stop the received bytes are lost.
    pub(crate) async fn receive(&mut self, leave_early: Option<&io::Watch>) -> Result<usize, Fault> {
        let watch = self.conn.watch_shared();
        let buf = std::mem::take(&mut self.inbox);
        let kept = buf.len();
        let received = match &mut self.conn {
            Transport::Plain(conn) => until(conn.recv(buf), leave_early, &watch).await,
            // In a box, here and below: plain connections would hold the room for it.
            Transport::Tls(conn) => Box::pin(until(conn.recv(buf), leave_early, &watch)).await,
        };
        match received {
            Ok((Ok(n), buf)) => {
                self.inbox = buf;
                debug_assert!(self.inbox.len() == kept + n);
                Ok(n)
            }
            Ok((Err(_), buf)) => {
                self.inbox = buf;
                Err(Fault::Io)
            }
            Err(stop) => Err(Fault::Stopped(stop)),
        }
    }

    /// Sends what is in `out`, within `timeout` of the client reading nothing.
    pub(crate) async fn send(&mut self, timeout: Duration) -> Result<(), Fault> {
        let watch = self.conn.watch_shared();
        watch.arm(timeout);
        let out = std::mem::take(&mut self.out);
        let sent = match &mut self.conn {
            Transport::Plain(conn) => until(conn.send(out), None, &watch).await,
            Transport::Tls(conn) => Box::pin(until(conn.send(out), None, &watch)).await,
        };
        watch.disarm();
        match sent {
            Ok((result, out)) => {
                self.out = out;
                result.map_err(|_: std_io::Error| Fault::Io)
            }
            Err(stop) => Err(Fault::Stopped(stop)),
        }
    }

    /// Ends our side, then reads on for a moment: closing with unread bytes would make the kernel reset the
    /// connection and take our answer with it.
    pub(crate) async fn linger(mut self) {
        self.conn.shutdown().await;
        self.conn.watch().arm(LINGER);
        let mut read = 0;
        while read < LINGER_BYTES_MAX {
            self.inbox = Buf::pooled(SizeClass::Medium);
            match self.receive(None).await {
                Ok(0) | Err(_) => return,
                Ok(n) => read += n,
            }
        }
    }

    /// Ends our side below TLS, and reads on for a moment so that the alert that was sent arrives.
    async fn drain_raw(mut self) {
        let conn = self.conn.raw_mut();
        conn.shutdown().await;
        let watch = conn.watch_shared();
        watch.arm(LINGER);
        let mut read = 0;
        while read < LINGER_BYTES_MAX {
            match until(conn.recv(Buf::pooled(SizeClass::Medium)), None, &watch).await {
                Ok((Ok(n), _)) if n > 0 => read += n,
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Puts a whole answer of ours into `out`.
    pub(crate) fn put_answer(&mut self, answer: &LocalAnswer<'_>) {
        self.out.clear();
        let version = self.head.version;
        self.out.small_with(|to| {
            push_status_line(to, answer.status, reason(answer.status).as_bytes());
            push_header(to, b"content-type", b"application/json");
            to.extend_from_slice(b"content-length: ");
            push_decimal(to, answer.body.len() as u64);
            to.extend_from_slice(b"\r\n");
            push_connection(to, version, answer.after);
            to.extend_from_slice(answer.lines);
            for (name, value) in answer.headers {
                push_header(to, name.as_bytes(), value);
            }
            to.extend_from_slice(b"\r\n");
            if answer.with_body {
                to.extend_from_slice(answer.body);
            }
        });
    }
}

/// An answer that comes from us.
pub(crate) struct LocalAnswer<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
    pub(crate) headers: &'a [(&'a str, &'a [u8])],
    /// Further lines, ready to be sent.
    pub(crate) lines: &'a [u8],
    pub(crate) after: After,
    /// False for HEAD.
    pub(crate) with_body: bool,
}

/// Appends the status line.
pub(crate) fn push_status_line(to: &mut Vec<u8>, status: u16, reason: &[u8]) {
    to.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(to, u64::from(status));
    to.push(b' ');
    to.extend_from_slice(reason);
    to.extend_from_slice(b"\r\n");
}

/// Appends `Connection` where it says anything.
pub(crate) fn push_connection(to: &mut Vec<u8>, version: Version, after: After) {
    match (after, version) {
        (After::KeepAlive, Version::Http11) => {}
        (After::KeepAlive, Version::Http10) => push_header(to, b"connection", b"keep-alive"),
        (After::Close | After::Linger | After::Abort, _) => push_header(to, b"connection", b"close"),
    }
}

/// How the events of a stream are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventNames {
    /// By nothing: chat completions and their like.
    Absent,
    /// By an `event:` line and a `type` of the same name: the Responses API, Anthropic's Messages.
    Present,
}

/// Appends the in-band error event that ends a stream whose upstream failed.
pub(crate) fn push_error_event(to: &mut Vec<u8>, names: EventNames, message: &str, code: &str) {
    match names {
        EventNames::Absent => to.extend_from_slice(b"data: "),
        EventNames::Present => to.extend_from_slice(b"event: error\ndata: "),
    }
    let begin = to.len();
    push_error_object(to, message, "server_error", None, code);
    if names == EventNames::Present {
        to.splice(begin..=begin, *b"{\"type\":\"error\",");
    }
    to.extend_from_slice(b"\n\n");
}

/// Why a client connection is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The kernel says so.
    Io,
    /// A wait ended.
    Stopped(Stop),
}
