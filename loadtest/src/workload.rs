//! What is asked: prompts of given lengths, alone or as turns of conversations. A token is taken as 4 bytes of text.

use std::{collections::VecDeque, ops::RangeInclusive};

use crate::random::Random;

/// Which API is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

impl Api {
    /// Its path.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }
}

/// How the answer is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// One JSON body.
    Whole,
    /// Server-sent events, with usage.
    Stream,
}

/// The mix of requests.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Which API.
    pub api: Api,
    /// Model to name.
    pub model: String,
    /// Length of each user message or prompt.
    pub prompt_tokens: RangeInclusive<u32>,
    /// `max_tokens` of each request.
    pub output_tokens: RangeInclusive<u32>,
    /// Length of a text that begins every prompt; the same for all.
    pub shared_prefix_tokens: u32,
    /// Share of requests that stream, 0 to 1.
    pub stream_share: f64,
    /// Conversations open at a time; 0 sends every prompt alone.
    pub conversations: u32,
    /// Turns of a conversation before a new one takes its place.
    pub turns: u32,
}

/// A request to send, and what to know about it when the answer comes.
#[derive(Clone, Debug)]
pub struct Ask {
    /// JSON body.
    pub body: Vec<u8>,
    /// How the answer should come.
    pub delivery: Delivery,
    /// `max_tokens`.
    pub output_tokens: u32,
    /// Whether the answer's text is needed for the next turn.
    pub answer_text: AnswerText,
    /// The conversation it belongs to, to be given back with the answer.
    pub conversation: Option<Conversation>,
}

/// Whether the text of an answer is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerText {
    /// It goes into the next turn.
    Kept,
    /// It is only checked.
    Dropped,
}

/// The messages so far.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// JSON objects joined by commas.
    messages: String,
    turns: u32,
}

/// Makes requests one after the other; the same seed makes the same ones.
#[derive(Debug)]
pub struct Source {
    workload: Workload,
    random: Random,
    shared_prefix: String,
    /// Conversations whose last answer has come.
    ready: VecDeque<Conversation>,
    /// Conversations begun and not ended.
    live: u32,
}

impl Source {
    /// A source of its own random stream; the shared prefix does not depend on the seed.
    pub fn new(workload: Workload, seed: u64) -> Self {
        let shared_prefix = text(&mut Random::new(0), workload.shared_prefix_tokens);
        Self { workload, random: Random::new(seed), shared_prefix, ready: VecDeque::new(), live: 0 }
    }

    /// The next request. When every conversation waits for its answer, one more is begun, so that an open loop stays
    /// open.
    pub fn ask(&mut self) -> Ask {
        let output_tokens = self.random.within(&self.workload.output_tokens).max(1);
        let delivery = if self.random.unit() < self.workload.stream_share { Delivery::Stream } else { Delivery::Whole };
        let prompt_tokens = self.random.within(&self.workload.prompt_tokens);
        let prompt = text(&mut self.random, prompt_tokens);
        let (question, conversation) = match self.workload.api {
            Api::Completions => (format!(r#""prompt":"{}{prompt}""#, self.shared_prefix), None),
            Api::Chat => {
                let mut conversation = self.conversation();
                if !conversation.messages.is_empty() {
                    conversation.messages.push(',');
                }
                conversation.messages.push_str(&format!(r#"{{"role":"user","content":"{prompt}"}}"#));
                let question = format!(r#""messages":[{}]"#, conversation.messages);
                (question, (self.workload.conversations > 0).then_some(conversation))
            }
        };
        let stream = match delivery {
            Delivery::Whole => "",
            Delivery::Stream => r#","stream":true,"stream_options":{"include_usage":true}"#,
        };
        let model = serde_json::Value::from(self.workload.model.as_str());
        let body = format!(r#"{{"model":{model},{question},"max_tokens":{output_tokens},"temperature":0{stream}}}"#);
        let answer_text = if conversation.is_some() { AnswerText::Kept } else { AnswerText::Dropped };
        Ask { body: body.into_bytes(), delivery, output_tokens, answer_text, conversation }
    }

    fn conversation(&mut self) -> Conversation {
        if let Some(conversation) = self.ready.pop_front() {
            return conversation;
        }
        self.live += 1;
        let messages = match self.shared_prefix.as_str() {
            "" => String::new(),
            prefix => format!(r#"{{"role":"system","content":"{prefix}"}}"#),
        };
        Conversation { messages, turns: 0 }
    }

    /// Takes a conversation back: with the answer it goes on, without (the request failed) it ends.
    pub fn give_back(&mut self, mut conversation: Conversation, answer: Option<&str>) {
        conversation.turns += 1;
        match answer {
            Some(answer) if conversation.turns < self.workload.turns && self.live <= self.workload.conversations => {
                let answer = serde_json::Value::from(answer);
                conversation.messages.push_str(&format!(r#",{{"role":"assistant","content":{answer}}}"#));
                self.ready.push_back(conversation);
            }
            Some(_) | None => self.live = self.live.saturating_sub(1),
        }
    }
}

/// Random words of three letters and a space: 4 bytes a token, nothing that JSON would escape.
fn text(random: &mut Random, tokens: u32) -> String {
    let mut text = String::with_capacity(tokens as usize * 4);
    for _ in 0..tokens {
        let bits = random.bits();
        for shift in [0, 16, 32] {
            text.push(char::from(b'a' + ((bits >> shift) % 26) as u8));
        }
        text.push(' ');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn workload() -> Workload {
        Workload {
            api: Api::Chat,
            model: "tiny".to_owned(),
            prompt_tokens: 5..=5,
            output_tokens: 3..=7,
            shared_prefix_tokens: 2,
            stream_share: 0.5,
            conversations: 1,
            turns: 2,
        }
    }

    fn json(ask: &Ask) -> Value {
        serde_json::from_slice(&ask.body).unwrap()
    }

    #[test]
    fn a_turn_repeats_what_was_said_and_adds_a_question() {
        let mut source = Source::new(workload(), 1);
        let first = source.ask();
        source.give_back(first.conversation.clone().unwrap(), Some("yes \"so\""));
        let second = source.ask();
        let (first, second) = (json(&first), json(&second));
        let (before, after) = (first["messages"].as_array().unwrap(), second["messages"].as_array().unwrap());
        assert_eq!((before.len(), after.len()), (2, 4));
        assert_eq!(before[..], after[..2]);
        assert_eq!(after[2]["content"], "yes \"so\"");
        assert_eq!(after[3]["content"].as_str().unwrap().len(), 20);
    }

    #[test]
    fn a_conversation_ends_after_its_turns_or_a_failure() {
        let mut source = Source::new(workload(), 1);
        for _ in 0..2 {
            let ask = source.ask();
            source.give_back(ask.conversation.unwrap(), Some("yes"));
        }
        assert_eq!(json(&source.ask())["messages"].as_array().unwrap().len(), 2);
        let mut source = Source::new(workload(), 1);
        let ask = source.ask();
        source.give_back(ask.conversation.unwrap(), None);
        assert_eq!(json(&source.ask())["messages"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn the_seed_decides_everything() {
        let bodies = |seed| {
            let mut source = Source::new(Workload { conversations: 0, ..workload() }, seed);
            (0..20).map(|_| source.ask().body).collect::<Vec<_>>()
        };
        assert_eq!(bodies(3), bodies(3));
        assert_ne!(bodies(3), bodies(4));
    }

    #[test]
    fn both_kinds_of_delivery_occur_in_a_mix() {
        let mut source = Source::new(Workload { conversations: 0, ..workload() }, 1);
        let streamed = (0..1000).filter(|_| source.ask().delivery == Delivery::Stream).count();
        assert!((400..600).contains(&streamed), "{streamed}");
    }
}
