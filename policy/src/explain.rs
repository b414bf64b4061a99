//! A decision as data: rule by rule, candidate by candidate, with the numbers it was made on.
//!
//! Made after the fact from the same program, request and candidates, for `explain`, the admin page and
//! tests; not on the request path. [`Explanation::human`] and [`Explanation::json`] print it.

use crate::condition::{DropCondition, Match, MatchPart, Pattern};
use crate::decide::{Candidate, Decision, Refusal, Scratch, Verdict};
use crate::request::{Request, Streaming};
use crate::rule::{Action, Backend, Mode, Program, Ranking, Route, RuleIndex};
use crate::signal::Signal;

mod text;

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
    /// Whether it decides.
    pub mode: Mode,
    /// For each entry of its `matches` the first part that does not hold. Empty for a rule that holds.
    pub failing: Vec<Failing>,
    /// Whether it is the rule that this decision is made by.
    pub holds: bool,
}

/// Why an entry of a rule's `matches` does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Which part of it.
    pub part: MatchPart,
    /// What it asks for.
    pub asked: String,
    /// What the request has; empty for headers, whose values are the client's own.
    pub found: String,
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
    pub dropped: Option<Dropped>,
    /// Why no step chose it, where it stood ready to be chosen.
    pub passed_over: Option<PassedOver>,
    /// Its place among those that the step which chose looked at, from 1; a tie of equals is broken by load, then chance.
    pub place: Option<usize>,
    /// The value it was ranked by, when the step ranks by a value and it is known.
    pub rank: Option<f64>,
    /// Every signal the rule looks at, with its value; `None` when unknown.
    pub values: Vec<(Signal, Option<f64>)>,
}

/// Why a candidate that nothing speaks against is not the one chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedOver {
    /// No step of the rule takes its kind.
    NoStep,
    /// An earlier step chose, or its own step names others.
    NotReached,
    /// As good as the chosen one in every way that counts.
    Tied,
    /// Another was better, or had fewer requests in flight.
    Worse,
}

/// The exclude entry that dropped a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The entry's name.
    pub exclude: String,
    /// Its conditions, each with the value it held for.
    pub because: Vec<String>,
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
        /// The step's share of its split, and the shares of the whole split.
        weight: Option<(u32, u32)>,
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
    let action = &program.rule(rule).action;
    let tried = program.rules().iter().take(usize::from(rule.0) + 1).enumerate();
    let rules = tried.map(|(i, r)| RuleStep {
        policy: r.policy.clone(),
        name: r.name.clone(),
        mode: r.mode,
        failing: if r.holds(request) {
            Vec::new()
        } else {
            r.matches.iter().filter_map(|m| Failing::of(m, request)).collect()
        },
        holds: i == usize::from(rule.0),
    });
    let (selected, ranking) = match (decision, action) {
        (Decision::Chosen { select_step, .. }, Action::Route(route)) => {
            (true, route.select.get(usize::from(*select_step)).map(|s| s.ranking))
        }
        (Decision::Chosen { .. } | Decision::Refused(_), Action::Route(_) | Action::Deny(_)) => (false, None),
    };
    let rank = |i: usize| scratch.ranks().get(i).copied().filter(|r| selected && !r.is_nan());
    let place = |i: usize| {
        let own = rank(i)?;
        let before = (0..candidates.len()).filter_map(rank).filter(|other| *other < own).count();
        Some(before + 1)
    };
    let chosen = match decision {
        Decision::Chosen { candidate, .. } => candidates.get(*candidate).zip(rank(*candidate)),
        Decision::Refused(_) => None,
    };
    let signals = signals_of(action);
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
            dropped: match (verdict, action) {
                (Verdict::Excluded { exclude }, Action::Route(route)) => {
                    dropped(program, route, exclude, request, candidate)
                }
                (
                    Verdict::Excluded { .. }
                    | Verdict::Chosen
                    | Verdict::Survived
                    | Verdict::NotSelected
                    | Verdict::NotConsidered
                    | Verdict::NotReady
                    | Verdict::AtLimit,
                    Action::Route(_) | Action::Deny(_),
                ) => None,
            },
            passed_over: passed_over(verdict, action, candidate.backend(), chosen.as_ref(), rank(i), candidate),
            place: place(i),
            rank: rank(i).filter(|r| r.is_finite() && matches!(ranking, Some(Ranking::Minimize(_)))),
            values: signals.iter().map(|s| (*s, candidate.signal(*s))).collect(),
        }
    });
    Explanation { rules: rules.collect(), candidates: steps.collect(), outcome: outcome(action, decision) }
}

/// What a candidate lacked. `chosen` is the one that was chosen, with its rank.
fn passed_over<C: Candidate>(
    verdict: Verdict,
    action: &Action,
    backend: Backend,
    chosen: Option<&(&C, f64)>,
    rank: Option<f64>,
    candidate: &C,
) -> Option<PassedOver> {
    match verdict {
        Verdict::Survived => {
            let tied = chosen.is_some_and(|(best, of_best)| rank == Some(*of_best) && best.load() == candidate.load());
            Some(if tied { PassedOver::Tied } else { PassedOver::Worse })
        }
        Verdict::NotSelected => {
            let taken = match action {
                Action::Route(route) => route.select.iter().any(|step| step.backend == backend),
                Action::Deny(_) => true,
            };
            Some(if taken { PassedOver::NotReached } else { PassedOver::NoStep })
        }
        Verdict::Chosen | Verdict::NotConsidered | Verdict::NotReady | Verdict::AtLimit | Verdict::Excluded { .. } => {
            None
        }
    }
}

fn outcome(action: &Action, decision: &Decision<'_>) -> Outcome {
    match decision {
        Decision::Chosen { candidate, select_step } => {
            let step = match action {
                Action::Route(route) => route.select.get(usize::from(*select_step)).map(|step| (route, step)),
                Action::Deny(_) => None,
            };
            let minimize = step.and_then(|(_, step)| match step.ranking {
                Ranking::Minimize(m) => Some(m.as_str()),
                Ranking::Listed => None,
            });
            let weight = step.and_then(|(route, step)| Some((step.weight?, split_weight(route, *select_step))));
            Outcome::Chosen { candidate: *candidate, select_step: *select_step, minimize, weight }
        }
        Decision::Refused(refusal) => Outcome::Refused {
            status: refusal.status(),
            code: refusal.code().to_owned(),
            exclude: match (refusal, action) {
                (Refusal::Overloaded { exclude }, Action::Route(route)) => {
                    exclude.and_then(|i| route.exclude.get(usize::from(i))).map(|e| e.name.clone())
                }
                (
                    Refusal::Overloaded { .. }
                    | Refusal::ModelNotFound
                    | Refusal::NoReadyEndpoint
                    | Refusal::Denied { .. },
                    Action::Route(_) | Action::Deny(_),
                ) => None,
            },
        },
    }
}

/// The weights of the split that a step stands in.
fn split_weight(route: &Route, step: u16) -> u32 {
    let (before, after) = route.select.split_at(usize::from(step).min(route.select.len()));
    let weights = before.iter().rev().map_while(|s| s.weight).chain(after.iter().map_while(|s| s.weight));
    weights.fold(0, u32::saturating_add)
}

impl Failing {
    /// The first part of `entry` that does not hold.
    fn of(entry: &Match, request: &Request<'_>) -> Option<Self> {
        let part = entry.first_failing(request)?;
        let any_of = |list: Vec<&str>| format!("`{}`", list.join("` or `"));
        let (asked, found) = match part {
            MatchPart::Model => {
                (any_of(entry.models.iter().map(Pattern::as_str).collect()), format!("`{}`", request.model))
            }
            MatchPart::Tenant => {
                (any_of(entry.tenants.iter().map(Pattern::as_str).collect()), format!("`{}`", request.tenant))
            }
            MatchPart::Api => {
                (any_of(entry.apis.iter().map(|a| a.as_str()).collect()), format!("`{}`", request.api.as_str()))
            }
            MatchPart::Stream => (streamed(entry.stream?).to_owned(), streamed(request.stream).to_owned()),
            MatchPart::PromptTokens => (entry.prompt_tokens.to_string(), tokens(request.prompt_tokens)),
            MatchPart::Tags => (entry.tags.to_string(), format!("[{}]", request.tags.join(", "))),
            MatchPart::Headers => {
                let failing = entry.headers.iter().find(|h| !h.holds(request))?;
                (failing.to_string(), String::new())
            }
        };
        Some(Self { part, asked, found })
    }
}

fn streamed(stream: Streaming) -> &'static str {
    match stream {
        Streaming::Yes => "streamed",
        Streaming::No => "not streamed",
    }
}

fn tokens(count: f64) -> String {
    if count.is_nan() { "unknown".to_owned() } else { count.to_string() }
}

/// The conditions of the entry that dropped a candidate, with what they held for.
fn dropped<C: Candidate>(
    program: &Program,
    route: &Route,
    exclude: u16,
    request: &Request<'_>,
    candidate: &C,
) -> Option<Dropped> {
    let entry = route.exclude.get(usize::from(exclude))?;
    let name = |d: u16| program.destinations().get(usize::from(d)).map_or("", |d| d.name.as_str());
    let mut because = Vec::new();
    let scope = &entry.applies_to;
    if !scope.tags.is_empty() {
        because.push(format!("the prompt has the tags [{}]", request.tags.join(", ")));
    }
    if !scope.tenants.is_empty() {
        because.push(format!("the tenant is `{}`", request.tenant));
    }
    if !scope.prompt_tokens.is_empty() {
        because.push(format!("the prompt has {} tokens, {}", tokens(request.prompt_tokens), scope.prompt_tokens));
    }
    because.extend(entry.conditions.iter().map(|condition| match condition {
        DropCondition::Backend(backend) => format!("it is {}", backend.as_str()),
        DropCondition::Destinations(_) => format!("it belongs to `{}`", name(candidate.target().destination)),
        DropCondition::Number { signal, range } => {
            format!("{}, {range}", text::show(*signal, candidate.signal(*signal)))
        }
        DropCondition::ContextBelowPrompt => format!(
            "{}, less than the {} tokens of the prompt",
            text::show(Signal::ContextWindow, candidate.signal(Signal::ContextWindow)),
            tokens(request.prompt_tokens)
        ),
    }));
    Some(Dropped { exclude: entry.name.clone(), because })
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
