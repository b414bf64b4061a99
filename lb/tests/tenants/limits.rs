//! What each tenant may use, told as OpenAI's API tells it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::support::client::request;
use crate::support::engines::{MODEL, expect_idle};
use crate::support::{Answer, Client, Driver, Setup, chat, engine, eventually, fleet, model_requests, stream};
use crate::{key_of, tenant_with_key};

on_both_drivers![
    requests_over_the_limit_are_told_when_to_come_back,
    tokens_are_reserved_and_settled_with_what_was_used,
    an_answer_that_breaks_off_is_charged_for_what_came,
    a_request_that_nobody_answered_costs_no_tokens,
    requests_at_once_are_limited_until_one_ends,
    over_all_threads_the_limit_is_exact,
    what_was_used_stays_used_when_the_configuration_changes,
];

fn number(answer: &Answer, name: &str) -> u64 {
    answer.header(name).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {}", answer.head))
}

fn requests_over_the_limit_are_told_when_to_come_back(driver: Driver) {
    let engine = engine();
    let tenants = tenant_with_key("alice", ", limits: { requestsPerMinute: 3 }") + &tenant_with_key("bob", "");
    let gateway = Setup::new(fleet(&[&engine]) + &tenants).start(driver);
    for left in [2, 1, 0] {
        let answer = gateway.chat(&key_of("alice"), &chat(MODEL, 1));
        assert_eq!(answer.status, 200);
        assert_eq!(number(&answer, "x-ratelimit-limit-requests"), 3);
        assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), left);
        assert!(answer.header("x-ratelimit-reset-requests").unwrap().ends_with('s'), "{}", answer.head);
        assert_eq!(answer.header("x-ratelimit-limit-tokens"), None);
    }
    let refused = gateway.chat(&format!("{}x-request-id: over\r\n", key_of("alice")), &chat(MODEL, 1));
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "rate_limit_exceeded"));
    assert_eq!(refused.json()["error"]["type"], "requests");
    let wait_s = number(&refused, "retry-after");
    assert!((1..=20).contains(&wait_s), "{wait_s}");
    assert_eq!(number(&refused, "x-ratelimit-remaining-requests"), 0);
    assert_eq!(gateway.log_of("over")["outcome"], "rate_limited");
    // Nobody else is held up, and a list of models is no request to one.
    let others = gateway.chat(&key_of("bob"), &chat(MODEL, 1));
    assert_eq!((others.status, others.header("x-ratelimit-limit-requests")), (200, None));
    let models = Client::sending(
        gateway.address,
        format!("GET /v1/models HTTP/1.1\r\nHost: gateway\r\n{}\r\n", key_of("alice")),
    );
    assert_eq!({ models }.answer().status, 200);
    assert_eq!(model_requests(&engine).len(), 4);
    assert_eq!(gateway.metric("kinference_requests_total", &["tenant=\"alice\"", "outcome=\"rate_limited\""]), 1.0);
    assert_eq!(gateway.metric("kinference_tenant_remaining", &["tenant=\"alice\"", "limit=\"requests\""]), 0.0);
}

fn tokens_are_reserved_and_settled_with_what_was_used(driver: Driver) {
    let engine = engine();
    let tenants = tenant_with_key("alice", ", limits: { tokensPerMinute: 1000 }");
    let gateway = Setup::new(fleet(&[&engine]) + &tenants).start(driver);
    let ask = |body: &str| gateway.chat(&key_of("alice"), body);
    // More than the whole limit is taken for the whole limit, which is there.
    let first = ask(&chat(MODEL, 5_000));
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(number(&first, "x-ratelimit-limit-tokens"), 1_000);
    // Some sixteen come back each second.
    assert!(number(&first, "x-ratelimit-remaining-tokens") < 200, "{}", first.head);
    let usage = first.json()["usage"]["total_tokens"].as_u64().unwrap();
    assert!(usage >= 5_000, "{usage}");
    // It used more than it had reserved: that is a debt.
    let refused = ask(&chat(MODEL, 5));
    assert_eq!((refused.status, refused.json()["error"]["type"].as_str()), (429, Some("tokens")));
    let wait_s = number(&refused, "retry-after");
    assert!((200..=320).contains(&wait_s), "{wait_s}");

    let tenants = tenant_with_key("bob", ", limits: { tokensPerMinute: 6000 }");
    let gateway = Setup::new(fleet(&[&engine]) + &tenants).start(driver);
    let ask = |body: &str| gateway.chat(&key_of("bob"), body);
    let (mut used, begun) = (0, Instant::now());
    for _ in 0..3 {
        let answer = ask(&chat(MODEL, 10));
        used += answer.json()["usage"]["total_tokens"].as_u64().unwrap();
    }
    let left = gateway.metric("kinference_tenant_remaining", &["tenant=\"bob\"", "limit=\"tokens\""]);
    // A hundred come back each second.
    let least = 6_000.0 - used as f64;
    let most = least + 100.0 * begun.elapsed().as_secs_f64() + 1.0;
    assert!(left >= least && left <= most, "{left} of 6000 after {used}");
    assert!(ask(&chat(MODEL, 10)).status == 200);
}

fn an_answer_that_breaks_off_is_charged_for_what_came(driver: Driver) {
    let engine = engine();
    let tenants = tenant_with_key("alice", ", limits: { tokensPerMinute: 600 }");
    let gateway = Setup::new(fleet(&[&engine]) + &tenants).start(driver);
    let begun = Instant::now();
    let headers = format!("{}x-fault: hang-mid-stream=40\r\n", key_of("alice"));
    let mut client = gateway.send_chat(&headers, &stream(MODEL, 500));
    client.head();
    let mut events = 0;
    // A chunk may hold several events.
    while events < 40 {
        events += String::from_utf8_lossy(&client.chunk()).matches("data: ").count();
    }
    drop(client);
    expect_idle(&engine);
    // With it the reservation is settled.
    gateway.wait_for_metric("kinference_tenant_in_flight", &["tenant=\"alice\""], 0.0);
    let left = gateway.metric("kinference_tenant_remaining", &["tenant=\"alice\"", "limit=\"tokens\""]);
    // Of the prompt some ten, and the 39 pieces behind the event with the role; ten come back each second.
    let most = 600.0 - 39.0 + 10.0 * begun.elapsed().as_secs_f64() + 1.0;
    assert!((530.0..=most).contains(&left), "{left} of {most} at most");
}

fn a_request_that_nobody_answered_costs_no_tokens(driver: Driver) {
    let engine = engine();
    let tenants = tenant_with_key("alice", ", limits: { tokensPerMinute: 600, requestsPerMinute: 10 }");
    let gateway = Setup::new(fleet(&[&engine]) + &tenants).start(driver);
    let unknown = gateway.chat(&key_of("alice"), &chat("nobody-serves-this", 500));
    assert_eq!(unknown.status, 404);
    let failed = gateway.chat(&format!("{}x-fault: status=500\r\n", key_of("alice")), &chat(MODEL, 500));
    assert_eq!(failed.status, 500);
    let left = |limit: &str| gateway.metric("kinference_tenant_remaining", &["tenant=\"alice\"", limit]);
    eventually("the reservation is given back", || (left("limit=\"tokens\"") == 600.0).then_some(()));
    // One whose tokens are not there does not count as a request.
    assert_eq!(gateway.chat(&key_of("alice"), &chat(MODEL, 580)).status, 200);
    let requests = left("limit=\"requests\"");
    assert_eq!(gateway.chat(&key_of("alice"), &chat(MODEL, 580)).status, 429);
    assert!(left("limit=\"requests\"") >= requests);
}

fn requests_at_once_are_limited_until_one_ends(driver: Driver) {
    let engine = engine();
    let tenants = tenant_with_key("alice", ", limits: { maxInFlight: 1 }");
    let gateway = Setup::new(fleet(&[&engine]) + &tenants).threads(2).start(driver);
    let mut first = gateway.send_chat(&format!("{}x-fault: hang-mid-stream=1\r\n", key_of("alice")), &stream(MODEL, 3));
    first.head();
    let refused = gateway.chat(&key_of("alice"), &chat(MODEL, 1));
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "rate_limit_exceeded"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    drop(first);
    eventually("there is room again", || (gateway.chat(&key_of("alice"), &chat(MODEL, 1)).status == 200).then_some(()));
}

fn over_all_threads_the_limit_is_exact(driver: Driver) {
    const LIMIT: u64 = 60;
    let engine = engine();
    let tenants = tenant_with_key("alice", &format!(", limits: {{ requestsPerMinute: {LIMIT} }}"));
    let gateway = Setup::new(fleet(&[&engine]) + &tenants).threads(4).start(driver);
    let (good, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(gateway.address);
                for _ in 0..15 {
                    client.send(request("/v1/chat/completions", &key_of("alice"), &chat(MODEL, 1)));
                    match client.answer().status {
                        200 => good.fetch_add(1, Ordering::SeqCst),
                        429 => refused.fetch_add(1, Ordering::SeqCst),
                        other => panic!("{other}"),
                    };
                }
            });
        }
    });
    let good = good.load(Ordering::SeqCst);
    let back = begun.elapsed().as_secs_f64() * LIMIT as f64 / 60.0;
    assert_eq!(good + refused.load(Ordering::SeqCst), 120);
    assert!(good >= LIMIT && good as f64 <= LIMIT as f64 + back + 1.0, "{good} in {:?}", begun.elapsed());
    assert_eq!(model_requests(&engine).len() as u64, good);
}

fn what_was_used_stays_used_when_the_configuration_changes(driver: Driver) {
    let engine = engine();
    let of = |limits: &str| fleet(&[&engine]) + &tenant_with_key("alice", limits);
    let gateway = Setup::new(of(", limits: { requestsPerMinute: 1 }")).start(driver);
    let begun = Instant::now();
    assert_eq!(gateway.chat(&key_of("alice"), &chat(MODEL, 1)).status, 200);
    gateway.write_resources(&of(", limits: { requestsPerMinute: 2 }"));
    gateway.wait_for_metric("kinference_config_generation", &[], 2.0);
    let next = gateway.chat(&key_of("alice"), &chat(MODEL, 1));
    assert_eq!(number(&next, "x-ratelimit-limit-requests"), 2);
    // After half a minute one more is due.
    if begun.elapsed().as_secs() < 30 {
        assert_eq!(next.status, 429);
    }
    gateway.write_resources(&of(""));
    gateway.wait_for_metric("kinference_config_generation", &[], 3.0);
    assert_eq!(gateway.chat(&key_of("alice"), &chat(MODEL, 1)).status, 200);
}
