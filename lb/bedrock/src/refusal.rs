//! What is refused before anything is sent: a body that is wrong, or one that asks for what Converse does not have.

use std::fmt;

use crate::json::Place;

/// Why a request is not sent to Bedrock. It names the place in the body and the way out, never what stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    place: String,
    why: Why,
}

/// The reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The body cannot be read at all.
    NotJson,
    /// OpenAI's API wants this there.
    Expected(&'static str),
    /// OpenAI's API wants something there.
    Missing,
    /// Converse does not have it; the text goes on with what to do.
    Unsupported(&'static str),
}

/// Whether trying again may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The same request fails everywhere.
    Never,
    /// Another destination may serve it; this one would say the same again.
    Elsewhere,
    /// It was chance: the same request may succeed here or elsewhere.
    Again,
}

impl Refusal {
    pub(crate) fn at(place: &Place<'_>, why: Why) -> Self {
        Self { place: place.to_string(), why }
    }

    /// A body that is not JSON at all.
    pub(crate) fn not_json() -> Self {
        Self { place: String::new(), why: Why::NotJson }
    }

    /// Another interface than chat completions.
    #[must_use]
    pub fn interface() -> Self {
        let way_out = "a provider of type Bedrock serves /v1/chat/completions, whole and streamed, and nothing else: \
                       send other requests to a destination of another type";
        Self { place: String::new(), why: Why::Unsupported(way_out) }
    }

    /// Status of the answer to the client.
    #[must_use]
    pub fn status(&self) -> u16 {
        400
    }

    /// `type` of the OpenAI error object.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        "invalid_request_error"
    }

    /// `code` of the OpenAI error object.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self.why {
            Why::NotJson => "invalid_json",
            Why::Expected(_) | Why::Missing => "invalid_request_body",
            Why::Unsupported(_) => "unsupported_by_provider",
        }
    }

    /// `param` of the OpenAI error object: `messages[2].content[0].image_url`.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        Some(self.place.as_str()).filter(|place| !place.is_empty())
    }

    /// What is wrong everywhere is not tried again; what Converse does not have, another destination may.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self.why {
            Why::NotJson | Why::Expected(_) | Why::Missing => Retry::Never,
            Why::Unsupported(_) => Retry::Elsewhere,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.why, self.param().unwrap_or("the body")) {
            (Why::NotJson, _) => formatter.write_str("The request body is not valid JSON."),
            (Why::Expected(what), place) => write!(formatter, "{place}: expected {what}"),
            (Why::Missing, place) => write!(formatter, "{place}: is missing"),
            (Why::Unsupported(way_out), _) if self.place.is_empty() => formatter.write_str(way_out),
            (Why::Unsupported(why), place) => write!(formatter, "{place}: {why}"),
        }
    }
}

impl std::error::Error for Refusal {}
