//! What the head of an answer means for the request and for its endpoint, before a byte of it goes to the client.

use std::time::Duration;

use policy::Backend;

use crate::error::UpstreamError;
use crate::http1::head::Headers;
use crate::mailbox::Failure;
use crate::time::unix_s_of_http_date;

/// Longest time that a provider can ask to be left alone. More is a broken clock or a broken provider, and after so long one
/// request is a fair question.
const BACK_OFF_MAX: Duration = Duration::from_secs(300);
/// A provider that says it is busy, and not for how long, is left alone for this time.
const BACK_OFF_UNTOLD: Duration = Duration::from_secs(1);

/// What becomes of an answer whose head has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is for the client.
    Deliver,
    /// The endpoint is busy or broken: another may do better, and where there is none the answer is for the client.
    Refusal(Failure),
    /// It says something about this gateway's own dealings with a provider, which is nothing for the client: another provider
    /// may do better, and where there is none the client is told what is wrong.
    Unusable(UpstreamError, Failure),
}

/// Judges an answer by its status.
pub(crate) fn judge(status: u16, backend: Backend) -> Verdict {
    match (status, backend) {
        (502, _) => Verdict::Refusal(Failure::ServerError),
        (429 | 503, _) => Verdict::Refusal(Failure::Busy),
        // The client's own credential never travels: these speak of ours, and may quote it.
        (401, Backend::External) => Verdict::Unusable(UpstreamError::Unauthorized, Failure::Unauthorized),
        (403, Backend::External) => Verdict::Unusable(UpstreamError::Forbidden, Failure::Forbidden),
        // Following it would send the prompt and the credential to somebody who is named in no policy.
        (300..=399, Backend::External) => Verdict::Unusable(UpstreamError::Redirect, Failure::Redirect),
        _ => Verdict::Deliver,
    }
}

/// How long a provider that is busy is to be left alone: `retry-after-ms` (Azure, OpenAI), else `Retry-After` as seconds or as
/// a date (RFC 9110, 10.2.3), else a second.
pub(crate) fn back_off(headers: &Headers, bytes: &[u8], unix_ms: u64) -> Duration {
    let milliseconds = || Some(Duration::from_millis(text_of(headers, bytes, "retry-after-ms")?.parse().ok()?));
    let seconds_or_date = || {
        let text = text_of(headers, bytes, "retry-after")?;
        if let Ok(seconds) = text.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let at_ms = unix_s_of_http_date(text)?.saturating_mul(1_000);
        Some(Duration::from_millis(at_ms.saturating_sub(unix_ms)))
    };
    milliseconds().or_else(seconds_or_date).unwrap_or(BACK_OFF_UNTOLD).min(BACK_OFF_MAX)
}

fn text_of<'a>(headers: &'a Headers, bytes: &'a [u8], name: &'a str) -> Option<&'a str> {
    std::str::from_utf8(headers.named(bytes, name).next()?).ok().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{Method, ResponseHead};

    fn told(lines: &str) -> Duration {
        let text = format!("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n{lines}\r\n");
        let mut head = ResponseHead::default();
        assert!(head.parse(text.as_bytes(), Method::Post).unwrap());
        // 2015-10-21T07:28:00Z
        back_off(&head.headers, text.as_bytes(), 1_445_412_480_000)
    }

    #[test]
    fn a_busy_provider_is_left_alone_for_as_long_as_it_says_within_reason() {
        for (lines, seconds) in [
            ("Retry-After: 7\r\n", 7.0),
            ("retry-after: 7\r\nretry-after-ms: 250\r\n", 0.25),
            ("Retry-After: Wed, 21 Oct 2015 07:28:30 GMT\r\n", 30.0),
            ("Retry-After: Wed, 21 Oct 2015 07:27:30 GMT\r\n", 0.0),
            ("Retry-After: 86400\r\n", 300.0),
            ("Retry-After: soon\r\n", 1.0),
            ("Retry-After: -1\r\n", 1.0),
            ("", 1.0),
        ] {
            assert_eq!(told(lines), Duration::from_secs_f64(seconds), "{lines}");
        }
    }

    #[test]
    fn what_a_provider_says_of_our_credential_and_address_is_nothing_for_the_client_and_what_an_engine_says_is() {
        for status in [301, 302, 307, 308, 401, 403] {
            assert!(matches!(judge(status, Backend::External), Verdict::Unusable(..)), "{status}");
            assert_eq!(judge(status, Backend::Local), Verdict::Deliver);
        }
        for status in [200, 400, 404, 422, 500, 504] {
            assert_eq!(judge(status, Backend::External), Verdict::Deliver, "{status}");
        }
    }
}
