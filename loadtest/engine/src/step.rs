//! A step model of a vLLM engine in virtual time: what it runs, what it caches and how long it takes. Pure: no clock,
//! no randomness, no I/O.
//!
//! vLLM works in steps. Each step takes up to `batched_tokens_max` tokens: one for each decoding request, and chunks of
//! prompts for the others, first come first served; at most `running_max` requests take part. The step's duration
//! follows from its contents ([`StepCost`]); at its end every request whose known tokens are all computed gets one
//! token more. Requests hold KV blocks; when those run out, the request admitted last is preempted: it loses its
//! blocks, goes to the head of the queue and computes prompt and answer again, less what the prefix cache still has.
//! At least one token of a prompt is always computed, so a fully cached prompt of whole blocks recomputes its last block.
//!
//! [`Model`] takes one step at a time; [`Timeline`] puts the steps on a clock in microseconds.

mod blocks;
mod forecast;
mod timeline;

use std::collections::{HashSet, VecDeque};

pub use blocks::BlockChange;
use blocks::Blocks;
pub use timeline::{Timed, Timeline};

/// Limits and speed of a modelled engine. Field names in brackets are vLLM's.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Tokens computed in one step at most (`max_num_batched_tokens`); at least 1.
    pub batched_tokens_max: u32,
    /// Requests in one step at most (`max_num_seqs`); at least 1.
    pub running_max: u32,
    /// Requests in the engine at most, waiting and running (`max_num_queued_reqs`); `None` is unbounded, as in vLLM.
    pub queued_max: Option<u32>,
    /// Tokens in one KV block (`block_size`); at least 1.
    pub block_tokens: u32,
    /// KV blocks on the device (`num_gpu_blocks`); at least 1.
    pub blocks_max: u32,
    /// Whether prompts find blocks of earlier requests.
    pub prefix_caching: PrefixCaching,
    /// How long a step takes.
    pub cost: StepCost,
}

/// Whether computed blocks are found again (`enable_prefix_caching`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixCaching {
    /// Blocks are found by their chained hash.
    On,
    /// Every prompt is computed in full.
    Off,
}

/// Linear cost of a step. All in microseconds of virtual time, none negative.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCost {
    /// Of any step: launch, scheduling, reading the weights.
    pub base_us: f64,
    /// Of each prompt token computed.
    pub prefill_token_us: f64,
    /// Of each pair of a computed prompt token and a token it attends to: `new * (cached + new / 2)` pairs in a chunk.
    pub attention_pair_us: f64,
    /// Of each decoding request.
    pub decode_us: f64,
    /// Of each KV token read by a decoding request.
    pub kv_token_us: f64,
}

impl StepCost {
    /// An engine that takes no time: steps last the shortest time there is, 1 us.
    pub const NONE: Self =
        Self { base_us: 0.0, prefill_token_us: 0.0, attention_pair_us: 0.0, decode_us: 0.0, kv_token_us: 0.0 };
}

impl Default for Parameters {
    /// Chosen, not measured, to resemble an 8B model on one large GPU: up to 25,000 prompt tokens a second, 5 ms and more
    /// a decode step, room for 432,000 KV tokens.
    fn default() -> Self {
        Self {
            batched_tokens_max: 8192,
            running_max: 256,
            queued_max: None,
            block_tokens: 16,
            blocks_max: 27_000,
            prefix_caching: PrefixCaching::On,
            cost: StepCost {
                base_us: 5_000.0,
                prefill_token_us: 40.0,
                attention_pair_us: 0.002,
                decode_us: 20.0,
                kv_token_us: 0.04,
            },
        }
    }
}

/// Names a request within one model. The caller chooses it; it must be unique among the requests in the engine.
pub type RequestId = u64;

/// A request as the engine sees it: lengths and block hashes, no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Unique among the requests in the engine.
    pub id: RequestId,
    /// Tokens of the prompt; 0 counts as 1.
    pub prompt_tokens: u32,
    /// Tokens the answer will have; 0 counts as 1.
    pub output_tokens: u32,
    /// Chained hashes of the full blocks of prompt followed by answer. It may end early: blocks past its end are never
    /// shared.
    pub blocks: Vec<u64>,
}

/// Why the engine did not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `queued_max` requests are in the engine already. May be tried again later.
    QueueFull,
    /// Prompt and answer do not fit into all blocks there are.
    TooLong,
    /// The id belongs to a request in the engine.
    DuplicateId,
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It left the queue; `cached_tokens` of its prompt need no computing. Comes again after a preemption.
    Admitted {
        /// Which request.
        id: RequestId,
        /// Prompt tokens found in the prefix cache.
        cached_tokens: u32,
    },
    /// A token of its answer is ready.
    Token {
        /// Which request.
        id: RequestId,
        /// Position in the answer, from 0.
        index: u32,
    },
    /// The token before was its last; it has left the engine.
    Finished {
        /// Which request.
        id: RequestId,
    },
    /// It lost its blocks and is at the head of the queue again. Its tokens so far stay valid.
    Preempted {
        /// Which request.
        id: RequestId,
    },
}

/// Counters since the start, in the unit of their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prompt tokens looked up in the prefix cache (`vllm:prefix_cache_queries_total`).
    pub cache_query_tokens: u64,
    /// Prompt tokens found there (`vllm:prefix_cache_hits_total`).
    pub cache_hit_tokens: u64,
    /// Tokens computed as prompt chunks, repeated work after preemption included.
    pub prefill_tokens: u64,
    /// Answer tokens made (`vllm:generation_tokens_total`).
    pub output_tokens: u64,
    /// Requests that gave their blocks up (`vllm:num_preemptions_total`).
    pub preemptions: u64,
    /// Steps taken.
    pub steps: u64,
    /// Requests that got their whole answer.
    pub finished: u64,
    /// Requests taken out before that.
    pub aborted: u64,
}

#[derive(Clone, Debug)]
struct Active {
    request: Request,
    /// Tokens whose KV is computed (or found).
    computed: u32,
    /// Tokens of the answer made so far.
    made: u32,
    /// Tokens of the step in progress.
    scheduled: u32,
    blocks: Vec<u32>,
    /// How many of `blocks`, from the first, were offered to the prefix index.
    published: u32,
    admission: Admission,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    First,
    AfterPreemption,
}

impl Active {
    fn known(&self) -> u32 {
        self.request.prompt_tokens.saturating_add(self.made)
    }

    fn decodes(&self) -> bool {
        self.computed >= self.request.prompt_tokens && self.known() - self.computed == 1
    }
}

/// The engine: a queue, the running requests, the KV cache, and the step in progress.
#[derive(Clone, Debug)]
pub struct Model {
    parameters: Parameters,
    waiting: VecDeque<Active>,
    /// In order of admission.
    running: Vec<Active>,
    blocks: Blocks,
    totals: Totals,
    /// Changes of the prefix cache in the steps that have ended.
    changes: Vec<BlockChange>,
    /// The requests in the engine, to answer for unknown and duplicate ids in constant time.
    present: HashSet<RequestId>,
}

impl Model {
    /// An idle engine. Limits of 0 count as 1.
    pub fn new(mut parameters: Parameters) -> Self {
        parameters.batched_tokens_max = parameters.batched_tokens_max.max(1);
        parameters.running_max = parameters.running_max.max(1);
        parameters.block_tokens = parameters.block_tokens.max(1);
        parameters.blocks_max = parameters.blocks_max.clamp(1, u32::MAX - 1);
        let blocks = Blocks::new(parameters.blocks_max);
        Self {
            parameters,
            waiting: VecDeque::new(),
            running: Vec::new(),
            blocks,
            totals: Totals::default(),
            changes: Vec::new(),
            present: HashSet::new(),
        }
    }

    /// The limits and costs in force.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Requests in the queue (`vllm:num_requests_waiting`).
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that hold blocks (`vllm:num_requests_running`).
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Share of blocks in use, 0 to 1 (`vllm:kv_cache_usage_perc`).
    pub fn kv_usage_ratio(&self) -> f64 {
        f64::from(self.blocks.in_use()) / f64::from(self.parameters.blocks_max)
    }

    /// Counters since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// How many tokens of a prompt with these block hashes the cache holds now. For oracles and tests.
    pub fn cached_tokens(&self, blocks: &[u64]) -> u32 {
        self.blocks.cached_prefix(blocks).0 * self.parameters.block_tokens
    }

    /// Puts a request at the end of the queue; it takes part from the next step on.
    pub fn submit(&mut self, mut request: Request) -> Result<(), Refusal> {
        request.prompt_tokens = request.prompt_tokens.max(1);
        request.output_tokens = request.output_tokens.max(1);
        let queued = self.waiting.len() + self.running.len();
        if self.parameters.queued_max.is_some_and(|max| queued >= max as usize) {
            return Err(Refusal::QueueFull);
        }
        let total = u64::from(request.prompt_tokens) + u64::from(request.output_tokens);
        if total > u64::from(self.parameters.blocks_max) * u64::from(self.parameters.block_tokens)
            || total > u64::from(u32::MAX)
        {
            return Err(Refusal::TooLong);
        }
        if !self.present.insert(request.id) {
            return Err(Refusal::DuplicateId);
        }
        self.waiting.push_back(Active {
            request,
            computed: 0,
            made: 0,
            scheduled: 0,
            blocks: Vec::new(),
            published: 0,
            admission: Admission::First,
        });
        Ok(())
    }

    /// Takes a request out, whatever its state; its blocks are free at once. False when it is not in the engine.
    pub fn abort(&mut self, id: RequestId) -> bool {
        if !self.present.remove(&id) {
            return false;
        }
        if let Some(at) = self.running.iter().position(|active| active.request.id == id) {
            let active = self.running.remove(at);
            self.release(&active.blocks);
        } else {
            self.waiting.retain(|active| active.request.id != id);
        }
        self.totals.aborted += 1;
        true
    }

    /// Forgets the prefix cache (`/reset_prefix_cache`); running requests keep their blocks.
    pub fn reset_prefix_cache(&mut self) {
        self.blocks.forget();
    }

    /// Keeps changes of the prefix cache from now on, for [`Self::take_block_changes`].
    pub fn record_block_changes(&mut self) {
        self.blocks.record_changes();
    }

    /// Changes of the prefix cache in the steps that ended since this was last called; vLLM tells them at the end of a step.
    pub fn take_block_changes(&mut self) -> Vec<BlockChange> {
        std::mem::take(&mut self.changes)
    }

    /// Chooses the contents of a step and says how long it takes, in microseconds. `None`: nothing to do.
    ///
    /// Adds `Preempted` and `Admitted` events. Until [`Self::finish_step`] requests may come and go; newcomers are not
    /// part of this step.
    pub fn begin_step(&mut self, events: &mut Vec<Event>) -> Option<f64> {
        let mut budget = self.parameters.batched_tokens_max;
        let preempted = self.schedule_running(&mut budget, events);
        if preempted == 0 {
            self.schedule_waiting(&mut budget, events);
        }
        let duration_us = self.step_us();
        (budget < self.parameters.batched_tokens_max).then_some(duration_us)
    }

    /// Ends the step begun last: computed tokens count, and complete requests get a token.
    pub fn finish_step(&mut self, events: &mut Vec<Event>) {
        self.totals.steps += 1;
        self.blocks.take_changes(&mut self.changes);
        let mut ended = 0;
        for active in &mut self.running {
            let scheduled = std::mem::take(&mut active.scheduled);
            if scheduled == 0 {
                continue;
            }
            if !active.decodes() {
                self.totals.prefill_tokens += u64::from(scheduled);
            }
            active.computed += scheduled;
            if active.computed == active.known() {
                let id = active.request.id;
                events.push(Event::Token { id, index: active.made });
                active.made += 1;
                self.totals.output_tokens += 1;
                if active.made == active.request.output_tokens {
                    events.push(Event::Finished { id });
                    ended += 1;
                }
            }
        }
        if ended > 0 {
            self.remove_finished();
        }
    }

    fn remove_finished(&mut self) {
        let (finished, running) = std::mem::take(&mut self.running)
            .into_iter()
            .partition::<Vec<_>, _>(|active| active.made == active.request.output_tokens);
        self.running = running;
        for active in finished {
            self.present.remove(&active.request.id);
            self.release(&active.blocks);
            self.totals.finished += 1;
        }
    }

    /// Gives every running request its tokens in order of admission, preempting from the end when blocks run out.
    /// Returns how many were preempted.
    fn schedule_running(&mut self, budget: &mut u32, events: &mut Vec<Event>) -> usize {
        let mut preempted = 0;
        let mut at = 0;
        while at < self.running.len() && *budget > 0 {
            let want = (self.running[at].known() - self.running[at].computed).min(*budget);
            let missing = self.missing_blocks(&self.running[at], want);
            if missing <= self.blocks.available() {
                self.assign(at, want, missing);
                *budget -= want;
                at += 1;
            } else {
                // The last one admitted gives way, even if it is this one.
                let Some(victim) = self.running.pop() else { break };
                events.push(Event::Preempted { id: victim.request.id });
                self.preempt(victim);
                preempted += 1;
            }
        }
        preempted
    }

    fn preempt(&mut self, mut victim: Active) {
        self.release(&victim.blocks);
        self.totals.preemptions += 1;
        victim.blocks.clear();
        victim.published = 0;
        victim.computed = 0;
        victim.scheduled = 0;
        victim.admission = Admission::AfterPreemption;
        self.waiting.push_front(victim);
    }

    fn schedule_waiting(&mut self, budget: &mut u32, events: &mut Vec<Event>) {
        while *budget > 0 && self.running.len() < self.parameters.running_max as usize {
            let Some(head) = self.waiting.front() else { break };
            let (found, idle) = self.cached_blocks(head);
            let cached = found * self.parameters.block_tokens;
            let want = (head.known() - cached).min(*budget);
            let missing = (cached + want).div_ceil(self.parameters.block_tokens) - found;
            if missing + idle > self.blocks.available() {
                break;
            }
            let Some(mut active) = self.waiting.pop_front() else { break };
            for hash in active.request.blocks.iter().take(found as usize) {
                active.blocks.extend(self.blocks.share(*hash));
            }
            active.computed = cached;
            active.published = found;
            let cached_prompt = cached.min(active.request.prompt_tokens);
            if active.admission == Admission::First {
                self.totals.cache_query_tokens += u64::from(active.request.prompt_tokens);
                self.totals.cache_hit_tokens += u64::from(cached_prompt);
            }
            events.push(Event::Admitted { id: active.request.id, cached_tokens: cached_prompt });
            self.running.push(active);
            self.assign(self.running.len() - 1, want, missing);
            *budget -= want;
        }
    }

    /// Blocks of a waiting request in the cache: (all, those of them nobody uses now). Never its last token.
    fn cached_blocks(&self, active: &Active) -> (u32, u32) {
        match self.parameters.prefix_caching {
            PrefixCaching::Off => (0, 0),
            PrefixCaching::On => {
                let usable = ((active.known() - 1) / self.parameters.block_tokens) as usize;
                let hashes = &active.request.blocks[..active.request.blocks.len().min(usable)];
                self.blocks.cached_prefix(hashes)
            }
        }
    }

    fn missing_blocks(&self, active: &Active, tokens: u32) -> u32 {
        let needed = (active.computed + tokens).div_ceil(self.parameters.block_tokens);
        needed.saturating_sub(u32::try_from(active.blocks.len()).unwrap_or(u32::MAX))
    }

    /// Schedules `tokens` of the running request at `at` and takes `missing` blocks, which are known to be available.
    fn assign(&mut self, at: usize, tokens: u32, missing: u32) {
        let active = &mut self.running[at];
        for _ in 0..missing {
            active.blocks.extend(self.blocks.take());
        }
        active.scheduled = tokens;
        if self.parameters.prefix_caching == PrefixCaching::Off {
            return;
        }
        // As vLLM does, full blocks can be found from the moment they are scheduled: a request later in the same step
        // shares them.
        let full = (active.computed + tokens) / self.parameters.block_tokens;
        for index in active.published..full {
            let (Some(&block), Some(&hash)) =
                (active.blocks.get(index as usize), active.request.blocks.get(index as usize))
            else {
                break;
            };
            self.blocks.publish(block, hash);
        }
        active.published = active.published.max(full);
    }

    fn release(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            self.blocks.release(block);
        }
    }

    fn step_us(&self) -> f64 {
        let cost = &self.parameters.cost;
        let mut us = cost.base_us;
        for active in &self.running {
            let (new, cached) = (f64::from(active.scheduled), f64::from(active.computed));
            if active.scheduled == 0 {
                continue;
            }
            us += if active.decodes() {
                cost.decode_us + cost.kv_token_us * cached
            } else {
                cost.prefill_token_us * new + cost.attention_pair_us * new * (cached + new / 2.0)
            };
        }
        us
    }
}

#[cfg(test)]
mod tests;
