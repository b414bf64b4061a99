//! What one evaluation costs: 50 rules tried, the last of which holds, and 100 candidates judged.
//!
//! `cargo run --release -p policy --example evaluation_cost`. The least of many short rounds, microseconds: another program on the
//! core spoils a round, not the whole. The bar is 2.
#![forbid(unsafe_code)]

#[path = "../tests/fleet/mod.rs"]
mod fleet;

use std::hint::black_box;
use std::time::Instant;

use policy::{HeaderMap, Program, Request, Scratch, decide};

const ROUNDS: usize = 2_001;
const EVALUATIONS: u64 = 50;

fn main() {
    for (name, program) in [("two steps", fleet::program()), ("a split of three", fleet::split_program())] {
        let (matching, whole) = least_us(&program);
        println!("{name:20} rule {matching:.3} us, rule and decision {whole:.3} us");
    }
}

fn least_us(program: &Program) -> (f64, f64) {
    let candidates = fleet::candidates();
    let headers = HeaderMap(vec![("x-team".into(), "search".into()), ("accept".into(), "*/*".into())]);
    let tags = ["code", "tools"];
    let mut scratch = Scratch::new();
    let (mut matching, mut whole) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        for (times, judge) in [(&mut matching, false), (&mut whole, true)] {
            let start = Instant::now();
            for seed in 0..EVALUATIONS {
                let request = Request {
                    tags: &tags,
                    headers: &headers,
                    prompt_tokens: 900.0,
                    conversation: Some(seed),
                    ..Request::chat("qwen-3.6", "alice")
                };
                let rule = program.match_rule(black_box(&request));
                if judge {
                    black_box(decide(program, rule, &request, &candidates, seed, &mut scratch));
                } else {
                    black_box(rule);
                }
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / EVALUATIONS as f64);
        }
    }
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    (least(&matching), least(&whole))
}
