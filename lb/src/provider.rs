//! Endpoints that speak another API than their clients, or want requests signed: what they are sent, and what their answers
//! are made into.
//!
//! Translation and signature themselves are pure and stand in the crate `bedrock`; here they meet requests, credentials and
//! the clock.

use std::cell::Cell;

use bedrock::sigv4;
use bedrock::{ChatStream, Delivery, FRAME_BYTES_MAX, Failure, Fault, Refusal, Reply};
use policy::{Api, UpstreamHeader};

use crate::error::{Refused, Said};
use crate::http1::head::Headers;
use crate::http1::rewrite::{push_decimal, push_header};
use crate::io::Buf;
use crate::mailbox;
use crate::plan::EndpointSpec;

/// What an endpoint speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// What its clients speak: requests and answers pass with a few splices.
    OpenAi,
    /// Bedrock's Converse.
    Bedrock,
}

/// A request in the words of an endpoint's own API.
pub(crate) struct Translated {
    /// With its empty line.
    pub(crate) head: Vec<u8>,
    /// Taken out while it is sent, and put back for a second connection.
    pub(crate) body: Cell<Buf>,
    delivery: Delivery,
}

/// What a request to Bedrock is made of.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) spec: &'a EndpointSpec,
    pub(crate) api: Api,
    /// The client's, with the edits that the policy asks for.
    pub(crate) body: &'a [u8],
    /// As Bedrock knows it.
    pub(crate) model: &'a str,
    /// What the rule adds.
    pub(crate) headers: &'a [UpstreamHeader],
    pub(crate) now_unix_s: u64,
}

impl Translated {
    /// The request as Bedrock wants it. Nothing of the client's head goes with it.
    ///
    /// # Errors
    /// What Converse does not have, or a body that is no request.
    pub(crate) fn to_bedrock(ask: &Ask<'_>) -> Result<Self, Refusal> {
        if ask.api != Api::ChatCompletions {
            return Err(Refusal::interface());
        }
        let converse = bedrock::converse(ask.body)?;
        let spec = ask.spec;
        let path = format!("{}{}", spec.path_prefix, bedrock::path(ask.model, converse.delivery));
        let mut head = Vec::with_capacity(1 << 10);
        head.extend_from_slice(b"POST ");
        head.extend_from_slice(path.as_bytes());
        head.extend_from_slice(b" HTTP/1.1\r\n");
        const TYPE: &str = "application/json";
        push_header(&mut head, b"host", spec.host_header.as_bytes());
        push_header(&mut head, b"content-type", TYPE.as_bytes());
        head.extend_from_slice(b"content-length: ");
        push_decimal(&mut head, converse.body.len() as u64);
        head.extend_from_slice(b"\r\n");
        push_rule_headers(&mut head, spec, ask.headers);
        let request = Signed { method: "POST", path: &path, query: "", content_type: Some(TYPE), headers: ask.headers };
        push_signature(&mut head, spec, request, &[&converse.body], ask.now_unix_s);
        push_credential(&mut head, spec);
        head.extend_from_slice(b"\r\n");
        Ok(Self { head, body: Cell::new(converse.body.into()), delivery: converse.delivery })
    }

    /// Of the body, as long as it is here.
    pub(crate) fn body_bytes(&self) -> usize {
        let body = self.body.take();
        let bytes = body.len();
        self.body.set(body);
        bytes
    }

    /// What makes the client's answer of the endpoint's.
    pub(crate) fn answer(&self, shown: Shown) -> Translation {
        match self.delivery {
            Delivery::Whole => Translation::Whole(shown),
            Delivery::Streamed | Delivery::StreamedWithUsage => {
                Translation::Streamed(Box::new(ChatStream::new(shown.reply(), self.delivery, FRAME_BYTES_MAX)))
            }
        }
    }
}

/// Appends what the rule adds. A header that carries the endpoint's credential is the credential's alone.
pub(crate) fn push_rule_headers(to: &mut Vec<u8>, spec: &EndpointSpec, headers: &[UpstreamHeader]) {
    for UpstreamHeader { name, value } in headers.iter().filter(|header| !is_credential(spec, &header.name)) {
        push_header(to, name.as_bytes(), value.as_bytes());
    }
}

/// Whether a header of this name carries the endpoint's credential.
fn is_credential(spec: &EndpointSpec, name: &str) -> bool {
    spec.credential.as_ref().is_some_and(|credential| credential.name.eq_ignore_ascii_case(name))
}

/// Appends the endpoint's credential, where it has one that is sent as it is.
pub(crate) fn push_credential(to: &mut Vec<u8>, spec: &EndpointSpec) {
    if let Some(credential) = &spec.credential {
        push_header(to, credential.name.as_bytes(), credential.value.expose().as_bytes());
    }
}

/// What of a request is signed beside its body and the endpoint's name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    /// As it is sent, without its query.
    pub(crate) path: &'a str,
    /// What is sent behind `?`.
    pub(crate) query: &'a str,
    /// `None` where none is sent.
    pub(crate) content_type: Option<&'a str>,
    /// What the rule adds.
    pub(crate) headers: &'a [UpstreamHeader],
}

/// Appends the signature, where the endpoint wants one. `body` is what is sent, piece by piece.
pub(crate) fn push_signature(
    to: &mut Vec<u8>,
    spec: &EndpointSpec,
    request: Signed<'_>,
    body: &[&[u8]],
    now_unix_s: u64,
) {
    let Some(signer) = &spec.signer else { return };
    let Signed { method, path, query, content_type, headers: added } = request;
    let mut headers = vec![("host", spec.host_header.as_str())];
    headers.extend(content_type.map(|media| ("content-type", media)));
    headers.extend(added.iter().map(|header| (header.name.as_str(), header.value.as_str())));
    let request = sigv4::Request { method, path, query, headers: &headers, body };
    for (name, value) in signer.sign(&request, now_unix_s).headers() {
        push_header(to, name.as_bytes(), value.as_bytes());
    }
}

/// What makes the client's answer of an endpoint's that speaks another API.
#[derive(Debug)]
pub(crate) enum Translation {
    /// One document.
    Whole(Shown),
    /// A stream of events.
    Streamed(Box<ChatStream>),
}

/// What an answer shows that Bedrock does not say.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The completion's own.
    pub(crate) id: String,
    pub(crate) created_unix_s: u64,
    /// The model's name.
    pub(crate) model: String,
}

impl Shown {
    pub(crate) fn reply(&self) -> Reply<'_> {
        Reply { id: &self.id, created_unix_s: self.created_unix_s, model: &self.model }
    }
}

/// A request that cannot be put in Bedrock's words, for the client.
pub(crate) fn refused(refusal: &Refusal) -> Refused {
    Refused::Provider(Box::new(Said {
        status: refusal.status(),
        kind: refusal.kind(),
        code: refusal.code(),
        param: refusal.param().map(str::to_owned),
        message: refusal.to_string(),
        retry_after_s: None,
    }))
}

/// What Bedrock says instead of an answer, for the client.
pub(crate) fn failed(failure: &Failure, retry_after_s: Option<u32>) -> Refused {
    Refused::Provider(Box::new(Said {
        status: failure.status(),
        kind: failure.kind(),
        code: failure.code(),
        param: None,
        message: failure.message(),
        retry_after_s,
    }))
}

/// An answer that is longer than what is made into another, for the client.
pub(crate) fn too_long(bytes_max: usize) -> Refused {
    let message = format!("Bedrock's answer is longer than {bytes_max} bytes, the most that is made into another.");
    let code = "provider_answer_too_long";
    Refused::Provider(Box::new(Said {
        status: 502,
        kind: "server_error",
        code,
        param: None,
        message,
        retry_after_s: None,
    }))
}

/// Longest name of an error that is passed on to the operator.
const ERROR_NAME_BYTES_MAX: usize = 64;

/// What AWS calls an error (`x-amzn-errortype`): the name alone, as a service writes names, for the log.
pub(crate) fn aws_error_name<'a>(headers: &'a Headers, bytes: &'a [u8]) -> Option<&'a str> {
    let value = headers.named(bytes, "x-amzn-errortype").next()?;
    let name = value.split(|&byte| byte == b':').next()?.trim_ascii();
    let is_name = (1..=ERROR_NAME_BYTES_MAX).contains(&name.len()) && name.iter().all(u8::is_ascii_alphanumeric);
    std::str::from_utf8(name).ok().filter(|_| is_name)
}

/// Whether what came is no answer at all, rather than word of why there is none.
pub(crate) fn unreadable(fault: Fault) -> bool {
    match fault {
        Fault::Frame(_) | Fault::CutOff | Fault::Unreadable => true,
        Fault::Throttled
        | Fault::Quota
        | Fault::Validation
        | Fault::AccessDenied
        | Fault::Credential
        | Fault::ModelNotFound
        | Fault::ModelNotReady
        | Fault::ModelTimeout
        | Fault::ModelError
        | Fault::ModelStream
        | Fault::MalformedOutput
        | Fault::Internal
        | Fault::Unavailable
        | Fault::TooLarge
        | Fault::Other(_) => false,
    }
}

/// What it says about the endpoint; `None` where it is about the request.
pub(crate) fn failure_of(fault: Fault) -> Option<mailbox::Failure> {
    Some(match fault {
        Fault::Throttled | Fault::Quota | Fault::ModelNotReady | Fault::Unavailable => mailbox::Failure::Busy,
        Fault::Credential => mailbox::Failure::Unauthorized,
        Fault::AccessDenied | Fault::ModelNotFound => mailbox::Failure::Forbidden,
        Fault::ModelTimeout => mailbox::Failure::FirstByteTimeout,
        Fault::ModelError | Fault::ModelStream | Fault::MalformedOutput | Fault::Internal | Fault::Other(500..) => {
            mailbox::Failure::ServerError
        }
        Fault::Frame(_) | Fault::CutOff | Fault::Unreadable => mailbox::Failure::BadAnswer,
        Fault::Validation | Fault::TooLarge | Fault::Other(_) => return None,
    })
}
