//! Limits of a provider: exact over all data threads, and passed over to the next one.

use std::time::Instant;

use engine::Engine;

use crate::hosted::{hosted, in_front_of, provider, providers_only, setup, trusted};
use crate::pki::{Authority, Leaf};
use crate::support::engines::{ALIAS, break_down, repair};
use crate::support::{Client, Driver, Gateway, PATIENCE, chat, eventually, model_requests};

on_both_drivers![
    requests_of_a_minute_are_counted_over_all_threads,
    tokens_of_a_minute_are_reserved_and_settled,
    requests_in_flight_are_counted_over_all_threads,
    a_limit_that_is_raised_is_in_force_at_once,
    a_client_is_told_when_a_full_minute_has_room_again,
];

/// Two providers, the first with limits, behind three data threads.
fn limited(driver: Driver, authority: &Authority, limits: &str, first: &Engine, second: &Engine) -> Gateway {
    setup(documents(limits, first, second), authority).threads(3).ready(2).start(driver)
}

fn documents(limits: &str, first: &Engine, second: &Engine) -> String {
    provider("first", first.addr().port(), &format!("  limits: {{ {limits} }}\n"))
        + &provider("second", second.addr().port(), "")
        + &providers_only(&["first", "second"])
}

fn pair(leaf: &Leaf) -> (Engine, Engine) {
    (hosted(leaf), hosted(leaf))
}

/// Sends requests at once, each on a connection of its own, and waits for their answers.
fn at_once(gateway: &Gateway, requests: usize, body: &str) {
    let clients: Vec<Client> = (0..requests).map(|_| gateway.send_chat("", body)).collect();
    clients.into_iter().for_each(|mut client| assert_eq!(client.answer().status, 200));
}

fn requests_of_a_minute_are_counted_over_all_threads(driver: Driver) {
    let (authority, leaf) = trusted();
    let (first, second) = pair(&leaf);
    let gateway = limited(driver, &authority, "requestsPerMinute: 17", &first, &second);
    at_once(&gateway, 40, &chat(ALIAS, 1));
    assert_eq!((model_requests(&first).len(), model_requests(&second).len()), (17, 23));
    at_once(&gateway, 5, &chat(ALIAS, 1));
    assert_eq!((model_requests(&first).len(), model_requests(&second).len()), (17, 28));
    let minute = gateway.endpoint(first.addr())["lastMinute"].clone();
    assert_eq!((&minute["requests"], &minute["requestsMax"]), (&17.into(), &17.into()), "{minute}");
    gateway.expect_nothing_in_flight();
}

fn tokens_of_a_minute_are_reserved_and_settled(driver: Driver) {
    let (authority, leaf) = trusted();
    let (first, second) = pair(&leaf);
    let gateway = limited(driver, &authority, "tokensPerMinute: 1000", &first, &second);
    // Each reserves more than half of the limit, and needs some dozen tokens in the end.
    let body = chat(ALIAS, 600).replace("}],", r#"}],"stop":["zzzz"],"min_tokens":1,"#);
    for (sent, model) in [(1, &first), (2, &second)] {
        at_once(&gateway, 1, &body);
        assert_eq!(model_requests(model).len(), 1, "request {sent}");
    }
    // What is larger than the limit counts as the limit, which is not all there any more.
    at_once(&gateway, 1, &chat(ALIAS, 100_000).replace("100000", "5000"));
    assert_eq!((model_requests(&first).len(), model_requests(&second).len()), (1, 2));
    at_once(&gateway, 1, &chat(ALIAS, 5));
    assert_eq!((model_requests(&first).len(), model_requests(&second).len()), (2, 2), "a small one has room");
}

fn requests_in_flight_are_counted_over_all_threads(driver: Driver) {
    let (authority, leaf) = trusted();
    let (first, second) = pair(&leaf);
    // What it has, it keeps until the client leaves.
    break_down(&first, "hang-before-head");
    let gateway = limited(driver, &authority, "maxInFlight: 4", &first, &second);
    let clients: Vec<Client> = (0..30).map(|_| gateway.send_chat("", &chat(ALIAS, 1))).collect();
    eventually("each has its place", || (model_requests(&first).len() == 4).then_some(()));
    second.wait_until(PATIENCE, |stats| stats.completed >= 26).unwrap();
    assert_eq!(model_requests(&first).len(), 4);
    drop(clients);
    gateway.expect_nothing_in_flight();
    repair(&first);
    at_once(&gateway, 1, &chat(ALIAS, 1));
    assert_eq!(model_requests(&first).len(), 5, "there is room again");
    gateway.expect_nothing_in_flight();
}

fn a_limit_that_is_raised_is_in_force_at_once(driver: Driver) {
    let (authority, leaf) = trusted();
    let (first, second) = pair(&leaf);
    let gateway = limited(driver, &authority, "requestsPerMinute: 2", &first, &second);
    at_once(&gateway, 5, &chat(ALIAS, 1));
    assert_eq!(model_requests(&first).len(), 2);
    gateway.write_resources(&documents("requestsPerMinute: 7", &first, &second));
    eventually("there is room again", || {
        at_once(&gateway, 1, &chat(ALIAS, 1));
        (model_requests(&first).len() > 2).then_some(())
    });
    at_once(&gateway, 20, &chat(ALIAS, 1));
    assert_eq!(model_requests(&first).len(), 7, "what was used before counts");
}

fn a_client_is_told_when_a_full_minute_has_room_again(driver: Driver) {
    let (authority, leaf) = trusted();
    let engine = hosted(&leaf);
    for limits in ["requestsPerMinute: 1", "tokensPerMinute: 100"] {
        let gateway = in_front_of(driver, &engine, &authority, &format!("  limits: {{ {limits} }}\n"));
        let begun = Instant::now();
        assert_eq!(gateway.chat("", &chat(ALIAS, 100)).status, 200);
        let refused = gateway.chat("", &chat(ALIAS, 100));
        assert_eq!((refused.status, refused.error_code().as_str()), (429, "overloaded"), "{limits}");
        let wait_s: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        // The second that the first one counts in, and sixty more.
        let least = 60_u64.saturating_sub(begun.elapsed().as_secs());
        assert!((least..=61).contains(&wait_s), "{limits}: {wait_s}, {least} at least");
    }
}
