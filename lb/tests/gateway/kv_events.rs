//! What engines tell of their own caches: known, missed, cut off, cleared, restarted; requests are answered throughout.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use engine::kv_events::{Line, Stream};
use engine::{Engine, KvEvents, Settings};
use serde_json::Value;

use crate::support::client::request;
use crate::support::engines::{ALIAS, MODEL, chat_of, engine_of, pool, restart, worker_set};
use crate::support::{Client, Driver, Gateway, Setup, eventually};

on_both_drivers![
    an_engines_cache_is_known_from_its_events,
    what_was_missed_is_asked_for_again,
    what_cannot_be_asked_for_again_is_told_as_a_gap_until_a_clear,
    a_stream_that_ends_is_told_and_found_again,
    a_gateway_that_starts_late_asks_for_what_was_published_before,
    an_engine_restarted_on_the_same_port_starts_empty,
    engines_that_connect_are_told_apart_by_their_topics,
];

/// The default of engines.
const BLOCK_TOKENS: u64 = 16;

fn publishing() -> Settings {
    Settings { kv_events: Some(KvEvents::default()), ..Settings::instant() }
}

/// An engine's worker set with its events, asked for again or not.
fn documents(engine: &Engine, replays: bool) -> String {
    let port = engine.kv_events_addr().unwrap().port();
    let replay = engine.kv_replay_addr().filter(|_| replays);
    let replay = replay.map(|address| format!(", replayPort: {}", address.port())).unwrap_or_default();
    with_events(&worker_set("workers", MODEL, ALIAS, &[engine]), &format!("{{ port: {port}{replay} }}"))
}

fn with_events(worker_set: &str, events: &str) -> String {
    let (head, rest) = worker_set.split_once("  endpoints:\n").unwrap();
    format!("{head}  kvEvents: {events}\n  endpoints:\n{rest}") + &pool(&["workers"], &[])
}

/// What is told of the event stream of an endpoint.
fn told(gateway: &Gateway, engine: &Engine) -> Value {
    gateway.endpoint(engine.addr())["kvEvents"].clone()
}

fn until(gateway: &Gateway, engine: &Engine, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || Some(told(gateway, engine)).filter(&holds))
}

/// Asks with prompts of their own, which share no block. Says how many blocks these fill, with their answers.
fn ask(gateway: &Gateway, prompts: std::ops::Range<u32>) -> u64 {
    let mut client = Client::connect(gateway.address);
    let mut blocks = 0;
    for number in prompts {
        let prompt = format!("{number:04} ").repeat(100);
        client.send(request("/v1/chat/completions", "", &chat_of(MODEL, &prompt, 40, "")));
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{answer:?}");
        let usage = &answer.json()["usage"];
        // The last token made is never computed.
        blocks += (usage["total_tokens"].as_u64().unwrap() - 1) / BLOCK_TOKENS;
    }
    blocks
}

fn live_with(blocks: u64) -> impl Fn(&Value) -> bool {
    move |told| told["state"] == "live" && told["blocks"] == blocks
}

fn an_engines_cache_is_known_from_its_events(driver: Driver) {
    let engine = engine_of(publishing());
    let gateway = Setup::new(documents(&engine, true)).start(driver);
    until(&gateway, &engine, "the stream is up", live_with(0));
    let blocks = ask(&gateway, 0..5);
    let told = until(&gateway, &engine, "every block is known", live_with(blocks));
    assert_eq!((&told["blockTokens"], &told["overlapBy"]), (&Value::from(BLOCK_TOKENS), &Value::from("bytes")));
    let name = engine.addr().to_string();
    for (metric, value) in [("live", 1.0), ("blocks", blocks as f64), ("messages_lost_total", 0.0)] {
        let metric = format!("kinference_endpoint_kv_events_{metric}");
        assert_eq!(gateway.metric(&metric, &[&name]), value, "{metric}");
    }
    engine.reset_prefix_cache();
    let blocks = ask(&gateway, 5..6);
    let told = until(&gateway, &engine, "the clear is known", live_with(blocks));
    assert_eq!(told["clears"], 1);
}

fn what_was_missed_is_asked_for_again(driver: Driver) {
    let engine = engine_of(publishing());
    let gateway = Setup::new(documents(&engine, true)).start(driver);
    until(&gateway, &engine, "the stream is up", live_with(0));
    engine.withhold_kv_events(3);
    let blocks = ask(&gateway, 0..6);
    let told = until(&gateway, &engine, "what was withheld is known", live_with(blocks));
    assert_eq!(told["messagesLost"], 0);
    assert!(told["replays"].as_u64().unwrap() >= 2, "{told}");
}

fn what_cannot_be_asked_for_again_is_told_as_a_gap_until_a_clear(driver: Driver) {
    let engine = engine_of(publishing());
    let gateway = Setup::new(documents(&engine, false)).start(driver);
    engine.withhold_kv_events(2);
    // More is lost while nobody listens yet.
    let told = eventually("the gap is told", || {
        ask(&gateway, 0..4);
        engine.reset_prefix_cache();
        Some(told(&gateway, &engine)).filter(|told| told["messages"] != 0)
    });
    assert!(told["messagesLost"].as_u64().unwrap() >= 2, "{told}");
    engine.withhold_kv_events(1);
    ask(&gateway, 4..8);
    let told = until(&gateway, &engine, "the gap is told", |told| told["state"] == "gap");
    assert!(told["why"].as_str().unwrap().ends_with(" are missing"), "{told}");
    engine.reset_prefix_cache();
    let blocks = ask(&gateway, 8..9);
    until(&gateway, &engine, "everything is known again", live_with(blocks));
}

fn a_stream_that_ends_is_told_and_found_again(driver: Driver) {
    let engine = engine_of(publishing());
    let gateway = Setup::new(documents(&engine, true)).start(driver);
    until(&gateway, &engine, "the stream is up", live_with(0));
    let before = ask(&gateway, 0..2);
    until(&gateway, &engine, "every block is known", live_with(before));
    engine.set_kv_line(Line::Cut);
    let told = until(&gateway, &engine, "the end is told", |told| told["state"] == "stale");
    assert!(!told["why"].as_str().unwrap().is_empty(), "{told}");
    let meanwhile = ask(&gateway, 2..4);
    engine.set_kv_line(Line::Up);
    until(&gateway, &engine, "what happened meanwhile is known", live_with(before + meanwhile));
}

fn a_gateway_that_starts_late_asks_for_what_was_published_before(driver: Driver) {
    let engine = engine_of(publishing());
    let first = Setup::new(documents(&engine, false)).start(driver);
    let blocks = ask(&first, 0..4);
    drop(first);
    let second = Setup::new(documents(&engine, true)).start(driver);
    until(&second, &engine, "everything before it is known", live_with(blocks));
}

fn an_engine_restarted_on_the_same_port_starts_empty(driver: Driver) {
    let mut engine = engine_of(publishing());
    let (stream, replay) = (engine.kv_events_addr().unwrap(), engine.kv_replay_addr());
    let gateway = Setup::new(documents(&engine, true)).start(driver);
    until(&gateway, &engine, "the stream is up", live_with(0));
    let blocks = ask(&gateway, 0..3);
    until(&gateway, &engine, "every block is known", live_with(blocks));
    let events = KvEvents { stream: Stream::Bind(stream), replay, ..KvEvents::default() };
    restart(&mut engine, &Settings { kv_events: Some(events), ..publishing() });
    until(&gateway, &engine, "the new one is known to be empty", live_with(0));
    let held = || gateway.endpoint(engine.addr())["belief"]["blocksHeld"].as_u64();
    eventually("nothing is believed to be cached there", || held().filter(|held| *held == 0));
    gateway.wait_for_readiness(engine.addr(), "ready");
    let blocks = ask(&gateway, 0..1);
    until(&gateway, &engine, "its blocks are known", live_with(blocks));
}

fn engines_that_connect_are_told_apart_by_their_topics(driver: Driver) {
    let awaited = {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        free.local_addr().unwrap()
    };
    let engine_at = |host: u8| {
        let listen = SocketAddr::from(([127, 0, 0, host], 0));
        let topic = format!("kv@127.0.0.{host}@{MODEL}");
        let events = KvEvents { stream: Stream::Connect(awaited), replay: None, topic, ..KvEvents::default() };
        engine_of(Settings { listen, kv_events: Some(events), ..Settings::instant() })
    };
    let engines = [engine_at(2), engine_at(3)];
    let workers = worker_set("workers", MODEL, ALIAS, &[&engines[0], &engines[1]]);
    let gateway = Setup::new(with_events(&workers, &format!("{{ listen: \"{awaited}\" }}"))).ready(2).start(driver);
    // What is told before anybody listens is lost, and nothing else.
    eventually("both are heard", || {
        ask(&gateway, 0..4);
        engines.iter().for_each(Engine::reset_prefix_cache);
        engines.iter().all(|engine| told(&gateway, engine)["state"] == "live").then_some(())
    });
}
