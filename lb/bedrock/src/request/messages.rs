//! Messages as turns: Converse wants the user first and the roles alternating, instructions apart, the results of tools in the
//! user's turn after the calls, and no blank text.

use std::borrow::Cow;

use ring::digest;
use serde_json::value::RawValue;

use super::media;
use super::wire::{Block, Role, System, ToolResult, ToolUse, Turn};
use crate::json::{Object, Shape, Value, element};
use crate::refusal::Refusal;
use crate::sigv4::hex;

/// A conversation in Converse's order.
pub(super) struct Conversation<'a> {
    pub(super) turns: Vec<Turn<'a>>,
    pub(super) system: Vec<System<'a>>,
}

/// Reads the `messages` of a request.
pub(super) fn conversation<'a>(messages: &Value<'a, '_>) -> Result<Conversation<'a>, Refusal> {
    let mut conversation = Conversation { turns: Vec::new(), system: Vec::new() };
    for (index, raw) in messages.list()?.into_iter().enumerate() {
        message(&element(raw, messages.place(), index).object()?, &mut conversation)?;
    }
    match conversation.turns.first().map(|turn| turn.role) {
        Some(Role::User) => Ok(conversation),
        Some(Role::Assistant) => {
            Err(messages.place().unsupported("Bedrock wants a message of the user before one of the assistant"))
        }
        None => Err(messages.place().unsupported("Bedrock wants a message of the user that is not blank")),
    }
}

fn message<'a>(message: &Object<'a, '_>, conversation: &mut Conversation<'a>) -> Result<(), Refusal> {
    let role = message.needed("role")?;
    match &*role.text()? {
        "system" | "developer" => {
            let texts = texts(message)?.into_iter().filter(|text| !blank(text));
            conversation.system.extend(texts.map(|text| System { text }));
        }
        "user" => {
            let content = message.needed("content")?;
            for block in parts(&content, user_part)? {
                conversation.push(Role::User, block);
            }
        }
        "assistant" => assistant(message, conversation)?,
        "tool" => {
            let content = message.value("content").map_or(Ok(Vec::new()), |content| parts(&content, result_part))?;
            let tool_use_id = tool_use_id(message.needed("tool_call_id")?.text()?);
            conversation.push(Role::User, Block::ToolResult(ToolResult { tool_use_id, content }));
        }
        "function" => return Err(role.place().unsupported("use the role tool, which has replaced it")),
        _ => return Err(role.place().expected("system, developer, user, assistant or tool")),
    }
    Ok(())
}

impl<'a> Conversation<'a> {
    /// Neighbours of one role are one turn.
    fn push(&mut self, role: Role, block: Block<'a>) {
        match self.turns.last_mut() {
            Some(turn) if turn.role == role => turn.content.push(block),
            Some(_) | None => self.turns.push(Turn { role, content: vec![block] }),
        }
    }

    /// Names of the tools that were called, each once: at most as many as a request may offer are looked at.
    pub(super) fn tools_called(&self) -> Vec<Cow<'a, str>> {
        let mut names: Vec<Cow<'a, str>> = Vec::new();
        for block in self.turns.iter().flat_map(|turn| &turn.content) {
            if let Block::ToolUse(call) = block
                && names.len() < super::tools::TOOLS_MAX
                && !names.contains(&call.name)
            {
                names.push(call.name.clone());
            }
        }
        names
    }

    /// Results of tools stand in it.
    pub(super) fn has_results(&self) -> bool {
        let mut blocks = self.turns.iter().flat_map(|turn| &turn.content);
        blocks.any(|block| matches!(block, Block::ToolResult(_)))
    }
}

/// The assistant's reasoning is left out: Converse takes it back only with a signature, for which OpenAI's shape has no place.
fn assistant<'a>(message: &Object<'a, '_>, conversation: &mut Conversation<'a>) -> Result<(), Refusal> {
    if let Some(call) = message.value("function_call") {
        return Err(call.place().unsupported("use tool_calls, which has replaced it"));
    }
    if let Some(content) = message.value("content") {
        for block in parts(&content, assistant_part)? {
            conversation.push(Role::Assistant, block);
        }
    }
    if let Some(refusal) = message.text("refusal")?.filter(|text| !blank(text)) {
        conversation.push(Role::Assistant, Block::Text(refusal));
    }
    let Some(calls) = message.value("tool_calls") else { return Ok(()) };
    for (index, raw) in calls.list()?.into_iter().enumerate() {
        let call = tool_call(&element(raw, calls.place(), index).object()?)?;
        conversation.push(Role::Assistant, Block::ToolUse(call));
    }
    Ok(())
}

fn tool_call<'a>(call: &Object<'a, '_>) -> Result<ToolUse<'a>, Refusal> {
    if let Some(kind) = call.value("type")
        && kind.text()? != "function"
    {
        return Err(kind.place().unsupported("Bedrock has calls of functions only"));
    }
    let tool_use_id = tool_use_id(call.needed("id")?.text()?);
    let value = call.needed("function")?;
    let function = value.object()?;
    let name = tool_name(&function.needed("name")?)?;
    let arguments = function.needed("arguments")?;
    let text = arguments.text()?;
    // No arguments at all are often written as an empty string.
    let text = if blank(&text) { "{}".to_owned() } else { text.into_owned() };
    let input = RawValue::from_string(text)
        .ok()
        .filter(|input| input.get().starts_with('{'))
        .ok_or_else(|| arguments.place().expected("a JSON object, as text"))?;
    Ok(ToolUse { tool_use_id, name, input })
}

/// A function's name as both APIs have it.
pub(super) fn tool_name<'a>(name: &Value<'a, '_>) -> Result<Cow<'a, str>, Refusal> {
    const BYTES_MAX: usize = 64;
    let text = name.text()?;
    let fits = (1..=BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if fits {
        Ok(text)
    } else {
        Err(name.place().unsupported("Bedrock takes names of 1 to 64 letters, digits, _ or -"))
    }
}

/// The id of a call as Converse takes it. One that does not fit is replaced by a digest of it: the same for call and result.
fn tool_use_id(id: Cow<'_, str>) -> Cow<'_, str> {
    const BYTES_MAX: usize = 64;
    let fits = (1..=BYTES_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte));
    if fits {
        id
    } else {
        Cow::Owned(format!("call_{}", &hex(digest::digest(&digest::SHA256, id.as_bytes()).as_ref())[..32]))
    }
}

/// Converse refuses text that is blank.
fn blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// The text of instructions.
fn texts<'a>(message: &Object<'a, '_>) -> Result<Vec<Cow<'a, str>>, Refusal> {
    let content = message.needed("content")?;
    match content.shape() {
        Shape::Text => Ok(vec![content.text()?]),
        Shape::List => {
            let mut texts = Vec::new();
            for (index, raw) in content.list()?.into_iter().enumerate() {
                let part = element(raw, content.place(), index).object()?;
                let kind = part.needed("type")?;
                match &*kind.text()? {
                    "text" => texts.push(part.needed("text")?.text()?),
                    _ => return Err(kind.place().unsupported("instructions are text")),
                }
            }
            Ok(texts)
        }
        Shape::Object | Shape::Other => Err(content.place().expected("a string or a list of parts")),
    }
}

/// What a part of a message becomes, by the part and its type.
type Part<'a> = fn(&Object<'a, '_>, &Value<'a, '_>) -> Result<Block<'a>, Refusal>;

/// The blocks of a message, without those of blank text.
fn parts<'a>(content: &Value<'a, '_>, block: Part<'a>) -> Result<Vec<Block<'a>>, Refusal> {
    let mut blocks = match content.shape() {
        Shape::Text => vec![Block::Text(content.text()?)],
        Shape::List => {
            let mut blocks = Vec::new();
            for (index, raw) in content.list()?.into_iter().enumerate() {
                let part = element(raw, content.place(), index).object()?;
                blocks.push(block(&part, &part.needed("type")?)?);
            }
            blocks
        }
        Shape::Object | Shape::Other => return Err(content.place().expected("a string or a list of parts")),
    };
    blocks.retain(|block| !matches!(block, Block::Text(text) if blank(text)));
    Ok(blocks)
}

fn user_part<'a>(part: &Object<'a, '_>, kind: &Value<'a, '_>) -> Result<Block<'a>, Refusal> {
    match &*kind.text()? {
        "text" => Ok(Block::Text(part.needed("text")?.text()?)),
        "image_url" => media::image(part),
        "input_audio" => media::audio(part),
        "file" => {
            Err(kind.place().unsupported("documents are not translated; send their text, or images of their pages"))
        }
        "video_url" => Err(kind.place().unsupported("videos are not translated; send images")),
        _ => Err(kind.place().expected("text, image_url or input_audio")),
    }
}

fn result_part<'a>(part: &Object<'a, '_>, kind: &Value<'a, '_>) -> Result<Block<'a>, Refusal> {
    match &*kind.text()? {
        "text" => Ok(Block::Text(part.needed("text")?.text()?)),
        "image_url" => media::image(part),
        _ => Err(kind.place().expected("text or image_url")),
    }
}

fn assistant_part<'a>(part: &Object<'a, '_>, kind: &Value<'a, '_>) -> Result<Block<'a>, Refusal> {
    match &*kind.text()? {
        "text" => Ok(Block::Text(part.needed("text")?.text()?)),
        "refusal" => Ok(Block::Text(part.needed("refusal")?.text()?)),
        _ => Err(kind.place().expected("text or refusal")),
    }
}
