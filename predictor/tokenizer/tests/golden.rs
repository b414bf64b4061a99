//! Requests become the token ids that vLLM's own code makes of them (`tests/data/make.py`), and what is remembered of earlier
//! prompts changes nothing.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokenizer::{Files, Tokenizer, Unfit};

/// The date that templates were told when the ids were made.
const NOW_UNIX_S: i64 = 1_735_689_599;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().split('\n').filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn tokenizer(name: &str) -> Tokenizer {
    let folder = data().join(name);
    Tokenizer::new(&Files {
        tokenizer: &fs::read(folder.join("tokenizer.json")).unwrap(),
        config: Some(&fs::read(folder.join("tokenizer_config.json")).unwrap()),
        chat_template: Some(&fs::read_to_string(folder.join("chat_template.jinja")).unwrap()),
    })
    .unwrap()
}

/// What vLLM made of a request: the number of ids, the first of them and the digest of all.
type Told = Option<(usize, Vec<u32>, String)>;

fn told(line: &str) -> Told {
    serde_json::from_str(line).unwrap()
}

fn telling(ids: &[u32]) -> Told {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let digest = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Some((ids.len(), ids.iter().take(24).copied().collect(), digest))
}

/// Twice, so that the second time everything is remembered.
fn ids_are_those_of_vllm(name: &str) {
    let tokenizer = tokenizer(name);
    assert!(tokenizer.has_chat_template());
    let expected = lines(&data().join(name).join("ids.jsonl"));
    let chats = lines(&data().join("chats.jsonl"));
    let prompts = lines(&data().join("prompts.jsonl"));
    assert_eq!(expected.len(), chats.len() + prompts.len());
    for round in ["first", "second"] {
        for (index, (chat, expected)) in chats.iter().zip(&expected).enumerate() {
            let Some(expected) = told(expected) else { continue };
            let tokens = tokenizer.chat(chat.as_bytes(), NOW_UNIX_S);
            let ids = tokens.map(|tokens| telling(&tokens.ids));
            let text = tokenizer.chat_text(chat.as_bytes(), NOW_UNIX_S);
            assert_eq!(ids, Ok(Some(expected)), "{name}, chat {index}, {round} time: {text:?}");
        }
        for (index, (prompt, expected)) in prompts.iter().zip(&expected[chats.len()..]).enumerate() {
            let tokens = tokenizer.completion(format!(r#"{{"model":"m","prompt":{prompt}}}"#).as_bytes()).unwrap();
            assert_eq!(telling(&tokens.ids), told(expected), "{name}, prompt {index}, {round} time");
        }
    }
}

#[test]
fn chat_ml_with_tools_and_thinking() {
    ids_are_those_of_vllm("chatml");
}

#[test]
fn headers_with_dates_and_images() {
    ids_are_those_of_vllm("headers");
}

#[test]
fn instructions_in_brackets() {
    ids_are_those_of_vllm("inst");
}

#[test]
fn roles_in_brackets_that_take_the_space_behind_them() {
    ids_are_those_of_vllm("roles");
}

#[test]
fn parts_with_images() {
    ids_are_those_of_vllm("vision");
}

#[test]
fn what_vllm_refuses_is_refused_or_has_no_place_for_its_images() {
    for name in ["chatml", "inst", "roles"] {
        let tokenizer = tokenizer(name);
        let expected = lines(&data().join(name).join("ids.jsonl"));
        let chats = lines(&data().join("chats.jsonl"));
        for (chat, _) in chats.iter().zip(&expected).filter(|(_, line)| told(line).is_none()) {
            let fault = tokenizer.chat(chat.as_bytes(), NOW_UNIX_S).unwrap_err();
            assert!(matches!(fault, Unfit::Refused | Unfit::Media), "{name}: {fault:?} for {chat}");
        }
    }
}

#[test]
fn a_conversation_tells_where_its_earlier_requests_ended() {
    for name in ["chatml", "headers", "inst", "vision"] {
        let tokenizer = tokenizer(name);
        let (mut messages, mut ends) = (Vec::new(), Vec::new());
        for turn in 0..12 {
            messages.push(serde_json::json!({ "role": "user", "content": format!("Question {turn}?") }));
            let body = serde_json::json!({ "messages": messages }).to_string();
            let tokens = tokenizer.chat(body.as_bytes(), NOW_UNIX_S).unwrap();
            ends.push(tokens.ids.len());
            // Places of another kind may stand between them: nothing is known of those.
            let last = &ends[ends.len().saturating_sub(3)..];
            assert!(last.iter().all(|end| tokens.turns.contains(end)), "{name}: {last:?} in {:?}", tokens.turns);
            assert_eq!(tokens.turns.last(), ends.last());
            messages.push(serde_json::json!({ "role": "assistant", "content": format!("Answer {turn}.") }));
        }
    }
}

#[test]
fn the_first_image_has_its_place() {
    let tokenizer = tokenizer("vision");
    let body = |url: &str| {
        let image = format!(r#"{{"type":"image_url","image_url":{{"url":"data:,{url}"}}}}"#);
        format!(r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"Look:"}},{image}]}}]}}"#)
    };
    let tokens = |url: &str| tokenizer.chat(body(url).as_bytes(), 0).unwrap();
    let text = r#"{"messages":[{"role":"user","content":"Look:"}],"add_generation_prompt":false}"#;
    let before = tokenizer.chat(text.as_bytes(), 0).unwrap();
    // What ends the message comes after.
    let with = tokens("a");
    let media = with.media.unwrap();
    assert_eq!((with.ids[..media.first].to_vec(), media.items), (before.ids[..media.first].to_vec(), 1));
    assert_ne!(with.ids[media.first], before.ids[media.first]);
    assert_eq!((before.media, tokens("a")), (None, with));
    assert_ne!(tokens("b").media.unwrap().digest, media.digest);
}
