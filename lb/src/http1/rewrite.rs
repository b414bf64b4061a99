//! Which headers travel on, in both directions.

use super::head::Headers;
use super::name::Name;

/// Calls `each` with every header line that may travel on from a client to an upstream.
pub(crate) fn request_headers<'a>(
    headers: &'a Headers,
    buffer: &'a [u8],
    mut each: impl FnMut(Name, &'a [u8], &'a [u8]),
) {
    for line in headers.lines() {
        let stays = line.known.is_hop_by_hop() || line.known.is_credential() || line.known.is_ours();
        let name = line.name.of(buffer);
        if !stays && !is_named_by_connection(headers, buffer, name) {
            each(line.known, name, line.value.of(buffer));
        }
    }
}

/// Whether a client's header of this name may travel on to a hosted provider: it says what is asked and how, what the body
/// is, or which trace it belongs to. Any other may tell who asks, from where, or hold a credential that is none of the
/// provider's.
pub(crate) fn is_for_providers(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 15] = [
        b"accept",
        b"accept-encoding",
        b"anthropic-beta",
        b"anthropic-version",
        b"content-digest",
        b"content-encoding",
        b"content-md5",
        b"content-type",
        b"idempotency-key",
        b"openai-beta",
        b"range",
        b"repr-digest",
        b"traceparent",
        b"tracestate",
        b"user-agent",
    ];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Whether a hosted provider's header of this name may travel on to a client: it says what the body is, how long it is good for,
/// when to come back, or which version answered how fast. Any other may tell whose account we use there, how much is left of it,
/// or what stands between us.
pub(crate) fn is_from_providers(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 22] = [
        b"accept-ranges",
        b"age",
        b"cache-control",
        b"content-digest",
        b"content-disposition",
        b"content-encoding",
        b"content-language",
        b"content-range",
        b"content-type",
        b"date",
        b"deprecation",
        b"etag",
        b"expires",
        b"last-modified",
        b"openai-processing-ms",
        b"openai-version",
        b"repr-digest",
        b"retry-after",
        b"retry-after-ms",
        b"sunset",
        b"vary",
        b"x-should-retry",
    ];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// How the names of our own headers begin: nobody else's word of our decisions reaches a client.
const OURS: &[u8] = b"x-kinference-";

/// Calls `each` with every header line that may travel on from an upstream to a client. Cookies do not: none of a client's
/// reaches an upstream either.
pub(crate) fn response_headers<'a>(headers: &'a Headers, buffer: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) {
    for line in headers.lines() {
        let name = line.name.of(buffer);
        let stays = line.known.is_hop_by_hop()
            || line.known == Name::XRequestId
            || name.eq_ignore_ascii_case(b"set-cookie")
            || name.get(..OURS.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(OURS));
        if !stays && !is_named_by_connection(headers, buffer, name) {
            each(name, line.value.of(buffer));
        }
    }
}

/// `Connection: x` makes `x` a header of this hop.
fn is_named_by_connection(headers: &Headers, buffer: &[u8], name: &[u8]) -> bool {
    headers.tokens(buffer, Name::Connection).any(|token| token.eq_ignore_ascii_case(name))
}

/// Appends one header line.
pub(crate) fn push_header(to: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    to.extend_from_slice(name);
    to.extend_from_slice(b": ");
    to.extend_from_slice(value);
    to.extend_from_slice(b"\r\n");
}

/// Appends a decimal number.
pub(crate) fn push_decimal(to: &mut Vec<u8>, number: u64) {
    if number < 10 {
        return to.push(b'0' + number as u8);
    }
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    to.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::super::{Method, RequestHead, ResponseHead};
    use super::*;

    #[test]
    fn hop_by_hop_and_credentials_stay_here() {
        let text = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Private\r\nX-Private: 1\r\nAuthorization: Bearer k\r\n\
            Api-Key: k\r\nCookie: c\r\nTE: trailers\r\nUpgrade: h2c\r\nTraceparent: 00-1\r\nX-Team: search\r\nAccept: */*\r\n\r\n";
        let mut head = RequestHead::default();
        assert!(head.parse(text).unwrap());
        let mut names = Vec::new();
        request_headers(&head.headers, text, |_, name, _| names.push(String::from_utf8_lossy(name).into_owned()));
        assert_eq!(names, ["Traceparent", "X-Team", "Accept"]);
    }

    #[test]
    fn nobody_else_tells_a_client_of_our_decisions_or_gives_it_a_cookie() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Kinference-Endpoint: a\r\nx-kinference-: b\r\nSET-COOKIE: c\r\n\
            X-Kinference: d\r\nSet-Cookies: e\r\nServer: f\r\n\r\n";
        let mut head = ResponseHead::default();
        assert!(head.parse(text, Method::Post).unwrap());
        let mut names = Vec::new();
        response_headers(&head.headers, text, |name, _| names.push(String::from_utf8_lossy(name).into_owned()));
        assert_eq!(names, ["X-Kinference", "Set-Cookies", "Server"]);
    }

    #[test]
    fn of_a_providers_answer_a_client_is_told_what_it_needs() {
        for name in ["Content-Type", "content-encoding", "Retry-After", "OpenAI-Processing-Ms", "Date"] {
            assert!(is_from_providers(name.as_bytes()), "{name}");
        }
        for name in
            ["OpenAI-Organization", "openai-project", "CF-Ray", "cf-cache-status", "Set-Cookie", "Server", "Via"]
                .into_iter()
                .chain(["x-ratelimit-remaining-tokens", "anthropic-organization-id", "x-amzn-requestid", "alt-svc", ""])
        {
            assert!(!is_from_providers(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn decimals_are_written() {
        for number in [0, 7, 10, 12_345, u64::MAX] {
            let mut text = Vec::new();
            push_decimal(&mut text, number);
            assert_eq!(text, number.to_string().into_bytes());
        }
    }
}
