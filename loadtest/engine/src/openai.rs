//! The OpenAI API as vLLM 0.32 speaks it: request bodies in, answer bodies out, field by field in vLLM's order.

mod render;

pub(crate) use render::{Renderer, Usage};
use serde_json::{Value, json};

use crate::text::{self, Answer, MESSAGE_END, MESSAGE_START, TOOLS_START};

/// Which kind of generation an endpoint offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`
    Embeddings,
}

impl Api {
    fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Completions => "cmpl",
            Self::Embeddings => "embd",
        }
    }
}

/// Tokens a media part (image, audio) counts as; all depend on its whole content.
const MEDIA_TOKENS: u32 = 64;

/// When a stream carries usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamUsage {
    /// Not at all.
    None,
    /// In a chunk of its own before `[DONE]` (`stream_options.include_usage`).
    AtEnd,
    /// In every chunk as well (`continuous_usage_stats`).
    Continuous,
}

/// How the answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// One JSON body.
    Whole,
    /// Server-sent events.
    Stream(StreamUsage),
}

/// Why the model ends its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// `max_tokens` was reached.
    Length,
    /// It had no more to say.
    Stop,
}

impl Finish {
    fn as_str(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Stop => "stop",
        }
    }
}

/// A valid request to the model, with the answer it will get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which API.
    pub api: Api,
    /// Model as the request names it.
    pub model: String,
    /// The whole prompt.
    pub prompt: Vec<u32>,
    /// `cache_salt` of the request.
    pub cache_salt: Option<String>,
    /// Seeds the block hashes: differs between values of `cache_salt`.
    pub cache_seed: u64,
    /// What will be said.
    pub answer: Answer,
    /// How many tokens of it.
    pub output_tokens: u32,
    /// Why it ends there.
    pub finish: Finish,
    /// How it is sent.
    pub delivery: Delivery,
}

/// An error answer in vLLM's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// JSON body.
    pub body: String,
}

impl ApiError {
    pub(crate) fn new(status: u16, kind: &str, message: &str, param: Option<&str>) -> Self {
        let error = json!({"message": message, "type": kind, "param": param, "code": status});
        // Written out by hand: vLLM's order of keys.
        let body = format!(
            r#"{{"error":{{"message":{},"type":{},"param":{},"code":{}}}}}"#,
            error["message"], error["type"], error["param"], error["code"]
        );
        Self { status, body }
    }

    fn invalid(kind: &str, at: &str, message: &str) -> Self {
        let message = format!("1 validation error:\n  {{'type': '{kind}', 'loc': '{at}', 'msg': '{message}'}}");
        Self::new(400, "Bad Request", &message, Some(at))
    }

    fn bad_value(parameter: &str, value: &Value, message: &str) -> Self {
        let message = format!("{message} (parameter={parameter}, value={value})");
        Self::new(400, "BadRequestError", &message, Some(parameter))
    }

    pub(crate) fn detail(status: u16, detail: &str) -> Self {
        Self { status, body: format!(r#"{{"detail":"{detail}"}}"#) }
    }
}

/// What a server accepts.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// Names of the model.
    pub models: &'a [String],
    /// Longest prompt and answer together.
    pub model_tokens_max: u32,
}

/// Reads a request body as the server would.
pub fn parse_call(api: Api, body: &[u8], served: Served<'_>) -> Result<Call, ApiError> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::invalid("json_invalid", &format!("body.{}", error.column()), "JSON decode error"))?;
    if !body.is_object() {
        return Err(ApiError::invalid("model_attributes_type", "body", "Input should be a valid dictionary"));
    }
    let prompt = match api {
        Api::Chat => chat_prompt(&body)?,
        Api::Completions => plain_prompt(&body, "prompt")?,
        Api::Embeddings => plain_prompt(&body, "input")?,
    };
    let model = model_name(&body, served)?;
    let answer = Answer::new(&model, &prompt);
    let (output_tokens, finish) = output_tokens(api, &body, served, &prompt, answer)?;
    if body["n"].as_u64().is_some_and(|n| n != 1) {
        return Err(ApiError::bad_value("n", &body["n"], "this engine makes one choice only."));
    }
    let cache_salt = body["cache_salt"].as_str().map(str::to_owned);
    let cache_seed = cache_salt.as_deref().map_or(0, |salt| text::prompt_hash(&text_tokens(salt)));
    let delivery = delivery(api, &body);
    Ok(Call { api, model, prompt, cache_salt, cache_seed, answer, output_tokens, finish, delivery })
}

/// The prompt's tokens alone, whatever model is named. `None` when there is no valid prompt.
pub fn prompt_of(api: Api, body: &[u8]) -> Option<Vec<u32>> {
    let body: Value = serde_json::from_slice(body).ok()?;
    match api {
        Api::Chat => chat_prompt(&body).ok(),
        Api::Completions => plain_prompt(&body, "prompt").ok(),
        Api::Embeddings => plain_prompt(&body, "input").ok(),
    }
}

fn model_name(body: &Value, served: Served<'_>) -> Result<String, ApiError> {
    let default = served.models.first().map_or("", String::as_str);
    match &body["model"] {
        Value::Null => Ok(default.to_owned()),
        Value::String(name) if served.models.contains(name) => Ok(name.clone()),
        Value::String(name) => Err(ApiError::new(
            404,
            "NotFoundError",
            &format!("The model `{name}` does not exist. Valid aliases: {}.", served.models.join(", ")),
            Some("model"),
        )),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Err(ApiError::invalid("string_type", "body.model", "Input should be a valid string"))
        }
    }
}

fn output_tokens(
    api: Api,
    body: &Value,
    served: Served<'_>,
    prompt: &[u32],
    answer: Answer,
) -> Result<(u32, Finish), ApiError> {
    let prompt_tokens = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
    if prompt_tokens >= served.model_tokens_max {
        let message = format!(
            "This model's maximum context length is {} tokens. However, your prompt contains at least {prompt_tokens} \
             input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
             input prompt.",
            served.model_tokens_max
        );
        return Err(ApiError::bad_value("input_tokens", &prompt_tokens.into(), &message));
    }
    let room = served.model_tokens_max - prompt_tokens;
    let (name, wanted) = match (&body["max_completion_tokens"], &body["max_tokens"]) {
        (Value::Null, wanted) => ("max_tokens", wanted),
        (wanted, _) => ("max_completion_tokens", wanted),
    };
    match (api, wanted) {
        (Api::Embeddings, _) => Ok((1, Finish::Stop)),
        (Api::Chat, Value::Null) => Ok((answer.natural_tokens().min(room), Finish::Stop)),
        (Api::Completions, Value::Null) => Ok((16.min(room), Finish::Length)),
        (Api::Chat | Api::Completions, wanted) => {
            let Some(tokens) = wanted.as_i64() else {
                let at = format!("body.{name}");
                return Err(ApiError::invalid("int_parsing", &at, "Input should be a valid integer"));
            };
            if tokens < 1 {
                let message = format!("{name} must be at least 1, got {tokens}.");
                return Err(ApiError::bad_value(name, wanted, &message));
            }
            match u32::try_from(tokens) {
                Ok(tokens) if tokens <= served.model_tokens_max => Ok((tokens.min(room), Finish::Length)),
                Ok(_) | Err(_) => {
                    let message = format!(
                        "{name}={tokens} cannot be greater than max_model_len={}. Please request fewer output tokens.",
                        served.model_tokens_max
                    );
                    Err(ApiError::bad_value(name, wanted, &message))
                }
            }
        }
    }
}

fn delivery(api: Api, body: &Value) -> Delivery {
    if api == Api::Embeddings || body["stream"] != Value::Bool(true) {
        return Delivery::Whole;
    }
    let options = &body["stream_options"];
    match (options["include_usage"] == Value::Bool(true), options["continuous_usage_stats"] == Value::Bool(true)) {
        (false, _) => Delivery::Stream(StreamUsage::None),
        (true, false) => Delivery::Stream(StreamUsage::AtEnd),
        (true, true) => Delivery::Stream(StreamUsage::Continuous),
    }
}

fn text_tokens(text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    text::tokenize(text, &mut tokens);
    tokens
}

/// The prompt of a chat, as [`crate::text`] describes it.
fn chat_prompt(body: &Value) -> Result<Vec<u32>, ApiError> {
    let messages = match &body["messages"] {
        Value::Array(messages) => messages,
        Value::Null => return Err(ApiError::invalid("missing", "body.messages", "Field required")),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            return Err(ApiError::invalid("list_type", "body.messages", "Input should be a valid list"));
        }
    };
    let mut tokens = Vec::new();
    if let Value::Array(tools) = &body["tools"] {
        tokens.push(TOOLS_START);
        for tool in tools {
            text::tokenize(&tool.to_string(), &mut tokens);
        }
        tokens.push(MESSAGE_END);
    }
    for message in messages {
        let Some(role) = message["role"].as_str() else {
            return Err(ApiError::invalid("missing", "body.messages.role", "Field required"));
        };
        start_message(role, &mut tokens);
        content_tokens(&message["content"], &mut tokens);
        if !message["tool_calls"].is_null() {
            text::tokenize(&message["tool_calls"].to_string(), &mut tokens);
        }
        tokens.push(MESSAGE_END);
    }
    start_message("assistant", &mut tokens);
    Ok(tokens)
}

fn start_message(role: &str, tokens: &mut Vec<u32>) {
    tokens.push(MESSAGE_START);
    // A role is one token: its first four bytes tell the known ones apart.
    tokens.extend(text_tokens(role).first());
}

fn content_tokens(content: &Value, tokens: &mut Vec<u32>) {
    match content {
        Value::String(text) => text::tokenize(text, tokens),
        Value::Array(parts) => {
            for part in parts {
                match part["text"].as_str() {
                    Some(text) => text::tokenize(text, tokens),
                    None => {
                        let hash = text::prompt_hash(&text_tokens(&part.to_string())) as u32 | 1 << 31;
                        tokens.extend((0..MEDIA_TOKENS).map(|at| hash ^ at));
                    }
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
    }
}

/// A prompt given as a text, as token ids, or (as one prompt) as a list of either.
fn plain_prompt(body: &Value, field: &str) -> Result<Vec<u32>, ApiError> {
    let mut tokens = Vec::new();
    let at = format!("body.{field}");
    match &body[field] {
        Value::String(text) => text::tokenize(text, &mut tokens),
        Value::Array(items) => {
            for item in items {
                append_item(item, &mut tokens).ok_or_else(|| {
                    ApiError::invalid("string_type", &at, "Input should be text, token ids or a list of these")
                })?;
            }
        }
        Value::Null => return Err(ApiError::invalid("missing", &at, "Field required")),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            return Err(ApiError::invalid("string_type", &at, "Input should be a valid string"));
        }
    }
    Ok(tokens)
}

fn append_item(item: &Value, tokens: &mut Vec<u32>) -> Option<()> {
    match item {
        Value::String(text) => text::tokenize(text, tokens),
        Value::Number(id) => tokens.push(u32::try_from(id.as_u64()?).ok()?),
        Value::Array(ids) => {
            for id in ids {
                tokens.push(u32::try_from(id.as_u64()?).ok()?);
            }
        }
        Value::Null | Value::Bool(_) | Value::Object(_) => return None,
    }
    Some(())
}

/// Tokens of a `/tokenize` request: of `messages` when it has them, else of `prompt`.
pub(crate) fn tokenize_request(body: &[u8]) -> Result<Vec<u32>, ApiError> {
    let body: Value =
        serde_json::from_slice(body).map_err(|_| ApiError::invalid("json_invalid", "body", "JSON decode error"))?;
    if body["messages"].is_null() { plain_prompt(&body, "prompt") } else { chat_prompt(&body) }
}

/// Token ids of a `/detokenize` request.
pub(crate) fn token_ids(body: &[u8]) -> Result<Vec<u32>, ApiError> {
    let body: Value =
        serde_json::from_slice(body).map_err(|_| ApiError::invalid("json_invalid", "body", "JSON decode error"))?;
    plain_prompt(&body, "tokens")
}

/// Whether answers report how much of the prompt was cached (`--enable-prompt-tokens-details`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptDetails {
    /// `prompt_tokens_details.cached_tokens` is there.
    Reported,
    /// `prompt_tokens_details` is null.
    Hidden,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(api: Api, body: &str) -> Result<Call, ApiError> {
        parse_call(api, body.as_bytes(), Served { models: &["tiny".to_owned()], model_tokens_max: 1000 })
    }

    #[test]
    fn the_next_turn_begins_with_prompt_and_answer_of_this_one() {
        let first = parse(Api::Chat, r#"{"messages":[{"role":"user","content":"Hi there"}],"max_tokens":9}"#).unwrap();
        let answer = Value::from(first.answer.text(9));
        let second = format!(
            r#"{{"messages":[{{"role":"user","content":"Hi there"}},{{"role":"assistant","content":{answer}}},{{"role":"user","content":"And?"}}]}}"#
        );
        let second = parse(Api::Chat, &second).unwrap();
        let mut known = first.prompt;
        known.extend((0..9).map(|position| first.answer.token(position).id()));
        assert_eq!(second.prompt[..known.len()], known);
    }

    #[test]
    fn errors_have_the_status_and_type_of_vllm() {
        let cases = [
            (r#"{"model": "tiny", "#, 400, "Bad Request"),
            (r#"{"model":"tiny"}"#, 400, "Bad Request"),
            (r#"{"model":"nope","messages":[]}"#, 404, "NotFoundError"),
            (r#"{"model":"tiny","messages":[],"max_tokens":"many"}"#, 400, "Bad Request"),
            (r#"{"model":"tiny","messages":[],"max_tokens":-1}"#, 400, "BadRequestError"),
            (r#"{"model":"tiny","messages":[],"max_tokens":1001}"#, 400, "BadRequestError"),
        ];
        for (body, status, kind) in cases {
            let error = parse(Api::Chat, body).unwrap_err();
            let json: Value = serde_json::from_str(&error.body).unwrap();
            assert_eq!((error.status, json["error"]["type"].as_str()), (status, Some(kind)), "{body}");
            assert_eq!(json["error"]["code"], status);
        }
        let error = parse(Api::Chat, r#"{"model":"nope","messages":[]}"#).unwrap_err();
        assert_eq!(
            error.body,
            r#"{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny.","type":"NotFoundError","param":"model","code":404}}"#
        );
    }

    #[test]
    fn prompts_may_be_text_or_token_ids() {
        let ids = parse(Api::Completions, r#"{"prompt":[9707,11,1879]}"#).unwrap();
        assert_eq!(ids.prompt, [9707, 11, 1879]);
        assert_eq!(parse(Api::Completions, r#"{"prompt":"Once upon"}"#).unwrap().prompt.len(), 3);
        assert!(parse(Api::Completions, r#"{"prompt":[-1]}"#).is_err());
        assert!(parse(Api::Completions, r#"{"prompt":[true]}"#).is_err());
    }

    #[test]
    fn events_have_the_form_of_vllm() {
        let call =
            parse(Api::Chat, r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":2,"stream":true}"#).unwrap();
        let renderer = Renderer::new(&call, "bed69d06dfe4fba0", 1_796_027_193, PromptDetails::Hidden);
        assert_eq!(
            renderer.role_event(StreamUsage::None).unwrap(),
            r#"{"id":"chatcmpl-bed69d06dfe4fba0","object":"chat.completion.chunk","created":1796027193,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}"#
        );
        let mut last = String::new();
        renderer.token_event(StreamUsage::None, 1, &mut last);
        let text = Value::from(call.answer.token(1).as_str());
        assert_eq!(
            last,
            format!(
                r#"{{"id":"chatcmpl-bed69d06dfe4fba0","object":"chat.completion.chunk","created":1796027193,"model":"tiny","choices":[{{"index":0,"delta":{{"content":{text}}},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}}],"system_fingerprint":"vllm-0.32.0-f1262daa"}}"#
            )
        );
    }
    #[test]
    fn usage_and_completions_have_the_form_of_vllm() {
        let body = r#"{"prompt":"Once upon","max_tokens":4,"stream":true,"stream_options":{"include_usage":true}}"#;
        let call = parse(Api::Completions, body).unwrap();
        assert_eq!(call.delivery, Delivery::Stream(StreamUsage::AtEnd));
        let renderer = Renderer::new(&call, "9a57fc79260707ef", 1_796_027_193, PromptDetails::Hidden);
        assert_eq!(
            renderer.usage_event(),
            r#"{"id":"cmpl-9a57fc79260707ef","object":"text_completion","created":1796027193,"model":"tiny","choices":[],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4},"system_fingerprint":"vllm-0.32.0-f1262daa"}"#
        );
        let mut last = String::new();
        renderer.token_event(StreamUsage::AtEnd, 3, &mut last);
        let text = Value::from(call.answer.token(3).as_str());
        assert_eq!(
            last,
            format!(
                r#"{{"id":"cmpl-9a57fc79260707ef","object":"text_completion","created":1796027193,"model":"tiny","choices":[{{"index":0,"text":{text},"logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null}}]}}"#
            )
        );
    }
}
