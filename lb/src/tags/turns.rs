//! A scan in turns: after every slice of text other requests of the thread go on, so that a long prompt costs its own time only.

use std::borrow::Cow;
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use predictor::classify::{Memory, Piece, PieceKey, Progress, Remembered, SLICE_BYTES, Scanner, Scope, Scratch, Tag};

use super::text::{Decoded, Form, Source, Sources, decode, decoded};
use crate::openai::scan::unescape_some;
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

/// Escaped bytes that are decoded in one go: about 100 us where every character is an escape.
const DECODED_BYTES_MAX: usize = 16 << 10;

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
struct Breath<'s> {
    pace: Pace<'s>,
    bytes: usize,
}

impl Breath<'_> {
    /// The text of a piece; a long one with escapes is decoded in turns.
    async fn decode<'t>(&mut self, source: &'t Source<'_>) -> (Cow<'t, str>, Decoded) {
        let escapes = source.form == Form::Escaped && memchr::memchr(b'\\', &source.bytes).is_some();
        if source.bytes.len() <= DECODED_BYTES_MAX || !escapes {
            return decode(source);
        }
        let (mut rest, mut text) = (&*source.bytes, Vec::with_capacity(source.bytes.len()));
        while !rest.is_empty() {
            rest = unescape_some(rest, DECODED_BYTES_MAX, &mut text);
            self.after(DECODED_BYTES_MAX / 4).await;
        }
        let text =
            String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        let decoded = decoded(source, &text);
        (Cow::Owned(text), decoded)
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
    let mut breath = Breath { pace, bytes: 0 };
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

/// What a future gives that waits for nothing; `None` when it waits all the same.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
