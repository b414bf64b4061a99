//! Runs in numbers.

use serde::Serialize;

use super::{
    router::Strategy,
    run::{Arrivals, Outcome, Outcomes, Setting, run},
    trace::Trace,
};

/// Requests in flight per engine when capacity is measured.
const SATURATED_PER_POD: u32 = 24;
/// Share of a saturated run, at its beginning and end, that does not count: filling and draining.
const EDGE_RATIO: f64 = 0.2;
/// Runs that the search for a rate may take.
const SQUEEZE_TRIES: usize = 12;

/// One run in numbers. Times in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Requests answered.
    pub requests: u64,
    /// Requests that no engine took.
    pub refused: u64,
    /// Time to first token.
    pub ttft_mean_s: f64,
    /// Half were faster.
    pub ttft_p50_s: f64,
    /// Nine in ten were faster.
    pub ttft_p90_s: f64,
    /// All but one in a hundred were faster.
    pub ttft_p99_s: f64,
    /// Time to the last token.
    pub latency_mean_s: f64,
    /// Share of prompt tokens found in caches.
    pub hit_ratio: f64,
    /// Largest share of requests over the mean share of an engine.
    pub spread_ratio: f64,
    /// Sum of forecast times of the chosen engines over that of the best ones, less 1.
    pub regret_ratio: Option<f64>,
    /// Median of |actual - predicted| / actual after the first 50 requests.
    pub median_error_ratio: Option<f64>,
    /// Share of actual times under the predicted p90 after the first 50 requests.
    pub p90_coverage_ratio: Option<f64>,
    /// Median of |actual - forecast| / actual, of forecasts by full knowledge of everything but later arrivals.
    pub forecast_error_ratio: Option<f64>,
    /// Preemptions.
    pub preemptions: u64,
    /// Virtual seconds.
    pub length_s: f64,
}

impl Summary {
    /// Of a run.
    #[must_use]
    pub fn of(outcomes: &Outcomes, pods: usize) -> Self {
        let mut ttft: Vec<f64> = outcomes.all.iter().map(|outcome| outcome.ttft_us as f64 / 1e6).collect();
        ttft.sort_unstable_by(f64::total_cmp);
        let count = ttft.len().max(1) as f64;
        let mut per_pod = vec![0_u64; pods];
        outcomes.all.iter().for_each(|outcome| per_pod[outcome.pod as usize] += 1);
        let most = per_pod.iter().copied().max().unwrap_or(0) as f64;
        Self {
            requests: ttft.len() as u64,
            refused: outcomes.refused,
            ttft_mean_s: ttft.iter().sum::<f64>() / count,
            ttft_p50_s: quantile(&ttft, 0.5),
            ttft_p90_s: quantile(&ttft, 0.9),
            ttft_p99_s: quantile(&ttft, 0.99),
            latency_mean_s: outcomes.all.iter().map(|outcome| outcome.latency_us as f64 / 1e6).sum::<f64>() / count,
            hit_ratio: outcomes.cached_tokens as f64 / outcomes.looked_up_tokens.max(1) as f64,
            spread_ratio: most * pods as f64 / count,
            regret_ratio: regret(&outcomes.all),
            median_error_ratio: errors(&outcomes.all, 50).map(|errors| quantile(&errors, 0.5)),
            p90_coverage_ratio: coverage(&outcomes.all, 50),
            forecast_error_ratio: forecast_error(&outcomes.all),
            preemptions: outcomes.preemptions,
            length_s: outcomes.length_us as f64 / 1e6,
        }
    }
}

fn regret(all: &[Outcome]) -> Option<f64> {
    let (chosen, best) =
        all.iter().filter_map(|outcome| outcome.regret).fold((0.0, 0.0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
    (best > 0.0).then(|| chosen / best - 1.0)
}

/// Relative errors in order of size, of all but the first `skipped` predictions.
#[must_use]
pub fn errors(all: &[Outcome], skipped: usize) -> Option<Vec<f64>> {
    let error = |outcome: &Outcome| {
        outcome.predicted_us.map(|(predicted_us, _)| {
            (outcome.ttft_us as f64 - predicted_us as f64).abs() / outcome.ttft_us.max(1) as f64
        })
    };
    let mut errors: Vec<f64> = all.iter().filter_map(error).skip(skipped).collect();
    errors.sort_unstable_by(f64::total_cmp);
    (!errors.is_empty()).then_some(errors)
}

fn forecast_error(all: &[Outcome]) -> Option<f64> {
    let error = |outcome: &Outcome| {
        let actual_s = outcome.ttft_us as f64 / 1e6;
        outcome.regret.map(|(forecast_s, _)| (actual_s - forecast_s).abs() / actual_s.max(1e-6))
    };
    let mut errors: Vec<f64> = all.iter().filter_map(error).collect();
    errors.sort_unstable_by(f64::total_cmp);
    (!errors.is_empty()).then(|| quantile(&errors, 0.5))
}

fn coverage(all: &[Outcome], skipped: usize) -> Option<f64> {
    let under: Vec<bool> = all
        .iter()
        .filter_map(|outcome| outcome.predicted_us.map(|(_, p90_us)| outcome.ttft_us <= p90_us))
        .skip(skipped)
        .collect();
    (!under.is_empty()).then(|| under.iter().filter(|under| **under).count() as f64 / under.len() as f64)
}

/// The value below which this share of the sorted values lies.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// Requests a second that the fleet answers of this trace when it is never idle, under the oracle's choice.
#[must_use]
pub fn capacity_per_s(trace: &Trace, setting: &Setting) -> f64 {
    let in_flight = SATURATED_PER_POD * u32::try_from(setting.pods).unwrap_or(u32::MAX);
    let saturated = Setting {
        strategy: Strategy::Oracle,
        balancers: 1,
        arrivals: Arrivals::Saturated(in_flight),
        regret_every: 0,
        slowdown: None,
        ..setting.clone()
    };
    rate_of(&run(trace, &saturated))
}

/// By how much arrivals must be squeezed so that the fleet answers `rate` requests a second of the trace, under the oracle.
/// Sessions wait for answers, so that their rate is found by trying.
#[must_use]
pub fn squeeze_for(trace: &Trace, setting: &Setting, rate: f64) -> f64 {
    let mut factor = rate / trace.nominal_rate();
    if trace.rows.iter().all(|row| row.after.is_none()) {
        return factor;
    }
    for _ in 0..SQUEEZE_TRIES {
        let tried = Setting {
            strategy: Strategy::Oracle,
            balancers: 1,
            arrivals: Arrivals::Squeezed(factor),
            regret_every: 0,
            slowdown: None,
            ..setting.clone()
        };
        let seen = rate_of(&run(trace, &tried));
        if (seen / rate - 1.0).abs() < 0.02 {
            break;
        }
        factor *= (rate / seen).clamp(0.3, 3.0);
    }
    factor
}

/// Requests that ended a second, without the edges of the run.
fn rate_of(outcomes: &Outcomes) -> f64 {
    let mut ended: Vec<u64> = outcomes.all.iter().map(|outcome| outcome.sent_us + outcome.latency_us).collect();
    ended.sort_unstable();
    let edge = (ended.len() as f64 * EDGE_RATIO) as usize;
    let (Some(first_us), Some(last_us)) = (ended.get(edge), ended.get(ended.len().saturating_sub(edge + 1))) else {
        return 0.0;
    };
    (ended.len() - 2 * edge) as f64 / ((last_us - first_us) as f64 / 1e6).max(1e-6)
}
