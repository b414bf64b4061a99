//! Tools: functions with their schemas, and which of them the model is to call.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::messages::{Conversation, tool_name};
use super::wire::{InputSchema, Tool, ToolChoice, ToolConfig, ToolSpec};
use crate::json::{Object, Place, Shape, Value, element};
use crate::refusal::Refusal;

/// Most tools of a request: OpenAI's limit.
pub(super) const TOOLS_MAX: usize = 128;

/// Whether tools may be called.
enum Choice<'a> {
    Forbidden,
    Free,
    Made(ToolChoice<'a>),
}

/// `tools` and `tool_choice`.
///
/// Converse cannot forbid calls, and wants tools named as soon as there are calls in the conversation. Where the client offers
/// none, or forbids them, none are sent; in a conversation with calls the same tools, or those that were called, are
/// named all the same, as it could not be answered at all otherwise.
pub(super) fn configuration<'a>(
    top: &Object<'a, '_>,
    conversation: &Conversation<'a>,
) -> Result<Option<ToolConfig<'a>>, Refusal> {
    let mut tools = top.value("tools").map_or(Ok(Vec::new()), |tools| offered(&tools))?;
    let choice = top.value("tool_choice").map_or(Ok(Choice::Free), |choice| chosen(&choice))?;
    let called = conversation.tools_called();
    let in_use = !called.is_empty() || conversation.has_results();
    let tool_choice = match choice {
        Choice::Forbidden if !in_use => return Ok(None),
        Choice::Forbidden | Choice::Free => None,
        Choice::Made(choice) if !tools.is_empty() => Some(choice),
        Choice::Made(_) => {
            let place = Place::Field(top.place(), "tools");
            return Err(place.expected("tools to choose from, as there is a tool_choice"));
        }
    };
    if tools.is_empty() {
        tools = called.into_iter().map(named).collect();
    }
    Ok((!tools.is_empty()).then_some(ToolConfig { tools, tool_choice }))
}

fn offered<'a>(tools: &Value<'a, '_>) -> Result<Vec<Tool<'a>>, Refusal> {
    let list = tools.list()?;
    if list.len() > TOOLS_MAX {
        return Err(tools.place().expected("at most 128 tools"));
    }
    list.into_iter().enumerate().map(|(index, raw)| tool(&element(raw, tools.place(), index).object()?)).collect()
}

fn tool<'a>(tool: &Object<'a, '_>) -> Result<Tool<'a>, Refusal> {
    let kind = tool.needed("type")?;
    if kind.text()? != "function" {
        return Err(kind.place().unsupported("Bedrock has functions only"));
    }
    let value = tool.needed("function")?;
    let function = value.object()?;
    let json = match function.value("parameters") {
        None => no_parameters(),
        Some(schema) => match schema.shape() {
            Shape::Object => Cow::Borrowed(schema.raw()),
            Shape::Text | Shape::List | Shape::Other => return Err(schema.place().expected("a JSON schema object")),
        },
    };
    let strict = function.value("strict").map_or(Ok(false), |value| value.truth())?;
    let tool_spec = ToolSpec {
        name: tool_name(&function.needed("name")?)?,
        description: function.text("description")?.filter(|text| !text.trim().is_empty()),
        input_schema: InputSchema { json },
        strict: strict.then_some(true),
    };
    Ok(Tool { tool_spec })
}

/// A tool of which no more is known than its name.
fn named(name: Cow<'_, str>) -> Tool<'_> {
    let input_schema = InputSchema { json: no_parameters() };
    Tool { tool_spec: ToolSpec { name, description: None, input_schema, strict: None } }
}

fn no_parameters<'a>() -> Cow<'a, RawValue> {
    const SCHEMA: &str = r#"{"type":"object","properties":{}}"#;
    RawValue::from_string(SCHEMA.to_owned()).map_or(Cow::Borrowed(RawValue::NULL), Cow::Owned)
}

fn chosen<'a>(choice: &Value<'a, '_>) -> Result<Choice<'a>, Refusal> {
    const WORDS: &str = "none, auto, required, or an object that names a function";
    match choice.shape() {
        Shape::Text => match &*choice.text()? {
            "none" => Ok(Choice::Forbidden),
            "auto" => Ok(Choice::Free),
            "required" => Ok(Choice::Made(ToolChoice::Any {})),
            _ => Err(choice.place().expected(WORDS)),
        },
        Shape::Object => {
            let object = choice.object()?;
            let kind = object.needed("type")?;
            match &*kind.text()? {
                "function" => {
                    let function = object.needed("function")?;
                    let name = tool_name(&function.object()?.needed("name")?)?;
                    Ok(Choice::Made(ToolChoice::Tool { name }))
                }
                _ => Err(kind.place().unsupported("Bedrock can be held to one function, or to any: send required")),
            }
        }
        Shape::List | Shape::Other => Err(choice.place().expected(WORDS)),
    }
}
