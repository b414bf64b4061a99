//! Everything the balancer believes about its endpoints, behind one door.
//!
//! One fleet lives on each data thread. It applies the events of its own thread at once and those of the other threads
//! as they arrive (within 5 ms), all through the same methods: request ids are unique over the process, and an event
//! that is repeated, unknown or late changes nothing. A request's life is [`Fleet::decided`], then at most one
//! [`Fleet::first_token`], then [`Fleet::ended`]; a request that is decided again elsewhere was ended first.
//!
//! A choice is [`Fleet::plan`] once (what of this prompt is cached where) and [`Fleet::predict`] for each candidate.
//!
//! Bounds: [`Limits`]. Endpoint slots are dense numbers below `endpoints_max`, given by the caller.

use crate::ledger::{Book, FirstToken, Opening, Phase, Sums, Work};
use crate::prefix::chain::Chain;
use crate::prefix::index::{ENDPOINTS_MAX, Index, IndexLimits};
use crate::tokens::BytesPerToken;
use crate::ttft::{Features, Kind, Observed, Prediction, Quality, Scale};
use crate::window::Window;
use chance::Kin;
use std::sync::Arc;

mod belief;
mod cache;
mod chance;
mod ends;
mod event;
mod load;
mod peers;
mod steps;
mod trust;
mod turns;

pub use belief::EndpointBelief;
use belief::Scraped;
pub use cache::{Evidence, TICK_US};
use ends::{End, Ends};
pub use event::{Added, Answer, Attempt, Backend, Decided, Ended, EndpointSpec, Limits, Scrape};
use peers::Peers;
pub use peers::{PEERS_MAX, PeerSums};
pub use steps::Steps;
use trust::Trust;

/// What of one prompt is cached where. Reused from request to request.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    depths: Vec<u32>,
    /// How far back in the order of use what is recorded is, by endpoint.
    ages: Vec<f64>,
    overlaps: Vec<u32>,
    prompt_tokens: u32,
    now_us: u64,
}

impl Plan {
    /// Tokens of the prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Tokens expected in the cache of `endpoint`.
    #[must_use]
    pub fn overlap_tokens(&self, endpoint: u32) -> u32 {
        self.overlaps.get(endpoint as usize).copied().unwrap_or(0)
    }

    /// Part of the prompt expected in the cache of `endpoint`, 0 to 1.
    #[must_use]
    pub fn overlap_ratio(&self, endpoint: u32) -> f64 {
        f64::from(self.overlap_tokens(endpoint)) / f64::from(self.prompt_tokens.max(1))
    }
}

/// What the fleet wants to find again when a request's first token comes or it ends.
#[derive(Clone, Debug)]
struct Note {
    features: Features,
    model_us: u64,
    predicted: Prediction,
    prompt_bytes: u32,
    /// Where the prompt ends.
    prompt_end: Option<u64>,
    /// The prompt before that it goes on from, answered by the same endpoint.
    went_on_from: Option<End>,
    answer: Answer,
    attempt: Attempt,
    /// How far back in the order of use the record of it was, and what was believed of that.
    age_ratio: f64,
    trust: f64,
    /// Blocks held in the index by this request alone.
    claimed: Option<Arc<[u64]>>,
}

#[derive(Debug)]
struct Endpoint {
    backend: Backend,
    model: usize,
    kind: usize,
    scale: Scale,
    /// When its last request ended, or it came.
    quiet_since_us: u64,
    max_batched_tokens: u64,
    kv_capacity_tokens: Option<u64>,
    /// Tokens of the engine's blocks: it finds whole ones only. 1 until it has said so.
    block_tokens: u32,
    /// What its prompts are recorded in.
    recorded: Recorded,
    scraped: Scraped,
    peers: Peers,
    queue: Window,
    /// Part of the record that turned out true.
    trust: Trust,
    /// Part of the answers that came back with the next turn, 0 to 1: what a model thinks to itself does not.
    answers_kept: f64,
    /// Mean uncached tokens of a request sent there.
    new_tokens_mean: f64,
    cache: cache::Cache,
}

/// What the prompts sent to an endpoint are recorded in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    /// Blocks of bytes.
    Bytes,
    /// The engine's own blocks, from the first such prompt on: one in between that is known by its bytes only must not make
    /// what is remembered as small as blocks of bytes would have it.
    EngineBlocks,
}

/// Beliefs about all endpoints, and the events that change them.
#[derive(Debug)]
pub struct Fleet {
    limits: Limits,
    endpoints: Vec<Option<Endpoint>>,
    /// One past the highest slot that was ever used: what a choice looks at.
    slots_used: u32,
    /// Mean bytes of a block of the prompts decided, and the mean that the index is sized for: blocks grow with their
    /// place, capacity is counted in blocks.
    block_bytes_mean: f64,
    block_bytes_sized: f64,
    kinds: Vec<(Box<str>, Kind)>,
    /// Of each kind.
    kin: Vec<Kin>,
    models: Vec<(Box<str>, BytesPerToken)>,
    book: Book<Note>,
    index: Index,
    ends: Ends,
    steps: Steps,
    uncounted: u64,
}

/// The least overlap in tokens worth learning from.
const TRUST_TOKENS_MIN: u32 = 128;
/// Weight of a new request in the mean of uncached tokens.
const NEW_TOKENS_STEP: f64 = 0.05;
/// Weight of a new prompt in the mean size of a block.
const BLOCK_BYTES_STEP: f64 = 0.01;
/// Uncached tokens of a stranger's request before any was seen.
const NEW_TOKENS_PRIOR: f64 = 512.0;
/// Tokens in a block of an engine's cache until it says: vLLM's default on GPUs.
pub const BLOCK_TOKENS_DEFAULT: u32 = 16;
/// Tokens an endpoint is taken to cache until it says.
const KV_CAPACITY_TOKENS_DEFAULT: u64 = 500_000;

impl Fleet {
    /// A fleet without endpoints.
    #[must_use]
    pub fn new(limits: Limits) -> Fleet {
        let limits = Limits {
            endpoints_max: limits.endpoints_max.clamp(1, ENDPOINTS_MAX),
            kinds_max: limits.kinds_max.max(1),
            ..limits
        };
        Fleet {
            limits,
            endpoints: (0..limits.endpoints_max).map(|_| None).collect(),
            slots_used: 0,
            block_bytes_mean: f64::from(limits.block_bytes.max(1)),
            block_bytes_sized: f64::from(limits.block_bytes.max(1)),
            kinds: Vec::new(),
            kin: Vec::new(),
            models: Vec::new(),
            book: Book::new(limits.endpoints_max, limits.requests_max, limits.seed),
            index: Index::new(IndexLimits {
                endpoints_max: limits.endpoints_max,
                bytes_max: limits.index_bytes_max,
                seed: limits.seed,
            }),
            ends: Ends::new(limits.seed),
            steps: Steps::new(limits.endpoints_max),
            uncounted: 0,
        }
    }

    /// The same, hearing of the engines' steps what others hear who share `steps`.
    #[must_use]
    pub fn sharing(limits: Limits, steps: Steps) -> Fleet {
        Fleet { steps, ..Fleet::new(limits) }
    }

    /// Adds an endpoint in a free slot, empty of all knowledge but its kind's. A slot in use is replaced: its requests
    /// are forgotten.
    pub fn add_endpoint(&mut self, now_us: u64, endpoint: u32, spec: &EndpointSpec<'_>) -> Added {
        if endpoint >= self.limits.endpoints_max {
            return Added::OutOfRange;
        }
        self.remove_endpoint(now_us, endpoint);
        let kinds_max = self.limits.kinds_max as usize;
        let kind = slot(&mut self.kinds, spec.kind_key, kinds_max, || Kind::new(spec.prior));
        let model = slot(&mut self.models, spec.model, kinds_max, BytesPerToken::default);
        let kin = Kin { model, backend: spec.backend };
        if kind == self.kin.len() {
            self.kin.push(kin);
        }
        self.slots_used = self.slots_used.max(endpoint + 1);
        self.endpoints[endpoint as usize] = Some(Endpoint {
            backend: spec.backend,
            model,
            kind,
            scale: Scale::default(),
            quiet_since_us: now_us,
            max_batched_tokens: spec.max_batched_tokens.max(1),
            kv_capacity_tokens: spec.kv_capacity_tokens,
            block_tokens: 1,
            recorded: Recorded::Bytes,
            scraped: Scraped::Never,
            peers: Peers::default(),
            queue: Window::default(),
            trust: Trust::default(),
            answers_kept: 1.0,
            new_tokens_mean: NEW_TOKENS_PRIOR,
            cache: cache::Cache::default(),
        });
        self.resize_index(endpoint);
        Added::Added
    }

    /// Removes an endpoint with all that is known of it; events of its requests that still come are ignored.
    pub fn remove_endpoint(&mut self, now_us: u64, endpoint: u32) {
        if self.endpoints.get_mut(endpoint as usize).and_then(Option::take).is_some() {
            self.book.close_all(now_us, endpoint);
            self.index.remove_endpoint(endpoint);
            self.ends.forget(endpoint);
            self.index.resize_endpoint(endpoint, 0);
            self.steps.forget(endpoint);
        }
    }

    /// The engine restarted: its cache is empty and what was scraped is void. Open requests stay until they end.
    pub fn reset_endpoint(&mut self, now_us: u64, endpoint: u32) {
        if let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize) {
            known.scraped = Scraped::Never;
            known.queue = Window::default();
            known.trust = Trust::default();
            self.index.remove_endpoint(endpoint);
            self.ends.forget(endpoint);
            self.feed_queue(now_us, endpoint);
        }
    }

    /// Applies a reading of the engine's metrics.
    pub fn scraped(&mut self, now_us: u64, endpoint: u32, scrape: &Scrape) {
        self.presume(now_us, endpoint);
        let Some(sums) = self.book.ledger(endpoint).map(|ledger| *ledger.sums()) else {
            return;
        };
        let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize) else {
            return;
        };
        known.scraped = Scraped::fresh(now_us, scrape, &sums, known.peers.in_flight());
        known.block_tokens = scrape.block_size_tokens.unwrap_or(known.block_tokens).max(1);
        if let (Some(blocks), Some(tokens)) = (scrape.num_gpu_blocks, scrape.block_size_tokens) {
            let capacity_tokens = blocks.saturating_mul(u64::from(tokens));
            if capacity_tokens > 0 && known.kv_capacity_tokens != Some(capacity_tokens) {
                known.kv_capacity_tokens = Some(capacity_tokens);
                self.resize_index(endpoint);
            }
        }
        self.feed_queue(now_us, endpoint);
    }

    /// A scrape failed. After three in a row what was scraped is void.
    pub fn scrape_failed(&mut self, now_us: u64, endpoint: u32) {
        if let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize) {
            known.scraped = known.scraped.missed();
            self.feed_queue(now_us, endpoint);
        }
    }

    /// Another balancer told its sums at an endpoint.
    pub fn heard(&mut self, now_us: u64, peer: u64, endpoint: u32, sums: PeerSums) {
        if let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize) {
            known.peers.heard(now_us, peer, sums);
        }
    }

    /// Tokens expected of a prompt of `prompt_bytes` for `model`.
    #[must_use]
    pub fn estimate_tokens(&self, model: &str, prompt_bytes: u32) -> u32 {
        match self.models.iter().find(|(name, _)| **name == *model) {
            Some((_, ratio)) => ratio.estimate(prompt_bytes),
            None => BytesPerToken::default().estimate(prompt_bytes),
        }
    }

    /// Finds what of the prompt is cached where and brings every endpoint up to `now_us`: once per request. `prompt_tokens`
    /// is a guess from bytes; where the prompt goes on from one whose length an engine told, the plan knows better.
    pub fn plan(&mut self, plan: &mut Plan, chain: &Chain, prompt_tokens: u32, now_us: u64) {
        self.index.overlap(chain, &mut plan.depths);
        plan.now_us = now_us;
        plan.overlaps.clear();
        plan.ages.clear();
        let tokens_per_byte = f64::from(prompt_tokens.max(1)) / f64::from(chain.bytes().max(1));
        for endpoint in 0..self.slots_used {
            let (mut tokens, mut age_ratio) = (0, 0.0);
            if let Some(known) = &self.endpoints[endpoint as usize] {
                // The index tells nothing about endpoints that cache nothing.
                let depth = plan.depths.get(endpoint as usize).copied().unwrap_or(0);
                let recorded = f64::from(chain.reusable_bytes(depth)) * tokens_per_byte;
                age_ratio = self.age_ratio(chain, depth, endpoint);
                tokens = known.cached_tokens(recorded, age_ratio, prompt_tokens, chain.cut());
                self.presume(now_us, endpoint);
            }
            plan.overlaps.push(tokens);
            plan.ages.push(age_ratio);
        }
        // Also a prompt without a chain has tokens.
        plan.prompt_tokens = self.go_on(plan, chain, tokens_per_byte).unwrap_or(prompt_tokens).max(1);
        let overlap_max = plan.prompt_tokens - 1;
        plan.overlaps.iter_mut().for_each(|tokens| *tokens = (*tokens).min(overlap_max));
    }

    /// How far back in the order of use of an endpoint the first `depth` blocks of a chain are.
    fn age_ratio(&self, chain: &Chain, depth: u32, endpoint: u32) -> f64 {
        let last = (depth as usize).checked_sub(1).and_then(|last| chain.blocks().get(last));
        last.map_or(0.0, |last| self.index.age_ratio(*last, endpoint))
    }

    /// The expectation for the planned prompt on one endpoint; `None` when there is no such endpoint.
    #[must_use]
    pub fn predict(&self, plan: &Plan, endpoint: u32) -> Option<Prediction> {
        let work = Work::new(plan.prompt_tokens, plan.overlap_tokens(endpoint));
        self.expect(plan.now_us, endpoint, work).map(|(_, _, prediction)| prediction)
    }

    /// A request was sent. Says whether it is counted.
    pub fn decided(&mut self, now_us: u64, decided: &Decided<'_>) -> Opening {
        let (id, endpoint) = (decided.request_id, decided.endpoint);
        let work = Work::new(decided.prompt_tokens, decided.overlap_tokens);
        let Some((features, model_us, predicted)) = self.expect(now_us, endpoint, work) else {
            return Opening::UnknownEndpoint;
        };
        self.ends_quiet(now_us, endpoint);
        let first_token = match decided.answer {
            Answer::Streamed => FirstToken::Seen,
            Answer::Whole => FirstToken::PresumedAt { now_us: now_us.saturating_add(predicted.p90_us) },
        };
        let claimed = self.endpoint(endpoint).and_then(|known| known.cache.claim(decided.chain));
        let age_ratio = self.age_ratio(decided.chain, self.index.depth(decided.chain, endpoint), endpoint);
        let note = Note {
            claimed: claimed.clone(),
            age_ratio,
            trust: self.endpoint(endpoint).map_or(1.0, |known| known.trust.of(age_ratio)),
            features,
            model_us,
            predicted,
            // Token ids say nothing about the length of a token in text.
            prompt_bytes: if decided.chain.has_engine_blocks() { 0 } else { decided.chain.bytes() },
            prompt_end: match decided.chain.tells_turns() {
                false => decided.chain.blocks().last().copied(),
                true => decided.chain.turn_ends().last().map(|end| end.key),
            },
            went_on_from: self.went_on_from(decided.chain, endpoint),
            answer: decided.answer,
            attempt: decided.attempt,
        };
        let opening = self.book.open(now_us, id, endpoint, work, first_token, note);
        match opening {
            Opening::Counted => {
                match claimed {
                    Some(blocks) => self.claim(now_us, endpoint, &blocks),
                    None => self.place(now_us, endpoint, decided.chain),
                }
                if let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize) {
                    known.new_tokens_mean += (f64::from(work.new_tokens()) - known.new_tokens_mean) * NEW_TOKENS_STEP;
                }
                self.feed_queue(now_us, endpoint);
            }
            Opening::Full => self.uncounted += 1,
            Opening::Duplicate | Opening::UnknownEndpoint => {}
        }
        opening
    }

    /// The first content byte of a streamed answer came. Gives what was predicted and seen, when this was news. The
    /// first byte of an answer sent whole is its end: it moves the request out of the queue, teaches nothing and gives
    /// `None`.
    pub fn first_token(&mut self, now_us: u64, request_id: u64, endpoint: u32) -> Option<Observed> {
        let open = self.book.first_token(now_us, request_id, endpoint)?;
        let (note, actual_us) = (open.note.clone(), now_us.saturating_sub(open.decided_us));
        self.feed_queue(now_us, endpoint);
        match note.answer {
            Answer::Streamed => {
                self.steps.heard(now_us, endpoint);
                Some(self.learn(endpoint, &note, actual_us))
            }
            Answer::Whole => None,
        }
    }

    /// A chunk of a running answer came.
    pub fn heard_step(&self, now_us: u64, endpoint: u32) {
        self.steps.heard(now_us, endpoint);
    }

    /// A request ended.
    pub fn ended(&mut self, now_us: u64, request_id: u64, endpoint: u32, ended: Ended) {
        let Some(open) = self.book.close(now_us, request_id, endpoint) else {
            return;
        };
        self.release(now_us, endpoint, open.note.claimed.as_deref(), now_us.saturating_sub(open.decided_us));
        match ended {
            Ended::Completed { prompt_tokens, cached_tokens, completion_tokens } => {
                if open.note.answer == Answer::Whole && completion_tokens == Some(1) {
                    self.learn(endpoint, &open.note, now_us.saturating_sub(open.decided_us));
                }
                if let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize) {
                    // What the engine told is no guess.
                    if open.note.claimed.is_none() {
                        known.learn_overlap(&open.note, open.work.cached_tokens(), cached_tokens);
                        known.learn_answers_kept(open.note.went_on_from, cached_tokens);
                    }
                    if let Some(prompt_tokens) = prompt_tokens {
                        self.models[known.model].1.learn(open.note.prompt_bytes, prompt_tokens);
                        if let Some(key) = open.note.prompt_end {
                            let answer_tokens = completion_tokens.unwrap_or(0);
                            self.ends.answered(key, End { endpoint, prompt_tokens, answer_tokens });
                        }
                    }
                }
            }
            Ended::Aborted | Ended::Failed | Ended::Refused => {}
        }
        if let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize) {
            known.quiet_since_us = now_us;
        }
        self.feed_queue(now_us, endpoint);
    }

    /// Mean of the queued prompts over the last `window_s` seconds (at most 30). Unknown before five seconds.
    #[must_use]
    pub fn queued_prompts_mean(&self, now_us: u64, endpoint: u32, window_s: u32) -> Option<f64> {
        self.endpoint(endpoint)?.queue.mean(now_us, window_s)
    }

    /// Queued prompts now: what the engine said, and what was sent and begun since. Unknown for an unknown endpoint.
    #[must_use]
    pub fn queued_prompts_now(&self, endpoint: u32) -> Option<f64> {
        let pending = self.book.ledger(endpoint)?.sums().pending;
        Some(self.endpoint(endpoint)?.scraped.queued(pending))
    }

    /// Own requests open at an endpoint, all threads.
    #[must_use]
    pub fn in_flight(&self, endpoint: u32) -> u32 {
        self.book.ledger(endpoint).map_or(0, |ledger| ledger.sums().in_flight)
    }

    /// What decides between endpoints whose predictions are as good as equal, the least first: tokens of own requests in
    /// flight, which is what they hold of the KV cache.
    #[must_use]
    pub fn tie_load(&self, endpoint: u32) -> f64 {
        self.book.ledger(endpoint).map_or(0.0, |ledger| ledger.sums().in_flight_tokens as f64)
    }

    /// Requests running by the last scrape.
    #[must_use]
    pub fn running(&self, endpoint: u32) -> Option<f64> {
        self.endpoint(endpoint)?.scraped.running()
    }

    /// KV cache usage by the last scrape, 0 to 1.
    #[must_use]
    pub fn kv_usage_ratio(&self, endpoint: u32) -> Option<f64> {
        self.endpoint(endpoint)?.scraped.kv_usage_ratio()
    }

    /// Sums over own open requests of an endpoint; zeros for an unknown one.
    #[must_use]
    pub fn sums(&self, endpoint: u32) -> Sums {
        self.book.ledger(endpoint).map_or_else(Sums::default, |ledger| *ledger.sums())
    }

    /// Requests that went uncounted because the book was full.
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        self.uncounted
    }

    /// Tokens in a block of the endpoint's cache; unknown until it has said so.
    #[must_use]
    pub fn block_tokens(&self, endpoint: u32) -> Option<u32> {
        self.endpoint(endpoint).map(|known| known.block_tokens).filter(|&tokens| tokens > 1)
    }

    /// Error of the model of time, by kind key.
    pub fn qualities(&self) -> impl Iterator<Item = (&str, Quality)> {
        self.kinds.iter().map(|(key, kind)| (&**key, kind.quality()))
    }

    fn endpoint(&self, endpoint: u32) -> Option<&Endpoint> {
        self.endpoints.get(endpoint as usize)?.as_ref()
    }

    fn learn(&mut self, endpoint: u32, note: &Note, actual_us: u64) -> Observed {
        let observed = Observed { predicted_us: note.predicted.ttft_us, p90_us: note.predicted.p90_us, actual_us };
        if let (Attempt::First, Some(Some(known))) = (note.attempt, self.endpoints.get_mut(endpoint as usize)) {
            self.kinds[known.kind].1.learn(&mut known.scale, &note.features, note.model_us, &observed);
        }
        observed
    }

    fn presume(&mut self, now_us: u64, endpoint: u32) {
        if self.book.presume(now_us, endpoint) > 0 {
            self.feed_queue(now_us, endpoint);
        }
    }

    fn feed_queue(&mut self, now_us: u64, endpoint: u32) {
        if let Some(queued) = self.queued_prompts_now(endpoint)
            && let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize)
        {
            known.queue.feed(now_us, queued);
        }
    }

    /// Follows the mean size of a block, and sizes the index anew when it has moved by a tenth. An engine's own blocks are as many
    /// as its cache has.
    fn weigh_blocks(&mut self, chain: &Chain, endpoint: u32) {
        if chain.blocks().is_empty() {
            return;
        }
        if chain.has_engine_blocks() {
            if let Some(Some(known)) = self.endpoints.get_mut(endpoint as usize)
                && known.recorded == Recorded::Bytes
            {
                known.recorded = Recorded::EngineBlocks;
                self.resize_index(endpoint);
            }
            return;
        }
        let bytes = f64::from(chain.bytes()) / chain.blocks().len() as f64;
        self.block_bytes_mean += (bytes - self.block_bytes_mean) * BLOCK_BYTES_STEP;
        if (self.block_bytes_mean / self.block_bytes_sized - 1.0).abs() > 0.1 {
            self.block_bytes_sized = self.block_bytes_mean.max(1.0);
            (0..self.slots_used).for_each(|endpoint| self.resize_index(endpoint));
        }
    }

    fn resize_index(&mut self, endpoint: u32) {
        let Some(known) = self.endpoint(endpoint) else {
            return;
        };
        let tokens = known.kv_capacity_tokens.unwrap_or(KV_CAPACITY_TOKENS_DEFAULT) as f64;
        let bytes = tokens * self.models[known.model].1.ratio();
        let by_record = || match known.recorded {
            Recorded::Bytes => (bytes / self.block_bytes_sized) as u32,
            Recorded::EngineBlocks => {
                (tokens / f64::from(self.block_tokens(endpoint).unwrap_or(BLOCK_TOKENS_DEFAULT))) as u32
            }
        };
        let blocks = match known.backend {
            Backend::Engine => known.cache.blocks(tokens).unwrap_or_else(by_record),
            Backend::Provider => 0,
        };
        self.index.resize_endpoint(endpoint, blocks);
    }
}

impl Endpoint {
    /// What is left of the tokens recorded as cached, by experience; a little less than all is noise.
    pub(super) fn trusted(&self, tokens: f64, age_ratio: f64) -> u32 {
        (tokens * self.trust.of(age_ratio)) as u32
    }
}

fn slot<T>(table: &mut Vec<(Box<str>, T)>, key: &str, len_max: usize, make: impl FnOnce() -> T) -> usize {
    match table.iter().position(|(name, _)| **name == *key) {
        Some(at) => at,
        None if table.len() < len_max => {
            table.push((key.into(), make()));
            table.len() - 1
        }
        None => 0,
    }
}
