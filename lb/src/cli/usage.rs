//! `kinfctl usage`: requests, tokens and costs of an access log, added up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::print_out;
use super::set::each_line;

/// Most groups that are told apart; what comes after is added up as `other`.
const GROUPS_MAX: usize = 10_000;

/// Add up requests, tokens and costs of an access log.
#[derive(Debug, Args)]
pub(super) struct Usage {
    /// The access log; - is stdin
    log: PathBuf,
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

/// Sums of one group.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    requests: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    completion_tokens: u64,
    cost: f64,
}

impl Sums {
    fn add(&mut self, line: &Value) {
        let count = |field: &str| line.get(field).and_then(Value::as_u64).unwrap_or_default();
        self.requests += 1;
        self.prompt_tokens += count("prompt_tokens");
        self.cached_tokens += count("cached_tokens");
        self.completion_tokens += count("completion_tokens");
        self.cost += line.get("cost").and_then(Value::as_f64).unwrap_or_default();
    }
}

impl Usage {
    /// Adds up and shows.
    pub(super) fn run(&self) -> ExitCode {
        let mut groups: BTreeMap<Vec<String>, Sums> = BTreeMap::new();
        let read = each_line(&self.log, &mut |_, line| {
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
        });
        for (by, word) in self.by.iter().zip(group) {
            object[by.field()] = word.as_str().into();
        }
        object
    }

    fn table(&self, groups: &BTreeMap<Vec<String>, Sums>) -> String {
        let heading = self.by.iter().map(|by| by.field().to_uppercase());
        let sums = ["REQUESTS", "PROMPT", "CACHED", "COMPLETION", "COST"].map(str::to_owned);
        let mut rows: Vec<Vec<String>> = vec![heading.chain(sums).collect()];
        for (group, sums) in groups {
            let counts = [sums.requests, sums.prompt_tokens, sums.cached_tokens, sums.completion_tokens];
            let cost = if sums.cost > 0.0 { format!("{:.4}", sums.cost) } else { "-".to_owned() };
            rows.push(group.iter().cloned().chain(counts.map(|n| n.to_string())).chain([cost]).collect());
        }
        let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
        let widths: Vec<usize> = (0..self.by.len() + 5).map(|column| width(column).unwrap_or(0)).collect();
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
