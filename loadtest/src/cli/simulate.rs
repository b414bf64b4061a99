//! `loadtest simulate`.

use std::{
    io::{self, Write},
    num::NonZeroUsize,
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;
use engine::step::Parameters;

use super::StepArgs;
use crate::simulate::{
    router::Strategy,
    run::{Arrivals, Exchange, Knowledge, Setting, run},
    summary::{Summary, capacity_per_s, squeeze_for},
    trace::{ROWS_MAX, Trace},
};

#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    /// Trace files: JSON lines with timestamp, input_length, output_length and hash_ids, or Azure's CSV.
    #[arg(required = true)]
    trace: Vec<PathBuf>,
    /// Rows of each trace at most.
    #[arg(long, default_value_t = ROWS_MAX)]
    rows: usize,
    /// Engines.
    #[arg(long, default_value = "8", value_delimiter = ',')]
    pods: Vec<NonZeroUsize>,
    /// Arrivals as a share of what the fleet can answer when it is never idle.
    #[arg(long, default_value = "0.85", value_delimiter = ',', value_parser = load)]
    load: Vec<f64>,
    /// Ways to choose; all when not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    strategy: Vec<Strategy>,
    /// Balancers beside each other.
    #[arg(long, default_value_t = 1)]
    balancers: usize,
    /// What balancers tell each other.
    #[arg(long, value_enum, default_value_t = Exchange::Sums)]
    exchange: Exchange,
    /// What Kinference knows of prompts and caches.
    #[arg(long, value_enum, default_value_t = Knowledge::Bytes)]
    knowledge: Knowledge,
    /// Measure regret at one in so many decisions.
    #[arg(long, default_value_t = 7)]
    regret_every: usize,
    /// Keep bursts: rows that share a time are otherwise spread until the next one, as published times are rounded.
    #[arg(long)]
    bursts: bool,
    /// Seed of chances.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    model_step: StepArgs,
}

fn load(text: &str) -> Result<f64, String> {
    let load: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if load > 0.0 && load <= 4.0 { Ok(load) } else { Err("a load is above 0 and at most 4".to_owned()) }
}

pub(super) fn simulate(args: &SimulateArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    use clap::ValueEnum;
    let strategies = if args.strategy.is_empty() { Strategy::value_variants() } else { &args.strategy };
    let mut out = io::stdout();
    writeln!(out, "{:<36} {:>4} {:>5} {:<18} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6} {:>7} {:>6} {:>6} {:>6}",
        "trace", "pods", "load", "strategy", "mean s", "p50 s", "p90 s", "p99 s", "hit", "spread", "regret", "error", "p90cov", "fcerr")?;
    for path in &args.trace {
        let mut trace = Trace::read(path, args.rows)?;
        if !args.bursts {
            trace.spread_bursts();
        }
        for pods in &args.pods {
            let modelled = args.model_step.parameters();
            let tokens = u64::from(modelled.blocks_max) * u64::from(modelled.block_tokens);
            let engine = Parameters { block_tokens: trace.block_tokens, blocks_max: (tokens / u64::from(trace.block_tokens)) as u32, ..modelled };
            let base = Setting {
                pods: pods.get(), engine, strategy: Strategy::Kinference, balancers: args.balancers, exchange: args.exchange, knowledge: args.knowledge,
                arrivals: Arrivals::Squeezed(1.0), prior: Default::default(), regret_every: args.regret_every, slowdown: None, seed: args.seed,
            };
            let capacity = capacity_per_s(&trace, &base);
            eprintln!("capacity {capacity:.2}/s nominal {:.2} factors {:?}", trace.nominal_rate(), args.load.iter().map(|load| squeeze_for(&trace, &base, capacity * load)).collect::<Vec<_>>());
            for load in &args.load {
                let factor = squeeze_for(&trace, &base, capacity * load);
                for strategy in strategies {
                    let setting = Setting { strategy: *strategy, arrivals: Arrivals::Squeezed(factor), ..base.clone() };
                    let outcomes = run(&trace, &setting);
                    let s = Summary::of(&outcomes, pods.get());
                    let ratio = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
                    writeln!(out, "{:<36} {:>4} {:>5.2} {:<18} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>6.3} {:>6.2} {:>7} {:>6} {:>6} {:>6}",
                        trace.name, pods, load, format!("{strategy:?}"), s.ttft_mean_s, s.ttft_p50_s, s.ttft_p90_s, s.ttft_p99_s, s.hit_ratio, s.spread_ratio,
                        ratio(s.regret_ratio), ratio(s.median_error_ratio), ratio(s.p90_coverage_ratio), ratio(s.forecast_error_ratio))?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
