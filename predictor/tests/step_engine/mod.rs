//! A small step model of engines behind a fleet, in virtual time: first come first served, prefill in chunks of a
//! budget, decoding beside it, prefix reuse within a conversation. What it computes is what the fleet must find out.

use predictor::fleet::*;
use predictor::prefix::chain::{Chain, ChainBuilder, Seed};
use predictor::ttft::{Basis, Prior};
use std::collections::{HashMap, VecDeque};

/// True cost of a step: `base + token * prefill + pair * attention + sequence * decoding + kv * contexts`, seconds.
pub(crate) const BASE_S: f64 = 0.008;
pub(crate) const TOKEN_S: f64 = 8e-5;
const PAIR_S: f64 = 4e-9;
const SEQUENCE_S: f64 = 1.5e-4;
const KV_TOKEN_S: f64 = 4e-8;
const BUDGET: u32 = 8_192;

/// A small generator with a known sequence.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.unit() * bound as f64) as u64
    }
}

#[derive(Clone)]
struct Job {
    id: u64,
    conversation: u64,
    prompt: u32,
    computed: u32,
    output_left: u32,
    done_in_step: u32,
}

struct Engine {
    waiting: VecDeque<Job>,
    running: Vec<Job>,
    cached: HashMap<u64, u32>,
    step_ends_us: Option<u64>,
    slowness: f64,
}

impl Engine {
    /// Begins a step at `now_us` when there is work.
    fn begin(&mut self, now_us: u64, random: &mut Random) {
        let mut budget = BUDGET;
        let (mut seconds, mut prefilled) = (BASE_S, 0.0);
        for job in self.running.iter().filter(|job| job.computed == job.prompt) {
            seconds += SEQUENCE_S + KV_TOKEN_S * f64::from(job.prompt);
            budget = budget.saturating_sub(1);
        }
        loop {
            let Some(job) = self.running.iter_mut().find(|job| job.computed < job.prompt && job.done_in_step == 0)
            else {
                let Some(mut job) = (budget > 0).then(|| self.waiting.pop_front()).flatten() else { break };
                job.computed = self.cached.get(&job.conversation).copied().unwrap_or(0).min(job.prompt - 1);
                self.running.push(job);
                continue;
            };
            if budget == 0 {
                break;
            }
            let chunk = budget.min(job.prompt - job.computed);
            prefilled += f64::from(chunk);
            seconds += PAIR_S * f64::from(chunk) * (f64::from(job.computed) + f64::from(chunk) / 2.0);
            job.done_in_step = chunk;
            budget -= chunk;
        }
        seconds += TOKEN_S * prefilled;
        self.step_ends_us = (!self.running.is_empty())
            .then(|| now_us + (seconds * self.slowness * (0.95 + 0.1 * random.unit()) * 1e6) as u64);
    }

    /// Ends the step: ids with a first token, ids with a later one, ids that ended.
    fn end(&mut self) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
        let (mut first, mut later, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for job in &mut self.running {
            if job.done_in_step == 0 && job.computed < job.prompt {
                continue;
            }
            let was = job.computed;
            job.computed += std::mem::take(&mut job.done_in_step);
            if job.computed < job.prompt {
                continue;
            }
            if was < job.prompt {
                first.push(job.id);
                let cached = self.cached.entry(job.conversation).or_default();
                *cached = (*cached).max(job.prompt);
            } else {
                later.push(job.id);
            }
            job.output_left -= 1;
            if job.output_left == 0 {
                ended.push(job.id);
            }
        }
        self.running.retain(|job| job.output_left > 0);
        (first, later, ended)
    }
}

/// One answer as it was predicted and as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) endpoint: u32,
    pub(crate) predicted_us: u64,
    pub(crate) p90_us: u64,
    pub(crate) actual_us: u64,
}

impl Answered {
    pub(crate) fn error(&self) -> f64 {
        (self.predicted_us as f64 - self.actual_us as f64).abs() / self.actual_us as f64
    }
}

/// How endpoints are chosen.
#[derive(Clone, Copy)]
pub(crate) enum Choice {
    LeastCost,
    RoundRobin,
}

pub(crate) struct Run {
    pub(crate) fleet: Fleet,
    engines: Vec<Engine>,
    random: Random,
    now_us: u64,
    next_id: u64,
    conversations: Vec<(u64, u32)>,
    at: HashMap<u64, u32>,
    pub(crate) answered: Vec<Answered>,
    pub(crate) basis_seen: Vec<Basis>,
    choice: Choice,
}

impl Run {
    pub(crate) fn new(endpoints: u32, prior: Prior, choice: Choice, seed: u64) -> Run {
        let mut fleet = Fleet::new(Limits { endpoints_max: endpoints, index_bytes_max: 8 << 20, ..Limits::default() });
        for endpoint in 0..endpoints {
            let spec = EndpointSpec {
                backend: Backend::Engine,
                model: "m",
                kind_key: "m/gpu",
                prior,
                max_batched_tokens: u64::from(BUDGET),
                kv_capacity_tokens: Some(2_000_000),
            };
            assert_eq!(fleet.add_endpoint(0, endpoint, &spec), Added::Added);
        }
        let engine = || Engine {
            waiting: VecDeque::new(),
            running: Vec::new(),
            cached: HashMap::new(),
            step_ends_us: None,
            slowness: 1.0,
        };
        Run {
            fleet,
            engines: (0..endpoints).map(|_| engine()).collect(),
            random: Random(seed),
            now_us: 1_000_000,
            next_id: 0,
            conversations: Vec::new(),
            at: HashMap::new(),
            answered: Vec::new(),
            basis_seen: Vec::new(),
            choice,
        }
    }

    pub(crate) fn slow_down(&mut self, endpoint: u32, slowness: f64) {
        self.engines[endpoint as usize].slowness = slowness;
    }

    /// Sends `count` requests at `rate` a second.
    pub(crate) fn send(&mut self, count: u32, rate: f64) {
        for _ in 0..count {
            let arrival_us = self.now_us + (self.random.exponential(1.0 / rate) * 1e6) as u64;
            self.run_until(arrival_us);
            self.arrive();
        }
    }

    pub(crate) fn drain(&mut self) {
        self.run_until(u64::MAX);
    }

    fn run_until(&mut self, until_us: u64) {
        while let Some((end_us, at)) =
            self.engines.iter().enumerate().filter_map(|(at, engine)| Some((engine.step_ends_us?, at))).min()
        {
            if end_us > until_us {
                break;
            }
            self.now_us = end_us;
            let (first, later, ended) = self.engines[at].end();
            later.iter().for_each(|_| self.fleet.heard_step(end_us, at as u32));
            for id in first {
                let seen = self.fleet.first_token(end_us, id, at as u32).expect("every first token is news");
                self.answered.push(Answered {
                    endpoint: at as u32,
                    predicted_us: seen.predicted_us,
                    p90_us: seen.p90_us,
                    actual_us: seen.actual_us,
                });
            }
            for id in ended {
                let completed = Ended::Completed {
                    prompt_tokens: self.at.remove(&id),
                    cached_tokens: None,
                    completion_tokens: Some(9),
                };
                self.fleet.ended(end_us, id, at as u32, completed);
            }
            self.engines[at].begin(end_us, &mut self.random);
        }
        if until_us < u64::MAX {
            self.now_us = until_us;
        }
    }

    /// A new conversation, or the next turn of an old one.
    fn arrive(&mut self) {
        let fresh = self.conversations.len() < 8 || self.random.unit() < 0.3;
        let slot = if fresh {
            let tokens = 200 + self.random.exponential(1_500.0) as u32;
            self.conversations.push((self.next_id, tokens.min(16_000)));
            self.conversations.len() - 1
        } else {
            let slot = self.random.below(self.conversations.len() as u64) as usize;
            self.conversations[slot].1 += 100 + self.random.exponential(400.0) as u32;
            slot
        };
        let (conversation, prompt) = self.conversations[slot];
        if prompt > 16_000 || self.conversations.len() > 64 {
            self.conversations.swap_remove(slot);
        }
        let chain = chain_of(conversation, prompt);
        let mut plan = Plan::default();
        self.fleet.plan(&mut plan, &chain, prompt, self.now_us);
        let endpoint = match self.choice {
            Choice::RoundRobin => (self.next_id % self.engines.len() as u64) as u32,
            Choice::LeastCost => (0..self.engines.len() as u32)
                .min_by_key(|at| self.fleet.predict(&plan, *at).map(|prediction| prediction.cost_us))
                .expect("there are endpoints"),
        };
        self.basis_seen.push(self.fleet.predict(&plan, endpoint).expect("known endpoint").basis);
        let decided = Decided {
            request_id: self.next_id,
            endpoint,
            chain: &chain,
            prompt_tokens: prompt,
            overlap_tokens: plan.overlap_tokens(endpoint),
            answer: Answer::Streamed,
            attempt: Attempt::First,
        };
        self.fleet.decided(self.now_us, &decided);
        self.at.insert(self.next_id, prompt);
        let output_left = 1 + self.random.exponential(120.0) as u32;
        let job = Job { id: self.next_id, conversation, prompt, computed: 0, output_left, done_in_step: 0 };
        self.next_id += 1;
        let engine = &mut self.engines[endpoint as usize];
        engine.waiting.push_back(job);
        if engine.step_ends_us.is_none() {
            engine.begin(self.now_us, &mut self.random);
        }
    }
}

/// A prompt of `tokens` tokens of four bytes that begins as every other prompt of its conversation.
pub(crate) fn chain_of(conversation: u64, tokens: u32) -> Chain {
    let seed = Seed { model: "m", lora: None, cache_salt: None };
    let mut builder = ChainBuilder::new(&seed, 256, Chain::default());
    let mut text = vec![b'x'; tokens as usize * 4];
    text[..8].copy_from_slice(&conversation.to_le_bytes());
    builder.text(&text);
    builder.finish()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
