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
    /// Every endpoint with its state and load
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

const COLUMNS: [&str; 7] = ["ENDPOINT", "DESTINATION", "STATE", "IN FLIGHT", "QUEUED", "QUEUED 30S", "WHY"];

fn endpoints(value: &Value) -> String {
    let empty = Vec::new();
    let endpoints = value["endpoints"].as_array().unwrap_or(&empty);
    let number = |value: &Value| value.as_f64().map_or_else(|| String::from("-"), |n| format!("{n:.1}"));
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let rows = endpoints.iter().map(|endpoint| {
        [
            word(&endpoint["name"]),
            word(&endpoint["destination"]),
            word(&endpoint["readiness"]),
            endpoint["inFlight"].to_string(),
            number(&endpoint["belief"]["queuedPromptsNow"]),
            number(&endpoint["belief"]["queuedPromptsMean30s"]),
            word(&endpoint["why"]),
        ]
    });
    table(COLUMNS, rows)
}

/// Rows under their names, in columns.
fn table(columns: [&str; 7], rows: impl Iterator<Item = [String; 7]>) -> String {
    let rows: Vec<[String; 7]> = std::iter::once(columns.map(String::from)).chain(rows).collect();
    let widths: [usize; 7] =
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
            { "name": "10.0.0.5:8000", "destination": "gemma", "readiness": "ready", "why": "", "inFlight": 3,
              "belief": { "queuedPromptsNow": 1.0, "queuedPromptsMean30s": null } },
            { "name": "b", "destination": "gemma", "readiness": "not_ready", "why": "no connection", "inFlight": 0, "belief": null },
        ]});
        let text = endpoints(&value);
        let lines: Vec<&str> = text.lines().collect();
        let state = lines[0].find("STATE").unwrap();
        assert!(lines[1][state..].starts_with("ready "), "{text}");
        assert!(lines[2][state..].starts_with("not_ready "), "{text}");
        assert!(lines[1].contains("1.0") && lines[1].contains('-'), "{text}");
        assert!(lines[2].ends_with("no connection"), "{text}");
    }
}
