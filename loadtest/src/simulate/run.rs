//! One run: a trace against a fleet of engines under one way to choose, in virtual time.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
};

use engine::step::{Event, Parameters};
use predictor::ttft::Prior;

use super::{
    ours::{Ours, Told, learn_keys},
    pods::{Happened, Pods},
    router::{Answered, Ask, Dynamo, Gie, Router, Sglang, Strategy},
    trace::Trace,
};
use crate::random::Random;

/// Time between two readings of an engine's metrics by Kinference, its default.
const SCRAPE_US: u64 = 1_000_000;
/// The same by the Gateway API's endpoint picker.
const SCRAPE_GIE_US: u64 = 50_000;
/// Time between two exchanges of sums between balancers.
const EXCHANGE_US: u64 = 25_000;

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// At the times of the trace divided by this.
    Squeezed(f64),
    /// As fast as this many in flight at a time allow.
    Saturated(u32),
}

/// What balancers tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Exchange {
    /// Nothing.
    Nothing,
    /// Their sums of each endpoint, four times a second.
    Sums,
}

/// What Kinference knows of prompts and caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Knowledge {
    /// Prompts by their bytes, caches by its own record.
    Bytes,
    /// Prompts in the engine's tokens (`tokenizer`), caches by its own record.
    Tokens,
    /// Prompts in the engine's tokens, caches by what engines tell (`tokenizer` and `kvEvents`).
    Events,
}

/// An engine that becomes slower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// After this many requests.
    pub after_requests: usize,
    /// Which engine.
    pub pod: usize,
    /// How many times slower.
    pub factor: f64,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Engines.
    pub pods: usize,
    /// What each is.
    pub engine: Parameters,
    /// Who chooses.
    pub strategy: Strategy,
    /// Balancers; each request goes through one of them by chance.
    pub balancers: usize,
    /// What they tell each other.
    pub exchange: Exchange,
    /// What they know of prompts and caches.
    pub knowledge: Knowledge,
    /// How requests arrive.
    pub arrivals: Arrivals,
    /// Kinference's belief before the first answer.
    pub prior: Prior,
    /// Regret is measured at one in so many decisions; 0 for none.
    pub regret_every: usize,
    /// An engine that becomes slower.
    pub slowdown: Option<Slowdown>,
    /// Of chances.
    pub seed: u64,
}

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Row of the trace.
    pub row: u32,
    /// Engine.
    pub pod: u32,
    /// When it was sent.
    pub sent_us: u64,
    /// Time to first token.
    pub ttft_us: u64,
    /// Time to the last token.
    pub latency_us: u64,
    /// Tokens of the prompt found in the cache.
    pub cached_tokens: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// What was predicted, with its p90.
    pub predicted_us: Option<(u64, u64)>,
    /// Forecast time of the chosen engine and of the best one, seconds.
    pub regret: Option<(f64, f64)>,
}

/// What became of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// Every request that was answered, in the order of first tokens.
    pub all: Vec<Outcome>,
    /// Requests that no engine took: too long for its cache.
    pub refused: u64,
    /// Preemptions over all engines.
    pub preemptions: u64,
    /// Tokens found and looked up in caches.
    pub cached_tokens: u64,
    /// Tokens looked up.
    pub looked_up_tokens: u64,
    /// Virtual length of the run.
    pub length_us: u64,
    /// Load over time: (time in us, requests in flight at each engine), each second.
    pub load: Vec<(u64, Vec<u32>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Arrival(u32),
    /// A request ended: another may be sent.
    Room,
    Scrape,
    Exchange,
    Sample,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    row: u32,
    balancer: usize,
    sent_us: u64,
    ttft_us: Option<u64>,
    cached_tokens: Option<u32>,
    predicted_us: Option<(u64, u64)>,
    regret: Option<(f64, f64)>,
}

struct World<'a> {
    trace: &'a Trace,
    setting: &'a Setting,
    pods: Pods,
    balancers: Vec<Router>,
    due: BinaryHeap<Reverse<(u64, Due)>>,
    /// By row, the row that follows it in its session.
    next_turn: HashMap<u32, u32>,
    /// Rows that are due and wait for room, when arrivals are bounded.
    held_back: VecDeque<u32>,
    open: HashMap<u64, Open>,
    in_flight: Vec<u32>,
    left: usize,
    sent: usize,
    random: Random,
    /// Keys of the product's own by the engines' block hashes, where events are heard.
    keys: HashMap<u64, u64>,
    outcomes: Outcomes,
}

/// Runs a trace to its end.
#[must_use]
pub fn run(trace: &Trace, setting: &Setting) -> Outcomes {
    let mut world = World::new(trace, setting);
    let mut happened = Vec::new();
    while world.left > 0 {
        let due_us = world.due.peek().map(|Reverse((at_us, _))| *at_us);
        let now_us = match (world.pods.next_us(), due_us) {
            (Some(pod_us), Some(due_us)) => pod_us.min(due_us),
            (Some(us), None) | (None, Some(us)) => us,
            (None, None) => break,
        };
        world.pods.advance_to(now_us, &mut happened);
        for event in happened.drain(..) {
            world.happened(event);
        }
        world.hear(now_us);
        while let Some(&Reverse((at_us, due))) = world.due.peek().filter(|Reverse((at_us, _))| *at_us <= now_us) {
            world.due.pop();
            world.comes_due(at_us, due);
        }
        world.outcomes.length_us = now_us;
    }
    world.finish()
}

impl Setting {
    fn hears_events(&self) -> bool {
        self.strategy == Strategy::Kinference && self.knowledge == Knowledge::Events
    }
}

impl<'a> World<'a> {
    fn new(trace: &'a Trace, setting: &'a Setting) -> Self {
        let mut due = BinaryHeap::new();
        let mut held_back = VecDeque::new();
        let mut next_turn = HashMap::new();
        for (at, row) in (0..).zip(&trace.rows) {
            match (row.after, setting.arrivals) {
                (Some(before), _) => {
                    next_turn.insert(before, at);
                }
                (None, Arrivals::Squeezed(factor)) => {
                    due.push(Reverse(((row.at_us as f64 / factor) as u64, Due::Arrival(at))));
                }
                (None, Arrivals::Saturated(_)) => held_back.push_back(at),
            }
        }
        due.extend([Due::Scrape, Due::Exchange, Due::Sample].map(|each| Reverse((0, each))));
        let mut random = Random::new(setting.seed);
        let balancers = (0..setting.balancers.max(1)).map(|_| router(setting, random.bits())).collect();
        Self {
            trace,
            setting,
            pods: Pods::new(setting.pods, &setting.engine, setting.hears_events()),
            balancers,
            due,
            next_turn,
            held_back,
            open: HashMap::new(),
            in_flight: vec![0; setting.pods],
            left: trace.rows.len(),
            sent: 0,
            random,
            keys: HashMap::new(),
            outcomes: Outcomes::default(),
        }
    }

    fn comes_due(&mut self, now_us: u64, due: Due) {
        match due {
            Due::Arrival(row) => match self.setting.arrivals {
                Arrivals::Squeezed(_) => self.send(now_us, row),
                // A session that has begun goes on before another begins.
                Arrivals::Saturated(_) => self.held_back.push_front(row),
            },
            Due::Room => {}
            Due::Scrape => {
                for router in &mut self.balancers {
                    (0..self.pods.len()).for_each(|pod| router.scraped(now_us, pod, self.pods.gauges(pod)));
                }
                let every_us = if self.setting.strategy == Strategy::Gie { SCRAPE_GIE_US } else { SCRAPE_US };
                self.due.push(Reverse((now_us + every_us, Due::Scrape)));
            }
            Due::Exchange => {
                if self.setting.exchange == Exchange::Sums {
                    exchange(now_us, &mut self.balancers, self.setting.pods);
                }
                self.due.push(Reverse((now_us + EXCHANGE_US, Due::Exchange)));
            }
            Due::Sample => {
                self.outcomes.load.push((now_us, self.in_flight.clone()));
                self.due.push(Reverse((now_us + 1_000_000, Due::Sample)));
            }
        }
        if let Arrivals::Saturated(max) = self.setting.arrivals {
            while self.open.len() < max as usize {
                let Some(row) = self.held_back.pop_front() else { break };
                self.send(now_us, row);
            }
        }
    }

    /// Every balancer hears what engines told of their caches.
    fn hear(&mut self, now_us: u64) {
        if !self.setting.hears_events() {
            return;
        }
        for pod in 0..self.pods.len() {
            for change in self.pods.take_changes(pod) {
                for router in &mut self.balancers {
                    if let Some(ours) = router.ours_mut() {
                        ours.told(now_us, pod, change, &self.keys);
                    }
                }
            }
        }
    }

    fn send(&mut self, now_us: u64, at: u32) {
        let row = &self.trace.rows[at as usize];
        if self.setting.hears_events() {
            learn_keys(&mut self.keys, &row.answered_blocks, self.trace.block_tokens);
        }
        let id = u64::from(at);
        let balancer = (self.random.bits() % self.balancers.len() as u64) as usize;
        let ask = Ask { id, now_us, row, block_tokens: self.trace.block_tokens, seed: self.random.bits() };
        if self.setting.slowdown.is_some_and(|slow| slow.after_requests == self.sent)
            && let Some(slow) = self.setting.slowdown
        {
            self.pods.slow_down(slow.pod, slow.factor);
        }
        let forecasts = (self.setting.regret_every > 0 && self.sent.is_multiple_of(self.setting.regret_every))
            .then(|| (0..self.pods.len()).map(|pod| self.pods.forecast_s(now_us, pod, row)).collect::<Vec<f64>>());
        self.sent += 1;
        let pod = self.balancers[balancer].choose(&ask, &self.pods);
        let regret = forecasts.map(|all| (all[pod], all.iter().copied().fold(f64::INFINITY, f64::min)));
        let open =
            Open { row: at, balancer, sent_us: now_us, ttft_us: None, cached_tokens: None, predicted_us: None, regret };
        if self.pods.submit(now_us, pod, id, row).is_err() {
            let answered = Answered { id, now_us, pod, row, cached_tokens: 0 };
            self.balancers[balancer].ended(&answered);
            self.outcomes.refused += 1;
            self.left -= 1;
            self.next_turn_of(now_us, at);
            return;
        }
        self.in_flight[pod] += 1;
        self.open.insert(id, open);
    }

    fn happened(&mut self, happened: Happened) {
        let Happened { at_us, pod, event } = happened;
        match event {
            Event::Admitted { id, cached_tokens } => {
                if let Some(open) = self.open.get_mut(&id) {
                    open.cached_tokens.get_or_insert(cached_tokens);
                }
            }
            Event::Token { id, index: 0 } => {
                let Some(open) = self.open.get_mut(&id) else { return };
                open.ttft_us = Some(at_us - open.sent_us);
                let router = &mut self.balancers[open.balancer];
                router.first_token(at_us, id, pod);
                if let Some(ours) = router.ours_mut() {
                    let observed = ours.take_observed().pop();
                    open.predicted_us = observed.map(|(_, observed)| (observed.predicted_us, observed.p90_us));
                }
            }
            Event::Token { id, .. } => {
                let Some(open) = self.open.get(&id) else { return };
                if let Some(ours) = self.balancers[open.balancer].ours_mut() {
                    ours.later_token(at_us, pod);
                }
            }
            Event::Finished { id } => self.finished(at_us, id, pod),
            Event::Preempted { .. } => {}
        }
    }

    fn finished(&mut self, now_us: u64, id: u64, pod: usize) {
        let Some(open) = self.open.remove(&id) else { return };
        let row = &self.trace.rows[open.row as usize];
        let cached_tokens = open.cached_tokens.unwrap_or(0);
        self.balancers[open.balancer].ended(&Answered { id, now_us, pod, row, cached_tokens });
        self.in_flight[pod] -= 1;
        self.left -= 1;
        self.outcomes.all.push(Outcome {
            row: open.row,
            pod: pod as u32,
            sent_us: open.sent_us,
            ttft_us: open.ttft_us.unwrap_or(now_us - open.sent_us),
            latency_us: now_us - open.sent_us,
            cached_tokens,
            prompt_tokens: row.input_tokens,
            predicted_us: open.predicted_us,
            regret: open.regret,
        });
        self.next_turn_of(now_us, open.row);
    }

    fn next_turn_of(&mut self, now_us: u64, row: u32) {
        match (self.next_turn.remove(&row), self.setting.arrivals) {
            (Some(next), Arrivals::Squeezed(factor)) => {
                let gap_us = (self.trace.rows[next as usize].gap_us as f64 / factor) as u64;
                self.due.push(Reverse((now_us + gap_us, Due::Arrival(next))));
            }
            (Some(next), Arrivals::Saturated(_)) => self.due.push(Reverse((now_us, Due::Arrival(next)))),
            (None, Arrivals::Saturated(_)) => self.due.push(Reverse((now_us, Due::Room))),
            (None, Arrivals::Squeezed(_)) => {}
        }
    }

    fn finish(mut self) -> Outcomes {
        (self.outcomes.preemptions, self.outcomes.cached_tokens, self.outcomes.looked_up_tokens) = self.pods.totals();
        self.outcomes
    }
}

fn router(setting: &Setting, seed: u64) -> Router {
    let pods = setting.pods;
    let engine = &setting.engine;
    match setting.strategy {
        Strategy::Random => Router::Random(Random::new(seed)),
        Strategy::RoundRobin => Router::RoundRobin(0),
        Strategy::LeastOutstanding => Router::LeastOutstanding(vec![0; pods]),
        Strategy::PrefixAffinity => Router::PrefixAffinity,
        Strategy::Sglang => Router::Sglang(Sglang::new(pods)),
        Strategy::Gie => Router::Gie(Gie::new(pods, u64::from(engine.blocks_max) * u64::from(engine.block_tokens))),
        Strategy::Dynamo => Router::Dynamo(Dynamo::new(pods)),
        Strategy::Kinference => Router::Kinference(Box::new(Ours::new(Told {
            pods,
            batched_tokens_max: engine.batched_tokens_max,
            blocks_max: engine.blocks_max,
            block_tokens: engine.block_tokens,
            knowledge: setting.knowledge,
            prior: setting.prior,
            seed,
        }))),
        Strategy::Oracle => Router::Oracle,
    }
}

/// Every balancer hears the sums of every other.
fn exchange(now_us: u64, balancers: &mut [Router], pods: usize) {
    let told: Vec<Vec<_>> = balancers
        .iter()
        .filter_map(Router::ours)
        .map(|ours| (0..pods).map(|pod| ours.sums(now_us, pod)).collect())
        .collect();
    for (at, router) in balancers.iter_mut().filter_map(Router::ours_mut).enumerate() {
        for (peer, sums) in told.iter().enumerate().filter(|(peer, _)| *peer != at) {
            sums.iter().enumerate().for_each(|(pod, sums)| router.heard(now_us, peer as u64, pod, *sums));
        }
    }
}
