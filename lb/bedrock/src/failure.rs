//! What Bedrock answers instead of an answer, what the client is told, and whether trying again may help.

use std::fmt;

use serde::Deserialize;

use crate::frames::{FrameError, Message};
use crate::refusal::Retry;

/// Most bytes kept of what Bedrock says about an error.
const DETAIL_BYTES_MAX: usize = 1_000;
/// Most bytes of an error's body that are read.
const BODY_BYTES_MAX: usize = 64 << 10;

/// What went wrong at Bedrock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `ThrottlingException`: the account's rate of requests or tokens.
    Throttled,
    /// `ServiceQuotaExceededException`: a limit of the account.
    Quota,
    /// `ValidationException`: the request is not one that this model takes.
    Validation,
    /// `AccessDeniedException`: the gateway's credential may not use this model.
    AccessDenied,
    /// The gateway's credential or signature is not accepted: unknown, expired, or a clock that is off.
    Credential,
    /// `ResourceNotFoundException`: no such model in this region.
    ModelNotFound,
    /// `ModelNotReadyException`: the model is being loaded.
    ModelNotReady,
    /// `ModelTimeoutException`: the model took longer than Bedrock waits.
    ModelTimeout,
    /// `ModelErrorException`: the model failed.
    ModelError,
    /// `ModelStreamErrorException`: the model failed while it was answering.
    ModelStream,
    /// The model wrote what Bedrock could not read as an answer or a tool call.
    MalformedOutput,
    /// `InternalServerException`.
    Internal,
    /// `ServiceUnavailableException`.
    Unavailable,
    /// The request is longer than Bedrock takes.
    TooLarge,
    /// The stream's frames are broken.
    Frame(FrameError),
    /// The stream ended before the answer did.
    CutOff,
    /// An answer that is not one of Converse.
    Unreadable,
    /// Another error, with its status.
    Other(u16),
}

/// How an error is shown.
struct Shown {
    status: u16,
    kind: &'static str,
    code: &'static str,
    message: &'static str,
    retry: Retry,
    heard: Heard,
}

/// Who is told what Bedrock said.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// Nobody: it says no more, or may quote a request.
    Nobody,
    /// The client: it is about its request. Not the log, as it may quote that.
    Client,
    /// The log: it names accounts, roles, models and limits of the operator.
    Operator,
}

impl Fault {
    #[rustfmt::skip]
    fn shown(self) -> Shown {
        use Heard::{Client, Nobody, Operator};
        const LIMIT: &str = "rate_limit_error";
        const INVALID: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        let shown = |status, kind, code, message, retry, heard| Shown { status, kind, code, message, retry, heard };
        match self {
            Self::Throttled => shown(429, LIMIT, "provider_throttled",
                "Bedrock's limit for this account is reached; try again later", Retry::Elsewhere, Operator),
            Self::Quota => shown(429, LIMIT, "provider_quota_exceeded",
                "Bedrock's quota for this account is used up", Retry::Elsewhere, Operator),
            Self::Validation => shown(400, INVALID, "provider_refused_request",
                "Bedrock refused the request", Retry::Never, Client),
            Self::TooLarge => shown(413, INVALID, "provider_refused_request",
                "the request is longer than Bedrock takes", Retry::Elsewhere, Nobody),
            // The client's own credential is not the matter: 401 or 403 would tell it so.
            Self::AccessDenied => shown(502, SERVER, "provider_access_denied",
                "the gateway's credential may not use this model at Bedrock", Retry::Elsewhere, Operator),
            Self::Credential => shown(502, SERVER, "provider_credential_refused",
                "Bedrock did not accept the gateway's credential", Retry::Elsewhere, Operator),
            Self::ModelNotFound => shown(502, SERVER, "provider_model_not_found",
                "Bedrock does not have the model that the gateway asks for", Retry::Elsewhere, Operator),
            Self::ModelNotReady => shown(503, SERVER, "provider_model_not_ready",
                "the model is not ready at Bedrock; try again later", Retry::Again, Nobody),
            Self::ModelTimeout => shown(504, SERVER, "provider_model_timeout",
                "the model took longer than Bedrock waits", Retry::Never, Nobody),
            Self::ModelError => shown(502, SERVER, "provider_model_error",
                "the model failed at Bedrock", Retry::Again, Nobody),
            Self::ModelStream => shown(502, SERVER, "provider_model_error",
                "the model failed at Bedrock while it was answering", Retry::Again, Nobody),
            Self::MalformedOutput => shown(502, SERVER, "provider_malformed_output",
                "the model's answer could not be read by Bedrock", Retry::Again, Nobody),
            Self::Internal => shown(502, SERVER, "provider_error",
                "an error inside Bedrock", Retry::Again, Nobody),
            Self::Unavailable => shown(503, SERVER, "provider_unavailable",
                "Bedrock is not available at the moment", Retry::Elsewhere, Nobody),
            Self::Frame(_) => shown(502, SERVER, "provider_bad_answer",
                "Bedrock's event stream is broken", Retry::Again, Nobody),
            Self::CutOff => shown(502, SERVER, "provider_bad_answer",
                "Bedrock's answer ended before it was complete", Retry::Again, Nobody),
            Self::Unreadable => shown(502, SERVER, "provider_bad_answer",
                "Bedrock's answer could not be read", Retry::Again, Nobody),
            Self::Other(400..=499) => shown(400, INVALID, "provider_refused_request",
                "Bedrock refused the request", Retry::Never, Nobody),
            Self::Other(_) => shown(502, SERVER, "provider_error",
                "Bedrock answered with an error", Retry::Elsewhere, Nobody),
        }
    }

    /// By the name of the exception, as the service writes it or as an event stream does (`throttlingException`).
    fn named(name: &str) -> Option<Self> {
        const NAMES: [(&str, Fault); 26] = [
            ("ThrottlingException", Fault::Throttled),
            ("TooManyRequestsException", Fault::Throttled),
            ("ServiceQuotaExceededException", Fault::Quota),
            ("ValidationException", Fault::Validation),
            ("SerializationException", Fault::Validation),
            ("AccessDeniedException", Fault::AccessDenied),
            ("ExpiredTokenException", Fault::Credential),
            ("IncompleteSignatureException", Fault::Credential),
            ("InvalidSignatureException", Fault::Credential),
            ("SignatureDoesNotMatch", Fault::Credential),
            ("InvalidClientTokenId", Fault::Credential),
            ("RequestExpired", Fault::Credential),
            ("RequestTimeTooSkewed", Fault::Credential),
            ("MissingAuthenticationTokenException", Fault::Credential),
            ("UnrecognizedClientException", Fault::Credential),
            ("UnauthorizedException", Fault::Credential),
            ("ResourceNotFoundException", Fault::ModelNotFound),
            ("UnknownOperationException", Fault::ModelNotFound),
            ("ModelNotReadyException", Fault::ModelNotReady),
            ("ModelTimeoutException", Fault::ModelTimeout),
            ("ModelErrorException", Fault::ModelError),
            ("ModelStreamErrorException", Fault::ModelStream),
            ("InternalServerException", Fault::Internal),
            ("InternalFailure", Fault::Internal),
            ("ServiceUnavailableException", Fault::Unavailable),
            ("ServiceUnavailable", Fault::Unavailable),
        ];
        NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, fault)| *fault)
    }

    /// Where no name is known.
    fn of_status(status: u16) -> Self {
        match status {
            401 | 403 => Self::AccessDenied,
            404 => Self::ModelNotFound,
            408 => Self::ModelTimeout,
            413 => Self::TooLarge,
            424 => Self::ModelError,
            429 => Self::Throttled,
            500 => Self::Internal,
            503 => Self::Unavailable,
            504 => Self::ModelTimeout,
            other => Self::Other(other),
        }
    }
}

/// An error of Bedrock's, or an answer that is none.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    fault: Fault,
    detail: String,
}

impl Failure {
    /// What went wrong.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// Of an answer with an error status: by `x-amzn-ErrorType`, else by the body, else by the status.
    #[must_use]
    pub fn of_answer(status: u16, error_type: Option<&str>, body: &[u8]) -> Self {
        let body = body.get(..BODY_BYTES_MAX).unwrap_or(body);
        let said: Said = serde_json::from_slice(body).unwrap_or_default();
        let named = [error_type, said.kind.as_deref(), said.code.as_deref()];
        let fault = named.into_iter().flatten().find_map(|name| Fault::named(bare(name)));
        Self::new(fault.unwrap_or_else(|| Fault::of_status(status)), said.message.or(said.message_in_capitals))
    }

    /// Of a message of an event stream that is no event.
    #[must_use]
    pub fn of_event(message: &Message<'_>) -> Self {
        let name = message.text(":exception-type").or_else(|| message.text(":error-code")).unwrap_or_default();
        let said: Said = serde_json::from_slice(message.payload()).unwrap_or_default();
        let text = said.message.or_else(|| message.text(":error-message").map(str::to_owned));
        Self::new(Fault::named(bare(name)).unwrap_or(Fault::Internal), text)
    }

    pub(crate) fn new(fault: Fault, detail: Option<String>) -> Self {
        let mut detail = detail.unwrap_or_default();
        detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
        Self { fault, detail }
    }

    /// Status of the answer to the client, where none has begun.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.fault.shown().status
    }

    /// `type` of the OpenAI error object.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.fault.shown().kind
    }

    /// `code` of the OpenAI error object.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.fault.shown().code
    }

    /// Whether trying again may help, as long as nothing was sent to the client.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.fault.shown().retry
    }

    /// `message` of the OpenAI error object. What Bedrock said is passed on where it is about the client's request; elsewhere
    /// it names accounts and roles of the operator. Not for logs: it may quote the request.
    #[must_use]
    pub fn message(&self) -> String {
        let shown = self.fault.shown();
        match shown.heard {
            Heard::Client if !self.detail.is_empty() => format!("{}: {}", shown.message, without_arns(&self.detail)),
            Heard::Client | Heard::Operator | Heard::Nobody => shown.message.to_owned(),
        }
    }

    /// What Bedrock said to the operator, for the log: about a credential, a model's name or a limit, never about a prompt.
    #[must_use]
    pub fn operator_detail(&self) -> Option<&str> {
        match self.fault.shown().heard {
            Heard::Operator => Some(self.detail.as_str()).filter(|detail| !detail.is_empty()),
            Heard::Client | Heard::Nobody => None,
        }
    }

    /// Appends this as the last event of a stream that has begun; no `[DONE]` follows.
    pub fn push_event(&self, out: &mut Vec<u8>) {
        #[derive(serde::Serialize)]
        struct Event<'a> {
            error: Error<'a>,
        }
        #[derive(serde::Serialize)]
        struct Error<'a> {
            message: &'a str,
            #[serde(rename = "type")]
            kind: &'a str,
            param: Option<&'a str>,
            code: &'a str,
        }
        let message = self.message();
        let error = Error { message: &message, kind: self.kind(), param: None, code: self.code() };
        crate::stream::push_event(out, &Event { error });
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::new(fault, None)
    }
}

impl From<FrameError> for Failure {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Truncated { .. } => Self::new(Fault::CutOff, None),
            FrameError::LengthsChecksum
            | FrameError::Checksum
            | FrameError::TooLong { .. }
            | FrameError::Lengths
            | FrameError::Header
            | FrameError::HeaderTwice
            | FrameError::HeadersTooMany => Self::new(Fault::Frame(error), None),
        }
    }
}

/// Without what Bedrock said.
impl fmt::Debug for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Failure({:?})", self.fault)
    }
}

/// Without what Bedrock said: fit for a log.
impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.fault.shown().message)?;
        if let Fault::Frame(error) = self.fault {
            write!(formatter, " ({error})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Where the services write what went wrong.
#[derive(Default, Deserialize)]
struct Said {
    #[serde(rename = "__type", default)]
    kind: Option<String>,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(rename = "Message", default)]
    message_in_capitals: Option<String>,
}

/// ARNs name the operator's account.
fn without_arns(text: &str) -> String {
    let words = text.split(' ').map(|word| if word.contains("arn:aws") { "(an ARN)" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// `namespace#Name:http://...` is `Name`.
fn bare(name: &str) -> &str {
    let name = name.split(':').next().unwrap_or_default();
    name.rsplit('#').next().unwrap_or_default().trim()
}
