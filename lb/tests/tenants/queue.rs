//! Requests that wait for room: until when, in which order, and what becomes of those that do not get in.

use std::time::{Duration, Instant};

use engine::Engine;

use crate::support::engines::{ALIAS, MODEL, pool, slow_engine, worker_set};
use crate::support::{Client, Driver, Gateway, Setup, chat, engine, eventually, model_requests, stream};
use crate::{key_of, tenant_with_key};

on_both_drivers![
    a_request_waits_until_there_is_room,
    when_the_time_is_over_the_request_is_refused_as_without_a_queue,
    one_more_than_may_wait_is_refused_at_once,
    priority_goes_first_and_tenants_take_turns,
    a_client_that_leaves_leaves_its_place,
    over_several_threads_all_who_wait_get_their_turn,
    a_change_of_the_configuration_leaves_nobody_behind,
];

/// One request at a time on each engine; all others wait.
fn documents(engines: &[&Engine], queue: &str) -> String {
    let policy = format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: {{ name: patient, namespace: default }}\nspec:\n  \
         rules:\n    - name: one-by-one\n      route:\n        exclude: [{{ name: busy, drop: {{ inFlight: {{ atLeast: 1 }} }} }}]\n        \
         queue: {{ {queue} }}\n---\n"
    );
    worker_set("workers", MODEL, ALIAS, engines) + &policy + &pool(&["workers"], &["patient"])
}

/// Keeps the only engine busy until it is dropped.
fn occupy(gateway: &Gateway, headers: &str) -> Client {
    let headers = format!("{headers}x-fault: hang-mid-stream=1\r\n");
    let mut client = gateway.send_chat(&headers, &stream(MODEL, 3));
    assert_eq!(client.head().status, 200);
    client
}

fn waiting(gateway: &Gateway, count: f64) {
    gateway.wait_for_metric("kinference_queue_length", &["rule=\"one-by-one\""], count);
}

fn ended(gateway: &Gateway, outcome: &str) -> f64 {
    gateway.metric("kinference_queue_requests_total", &["rule=\"one-by-one\"", &format!("outcome=\"{outcome}\"")])
}

/// Ids of the requests that the engine got, in their order.
fn order(engine: &Engine) -> Vec<String> {
    model_requests(engine).into_iter().map(|request| request.id).collect()
}

fn named(id: &str) -> String {
    format!("x-request-id: {id}\r\n")
}

fn a_request_waits_until_there_is_room(driver: Driver) {
    let engine = slow_engine(5);
    let gateway = Setup::new(documents(&[&engine], "maxWait: 30s")).start(driver);
    let first = occupy(&gateway, "");
    let mut second = gateway.send_chat(&named("second"), &chat(MODEL, 2));
    waiting(&gateway, 1.0);
    assert_eq!(model_requests(&engine).len(), 1);
    drop(first);
    assert_eq!(second.answer().status, 200);
    waiting(&gateway, 0.0);
    assert_eq!(ended(&gateway, "served"), 1.0);
    let line = gateway.log_of("second");
    assert!(line["queued_ms"].as_f64().unwrap() > 0.0 && line["outcome"] == "ok", "{line}");
    gateway.expect_nothing_in_flight();
}

fn when_the_time_is_over_the_request_is_refused_as_without_a_queue(driver: Driver) {
    let engine = slow_engine(5);
    let gateway = Setup::new(documents(&[&engine], "maxWait: 200ms")).start(driver);
    let _first = occupy(&gateway, "");
    let begun = Instant::now();
    let answer = gateway.chat(&named("late"), &chat(MODEL, 2));
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    assert_eq!((answer.status, answer.error_code().as_str()), (429, "overloaded"));
    assert!(answer.header("retry-after").is_some());
    let line = gateway.log_of("late");
    assert!(line["queued_ms"].as_f64().unwrap() >= 200.0 && line["exclude"] == "busy", "{line}");
    assert_eq!(ended(&gateway, "timed_out"), 1.0);
    waiting(&gateway, 0.0);
}

fn one_more_than_may_wait_is_refused_at_once(driver: Driver) {
    let engine = slow_engine(5);
    let gateway = Setup::new(documents(&[&engine], "maxWait: 30s, maxLength: 1")).start(driver);
    let first = occupy(&gateway, "");
    let mut second = gateway.send_chat("", &chat(MODEL, 2));
    waiting(&gateway, 1.0);
    let third = gateway.chat("", &chat(MODEL, 2));
    assert_eq!((third.status, third.error_code().as_str()), (429, "overloaded"));
    assert_eq!(ended(&gateway, "full"), 1.0);
    drop(first);
    assert_eq!(second.answer().status, 200);
}

fn priority_goes_first_and_tenants_take_turns(driver: Driver) {
    let engine = slow_engine(2);
    let tenants = tenant_with_key("many", "")
        + &tenant_with_key("one", "")
        + &tenant_with_key("urgent", ", priority: 5")
        + &tenant_with_key("holder", "");
    let gateway = Setup::new(documents(&[&engine], "maxWait: 30s") + &tenants).start(driver);
    let first = occupy(&gateway, &(key_of("holder") + &named("first")));
    let mut clients = Vec::new();
    let asked = [("many", "m1"), ("many", "m2"), ("many", "m3"), ("one", "o1"), ("urgent", "u1")];
    for (index, (tenant, id)) in asked.into_iter().enumerate() {
        clients.push(gateway.send_chat(&(key_of(tenant) + &named(id)), &chat(MODEL, 5)));
        waiting(&gateway, (index + 1) as f64);
    }
    drop(first);
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().status, 200));
    assert_eq!(order(&engine), ["first", "u1", "m1", "o1", "m2", "m3"]);
}

fn a_client_that_leaves_leaves_its_place(driver: Driver) {
    let engine = slow_engine(5);
    let gateway = Setup::new(documents(&[&engine], "maxWait: 30s")).start(driver);
    let first = occupy(&gateway, &named("first"));
    let leaves = gateway.send_chat(&named("leaves"), &chat(MODEL, 2));
    waiting(&gateway, 1.0);
    let mut stays = gateway.send_chat(&named("stays"), &chat(MODEL, 2));
    waiting(&gateway, 2.0);
    drop(leaves);
    waiting(&gateway, 1.0);
    assert_eq!(gateway.log_of("leaves")["outcome"], "client_gone");
    assert_eq!(ended(&gateway, "client_gone"), 1.0);
    drop(first);
    assert_eq!(stays.answer().status, 200);
    assert_eq!(order(&engine), ["first", "stays"]);
}

fn over_several_threads_all_who_wait_get_their_turn(driver: Driver) {
    let engines = [engine(), engine()];
    let gateway = Setup::new(documents(&[&engines[0], &engines[1]], "maxWait: 60s")).ready(2).threads(3).start(driver);
    let mut clients: Vec<Client> = (0..30).map(|_| gateway.send_chat("", &chat(MODEL, 3))).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().status, 200));
    let all: usize = engines.iter().map(|engine| model_requests(engine).len()).sum();
    assert_eq!(all, 30);
    waiting(&gateway, 0.0);
    gateway.expect_nothing_in_flight();
}

fn a_change_of_the_configuration_leaves_nobody_behind(driver: Driver) {
    let engine = slow_engine(5);
    let gateway = Setup::new(documents(&[&engine], "maxWait: 30s")).start(driver);
    let first = occupy(&gateway, &named("first"));
    let mut before = gateway.send_chat(&named("before"), &chat(MODEL, 2));
    waiting(&gateway, 1.0);
    gateway.write_resources(&documents(&[&engine], "maxWait: 20s"));
    gateway.wait_for_metric("kinference_config_generation", &[], 2.0);
    let mut after = gateway.send_chat(&named("after"), &chat(MODEL, 2));
    waiting(&gateway, 1.0);
    drop(first);
    assert_eq!((before.answer().status, after.answer().status), (200, 200));
    eventually("both were served", || (ended(&gateway, "served") == 2.0).then_some(()));
}
