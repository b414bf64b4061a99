//! Answer bodies and events, field by field in vLLM's order.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Api, Call, PromptDetails, StreamUsage};

const FINGERPRINT: &str = r#""system_fingerprint":"vllm-0.32.0-f1262daa""#;

/// Writes the bodies and events of one answer.
#[derive(Clone, Debug)]
pub(crate) struct Renderer<'a> {
    call: &'a Call,
    /// `"id":...,"object":` up to the object's name.
    id: String,
    created_unix_s: u64,
    model_json: String,
    details: PromptDetails,
    pub(crate) cached_tokens: u32,
    /// Size of a padding field in the first event or the body; 0 for none.
    pad_bytes: u32,
}

impl<'a> Renderer<'a> {
    pub(crate) fn new(call: &'a Call, request_id: &str, created_unix_s: u64, details: PromptDetails) -> Self {
        let id = Value::from(format!("{}-{request_id}", call.api.id_prefix())).to_string();
        let model_json = Value::from(call.model.as_str()).to_string();
        Self { call, id, created_unix_s, model_json, details, cached_tokens: 0, pad_bytes: 0 }
    }

    pub(crate) fn pad(&mut self, bytes: u32) {
        self.pad_bytes = bytes;
    }

    fn start(&self, object: &str) -> String {
        format!(
            r#"{{"id":{},"object":"{object}","created":{},"model":{},"#,
            self.id, self.created_unix_s, self.model_json
        )
    }

    fn pad_field(&self) -> String {
        if self.pad_bytes == 0 { String::new() } else { format!(r#","pad":"{}""#, "x".repeat(self.pad_bytes as usize)) }
    }

    fn prompt_tokens(&self) -> usize {
        self.call.prompt.len()
    }

    /// The whole answer, not streamed.
    pub(crate) fn whole(&self, usage: Usage) -> String {
        let text = Value::from(self.call.answer.text(self.call.output_tokens));
        let finish = self.call.finish.as_str();
        let usage = match usage {
            Usage::Sent => self.usage_whole(),
            Usage::LeftOut => "null".to_owned(),
        };
        let pad = self.pad_field();
        match self.call.api {
            Api::Chat => format!(
                r#"{}"choices":[{{"index":0,"message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":null,"finish_reason":"{finish}","stop_reason":null,"token_ids":null,"routed_experts":null}}],"service_tier":null,{FINGERPRINT},"usage":{usage},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null{pad}}}"#,
                self.start("chat.completion"),
            ),
            Api::Completions => format!(
                r#"{}"choices":[{{"index":0,"text":{text},"logprobs":null,"finish_reason":"{finish}","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}}],"service_tier":null,{FINGERPRINT},"usage":{usage},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null{pad}}}"#,
                self.start("text_completion"),
            ),
            Api::Embeddings => {
                let vector: Vec<f32> =
                    (0..8).map(|at| self.call.answer.token(at).id() as f32 / u32::MAX as f32).collect();
                let tokens = self.prompt_tokens();
                format!(
                    r#"{}"data":[{{"index":0,"object":"embedding","embedding":{}}}],"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens},"completion_tokens":0,"prompt_tokens_details":null}}{pad}}}"#,
                    self.start("list"),
                    json!(vector),
                )
            }
        }
    }

    fn usage_whole(&self) -> String {
        let details = match self.details {
            PromptDetails::Hidden => "null".to_owned(),
            PromptDetails::Reported => format!(
                r#"{{"cached_tokens":{},"created_cache_tokens":0,"multimodal_tokens":null}}"#,
                self.cached_tokens
            ),
        };
        let (prompt, output) = (self.prompt_tokens(), self.call.output_tokens as usize);
        format!(
            r#"{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{output},"prompt_tokens_details":{details},"completion_tokens_details":null}}"#,
            prompt + output
        )
    }

    fn chunk_start(&self) -> String {
        match self.call.api {
            Api::Chat | Api::Embeddings => self.start("chat.completion.chunk"),
            Api::Completions => self.start("text_completion"),
        }
    }

    fn running_usage(&self, delivery: StreamUsage, made: u32) -> String {
        match delivery {
            StreamUsage::None | StreamUsage::AtEnd => String::new(),
            StreamUsage::Continuous => format!(
                r#","usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{made},"completion_tokens_details":null}}"#,
                self.prompt_tokens(),
                self.prompt_tokens() + made as usize
            ),
        }
    }

    /// JSON of the event with the role; completions have none.
    pub(crate) fn role_event(&self, usage: StreamUsage) -> Option<String> {
        match self.call.api {
            Api::Chat => Some(format!(
                r#"{}"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]{},"prompt_token_ids":null,"prompt_text":null{}}}"#,
                self.chunk_start(),
                self.running_usage(usage, 0),
                self.pad_field()
            )),
            Api::Completions | Api::Embeddings => None,
        }
    }

    /// JSON of the event with the token at `position`.
    pub(crate) fn token_event(&self, usage: StreamUsage, position: u32, json: &mut String) {
        let token = self.call.answer.token(position);
        let last = position + 1 == self.call.output_tokens;
        json.push_str(&self.chunk_start());
        let field = match self.call.api {
            Api::Chat | Api::Embeddings => r#""choices":[{"index":0,"delta":{"content":"#,
            Api::Completions => r#""choices":[{"index":0,"text":"#,
        };
        json.push_str(field);
        push_json_text(token.as_str(), json);
        let is_chat = self.call.api != Api::Completions;
        json.push_str(if is_chat {
            r#"},"logprobs":null,"finish_reason":"#
        } else {
            r#","logprobs":null,"finish_reason":"#
        });
        if last {
            // Writing to a String cannot fail.
            let _ = write!(json, r#""{}""#, self.call.finish.as_str());
        } else {
            json.push_str("null");
        }
        json.push_str(match (is_chat, last) {
            (true, false) => r#","token_ids":null}]"#,
            (true, true) => r#","stop_reason":null,"token_ids":null}]"#,
            (false, _) => r#","stop_reason":null,"prompt_token_ids":null,"token_ids":null}]"#,
        });
        json.push_str(&self.running_usage(usage, position + 1));
        if is_chat && last && usage == StreamUsage::None {
            json.push(',');
            json.push_str(FINGERPRINT);
        }
        if !is_chat && position == 0 {
            json.push_str(&self.pad_field());
        }
        json.push('}');
    }

    /// JSON of the event with the usage of the whole request.
    pub(crate) fn usage_event(&self) -> String {
        let (prompt, output) = (self.prompt_tokens(), self.call.output_tokens as usize);
        let details = match self.details {
            PromptDetails::Hidden => String::new(),
            PromptDetails::Reported => format!(
                r#","prompt_tokens_details":{{"cached_tokens":{},"created_cache_tokens":0}}"#,
                self.cached_tokens
            ),
        };
        format!(
            r#"{}"choices":[],"usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{output}{details}}},{FINGERPRINT}}}"#,
            self.chunk_start(),
            prompt + output,
        )
    }
}

/// Whether a body carries usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    Sent,
    LeftOut,
}

fn push_json_text(text: &str, json: &mut String) {
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        json.push('"');
        json.push_str(text);
        json.push('"');
    } else {
        json.push_str(&Value::from(text).to_string());
    }
}
