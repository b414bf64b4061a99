//! Doors of this room for fuzzing (see [`crate::probe`]): the observer of a stream without connections.

use policy::Backend;

use super::events::{Edits, Kept, Observer, Reading, Seen, push_text};
use super::framing::Source;
use super::{Kind, Presentation};
use crate::conn::EventNames;
use crate::exchange::After;
use crate::http1::BodyFraming;
use crate::openai::Usage;
use crate::openai::edit::UsageAsked;

/// How the payload is framed as it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framed {
    /// In chunks.
    Chunked,
    /// Until the connection ends.
    UntilClose,
}

/// Who asked for the chunk that only tells usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The client, if anybody: everything is shown.
    ByClient,
    /// The gateway: it is not shown.
    ByUs,
}

/// What became of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Passed {
    /// The payload that the client sees.
    pub shown: Vec<u8>,
    /// Tokens of the prompt, of the answer, and cached.
    pub usage: [Option<u64>; 3],
    /// Output was seen.
    pub output: bool,
    /// An error event was seen.
    pub error: bool,
    /// The framing ended, or was broken.
    pub ended: Option<bool>,
}

/// Passes a stream of events that comes in these parts, with the model shown as `model_shown`.
#[must_use]
pub fn passed(parts: &[&[u8]], framed: Framed, model_shown: Option<&str>, asked: Asked) -> Passed {
    let shown = Presentation {
        backend: Backend::Local,
        model_shown,
        usage_asked: match asked {
            Asked::ByClient => UsageAsked::ByClient,
            Asked::ByUs => UsageAsked::ByUs,
        },
        event_names: EventNames::Absent,
        request_id: "",
        decision_headers: Vec::new(),
        rate_limits: Vec::new(),
        after: After::KeepAlive,
        head_only: false,
    };
    let mut source = Source::new(match framed {
        Framed::Chunked => BodyFraming::Chunked,
        Framed::UntilClose => BodyFraming::UntilClose,
    });
    let mut observer = Observer::new(Kind::Events, &shown);
    let mut passed = Passed::default();
    let mut usage = Usage::default();
    for part in parts {
        let (mut kept, mut texts, mut seen) = (Vec::new(), Vec::new(), Seen::default());
        let mut reading = Reading { shown: &shown, raw: part, kept: &mut kept, texts: &mut texts, seen: &mut seen };
        let read = source.read(part, |range| observer.read(&mut reading, range));
        usage.merge(seen.usage);
        passed.output |= seen.content;
        if read.is_err() {
            passed.ended = Some(false);
            break;
        }
        append(&mut passed.shown, part, &kept, &texts);
        if source.is_done() {
            passed.ended = Some(true);
            break;
        }
    }
    if let Observer::Events(events) = &observer
        && events.edits == Edits::Some
        && passed.ended != Some(false)
    {
        let mut texts = Vec::new();
        let rest = push_text(&mut texts, events.reader.carried());
        append(&mut passed.shown, &[], &[rest], &texts);
    }
    passed.error = observer.saw_error();
    passed.usage = [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens];
    passed
}

fn append(to: &mut Vec<u8>, raw: &[u8], kept: &[Kept], texts: &[u8]) {
    for piece in kept {
        match piece {
            Kept::Received(range) => to.extend_from_slice(&raw[range.clone()]),
            Kept::Text(range) => to.extend_from_slice(&texts[range.clone()]),
        }
    }
}
