//! The memory that request bodies may take together.

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::backend::{Backend, document};
use crate::encoding::{binary, gzip};
use crate::support::{Client, Driver, Gateway, Setup, eventually};

on_both_drivers![
    a_body_waits_for_memory_and_is_refused_when_none_comes,
    a_body_that_waited_is_served_when_another_ends,
    memory_is_given_back_however_a_request_ends,
];

const BODY_BYTES: usize = 900_000;
const LIMITS: &str = "limits: { requestBody: 1MiB, requestBodiesTotal: 1MiB }";

fn body() -> Vec<u8> {
    let json = r#"{"model":"tiny"}"#;
    (json.to_owned() + &" ".repeat(BODY_BYTES - json.len())).into_bytes()
}

fn chat() -> Vec<u8> {
    binary("/v1/chat/completions", "", &body())
}

fn start(driver: Driver, backend: &Backend) -> Gateway {
    Setup::new(backend.documents()).server(LIMITS).start(driver)
}

/// A backend that answers once for each word it is given.
fn answering_on_word() -> (Backend, Sender<()>) {
    let (word, words) = channel();
    let words: Mutex<Receiver<()>> = Mutex::new(words);
    let backend = Backend::start(move |_, stream| {
        let given = words.lock().is_ok_and(|words| words.recv().is_ok());
        if given { stream.write_all(document("{}").as_bytes()) } else { crate::backend::close() }
    });
    (backend, word)
}

fn held(gateway: &Gateway, bytes: usize) {
    gateway.wait_for_metric("kinference_request_bodies_bytes", &[], bytes as f64);
}

fn a_body_waits_for_memory_and_is_refused_when_none_comes(driver: Driver) {
    let (backend, word) = answering_on_word();
    let gateway = start(driver, &backend);
    let mut first = Client::sending(gateway.address, chat());
    held(&gateway, BODY_BYTES);
    let mut second = Client::sending(gateway.address, chat());
    let answer = second.answer();
    assert_eq!((answer.status, answer.error_code().as_str()), (503, "request_memory_exhausted"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    second.expect_end();
    assert_eq!(gateway.metric("kinference_request_bodies_waits_total", &[]), 1.0);
    // So does what becomes too large only when it is decoded.
    let small = gzip(&body());
    let mut third =
        Client::sending(gateway.address, binary("/v1/chat/completions", "Content-Encoding: gzip\r\n", &small));
    assert_eq!(third.answer().error_code(), "request_memory_exhausted");
    held(&gateway, BODY_BYTES);
    word.send(()).unwrap();
    assert_eq!(first.answer().status, 200);
    held(&gateway, 0);
    gateway.wait_for_metric("kinference_requests_total", &["outcome=\"memory_exhausted\"", "status=\"503\""], 2.0);
}

fn a_body_that_waited_is_served_when_another_ends(driver: Driver) {
    let (backend, word) = answering_on_word();
    let gateway = start(driver, &backend);
    let mut first = Client::sending(gateway.address, chat());
    held(&gateway, BODY_BYTES);
    let mut second = Client::sending(gateway.address, chat());
    gateway.wait_for_metric("kinference_request_bodies_waits_total", &[], 1.0);
    word.send(()).unwrap();
    word.send(()).unwrap();
    assert_eq!((first.answer().status, second.answer().status), (200, 200));
    held(&gateway, 0);
}

fn memory_is_given_back_however_a_request_ends(driver: Driver) {
    let (backend, word) = answering_on_word();
    let gateway = start(driver, &backend);
    // Gone in the middle of its body.
    let client = Client::sending(gateway.address, &chat()[..BODY_BYTES / 2]);
    eventually("what has come is charged, and no more than as much again", || {
        let bytes = gateway.metric("kinference_request_bodies_bytes", &[]) as usize;
        (BODY_BYTES / 4..=BODY_BYTES).contains(&bytes).then_some(())
    });
    drop(client);
    held(&gateway, 0);
    // The same in chunks.
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n";
    let client = Client::sending(gateway.address, format!("{head}dbba0\r\n{}", "x".repeat(500_000)));
    gateway.wait_for_metric("kinference_downstream_connections_open", &[], 1.0);
    drop(client);
    held(&gateway, 0);
    // Gone while the engine works on it.
    let client = Client::sending(gateway.address, chat());
    held(&gateway, BODY_BYTES);
    drop(client);
    held(&gateway, 0);
    // No JSON; no such model; more than there may be; broken.
    let long = vec![b' '; 2 << 20];
    for (headers, body, status) in [
        ("", &b"nonsense"[..], 400),
        ("", br#"{"model":"nobody"}"#, 404),
        ("", &long, 413),
        ("Content-Encoding: gzip\r\n", &gzip(&long), 413),
        ("Content-Encoding: zstd\r\n", b"nonsense", 400),
    ] {
        let answer = Client::sending(gateway.address, binary("/v1/chat/completions", headers, body)).answer();
        assert_eq!(answer.status, status);
        held(&gateway, 0);
    }
    drop(word);
    gateway.expect_nothing_in_flight();
}
