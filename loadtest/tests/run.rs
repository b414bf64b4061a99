//! Whole runs against the simulated engine: what each fault looks like to the generator, and that right is right.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::time::Duration;

use engine::{Engine, Settings};
use loadtest::{
    load::{Abandon, Plan, Shape},
    pace::Arrivals,
    report::{Report, Verdict},
    run::{Progress, run},
    verify::Strictness,
    workload::{Api, Workload},
};

fn engine() -> Engine {
    Engine::start(Settings::instant()).expect("loopback has a free port")
}

/// Twenty requests, two at a time, each checked to the byte.
fn plan(engine: &Engine) -> Plan {
    Plan {
        targets: vec![format!("http://{}", engine.addr()).parse().unwrap()],
        workload: Workload {
            api: Api::Chat,
            model: "mock".to_owned(),
            prompt_tokens: 5..=60,
            output_tokens: 5..=20,
            shared_prefix_tokens: 0,
            stream_share: 0.5,
            conversations: 0,
            turns: 1,
        },
        shape: Shape::Closed { concurrency: 2 },
        duration: Duration::from_secs(60),
        requests_max: Some(20),
        timeout: Duration::from_secs(180),
        connections_max: 8,
        threads: 1,
        strictness: Strictness::Engine,
        headers: String::new(),
        abandon: Abandon::default(),
        seed: 1,
    }
}

fn with_fault(fault: &str, stream_share: f64) -> Report {
    let engine = engine();
    let mut plan = plan(&engine);
    plan.headers = format!("x-fault: {fault}\r\n");
    plan.workload.stream_share = stream_share;
    run(&plan, Progress::Hidden).unwrap()
}

fn classes(report: &Report) -> Vec<(&str, u64)> {
    report.requests.iter().map(|(class, count)| (class.as_str(), *count)).collect()
}

#[test]
fn clients_that_leave_are_no_failures_and_the_engine_sees_them_go() {
    let engine = Engine::start(Settings::default()).expect("loopback has a free port");
    let mut plan = plan(&engine);
    plan.workload.output_tokens = 2_000..=2_000;
    plan.abandon = Abandon { share: 1.0, within: Duration::from_millis(20) };
    let report = run(&plan, Progress::Hidden).unwrap();
    assert_eq!(classes(&report), [("abandoned", 20)]);
    assert_eq!(report.verdict(), Verdict::Right);
}

#[test]
fn all_answers_of_a_faultless_engine_are_right() {
    let engine = engine();
    for api in [Api::Chat, Api::Completions] {
        for strictness in [Strictness::Engine, Strictness::Structure] {
            let mut plan = plan(&engine);
            plan.workload.api = api;
            plan.strictness = strictness;
            let report = run(&plan, Progress::Hidden).unwrap();
            assert_eq!(classes(&report), [("ok", 20)], "{api:?} {strictness:?}: {:?}", report.examples);
            assert_eq!(report.duration.count, 20);
            assert!(report.first_token.count > 0 && report.first_token.count < 20, "half of them stream");
        }
    }
    engine.wait_until(Duration::from_secs(180), |stats| stats.completed == 80).unwrap();
}

#[test]
fn connections_are_kept_and_bounded() {
    let engine = engine();
    let mut plan = plan(&engine);
    plan.shape = Shape::Closed { concurrency: 10 };
    plan.connections_max = 3;
    let report = run(&plan, Progress::Hidden).unwrap();
    assert_eq!(classes(&report), [("ok", 20)]);
    assert!(engine.stats().connections_accepted <= 3);
}

#[test]
fn an_open_loop_sends_every_request_from_every_thread() {
    let engine = engine();
    let mut plan = plan(&engine);
    plan.shape = Shape::Open { rate: 2000.0, arrivals: Arrivals::Poisson };
    plan.threads = 3;
    let report = run(&plan, Progress::Hidden).unwrap();
    assert_eq!(classes(&report), [("ok", 20)]);
    assert_eq!(engine.stats().received, 20);
    assert_eq!(report.lag.count, 20);
}

#[test]
fn the_run_ends_at_its_duration() {
    let engine = engine();
    let mut plan = plan(&engine);
    plan.requests_max = None;
    plan.duration = Duration::from_millis(50);
    let report = run(&plan, Progress::Hidden).unwrap();
    assert!(report.requests["ok"] > 0);
    assert!(report.elapsed_s >= 0.05);
}

#[test]
fn turns_of_a_conversation_find_their_past_in_the_cache() {
    let engine = engine();
    let mut plan = plan(&engine);
    plan.workload.conversations = 2;
    plan.workload.turns = 5;
    plan.workload.prompt_tokens = 100..=100;
    let report = run(&plan, Progress::Hidden).unwrap();
    assert_eq!(classes(&report), [("ok", 20)]);
    let share = report.cached_tokens as f64 / report.prompt_tokens as f64;
    assert!(share > 0.5, "two thirds of five growing prompts are repetition, found {share}");
    assert_eq!(engine.stats().cached_tokens, report.cached_tokens);
}

#[test]
fn several_targets_take_turns() {
    let engines = [engine(), engine()];
    let mut plan = plan(&engines[0]);
    plan.targets.push(format!("http://{}", engines[1].addr()).parse().unwrap());
    run(&plan, Progress::Hidden).unwrap();
    assert_eq!(engines.each_ref().map(|engine| engine.stats().received), [10, 10]);
}

#[test]
fn harmless_forms_of_a_stream_are_right() {
    for fault in ["crlf-lines", "bare-data", "byte-wise", "coalesce=4", "split-chunks=5", "huge-chunk=200000"] {
        let report = with_fault(fault, 1.0);
        assert_eq!(classes(&report), [("ok", 20)], "{fault}: {:?}", report.examples);
    }
}

#[test]
fn failures_are_counted_by_class_and_are_not_wrong() {
    for (fault, class) in [
        ("reset-before-head", "reset"),
        ("reset-mid-stream=2", "reset"),
        ("close-before-head", "closed before answer"),
        ("early-end=2", "truncated"),
        ("error-event=2", "error event"),
        ("status=429/1", "status 429"),
    ] {
        let report = with_fault(fault, 1.0);
        assert_eq!(classes(&report), [(class, 20)], "{fault}");
        assert_eq!(report.verdict(), Verdict::Unanswered, "{fault}");
    }
}

#[test]
fn a_silent_engine_is_a_timeout() {
    let engine = engine();
    let mut plan = plan(&engine);
    plan.headers = "x-fault: hang-mid-stream=2\r\n".to_owned();
    plan.workload.stream_share = 1.0;
    plan.timeout = Duration::from_millis(500);
    plan.requests_max = Some(2);
    assert_eq!(classes(&run(&plan, Progress::Hidden).unwrap()), [("timeout", 2)]);
    engine.wait_until(Duration::from_secs(180), |stats| stats.aborted == 2).unwrap();
}

#[test]
fn nobody_listening_is_a_failure_to_connect() {
    // Where nobody else takes a port.
    let mut engine =
        Engine::start(Settings { listen: ([127, 0, 0, 9], 0).into(), ..Settings::instant() }).expect("a free port");
    let plan = plan(&engine);
    engine.stop();
    assert_eq!(classes(&run(&plan, Progress::Hidden).unwrap()), [("connect", 20)]);
}

#[test]
fn a_connection_closed_under_a_request_is_replaced() {
    let report = with_fault("close-on-reuse", 0.0);
    assert_eq!(classes(&report), [("ok", 20)]);
    assert!(report.resent > 0);
}

#[test]
fn incomplete_answers_in_good_form_are_wrong() {
    for (fault, needle) in [("no-done", "[DONE]"), ("no-usage", "usage")] {
        let report = with_fault(fault, 1.0);
        assert_eq!((classes(&report), report.verdict()), (vec![("wrong", 20)], Verdict::Wrong), "{fault}");
        assert!(report.examples[0].contains(needle), "{fault}: {:?}", report.examples);
    }
}

#[test]
fn an_answer_is_checked_against_the_model_it_names() {
    let models = vec!["mock".to_owned(), "alias".to_owned()];
    let engine = Engine::start(Settings { models, ..Settings::instant() }).unwrap();
    let mut plan = plan(&engine);
    plan.workload.model = "alias".to_owned();
    assert_eq!(classes(&run(&plan, Progress::Hidden).unwrap()), [("ok", 20)]);
    plan.workload.model = "unknown".to_owned();
    assert_eq!(classes(&run(&plan, Progress::Hidden).unwrap()), [("status 404", 20)]);
}
