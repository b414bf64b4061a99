//! The text of prompts: every interface's way of writing it, the prefix chain, the classifiers.

use std::sync::LazyLock;

use config::{Lookup, SourceFile};
use lb::probe::Taggers;
use lb::probe::openai::{self, Said};
use policy::Api;
use predictor::prefix::chain::Chain;

use crate::json::Json;

/// The pieces of a prompt are those of a strict parser's tree, so that nothing said is missed; the chain does not depend on
/// the memory it is made in, and grows without changing when a message is appended.
pub fn prompt(data: &[u8]) {
    let api = Api::ChatCompletions;
    let Some(pieces) = openai::prompt(api, b"", data) else { return };
    let fresh = openai::chain(api, b"", data, Chain::default()).expect("what was read has a chain");
    let mut other = b"{\"model\":\"m\",\"prompt\":\"".to_vec();
    other.resize(3_000, b'x');
    other.extend(b"\"}");
    let used = openai::chain(api, b"", &other, Chain::default()).expect("a prompt has a chain");
    let recycled = openai::chain(api, b"", data, used).expect("what was read has a chain");
    assert_eq!((fresh.blocks(), fresh.bytes()), (recycled.blocks(), recycled.bytes()), "old memory shows");
    if let Some(of_alice) = openai::conversation(data, "alice") {
        assert_eq!(openai::conversation(data, "alice"), Some(of_alice), "the same request is another conversation");
        assert_ne!(openai::conversation(data, "bob"), Some(of_alice), "two callers share a conversation");
    }
    let Some(json) = Json::parse(data).filter(|json| json.members().is_some()) else { return };
    // How little is no tool at all is told by length there, by content here.
    let holds_tools = |tools: &Json| match tools {
        Json::Array(list) => !list.is_empty(),
        Json::Object(members) => !members.is_empty(),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    };
    if json.member("tools").is_some_and(|tools| !holds_tools(tools)) {
        return;
    }
    let mut want = Vec::new();
    slow_prompt(&json, &mut want);
    let same = pieces.len() == want.len() && pieces.iter().zip(&want).all(|(found, want)| want.is(found));
    assert!(same, "the pieces of the prompt:\n{pieces:?}\n{want:?}");
}

/// A piece as a tree has it.
#[derive(Debug, PartialEq)]
enum Slow {
    By(&'static str),
    Text(String),
    Raw(Json),
    Item(&'static str, Json),
    TokenIds(Json),
}

impl Slow {
    fn is(&self, said: &Said) -> bool {
        let same = |raw: &[u8], json: &Json| match json {
            // Strings stand without their quotes.
            Json::String(text) => openai::unescape(raw) == *text,
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
                Json::parse(raw).as_ref() == Some(json)
            }
        };
        match (self, said) {
            (Self::By(role), Said::By(by)) => role == by,
            (Self::Text(text), Said::Text(found)) => text == found,
            (Self::Raw(json), Said::Raw(raw)) | (Self::TokenIds(json), Said::TokenIds(raw)) => same(raw, json),
            (Self::Item(kind, json), Said::Item(found, raw)) => kind == found && same(raw, json),
            (Self::By(_) | Self::Text(_) | Self::Raw(_) | Self::Item(..) | Self::TokenIds(_), _) => false,
        }
    }
}

/// The pieces in order. Of repeated names at the top the last counts, but what is ranked or scored is all read.
fn slow_prompt(json: &Json, to: &mut Vec<Slow>) {
    if let Some(tools) = json.member("tools") {
        to.extend([Slow::By("Tools"), Slow::Raw(tools.clone())]);
    }
    for name in ["system", "instructions"] {
        if let Some(system) = json.member(name).filter(|system| **system != Json::Null) {
            to.push(Slow::By("System"));
            slow_content(system, ("System", 0), to);
        }
    }
    const TEXTS: [&str; 8] = ["documents", "query", "queries", "items", "text_1", "text_2", "data_1", "data_2"];
    for (_, value) in json.effective().into_iter().filter(|(key, _)| TEXTS.contains(key)) {
        slow_turns(value, to);
    }
    for value in ["messages", "prompt", "input"].into_iter().filter_map(|name| json.member(name)) {
        slow_turns(value, to);
    }
    if let Some(tokens) = json.member("tokens") {
        to.extend([Slow::By("User"), Slow::TokenIds(tokens.clone())]);
    }
}

/// An array of token ids begins with one.
fn is_token_ids(value: &Json) -> bool {
    matches!(value.elements(), Some([Json::Number(number), ..]) if !number.to_string().starts_with('-'))
}

fn slow_turns(value: &Json, to: &mut Vec<Slow>) {
    match value {
        Json::String(text) => to.extend([Slow::By("User"), Slow::Text(text.clone())]),
        Json::Array(_) if is_token_ids(value) => to.extend([Slow::By("User"), Slow::TokenIds(value.clone())]),
        Json::Array(list) => {
            for element in list {
                match element {
                    Json::Object(_) => slow_message(element, to),
                    Json::Array(_) if is_token_ids(element) => {
                        to.extend([Slow::By("User"), Slow::TokenIds(element.clone())]);
                    }
                    Json::String(text) => to.extend([Slow::By("User"), Slow::Text(text.clone())]),
                    Json::Array(_) | Json::Null | Json::Bool(_) | Json::Number(_) => {
                        to.push(Slow::Raw(element.clone()));
                    }
                }
            }
        }
        Json::Object(_) => slow_message(value, to),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

fn slow_message(message: &Json, to: &mut Vec<Slow>) {
    let role = match message.member("role").and_then(Json::text).unwrap_or_default() {
        "system" | "developer" => "System",
        "assistant" => "Assistant",
        "tool" | "function" => "Tool",
        _ => "User",
    };
    let output = message.member("output").filter(|output| **output != Json::Null);
    let (said, role) = (message.member("content"), if output.is_some() { "Tool" } else { role });
    let calls: Vec<&Json> =
        ["tool_calls", "function_call", "arguments"].into_iter().filter_map(|name| message.member(name)).collect();
    to.push(Slow::By(role));
    if said.is_none() && output.is_none() && calls.is_empty() {
        to.push(Slow::Raw(message.clone()));
    }
    for value in [said, output].into_iter().flatten() {
        slow_content(value, (role, 0), to);
    }
    to.extend(calls.into_iter().filter(|calls| **calls != Json::Null).map(|calls| Slow::Raw(calls.clone())));
}

/// Lists of parts are looked into so deep.
const DEPTH_MAX: u32 = 4;

fn slow_content(value: &Json, (role, depth): (&'static str, u32), to: &mut Vec<Slow>) {
    match value {
        Json::String(text) => to.push(Slow::Text(text.clone())),
        Json::Array(_) if depth == DEPTH_MAX => to.push(Slow::Raw(value.clone())),
        Json::Array(parts) => {
            for part in parts {
                match part {
                    Json::String(text) => to.push(Slow::Text(text.clone())),
                    Json::Object(_) => slow_part(part, (role, depth), to),
                    Json::Array(_) | Json::Null | Json::Bool(_) | Json::Number(_) => to.push(Slow::Raw(part.clone())),
                }
            }
        }
        Json::Object(_) => to.push(Slow::Raw(value.clone())),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

fn slow_part(part: &Json, (role, depth): (&'static str, u32), to: &mut Vec<Slow>) {
    let kind = part.member("type").and_then(Json::text).unwrap_or_default();
    let texts: Vec<&str> = ["text", "thinking"].into_iter().filter_map(|name| part.member(name)?.text()).collect();
    match (kind, texts.is_empty(), part.member("content")) {
        ("image_url" | "image" | "input_image", _, _) => to.push(Slow::Item("image", part.clone())),
        ("input_audio" | "audio_url" | "audio", _, _) => to.push(Slow::Item("audio", part.clone())),
        ("tool_use", true, None) => to.push(Slow::Raw(part.clone())),
        (_, true, None) => to.push(Slow::Item("other", part.clone())),
        (_, _, nested) => {
            to.extend(texts.into_iter().map(|text| Slow::Text(text.to_owned())));
            if let Some(nested) = nested.filter(|nested| **nested != Json::Null) {
                to.push(Slow::By("Tool"));
                slow_content(nested, ("Tool", depth + 1), to);
                // What follows is the speaker's again.
                to.push(Slow::By(role));
            }
        }
    }
}

/// A pool whose rules ask for every kind of tag.
static TAGGERS: LazyLock<Taggers> = LazyLock::new(|| {
    let file = SourceFile::new("tags.yaml", include_str!("tags.yaml"));
    let loaded = config::load(&[file], &Lookup::Skip).expect("the classifiers are well formed");
    Taggers::new(&loaded.snapshot)
});

/// The tags of a text do not depend on how its JSON is escaped, nor on what was read before.
pub fn tags(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let plain = serde_json::to_string(&*text).expect("text is JSON");
    let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    let of = |content: &str| {
        let body = format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":{content}}}]}}");
        TAGGERS.tags(Api::ChatCompletions, b"application/json", body.as_bytes())
    };
    let first = of(&plain);
    assert_eq!(of(&format!("\"{escaped}\"")), first, "escapes hide something");
    of("\"Mail jane.doe@example.com, card 4111 1111 1111 1111\"");
    assert_eq!(of(&plain), first, "what was read before shows");
}
