//! A scan in turns: after every slice of text other requests of the thread go on, so that a long prompt costs its own time only.

use std::borrow::Cow;
use std::cell::RefCell;

use predictor::classify::{Memory, Piece, PieceKey, Progress, Remembered, SLICE_BYTES, Scanner, Scope, Scratch, Tag};

use super::text::{Source, Sources, decode};
use crate::openai::scan::Decoded;
use crate::pace::{Breath, Pace};

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

/// What is remembered of pieces that were read before, where there is somebody to remember it.
fn with_memory<T>(pace: Pace<'_>, with: impl FnOnce(&mut Memory) -> T) -> Option<T> {
    match pace {
        Pace::AtOnce => None,
        Pace::Turns(shard) => Some(with(&mut shard.piece_memory.borrow_mut())),
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
pub(super) async fn tags(scanner: &Scanner, sources: &Sources<'_>, breath: &mut Breath<'_>) -> Vec<Tag> {
    let pace = breath.pace();
    let last_turn = sources.in_last_turn();
    let mut shape = sources.shape;
    let mut pieces = Vec::with_capacity(sources.pieces.len());
    for (source, in_last_turn) in sources.pieces.iter().zip(last_turn) {
        let key = with_memory(pace, |memory| key_of(memory, scanner, source)).flatten();
        let known = key.and_then(|key| with_memory(pace, |memory| memory.find(key)).flatten());
        breath.after_search(source.bytes.len()).await;
        let mut piece = Pending { scope: source.scope, key, known, text: None };
        if known.is_none() || in_last_turn {
            let (text, decoded) = decode(source, breath).await;
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
                    with_memory(pace, |memory| scan.remember(memory, *key, text.len()));
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
