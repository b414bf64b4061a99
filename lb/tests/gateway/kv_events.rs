//! What engines tell of their own caches: known, missed, cut off, cleared, restarted; requests are answered throughout.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use engine::kv_events::{Line, Stream};
use engine::step::{Parameters, StepCost};
use engine::{Engine, KvEvents, Settings};
use serde_json::Value;

use crate::support::client::{post, request};
use crate::support::engines::{ALIAS, MODEL, chat_of, engine_of, own_host, pool, restart, worker_set};
use crate::support::{Client, Driver, Gateway, Setup, eventually};

on_both_drivers![
    an_engines_cache_is_known_from_its_events,
    what_was_missed_is_asked_for_again,
    what_cannot_be_asked_for_again_is_told_as_a_gap_until_a_clear,
    a_stream_that_ends_is_told_and_found_again,
    a_gateway_that_starts_late_asks_for_what_was_published_before,
    an_engine_restarted_on_the_same_port_starts_empty,
    engines_that_connect_are_told_apart_by_their_topics,
    ranks_are_heard_at_ports_one_after_the_other,
    requests_go_on_while_a_stream_says_nonsense,
    in_exact_tokens_the_overlap_is_what_the_engine_had_cached,
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
    let host = (own_host(), 0).into();
    let at_host = KvEvents { stream: Stream::Bind(host), replay: Some(host), ..KvEvents::default() };
    let mut engine = engine_of(Settings { listen: host, kv_events: Some(at_host), ..publishing() });
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
        let free = TcpListener::bind((own_host(), 0)).unwrap();
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

/// An engine that publishes at this port; `None` where the port is taken.
fn publishing_at(port: u16) -> Option<Engine> {
    let stream = Stream::Bind((Ipv4Addr::LOCALHOST, port).into());
    let events = KvEvents { stream, replay: None, ..KvEvents::default() };
    let settings = Settings { models: vec![MODEL.to_owned()], kv_events: Some(events), ..Settings::instant() };
    Engine::start(settings).ok()
}

fn ranks_are_heard_at_ports_one_after_the_other(driver: Driver) {
    let (first, second) = eventually("two ports in a row are free", || {
        let first = publishing_at(0)?;
        let second = publishing_at(first.kv_events_addr()?.port().checked_add(1)?)?;
        Some((first, second))
    });
    let port = first.kv_events_addr().unwrap().port();
    let events = format!("{{ port: {port}, dataParallelRanks: 2 }}");
    let documents = with_events(&worker_set("workers", MODEL, ALIAS, &[&first]), &events);
    let gateway = Setup::new(documents).start(driver);
    let ask_each = |prompts: std::ops::Range<u32>| {
        let one = ask(&gateway, prompts.clone());
        for number in prompts {
            let prompt = format!("second {number:04} ").repeat(100);
            let body = chat_of(MODEL, &prompt, 40, "");
            assert_eq!(post(second.addr(), "/v1/chat/completions", "", &body).status, 200);
        }
        one
    };
    eventually("both are heard", || {
        ask_each(0..2);
        [&first, &second].into_iter().for_each(Engine::reset_prefix_cache);
        (told(&gateway, &first)["state"] == "live").then_some(())
    });
    let of_the_first = ask_each(2..4);
    until(&gateway, &first, "the blocks of both are known", |told| {
        told["blocks"].as_u64().is_some_and(|blocks| blocks > of_the_first)
    });
}

fn requests_go_on_while_a_stream_says_nonsense(driver: Driver) {
    let engine = engine_of(Settings::instant());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let babbler = std::thread::spawn(move || {
        // One connection after the other is told something that is no ZMTP.
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&b"HTTP/1.1 200 OK\r\n\r\n".repeat(10)).unwrap();
        }
    });
    let documents = with_events(&worker_set("workers", MODEL, ALIAS, &[&engine]), &format!("{{ port: {port} }}"));
    let gateway = Setup::new(documents).start(driver);
    ask(&gateway, 0..3);
    let told = until(&gateway, &engine, "what is wrong is told", |told| {
        told["why"].as_str().is_some_and(|why| why.contains("does not speak ZMTP 3"))
    });
    assert_eq!(told["state"], "waiting");
    babbler.join().unwrap();
    ask(&gateway, 3..6);
}

/// A prompt of token ids: one of a few documents, and a question that is asked once.
fn prompt_of_ids(number: u32) -> Vec<u32> {
    let document = ((number * 2_654_435) >> 7) % 5;
    let question = number * 13 % 50 + 1;
    let begun = (0..100 + 40 * document).map(|at| (document * 37 + at * 11) % 190);
    begun.chain((0..question).map(|at| (number * 3 + at * 5) % 190)).collect()
}

/// The prompt's tokens and what was expected to be cached of it, as decided.
fn expected(gateway: &Gateway, request_id: &str) -> (u64, u64) {
    eventually("the decision is kept", || {
        let answer = gateway.page(&format!("/decisions/{request_id}"));
        let decision = (answer.status == 200).then(|| answer.json()["decisions"][0].clone())?;
        Some((decision["promptTokens"].as_u64()?, decision["candidates"][0]["overlapTokens"].as_u64()?))
    })
}

fn in_exact_tokens_the_overlap_is_what_the_engine_had_cached(driver: Driver) {
    let parameters = Parameters { blocks_max: 48, cost: StepCost::NONE, ..Parameters::default() };
    let engine = engine_of(Settings { parameters, ..publishing() });
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../predictor/tokenizer/tests/data/chatml");
    let documents = documents(&engine, true).replacen(
        "  model:",
        &format!("  tokenizer: {{ file: \"{tokenizer}\" }}\n  model:"),
        1,
    );
    let gateway = Setup::new(documents).start(driver);
    eventually("the tokenizer is in force", || {
        let told = gateway.page("/endpoints").json();
        (told["tokenizers"][0]["promptsBy"] == "tokens").then_some(())
    });
    // A busy machine may be late with the tokens of one or the other, which then goes by its bytes.
    let exact = || gateway.metric("kinference_prompts_tokenized_total", &["outcome=\"exact\""]);
    let (mut compared, mut cached, mut number) = (0, 0, 0);
    while number < 24 || compared < 12 || cached <= 1_000 {
        assert!(number < 500, "{compared} requests with {cached} tokens cached");
        let before = exact();
        let ids = prompt_of_ids(number);
        let body = format!(r#"{{"model":"{MODEL}","prompt":{ids:?},"max_tokens":3}}"#);
        let headers = format!("x-request-id: exact-{number}\r\n");
        let answer = post(gateway.address, "/v1/completions", &headers, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let (tokens, overlap) = expected(&gateway, &format!("exact-{number}"));
        let had = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        if exact() > before {
            assert_eq!(tokens, ids.len() as u64);
            assert_eq!(overlap, had, "request {number} of {tokens} tokens");
            compared += 1;
            cached += had;
        }
        eventually("the data thread knows what the engine keeps", || {
            // Data threads are asked after the control thread, and hear what it told before.
            let shown = gateway.page("/endpoints").json();
            let events = &shown["endpoints"][0]["kvEvents"];
            let all_heard = events["messages"] == engine.kv_messages() && events["state"] == "live";
            (all_heard && shown["cacheNewsWaiting"] == 0).then_some(())
        });
        number += 1;
    }
    let told = told(&gateway, &engine);
    assert!(told["blocksRemoved"].as_u64().unwrap() > 50, "{told}");
    assert_eq!(
        (&told["overlapBy"], &gateway.endpoint(engine.addr())["belief"]["overlapBy"]),
        (&"tokens".into(), &"events".into())
    );
}
