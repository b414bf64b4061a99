//! A client that speaks bytes: what it sends is what the test says, what it reads is checked for its framing.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use super::PATIENCE;

/// A connection to a server; over TLS where `S` is.
#[derive(Debug)]
pub(crate) struct Client<S = TcpStream> {
    stream: S,
    /// Received and not yet used.
    received: Vec<u8>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// In good order.
    Closed,
    /// By a reset.
    Reset,
    /// Over TLS: without the word that it was all.
    CutOff,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Status line and header lines, each with its line end; without the empty line.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The first value of a header; the name in any case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The code of the OpenAI error object that the body must be.
    pub(crate) fn error_code(&self) -> String {
        let json = self.json();
        assert!(json["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{json}");
        json["error"]["code"].as_str().unwrap_or_else(|| panic!("no code: {json}")).to_owned()
    }

    /// The data of every event, `[DONE]` included.
    pub(crate) fn events(&self) -> Vec<String> {
        let text = self.text().replace("\r\n", "\n");
        assert!(text.ends_with("\n\n"), "the last event has no end: {text:?}");
        text.split_terminator("\n\n")
            .map(|event| event.strip_prefix("data:").unwrap().trim_start().to_owned())
            .collect()
    }

    /// The text that all events together say.
    pub(crate) fn said(&self) -> String {
        let json = self.events().into_iter().filter_map(|event| serde_json::from_str::<Value>(&event).ok());
        json.map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

impl Client {
    /// Connects.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream)
    }

    /// Connects and sends.
    pub(crate) fn sending(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Self {
        let mut client = Self::connect(address);
        client.send(bytes);
        client
    }

    /// Closes the sending side.
    pub(crate) fn end_sending(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }
}

impl<S: Read + Write> Client<S> {
    /// Speaks over a stream that is ready.
    pub(crate) fn over(stream: S) -> Self {
        Self { stream, received: Vec::new() }
    }

    /// What it speaks over, for tests that treat it badly.
    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    /// Sends.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server takes the bytes");
    }

    /// Sends each byte in a segment of its own.
    pub(crate) fn send_byte_wise(&mut self, bytes: impl AsRef<[u8]>) {
        bytes.as_ref().iter().for_each(|byte| self.send([*byte]));
    }

    /// One more read; 0 at the end.
    fn receive(&mut self) -> std::io::Result<usize> {
        let mut bytes = [0; 16 << 10];
        let n = loop {
            match self.stream.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        self.received.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    /// Reads until `bytes` stand in what was received, and returns everything up to their end.
    pub(crate) fn read_through(&mut self, bytes: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = find(&self.received, bytes) {
                return self.received.drain(..at + bytes.len()).collect();
            }
            let n = self.receive().unwrap_or_else(|error| panic!("{error} behind {:?}", self.shown()));
            assert!(n > 0, "the connection ended behind {:?}", self.shown());
        }
    }

    fn read_exactly(&mut self, bytes: usize) -> Vec<u8> {
        while self.received.len() < bytes {
            let n = self.receive().unwrap_or_else(|error| panic!("{error} behind {:?}", self.shown()));
            assert!(n > 0, "the connection ended behind {:?}", self.shown());
        }
        self.received.drain(..bytes).collect()
    }

    fn shown(&self) -> String {
        let from = self.received.len().saturating_sub(500);
        String::from_utf8_lossy(&self.received[from..]).into_owned()
    }

    /// Reads the head of an answer; its body is empty.
    pub(crate) fn head(&mut self) -> Answer {
        let mut head = self.read_through(b"\r\n\r\n");
        head.truncate(head.len() - 2);
        let head = String::from_utf8(head).unwrap();
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        Answer { status: status.unwrap_or_else(|| panic!("no status line: {head}")), head, body: Vec::new() }
    }

    /// Reads one chunk; empty is the last one.
    pub(crate) fn chunk(&mut self) -> Vec<u8> {
        let line = String::from_utf8(self.read_through(b"\r\n")).unwrap();
        let bytes = usize::from_str_radix(line.trim_end(), 16).unwrap_or_else(|_| panic!("no chunk: {line:?}"));
        let chunk = self.read_exactly(bytes);
        assert_eq!(self.read_exactly(2), b"\r\n", "the chunk is as long as it says");
        chunk
    }

    /// Reads a whole answer, as its framing tells.
    pub(crate) fn answer(&mut self) -> Answer {
        let head = self.head();
        self.body_of(head)
    }

    /// Reads the body that belongs to a head.
    pub(crate) fn body_of(&mut self, mut answer: Answer) -> Answer {
        let chunked = answer.header("transfer-encoding").is_some_and(|coding| coding == "chunked");
        let length = answer.header("content-length").map(|length| length.parse().unwrap());
        assert!(!(chunked && length.is_some()), "two lengths: {}", answer.head);
        if chunked {
            loop {
                let chunk = self.chunk();
                if chunk.is_empty() {
                    break;
                }
                answer.body.extend_from_slice(&chunk);
            }
        } else if let Some(length) = length {
            answer.body = self.read_exactly(length);
        } else if answer.status >= 200 && answer.status != 204 {
            let (rest, ending) = self.rest();
            assert_eq!(ending, Ending::Closed);
            answer.body = rest;
        }
        answer
    }

    /// Reads until the connection ends.
    pub(crate) fn rest(&mut self) -> (Vec<u8>, Ending) {
        let ending = loop {
            match self.receive() {
                Ok(0) => break Ending::Closed,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break Ending::Reset,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break Ending::CutOff,
                Err(error) => panic!("the connection does not end: {error}, behind {:?}", self.shown()),
            }
        };
        (std::mem::take(&mut self.received), ending)
    }

    /// The connection ends, in good order and without another byte.
    pub(crate) fn expect_end(&mut self) {
        let (rest, ending) = self.rest();
        assert_eq!((String::from_utf8_lossy(&rest).as_ref(), ending), ("", Ending::Closed));
    }
}

/// The answer is a chat's, whole and good.
pub(crate) fn expect_good(answer: &Answer) {
    assert_eq!((answer.status, answer.json()["object"].as_str()), (200, Some("chat.completion")), "{answer:?}");
}

/// Where `part` stands first.
pub(crate) fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// A POST of a JSON body; `headers` are whole lines.
pub(crate) fn request(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Posts on a connection of its own.
pub(crate) fn post(address: SocketAddr, path: &str, headers: &str, body: &str) -> Answer {
    Client::sending(address, request(path, headers, body)).answer()
}

/// Gets on a connection of its own.
pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    Client::sending(address, format!("GET {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")).answer()
}
