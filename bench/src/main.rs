//! Micro-benchmarks of the parts that touch every request. One command: `cargo run --release -p bench -- [scan|head|events|chain|decision|limits]`.
//!
//! Figures are medians of interleaved rounds in one process, so that rows of one table can be compared; absolute times
//! depend on the machine.
#![forbid(unsafe_code)]

mod limits;

use std::hint::black_box;
use std::time::Instant;

use lb::probe;
use lb::probe::decide::{Asked, Decider};
use limits::limits;
use serde::Deserialize;

/// Rounds of each row; rows take turns.
const ROUNDS: usize = 15;
/// Bytes that a row works through in one round.
const ROUND_BYTES: usize = 4 << 20;

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let all = [
        ("scan", scan as fn()),
        ("head", head),
        ("events", events),
        ("chain", chain),
        ("decision", decision),
        ("limits", limits),
    ];
    let known = |name: &String| all.iter().any(|(known, _)| known == name);
    if let Some(unknown) = chosen.iter().find(|name| !known(name)) {
        eprintln!(
            "unknown benchmark {unknown:?}: expected scan, head, events, chain, decision or limits (none runs all)"
        );
        std::process::exit(2);
    }
    for (name, run) in all {
        if chosen.is_empty() || chosen.iter().any(|wanted| wanted == name) {
            run();
        }
    }
}

/// One row of a table: a name, and a function that works on the input once.
struct Row<'a> {
    name: &'a str,
    work: Box<dyn FnMut() -> usize + 'a>,
}

/// Prints the median time of each row, and its ratio to the first.
fn table(title: &str, input_bytes: usize, mut rows: Vec<Row<'_>>) {
    let repeats = (ROUND_BYTES / input_bytes.max(1)).clamp(8, 20_000);
    let mut times = vec![Vec::with_capacity(ROUNDS); rows.len()];
    for _ in 0..ROUNDS {
        for (row, times) in rows.iter_mut().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..repeats {
                black_box((row.work)());
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / repeats as f64);
        }
    }
    println!("{title}");
    let mut first = None;
    for (row, times) in rows.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let base = *first.get_or_insert(median);
        println!("  {:<44} {median:>10.2} us  {:>6.2}x", row.name, median / base);
    }
}

/// A chat body of about `bytes`.
fn body(bytes: usize) -> Vec<u8> {
    let sentence = "The quick brown fox said \\\"hello\\\" to the lazy dog, and went on its way.\\n";
    let turns = 8;
    let text = sentence.repeat((bytes / turns / sentence.len()).max(1));
    let messages: Vec<String> = (0..turns)
        .map(|turn| format!(r#"{{"role":"{}","content":"{text}"}}"#, if turn % 2 == 0 { "user" } else { "assistant" }))
        .collect();
    format!(
        r#"{{"model":"org/model","messages":[{}],"temperature":0.7,"stream":true,"max_tokens":256}}"#,
        messages.join(",")
    )
    .into_bytes()
}

/// What a typed parser would be given.
#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(borrow)]
    model: std::borrow::Cow<'a, str>,
    messages: Vec<Message>,
    stream: Option<bool>,
    max_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

impl Typed<'_> {
    fn measure(&self) -> usize {
        self.model.len()
            + self.messages.iter().map(|m| m.role.len() + m.content.len()).sum::<usize>()
            + usize::from(self.stream.unwrap_or(false))
            + self.max_tokens.unwrap_or(0) as usize
    }
}

fn scan() {
    for (name, bytes) in [("1 KB", 1 << 10), ("32 KB", 32 << 10), ("1 MB", 1 << 20)] {
        let body = body(bytes);
        let mut copy = Vec::with_capacity(body.len());
        let mut buffers = simd_json::Buffers::new(body.len());
        let rows = vec![
            Row { name: "scan of the routing fields", work: Box::new(|| probe::scan(&body)) },
            Row { name: "scan, walk and hash of the prompt", work: Box::new(|| probe::chain(&body)) },
            Row {
                name: "simd-json: copy, tape",
                work: Box::new(move || {
                    copy.clear();
                    copy.extend_from_slice(&body_of(bytes));
                    simd_json::to_tape_with_buffers(&mut copy, &mut buffers).map_or(0, |tape| tape.0.len())
                }),
            },
            Row {
                name: "serde_json: typed",
                work: Box::new(|| serde_json::from_slice::<Typed<'_>>(&body).map_or(0, |typed| typed.measure())),
            },
        ];
        table(&format!("request body, {name}"), body.len(), rows);
    }
}

/// The same body without building it anew each time.
fn body_of(bytes: usize) -> std::rc::Rc<[u8]> {
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::rc::Rc;
    thread_local! {
        static BODIES: RefCell<HashMap<usize, Rc<[u8]>>> = RefCell::default();
    }
    BODIES.with_borrow_mut(|bodies| bodies.entry(bytes).or_insert_with(|| body(bytes).into()).clone())
}

fn head() {
    let text: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 10.0.0.1:8080\r\nAccept: application/json\r\nContent-Type: application/json\r\n\
        User-Agent: OpenAI/Python 2.0\r\nX-Stainless-Lang: python\r\nX-Stainless-Async: false\r\nAuthorization: Bearer none\r\n\
        Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nContent-Length: 512\r\n\r\n";
    let mut memory = probe::Head::default();
    table(
        "request head, 11 headers",
        text.len(),
        vec![Row { name: "head", work: Box::new(move || probe::request_head(&mut memory, text)) }],
    );
}

fn events() {
    let event = "data: {\"id\":\"chatcmpl-bed69d06dfe4fba0\",\"object\":\"chat.completion.chunk\",\"created\":1796027193,\"model\":\"tiny\",\
        \"choices\":[{\"index\":0,\"delta\":{\"content\":\" fabulous\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";
    let text = event.as_bytes();
    let half = text.len() / 2;
    let rows = vec![
        Row { name: "one whole event", work: Box::new(|| probe::events(text, b"")) },
        Row { name: "one event in two parts", work: Box::new(|| probe::events(&text[..half], &text[half..])) },
    ];
    table("SSE observer", text.len(), rows);
}

fn chain() {
    let body = body(32 << 10);
    table(
        "prefix chain of a 32 KB chat",
        body.len(),
        vec![Row { name: "chain", work: Box::new(|| probe::chain(&body)) }],
    );
}

/// Endpoints to choose from, and decisions timed in each round.
const ENDPOINTS: usize = 100;
const DECISIONS: usize = 20_000;
/// Bytes of a prompt: 8,000 tokens of four.
const PROMPT_BYTES: usize = 32_000;
/// Conversations that take turns; each is known to one endpoint or a few.
const CONVERSATIONS: usize = 300;

/// Whole decisions among many endpoints: prompt hashed, overlaps looked up, times predicted, policy evaluated. Each is timed by itself, for
/// the slow ones matter; requests in flight, scrapes and a full prefix index as in use.
fn decision() {
    let mut decider = match Decider::new(&documents()) {
        Ok(decider) => decider,
        Err(error) => {
            eprintln!("decision: {error}");
            std::process::exit(1);
        }
    };
    let asked: Vec<Asked> = (0..CONVERSATIONS).filter_map(|number| Asked::new(conversation(number))).collect();
    let mut round = || {
        let mut times: Vec<f64> = (0..DECISIONS)
            .filter_map(|number| decider.decide(&asked[number * 7 % asked.len()]))
            .map(|(took, _)| took.as_secs_f64() * 1e6)
            .collect();
        times.sort_by(f64::total_cmp);
        times
    };
    // Fills the index and settles what is learned.
    round();
    println!("decision among {ENDPOINTS} endpoints, prompt of {PROMPT_BYTES} bytes, {DECISIONS} decisions a round");
    for _ in 0..5 {
        let times = round();
        let at = |quantile: f64| times.get((times.len() as f64 * quantile) as usize).copied().unwrap_or(f64::NAN);
        println!("  p50 {:>7.2} us  p99 {:>7.2} us  max {:>8.2} us", at(0.5), at(0.99), at(1.0 - f64::EPSILON));
    }
}

fn documents() -> String {
    use std::fmt::Write as _;
    let mut endpoints = String::new();
    for number in 0..ENDPOINTS {
        // Writing to a string cannot fail.
        let _ = write!(endpoints, "{{address: 10.0.{}.{}, port: 8000}},", number / 250, number % 250 + 1);
    }
    format!(
        "{{apiVersion: kinference.buoyant.io/v1alpha1, kind: InferenceWorkerSet, metadata: {{name: w}}, \
         spec: {{model: {{name: org/model}}, endpoints: [{endpoints}]}}}}\n---\n\
         {{apiVersion: kinference.buoyant.io/v1alpha1, kind: InferencePolicy, metadata: {{name: p}}, \
         spec: {{rules: [{{name: r, route: {{exclude: [{{name: busy, drop: {{backend: {{type: Local}}, queuedPrompts: {{greaterThan: 4}}}}}}], \
         select: [{{type: Local, minimize: PredictedTTFT}}]}}}}]}}}}\n---\n\
         {{apiVersion: kinference.buoyant.io/v1alpha1, kind: InferencePool, metadata: {{name: o}}, \
         spec: {{destinations: [{{kind: InferenceWorkerSet, name: w}}], policyRef: [{{name: p}}]}}}}\n"
    )
}

/// A chat that begins like all of its tenth, and goes on by itself.
fn conversation(number: usize) -> Vec<u8> {
    let shared = format!("You are assistant number {}, and you are kind to everybody. ", number % 10).repeat(60);
    let own = format!("Turn of conversation {number}: the quick brown fox jumps over the lazy dog. ");
    let own = own.repeat(PROMPT_BYTES.saturating_sub(shared.len()) / own.len());
    format!(
        r#"{{"model":"org/model","messages":[{{"role":"system","content":"{shared}"}},{{"role":"user","content":"{own}"}}],"stream":true}}"#
    )
    .into_bytes()
}
