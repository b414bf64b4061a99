//! Prompts whose length in tokens the engine has told, by where they end.
//!
//! Without a tokenizer, tokens are guessed from bytes, and a guess over ten thousand tokens is off by hundreds. But at the end
//! of an answer the engine tells how many tokens prompt and answer had, and the next turn of the conversation sends both back.
//! So a prompt that goes on where an earlier one ended is known exactly up to there, and where that one was answered, all of
//! it is in the cache: the answer too, which no chain of blocks covers.

use std::collections::{HashMap, VecDeque};

use ahash::RandomState;

/// Ends remembered: those of the last conversations. At most about 1 MB.
const ENDS_MAX: usize = 1 << 13;
/// Endpoints remembered for each: those that answered last.
const ANSWERED_MAX: usize = 4;

/// A prompt that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) endpoint: u32,
    pub(super) prompt_tokens: u32,
    pub(super) answer_tokens: u32,
}

/// The last prompts that were answered.
#[derive(Debug)]
pub(super) struct Ends {
    known: HashMap<u64, Vec<End>, RandomState>,
    /// Oldest first; one that was written again stands in it more than once.
    order: VecDeque<u64>,
}

impl Ends {
    pub(super) fn new(seed: u64) -> Self {
        let state = RandomState::with_seeds(seed, seed.rotate_left(13), !seed, seed.rotate_left(47));
        Self { known: HashMap::with_hasher(state), order: VecDeque::new() }
    }

    pub(super) fn answered(&mut self, key: u64, end: End) {
        if self.order.len() == ENDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        let ends = self.known.entry(key).or_default();
        ends.retain(|known| known.endpoint != end.endpoint);
        if ends.len() == ANSWERED_MAX {
            ends.remove(0);
        }
        ends.push(end);
        self.order.push_back(key);
    }

    /// Who answered a prompt that ended there.
    pub(super) fn at(&self, key: u64) -> &[End] {
        self.known.get(&key).map_or(&[], Vec::as_slice)
    }

    /// The endpoint's cache is empty.
    pub(super) fn forget(&mut self, endpoint: u32) {
        self.known.values_mut().for_each(|ends| ends.retain(|end| end.endpoint != endpoint));
    }
}
