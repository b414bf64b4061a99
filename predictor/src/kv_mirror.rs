//! What one endpoint's cache holds, by its own events: a copy kept up to date from the messages of [`kv_event`](crate::kv_event).
//!
//! vLLM's hashes name blocks only within one engine: a block is brought under our own key ([`token_block`] over its tokens,
//! from [`Seed::root`] of model, adapter and salt), which equals that of a request's chain in exact tokens. The engine's hash is
//! used to find a parent and what is removed, and for nothing else; so any of its hash algorithms will do.
//!
//! Copies are counted. vLLM computes the last block of a prompt of whole blocks again and then holds it twice, stored twice and
//! removed twice; a block moved to host memory is stored there before the first copy goes. A key is held while any copy of any
//! block under it is.
//!
//! Each data-parallel rank is an engine of its own, with its own sequence of messages and its own cache; the endpoint holds what
//! any of them does. Sequence numbers tell what was missed: [`Received::Gap`] asks the caller for a replay, and what cannot be had
//! again is given up by [`Mirror::give_up`], after which the copy is [`Knowledge::Partial`]: removals in the gap are unknown, so
//! some of what it holds is gone. Only a restart or a clear makes it whole again. A restart shows as a sequence number that
//! falls, or in a replay whose last known message is another one.
//!
//! Pure and bounded: at most `blocks_max` blocks; more are counted and not kept. About 60 bytes a block.

use ahash::RandomState;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use xxhash_rust::xxh3::xxh3_64;

use crate::kv_event::{Attention, Beside, EngineHash, Event, Extra, Fault, Medium, Removed, Stored, decode};
use crate::prefix::chain::{Seed, token_block};

/// Most data-parallel ranks of an endpoint.
pub const RANKS_MAX: u32 = 64;
/// Most keys in one [`Change`].
pub const CHANGE_KEYS_MAX: usize = 256;

/// How much of the cache is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Knowledge {
    /// Nothing was heard yet.
    Nothing,
    /// What was stored since some time; of that some may be gone.
    Partial,
    /// Every block from the engine's start, or from a clear.
    Complete,
}

/// Where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// As it was published: numbers rise by one.
    Live,
    /// Asked for again.
    Replay,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It was the next one.
    Applied,
    /// It was the next one, could not be read and counts as lost.
    Unreadable(Fault),
    /// It is known.
    Duplicate,
    /// Messages from this number on are missing; this one was not applied.
    Gap {
        /// The first that is missing.
        missing: u64,
    },
    /// The engine is another process than before: everything is forgotten, and this message was not applied.
    Restarted,
}

/// What the holders of keys must hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Held from now on; in the order of their prompt, at most [`CHANGE_KEYS_MAX`].
    Stored(Vec<u64>),
    /// No longer held, at most [`CHANGE_KEYS_MAX`].
    Removed(Vec<u64>),
    /// Nothing is held.
    Cleared,
}

/// What messages changed, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Changes of keys.
    pub changes: Vec<Change>,
    /// Of the blocks evicted from the device to the last copy, the latest time that a first copy was stored: an engine that evicts the least recently
    /// used first has dropped everything that was last used before. In the caller's ticks.
    pub evicted_stored_at: Option<u32>,
}

impl Delta {
    fn stored(&mut self, keys: &[u64]) {
        self.changes.extend(keys.chunks(CHANGE_KEYS_MAX).map(|keys| Change::Stored(keys.to_vec())));
    }

    fn removed(&mut self, key: u64) {
        match self.changes.last_mut() {
            Some(Change::Removed(keys)) if keys.len() < CHANGE_KEYS_MAX => keys.push(key),
            Some(Change::Removed(_) | Change::Stored(_) | Change::Cleared) | None => {
                self.changes.push(Change::Removed(vec![key]));
            }
        }
    }
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages applied.
    pub batches: u64,
    /// Blocks told stored, copies included.
    pub stored: u64,
    /// Blocks told removed, copies included.
    pub removed: u64,
    /// Times that everything was cleared.
    pub clears: u64,
    /// Times that the engine was found to be another process.
    pub restarts: u64,
    /// Messages that were lost for good.
    pub lost: u64,
    /// Messages that could not be read.
    pub unreadable: u64,
    /// Blocks stored after one that is not known, or without their tokens: they cannot be found.
    pub orphans: u64,
    /// Blocks that found no room here.
    pub overflowed: u64,
}

/// Copies of a block.
#[derive(Clone, Copy, Debug)]
struct Held {
    key: u64,
    on_device: u16,
    elsewhere: u16,
    /// When its last copy was stored, in the caller's ticks.
    stored_at: u32,
    /// Of its rank, when it was stored.
    era: u32,
}

#[derive(Debug)]
struct Rank {
    held: HashMap<u64, Held, RandomState>,
    knowledge: Knowledge,
    /// The number of the next message.
    next: u64,
    /// The number of the last live message that was taken.
    live: Option<u64>,
    /// Hash of the message before `next`.
    last_payload: Option<u64>,
    /// Rises when messages are lost: a block that is stored again was removed meanwhile.
    era: u32,
}

impl Rank {
    fn new() -> Rank {
        Rank {
            held: HashMap::default(),
            knowledge: Knowledge::Nothing,
            next: 0,
            live: None,
            last_payload: None,
            era: 0,
        }
    }
}

/// A copy of one endpoint's cache.
#[derive(Debug)]
pub struct Mirror {
    model: Box<str>,
    ranks: Vec<Rank>,
    /// Blocks of all ranks by key, with how many stand under it.
    keys: HashMap<u64, u32, RandomState>,
    blocks: usize,
    blocks_max: usize,
    block_tokens: u32,
    counts: Counts,
    chain: Vec<u64>,
}

impl Mirror {
    /// An empty copy of an endpoint that serves `model` (its name as the engine is sent it) with so many ranks.
    #[must_use]
    pub fn new(model: &str, ranks: u32, blocks_max: usize) -> Mirror {
        Mirror {
            model: model.into(),
            ranks: (0..ranks.clamp(1, RANKS_MAX)).map(|_| Rank::new()).collect(),
            keys: HashMap::default(),
            blocks: 0,
            blocks_max,
            block_tokens: 0,
            counts: Counts::default(),
            chain: Vec::new(),
        }
    }

    /// How much is known: the least of all ranks.
    #[must_use]
    pub fn knowledge(&self) -> Knowledge {
        self.ranks.iter().map(|rank| rank.knowledge).min().unwrap_or(Knowledge::Nothing)
    }

    /// Different blocks held.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.keys.len()
    }

    /// Tokens in a block, as the engine said last; 0 before that.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether a key is held.
    #[must_use]
    pub fn holds(&self, key: u64) -> bool {
        self.keys.contains_key(&key)
    }

    /// Every key, in no order.
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.keys.keys().copied()
    }

    /// The number from which a replay is to be asked: that of the last message known, which tells whether it is the same
    /// engine, else of the first.
    #[must_use]
    pub fn replay_from(&self, rank: u32) -> u64 {
        self.rank(rank).map_or(0, |rank| rank.next.saturating_sub(u64::from(rank.last_payload.is_some())))
    }

    /// The number of the next message.
    #[must_use]
    pub fn next(&self, rank: u32) -> u64 {
        self.rank(rank).map_or(0, |rank| rank.next)
    }

    /// Takes a message. `at` is the time in ticks of the caller's choice.
    pub fn receive(
        &mut self,
        rank: u32,
        source: Source,
        sequence: u64,
        payload: &[u8],
        at: u32,
        delta: &mut Delta,
    ) -> Received {
        let index = rank as usize;
        let Some(known) = self.ranks.get_mut(index) else {
            return Received::Duplicate;
        };
        let hash = xxh3_64(payload);
        let other_process = match source {
            Source::Live => known.live.is_some_and(|last| sequence <= last),
            Source::Replay => {
                sequence.checked_add(1) == Some(known.next) && known.last_payload.is_some_and(|last| last != hash)
            }
        };
        if other_process {
            self.restart(rank, delta);
            return Received::Restarted;
        }
        if sequence > known.next {
            return Received::Gap { missing: known.next };
        }
        if source == Source::Live {
            known.live = Some(sequence);
        }
        if sequence < known.next {
            return Received::Duplicate;
        }
        if known.knowledge == Knowledge::Nothing {
            known.knowledge = Knowledge::Complete;
        }
        known.next = sequence.saturating_add(1);
        known.last_payload = Some(hash);
        self.counts.batches += 1;
        match decode(payload) {
            Ok(batch) => {
                for event in &batch.events {
                    self.apply(index, event, at, delta);
                }
                Received::Applied
            }
            Err(fault) => {
                self.counts.unreadable += 1;
                self.ranks[index].lose();
                Received::Unreadable(fault)
            }
        }
    }

    /// A replay has told all there is: a rank of which nothing was heard before has not said anything since its start.
    pub fn replayed(&mut self, rank: u32) {
        if let Some(rank) = self.ranks.get_mut(rank as usize)
            && rank.knowledge == Knowledge::Nothing
        {
            rank.knowledge = Knowledge::Complete;
        }
    }

    /// Messages before this number cannot be had: goes on with it.
    pub fn give_up(&mut self, rank: u32, sequence: u64) {
        if let Some(rank) = self.ranks.get_mut(rank as usize)
            && sequence > rank.next
        {
            self.counts.lost = self.counts.lost.saturating_add(sequence - rank.next);
            rank.next = sequence;
            rank.last_payload = None;
            rank.lose();
        }
    }

    /// The engine of a rank is another process: it starts with an empty cache and at number 0.
    pub fn restart(&mut self, rank: u32, delta: &mut Delta) {
        if (rank as usize) < self.ranks.len() {
            self.counts.restarts += 1;
            self.clear(rank as usize, delta);
            let rank = &mut self.ranks[rank as usize];
            *rank = Rank { held: std::mem::take(&mut rank.held), ..Rank::new() };
        }
    }

    fn rank(&self, rank: u32) -> Option<&Rank> {
        self.ranks.get(rank as usize)
    }

    fn apply(&mut self, rank: usize, event: &Event<'_>, at: u32, delta: &mut Delta) {
        match event {
            Event::Stored(stored) => match stored.attention {
                Attention::Whole => self.store(rank, stored, at, delta),
                Attention::Bounded => {}
            },
            Event::Removed(removed) => self.remove(rank, removed, delta),
            Event::Cleared => {
                self.counts.clears += 1;
                self.clear(rank, delta);
                self.ranks[rank].knowledge = Knowledge::Complete;
            }
        }
    }

    fn store(&mut self, rank: usize, stored: &Stored<'_>, at: u32, delta: &mut Delta) {
        self.counts.stored += stored.hashes.len() as u64;
        self.block_tokens = stored.block_tokens;
        let mut parent = match stored.parent {
            Some(hash) => self.ranks[rank].held.get(&place(hash, stored.group)).map(|held| held.key),
            None if stored.token_ids.is_empty() => None,
            None => Some(self.root(stored)),
        };
        let size = stored.block_tokens as usize;
        self.chain.clear();
        for (index, hash) in stored.hashes.iter().enumerate() {
            let ids = stored.token_ids.get(index * size..(index + 1) * size).filter(|ids| !ids.is_empty());
            let known = self.ranks[rank].held.get(&place(*hash, stored.group)).map(|held| held.key);
            let computed = match (parent, ids) {
                (Some(parent), Some(ids)) => {
                    let extra = stored.extras.get(index).unwrap_or(&Extra::NONE);
                    let salted = index == 0 && stored.parent.is_none();
                    Some(token_block(parent ^ apart(extra, stored.lora, salted), ids.iter().copied()))
                }
                (_, _) => None,
            };
            parent = known.or(computed);
            match parent {
                Some(key) => self.hold(rank, place(*hash, stored.group), key, stored.medium, at),
                None => self.counts.orphans += 1,
            }
        }
        delta.stored(&self.chain);
    }

    /// What stands before the first block of a prompt.
    fn root(&self, stored: &Stored<'_>) -> u64 {
        let salt = match stored.extras.first().map(|extra| extra.beside(stored.lora)) {
            Some(Beside::Text(salt)) => Some(salt),
            Some(Beside::Nothing | Beside::Other(_)) | None => None,
        };
        // An adapter is a model of its own name to those who ask for it, and so in their chains.
        Seed { model: stored.lora.unwrap_or(&self.model), lora: None, cache_salt: salt }.root()
    }

    fn hold(&mut self, rank: usize, place: u64, key: u64, medium: Medium, at: u32) {
        let Rank { held, era, .. } = &mut self.ranks[rank];
        let block = match held.entry(place) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if self.blocks >= self.blocks_max => {
                self.counts.overflowed += 1;
                return;
            }
            Entry::Vacant(entry) => {
                self.blocks += 1;
                let under = self.keys.entry(key).or_default();
                *under += 1;
                entry.insert(Held { key, on_device: 0, elsewhere: 0, stored_at: at, era: *era })
            }
        };
        if block.era != *era {
            (block.on_device, block.elsewhere, block.era) = (0, 0, *era);
        }
        let copies = match medium {
            Medium::Device => &mut block.on_device,
            Medium::Elsewhere => &mut block.elsewhere,
        };
        if *copies == 0 {
            block.stored_at = at;
        }
        *copies = copies.saturating_add(1);
        self.chain.push(block.key);
    }

    fn remove(&mut self, rank: usize, removed: &Removed, delta: &mut Delta) {
        self.counts.removed += removed.hashes.len() as u64;
        for hash in &removed.hashes {
            let Entry::Occupied(mut entry) = self.ranks[rank].held.entry(place(*hash, removed.group)) else {
                continue;
            };
            let block = entry.get_mut();
            match removed.medium {
                Medium::Device => {
                    let was_last = block.on_device == 1;
                    block.on_device = block.on_device.saturating_sub(1);
                    // Which of several copies went, and when that one was stored, is not told.
                    if was_last {
                        delta.evicted_stored_at = delta.evicted_stored_at.max(Some(block.stored_at));
                    }
                }
                Medium::Elsewhere => block.elsewhere = block.elsewhere.saturating_sub(1),
            }
            if block.on_device == 0 && block.elsewhere == 0 {
                let key = entry.remove().key;
                self.blocks -= 1;
                if self.forget_one(key) {
                    delta.removed(key);
                }
            }
        }
    }

    /// One block less under a key. Says whether it was the last.
    fn forget_one(&mut self, key: u64) -> bool {
        let Entry::Occupied(mut under) = self.keys.entry(key) else {
            return false;
        };
        *under.get_mut() -= 1;
        let last = *under.get() == 0;
        if last {
            under.remove();
        }
        last
    }

    fn clear(&mut self, rank: usize, delta: &mut Delta) {
        let held = std::mem::take(&mut self.ranks[rank].held);
        self.blocks -= held.len();
        if self.blocks == 0 {
            self.keys.clear();
            delta.changes.push(Change::Cleared);
            return;
        }
        for block in held.values() {
            if self.forget_one(block.key) {
                delta.removed(block.key);
            }
        }
    }
}

impl Rank {
    fn lose(&mut self) {
        self.knowledge = Knowledge::Partial;
        self.era = self.era.wrapping_add(1);
    }
}

/// Where a block of a group of layers is kept: the same tokens have one block in each group.
fn place(hash: EngineHash, group: u32) -> u64 {
    hash.0 ^ u64::from(group).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What keeps apart blocks of the same tokens that stand for different media; 0 where nothing does. The salt of a prompt's first
/// block is in the root already.
fn apart(extra: &Extra<'_>, lora: Option<&str>, salted: bool) -> u64 {
    match extra.beside(lora) {
        Beside::Nothing => 0,
        Beside::Text(_) if salted => 0,
        Beside::Text(text) => xxh3_64(text),
        Beside::Other(hash) => hash,
    }
}

#[cfg(test)]
mod tests;
