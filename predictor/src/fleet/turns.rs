//! Prompts that go on from one that was answered: known exactly up to there, answer and all.

use super::ends::End;
use super::{BLOCK_TOKENS_DEFAULT, Endpoint, Evidence, Fleet, Plan};
use crate::prefix::chain::{Chain, TOKEN_ID_BYTES, TURN_BYTES_MIN};

/// Blocks that are looked back for the turn before: an answer and a question of some length.
const ENGINE_BLOCKS_BACK: usize = 64;
/// Weight of a new sighting of an answer in the part that comes back.
const ANSWERS_KEPT_STEP: f64 = 0.1;

impl Fleet {
    /// Corrects the overlaps where this prompt goes on from one that was answered, and gives its length by that.
    pub(super) fn go_on(&self, plan: &mut Plan, chain: &Chain, tokens_per_byte: f64) -> Option<u32> {
        if !chain.tells_turns() {
            self.go_on_in_blocks(plan, chain);
            return None;
        }
        let mut prompt_tokens = None;
        for turn_end in chain.turn_ends().iter().rev() {
            for end in self.ends.at(turn_end.key) {
                let rest = f64::from(chain.bytes().saturating_sub(turn_end.bytes)) * tokens_per_byte;
                prompt_tokens.get_or_insert(end.prompt_tokens.saturating_add(rest as u32));
                let at = end.endpoint as usize;
                let (Some(Some(known)), Some(&depth)) = (self.endpoints.get(at), plan.depths.get(at)) else { continue };
                if known.cache.tells_of(chain.cut()) {
                    // The engine's own events say more, and the answer's blocks too.
                    continue;
                }
                // A turn's last few bytes may lie in a block with the next turn's: no block of the record covers them.
                let (mut open_bytes, mut tokens_max, mut end) = (TURN_BYTES_MIN as u32, u32::MAX, *end);
                if chain.has_engine_blocks() {
                    // Counted as the blocks are; the last token is always computed anew.
                    open_bytes = known.block_tokens.max(BLOCK_TOKENS_DEFAULT).saturating_mul(TOKEN_ID_BYTES);
                    tokens_max = (chain.bytes() / TOKEN_ID_BYTES).saturating_sub(1);
                    end.prompt_tokens = turn_end.bytes / TOKEN_ID_BYTES;
                }
                let recorded = chain.prefix_bytes(depth).saturating_add(open_bytes) > turn_end.bytes;
                let is_last = chain.prefix_bytes(depth) <= turn_end.bytes;
                if let (true, true, Some(overlap)) = (recorded, is_last, plan.overlaps.get_mut(at)) {
                    let whole_max = tokens_max - tokens_max % known.block_tokens;
                    let age_ratio = plan.ages.get(at).copied().unwrap_or(0.0);
                    *overlap = known.trusted(known.whole_blocks(&end).min(f64::from(whole_max)), age_ratio);
                }
            }
        }
        // The length of a prompt in token ids is known without.
        prompt_tokens.filter(|_| !chain.has_engine_blocks())
    }

    /// The same for the engine's own blocks where nothing is told of turns: the record of an endpoint ends with the last whole block
    /// of what it was sent.
    fn go_on_in_blocks(&self, plan: &mut Plan, chain: &Chain) {
        let Plan { depths, ages, overlaps, .. } = plan;
        for (((endpoint, depth), age_ratio), overlap) in
            (0..).zip(depths.iter()).zip(ages.iter()).zip(overlaps.iter_mut())
        {
            let last = (*depth as usize).checked_sub(1).and_then(|last| chain.blocks().get(last));
            let Some(end) = last.and_then(|last| self.ends.at(*last).iter().find(|end| end.endpoint == endpoint))
            else {
                continue;
            };
            if let Some(Some(known)) = self.endpoints.get(endpoint as usize)
                && known.cache.evidence() != Evidence::Events
            {
                *overlap = (*overlap).max(known.trusted(known.whole_blocks(end), *age_ratio));
            }
        }
    }

    /// The last turn that this prompt goes on from and that the endpoint answered.
    pub(super) fn went_on_from(&self, chain: &Chain, endpoint: u32) -> Option<End> {
        if !chain.tells_turns() {
            let mut last = chain.blocks().iter().rev().skip(1).take(ENGINE_BLOCKS_BACK);
            return last.find_map(|block| self.ends.at(*block).iter().find(|end| end.endpoint == endpoint).copied());
        }
        let before = chain.turn_ends().iter().rev().skip(1);
        let mut answered = before.flat_map(|turn_end| self.ends.at(turn_end.key));
        answered.find(|end| end.endpoint == endpoint).copied()
    }
}

impl Endpoint {
    /// What an engine finds again of a prompt and its answer: whole blocks, and not the answer's last token.
    fn whole_blocks(&self, end: &End) -> f64 {
        let kept = (f64::from(end.answer_tokens) * self.answers_kept) as u32;
        let tokens = end.prompt_tokens.saturating_add(kept).saturating_sub(1);
        f64::from(tokens / self.block_tokens * self.block_tokens)
    }

    /// Follows how much of the answers comes back, by what was found of a prompt that goes on.
    pub(super) fn learn_answers_kept(&mut self, before: Option<End>, cached_tokens: Option<u32>) {
        let (Some(before), Some(cached)) = (before, cached_tokens) else { return };
        let (answer, found) = (f64::from(before.answer_tokens), i64::from(cached) + i64::from(self.block_tokens) - 1);
        // Less than the prompt was evicted: it says nothing about answers.
        let of_answer = found - i64::from(before.prompt_tokens);
        if before.answer_tokens >= self.block_tokens && of_answer >= 0 {
            let kept = (of_answer as f64 / answer).min(1.0);
            self.answers_kept += (kept - self.answers_kept) * ANSWERS_KEPT_STEP;
        }
    }
}
