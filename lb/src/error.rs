//! Every answer that we give instead of an upstream: one enum, one match to status and OpenAI error object.

use admission::Exceeded;
use admission::jwt::Refusal;

use crate::allowance;
use crate::body::CODINGS_ACCEPTED;
use crate::http1::HeadError;
use crate::openai::request::Unreadable;
use crate::openai::scan::push_json_string;
use crate::tls::TlsFault;

/// Why a request is answered by us with an error. Values tell the place and the way out; never prompt text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The head is no good.
    Head(HeadError),
    /// The head is longer than the limit in bytes.
    HeadTooLong(usize),
    /// The head did not come in time.
    HeadTimeout,
    /// The body is longer than the limit in bytes.
    BodyTooLong(usize),
    /// The body's chunked coding is broken.
    BodyCoding(&'static str),
    /// The body stopped coming.
    BodyTimeout,
    /// No memory left for bodies.
    BodyBudget,
    /// `Content-Encoding` that is not understood.
    ContentEncoding,
    /// The body is not what its `Content-Encoding` says.
    ContentCoding(&'static str),
    /// No model can be read from the body.
    Unreadable(Unreadable),
    /// The path takes another method; the text is the `Allow` header.
    Method(&'static str),
    /// A path that has no model and no endpoint to go to.
    NoEndpointForPath,
    /// No credential, or an unknown one.
    Unauthorized,
    /// A signed token that is not believed.
    Token(Refusal),
    /// The keys that a token is to be checked with are not known yet.
    KeysUnknown,
    /// A limit of the tenant.
    OverLimit(Exceeded),
    /// No destination serves the name.
    ModelNotFound(String),
    /// There are destinations, none is ready.
    NoReadyEndpoint {
        /// The model asked for.
        model: String,
        /// The rule that decided.
        rule: String,
    },
    /// All candidates were dropped.
    Overloaded {
        /// The rule that decided.
        rule: String,
        /// The exclude entry that dropped most; `None` for limits.
        exclude: Option<String>,
        /// When the first of them may have room.
        retry_after_s: u32,
    },
    /// A rule refuses such requests.
    Denied {
        /// From the rule.
        status: u16,
        /// From the rule.
        code: String,
        /// From the rule.
        message: String,
        /// Its name.
        rule: String,
    },
    /// Every attempt failed before the first byte.
    Upstream(UpstreamError),
    /// What a provider that speaks another API says, in our words.
    Provider(Box<Said>),
    /// No configuration is in force yet.
    NotConfigured,
    /// The time to drain is over.
    ShuttingDown,
    /// A bug of ours; the connection ends.
    Internal,
}

/// What a provider that speaks another API says instead of an answer, or why it was not asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) code: &'static str,
    /// The place in the request.
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    pub(crate) retry_after_s: Option<u32>,
}

/// How an attempt failed before the first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamError {
    /// No connection.
    Connect,
    /// No connection, for want of descriptors, ports or memory on this side.
    OutOfSockets,
    /// The connection ended before an answer.
    Reset,
    /// No first byte in time.
    Timeout,
    /// An answer that is not HTTP/1.x, or whose head is too long.
    BadAnswer,
    /// No TLS connection.
    Tls(TlsFault),
    /// A provider answers with a redirect.
    Redirect,
    /// A provider does not know this gateway's credential (401).
    Unauthorized,
    /// A provider refuses the request or this gateway's credential (403).
    Forbidden,
}

/// How an error is shown.
#[derive(Debug, Clone, Copy)]
struct Shape<'a> {
    status: u16,
    kind: &'static str,
    code: &'static str,
    param: Option<&'a str>,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl Refused {
    fn shape(&self) -> Shape<'_> {
        let shape = |status, kind, code| Shape { status, kind, code, param: None };
        match self {
            Self::Head(HeadError::TooManyHeaders) => shape(431, INVALID, "too_many_headers"),
            Self::Head(HeadError::UnknownTransferCoding) => shape(501, INVALID, "unknown_transfer_coding"),
            Self::Head(HeadError::Malformed(_) | HeadError::AmbiguousLength(_)) => shape(400, INVALID, "bad_request"),
            Self::HeadTooLong(_) => shape(431, INVALID, "request_head_too_large"),
            Self::HeadTimeout | Self::BodyTimeout => shape(408, INVALID, "request_timeout"),
            Self::BodyTooLong(_) => shape(413, INVALID, "request_too_large"),
            Self::BodyCoding(_) => shape(400, INVALID, "bad_chunked_body"),
            Self::BodyBudget => shape(503, SERVER, "request_memory_exhausted"),
            Self::ContentEncoding => shape(415, INVALID, "unsupported_content_encoding"),
            Self::ContentCoding(_) => shape(400, INVALID, "bad_content_encoding"),
            Self::Unreadable(Unreadable::NotAnObject | Unreadable::MoreThanOne) => shape(400, INVALID, "invalid_json"),
            Self::Unreadable(Unreadable::NotAForm) => shape(400, INVALID, "invalid_form"),
            Self::Unreadable(Unreadable::ModelMissing | Unreadable::ModelNotText) => {
                Shape { status: 400, kind: INVALID, code: "missing_model", param: Some("model") }
            }
            Self::Method(_) => shape(405, INVALID, "method_not_allowed"),
            Self::NoEndpointForPath | Self::NoReadyEndpoint { .. } => shape(503, SERVER, "no_ready_endpoint"),
            Self::Unauthorized => shape(401, "authentication_error", "invalid_api_key"),
            Self::Token(_) => shape(401, "authentication_error", "invalid_token"),
            Self::KeysUnknown => shape(503, SERVER, "issuer_keys_unknown"),
            Self::OverLimit(Exceeded::Requests { .. } | Exceeded::InFlight { .. }) => {
                shape(429, "requests", "rate_limit_exceeded")
            }
            Self::OverLimit(Exceeded::Tokens { .. }) => shape(429, "tokens", "rate_limit_exceeded"),
            Self::ModelNotFound(_) => {
                Shape { status: 404, kind: INVALID, code: "model_not_found", param: Some("model") }
            }
            Self::Overloaded { .. } => shape(429, "rate_limit_error", "overloaded"),
            Self::Denied { status, .. } => shape(*status, "permission_error", ""),
            Self::Upstream(UpstreamError::Timeout) => shape(504, SERVER, "upstream_timeout"),
            Self::Upstream(UpstreamError::Connect) => shape(502, SERVER, "upstream_unreachable"),
            Self::Upstream(UpstreamError::OutOfSockets) => shape(503, SERVER, "out_of_sockets"),
            Self::Upstream(UpstreamError::Reset) => shape(502, SERVER, "upstream_reset"),
            Self::Upstream(UpstreamError::BadAnswer) => shape(502, SERVER, "upstream_bad_answer"),
            Self::Upstream(UpstreamError::Tls(_)) => shape(502, SERVER, "upstream_tls_failed"),
            Self::Upstream(UpstreamError::Redirect) => shape(502, SERVER, "upstream_redirect"),
            Self::Upstream(UpstreamError::Unauthorized) => shape(502, SERVER, "upstream_unauthorized"),
            Self::Upstream(UpstreamError::Forbidden) => shape(502, SERVER, "upstream_forbidden"),
            Self::Provider(said) => {
                Shape { status: said.status, kind: said.kind, code: said.code, param: said.param.as_deref() }
            }
            Self::NotConfigured => shape(503, SERVER, "not_configured"),
            Self::ShuttingDown => shape(503, SERVER, "shutting_down"),
            Self::Internal => shape(500, SERVER, "internal_error"),
        }
    }

    /// The HTTP status.
    pub(crate) fn status(&self) -> u16 {
        self.shape().status
    }

    /// The machine-readable code.
    pub(crate) fn code(&self) -> &str {
        if let Self::Denied { code, .. } = self { code } else { self.shape().code }
    }

    /// The outcome in the access log and the metrics.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Denied { .. } => "denied",
            Self::Unauthorized | Self::Token(_) | Self::KeysUnknown => "unauthorized",
            Self::OverLimit(_) => "rate_limited",
            Self::ModelNotFound(_) => "model_not_found",
            Self::NoReadyEndpoint { .. } | Self::NoEndpointForPath | Self::NotConfigured => "no_ready_endpoint",
            Self::Overloaded { .. } => "overloaded",
            Self::Provider(said) if said.status == 400 => "bad_request",
            Self::Upstream(_) | Self::Provider(_) => "upstream_error",
            Self::BodyBudget => "memory_exhausted",
            Self::ShuttingDown => "shutting_down",
            Self::Internal => "internal_error",
            Self::Head(_)
            | Self::HeadTooLong(_)
            | Self::HeadTimeout
            | Self::BodyTooLong(_)
            | Self::BodyCoding(_)
            | Self::BodyTimeout
            | Self::ContentEncoding
            | Self::ContentCoding(_)
            | Self::Unreadable(_)
            | Self::Method(_) => "bad_request",
        }
    }

    /// The rule that decided it.
    pub(crate) fn rule(&self) -> Option<&str> {
        if let Self::Overloaded { rule, .. } | Self::NoReadyEndpoint { rule, .. } | Self::Denied { rule, .. } = self {
            return Some(rule);
        }
        None
    }

    /// Seconds after which trying again may help.
    pub(crate) fn retry_after_s(&self) -> Option<u32> {
        if let Self::OverLimit(exceeded) = self {
            return Some(allowance::retry_after_s(exceeded));
        }
        if let Self::Provider(said) = self {
            return said.retry_after_s;
        }
        if let Self::Overloaded { retry_after_s, .. } = self {
            return Some(*retry_after_s);
        }
        let helps = matches!(
            self,
            Self::KeysUnknown
                | Self::NoReadyEndpoint { .. }
                | Self::BodyBudget
                | Self::NotConfigured
                | Self::ShuttingDown
        );
        helps.then_some(1)
    }

    /// Whether the rest of the connection cannot be understood, or must not be waited for.
    pub(crate) fn ends_connection(&self) -> bool {
        matches!(
            self,
            Self::Head(_)
                | Self::HeadTooLong(_)
                | Self::HeadTimeout
                | Self::BodyTooLong(_)
                | Self::BodyCoding(_)
                | Self::BodyTimeout
                | Self::BodyBudget
                | Self::Internal
        )
    }

    fn message(&self) -> String {
        match self {
            Self::Head(HeadError::Malformed(part)) => format!("The request is not valid HTTP/1.1: bad {part}."),
            Self::Head(HeadError::TooManyHeaders) => {
                format!("The request has more than {} headers.", crate::http1::head::HEADERS_MAX)
            }
            Self::Head(HeadError::AmbiguousLength(what)) => format!("The length of the body is ambiguous: {what}."),
            Self::Head(HeadError::UnknownTransferCoding) => "Only `Transfer-Encoding: chunked` is understood.".into(),
            Self::HeadTooLong(max) => format!("The request head is longer than {max} bytes."),
            Self::HeadTimeout => "The request head did not arrive in time.".into(),
            Self::BodyTooLong(max) => format!("The request body is longer than the limit of {max} bytes."),
            Self::BodyCoding(what) => format!("The chunked request body is broken: {what}."),
            Self::BodyTimeout => "The request body stopped arriving.".into(),
            Self::BodyBudget => "The server holds as many request bodies as it may; try again shortly.".into(),
            Self::ContentEncoding => {
                format!("This Content-Encoding is not understood; send one of {CODINGS_ACCEPTED}, or none.")
            }
            Self::ContentCoding(what) => format!("The compressed request body is broken: {what}."),
            Self::Unreadable(Unreadable::NotAnObject) => "The request body is not a JSON object.".into(),
            Self::Unreadable(Unreadable::MoreThanOne) => {
                "The request body goes on after its JSON object: send one object, and nothing behind it.".into()
            }
            Self::Unreadable(Unreadable::NotAForm) => {
                "The request body is not a multipart/form-data form, or its end is missing.".into()
            }
            Self::Unreadable(Unreadable::ModelMissing) => "The request body has no `model`.".into(),
            Self::Unreadable(Unreadable::ModelNotText) => "`model` must be a non-empty string.".into(),
            Self::Method(allow) => format!("This path takes {allow}."),
            Self::NoEndpointForPath => "No endpoint is ready for this path.".into(),
            Self::Unauthorized => {
                "Unknown or missing API key: send a configured one as `Authorization: Bearer KEY`.".into()
            }
            Self::Token(refusal) => format!("The token is not accepted: {refusal}."),
            Self::KeysUnknown => {
                "The token cannot be checked: the keys of its issuer could not be read yet; try again shortly.".into()
            }
            Self::OverLimit(exceeded) => allowance::message(exceeded),
            Self::ModelNotFound(model) => {
                format!("The model `{model}` does not exist or is not served here; GET /v1/models lists what is.")
            }
            Self::NoReadyEndpoint { model, rule } => {
                format!("No endpoint for `{model}` is ready (rule `{rule}`); try again shortly.")
            }
            Self::Overloaded { rule, exclude: Some(exclude), .. } => {
                format!("All endpoints are too busy: rule `{rule}`, exclude `{exclude}`; try again shortly.")
            }
            Self::Overloaded { rule, exclude: None, .. } => {
                format!("All endpoints are at their limits (rule `{rule}`); try again shortly.")
            }
            Self::Denied { message, .. } => message.clone(),
            Self::Provider(said) => said.message.clone(),
            Self::Upstream(UpstreamError::Connect) => "The endpoint cannot be reached.".into(),
            Self::Upstream(UpstreamError::OutOfSockets) => {
                "The gateway has no more sockets; try again shortly, or raise its limit of open files.".into()
            }
            Self::Upstream(UpstreamError::Reset) => "The endpoint closed the connection without an answer.".into(),
            Self::Upstream(UpstreamError::Timeout) => "The endpoint did not answer in time.".into(),
            Self::Upstream(UpstreamError::BadAnswer) => "The endpoint's answer is not valid HTTP/1.1.".into(),
            Self::Upstream(UpstreamError::Tls(fault)) => {
                format!("No TLS connection to the endpoint: {}.", fault.message())
            }
            Self::Upstream(UpstreamError::Redirect) => {
                "The provider answers with a redirect, which is never followed: its configured address is not the API's.".into()
            }
            Self::Upstream(UpstreamError::Unauthorized) => {
                "The provider does not accept the gateway's own credential (401); yours was not sent to it.".into()
            }
            Self::Upstream(UpstreamError::Forbidden) => {
                "The provider refuses this request, or the gateway's own credential (403).".into()
            }
            Self::ShuttingDown => "The gateway ends, and there was no answer in time; try again.".into(),
            Self::NotConfigured => "Nothing is known to route to yet: no server has told its models, or no resources were read; try again shortly.".into(),
            Self::Internal => "Internal error; the request was not completed.".into(),
        }
    }

    /// Appends the OpenAI error object.
    pub(crate) fn push_body(&self, to: &mut Vec<u8>) {
        push_error_object(to, &self.message(), self.shape().kind, self.shape().param, self.code());
    }
}

/// Appends `{"error":{...}}`.
pub(crate) fn push_error_object(to: &mut Vec<u8>, message: &str, kind: &str, param: Option<&str>, code: &str) {
    to.extend_from_slice(b"{\"error\":{\"message\":");
    push_json_string(to, message);
    to.extend_from_slice(b",\"type\":");
    push_json_string(to, kind);
    to.extend_from_slice(b",\"param\":");
    match param {
        Some(param) => push_json_string(to, param),
        None => to.extend_from_slice(b"null"),
    }
    to.extend_from_slice(b",\"code\":");
    push_json_string(to, code);
    to.extend_from_slice(b"}}");
}

/// The reason phrase of a status.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_is_an_openai_error_object() {
        let all = [
            Refused::Head(HeadError::Malformed("x")),
            Refused::BodyTooLong(5),
            Refused::Unreadable(Unreadable::ModelMissing),
            Refused::ModelNotFound("a\"b\n".into()),
            Refused::Overloaded { rule: "r".into(), exclude: Some("busy".into()), retry_after_s: 1 },
            Refused::Denied { status: 403, code: "tenant_blocked".into(), message: "no".into(), rule: "r".into() },
            Refused::Upstream(UpstreamError::Timeout),
            Refused::Token(Refusal::Expired),
            Refused::KeysUnknown,
            Refused::OverLimit(Exceeded::Tokens { limit: 10, wanted: 5, wait_ns: 7 }),
        ];
        for refused in all {
            let mut body = Vec::new();
            refused.push_body(&mut body);
            let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let error = &json["error"];
            assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{json}");
            assert!(error["code"].as_str().is_some_and(|c| !c.is_empty()), "{json}");
            assert!((400..600).contains(&refused.status()));
            assert_ne!(reason(refused.status()), "Status");
        }
    }

    #[test]
    fn an_overload_names_rule_and_exclude_entry() {
        let mut body = Vec::new();
        let exclude = Some("busy".into());
        Refused::Overloaded { rule: "local-first".into(), exclude, retry_after_s: 1 }.push_body(&mut body);
        let text = String::from_utf8(body).unwrap();
        assert!(text.contains("local-first") && text.contains("busy"), "{text}");
    }
}
