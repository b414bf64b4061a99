//! What is read of a stream of events while it passes, and what of it is shown.

use std::ops::Range;

use super::Kind;
use super::Presentation;
use crate::openai::Usage;
use crate::openai::edit::UsageAsked;
use crate::openai::response::{Content, Document};
use crate::openai::scan::push_json_string;
use crate::openai::sse::{Event, EventReader, Place};

/// A piece of payload to be sent.
#[derive(Debug)]
pub(super) enum Kept {
    /// A range of the received buffer.
    Received(Range<usize>),
    /// A range of `texts`.
    Text(Range<usize>),
}

impl Kept {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Received(range) | Self::Text(range) => range.len(),
        }
    }
}

#[derive(Debug)]
pub(super) enum Observer {
    Events(Events),
    Unread,
}

/// Reads a stream of events, and says what of it is shown.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) reader: EventReader,
    /// Events are held back until they are whole, because some are changed or not shown.
    pub(super) edits: Edits,
    pub(super) saw_error: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edits {
    None,
    Some,
}

impl Observer {
    pub(super) fn new(kind: Kind, shown: &Presentation) -> Self {
        match kind {
            Kind::Events => Self::Events(Events {
                reader: EventReader::default(),
                edits: match (&shown.model_shown, shown.usage_asked) {
                    (None, UsageAsked::ByClient) => Edits::None,
                    (Some(_), _) | (_, UsageAsked::ByUs) => Edits::Some,
                },
                saw_error: false,
            }),
            Kind::Document | Kind::Opaque => Self::Unread,
        }
    }
}

/// What one received buffer told.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) usage: Usage,
    pub(super) content: bool,
    /// What is shown is not what was received.
    pub(super) changed: bool,
}

/// One received buffer being read.
pub(super) struct Reading<'a> {
    pub(super) shown: &'a Presentation,
    pub(super) raw: &'a [u8],
    pub(super) kept: &'a mut Vec<Kept>,
    pub(super) texts: &'a mut Vec<u8>,
    pub(super) seen: &'a mut Seen,
}

impl Observer {
    pub(super) fn edits(&self) -> Edits {
        match self {
            Self::Events(events) => events.edits,
            Self::Unread => Edits::None,
        }
    }

    /// Bytes were received that are not sent yet.
    pub(super) fn holds_back(&self) -> bool {
        match self {
            Self::Events(events) => events.edits == Edits::Some && events.reader.is_inside_event(),
            Self::Unread => false,
        }
    }

    /// What the client was sent ends where an event ends. Of a body that is not read nobody knows.
    pub(super) fn client_is_between_events(&self) -> bool {
        match self {
            Self::Events(events) => events.edits == Edits::Some || !events.reader.is_inside_event(),
            Self::Unread => false,
        }
    }

    pub(super) fn saw_error(&self) -> bool {
        match self {
            Self::Events(events) => events.saw_error,
            Self::Unread => false,
        }
    }

    /// Reads a range of payload and appends what is shown of it.
    pub(super) fn read(&mut self, reading: &mut Reading<'_>, range: Range<usize>) {
        match self {
            Self::Events(events) => events.read(reading, range),
            Self::Unread => reading.kept.push(Kept::Received(range)),
        }
    }
}

impl Events {
    pub(super) fn read(&mut self, reading: &mut Reading<'_>, range: Range<usize>) {
        let Self { reader, edits, saw_error } = self;
        let edited = *edits == Edits::Some;
        if !edited {
            reading.kept.push(Kept::Received(range.clone()));
        }
        let payload = &reading.raw[range.clone()];
        let (shown, kept, texts, seen) = (reading.shown, &mut *reading.kept, &mut *reading.texts, &mut *reading.seen);
        reader.feed(payload, |event| {
            let (document, data_start) = read_event(&event);
            seen.usage.merge(document.usage.unwrap_or_default());
            seen.content |= document.content != Content::None;
            *saw_error |= document.is_error;
            if !edited {
                return;
            }
            let usage_alone = document.choices_empty && document.usage.is_some();
            if usage_alone && shown.usage_asked == UsageAsked::ByUs {
                seen.changed = true;
                return;
            }
            let rename = shown.model_shown.as_deref().zip(document.model_at).zip(data_start);
            let rename = rename.map(|((name, at), start)| (name, at.start + start..at.end + start));
            let at_received = match event.place {
                Place::Payload(place) => Some(range.start + place.start),
                Place::Carried(_) => None,
            };
            seen.changed |= rename.is_some() || at_received.is_none();
            let mut keep = |part: Range<usize>| match at_received {
                Some(at) => kept.push(Kept::Received(at + part.start..at + part.end)),
                None => kept.push(push_text(texts, &event.bytes[part])),
            };
            match rename {
                None => keep(0..event.bytes.len()),
                Some((name, at)) => {
                    keep(0..at.start);
                    let start = texts.len();
                    push_json_string(texts, name);
                    kept.push(Kept::Text(start..texts.len()));
                    let mut keep = |part: Range<usize>| match at_received {
                        Some(at) => kept.push(Kept::Received(at + part.start..at + part.end)),
                        None => kept.push(push_text(texts, &event.bytes[part])),
                    };
                    keep(at.end..event.bytes.len());
                }
            }
        });
        if edited && reader.is_overlong() {
            // Too long to be held back: from here on the stream passes as it comes.
            reading.kept.push(push_text(reading.texts, reader.carried()));
            reading.seen.changed = true;
            *edits = Edits::None;
        }
        reader.bound();
    }
}

pub(super) fn push_text(texts: &mut Vec<u8>, bytes: &[u8]) -> Kept {
    let start = texts.len();
    texts.extend_from_slice(bytes);
    Kept::Text(start..texts.len())
}

/// The document of an event, and where its data begins in the event (when it stands on one line).
pub(super) fn read_event(event: &Event<'_>) -> (Document, Option<usize>) {
    match event.data() {
        Some(data) => (Document::parse(&event.bytes[data.clone()]).unwrap_or_default(), Some(data.start)),
        None => (Document::parse(&event.joined_data()).unwrap_or_default(), None),
    }
}
