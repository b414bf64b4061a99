//! Streams through the gateway: the same bytes that the engine sends, but for the name of the model and a usage that
//! the client did not ask for.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::client::request;
use crate::support::engines::{ALIAS, MODEL, break_down, break_once, chat_of};
use crate::support::{Answer, Client, Driver, Gateway, Setup, chat, engine, fleet, model_requests, post, stream};

on_both_drivers![
    a_stream_is_what_the_engine_sends_in_every_way_of_writing_it,
    events_of_completions_pass_as_well,
    every_event_is_on_its_way_before_the_next_one_is_made,
    usage_is_asked_for_upstream_and_hidden_from_who_did_not_ask,
    usage_is_shown_to_who_asked,
    continuous_usage_passes_as_asked,
    an_engine_without_usage_is_no_trouble,
    an_alias_is_replaced_upstream_and_back_in_every_event,
    an_alias_is_replaced_back_in_a_document,
    the_actual_model_is_shown_where_the_pool_says_so,
    an_event_larger_than_every_buffer_passes,
    a_document_larger_than_every_buffer_passes,
    an_error_event_of_the_engine_passes_and_is_logged,
    an_error_answer_of_the_engine_passes_as_it_is,
];

const CHATS: &str = "/v1/chat/completions";
const WITH_USAGE: &str = r#","stream":true,"stream_options":{"include_usage":true}"#;

/// Ways of putting a stream on the wire.
const WRITINGS: [&str; 12] = [
    "",
    "crlf-lines",
    "bare-data",
    "crlf-lines,bare-data",
    "byte-wise",
    "byte-wise,crlf-lines",
    "coalesce=7",
    "coalesce=1000",
    "split-chunks=1",
    "split-chunks=5,crlf-lines",
    "split-chunks=100",
    "huge-chunk=100000,split-chunks=3000",
];

fn start(driver: Driver, engine: &engine::Engine) -> Gateway {
    Setup::new(fleet(&[engine])).start(driver)
}

/// The body with every time of creation made the same.
fn timeless(answer: &Answer) -> String {
    let text = answer.text();
    let mut parts = text.split("\"created\":");
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        out.push_str("\"created\":0");
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    out
}

/// What the engine itself answers. The prompt may be in its cache or not, and the same it is for who asks next.
fn direct(engine: SocketAddr, path: &str, headers: &str, body: &str) -> Answer {
    post(engine, path, headers, body);
    post(engine, path, headers, body)
}

fn a_stream_is_what_the_engine_sends_in_every_way_of_writing_it(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let mut client = Client::connect(gateway.address);
    for writing in WRITINGS {
        let headers = format!("x-request-id: same\r\nx-fault: {writing}\r\n");
        let headers = if writing.is_empty() { "x-request-id: same\r\n" } else { &headers };
        let asked = chat_of(MODEL, "Say hello.", 40, WITH_USAGE);
        let expected = direct(engine.addr(), CHATS, headers, &asked);
        client.send(request(CHATS, headers, &asked));
        let answer = client.answer();
        assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
        assert_eq!(timeless(&answer), timeless(&expected), "{writing}");
        assert_eq!(answer.events().len(), 43, "{writing}");
        // Who does not ask for usage gets all events but that one.
        client.send(request(CHATS, headers, &stream(MODEL, 40)));
        let line_end = if writing.contains("crlf-lines") { "\r\n\r\n" } else { "\n\n" };
        let expected = timeless(&expected);
        let events = expected.split_inclusive(line_end).filter(|event| !event.contains(r#""choices":[],"#));
        assert_eq!(timeless(&client.answer()), events.collect::<String>(), "{writing}");
    }
}

fn events_of_completions_pass_as_well(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let body = format!(
        r#"{{"model":"{MODEL}","prompt":"Say hello.","max_tokens":20,"stream":true,"stream_options":{{"include_usage":true}}}}"#
    );
    let headers = "x-request-id: same\r\n";
    let expected = direct(engine.addr(), "/v1/completions", headers, &body);
    assert_eq!(timeless(&post(gateway.address, "/v1/completions", headers, &body)), timeless(&expected));
}

fn every_event_is_on_its_way_before_the_next_one_is_made(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let bodies = [stream(MODEL, 40), stream(ALIAS, 40), chat_of(MODEL, "Say hello.", 40, WITH_USAGE)];
    for body in &bodies {
        // The engine stops after some events, for good: what is not passed on at once never comes.
        for events in 0..4 {
            let mut client = gateway.send_chat(&format!("x-fault: hang-mid-stream={events}\r\n"), body);
            assert_eq!(client.head().status, 200);
            for _ in 0..events {
                client.read_through(b"\n\n");
            }
        }
    }
    gateway.expect_nothing_in_flight();
}

fn usage_is_asked_for_upstream_and_hidden_from_who_did_not_ask(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    for (number, options) in
        ["", r#","stream_options":{}"#, r#","stream_options":{"include_usage":false}"#, r#","stream_options":null"#]
            .iter()
            .enumerate()
    {
        let body = chat_of(MODEL, "Say hello.", 5, &format!(r#","stream":true{options}"#));
        let answer = gateway.chat(&format!("x-request-id: hidden-{number}\r\n"), &body);
        let events = answer.events();
        assert_eq!((events.len(), events.last().unwrap().as_str()), (7, "[DONE]"), "{options}");
        assert!(!answer.text().contains("usage"), "{options}");
        let seen: Value = serde_json::from_str(&model_requests(&engine)[number].body).unwrap();
        assert_eq!(seen["stream_options"]["include_usage"], true, "{options}");
        let logged = gateway.log_of(&format!("hidden-{number}"));
        assert_eq!((&logged["completion_tokens"], &logged["outcome"]), (&json!(5), &json!("ok")));
        assert!(logged["prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{logged}");
        assert!(logged["ttft_ms"].is_number(), "{logged}");
    }
    let tokens = gateway.metric("gen_ai_client_token_usage_total", &["gen_ai_token_type=\"output\""]);
    assert_eq!(tokens, 20.0);
}

fn usage_is_shown_to_who_asked(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    for model in [MODEL, ALIAS] {
        let events = gateway.chat("", &chat_of(model, "Say hello.", 5, WITH_USAGE)).events();
        let usage: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
        assert_eq!((&usage["usage"]["completion_tokens"], &usage["model"]), (&json!(5), &json!(model)));
        assert_eq!(events.last().unwrap(), "[DONE]");
    }
}

fn continuous_usage_passes_as_asked(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let more = r#","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    let events = gateway.chat("x-request-id: counted\r\n", &chat_of(MODEL, "Say hello.", 5, more)).events();
    let counts: Vec<_> = events[..6]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap()["usage"]["completion_tokens"].as_u64())
        .collect();
    assert_eq!(counts, [0, 1, 2, 3, 4, 5].map(Some));
    assert_eq!(gateway.log_of("counted")["completion_tokens"], 5);
}

fn an_engine_without_usage_is_no_trouble(driver: Driver) {
    let engine = engine();
    break_down(&engine, "no-usage");
    let gateway = start(driver, &engine);
    assert_eq!(gateway.chat("", &stream(MODEL, 5)).events().len(), 7);
    assert_eq!(gateway.chat("x-request-id: bare\r\n", &chat(MODEL, 5)).status, 200);
    assert_eq!(gateway.log_of("bare")["outcome"], "ok");
    gateway.expect_nothing_in_flight();
}

fn an_alias_is_replaced_upstream_and_back_in_every_event(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let plain = gateway.chat("x-request-id: same\r\n", &stream(MODEL, 40));
    let expected = timeless(&plain).replace(MODEL, ALIAS);
    for writing in WRITINGS {
        let headers = format!(
            "x-request-id: same\r\n{}",
            if writing.is_empty() { String::new() } else { format!("x-fault: {writing}\r\n") }
        );
        let answer = gateway.chat(&headers, &stream(ALIAS, 40));
        let text = timeless(&answer).replace("\r\n", "\n").replace("data:{", "data: {").replace("data:[", "data: [");
        let (start, end) = match text.find(r#","pad":""#) {
            Some(at) => (
                text[..at].to_owned(),
                text[at..]
                    .trim_start_matches(r#","pad":""#)
                    .trim_start_matches('x')
                    .strip_prefix('"')
                    .unwrap()
                    .to_owned(),
            ),
            None => (text, String::new()),
        };
        assert_eq!(start + &end, expected, "{writing}");
    }
    let seen: Value = serde_json::from_str(&model_requests(&engine).pop().unwrap().body).unwrap();
    assert_eq!(seen["model"], MODEL);
}

fn an_alias_is_replaced_back_in_a_document(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let plain = gateway.chat("x-request-id: same\r\n", &chat(MODEL, 40));
    post(engine.addr(), CHATS, "", &chat(MODEL, 40));
    let answer = gateway.chat("x-request-id: same\r\n", &chat(ALIAS, 40));
    assert_eq!(answer.json()["model"], ALIAS);
    let uncached = |text: String| text.replace(r#""cached_tokens":0"#, r#""cached_tokens":16"#);
    assert_eq!(uncached(timeless(&answer)), uncached(timeless(&plain).replace(MODEL, ALIAS)));
}

fn the_actual_model_is_shown_where_the_pool_says_so(driver: Driver) {
    let engine = engine();
    let resources = fleet(&[&engine]).replace("  destinations:", "  responseModel: Actual\n  destinations:");
    let gateway = Setup::new(resources).start(driver);
    assert_eq!(gateway.chat("", &chat(ALIAS, 5)).json()["model"], MODEL);
    let events = gateway.chat("", &stream(ALIAS, 5)).events();
    assert!(
        events[..6].iter().all(|event| serde_json::from_str::<Value>(event).unwrap()["model"] == MODEL),
        "{events:?}"
    );
}

fn an_event_larger_than_every_buffer_passes(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    // Under and over what is held back to be changed.
    for (bytes, model) in [(900_000, MODEL), (900_000, ALIAS), (3_000_000, MODEL), (3_000_000, ALIAS)] {
        let answer = gateway.chat(&format!("x-fault: huge-chunk={bytes}\r\n"), &stream(model, 5));
        let events = answer.events();
        assert_eq!(
            (
                events.len() - events.iter().filter(|event| event.contains(r#""choices":[],"#)).count(),
                events.last().unwrap().as_str()
            ),
            (7, "[DONE]")
        );
        let first: Value = serde_json::from_str(&events[0]).unwrap();
        assert_eq!(first["pad"].as_str().map(str::len), Some(bytes));
        assert_eq!(answer.said(), post(engine.addr(), CHATS, "", &stream(MODEL, 5)).said());
    }
}

fn a_document_larger_than_every_buffer_passes(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    // Under and over what is collected to be changed.
    for (bytes, model, shown) in [(1_000_000, ALIAS, ALIAS), (10_000_000, MODEL, MODEL)] {
        let json = gateway.chat(&format!("x-fault: huge-chunk={bytes}\r\n"), &chat(model, 5)).json();
        assert_eq!((json["pad"].as_str().map(str::len), json["model"].as_str()), (Some(bytes), Some(shown)));
    }
}

fn an_error_event_of_the_engine_passes_and_is_logged(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    for model in [MODEL, ALIAS] {
        let answer = gateway.chat(&format!("x-request-id: {model}\r\nx-fault: error-event=3\r\n"), &stream(model, 40));
        let events = answer.events();
        assert_eq!((events.len(), events[4].as_str()), (5, "[DONE]"), "{events:?}");
        assert_eq!(serde_json::from_str::<Value>(&events[3]).unwrap()["error"]["type"], "InternalServerError");
        assert_eq!(gateway.log_of(model)["outcome"], "error_event");
    }
}

fn an_error_answer_of_the_engine_passes_as_it_is(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let bad = chat_of(MODEL, "Say hello.", 5, r#","n":3"#);
    let expected = post(engine.addr(), CHATS, "", &bad);
    let answer = gateway.chat("x-request-id: bad\r\n", &bad);
    assert_eq!((answer.status, answer.text()), (400, expected.text()));
    assert_eq!(gateway.log_of("bad")["status"], 400);
    break_once(&engine, "status=500");
    assert_eq!(gateway.chat("", &chat(MODEL, 5)).status, 500);
    assert_eq!(gateway.chat("", &chat(MODEL, 5)).status, 200, "one error is not the end");
}
