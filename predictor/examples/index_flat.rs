//! Memory of the prefix index under prompts that never come again, and the time of a look-up.
//!
//! `cargo run --release -p predictor --example index_flat [PROMPTS]`: ten million unique prompts of 4,096 tokens (by default) go over 100
//! endpoints; then prompts of 32,768 tokens, known to every endpoint to another depth, are looked up. Exits with 1 when memory grew after the first tenth, or
//! a look-up takes 10 us.
#![forbid(unsafe_code)]

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use predictor::prefix::{
    chain::{BLOCK_BYTES_DEFAULT, Chain, ChainBuilder, Seed},
    index::{Index, IndexLimits},
};

const ENDPOINTS: u32 = 100;
const BYTES_MAX: usize = 64 << 20;
const BYTES_PER_TOKEN: usize = 4;
const LOOKUPS: u32 = 20_000;
/// How much a process may grow that does not: pages of the allocator.
const GROWN_KB_MAX: u64 = 4_096;

fn main() -> ExitCode {
    let prompts = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000_000_u64);
    let mut index = Index::new(IndexLimits { endpoints_max: ENDPOINTS, bytes_max: BYTES_MAX, seed: 1 });
    (0..ENDPOINTS).for_each(|endpoint| index.resize_endpoint(endpoint, 1 << 20));
    let (mut chain, mut text) = (Chain::default(), vec![b'x'; 4_096 * BYTES_PER_TOKEN]);
    let mut first_kb = None;
    println!("prompts  index MiB  resident MiB  us a prompt (hash and insert)");
    for part in 1..=10_u64 {
        let start = Instant::now();
        for id in prompts * (part - 1) / 10..prompts * part / 10 {
            text[..8].copy_from_slice(&id.to_le_bytes());
            chain = chain_of(&text, chain);
            index.insert(&chain, (id % u64::from(ENDPOINTS)) as u32);
        }
        let us = start.elapsed().as_secs_f64() * 1e6 / (prompts / 10).max(1) as f64;
        let kb = resident_kb();
        first_kb.get_or_insert(kb);
        println!(
            "{}  {:.1}  {:.1}  {us:.2}",
            prompts * part / 10,
            index.bytes() as f64 / 1048576.0,
            kb as f64 / 1024.0
        );
    }
    let grown_kb = resident_kb().saturating_sub(first_kb.unwrap_or(0));
    let lookup_ns = look_up(&mut index);
    println!(
        "look-up of 32,768 tokens over {ENDPOINTS} endpoints: {:.2} us; memory grew by {grown_kb} KiB after the first tenth",
        lookup_ns / 1e3
    );
    let met = grown_kb <= GROWN_KB_MAX && index.bytes() <= BYTES_MAX && lookup_ns < 1e4;
    if met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Mean time of a look-up, nanoseconds.
fn look_up(index: &mut Index) -> f64 {
    let (mut chain, mut text) = (Chain::default(), vec![b'y'; 32_768 * BYTES_PER_TOKEN]);
    for endpoint in 0..ENDPOINTS {
        // Each knows the same prompt to another depth.
        let known = text.len() * (endpoint as usize + 1) / ENDPOINTS as usize;
        chain = chain_of(&text[..known], chain);
        index.insert(&chain, endpoint);
    }
    let (mut spent, mut depths, mut deepest) = (Duration::ZERO, Vec::new(), 0);
    for id in 0..LOOKUPS {
        // Another last turn each time.
        let at = text.len() - 1 - (id as usize * 37) % 60_000;
        let was = std::mem::replace(&mut text[at], b'z');
        chain = chain_of(&text, chain);
        let start = Instant::now();
        index.overlap(&chain, &mut depths);
        spent += start.elapsed();
        deepest = deepest.max(depths.iter().copied().max().unwrap_or(0));
        text[at] = was;
    }
    println!("deepest overlap {deepest} of {} blocks", chain.blocks().len());
    spent.as_nanos() as f64 / f64::from(LOOKUPS)
}

fn chain_of(text: &[u8], recycled: Chain) -> Chain {
    let seed = Seed { model: "m", lora: None, cache_salt: None };
    let mut builder = ChainBuilder::new(&seed, BLOCK_BYTES_DEFAULT, recycled).growing();
    builder.text(text);
    builder.finish()
}

/// Of this process, by the kernel.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
