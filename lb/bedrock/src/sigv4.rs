//! AWS Signature Version 4: what proves to Bedrock that a request is ours and was not changed.
//!
//! Pure: the time is an argument, and the same request at the same second has the same signature. Paths are normalized and
//! encoded once more for the signature than they stand on the wire, as every AWS service but S3 asks
//! (<https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>). Checked against AWS's
//! published vectors and against botocore ([ADR 0014](../../../docs/adr/0014-bedrock.md)).

use std::borrow::Cow;
use std::fmt;
use std::iter;

use ring::{digest, hmac};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Headers that are never signed, as proxies on the way may change them: botocore's list.
const UNSIGNED: [&str; 14] = [
    "baggage",
    "connection",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-amzn-trace-id",
];

/// Set by the signer, whatever the caller has.
const DATE: &str = "x-amz-date";
const TOKEN: &str = "x-amz-security-token";
const AUTHORIZATION: &str = "authorization";

/// What AWS knows the gateway by. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

/// Why credentials cannot be used; says which part, never its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialError {
    /// This part is empty.
    Empty(&'static str),
    /// This part has a character that no AWS credential has: a space, a line end, a control character, or one beyond ASCII.
    Character(&'static str),
}

impl fmt::Display for CredentialError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(part) => write!(formatter, "the {part} is empty"),
            Self::Character(part) => {
                write!(formatter, "the {part} has a space, a line end or another character that no AWS credential has")
            }
        }
    }
}

impl std::error::Error for CredentialError {}

impl Credentials {
    /// A key pair, and the token that comes with temporary ones.
    ///
    /// # Errors
    /// A part that is empty or cannot stand in a header: often the line end of the file it was read from.
    pub fn new(
        access_key_id: &str,
        secret_access_key: &str,
        session_token: Option<&str>,
    ) -> Result<Self, CredentialError> {
        let checked = |part: &'static str, text: &str| {
            if text.is_empty() {
                Err(CredentialError::Empty(part))
            } else if text.bytes().all(|byte| byte.is_ascii_graphic()) {
                Ok(text.to_owned())
            } else {
                Err(CredentialError::Character(part))
            }
        };
        Ok(Self {
            access_key_id: checked("access key id", access_key_id)?,
            secret_access_key: checked("secret access key", secret_access_key)?,
            session_token: session_token.map(|token| checked("session token", token)).transpose()?,
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials(..)")
    }
}

/// A request to be signed, as it will stand on the wire.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// In capitals.
    pub method: &'a str,
    /// Percent-encoded, without the query: [`crate::path`].
    pub path: &'a str,
    /// What stands after `?`; empty for none.
    pub query: &'a str,
    /// `host` and what else is sent and must not change: for Bedrock `content-type`. Those that proxies change are left out
    /// of the signature; a date, a token or an authorization among them is passed over.
    pub headers: &'a [(&'a str, &'a str)],
    /// All of it, in the pieces it is sent from.
    pub body: &'a [&'a [u8]],
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body_bytes: usize = self.body.iter().map(|piece| piece.len()).sum();
        write!(formatter, "Request({} {}, {body_bytes} bytes)", self.method, self.path)
    }
}

/// Signs requests to one service in one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    credentials: Credentials,
    region: String,
    service: String,
}

impl Signer {
    /// `service` is the signing name: `bedrock` for `bedrock-runtime` endpoints.
    #[must_use]
    pub fn new(credentials: Credentials, region: &str, service: &str) -> Self {
        Self { credentials, region: region.to_owned(), service: service.to_owned() }
    }

    /// The headers to add. AWS takes them for five minutes around `now_unix_s`. The signing key is derived each time: four
    /// short HMACs, less than the digest of a prompt of a few kilobytes.
    #[must_use]
    pub fn sign(&self, request: &Request<'_>, now_unix_s: u64) -> Signature {
        let date = amz_date(now_unix_s);
        let token = self.credentials.session_token.as_deref();
        let headers = signed_headers(request.headers, &date, token);
        let names = join(headers.iter().map(|(name, _)| name.as_str()), ";");
        let canonical = canonical_request(request, &headers, &names);
        let day = &date[..8];
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let to_sign = string_to_sign(&date, &scope, &canonical);
        let key = self.signing_key(day);
        let signature = hex(hmac::sign(&key, to_sign.as_bytes()).as_ref());
        let authorization = format!(
            "{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.credentials.access_key_id
        );
        Signature { date, token: token.map(str::to_owned), authorization }
    }

    fn signing_key(&self, day: &str) -> hmac::Key {
        let first = [b"AWS4", self.credentials.secret_access_key.as_bytes()].concat();
        let parts = [day, &self.region, &self.service, "aws4_request"];
        parts.iter().fold(hmac::Key::new(hmac::HMAC_SHA256, &first), |key, part| {
            hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref())
        })
    }
}

/// What a signed request carries beside its own headers. Not printed: the token is a credential.
#[derive(Clone, PartialEq, Eq)]
pub struct Signature {
    date: String,
    token: Option<String>,
    authorization: String,
}

impl Signature {
    /// Names in lower case, and values: the date, the session token where there is one, the authorization.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        iter::once((DATE, self.date.as_str()))
            .chain(self.token.as_deref().map(|token| (TOKEN, token)))
            .chain(iter::once((AUTHORIZATION, self.authorization.as_str())))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Signature(..)")
    }
}

/// Headers under the signature: names in lower case, each once, in order, with their values as they are signed.
fn signed_headers(headers: &[(&str, &str)], date: &str, token: Option<&str>) -> Vec<(String, String)> {
    let ours = [Some((DATE, date)), token.map(|token| (TOKEN, token))];
    let mut all: Vec<(String, String)> = headers
        .iter()
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), *value))
        .filter(|(name, _)| {
            !UNSIGNED.contains(&name.as_str()) && ![DATE, TOKEN, AUTHORIZATION].contains(&name.as_str())
        })
        .chain(ours.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)))
        .map(|(name, value)| (name, join(value.split_ascii_whitespace(), " ")))
        .collect();
    // Stable: values of one name stay in their order.
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1.push(',');
            kept.1.push_str(&later.1);
        }
        same
    });
    all
}

fn canonical_request(request: &Request<'_>, headers: &[(String, String)], names: &str) -> String {
    let mut text = String::with_capacity(512);
    text.push_str(&request.method.to_ascii_uppercase());
    text.push('\n');
    push_encoded(&mut text, normalized(request.path).as_bytes(), Slash::Kept);
    text.push('\n');
    text.push_str(&canonical_query(request.query));
    text.push('\n');
    for (name, value) in headers {
        text.extend([name, ":", value, "\n"]);
    }
    text.extend(["\n", names, "\n"]);
    let mut body = digest::Context::new(&digest::SHA256);
    request.body.iter().for_each(|piece| body.update(piece));
    text.push_str(&hex(body.finish().as_ref()));
    text
}

fn string_to_sign(date: &str, scope: &str, canonical: &str) -> String {
    let digest = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    format!("{ALGORITHM}\n{date}\n{scope}\n{digest}")
}

/// RFC 3986, section 5.2.4 (`.` and `..`), and no empty segments.
fn normalized(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let mut text = format!("/{}", join(kept.iter().copied(), "/"));
    if path.ends_with('/') && !kept.is_empty() {
        text.push('/');
    }
    text
}

/// Pairs in the order of their encoded names, then values.
fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (encoded(&decoded(name), Slash::Encoded), encoded(&decoded(value), Slash::Encoded))
        })
        .collect();
    pairs.sort();
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// What an encoding does with `/`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slash {
    Kept,
    Encoded,
}

/// Every byte but the unreserved ones (RFC 3986, section 2.3) as `%XX`.
pub(crate) fn encoded(bytes: &[u8], slash: Slash) -> String {
    let mut text = String::with_capacity(bytes.len());
    push_encoded(&mut text, bytes, slash);
    text
}

fn push_encoded(text: &mut String, bytes: &[u8], slash: Slash) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => text.push(char::from(*byte)),
            b'/' if slash == Slash::Kept => text.push('/'),
            byte => text.extend([
                '%',
                char::from(DIGITS[usize::from(byte >> 4)]),
                char::from(DIGITS[usize::from(byte & 15)]),
            ]),
        }
    }
}

/// `%XX` as bytes; what is no such thing stays.
fn decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('%') {
        return Cow::Borrowed(text.as_bytes());
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            // Two hexadecimal digits make a byte.
            (b'%', Some(high), Some(low)) => {
                bytes.push((high << 4 | low) as u8);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    Cow::Owned(bytes)
}

/// `YYYYMMDDTHHMMSSZ` of seconds since 1970 (the days by Hinnant's `civil_from_days`); the year 9999 is the last.
fn amz_date(unix_s: u64) -> String {
    const LAST: u64 = 253_402_300_799;
    const DAYS_PER_ERA: u64 = 146_097;
    let (days, second) = (unix_s.min(LAST) / 86_400, unix_s.min(LAST) % 86_400);
    let days = days + 719_468;
    let (era, day) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

fn join<'a>(parts: impl Iterator<Item = &'a str>, between: &str) -> String {
    let mut text = String::new();
    for part in parts {
        if !text.is_empty() {
            text.push_str(between);
        }
        text.push_str(part);
    }
    text
}

#[cfg(test)]
mod tests;
