//! `kinfctl get`: asks a running gateway's admin server, and shows the answer as a table or as it came.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::{print_out, usage};
use crate::control::{FetchError, fetch};

/// Longest wait for the answer.
const WITHIN: Duration = Duration::from_secs(5);

/// Show a part of a running gateway.
#[derive(Debug, Args)]
pub(super) struct Get {
    /// What to show
    what: What,
    /// The gateway's admin server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    admin: String,
    /// How to show it
    #[arg(short = 'o', long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// Every endpoint with its state, its load and what is believed of it
    Endpoints,
    /// What is in force, and what was refused
    Config,
    /// The last decisions with their reasons, the latest first
    Decisions,
}

/// How an answer is shown.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Format {
    /// A table
    Human,
    /// JSON as the admin server sends it
    Json,
}

impl Get {
    /// Asks and shows.
    pub(super) fn run(&self) -> ExitCode {
        let path = match self.what {
            What::Endpoints => "/endpoints",
            What::Config => "/config",
            What::Decisions => "/decisions",
        };
        match (self.format, self.what, ask(&self.admin, path)) {
            (_, _, Err(exit)) => exit,
            (Format::Human, What::Endpoints, Ok((_, value))) => print_out(&endpoints(&value)),
            (Format::Human, What::Decisions, Ok((_, value))) => print_out(&decisions(&value)),
            (Format::Human, What::Config, Ok((_, value))) => print_out(&format!("{value:#}\n")),
            (Format::Json, _, Ok((text, _))) => print_out(&text),
        }
    }
}

/// What the admin server at `admin` says at `path`, as text and read; the exit code, with the reason told, when it says nothing.
pub(super) fn ask(admin: &str, path: &str) -> Result<(String, Value), ExitCode> {
    let answer = fetch(admin, path, WITHIN).map_err(|error| match error {
        FetchError::Unaskable(why) => usage(why),
        error @ (FetchError::Connect(_) | FetchError::Timeout(_) | FetchError::Broken(_)) => {
            usage(format!("{admin}: {error}; is the gateway running, and is this its admin address?"))
        }
    })?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    if answer.status != 200 {
        return Err(usage(format!("{admin}{path} answers with status {}: {}", answer.status, text.trim_end())));
    }
    let value = serde_json::from_str(&text);
    value.map(|value| (text, value)).map_err(|error| usage(format!("{admin}{path} does not answer with JSON: {error}")))
}

const DECISION_COLUMNS: [&str; 7] = ["TIME", "REQUEST", "MODEL", "TENANT", "RULE", "SENT TO", "RESULT"];

fn decisions(value: &Value) -> String {
    let empty = Vec::new();
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let rows = value["decisions"].as_array().unwrap_or(&empty).iter().map(|decision| {
        let refused = decision["refused"].as_str().map(|code| format!("refused: {code}"));
        [
            word(&decision["time"]),
            word(&decision["requestId"]),
            word(&decision["model"]),
            word(&decision["tenant"]),
            word(&decision["rule"]),
            refused.unwrap_or_else(|| word(&decision["endpoint"])),
            word(&decision["result"]["outcome"]),
        ]
    });
    table(DECISION_COLUMNS, rows)
}

const COLUMNS: [&str; 13] = [
    "ENDPOINT",
    "DESTINATION",
    "STATE",
    "IN FLIGHT",
    "TOKENS AHEAD",
    "QUEUED",
    "QUEUED 30S",
    "KV USE",
    "TOKENS/S",
    "ERROR",
    "SCRAPED",
    "KV EVENTS",
    "WHY",
];

/// What is unknown is a dash. The guide to policies says where each figure comes from.
fn endpoints(value: &Value) -> String {
    let empty = Vec::new();
    let endpoints = value["endpoints"].as_array().unwrap_or(&empty);
    let told = |value: &Value, show: &dyn Fn(f64) -> String| value.as_f64().map_or_else(|| String::from("-"), show);
    let number = |value: &Value| told(value, &|n| format!("{n:.1}"));
    let whole = |value: &Value| told(value, &|n| format!("{n:.0}"));
    let percent = |value: &Value| told(value, &|n| format!("{:.0}%", 100.0 * n));
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let rows = endpoints.iter().map(|endpoint| {
        let belief = &endpoint["belief"];
        [
            word(&endpoint["name"]),
            word(&endpoint["destination"]),
            word(&endpoint["readiness"]),
            endpoint["inFlight"].to_string(),
            whole(&belief["requests"]["pendingNewTokens"]),
            number(&belief["queuedPromptsNow"]),
            number(&belief["queuedPromptsMean30s"]),
            percent(&belief["kvCacheUsage"]),
            whole(&belief["prefillTokensPerSecond"]),
            percent(&belief["predictionErrorMedian"]),
            told(&endpoint["scrapeAgeSeconds"], &|s| format!("{s:.1}s ago")),
            word(&endpoint["kvEvents"]["state"]),
            word(&endpoint["why"]),
        ]
    });
    table(COLUMNS, rows)
}

/// Rows under their names, in columns.
fn table<const N: usize>(columns: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(columns.map(String::from)).chain(rows).collect();
    let widths: [usize; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_line_up_and_what_is_unknown_is_a_dash() {
        let value = json!({ "endpoints": [
            { "name": "10.0.0.5:8000", "destination": "gemma", "readiness": "ready", "why": "", "inFlight": 3, "scrapeAgeSeconds": 0.25,
              "kvEvents": { "state": "live" },
              "belief": { "queuedPromptsNow": 1.0, "queuedPromptsMean30s": null, "kvCacheUsage": 0.421, "prefillTokensPerSecond": 9_876.5,
                          "predictionErrorMedian": 0.052, "requests": { "pendingNewTokens": 12_000 } } },
            { "name": "b", "destination": "gemma", "readiness": "not_ready", "why": "no connection", "inFlight": 0, "belief": null },
        ]});
        let text = endpoints(&value);
        let lines: Vec<&str> = text.lines().collect();
        let state = lines[0].find("STATE").unwrap();
        assert!(lines[1][state..].starts_with("ready "), "{text}");
        assert!(lines[2][state..].starts_with("not_ready "), "{text}");
        let cells: Vec<&str> = lines[1].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells[3..], ["3", "12000", "1.0", "-", "42%", "9876", "5%", "0.2s ago", "live"], "{text}");
        assert!(lines[2].ends_with("no connection"), "{text}");
    }
}
