//! A trace as requests: prompts of the right lengths that begin alike where the trace says so, sessions that wait for their
//! answers and send them back.
//!
//! A token is 4 bytes of text, as in [`crate::workload`]. What a session's prompts have in common with others comes first, as a
//! system message; each later turn brings the answers that really came, and new text for what is new in the trace.

use std::{collections::HashMap, sync::Arc};

use crate::{
    simulate::trace::{Row, Trace},
    workload::{AnswerText, Ask, Delivery},
};

/// A trace to be sent.
#[derive(Clone, Debug)]
pub struct Replay {
    trace: Arc<Trace>,
    /// Arrivals and pauses are divided by this.
    pub squeeze: f64,
    /// By row, the row that follows in its session.
    next: Arc<HashMap<u32, u32>>,
}

/// The messages of a session so far.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// JSON objects joined by commas.
    messages: String,
}

impl Replay {
    /// Of a trace.
    #[must_use]
    pub fn new(trace: Trace, squeeze: f64) -> Self {
        let after = (0..).zip(&trace.rows).filter_map(|(at, row)| row.after.map(|before| (before, at)));
        let next = Arc::new(after.collect());
        Self { trace: Arc::new(trace), squeeze, next }
    }

    /// The first rows of all sessions, by the time they are due, with that time in microseconds.
    #[must_use]
    pub fn beginnings(&self) -> Vec<(u64, u32)> {
        let first = (0..).zip(&self.trace.rows).filter(|(_, row)| row.after.is_none());
        let mut due: Vec<_> = first.map(|(at, row)| ((row.at_us as f64 / self.squeeze) as u64, at)).collect();
        due.sort_unstable();
        due
    }

    /// The row after this one in its session, and the pause before it in microseconds.
    #[must_use]
    pub fn next(&self, row: u32) -> Option<(u32, u64)> {
        let next = *self.next.get(&row)?;
        let gap_us = self.trace.rows.get(next as usize)?.gap_us as f64 / self.squeeze;
        Some((next, gap_us as u64))
    }

    /// The request of a row, `said` being what came before it; it is added to that.
    #[must_use]
    pub fn ask(&self, at: u32, said: &mut Said, model: &str) -> Ask {
        let row = &self.trace.rows[at as usize];
        let from = match row.after {
            None => {
                let head = row.message_ends.first().copied().unwrap_or(0).min(row.input_tokens);
                if head > 0 {
                    said.say("system", &text_of(row, 0, head, self.trace.block_tokens));
                }
                head
            }
            Some(before) => {
                let before = &self.trace.rows[before as usize];
                (before.input_tokens + before.output_tokens).min(row.input_tokens.saturating_sub(1))
            }
        };
        let to = row.input_tokens.max(from + 1);
        said.say("user", &text_of(row, from, to, self.trace.block_tokens));
        let (model, messages, tokens) = (serde_json::Value::from(model), &said.messages, row.output_tokens);
        let body = format!(
            r#"{{"model":{model},"messages":[{messages}],"max_tokens":{tokens},"temperature":0,"stream":true,"stream_options":{{"include_usage":true}}}}"#
        );
        Ask {
            body: body.into_bytes(),
            delivery: Delivery::Stream,
            output_tokens: tokens,
            answer_text: if self.next.contains_key(&at) { AnswerText::Kept } else { AnswerText::Dropped },
            conversation: None,
        }
    }
}

impl Said {
    /// Adds a message.
    pub fn say(&mut self, role: &str, text: &str) {
        if !self.messages.is_empty() {
            self.messages.push(',');
        }
        let text = serde_json::Value::from(text);
        self.messages.push_str(&format!(r#"{{"role":"{role}","content":{text}}}"#));
    }
}

/// The text of the tokens from `from` to `to`: words of three letters and a space, the same for the same block at its place.
fn text_of(row: &Row, from: u32, to: u32, block_tokens: u32) -> String {
    let mut text = String::with_capacity((to - from) as usize * 4);
    for at in from..to {
        let block = row.blocks.get((at / block_tokens) as usize).copied().unwrap_or(0);
        let mut bits = block.wrapping_add(u64::from(at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        bits = (bits ^ (bits >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        for shift in [20, 36, 52] {
            text.push(char::from(b'a' + ((bits >> shift) % 26) as u8));
        }
        text.push(' ');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: &str = r#"{"timestamp": 0, "session": 6, "gap": 0, "input_length": 130, "output_length": 70, "hash_ids": [1, 2, 3]}
{"timestamp": 10, "session": 7, "gap": 0, "input_length": 140, "output_length": 70, "hash_ids": [1, 2, 9]}
{"timestamp": 50, "session": 7, "gap": 20, "input_length": 260, "output_length": 5, "hash_ids": [1, 2, 4, 5, 6]}
"#;

    fn contents(ask: &Ask) -> Vec<(String, String)> {
        let json: serde_json::Value = serde_json::from_slice(&ask.body).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        json["messages"].as_array().unwrap().iter().map(|m| (text(&m["role"]), text(&m["content"]))).collect()
    }

    #[test]
    fn sessions_share_their_head_and_send_their_answers_back() {
        let replay = Replay::new(Trace::parse("t", SESSION, 9).unwrap(), 2.0);
        assert_eq!(replay.beginnings(), [(0, 0), (5_000, 1)]);
        assert_eq!(replay.next(1), Some((2, 10_000)));
        let first = contents(&replay.ask(0, &mut Said::default(), "m"));
        let mut said = Said::default();
        let second = contents(&replay.ask(1, &mut said, "m"));
        assert_eq!((first.len(), second.len()), (1, 2));
        // 128 tokens of 4 bytes are common.
        assert_eq!(second[0].1, first[0].1[..512]);
        said.say("assistant", "yes");
        let third = contents(&replay.ask(2, &mut said, "m"));
        assert_eq!(third[..2], second[..]);
        assert_eq!(third[2], ("assistant".to_owned(), "yes".to_owned()));
        // 260 tokens less the 210 of prompt and answer before.
        assert_eq!(third[3].1.len(), 50 * 4);
    }
}
