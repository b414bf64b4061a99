//! Which headers travel on, in both directions.

use super::head::Headers;

/// Belong to one connection only (RFC 9110, 7.6.1), or tell a length that we tell anew.
fn is_hop_by_hop(name: &[u8]) -> bool {
    const NAMES: [&str; 10] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "proxy-authenticate",
        "proxy-authorization",
    ];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// The client's credentials and identity: they are for us and never travel upstream.
fn is_credential(name: &[u8]) -> bool {
    const NAMES: [&str; 7] =
        ["authorization", "api-key", "x-api-key", "x-goog-api-key", "openai-organization", "openai-project", "cookie"];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Written anew for every upstream request.
fn is_ours(name: &[u8]) -> bool {
    const NAMES: [&str; 5] = ["host", "expect", "x-request-id", "x-forwarded-for", "x-forwarded-proto"];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Calls `each` with every header line that may travel on from a client to an upstream.
pub(crate) fn request_headers<'a>(headers: &'a Headers, buffer: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) {
    for (name, value) in headers.iter(buffer) {
        if !is_hop_by_hop(name)
            && !is_credential(name)
            && !is_ours(name)
            && !is_named_by_connection(headers, buffer, name)
        {
            each(name, value);
        }
    }
}

/// Calls `each` with every header line that may travel on from an upstream to a client.
pub(crate) fn response_headers<'a>(headers: &'a Headers, buffer: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) {
    for (name, value) in headers.iter(buffer) {
        if !is_hop_by_hop(name)
            && !name.eq_ignore_ascii_case(b"x-request-id")
            && !is_named_by_connection(headers, buffer, name)
        {
            each(name, value);
        }
    }
}

/// `Connection: x` makes `x` a header of this hop.
fn is_named_by_connection(headers: &Headers, buffer: &[u8], name: &[u8]) -> bool {
    headers.tokens(buffer, "connection").any(|token| token.eq_ignore_ascii_case(name))
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
    use super::super::RequestHead;
    use super::*;

    #[test]
    fn hop_by_hop_and_credentials_stay_here() {
        let text = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Private\r\nX-Private: 1\r\nAuthorization: Bearer k\r\n\
            Api-Key: k\r\nCookie: c\r\nTE: trailers\r\nUpgrade: h2c\r\nTraceparent: 00-1\r\nX-Team: search\r\nAccept: */*\r\n\r\n";
        let mut head = RequestHead::default();
        assert!(head.parse(text).unwrap());
        let mut names = Vec::new();
        request_headers(&head.headers, text, |name, _| names.push(String::from_utf8_lossy(name).into_owned()));
        assert_eq!(names, ["Traceparent", "X-Team", "Accept"]);
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
