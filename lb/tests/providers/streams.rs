//! How answers of Bedrock end: silence, cuts, what cannot be read, clients that leave; and what is given back then.

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

use crate::bedrock::{KEYS, STREAMS, bedrock_provider, event_stream, expect_one_end, frames, golden, start, with_keys};
use crate::hosted::{HOST, hosted, hosted_with, in_front_of, provider, providers_only, setup, trusted};
use crate::server::{Manner, Server};
use crate::support::engines::ALIAS;
use crate::support::{Driver, Gateway, PATIENCE, Setup, chat, eventually, model_requests, stream};

on_both_drivers![
    a_silent_stream_is_pinged_between_its_events,
    a_socket_that_is_cut_within_an_answer_is_told_once,
    a_body_that_ends_with_its_connection_is_whole_where_the_answer_says_so,
    nothing_is_missing_behind_done_however_the_connection_ends,
    what_comes_behind_the_end_is_passed_over,
    a_client_that_leaves_gives_back_its_place_and_its_tokens,
    a_client_that_leaves_an_openai_provider_gives_back_its_tokens,
    what_was_never_sent_counts_in_no_limit,
    a_redirect_is_told_as_one,
];

const HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nTransfer-Encoding: chunked\r\n\r\n";
const PING: &str = ": ping\n\n";

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A Bedrock that sends so many bytes of a good stream, waits, and sends the rest.
fn pausing(driver: Driver, at: usize, fields: &str, change: impl FnOnce(Setup) -> Setup) -> (Gateway, Server) {
    let (authority, leaf) = trusted();
    let all = frames(&golden(STREAMS, "text"));
    let first = [HEAD.as_bytes(), &chunk(&all[..at])].concat();
    let rest = [&chunk(&all[at..])[..], b"0\r\n\r\n"].concat();
    let server = Server::start(&leaf, Manner::Pauses(first, rest));
    let resources =
        bedrock_provider("bedrock", server.port, &format!("{KEYS}{fields}")) + &providers_only(&["bedrock"]);
    (change(with_keys(resources, &authority)).start(driver), server)
}

fn a_silent_stream_is_pinged_between_its_events(driver: Driver) {
    // In the middle of a frame: the client stands between two events all the same.
    let (gateway, server) = pausing(driver, 400, "", |setup| setup.server("streamPing: 100ms"));
    let mut client = gateway.send_chat("x-request-id: pinged\r\n", &stream(ALIAS, 7));
    assert_eq!(client.head().status, 200);
    let mut begun = String::new();
    while !begun.ends_with(&PING.repeat(3)) {
        let chunk = client.chunk();
        assert!(!chunk.is_empty() && chunk.ends_with(b"\n\n"), "{begun}");
        begun.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    server.go_on();
    let mut events = begun;
    loop {
        match client.chunk() {
            chunk if chunk.is_empty() => break,
            chunk => events.push_str(std::str::from_utf8(&chunk).unwrap()),
        }
    }
    let events = events.replace(PING, "");
    assert!(events.contains("Hello") && events.ends_with("data: [DONE]\n\n"), "{events}");
    assert_eq!(gateway.log_of("pinged")["outcome"], "ok");
    gateway.expect_nothing_in_flight();
}

fn a_socket_that_is_cut_within_an_answer_is_told_once(driver: Driver) {
    let all = frames(&golden(STREAMS, "text"));
    for at in [309, 400] {
        let (authority, leaf) = trusted();
        let cut = [HEAD.as_bytes(), &chunk(&all[..at])].concat();
        let server = Server::start(&leaf, Manner::CutsOff(cut));
        let resources = bedrock_provider("bedrock", server.port, KEYS) + &providers_only(&["bedrock"]);
        let gateway = with_keys(resources, &authority).start(driver);
        let answer = gateway.chat("x-request-id: cut\r\n", &stream(ALIAS, 7));
        assert_eq!(answer.status, 200);
        expect_one_end(&answer);
        assert!(answer.events().last().unwrap().contains("upstream_reset"), "{answer:?}");
        assert_eq!(gateway.log_of("cut")["outcome"], "truncated");
        let labels = ["endpoint=\"bedrock\"", "failure=\"reset\""];
        gateway.wait_for_metric("kinference_endpoint_failures_total", &labels, 1.0);
        assert_eq!(server.seen().heads.len(), 1, "never a second attempt");
        gateway.expect_nothing_in_flight();
    }
}

/// Where the last frame begins: that with the usage.
fn last_frame_at(frames: &[u8]) -> usize {
    let (mut at, mut last) = (0, 0);
    while at < frames.len() {
        last = at;
        at += u32::from_be_bytes(frames[at..at + 4].try_into().unwrap()) as usize;
    }
    last
}

fn a_body_that_ends_with_its_connection_is_whole_where_the_answer_says_so(driver: Driver) {
    let all = frames(&golden(STREAMS, "text"));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nConnection: close\r\n\r\n";
    for (bytes, whole) in [(all.len(), true), (last_frame_at(&all), false), (400, false)] {
        let (gateway, server) = start(driver, [head.as_bytes(), &all[..bytes]].concat(), None);
        for number in 1..=6 {
            let answer = gateway.chat("x-request-id: close\r\n", &stream(ALIAS, 7));
            assert_eq!((answer.status, server.seen().heads.len()), (200, number), "{answer:?}");
            expect_one_end(&answer);
            let last = answer.events().pop().unwrap();
            assert_eq!((last == "[DONE]", last.contains("upstream_reset")), (whole, !whole), "{last}");
            if !whole {
                break;
            }
        }
        assert_eq!(gateway.log_of("close")["outcome"], if whole { "ok" } else { "truncated" });
        let labels = ["endpoint=\"bedrock\"", "failure=\"reset\""];
        match whole {
            true => assert_eq!(gateway.metric("kinference_endpoint_failures_total", &labels), 0.0),
            false => gateway.wait_for_metric("kinference_endpoint_failures_total", &labels, 1.0),
        }
        gateway.expect_nothing_in_flight();
    }
}

fn nothing_is_missing_behind_done_however_the_connection_ends(driver: Driver) {
    let all = frames(&golden(STREAMS, "text"));
    let (authority, leaf) = trusted();
    let without_length = HEAD.replace("Transfer-Encoding: chunked\r\n", "");
    for answer in [[HEAD.as_bytes(), &chunk(&all)].concat(), [without_length.as_bytes(), &all].concat()] {
        let server = Server::start(&leaf, Manner::CutsOff(answer));
        let resources = bedrock_provider("bedrock", server.port, KEYS) + &providers_only(&["bedrock"]);
        let gateway = with_keys(resources, &authority).start(driver);
        for _ in 0..2 {
            let answer = gateway.chat("x-request-id: cut\r\n", &stream(ALIAS, 7));
            expect_one_end(&answer);
            assert_eq!(answer.events().pop().as_deref(), Some("[DONE]"), "{answer:?}");
        }
        assert_eq!(server.seen().connections, 2);
        assert_eq!(gateway.log_of("cut")["outcome"], "ok");
        gateway.expect_nothing_in_flight();
    }
}

fn what_comes_behind_the_end_is_passed_over(driver: Driver) {
    let all = [&frames(&golden(STREAMS, "text"))[..], b"what is no frame at all"].concat();
    for chunk_bytes in [usize::MAX, 97] {
        let (gateway, server) = start(driver, event_stream(&all, chunk_bytes), None);
        for number in 1..=2 {
            let answer = gateway.chat("x-request-id: long\r\n", &stream(ALIAS, 7));
            expect_one_end(&answer);
            assert_eq!(answer.events().last().unwrap(), "[DONE]", "{answer:?}");
            assert_eq!(server.seen().connections, number, "such a connection is not used again");
        }
        assert_eq!(gateway.log_of("long")["outcome"], "ok");
        gateway.expect_nothing_in_flight();
    }
}

/// Tokens that count in the minute of a provider.
fn tokens(gateway: &Gateway, port: u16) -> u64 {
    last_minute(gateway, port, "tokens")
}

fn last_minute(gateway: &Gateway, port: u16, what: &str) -> u64 {
    gateway.endpoint(([127, 0, 0, 1], port).into())["lastMinute"][what].as_u64().unwrap()
}

/// Limits that one request of 900 tokens fills.
const LIMITS: &str = "  limits: { maxInFlight: 1, tokensPerMinute: 1000 }\n";

fn a_client_that_leaves_gives_back_its_place_and_its_tokens(driver: Driver) {
    let (gateway, server) = pausing(driver, 400, LIMITS, |setup| setup);
    let mut client = gateway.send_chat("x-request-id: gone\r\n", &stream(ALIAS, 900));
    assert_eq!(client.head().status, 200);
    assert!(!client.chunk().is_empty());
    assert!(tokens(&gateway, server.port) > 900);
    assert_eq!(gateway.chat("", &chat(ALIAS, 9)).error_code(), "overloaded");
    drop(client);
    eventually("the provider is told", || (server.seen().left == 1).then_some(()));
    assert_eq!(gateway.log_of("gone")["outcome"], "client_gone");
    gateway.expect_nothing_in_flight();
    let left = tokens(&gateway, server.port);
    assert!((1..100).contains(&left), "its prompt and what came of the answer: {left}");
    server.go_on();
    let answer = gateway.chat("", &stream(ALIAS, 900));
    assert_eq!((answer.status, answer.events().pop().as_deref()), (200, Some("[DONE]")), "{answer:?}");
}

fn a_client_that_leaves_an_openai_provider_gives_back_its_tokens(driver: Driver) {
    let (authority, leaf) = trusted();
    let cost = engine::step::StepCost { base_us: 20_000.0, ..engine::step::StepCost::NONE };
    let parameters = engine::step::Parameters { cost, ..engine::step::Parameters::default() };
    let engine = hosted_with(&leaf, engine::Settings { parameters, ..engine::Settings::default() });
    let gateway = in_front_of(driver, &engine, &authority, LIMITS);
    for body in [stream(ALIAS, 900), chat(ALIAS, 900)] {
        let client = gateway.send_chat("", &body);
        engine.wait_until(PATIENCE, |stats| stats.running == 1).unwrap();
        assert!(tokens(&gateway, engine.addr().port()) > 900);
        drop(client);
        gateway.expect_nothing_in_flight();
        let left = tokens(&gateway, engine.addr().port());
        assert!((1..200).contains(&left), "{left}");
    }
}

fn what_was_never_sent_counts_in_no_limit(driver: Driver) {
    // Converse does not have it.
    let limits = "  limits: { maxInFlight: 1, requestsPerMinute: 1, tokensPerMinute: 1000 }\n";
    let (gateway, server) = pausing(driver, 400, limits, |setup| setup);
    server.go_on();
    let biased = stream(ALIAS, 900).replace("\"max_tokens\"", "\"logit_bias\":{\"50256\":-100},\"max_tokens\"");
    for _ in 0..3 {
        assert_eq!(gateway.chat("", &biased).error_code(), "unsupported_by_provider");
    }
    assert_eq!((last_minute(&gateway, server.port, "requests"), tokens(&gateway, server.port)), (0, 0));
    assert_eq!(gateway.chat("", &stream(ALIAS, 900)).status, 200);
    assert_eq!(last_minute(&gateway, server.port, "requests"), 1);
    // Nobody is there.
    let (authority, leaf) = trusted();
    let nobody = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    nobody.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let port = nobody.local_addr().unwrap().as_socket().unwrap().port();
    let second = hosted(&leaf);
    let resources = provider("first", port, limits) + &provider("second", second.addr().port(), "");
    let gateway = setup(resources + &providers_only(&["first", "second"]), &authority).ready(2).start(driver);
    assert_eq!(gateway.chat("", &chat(ALIAS, 900)).status, 200);
    assert_eq!((last_minute(&gateway, port, "requests"), tokens(&gateway, port)), (0, 0));
    gateway.expect_nothing_in_flight();
}

fn a_redirect_is_told_as_one(driver: Driver) {
    let (authority, leaf) = trusted();
    let elsewhere = hosted(&leaf);
    let redirect = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: https://{HOST}:{}/\r\nContent-Length: 0\r\n\r\n",
        elsewhere.addr().port()
    );
    let server = Server::start(&leaf, Manner::Answers(redirect.into()));
    let bedrock = bedrock_provider("bedrock", server.port, KEYS);
    let gateway = with_keys(bedrock.clone() + &providers_only(&["bedrock"]), &authority).start(driver);
    for body in [chat(ALIAS, 2), stream(ALIAS, 2)] {
        let answer = gateway.chat("", &body);
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "upstream_redirect"), "{answer:?}");
        assert_eq!(answer.header("location"), None);
    }
    let labels = ["endpoint=\"bedrock\"", "failure=\"redirect\""];
    gateway.wait_for_metric("kinference_endpoint_failures_total", &labels, 2.0);
    assert_eq!(elsewhere.stats().received, 0, "never followed");
    let second = provider("second", elsewhere.addr().port(), "") + &providers_only(&["bedrock", "second"]);
    let gateway = with_keys(bedrock + &second, &authority).ready(2).start(driver);
    assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
    assert_eq!(model_requests(&elsewhere).len(), 1);
}
