//! A small HTTP/1.1 client connection, by hand: few system calls, no allocation per chunk, and exact knowledge of how a
//! connection ended.

use std::{io, ops::Range};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Largest response head and longest chunk-size line.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most header lines in a response.
const HEADERS_MAX: usize = 128;
/// Space kept free for one read.
const READ_BYTES: usize = 16 << 10;

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `host:port`, as for connecting and for the `host` header.
    pub authority: String,
    /// What stands before `/v1/...`; empty or beginning with a slash.
    pub base_path: String,
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let rest = url.strip_prefix("http://").ok_or("a target begins with http:// (TLS is not offered)")?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() {
            return Err("a target names a host".to_owned());
        }
        let port_follows = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if port_follows { host.to_owned() } else { format!("{host}:80") };
        let path = path.trim_end_matches('/');
        Ok(Self { authority, base_path: if path.is_empty() { String::new() } else { format!("/{path}") } })
    }
}

/// Why an exchange broke off below the level of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// No connection.
    Connect,
    /// The peer reset the connection.
    Reset,
    /// The peer closed the connection before the answer began.
    Closed,
    /// The peer closed the connection in the middle of the answer.
    Truncated,
    /// Not HTTP/1.1 we understand.
    Malformed,
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Whether the body is a stream of events.
    pub media: Media,
}

/// What the body claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// `text/event-stream`
    Events,
    /// Anything else.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Length(u64),
    /// Bytes left of a chunk's data.
    Chunk(u64),
    ChunkEnd,
    ChunkSize,
    UntilClose,
    Complete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Persistence {
    KeepAlive,
    Close,
}

/// Whether a connection has carried a request before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// This is its first.
    Fresh,
    /// It was idle in the pool and may have been closed meanwhile.
    Reused,
}

/// A connection to a target, for one request at a time.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Bytes of `buffer` not used yet.
    unread: Range<usize>,
    body: Body,
    persistence: Persistence,
    /// Whether the pool has lent it before.
    pub usage: Usage,
}

impl Connection {
    /// Connects to `host:port`.
    pub async fn open(authority: &str) -> Result<Self, Broken> {
        let stream = TcpStream::connect(authority).await.map_err(|_| Broken::Connect)?;
        stream.set_nodelay(true).map_err(|_| Broken::Connect)?;
        Ok(Self {
            stream,
            buffer: vec![0; READ_BYTES],
            unread: 0..0,
            body: Body::Complete,
            persistence: Persistence::KeepAlive,
            usage: Usage::Fresh,
        })
    }

    /// Whether another request may follow on this connection.
    pub fn reusable(&self) -> bool {
        self.body == Body::Complete && self.persistence == Persistence::KeepAlive && self.unread.is_empty()
    }

    /// Whether nothing has come yet of the answer awaited: only then may its request be sent again elsewhere.
    pub fn unanswered(&self) -> bool {
        self.unread.is_empty()
    }

    /// Sends a whole request.
    pub async fn send(&mut self, request: &[u8]) -> Result<(), Broken> {
        self.stream.write_all(request).await.map_err(|error| broken(&error, Broken::Closed))
    }

    /// Waits for the head of the answer; interim answers (1xx) are skipped.
    pub async fn head(&mut self) -> Result<Head, Broken> {
        loop {
            if let Some(head) = self.parse_head()?
                && head.status >= 200
            {
                return Ok(head);
            }
            if self.unread.len() > HEAD_BYTES_MAX {
                return Err(Broken::Malformed);
            }
            let before = if self.unread.is_empty() { Broken::Closed } else { Broken::Truncated };
            self.fill(before).await?;
        }
    }

    fn parse_head(&mut self) -> Result<Option<Head>, Broken> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut headers);
        let head_bytes = match parsed.parse(&self.buffer[self.unread.clone()]) {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Broken::Malformed),
        };
        let status = parsed.code.unwrap_or(0);
        let mut head = Head { status, media: Media::Other };
        self.persistence = if parsed.version == Some(1) { Persistence::KeepAlive } else { Persistence::Close };
        self.body = Body::UntilClose;
        for header in parsed.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                let text = std::str::from_utf8(header.value).map_err(|_| Broken::Malformed)?;
                self.body = match text.trim().parse().map_err(|_| Broken::Malformed)? {
                    0 => Body::Complete,
                    bytes => Body::Length(bytes),
                };
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                self.body = Body::ChunkSize;
            } else if header.name.eq_ignore_ascii_case("connection") && header.value.eq_ignore_ascii_case(b"close") {
                self.persistence = Persistence::Close;
            } else if header.name.eq_ignore_ascii_case("content-type") && header.value.starts_with(b"text/event-stream")
            {
                head.media = Media::Events;
            }
        }
        self.unread.start += head_bytes;
        if status == 204 || status == 304 || status < 200 {
            self.body = Body::Complete;
        }
        Ok(Some(head))
    }

    /// The next piece of the body as soon as it arrives; `None` at its proper end.
    pub async fn piece(&mut self) -> Result<Option<&[u8]>, Broken> {
        loop {
            let left = match self.body {
                Body::Complete => return Ok(None),
                Body::ChunkSize | Body::ChunkEnd => {
                    if !self.chunk_framing()? {
                        self.fill(Broken::Truncated).await?;
                    }
                    continue;
                }
                Body::Length(left) | Body::Chunk(left) => usize::try_from(left).unwrap_or(usize::MAX),
                Body::UntilClose => usize::MAX,
            };
            if self.unread.is_empty() {
                match self.fill(Broken::Truncated).await {
                    Err(Broken::Truncated) if self.body == Body::UntilClose => {
                        self.body = Body::Complete;
                        self.persistence = Persistence::Close;
                    }
                    Ok(()) => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            let start = self.unread.start;
            let bytes = self.unread.len().min(left);
            self.unread.start += bytes;
            let rest = (left - bytes) as u64;
            self.body = match (self.body, rest) {
                (Body::Length(_), 0) => Body::Complete,
                (Body::Length(_), rest) => Body::Length(rest),
                (Body::Chunk(_), 0) => Body::ChunkEnd,
                (Body::Chunk(_), rest) => Body::Chunk(rest),
                (other, _) => other,
            };
            return Ok(Some(&self.buffer[start..start + bytes]));
        }
    }

    /// Takes the framing between chunks; false when more bytes are needed.
    fn chunk_framing(&mut self) -> Result<bool, Broken> {
        let unread = &self.buffer[self.unread.clone()];
        if self.body == Body::ChunkEnd {
            if unread.len() < 2 {
                return Ok(false);
            }
            if !unread.starts_with(b"\r\n") {
                return Err(Broken::Malformed);
            }
            self.unread.start += 2;
            self.body = Body::ChunkSize;
            return Ok(true);
        }
        match httparse::parse_chunk_size(unread).map_err(|_| Broken::Malformed)? {
            // The last chunk is followed by an empty line; trailers are not expected.
            httparse::Status::Complete((line, 0)) => match unread.get(line..line + 2) {
                None => Ok(false),
                Some(b"\r\n") => {
                    self.unread.start += line + 2;
                    self.body = Body::Complete;
                    Ok(true)
                }
                Some(_) => Err(Broken::Malformed),
            },
            httparse::Status::Complete((line, bytes)) => {
                self.unread.start += line;
                self.body = Body::Chunk(bytes);
                Ok(true)
            }
            httparse::Status::Partial if unread.len() > HEAD_BYTES_MAX => Err(Broken::Malformed),
            httparse::Status::Partial => Ok(false),
        }
    }

    async fn fill(&mut self, at_end: Broken) -> Result<(), Broken> {
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.buffer.len() - self.unread.end < READ_BYTES / 4 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            if self.buffer.len() - self.unread.end < READ_BYTES / 4 {
                self.buffer.resize(self.buffer.len() + READ_BYTES, 0);
            }
        }
        match self.stream.read(&mut self.buffer[self.unread.end..]).await {
            Ok(0) => Err(at_end),
            Ok(bytes) => {
                self.unread.end += bytes;
                Ok(())
            }
            Err(error) => Err(broken(&error, at_end)),
        }
    }
}

fn broken(error: &io::Error, otherwise: Broken) -> Broken {
    if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) {
        Broken::Reset
    } else {
        otherwise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_http_urls_with_an_optional_base_path() {
        let target = |url: &str| url.parse::<Target>();
        assert_eq!(
            target("http://127.0.0.1:8000/"),
            Ok(Target { authority: "127.0.0.1:8000".to_owned(), base_path: String::new() })
        );
        assert_eq!(
            target("http://pod/a/b"),
            Ok(Target { authority: "pod:80".to_owned(), base_path: "/a/b".to_owned() })
        );
        assert_eq!(target("http://[::1]").unwrap().authority, "[::1]:80");
        assert!(target("https://pod").is_err());
        assert!(target("http://").is_err());
    }
}
