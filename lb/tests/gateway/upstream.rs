//! Answers that are good HTTP in unusual forms, and answers that are none.

use serde_json::json;

use crate::support::client::request;
use crate::support::engines::{ALIAS, MODEL, pool, worker_set_at};
use crate::support::scripted::{Scripted, Then, document};
use crate::support::{Client, Driver, Gateway, Setup, chat, stream};

on_both_drivers![
    an_answer_that_is_no_http_is_a_502_in_json,
    an_answer_with_two_lengths_is_chunked_and_the_last_on_its_connection,
    bytes_behind_an_answer_belong_to_nobody,
    an_answer_that_ends_with_its_connection_passes,
    interim_answers_are_not_the_answer,
    an_answer_without_a_body_has_none,
    broken_chunks_at_the_start_of_a_stream_are_a_502_in_json,
    broken_chunks_within_a_stream_are_one_error_event,
    headers_of_the_upstream_hop_stay_there,
    what_an_idle_server_says_reaches_no_other_client,
    an_answer_that_comes_before_the_body_is_sent_ends_the_upload,
    a_kept_connection_that_ends_under_a_large_body_is_replayed,
];

const JSON: &str = r#"{"object":"chat.completion","model":"org/tiny-1"}"#;

fn start(driver: Driver, upstream: &Scripted) -> Gateway {
    Setup::new(worker_set_at("workers", MODEL, ALIAS, &[upstream.address]) + &pool(&["workers"], &[])).start(driver)
}

/// Two chats on one connection, and on how many connections of the upstream they came.
fn two_chats(gateway: &Gateway, upstream: &Scripted) -> usize {
    let mut client = Client::connect(gateway.address);
    for _ in 0..2 {
        client.send(request("/v1/chat/completions", "", &chat(MODEL, 3)));
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, JSON), "{answer:?}");
    }
    client.end_sending();
    client.expect_end();
    let mut connections = upstream.chats();
    assert_eq!(connections.len(), 2);
    connections.dedup();
    connections.len()
}

fn an_answer_that_is_no_http_is_a_502_in_json(driver: Driver) {
    let long_head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "a".repeat(80 << 10));
    let many_lines = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: 1\r\n".repeat(200));
    let lengths = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!";
    for bytes in [
        "hello",
        "SSH-2.0-OpenSSH_9.9\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 200 O",
        lengths,
        &long_head,
        &many_lines,
    ] {
        let upstream = Scripted::start(bytes, Then::Close);
        let gateway = start(driver, &upstream);
        let answer = gateway.chat("", &stream(MODEL, 3));
        assert_eq!(
            (answer.status, answer.error_code().as_str()),
            (502, "upstream_bad_answer"),
            "{:?}",
            &bytes[..20.min(bytes.len())]
        );
        gateway.expect_nothing_in_flight();
    }
}

fn an_answer_with_two_lengths_is_chunked_and_the_last_on_its_connection(driver: Driver) {
    let bytes = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{JSON}\r\n0\r\n\r\n",
        JSON.len()
    );
    let upstream = Scripted::start(bytes, Then::Keep);
    let gateway = start(driver, &upstream);
    assert_eq!(two_chats(&gateway, &upstream), 2);
}

fn bytes_behind_an_answer_belong_to_nobody(driver: Driver) {
    let upstream = Scripted::start(document(JSON) + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", Then::Keep);
    let gateway = start(driver, &upstream);
    assert_eq!(two_chats(&gateway, &upstream), 2);
}

fn an_answer_that_ends_with_its_connection_passes(driver: Driver) {
    for version in ["1.0", "1.1"] {
        let upstream = Scripted::start(
            format!("HTTP/{version} 200 OK\r\nContent-Type: application/json\r\n\r\n{JSON}"),
            Then::Close,
        );
        let gateway = start(driver, &upstream);
        assert_eq!(two_chats(&gateway, &upstream), 2);
    }
    let events = "data: {\"model\":\"org/tiny-1\"}\n\ndata: [DONE]\n\n";
    let upstream =
        Scripted::start(format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{events}"), Then::Close);
    let gateway = start(driver, &upstream);
    assert_eq!(gateway.chat("", &stream(MODEL, 3)).text(), events);
    assert_eq!(gateway.chat("", &stream(ALIAS, 3)).text(), events.replace(MODEL, ALIAS));
}

fn interim_answers_are_not_the_answer(driver: Driver) {
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
    let upstream = Scripted::start(format!("{interim}{}", document(JSON)), Then::Keep);
    let gateway = start(driver, &upstream);
    assert_eq!(two_chats(&gateway, &upstream), 1);
}

fn an_answer_without_a_body_has_none(driver: Driver) {
    for (head, status) in [("204 No Content\r\n", 204), ("200 OK\r\nContent-Length: 0\r\n", 200)] {
        let upstream = Scripted::start(format!("HTTP/1.1 {head}\r\n"), Then::Keep);
        let gateway = start(driver, &upstream);
        let mut client = Client::connect(gateway.address);
        for _ in 0..2 {
            client.send(request("/v1/chat/completions", "", &chat(MODEL, 3)));
            let answer = client.answer();
            assert_eq!((answer.status, answer.text().as_str()), (status, ""), "{answer:?}");
        }
    }
}

/// A stream of one event and a broken chunk.
fn broken_stream(pad_bytes: usize) -> Scripted {
    let event = format!("data: {{\"model\":\"org/tiny-1\",\"pad\":\"{}\"}}\n\n", "x".repeat(pad_bytes));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    Scripted::start(format!("{head}{:x}\r\n{event}\r\nnonsense\r\n", event.len()), Then::Keep)
}

fn broken_chunks_at_the_start_of_a_stream_are_a_502_in_json(driver: Driver) {
    let upstream = broken_stream(0);
    let gateway = start(driver, &upstream);
    for model in [MODEL, ALIAS] {
        let answer = gateway.chat("", &stream(model, 3));
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "upstream_bad_answer"));
    }
    gateway.expect_nothing_in_flight();
}

fn broken_chunks_within_a_stream_are_one_error_event(driver: Driver) {
    // More than any first receive brings.
    let upstream = broken_stream(500_000);
    let gateway = start(driver, &upstream);
    let answer = gateway.chat("", &stream(MODEL, 3));
    assert_eq!(answer.status, 200);
    let events = answer.events();
    let error: serde_json::Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "upstream_bad_answer");
    assert!(events.len() <= 2 && !answer.text().contains("[DONE]"));
    gateway.wait_for_metric("kinference_requests_total", &["outcome=\"truncated\""], 1.0);
}

fn headers_of_the_upstream_hop_stay_there(driver: Driver) {
    let lines = "Connection: x-private\r\nx-private: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\nX-Public: 1\r\n";
    let upstream = Scripted::start(document(JSON).replacen("\r\n", &format!("\r\n{lines}"), 1), Then::Keep);
    let gateway = start(driver, &upstream);
    let answer = gateway.chat("", &chat(MODEL, 3));
    for name in ["connection", "x-private", "keep-alive", "proxy-authenticate", "upgrade"] {
        assert_eq!(answer.header(name), None, "{}", answer.head);
    }
    assert_eq!((answer.header("x-public"), answer.json()["object"].clone()), (Some("1"), json!("chat.completion")));
}

fn what_an_idle_server_says_reaches_no_other_client(driver: Driver) {
    let junk = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{\"EVIL\":1}";
    let upstream = Scripted::start(document(JSON), Then::Say(junk));
    let gateway = start(driver, &upstream);
    for _ in 0..6 {
        let answer = gateway.chat("", &chat(MODEL, 3));
        assert_eq!((answer.status, answer.text().as_str()), (200, JSON));
        // Time for the junk to arrive on the kept connection.
        upstream.wait_until_said();
    }
}

fn an_answer_that_comes_before_the_body_is_sent_ends_the_upload(driver: Driver) {
    let refusal = "HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let upstream = Scripted::start(refusal, Then::Hold);
    let gateway = start(driver, &upstream);
    let body = format!("{}{}", chat(MODEL, 2), " ".repeat(24 << 20));
    let answer = gateway.chat("", &body);
    assert_eq!((answer.status, answer.text().as_str()), (413, "{}"));
    gateway.expect_nothing_in_flight();
}

fn a_kept_connection_that_ends_under_a_large_body_is_replayed(driver: Driver) {
    let upstream = Scripted::start(document(JSON), Then::EndAtNext);
    let gateway = start(driver, &upstream);
    // More than the buffers of two sockets hold: it is still being sent when the server ends its side.
    for body in [chat(MODEL, 2), format!("{}{}", chat(MODEL, 2), " ".repeat(24 << 20))] {
        let answer = gateway.chat("", &body);
        assert_eq!((answer.status, answer.text().as_str()), (200, JSON));
    }
    assert_eq!(gateway.metric("kinference_replays_total", &[]), 1.0);
    assert_eq!(upstream.chats().len(), 2);
    gateway.expect_nothing_in_flight();
}
