//! An explanation for people and for programs.

use std::fmt::Write as _;

use super::{CandidateStep, Explanation, Failing, Outcome, PassedOver, RuleStep};
use crate::condition::MatchPart;
use crate::decide::Verdict;
use crate::diagnostic::json_string;
use crate::rule::{Backend, Mode};
use crate::signal::{Signal, Source};

/// A value with its unit, times in milliseconds.
pub(super) fn show(signal: Signal, value: Option<f64>) -> String {
    let name = signal.row().field;
    let window = signal.window_s().map(|w| format!("/{w}s")).unwrap_or_default();
    match (value, signal) {
        (None, _) => format!("{name}{window} unknown"),
        (Some(us), Signal::PredictedTtft | Signal::PredictedLatency) => format!("{name} {:.1}ms", us / 1e3),
        (
            Some(v),
            Signal::QueuedPrompts { .. }
            | Signal::RunningPrompts
            | Signal::InFlight
            | Signal::KvCacheUsage
            | Signal::PrefixOverlap
            | Signal::ErrorRate { .. }
            | Signal::CostPerMillionTokens
            | Signal::ContextWindow,
        ) => format!("{name}{window} {}", (v * 1000.0).round() / 1000.0),
    }
}

impl Failing {
    fn human(&self) -> String {
        match self.part {
            MatchPart::Headers => format!("no header is as asked for: {}", self.asked),
            MatchPart::Model
            | MatchPart::Tenant
            | MatchPart::Tags
            | MatchPart::Api
            | MatchPart::Stream
            | MatchPart::PromptTokens => {
                format!("{} is {}, asked for: {}", self.part.as_str(), self.found, self.asked)
            }
        }
    }
}

impl RuleStep {
    fn human(&self) -> String {
        let policy = if self.policy.is_empty() { String::new() } else { format!("{}/", self.policy) };
        let why: Vec<String> = self.failing.iter().map(Failing::human).collect();
        let state = match (self.holds, self.mode) {
            (true, Mode::Enforced) => "holds".to_owned(),
            (true, Mode::Shadow) => "would hold (mode Shadow)".to_owned(),
            (false, Mode::Shadow) if why.is_empty() => "would hold, but is in mode Shadow".to_owned(),
            (false, Mode::Enforced | Mode::Shadow) => format!("does not hold: {}", why.join("; or ")),
        };
        format!("rule {policy}{}: {state}", self.name)
    }
}

impl CandidateStep {
    fn reason(&self) -> String {
        let ranked = self.place.map(|place| format!(", place {place}")).unwrap_or_default();
        match self.verdict {
            Verdict::Chosen => format!("chosen{ranked}"),
            Verdict::Survived if self.passed_over == Some(PassedOver::Tied) => "tied, lost by chance".to_owned(),
            Verdict::Survived => format!("ranked lower{ranked}"),
            Verdict::NotSelected if self.passed_over == Some(PassedOver::NoStep) => {
                format!("no step of this rule takes {}", self.backend.as_str())
            }
            Verdict::NotSelected => "not selected by any step reached".to_owned(),
            Verdict::NotConsidered => "not considered by the rule".to_owned(),
            Verdict::NotReady => "not ready".to_owned(),
            Verdict::AtLimit => "at its limit".to_owned(),
            Verdict::Excluded { .. } => {
                let dropped = self.dropped.as_ref();
                let because = dropped.map(|d| d.because.join("; ")).filter(|b| !b.is_empty());
                let because = because.map(|b| format!(" ({b})")).unwrap_or_default();
                format!("dropped by exclude `{}`{because}", dropped.map(|d| d.exclude.as_str()).unwrap_or_default())
            }
        }
    }

    /// The values it was judged by. What a hosted API never tells is left out.
    fn values(&self) -> String {
        let told = |s: &Signal| self.backend == Backend::Local || s.row().source != Source::Engine;
        let shown: Vec<String> = self.values.iter().filter(|(s, _)| told(s)).map(|(s, v)| show(*s, *v)).collect();
        if shown.is_empty() { String::new() } else { format!("; {}", shown.join(", ")) }
    }
}

impl Explanation {
    /// For a person: one line a rule, one line a candidate, one line for the outcome.
    #[must_use]
    pub fn human(&self) -> String {
        let mut out = String::new();
        for rule in &self.rules {
            let _ = writeln!(out, "{}", rule.human());
        }
        for c in &self.candidates {
            let values = if c.dropped.is_some() { String::new() } else { c.values() };
            let kind = c.backend.as_str();
            let _ = writeln!(out, "  {} ({kind} {}, {}): {}{values}", c.label, c.destination, c.model, c.reason());
        }
        let _ = match &self.outcome {
            Outcome::Chosen { candidate, select_step, minimize, weight } => {
                let label = self.candidates.get(*candidate).map_or("", |c| c.label.as_str());
                let how = minimize.map_or("first in the listed order".to_owned(), |m| format!("least {m}"));
                let share = weight.map(|(own, all)| format!(", {own} of {all} of the split")).unwrap_or_default();
                writeln!(out, "=> {label}, by select[{select_step}] ({how}{share})")
            }
            Outcome::Refused { status, code, exclude } => {
                let by = exclude.as_ref().map(|e| format!(", exclude `{e}`")).unwrap_or_default();
                writeln!(out, "=> {status} {code}{by}")
            }
        };
        out
    }

    /// One JSON object without line breaks.
    #[must_use]
    pub fn json(&self) -> String {
        let mut out = String::from("{\"rules\":");
        list(&mut out, &self.rules, |out, rule| {
            field(out, "policy", &rule.policy);
            out.push(',');
            field(out, "name", &rule.name);
            let mode = match rule.mode {
                Mode::Enforced => "Enforced",
                Mode::Shadow => "Shadow",
            };
            let _ = write!(out, ",\"mode\":\"{mode}\",\"holds\":{},\"failing\":", rule.holds);
            list(out, &rule.failing, |out, failing| {
                field(out, "part", failing.part.as_str());
                out.push(',');
                field(out, "asked", &failing.asked);
                out.push(',');
                field(out, "found", &failing.found);
            });
        });
        out.push_str(",\"candidates\":");
        list(&mut out, &self.candidates, candidate);
        out.push_str(",\"outcome\":{");
        match &self.outcome {
            Outcome::Chosen { candidate, select_step, minimize, weight } => {
                let label = self.candidates.get(*candidate).map_or("", |c| c.label.as_str());
                field(&mut out, "endpoint", label);
                let _ = write!(out, ",\"selectStep\":{select_step}");
                if let Some(minimize) = minimize {
                    let _ = write!(out, ",\"minimize\":\"{minimize}\"");
                }
                if let Some((own, all)) = weight {
                    let _ = write!(out, ",\"weight\":{own},\"splitWeight\":{all}");
                }
            }
            Outcome::Refused { status, code, exclude } => {
                let _ = write!(out, "\"status\":{status},");
                field(&mut out, "code", code);
                if let Some(exclude) = exclude {
                    out.push(',');
                    field(&mut out, "exclude", exclude);
                }
            }
        }
        out.push_str("}}");
        out
    }
}

fn candidate(out: &mut String, c: &CandidateStep) {
    for (key, value) in [
        ("endpoint", c.label.as_str()),
        ("destination", &c.destination),
        ("model", &c.model),
        ("backend", c.backend.as_str()),
        ("verdict", &c.reason()),
    ] {
        field(out, key, value);
        out.push(',');
    }
    if let Some(dropped) = &c.dropped {
        field(out, "exclude", &dropped.exclude);
        out.push(',');
    }
    if let Some(place) = c.place {
        let _ = write!(out, "\"place\":{place},");
    }
    let _ = write!(out, "\"rank\":{}", number(c.rank));
    for (signal, value) in &c.values {
        let row = signal.row();
        let unit = if row.unit == "microseconds" { "Us" } else { "" };
        let _ = write!(out, ",\"{}{unit}\":{}", row.field, number(*value));
    }
}

/// A JSON array of objects, each written by `one`.
fn list<T>(out: &mut String, items: &[T], one: fn(&mut String, &T)) {
    out.push('[');
    for (i, item) in items.iter().enumerate() {
        out.push_str(if i == 0 { "{" } else { ",{" });
        one(out, item);
        out.push('}');
    }
    out.push(']');
}

fn field(out: &mut String, key: &str, value: &str) {
    let _ = write!(out, "\"{key}\":");
    json_string(out, value);
}

/// A JSON number; unknown and what JSON cannot hold is null.
fn number(value: Option<f64>) -> String {
    value.filter(|v| v.is_finite()).map_or_else(|| "null".to_owned(), |v| v.to_string())
}
