//! The whole of it: when the local engines are full, hosted providers take the excess in their order; prompts with personal
//! data never get there; and when the queue has drained, everything is local again.
//!
//! The policy is the guide's own. `KINFERENCE_OVERFLOW_REQUESTS=20000` sends so many requests under it as written, with its mean
//! over 30 s; without the variable some hundred, with a mean over 2 s.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine::step::{Parameters, StepCost};
use engine::{Engine, RequestRecord, Settings};
use serde_json::Value;

use crate::hosted::{HOST, setup, trusted};
use crate::pki::{Authority, Leaf};
use crate::support::client::request;
use crate::support::{Client, Driver, Gateway};

on_both_drivers![providers_take_the_excess_in_order_and_never_personal_data];

const POLICY: &str = include_str!("../../../config/tests/cases/seed-policies/overflow.yaml");

/// What clients ask for.
const MODEL: &str = "qwen-3.6";
/// What no provider may ever see.
const CARD: &str = "4111 1111 1111 1111";
/// Clients at once: more than the local engine takes, and the first provider with it.
const CLIENTS: usize = 24;
/// Requests in flight at the first provider.
const FIRST_MAX: u32 = 3;
/// Longest wait for a state that must come.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long the test is.
struct Length {
    requests: u64,
    policy: String,
}

impl Length {
    fn wanted() -> Self {
        match std::env::var("KINFERENCE_OVERFLOW_REQUESTS") {
            Ok(requests) => Self { requests: requests.parse().unwrap(), policy: POLICY.to_owned() },
            Err(_) => {
                Self { requests: 300, policy: POLICY.replace("greaterThan: 2 }", "greaterThan: 2, window: 2s }") }
            }
        }
    }
}

/// An engine that needs so long for each token, and keeps all that it got.
fn settings(model: &str, token_ms: u32, running_max: u32) -> Settings {
    let cost = StepCost { base_us: f64::from(token_ms) * 1e3, ..StepCost::NONE };
    let parameters = Parameters { cost, running_max, ..Parameters::default() };
    Settings { models: vec![model.to_owned()], parameters, records_max: 1 << 20, ..Settings::default() }
}

/// One local engine and two providers.
struct Fleet {
    local: Engine,
    first: Engine,
    second: Engine,
    authority: Authority,
}

impl Fleet {
    fn start() -> Self {
        let (authority, leaf): (Authority, Leaf) = trusted();
        let local = Engine::start(settings("Qwen/Qwen3.6-27B", 3, 2)).unwrap();
        let provider = |model: &str| {
            let tls = engine::Tls::from_pem(leaf.certificate_pem.as_bytes(), leaf.key_pem().as_bytes()).unwrap();
            Engine::start(Settings { tls: Some(tls), ..settings(model, 1, 256) }).unwrap()
        };
        let (first, second) = (provider("databricks-qwen-3-6"), provider("qwen.qwen3-6-27b-v1:0"));
        Self { local, first, second, authority }
    }

    fn documents(&self, policy: &str) -> String {
        let head = "apiVersion: kinference.buoyant.io/v1alpha1\nkind:";
        let provider = |name: &str, engine: &Engine, upstream: &str, limits: &str| {
            format!(
                "{head} InferenceProvider\nmetadata: {{ name: {name}, namespace: default }}\nspec:\n  type: OpenAI\n  \
                 baseURL: https://{HOST}:{}/v1\n  tls: {{ caFile: ../ca.crt }}\n  timeouts: {{ connect: 1m, firstByte: 10m }}\n  auth: {{ bearer: {{ fromEnv: HOSTED_TOKEN }} }}\n  \
                 limits: {{ {limits} }}\n  models: [{{ name: {MODEL}, upstreamName: \"{upstream}\" }}]\n---\n",
                engine.addr().port()
            )
        };
        format!(
            "{head} InferenceWorkerSet\nmetadata: {{ name: qwen-3-6-vllm, namespace: default }}\nspec:\n  \
             model: {{ name: Qwen/Qwen3.6-27B, aliases: [{MODEL}] }}\n  metrics: {{ interval: 100ms }}\n  \
             endpoints: [{{ address: 127.0.0.1, port: {} }}]\n---\n{}{}{policy}",
            self.local.addr().port(),
            provider("databricks", &self.first, "databricks-qwen-3-6", &format!("maxInFlight: {FIRST_MAX}")),
            provider("bedrock", &self.second, "qwen.qwen3-6-27b-v1:0", "requestsPerMinute: 1000000"),
        )
    }
}

/// The `number`-th request. One in eight has personal data in it.
fn body(number: u64) -> (String, String) {
    let (kind, prompt) = match number % 8 {
        0 => ("pii", format!("My card is {CARD}, please refund order {number}")),
        _ => ("plain", format!("Tell me about the number {number}.")),
    };
    let delivery = if number.is_multiple_of(2) { "" } else { r#","stream":true"# };
    let text = format!(
        r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"{prompt}"}}],"max_tokens":10{delivery}}}"#
    );
    (format!("{kind}-{number}"), text)
}

/// Sends requests from all clients, each on a kept connection, until `enough`; the statuses by id.
fn load(gateway: &Gateway, next: &AtomicU64, enough: impl Fn(u64) -> bool + Sync) -> BTreeMap<String, u16> {
    let client = || {
        let (mut client, mut seen) = (Client::connect(gateway.address), Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            if enough(number) {
                return seen;
            }
            let (id, body) = body(number);
            client.send(request("/v1/chat/completions", &format!("x-request-id: {id}\r\n"), &body));
            let answer = client.answer();
            if answer.status == 200 {
                assert!(answer.text().contains(&format!("\"model\":\"{MODEL}\"")), "{answer:?}");
            } else {
                assert_eq!((answer.status, answer.error_code().as_str()), (429, "overloaded"), "{id}: {answer:?}");
            }
            seen.push((id, answer.status));
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

fn of_model(engine: &Engine) -> Vec<RequestRecord> {
    engine.requests().into_iter().filter(|request| request.method == "POST").collect()
}

fn providers_take_the_excess_in_order_and_never_personal_data(driver: Driver) {
    let length = Length::wanted();
    let fleet = Fleet::start();
    let gateway = setup(fleet.documents(&length.policy), &fleet.authority).threads(2).ready(3).start(driver);
    let (next, begun) = (AtomicU64::new(0), Instant::now());
    let overflowed = || fleet.first.stats().completed > 20 && fleet.second.stats().completed > 20;
    let statuses = load(&gateway, &next, |number| {
        assert!(begun.elapsed() < PATIENCE || number >= length.requests, "nothing ever overflowed");
        number >= length.requests && overflowed()
    });

    // Every plain request was answered by somebody; personal data waited for nobody and was refused while all was full.
    let refused: Vec<_> = statuses.iter().filter(|(_, status)| **status != 200).collect();
    assert!(refused.iter().all(|(id, _)| id.starts_with("pii-")), "{refused:?}");
    assert!(!refused.is_empty(), "prompts with personal data came while all was full");

    // What the providers themselves got.
    let (first, second) = (of_model(&fleet.first), of_model(&fleet.second));
    for sent in first.iter().chain(&second) {
        let told = format!("{:?} {}", sent.headers, sent.body);
        assert!(![CARD, "My card", "pii-"].iter().any(|part| told.contains(part)), "personal data left: {told}");
    }
    let local = of_model(&fleet.local);
    let personal = local.iter().filter(|sent| sent.body.contains(CARD)).count();
    let kept = statuses.iter().filter(|(id, status)| id.starts_with("pii-") && **status == 200).count();
    assert_eq!(personal, kept, "what was answered of it was answered here");
    assert_eq!(first.len() + second.len() + local.len(), statuses.len() - refused.len(), "each went to one place");

    expect_order(&gateway, &statuses);
    expect_return(&gateway, &fleet, &next);
    println!(
        "{} requests: {} local, {} and {} at the providers, {} with personal data refused, none of it sent out",
        statuses.len(),
        local.len(),
        first.len(),
        second.len(),
        refused.len()
    );
}

/// The second provider was only used while the first was at its limit.
fn expect_order(gateway: &Gateway, statuses: &BTreeMap<String, u16>) {
    let lines = crate::support::eventually("the log is whole", || {
        let lines = gateway.log_lines();
        (lines.len() >= statuses.len()).then_some(lines)
    });
    let mut changes: Vec<(u64, i64)> = Vec::new();
    let (mut first, mut second) = (0, 0);
    for line in &lines {
        match line["destination"].as_str() {
            Some("databricks") => first += 1,
            Some("bedrock") => second += 1,
            Some(_) | None => {}
        }
        if line["destination"] == "databricks" {
            let (begin, end) = span_ms(line);
            changes.extend([(begin, 1), (end, -1)]);
        }
    }
    assert!(first > 0 && second > 0, "{first} {second}");
    // Ends before beginnings, as the log has whole milliseconds.
    changes.sort_unstable();
    let (mut at_once, mut most) = (0, 0);
    for (_, change) in changes {
        at_once += change;
        most = most.max(at_once);
    }
    assert!(most >= i64::from(FIRST_MAX) - 1, "the first was never full: {most}");
}

/// When a request was at its destination, roughly.
fn span_ms(line: &Value) -> (u64, u64) {
    let time = line["time"].as_str().unwrap();
    let clock: Vec<u64> = time[11..23].split([':', '.']).map(|part| part.parse().unwrap()).collect();
    let end = ((clock[0] * 60 + clock[1]) * 60 + clock[2]) * 1000 + clock[3];
    (end.saturating_sub(line["duration_ms"].as_f64().unwrap() as u64), end)
}

/// With the queue drained everything is local again, by itself.
fn expect_return(gateway: &Gateway, fleet: &Fleet, next: &AtomicU64) {
    let begun = Instant::now();
    let mut local_in_a_row = 0;
    while local_in_a_row < 10 {
        assert!(begun.elapsed() < PATIENCE, "it never came back");
        let (id, body) = body(next.fetch_add(1, Ordering::SeqCst) | 1);
        let before = of_model(&fleet.local).len();
        assert_eq!(gateway.chat(&format!("x-request-id: {id}\r\n"), &body).status, 200);
        local_in_a_row = if of_model(&fleet.local).len() > before { local_in_a_row + 1 } else { 0 };
    }
    gateway.expect_nothing_in_flight();
}
