//! What is read of a stream of events while it passes, and what of it is shown.

use std::ops::Range;
use std::sync::LazyLock;

use memchr::memmem::Finder;

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
    /// The first output has come: from then on most events say nothing that is of interest here.
    content_seen: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edits {
    None,
    Some,
}

impl Observer {
    pub(super) fn new(kind: Kind, shown: &Presentation<'_>) -> Self {
        match kind {
            Kind::Events => Self::Events(Events {
                reader: EventReader::default(),
                edits: match (&shown.model_shown, shown.usage_asked) {
                    (None, UsageAsked::ByClient) => Edits::None,
                    (Some(_), _) | (_, UsageAsked::ByUs) => Edits::Some,
                },
                saw_error: false,
                content_seen: false,
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
    /// Events with output, or that say nothing of interest among such.
    pub(super) pieces: u64,
    /// What is shown is not what was received.
    pub(super) changed: bool,
}

/// One received buffer being read.
pub(super) struct Reading<'a> {
    pub(super) shown: &'a Presentation<'a>,
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
        let Self { reader, edits, saw_error, content_seen } = self;
        let edited = *edits == Edits::Some;
        if !edited {
            reading.kept.push(Kept::Received(range.clone()));
        }
        let payload = &reading.raw[range.clone()];
        let (shown, kept, texts, seen) = (reading.shown, &mut *reading.kept, &mut *reading.texts, &mut *reading.seen);
        reader.feed(payload, |event| {
            if *content_seen && shown.model_shown.is_none() && !may_matter(event.bytes) {
                keep(kept, texts, &event, range.start, seen, *edits);
                seen.pieces += 1;
                return;
            }
            let (document, data_start) = read_event(&event);
            seen.usage.merge(document.usage.unwrap_or_default());
            seen.content |= document.content != Content::None;
            seen.pieces += u64::from(document.content != Content::None);
            *content_seen |= seen.content;
            *saw_error |= document.is_error;
            if !edited {
                return;
            }
            let usage_alone = document.choices_empty && document.usage.is_some();
            if usage_alone && shown.usage_asked == UsageAsked::ByUs {
                seen.changed = true;
                return;
            }
            match shown.model_shown.zip(document.model_at).zip(data_start) {
                None => keep(kept, texts, &event, range.start, seen, *edits),
                Some(((name, at), start)) => {
                    seen.changed = true;
                    keep_part(kept, texts, &event, range.start, 0..at.start + start);
                    let from = texts.len();
                    push_json_string(texts, name);
                    kept.push(Kept::Text(from..texts.len()));
                    keep_part(kept, texts, &event, range.start, at.end + start..event.bytes.len());
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

/// Whether an event may carry usage or tell of an error (`response.failed` does by its name), told without reading it.
fn may_matter(event: &[u8]) -> bool {
    static WORDS: LazyLock<[Finder<'static>; 3]> =
        LazyLock::new(|| ["usage\"", "error\"", "failed\""].map(Finder::new));
    WORDS.iter().any(|word| word.find(event).is_some())
}

/// Shows a whole event.
fn keep(
    kept: &mut Vec<Kept>,
    texts: &mut Vec<u8>,
    event: &Event<'_>,
    payload_at: usize,
    seen: &mut Seen,
    edits: Edits,
) {
    if edits == Edits::Some {
        // What began in an earlier buffer was held back, and is now sent by us.
        seen.changed |= matches!(event.place, Place::Carried(_));
        keep_part(kept, texts, event, payload_at, 0..event.bytes.len());
    }
}

/// Shows a part of an event: as a range of the received buffer where it stands there.
fn keep_part(kept: &mut Vec<Kept>, texts: &mut Vec<u8>, event: &Event<'_>, payload_at: usize, part: Range<usize>) {
    match &event.place {
        Place::Payload(place) => {
            let at = payload_at + place.start;
            kept.push(Kept::Received(at + part.start..at + part.end));
        }
        Place::Carried(_) => kept.push(push_text(texts, &event.bytes[part])),
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
