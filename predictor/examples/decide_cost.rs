//! What a decision costs: chain, plan and predictions for one 8k-token prompt, and the events of its life.
//!
//! `cargo run --release -p predictor --example decide_cost`. Means over many different prompts, nanoseconds.
#![forbid(unsafe_code)]

use predictor::fleet::{Answer, Attempt, Backend, Decided, Ended, EndpointSpec, Fleet, Limits, Plan};
use predictor::prefix::chain::{Chain, ChainBuilder, Seed};
use predictor::ttft::Prior;
use std::time::{Duration, Instant};

const PROMPT_BYTES: usize = 32_768;
const REQUESTS: u64 = 20_000;

fn main() {
    for endpoints in [32, 100] {
        measure(endpoints);
    }
}

fn measure(endpoints: u32) {
    let mut fleet = Fleet::new(Limits { endpoints_max: endpoints, ..Limits::default() });
    for endpoint in 0..endpoints {
        let spec = EndpointSpec {
            backend: Backend::Engine,
            model: "m",
            kind_key: "m",
            prior: Prior::default(),
            max_batched_tokens: 8_192,
            kv_capacity_tokens: Some(500_000),
        };
        fleet.add_endpoint(0, endpoint, &spec);
    }
    let (mut spent, mut text) = ([Duration::ZERO; 4], vec![b'x'; PROMPT_BYTES]);
    let (mut plan, mut chain) = (Plan::default(), Chain::default());
    for id in 0..REQUESTS {
        let now_us = id * 1_000;
        // A shared system prompt, one of 500 conversations, a new turn at one of many lengths.
        text[4_096..4_104].copy_from_slice(&(id * 7 % 500).to_le_bytes());
        let turn = 8_192 + (id as usize * 1_009 % 24_000);
        text[turn..turn + 8].copy_from_slice(&id.to_le_bytes());
        let start = Instant::now();
        let mut builder = ChainBuilder::new(&Seed { model: "m", lora: None, cache_salt: None }, 256, chain);
        builder.text(&text);
        chain = builder.finish();
        let chained = Instant::now();
        fleet.plan(&mut plan, &chain, PROMPT_BYTES as u32 / 4, now_us);
        let planned = Instant::now();
        let best = (0..endpoints).min_by_key(|at| fleet.predict(&plan, *at).map(|prediction| prediction.cost_us));
        let predicted = Instant::now();
        let endpoint = best.unwrap_or(0);
        let decided = Decided {
            request_id: id,
            endpoint,
            chain: &chain,
            prompt_tokens: plan.prompt_tokens(),
            overlap_tokens: plan.overlap_tokens(endpoint),
            answer: Answer::Streamed,
            attempt: Attempt::First,
        };
        fleet.decided(now_us, &decided);
        fleet.first_token(now_us + 50_000, id, endpoint);
        let completed = Ended::Completed { prompt_tokens: Some(8_192), cached_tokens: None, completion_tokens: None };
        fleet.ended(now_us + 900_000, id, endpoint, completed);
        let times = [chained - start, planned - chained, predicted - planned, predicted.elapsed()];
        spent.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
    }
    let [chain, plan, predict, events] = spent.map(|sum| sum.as_nanos() as u64 / REQUESTS);
    println!(
        "{endpoints} endpoints: chain {chain} ns, plan {plan} ns, predict all {predict} ns, a candidate {} ns with its \
         share of the plan, life of the request (decided, first token, ended) {events} ns",
        (plan + predict) / u64::from(endpoints)
    );
}
