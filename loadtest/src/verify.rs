//! Whether an answer is right: its structure always, every byte of its text when the target is the simulated engine.

use std::borrow::Cow;

use engine::{
    openai,
    text::{Answer, TOKEN_BYTES},
};
use serde::Deserialize;

use crate::workload::{AnswerText, Api, Ask, Delivery};

/// How closely answers are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Strictness {
    /// Well-formed, complete, with sane usage.
    Structure,
    /// Also: text and token counts exactly as the simulated engine makes them.
    Engine,
}

/// An event or a body; only what is looked at.
#[derive(Debug, Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<TokenCounts>,
    #[serde(default)]
    error: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    delta: Option<Content<'a>>,
    #[serde(borrow, default)]
    message: Option<Content<'a>>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
struct TokenCounts {
    prompt_tokens: u64,
    total_tokens: u64,
    completion_tokens: u64,
    #[serde(default)]
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
struct PromptTokensDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

/// What an event brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Text of the answer.
    Text,
    /// An error instead of more answer.
    Error,
    /// Anything else: role, usage, end.
    Other,
}

/// What is wrong with an answer, in words.
pub type Fault = String;

/// Follows one answer.
#[derive(Debug)]
pub struct Check {
    delivery: Delivery,
    output_tokens: u32,
    /// The prompt, when every byte is to be checked.
    prompt: Option<Vec<u32>>,
    answer: Option<Answer>,
    text_bytes: usize,
    /// The whole text, when the conversation goes on.
    text: Option<String>,
    usage: Option<TokenCounts>,
    finished: bool,
    done: bool,
}

impl Check {
    /// Prepares for the answer to a request.
    pub fn new(strictness: Strictness, api: Api, ask: &Ask) -> Self {
        let prompt = match strictness {
            Strictness::Structure => None,
            Strictness::Engine => {
                let api = match api {
                    Api::Chat => openai::Api::Chat,
                    Api::Completions => openai::Api::Completions,
                };
                openai::prompt_of(api, &ask.body)
            }
        };
        Self {
            delivery: ask.delivery,
            output_tokens: ask.output_tokens,
            prompt,
            answer: None,
            text_bytes: 0,
            text: (ask.answer_text == AnswerText::Kept).then(String::new),
            usage: None,
            finished: false,
            done: false,
        }
    }

    /// Text collected for the next turn of a conversation.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Prompt, cached and answer tokens as the answer reports them.
    pub fn reported(&self) -> Option<(u64, u64, u64)> {
        let usage = self.usage?;
        let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
        Some((usage.prompt_tokens, cached, usage.completion_tokens))
    }

    /// Takes the data of an event.
    pub fn event(&mut self, data: &[u8]) -> Result<Seen, Fault> {
        if self.done {
            return Err("an event after [DONE]".to_owned());
        }
        if data == b"[DONE]" {
            self.done = true;
            return Ok(Seen::Other);
        }
        self.message(data)
    }

    /// Takes the body of an answer that was not streamed.
    pub fn body(&mut self, body: &[u8]) -> Result<Seen, Fault> {
        self.message(body)
    }

    fn message(&mut self, json: &[u8]) -> Result<Seen, Fault> {
        let message: Message<'_> = serde_json::from_slice(json).map_err(|error| format!("not an answer: {error}"))?;
        if message.error.is_some() {
            return Ok(Seen::Error);
        }
        if message.usage.is_some() {
            self.usage = message.usage;
        }
        let mut seen = Seen::Other;
        for choice in &message.choices {
            self.finished |= choice.finish_reason.is_some();
            let nested = choice.delta.as_ref().or(choice.message.as_ref()).and_then(|part| part.content.as_deref());
            let text = nested.or(choice.text.as_deref()).unwrap_or_default();
            if !text.is_empty() {
                seen = Seen::Text;
                self.check_text(message.model.as_deref().unwrap_or_default(), text)?;
            }
        }
        Ok(seen)
    }

    fn check_text(&mut self, model: &str, text: &str) -> Result<(), Fault> {
        if let Some(prompt) = &self.prompt {
            let answer = *self.answer.get_or_insert_with(|| Answer::new(model, prompt));
            for (at, byte) in (self.text_bytes..).zip(text.bytes()) {
                let position = u32::try_from(at / TOKEN_BYTES).unwrap_or(u32::MAX);
                let expected = answer.token(position);
                if expected.as_str().as_bytes()[at % TOKEN_BYTES] != byte {
                    return Err(format!("text differs at byte {at}: {:?} expected in {text:?}", expected.as_str()));
                }
            }
        }
        self.text_bytes += text.len();
        if let Some(collected) = &mut self.text {
            collected.push_str(text);
        }
        Ok(())
    }

    /// The last word, after the HTTP message has ended properly.
    pub fn end(&self) -> Result<(), Fault> {
        if self.delivery == Delivery::Stream && !self.done {
            return Err("the stream ended without [DONE]".to_owned());
        }
        if !self.finished {
            return Err("no finish_reason".to_owned());
        }
        let Some(usage) = self.usage else { return Err("no usage".to_owned()) };
        if usage.prompt_tokens + usage.completion_tokens != usage.total_tokens || usage.prompt_tokens == 0 {
            return Err(format!("usage does not add up: {usage:?}"));
        }
        if usage.completion_tokens > u64::from(self.output_tokens) {
            return Err(format!("{} tokens where {} are the limit", usage.completion_tokens, self.output_tokens));
        }
        if let Some(prompt) = &self.prompt {
            let expected = (prompt.len() as u64, u64::from(self.output_tokens));
            if (usage.prompt_tokens, usage.completion_tokens) != expected {
                return Err(format!("usage is {usage:?}, not {expected:?}"));
            }
            if self.text_bytes != self.output_tokens as usize * TOKEN_BYTES {
                return Err(format!("{} bytes of text for {} tokens", self.text_bytes, self.output_tokens));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"messages":[{"role":"user","content":"Hi"}]}"#;

    fn check(strictness: Strictness, delivery: Delivery) -> Check {
        let ask = Ask {
            body: BODY.to_vec(),
            delivery,
            output_tokens: 2,
            answer_text: AnswerText::Dropped,
            conversation: None,
        };
        Check::new(strictness, Api::Chat, &ask)
    }

    fn text_event(text: &str, finish: &str) -> Vec<u8> {
        let text = serde_json::Value::from(text);
        format!(r#"{{"model":"m","choices":[{{"delta":{{"content":{text}}},"finish_reason":{finish}}}]}}"#).into_bytes()
    }

    fn usage_event(prompt: usize) -> Vec<u8> {
        let total = prompt + 2;
        format!(r#"{{"choices":[],"usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":2}}}}"#)
            .into_bytes()
    }

    fn prompt() -> Vec<u32> {
        openai::prompt_of(openai::Api::Chat, BODY).unwrap()
    }

    #[test]
    fn the_right_text_is_right_however_it_is_cut() {
        let answer = Answer::new("m", &prompt()).text(2);
        let mut check = check(Strictness::Engine, Delivery::Stream);
        // Cuts between any characters but the last: the finish comes with it.
        let last = answer.char_indices().next_back().unwrap().0;
        for character in answer[..last].chars() {
            assert_eq!(check.event(&text_event(&character.to_string(), "null")), Ok(Seen::Text));
        }
        check.event(&text_event(&answer[last..], r#""length""#)).unwrap();
        check.event(&usage_event(prompt().len())).unwrap();
        check.event(b"[DONE]").unwrap();
        assert_eq!(check.end(), Ok(()));
    }

    #[test]
    fn any_other_text_is_wrong() {
        let mut answer = Answer::new("m", &prompt()).text(2);
        answer.replace_range(7..8, "#");
        let fault = check(Strictness::Engine, Delivery::Stream).event(&text_event(&answer, "null")).unwrap_err();
        assert!(fault.contains("byte 7"), "{fault}");
        assert_eq!(check(Strictness::Structure, Delivery::Stream).event(&text_event(&answer, "null")), Ok(Seen::Text));
    }

    #[test]
    fn a_missing_or_doubled_token_is_wrong() {
        let answer = Answer::new("m", &prompt());
        for tokens in [1, 3] {
            let mut check = check(Strictness::Engine, Delivery::Whole);
            check.event(&text_event(&answer.text(tokens), r#""length""#)).unwrap();
            check.event(&usage_event(prompt().len())).unwrap();
            assert!(check.end().unwrap_err().contains("bytes of text"));
        }
    }

    #[test]
    fn usage_must_add_up_and_agree() {
        let mut check = check(Strictness::Engine, Delivery::Whole);
        check.event(&text_event(&Answer::new("m", &prompt()).text(2), r#""length""#)).unwrap();
        assert_eq!(check.end(), Err("no usage".to_owned()));
        check.event(&usage_event(prompt().len() + 1)).unwrap();
        assert!(check.end().is_err());
        check.event(br#"{"usage":{"prompt_tokens":5,"total_tokens":8,"completion_tokens":2}}"#).unwrap();
        assert!(check.end().unwrap_err().contains("add up"));
    }

    #[test]
    fn nothing_may_follow_done_and_errors_are_seen() {
        let mut check = check(Strictness::Structure, Delivery::Stream);
        assert_eq!(check.event(br#"{"error":{"message":"x"}}"#), Ok(Seen::Error));
        assert!(check.event(b"not json").is_err());
        check.event(b"[DONE]").unwrap();
        assert!(check.event(b"[DONE]").is_err());
    }
}
