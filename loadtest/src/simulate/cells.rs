//! A grid of runs: traces, fleet sizes, loads and ways to choose.

use engine::step::Parameters;
use predictor::ttft::Prior;
use serde::Serialize;

use super::{
    router::Strategy,
    run::{Arrivals, Exchange, Knowledge, Outcomes, Setting, run},
    summary::{Summary, capacity_per_s, squeeze_for},
    trace::Trace,
};

/// What all runs of a grid have in common.
#[derive(Clone, Debug)]
pub struct Grid {
    /// The engines, but for their block size, which is the trace's.
    pub engine: Parameters,
    /// Balancers beside each other.
    pub balancers: usize,
    /// What they tell each other.
    pub exchange: Exchange,
    /// What they know.
    pub knowledge: Knowledge,
    /// Regret is measured at one in so many decisions.
    pub regret_every: usize,
    /// Of chances.
    pub seed: u64,
}

/// One run and where it stands in the grid.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Name of the trace.
    pub trace: String,
    /// Engines.
    pub pods: usize,
    /// Share of the capacity.
    pub load: f64,
    /// Requests a second that the fleet answers when it is never idle.
    pub capacity_per_s: f64,
    /// What the times of the trace were divided by.
    pub squeeze: f64,
    /// Who chose.
    pub strategy: Strategy,
    /// What came of it.
    pub summary: Summary,
    /// Every request.
    #[serde(skip)]
    pub outcomes: Outcomes,
}

impl Grid {
    /// A run of `strategy` with `pods` engines for a trace, as published.
    #[must_use]
    pub fn setting(&self, trace: &Trace, pods: usize, strategy: Strategy) -> Setting {
        let tokens = u64::from(self.engine.blocks_max) * u64::from(self.engine.block_tokens);
        let blocks_max = u32::try_from(tokens / u64::from(trace.block_tokens)).unwrap_or(u32::MAX);
        Setting {
            pods,
            engine: Parameters { block_tokens: trace.block_tokens, blocks_max, ..self.engine.clone() },
            strategy,
            balancers: self.balancers,
            exchange: self.exchange,
            knowledge: self.knowledge,
            arrivals: Arrivals::Squeezed(1.0),
            prior: Prior::default(),
            regret_every: self.regret_every,
            slowdown: None,
            seed: self.seed,
        }
    }

    /// Runs a trace at these loads under these strategies, and tells each cell as it ends.
    ///
    /// # Errors
    /// What `told` gives.
    pub fn run<E>(
        &self,
        trace: &Trace,
        pods: usize,
        loads: &[f64],
        strategies: &[Strategy],
        mut told: impl FnMut(Cell) -> Result<(), E>,
    ) -> Result<(), E> {
        let base = self.setting(trace, pods, Strategy::Oracle);
        let capacity_per_s = capacity_per_s(trace, &base);
        for load in loads {
            let squeeze = squeeze_for(trace, &base, capacity_per_s * load);
            for strategy in strategies {
                let setting = Setting { strategy: *strategy, arrivals: Arrivals::Squeezed(squeeze), ..base.clone() };
                let outcomes = run(trace, &setting);
                let summary = Summary::of(&outcomes, pods);
                let (trace, load, strategy) = (trace.name.clone(), *load, *strategy);
                told(Cell { trace, pods, load, capacity_per_s, squeeze, strategy, summary, outcomes })?;
            }
        }
        Ok(())
    }
}
