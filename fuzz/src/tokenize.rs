//! Bodies of requests in exact mode, whose messages go through a chat template and a tokenizer.

use std::sync::OnceLock;

use serde_json::json;
use tokenizer::{Files, Tokenizer};

/// A date for templates that show one.
const NOW_UNIX_S: i64 = 1_735_689_599;

fn tokenizers() -> &'static [Tokenizer; 2] {
    static BOTH: OnceLock<[Tokenizer; 2]> = OnceLock::new();
    BOTH.get_or_init(|| {
        let tokenizer = include_bytes!("../../predictor/tokenizer/tests/data/chatml/tokenizer.json");
        let templates = [
            include_str!("../../predictor/tokenizer/tests/data/chatml/chat_template.jinja"),
            include_str!("../../predictor/tokenizer/tests/data/vision/chat_template.jinja"),
        ];
        templates.map(|template| {
            let files = Files { tokenizer, config: None, chat_template: Some(template) };
            Tokenizer::new(&files).unwrap_or_else(|unusable| panic!("{unusable}"))
        })
    })
}

/// No body stops it; a chat has the tokens of the text that it becomes; what is remembered changes nothing.
pub fn tokenize(bytes: &[u8]) {
    for tokenizer in tokenizers() {
        let _ = tokenizer.completion(bytes);
        let Ok(first) = tokenizer.chat(bytes, NOW_UNIX_S) else { continue };
        assert_eq!(tokenizer.chat(bytes, NOW_UNIX_S).as_ref(), Ok(&first));
        let asked: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
        let framed = asked["add_special_tokens"] == true;
        let text = tokenizer.chat_text(bytes, NOW_UNIX_S).unwrap_or_else(|unfit| panic!("{unfit:?}"));
        let prompt = json!({ "prompt": text, "add_special_tokens": framed }).to_string();
        assert_eq!(tokenizer.completion(prompt.as_bytes()).map(|tokens| tokens.ids), Ok(first.ids));
    }
}
