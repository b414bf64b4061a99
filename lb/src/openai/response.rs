//! What is read from an answer: usage, the model it names, whether it carries content.

use std::ops::Range;

use super::scan::{Cursor, Kind, Value};

/// Token counts as the engine reports them, in the OpenAI or the Anthropic shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// `prompt_tokens` or `input_tokens`.
    pub(crate) prompt_tokens: Option<u64>,
    /// `completion_tokens` or `output_tokens`.
    pub(crate) completion_tokens: Option<u64>,
    /// `prompt_tokens_details.cached_tokens`, `input_tokens_details.cached_tokens` or `cache_read_input_tokens`.
    pub(crate) cached_tokens: Option<u64>,
}

impl Usage {
    /// Reads the object at the cursor; `None` when there is something else.
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        if cursor.kind()? != Kind::Object {
            return None;
        }
        let json = cursor.json();
        let mut usage = Self::default();
        cursor.members(|key, cursor| {
            match key {
                b"prompt_tokens" | b"input_tokens" => usage.prompt_tokens = cursor.value()?.number(json),
                b"completion_tokens" | b"output_tokens" => usage.completion_tokens = cursor.value()?.number(json),
                b"cache_read_input_tokens" => usage.cached_tokens = cursor.value()?.number(json),
                b"prompt_tokens_details" | b"input_tokens_details" if cursor.kind()? == Kind::Object => {
                    cursor.members(|key, cursor| {
                        if key == b"cached_tokens" {
                            usage.cached_tokens = cursor.value()?.number(json);
                        }
                        Some(())
                    })?;
                }
                _ => {}
            }
            Some(())
        })?;
        Some(usage)
    }

    /// Keeps what is known and takes what is new (Anthropic tells input at the start and output at the end).
    pub(crate) fn merge(&mut self, newer: Self) {
        self.prompt_tokens = newer.prompt_tokens.or(self.prompt_tokens);
        self.completion_tokens = newer.completion_tokens.or(self.completion_tokens);
        self.cached_tokens = newer.cached_tokens.or(self.cached_tokens);
    }
}

/// One JSON document of an answer: a whole body, or the data of one event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Document {
    /// Where the model's string stands, quotes included: at the top, else in `response` or `message`.
    pub(crate) model_at: Option<Range<usize>>,
    pub(crate) usage: Option<Usage>,
    /// There is text, a tool call or another output in it.
    pub(crate) content: Content,
    /// `choices` is there and empty: the chunk carries usage alone.
    pub(crate) choices_empty: bool,
    /// There is a top-level `error` that is not null.
    pub(crate) is_error: bool,
}

/// Whether a document carries output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Content {
    /// A role, a ping, usage.
    #[default]
    None,
    /// Output of the model.
    Some,
    /// Output, and the reason for its end.
    Last,
}

/// Whether it matters what is in `choices`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choices {
    Read,
    PassedOver,
}

impl Document {
    /// Reads `json`, the output in it included; `None` when it is not a whole object.
    pub(crate) fn parse(json: &[u8]) -> Option<Self> {
        Self::read(json, Choices::Read)
    }

    /// Reads the model and the usage of an answer that is one document, and no further than these; its output is passed over.
    pub(crate) fn parse_frame(json: &[u8]) -> Option<Self> {
        Self::read(json, Choices::PassedOver)
    }

    fn read(json: &[u8], choices: Choices) -> Option<Self> {
        let mut document = Self::default();
        let mut kind: &[u8] = b"";
        let mut nested_model = None;
        let whole = Cursor::new(json, 0..json.len()).members(|key, cursor| {
            match key {
                b"model" => document.model_at = string_here(cursor)?.or(document.model_at.take()),
                b"usage" => document.usage = Usage::read(cursor),
                b"error" => document.is_error = !cursor.value()?.is_null(json),
                b"choices" if choices == Choices::Read && cursor.kind()? == Kind::Array => {
                    document.read_choices(cursor)?;
                }
                // Anthropic's `message_start` carries a message, most events of the Responses API carry the response.
                b"message" | b"response" if cursor.kind()? == Kind::Object => {
                    nested_model = document.read_nested(cursor)?.or(nested_model.take());
                }
                b"type" => kind = cursor.value()?.of(json),
                _ => {}
            }
            let enough = choices == Choices::PassedOver && document.model_at.is_some() && document.usage.is_some();
            (!enough).then_some(())
        });
        if whole.is_none() && !(choices == Choices::PassedOver && document.usage.is_some()) {
            return None;
        }
        document.model_at = document.model_at.or(nested_model);
        match kind {
            b"error" | b"response.failed" => document.is_error = true,
            _ if is_output_event(kind) => document.content = Content::Some,
            _ => {}
        }
        Some(document)
    }

    /// Takes usage and error; gives where the model stands.
    fn read_nested(&mut self, cursor: &mut Cursor<'_>) -> Option<Option<Range<usize>>> {
        let mut model = None;
        cursor.members(|key, cursor| {
            match key {
                b"usage" => self.usage = Usage::read(cursor).or(self.usage),
                b"model" => model = string_here(cursor)?.or(model.take()),
                _ => {}
            }
            Some(())
        })?;
        Some(model)
    }

    fn read_choices(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        self.choices_empty = true;
        cursor.elements(|cursor| {
            self.choices_empty = false;
            if cursor.kind()? == Kind::Object { self.read_choice(cursor) } else { Some(()) }
        })
    }

    fn read_choice(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        let json = cursor.json();
        cursor.members(|key, cursor| {
            match key {
                b"finish_reason" if cursor.kind()? == Kind::String => self.content = Content::Last,
                b"text" if cursor.kind()? == Kind::String => self.saw(json, &cursor.value()?),
                b"delta" | b"message" if cursor.kind()? == Kind::Object => {
                    cursor.members(|key, cursor| {
                        if key != b"role" {
                            self.saw(json, &cursor.value()?);
                        }
                        Some(())
                    })?;
                }
                _ => {}
            }
            Some(())
        })?;
        Some(())
    }

    fn saw(&mut self, json: &[u8], value: &Value) {
        if self.content == Content::None && is_output(json, value) {
            self.content = Content::Some;
        }
    }
}

/// The string at the cursor with its quotes, and `Some(None)` where there is another value.
fn string_here(cursor: &mut Cursor<'_>) -> Option<Option<Range<usize>>> {
    let value = cursor.value()?;
    Some((value.kind == Kind::String).then(|| value.outer()))
}

/// Events that carry output by their name: of Anthropic's Messages, the Responses API, streamed transcriptions.
fn is_output_event(kind: &[u8]) -> bool {
    let family = kind.starts_with(b"response.") || kind.starts_with(b"transcript.");
    kind == b"content_block_delta" || (family && kind.ends_with(b".delta"))
}

/// Text, a tool call, an image: anything but null and emptiness.
fn is_output(json: &[u8], value: &Value) -> bool {
    match value.kind {
        Kind::String => !value.range.is_empty(),
        Kind::Array | Kind::Object => value.range.len() > 2,
        Kind::Scalar => !value.is_null(json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_vllm_are_understood() {
        let role = br#"{"id":"c","object":"chat.completion.chunk","model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}"#;
        let document = Document::parse(role).unwrap();
        assert_eq!(document.content, Content::None);
        assert_eq!(&role[document.model_at.unwrap()], b"\"tiny\"");

        let text = br#"{"model":"tiny","choices":[{"index":0,"delta":{"content":".YES"},"finish_reason":null}]}"#;
        assert_eq!(Document::parse(text).unwrap().content, Content::Some);

        let last = br#"{"choices":[{"delta":{"content":"x"},"finish_reason":"length","stop_reason":null}]}"#;
        assert_eq!(Document::parse(last).unwrap().content, Content::Last);

        let usage = br#"{"choices":[],"usage":{"prompt_tokens":22,"total_tokens":27,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":16}}}"#;
        let document = Document::parse(usage).unwrap();
        assert!(document.choices_empty);
        let want = Usage { prompt_tokens: Some(22), completion_tokens: Some(5), cached_tokens: Some(16) };
        assert_eq!(document.usage, Some(want));
    }

    #[test]
    fn tool_calls_and_reasoning_are_content() {
        for delta in [
            r#"{"tool_calls":[{"index":0}]}"#,
            r#"{"reasoning_content":"hm"}"#,
            r#"{"role":"assistant","content":"a"}"#,
        ] {
            let json = format!(r#"{{"choices":[{{"delta":{delta},"finish_reason":null}}]}}"#);
            assert_eq!(Document::parse(json.as_bytes()).unwrap().content, Content::Some, "{delta}");
        }
        for delta in [r#"{"role":"assistant"}"#, r#"{"content":null}"#, r#"{"tool_calls":[]}"#] {
            let json = format!(r#"{{"choices":[{{"delta":{delta},"finish_reason":null}}]}}"#);
            assert_eq!(Document::parse(json.as_bytes()).unwrap().content, Content::None, "{delta}");
        }
    }

    #[test]
    fn anthropic_and_responses_shapes_are_understood() {
        let start = br#"{"type":"message_start","message":{"usage":{"input_tokens":10,"cache_read_input_tokens":4,"output_tokens":1}}}"#;
        let mut usage = Document::parse(start).unwrap().usage.unwrap();
        let delta = br#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}"#;
        assert_eq!(Document::parse(delta).unwrap().content, Content::Some);
        let end = br#"{"type":"message_delta","delta":{},"usage":{"output_tokens":7}}"#;
        usage.merge(Document::parse(end).unwrap().usage.unwrap());
        assert_eq!(usage, Usage { prompt_tokens: Some(10), completion_tokens: Some(7), cached_tokens: Some(4) });
        let responses = br#"{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":2,"input_tokens_details":{"cached_tokens":1}}}}"#;
        assert_eq!(Document::parse(responses).unwrap().usage.unwrap().cached_tokens, Some(1));
        let delta = br#"{"type":"response.output_text.delta","delta":"hi"}"#;
        assert_eq!(Document::parse(delta).unwrap().content, Content::Some);
    }

    #[test]
    fn the_model_is_found_where_each_interface_has_it() {
        for json in [
            r#"{"model":"here","choices":[]}"#,
            r#"{"type":"response.created","response":{"id":"x","model":"here","output":[]}}"#,
            r#"{"response":{"model":"there"},"model":"here"}"#,
            r#"{"type":"message_start","message":{"model":"here","usage":{}}}"#,
        ] {
            let at = Document::parse(json.as_bytes()).unwrap().model_at.unwrap();
            assert_eq!(&json[at], "\"here\"", "{json}");
        }
        for json in [r#"{"message":"model"}"#, r#"{"item":{"model":"m"}}"#, r#"{"response":{"model":null}}"#] {
            assert_eq!(Document::parse(json.as_bytes()).unwrap().model_at, None, "{json}");
        }
    }

    #[test]
    fn the_frame_of_an_answer_is_its_model_and_its_usage() {
        for json in [
            r#"{"model":"m","choices":[{"message":{"content":"\"usage\":{}"}}],"usage":{"prompt_tokens":7},"metrics":null}"#,
            r#"{"usage":{"prompt_tokens":7},"choices":[],"model":"m"}"#,
            r#"{"response":{"usage":{"input_tokens":7}},"model":"m","x":[1]}"#,
        ] {
            let (frame, whole) =
                (Document::parse_frame(json.as_bytes()).unwrap(), Document::parse(json.as_bytes()).unwrap());
            assert_eq!((frame.model_at, frame.usage), (whole.model_at, whole.usage), "{json}");
            assert_eq!(frame.usage.unwrap().prompt_tokens, Some(7), "{json}");
        }
        assert_eq!(Document::parse_frame(br#"{"model":"m","choices":["#), None);
        assert_eq!(Document::parse_frame(br#"{"model":"m","choices":[]}"#).unwrap().usage, None);
    }

    #[test]
    fn errors_are_seen() {
        assert!(Document::parse(br#"{"type":"error","error":{"type":"overloaded_error"}}"#).unwrap().is_error);
        assert!(Document::parse(br#"{"type":"error","code":"x","message":"y"}"#).unwrap().is_error);
        assert!(Document::parse(br#"{"type":"response.failed","response":{"error":{}}}"#).unwrap().is_error);
        assert!(Document::parse(br#"{"error":{"message":"x"}}"#).unwrap().is_error);
        assert!(!Document::parse(br#"{"error":null}"#).unwrap().is_error);
    }
}
