//! The clients of a seed: each plays one connection of the script and writes down what it saw.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use crate::content::{Id, request_body};
use crate::engine::write_paced;
use crate::script::{Afterwards, Ask, Connection, Framing, How, Leave, Order, Pace, Reader, Request, Version};
use crate::support::PATIENCE;
use crate::support::client::find;

/// Longest body that the gateways of these tests take.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// The window of a client that reads slowly.
const SLOW_WINDOW_BYTES: usize = 16 << 10;
/// And what it reads at once.
const SLOW_READ_BYTES: usize = 2 << 10;

/// What a client saw of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It was not sent, or behind the last request of its connection.
    Unasked,
    /// The client left before its answer had come.
    Left(Sent),
    /// An answer, whole by its own word.
    Whole(Reply),
    /// An answer that ended before it should have.
    Cut(Reply, Ending),
    /// The connection ended without a byte of an answer.
    Nothing(Ending),
    /// Bytes that are no HTTP.
    Odd(String),
}

/// How much of a request has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    PartOfHead,
    Head,
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Closed,
    Reset,
    /// It did not end in time.
    Never,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Reply {
    /// The first value of a header, its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    /// The body is as long as its head says, and not to the end of the connection.
    pub(crate) fn tells_length(&self) -> bool {
        self.header("content-length").is_some() || self.header("transfer-encoding").is_some()
    }

    fn ends_connection(&self, version: Version) -> bool {
        let said = self.header("connection");
        match version {
            Version::Http11 => said == Some("close"),
            Version::Http10 | Version::Http10KeepAlive => said != Some("keep-alive"),
        }
    }
}

/// A stream that ends with an error event of the gateway: the last on its connection, which its head could not know.
fn is_broken_off(body: &str) -> bool {
    let last = body.strip_suffix("\n\n").map_or(body, |body| body.rsplit("\n\n").next().unwrap_or_default());
    last.starts_with("data: {\"error\"") && last.contains("\"upstream_")
}

/// Plays a connection; `begins` is called before each request.
pub(crate) fn play(address: SocketAddr, seed: u64, number: usize, script: &Connection, begins: impl Fn()) -> Vec<Seen> {
    let ids = (0..script.requests.len()).map(|request| Id { seed, connection: number, request });
    let mut seen = vec![Seen::Unasked; script.requests.len()];
    let Ok(mut wire) = Wire::open(address, script) else {
        seen[0] = Seen::Nothing(Ending::Closed);
        return seen;
    };
    match script.order {
        Order::OneByOne => {
            for (at, id) in ids.enumerate() {
                let request = &script.requests[at];
                begins();
                seen[at] = match wire.ask(request, &bytes_of(id, request, script.version)) {
                    Some(left) => left,
                    None => wire.answer(request),
                };
                if !wire.goes_on(&mut seen[at]) {
                    break;
                }
            }
        }
        Order::Pipelined => {
            let last = script.requests.len() - 1;
            let mut all = Vec::new();
            for (request, id) in script.requests.iter().zip(ids.clone()).take(last) {
                begins();
                all.extend_from_slice(&bytes_of(id, request, script.version).bytes);
            }
            begins();
            let request = &script.requests[last];
            let own = bytes_of(Id { seed, connection: number, request: last }, request, script.version);
            wire.write(&all);
            let left = wire.ask(request, &own);
            if let Some(left) = left {
                // It has left the others as well.
                seen[..last].fill(Seen::Left(Sent::Whole));
                seen[last] = left;
                return seen;
            }
            for (at, request) in script.requests.iter().enumerate() {
                seen[at] = wire.answer(request);
                if !wire.goes_on(&mut seen[at]) {
                    break;
                }
            }
        }
    }
    seen
}

/// A request as it is sent.
struct Bytes {
    bytes: Vec<u8>,
    head: usize,
}

fn bytes_of(id: Id, request: &Request, version: Version) -> Bytes {
    let line = match (request.ask, version) {
        (Ask::Models, Version::Http11) => "GET /v1/models HTTP/1.1",
        (Ask::Models, Version::Http10 | Version::Http10KeepAlive) => "GET /v1/models HTTP/1.0",
        (Ask::Opaque, Version::Http11) => "POST /v1/unknown HTTP/1.1",
        (Ask::Opaque, Version::Http10 | Version::Http10KeepAlive) => "POST /v1/unknown HTTP/1.0",
        (_, Version::Http11) => "POST /v1/chat/completions HTTP/1.1",
        (_, Version::Http10 | Version::Http10KeepAlive) => "POST /v1/chat/completions HTTP/1.0",
    };
    let connection = match (version, request.then) {
        (Version::Http10KeepAlive, Afterwards::Keep) => "Connection: keep-alive\r\n",
        (Version::Http11 | Version::Http10KeepAlive, Afterwards::Close) => "Connection: close\r\n",
        (Version::Http11, Afterwards::Keep) | (Version::Http10, _) => "",
    };
    let mut head =
        format!("{line}\r\nHost: gateway\r\nx-request-id: {id}\r\n{connection}Content-Type: application/json\r\n");
    let mut body = request_body(id, request.ask, request.pad).into_bytes();
    match request.ask {
        Ask::Models => {}
        Ask::BadHead => head += "no header at all\r\n",
        Ask::TooLarge => {
            body.resize(BODY_BYTES_MAX + 200_000, b' ');
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        Ask::BrokenChunks => {
            head += "Transfer-Encoding: chunked\r\n";
            body = b"5\r\nhellothis is no chunk\r\n".to_vec();
        }
        Ask::Document(_)
        | Ask::Stream(..)
        | Ask::Opaque
        | Ask::UnknownModel
        | Ask::BrokenJson
        | Ask::StalledHead
        | Ask::StalledBody => match request.framing {
            Framing::Length => head += &format!("Content-Length: {}\r\n", body.len()),
            Framing::Chunked(bytes) => {
                head += "Transfer-Encoding: chunked\r\n";
                let chunks = body
                    .chunks(bytes)
                    .map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
                body = chunks.chain([b"0\r\n\r\n".to_vec()]).flatten().collect();
            }
        },
    }
    head += "\r\n";
    let mut bytes = head.into_bytes();
    let head = bytes.len();
    bytes.extend_from_slice(&body);
    Bytes { bytes, head }
}

/// A connection to the gateway.
struct Wire {
    stream: TcpStream,
    received: Vec<u8>,
    pace: Pace,
    reader: Reader,
    version: Version,
    /// Bytes received so far of the present answer.
    answer_bytes: usize,
}

/// Why there is nothing more to be read.
enum Stopped {
    /// The connection has ended.
    Ended(Ending),
    /// The client has had enough.
    Enough,
    /// What came is no HTTP.
    Odd(String),
}

impl Wire {
    fn open(address: SocketAddr, script: &Connection) -> std::io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if script.reader == Reader::Slow {
            socket.set_recv_buffer_size(SLOW_WINDOW_BYTES)?;
        }
        socket.connect(&address.into())?;
        let stream: TcpStream = socket.into();
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (pace, reader, version) = (script.pace, script.reader, script.version);
        Ok(Self { stream, received: Vec::new(), pace, reader, version, answer_bytes: 0 })
    }

    /// Writes; a gateway that has had enough shows in what is read.
    fn write(&mut self, bytes: &[u8]) {
        let pace = if self.pace == Pace::ByteWise && bytes.len() > 4_000 { Pace::Pieces(9) } else { self.pace };
        let _ = write_paced(&mut self.stream, bytes, pace);
    }

    /// Sends a request, or as much of it as the script says; what was seen when the client leaves.
    fn ask(&mut self, request: &Request, bytes: &Bytes) -> Option<Seen> {
        let whole = bytes.bytes.len();
        let part = match (request.ask, request.leave) {
            (Ask::StalledHead, _) => bytes.head / 2,
            (Ask::StalledBody, _) => bytes.head + (whole - bytes.head) / 2,
            (_, Leave::WithinRequest(thousandths, _)) => whole * thousandths / 1_000,
            (_, Leave::Never | Leave::AfterRequest(_) | Leave::WithinAnswer(..)) => whole,
        };
        self.write(&bytes.bytes[..part]);
        let sent = match part {
            part if part == whole => Sent::Whole,
            part if part >= bytes.head => Sent::Head,
            _ => Sent::PartOfHead,
        };
        match request.leave {
            Leave::WithinRequest(_, how) | Leave::AfterRequest(how) => {
                self.leave(how);
                Some(Seen::Left(sent))
            }
            Leave::Never | Leave::WithinAnswer(..) => None,
        }
    }

    /// Ends the connection.
    fn leave(&mut self, how: How) {
        let socket = SockRef::from(&self.stream);
        let _ = match how {
            How::Close => socket.shutdown(std::net::Shutdown::Both),
            How::Reset => socket.set_linger(Some(Duration::ZERO)),
        };
        if how == How::Reset
            && let Ok(nobody) = Socket::new(Domain::IPV4, Type::STREAM, None)
        {
            // Only closing it resets it.
            self.stream = nobody.into();
        }
    }

    /// Whether another answer can come; else what was seen is made to say so when the connection does not end well.
    fn goes_on(&mut self, seen: &mut Seen) -> bool {
        let Seen::Whole(reply) = &*seen else { return false };
        if is_broken_off(&reply.body) {
            return false;
        }
        if !reply.ends_connection(self.version) {
            return true;
        }
        if reply.tells_length() {
            match self.more(usize::MAX) {
                Err(Stopped::Ended(Ending::Closed | Ending::Reset)) => {}
                Err(Stopped::Ended(Ending::Never)) => *seen = Seen::Odd(String::from("it was to close and did not")),
                Ok(()) | Err(Stopped::Enough | Stopped::Odd(_)) => {
                    *seen = Seen::Odd(format!("behind the last answer came {:?}", self.shown()));
                }
            }
        }
        false
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.received[..self.received.len().min(300)]).into_owned()
    }

    /// Receives something, up to `enough` bytes of the present answer.
    fn more(&mut self, enough: usize) -> Result<(), Stopped> {
        if self.answer_bytes >= enough {
            return Err(Stopped::Enough);
        }
        let mut bytes = [0; 64 << 10];
        let most = match self.reader {
            Reader::Eager => bytes.len(),
            Reader::Slow => {
                std::thread::yield_now();
                SLOW_READ_BYTES
            }
        };
        let most = most.min(enough - self.answer_bytes);
        match self.stream.read(&mut bytes[..most]) {
            Ok(0) => Err(Stopped::Ended(Ending::Closed)),
            Ok(n) => {
                self.answer_bytes += n;
                self.received.extend_from_slice(&bytes[..n]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(Stopped::Ended(Ending::Never))
            }
            Err(_) => Err(Stopped::Ended(Ending::Reset)),
        }
    }

    /// Reads the answer to `request`, or as much of it as the script says.
    fn answer(&mut self, request: &Request) -> Seen {
        self.answer_bytes = self.received.len();
        let enough = match request.leave {
            Leave::WithinAnswer(bytes, _) => bytes,
            Leave::Never | Leave::WithinRequest(..) | Leave::AfterRequest(_) => usize::MAX,
        };
        let mut reply = match self.head(enough) {
            Ok(reply) => reply,
            Err(Stopped::Ended(ending)) if self.received.is_empty() => return Seen::Nothing(ending),
            Err(Stopped::Ended(_)) => return Seen::Odd(format!("half a head: {:?}", self.shown())),
            Err(Stopped::Odd(what)) => return Seen::Odd(what),
            Err(Stopped::Enough) => return self.left(request),
        };
        let mut body = Vec::new();
        let stopped = self.body(&reply, &mut body, enough);
        reply.body = String::from_utf8_lossy(&body).into_owned();
        match stopped {
            Ok(()) => Seen::Whole(reply),
            Err(Stopped::Ended(ending)) => Seen::Cut(reply, ending),
            Err(Stopped::Odd(what)) => Seen::Odd(what),
            Err(Stopped::Enough) => self.left(request),
        }
    }

    fn left(&mut self, request: &Request) -> Seen {
        if let Leave::WithinAnswer(_, how) = request.leave {
            self.leave(how);
        }
        Seen::Left(Sent::Whole)
    }

    fn head(&mut self, enough: usize) -> Result<Reply, Stopped> {
        let end = loop {
            match find(&self.received, b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => self.more(enough)?,
            }
        };
        let head: Vec<u8> = self.received.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| Stopped::Odd(format!("no status line: {head:?}")))?;
        Ok(Reply { status, head, body: String::new() })
    }

    fn take(&mut self, bytes: usize, to: &mut Vec<u8>, enough: usize) -> Result<(), Stopped> {
        let mut left = bytes;
        loop {
            let n = left.min(self.received.len());
            to.extend(self.received.drain(..n));
            left -= n;
            if left == 0 {
                return Ok(());
            }
            self.more(enough)?;
        }
    }

    fn body(&mut self, reply: &Reply, body: &mut Vec<u8>, enough: usize) -> Result<(), Stopped> {
        if reply.header("transfer-encoding") == Some("chunked") {
            return self.chunks(body, enough);
        }
        if let Some(length) = reply.header("content-length") {
            let length = length.parse().map_err(|_| Stopped::Odd(format!("no length: {length:?}")))?;
            return self.take(length, body, enough);
        }
        loop {
            body.append(&mut self.received);
            match self.more(enough) {
                Ok(()) => {}
                Err(Stopped::Ended(Ending::Closed)) => return Ok(()),
                Err(stopped) => return Err(stopped),
            }
        }
    }

    fn chunks(&mut self, body: &mut Vec<u8>, enough: usize) -> Result<(), Stopped> {
        loop {
            let end = loop {
                match find(&self.received, b"\r\n") {
                    Some(end) => break end,
                    None => self.more(enough)?,
                }
            };
            let line: Vec<u8> = self.received.drain(..end + 2).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            let bytes = usize::from_str_radix(&line, 16).map_err(|_| Stopped::Odd(format!("no chunk: {line:?}")))?;
            self.take(bytes, body, enough)?;
            let mut line_end = Vec::new();
            self.take(2, &mut line_end, enough)?;
            if line_end != b"\r\n" {
                return Err(Stopped::Odd(String::from("a chunk is longer than it says")));
            }
            if bytes == 0 {
                return Ok(());
            }
        }
    }
}
