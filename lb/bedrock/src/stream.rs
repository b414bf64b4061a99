//! A ConverseStream answer as the server-sent events of a chat completion.
//!
//! Each event becomes at most one chunk, in the order they come: the role, pieces of text, reasoning and arguments, the reason
//! of the end, usage where it was asked for, `[DONE]`. Nothing is held back but what an event itself is made of.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::answer::{Reply, Usage, UsageRead, UsageShown, finish_reason};
use crate::failure::{Failure, Fault};
use crate::frames::{Frames, Message};
use crate::request::Delivery;

/// Most tool calls of one answer: OpenAI's limit on tools; each is remembered until the answer ends.
const CALLS_MAX: usize = 128;

/// Makes server-sent events of an answer's bytes, for one answer.
pub struct ChatStream {
    frames: Frames,
    chat: Chat,
}

/// Makes chunks of messages.
struct Chat {
    /// What every chunk begins with: `{"id":...,"object":...,"created":...,"model":...`.
    head: Vec<u8>,
    usage_asked: Asked,
    begun: Begun,
    calls: Vec<Call>,
    end: End,
    usage: Option<Usage>,
}

/// A tool call: its place in the list of OpenAI is its place in ours.
struct Call {
    block: u64,
    arguments: Arguments,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Arguments {
    None,
    Some,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    No,
    Yes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    No,
    Yes,
}

/// How far the end has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The answer goes on.
    Open,
    /// Why it ended has been told.
    Reasoned,
    /// `[DONE]` has been told.
    Done,
}

impl ChatStream {
    /// For one answer. Usage is told when `delivery` asks for it; `frame_bytes_max` bounds what is held
    /// ([`crate::FRAME_BYTES_MAX`] at most).
    #[must_use]
    pub fn new(reply: Reply<'_>, delivery: Delivery, frame_bytes_max: usize) -> Self {
        let usage_asked = match delivery {
            Delivery::StreamedWithUsage => Asked::Yes,
            Delivery::Streamed | Delivery::Whole => Asked::No,
        };
        let chat = Chat {
            head: chunk_head(reply),
            usage_asked,
            begun: Begun::No,
            calls: Vec::new(),
            end: End::Open,
            usage: None,
        };
        Self { frames: Frames::new(frame_bytes_max), chat }
    }

    /// Takes bytes of the answer as they come, and appends the events they make to `out`.
    ///
    /// # Errors
    /// Bedrock's own error, a broken frame, or an event that cannot be read: nothing is to be fed after it. What `out` has by
    /// then is to be sent, then [`Failure::push_event`]; where nothing was sent yet, another attempt may be made instead.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let mut rest = bytes;
        while let Some(message) = self.frames.read(&mut rest)? {
            self.chat.event(&message, out)?;
        }
        Ok(())
    }

    /// The answer's body has ended.
    ///
    /// # Errors
    /// It ended inside a frame, or before the model did.
    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Failure> {
        self.frames.end()?;
        match self.chat.end {
            End::Open => Err(Failure::from(Fault::CutOff)),
            End::Reasoned => {
                self.chat.done(out);
                Ok(())
            }
            End::Done => Ok(()),
        }
    }

    /// `[DONE]` has been written: nothing follows.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.chat.end == End::Done
    }

    /// Bytes held of an event that has not come to its end.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.frames.held_bytes()
    }

    /// Tokens, once Bedrock has told them.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.chat.usage
    }
}

/// What every chunk begins with, without the brace that ends an object.
fn chunk_head(reply: Reply<'_>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Head<'a> {
        id: &'a str,
        object: &'a str,
        created: u64,
        model: &'a str,
    }
    let mut head = Vec::new();
    let object = "chat.completion.chunk";
    push_json(&mut head, &Head { id: reply.id, object, created: reply.created_unix_s, model: reply.model });
    head.pop();
    head
}

impl Chat {
    fn event(&mut self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        match message.text(":message-type") {
            Some("event") => {}
            Some("exception" | "error") => return Err(Failure::of_event(message)),
            Some(_) | None => return Err(Failure::from(Fault::Unreadable)),
        }
        match message.text(":event-type").unwrap_or_default() {
            "metadata" => self.metadata(&read(message)?, out),
            // Nothing is added to an answer that has ended.
            "messageStart" | "contentBlockStart" | "contentBlockDelta" | "contentBlockStop" | "messageStop"
                if self.end != End::Open =>
            {
                return Err(Failure::from(Fault::Unreadable));
            }
            "messageStart" => self.begin(out),
            "contentBlockStart" => self.block_start(&read(message)?, out)?,
            "contentBlockDelta" => self.block_delta(&read(message)?, out),
            "contentBlockStop" => self.block_stop(&read(message)?, out),
            "messageStop" => self.stop(&read(message)?, out)?,
            // Bedrock may add others.
            _ => {}
        }
        Ok(())
    }

    /// The role goes first, whatever comes first.
    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.begun == Begun::No {
            self.begun = Begun::Yes;
            self.chunk(out, &Delta { role: Some("assistant"), content: Some(""), ..Delta::default() }, None);
        }
    }

    fn block_start(&mut self, start: &BlockStart<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        // A call that Bedrock runs itself is not the client's to answer.
        let Some(tool) = start.start.tool_use.as_ref().filter(|tool| tool.kind.is_none()) else { return Ok(()) };
        if self.calls.len() == CALLS_MAX {
            return Err(Failure::from(Fault::Unreadable));
        }
        self.begin(out);
        let index = self.calls.len();
        self.calls.push(Call { block: start.content_block_index, arguments: Arguments::None });
        let function = Function { name: Some(&tool.name), arguments: "" };
        let call = CallDelta { index, id: Some(&tool.tool_use_id), kind: Some("function"), function };
        self.chunk(out, &Delta { tool_calls: Some([call]), ..Delta::default() }, None);
        Ok(())
    }

    fn block_delta(&mut self, event: &BlockDelta<'_>, out: &mut Vec<u8>) {
        let reasoning = event.delta.reasoning_content.as_ref().and_then(|reasoning| reasoning.text.as_deref());
        if let Some(text) = event.delta.text.as_deref().filter(|text| !text.is_empty()) {
            self.begin(out);
            self.chunk(out, &Delta { content: Some(text), ..Delta::default() }, None);
        } else if let Some(text) = reasoning.filter(|text| !text.is_empty()) {
            self.begin(out);
            self.chunk(out, &Delta { reasoning_content: Some(text), ..Delta::default() }, None);
        } else if let Some(tool) = event.delta.tool_use.as_ref().filter(|tool| !tool.input.is_empty()) {
            self.arguments(event.content_block_index, &tool.input, out);
        }
    }

    /// Arguments of a call that was begun; others are those of Bedrock's own calls.
    fn arguments(&mut self, block: u64, text: &str, out: &mut Vec<u8>) {
        let Some(index) = self.calls.iter().rposition(|call| call.block == block) else { return };
        self.calls[index].arguments = Arguments::Some;
        let function = Function { name: None, arguments: text };
        let call = CallDelta { index, id: None, kind: None, function };
        self.chunk(out, &Delta { tool_calls: Some([call]), ..Delta::default() }, None);
    }

    /// A call without arguments has an empty object of them: clients read what they get as JSON.
    fn block_stop(&mut self, stop: &BlockStop, out: &mut Vec<u8>) {
        let call = self.calls.iter().rfind(|call| call.block == stop.content_block_index);
        if call.is_some_and(|call| call.arguments == Arguments::None) {
            self.arguments(stop.content_block_index, "{}", out);
        }
    }

    fn stop(&mut self, stop: &Stop<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        let reason = finish_reason(&stop.stop_reason)?;
        self.begin(out);
        self.end = End::Reasoned;
        self.chunk(out, &Delta::default(), Some(reason));
        Ok(())
    }

    /// The last event.
    fn metadata(&mut self, metadata: &Metadata, out: &mut Vec<u8>) {
        self.usage = Some(Usage::from(metadata.usage));
        if self.end == End::Reasoned {
            self.done(out);
        }
    }

    fn done(&mut self, out: &mut Vec<u8>) {
        self.end = End::Done;
        if let (Asked::Yes, Some(usage)) = (self.usage_asked, self.usage) {
            out.extend_from_slice(b"data: ");
            out.extend_from_slice(&self.head);
            out.extend_from_slice(b",\"choices\":[],\"usage\":");
            push_json(out, &UsageShown::from(usage));
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn chunk(&self, out: &mut Vec<u8>, delta: &Delta<'_>, reason: Option<&str>) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&self.head);
        out.extend_from_slice(b",\"choices\":[{\"index\":0,\"delta\":");
        push_json(out, delta);
        out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":");
        push_json(out, &reason);
        out.extend_from_slice(match self.usage_asked {
            Asked::Yes => b"}],\"usage\":null}\n\n",
            Asked::No => b"}]}\n\n",
        });
    }
}

/// Not what was said.
impl fmt::Debug for ChatStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ChatStream({} calls, {:?})", self.chat.calls.len(), self.chat.usage)
    }
}

/// A server-sent event with this as its data.
pub(crate) fn push_event(out: &mut Vec<u8>, data: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    push_json(out, data);
    out.extend_from_slice(b"\n\n");
}

/// Writing strings and numbers into memory does not fail.
fn push_json(out: &mut Vec<u8>, value: &impl Serialize) {
    let written = serde_json::to_writer(&mut *out, value);
    debug_assert!(written.is_ok(), "text and numbers can be written");
}

fn read<'a, T: Deserialize<'a>>(message: &Message<'a>) -> Result<T, Failure> {
    serde_json::from_slice(message.payload()).map_err(|_| Failure::from(Fault::Unreadable))
}

// What is read. Fields that are not named are passed over: among them padding, which hides the length of a text.

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockStart<'a> {
    #[serde(borrow)]
    start: Start<'a>,
    content_block_index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Start<'a> {
    #[serde(borrow, default)]
    tool_use: Option<ToolStart<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolStart<'a> {
    #[serde(borrow)]
    tool_use_id: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockDelta<'a> {
    #[serde(borrow)]
    delta: DeltaRead<'a>,
    content_block_index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeltaRead<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_use: Option<ToolDelta<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<ReasoningDelta<'a>>,
}

#[derive(Deserialize)]
struct ToolDelta<'a> {
    #[serde(borrow)]
    input: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ReasoningDelta<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockStop {
    content_block_index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stop<'a> {
    #[serde(borrow)]
    stop_reason: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Metadata {
    usage: UsageRead,
}

// What is written.

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta<'a>; 1]>,
}

#[derive(Serialize)]
struct CallDelta<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}
