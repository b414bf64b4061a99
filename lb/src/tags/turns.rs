//! A scan in turns: after every slice of text other requests of the thread go on, so that a long prompt costs its own time only.

use std::borrow::Cow;
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use predictor::classify::{Memory, Piece, PieceKey, Progress, Remembered, SLICE_BYTES, Scanner, Scope, Scratch, Tag};

use super::text::{Form, Source, Sources};
use crate::openai::scan::{Decoded, unescape_some};
use crate::shard::Shard;

/// Most buffers that a thread keeps for scans; each is some tens of kilobytes.
const SCRATCHES_MAX: usize = 8;

thread_local! {
    static SCRATCHES: RefCell<Vec<Scratch>> = const { RefCell::new(Vec::new()) };
}

/// Buffers of a scan, given back when it ends, however it ends.
struct Borrowed(Scratch);

impl Borrowed {
    fn take() -> Self {
        Self(SCRATCHES.with_borrow_mut(Vec::pop).unwrap_or_default())
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let scratch = std::mem::take(&mut self.0);
        SCRATCHES.with_borrow_mut(|kept| {
            if kept.len() < SCRATCHES_MAX {
                kept.push(scratch);
            }
        });
    }
}

/// Bytes that are searched, hashed or checked in the time that the classifiers take for one.
const SEARCHED_WHILE_ONE_IS_READ: usize = 16;

/// Who else waits.
#[derive(Clone, Copy)]
pub(super) enum Pace<'s> {
    /// Nobody: a command, a test.
    AtOnce,
    /// The other requests of a data thread, which also remembers what was read before.
    Turns(&'s Shard),
}

impl Pace<'_> {
    fn find(self, key: Option<PieceKey>) -> Option<Remembered> {
        match self {
            Self::AtOnce => None,
            Self::Turns(shard) => shard.piece_memory.borrow_mut().find(key?),
        }
    }

    fn with_memory<T>(self, with: impl FnOnce(&mut Memory) -> T) -> Option<T> {
        match self {
            Self::AtOnce => None,
            Self::Turns(shard) => Some(with(&mut shard.piece_memory.borrow_mut())),
        }
    }
}

/// Lets others go on when enough has been read since they last did.
pub(super) struct Breath<'s> {
    pace: Pace<'s>,
    bytes: usize,
}

impl<'s> Breath<'s> {
    pub(super) fn new(pace: Pace<'s>) -> Self {
        Self { pace, bytes: 0 }
    }

    /// The text of a piece, and whether all of it is text.
    pub(super) async fn decode<'t>(&mut self, source: &'t Source<'_>) -> (Cow<'t, str>, Decoded) {
        let raw = &*source.bytes;
        let plain = match source.form {
            Form::Escaped => memchr::memchr(b'\\', raw).is_none(),
            Form::Plain => true,
        };
        if plain && let Ok(text) = simdutf8::basic::from_utf8(raw) {
            self.after(raw.len() / SEARCHED_WHILE_ONE_IS_READ).await;
            return (Cow::Borrowed(text), Decoded::Wholly);
        }
        match source.form {
            Form::Escaped => self.unescape(raw).await,
            Form::Plain => (Cow::Owned(self.replace(raw).await), Decoded::InPart),
        }
    }

    async fn unescape(&mut self, raw: &[u8]) -> (Cow<'static, str>, Decoded) {
        let (mut rest, mut text, mut all) = (raw, String::with_capacity(raw.len()), Decoded::Wholly);
        while !rest.is_empty() {
            let (left, part) = unescape_some(rest, SLICE_BYTES, &mut text);
            let taken = rest.len() - left.len();
            rest = left;
            if part == Decoded::InPart {
                all = part;
            }
            self.after(taken).await;
        }
        (Cow::Owned(text), all)
    }

    /// The text of bytes that are not all text.
    async fn replace(&mut self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            self.after(chunk.valid().len() + chunk.invalid().len()).await;
        }
        text
    }

    async fn after(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes < SLICE_BYTES {
            return;
        }
        self.bytes = 0;
        match self.pace {
            Pace::AtOnce => {}
            Pace::Turns(shard) => shard.yield_now().await,
        }
    }
}

/// A piece between decoding and scanning.
struct Pending<'t> {
    scope: Scope,
    key: Option<PieceKey>,
    known: Option<Remembered>,
    /// None where what is known is enough.
    text: Option<Cow<'t, str>>,
}

/// The tags of what `sources` hold.
pub(super) async fn tags(scanner: &Scanner, sources: &Sources<'_>, pace: Pace<'_>) -> Vec<Tag> {
    let mut breath = Breath::new(pace);
    let last_turn = sources.in_last_turn();
    let mut shape = sources.shape;
    let mut pieces = Vec::with_capacity(sources.pieces.len());
    for (source, in_last_turn) in sources.pieces.iter().zip(last_turn) {
        let key = pace.with_memory(|memory| key_of(memory, scanner, source)).flatten();
        let known = pace.find(key);
        let mut piece = Pending { scope: source.scope, key, known, text: None };
        if known.is_none() || in_last_turn {
            let (text, decoded) = breath.decode(source).await;
            if decoded == Decoded::InPart {
                shape.unscannable = true;
                piece.key = None;
            }
            piece.text = Some(text);
        }
        pieces.push(piece);
    }
    let mut borrowed = Borrowed::take();
    let mut scan = scanner.start(&mut borrowed.0, &shape);
    for Pending { scope, key, known, text } in &pieces {
        match (known, text) {
            (Some(known), text) => scan.recall(*known, *scope, text.as_deref()),
            (None, Some(text)) => {
                scan.begin(Piece { scope: *scope, text });
                while scan.step() == Progress::More {
                    breath.after(SLICE_BYTES).await;
                }
                breath.after(text.len() % SLICE_BYTES).await;
                if let Some(key) = key {
                    pace.with_memory(|memory| scan.remember(memory, *key, text.len()));
                }
            }
            (None, None) => {}
        }
    }
    scan.finish();
    borrowed.0.findings().tags().iter().collect()
}

fn key_of(memory: &Memory, scanner: &Scanner, source: &Source<'_>) -> Option<PieceKey> {
    memory.key(scanner, source.scope, source.form as u8, &source.bytes)
}

/// The text of a piece, at once.
#[cfg(test)]
pub(super) fn decode<'t>(source: &'t Source<'_>) -> (Cow<'t, str>, Decoded) {
    let mut breath = Breath::new(Pace::AtOnce);
    at_once(breath.decode(source)).unwrap_or((Cow::Borrowed(""), Decoded::InPart))
}

/// What a future gives that waits for nothing; `None` when it waits all the same.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
