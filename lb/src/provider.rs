//! Endpoints that speak another API than their clients: what they are sent, and what their answers are made into.
//!
//! The translation itself is pure and stands in the crate `bedrock`; here it meets requests, credentials and the clock.

use bedrock::sigv4::{self, Signer};
use bedrock::{ChatStream, Delivery, FRAME_BYTES_MAX, Failure, Fault, Refusal, Reply};
use policy::{Api, UpstreamHeader};

use crate::error::{Refused, Said};
use crate::http1::rewrite::{push_decimal, push_header};
use crate::mailbox;
use crate::plan::EndpointSpec;

/// What an endpoint speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// What its clients speak: requests and answers pass with a few splices.
    OpenAi,
    /// Bedrock's Converse.
    Bedrock {
        /// Signs requests; `None` where the endpoint has a credential that is sent as it is, or none.
        signer: Option<Signer>,
    },
}

/// A request in the words of an endpoint's own API.
#[derive(Debug)]
pub(crate) struct Translated {
    /// With its empty line.
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
    delivery: Delivery,
}

/// What a request to Bedrock is made of.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) spec: &'a EndpointSpec,
    pub(crate) signer: Option<&'a Signer>,
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
        for UpstreamHeader { name, value } in ask.headers {
            push_header(&mut head, name.as_bytes(), value.as_bytes());
        }
        if let Some(signer) = ask.signer {
            let headers = [("host", spec.host_header.as_str()), ("content-type", TYPE)];
            let request =
                sigv4::Request { method: "POST", path: &path, query: "", headers: &headers, body: &converse.body };
            let signature = signer.sign(&request, ask.now_unix_s);
            for (name, value) in signature.headers() {
                push_header(&mut head, name.as_bytes(), value.as_bytes());
            }
        }
        if let Some(credential) = &spec.credential {
            push_header(&mut head, credential.name.as_bytes(), credential.value.expose().as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        Ok(Self { head, body: converse.body, delivery: converse.delivery })
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
