//! Its end: requests that run are finished, those that come are told, and a second signal is enough.

use engine::Engine;

use crate::support::client::{find, request};
use crate::support::engines::{ALIAS, MODEL, expect_idle, pool, slow_engine, worker_set};
use crate::support::{Client, Driver, Gateway, Setup, chat, engine, eventually, fleet, get, model_requests, stream};

on_both_drivers![
    an_idle_gateway_ends_at_the_first_signal,
    a_running_stream_is_finished_before_the_end,
    kept_connections_are_told_to_close,
    a_second_signal_ends_at_once,
    the_drain_timeout_ends_what_does_not_end,
    who_has_no_answer_when_the_drain_timeout_is_over_is_told_to_try_again,
    a_gateway_over_servers_alone_works_and_ends_as_well,
];

fn start(driver: Driver, engine: &Engine, server: &str) -> Gateway {
    Setup::new(fleet(&[engine])).threads(2).server(server).start(driver)
}

/// A stream of so many tokens that has begun.
fn begun(gateway: &Gateway, output_tokens: u32) -> (Client, crate::support::Answer) {
    let mut client = gateway.send_chat("", &stream(MODEL, output_tokens));
    let head = client.head();
    assert_eq!(head.status, 200);
    (client, head)
}

fn wait_for_draining(gateway: &Gateway) {
    gateway.wait_for_line(&["msg=\"draining"]);
    let answer = gateway.page("/readyz");
    assert_eq!((answer.status, &answer.json()["reasons"][0]), (503, &"draining".into()));
}

fn an_idle_gateway_ends_at_the_first_signal(driver: Driver) {
    let engine = engine();
    for signal in ["TERM", "INT"] {
        let mut gateway = start(driver, &engine, "");
        let mut kept = gateway.send_chat("", &chat(MODEL, 2));
        assert_eq!(kept.answer().status, 200);
        gateway.signal(signal);
        assert_eq!(gateway.wait().code(), Some(0));
        gateway.wait_for_line(&["every request was answered"]);
        kept.rest();
    }
}

/// A stream that goes on for as long as its client is there.
fn endless(gateway: &Gateway) -> Client {
    let mut client = gateway.send_chat("x-request-id: endless\r\nx-fault: hang-mid-stream=1\r\n", &stream(MODEL, 3));
    assert_eq!(client.head().status, 200);
    client
}

fn a_running_stream_is_finished_before_the_end(driver: Driver) {
    let engine = slow_engine(20);
    let mut gateway = start(driver, &engine, "");
    let endless = endless(&gateway);
    let (mut client, head) = begun(&gateway, 40);
    gateway.signal("TERM");
    wait_for_draining(&gateway);
    eventually("new connections are refused", || std::net::TcpStream::connect(gateway.address).is_err().then_some(()));
    let answer = client.body_of(head);
    assert_eq!((answer.events().len(), answer.events().last().unwrap().as_str()), (42, "[DONE]"));
    assert!(gateway.is_running());
    drop(endless);
    assert_eq!(gateway.wait().code(), Some(0));
    let lines = gateway.log_lines();
    let logged = |outcome: &str| lines.iter().any(|line| line["outcome"] == outcome);
    assert!(logged("ok") && logged("client_gone"), "the last lines are written: {lines:?}");
}

fn kept_connections_are_told_to_close(driver: Driver) {
    let engine = slow_engine(20);
    let mut gateway = start(driver, &engine, "");
    let mut kept: Vec<_> = (0..4).map(|_| gateway.send_chat("", &chat(MODEL, 1))).collect();
    kept.iter_mut().for_each(|client| assert_eq!(client.answer().header("connection"), None));
    let endless = endless(&gateway);
    gateway.signal("TERM");
    wait_for_draining(&gateway);
    for client in &mut kept {
        client.send(request("/v1/chat/completions", "", &chat(MODEL, 1)));
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
        client.expect_end();
    }
    drop(endless);
    assert_eq!(gateway.wait().code(), Some(0));
}

fn a_second_signal_ends_at_once(driver: Driver) {
    let engine = slow_engine(20);
    let mut gateway = start(driver, &engine, "");
    let (mut client, _) = begun(&gateway, 100_000);
    gateway.signal("TERM");
    wait_for_draining(&gateway);
    assert!(gateway.is_running());
    gateway.signal("TERM");
    assert_eq!(gateway.wait().code(), Some(1));
    let (rest, _) = client.rest();
    assert_eq!(find(&rest, b"[DONE]"), None);
    expect_idle(&engine);
}

fn the_drain_timeout_ends_what_does_not_end(driver: Driver) {
    let engine = slow_engine(20);
    let mut gateway = start(driver, &engine, "drainTimeout: 300ms");
    let (mut client, _) = begun(&gateway, 100_000);
    gateway.signal("TERM");
    assert_eq!(gateway.wait().code(), Some(0));
    gateway.wait_for_line(&["level=warn", "drain time-out"]);
    client.rest();
    expect_idle(&engine);
}

fn who_has_no_answer_when_the_drain_timeout_is_over_is_told_to_try_again(driver: Driver) {
    let engine = engine();
    let queued = "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: { name: one, namespace: default }\nspec:\n  \
                  rules: [{ name: one, route: { exclude: [{ name: busy, drop: { inFlight: { atLeast: 2 } } }], queue: { maxWait: 60s } } }]\n---\n";
    let resources = worker_set("workers", MODEL, ALIAS, &[&engine]) + queued + &pool(&["workers"], &["one"]);
    let mut gateway = Setup::new(resources).server("drainTimeout: 300ms").start(driver);
    // One in the middle of its answer, one that an engine thinks about, one that waits in the queue.
    let mut begun = endless(&gateway);
    let silent = gateway.send_chat("x-request-id: silent\r\nx-fault: hang-before-head\r\n", &chat(MODEL, 3));
    eventually("the engine has both", || (model_requests(&engine).len() == 2).then_some(()));
    let waits = gateway.send_chat("x-request-id: waits\r\n", &chat(MODEL, 3));
    gateway.wait_for_metric("kinference_queue_length", &[], 1.0);
    // And one that has not sent all of its prompt.
    let half = request("/v1/chat/completions", "x-request-id: half\r\n", &chat(MODEL, 3));
    let half = Client::sending(gateway.address, &half[..half.len() - 9]);
    gateway.wait_for_metric("kinference_requests_open", &[], 4.0);
    gateway.signal("TERM");
    for mut client in [silent, waits, half] {
        let answer = client.answer();
        assert_eq!((answer.status, answer.error_code().as_str()), (503, "shutting_down"), "{answer:?}");
        assert_eq!((answer.header("connection"), answer.header("retry-after")), (Some("close"), Some("1")));
        client.expect_end();
    }
    assert_eq!(gateway.wait().code(), Some(0));
    gateway.wait_for_line(&["level=warn", "drain time-out"]);
    assert_eq!(find(&begun.rest().0, b"503"), None, "what has begun is cut off");
    // Each is in the log, with the one that was cut off.
    for id in ["silent", "waits", "half", "endless"] {
        assert_eq!(gateway.log_of(id)["outcome"], "shutting_down");
    }
}

fn a_gateway_over_servers_alone_works_and_ends_as_well(driver: Driver) {
    let (one, two) = (engine(), engine());
    let mut gateway = Gateway::over_servers(driver, &[one.addr(), two.addr()]);
    assert_eq!(get(gateway.address, "/v1/models").json()["data"][0]["id"], MODEL);
    let mut client = gateway.send_chat("", &chat(MODEL, 2));
    assert_eq!(client.answer().status, 200);
    gateway.signal("TERM");
    assert_eq!(gateway.wait().code(), Some(0));
    client.rest();
}
