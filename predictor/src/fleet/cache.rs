//! What an endpoint's overlap rests on: the own record of placements, or what the engine itself tells of its cache.
//!
//! Events of the engine alone would be worse than the own record: a queued prompt has no stored blocks yet, and those that
//! follow it would scatter. So the overlap is what the engine told stored **or** an own request in flight there; what has ended
//! counts no more, since the engine has said by then what it kept.
//!
//! Keys of events are those of chains in exact tokens ([`Cut::Tokens`]). Prompts known by their bytes have others: for them the
//! own record goes on, and events say only that everything is gone ([`Fleet::cache_cleared`]) or how far eviction has come
//! ([`Fleet::cache_evicted`]).

use super::{Backend, Endpoint, Fleet, Note, TRUST_TOKENS_MIN};
use crate::prefix::chain::{Chain, Cut};
use crate::prefix::index::Placement;
use std::sync::Arc;

/// Length in microseconds of the ticks in which the mirror of a cache and the record of placements tell time.
pub const TICK_US: u64 = 100_000;
/// The longest answers of so many microseconds, and of as many before, say how long a block may have been in use.
const LONGEST_WITHIN_US: u64 = 300_000_000;

/// What an endpoint's overlap rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evidence {
    /// Own placements, the least recently used of which go first.
    #[default]
    Record,
    /// Own placements, and what the engine told of its cache, of which some is not known.
    Corrected,
    /// What the engine told of its cache, all of which is known, and own requests in flight.
    Events,
}

/// What is known of an endpoint's cache besides the blocks themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cache {
    evidence: Evidence,
    /// Tokens in a block of the engine; 0 while unknown.
    block_tokens: u32,
    /// Blocks there must be room for.
    blocks_min: u32,
    longest: Longest,
}

/// How long answers took of late, at the most.
#[derive(Clone, Copy, Debug, Default)]
struct Longest {
    since_us: u64,
    us: u64,
    before_us: u64,
}

impl Longest {
    fn saw(&mut self, now_us: u64, took_us: u64) {
        let age_us = now_us.saturating_sub(self.since_us);
        if age_us >= LONGEST_WITHIN_US {
            let before_us = if age_us < 2 * LONGEST_WITHIN_US { self.us } else { 0 };
            *self = Longest { since_us: now_us, us: 0, before_us };
        }
        self.us = self.us.max(took_us);
    }

    fn us(&self) -> u64 {
        self.us.max(self.before_us)
    }
}

impl Cache {
    pub(super) fn evidence(&self) -> Evidence {
        self.evidence
    }

    /// The blocks that a request holds while it is in flight, where that is what counts.
    pub(super) fn claim(&self, chain: &Chain) -> Option<Arc<[u64]>> {
        self.tells_of(chain.cut()).then(|| chain.blocks().into())
    }

    /// Whether the engine's events say everything of chains cut like this.
    pub(super) fn tells_of(&self, cut: Cut) -> bool {
        match (self.evidence, cut) {
            (Evidence::Events, Cut::Tokens) => true,
            (Evidence::Events | Evidence::Record | Evidence::Corrected, Cut::Tokens | Cut::Bytes) => false,
        }
    }

    /// Room in blocks for a cache of so many tokens, where its blocks are known.
    pub(super) fn blocks(&self, tokens: f64) -> Option<u32> {
        let blocks = match (self.evidence, self.block_tokens) {
            (Evidence::Record, _) | (_, 0) => return None,
            (Evidence::Corrected | Evidence::Events, block_tokens) => tokens / f64::from(block_tokens),
        };
        match self.evidence {
            Evidence::Record => None,
            Evidence::Corrected => Some(blocks as u32),
            // Queued prompts are not in the engine's cache yet.
            Evidence::Events => Some((2.0 * blocks) as u32).map(|blocks| blocks.max(self.blocks_min)),
        }
    }
}

impl Fleet {
    /// What the overlap of an endpoint rests on from now on, and the tokens in a block of its engine (0: not known). After
    /// [`Evidence::Record`] everything that the engine holds is to be told anew.
    pub fn cache_evidence(&mut self, endpoint: u32, evidence: Evidence, block_tokens: u32) {
        let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize) else {
            return;
        };
        let before = known.cache.evidence;
        known.cache = Cache { evidence, block_tokens, blocks_min: 0, ..known.cache };
        if before == Evidence::Record && evidence != Evidence::Record {
            // It may be long ago: what still holds is told again.
            self.index.forget_told(endpoint);
        }
        match evidence {
            Evidence::Events => {
                self.index.void_placements(endpoint);
                self.make_room(endpoint, 0);
            }
            Evidence::Record | Evidence::Corrected => {}
        }
        self.resize_index(endpoint);
    }

    /// The engine told that it stored these blocks of one prompt, in order. Ignored where its events are no evidence.
    pub fn cache_stored(&mut self, now_us: u64, endpoint: u32, blocks: &[u64]) {
        if self.endpoint(endpoint).is_some_and(|known| known.cache.evidence != Evidence::Record) {
            self.make_room(endpoint, blocks.len());
            self.index.turn_to(tick(now_us));
            self.index.stored(blocks, endpoint);
        }
    }

    /// The engine told that it dropped these blocks.
    pub fn cache_removed(&mut self, endpoint: u32, blocks: &[u64]) {
        self.index.removed(blocks, endpoint);
    }

    /// The engine's cache is empty.
    pub fn cache_cleared(&mut self, endpoint: u32) {
        self.index.remove_endpoint(endpoint);
        self.ends.forget(endpoint);
    }

    /// The engine evicted a block that was stored at this time: what was last used before is gone. A block is in use until its
    /// request ends, so what was placed within the time that the longest answers take before may still be there.
    pub fn cache_evicted(&mut self, endpoint: u32, stored_at_us: u64) {
        if let Some(known) = self.endpoint(endpoint) {
            let before_us = stored_at_us.saturating_sub(known.cache.longest.us());
            self.index.forget_before(endpoint, tick(before_us));
        }
    }

    /// A request in flight holds its blocks.
    pub(super) fn claim(&mut self, now_us: u64, endpoint: u32, blocks: &[u64]) {
        self.make_room(endpoint, blocks.len());
        self.index.turn_to(tick(now_us));
        self.index.claim(blocks, endpoint);
    }

    /// A prompt is recorded.
    pub(super) fn place(&mut self, now_us: u64, endpoint: u32, chain: &Chain) {
        self.index.turn_to(tick(now_us));
        self.index.insert(chain, endpoint);
        self.weigh_blocks(chain, endpoint);
    }

    /// A request has ended after so long.
    pub(super) fn release(&mut self, now_us: u64, endpoint: u32, claimed: Option<&[u64]>, took_us: u64) {
        let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize) else {
            return;
        };
        known.cache.longest.saw(now_us, took_us);
        let placement = match known.cache.evidence {
            Evidence::Events => Placement::Void,
            Evidence::Record | Evidence::Corrected => Placement::Counts,
        };
        if let Some(blocks) = claimed {
            self.index.release(blocks, endpoint, placement);
        }
    }

    /// Lets the room of an endpoint grow with what its engine tells: what it told must not fall out for want of room.
    fn make_room(&mut self, endpoint: u32, blocks: usize) {
        let needed = self.index.held(endpoint).saturating_add(u32::try_from(blocks).unwrap_or(u32::MAX));
        if let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize)
            && known.backend == Backend::Engine
            && known.cache.evidence == Evidence::Events
            && needed > known.cache.blocks_min
        {
            known.cache.blocks_min = needed.checked_next_power_of_two().unwrap_or(u32::MAX);
            self.resize_index(endpoint);
        }
    }
}

impl Endpoint {
    /// Tokens that need no computing of a prompt of which so many are believed cached. At least one is always computed; where
    /// the engine's blocks are known they are found whole or not at all.
    pub(super) fn cached_tokens(&self, tokens: f64, age_ratio: f64, prompt_tokens: u32, cut: Cut) -> u32 {
        let prompt = prompt_tokens.saturating_sub(1);
        if self.cache.tells_of(cut) {
            // Rounded, as a share of the prompt it came through floating-point numbers.
            let cached = (tokens.round() as u32).min(prompt);
            cached - cached % self.cache.block_tokens.max(1)
        } else {
            self.trusted(tokens, age_ratio).min(prompt)
        }
    }

    /// Follows how much of what was expected by the own record turned out true.
    pub(super) fn learn_overlap(&mut self, note: &Note, expected: u32, actual: Option<u32>) {
        let recorded = f64::from(expected) / note.trust;
        if let (Some(actual), true) = (actual, recorded >= f64::from(TRUST_TOKENS_MIN)) {
            self.trust.learn(note.age_ratio, f64::from(actual) / recorded);
        }
    }
}

fn tick(at_us: u64) -> u32 {
    u32::try_from(at_us / TICK_US).unwrap_or(u32::MAX)
}
