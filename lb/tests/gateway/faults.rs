//! Engines that fail in every way, and clients that leave: who is hurt, who is not, and that no count is left behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::{Engine, Outcome, Settings};
use serde_json::{Value, json};
use socket2::SockRef;

use crate::support::client::{Ending, request};
use crate::support::engines::{ALIAS, MODEL, break_down, chat_of, engine_at_own_host, repair, restart, slow_engine};
use crate::support::{Client, Driver, Gateway, Setup, chat, engine, eventually, fleet, model_requests, stream};

on_both_drivers![
    a_reset_before_the_head_is_tried_elsewhere,
    a_close_before_the_head_is_tried_elsewhere,
    a_failing_engine_alone_is_a_502_in_json,
    a_reset_within_a_stream_is_one_error_event_and_no_done,
    an_early_end_of_a_stream_is_one_error_event_and_no_done,
    a_document_that_is_cut_off_is_a_502_in_json,
    a_silent_engine_is_a_504_after_the_first_byte_timeout,
    an_engine_that_falls_silent_is_an_error_event_after_the_idle_timeout,
    a_busy_engine_is_passed_over,
    what_every_engine_says_is_passed_on,
    an_engine_at_its_limit_gets_no_more,
    a_kept_connection_that_dies_is_no_matter_of_the_client,
    where_every_engine_is_ejected_they_are_asked_all_the_same,
    a_dead_engine_is_passed_over_and_comes_back_by_itself,
    a_killed_engine_hurts_only_the_streams_that_it_had_begun,
    a_client_that_closes_within_a_stream_frees_the_engine,
    a_client_that_resets_within_a_stream_frees_the_engine,
    a_client_that_leaves_a_silent_engine_frees_it,
    a_client_that_leaves_before_a_document_frees_the_engine,
    a_client_that_leaves_within_its_request_reaches_no_engine,
    a_client_that_does_not_read_holds_up_nobody_else,
];

fn start(driver: Driver, engines: &[&Engine], server: &str) -> Gateway {
    Setup::new(fleet(engines)).server(server).ready(engines.len()).start(driver)
}

/// Chats, each with a prompt of its own, until `seen`; every one must be answered.
fn chat_until(gateway: &Gateway, what: &str, mut seen: impl FnMut() -> bool) -> usize {
    for number in 0..500 {
        let prompt = format!("{number} times hello");
        let answer = gateway.chat(&format!("x-request-id: {number}\r\n"), &chat_of(MODEL, &prompt, 3, ""));
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["usage"]["completion_tokens"], 3);
        if seen() {
            return number;
        }
    }
    panic!("not within 500 requests: {what}");
}

fn is_tried_elsewhere(driver: Driver, faults: &str) {
    let (broken, good) = (engine(), engine());
    break_down(&broken, faults);
    let gateway = start(driver, &[&broken, &good], "");
    let number = chat_until(&gateway, "the broken engine is asked", || broken.stats().faulted > 0);
    let logged = gateway.log_of(&number.to_string());
    assert_eq!(
        (&logged["retries"], &logged["outcome"], &logged["endpoint"]),
        (&json!(1), &json!("ok"), &json!(good.addr().to_string()))
    );
    assert_eq!(gateway.metric("kinference_retries_total", &[]), 1.0);
    gateway.expect_nothing_in_flight();
}

fn a_reset_before_the_head_is_tried_elsewhere(driver: Driver) {
    is_tried_elsewhere(driver, "reset-before-head");
}

fn a_close_before_the_head_is_tried_elsewhere(driver: Driver) {
    is_tried_elsewhere(driver, "close-before-head");
}

fn a_failing_engine_alone_is_a_502_in_json(driver: Driver) {
    let engine = engine();
    break_down(&engine, "reset-before-head");
    let gateway = start(driver, &[&engine], "");
    let mut client = gateway.send_chat("x-request-id: alone\r\n", &stream(MODEL, 3));
    let answer = client.answer();
    assert_eq!((answer.status, answer.error_code().as_str()), (502, "upstream_reset"));
    assert_eq!(gateway.log_of("alone")["status"], 502);
    repair(&engine);
    client.send(request("/v1/chat/completions", "", &stream(MODEL, 3)));
    assert_eq!(client.answer().status, 200, "the client's connection and the engine are used again");
    gateway.expect_nothing_in_flight();
}

/// The stream has the events before the fault, then one error event, and ends in good order.
fn ends_in_an_error_event(gateway: &Gateway, faults: &str, code: &str) {
    for (model, more) in [(MODEL, ""), (ALIAS, ""), (MODEL, r#","stream_options":{"include_usage":true}"#)] {
        let id = format!("cut-{model}-{}", more.len());
        let body = chat_of(model, "Say hello.", 40, &format!(r#","stream":true{more}"#));
        let mut client = gateway.send_chat(&format!("x-request-id: {id}\r\nx-fault: {faults}=3\r\n"), &body);
        let answer = client.answer();
        assert_eq!(answer.status, 200);
        let events: Vec<Value> = answer.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
        assert_eq!(events.len(), 4, "{events:#?}");
        assert!(events[..3].iter().all(|event| event["model"] == model), "{events:#?}");
        assert_eq!(events[3]["error"]["code"], code);
        client.expect_end();
        assert_eq!(gateway.log_of(&id)["outcome"], "truncated");
    }
    assert_eq!(gateway.metric("kinference_requests_total", &["outcome=\"truncated\""]), 3.0);
    assert_eq!(gateway.metric("kinference_retries_total", &[]), 0.0);
    gateway.expect_nothing_in_flight();
}

fn a_reset_within_a_stream_is_one_error_event_and_no_done(driver: Driver) {
    let (one, two) = (engine(), engine());
    ends_in_an_error_event(&start(driver, &[&one, &two], ""), "reset-mid-stream", "upstream_reset");
}

fn an_early_end_of_a_stream_is_one_error_event_and_no_done(driver: Driver) {
    let (one, two) = (engine(), engine());
    ends_in_an_error_event(&start(driver, &[&one, &two], ""), "early-end", "upstream_reset");
}

fn a_document_that_is_cut_off_is_a_502_in_json(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &[&engine], "");
    for fault in ["reset-mid-stream=0", "early-end=0"] {
        let answer = gateway.chat(&format!("x-fault: {fault}\r\nx-request-id: {fault}\r\n"), &chat(MODEL, 40));
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "upstream_reset"), "{fault}");
        let logged = gateway.log_of(fault);
        assert_eq!((&logged["outcome"], &logged["status"]), (&json!("truncated"), &json!(502)));
    }
    gateway.expect_nothing_in_flight();
}

fn a_silent_engine_is_a_504_after_the_first_byte_timeout(driver: Driver) {
    let (one, two) = (engine(), engine());
    let gateway = start(driver, &[&one, &two], "timeouts: { firstByte: 300ms }");
    for body in [chat(MODEL, 3), stream(MODEL, 3)] {
        let answer = gateway.chat("x-fault: hang-before-head\r\n", &body);
        assert_eq!((answer.status, answer.error_code().as_str()), (504, "upstream_timeout"));
    }
    // The client has waited long enough: nobody else is asked.
    let requests = [model_requests(&one).len(), model_requests(&two).len()];
    assert_eq!(requests.iter().sum::<usize>(), 2, "{requests:?}");
    expect_outcomes(&one, Outcome::Aborted, requests[0]);
    expect_outcomes(&two, Outcome::Aborted, requests[1]);
    assert_eq!(gateway.metric("kinference_retries_total", &[]), 0.0);
    gateway.expect_nothing_in_flight();
}

fn an_engine_that_falls_silent_is_an_error_event_after_the_idle_timeout(driver: Driver) {
    let engine = engine();
    // Long enough for an engine that gets to run late between the events before.
    let gateway = start(driver, &[&engine], "timeouts: { idle: 1500ms }");
    ends_in_an_error_event(&gateway, "hang-mid-stream", "upstream_timeout");
    expect_outcomes(&engine, Outcome::Aborted, 3);
    let answer = gateway.chat("x-fault: hang-mid-stream=0\r\n", &chat(MODEL, 3));
    assert_eq!((answer.status, answer.error_code().as_str()), (504, "upstream_timeout"));
}

/// Waits until so many requests to the model ended in this way, and no other did.
fn expect_outcomes(engine: &Engine, outcome: Outcome, count: usize) {
    eventually(&format!("the engine counts {count} requests as {outcome:?}"), || {
        let requests = model_requests(engine);
        (requests.len() == count && requests.iter().all(|request| request.outcome == outcome)).then_some(())
    });
}

fn a_busy_engine_is_passed_over(driver: Driver) {
    for faults in ["status=503", "status=429/7"] {
        let (busy, good) = (engine(), engine());
        break_down(&busy, faults);
        let gateway = start(driver, &[&busy, &good], "");
        let number = chat_until(&gateway, "the busy engine is asked", || !model_requests(&busy).is_empty());
        assert_eq!(gateway.log_of(&number.to_string())["retries"], 1);
        assert_eq!(gateway.endpoint(busy.addr())["readiness"], "ready", "busy is not broken");
        gateway.expect_nothing_in_flight();
    }
}

fn what_every_engine_says_is_passed_on(driver: Driver) {
    let (one, two) = (engine(), engine());
    let gateway = start(driver, &[&one, &two], "");
    let mut client = Client::connect(gateway.address);
    for status in [429, 503] {
        let headers = format!("x-fault: status={status}/7\r\nx-request-id: all-{status}\r\n");
        client.send(request("/v1/chat/completions", &headers, &stream(MODEL, 3)));
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("retry-after")), (status, Some("7")));
        assert_eq!(answer.json()["error"]["code"], status);
        assert_eq!(gateway.log_of(&format!("all-{status}"))["retries"], 1);
    }
    assert_eq!((model_requests(&one).len(), model_requests(&two).len()), (2, 2));
    gateway.expect_nothing_in_flight();
}

fn an_engine_at_its_limit_gets_no_more(driver: Driver) {
    let engine = engine();
    let resources = fleet(&[&engine]).replace("  metrics:", "  limits: { maxInFlightPerEndpoint: 2 }\n  metrics:");
    let gateway = Setup::new(resources).start(driver);
    let held: Vec<_> = (0..2)
        .map(|_| {
            let mut client = gateway.send_chat("x-fault: hang-mid-stream=1\r\n", &stream(MODEL, 3));
            client.head();
            client
        })
        .collect();
    let answer = gateway.chat("", &stream(MODEL, 3));
    assert_eq!((answer.status, answer.error_code().as_str()), (429, "overloaded"));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(model_requests(&engine).len(), 2);
    drop(held);
    gateway.expect_nothing_in_flight();
    assert_eq!(gateway.chat("", &stream(MODEL, 3)).status, 200);
}

fn a_kept_connection_that_dies_is_no_matter_of_the_client(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &[&engine], "");
    for fault in ["close-on-reuse", "close-after"] {
        repair(&engine);
        break_down(&engine, fault);
        let mut client = Client::connect(gateway.address);
        for _ in 0..10 {
            for body in [chat(MODEL, 3), stream(ALIAS, 3)] {
                client.send(request("/v1/chat/completions", "", &body));
                assert_eq!(client.answer().status, 200);
            }
        }
    }
    assert!(gateway.metric("kinference_replays_total", &[]) >= 1.0);
    assert_eq!(gateway.metric("kinference_retries_total", &[]), 0.0);
    gateway.expect_nothing_in_flight();
}

fn where_every_engine_is_ejected_they_are_asked_all_the_same(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &[&engine], "");
    for _ in 0..5 {
        assert_eq!(gateway.chat("x-fault: status=500\r\n", &chat(MODEL, 1)).status, 500);
    }
    gateway.wait_for_readiness(engine.addr(), "ejected");
    // Within the second that the ejection lasts.
    assert_eq!(gateway.chat("", &chat(MODEL, 1)).status, 200);
}

fn a_dead_engine_is_passed_over_and_comes_back_by_itself(driver: Driver) {
    let (mut dying, good) = (engine_at_own_host(0), engine());
    let gateway = start(driver, &[&dying, &good], "");
    chat_until(&gateway, "both are asked", || [&dying, &good].iter().all(|engine| !model_requests(engine).is_empty()));
    dying.stop();
    let before = model_requests(&good).len();
    chat_until(&gateway, "the other one answers", || model_requests(&good).len() > before + 20);
    gateway.wait_for_readiness(dying.addr(), "not_ready");
    restart(&mut dying, &Settings::instant());
    gateway.wait_for_readiness(dying.addr(), "ready");
    chat_until(&gateway, "the first one is asked again", || !model_requests(&dying).is_empty());
    gateway.expect_nothing_in_flight();
}

/// What became of the requests of a client.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    whole: usize,
    cut: usize,
}

fn a_killed_engine_hurts_only_the_streams_that_it_had_begun(driver: Driver) {
    // Few, so that the budget of retries holds for all that lose their engine at the same moment.
    const CLIENTS: usize = 40;
    let (mut dying, good) = (engine_at_own_host(5), slow_engine(5));
    let gateway = Setup::new(fleet(&[&dying, &good])).threads(2).ready(2).start(driver);
    let stop = AtomicBool::new(false);
    let tally = std::thread::scope(|scope| {
        let gateway = &gateway;
        let stop = &stop;
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || ask_until(gateway, number, stop))).collect();
        // Only a test that fails ends before it says stop.
        let _stop = StopOnDrop(stop);
        eventually("both work", || [&dying, &good].iter().all(|engine| engine.stats().running > 0).then_some(()));
        dying.stop();
        gateway.wait_for_readiness(dying.addr(), "not_ready");
        restart(&mut dying, &Settings::instant());
        gateway.wait_for_readiness(dying.addr(), "ready");
        eventually("it is used again", || (!model_requests(&dying).is_empty()).then_some(()));
        stop.store(true, Ordering::SeqCst);
        let tallies = clients.into_iter().map(|client| client.join().expect("every other request is answered"));
        tallies.fold(Tally::default(), |sum, tally| Tally { whole: sum.whole + tally.whole, cut: sum.cut + tally.cut })
    });
    assert!(tally.cut <= CLIENTS && tally.whole > CLIENTS, "{tally:?}");
    gateway.expect_nothing_in_flight();
}

/// Says stop, whatever happens.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Asks one thing after the other. A stream may be cut off by an error event; anything else must be answered.
fn ask_until(gateway: &Gateway, number: usize, stop: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    while !stop.load(Ordering::SeqCst) {
        let prompt = format!("{number} says hello for the {}th time", tally.whole);
        if number % 2 == 1 {
            let answer = gateway.chat("", &chat_of(MODEL, &prompt, 10, ""));
            assert_eq!(answer.status, 200, "{answer:?}");
            tally.whole += 1;
            continue;
        }
        let answer = gateway.chat("", &chat_of(MODEL, &prompt, 10, r#","stream":true"#));
        assert_eq!(answer.status, 200, "{answer:?}");
        match answer.events().last().unwrap().as_str() {
            "[DONE]" => tally.whole += 1,
            last => {
                assert!(last.contains("upstream_reset"), "{last}");
                tally.cut += 1;
            }
        }
    }
    tally
}

/// A client leaves in the middle: nobody works for it any more, and that at once.
fn expect_freed(gateway: &Gateway, engine: &Engine, requests: usize) {
    // These engines answer for ever or never: only that the client left, which the outcome says, can end it.
    expect_outcomes(engine, Outcome::Aborted, requests);
    gateway.expect_nothing_in_flight();
    gateway.wait_for_metric("kinference_requests_total", &["outcome=\"client_gone\""], requests as f64);
    gateway.wait_for_metric("kinference_downstream_connections_open", &[], 0.0);
    assert_eq!(gateway.metric("kinference_retries_total", &[]), 0.0);
    assert_eq!(gateway.endpoint(engine.addr())["readiness"], "ready", "nothing is the engine's fault");
}

fn a_client_that_closes_within_a_stream_frees_the_engine(driver: Driver) {
    let engine = slow_engine(20);
    let gateway = start(driver, &[&engine], "");
    for model in [MODEL, ALIAS] {
        let mut client = gateway.send_chat("", &stream(model, 10_000));
        client.head();
        client.chunk();
    }
    expect_freed(&gateway, &engine, 2);
}

fn a_client_that_resets_within_a_stream_frees_the_engine(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &[&engine], "");
    for model in [MODEL, ALIAS] {
        let mut client = gateway.send_chat("x-fault: hang-mid-stream=2\r\n", &stream(model, 40));
        client.head();
        client.chunk();
        SockRef::from(client.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    }
    expect_freed(&gateway, &engine, 2);
}

fn a_client_that_leaves_a_silent_engine_frees_it(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &[&engine], "");
    let clients: Vec<_> = [chat(MODEL, 3), stream(MODEL, 3)]
        .iter()
        .flat_map(|body| {
            ["hang-before-head", "hang-mid-stream=0"]
                .map(|fault| gateway.send_chat(&format!("x-fault: {fault}\r\n"), body))
        })
        .collect();
    eventually("the engine has all requests", || (model_requests(&engine).len() == 4).then_some(()));
    assert_eq!(gateway.endpoint(engine.addr())["inFlight"], 4);
    drop(clients);
    expect_freed(&gateway, &engine, 4);
}

fn a_client_that_leaves_before_a_document_frees_the_engine(driver: Driver) {
    let engine = slow_engine(20);
    let gateway = start(driver, &[&engine], "");
    let client = gateway.send_chat("", &chat(MODEL, 10_000));
    eventually("the engine works", || (engine.stats().running == 1).then_some(()));
    drop(client);
    expect_freed(&gateway, &engine, 1);
}

fn a_client_that_leaves_within_its_request_reaches_no_engine(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &[&engine], "");
    for start in [
        "POST /v1/chat",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{\"model\"",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"mo",
    ] {
        let mut client = Client::sending(gateway.address, start);
        client.end_sending();
        let (answer, ending) = client.rest();
        assert_eq!((String::from_utf8_lossy(&answer).as_ref(), ending), ("", Ending::Closed), "{start}");
    }
    gateway.wait_for_metric("kinference_downstream_connections_open", &[], 0.0);
    assert!(model_requests(&engine).is_empty());
    gateway.expect_nothing_in_flight();
}

fn a_client_that_does_not_read_holds_up_nobody_else(driver: Driver) {
    const PAD_BYTES: usize = 40_000_000;
    let engine = engine();
    let gateway = start(driver, &[&engine], "");
    let mut lazy = gateway.send_chat(&format!("x-fault: huge-chunk={PAD_BYTES}\r\n"), &stream(MODEL, 3));
    lazy.head();
    for _ in 0..20 {
        assert_eq!(gateway.chat("", &chat(MODEL, 3)).status, 200);
    }
    let first = model_requests(&engine).remove(0);
    assert_eq!(first.outcome, Outcome::InProgress, "what is not read is not taken from the engine");
    let mut bytes = 0;
    loop {
        let chunk = lazy.chunk();
        if chunk.is_empty() {
            break;
        }
        bytes += chunk.len();
    }
    assert!(bytes > PAD_BYTES);
    gateway.expect_nothing_in_flight();
}
