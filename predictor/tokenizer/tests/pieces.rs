//! A text cut at its special tokens and put together again has the tokens of the whole text: with every tokenizer, whatever
//! the text, and whatever was seen before.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use proptest::prelude::*;
use tokenizer::{Files, Tokenizer};
use tokenizers::Tokenizer as HfTokenizer;

const NAMES: [&str; 4] = ["chatml", "headers", "inst", "roles"];

/// Ours, that of the library, and the texts of its special tokens.
struct Pair {
    ours: Tokenizer,
    whole: HfTokenizer,
    special: Vec<String>,
}

fn pairs() -> &'static [Pair] {
    static PAIRS: OnceLock<Vec<Pair>> = OnceLock::new();
    PAIRS.get_or_init(|| NAMES.map(pair).into_iter().collect())
}

fn pair(name: &str) -> Pair {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name).join("tokenizer.json");
    let bytes = fs::read(file).unwrap();
    let whole = HfTokenizer::from_bytes(&bytes).unwrap();
    let mut special: Vec<String> = whole.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    special.sort();
    Pair { ours: Tokenizer::new(&Files { tokenizer: &bytes, ..Files::default() }).unwrap(), whole, special }
}

/// What a text is made of: places in the list of special tokens, or text.
#[derive(Clone, Debug)]
enum Bit {
    Special(usize),
    Broken(usize, usize),
    Text(String),
}

fn bits() -> impl Strategy<Value = Vec<Bit>> {
    let texts = [
        " ",
        "  ",
        "\n",
        "\n\n ",
        "\t",
        "a",
        "word",
        " word",
        "gateway",
        "Gateway's",
        "latency",
        "é",
        "e\u{301}",
        "日本語",
        "🙂",
        "\u{a0}",
        "12345",
        "<",
        "|",
        ">",
        "[",
        "]",
        "/",
        "_",
        "▁",
        "\r\n",
        "…",
        "\u{200b}",
        "<0x0A>",
    ];
    let bit = prop_oneof![
        2 => (0..64_usize).prop_map(Bit::Special),
        1 => (0..64_usize, 1..9_usize).prop_map(|(token, bytes)| Bit::Broken(token, bytes)),
        5 => prop::sample::select(texts.to_vec()).prop_map(|text| Bit::Text(text.to_owned())),
        1 => "\\PC{0,12}".prop_map(Bit::Text),
    ];
    prop::collection::vec(bit, 0..30)
}

fn text_of(bits: &[Bit], special: &[String]) -> String {
    bits.iter()
        .map(|bit| match bit {
            Bit::Special(token) => special[token % special.len()].clone(),
            Bit::Broken(token, bytes) => {
                let token = &special[token % special.len()];
                token[..token.floor_char_boundary(token.len().saturating_sub(*bytes))].to_owned()
            }
            Bit::Text(text) => text.clone(),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn pieces_are_the_whole(bits in bits()) {
        for pair in pairs() {
            let text = text_of(&bits, &pair.special);
            let whole = pair.whole.encode(text.as_str(), false).unwrap();
            let body = serde_json::json!({ "prompt": text, "add_special_tokens": false }).to_string();
            let ours = pair.ours.completion(body.as_bytes()).map(|tokens| tokens.ids);
            prop_assert_eq!(ours.as_deref(), Ok(whole.get_ids()), "{:?}", text);
        }
    }

    #[test]
    fn no_body_stops_it(body in "\\PC{0,80}") {
        let pair = &pairs()[0];
        let _ = pair.ours.chat(body.as_bytes(), 0);
        let _ = pair.ours.completion(body.as_bytes());
    }
}

#[test]
fn no_part_of_a_long_run_is_lost() {
    // The two whose tokens are all there is of a text.
    for pair in &pairs()[..2] {
        for run in [" ", "a", "\n", " a", "1", "é", "<"] {
            let text = run.repeat(20_000);
            let body = serde_json::json!({ "prompt": text, "add_special_tokens": false }).to_string();
            let ids = pair.ours.completion(body.as_bytes()).unwrap().ids;
            assert!(pair.whole.decode(&ids, false).unwrap() == text, "a run of {run:?} is not whole");
        }
    }
}

#[test]
fn lists_of_ids_and_of_one_text_are_prompts_and_others_are_not() {
    let ours = &pairs()[0].ours;
    let ids = |prompt: &str| ours.completion(format!(r#"{{"prompt":{prompt}}}"#).as_bytes()).map(|tokens| tokens.ids);
    assert_eq!(ids("[1, 2, 3]").unwrap(), [1, 2, 3]);
    assert_eq!(ids("[[1, 2, 3]]").unwrap(), [1, 2, 3]);
    assert_eq!(ids(r#"["a b"]"#), ids(r#""a b""#));
    for prompt in ["[]", "[[]]", r#"["a", "b"]"#, "[[1], [2]]", "[-1]", "[1.5]", "7", "null", "{}"] {
        assert!(ids(prompt).is_err(), "{prompt}");
    }
    assert!(ours.completion(br#"{"prompt":"a","suffix":"b"}"#).is_err());
}

#[test]
fn what_cannot_be_used_says_where() {
    let tokenizer = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/inst/tokenizer.json")).unwrap();
    let fault = |files: Files<'_>| Tokenizer::new(&files).unwrap_err().to_string();
    assert!(fault(Files { tokenizer: b"{}", ..Files::default() }).starts_with("the tokenizer: "));
    assert!(
        fault(Files { tokenizer: &tokenizer, config: Some(b"[]"), ..Files::default() })
            .starts_with("tokenizer_config.json: ")
    );
    let template = Some("{% for %}");
    let told = fault(Files { tokenizer: &tokenizer, chat_template: template, ..Files::default() });
    assert!(told.starts_with("the chat template: line 1: "), "{told}");
}
