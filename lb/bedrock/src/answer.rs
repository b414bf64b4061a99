//! Converse's answer as a chat completion.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::failure::{Failure, Fault};

/// What an answer carries that Bedrock does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<'a> {
    /// `id` of the completion.
    pub id: &'a str,
    /// `created`, in seconds since 1970.
    pub created_unix_s: u64,
    /// The name of the model that the client is shown.
    pub model: &'a str,
}

/// Tokens of an answer, in OpenAI's sense: all of the prompt's, whether read from a cache or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of the answer.
    pub completion_tokens: u64,
    /// Of the prompt, those read from Bedrock's cache.
    pub cached_tokens: u64,
}

/// A chat completion.
#[derive(Clone, PartialEq, Eq)]
pub struct Completion {
    /// JSON.
    pub body: Vec<u8>,
    /// What it took.
    pub usage: Usage,
}

/// Not the answer's text.
impl fmt::Debug for Completion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Completion({} bytes, {:?})", self.body.len(), self.usage)
    }
}

/// Translates the body of a Converse answer with status 200.
///
/// # Errors
/// A body that is no such answer, or one whose model wrote nothing that Bedrock could read.
pub fn completion(body: &[u8], reply: Reply<'_>) -> Result<Completion, Failure> {
    let answer: Answer<'_> = serde_json::from_slice(body).map_err(|_| Failure::from(Fault::Unreadable))?;
    let finish_reason = finish_reason(&answer.stop_reason)?;
    let (mut text, mut reasoning, mut calls) = (Joined::default(), Joined::default(), Vec::new());
    for block in answer.output.message.content {
        text.push(block.text);
        for generated in block.citations_content.into_iter().flat_map(|cited| cited.content) {
            text.push(generated.text);
        }
        reasoning.push(block.reasoning_content.and_then(|block| block.reasoning_text).and_then(|block| block.text));
        calls.extend(block.tool_use.filter(|call| call.kind.is_none()).map(|call| Call {
            id: call.tool_use_id,
            kind: "function",
            function: Function { name: call.name, arguments: call.input.map_or("{}", RawValue::get) },
        }));
    }
    let content = text.text.or_else(|| calls.is_empty().then_some(Cow::Borrowed("")));
    let message =
        Message { role: "assistant", content, refusal: None, reasoning_content: reasoning.text, tool_calls: calls };
    let usage = Usage::from(answer.usage);
    let document = Document {
        id: reply.id,
        object: "chat.completion",
        created: reply.created_unix_s,
        model: reply.model,
        choices: [Choice { index: 0, message, logprobs: None, finish_reason }],
        usage: UsageShown::from(usage),
    };
    let mut json = Vec::with_capacity(body.len() + 256);
    serde_json::to_writer(&mut json, &document).map_err(|_| Failure::from(Fault::Unreadable))?;
    Ok(Completion { body: json, usage })
}

/// OpenAI's word for a stop reason; one that is not known yet is an ordinary end.
pub(crate) fn finish_reason(stop_reason: &str) -> Result<&'static str, Failure> {
    match stop_reason {
        "tool_use" => Ok("tool_calls"),
        "max_tokens" | "model_context_window_exceeded" => Ok("length"),
        "content_filtered" | "guardrail_intervened" => Ok("content_filter"),
        "malformed_model_output" | "malformed_tool_use" => Err(Failure::from(Fault::MalformedOutput)),
        // end_turn, stop_sequence
        _ => Ok("stop"),
    }
}

/// Text in pieces; one piece is not copied.
#[derive(Default)]
struct Joined<'a> {
    text: Option<Cow<'a, str>>,
}

impl<'a> Joined<'a> {
    fn push(&mut self, piece: Option<Cow<'a, str>>) {
        match (&mut self.text, piece) {
            (_, None) => {}
            (None, Some(piece)) => self.text = Some(piece),
            (Some(text), Some(piece)) => text.to_mut().push_str(&piece),
        }
    }
}

// What is read. Fields that are not named are passed over: Bedrock adds some.

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    #[serde(borrow)]
    output: OutputRead<'a>,
    #[serde(borrow)]
    stop_reason: Cow<'a, str>,
    usage: UsageRead,
}

#[derive(Deserialize)]
struct OutputRead<'a> {
    #[serde(borrow)]
    message: MessageRead<'a>,
}

#[derive(Deserialize)]
struct MessageRead<'a> {
    #[serde(borrow)]
    content: Vec<BlockRead<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockRead<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_use: Option<ToolUseRead<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<ReasoningRead<'a>>,
    #[serde(borrow, default)]
    citations_content: Option<CitedRead<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolUseRead<'a> {
    #[serde(borrow)]
    tool_use_id: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    /// `server_tool_use`: Bedrock runs it; not the client's to answer.
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReasoningRead<'a> {
    #[serde(borrow, default)]
    reasoning_text: Option<TextRead<'a>>,
}

#[derive(Deserialize)]
struct TextRead<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct CitedRead<'a> {
    #[serde(borrow, default)]
    content: Vec<TextRead<'a>>,
}

/// Bedrock counts what it read from a cache and what it wrote there apart from `inputTokens`
/// (<https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html>).
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct UsageRead {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: Option<u64>,
    cache_write_input_tokens: Option<u64>,
}

impl From<UsageRead> for Usage {
    fn from(read: UsageRead) -> Self {
        let cached_tokens = read.cache_read_input_tokens.unwrap_or(0);
        let written = read.cache_write_input_tokens.unwrap_or(0);
        Self {
            prompt_tokens: read.input_tokens.saturating_add(cached_tokens).saturating_add(written),
            completion_tokens: read.output_tokens,
            cached_tokens,
        }
    }
}

// What is written.

#[derive(Serialize)]
struct Document<'a> {
    id: &'a str,
    object: &'a str,
    created: u64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    usage: UsageShown,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: Message<'a>,
    logprobs: Option<()>,
    finish_reason: &'a str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: Option<Cow<'a, str>>,
    refusal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

#[derive(Serialize)]
struct Call<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'a str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    arguments: &'a str,
}

/// `usage` of a completion or of a last chunk.
#[derive(Serialize)]
pub(crate) struct UsageShown {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: Details,
}

#[derive(Serialize)]
struct Details {
    cached_tokens: u64,
}

impl From<Usage> for UsageShown {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens.saturating_add(usage.completion_tokens),
            prompt_tokens_details: Details { cached_tokens: usage.cached_tokens },
        }
    }
}
