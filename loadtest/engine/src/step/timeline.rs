//! The step model on a clock.

use super::{BlockChange, Event, Model, Parameters, Refusal, Request, RequestId};

/// An event and when it happened, in microseconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Virtual time.
    pub at_us: u64,
    /// What happened.
    pub event: Event,
}

/// A [`Model`] on a clock. The caller moves the clock; steps begin when there is work and end when they are due.
#[derive(Clone, Debug)]
pub struct Timeline {
    model: Model,
    now_us: u64,
    step_end_us: Option<u64>,
    /// Whether the step in progress was stretched.
    stretched: bool,
    scratch: Vec<Event>,
}

impl Timeline {
    /// An idle engine at time 0.
    pub fn new(parameters: Parameters) -> Self {
        Self { model: Model::new(parameters), now_us: 0, step_end_us: None, stretched: false, scratch: Vec::new() }
    }

    /// The engine's state.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Forgets the prefix cache.
    pub fn reset_prefix_cache(&mut self) {
        self.model.reset_prefix_cache();
    }

    /// Keeps changes of the prefix cache from now on.
    pub fn record_block_changes(&mut self) {
        self.model.record_block_changes();
    }

    /// Changes of the prefix cache in the steps that ended since this was last called.
    pub fn take_block_changes(&mut self) -> Vec<BlockChange> {
        self.model.take_block_changes()
    }

    /// Present virtual time.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Puts a request at the end of the queue. Bring the clock to the time of arrival first ([`Self::advance_to`]).
    pub fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        self.model.submit(request)
    }

    /// Takes a request out; the step in progress keeps its length. False when it is not in the engine.
    pub fn abort(&mut self, id: RequestId) -> bool {
        self.model.abort(id)
    }

    /// Microseconds until a prompt submitted now has its first token; `None` when that takes more than `steps_max` steps.
    #[must_use]
    pub fn forecast_us(&self, prompt_tokens: u32, blocks: &[u64], steps_max: u32) -> Option<f64> {
        let step_left_us = self.step_end_us.map_or(0, |end_us| end_us.saturating_sub(self.now_us));
        self.model.forecast_us(step_left_us, prompt_tokens, blocks, steps_max)
    }

    /// When something happens next by itself: the end of the step in progress, or now when work waits for a step to
    /// begin. `None`: idle.
    pub fn next_us(&self) -> Option<u64> {
        self.step_end_us.or_else(|| (self.model.waiting() + self.model.running() > 0).then_some(self.now_us))
    }

    /// Moves the clock to `to_us` (never back), ends and begins the steps due until then, and adds their events.
    pub fn advance_to(&mut self, to_us: u64, events: &mut Vec<Timed>) {
        // Bounded: every step lasts 1 us at least.
        loop {
            if let Some(end_us) = self.step_end_us {
                if end_us > to_us {
                    break;
                }
                self.now_us = end_us;
                self.step_end_us = None;
                self.model.finish_step(&mut self.scratch);
                self.stamp(events);
            }
            let begun = self.model.begin_step(&mut self.scratch);
            self.stamp(events);
            let Some(duration_us) = begun else { break };
            self.stretched = false;
            self.step_end_us = Some(self.now_us.saturating_add(whole_us(duration_us)));
        }
        self.now_us = self.now_us.max(to_us);
    }

    /// Makes the step in progress `factor` times as long, counted once: for engines that are slower than their model.
    pub fn stretch_step(&mut self, factor: f64) {
        if let (Some(end_us), false) = (self.step_end_us, self.stretched) {
            let us = end_us.saturating_sub(self.now_us) as f64 * factor.max(0.0);
            self.step_end_us = Some(self.now_us.saturating_add(whole_us(us)));
            self.stretched = true;
        }
    }

    fn stamp(&mut self, events: &mut Vec<Timed>) {
        let at_us = self.now_us;
        events.extend(self.scratch.drain(..).map(|event| Timed { at_us, event }));
    }
}

/// Rounds a step's duration to the clock; at least 1 us so that time always moves.
fn whole_us(duration_us: f64) -> u64 {
    // `as` saturates and maps NaN to 0.
    (duration_us.round() as u64).max(1)
}
