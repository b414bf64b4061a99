//! Request and response heads as ranges into the buffer they were received in.

use std::mem::MaybeUninit;
use std::ops::Range;

use config::limits;

use super::name::Name;

/// Most headers of one head; more is 431.
pub(crate) const HEADERS_MAX: usize = limits::HEADERS_MAX;

/// A range of the receive buffer. Heads are at most 64 KiB, so 32 bits are plenty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn within(buffer: &[u8], part: &[u8]) -> Self {
        // httparse gives some empty parts (a missing reason phrase) as a constant of its own.
        if part.is_empty() {
            return Self::default();
        }
        let start = (part.as_ptr() as usize).wrapping_sub(buffer.as_ptr() as usize);
        Self { start: start as u32, end: (start + part.len()) as u32 }
    }

    /// The bytes; empty when `buffer` is not the one that was parsed.
    pub(crate) fn of(self, buffer: &[u8]) -> &[u8] {
        buffer.get(self.range()).unwrap_or_default()
    }

    /// As a range of indices.
    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// One header line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// What the name means.
    pub(crate) known: Name,
    /// The name as it was sent (compare without case).
    pub(crate) name: Span,
    /// The value without surrounding white space.
    pub(crate) value: Span,
}

/// Header lines in the order received.
#[derive(Debug, Default, Clone)]
pub(crate) struct Headers {
    lines: Vec<Header>,
}

impl Headers {
    /// Every line as `(name, value)`.
    pub(crate) fn iter<'a>(&'a self, buffer: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
        self.lines.iter().map(move |line| (line.name.of(buffer), line.value.of(buffer)))
    }

    /// Every line with what its name means.
    pub(crate) fn lines(&self) -> &[Header] {
        &self.lines
    }

    /// The first value of `name`.
    pub(crate) fn first<'a>(&'a self, buffer: &'a [u8], name: Name) -> Option<&'a [u8]> {
        self.all(buffer, name).next()
    }

    /// Every value of `name`, which is a known one.
    pub(crate) fn all<'a>(&'a self, buffer: &'a [u8], name: Name) -> impl Iterator<Item = &'a [u8]> {
        self.lines.iter().filter(move |line| line.known == name).map(|line| line.value.of(buffer))
    }

    /// Every value of any `name`, given in any case.
    pub(crate) fn named<'a>(&'a self, buffer: &'a [u8], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter(buffer).filter(move |(n, _)| n.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }

    /// Every comma-separated element of every value of `name`, trimmed (RFC 9110, 5.6.1).
    pub(crate) fn tokens<'a>(&'a self, buffer: &'a [u8], name: Name) -> impl Iterator<Item = &'a [u8]> {
        self.all(buffer, name)
            .flat_map(|value| value.split(|&b| b == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|t| !t.is_empty())
    }

    fn take_from(&mut self, buffer: &[u8], parsed: &[httparse::Header<'_>]) {
        self.lines.clear();
        self.lines.extend(parsed.iter().map(|header| Header {
            known: Name::of(header.name.as_bytes()),
            name: Span::within(buffer, header.name.as_bytes()),
            value: Span::within(buffer, header.value),
        }));
    }
}

/// The methods that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Method {
    /// GET
    #[default]
    Get,
    /// HEAD
    Head,
    /// POST
    Post,
    /// OPTIONS
    Options,
    /// Any other.
    Other,
}

/// The protocol's minor version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
}

/// How the end of a body is told (RFC 9112, 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum BodyFraming {
    /// There is none.
    #[default]
    None,
    /// This many bytes.
    Length(u64),
    /// Chunks.
    Chunked,
    /// All bytes until the connection ends (responses only).
    UntilClose,
}

/// What is wrong with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadError {
    /// Not HTTP/1.x, or a forbidden byte. The text says which part.
    Malformed(&'static str),
    /// More than [`HEADERS_MAX`] header lines.
    TooManyHeaders,
    /// The length of the body is told twice or in two ways: request smuggling (RFC 9112, 11.2).
    AmbiguousLength(&'static str),
    /// A transfer coding other than `chunked`.
    UnknownTransferCoding,
}

impl From<httparse::Error> for HeadError {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::TooManyHeaders => Self::TooManyHeaders,
            httparse::Error::HeaderName => Self::Malformed("header name"),
            httparse::Error::HeaderValue => Self::Malformed("header value"),
            httparse::Error::NewLine => Self::Malformed("line end"),
            httparse::Error::Status => Self::Malformed("status line"),
            httparse::Error::Token => Self::Malformed("request line"),
            httparse::Error::Version => Self::Malformed("HTTP version"),
        }
    }
}

/// The head of a request.
#[derive(Debug, Default, Clone)]
pub(crate) struct RequestHead {
    pub(crate) method: Method,
    /// The method's bytes.
    pub(crate) method_name: Span,
    /// The request target as sent.
    pub(crate) target: Span,
    pub(crate) version: Version,
    pub(crate) headers: Headers,
    /// Bytes of the head, the empty line included.
    pub(crate) head_bytes: usize,
    pub(crate) framing: BodyFraming,
    /// The client wants the connection kept.
    pub(crate) keep_alive: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub(crate) expects_continue: bool,
}

impl RequestHead {
    /// Parses the head at the start of `buffer` into `self` (whose memory is used again). `Ok(false)`: not all there yet.
    ///
    /// # Errors
    /// When the head can never become a good one.
    pub(crate) fn parse(&mut self, buffer: &[u8]) -> Result<bool, HeadError> {
        let mut lines = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut []);
        let head_bytes = match request.parse_with_uninit_headers(buffer, &mut lines)? {
            httparse::Status::Complete(n) => n,
            httparse::Status::Partial => return Ok(false),
        };
        let method = request.method.unwrap_or_default();
        self.method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "OPTIONS" => Method::Options,
            _ => Method::Other,
        };
        self.method_name = Span::within(buffer, method.as_bytes());
        self.target = Span::within(buffer, request.path.unwrap_or_default().as_bytes());
        self.version = version_of(request.version);
        self.headers.take_from(buffer, request.headers);
        self.head_bytes = head_bytes;
        // RFC 9112, 3.2: a request without, or with more than one, is answered with 400.
        if self.version == Version::Http11 && self.headers.all(buffer, Name::Host).count() != 1 {
            return Err(HeadError::Malformed("Host header: exactly one is needed"));
        }
        self.framing = self.request_framing(buffer)?;
        self.keep_alive = wants_keep_alive(self.version, &self.headers, buffer);
        self.expects_continue = self.version == Version::Http11
            && self.headers.tokens(buffer, Name::Expect).any(|token| token.eq_ignore_ascii_case(b"100-continue"));
        Ok(true)
    }

    fn request_framing(&self, buffer: &[u8]) -> Result<BodyFraming, HeadError> {
        let length = content_length(&self.headers, buffer)?;
        match (is_chunked(&self.headers, buffer)?, length) {
            (true, Some(_)) => Err(HeadError::AmbiguousLength("both Content-Length and Transfer-Encoding")),
            (true, None) if self.version == Version::Http10 => {
                Err(HeadError::AmbiguousLength("Transfer-Encoding in HTTP/1.0"))
            }
            (true, None) => Ok(BodyFraming::Chunked),
            (false, Some(0) | None) => Ok(BodyFraming::None),
            (false, Some(n)) => Ok(BodyFraming::Length(n)),
        }
    }
}

/// The head of a response.
#[derive(Debug, Default, Clone)]
pub(crate) struct ResponseHead {
    /// 100 to 999.
    pub(crate) status: u16,
    /// The reason phrase.
    pub(crate) reason: Span,
    pub(crate) version: Version,
    pub(crate) headers: Headers,
    /// Bytes of the head, the empty line included.
    pub(crate) head_bytes: usize,
    pub(crate) framing: BodyFraming,
    /// The server keeps the connection.
    pub(crate) keep_alive: bool,
}

impl ResponseHead {
    /// As [`RequestHead::parse`], for the answer to a request with `method`.
    ///
    /// # Errors
    /// When the head can never become a good one.
    pub(crate) fn parse(&mut self, buffer: &[u8], method: Method) -> Result<bool, HeadError> {
        let mut lines = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let head_bytes = match config.parse_response_with_uninit_headers(&mut response, buffer, &mut lines)? {
            httparse::Status::Complete(n) => n,
            httparse::Status::Partial => return Ok(false),
        };
        self.status = response.code.unwrap_or_default();
        if !(100..=999).contains(&self.status) {
            return Err(HeadError::Malformed("status code"));
        }
        self.reason = Span::within(buffer, response.reason.unwrap_or_default().as_bytes());
        self.version = version_of(response.version);
        self.headers.take_from(buffer, response.headers);
        self.head_bytes = head_bytes;
        self.framing = self.response_framing(buffer, method)?;
        let two_lengths =
            self.framing == BodyFraming::Chunked && self.headers.first(buffer, Name::ContentLength).is_some();
        self.keep_alive = self.framing != BodyFraming::UntilClose
            && !two_lengths
            && wants_keep_alive(self.version, &self.headers, buffer);
        Ok(true)
    }

    /// RFC 9112, 6.3. A response that names both lengths is read as chunked and its connection not used again.
    fn response_framing(&self, buffer: &[u8], method: Method) -> Result<BodyFraming, HeadError> {
        if method == Method::Head || self.status < 200 || matches!(self.status, 204 | 304) {
            return Ok(BodyFraming::None);
        }
        if is_chunked(&self.headers, buffer)? {
            return Ok(BodyFraming::Chunked);
        }
        Ok(match content_length(&self.headers, buffer)? {
            Some(0) => BodyFraming::None,
            Some(n) => BodyFraming::Length(n),
            None => BodyFraming::UntilClose,
        })
    }
}

fn version_of(minor: Option<u8>) -> Version {
    if minor == Some(0) { Version::Http10 } else { Version::Http11 }
}

fn wants_keep_alive(version: Version, headers: &Headers, buffer: &[u8]) -> bool {
    let has =
        |word: &str| headers.tokens(buffer, Name::Connection).any(|token| token.eq_ignore_ascii_case(word.as_bytes()));
    match version {
        Version::Http11 => !has("close"),
        Version::Http10 => has("keep-alive") && !has("close"),
    }
}

fn content_length(headers: &Headers, buffer: &[u8]) -> Result<Option<u64>, HeadError> {
    let mut length = None;
    for value in
        headers.all(buffer, Name::ContentLength).flat_map(|value| value.split(|&b| b == b',')).map(<[u8]>::trim_ascii)
    {
        let digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
        if !digits {
            return Err(HeadError::Malformed("Content-Length"));
        }
        let parsed = value.iter().fold(0_u64, |n, digit| n * 10 + u64::from(digit - b'0'));
        if length.is_some_and(|before| before != parsed) {
            return Err(HeadError::AmbiguousLength("two different Content-Length values"));
        }
        length = Some(parsed);
    }
    Ok(length)
}

fn is_chunked(headers: &Headers, buffer: &[u8]) -> Result<bool, HeadError> {
    let mut codings = 0;
    for token in headers.tokens(buffer, Name::TransferEncoding) {
        codings += 1;
        if codings > 1 || !token.eq_ignore_ascii_case(b"chunked") {
            return Err(HeadError::UnknownTransferCoding);
        }
    }
    if codings == 0 && headers.first(buffer, Name::TransferEncoding).is_some() {
        return Err(HeadError::UnknownTransferCoding);
    }
    Ok(codings == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Option<RequestHead>, HeadError> {
        let mut head = RequestHead::default();
        head.parse(text.as_bytes()).map(|complete| complete.then_some(head))
    }

    #[test]
    fn a_head_is_ranges_into_its_buffer() {
        let text = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length:  12 \r\nX-A: b\r\n\r\nbody";
        let head = parse(text).unwrap().unwrap();
        assert_eq!(head.method, Method::Post);
        assert_eq!(head.target.of(text.as_bytes()), b"/v1/chat/completions");
        assert_eq!(head.framing, BodyFraming::Length(12));
        assert_eq!(head.headers.named(text.as_bytes(), "x-a").next(), Some(&b"b"[..]));
        assert_eq!(&text[head.head_bytes..], "body");
        assert!(head.keep_alive);
    }

    #[test]
    fn a_length_told_twice_is_refused() {
        let cases = [
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: 5, 6",
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nContent-Length: 5",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: chunked, chunked",
            "Transfer-Encoding: \x0bchunked",
            "Transfer-Encoding:",
            "Content-Length: +5",
            "Content-Length: -1",
            "Content-Length: 0x5",
            "Content-Length: 5 5",
            "Content-Length:",
            "Content-Length: 99999999999999999999",
            "Content-Length : 5",
        ];
        for case in cases {
            let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{case}\r\n\r\n");
            assert!(parse(&text).is_err(), "{case:?} was taken");
        }
        let same =
            parse("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n").unwrap().unwrap();
        assert_eq!(same.framing, BodyFraming::Length(5));
    }

    #[test]
    fn too_many_headers_are_told_apart_from_bad_ones() {
        let lines: String = (0..=HEADERS_MAX).map(|i| format!("x-{i}: 1\r\n")).collect();
        assert_eq!(parse(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).unwrap_err(), HeadError::TooManyHeaders);
        assert!(matches!(parse("GET / HTTP/1.1\r\nb\0d: 1\r\n\r\n").unwrap_err(), HeadError::Malformed(_)));
    }

    #[test]
    fn http_1_1_needs_exactly_one_host() {
        assert!(parse("GET / HTTP/1.1\r\n\r\n").is_err());
        assert!(parse("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n").is_err());
        assert!(parse("GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap().is_some());
        assert!(parse("GET / HTTP/1.0\r\n\r\n").unwrap().is_some());
    }

    #[test]
    fn keep_alive_follows_version_and_connection() {
        let keep = |version: &str, connection: &str| {
            parse(&format!("GET / HTTP/{version}\r\nHost: a\r\nConnection: {connection}\r\n\r\n"))
                .unwrap()
                .unwrap()
                .keep_alive
        };
        assert!(keep("1.1", "te"));
        assert!(!keep("1.1", "TE, Close"));
        assert!(!keep("1.0", "te"));
        assert!(keep("1.0", "Keep-Alive"));
    }

    #[test]
    fn the_end_of_a_response_body_is_known() {
        let framing = |text: &str, method| {
            let mut head = ResponseHead::default();
            head.parse(text.as_bytes(), method).unwrap();
            head.framing
        };
        assert_eq!(framing("HTTP/1.1 200 OK\r\n\r\n", Method::Post), BodyFraming::UntilClose);
        assert_eq!(framing("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", Method::Post), BodyFraming::Length(3));
        assert_eq!(framing("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", Method::Head), BodyFraming::None);
        assert_eq!(framing("HTTP/1.1 204 No\r\n\r\n", Method::Post), BodyFraming::None);
        assert_eq!(framing("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", Method::Get), BodyFraming::Chunked);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut text = b"POST /x HTTP/1.1\r\nHost: a\r\n".to_vec();
            text.extend(&bytes);
            let _ = RequestHead::default().parse(&text);
            let _ = RequestHead::default().parse(&bytes);
            let _ = ResponseHead::default().parse(&bytes, Method::Get);
        }

        #[test]
        fn a_prefix_of_a_good_head_is_incomplete(cut in 0_usize..94) {
            let text = "POST /v1/chat/completions HTTP/1.1\r\nHost: abc\r\nContent-Length: 12\r\nX-Request-Id: ab\r\n\r\n";
            prop_assume!(cut < text.len());
            prop_assert!(parse(&text[..cut]).unwrap().is_none());
        }
    }
}
