//! Comments in streams whose engine is silent.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use crate::backend::{ALIAS, Backend, MODEL};
use crate::support::client::request;
use crate::support::{Client, Driver, Setup, stream};

on_both_drivers![
    a_silent_stream_is_pinged_between_its_events_and_only_there,
    a_renamed_stream_is_pinged_between_the_events_the_client_sees,
    a_client_of_http_1_0_is_pinged_as_well,
    pings_do_not_keep_a_dead_engine_alive,
    nobody_is_pinged_unasked,
    what_cannot_hold_a_comment_gets_none,
];

const PING: &str = ": ping\n\n";
const EVENT: &str = "data: {\"model\":\"tiny\",\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const EVENTS: &str = "Content-Type: text/event-stream\r\n";

/// A backend that sends `head` and `begin`, is silent until it is told, and sends `rest`. The header `x-silent` of a request
/// says whether it takes part; others are answered at once.
fn silent(head: &str, begin: &str, rest: &str) -> (Backend, Sender<()>) {
    let (tell, told) = channel();
    let told: Mutex<Receiver<()>> = Mutex::new(told);
    let (begin, rest) = (format!("HTTP/1.1 200 OK\r\n{head}\r\n{begin}"), rest.to_owned());
    let backend = Backend::start(move |_, stream| {
        stream.write_all(begin.as_bytes())?;
        // An error is the end of the test.
        let _ = told.lock().unwrap_or_else(PoisonError::into_inner).recv();
        stream.write_all(rest.as_bytes())
    });
    (backend, tell)
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

const CHUNKED: &str = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n";

fn a_silent_stream_is_pinged_between_its_events_and_only_there(driver: Driver) {
    let (between, go_on) = silent(CHUNKED, &chunk(EVENT), &(chunk(EVENT) + "0\r\n\r\n"));
    let (inside, go_on_inside) = silent(CHUNKED, &chunk(&EVENT[..20]), &(chunk(&EVENT[20..]) + "0\r\n\r\n"));
    let body = stream(MODEL, 3).replace("\"stream\":true", r#""stream":true,"stream_options":{"include_usage":true}"#);
    let start = |backend: &Backend| Setup::new(backend.documents()).server("streamPing: 100ms").start(driver);
    let (between, inside) = ((start(&between), between), (start(&inside), inside));
    let mut inside_client = inside.0.send_chat("", &body);
    assert_eq!(inside_client.head().status, 200);
    let mut client = between.0.send_chat("x-request-id: pinged\r\n", &body);
    assert_eq!(client.head().status, 200);
    assert_eq!(client.chunk(), EVENT.as_bytes());
    for _ in 0..3 {
        assert_eq!(client.chunk(), PING.as_bytes());
    }
    go_on.send(()).unwrap();
    let mut rest = String::new();
    loop {
        match client.chunk() {
            chunk if chunk.is_empty() => break,
            chunk => rest.push_str(std::str::from_utf8(&chunk).unwrap()),
        }
    }
    assert_eq!(rest.replace(PING, ""), EVENT);
    assert_eq!(between.0.log_of("pinged")["outcome"], "ok");
    // As long as that, the other stream stood in the middle of an event.
    go_on_inside.send(()).unwrap();
    let head = crate::support::Answer { status: 200, head: "Transfer-Encoding: chunked\r\n".into(), body: Vec::new() };
    assert_eq!(inside_client.body_of(head).text(), EVENT);
}

fn a_renamed_stream_is_pinged_between_the_events_the_client_sees(driver: Driver) {
    // The engine stops within its second event, of which the client has seen nothing.
    let begin = chunk(&(EVENT.to_owned() + &EVENT[..20]));
    let (backend, go_on) = silent(CHUNKED, &begin, &(chunk(&EVENT[20..]) + "0\r\n\r\n"));
    let gateway = Setup::new(backend.documents()).server("streamPing: 100ms").start(driver);
    let mut client = gateway.send_chat("", &stream(ALIAS, 3));
    let head = client.head();
    let shown = EVENT.replace("tiny", ALIAS);
    assert_eq!(client.chunk(), shown.as_bytes());
    assert_eq!(client.chunk(), PING.as_bytes());
    assert_eq!(client.chunk(), PING.as_bytes());
    go_on.send(()).unwrap();
    assert_eq!(client.body_of(head).text().replace(PING, ""), shown);
}

fn a_client_of_http_1_0_is_pinged_as_well(driver: Driver) {
    let (backend, go_on) = silent(CHUNKED, &chunk(EVENT), &(chunk(EVENT) + "0\r\n\r\n"));
    let gateway = Setup::new(backend.documents()).server("streamPing: 100ms").start(driver);
    let asked = request("/v1/chat/completions", "", &stream(MODEL, 3)).replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut client = Client::sending(gateway.address, asked);
    assert_eq!(client.head().header("transfer-encoding"), None);
    assert_eq!(client.read_through(PING.as_bytes()), [EVENT, PING].concat().as_bytes());
    assert_eq!(client.read_through(PING.as_bytes()), PING.as_bytes());
    go_on.send(()).unwrap();
    assert_eq!(String::from_utf8(client.rest().0).unwrap().replace(PING, ""), EVENT);
}

fn pings_do_not_keep_a_dead_engine_alive(driver: Driver) {
    let (backend, _go_on) = silent(CHUNKED, &chunk(EVENT), "");
    let server = "streamPing: 100ms\ntimeouts: { idle: 350ms }";
    let gateway = Setup::new(backend.documents()).server(server).start(driver);
    let text = gateway.chat("x-request-id: dead\r\n", &stream(MODEL, 3)).text();
    // As many as there is time for; a thread that gets to run late says fewer.
    assert!(text.matches(PING).count() <= 3, "{text}");
    assert!(text.contains("upstream_timeout") && !text.contains("[DONE]"), "{text}");
    assert_eq!(gateway.log_of("dead")["outcome"], "truncated");
    gateway.expect_nothing_in_flight();
}

/// Runs one silent stream with pings beside another, and gives what that one got while three pings went by.
fn beside_three_pings(driver: Driver, (backend, go_on): (Backend, Sender<()>), server: &str, chat: &str) -> String {
    let quiet = Setup::new(backend.documents()).server(server).start(driver);
    let mut client = quiet.send_chat("", chat);
    let head = client.head();
    let (clock, end) = silent(CHUNKED, &chunk(EVENT), "0\r\n\r\n");
    let pinged = Setup::new(clock.documents()).server("streamPing: 100ms").start(driver);
    let mut pings = pinged.send_chat("", &stream(MODEL, 3));
    for _ in 0..3 {
        pings.read_through(PING.as_bytes());
    }
    end.send(()).unwrap();
    go_on.send(()).unwrap();
    client.body_of(head).text()
}

fn nobody_is_pinged_unasked(driver: Driver) {
    let backend = silent(CHUNKED, &chunk(EVENT), &(chunk(EVENT) + "0\r\n\r\n"));
    assert_eq!(beside_three_pings(driver, backend, "", &stream(MODEL, 3)), EVENT.repeat(2));
}

fn what_cannot_hold_a_comment_gets_none(driver: Driver) {
    let asked = stream(MODEL, 3).replace("\"stream\":true", r#""stream":true,"stream_options":{"include_usage":true}"#);
    // A length that is told already, and a body that is no stream of events.
    let told = silent(&format!("{EVENTS}Content-Length: {}\r\n", 2 * EVENT.len()), EVENT, EVENT);
    assert_eq!(beside_three_pings(driver, told, "streamPing: 100ms", &asked), EVENT.repeat(2));
    let other =
        silent("Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n", &chunk("a"), &(chunk("b") + "0\r\n\r\n"));
    assert_eq!(beside_three_pings(driver, other, "streamPing: 100ms", &asked), "ab");
}
