//! The fleet of simulated engines on one clock of virtual time.

use engine::step::{BlockChange, Event, Parameters, Refusal, Request, Timed, Timeline};

use super::trace::Row;

/// Steps that a forecast looks ahead at most.
const FORECAST_STEPS_MAX: u32 = 4_000;

/// Engines, brought forward together.
#[derive(Debug)]
pub struct Pods {
    pods: Vec<Timeline>,
    /// How many times slower each engine's time runs than its model's.
    slowness: Vec<f64>,
    block_tokens: u32,
    scratch: Vec<Timed>,
}

/// What happened in an engine.
#[derive(Clone, Copy, Debug)]
pub struct Happened {
    /// When.
    pub at_us: u64,
    /// Where.
    pub pod: usize,
    /// What.
    pub event: Event,
}

/// What an engine's metrics say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    /// Requests waiting.
    pub waiting: u32,
    /// Requests running.
    pub running: u32,
    /// KV usage, 0 to 1.
    pub kv_usage_ratio: f64,
}

impl Pods {
    /// `count` idle engines, which keep what changes in their caches when it is to be told.
    #[must_use]
    pub fn new(count: usize, parameters: &Parameters, tells_changes: bool) -> Self {
        let mut pods: Vec<Timeline> = (0..count).map(|_| Timeline::new(parameters.clone())).collect();
        if tells_changes {
            pods.iter_mut().for_each(Timeline::record_block_changes);
        }
        Self { pods, slowness: vec![1.0; count], block_tokens: parameters.block_tokens, scratch: Vec::new() }
    }

    /// How many engines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// From now on the engine takes `factor` times as long for everything.
    pub fn slow_down(&mut self, pod: usize, factor: f64) {
        self.slowness[pod] = factor;
    }

    /// When an engine does something next by itself.
    #[must_use]
    pub fn next_us(&self) -> Option<u64> {
        self.pods.iter().filter_map(Timeline::next_us).min()
    }

    /// Brings every engine to `to_us`, which is not after [`Pods::next_us`].
    pub fn advance_to(&mut self, to_us: u64, happened: &mut Vec<Happened>) {
        for (pod, timeline) in self.pods.iter_mut().enumerate() {
            if timeline.next_us().is_some_and(|next_us| next_us > to_us) {
                continue;
            }
            timeline.advance_to(to_us, &mut self.scratch);
            timeline.stretch_step(self.slowness[pod]);
            happened.extend(self.scratch.drain(..).map(|Timed { at_us, event }| Happened { at_us, pod, event }));
        }
    }

    /// Puts a request into an engine's queue at `now_us`.
    ///
    /// # Errors
    /// When the engine does not take it.
    pub fn submit(&mut self, now_us: u64, pod: usize, id: u64, row: &Row) -> Result<(), Refusal> {
        let timeline = &mut self.pods[pod];
        let idle = timeline.next_us().is_none();
        if idle {
            // An idle engine's clock stands still.
            timeline.advance_to(now_us, &mut self.scratch);
            self.scratch.clear();
        }
        timeline.submit(Request {
            id,
            prompt_tokens: row.input_tokens,
            output_tokens: row.output_tokens,
            blocks: row.answered_blocks.clone(),
        })
    }

    /// What changed in an engine's cache since this was last called.
    pub fn take_changes(&mut self, pod: usize) -> Vec<BlockChange> {
        self.pods[pod].take_block_changes()
    }

    /// The metrics now.
    #[must_use]
    pub fn gauges(&self, pod: usize) -> Gauges {
        let model = self.pods[pod].model();
        let count = |requests: usize| u32::try_from(requests).unwrap_or(u32::MAX);
        Gauges {
            waiting: count(model.waiting()),
            running: count(model.running()),
            kv_usage_ratio: model.kv_usage_ratio(),
        }
    }

    /// Tokens of a prompt in the cache of an engine now.
    #[must_use]
    pub fn cached_tokens(&self, pod: usize, row: &Row) -> u32 {
        self.pods[pod].model().cached_tokens(full_blocks(row, self.block_tokens))
    }

    /// Seconds until the prompt would have its first token there.
    #[must_use]
    pub fn forecast_s(&self, now_us: u64, pod: usize, row: &Row) -> f64 {
        // An idle engine's clock stands still; a step in progress is known from its beginning on.
        let busy = self.pods[pod].next_us().is_some();
        let late_us = if busy { now_us.saturating_sub(self.pods[pod].now_us()) } else { 0 };
        let blocks = full_blocks(row, self.block_tokens);
        self.pods[pod]
            .forecast_us(row.input_tokens, blocks, FORECAST_STEPS_MAX)
            .map_or(3_600.0, |us| (us - late_us as f64).max(1.0) / 1e6 * self.slowness[pod])
    }

    /// Preemptions and cached and looked-up tokens over all engines.
    #[must_use]
    pub fn totals(&self) -> (u64, u64, u64) {
        self.pods.iter().map(|pod| pod.model().totals()).fold((0, 0, 0), |sum, totals| {
            (sum.0 + totals.preemptions, sum.1 + totals.cache_hit_tokens, sum.2 + totals.cache_query_tokens)
        })
    }
}

/// The blocks of a prompt that an engine could find.
fn full_blocks(row: &Row, block_tokens: u32) -> &[u64] {
    let full = ((row.input_tokens - 1) / block_tokens) as usize;
    &row.blocks[..row.blocks.len().min(full)]
}
