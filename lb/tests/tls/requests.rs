//! Requests and answers over TLS.

use std::io::{BufRead, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ClientConnection, HandshakeKind, StreamOwned, version};

use crate::listener::{HOST, OTHER_HOST, connect, connect_stream, session, socket, start, start_with, trusting_with};
use crate::support::client::{Ending, request};
use crate::support::engines::{
    ALIAS, MODEL, break_once, chat_of, engine_of, expect_idle, only_request, pool, slow_engine, worker_set_at,
};
use crate::support::scripted::{Scripted, Then};
use crate::support::{Client, Driver, Setup, chat, engine, eventually, fleet, model_requests, stream};

on_both_drivers![
    whole_and_streamed_answers_come_on_one_connection_in_both_versions,
    upstreams_are_told_that_the_client_came_over_https,
    the_protocol_agreed_upon_is_http_1_1,
    long_prompts_and_long_answers_go_through,
    records_may_be_cut_anywhere,
    every_event_is_one_record,
    pipelined_requests_in_one_record_are_answered_in_order,
    the_end_is_announced_and_a_cut_off_answer_has_none,
    a_client_that_leaves_a_silent_engine_is_noticed,
    a_body_that_is_cut_off_is_no_request,
    sessions_are_resumed_on_any_data_thread,
    any_server_name_and_none_is_served,
    a_slow_reader_holds_up_nobody_and_gets_everything,
];

fn whole_and_streamed_answers_come_on_one_connection_in_both_versions(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    for version in [&version::TLS12, &version::TLS13] {
        let config = Arc::new(trusting_with(&[version], &tls.authority, None));
        let mut client = connect(tls.address(), &config).unwrap();
        let mut plain = Vec::new();
        for _ in 0..3 {
            client.send(request("/v1/chat/completions", "", &chat(MODEL, 5)));
            let answer = client.answer();
            assert_eq!(answer.status, 200, "{answer:?}");
            plain.push(answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned());
            client.send(request("/v1/chat/completions", "", &stream(MODEL, 5)));
            let answer = client.answer();
            assert_eq!(answer.events().last().unwrap(), "[DONE]");
            assert_eq!(answer.said(), plain[0]);
        }
    }
    tls.gateway.wait_for_metric("kinference_tls_handshakes_total", &[], 2.0);
    assert_eq!(tls.gateway.metric("kinference_tls_handshake_failures_total", &[]), 0.0);
    tls.gateway.expect_nothing_in_flight();
}

fn upstreams_are_told_that_the_client_came_over_https(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    let mut client = tls.connect();
    client.send(request("/v1/chat/completions", "x-forwarded-proto: http\r\n", &chat(MODEL, 1)));
    assert_eq!(client.answer().status, 200);
    let headers = only_request(&engine).headers;
    let told: Vec<_> = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-proto")).collect();
    assert_eq!(told.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["https"]);
}

fn the_protocol_agreed_upon_is_http_1_1(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    let offering = |protocols: &[&[u8]]| {
        let mut config = trusting_with(rustls::ALL_VERSIONS, &tls.authority, None);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        connect(tls.address(), &Arc::new(config))
    };
    let client = offering(&[b"h2", b"http/1.1"]).unwrap();
    assert_eq!(client.stream().conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let refused = offering(&[b"h2"]).unwrap_err().to_string();
    assert!(refused.contains("NoApplicationProtocol"), "{refused}");
}

fn long_prompts_and_long_answers_go_through(driver: Driver) {
    let settings =
        engine::Settings { body_kept_bytes_max: 4 << 20, model_tokens_max: 1 << 20, ..engine::Settings::instant() };
    let engine = engine_of(settings);
    let tls = start(driver, &engine);
    let prompt: String = (0..180_000).map(|n| format!("w{n} ")).collect();
    assert!(prompt.len() > 1 << 20);
    let body = chat_of(MODEL, &prompt, 2, "");
    let mut client = tls.connect();
    client.send(request("/v1/chat/completions", "", &body));
    assert_eq!(client.answer().status, 200);
    assert!(only_request(&engine).body == body, "the engine got every byte");

    break_once(&engine, "huge-chunk=3000000");
    client.send(request("/v1/chat/completions", "", &stream(MODEL, 2)));
    let answer = client.answer();
    assert!(answer.body.len() > 3_000_000);
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
    break_once(&engine, "huge-chunk=3000000");
    client.send(request("/v1/chat/completions", "", &chat(MODEL, 2)));
    let answer = client.answer();
    assert!(answer.body.len() > 3_000_000 && answer.json()["choices"].is_array());
}

fn records_may_be_cut_anywhere(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    let (mut session, mut socket) = (session(&tls.trusting()), socket(tls.address()));
    let put = |session: &mut ClientConnection, mut socket: &TcpStream| {
        let mut sealed = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut sealed).unwrap();
        }
        sealed.iter().for_each(|byte| socket.write_all(&[*byte]).unwrap());
    };
    loop {
        put(&mut session, &socket);
        if !session.is_handshaking() {
            break;
        }
        assert!(session.read_tls(&mut socket).unwrap() > 0);
        session.process_new_packets().unwrap();
    }
    let request = request("/v1/chat/completions", "", &chat(MODEL, 3));
    // One record for all, then one for each byte; every record goes out byte by byte.
    for piece in std::iter::once(request.as_bytes()).chain(request.as_bytes().chunks(1)) {
        session.writer().write_all(piece).unwrap();
        put(&mut session, &socket);
    }
    let mut client = Client::over(StreamOwned::new(session, socket));
    assert_eq!(client.answer().status, 200);
    assert_eq!(client.answer().status, 200);
}

fn every_event_is_one_record(driver: Driver) {
    let engine = slow_engine(20);
    let tls = start(driver, &engine);
    // The name is replaced in each event, so that it is sent in pieces.
    let mut stream = connect_stream(tls.address(), &tls.trusting()).unwrap();
    stream
        .write_all(request("/v1/chat/completions", "Connection: close\r\n", &self::stream(ALIAS, 20)).as_bytes())
        .unwrap();
    let mut records = Vec::new();
    loop {
        let record = stream.fill_buf().unwrap().to_vec();
        if record.is_empty() {
            break;
        }
        stream.consume(record.len());
        records.push(String::from_utf8(record).unwrap());
    }
    // A thread that gets to run late finds several events, which are one record then.
    assert!(records.len() > 3 && records[0].starts_with("HTTP/1.1 200"), "{records:#?}");
    for record in &records[1..] {
        let head = record.split("\r\n").next().unwrap();
        assert!(usize::from_str_radix(head, 16).is_ok() && record.ends_with("\r\n"), "{record:?}");
    }
}

fn pipelined_requests_in_one_record_are_answered_in_order(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    let mut client = tls.connect();
    let pipelined: String = (1..=20)
        .map(|n| request("/v1/chat/completions", &format!("x-request-id: p{n}\r\n"), &chat(MODEL, 1)))
        .collect();
    client.send(pipelined);
    for n in 1..=20 {
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("x-request-id")), (200, Some(format!("p{n}").as_str())));
    }
}

fn the_end_is_announced_and_a_cut_off_answer_has_none(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    let mut client = tls.connect();
    client.send(request("/v1/chat/completions", "Connection: close\r\n", &chat(MODEL, 1)));
    assert_eq!(client.answer().status, 200);
    client.expect_end();

    // An answer without a length ends with its connection: only the announcement tells that it was all.
    let whole =
        Scripted::start("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nhalf", Then::Close);
    let documents = worker_set_at("workers", MODEL, "tiny", &[whole.address]) + &pool(&["workers"], &[]);
    let tls = start_with(driver, Setup::new(documents));
    let mut client = tls.connect();
    client.send(request("/v1/chat/completions", "", &chat(MODEL, 1)));
    assert_eq!(client.head().status, 200);
    let (rest, ending) = client.rest();
    assert_eq!((String::from_utf8(rest).unwrap().as_str(), ending), ("half", Ending::CutOff));
}

fn a_client_that_leaves_a_silent_engine_is_noticed(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    break_once(&engine, "hang-before-head");
    let mut client = tls.connect();
    client.send(request("/v1/chat/completions", "x-request-id: left\r\n", &chat(MODEL, 1)));
    eventually("the engine has the request", || (model_requests(&engine).len() == 1).then_some(()));
    drop(client);
    assert_eq!(tls.gateway.log_of("left")["outcome"], "client_gone");
    expect_idle(&engine);
    tls.gateway.expect_nothing_in_flight();
}

fn a_body_that_is_cut_off_is_no_request(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    let whole = request("/v1/chat/completions", "x-request-id: half\r\n", &chat(MODEL, 1));
    let mut client = tls.connect();
    client.send(&whole[..whole.len() - 5]);
    drop(client);
    assert_eq!(tls.gateway.log_of("half")["outcome"], "client_gone");
    assert!(model_requests(&engine).is_empty());
}

fn sessions_are_resumed_on_any_data_thread(driver: Driver) {
    let engine = engine();
    let tls = start_with(driver, Setup::new(fleet(&[&engine])).threads(3));
    for version in [&version::TLS12, &version::TLS13] {
        let config = Arc::new(trusting_with(&[version], &tls.authority, None));
        for round in 0..12 {
            let mut client = connect(tls.address(), &config).unwrap();
            // Tickets come with the answer, at the latest.
            client.send(request("/v1/chat/completions", "", &chat(MODEL, 1)));
            assert_eq!(client.answer().status, 200);
            let expected = if round == 0 { HandshakeKind::Full } else { HandshakeKind::Resumed };
            assert_eq!(client.stream().conn.handshake_kind(), Some(expected), "{version:?}, round {round}");
        }
    }
}

fn any_server_name_and_none_is_served(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    let mut silent = trusting_with(rustls::ALL_VERSIONS, &tls.authority, None);
    silent.enable_sni = false;
    for (config, name) in [(tls.trusting(), HOST), (tls.trusting(), OTHER_HOST), (Arc::new(silent), HOST)] {
        let session = ClientConnection::new(config, name.try_into().unwrap()).unwrap();
        let mut client = Client::over(StreamOwned::new(session, socket(tls.address())));
        client.send(request("/v1/chat/completions", "", &chat(MODEL, 1)));
        assert_eq!(client.answer().status, 200, "{name}");
    }
}

fn a_slow_reader_holds_up_nobody_and_gets_everything(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    break_once(&engine, "huge-chunk=8000000");
    let mut slow = tls.connect();
    slow.send(request("/v1/chat/completions", "", &stream(MODEL, 2)));
    assert_eq!(slow.head().status, 200);
    let mut quick = tls.connect();
    quick.send(request("/v1/chat/completions", "", &chat(MODEL, 1)));
    assert_eq!(quick.answer().status, 200);
    let chunks = std::iter::from_fn(|| Some(slow.chunk()).filter(|chunk| !chunk.is_empty()));
    assert!(chunks.map(|chunk| chunk.len()).sum::<usize>() > 8_000_000);
}
