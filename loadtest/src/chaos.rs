//! Named faults against any proxy for OpenAI-compatible endpoints, judged from outside.
//!
//! Each scenario of the [`SCENARIOS`] starts with fresh simulated engines behind a fresh proxy (or a running one),
//! lets them or the client misbehave, and judges by what the client sees and what has reached the engines. Nothing of
//! the proxy is used but its port. A scenario that this proxy cannot be judged by says why and does not pass.

mod client;
mod proxy;
mod report;
mod scenarios;
mod stage;

use std::{
    io,
    time::{Duration, Instant},
};

use engine::Engine;
pub use proxy::{Embedded, Front, Output, StartEmbedded};
pub use report::{Report, Row, Verdict};
use scenarios::{body, head, health, leave, refuse, retry, spread, stream};
use stage::{Judged, Miss, Stage, start_engines};

/// A whole run takes no longer unless more is asked for; scenarios that are not reached fail.
pub const RUN_MAX: Duration = Duration::from_secs(120);

/// What to run, and against what.
#[derive(Debug)]
pub struct Plan {
    /// The proxy.
    pub front: Front,
    /// Name of the model that the engines serve and the requests ask for.
    pub model: String,
    /// GET this path until it answers with success: the proxy is ready.
    pub ready_path: String,
    /// Longest wait for anything that should happen at once.
    pub patience: Duration,
    /// Silence of an engine that must be survived.
    pub silence: Duration,
    /// How long the proxy is set to wait for an engine's first byte, if it is known.
    pub first_byte_timeout: Option<Duration>,
    /// A whole run takes no longer; scenarios that are not reached fail.
    pub run_max: Duration,
    /// Names of the scenarios to run; empty: all.
    pub only: Vec<String>,
    /// Where a command's output goes.
    pub output: Output,
}

impl Plan {
    /// All scenarios with the usual times.
    pub fn new(front: Front) -> Self {
        Self {
            front,
            model: "mock".to_owned(),
            ready_path: "/v1/models".to_owned(),
            patience: Duration::from_secs(8),
            silence: Duration::from_secs(6),
            first_byte_timeout: None,
            run_max: RUN_MAX,
            only: Vec::new(),
            output: Output::Dropped,
        }
    }
}

/// One fault and its right behaviour.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Numbers of the faults in the product's list of faults reported of other gateways; none for plain HTTP.
    pub numbers: &'static [u8],
    /// Its name.
    pub name: &'static str,
    /// What must hold.
    pub rule: &'static str,
    judge: fn(&mut Stage<'_>) -> Judged,
}

const fn scenario(
    numbers: &'static [u8],
    name: &'static str,
    rule: &'static str,
    judge: fn(&mut Stage<'_>) -> Judged,
) -> Scenario {
    Scenario { numbers, name, rule, judge }
}

/// All scenarios, in the order they run.
#[rustfmt::skip]
pub const SCENARIOS: &[Scenario] = &[
    scenario(&[1], "close-within-stream", "a client that closes within a stream stops the engine", leave::close_within_a_stream),
    scenario(&[1], "reset-within-stream", "a client that resets within a stream stops the engine", leave::reset_within_a_stream),
    scenario(&[1, 2], "leave-silent-engine", "a client that leaves a silent engine frees it", leave::leave_a_silent_engine),
    scenario(&[2], "leave-unstreamed", "a client that leaves before an unstreamed answer stops the engine", leave::leave_before_an_unstreamed_answer),
    scenario(&[2], "leave-within-request", "half a request reaches no engine as a whole one", leave::leave_within_the_request),
    scenario(&[3], "usage", "the client sees usage exactly when it asked for it", stream::usage_only_when_asked_for),
    scenario(&[4], "sse-variants", "streams have the same bytes, however the engine writes them", stream::variants_are_byte_equal),
    scenario(&[4, 6], "odd-ends", "error events, missing [DONE] and missing usage pass unchanged", stream::odd_ends_are_byte_equal),
    scenario(&[4], "events-at-once", "an event reaches the client while the engine is silent", stream::events_pass_at_once),
    scenario(&[5, 6], "cut-within-stream", "a cut is visible, not retried, and no [DONE] is invented", stream::cut_within_a_stream),
    scenario(&[5], "cut-within-document", "half a document is never passed off for a whole one", stream::cut_within_a_document),
    scenario(&[5], "reset-before-head", "tried on another engine", retry::reset_before_the_head),
    scenario(&[5], "close-before-head", "tried on another engine", retry::close_before_the_head),
    scenario(&[5], "busy-503", "tried on another engine", retry::busy_503),
    scenario(&[5], "busy-429", "tried on another engine", retry::busy_429),
    scenario(&[5], "bad-gateway-502", "tried on another engine", retry::bad_gateway_502),
    scenario(&[5, 10], "connection-refused", "tried on another engine", retry::connection_refused),
    scenario(&[5], "all-busy", "the client hears of it, engines are not asked over and over", retry::all_busy),
    scenario(&[7], "silence", "an engine may be silent for long, before and within its answer", stream::silence_is_survived),
    scenario(&[8], "keep-alive-race", "engines that close kept connections hurt no client, nothing is done twice", retry::keep_alive_race),
    scenario(&[9], "slow-endpoint", "an engine that thinks long delays only those who wait for it", health::slow_endpoint),
    scenario(&[9], "first-byte-timeout", "an engine that never answers is given up in time, and freed", health::first_byte_timeout),
    scenario(&[10], "dead-and-back", "a dead engine is left out, and used again by itself", health::dead_and_back),
    scenario(&[10, 11], "failing-and-back", "an engine that answers 500 is left out, and used again by itself", health::failing_and_back),
    scenario(&[11], "client-errors", "4xx take no engine out and are not tried again", health::client_errors_do_not_count),
    scenario(&[12, 13, 14], "load-after-aborts", "after 40 aborts nothing runs and both engines get their share", leave::load_after_aborts),
    scenario(&[12, 14, 15], "load-after-restart", "an engine killed with streams running begins anew with no load", spread::load_after_a_restart),
    scenario(&[18], "burst", "a burst is spread over the engines", spread::burst),
    scenario(&[], "slow-reader", "a client that does not read holds up nobody else", leave::slow_reader),
    scenario(&[], "back-pressure", "what a client does not read stays at the engine", leave::back_pressure),
    scenario(&[13], "unknown-paths", "paths that the proxy does not know reach an engine", head::unknown_paths),
    scenario(&[29], "odd-members", "unknown, null and oddly typed members are the engine's business", body::odd_members),
    scenario(&[30], "no-model", "a body without a readable model gets a 4xx in JSON", body::no_model),
    scenario(&[30], "lone-surrogates", "a body with half a surrogate pair is passed", body::lone_surrogates),
    scenario(&[31], "bytes-stay", "order, white space, escapes, numbers and duplicates stay", body::bytes_stay),
    scenario(&[32], "too-large-length", "a body over the limit gets a 413 in JSON, readable while sending", refuse::too_large_with_length),
    scenario(&[32], "too-large-chunked", "the same for a body in chunks", refuse::too_large_in_chunks),
    scenario(&[33], "many-large-bodies", "24 bodies of 2 MiB at once are answered or refused in good order", body::many_large_bodies),
    scenario(&[34], "gzip-body", "a gzip body arrives decoded, or as it is and labelled, or gets a 415", body::gzip_body),
    scenario(&[35, 36], "chunked-bodies", "chunked bodies arrive whole, framed in one way", body::chunked_bodies),
    scenario(&[35], "byte-by-byte", "a request may come byte by byte", body::byte_by_byte),
    scenario(&[37], "trailing-slash", "a trailing slash is the same path, without redirect", head::trailing_slash),
    scenario(&[38], "model-name", "the answer names the model that was asked for", body::model_name),
    scenario(&[42], "credentials", "the client's credentials do not reach the engine", head::credentials),
    scenario(&[53], "request-id", "a sane x-request-id is kept, sent on and returned, others are replaced", head::request_id),
    scenario(&[56], "expect-continue", "Expect: 100-continue is answered at once", head::expect_continue),
    scenario(&[], "pipelining", "pipelined requests are answered in order", head::pipelining),
    scenario(&[], "keep-alive", "one connection carries many requests, and survives refused ones", head::keep_alive),
    scenario(&[], "http-1.0", "a client of HTTP/1.0 gets no chunks and an end", head::http_1_0),
    scenario(&[], "hop-by-hop", "header lines for one hop end there", head::hop_by_hop),
    scenario(&[], "engine-errors", "the engine's error answers reach the client whole", head::engine_errors_pass),
    scenario(&[], "smuggling", "ambiguous heads and bodies are refused and the connection closed", refuse::smuggling),
    scenario(&[], "oversized-head", "heads beyond all bounds are refused", refuse::oversized_head),
];

/// Why there is no report.
#[derive(Debug)]
pub enum ChaosError {
    /// No scenario has this name.
    UnknownScenario(String),
    /// The engines or the proxy did not start.
    Start(io::Error),
}

impl std::fmt::Display for ChaosError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownScenario(name) => write!(f, "no scenario is called {name:?} (see --list)"),
            Self::Start(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ChaosError {}

impl From<io::Error> for ChaosError {
    fn from(error: io::Error) -> Self {
        Self::Start(error)
    }
}

/// Runs the scenarios one after the other and calls `seen` after each.
pub fn run(plan: &Plan, mut seen: impl FnMut(&Row)) -> Result<Report, ChaosError> {
    if let Some(name) = plan.only.iter().find(|name| SCENARIOS.iter().all(|scenario| scenario.name != **name)) {
        return Err(ChaosError::UnknownScenario(name.clone()));
    }
    let start = Instant::now();
    let mut rows = Vec::new();
    // A running proxy keeps its engines, others get fresh ones.
    let mut engines = match plan.front {
        Front::Running { .. } => Some(start_engines(plan)?),
        Front::Command(_) | Front::Embedded(_) => None,
    };
    let chosen = |scenario: &&Scenario| plan.only.is_empty() || plan.only.iter().any(|name| name == scenario.name);
    for scenario in SCENARIOS.iter().filter(chosen) {
        let began = Instant::now();
        let verdict = if start.elapsed() > plan.run_max {
            Verdict::Fail(format!("not run: {} s are over", plan.run_max.as_secs()))
        } else {
            play(plan, scenario, &mut engines)?
        };
        let row = Row {
            numbers: scenario.numbers,
            name: scenario.name,
            rule: scenario.rule,
            verdict,
            took_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        seen(&row);
        rows.push(row);
    }
    Ok(Report { rows })
}

fn play(plan: &Plan, scenario: &Scenario, kept: &mut Option<Vec<Engine>>) -> Result<Verdict, ChaosError> {
    let running = kept.is_some();
    let engines = match kept.take() {
        Some(engines) => engines,
        None => start_engines(plan)?,
    };
    let mut stage = Stage::set(plan, engines)?;
    let verdict = match (scenario.judge)(&mut stage) {
        Ok(remark) => Verdict::Pass(remark),
        Err(Miss::Fail(why)) => Verdict::Fail(why),
        Err(Miss::NotApplicable(why)) => Verdict::NotApplicable(why),
    };
    if running {
        *kept = Some(stage.strike()?);
    }
    Ok(verdict)
}
