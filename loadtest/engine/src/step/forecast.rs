//! When a newcomer would get its first token: the model run forward by lengths alone.
//!
//! For oracles, which know what no router does: the length of every answer and what every cache holds. Preemption is not
//! foreseen, nor are later arrivals; what waits is taken to find in the cache what it would find now, or what a request
//! ahead of it computes.

use super::{Active, Model};

/// Requests ahead that are looked at for a shared prefix.
const AHEAD_LOOKED_AT_MAX: usize = 64;

/// A request in the forecast.
#[derive(Clone, Copy, Debug)]
struct Slot {
    prompt: u32,
    computed: u32,
    /// Tokens known and not computed.
    todo: u32,
    /// Tokens of the answer not made.
    left: u32,
    scheduled: u32,
    held_blocks: u32,
}

impl Slot {
    fn decodes(&self) -> bool {
        self.computed >= self.prompt && self.todo == 1
    }
}

impl Model {
    /// Microseconds until a prompt submitted now has its first token, when the step in progress ends in
    /// `step_left_us`. `None` when that takes more than `steps_max` steps.
    #[must_use]
    pub fn forecast_us(&self, step_left_us: u64, prompt_tokens: u32, blocks: &[u64], steps_max: u32) -> Option<f64> {
        let mut free_blocks = i64::from(self.blocks.available());
        let mut running: Vec<Slot> = self.running.iter().map(Slot::of).collect();
        // The step in progress: what it computes is done at its end.
        finish(&mut running, self.parameters.block_tokens, &mut free_blocks);
        let mut waiting: Vec<Slot> =
            self.waiting.iter().enumerate().map(|(at, active)| self.queued(at, active)).collect();
        waiting.push(self.newcomer(prompt_tokens, blocks));
        let (mut next, mut elapsed_us) = (0, step_left_us as f64);
        for _ in 0..steps_max {
            let newcomer_at = self.schedule(&mut running, &waiting, &mut next, &mut free_blocks);
            elapsed_us += self.duration_us(&running);
            let done = newcomer_at.is_some_and(|at| running[at].scheduled >= running[at].todo);
            if done {
                return Some(elapsed_us);
            }
            finish(&mut running, self.parameters.block_tokens, &mut free_blocks);
        }
        None
    }

    fn queued(&self, at: usize, active: &Active) -> Slot {
        let usable = (active.known() - 1) / self.parameters.block_tokens;
        let found = self.cached_blocks(active).0.max(self.shared_ahead(at, &active.request.blocks).min(usable));
        let cached = found * self.parameters.block_tokens;
        Slot { computed: cached, todo: active.known() - cached, scheduled: 0, held_blocks: found, ..Slot::of(active) }
    }

    fn newcomer(&self, prompt_tokens: u32, blocks: &[u64]) -> Slot {
        let prompt = prompt_tokens.max(1);
        let usable = (prompt - 1) / self.parameters.block_tokens;
        let cached_now = self.blocks.cached_prefix(&blocks[..blocks.len().min(usable as usize)]).0;
        let found = cached_now.max(self.shared_ahead(self.waiting.len(), blocks).min(usable));
        let cached = found * self.parameters.block_tokens;
        Slot { prompt, computed: cached, todo: prompt - cached, left: u32::MAX, scheduled: 0, held_blocks: found }
    }

    /// Blocks at the head that a request running, or waiting before place `at`, has too.
    fn shared_ahead(&self, at: usize, blocks: &[u64]) -> u32 {
        let ahead = self.waiting.iter().take(at).rev().take(AHEAD_LOOKED_AT_MAX);
        let all = self.running.iter().rev().take(AHEAD_LOOKED_AT_MAX).chain(ahead);
        all.map(|other| {
            let prompt_blocks = (other.request.prompt_tokens / self.parameters.block_tokens) as usize;
            let theirs = &other.request.blocks[..other.request.blocks.len().min(prompt_blocks)];
            common_prefix(theirs, blocks)
        })
        .max()
        .unwrap_or(0)
    }

    /// Chooses the contents of a step, as [`Model::begin_step`] does. Gives the newcomer's place once it runs.
    fn schedule(&self, running: &mut Vec<Slot>, waiting: &[Slot], next: &mut usize, free: &mut i64) -> Option<usize> {
        let block_tokens = self.parameters.block_tokens;
        let mut budget = self.parameters.batched_tokens_max;
        for slot in running.iter_mut() {
            slot.scheduled = slot.todo.min(budget);
            budget -= slot.scheduled;
            let needed = (slot.computed + slot.scheduled).div_ceil(block_tokens).max(slot.held_blocks);
            *free -= i64::from(needed - slot.held_blocks);
            slot.held_blocks = needed;
        }
        while budget > 0 && running.len() < self.parameters.running_max as usize {
            let Some(&slot) = waiting.get(*next) else { break };
            let scheduled = slot.todo.min(budget);
            let needed = (slot.computed + scheduled).div_ceil(block_tokens).max(slot.held_blocks);
            let missing = i64::from(needed - slot.held_blocks);
            if missing > *free && !running.is_empty() {
                break;
            }
            *free -= missing;
            budget -= scheduled;
            running.push(Slot { scheduled, held_blocks: needed, ..slot });
            *next += 1;
        }
        // First come, first served, and nobody leaves before its answer ends: the newcomer is the last.
        (*next == waiting.len()).then(|| running.len() - 1)
    }

    fn duration_us(&self, running: &[Slot]) -> f64 {
        let cost = &self.parameters.cost;
        let each = running.iter().filter(|slot| slot.scheduled > 0).map(|slot| {
            let (new, cached) = (f64::from(slot.scheduled), f64::from(slot.computed));
            match slot.decodes() {
                true => cost.decode_us + cost.kv_token_us * cached,
                false => cost.prefill_token_us * new + cost.attention_pair_us * new * (cached + new / 2.0),
            }
        });
        (cost.base_us + each.sum::<f64>()).round().max(1.0)
    }
}

impl Slot {
    fn of(active: &Active) -> Slot {
        Slot {
            prompt: active.request.prompt_tokens,
            computed: active.computed,
            todo: active.known() - active.computed,
            left: active.request.output_tokens - active.made,
            scheduled: active.scheduled,
            held_blocks: u32::try_from(active.blocks.len()).unwrap_or(u32::MAX),
        }
    }
}

/// Ends a step: computed tokens count, complete requests get a token, finished ones leave.
fn finish(running: &mut Vec<Slot>, block_tokens: u32, free_blocks: &mut i64) {
    running.retain_mut(|slot| {
        let scheduled = std::mem::take(&mut slot.scheduled);
        slot.computed += scheduled;
        slot.todo -= scheduled;
        if scheduled > 0 && slot.todo == 0 {
            slot.left -= 1;
            slot.todo = 1;
        }
        if slot.left == 0 {
            *free_blocks += i64::from(slot.held_blocks.min((slot.computed).div_ceil(block_tokens)));
        }
        slot.left > 0
    });
}

/// Length of the common head of two lists of chained hashes: equal at one place means equal before it.
fn common_prefix(a: &[u64], b: &[u64]) -> u32 {
    let (mut low, mut high) = (0, a.len().min(b.len()));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if a[middle - 1] == b[middle - 1] {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    u32::try_from(low).unwrap_or(u32::MAX)
}
