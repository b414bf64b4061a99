//! What running answers tell of an engine's steps, and what other balancers are told of its work.

mod fixtures;

use fixtures::{decided, spec};
use predictor::fleet::{Fleet, Limits, Plan, Steps};
use predictor::prefix::chain::{Chain, ChainBuilder, Seed};

const MS: u64 = 1_000;
const STEP_US: u64 = 20 * MS;

fn fleet(steps: &Steps) -> Fleet {
    let limits = Limits { endpoints_max: 4, requests_max: 64, index_bytes_max: 1 << 20, ..Limits::default() };
    let mut fleet = Fleet::sharing(limits, steps.clone());
    for endpoint in 0..2 {
        fleet.add_endpoint(0, endpoint, &spec("k"));
    }
    fleet
}

fn prompt(first: u8, bytes: usize) -> Chain {
    let mut builder = ChainBuilder::new(&Seed { model: "m", lora: None, cache_salt: None }, 256, Chain::default());
    builder.text(&vec![first; bytes]);
    builder.finish()
}

fn decide(fleet: &mut Fleet, now_us: u64, request_id: u64, endpoint: u32, chain: &Chain) {
    fleet.decided(now_us, &decided(request_id, endpoint, chain));
}

fn ttft_us(fleet: &mut Fleet, endpoint: u32, now_us: u64) -> u64 {
    let (mut plan, chain) = (Plan::default(), prompt(b'z', 40));
    fleet.plan(&mut plan, &chain, 10, now_us);
    fleet.predict(&plan, endpoint).expect("known").ttft_us
}

/// An answer runs at both endpoints, and its chunks come every 20 ms: those of the second endpoint 10 ms later. Gives the time of the last
/// chunk of the first.
fn stream(fleet: &mut Fleet) -> u64 {
    for endpoint in 0..2 {
        decide(fleet, 0, u64::from(endpoint) + 1, endpoint, &prompt(b'a', 400));
        fleet.first_token(STEP_US, u64::from(endpoint) + 1, endpoint);
    }
    for step in 2..100 {
        fleet.heard_step(step * STEP_US, 0);
        fleet.heard_step(step * STEP_US + STEP_US / 2, 1);
    }
    99 * STEP_US
}

#[test]
fn the_engine_whose_step_ends_sooner_is_expected_to_answer_sooner() {
    let mut fleet = fleet(&Steps::new(4));
    let last_us = stream(&mut fleet);
    let (at_half, at_begin) = (last_us + STEP_US / 2, last_us + STEP_US * 4 / 5);
    let (first, second) = (ttft_us(&mut fleet, 0, at_half), ttft_us(&mut fleet, 1, at_half));
    assert!(first < second, "{first} {second}: half of a step is left, the other has begun one just now");
    let (first, later) = (ttft_us(&mut fleet, 0, at_begin), first);
    assert!(first < later, "{first} {later}: the nearer its end, the shorter the wait");
}

#[test]
fn what_one_thread_hears_all_threads_know() {
    let steps = Steps::new(4);
    let (mut hears, mut silent) = (fleet(&steps), fleet(&steps));
    let last_us = stream(&mut hears);
    for endpoint in 0..2 {
        decide(&mut silent, 0, u64::from(endpoint) + 1, endpoint, &prompt(b'a', 400));
        silent.first_token(STEP_US, u64::from(endpoint) + 1, endpoint);
    }
    let now_us = last_us + STEP_US / 4;
    assert_eq!(ttft_us(&mut silent, 0, now_us), ttft_us(&mut hears, 0, now_us));
}

#[test]
fn a_silent_engine_is_expected_to_be_in_the_middle_of_a_step() {
    let mut fleet = fleet(&Steps::new(4));
    let last_us = stream(&mut fleet);
    let half = ttft_us(&mut fleet, 0, last_us + STEP_US / 2);
    let silent = ttft_us(&mut fleet, 0, last_us + 100 * STEP_US);
    assert!(silent.abs_diff(half) < half / 25, "{silent} {half}: silent for a hundred steps");
    assert!(ttft_us(&mut fleet, 0, last_us + STEP_US) < half);
}

#[test]
fn chunks_at_any_times_keep_predictions_finite() {
    let mut fleet = fleet(&Steps::new(4));
    stream(&mut fleet);
    for now_us in [0, 1, u64::MAX, 5, u64::MAX - 1, STEP_US, 3 * STEP_US, u64::MAX / 2] {
        for endpoint in [0, 1, 3, 4, u32::MAX] {
            fleet.heard_step(now_us, endpoint);
        }
        let (first, second) = (ttft_us(&mut fleet, 0, now_us), ttft_us(&mut fleet, 1, now_us));
        assert!(first > 0 && second > 0 && first < 1_000_000 && second < 1_000_000, "{first} {second}");
    }
}

#[test]
fn a_request_that_came_within_a_step_has_not_begun_in_it() {
    let mut fleet = fleet(&Steps::new(4));
    let last_us = stream(&mut fleet);
    decide(&mut fleet, last_us + MS, 10, 0, &prompt(b'b', 40_000));
    let told = |fleet: &Fleet, now_us| fleet.sums_to_tell(now_us, 0).pending_new_tokens;
    assert_eq!(told(&fleet, last_us + 19 * MS), 10_000, "it waits for the end of the step");
    fleet.heard_step(last_us + STEP_US, 0);
    assert!(told(&fleet, last_us + STEP_US + MS) < 10_000, "it is part of the next");
}

#[test]
fn other_balancers_are_told_what_is_left_of_the_first_prompt() {
    let mut fleet = fleet(&Steps::new(4));
    decide(&mut fleet, 0, 1, 0, &prompt(b'a', 40_000));
    decide(&mut fleet, 0, 2, 0, &prompt(b'b', 4_000));
    let told = |now_us| fleet.sums_to_tell(now_us, 0);
    assert_eq!(told(0).pending_new_tokens, 11_000);
    let (half, long_after) = (told(500 * MS), told(3_600_000 * MS));
    assert!((2_000..9_000).contains(&half.pending_new_tokens), "{half:?}");
    assert_eq!(long_after.pending_new_tokens, 2_000, "a tenth of the first and all of the second");
    assert_eq!((half.pending, half.decoding), (2, 0));
    assert!(half.pending_attention_x2 < told(0).pending_attention_x2);
    assert_eq!(fleet.sums_to_tell(0, 77).pending, 0);
}
