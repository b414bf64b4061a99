//! The scenarios against a small proxy: none fails one that does right, and each fails one that sins against it.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]
#![allow(clippy::wildcard_enum_match_arm, reason = "each sin is the exception to one rule")]

mod proxy;
mod wire;

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use loadtest::chaos::{Embedded, Front, Plan, Report, SCENARIOS, Verdict, run};
use proxy::Sin::{self, *};

/// A proxy that does right is waited for also on a busy machine, and so is one that collects, which takes its time for it; from
/// any other that sins most of what is waited for never comes.
fn patience(sin: Sin) -> Duration {
    Duration::from_secs(if matches!(sin, Nothing | CollectsAnswers) { 40 } else { 3 })
}

fn judge(sin: Sin, only: &[&str]) -> Report {
    let front = Front::Embedded(Box::new(move |engines| {
        let proxy = proxy::Proxy::start(engines, sin)?;
        Ok(Embedded { addr: proxy.addr, handle: Box::new(proxy) })
    }));
    let plan = Plan {
        patience: patience(sin),
        silence: Duration::from_millis(500),
        first_byte_timeout: Some(proxy::first_byte_max(sin)),
        only: only.iter().map(|name| (*name).to_owned()).collect(),
        ..Plan::new(front)
    };
    run(&plan, |_| {}).unwrap()
}

/// Each sin with the scenarios that must find it.
const SINS: &[(Sin, &[&str])] = &[
    (
        WorksForTheGone,
        &["close-within-stream", "reset-within-stream", "leave-silent-engine", "leave-unstreamed", "load-after-aborts"],
    ),
    (SendsHalfRequests, &["leave-within-request"]),
    (LeaksUsage, &["usage"]),
    (TidiesStreams, &["sse-variants", "odd-ends"]),
    (CollectsAnswers, &["events-at-once", "back-pressure"]),
    (InventsDone, &["cut-within-stream"]),
    (RetriesWithinAnswers, &["cut-within-stream"]),
    (FillsDocuments, &["cut-within-document"]),
    (
        NeverRetries,
        &["reset-before-head", "close-before-head", "busy-503", "busy-429", "bad-gateway-502", "connection-refused"],
    ),
    (RetriesForEver, &["all-busy"]),
    (IsImpatient, &["silence"]),
    (ReusesBlindly, &["keep-alive-race"]),
    (TakesTurns, &["slow-endpoint", "slow-reader"]),
    (WaitsForEver, &["first-byte-timeout"]),
    (NeverForgives, &["dead-and-back", "failing-and-back", "load-after-restart"]),
    (NeverEjects, &["failing-and-back"]),
    (BlamesForClientErrors, &["client-errors"]),
    (PrefersTheFirst, &["burst"]),
    (KnowsItsPaths, &["unknown-paths"]),
    (SerialisesAnew, &["odd-members", "lone-surrogates", "bytes-stay"]),
    (RefusesInPlainText, &["no-model", "too-large-length", "too-large-chunked"]),
    (ResetsLargeRequests, &["too-large-length", "too-large-chunked", "many-large-bodies"]),
    (DropsLabels, &["gzip-body"]),
    (RefusesChunks, &["chunked-bodies"]),
    (ReadsOnce, &["byte-by-byte"]),
    (Redirects, &["trailing-slash"]),
    (RenamesModels, &["model-name"]),
    (PassesEverything, &["credentials", "hop-by-hop", "request-id"]),
    (IgnoresExpectations, &["expect-continue"]),
    (AnswersOnce, &["pipelining", "keep-alive"]),
    (ChunksForAll, &["http-1.0"]),
    (ReplacesErrors, &["engine-errors"]),
    (GuessesLengths, &["smuggling"]),
    (BlamesItself, &["oversized-head"]),
];

#[test]
fn a_proxy_that_does_right_passes_everything() {
    let report = judge(Nothing, &[]);
    let wrong: Vec<_> = report.rows.iter().filter(|row| !matches!(row.verdict, Verdict::Pass(_))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(report.rows.len(), SCENARIOS.len());
}

#[test]
fn every_sin_is_found() {
    /// Most of the time is spent waiting for what does not come.
    const THREADS: usize = 4;
    std::thread::scope(|scope| {
        for first in 0..THREADS {
            scope.spawn(move || {
                for (sin, names) in SINS.iter().skip(first).step_by(THREADS) {
                    let report = judge(*sin, names);
                    for row in &report.rows {
                        assert!(matches!(row.verdict, Verdict::Fail(_)), "{sin:?} is not found: {row}");
                    }
                    assert_eq!(report.rows.len(), names.len());
                }
            });
        }
    });
}

#[test]
fn a_running_proxy_keeps_its_engines_from_one_scenario_to_the_next() {
    // On an address that no client of another test connects from: between the look and the start a port there stays free.
    let free = |_| TcpListener::bind("127.0.0.9:0").unwrap().local_addr().unwrap();
    let engines: Vec<SocketAddr> = (0..2).map(free).collect();
    for (sin, right) in [(Nothing, true), (SerialisesAnew, false)] {
        let proxy = proxy::Proxy::start(&engines, sin).unwrap();
        let front = Front::Running { addr: proxy.addr, base_path: String::new(), engines: engines.clone() };
        let only = ["busy-503", "connection-refused", "dead-and-back", "load-after-restart", "bytes-stay"];
        let only = only.iter().map(|name| (*name).to_owned()).collect();
        let report = run(&Plan { patience: patience(Nothing), only, ..Plan::new(front) }, |_| {}).unwrap();
        let (last, others) = report.rows.split_last().unwrap();
        assert!(others.iter().all(|row| matches!(row.verdict, Verdict::Pass(_))), "{others:#?}");
        assert_eq!(matches!(last.verdict, Verdict::Pass(_)), right, "{last}");
    }
}

#[test]
fn there_is_a_sin_against_every_scenario() {
    let found: Vec<&str> = SINS.iter().flat_map(|(_, names)| *names).copied().collect();
    let missing: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).filter(|name| !found.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn nothing_passes_against_a_proxy_that_makes_up_its_answers() {
    let report = judge(MakesUpAnswers, &[]);
    let passed: Vec<_> = report.rows.iter().filter(|row| matches!(row.verdict, Verdict::Pass(_))).collect();
    assert!(passed.is_empty(), "{passed:#?}");
}

#[test]
fn a_scenario_that_is_unknown_is_named() {
    let front = Front::Command("false".to_owned());
    let plan = Plan { only: vec!["no-such".to_owned()], ..Plan::new(front) };
    assert!(run(&plan, |_| {}).unwrap_err().to_string().contains("no-such"));
}
