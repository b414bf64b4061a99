//! A decision as data: rule by rule, candidate by candidate, with the numbers it was made on.
//!
//! Made after the fact from the same program, request and candidates, for `explain`, the admin page and
//! tests; not on the request path.

use std::fmt::Write as _;

use crate::condition::{DropCondition, MatchPart};
use crate::decide::{Candidate, Decision, Refusal, Scratch, Verdict};
use crate::diagnostic::json_string;
use crate::request::Request;
use crate::rule::{Action, Backend, Program, Ranking, RuleIndex};
use crate::signal::Signal;

/// A decision with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Every rule up to the one that holds, in the order they were tried.
    pub rules: Vec<RuleStep>,
    /// Every candidate, in the order given.
    pub candidates: Vec<CandidateStep>,
    /// What came of it.
    pub outcome: Outcome,
}

/// What became of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleStep {
    /// The policy it stands in; empty for the default rule.
    pub policy: String,
    /// The rule's name.
    pub name: String,
    /// For each entry of its `matches` the first part that did not hold. Empty for the rule that holds.
    pub failing: Vec<MatchPart>,
    /// Whether it is the rule that holds.
    pub holds: bool,
}

/// What became of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateStep {
    /// The endpoint, as the caller names it.
    pub label: String,
    /// The destination's name.
    pub destination: String,
    /// The model's first name.
    pub model: String,
    /// Local or External.
    pub backend: Backend,
    /// What became of it.
    pub verdict: Verdict,
    /// The exclude entry that dropped it.
    pub exclude: Option<String>,
    /// The value it was ranked by, when it was ranked and the value is known.
    pub rank: Option<f64>,
    /// Every signal the rule looks at, with its value; `None` when unknown.
    pub values: Vec<(Signal, Option<f64>)>,
}

/// What came of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A candidate answers.
    Chosen {
        /// Index in the candidates.
        candidate: usize,
        /// Index of the select step that chose it.
        select_step: u16,
        /// What the step minimised; `None` when it took the first in the listed order.
        minimize: Option<&'static str>,
    },
    /// Nobody may answer.
    Refused {
        /// HTTP status.
        status: u16,
        /// Machine-readable code.
        code: String,
        /// The exclude entry that dropped the most candidates.
        exclude: Option<String>,
    },
}

/// Explains `decision`, which [`decide`](crate::decide()) made for the same arguments with `scratch`.
pub fn explain<C: Candidate>(
    program: &Program,
    rule: RuleIndex,
    request: &Request<'_>,
    candidates: &[C],
    decision: &Decision<'_>,
    scratch: &Scratch,
    label: &dyn Fn(usize) -> String,
) -> Explanation {
    let held = program.rule(rule);
    let tried = program.rules().iter().take(usize::from(rule.0) + 1).enumerate();
    let rules = tried.map(|(i, r)| RuleStep {
        policy: r.policy.clone(),
        name: r.name.clone(),
        failing: if i == usize::from(rule.0) {
            Vec::new()
        } else {
            r.matches.iter().filter_map(|m| m.first_failing(request)).collect()
        },
        holds: i == usize::from(rule.0),
    });
    let exclude_name = |index: u16| match &held.action {
        Action::Route(route) => route.exclude.get(usize::from(index)).map(|e| e.name.clone()),
        Action::Deny(_) => None,
    };
    let signals = signals_of(&held.action);
    let steps = candidates.iter().enumerate().map(|(i, candidate)| {
        let verdict = scratch.verdicts().get(i).copied().unwrap_or(Verdict::NotConsidered);
        let target = candidate.target();
        let destination = program.destinations().get(usize::from(target.destination));
        let model = destination.and_then(|d| d.models.get(usize::from(target.model))).and_then(|names| names.first());
        CandidateStep {
            label: label(i),
            destination: destination.map(|d| d.name.clone()).unwrap_or_default(),
            model: model.cloned().unwrap_or_default(),
            backend: candidate.backend(),
            verdict,
            exclude: match verdict {
                Verdict::Excluded { exclude } => exclude_name(exclude),
                Verdict::Chosen
                | Verdict::Survived
                | Verdict::NotSelected
                | Verdict::NotConsidered
                | Verdict::NotReady
                | Verdict::AtLimit => None,
            },
            rank: scratch.ranks().get(i).copied().filter(|r| r.is_finite()),
            values: signals.iter().map(|s| (*s, candidate.signal(*s))).collect(),
        }
    });
    let outcome = match decision {
        Decision::Chosen { candidate, select_step } => {
            let minimize = match &held.action {
                Action::Route(route) => route.select.get(usize::from(*select_step)).and_then(|s| match s.ranking {
                    Ranking::Minimize(m) => Some(m.as_str()),
                    Ranking::Listed => None,
                }),
                Action::Deny(_) => None,
            };
            Outcome::Chosen { candidate: *candidate, select_step: *select_step, minimize }
        }
        Decision::Refused(refusal) => Outcome::Refused {
            status: refusal.status(),
            code: refusal.code().to_owned(),
            exclude: match refusal {
                Refusal::Overloaded { exclude } => exclude.and_then(exclude_name),
                Refusal::ModelNotFound | Refusal::NoReadyEndpoint | Refusal::Denied { .. } => None,
            },
        },
    };
    Explanation { rules: rules.collect(), candidates: steps.collect(), outcome }
}

/// Signals a rule looks at, each once, in the order it looks.
fn signals_of(action: &Action) -> Vec<Signal> {
    let Action::Route(route) = action else { return Vec::new() };
    let dropped = route.exclude.iter().flat_map(|e| &e.conditions).filter_map(|c| match c {
        DropCondition::Number { signal, .. } => Some(*signal),
        DropCondition::ContextBelowPrompt => Some(Signal::ContextWindow),
        DropCondition::Backend(_) | DropCondition::Destinations(_) => None,
    });
    let ranked = route.select.iter().filter_map(|s| match s.ranking {
        Ranking::Minimize(m) => Some(m.signal()),
        Ranking::Listed => None,
    });
    let mut signals: Vec<Signal> = Vec::new();
    for signal in dropped.chain(ranked) {
        if !signals.contains(&signal) {
            signals.push(signal);
        }
    }
    signals
}

/// A value with its unit, times in milliseconds.
fn show(signal: Signal, value: Option<f64>) -> String {
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

impl CandidateStep {
    fn reason(&self) -> String {
        match self.verdict {
            Verdict::Chosen => "chosen".to_owned(),
            Verdict::Survived => "ranked lower".to_owned(),
            Verdict::NotSelected => "not selected by any step reached".to_owned(),
            Verdict::NotConsidered => "not considered by the rule".to_owned(),
            Verdict::NotReady => "not ready".to_owned(),
            Verdict::AtLimit => "at its limit".to_owned(),
            Verdict::Excluded { .. } => {
                format!("dropped by exclude `{}`", self.exclude.as_deref().unwrap_or_default())
            }
        }
    }
}

impl Explanation {
    /// For a person: one line a rule, one line a candidate, one line for the outcome.
    #[must_use]
    pub fn human(&self) -> String {
        let mut out = String::new();
        for rule in &self.rules {
            let policy = if rule.policy.is_empty() { String::new() } else { format!("{}/", rule.policy) };
            let parts: Vec<&str> = rule.failing.iter().map(|p| p.as_str()).collect();
            let state = if rule.holds { "holds".to_owned() } else { format!("does not hold: {}", parts.join(", ")) };
            let _ = writeln!(out, "rule {policy}{}: {state}", rule.name);
        }
        for c in &self.candidates {
            let values: Vec<String> = c.values.iter().map(|(s, v)| show(*s, *v)).collect();
            let _ = writeln!(
                out,
                "  {} ({} {}, {}): {}{}{}",
                c.label,
                c.backend.as_str(),
                c.destination,
                c.model,
                c.reason(),
                if values.is_empty() { "" } else { "; " },
                values.join(", ")
            );
        }
        let _ = match &self.outcome {
            Outcome::Chosen { candidate, select_step, minimize } => {
                let label = self.candidates.get(*candidate).map_or("", |c| c.label.as_str());
                let how = minimize.map_or("first in the listed order".to_owned(), |m| format!("least {m}"));
                writeln!(out, "=> {label}, by select step {select_step} ({how})")
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
        let mut out = String::from("{\"rules\":[");
        for (i, rule) in self.rules.iter().enumerate() {
            out.push_str(if i == 0 { "{" } else { ",{" });
            field(&mut out, "policy", &rule.policy);
            out.push(',');
            field(&mut out, "name", &rule.name);
            let parts: Vec<String> = rule.failing.iter().map(|p| format!("\"{}\"", p.as_str())).collect();
            let _ = write!(out, ",\"holds\":{},\"failing\":[{}]}}", rule.holds, parts.join(","));
        }
        out.push_str("],\"candidates\":[");
        for (i, c) in self.candidates.iter().enumerate() {
            out.push_str(if i == 0 { "{" } else { ",{" });
            for (key, value) in [
                ("endpoint", c.label.as_str()),
                ("destination", &c.destination),
                ("model", &c.model),
                ("backend", c.backend.as_str()),
                ("verdict", &c.reason()),
            ] {
                field(&mut out, key, value);
                out.push(',');
            }
            let _ = write!(out, "\"rank\":{}", number(c.rank));
            for (signal, value) in &c.values {
                let row = signal.row();
                let unit = if row.unit == "microseconds" { "Us" } else { "" };
                let _ = write!(out, ",\"{}{unit}\":{}", row.field, number(*value));
            }
            out.push('}');
        }
        out.push_str("],\"outcome\":{");
        match &self.outcome {
            Outcome::Chosen { candidate, select_step, minimize } => {
                let label = self.candidates.get(*candidate).map_or("", |c| c.label.as_str());
                field(&mut out, "endpoint", label);
                let _ = write!(out, ",\"selectStep\":{select_step}");
                if let Some(minimize) = minimize {
                    let _ = write!(out, ",\"minimize\":\"{minimize}\"");
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

fn field(out: &mut String, key: &str, value: &str) {
    let _ = write!(out, "\"{key}\":");
    json_string(out, value);
}

/// A JSON number; unknown and what JSON cannot hold is null.
fn number(value: Option<f64>) -> String {
    value.filter(|v| v.is_finite()).map_or_else(|| "null".to_owned(), |v| v.to_string())
}
