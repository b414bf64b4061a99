//! A request as vLLM makes variables of a chat template of it (0.32: `vllm/renderers/chat_utils.py`, `online_renderer.py`).
//!
//! What vLLM refuses may come out as anything here: such a request gets no answer that could be cached.

use minijinja::value::Value;
use xxhash_rust::xxh3::Xxh3;

use crate::Unfit;
use crate::json::Json;
use crate::template::{Developer, NOW, Template};

/// Messages of a chat. The engine takes far fewer before its context is full.
const MESSAGES_MAX: usize = 100_000;
/// Marks the end of the last message while it is rendered (transformers' own mark).
const CONTINUED: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// A line that a client's tool puts before its system prompt, new with every request; vLLM drops it.
const BILLING: &str = "x-anthropic-billing-header";

/// The items of a chat that are not text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Media {
    /// How many there are.
    pub(crate) items: u32,
    /// A hash of all of them, in order.
    pub(crate) digest: u64,
}

impl Media {
    fn add(&mut self, item: &Json) {
        let mut hash = Xxh3::with_seed(self.digest);
        item.hash_into(&mut hash);
        self.digest = hash.digest();
        self.items = self.items.saturating_add(1);
    }
}

/// The text of the prompt, and the media whose placeholders stand in it.
pub(crate) fn render(
    template: &Template,
    tokens: &[(String, String)],
    body: &Json,
    now_unix_s: i64,
) -> Result<(String, Media), Unfit> {
    if body.given("chat_template").is_some() {
        return Err(Unfit::OwnTemplate);
    }
    let written = body.member("messages").and_then(Json::list).ok_or(Unfit::NotAChat)?;
    if written.is_empty() || written.len() > MESSAGES_MAX {
        return Err(Unfit::NotAChat);
    }
    let mut media = Media::default();
    let mut messages =
        written.iter().map(|m| message(m, template, &mut media)).collect::<Result<Vec<Message>, Unfit>>()?;
    if template.developer() == Developer::Unknown && messages.iter().any(|m| m.role == "developer") {
        developers_to_system(&mut messages);
    }
    let continued = body.member("continue_final_message").is_some_and(Json::is_true);
    let generated = body.member("add_generation_prompt").is_none_or(Json::is_true);
    if continued && generated {
        return Err(Unfit::NotAChat);
    }
    let last = if continued { Some(mark_last(template, &mut messages)?) } else { None };
    let variables = variables(tokens, body, &messages, generated, now_unix_s)?;
    let text = template.render(variables).map_err(|_| Unfit::Refused)?;
    match last {
        Some(last) => Ok((cut_at_mark(&text, &last)?, media)),
        None => Ok((text, media)),
    }
}

fn variables(
    tokens: &[(String, String)],
    body: &Json,
    messages: &[Message],
    generated: bool,
    now_unix_s: i64,
) -> Result<Value, Unfit> {
    let mut variables: Vec<(&str, Value)> = vec![(NOW, Value::from(now_unix_s))];
    variables.extend(tokens.iter().map(|(name, text)| (name.as_str(), Value::from(text.as_str()))));
    variables.push(("documents", Value::from(())));
    variables.push(("tools", tools(body)?));
    let own = body.given("chat_template_kwargs").and_then(Json::map).unwrap_or_default();
    if own.iter().any(|(key, _)| matches!(key.as_str(), "chat_template" | "tokenize" | "messages")) {
        return Err(Unfit::OwnTemplate);
    }
    let is_set = |value: &Json| *value != Json::Null && value.text() != Some("auto");
    variables.extend(own.iter().filter(|(_, value)| is_set(value)).map(|(key, value)| (key.as_str(), value.value())));
    if let Some(effort) = body.given("reasoning_effort") {
        if !own.iter().any(|(key, _)| key == "enable_thinking") {
            variables.push(("enable_thinking", Value::from(effort.text() != Some("none"))));
        }
        variables.push(("reasoning_effort", effort.value()));
    }
    if let Some(documents) = body.given("documents") {
        variables.push(("documents", documents.value()));
    }
    variables.push(("add_generation_prompt", Value::from(generated)));
    variables.push(("messages", messages.iter().map(Message::value).collect()));
    Ok(Value::from_pairs(variables))
}

/// A message as the template sees it.
struct Message {
    role: String,
    content: Content,
    /// Everything else, in vLLM's order.
    more: Vec<(&'static str, Json)>,
}

enum Content {
    Text(String),
    Parts(Vec<Vec<(String, Json)>>),
}

impl Message {
    fn value(&self) -> Value {
        let content = match &self.content {
            Content::Text(text) => Value::from(text.as_str()),
            Content::Parts(parts) => parts
                .iter()
                .map(|part| Value::from_pairs(part.iter().map(|(key, value)| (key.as_str(), value.value()))))
                .collect(),
        };
        let first = [("role", Value::from(self.role.as_str())), ("content", content)];
        Value::from_pairs(first.into_iter().chain(self.more.iter().map(|(key, value)| (*key, value.value()))))
    }
}

fn message(written: &Json, template: &Template, media: &mut Media) -> Result<Message, Unfit> {
    let role = written.member("role").and_then(Json::text).ok_or(Unfit::NotAChat)?;
    let content = content(written, role, template, media)?;
    let mut message = Message { role: role.to_owned(), content, more: Vec::new() };
    match role {
        "assistant" => {
            if let Some(calls) = written.given("tool_calls") {
                let calls = calls.list().ok_or(Unfit::NotAChat)?;
                if !calls.is_empty() {
                    let calls = calls.iter().map(tool_call).collect::<Result<_, _>>()?;
                    message.more.push(("tool_calls", Json::List(calls)));
                }
            }
            if let Some(reasoning) = written.given("reasoning").or_else(|| written.given("reasoning_content")) {
                message.more.push(("reasoning", reasoning.clone()));
                message.more.push(("reasoning_content", reasoning.clone()));
            }
        }
        "tool" => {
            if let Some(id) = written.member("tool_call_id") {
                message.more.push(("tool_call_id", id.clone()));
            }
            message.content = result_as_text(message.content);
        }
        _ => {}
    }
    for key in ["name", "task"] {
        if let Some(value) = written.member(key).filter(|value| value.text().is_some()) {
            message.more.push((key, value.clone()));
        }
    }
    if role == "developer" {
        message.more.push(("tools", written.member("tools").cloned().unwrap_or(Json::Null)));
    }
    Ok(message)
}

/// The result of a tool: parts that are all text become one text.
fn result_as_text(content: Content) -> Content {
    let Content::Parts(parts) = content else { return content };
    let member = |part: &[(String, Json)], key: &str| {
        part.iter().find(|(name, _)| name == key).and_then(|(_, value)| value.text()).unwrap_or_default().to_owned()
    };
    if parts.iter().any(|part| member(part, "type") != "text") {
        return Content::Parts(parts);
    }
    Content::Text(parts.iter().map(|part| member(part, "text")).collect::<Vec<_>>().join("\n"))
}

fn content(written: &Json, role: &str, template: &Template, media: &mut Media) -> Result<Content, Unfit> {
    let mut parts: Vec<Vec<(String, Json)>> = Vec::new();
    let text_part = |text: &str| vec![own("type", "text"), own("text", text)];
    match written.member("content") {
        None | Some(Json::Null) => {}
        Some(Json::Text(text)) => parts.push(text_part(text)),
        Some(Json::List(list)) => {
            for element in list {
                match element {
                    Json::Text(text) => parts.push(text_part(text)),
                    Json::Map(members) => parts.extend(part(element, members, media)?),
                    Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::List(_) => {
                        return Err(Unfit::NotAChat);
                    }
                }
            }
        }
        Some(Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::Map(_)) => return Err(Unfit::NotAChat),
    }
    if role == "system" {
        parts = without_billing(parts);
    }
    match template.format() {
        crate::format::ContentFormat::Parts => Ok(Content::Parts(parts)),
        crate::format::ContentFormat::Text => texts_joined(&parts).map(Content::Text),
    }
}

/// Parts as one text, a line each; empty ones leave no line.
fn texts_joined(parts: &[Vec<(String, Json)>]) -> Result<String, Unfit> {
    let mut lines = Vec::with_capacity(parts.len());
    for part in parts {
        let member = |key: &str| part.iter().find(|(name, _)| name == key).and_then(|(_, value)| value.text());
        match member("type") {
            Some("text") => lines.push(member("text").unwrap_or_default()),
            Some("tool_reference") => lines.push(member("name").unwrap_or_default()),
            // The engine puts its model's own placeholder there, which no file of the tokenizer tells.
            Some(_) | None => return Err(Unfit::Media),
        }
    }
    lines.retain(|line| !line.is_empty());
    Ok(lines.join("\n"))
}

fn own(key: &str, text: &str) -> (String, Json) {
    (key.to_owned(), Json::Text(text.to_owned()))
}

/// Members of parts that have a meaning for vLLM; all others are handed to the template.
const PART_MEMBERS: [&str; 21] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "detail",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "prompt_embeds",
    "refusal",
    "text",
    "thinking",
    "tool_reference",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];

/// One part of a message's content; `None` where vLLM passes over it.
fn part(written: &Json, members: &[(String, Json)], media: &mut Media) -> Result<Option<Vec<(String, Json)>>, Unfit> {
    let extra = members.iter().filter(|(key, _)| !PART_MEMBERS.contains(&key.as_str())).cloned();
    let kind = match written.given("type").and_then(Json::text) {
        Some(kind) => kind,
        // A part without a type is what its member says.
        None => ["image_url", "audio_url", "input_audio", "video_url"]
            .into_iter()
            .find(|key| written.member(key).is_some())
            .ok_or(Unfit::NotAChat)?,
    };
    let text = match kind {
        "text" | "input_text" | "output_text" => written.member("text"),
        "thinking" => written.member("thinking"),
        "refusal" => written.member("refusal"),
        "tool_reference" => {
            let name = written.member("name").and_then(Json::text).ok_or(Unfit::NotAChat)?;
            return Ok(Some(vec![own("type", "tool_reference"), own("name", name)]));
        }
        other => {
            let modality = match other {
                "image_url" | "input_image" | "image_embeds" => "image",
                "audio_url" | "input_audio" | "audio_embeds" => "audio",
                "video_url" | "video_embeds" => "video",
                _ => return Err(Unfit::NotAChat),
            };
            media.add(written);
            return Ok(Some(std::iter::once(own("type", modality)).chain(extra).collect()));
        }
    };
    match text {
        None | Some(Json::Null) if matches!(kind, "text" | "refusal") => Ok(None),
        Some(Json::Text(text)) => Ok(Some([own("type", "text"), own("text", text)].into_iter().chain(extra).collect())),
        _ => Err(Unfit::NotAChat),
    }
}

fn without_billing(parts: Vec<Vec<(String, Json)>>) -> Vec<Vec<(String, Json)>> {
    parts
        .into_iter()
        .filter_map(|mut part| {
            let (_, text) = part.iter_mut().find(|(key, _)| key == "text")?;
            if let Some(said) = text.text().filter(|said| said.starts_with(BILLING)) {
                let rest = said.split_once('\n').map_or("", |(_, rest)| rest).to_owned();
                if rest.is_empty() {
                    return None;
                }
                *text = Json::Text(rest);
            }
            Some(part)
        })
        .collect()
}

/// The members of an object, those named first and in that order, then the others as they came.
fn ordered(members: &[(String, Json)], first: &[&str]) -> Vec<(String, Json)> {
    let known = first.iter().filter_map(|name| members.iter().find(|(key, _)| key == name));
    let others = members.iter().filter(|(key, _)| !first.contains(&key.as_str()));
    known.chain(others).cloned().collect()
}

/// A call of a tool, its arguments as an object.
fn tool_call(written: &Json) -> Result<Json, Unfit> {
    let members = written.map().ok_or(Unfit::NotAChat)?;
    let mut call = ordered(members, &["id", "function", "type"]);
    let (_, function) = call.iter_mut().find(|(key, _)| key == "function").ok_or(Unfit::NotAChat)?;
    let mut members = ordered(function.map().ok_or(Unfit::NotAChat)?, &["arguments", "name"]);
    let arguments = match members.iter().find(|(key, _)| key == "arguments").map(|(_, value)| value) {
        Some(Json::Text(text)) => Json::parse(text.as_bytes()).filter(|value| value.map().is_some()),
        Some(Json::Map(members)) => Some(Json::Map(members.clone())),
        Some(Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::List(_)) | None => None,
    }
    .unwrap_or_else(|| Json::Map(Vec::new()));
    match members.iter_mut().find(|(key, _)| key == "arguments") {
        Some((_, value)) => *value = arguments,
        None => members.push((String::from("arguments"), arguments)),
    }
    *function = Json::Map(members);
    Ok(Json::Map(call))
}

/// The tools of a request as vLLM's own type writes them out again: its members, in its order.
fn tools(body: &Json) -> Result<Value, Unfit> {
    let Some(tools) = body.given("tools") else { return Ok(Value::from(())) };
    let written = tools.list().ok_or(Unfit::NotAChat)?;
    let shown = written.iter().map(|tool| {
        let function = tool.given("function")?;
        let mut members = vec![(String::from("name"), function.member("name")?.clone())];
        for key in ["description", "parameters"] {
            members.push((key.to_owned(), function.member(key).cloned().unwrap_or(Json::Null)));
        }
        let deferred = tool.given("defer_loading");
        members.extend(function.given("strict").map(|strict| (String::from("strict"), strict.clone())));
        let inner = function.given("defer_loading").or(deferred);
        members.extend(inner.map(|is| (String::from("defer_loading"), is.clone())));
        let mut shown = vec![own("type", "function"), (String::from("function"), Json::Map(members))];
        shown.extend(deferred.map(|is| (String::from("defer_loading"), is.clone())));
        Some(Json::Map(shown).value())
    });
    shown.collect::<Option<Value>>().ok_or(Unfit::NotAChat)
}

/// Developers speak as the system where a template does not know them, and all that the system says then stands first.
fn developers_to_system(messages: &mut Vec<Message>) {
    for message in messages.iter_mut().filter(|message| message.role == "developer") {
        message.role = String::from("system");
        message.more.retain(|(key, _)| *key != "tools");
    }
    let systems = messages.iter().enumerate().filter(|(_, message)| message.role == "system");
    if systems.map(|(place, _)| place).eq([0]) {
        return;
    }
    let said: Vec<String> = messages
        .iter()
        .filter(|message| message.role == "system")
        .map(|message| match &message.content {
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => {
                let texts = parts.iter().filter_map(|part| part.iter().find(|(key, _)| key == "text")?.1.text());
                texts.collect::<Vec<_>>().join("\n")
            }
        })
        .filter(|text| !text.is_empty())
        .collect();
    messages.retain(|message| message.role != "system");
    let all = Message { role: String::from("system"), content: Content::Text(said.join("\n\n")), more: Vec::new() };
    messages.insert(0, all);
}

/// Puts the mark behind the last message; returns what was said there.
fn mark_last(template: &Template, messages: &mut [Message]) -> Result<String, Unfit> {
    let last = messages.last_mut().filter(|_| template.names_content()).ok_or(Unfit::Refused)?;
    let said = match &mut last.content {
        Content::Text(text) => text,
        Content::Parts(parts) => {
            let texts = parts.iter_mut().rev().filter_map(|part| part.iter_mut().find(|(key, _)| key == "text"));
            match texts.map(|(_, text)| text).next() {
                Some(Json::Text(text)) => text,
                Some(Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::List(_) | Json::Map(_))
                | None => return Err(Unfit::Refused),
            }
        }
    };
    let before = said.clone();
    said.push_str(CONTINUED);
    Ok(before)
}

/// The text up to the mark, as transformers cuts it.
fn cut_at_mark(text: &str, said: &str) -> Result<String, Unfit> {
    let mark = CONTINUED.trim_end();
    let at = text.rfind(mark).filter(|_| text.contains(said.trim_matches(crate::python::is_space)));
    let at = at.ok_or(Unfit::Refused)?;
    match text[at..].starts_with(CONTINUED) {
        true => Ok(text[..at].to_owned()),
        false => Ok(text[..at].trim_end_matches(crate::python::is_space).to_owned()),
    }
}
