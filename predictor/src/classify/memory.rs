//! What scans found in pieces of text that come again: the history of a conversation is sent with every turn, and only the new turn costs.
//!
//! A piece is known by a 128-bit hash of its bytes, its scope and the scanner, under a seed of the process, so that nobody outside can make
//! one text pass for another. Of a piece only its kinds, tags and length are kept, no text and no places.

use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::Scope;
use super::kind::KindSet;
use super::scanner::Scanner;
use super::tag::TagSet;

/// Pieces that are remembered.
const PIECES_MAX: usize = 4096;
/// Places a piece may be kept at; the one used longest ago is given up.
const WAYS: usize = 4;
/// Shortest piece that is worth it: scanning a shorter one takes less than looking it up.
pub const REMEMBERED_BYTES_MIN: usize = 128;

/// What a piece is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceKey(u128);

/// What was found in a piece.
#[derive(Debug, Clone, Copy, Default)]
pub struct Remembered {
    pub(super) kinds: KindSet,
    /// Tags of the operator's classifiers.
    pub(super) tags: TagSet,
    /// Bytes of its text.
    pub(super) bytes: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    key: u128,
    used: u64,
    found: Remembered,
}

/// The memory of one thread: some 400 KB, taken when it is first needed.
#[derive(Debug)]
pub struct Memory {
    seed: u64,
    uses: u64,
    slots: Vec<Slot>,
}

impl Memory {
    /// An empty memory. `seed` should be hard to guess.
    #[must_use]
    pub fn new(seed: u64) -> Memory {
        Memory { seed, uses: 0, slots: Vec::new() }
    }

    /// The key of a piece by its source bytes; `form` tells how they become text. None when it is too short, or `scanner` counts
    /// across pieces and so needs the text of all.
    #[must_use]
    pub fn key(&self, scanner: &Scanner, scope: Scope, form: u8, source: &[u8]) -> Option<PieceKey> {
        if source.len() < REMEMBERED_BYTES_MIN || scanner.counts_across_pieces() {
            return None;
        }
        let salt = scanner.fingerprint ^ self.seed ^ (u64::from(form) << 8 | scope as u64);
        Some(PieceKey(xxh3_128_with_seed(source, salt)))
    }

    /// What is known of a piece.
    #[must_use]
    pub fn find(&mut self, key: PieceKey) -> Option<Remembered> {
        self.uses += 1;
        let uses = self.uses;
        let ways = self.ways(key);
        let slot = self.slots.get_mut(ways)?.iter_mut().find(|slot| slot.used != 0 && slot.key == key.0)?;
        slot.used = uses;
        Some(slot.found)
    }

    pub(super) fn keep(&mut self, key: PieceKey, found: Remembered) {
        if self.slots.is_empty() {
            self.slots.resize(PIECES_MAX, Slot::default());
        }
        self.uses += 1;
        let uses = self.uses;
        let ways = self.ways(key);
        if let Some(slot) = self.slots.get_mut(ways).and_then(|ways| ways.iter_mut().min_by_key(|slot| slot.used)) {
            *slot = Slot { key: key.0, used: uses, found };
        }
    }

    fn ways(&self, key: PieceKey) -> std::ops::Range<usize> {
        let first = (key.0 >> 64) as usize % (PIECES_MAX / WAYS) * WAYS;
        first..first + WAYS
    }
}
