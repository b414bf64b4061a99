//! What becomes of each field of a chat completion request: the one table, for the translation and for the documentation.

use crate::json::Object;
use crate::refusal::Refusal;

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// Says the same in Converse's words; the text says where.
    Translated(&'static str),
    /// Left out: a wish, without which the answer is still one to what was asked.
    Dropped(&'static str),
    /// Refused, as the answer would be another than was asked for; harmless values pass.
    Refused {
        /// Values that change nothing, as compact JSON.
        harmless: &'static [&'static str],
        /// Why, and the way out.
        why: &'static str,
    },
}

/// A field and what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name at the top of the body.
    pub name: &'static str,
    /// What becomes of it.
    pub treatment: Treatment,
}

const fn translated(name: &'static str, to: &'static str) -> Field {
    Field { name, treatment: Treatment::Translated(to) }
}

const fn dropped(name: &'static str, why: &'static str) -> Field {
    Field { name, treatment: Treatment::Dropped(why) }
}

const fn refused(name: &'static str, harmless: &'static [&'static str], why: &'static str) -> Field {
    Field { name, treatment: Treatment::Refused { harmless, why } }
}

const SAMPLING: &str = "how to draw tokens; Bedrock has no such parameter";
const ACCOUNT: &str = "for OpenAI's own accounting";
const CHOICE: &str = "the operator's to choose";
const GUIDED: &str = "Bedrock has no such constraint; use response_format with json_schema, or another destination";

/// Every field that is known; others are dropped, as vLLM does.
pub const FIELDS: &[Field] = &[
    translated("model", "the path, by the provider's own name for it"),
    translated("messages", "`system` and `messages`"),
    translated("max_completion_tokens", "`inferenceConfig.maxTokens`"),
    translated("max_tokens", "the same, where `max_completion_tokens` is absent"),
    translated("temperature", "`inferenceConfig.temperature`; 0 to 1"),
    translated("top_p", "`inferenceConfig.topP`; 0 to 1"),
    translated("stop", "`inferenceConfig.stopSequences`"),
    translated("stream", "`converse-stream` instead of `converse`"),
    translated("stream_options", "`include_usage`: a last chunk with usage"),
    translated("tools", "`toolConfig.tools`, functions only; `strict` passes"),
    translated("tool_choice", "`toolConfig.toolChoice`"),
    translated("response_format", "`text`; `json_schema` as `outputConfig.textFormat`; `json_object` is refused"),
    dropped("frequency_penalty", SAMPLING),
    dropped("presence_penalty", SAMPLING),
    dropped("repetition_penalty", SAMPLING),
    dropped("top_k", SAMPLING),
    dropped("min_p", SAMPLING),
    dropped("seed", "best effort with OpenAI too"),
    dropped("reasoning_effort", "only some models take one"),
    dropped("verbosity", "only some models take one"),
    dropped("prediction", "makes the answer come sooner, not different"),
    dropped("chat_template_kwargs", "Bedrock has its own templates"),
    dropped("user", ACCOUNT),
    dropped("safety_identifier", ACCOUNT),
    dropped("metadata", ACCOUNT),
    dropped("store", ACCOUNT),
    dropped("prompt_cache_key", ACCOUNT),
    dropped("prompt_cache_retention", ACCOUNT),
    dropped("service_tier", CHOICE),
    refused("n", &["1"], "Bedrock gives one choice; send several requests"),
    refused("logprobs", &["false"], "Bedrock has no log probabilities"),
    refused("top_logprobs", &["0"], "Bedrock has no log probabilities"),
    refused("prompt_logprobs", &["0"], "Bedrock has no log probabilities"),
    refused("logit_bias", &["{}"], "Bedrock has no bias of tokens, and its models have other ones"),
    refused("modalities", &["[\"text\"]", "[]"], "answers are text; leave it out or send [\"text\"]"),
    refused("audio", &[], "answers are text; leave it out"),
    refused(
        "parallel_tool_calls",
        &["true"],
        "Bedrock cannot hold a model to one tool call; leave it out or send true",
    ),
    refused("web_search_options", &[], "Bedrock does not search; give the model a tool"),
    refused("functions", &["[]"], "use tools, which has replaced it"),
    refused("function_call", &["\"auto\"", "\"none\""], "use tool_choice, which has replaced it"),
    refused("guided_json", &[], GUIDED),
    refused("guided_regex", &[], GUIDED),
    refused("guided_choice", &[], GUIDED),
    refused("guided_grammar", &[], GUIDED),
    refused("structured_outputs", &["{}"], GUIDED),
];

/// Refuses what must be, and names what is left out.
pub(crate) fn check(body: &Object<'_, '_>) -> Result<Vec<&'static str>, Refusal> {
    let mut left_out = Vec::new();
    for field in FIELDS {
        let Some(value) = body.value(field.name) else { continue };
        match field.treatment {
            Treatment::Translated(_) => {}
            Treatment::Dropped(_) => left_out.push(field.name),
            Treatment::Refused { harmless, .. } if value.is_one_of(harmless) => {}
            Treatment::Refused { why, .. } => return Err(value.place().unsupported(why)),
        }
    }
    Ok(left_out)
}
