//! The fields of a request body that a decision needs.

use std::borrow::Cow;
use std::ops::Range;

use policy::Api;

use super::scan::{self, Kind, Value};

/// The interface behind a path (without query or trailing slash).
pub(crate) fn api_of_path(path: &[u8]) -> Api {
    match path {
        b"/v1/chat/completions" => Api::ChatCompletions,
        b"/v1/completions" => Api::Completions,
        b"/v1/embeddings" => Api::Embeddings,
        b"/v1/responses" => Api::Responses,
        b"/v1/messages" | b"/v1/messages/count_tokens" => Api::Messages,
        b"/v1/rerank" => Api::Rerank,
        b"/v1/score" => Api::Score,
        b"/tokenize" => Api::Tokenize,
        b"/detokenize" => Api::Detokenize,
        _ => Api::Other,
    }
}

/// Whether `stream_options.include_usage` is a field of this interface.
pub(crate) const fn has_stream_options(api: Api) -> bool {
    matches!(api, Api::ChatCompletions | Api::Completions)
}

/// How the answer is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Delivery {
    /// One JSON document.
    #[default]
    Whole,
    /// Server-sent events.
    Streamed,
}

/// The looked-at fields of one body; positions are into that body. Of duplicate keys the last one counts, as in Python.
#[derive(Debug, Default, Clone)]
pub(crate) struct Request {
    /// The model asked for, decoded.
    pub(crate) model: String,
    /// Where the model's string stands, quotes included.
    pub(crate) model_at: Range<usize>,
    pub(crate) delivery: Delivery,
    pub(crate) stream_options: Option<Value>,
    pub(crate) messages: Option<Value>,
    pub(crate) prompt: Option<Value>,
    pub(crate) input: Option<Value>,
    pub(crate) tools: Option<Value>,
    pub(crate) system: Option<Value>,
    pub(crate) cache_salt: Option<Value>,
    pub(crate) response_format: Option<Value>,
    /// The larger of `max_tokens` and `max_completion_tokens` (and `max_output_tokens`).
    pub(crate) output_tokens_max: Option<u64>,
    /// The body's object, braces included.
    pub(crate) object: Range<usize>,
}

/// Why a body cannot be routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Not a JSON object.
    NotAnObject,
    /// No `model`.
    ModelMissing,
    /// `model` is not a string, or empty.
    ModelNotText,
}

impl Request {
    /// Finds the fields.
    ///
    /// # Errors
    /// When there is no model to route by.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Unreadable> {
        let mut request = Self::default();
        let mut model = None;
        let whole = 0..body.len();
        let object = scan::members(body, whole, |key, value| match key {
            b"model" => model = Some(value),
            b"stream" => {
                request.delivery = if value.is_true(body) { Delivery::Streamed } else { Delivery::Whole };
            }
            b"stream_options" => request.stream_options = Some(value),
            b"messages" => request.messages = Some(value),
            b"prompt" => request.prompt = Some(value),
            b"input" => request.input = Some(value),
            b"tools" => request.tools = Some(value),
            b"system" | b"instructions" => request.system = Some(value),
            b"cache_salt" => request.cache_salt = Some(value),
            b"response_format" => request.response_format = Some(value),
            b"max_tokens" | b"max_completion_tokens" | b"max_output_tokens" => {
                request.output_tokens_max = request.output_tokens_max.max(value.number(body));
            }
            _ => {}
        });
        request.object = object.ok_or(Unreadable::NotAnObject)?;
        let model = model.ok_or(Unreadable::ModelMissing)?;
        request.model =
            model.text(body).map(Cow::into_owned).filter(|name| !name.is_empty()).ok_or(Unreadable::ModelNotText)?;
        request.model_at = model.outer();
        Ok(request)
    }

    /// Whether the client asked for usage in the stream.
    pub(crate) fn includes_usage(&self, body: &[u8]) -> bool {
        let Some(options) = self.stream_options.as_ref().filter(|options| options.kind == Kind::Object) else {
            return false;
        };
        let mut asked = false;
        scan::members(body, options.range.clone(), |key, value| {
            if key == b"include_usage" {
                asked = value.is_true(body);
            }
        });
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_and_the_last_duplicate_counts() {
        let body = br#"{"model":"a","stream":false,"messages":[],"max_tokens":5,"max_completion_tokens":9,"model":"b\u002d1","stream":true}"#;
        let request = Request::parse(body).unwrap();
        assert_eq!(request.model, "b-1");
        assert_eq!(&body[request.model_at.clone()], br#""b\u002d1""#);
        assert_eq!(request.delivery, Delivery::Streamed);
        assert_eq!(request.output_tokens_max, Some(9));
    }

    #[test]
    fn a_body_without_a_readable_model_says_why() {
        assert_eq!(Request::parse(b"[1]").unwrap_err(), Unreadable::NotAnObject);
        assert_eq!(Request::parse(b"").unwrap_err(), Unreadable::NotAnObject);
        assert_eq!(Request::parse(b"{\"stream\":true}").unwrap_err(), Unreadable::ModelMissing);
        assert_eq!(Request::parse(b"{\"model\":7}").unwrap_err(), Unreadable::ModelNotText);
        assert_eq!(Request::parse(b"{\"model\":\"\"}").unwrap_err(), Unreadable::ModelNotText);
    }

    #[test]
    fn odd_fields_never_stop_it() {
        let body =
            br#"{"x":[{"y":"\ud800"}],"n":1e99999,"model":"m","stream":"yes","max_tokens":-3,"stream_options":7}"#;
        let request = Request::parse(body).unwrap();
        assert_eq!(request.model, "m");
        assert_eq!(request.delivery, Delivery::Whole);
        assert_eq!(request.output_tokens_max, None);
        assert!(!request.includes_usage(body));
    }
}
