//! The fields of a request body that a decision needs.

use std::borrow::Cow;
use std::ops::Range;

use policy::Api;

use super::form;
use super::scan::{self, Kind, Value};

/// The paths that are known, and the interface behind each.
const PATHS: [(&str, Api); 12] = [
    ("/v1/chat/completions", Api::ChatCompletions),
    ("/v1/completions", Api::Completions),
    ("/v1/embeddings", Api::Embeddings),
    ("/v1/responses", Api::Responses),
    ("/v1/messages", Api::Messages),
    ("/v1/messages/count_tokens", Api::Messages),
    ("/v1/rerank", Api::Rerank),
    ("/v1/score", Api::Score),
    ("/tokenize", Api::Tokenize),
    ("/detokenize", Api::Detokenize),
    ("/v1/audio/transcriptions", Api::Transcriptions),
    ("/v1/audio/translations", Api::Translations),
];

/// The interface behind a path (without query or trailing slash).
pub(crate) fn api_of_path(path: &[u8]) -> Api {
    PATHS.iter().find(|(known, _)| known.as_bytes() == path).map_or(Api::Other, |&(_, api)| api)
}

/// The name of a path that is known.
pub(crate) fn known_path(path: &[u8]) -> Option<&'static str> {
    PATHS.iter().find(|(known, _)| known.as_bytes() == path).map(|&(known, _)| known)
}

/// Whether `stream_options.include_usage` is a field of this interface.
pub(crate) const fn has_stream_options(api: Api) -> bool {
    matches!(api, Api::ChatCompletions | Api::Completions)
}

/// What a request makes of its prompt, by its path (without query or trailing slash).
pub(crate) fn purpose_of(api: Api, path: &[u8]) -> Purpose {
    match api {
        Api::Messages if path.ends_with(b"/count_tokens") => Purpose::Other,
        Api::ChatCompletions | Api::Completions | Api::Responses | Api::Messages => Purpose::Generate,
        Api::Embeddings | Api::Rerank | Api::Score => Purpose::Read,
        Api::Tokenize | Api::Detokenize | Api::Transcriptions | Api::Translations | Api::Other => Purpose::Other,
    }
}

/// What an engine makes of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Purpose {
    /// An answer, token by token; the prompt stays in the prefix cache.
    Generate,
    /// Numbers, in one go: the whole answer is what a first token is elsewhere.
    Read,
    /// Something whose time says nothing about prompts: tokens counted, audio written down.
    #[default]
    Other,
}

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Written {
    /// As a JSON object.
    #[default]
    Json,
    /// As a `multipart/form-data` form.
    Form,
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

/// Fields that hold what is ranked, scored or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextName {
    Documents,
    Query,
    Queries,
    Items,
    Text1,
    Text2,
    Data1,
    Data2,
}

impl TextName {
    fn of(key: &[u8]) -> Option<Self> {
        Some(match key {
            b"documents" => Self::Documents,
            b"query" => Self::Query,
            b"queries" => Self::Queries,
            b"items" => Self::Items,
            b"text_1" => Self::Text1,
            b"text_2" => Self::Text2,
            b"data_1" => Self::Data1,
            b"data_2" => Self::Data2,
            _ => return None,
        })
    }
}

/// The looked-at fields of one body; positions are into that body. Of duplicate keys the last one counts, as in Python.
#[derive(Debug, Default, Clone)]
pub(crate) struct Request {
    /// The model asked for, decoded.
    pub(crate) model: String,
    /// Where the model's string stands, the quotes of JSON included.
    pub(crate) model_at: Range<usize>,
    pub(crate) written: Written,
    pub(crate) purpose: Purpose,
    pub(crate) delivery: Delivery,
    pub(crate) stream_options: Option<Value>,
    pub(crate) messages: Option<Value>,
    pub(crate) prompt: Option<Value>,
    pub(crate) input: Option<Value>,
    pub(crate) tools: Option<Value>,
    pub(crate) system: Option<Value>,
    /// What the Responses API calls the system's text. Both are kept: which one an engine reads depends on the interface.
    pub(crate) instructions: Option<Value>,
    /// What is ranked, scored or read besides: `documents`, `query`, `text_1`, ...; one of each name.
    pub(crate) texts: Vec<(TextName, Value)>,
    /// Token ids to be made text.
    pub(crate) tokens: Option<Value>,
    /// Where the text of a form's `prompt` stands.
    pub(crate) form_prompt: Option<Range<usize>>,
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
    /// Something stands behind the object: whoever answers may read it, and nobody here did.
    MoreThanOne,
    /// Not a form, where one is expected.
    NotAForm,
    /// No `model`.
    ModelMissing,
    /// `model` is not a string, or empty.
    ModelNotText,
}

impl Request {
    /// Finds the fields of a body as this interface writes it.
    ///
    /// # Errors
    /// When there is no model to route by.
    pub(crate) fn read(api: Api, content_type: &[u8], body: &[u8]) -> Result<Self, Unreadable> {
        match api {
            Api::Transcriptions | Api::Translations => Self::parse_form(content_type, body),
            Api::ChatCompletions
            | Api::Completions
            | Api::Embeddings
            | Api::Responses
            | Api::Messages
            | Api::Rerank
            | Api::Score
            | Api::Tokenize
            | Api::Detokenize
            | Api::Other => Self::parse(body),
        }
    }

    /// Finds the fields of a form. Of duplicates the last one counts, as in vLLM's web framework.
    fn parse_form(content_type: &[u8], body: &[u8]) -> Result<Self, Unreadable> {
        let mut request = Self { written: Written::Form, ..Self::default() };
        let mut model = None;
        let boundary = form::boundary(content_type).ok_or(Unreadable::NotAForm)?;
        form::fields(body, boundary, |name, value| match name {
            b"model" => model = Some(value),
            b"prompt" => request.form_prompt = Some(value),
            b"stream" => {
                let streamed = matches!(&body[value], b"true" | b"True" | b"TRUE" | b"1" | b"on" | b"yes");
                request.delivery = if streamed { Delivery::Streamed } else { Delivery::Whole };
            }
            _ => {}
        })
        .ok_or(Unreadable::NotAForm)?;
        request.model_at = model.ok_or(Unreadable::ModelMissing)?;
        let name = std::str::from_utf8(&body[request.model_at.clone()]).ok().filter(|name| !name.is_empty());
        name.ok_or(Unreadable::ModelNotText)?.clone_into(&mut request.model);
        Ok(request)
    }

    /// Finds the fields of a JSON object.
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
            b"system" => request.system = Some(value),
            b"instructions" => request.instructions = Some(value),
            b"tokens" => request.tokens = Some(value),
            b"cache_salt" => request.cache_salt = Some(value),
            b"response_format" => request.response_format = Some(value),
            b"max_tokens" | b"max_completion_tokens" | b"max_output_tokens" => {
                request.output_tokens_max = request.output_tokens_max.max(value.number(body));
            }
            _ => {
                if let Some(name) = TextName::of(key) {
                    request.texts.retain(|(other, _)| *other != name);
                    request.texts.push((name, value));
                }
            }
        });
        request.object = object.ok_or(Unreadable::NotAnObject)?;
        if !body[request.object.end..].trim_ascii().is_empty() {
            return Err(Unreadable::MoreThanOne);
        }
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
    fn a_name_that_is_written_with_escapes_is_that_name() {
        let body = br#"{"model":"cheap","mod\u0065l":"dear","m\u0065ssages":[1]}"#;
        let request = Request::parse(body).unwrap();
        assert_eq!(request.model, "dear");
        assert_eq!(request.messages.unwrap().of(body), b"[1]");
    }

    #[test]
    fn every_field_that_an_engine_may_read_is_kept_however_many_others_there_are() {
        let queries = r#""query":"x","#.repeat(40);
        let body =
            format!(r#"{{"model":"m","system":"a","documents":["d"],{queries}"query":"last","instructions":"b"}}"#);
        let request = Request::parse(body.as_bytes()).unwrap();
        let of = |value: &Value| String::from_utf8_lossy(value.of(body.as_bytes())).into_owned();
        assert_eq!(request.texts.iter().map(|(_, value)| of(value)).collect::<Vec<_>>(), [r#"["d"]"#, "last"]);
        assert_eq!([request.system, request.instructions].map(|value| of(&value.unwrap())), ["a", "b"]);
    }

    #[test]
    fn a_body_without_a_readable_model_says_why() {
        assert_eq!(Request::parse(b"[1]").unwrap_err(), Unreadable::NotAnObject);
        assert_eq!(Request::parse(b"").unwrap_err(), Unreadable::NotAnObject);
        for tail in [&b" card 4111"[..], b"\0 4111", b"}", b"{}", b", \"user\": \"x\"}", b"\x0b"] {
            let body = [br#"{"model":"m","messages":[]}"#, tail].concat();
            assert_eq!(
                Request::parse(&body).unwrap_err(),
                Unreadable::MoreThanOne,
                "{}",
                String::from_utf8_lossy(tail)
            );
        }
        assert!(Request::parse(b" {\"model\":\"m\"}\r\n\t ").is_ok());
        assert_eq!(Request::parse(b"{\"stream\":true}").unwrap_err(), Unreadable::ModelMissing);
        assert_eq!(Request::parse(b"{\"model\":7}").unwrap_err(), Unreadable::ModelNotText);
        assert_eq!(Request::parse(b"{\"model\":\"\"}").unwrap_err(), Unreadable::ModelNotText);
    }

    fn form(fields: &[(&str, &str)]) -> String {
        let part = |(name, value): &(&str, &str)| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        fields.iter().map(part).collect::<String>() + "--b--\r\n"
    }

    #[test]
    fn a_form_is_read_where_one_is_expected() {
        let body = form(&[("model", "one"), ("prompt", "Hi"), ("stream", "true"), ("model", "org/w")]);
        let read = |content_type: &str, body: &str| {
            Request::read(Api::Transcriptions, content_type.as_bytes(), body.as_bytes())
        };
        let request = read("multipart/form-data; boundary=b", &body).unwrap();
        assert_eq!((request.model.as_str(), &body[request.model_at]), ("org/w", "org/w"));
        assert_eq!((&body[request.form_prompt.unwrap()], request.delivery), ("Hi", Delivery::Streamed));
        assert_eq!(read("application/json", "{\"model\":\"m\"}").unwrap_err(), Unreadable::NotAForm);
        let of = |fields: &[(&str, &str)]| read("multipart/form-data; boundary=b", &form(fields)).unwrap_err();
        assert_eq!(of(&[("prompt", "Hi")]), Unreadable::ModelMissing);
        assert_eq!(of(&[("model", "")]), Unreadable::ModelNotText);
    }

    #[test]
    fn counting_tokens_is_not_generating() {
        let purpose = |path: &str| purpose_of(api_of_path(path.as_bytes()), path.as_bytes());
        assert_eq!(purpose("/v1/messages"), Purpose::Generate);
        assert_eq!(purpose("/v1/messages/count_tokens"), Purpose::Other);
        assert_eq!(purpose("/v1/rerank"), Purpose::Read);
        assert_eq!(purpose("/v1/audio/transcriptions"), Purpose::Other);
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
