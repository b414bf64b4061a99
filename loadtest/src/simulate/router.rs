//! Who chooses the engine: Kinference's own code, and what other routers do, by their published formulas and defaults.

use std::collections::HashMap;

use super::{
    ours::Ours,
    pods::{Gauges, Pods},
    trace::Row,
};
use crate::random::Random;

/// A way to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Any engine.
    Random,
    /// One after the other.
    RoundRobin,
    /// Fewest requests in flight (HAProxy leastconn, Envoy least request).
    LeastOutstanding,
    /// The engine that the first blocks hash to.
    PrefixAffinity,
    /// SGLang's router, cache_aware.
    Sglang,
    /// Gateway API Inference Extension: prefix, queue and KV usage weighed 3:2:2.
    Gie,
    /// NVIDIA Dynamo's KV router, which hears of every cached block.
    Dynamo,
    /// Kinference.
    Kinference,
    /// The least time to first token, by full knowledge of every engine and of every answer's length.
    Oracle,
}

/// A request to place.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Unique in the run.
    pub id: u64,
    /// Now.
    pub now_us: u64,
    /// What is asked.
    pub row: &'a Row,
    /// Tokens in a block of the trace.
    pub block_tokens: u32,
    /// Settles ties.
    pub seed: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// Which.
    pub id: u64,
    /// When.
    pub now_us: u64,
    /// Where.
    pub pod: usize,
    /// What was asked.
    pub row: &'a Row,
    /// Tokens of the prompt found in the cache.
    pub cached_tokens: u32,
}

/// A balancer.
#[derive(Debug)]
pub enum Router {
    /// Draws.
    Random(Random),
    /// The next engine.
    RoundRobin(usize),
    /// Requests in flight.
    LeastOutstanding(Vec<u32>),
    /// Remembers nothing.
    PrefixAffinity,
    /// Who was sent what.
    Sglang(Sglang),
    /// Who was sent what, and the gauges.
    Gie(Gie),
    /// Work in flight.
    Dynamo(Dynamo),
    /// Everything the product knows.
    Kinference(Box<Ours>),
    /// Sees all.
    Oracle,
}

impl Router {
    /// The product, where it is the one that chooses.
    pub(super) fn ours(&self) -> Option<&Ours> {
        if let Router::Kinference(ours) = self { Some(ours) } else { None }
    }

    /// The same, to be told something.
    pub(super) fn ours_mut(&mut self) -> Option<&mut Ours> {
        if let Router::Kinference(ours) = self { Some(ours) } else { None }
    }

    /// Chooses an engine, and counts the request there.
    pub fn choose(&mut self, ask: &Ask<'_>, pods: &Pods) -> usize {
        let count = pods.len();
        match self {
            Router::Random(random) => (random.bits() % count as u64) as usize,
            Router::RoundRobin(next) => {
                *next = (*next + 1) % count;
                *next
            }
            Router::LeastOutstanding(in_flight) => {
                let pod = least(in_flight.iter().map(|count| f64::from(*count)), ask.seed);
                in_flight[pod] += 1;
                pod
            }
            Router::PrefixAffinity => {
                (ask.row.blocks.get(1).or(ask.row.blocks.first()).copied().unwrap_or(0) >> 7) as usize % count
            }
            Router::Sglang(sglang) => sglang.choose(ask),
            Router::Gie(gie) => gie.choose(ask),
            Router::Dynamo(dynamo) => dynamo.choose(ask, pods),
            Router::Kinference(ours) => ours.choose(ask),
            Router::Oracle => least((0..count).map(|pod| pods.forecast_s(ask.now_us, pod, ask.row)), ask.seed),
        }
    }

    /// A request's first token came.
    pub fn first_token(&mut self, now_us: u64, id: u64, pod: usize) {
        match self {
            Router::Dynamo(dynamo) => dynamo.first_token(id, pod),
            Router::Kinference(ours) => ours.first_token(now_us, id, pod),
            Router::Random(_)
            | Router::RoundRobin(_)
            | Router::LeastOutstanding(_)
            | Router::PrefixAffinity
            | Router::Sglang(_)
            | Router::Gie(_)
            | Router::Oracle => {}
        }
    }

    /// A request ended.
    pub fn ended(&mut self, answered: &Answered<'_>) {
        match self {
            Router::LeastOutstanding(in_flight) => in_flight[answered.pod] -= 1,
            Router::Sglang(sglang) => sglang.in_flight[answered.pod] -= 1,
            Router::Dynamo(dynamo) => dynamo.ended(answered.id, answered.pod),
            Router::Kinference(ours) => ours.ended(answered),
            Router::Random(_) | Router::RoundRobin(_) | Router::PrefixAffinity | Router::Gie(_) | Router::Oracle => {}
        }
    }

    /// An engine's metrics were read.
    pub fn scraped(&mut self, now_us: u64, pod: usize, gauges: Gauges) {
        match self {
            Router::Gie(gie) => gie.gauges[pod] = gauges,
            Router::Kinference(ours) => ours.scraped(now_us, pod, gauges),
            Router::Random(_)
            | Router::RoundRobin(_)
            | Router::LeastOutstanding(_)
            | Router::PrefixAffinity
            | Router::Sglang(_)
            | Router::Dynamo(_)
            | Router::Oracle => {}
        }
    }
}

/// Index of the least value; one of equals by `seed`.
pub(super) fn least(values: impl Iterator<Item = f64>, seed: u64) -> usize {
    let (mut best, mut at, mut equals) = (f64::INFINITY, 0, 0_u64);
    let mut random = Random::new(seed);
    for (index, value) in values.enumerate() {
        if value < best {
            (best, at, equals) = (value, index, 1);
        } else if value <= best {
            equals += 1;
            if random.bits().is_multiple_of(equals) {
                at = index;
            }
        }
    }
    at
}

/// Which engine was sent which block last, up to a number of blocks each: what an approximate prefix index knows.
#[derive(Debug, Default)]
struct Sent {
    /// By block: when each engine was sent it last.
    blocks: HashMap<u64, Vec<(u16, u64)>>,
    held: Vec<u32>,
}

impl Sent {
    fn new(pods: usize) -> Self {
        Self { blocks: HashMap::new(), held: vec![0; pods] }
    }

    /// Blocks at the head that each engine was sent.
    fn depths(&self, blocks: &[u64]) -> Vec<u32> {
        let mut depths = vec![0; self.held.len()];
        for (depth, block) in (0..).zip(blocks) {
            let Some(holders) = self.blocks.get(block) else { break };
            for (pod, _) in holders {
                if depths[usize::from(*pod)] == depth {
                    depths[usize::from(*pod)] = depth + 1;
                }
            }
        }
        depths
    }

    fn record(&mut self, now_us: u64, blocks: &[u64], pod: usize, blocks_max: u32) {
        let at = u16::try_from(pod).unwrap_or(u16::MAX);
        for block in blocks {
            let holders = self.blocks.entry(*block).or_default();
            match holders.iter_mut().find(|(holder, _)| *holder == at) {
                Some((_, used_us)) => *used_us = now_us,
                None => {
                    holders.push((at, now_us));
                    self.held[pod] += 1;
                }
            }
        }
        if self.held[pod] > blocks_max {
            self.evict(at, blocks_max);
        }
    }

    /// Forgets the oldest tenth of what an engine was sent.
    fn evict(&mut self, pod: u16, blocks_max: u32) {
        let mut used: Vec<u64> =
            self.blocks.values().flatten().filter(|(holder, _)| *holder == pod).map(|(_, used_us)| *used_us).collect();
        let keep = (blocks_max as usize * 9 / 10).min(used.len().saturating_sub(1));
        let drop = used.len() - keep;
        let oldest_kept = *used.select_nth_unstable(drop).1;
        let mut left = 0;
        self.blocks.retain(|_, holders| {
            holders.retain(|(holder, used_us)| *holder != pod || *used_us >= oldest_kept);
            left += u32::from(holders.iter().any(|(holder, _)| *holder == pod));
            !holders.is_empty()
        });
        self.held[usize::from(pod)] = left;
    }
}

/// SGLang's cache-aware policy (sgl-router 0.3): the longest match when it covers 30 % of the prompt, else the engine with
/// the smallest tree; the shortest queue when loads differ by more than 64 requests and half.
#[derive(Debug)]
pub struct Sglang {
    sent: Sent,
    in_flight: Vec<u32>,
}

impl Sglang {
    const THRESHOLD: f64 = 0.3;
    const ABSOLUTE: u32 = 64;
    const RELATIVE: f64 = 1.5;
    /// 2^26 characters over blocks of 4 characters a token.
    const TREE_CHARACTERS_MAX: u32 = 1 << 26;

    /// Nothing sent.
    #[must_use]
    pub fn new(pods: usize) -> Self {
        Self { sent: Sent::new(pods), in_flight: vec![0; pods] }
    }

    fn choose(&mut self, ask: &Ask<'_>) -> usize {
        let (low, high) =
            self.in_flight.iter().fold((u32::MAX, 0), |(low, high), count| (low.min(*count), high.max(*count)));
        let unbalanced = high - low > Self::ABSOLUTE && f64::from(high) > f64::from(low) * Self::RELATIVE;
        let pod = if unbalanced {
            least(self.in_flight.iter().map(|count| f64::from(*count)), ask.seed)
        } else {
            let depths = self.sent.depths(&ask.row.blocks);
            let best = least(depths.iter().map(|depth| -f64::from(*depth)), ask.seed);
            let share = f64::from(depths[best]) / ask.row.blocks.len().max(1) as f64;
            match share > Self::THRESHOLD {
                true => best,
                false => least(self.sent.held.iter().map(|held| f64::from(*held)), ask.seed),
            }
        };
        let blocks_max = Self::TREE_CHARACTERS_MAX / (ask.block_tokens * 4) / self.in_flight.len() as u32;
        self.sent.record(ask.now_us, &ask.row.blocks, pod, blocks_max.max(16));
        self.in_flight[pod] += 1;
        pod
    }
}

/// The endpoint picker of the Gateway API Inference Extension: weighed scores, gauges refreshed by scraping.
#[derive(Debug)]
pub struct Gie {
    sent: Sent,
    gauges: Vec<Gauges>,
    kv_tokens: u64,
}

impl Gie {
    const WEIGHTS: [f64; 3] = [3.0, 2.0, 2.0];

    /// Nothing sent; the prefix index holds as much as a cache.
    #[must_use]
    pub fn new(pods: usize, kv_tokens: u64) -> Self {
        Self { sent: Sent::new(pods), gauges: vec![Gauges::default(); pods], kv_tokens }
    }

    fn choose(&mut self, ask: &Ask<'_>) -> usize {
        let depths = self.sent.depths(&ask.row.blocks);
        let waiting = |gauges: &Gauges| f64::from(gauges.waiting);
        let low = self.gauges.iter().map(waiting).fold(f64::INFINITY, f64::min);
        let high = self.gauges.iter().map(waiting).fold(0.0, f64::max);
        let scores = self.gauges.iter().zip(&depths).map(|(gauges, depth)| {
            let prefix = f64::from(*depth) / ask.row.blocks.len().max(1) as f64;
            let queue = if high > low { (high - waiting(gauges)) / (high - low) } else { 1.0 };
            -(Self::WEIGHTS[0] * prefix + Self::WEIGHTS[1] * queue + Self::WEIGHTS[2] * (1.0 - gauges.kv_usage_ratio))
        });
        let pod = least(scores, ask.seed);
        let blocks_max = u32::try_from(self.kv_tokens / u64::from(ask.block_tokens)).unwrap_or(u32::MAX);
        self.sent.record(ask.now_us, &ask.row.blocks, pod, blocks_max.max(16));
        pod
    }
}

/// Dynamo's KV router: `overlap_score_weight * prefill blocks + decode blocks`, both with the newcomer, its own books.
#[derive(Debug)]
pub struct Dynamo {
    prefill_tokens: Vec<u64>,
    decode_blocks: Vec<u64>,
    open: HashMap<u64, (u64, u64)>,
}

impl Dynamo {
    /// Nothing sent.
    #[must_use]
    pub fn new(pods: usize) -> Self {
        Self { prefill_tokens: vec![0; pods], decode_blocks: vec![0; pods], open: HashMap::new() }
    }

    fn choose(&mut self, ask: &Ask<'_>, pods: &Pods) -> usize {
        let block_tokens = u64::from(ask.block_tokens);
        let blocks = u64::from(ask.row.input_tokens).div_ceil(block_tokens);
        let new_tokens = |pod: usize| u64::from(ask.row.input_tokens - pods.cached_tokens(pod, ask.row));
        let costs = (0..pods.len()).map(|pod| {
            let prefill = (self.prefill_tokens[pod] + new_tokens(pod)) as f64 / block_tokens as f64;
            prefill + (self.decode_blocks[pod] + blocks) as f64
        });
        let pod = least(costs, ask.seed);
        let new = new_tokens(pod);
        self.prefill_tokens[pod] += new;
        self.decode_blocks[pod] += blocks;
        self.open.insert(ask.id, (new, blocks));
        pod
    }

    fn first_token(&mut self, id: u64, pod: usize) {
        if let Some((new, _)) = self.open.get_mut(&id) {
            self.prefill_tokens[pod] -= std::mem::take(new);
        }
    }

    fn ended(&mut self, id: u64, pod: usize) {
        if let Some((new, blocks)) = self.open.remove(&id) {
            self.prefill_tokens[pod] -= new;
            self.decode_blocks[pod] -= blocks;
        }
    }
}
