//! Kinference's own choice: its fleet of beliefs and its policy's decision, as a data thread uses them.

use std::collections::HashMap;

use engine::step::{BlockChange, Parameters};
use policy::{Backend, Candidate, Decision, PoolDestination, Program, Request, Scratch, Signal, Target};
use predictor::{
    fleet::{self, Answer, Attempt, Decided, Ended, EndpointSpec, Evidence, Fleet, PeerSums, Plan, Scrape},
    prefix::chain::{BLOCK_BYTES_DEFAULT, Chain, ChainBuilder, Seed, token_block},
    ttft::{Observed, Prediction, Prior},
};

use super::{
    pods::Gauges,
    router::{Answered, Ask},
    run::Knowledge,
    trace::Row,
};

const MODEL: &str = "m";
const SEED: Seed<'static> = Seed { model: MODEL, lora: None, cache_salt: None };
/// Bytes of text that stand for a token, in the mean.
const BYTES_PER_TOKEN: u32 = 4;
const MESSAGE_END: u8 = 1;

/// What a balancer is told of its engines.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Engines.
    pub pods: usize,
    /// Tokens that a step prefills at most.
    pub batched_tokens_max: u32,
    /// Blocks of an engine's cache and tokens in each.
    pub blocks_max: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// What it knows of prompts and caches.
    pub knowledge: Knowledge,
    /// Belief before the first answer.
    pub prior: Prior,
    /// Of this balancer.
    pub seed: u64,
}

/// One balancer.
#[derive(Debug)]
pub struct Ours {
    fleet: Fleet,
    program: Program,
    scratch: Scratch,
    plan: Plan,
    chains: Vec<Chain>,
    text: Vec<u8>,
    told: Told,
    observed: Vec<(u64, Observed)>,
}

/// An engine as the policy looks at it.
struct View<'a> {
    fleet: &'a Fleet,
    pod: u32,
    prediction: Option<Prediction>,
}

impl Candidate for View<'_> {
    fn target(&self) -> Target {
        Target { destination: 0, model: 0 }
    }

    fn backend(&self) -> Backend {
        Backend::Local
    }

    fn ready(&self) -> bool {
        true
    }

    fn signal(&self, signal: Signal) -> Option<f64> {
        match signal {
            Signal::PredictedTtft => self.prediction.map(|prediction| prediction.ttft_us as f64),
            Signal::InFlight => Some(f64::from(self.fleet.in_flight(self.pod))),
            Signal::QueuedPrompts { .. }
            | Signal::RunningPrompts
            | Signal::KvCacheUsage
            | Signal::PrefixOverlap
            | Signal::PredictedLatency
            | Signal::ErrorRate { .. }
            | Signal::CostPerMillionTokens
            | Signal::ContextWindow => None,
        }
    }

    fn rank(&self, signal: Signal) -> Option<f64> {
        match signal {
            Signal::PredictedTtft => self.prediction.map(|prediction| prediction.cost_us as f64),
            Signal::QueuedPrompts { .. }
            | Signal::RunningPrompts
            | Signal::InFlight
            | Signal::KvCacheUsage
            | Signal::PrefixOverlap
            | Signal::PredictedLatency
            | Signal::ErrorRate { .. }
            | Signal::CostPerMillionTokens
            | Signal::ContextWindow => self.signal(signal),
        }
    }

    fn uncertainty(&self) -> f64 {
        self.prediction.map_or(0.0, |prediction| prediction.near_ratio())
    }

    fn load(&self) -> Option<f64> {
        Some(self.fleet.tie_load(self.pod))
    }
}

impl Ours {
    /// A balancer that has seen nothing.
    #[must_use]
    pub fn new(told: Told) -> Self {
        let limits = fleet::Limits { endpoints_max: told.pods as u32, seed: told.seed, ..fleet::Limits::default() };
        let mut fleet = Fleet::new(limits);
        for pod in 0..told.pods as u32 {
            let spec = EndpointSpec {
                backend: fleet::Backend::Engine,
                model: MODEL,
                kind_key: "simulated",
                prior: told.prior,
                max_batched_tokens: u64::from(told.batched_tokens_max),
                kv_capacity_tokens: None,
            };
            fleet.add_endpoint(0, pod, &spec);
            if told.knowledge == Knowledge::Events {
                fleet.cache_evidence(pod, Evidence::Events, told.block_tokens);
            }
        }
        let models = vec![vec![MODEL.to_owned()]];
        let destination = PoolDestination { name: "simulated".to_owned(), backend: Backend::Local, models };
        // One destination and the default rule are within every bound.
        let program = Program::new(vec![destination], Vec::new()).unwrap_or_else(|error| unreachable!("{error}"));
        Self {
            fleet,
            program,
            scratch: Scratch::new(),
            plan: Plan::default(),
            chains: Vec::new(),
            text: Vec::new(),
            told,
            observed: Vec::new(),
        }
    }

    pub(super) fn choose(&mut self, ask: &Ask<'_>) -> usize {
        let (chain, guessed_tokens) = match self.told.knowledge {
            Knowledge::Bytes => {
                let chain = self.chain(ask);
                let tokens = self.fleet.estimate_tokens(MODEL, chain.bytes());
                (chain, tokens)
            }
            Knowledge::Tokens | Knowledge::Events => (self.token_chain(ask), ask.row.input_tokens),
        };
        self.fleet.plan(&mut self.plan, &chain, guessed_tokens, ask.now_us);
        let prompt_tokens = self.plan.prompt_tokens();
        let views: Vec<View<'_>> = (0..self.told.pods as u32)
            .map(|pod| View { fleet: &self.fleet, pod, prediction: self.fleet.predict(&self.plan, pod) })
            .collect();
        let facts = Request::chat(MODEL, "anonymous");
        let rule = self.program.match_rule(&facts);
        let decision = policy::decide(&self.program, rule, &facts, &views, ask.seed, &mut self.scratch);
        let endpoint = match decision {
            Decision::Chosen { candidate, .. } => candidate as u32,
            Decision::Refused(_) => 0,
        };
        let decided = Decided {
            request_id: ask.id,
            endpoint,
            chain: &chain,
            prompt_tokens,
            overlap_tokens: self.plan.overlap_tokens(endpoint),
            answer: Answer::Streamed,
            attempt: Attempt::First,
        };
        self.fleet.decided(ask.now_us, &decided);
        self.chains.push(chain);
        endpoint as usize
    }

    pub(super) fn first_token(&mut self, now_us: u64, id: u64, pod: usize) {
        let observed = self.fleet.first_token(now_us, id, pod as u32);
        self.observed.extend(observed.map(|observed| (id, observed)));
    }

    pub(super) fn later_token(&mut self, now_us: u64, pod: usize) {
        self.fleet.heard_step(now_us, pod as u32);
    }

    pub(super) fn ended(&mut self, answered: &Answered<'_>) {
        let ended = Ended::Completed {
            prompt_tokens: Some(answered.row.input_tokens),
            cached_tokens: Some(answered.cached_tokens),
            completion_tokens: Some(answered.row.output_tokens),
        };
        self.fleet.ended(answered.now_us, answered.id, answered.pod as u32, ended);
    }

    pub(super) fn scraped(&mut self, now_us: u64, pod: usize, gauges: Gauges) {
        let scrape = Scrape {
            waiting: f64::from(gauges.waiting),
            running: f64::from(gauges.running),
            kv_usage_ratio: Some(gauges.kv_usage_ratio),
            num_gpu_blocks: Some(u64::from(self.told.blocks_max)),
            block_size_tokens: Some(self.told.block_tokens),
            own_in_flight_at_scrape: None,
        };
        self.fleet.scraped(now_us, pod as u32, &scrape);
    }

    /// What this balancer tells the others of an engine.
    pub(super) fn sums(&self, now_us: u64, pod: usize) -> PeerSums {
        self.fleet.sums_to_tell(now_us, pod as u32)
    }

    pub(super) fn heard(&mut self, now_us: u64, peer: u64, pod: usize, sums: PeerSums) {
        self.fleet.heard(now_us, peer, pod as u32, sums);
    }

    /// Predicted and seen times to first token since the last call, by request.
    pub(super) fn take_observed(&mut self) -> Vec<(u64, Observed)> {
        std::mem::take(&mut self.observed)
    }

    /// What an engine told of its cache.
    pub(super) fn told(&mut self, now_us: u64, pod: usize, change: BlockChange, keys: &HashMap<u64, u64>) {
        let pod = pod as u32;
        match change {
            BlockChange::Stored(hash) => {
                if let Some(key) = keys.get(&hash) {
                    self.fleet.cache_stored(now_us, pod, &[*key]);
                }
            }
            BlockChange::Removed(hash) => {
                if let Some(key) = keys.get(&hash) {
                    self.fleet.cache_removed(pod, &[*key]);
                }
            }
            BlockChange::Cleared => self.fleet.cache_cleared(pod),
        }
    }

    /// The prompt in the engine's tokens: the same ids for the same blocks.
    fn token_chain(&mut self, ask: &Ask<'_>) -> Chain {
        let recycled = self.chains.pop().unwrap_or_default();
        let mut builder = ChainBuilder::new(&SEED, 4 * ask.block_tokens, recycled);
        let mut left = ask.row.input_tokens;
        for block in &ask.row.blocks {
            let tokens = left.min(ask.block_tokens);
            left -= tokens;
            builder.token_ids(ids_of(*block, tokens));
        }
        builder.finish_engine_blocks()
    }

    /// The prompt as text: the same bytes for the same blocks.
    fn chain(&mut self, ask: &Ask<'_>) -> Chain {
        let recycled = self.chains.pop().unwrap_or_default();
        let mut builder = ChainBuilder::new(&SEED, BLOCK_BYTES_DEFAULT, recycled).growing();
        let (mut at, mut left) = (0, ask.row.input_tokens);
        let mut ends = ask.row.message_ends.iter().peekable();
        for block in &ask.row.blocks {
            let tokens = left.min(ask.block_tokens);
            left -= tokens;
            self.text.clear();
            let len = bytes_of(tokens, *block);
            let mut bits = *block;
            while self.text.len() < len {
                bits = bits.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                self.text.extend_from_slice(&bits.to_le_bytes());
            }
            let mut from = 0;
            while let Some(end) = ends.peek().map(|end| **end).filter(|end| *end < at + tokens) {
                // A message that ends within the block ends at its share of the text.
                let to = bytes_of(end.max(at) - at, *block).max(from);
                builder.text(&self.text[from..to]);
                builder.separator(MESSAGE_END);
                from = to;
                ends.next();
            }
            builder.text(&self.text[from..len]);
            at += tokens;
        }
        builder.finish()
    }
}

/// A balancer with conversations of 8,192 tokens on every engine, for timing.
#[derive(Debug)]
pub(super) struct Bench {
    ours: Ours,
    rows: Vec<Row>,
    chain: Chain,
    decided: u64,
}

impl Bench {
    const PROMPT_TOKENS: u32 = 8_192;
    const BLOCK_TOKENS: u32 = 512;

    pub(super) fn new(pods: usize, engine: &Parameters) -> Self {
        let told = Told {
            pods,
            batched_tokens_max: engine.batched_tokens_max,
            blocks_max: engine.blocks_max,
            block_tokens: engine.block_tokens,
            knowledge: Knowledge::Bytes,
            prior: Prior::default(),
            seed: 1,
        };
        let blocks = Self::PROMPT_TOKENS / Self::BLOCK_TOKENS;
        let row = |conversation: u64| Row {
            at_us: 0,
            after: None,
            gap_us: 0,
            input_tokens: Self::PROMPT_TOKENS,
            output_tokens: 100,
            // The first half is common to all.
            blocks: (0..blocks)
                .map(|at| if at < blocks / 2 { u64::from(at) << 40 } else { conversation << 40 | u64::from(at) })
                .collect(),
            message_ends: vec![Self::PROMPT_TOKENS / 2],
            answered_blocks: Vec::new(),
        };
        Self { ours: Ours::new(told), rows: (1..200).map(row).collect(), chain: Chain::default(), decided: 0 }
    }

    /// Decides, answers and forgets one request.
    pub(super) fn decide(&mut self) {
        self.decided += 1;
        let row = self.rows[(self.decided % self.rows.len() as u64) as usize].clone();
        let now_us = self.decided * 10_000;
        let ask = Ask { id: self.decided, now_us, row: &row, block_tokens: Self::BLOCK_TOKENS, seed: self.decided };
        let pod = self.ours.choose(&ask);
        self.ours.first_token(now_us + 1_000, self.decided, pod);
        self.ours.ended(&Answered {
            id: self.decided,
            now_us: now_us + 2_000,
            pod,
            row: &row,
            cached_tokens: row.input_tokens / 2,
        });
        self.chain = self.ours.chain(&ask);
    }

    /// Looks the last prompt up and predicts it for every engine.
    pub(super) fn look(&mut self) {
        let Ours { fleet, plan, told, .. } = &mut self.ours;
        fleet.plan(plan, &self.chain, Self::PROMPT_TOKENS, self.decided * 10_000);
        let least =
            (0..told.pods as u32).filter_map(|pod| fleet.predict(plan, pod)).map(|prediction| prediction.cost_us).min();
        std::hint::black_box(least);
    }
}

/// Token ids that stand for a block.
fn ids_of(block: u64, tokens: u32) -> impl Iterator<Item = u32> {
    (0..tokens).map(move |at| (block as u32).wrapping_add(at.wrapping_mul(0x9e37_79b9)))
}

/// The product's keys of these blocks, each of which stands for the prefix up to its end.
pub(super) fn learn_keys(keys: &mut HashMap<u64, u64>, blocks: &[u64], block_tokens: u32) {
    let known = blocks.partition_point(|block| keys.contains_key(block));
    let before = known.checked_sub(1).and_then(|last| keys.get(&blocks[last]).copied());
    let mut parent = before.unwrap_or_else(|| SEED.root());
    for block in &blocks[known..] {
        parent = token_block(parent, ids_of(*block, block_tokens));
        keys.insert(*block, parent);
    }
}

/// Bytes of the first tokens of a block: some texts have longer words than others, 15 % more or less.
fn bytes_of(tokens: u32, block: u64) -> usize {
    (u64::from(tokens * BYTES_PER_TOKEN) * (85 + (block >> 8) % 31) / 100) as usize
}
