//! HTTP/1.1 on the server's side, by hand: the mock must control every byte and every close.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::tls::Stream;

/// Largest request head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most header lines in a request.
const HEADERS_MAX: usize = 128;
/// Largest request body.
const BODY_BYTES_MAX: usize = 64 << 20;
/// Most bytes of the next, pipelined request kept while one is answered.
const PIPELINED_BYTES_MAX: usize = 256 << 10;
/// Longest wait for the rest of a request that has begun.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// A request as it came.
#[derive(Debug)]
pub(crate) struct RawRequest {
    pub(crate) method: String,
    /// Path without query.
    pub(crate) path: String,
    /// In order, names as sent.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) persistence: Persistence,
}

impl RawRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Whether the connection outlives the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    KeepAlive,
    Close,
}

/// Why there is no request.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The peer closed, reset, or left the connection idle for too long. Nothing to answer.
    Over,
    /// Not HTTP we understand: status and reason.
    Invalid(u16, &'static str),
}

impl From<io::Error> for ReadError {
    fn from(_: io::Error) -> Self {
        Self::Over
    }
}

pub(crate) struct Connection {
    stream: Stream,
    /// Bytes read and not yet used: the next request.
    inbox: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, inbox: Vec::new() }
    }

    /// The next request; waits at most `idle` for its first byte.
    pub(crate) async fn next_request(&mut self, idle: Duration) -> Result<RawRequest, ReadError> {
        if self.inbox.is_empty() {
            timeout(idle, self.fill()).await.map_err(|_| ReadError::Over)??;
        }
        timeout(REQUEST_TIME_MAX, self.read_request()).await.map_err(|_| ReadError::Over)?
    }

    async fn read_request(&mut self) -> Result<RawRequest, ReadError> {
        let (mut request, framing, expects) = loop {
            if let Some(parsed) = self.parse_head()? {
                break parsed;
            }
            if self.inbox.len() > HEAD_BYTES_MAX {
                return Err(ReadError::Invalid(431, "head too large"));
            }
            self.fill().await?;
        };
        if expects == Expectation::Continue && self.inbox.is_empty() {
            self.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        request.body = match framing {
            Framing::Length(bytes) if bytes > BODY_BYTES_MAX => return Err(ReadError::Invalid(413, "body too large")),
            Framing::Length(bytes) => self.take(bytes).await?,
            Framing::Chunked => self.read_chunks().await?,
        };
        Ok(request)
    }

    fn parse_head(&mut self) -> Result<Option<(RawRequest, Framing, Expectation)>, ReadError> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut headers);
        let head_bytes = match parsed.parse(&self.inbox) {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(ReadError::Invalid(400, "Invalid HTTP request received.")),
        };
        let target = parsed.path.unwrap_or("/");
        let mut request = RawRequest {
            method: parsed.method.unwrap_or_default().to_owned(),
            path: target.split('?').next().unwrap_or(target).to_owned(),
            headers: Vec::with_capacity(parsed.headers.len()),
            body: Vec::new(),
            persistence: if parsed.version == Some(1) { Persistence::KeepAlive } else { Persistence::Close },
        };
        let mut framing = Framing::Length(0);
        let mut expects = Expectation::None;
        for header in parsed.headers.iter() {
            let value = String::from_utf8_lossy(header.value).into_owned();
            if header.name.eq_ignore_ascii_case("content-length") {
                let bytes = value.trim().parse().map_err(|_| ReadError::Invalid(400, "bad content-length"))?;
                framing = Framing::Length(bytes);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                framing = Framing::Chunked;
            } else if header.name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                request.persistence = Persistence::Close;
            } else if header.name.eq_ignore_ascii_case("expect") && value.eq_ignore_ascii_case("100-continue") {
                expects = Expectation::Continue;
            }
            request.headers.push((header.name.to_owned(), value));
        }
        self.inbox.drain(..head_bytes);
        Ok(Some((request, framing, expects)))
    }

    async fn take(&mut self, bytes: usize) -> Result<Vec<u8>, ReadError> {
        self.inbox.reserve(bytes.saturating_sub(self.inbox.len()).min(1 << 20));
        while self.inbox.len() < bytes {
            self.fill().await?;
        }
        let rest = self.inbox.split_off(bytes);
        Ok(std::mem::replace(&mut self.inbox, rest))
    }

    async fn read_chunks(&mut self) -> Result<Vec<u8>, ReadError> {
        const BAD: ReadError = ReadError::Invalid(400, "bad chunk");
        let mut body = Vec::new();
        loop {
            let (line_bytes, chunk_bytes) = loop {
                match httparse::parse_chunk_size(&self.inbox).map_err(|_| BAD)? {
                    httparse::Status::Complete((line, size)) => {
                        break (line, usize::try_from(size).unwrap_or(usize::MAX));
                    }
                    httparse::Status::Partial if self.inbox.len() > HEAD_BYTES_MAX => return Err(BAD),
                    httparse::Status::Partial => self.fill().await?,
                }
            };
            if chunk_bytes > BODY_BYTES_MAX.saturating_sub(body.len()) {
                return Err(ReadError::Invalid(413, "body too large"));
            }
            self.take(line_bytes).await?;
            if chunk_bytes == 0 {
                self.skip_trailers().await?;
                return Ok(body);
            }
            let chunk = self.take(chunk_bytes + 2).await?;
            if !chunk.ends_with(b"\r\n") {
                return Err(BAD);
            }
            body.extend_from_slice(&chunk[..chunk_bytes]);
        }
    }

    /// Takes the lines after the last chunk, up to the empty one; nobody looks at them.
    async fn skip_trailers(&mut self) -> Result<(), ReadError> {
        let mut trailer_bytes = 0;
        while trailer_bytes < HEAD_BYTES_MAX {
            match self.inbox.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    let line = self.take(end + 1).await?;
                    if line == b"\r\n" {
                        return Ok(());
                    }
                    trailer_bytes += line.len();
                }
                None if self.inbox.len() > HEAD_BYTES_MAX => break,
                None => self.fill().await?,
            }
        }
        Err(ReadError::Invalid(400, "bad trailers"))
    }

    async fn fill(&mut self) -> Result<(), ReadError> {
        match self.stream.read_buf(&mut self.inbox).await? {
            0 => Err(ReadError::Over),
            _ => Ok(()),
        }
    }

    /// Resolves when the peer has closed or reset the connection. Bytes of a pipelined request are kept. As uvicorn
    /// does, a half-closed connection counts as closed.
    pub(crate) async fn gone(&mut self) {
        while self.inbox.len() < PIPELINED_BYTES_MAX {
            if self.fill().await.is_err() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    /// Waits, without reading, for the first byte of the next request or the peer's close.
    pub(crate) async fn readable(&mut self) {
        if self.inbox.is_empty() {
            // An error means that the connection is over, which ends the wait as well.
            let _ = self.stream.socket().peek(&mut [0]).await;
        }
    }

    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Sends every byte in a write, and with `TCP_NODELAY` mostly in a segment, of its own.
    pub(crate) async fn write_byte_wise(&mut self, bytes: &[u8]) -> io::Result<()> {
        for byte in bytes {
            self.stream.write_all(std::slice::from_ref(byte)).await?;
            self.stream.flush().await?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Closes with a TCP reset: the peer loses what it has not read yet.
    pub(crate) fn reset(self) {
        // When this fails the socket is gone already.
        let _ = self.stream.socket().set_zero_linger();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expectation {
    None,
    Continue,
}

/// Reason phrase of a status the engine sends.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Unknown",
    }
}

/// The status line and the headers every answer of uvicorn begins with.
pub(crate) fn head_start(status: u16, unix_s: u64) -> String {
    format!("HTTP/1.1 {status} {}\r\ndate: {}\r\nserver: uvicorn\r\n", reason(status), http_date(unix_s))
}

/// Formats seconds since 1970 as in `Mon, 30 Nov 2026 08:26:32 GMT`.
fn http_date(unix_s: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Days to civil date, counted from 0000-03-01 in eras of 400 years (Howard Hinnant, "chrono-Compatible Low-Level
    // Date Algorithms").
    let shifted = days + 719_468;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = year_of_era + shifted / 146_097 * 400 + u64::from(month < 2);
    format!(
        "{}, {day:02} {} {year} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_the_http_form() {
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(1_796_027_192), "Mon, 30 Nov 2026 08:26:32 GMT");
        assert_eq!(http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
    }
}
