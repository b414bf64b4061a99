//! A blocking HTTP/1.1 client that can do what a polite one cannot: half a request, a reset, not reading, several
//! requests in one write. Every call ends within the client's patience.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::sse::Events;

/// Largest answer read; more is taken for malformed.
const ANSWER_BYTES_MAX: usize = 128 << 20;
/// Largest head of an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most header lines of an answer.
const HEADERS_MAX: usize = 128;
/// Interim answers (1xx) before one request's final answer.
const INTERIM_MAX: usize = 8;
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// Why nothing more came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The peer closed.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// Patience is over.
    Silent,
    /// Not HTTP/1.1.
    Malformed,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Closed => "the connection was closed without an answer",
            Self::Reset => "the connection was reset",
            Self::Silent => "no answer in time",
            Self::Malformed => "the answer is not HTTP/1.1",
        })
    }
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It is still coming.
    Open,
    /// As its framing says.
    Complete,
    /// By a close or a reset that its framing shows to be too early.
    Truncated,
    /// Not at all in time.
    Silent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// An answer as far as it has come.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Statuses of the interim answers before it.
    pub(crate) interim: Vec<u16>,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) ending: Ending,
    framing: Framing,
    /// Bytes left of the chunk being read.
    chunk_left: usize,
}

impl Answer {
    /// Value of the first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as text; what is not UTF-8 becomes U+FFFD.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON, `Null` when it is not.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Data of the complete events so far.
    pub(crate) fn events(&self) -> Vec<String> {
        let mut found = Vec::new();
        // An event too large for the splitter is missing in the list, which no scenario takes for right.
        let _ = Events::default().feed(&self.body, |data| found.push(String::from_utf8_lossy(data).into_owned()));
        found
    }

    /// Whether the stream says that it is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.events().iter().any(|event| event == "[DONE]")
    }

    /// Whether an event of the stream carries an error object.
    pub(crate) fn has_error_event(&self) -> bool {
        self.events()
            .iter()
            .any(|event| serde_json::from_str::<Value>(event).is_ok_and(|event| event["error"].is_object()))
    }

    /// One line for a report.
    pub(crate) fn brief(&self) -> String {
        let text: String = self.text().chars().take(120).map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{} {:?} {text:?}", self.status, self.ending)
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    inbox: Vec<u8>,
    patience: Duration,
}

impl Client {
    pub(crate) fn connect(addr: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, patience)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream, inbox: Vec::new(), patience })
    }

    /// Waits longer, or less long, from now on.
    pub(crate) fn patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Whether the peer has sent something, or has closed, without waiting.
    pub(crate) fn has_news(&self) -> bool {
        if self.stream.set_nonblocking(true).is_err() {
            return true;
        }
        let news = match self.stream.peek(&mut [0]) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        // A socket that cannot be made blocking again fails in the next call.
        let _ = self.stream.set_nonblocking(false);
        news
    }

    /// Leaves by a TCP reset.
    pub(crate) fn reset(self) {
        // Without linger the close is an ordinary one; the scenario then judges that.
        let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
    }

    /// The whole answer.
    pub(crate) fn answer(&mut self) -> Result<Answer, Trouble> {
        self.answer_until(|_| false)
    }

    /// The answer until `enough` of it has come, or its end.
    pub(crate) fn answer_until(&mut self, enough: impl Fn(&Answer) -> bool) -> Result<Answer, Trouble> {
        let mut answer = self.head()?;
        self.go_on(&mut answer, enough)?;
        Ok(answer)
    }

    /// The head of the final answer, with the interim ones before it.
    pub(crate) fn head(&mut self) -> Result<Answer, Trouble> {
        let deadline = Instant::now() + self.patience;
        let mut interim = Vec::new();
        loop {
            match self.parse_head()? {
                Some(answer) if answer.status >= 200 => return Ok(Answer { interim, ..answer }),
                Some(_) if interim.len() == INTERIM_MAX => return Err(Trouble::Malformed),
                Some(answer) => interim.push(answer.status),
                None if self.inbox.len() > HEAD_BYTES_MAX => return Err(Trouble::Malformed),
                None => self.fill(deadline)?,
            }
        }
    }

    /// The next head that has come, interim or final, if one comes before patience is over.
    pub(crate) fn interim(&mut self) -> Result<u16, Trouble> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(answer) = self.parse_head()? {
                return Ok(answer.status);
            }
            self.fill(deadline)?;
        }
    }

    /// Reads on until `enough` has come, or the end.
    pub(crate) fn go_on(&mut self, answer: &mut Answer, enough: impl Fn(&Answer) -> bool) -> Result<(), Trouble> {
        let deadline = Instant::now() + self.patience;
        loop {
            self.take_body(answer)?;
            if answer.ending != Ending::Open || enough(answer) {
                return Ok(());
            }
            if answer.body.len() > ANSWER_BYTES_MAX {
                return Err(Trouble::Malformed);
            }
            match self.fill(deadline) {
                Ok(()) => {}
                Err(Trouble::Closed) if answer.framing == Framing::UntilClose => answer.ending = Ending::Complete,
                Err(Trouble::Closed | Trouble::Reset) => answer.ending = Ending::Truncated,
                Err(Trouble::Silent) => answer.ending = Ending::Silent,
                Err(Trouble::Malformed) => return Err(Trouble::Malformed),
            }
        }
    }

    /// Whether the peer closes within patience and sends nothing before.
    pub(crate) fn is_closed(&mut self) -> bool {
        let deadline = Instant::now() + self.patience;
        self.inbox.is_empty() && matches!(self.fill(deadline), Err(Trouble::Closed | Trouble::Reset))
    }

    fn parse_head(&mut self) -> Result<Option<Answer>, Trouble> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut headers);
        let head_bytes = match parsed.parse(&self.inbox) {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Trouble::Malformed),
        };
        let mut answer = Answer {
            interim: Vec::new(),
            status: parsed.code.unwrap_or(0),
            headers: Vec::new(),
            body: Vec::new(),
            ending: Ending::Open,
            framing: Framing::UntilClose,
            chunk_left: 0,
        };
        for header in parsed.headers.iter() {
            let value = String::from_utf8_lossy(header.value).into_owned();
            if header.name.eq_ignore_ascii_case("content-length") {
                answer.framing = Framing::Length(value.trim().parse().map_err(|_| Trouble::Malformed)?);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                answer.framing = Framing::Chunked;
            }
            answer.headers.push((header.name.to_owned(), value));
        }
        if answer.status < 200 || answer.status == 204 || answer.status == 304 {
            answer.framing = Framing::Length(0);
        }
        self.inbox.drain(..head_bytes);
        Ok(Some(answer))
    }

    /// Moves what has come of the body from the inbox into the answer.
    fn take_body(&mut self, answer: &mut Answer) -> Result<(), Trouble> {
        match answer.framing {
            Framing::UntilClose => answer.body.append(&mut self.inbox),
            Framing::Length(bytes) => {
                let taken = self.inbox.len().min(bytes - answer.body.len());
                answer.body.extend(self.inbox.drain(..taken));
                if answer.body.len() == bytes {
                    answer.ending = Ending::Complete;
                }
            }
            Framing::Chunked => return self.take_chunks(answer),
        }
        Ok(())
    }

    fn take_chunks(&mut self, answer: &mut Answer) -> Result<(), Trouble> {
        let mut at = 0;
        while answer.ending == Ending::Open {
            let unread = &self.inbox[at..];
            if answer.chunk_left > 2 {
                let taken = unread.len().min(answer.chunk_left - 2);
                answer.body.extend_from_slice(&unread[..taken]);
                answer.chunk_left -= taken;
                at += taken;
                if answer.chunk_left > 2 {
                    break;
                }
            } else if answer.chunk_left == 2 {
                match unread.get(..2) {
                    None => break,
                    Some(b"\r\n") => (at, answer.chunk_left) = (at + 2, 0),
                    Some(_) => return Err(Trouble::Malformed),
                }
            } else {
                match httparse::parse_chunk_size(unread).map_err(|_| Trouble::Malformed)? {
                    httparse::Status::Partial => break,
                    httparse::Status::Complete((line, 0)) => {
                        // Trailers, if any, end with an empty line as well.
                        let Some(end) = unread[line - 2..].windows(4).position(|four| four == b"\r\n\r\n") else {
                            break;
                        };
                        at += line - 2 + end + 4;
                        answer.ending = Ending::Complete;
                    }
                    httparse::Status::Complete((line, bytes)) => {
                        let bytes = usize::try_from(bytes).map_err(|_| Trouble::Malformed)?;
                        answer.chunk_left = bytes.checked_add(2).ok_or(Trouble::Malformed)?;
                        at += line;
                    }
                }
            }
        }
        self.inbox.drain(..at);
        Ok(())
    }

    fn fill(&mut self, deadline: Instant) -> Result<(), Trouble> {
        let left = deadline.saturating_duration_since(Instant::now());
        // A timeout of zero would mean none.
        let left = left.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left)).map_err(|_| Trouble::Reset)?;
        let mut piece = [0; READ_BYTES];
        match self.stream.read(&mut piece) {
            Ok(0) => Err(Trouble::Closed),
            Ok(bytes) => {
                self.inbox.extend_from_slice(&piece[..bytes]);
                Ok(())
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(Trouble::Silent)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(_) => Err(Trouble::Reset),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// What the client makes of these bytes, sent piece by piece and followed by a close.
    fn read(bytes: &'static [u8], piece_bytes: usize) -> Result<Answer, Trouble> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            for piece in bytes.chunks(piece_bytes) {
                stream.write_all(piece).unwrap();
            }
        });
        let answer = Client::connect(addr, Duration::from_secs(10)).unwrap().answer();
        peer.join().unwrap();
        answer
    }

    #[test]
    fn framing_tells_complete_from_truncated_however_the_bytes_arrive() {
        let cases: [(&[u8], Ending, &[u8]); 7] = [
            (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", Ending::Complete, b"abc"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabc", Ending::Truncated, b"abc"),
            (b"HTTP/1.1 200 OK\r\n\r\nabc", Ending::Complete, b"abc"),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
                Ending::Complete,
                b"abc",
            ),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n",
                Ending::Complete,
                b"abc",
            ),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", Ending::Truncated, b"abc"),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc", Ending::Truncated, b"abc"),
        ];
        for (bytes, ending, body) in cases {
            for piece_bytes in [1, 7, 1000] {
                let answer = read(bytes, piece_bytes).unwrap();
                assert_eq!((answer.ending, &answer.body[..]), (ending, body), "{}", String::from_utf8_lossy(bytes));
            }
        }
    }

    #[test]
    fn interim_answers_are_told_apart_from_the_final_one() {
        let answer = read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 No\r\ncontent-length: 0\r\n\r\n", 5).unwrap();
        assert_eq!((answer.interim, answer.status), (vec![100], 413));
    }

    #[test]
    fn what_is_not_an_answer_is_named() {
        assert_eq!(read(b"", 1).unwrap_err(), Trouble::Closed);
        assert_eq!(read(b"SSH-2.0-x\r\n\r\n", 100).unwrap_err(), Trouble::Malformed);
        let bad_chunk = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc";
        assert_eq!(read(bad_chunk, 100).unwrap_err(), Trouble::Malformed);
    }
}
