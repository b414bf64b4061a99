//! The protocol core, without I/O: what of the bytes received is to be sent on, and where a message ends.
//!
//! A head is parsed (httparse) and written anew without its lines for one hop; a body, by its length, in chunks or until the
//! connection ends, passes as it came: the bytes that were received are the bytes that are sent. What a head and the bytes that came
//! with it become is written into a buffer of the driver, so that they leave in one send. Every driver of this package runs this same
//! code. It is a measuring device and no gateway: no pipelining, no timeouts, no trailers' meaning, no defence beyond its bounds.

use std::fmt;
use std::ops::Range;

/// Bytes of a head at most; longer ones end the connection.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// Header lines of a head at most.
const HEADERS_MAX: usize = 96;

/// Why a message cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The head is not HTTP/1.
    Head,
    /// The head has more than [`HEAD_BYTES_MAX`] bytes.
    HeadTooLong,
    /// A chunk size is not one.
    Chunk,
    /// Bytes came after the end of the message.
    Overrun,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "not a head of HTTP/1",
            Self::HeadTooLong => "a head without end",
            Self::Chunk => "not a chunk",
            Self::Overrun => "bytes after the end of the message",
        })
    }
}

impl std::error::Error for Broken {}

impl From<Broken> for std::io::Error {
    fn from(broken: Broken) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, broken)
    }
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the upstream.
    Request,
    /// Back.
    Response,
}

/// What to send after some bytes were received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Send {
    /// Nothing yet: the head is not complete.
    Nothing,
    /// What was written into the driver's buffer.
    Written,
    /// These of the received bytes.
    Received(Range<usize>),
}

/// Whether the connection may carry another message after this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It may.
    Open,
    /// It is to be closed.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    Chunked(Chunk),
    UntilClose,
    Done,
}

/// Where the bytes stand within a body in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Size {
        size: u64,
        digits: u8,
    },
    SizeLine(u64),
    Data(u64),
    AfterData,
    /// At the begin of a trailer line; an empty one ends the message.
    Trailer,
    WithinTrailer,
}

/// One message on its way.
#[derive(Debug)]
pub struct Relay {
    way: Way,
    state: State,
    keep: Keep,
    /// The begin of a head that came in pieces.
    partial: Vec<u8>,
}

impl Relay {
    /// Before the first byte of a message.
    #[must_use]
    pub fn new(way: Way) -> Self {
        Self { way, state: State::Head, keep: Keep::Open, partial: Vec::new() }
    }

    /// Which way it goes.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Whether the last byte of the message has been received.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether this message's connection may carry another one; known when the head is.
    #[must_use]
    pub fn keep(&self) -> Keep {
        self.keep
    }

    /// Whether the end of the connection, now, is the end of the message.
    #[must_use]
    pub fn may_end(&self) -> bool {
        matches!(self.state, State::UntilClose | State::Done)
    }

    /// Takes bytes as they were received. `out` is overwritten when there is something to be written.
    ///
    /// # Errors
    /// When the bytes are not those of one message.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Send, Broken> {
        if self.state != State::Head {
            self.pass(input)?;
            return Ok(Send::Received(0..input.len()));
        }
        let mut head = std::mem::take(&mut self.partial);
        let whole = if head.is_empty() {
            input
        } else {
            head.extend_from_slice(input);
            &head
        };
        out.clear();
        let Some(head_bytes) = self.head(whole, out)? else {
            if whole.len() > HEAD_BYTES_MAX {
                return Err(Broken::HeadTooLong);
            }
            if head.is_empty() {
                head.extend_from_slice(input);
            }
            self.partial = head;
            return Ok(Send::Nothing);
        };
        let rest = &whole[head_bytes..];
        if self.state == State::Head {
            // An interim answer (1xx): the real one follows.
            let mut next = Vec::new();
            let interim = std::mem::take(out);
            let sent = self.feed(rest, &mut next)?;
            *out = interim;
            match sent {
                Send::Nothing => {}
                Send::Written => out.extend_from_slice(&next),
                Send::Received(range) => out.extend_from_slice(&rest[range]),
            }
            return Ok(Send::Written);
        }
        self.pass(rest)?;
        out.extend_from_slice(rest);
        Ok(Send::Written)
    }

    /// Parses a head and writes it anew; how many bytes it has, if it is complete.
    fn head(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Broken> {
        let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let (head_bytes, version, bodiless, interim);
        match self.way {
            Way::Request => {
                let mut head = httparse::Request::new(&mut lines);
                let httparse::Status::Complete(n) = head.parse(bytes).map_err(|_| Broken::Head)? else {
                    return Ok(None);
                };
                let (Some(method), Some(path)) = (head.method, head.path) else { return Err(Broken::Head) };
                (head_bytes, version, bodiless, interim) = (n, head.version, true, false);
                for part in [method, " ", path, " HTTP/1.1\r\n"] {
                    out.extend_from_slice(part.as_bytes());
                }
            }
            Way::Response => {
                let mut head = httparse::Response::new(&mut lines);
                let httparse::Status::Complete(n) = head.parse(bytes).map_err(|_| Broken::Head)? else {
                    return Ok(None);
                };
                let (Some(code), Some(reason)) = (head.code, head.reason) else { return Err(Broken::Head) };
                (head_bytes, version) = (n, head.version);
                (bodiless, interim) = (matches!(code, 100..200 | 204 | 304), matches!(code, 100..200));
                let digits = [code / 100 % 10, code / 10 % 10, code % 10].map(|digit| b'0' + digit as u8);
                out.extend_from_slice(b"HTTP/1.1 ");
                out.extend_from_slice(&digits);
                out.extend_from_slice(b" ");
                out.extend_from_slice(reason.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
        let close_by_version = version != Some(1);
        let (mut length, mut chunked, mut close) = (None, false, close_by_version);
        for line in lines.iter().take_while(|line| !line.name.is_empty()) {
            let is = |name: &str| line.name.eq_ignore_ascii_case(name);
            if is("connection") || is("keep-alive") || is("proxy-connection") {
                close |= line.value.eq_ignore_ascii_case(b"close");
                continue;
            }
            if is("content-length") {
                let text = std::str::from_utf8(line.value).map_err(|_| Broken::Head)?;
                length = Some(text.trim().parse().map_err(|_| Broken::Head)?);
            } else if is("transfer-encoding") {
                chunked = line.value.eq_ignore_ascii_case(b"chunked");
            }
            out.extend_from_slice(line.name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(line.value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        self.state = match (chunked, length) {
            _ if interim => State::Head,
            _ if self.way == Way::Response && bodiless => State::Done,
            (true, _) => State::Chunked(Chunk::Size { size: 0, digits: 0 }),
            (false, Some(0)) => State::Done,
            (false, Some(length)) => State::Length(length),
            (false, None) if bodiless => State::Done,
            (false, None) => State::UntilClose,
        };
        self.keep = if close || self.state == State::UntilClose { Keep::Close } else { Keep::Open };
        Ok(Some(head_bytes))
    }

    /// Counts bytes of the body.
    fn pass(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        match self.state {
            State::Done | State::Head if bytes.is_empty() => Ok(()),
            State::Done | State::Head => Err(Broken::Overrun),
            State::UntilClose => Ok(()),
            State::Length(left) => {
                let left = left.checked_sub(bytes.len() as u64).ok_or(Broken::Overrun)?;
                self.state = if left == 0 { State::Done } else { State::Length(left) };
                Ok(())
            }
            State::Chunked(chunk) => {
                self.state = chunks(chunk, bytes)?;
                Ok(())
            }
        }
    }
}

/// Walks over bytes of a body in chunks. Data is skipped, not looked at.
fn chunks(mut chunk: Chunk, bytes: &[u8]) -> Result<State, Broken> {
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        chunk = match chunk {
            Chunk::Size { size, digits } => match (byte as char).to_digit(16) {
                Some(digit) if digits < 15 => Chunk::Size { size: size * 16 + u64::from(digit), digits: digits + 1 },
                Some(_) => return Err(Broken::Chunk),
                None if digits == 0 => return Err(Broken::Chunk),
                None if byte == b'\n' => after_size(size),
                None => Chunk::SizeLine(size),
            },
            Chunk::SizeLine(size) if byte == b'\n' => after_size(size),
            Chunk::SizeLine(size) => Chunk::SizeLine(size),
            Chunk::Data(left) => {
                // This byte, and all that are there.
                let here = left.min((bytes.len() - at + 1) as u64);
                at += here as usize - 1;
                if left == here { Chunk::AfterData } else { Chunk::Data(left - here) }
            }
            Chunk::AfterData if byte == b'\n' => Chunk::Size { size: 0, digits: 0 },
            Chunk::AfterData if byte == b'\r' => Chunk::AfterData,
            Chunk::AfterData => return Err(Broken::Chunk),
            Chunk::Trailer if byte == b'\n' => {
                return if at == bytes.len() { Ok(State::Done) } else { Err(Broken::Overrun) };
            }
            Chunk::Trailer if byte == b'\r' => Chunk::Trailer,
            Chunk::WithinTrailer if byte == b'\n' => Chunk::Trailer,
            Chunk::Trailer | Chunk::WithinTrailer => Chunk::WithinTrailer,
        };
    }
    Ok(State::Chunked(chunk))
}

fn after_size(size: u64) -> Chunk {
    if size == 0 { Chunk::Trailer } else { Chunk::Data(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n\
        5\r\nhello\r\n1F;x=1\r\n0123456789012345678901234567890\r\n0\r\nX-Trailer: 1\r\n\r\n";
    const LENGTH: &[u8] =
        b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\nKeep-Alive: timeout=5\r\n\r\n{\"a\":1}";

    /// What is sent on when the bytes come in these pieces.
    fn relayed<'a>(way: Way, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<(Vec<u8>, Relay), Broken> {
        let (mut relay, mut sent, mut out) = (Relay::new(way), Vec::new(), Vec::new());
        for piece in pieces {
            match relay.feed(piece, &mut out)? {
                Send::Nothing => {}
                Send::Written => sent.extend_from_slice(&out),
                Send::Received(range) => sent.extend_from_slice(&piece[range]),
            }
        }
        Ok((sent, relay))
    }

    #[test]
    fn messages_cut_anywhere_are_relayed_as_whole_ones() {
        for (way, message) in [(Way::Response, CHUNKED), (Way::Request, LENGTH)] {
            let (whole, relay) = relayed(way, [message]).unwrap();
            assert!(relay.is_done() && relay.keep() == Keep::Open);
            for at in 1..message.len() {
                let (first, second) = message.split_at(at);
                let (cut, relay) = relayed(way, [first, second]).unwrap();
                assert_eq!(cut, whole, "cut at {at}");
                assert!(relay.is_done(), "cut at {at}");
            }
            let (bytewise, relay) = relayed(way, message.chunks(1)).unwrap();
            assert_eq!(bytewise, whole);
            assert!(relay.is_done());
        }
    }

    #[test]
    fn lines_for_one_hop_stay_behind_and_the_body_is_not_touched() {
        let (sent, _) = relayed(Way::Request, [LENGTH]).unwrap();
        assert_eq!(sent, b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n{\"a\":1}");
    }

    #[test]
    fn an_interim_answer_is_followed_by_the_real_one() {
        let both = [b"HTTP/1.1 100 Continue\r\n\r\n".as_slice(), b"HTTP/1.1 204 No Content\r\n\r\n"];
        let (sent, relay) = relayed(Way::Response, both).unwrap();
        assert_eq!(sent, both.concat());
        assert!(relay.is_done());
        assert_eq!(relayed(Way::Response, [both.concat().as_slice()]).unwrap().0, sent);
    }

    #[test]
    fn an_answer_without_length_ends_with_its_connection() {
        let (_, relay) = relayed(Way::Response, [b"HTTP/1.1 200 OK\r\n\r\nabc".as_slice()]).unwrap();
        assert!(!relay.is_done() && relay.may_end());
        assert_eq!(relay.keep(), Keep::Close);
    }

    #[test]
    fn what_is_not_one_message_is_refused() {
        let fails = |way, bytes: &[u8]| relayed(way, [bytes]).map(|_| ()).unwrap_err();
        assert_eq!(fails(Way::Request, &[LENGTH, b"x"].concat()), Broken::Overrun);
        assert_eq!(fails(Way::Response, &[CHUNKED, b"x"].concat()), Broken::Overrun);
        assert_eq!(fails(Way::Request, b"\x00"), Broken::Head);
        assert_eq!(fails(Way::Request, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), Broken::Chunk);
        let endless = [b"GET / HTTP/1.1\r\nA: ".as_slice(), &vec![b'a'; HEAD_BYTES_MAX]].concat();
        assert_eq!(fails(Way::Request, &endless), Broken::HeadTooLong);
    }
}
