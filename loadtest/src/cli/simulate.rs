//! `loadtest simulate` and `loadtest bars`.

use std::{
    io::{self, Write},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, ValueEnum};

use super::StepArgs;
use crate::simulate::{
    bars::{Bar, bars},
    cells::{Cell, Grid},
    page::page,
    router::Strategy,
    run::{Exchange, Knowledge},
    trace::{ROWS_MAX, Trace},
};

#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    #[command(flatten)]
    traces: TraceArgs,
    /// Engines.
    #[arg(long, default_value = "8", value_delimiter = ',')]
    pods: Vec<NonZeroUsize>,
    /// Arrivals as a share of what the fleet can answer when it is never idle.
    #[arg(long, default_value = "0.85", value_delimiter = ',', value_parser = load)]
    load: Vec<f64>,
    /// Ways to choose; all when not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    strategy: Vec<Strategy>,
    /// Balancers beside each other; each request goes through one of them by chance.
    #[arg(long, default_value_t = 1)]
    balancers: usize,
    /// What balancers tell each other.
    #[arg(long, value_enum, default_value_t = Exchange::Sums)]
    exchange: Exchange,
    /// What Kinference knows of prompts and caches.
    #[arg(long, value_enum, default_value_t = Knowledge::Bytes)]
    knowledge: Knowledge,
    /// Write all runs as JSON to this file; - is standard output, in place of the table.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write a page with plots to this file.
    #[arg(long)]
    html: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct BarsArgs {
    #[command(flatten)]
    traces: TraceArgs,
    /// Write the bars as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct TraceArgs {
    /// Trace files: JSON lines with timestamp, input_length, output_length and hash_ids, or Azure's CSV.
    #[arg(required = true)]
    trace: Vec<PathBuf>,
    /// Rows of each trace at most.
    #[arg(long, default_value_t = ROWS_MAX)]
    rows: usize,
    /// Keep bursts: rows that share a time are otherwise spread until the next one, as published times are rounded.
    #[arg(long)]
    bursts: bool,
    /// Measure regret at one in so many decisions.
    #[arg(long, default_value_t = 5)]
    regret_every: usize,
    /// Seed of chances.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    model_step: StepArgs,
}

impl TraceArgs {
    fn read(&self) -> Result<Vec<Trace>, String> {
        let read = |path: &PathBuf| {
            let mut trace = Trace::read(path, self.rows)?;
            if !self.bursts {
                trace.spread_bursts();
            }
            Ok(trace)
        };
        self.trace.iter().map(read).collect()
    }

    fn grid(&self) -> Grid {
        Grid {
            engine: self.model_step.parameters(),
            balancers: 1,
            exchange: Exchange::Sums,
            knowledge: Knowledge::Bytes,
            regret_every: self.regret_every,
            seed: self.seed,
        }
    }
}

fn load(text: &str) -> Result<f64, String> {
    let load: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if load > 0.0 && load <= 4.0 { Ok(load) } else { Err("a load is above 0 and at most 4".to_owned()) }
}

pub(super) fn simulate(args: &SimulateArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let strategies = if args.strategy.is_empty() { Strategy::value_variants() } else { &args.strategy };
    let (balancers, exchange, knowledge) = (args.balancers, args.exchange, args.knowledge);
    let grid = Grid { balancers, exchange, knowledge, ..args.traces.grid() };
    let json_only = args.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let traces = args.traces.read()?;
    let mut out = io::stdout();
    if !json_only {
        writeln!(out, "{}", head())?;
    }
    let mut cells = Vec::new();
    for trace in traces {
        for pods in &args.pods {
            grid.run(&trace, pods.get(), &args.load, strategies, |cell| {
                if !json_only {
                    writeln!(out, "{}", row(&cell))?;
                }
                cells.push(cell);
                Ok::<_, io::Error>(())
            })?;
        }
    }
    match &args.json {
        Some(_) if json_only => writeln!(out, "{}", serde_json::to_string_pretty(&cells)?)?,
        Some(path) => write_file(path, &serde_json::to_string_pretty(&cells)?)?,
        None => {}
    }
    if let Some(path) = &args.html {
        write_file(path, &page(&cells))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn head() -> String {
    format!(
        "{:<34} {:>4} {:>5} {:<17} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6} {:>7} {:>6} {:>6}",
        "trace",
        "pods",
        "load",
        "strategy",
        "mean s",
        "p50 s",
        "p90 s",
        "p99 s",
        "hit",
        "spread",
        "regret",
        "error",
        "<=p90"
    )
}

fn row(cell: &Cell) -> String {
    let s = &cell.summary;
    let ratio = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    let name = cell.strategy.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    format!(
        "{:<34.34} {:>4} {:>5.2} {name:<17} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>6.3} {:>6.2} {:>7} {:>6} {:>6}",
        cell.trace,
        cell.pods,
        cell.load,
        s.ttft_mean_s,
        s.ttft_p50_s,
        s.ttft_p90_s,
        s.ttft_p99_s,
        s.hit_ratio,
        s.spread_ratio,
        ratio(s.regret_ratio),
        ratio(s.median_error_ratio),
        ratio(s.p90_coverage_ratio)
    )
}

/// Exit status 1 when a bar is missed.
pub(super) fn judge(args: &BarsArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let traces = args.traces.read()?;
    let mut out = io::stdout();
    writeln!(out, "| measure | on | bar | seen | |\n|---|---|---|---|---|")?;
    let mut all: Vec<Bar> = Vec::new();
    bars(&args.traces.grid(), &traces, |bar| {
        let bound = match bar.bar {
            (low, high) if low.is_finite() => format!("{low} to {high}"),
            (_, high) => format!("<= {high}"),
        };
        let verdict = if bar.met() { "met" } else { "MISSED" };
        writeln!(out, "| {} | {} | {bound} | {:.3} | {verdict} |", bar.measure, bar.on, bar.seen)?;
        all.push(bar);
        Ok::<_, io::Error>(())
    })?;
    if let Some(path) = &args.json {
        write_file(path, &serde_json::to_string_pretty(&all)?)?;
    }
    Ok(if all.iter().all(Bar::met) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write_file(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
