//! Converse's request as JSON: the parts of the service model (`bedrock-runtime` 2023-09-30) that are sent.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

use super::Number;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<'a> {
    pub(super) messages: Vec<Turn<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) system: Vec<System<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inference_config: Option<Inference<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_config: Option<ToolConfig<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output_config: Option<Output<'a>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    User,
    Assistant,
}

#[derive(Serialize)]
pub(super) struct Turn<'a> {
    pub(super) role: Role,
    pub(super) content: Vec<Block<'a>>,
}

#[derive(Serialize)]
pub(super) struct System<'a> {
    pub(super) text: Cow<'a, str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Block<'a> {
    Text(Cow<'a, str>),
    Image(Media<'a>),
    Audio(Media<'a>),
    ToolUse(ToolUse<'a>),
    ToolResult(ToolResult<'a>),
}

#[derive(Serialize)]
pub(super) struct Media<'a> {
    pub(super) format: &'static str,
    pub(super) source: Source<'a>,
}

#[derive(Serialize)]
pub(super) struct Source<'a> {
    /// Base64, as the service's JSON has bytes.
    pub(super) bytes: Cow<'a, str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolUse<'a> {
    pub(super) tool_use_id: Cow<'a, str>,
    pub(super) name: Cow<'a, str>,
    pub(super) input: Box<RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolResult<'a> {
    pub(super) tool_use_id: Cow<'a, str>,
    pub(super) content: Vec<Block<'a>>,
}

#[derive(Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Inference<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) temperature: Option<Number<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) top_p: Option<Number<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) stop_sequences: Vec<Cow<'a, str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolConfig<'a> {
    pub(super) tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_choice: Option<ToolChoice<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tool<'a> {
    pub(super) tool_spec: ToolSpec<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolSpec<'a> {
    pub(super) name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<Cow<'a, str>>,
    pub(super) input_schema: InputSchema<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) strict: Option<bool>,
}

#[derive(Serialize)]
pub(super) struct InputSchema<'a> {
    pub(super) json: Cow<'a, RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ToolChoice<'a> {
    Any {},
    Tool { name: Cow<'a, str> },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Output<'a> {
    pub(super) text_format: TextFormat<'a>,
}

#[derive(Serialize)]
pub(super) struct TextFormat<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) structure: Structure<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Structure<'a> {
    pub(super) json_schema: JsonSchema<'a>,
}

#[derive(Serialize)]
pub(super) struct JsonSchema<'a> {
    pub(super) schema: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<Cow<'a, str>>,
}
