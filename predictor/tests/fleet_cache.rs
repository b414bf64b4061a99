//! What an endpoint's overlap rests on, with and without an engine that tells what it caches.

mod fixtures;

use fixtures::{decided, spec};
use predictor::fleet::{
    Added, Answer, Attempt, Backend, Decided, Ended, EndpointSpec, Evidence, Fleet, Limits, Plan, TICK_US,
};
use predictor::prefix::chain::{Chain, ChainBuilder, Seed};
use predictor::ttft::Prior;

const BLOCK_TOKENS: u32 = 16;

fn fleet(kv_capacity_tokens: u64) -> Fleet {
    let mut fleet = Fleet::new(Limits { endpoints_max: 4, index_bytes_max: 1 << 20, ..Limits::default() });
    let spec = EndpointSpec { kv_capacity_tokens: Some(kv_capacity_tokens), ..spec("k") };
    assert_eq!(fleet.add_endpoint(0, 0, &spec), Added::Added);
    fleet
}

/// A prompt in exact tokens: `first` repeated.
fn prompt(first: u32, tokens: usize) -> Chain {
    let seed = Seed { model: "m", lora: None, cache_salt: None };
    let mut builder = ChainBuilder::new(&seed, 4 * BLOCK_TOKENS, Chain::default());
    builder.token_ids(std::iter::repeat_n(first, tokens));
    builder.finish()
}

fn overlap(fleet: &mut Fleet, chain: &Chain) -> u32 {
    let mut plan = Plan::default();
    fleet.plan(&mut plan, chain, chain.bytes() / 4, 0);
    plan.overlap_tokens(0)
}

fn send(fleet: &mut Fleet, now_us: u64, request_id: u64, chain: &Chain) {
    fleet.decided(now_us, &decided(request_id, 0, chain));
}

fn end(fleet: &mut Fleet, now_us: u64, request_id: u64, cached_tokens: Option<u32>) {
    let ended = Ended::Completed { prompt_tokens: None, cached_tokens, completion_tokens: None };
    fleet.ended(now_us, request_id, 0, ended);
}

#[test]
fn a_request_counts_while_in_flight_and_afterwards_only_what_the_engine_told() {
    let mut fleet = fleet(100_000);
    fleet.cache_evidence(0, Evidence::Events, BLOCK_TOKENS);
    let (first, longer) = (prompt(7, 100), prompt(7, 200));
    send(&mut fleet, 0, 1, &first);
    assert_eq!(overlap(&mut fleet, &longer), 96, "queued there: computed before whatever follows");
    fleet.cache_stored(1, 0, &first.blocks()[..4]);
    end(&mut fleet, 2, 1, None);
    assert_eq!(overlap(&mut fleet, &longer), 64);
    fleet.cache_removed(0, &first.blocks()[3..4]);
    assert_eq!(overlap(&mut fleet, &longer), 48);
    fleet.cache_cleared(0);
    assert_eq!(overlap(&mut fleet, &longer), 0);
}

#[test]
fn a_prompt_that_is_cached_whole_has_its_last_block_computed() {
    let mut fleet = fleet(100_000);
    fleet.cache_evidence(0, Evidence::Events, BLOCK_TOKENS);
    let whole = prompt(7, 64);
    fleet.cache_stored(0, 0, whole.blocks());
    assert_eq!(overlap(&mut fleet, &whole), 48);
    assert_eq!(overlap(&mut fleet, &prompt(7, 65)), 64);
}

#[test]
fn requests_that_share_a_prefix_hold_it_until_the_last_ends() {
    let mut fleet = fleet(100_000);
    fleet.cache_evidence(0, Evidence::Events, BLOCK_TOKENS);
    let chain = prompt(7, 160);
    send(&mut fleet, 0, 1, &chain);
    send(&mut fleet, 0, 2, &chain);
    end(&mut fleet, 1, 1, None);
    assert_eq!(overlap(&mut fleet, &chain), 144);
    fleet.ended(2, 2, 0, Ended::Failed);
    assert_eq!(overlap(&mut fleet, &chain), 0);
}

#[test]
fn what_was_believed_before_the_events_is_void_once_all_is_known() {
    let mut fleet = fleet(100_000);
    let (recorded, told) = (prompt(1, 160), prompt(2, 160));
    send(&mut fleet, 0, 1, &recorded);
    end(&mut fleet, 1, 1, None);
    fleet.cache_evidence(0, Evidence::Corrected, BLOCK_TOKENS);
    fleet.cache_stored(2, 0, told.blocks());
    assert_eq!([&recorded, &told].map(|chain| overlap(&mut fleet, chain)), [159, 159]);
    fleet.cache_evidence(0, Evidence::Events, BLOCK_TOKENS);
    assert_eq!([&recorded, &told].map(|chain| overlap(&mut fleet, chain)), [0, 144]);
}

#[test]
fn without_the_events_the_record_goes_on_from_what_they_told() {
    let mut fleet = fleet(100_000);
    fleet.cache_evidence(0, Evidence::Events, BLOCK_TOKENS);
    let (told, running, later) = (prompt(1, 160), prompt(2, 160), prompt(3, 160));
    fleet.cache_stored(0, 0, told.blocks());
    send(&mut fleet, 1, 1, &running);
    fleet.cache_evidence(0, Evidence::Record, BLOCK_TOKENS);
    end(&mut fleet, 2, 1, None);
    send(&mut fleet, 3, 2, &later);
    end(&mut fleet, 4, 2, None);
    assert_eq!([&told, &running, &later].map(|chain| overlap(&mut fleet, chain)), [159, 159, 159]);
    fleet.cache_stored(5, 0, prompt(4, 160).blocks());
    assert_eq!(overlap(&mut fleet, &prompt(4, 160)), 0, "no evidence, so ignored");
    fleet.cache_evidence(0, Evidence::Events, BLOCK_TOKENS);
    assert_eq!([&told, &running, &later].map(|chain| overlap(&mut fleet, chain)), [0, 0, 0], "to be told anew");
}

#[test]
fn more_than_the_known_capacity_is_kept_when_the_engine_tells_it() {
    let mut fleet = fleet(160);
    fleet.cache_evidence(0, Evidence::Events, BLOCK_TOKENS);
    let prompts: Vec<Chain> = (0..10).map(|first| prompt(first, 161)).collect();
    for chain in &prompts {
        fleet.cache_stored(0, 0, &chain.blocks()[..10]);
    }
    assert!(prompts.iter().all(|chain| overlap(&mut fleet, chain) == 160));
}

#[test]
fn what_the_engine_told_is_not_distrusted() {
    let mut fleet = fleet(100_000);
    fleet.cache_evidence(0, Evidence::Events, BLOCK_TOKENS);
    let chain = prompt(7, 801);
    fleet.cache_stored(0, 0, &chain.blocks()[..50]);
    for request in 0..50 {
        let decided = Decided {
            request_id: request,
            endpoint: 0,
            chain: &chain,
            prompt_tokens: 801,
            overlap_tokens: 800,
            answer: Answer::Streamed,
            attempt: Attempt::First,
        };
        fleet.decided(0, &decided);
        end(&mut fleet, 1, request, Some(0));
    }
    assert_eq!(overlap(&mut fleet, &chain), 800);
}

#[test]
fn an_eviction_takes_what_was_last_used_before() {
    let mut fleet = fleet(100_000);
    let (old, touched, new) = (prompt(1, 160), prompt(2, 160), prompt(3, 160));
    for (request, at, chain) in [(1, 10, &old), (2, 10, &touched), (3, 30, &touched), (4, 40, &new)] {
        send(&mut fleet, at * TICK_US, request, chain);
        end(&mut fleet, (at + 1) * TICK_US, request, None);
    }
    // Answers take a tick here: a block stored at 11 was in use from 10 on.
    fleet.cache_evicted(0, 11 * TICK_US);
    assert_eq!([&old, &touched, &new].map(|chain| overlap(&mut fleet, chain)), [159, 159, 159]);
    fleet.cache_evicted(0, 20 * TICK_US);
    assert_eq!([&old, &touched, &new].map(|chain| overlap(&mut fleet, chain)), [0, 159, 159]);
    fleet.cache_evicted(0, 40 * TICK_US);
    assert_eq!([&old, &touched, &new].map(|chain| overlap(&mut fleet, chain)), [0, 0, 159]);
}

#[test]
fn what_a_long_answer_may_still_use_is_not_taken_for_evicted() {
    let mut fleet = fleet(100_000);
    let (long, short) = (prompt(1, 160), prompt(2, 160));
    send(&mut fleet, 10 * TICK_US, 1, &long);
    send(&mut fleet, 30 * TICK_US, 2, &short);
    end(&mut fleet, 31 * TICK_US, 2, None);
    end(&mut fleet, 60 * TICK_US, 1, None);
    // Stored while the long one ran, and free before it.
    fleet.cache_evicted(0, 31 * TICK_US);
    assert_eq!(overlap(&mut fleet, &long), 159);
    fleet.cache_evicted(0, 61 * TICK_US);
    assert_eq!(overlap(&mut fleet, &long), 0);
    // Answers of ten minutes ago say nothing of those of now.
    send(&mut fleet, 7_000 * TICK_US, 3, &long);
    end(&mut fleet, 7_001 * TICK_US, 3, None);
    send(&mut fleet, 14_000 * TICK_US, 4, &short);
    end(&mut fleet, 14_001 * TICK_US, 4, None);
    fleet.cache_evicted(0, 7_003 * TICK_US);
    assert_eq!([&long, &short].map(|chain| overlap(&mut fleet, chain)), [0, 159]);
}

#[test]
fn prompts_known_by_their_bytes_are_recorded_beside_the_events() {
    let mut fleet = fleet(100_000);
    fleet.cache_evidence(0, Evidence::Events, BLOCK_TOKENS);
    let mut builder = ChainBuilder::new(&Seed { model: "m", lora: None, cache_salt: None }, 256, Chain::default());
    builder.text(&[b'a'; 1_024]);
    let text = builder.finish();
    send(&mut fleet, 10 * TICK_US, 1, &text);
    end(&mut fleet, 11 * TICK_US, 1, None);
    assert_eq!(overlap(&mut fleet, &text), 255);
    let exact = prompt(7, 160);
    fleet.cache_stored(12 * TICK_US, 0, exact.blocks());
    fleet.cache_evicted(0, 30 * TICK_US);
    assert_eq!([&text, &exact].map(|chain| overlap(&mut fleet, chain)), [0, 144]);
}

#[test]
fn events_of_endpoints_that_are_not_there_do_no_harm() {
    let mut fleet = fleet(100_000);
    for endpoint in [1, 3, 4, u32::MAX] {
        fleet.cache_evidence(endpoint, Evidence::Events, BLOCK_TOKENS);
        fleet.cache_stored(0, endpoint, &[1, 2, 3]);
        fleet.cache_removed(endpoint, &[1]);
        fleet.cache_evicted(endpoint, u64::MAX);
        fleet.cache_cleared(endpoint);
    }
    assert_eq!(fleet.snapshot(0, 0).expect("known").blocks_held, 0);
}

/// What was used just now is believed whole although most of what was used long ago turned out to be gone.
#[test]
fn what_was_used_long_ago_is_trusted_less_than_what_was_used_just_now() {
    let mut fleet =
        Fleet::new(Limits { endpoints_max: 1, requests_max: 64, index_bytes_max: 1 << 22, ..Limits::default() });
    let spec = EndpointSpec {
        backend: Backend::Engine,
        model: "m",
        kind_key: "k",
        prior: Prior::default(),
        max_batched_tokens: 8_192,
        kv_capacity_tokens: Some(16_000),
    };
    fleet.add_endpoint(0, 0, &spec);
    let prompt = |number: u64| {
        let mut builder = ChainBuilder::new(&Seed { model: "m", lora: None, cache_salt: None }, 256, Chain::default());
        builder.text(number.to_string().repeat(1_000).as_bytes().get(..4_000).expect("long enough"));
        builder.finish()
    };
    let mut plan = Plan::default();
    let mut send = |fleet: &mut Fleet, id: u64, number: u64, cached: u32| {
        let chain = prompt(1_000 + number);
        fleet.plan(&mut plan, &chain, 1_000, id);
        let overlap_tokens = plan.overlap_tokens(0);
        let answer = Answer::Streamed;
        let decided = Decided {
            request_id: id,
            endpoint: 0,
            chain: &chain,
            prompt_tokens: 1_000,
            overlap_tokens,
            answer,
            attempt: Attempt::First,
        };
        fleet.decided(id, &decided);
        fleet.ended(
            id,
            id,
            0,
            Ended::Completed { prompt_tokens: Some(1_000), cached_tokens: Some(cached), completion_tokens: Some(1) },
        );
        overlap_tokens
    };
    // Ten prompts in turn: each comes again after nine others, and the engine has lost it. Each is sent twice, and the second time it is there.
    let (mut long_ago, mut just_now) = (0, 0);
    for round in 0..40 {
        for number in 0..10 {
            let id = round * 100 + number * 10;
            long_ago = send(&mut fleet, id + 1, number, 0);
            just_now = send(&mut fleet, id + 2, number, 999);
        }
    }
    assert!(just_now > 900, "{just_now}");
    assert!(long_ago < 300, "{long_ago}");
}
