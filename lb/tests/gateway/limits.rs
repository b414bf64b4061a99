//! Bounds of what a client may send, keep and take its time for.

use std::io::Write as _;

use crate::support::client::{Ending, expect_good, request};
use crate::support::engines::MODEL;
use crate::support::{Client, Driver, Setup, chat, engine, eventually, fleet, model_requests};

on_both_drivers![
    a_body_over_the_limit_is_refused_readably_while_it_is_still_sent,
    a_head_over_the_limits_is_a_431,
    a_head_that_stops_coming_is_a_408,
    a_body_that_stops_coming_is_a_408,
    an_idle_connection_ends_without_a_word,
    bodies_over_the_memory_of_all_wait_and_are_refused,
    connections_over_the_limit_are_closed_at_once,
];

fn a_body_over_the_limit_is_refused_readably_while_it_is_still_sent(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(fleet(&[&engine])).server("limits: { requestBody: 64KiB }").start(driver);
    let expect_refused = |client: &mut Client| {
        let answer = client.answer();
        assert_eq!((answer.status, answer.error_code().as_str()), (413, "request_too_large"));
        assert_eq!(answer.header("connection"), Some("close"));
        client.expect_end();
    };
    let too_long = "x".repeat(800 << 10);
    // The whole body, without a look at the answer.
    let mut client = gateway.send_chat("", &too_long);
    client.end_sending();
    expect_refused(&mut client);
    // The length alone is enough.
    let mut client = Client::sending(
        gateway.address,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: 65537\r\n\r\n",
    );
    let head = client.head();
    assert_eq!(head.status, 413);
    client.body_of(head);
    // Chunks that go on and on.
    let mut client = Client::sending(
        gateway.address,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    for chunk in too_long.as_bytes().chunks(16 << 10) {
        client.send(format!("{:x}\r\n", chunk.len()));
        client.send(chunk);
        client.send("\r\n");
    }
    client.end_sending();
    expect_refused(&mut client);
    // Exactly the limit is no refusal.
    let body = chat(MODEL, 2);
    let body = format!("{body}{}", " ".repeat((64 << 10) - body.len()));
    expect_good(&gateway.chat("", &body));
}

fn a_head_over_the_limits_is_a_431(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(fleet(&[&engine])).server("limits: { requestHead: 8KiB }").start(driver);
    let long = format!("x-long: {}\r\n", "a".repeat(9 << 10));
    let mut client = gateway.send_chat(&long, &chat(MODEL, 2));
    let answer = client.answer();
    assert_eq!((answer.status, answer.error_code().as_str()), (431, "request_head_too_large"));
    client.end_sending();
    client.expect_end();

    let many: String = (0..130).map(|n| format!("x-{n}: 1\r\n")).collect();
    let mut client = gateway.send_chat(&many, &chat(MODEL, 2));
    let answer = client.answer();
    assert_eq!((answer.status, answer.error_code().as_str()), (431, "too_many_headers"));
    client.end_sending();
    client.expect_end();
}

fn a_head_that_stops_coming_is_a_408(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(fleet(&[&engine])).server("timeouts: { requestHead: 300ms }").start(driver);
    let mut client = Client::sending(gateway.address, "POST /v1/chat/completions HTTP/1.1\r\nHost: gate");
    let answer = client.answer();
    assert_eq!((answer.status, answer.error_code().as_str()), (408, "request_timeout"));
    client.end_sending();
    client.expect_end();
}

fn a_body_that_stops_coming_is_a_408(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(fleet(&[&engine])).server("timeouts: { requestBodyIdle: 300ms }").start(driver);
    for head in ["Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5\r\n{"] {
        let mut client =
            Client::sending(gateway.address, format!("POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n{head}"));
        let answer = client.answer();
        assert_eq!((answer.status, answer.error_code().as_str()), (408, "request_timeout"));
        client.end_sending();
        client.expect_end();
    }
    assert!(model_requests(&engine).is_empty());
}

fn an_idle_connection_ends_without_a_word(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(fleet(&[&engine])).server("timeouts: { clientIdle: 300ms }").start(driver);
    let mut client = Client::connect(gateway.address);
    assert_eq!(client.rest(), (Vec::new(), Ending::Closed));
    // A client that gets to run late finds its connection ended before it has sent anything.
    let mut client = eventually("a chat is begun in time", || {
        let client = Client::connect(gateway.address);
        let sent = client.stream().write_all(request("/v1/chat/completions", "", &chat(MODEL, 2)).as_bytes());
        (sent.is_ok() && client.stream().peek(&mut [0]).is_ok_and(|n| n > 0)).then_some(client)
    });
    expect_good(&client.answer());
    client.expect_end();
}

fn bodies_over_the_memory_of_all_wait_and_are_refused(driver: Driver) {
    let engine = engine();
    let gateway =
        Setup::new(fleet(&[&engine])).server("limits: { requestBody: 64KiB, requestBodiesTotal: 64KiB }").start(driver);
    let body = chat(MODEL, 2);
    let body = format!("{body}{}", " ".repeat((40 << 10) - body.len()));
    let whole = request("/v1/chat/completions", "", &body);
    let (first_half, second_half) = whole.split_at(whole.len() / 2);
    let mut holds = Client::sending(gateway.address, first_half);
    let refused = eventually("the first one's memory is taken", || {
        Some(gateway.chat("", &body)).filter(|answer| answer.status != 200)
    });
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "request_memory_exhausted"));
    assert!(refused.header("retry-after").is_some());
    holds.send(second_half);
    expect_good(&holds.answer());
    expect_good(&gateway.chat("", &body));
}

fn connections_over_the_limit_are_closed_at_once(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(fleet(&[&engine])).server("limits: { connectionsPerThread: 2 }").start(driver);
    let mut kept: Vec<_> = (0..2).map(|_| gateway.send_chat("", &chat(MODEL, 2))).collect();
    kept.iter_mut().for_each(|client| expect_good(&client.answer()));
    let mut third = Client::connect(gateway.address);
    assert_eq!(third.rest().0, b"");
    assert_eq!(gateway.metric("kinference_downstream_connections_refused_total", &[]), 1.0);
    kept.pop();
    gateway.wait_for_metric("kinference_downstream_connections_open", &[], 1.0);
    expect_good(&gateway.chat("", &chat(MODEL, 2)));
}
