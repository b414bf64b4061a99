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
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// Every endpoint with its state and load
    Endpoints,
    /// What is in force, and what was refused
    Config,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
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
        };
        let answer = match fetch(&self.admin, path, WITHIN) {
            Ok(answer) => answer,
            Err(FetchError::Unaskable(why)) => return usage(why),
            Err(error) => {
                return usage(format!(
                    "{}: {error}; is the gateway running, and is this its admin address?",
                    self.admin
                ));
            }
        };
        let text = String::from_utf8_lossy(&answer.body);
        if answer.status != 200 {
            return usage(format!("{}{path} answers with status {}: {}", self.admin, answer.status, text.trim_end()));
        }
        match (self.format, self.what, serde_json::from_str::<Value>(&text)) {
            (Format::Human, What::Endpoints, Ok(value)) => print_out(&table(&value)),
            (Format::Human, What::Config, Ok(value)) => print_out(&format!("{value:#}\n")),
            (Format::Json, _, Ok(_)) => print_out(&text),
            (_, _, Err(error)) => usage(format!("{}{path} does not answer with JSON: {error}", self.admin)),
        }
    }
}

const COLUMNS: [&str; 7] = ["ENDPOINT", "DESTINATION", "STATE", "IN FLIGHT", "QUEUED", "QUEUED 30S", "WHY"];

fn table(value: &Value) -> String {
    let empty = Vec::new();
    let endpoints = value["endpoints"].as_array().unwrap_or(&empty);
    let number = |value: &Value| value.as_f64().map_or_else(|| String::from("-"), |n| format!("{n:.1}"));
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let mut rows: Vec<[String; 7]> = vec![COLUMNS.map(String::from)];
    for endpoint in endpoints {
        rows.push([
            word(&endpoint["name"]),
            word(&endpoint["destination"]),
            word(&endpoint["readiness"]),
            endpoint["inFlight"].to_string(),
            number(&endpoint["belief"]["queuedPromptsNow"]),
            number(&endpoint["belief"]["queuedPromptsMean30s"]),
            word(&endpoint["why"]),
        ]);
    }
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
        let text = table(&value);
        let lines: Vec<&str> = text.lines().collect();
        let state = lines[0].find("STATE").unwrap();
        assert!(lines[1][state..].starts_with("ready "), "{text}");
        assert!(lines[2][state..].starts_with("not_ready "), "{text}");
        assert!(lines[1].contains("1.0") && lines[1].contains('-'), "{text}");
        assert!(lines[2].ends_with("no connection"), "{text}");
    }
}
