//! `kinfctl why`: why a request went where it went, and whether that was right, from a running gateway.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::get::{Format, ask};
use super::{print_out, usage};

/// Tell why a request went where it went.
#[derive(Debug, Args)]
pub(super) struct Why {
    /// The request's id: the `x-request-id` of its answer
    request_id: String,
    /// The gateway's admin server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    admin: String,
    /// How to show it
    #[arg(short = 'o', long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

impl Why {
    /// Asks and tells.
    pub(super) fn run(&self) -> ExitCode {
        let sane = self.request_id.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b'?' | b'#'));
        if self.request_id.is_empty() || !sane {
            return usage(format!("{:?} is no request id: it is the `x-request-id` of an answer", self.request_id));
        }
        let path = format!("/decisions/{}", self.request_id);
        match ask(&self.admin, &path) {
            Err(exit) => exit,
            Ok((text, _)) if matches!(self.format, Format::Json) => print_out(&text),
            Ok((_, value)) => print_out(&told(&value)),
        }
    }
}

/// The decisions of one request, the first attempt first.
fn told(value: &Value) -> String {
    let empty = Vec::new();
    let decisions = value["decisions"].as_array().unwrap_or(&empty);
    let mut out = String::new();
    for decision in decisions.iter().rev() {
        tell(&mut out, decision);
    }
    out
}

fn tell(out: &mut String, decision: &Value) {
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let empty = Vec::new();
    let candidates = decision["candidates"].as_array().unwrap_or(&empty);
    let tags: Vec<&str> = decision["tags"].as_array().unwrap_or(&empty).iter().filter_map(Value::as_str).collect();
    let _ = writeln!(
        out,
        "request {} (attempt {}) at {}\n  model {} by {}, about {} prompt tokens, tags: {}\n  pool {}, rule {} of policy {}",
        word(&decision["requestId"]),
        decision["attempt"],
        word(&decision["time"]),
        word(&decision["model"]),
        word(&decision["tenant"]),
        decision["promptTokens"],
        if tags.is_empty() { String::from("none") } else { tags.join(", ") },
        word(&decision["pool"]),
        word(&decision["rule"]),
        word(&decision["policy"]),
    );
    if let Some(shadow) = decision["shadowRule"].as_str() {
        let _ = writeln!(out, "  rule {shadow} would have decided, but is in mode Shadow");
    }
    match (decision["endpoint"].as_str(), decision["refused"].as_str()) {
        (Some(endpoint), _) => {
            let _ = writeln!(out, "  sent to {endpoint}");
        }
        (None, Some(code)) => {
            let _ = writeln!(out, "  refused: {code}");
        }
        (None, None) => {}
    }
    for candidate in candidates {
        let _ = writeln!(out, "    {}", candidate_line(candidate));
    }
    if let Some(omitted) = decision["candidatesOmitted"].as_u64().filter(|omitted| *omitted > 0) {
        let _ = writeln!(out, "    and {omitted} more candidates");
    }
    tell_result(out, decision, candidates);
}

fn candidate_line(candidate: &Value) -> String {
    let mut line = format!(
        "{:<24} {:<16}",
        candidate["endpoint"].as_str().unwrap_or("-"),
        candidate["destination"].as_str().unwrap_or("-"),
    );
    let verdict = candidate["verdict"].as_str().unwrap_or("-");
    match candidate["exclude"].as_str() {
        Some(exclude) => line.push_str(&format!(" excluded by `{exclude}`")),
        None => line.push_str(&format!(" {}", verdict.replace('_', " "))),
    }
    if let Some(ttft_ms) = candidate["predictedTtftMs"].as_f64() {
        line.push_str(&format!(", first token expected after {ttft_ms:.1} ms"));
    }
    if let Some(overlap) = candidate["overlapTokens"].as_u64().filter(|overlap| *overlap > 0) {
        line.push_str(&format!(", {overlap} tokens cached"));
    }
    line
}

/// Predicted against actual, and the best of those that were not taken.
fn tell_result(out: &mut String, decision: &Value, candidates: &[Value]) {
    let result = &decision["result"];
    if result.is_null() {
        out.push_str("  not over yet\n");
        return;
    }
    let _ = write!(out, "  ended: {} (status {})", result["outcome"].as_str().unwrap_or("-"), result["status"]);
    let predicted = candidates.first().and_then(|chosen| chosen["predictedTtftMs"].as_f64());
    match (result["ttftMs"].as_f64(), predicted) {
        (Some(actual), Some(predicted)) => {
            let _ = write!(out, ", first token after {actual:.1} ms (predicted {predicted:.1} ms)");
        }
        (Some(actual), None) => {
            let _ = write!(out, ", first token after {actual:.1} ms");
        }
        (None, _) => {}
    }
    if let (Some(cached), Some(prompt)) = (result["cachedTokens"].as_u64(), result["promptTokens"].as_u64()) {
        let _ = write!(out, ", {cached} of {prompt} prompt tokens were cached");
    }
    out.push('\n');
    let others = candidates.iter().skip(1).filter(|candidate| candidate["verdict"] == "ranked");
    let rank = |candidate: &Value| candidate["rank"].as_f64().unwrap_or(f64::INFINITY);
    if let Some(best) = others.min_by(|a, b| rank(a).total_cmp(&rank(b))) {
        let _ = writeln!(
            out,
            "  best alternative: {}",
            candidate_line(best).split_whitespace().collect::<Vec<_>>().join(" ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_decision_is_told_with_what_came_of_it() {
        let candidate = |endpoint: &str, verdict: &str, rank: f64| json!({ "endpoint": endpoint, "destination": "gpus", "verdict": verdict, "rank": rank, "predictedTtftMs": rank, "overlapTokens": 64 });
        let value = json!({ "decisions": [{
            "requestId": "r-1", "attempt": 1, "time": "2026-11-30T00:00:00.000Z", "model": "m", "tenant": "alice", "tags": ["pii"],
            "promptTokens": 100, "pool": "default/chat", "policy": "p", "rule": "local", "endpoint": "a:1",
            "candidates": [candidate("a:1", "chosen", 12.0), candidate("b:1", "ranked", 30.0), candidate("c:1", "ranked", 20.0),
                { "endpoint": "d:1", "destination": "hosted", "verdict": "excluded", "exclude": "busy" }],
            "candidatesOmitted": 2,
            "result": { "status": 200, "outcome": "ok", "ttftMs": 15.5, "promptTokens": 99, "cachedTokens": 64 },
        }]});
        let text = told(&value);
        for line in [
            "request r-1 (attempt 1)",
            "tags: pii",
            "rule local of policy p",
            "sent to a:1",
            "excluded by `busy`",
            "and 2 more candidates",
            "first token after 15.5 ms (predicted 12.0 ms), 64 of 99 prompt tokens were cached",
            "best alternative: c:1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
