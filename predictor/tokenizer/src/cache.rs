//! Token ids of pieces of prompts seen before, so that a conversation's next turn costs its new text.
//!
//! Pieces lie between special tokens (see [`crate::encode`]), where the ids of one do not depend on its neighbours. Two
//! generations: what is used moves to the young one; when that is full the old one is dropped whole and the young one becomes
//! old. A piece that is used at least once in every half cache of new text stays, and nothing is ever searched for what to drop.
//!
//! The key is XXH3 with 128 bits, not a keyed hash: whoever crafts a collision gets a wrong estimate of what is cached, never
//! another prompt's answer.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// The hash of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(u128);

impl Key {
    pub(crate) fn of(text: &str) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
    }
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

type Ids = Arc<[u32]>;
type Generation = HashMap<Key, Ids, BuildHasherDefault<Taken>>;

/// Bytes of an entry beside its ids: key, pointer, counts, and the table's slack.
const ENTRY_BYTES: usize = 96;

/// Ids by piece, for all threads that tokenize. Locked for look-ups only, never while text is tokenized.
#[derive(Debug)]
pub(crate) struct Cache {
    generations: Mutex<Generations>,
    generation_bytes_max: usize,
}

#[derive(Debug, Default)]
struct Generations {
    young: Generation,
    old: Generation,
    young_bytes: usize,
    old_bytes: usize,
}

impl Cache {
    /// A cache of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { generations: Mutex::default(), generation_bytes_max: bytes_max / 2 }
    }

    /// The ids of each piece that is known.
    pub(crate) fn find(&self, keys: &[Key]) -> Vec<Option<Ids>> {
        let mut generations = self.lock();
        keys.iter().map(|key| generations.find(key, self.generation_bytes_max)).collect()
    }

    /// Keeps the ids of pieces. One that is larger than half of the cache is not kept.
    pub(crate) fn keep(&self, pieces: impl Iterator<Item = (Key, Ids)>) {
        let mut generations = self.lock();
        pieces.for_each(|(key, ids)| generations.keep(key, ids, self.generation_bytes_max));
    }

    /// Bytes held, estimated.
    pub(crate) fn bytes(&self) -> usize {
        let generations = self.lock();
        generations.young_bytes + generations.old_bytes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Generations> {
        // Every state in which a panic can leave it is a good one: entries are whole.
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn find(&mut self, key: &Key, bytes_max: usize) -> Option<Ids> {
        if let Some(ids) = self.young.get(key) {
            return Some(ids.clone());
        }
        let ids = self.old.remove(key)?;
        self.old_bytes = self.old_bytes.saturating_sub(entry_bytes(&ids));
        self.keep(*key, ids.clone(), bytes_max);
        Some(ids)
    }

    fn keep(&mut self, key: Key, ids: Ids, bytes_max: usize) {
        let bytes = entry_bytes(&ids);
        if bytes > bytes_max {
            return;
        }
        if self.young_bytes + bytes > bytes_max {
            self.old = std::mem::take(&mut self.young);
            self.old_bytes = std::mem::take(&mut self.young_bytes);
        }
        if self.young.insert(key, ids).is_none() {
            self.young_bytes += bytes;
        }
    }
}

fn entry_bytes(ids: &[u32]) -> usize {
    ENTRY_BYTES + std::mem::size_of_val(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(n: u32) -> Ids {
        Arc::from([n; 100])
    }

    fn find(cache: &Cache, text: &str) -> Option<Ids> {
        cache.find(&[Key::of(text)]).remove(0)
    }

    #[test]
    fn it_never_holds_more_than_it_may_and_keeps_what_is_used() {
        let cache = Cache::new(20_000);
        cache.keep([(Key::of("system"), ids(7))].into_iter());
        for n in 0..1_000 {
            cache.keep([(Key::of(&n.to_string()), ids(n))].into_iter());
            assert_eq!(find(&cache, "system"), Some(ids(7)), "after {n}");
            assert!(cache.bytes() <= 20_000, "{}", cache.bytes());
        }
        assert_eq!(find(&cache, "0"), None);
        assert_eq!(find(&cache, "999"), Some(ids(999)));
    }

    #[test]
    fn a_piece_larger_than_half_of_it_is_not_kept() {
        let cache = Cache::new(600);
        cache.keep([(Key::of("large"), ids(1))].into_iter());
        assert_eq!((find(&cache, "large"), cache.bytes()), (None, 0));
    }
}
