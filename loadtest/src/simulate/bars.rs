//! The bars that Kinference is held to, each measured and judged.

use std::time::Instant;

use predictor::ttft::Prior;
use serde::Serialize;

use super::{
    cells::{Cell, Grid},
    router::Strategy,
    run::{Arrivals, Exchange, Knowledge, Outcome, Setting, Slowdown, run},
    summary::{Summary, capacity_per_s, quantile, squeeze_for},
    trace::Trace,
};

/// One bar.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// What is measured.
    pub measure: String,
    /// Where.
    pub on: String,
    /// What it must not go above, or between which two it must lie.
    pub bar: (f64, f64),
    /// What it was.
    pub seen: f64,
}

impl Bar {
    fn at_most(measure: &str, on: &str, bar: f64, seen: f64) -> Self {
        Self { measure: measure.to_owned(), on: on.to_owned(), bar: (f64::NEG_INFINITY, bar), seen }
    }

    /// Whether it is met.
    #[must_use]
    pub fn met(&self) -> bool {
        self.seen >= self.bar.0 && self.seen <= self.bar.1
    }
}

const LOADS: [f64; 3] = [0.6, 0.85, 1.0];
const MANY: usize = 16;

/// Measures every bar on these traces, telling each as it is known.
///
/// # Errors
/// What `told` gives.
pub fn bars<E>(grid: &Grid, traces: &[Trace], mut told: impl FnMut(Bar) -> Result<(), E>) -> Result<(), E> {
    let mut over_dynamo = Vec::new();
    for trace in traces {
        for bar in against_others(grid, trace, &mut over_dynamo) {
            told(bar)?;
        }
    }
    let mean = over_dynamo.iter().sum::<f64>() / over_dynamo.len().max(1) as f64;
    told(Bar::at_most("mean TTFT over Dynamo's, average of all cells", "all traces", 0.92, mean))?;
    for trace in traces {
        for (balancers, regret, error) in [(1, 0.10, 0.11), (MANY, 0.15, 0.16)] {
            let s = one(grid, trace, balancers);
            let on = format!("{}, {balancers} balancer{}, 85 %", trace.name, if balancers == 1 { "" } else { "s" });
            told(Bar::at_most("regret per decision", &on, regret, s.regret_ratio.unwrap_or(f64::NAN)))?;
            told(Bar::at_most("median error after 50 requests", &on, error, s.median_error_ratio.unwrap_or(f64::NAN)))?;
            if balancers == 1 {
                let seen = s.p90_coverage_ratio.unwrap_or(f64::NAN);
                told(Bar { measure: "share under the predicted p90".to_owned(), on, bar: (0.87, 0.93), seen })?;
            }
        }
        told(Bar::at_most(
            "prior 5x off: median error of requests 20 to 50",
            &trace.name,
            0.12,
            wrong_prior(grid, trace),
        ))?;
        told(Bar::at_most(
            "an engine turns 2x slower: median error of its answers after 50",
            &trace.name,
            0.15,
            slower(grid, trace),
        ))?;
    }
    told(Bar::at_most(
        "us a candidate, with overlap",
        "32 endpoints, prompt of 8,192 tokens",
        1.0,
        us_per_candidate(grid),
    ))
}

fn cells(grid: &Grid, trace: &Trace, pods: usize, loads: &[f64], strategies: &[Strategy]) -> Vec<Cell> {
    let mut cells = Vec::new();
    let kept = grid.run(trace, pods, loads, strategies, |cell| {
        cells.push(cell);
        Ok::<_, std::convert::Infallible>(())
    });
    match kept {
        Ok(()) => cells,
    }
}

fn against_others(grid: &Grid, trace: &Trace, over_dynamo: &mut Vec<f64>) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (pods, loads) in [(8, &LOADS[..]), (32, &LOADS[1..2])] {
        let all = cells(grid, trace, pods, loads, &[Strategy::Kinference, Strategy::Dynamo, Strategy::Oracle]);
        for cell in all.chunks_exact(3) {
            let [ours, dynamo, oracle] = [0, 1, 2].map(|at| cell[at].summary.ttft_mean_s);
            let on = format!("{}, {pods} engines, {:.0} %", trace.name, cell[0].load * 100.0);
            if pods == 8 {
                bars.push(Bar::at_most("mean TTFT over a greedy oracle's", &on, 1.15, ours / oracle));
            }
            over_dynamo.push(ours / dynamo);
            bars.push(Bar::at_most("mean TTFT over Dynamo's", &on, 1.0, ours / dynamo));
        }
    }
    bars
}

fn at_85(grid: &Grid, trace: &Trace, strategy: Strategy) -> Setting {
    let oracle = grid.setting(trace, 8, Strategy::Oracle);
    let squeeze = squeeze_for(trace, &oracle, 0.85 * capacity_per_s(trace, &oracle));
    Setting { arrivals: Arrivals::Squeezed(squeeze), ..grid.setting(trace, 8, strategy) }
}

/// One balancer by its own record; many hear engines and each other, as many are meant to run.
fn one(grid: &Grid, trace: &Trace, balancers: usize) -> Summary {
    let knowledge = if balancers == 1 { grid.knowledge } else { Knowledge::Events };
    let base = at_85(grid, trace, Strategy::Kinference);
    let setting = Setting { balancers, exchange: Exchange::Sums, knowledge, ..base };
    Summary::of(&run(trace, &setting), setting.pods)
}

fn error_of(outcome: &Outcome) -> Option<f64> {
    let actual_us = outcome.ttft_us.max(1) as f64;
    outcome.predicted_us.map(|(predicted_us, _)| (predicted_us as f64 - actual_us).abs() / actual_us)
}

fn median(mut errors: Vec<f64>) -> f64 {
    errors.sort_unstable_by(f64::total_cmp);
    if errors.is_empty() { f64::NAN } else { quantile(&errors, 0.5) }
}

/// The worse of a prior five times too high and one five times too low.
fn wrong_prior(grid: &Grid, trace: &Trace) -> f64 {
    let base = at_85(grid, trace, Strategy::Kinference);
    let cost = &base.engine.cost;
    let right = Prior { seconds_per_token: cost.prefill_token_us / 1e6, base_s: cost.base_us / 1e6 };
    let errors = [5.0, 0.2].map(|factor| {
        let prior = Prior { seconds_per_token: right.seconds_per_token * factor, base_s: right.base_s * factor };
        // By the time of the first token: what is learned from.
        let mut seen = run(trace, &Setting { prior, ..base.clone() }).all;
        seen.sort_unstable_by_key(|outcome| outcome.sent_us + outcome.ttft_us);
        median(seen.iter().take(50).skip(20).filter_map(error_of).collect())
    });
    errors[0].max(errors[1])
}

fn slower(grid: &Grid, trace: &Trace) -> f64 {
    let base = at_85(grid, trace, Strategy::Kinference);
    let slow = Slowdown { after_requests: trace.rows.len() / 3, pod: 2, factor: 2.0 };
    let outcomes = run(trace, &Setting { slowdown: Some(slow), ..base });
    let mut by_time = outcomes.all;
    by_time.sort_unstable_by_key(|outcome| outcome.sent_us);
    let since_us = by_time.get(slow.after_requests).map_or(u64::MAX, |outcome| outcome.sent_us);
    let its = by_time.iter().filter(|outcome| outcome.pod as usize == slow.pod && outcome.sent_us > since_us);
    median(its.skip(50).filter_map(error_of).collect())
}

/// Wall time of looking one prompt up and predicting it for every candidate, over the number of candidates.
fn us_per_candidate(grid: &Grid) -> f64 {
    const PODS: usize = 32;
    const ROUNDS: usize = 2_000;
    let mut bench = super::ours::Bench::new(PODS, &grid.engine);
    for _ in 0..ROUNDS {
        bench.decide();
    }
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        bench.look();
    }
    begun.elapsed().as_secs_f64() * 1e6 / (ROUNDS * PODS) as f64
}
