//! `kinfctl usage`: requests, tokens, costs and times to first token of an access log, and how much of it overflowed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::print_out;
use super::set::each_line;

/// Most groups that are told apart; what comes after is added up as `other`.
const GROUPS_MAX: usize = 10_000;

/// Add up requests, tokens and costs of an access log, with times to first token and the share that hosted providers answered.
#[derive(Debug, Args)]
pub(super) struct Usage {
    /// The access log; - is stdin
    #[arg(required_unless_present = "named", conflicts_with = "named")]
    log: Option<PathBuf>,
    /// The same, by name
    #[arg(long = "log", value_name = "FILE")]
    named: Option<PathBuf>,
    /// What is told apart; may be given several times
    #[arg(long, value_enum, default_values_t = [By::Tenant, By::Model])]
    by: Vec<By>,
    /// How it is shown
    #[arg(short = 'o', long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// Who called
    Tenant,
    /// The name asked for
    Model,
    /// The worker set or provider that answered
    Destination,
    /// The rule that decided
    Rule,
    /// How it ended
    Outcome,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// A table
    Human,
    /// One JSON object a line
    Json,
}

impl By {
    /// The field of a line, and the heading.
    fn field(self) -> &'static str {
        match self {
            By::Tenant => "tenant",
            By::Model => "model",
            By::Destination => "destination",
            By::Rule => "rule",
            By::Outcome => "outcome",
        }
    }
}

/// What is told of each group.
const COLUMNS: [&str; 8] = ["REQUESTS", "PROMPT", "CACHED", "COMPLETION", "COST", "TTFT P50", "TTFT P95", "OVERFLOWED"];

/// Sums of one group.
#[derive(Debug, Clone, Default)]
struct Sums {
    requests: u64,
    /// Of those, answered by a destination.
    answered: u64,
    /// Of those, by a hosted provider.
    overflowed: u64,
    ttft: Times,
    prompt_tokens: u64,
    cached_tokens: u64,
    completion_tokens: u64,
    cost: f64,
}

impl Sums {
    fn add(&mut self, line: &Value) {
        let count = |field: &str| line.get(field).and_then(Value::as_u64).unwrap_or_default();
        self.requests += 1;
        if let Some(backend) = line.get("backend").and_then(Value::as_str) {
            self.answered += 1;
            self.overflowed += u64::from(backend == "External");
        }
        if let Some(ms) = line.get("ttft_ms").and_then(Value::as_f64) {
            self.ttft.add(ms);
        }
        self.prompt_tokens += count("prompt_tokens");
        self.cached_tokens += count("cached_tokens");
        self.completion_tokens += count("completion_tokens");
        self.cost += line.get("cost").and_then(Value::as_f64).unwrap_or_default();
    }

    /// Share of the answered ones that hosted providers answered.
    fn overflowed_ratio(&self) -> Option<f64> {
        (self.answered > 0).then(|| self.overflowed as f64 / self.answered as f64)
    }
}

/// Times by their size, in steps of 2 %: a quantile is right to 1 %, and a log of any length takes a few hundred numbers.
#[derive(Debug, Clone, Default)]
struct Times {
    /// Times by the power of [`Times::STEP`] below which they are, in microseconds.
    counts: BTreeMap<u16, u64>,
    total: u64,
}

impl Times {
    const STEP: f64 = 1.02;

    fn add(&mut self, ms: f64) {
        let power = (ms.max(0.0) * 1e3).max(1.0).log(Self::STEP).ceil();
        *self.counts.entry(power as u16).or_default() += 1;
        self.total += 1;
    }

    /// In milliseconds; `None` of no times.
    fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        let wanted = (self.total as f64 * quantile).ceil().max(1.0) as u64;
        let mut seen = 0;
        let power = self.counts.iter().find_map(|(power, count)| {
            seen += count;
            (seen >= wanted).then_some(*power)
        })?;
        // The middle of the step.
        Some(Self::STEP.powf(f64::from(power) - 0.5) / 1e3)
    }
}

impl Usage {
    /// Adds up and shows.
    pub(super) fn run(&self) -> ExitCode {
        let mut groups: BTreeMap<Vec<String>, Sums> = BTreeMap::new();
        // The command line has one of the two.
        let log = self.named.as_ref().or(self.log.as_ref()).map_or(Path::new("-"), PathBuf::as_path);
        let read = each_line(log, &mut |_, line| {
            // What is no line of the log (another program's output) says nothing of usage.
            if let Ok(line) = serde_json::from_slice::<Value>(line)
                && line.get("request_id").is_some()
            {
                let word = |by: &By| line.get(by.field()).and_then(Value::as_str).unwrap_or("-").to_owned();
                let mut group: Vec<String> = self.by.iter().map(word).collect();
                if groups.len() >= GROUPS_MAX && !groups.contains_key(&group) {
                    group = vec!["other".to_owned(); self.by.len()];
                }
                groups.entry(group).or_default().add(&line);
            }
            Ok(())
        });
        match read {
            Err(code) => code,
            Ok(()) => print_out(&match self.format {
                Format::Human => self.table(&groups),
                Format::Json => groups.iter().map(|(group, sums)| format!("{}\n", self.object(group, sums))).collect(),
            }),
        }
    }

    fn object(&self, group: &[String], sums: &Sums) -> Value {
        let mut object = json!({
            "requests": sums.requests,
            "promptTokens": sums.prompt_tokens,
            "cachedTokens": sums.cached_tokens,
            "completionTokens": sums.completion_tokens,
            "cost": sums.cost,
            "ttftMsP50": sums.ttft.quantile_ms(0.5),
            "ttftMsP95": sums.ttft.quantile_ms(0.95),
            "overflowedRatio": sums.overflowed_ratio(),
        });
        for (by, word) in self.by.iter().zip(group) {
            object[by.field()] = word.as_str().into();
        }
        object
    }

    fn table(&self, groups: &BTreeMap<Vec<String>, Sums>) -> String {
        let heading = self.by.iter().map(|by| by.field().to_uppercase());
        let sums = COLUMNS.map(str::to_owned);
        let mut rows: Vec<Vec<String>> = vec![heading.chain(sums).collect()];
        for (group, sums) in groups {
            let counts = [sums.requests, sums.prompt_tokens, sums.cached_tokens, sums.completion_tokens];
            let cost = if sums.cost > 0.0 { format!("{:.4}", sums.cost) } else { "-".to_owned() };
            let ms = |quantile| sums.ttft.quantile_ms(quantile).map_or("-".to_owned(), |ms| format!("{ms:.0} ms"));
            let overflowed = sums.overflowed_ratio().map_or("-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0));
            let last = [cost, ms(0.5), ms(0.95), overflowed];
            rows.push(group.iter().cloned().chain(counts.map(|n| n.to_string())).chain(last).collect());
        }
        let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
        let widths: Vec<usize> = (0..self.by.len() + COLUMNS.len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut out = String::new();
        for row in &rows {
            let cells =
                row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column < self.by.len() {
                    true => format!("{cell:width$}"),
                    false => format!("{cell:>width$}"),
                });
            out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_hundredth_whatever_the_size() {
        for scale in [0.05, 1.0, 730.0, 60_000.0] {
            let mut times = Times::default();
            for n in 1..=1_000 {
                times.add(f64::from(n) / 500.0 * scale);
            }
            for (quantile, expected) in [(0.5, scale), (0.95, 1.9 * scale)] {
                let found = times.quantile_ms(quantile).unwrap();
                assert!((found / expected - 1.0).abs() < 0.02, "{found} for {expected}");
            }
        }
        assert_eq!(Times::default().quantile_ms(0.5), None);
    }

    #[test]
    fn what_overflowed_is_a_share_of_what_was_answered() {
        let mut sums = Sums::default();
        for line in
            [json!({ "backend": "Local" }), json!({ "backend": "External", "cost": 0.5 }), json!({ "status": 429 })]
        {
            sums.add(&line);
        }
        assert_eq!((sums.requests, sums.overflowed_ratio(), sums.cost), (3, Some(0.5), 0.5));
    }
}
