//! Several data threads behave as one: conversations stay where their prefix is cached, load is spread, counts return
//! to zero, whichever thread takes a connection.

use engine::step::Parameters;
use engine::{Engine, Settings};
use serde_json::Value;

use crate::support::engines::{MODEL, engine_of};
use crate::support::{Driver, Gateway, Setup, eventually, fleet, model_requests};

on_both_drivers![
    a_growing_conversation_stays_where_it_began_whichever_thread_takes_it,
    four_threads_find_prefixes_cached_as_often_as_one,
    streams_are_spread_evenly_over_engines_by_threads_that_know_of_each_other,
    counts_return_to_zero_after_many_clients_at_once,
];

/// An engine with the costs of a real one: a prompt of these tests takes it some 100 ms when it is not cached.
fn real_engine() -> Engine {
    engine_of(Settings { parameters: Parameters::default(), ..Settings::default() })
}

fn start(driver: Driver, engines: &[Engine]) -> Gateway {
    start_with(driver, engines, 2)
}

fn start_with(driver: Driver, engines: &[Engine], threads: usize) -> Gateway {
    let engines: Vec<&Engine> = engines.iter().collect();
    Setup::new(fleet(&engines)).threads(threads).ready(engines.len()).start(driver)
}

/// A conversation: a long beginning of its own, and a turn more each time.
fn turn(conversation: usize, turn: usize) -> String {
    let message = |role: &str, text: String| format!(r#"{{"role":"{role}","content":{}}}"#, Value::from(text));
    let mut messages = vec![message("system", format!("Conversation {conversation}. ").repeat(600))];
    for number in 0..=turn {
        messages.push(message("user", format!("Question {number} of conversation {conversation}: ").repeat(20)));
        if number < turn {
            messages.push(message("assistant", format!("Answer {number} of conversation {conversation}: ").repeat(20)));
        }
    }
    format!(r#"{{"model":"{MODEL}","messages":[{}],"max_tokens":2,"stream":true}}"#, messages.join(","))
}

fn a_growing_conversation_stays_where_it_began_whichever_thread_takes_it(driver: Driver) {
    const CONVERSATIONS: usize = 8;
    const TURNS: usize = 6;
    let engines: Vec<_> = (0..4).map(|_| real_engine()).collect();
    let gateway = start(driver, &engines);
    for turn_number in 0..TURNS {
        for conversation in 0..CONVERSATIONS {
            // Each on a connection of its own: the kernel chooses the thread.
            let id = format!("{conversation}/{turn_number}");
            let answer = gateway.chat(&format!("x-request-id: {id}\r\n"), &turn(conversation, turn_number));
            assert_eq!(answer.events().last().unwrap(), "[DONE]");
        }
    }
    let engine_of = |conversation: usize, turn: usize| {
        let id = format!("{conversation}/{turn}");
        engines.iter().position(|engine| model_requests(engine).iter().any(|request| request.id == id)).unwrap()
    };
    let homes: Vec<_> = (0..CONVERSATIONS).map(|conversation| engine_of(conversation, 0)).collect();
    let seen: Vec<Vec<_>> =
        (0..CONVERSATIONS).map(|conversation| (0..TURNS).map(|turn| engine_of(conversation, turn)).collect()).collect();
    let moves = |turns: &Vec<usize>| turns.windows(2).filter(|pair| pair[0] != pair[1]).count();
    // Of 40 later turns some 30 would move by chance. On a busy machine an engine may look slow for a moment.
    assert!(seen.iter().map(moves).sum::<usize>() <= 4, "{seen:?}");
    assert!(homes.iter().any(|home| *home != homes[0]), "they do not all begin at one engine: {homes:?}");
    // The engines' caches agree that later turns were mostly cached.
    let mut lines = gateway_lines(&gateway, CONVERSATIONS * TURNS);
    lines.retain(|line| !line["request_id"].as_str().unwrap().ends_with("/0"));
    let sum = |key: &str| lines.iter().map(|line| line[key].as_f64().unwrap()).sum::<f64>();
    let (prompt, cached) = (sum("prompt_tokens"), sum("cached_tokens"));
    assert!(cached > 0.7 * prompt, "{cached} of {prompt} tokens were cached");
    gateway.expect_nothing_in_flight();
}

/// Share of the prompt tokens of later turns that was cached, by the engines' word.
fn cached_share(driver: Driver, threads: usize) -> f64 {
    const CONVERSATIONS: usize = 6;
    const TURNS: usize = 8;
    let engines: Vec<_> = (0..4).map(|_| real_engine()).collect();
    let gateway = start_with(driver, &engines, threads);
    for turn_number in 0..TURNS {
        for conversation in 0..CONVERSATIONS {
            let id = format!("{conversation}/{turn_number}");
            // The next turn begins when this one has ended, on a connection of its own.
            gateway.chat(&format!("x-request-id: {id}\r\n"), &turn(conversation, turn_number));
        }
    }
    let mut lines = gateway_lines(&gateway, CONVERSATIONS * TURNS);
    lines.retain(|line| !line["request_id"].as_str().unwrap().ends_with("/0"));
    let sum = |key: &str| lines.iter().map(|line| line[key].as_f64().unwrap()).sum::<f64>();
    sum("cached_tokens") / sum("prompt_tokens")
}

fn four_threads_find_prefixes_cached_as_often_as_one(driver: Driver) {
    let (one, four) = (cached_share(driver, 1), cached_share(driver, 4));
    // On a busy machine an engine may look slow for a moment, and a conversation moves.
    assert!(four > one - 0.08, "{four} with four threads, {one} with one");
}

fn gateway_lines(gateway: &Gateway, count: usize) -> Vec<Value> {
    eventually("every request has its line", || Some(gateway.log_lines()).filter(|lines| lines.len() == count))
}

fn streams_are_spread_evenly_over_engines_by_threads_that_know_of_each_other(driver: Driver) {
    let engines: Vec<_> = (0..3).map(|_| real_engine()).collect();
    let gateway = start(driver, &engines);
    let clients: Vec<_> = (0..18)
        .map(|number| {
            let mut client = gateway.send_chat("x-fault: hang-mid-stream=1\r\n", &turn(number, 0));
            client.head();
            client.chunk();
            client
        })
        .collect();
    let held: Vec<_> =
        engines.iter().map(|engine| gateway.endpoint(engine.addr())["inFlight"].as_u64().unwrap()).collect();
    assert_eq!(held.iter().sum::<u64>(), 18);
    assert!(held.iter().all(|held| (4..=8).contains(held)), "{held:?}");
    drop(clients);
    gateway.expect_nothing_in_flight();
}

fn counts_return_to_zero_after_many_clients_at_once(driver: Driver) {
    let engines: Vec<_> = (0..3).map(|_| real_engine()).collect();
    let gateway = start(driver, &engines);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let gateway = &gateway;
            scope.spawn(move || {
                for round in 0..6 {
                    // Answered, left alone by the engine, left by the client.
                    let faults =
                        ["", "x-fault: reset-mid-stream=1\r\n", "x-fault: hang-mid-stream=1\r\n"][(number + round) % 3];
                    let mut client = gateway.send_chat(faults, &turn(number, round));
                    client.head();
                    client.chunk();
                    if !faults.contains("hang") {
                        client.read_through(b"0\r\n\r\n");
                    }
                }
            });
        }
    });
    gateway.expect_nothing_in_flight();
    let requests = gateway_lines(&gateway, 48);
    let count = |outcome: &str| requests.iter().filter(|line| line["outcome"] == outcome).count();
    assert_eq!((count("ok"), count("truncated"), count("client_gone")), (16, 16, 16));
}
