//! Prompts whose length in tokens the engine has told, by their last block.
//!
//! Without a tokenizer, tokens are guessed from bytes, and a guess over ten thousand tokens is off by hundreds. But at the end
//! of an answer the engine tells how many tokens prompt and answer had, and the next turn of the conversation sends both back.
//! So a prompt that goes on where an earlier one ended is known exactly up to there, and where that one was answered, all of
//! it is in the cache: the answer too, which no chain of blocks covers.

use std::collections::{HashMap, VecDeque};

use ahash::RandomState;

/// Ends remembered: those of the last conversations. About 2 MB.
const ENDS_MAX: usize = 1 << 15;

/// A prompt that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) prompt_tokens: u32,
    pub(super) answer_tokens: u32,
}

/// The last prompts that were answered, by their last block and the endpoint that answered.
#[derive(Debug)]
pub(super) struct Ends {
    known: HashMap<(u64, u32), End, RandomState>,
    /// Oldest first; one that was written again stands in it more than once.
    order: VecDeque<(u64, u32)>,
}

impl Ends {
    pub(super) fn new(seed: u64) -> Self {
        let state = RandomState::with_seeds(seed, seed.rotate_left(13), !seed, seed.rotate_left(47));
        Self { known: HashMap::with_hasher(state), order: VecDeque::new() }
    }

    pub(super) fn answered(&mut self, block: u64, endpoint: u32, end: End) {
        if self.order.len() == ENDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.known.insert((block, endpoint), end);
        self.order.push_back((block, endpoint));
    }

    /// What is known of a prompt that ends with this block.
    pub(super) fn at(&self, block: u64, endpoint: u32) -> Option<End> {
        self.known.get(&(block, endpoint)).copied()
    }

    /// The endpoint's cache is empty.
    pub(super) fn forget(&mut self, endpoint: u32) {
        self.known.retain(|(_, of), _| *of != endpoint);
        self.order.retain(|(_, of)| *of != endpoint);
    }
}
