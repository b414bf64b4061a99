//! Just enough HTTP/1.1 for the small proxy: strict, slow, and by hand.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
};

const HEAD_BYTES_MAX: usize = 64 << 10;

/// A message: the first line, header lines, and the body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) first: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.headers.retain(|(found, _)| !found.eq_ignore_ascii_case(name));
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.to_string()));
    }

    pub(crate) fn head(&self) -> Vec<u8> {
        let lines: String = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("{}\r\n{lines}\r\n", self.first).into_bytes()
    }
}

/// Why there is no request.
pub(crate) enum NoRequest {
    Gone,
    Refused(u16),
}

impl From<io::Error> for NoRequest {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// How strictly requests are read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) body_bytes_max: usize,
    pub(crate) chunks: Chunks,
    pub(crate) ambiguous: Ambiguous,
    pub(crate) half: Half,
    pub(crate) reads: Reads,
    pub(crate) expectations: Expectations,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Ambiguous {
    Refused,
    /// The first length counts.
    Guessed,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Chunks {
    Taken,
    Refused,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Half {
    Dropped,
    Taken,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Reads {
    AsNeeded,
    Once,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Expectations {
    Met,
    Ignored,
}

/// A socket and what has been read too much.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    pub(crate) inbox: Vec<u8>,
}

impl Drop for Wire {
    /// The proxy keeps a handle of every socket; without this the peer would not see the close.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, inbox: Vec::new() }
    }

    pub(crate) fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 64 << 10];
        let bytes = self.stream.read(&mut piece)?;
        self.inbox.extend_from_slice(&piece[..bytes]);
        Ok(bytes)
    }

    fn need(&mut self, bytes: usize) -> Result<(), NoRequest> {
        while self.inbox.len() < bytes {
            if self.fill()? == 0 {
                return Err(NoRequest::Gone);
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let rest = self.inbox.split_off(bytes);
        std::mem::replace(&mut self.inbox, rest)
    }

    fn line(&mut self) -> Result<Vec<u8>, NoRequest> {
        let mut from = 0;
        loop {
            if let Some(end) = self.inbox[from..].windows(2).position(|two| two == b"\r\n") {
                let mut line = self.take(from + end + 2);
                line.truncate(from + end);
                return Ok(line);
            }
            if self.inbox.len() > HEAD_BYTES_MAX {
                return Err(NoRequest::Refused(400));
            }
            from = self.inbox.len().saturating_sub(1);
            self.need(self.inbox.len() + 1)?;
        }
    }

    pub(crate) fn read_head(&mut self, reading: Reading) -> Result<Message, NoRequest> {
        let mut from = 0;
        let end = loop {
            if let Some(at) = self.inbox[from..].windows(4).position(|four| four == b"\r\n\r\n") {
                break from + at;
            }
            if self.inbox.len() > HEAD_BYTES_MAX {
                return Err(NoRequest::Refused(431));
            }
            if reading.reads == Reads::Once && !self.inbox.is_empty() {
                return Err(NoRequest::Refused(400));
            }
            from = self.inbox.len().saturating_sub(3);
            self.need(self.inbox.len() + 1)?;
        };
        let head = self.take(end + 4);
        let head = String::from_utf8_lossy(&head[..end]).into_owned();
        let mut lines = head.split("\r\n");
        let mut message = Message { first: lines.next().unwrap_or_default().to_owned(), ..Message::default() };
        for line in lines {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            if reading.ambiguous == Ambiguous::Refused && (name.contains([' ', '\t']) || line.contains('\r')) {
                return Err(NoRequest::Refused(400));
            }
            message.headers.push((name.to_owned(), value.trim().to_owned()));
        }
        if message.headers.len() > 128 {
            return Err(NoRequest::Refused(431));
        }
        Ok(message)
    }

    /// A request whose body has been read and its coding taken off.
    pub(crate) fn read_request(&mut self, reading: Reading) -> Result<Message, NoRequest> {
        let mut message = self.read_head(reading)?;
        let all = |name: &str| -> Vec<&str> {
            let named = message.headers.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
            named.map(|(_, value)| value.as_str()).collect()
        };
        let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
        let clear = match (&lengths[..], &codings[..]) {
            ([], []) | ([], ["chunked"]) => true,
            ([length], []) => length.bytes().all(|byte| byte.is_ascii_digit()),
            _ => false,
        };
        if !clear && reading.ambiguous == Ambiguous::Refused {
            return Err(NoRequest::Refused(400));
        }
        let length = lengths.first().map(|length| length.parse::<usize>().unwrap_or(0));
        let chunked = length.is_none() && !codings.is_empty();
        if chunked && reading.chunks == Chunks::Refused {
            return Err(NoRequest::Refused(411));
        }
        if length.is_some_and(|length| length > reading.body_bytes_max) {
            return Err(NoRequest::Refused(413));
        }
        if message.header("expect").is_some() && reading.expectations == Expectations::Met && self.inbox.is_empty() {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        message.remove("expect");
        message.remove("transfer-encoding");
        if chunked {
            message.body = self.read_chunks(reading)?;
        } else {
            let length = length.unwrap_or(0);
            match self.need(length) {
                Err(NoRequest::Gone) if reading.half == Half::Taken && !self.inbox.is_empty() => {}
                other => other?,
            }
            message.body = self.take(length.min(self.inbox.len()));
        }
        if chunked || length.is_some() {
            message.set("content-length", &message.body.len().to_string());
        }
        Ok(message)
    }

    fn read_chunks(&mut self, reading: Reading) -> Result<Vec<u8>, NoRequest> {
        let mut body = Vec::new();
        loop {
            let line = String::from_utf8_lossy(&self.line()?).into_owned();
            let digits = line.split(';').next().unwrap_or_default();
            let strict = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let bytes = match usize::from_str_radix(digits, 16) {
                Ok(bytes) if strict => bytes,
                _ if reading.ambiguous == Ambiguous::Guessed => 0,
                _ => return Err(NoRequest::Refused(400)),
            };
            if bytes == 0 {
                while !self.line()?.is_empty() {}
                return Ok(body);
            }
            if bytes > reading.body_bytes_max - body.len() {
                return Err(NoRequest::Refused(413));
            }
            self.need(bytes + 2)?;
            body.append(&mut self.take(bytes));
            if self.take(2) != b"\r\n" {
                return Err(NoRequest::Refused(400));
            }
        }
    }
}

/// Takes the chunks off a body; what is missing at its end is missing.
pub(crate) fn without_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let bytes = usize::from_str_radix(&String::from_utf8_lossy(&rest[..line]), 16).unwrap_or(0);
        let end = (line + 2 + bytes).min(rest.len());
        body.extend_from_slice(&rest[line + 2..end]);
        rest = rest.get(end + 2..).unwrap_or_default();
    }
    body
}
