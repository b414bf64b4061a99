//! The fleet under its events: what they change, and that stray ones change nothing.

mod fixtures;

use fixtures::{decided, spec};
use predictor::fleet::{Added, Answer, Attempt, Decided, Ended, EndpointBelief, Fleet, Limits, Plan, Scrape};
use predictor::ledger::{Opening, Sums};
use predictor::prefix::chain::{Chain, ChainBuilder, Seed};
use proptest::prelude::*;

const SECOND_US: u64 = 1_000_000;
const COMPLETED: Ended = Ended::Completed { prompt_tokens: None, cached_tokens: None, completion_tokens: None };

fn fleet(endpoints: u32) -> Fleet {
    let limits = Limits { endpoints_max: 8, requests_max: 64, index_bytes_max: 1 << 20, ..Limits::default() };
    let mut fleet = Fleet::new(limits);
    for endpoint in 0..endpoints {
        assert_eq!(fleet.add_endpoint(0, endpoint, &spec("k")), Added::Added);
    }
    fleet
}

fn prompt(first: u8, bytes: usize) -> Chain {
    let mut builder = ChainBuilder::new(&Seed { model: "m", lora: None, cache_salt: None }, 256, Chain::default());
    builder.text(&vec![first; bytes]);
    builder.finish()
}

fn planned(fleet: &mut Fleet, chain: &Chain, now_us: u64) -> Plan {
    let mut plan = Plan::default();
    fleet.plan(&mut plan, chain, chain.bytes() / 4, now_us);
    plan
}

fn scrape(waiting: f64) -> Scrape {
    Scrape { waiting, running: 1.0, ..Scrape::default() }
}

#[test]
fn a_prompt_sent_to_an_endpoint_makes_it_the_cheapest_for_the_next_turn_once_it_is_done() {
    let mut fleet = fleet(2);
    fleet.decided(0, &decided(1, 1, &prompt(b'a', 8_000)));
    fleet.first_token(SECOND_US, 1, 1);
    fleet.ended(2 * SECOND_US, 1, 1, COMPLETED);
    let plan = planned(&mut fleet, &prompt(b'a', 9_000), 3 * SECOND_US);
    assert_eq!(plan.overlap_tokens(0), 0);
    assert_eq!(plan.overlap_tokens(1), 31 * 64);
    let cost = |endpoint| fleet.predict(&plan, endpoint).map(|prediction| prediction.cost_us);
    assert!(cost(1) < cost(0), "{:?} {:?}", cost(1), cost(0));
}

#[test]
fn a_backlog_makes_an_endpoint_dearer_and_progress_since_makes_it_cheaper() {
    let mut fleet = fleet(2);
    fleet.decided(0, &decided(1, 0, &prompt(b'a', 40_000)));
    let ttft_us = |fleet: &mut Fleet, endpoint, now_us| {
        let plan = planned(fleet, &prompt(b'b', 4_000), now_us);
        fleet.predict(&plan, endpoint).expect("known").ttft_us
    };
    let (busy, idle) = (ttft_us(&mut fleet, 0, 0), ttft_us(&mut fleet, 1, 0));
    assert!(busy > 3 * idle, "{busy} {idle}");
    let later = ttft_us(&mut fleet, 0, SECOND_US / 2);
    assert!(later < busy, "{later} {busy}");
}

#[test]
fn queued_prompts_are_the_scraped_ones_plus_own_sends_minus_own_first_tokens() {
    let mut fleet = fleet(1);
    let chain = prompt(b'a', 400);
    fleet.decided(0, &decided(1, 0, &chain));
    fleet.scraped(SECOND_US, 0, &scrape(3.0));
    assert_eq!(fleet.queued_prompts_now(0), Some(3.0));
    fleet.decided(SECOND_US, &decided(2, 0, &chain));
    assert_eq!(fleet.queued_prompts_now(0), Some(4.0));
    fleet.first_token(SECOND_US, 1, 0);
    fleet.first_token(SECOND_US, 2, 0);
    assert_eq!(fleet.queued_prompts_now(0), Some(2.0));
    fleet.scraped(2 * SECOND_US, 0, &scrape(0.0));
    assert_eq!(fleet.queued_prompts_now(0), Some(0.0));
}

#[test]
fn queued_prompts_are_never_below_zero() {
    let mut fleet = fleet(1);
    fleet.decided(0, &decided(1, 0, &prompt(b'a', 400)));
    fleet.scraped(1, 0, &scrape(0.0));
    fleet.first_token(2, 1, 0);
    assert_eq!(fleet.queued_prompts_now(0), Some(0.0));
}

#[test]
fn after_three_missed_scrapes_own_pending_alone_counts() {
    let mut fleet = fleet(1);
    fleet.scraped(0, 0, &scrape(9.0));
    fleet.decided(1, &decided(1, 0, &prompt(b'a', 400)));
    fleet.scrape_failed(2, 0);
    fleet.scrape_failed(3, 0);
    assert_eq!(fleet.queued_prompts_now(0), Some(10.0));
    fleet.scrape_failed(4, 0);
    assert_eq!(fleet.queued_prompts_now(0), Some(1.0));
    assert_eq!(fleet.snapshot(5, 0).expect("known").scrape_age_us, None);
}

#[test]
fn the_mean_of_queued_prompts_is_unknown_for_five_seconds_and_then_weighted_by_time() {
    let mut fleet = fleet(1);
    fleet.scraped(10 * SECOND_US, 0, &scrape(8.0));
    assert_eq!(fleet.queued_prompts_mean(14 * SECOND_US, 0, 30), None);
    fleet.scraped(15 * SECOND_US, 0, &scrape(0.0));
    assert_eq!(fleet.queued_prompts_mean(20 * SECOND_US, 0, 30), Some(4.0));
    assert_eq!(fleet.queued_prompts_mean(20 * SECOND_US, 0, 5), Some(0.0));
}

#[test]
fn a_restarted_engine_has_an_empty_cache_and_its_open_requests() {
    let mut fleet = fleet(1);
    fleet.decided(0, &decided(1, 0, &prompt(b'a', 8_000)));
    fleet.scraped(1, 0, &scrape(9.0));
    fleet.reset_endpoint(2, 0);
    assert_eq!(planned(&mut fleet, &prompt(b'a', 8_000), 3).overlap_tokens(0), 0);
    assert_eq!((fleet.in_flight(0), fleet.queued_prompts_now(0)), (1, Some(1.0)));
}

#[test]
fn a_replaced_endpoint_starts_empty_and_late_events_of_the_old_one_are_ignored() {
    let mut fleet = fleet(1);
    fleet.decided(0, &decided(1, 0, &prompt(b'a', 8_000)));
    fleet.add_endpoint(1, 0, &spec("k"));
    let fresh = fleet.snapshot(2, 0);
    assert_eq!(fleet.first_token(2, 1, 0), None);
    fleet.ended(2, 1, 0, COMPLETED);
    assert_eq!(fleet.snapshot(2, 0), fresh);
    assert_eq!((fleet.sums(0), planned(&mut fleet, &prompt(b'a', 8_000), 3).overlap_tokens(0)), (Sums::default(), 0));
}

#[test]
fn a_new_endpoint_inherits_what_its_kind_has_learned() {
    let mut fleet = fleet(2);
    let chain = prompt(b'a', 8_000);
    for id in 0..60 {
        let now_us = id * 10 * SECOND_US;
        fleet.reset_endpoint(now_us, 0);
        fleet.decided(now_us, &decided(id, 0, &chain));
        fleet.first_token(now_us + 2 * SECOND_US, id, 0);
        fleet.ended(now_us + 3 * SECOND_US, id, 0, COMPLETED);
    }
    fleet.add_endpoint(601 * SECOND_US, 2, &spec("k"));
    fleet.add_endpoint(601 * SECOND_US, 3, &spec("another"));
    let plan = planned(&mut fleet, &prompt(b'z', 8_000), 602 * SECOND_US);
    let ttft_s = |endpoint| fleet.predict(&plan, endpoint).expect("known").ttft_us as f64 / 1e6;
    assert!((1.2..2.4).contains(&ttft_s(2)), "{}", ttft_s(2));
    assert!((0.15..0.35).contains(&ttft_s(3)), "{}", ttft_s(3));
}

#[test]
fn only_streamed_first_attempts_and_whole_answers_of_one_token_teach() {
    let chain = prompt(b'a', 400);
    let answers = |answer, attempt, ended: Ended, first_token_us: Option<u64>| {
        let mut fleet = fleet(1);
        fleet.decided(0, &Decided { answer, attempt, ..decided(1, 0, &chain) });
        if let Some(now_us) = first_token_us {
            fleet.first_token(now_us, 1, 0);
        }
        fleet.ended(SECOND_US, 1, 0, ended);
        fleet.snapshot(SECOND_US, 0).expect("known").answers
    };
    let completed =
        |tokens| Ended::Completed { prompt_tokens: None, cached_tokens: None, completion_tokens: Some(tokens) };
    assert_eq!(answers(Answer::Streamed, Attempt::First, completed(5), Some(9)), 1);
    assert_eq!(answers(Answer::Streamed, Attempt::Retry, completed(5), Some(9)), 0);
    assert_eq!(answers(Answer::Streamed, Attempt::First, completed(1), None), 0);
    assert_eq!(answers(Answer::Whole, Attempt::First, completed(5), None), 0);
    assert_eq!(answers(Answer::Whole, Attempt::First, completed(5), Some(9)), 0);
    assert_eq!(answers(Answer::Whole, Attempt::First, completed(1), None), 1);
    for ended in [Ended::Aborted, Ended::Failed, Ended::Refused] {
        assert_eq!(answers(Answer::Streamed, Attempt::First, ended, None), 0);
        assert_eq!(answers(Answer::Whole, Attempt::First, ended, None), 0);
    }
}

#[test]
fn cached_tokens_the_engine_reports_correct_the_overlap() {
    let mut fleet = fleet(1);
    let chain = prompt(b'a', 8_000);
    for id in 0..60 {
        let overlap_tokens = planned(&mut fleet, &chain, id).overlap_tokens(0);
        fleet.decided(id, &Decided { overlap_tokens, ..decided(id, 0, &chain) });
        let ended = Ended::Completed { prompt_tokens: None, cached_tokens: Some(200), completion_tokens: None };
        fleet.ended(id, id, 0, ended);
    }
    let overlap_tokens = planned(&mut fleet, &chain, 99).overlap_tokens(0);
    assert!((180..400).contains(&overlap_tokens), "{overlap_tokens}");
}

#[test]
fn prompt_tokens_the_engine_reports_correct_the_estimate_of_its_model_only() {
    let mut fleet = fleet(1);
    let chain = prompt(b'a', 8_000);
    for id in 0..20 {
        fleet.decided(id, &decided(id, 0, &chain));
        let ended = Ended::Completed { prompt_tokens: Some(4_000), cached_tokens: None, completion_tokens: None };
        fleet.ended(id, id, 0, ended);
    }
    assert!((3_900..=4_000).contains(&fleet.estimate_tokens("m", 8_000)));
    assert_eq!(fleet.estimate_tokens("unheard of", 8_000), 2_000);
}

#[test]
fn the_cache_size_an_engine_reports_bounds_what_is_recorded_for_it() {
    let mut fleet = fleet(1);
    let size = Scrape { num_gpu_blocks: Some(40), block_size_tokens: Some(16), ..Scrape::default() };
    fleet.scraped(0, 0, &size);
    fleet.decided(1, &decided(1, 0, &prompt(b'a', 80_000)));
    let belief = fleet.snapshot(2, 0).expect("known");
    assert_eq!((belief.kv_capacity_tokens, belief.blocks_held), (Some(640), 10));
}

#[test]
fn a_full_book_sends_requests_uncounted_and_says_how_many() {
    let mut fleet = fleet(1);
    let chain = prompt(b'a', 400);
    let counted = (0..70).filter(|id| fleet.decided(0, &decided(*id, 0, &chain)) == Opening::Counted).count();
    assert_eq!((counted, fleet.uncounted()), (64, 6));
}

#[test]
fn others_requests_wait_too_until_the_endpoint_has_had_time_for_them() {
    let mut fleet = fleet(1);
    let chain = prompt(b'a', 4_000);
    let ttft_us = |fleet: &mut Fleet, now_us| {
        let plan = planned(fleet, &chain, now_us);
        fleet.predict(&plan, 0).expect("known").ttft_us
    };
    let alone = ttft_us(&mut fleet, 0);
    fleet.scraped(0, 0, &scrape(10.0));
    assert!(ttft_us(&mut fleet, 0) > alone + 300_000);
    assert_eq!(ttft_us(&mut fleet, 60 * SECOND_US), alone);
}

#[derive(Clone, Debug)]
enum Event {
    Decided(u64, u32, u8, bool),
    FirstToken(u64, u32),
    Ended(u64, u32, u8),
    Scraped(u32, f64),
    Missed(u32),
    Reset(u32),
    Remove(u32),
    Add(u32),
}

fn event() -> impl Strategy<Value = Event> {
    let (id, endpoint) = (0u64..40, 0u32..10);
    prop_oneof![
        6 => (id.clone(), endpoint.clone(), any::<u8>(), any::<bool>()).prop_map(|(id, at, prompt, whole)| Event::Decided(id, at, prompt, whole)),
        5 => (id.clone(), endpoint.clone()).prop_map(|(id, at)| Event::FirstToken(id, at)),
        5 => (id, endpoint.clone(), 0u8..4).prop_map(|(id, at, how)| Event::Ended(id, at, how)),
        2 => (endpoint.clone(), prop_oneof![Just(f64::NAN), Just(-1.0), Just(f64::INFINITY), 0.0..50.0]).prop_map(|(at, waiting)| Event::Scraped(at, waiting)),
        1 => endpoint.clone().prop_map(Event::Missed),
        1 => endpoint.clone().prop_map(Event::Reset),
        1 => endpoint.clone().prop_map(Event::Remove),
        1 => endpoint.prop_map(Event::Add),
    ]
}

fn apply(fleet: &mut Fleet, now_us: u64, event: &Event) {
    match *event {
        Event::Decided(id, endpoint, text, whole) => {
            let chain = prompt(text % 4, usize::from(text) * 40);
            let answer = if whole { Answer::Whole } else { Answer::Streamed };
            fleet.decided(now_us, &Decided { answer, ..decided(id, endpoint, &chain) });
        }
        Event::FirstToken(id, endpoint) => {
            fleet.first_token(now_us, id, endpoint);
        }
        Event::Ended(id, endpoint, how) => {
            let completed =
                Ended::Completed { prompt_tokens: Some(900), cached_tokens: Some(100), completion_tokens: Some(1) };
            let ended = [completed, Ended::Aborted, Ended::Failed, Ended::Refused][usize::from(how)];
            fleet.ended(now_us, id, endpoint, ended);
        }
        Event::Scraped(endpoint, waiting) => fleet.scraped(now_us, endpoint, &scrape(waiting)),
        Event::Missed(endpoint) => fleet.scrape_failed(now_us, endpoint),
        Event::Reset(endpoint) => fleet.reset_endpoint(now_us, endpoint),
        Event::Remove(endpoint) => fleet.remove_endpoint(now_us, endpoint),
        Event::Add(endpoint) => {
            fleet.add_endpoint(now_us, endpoint, &spec("k"));
        }
    }
}

fn beliefs(fleet: &Fleet, now_us: u64) -> Vec<Option<EndpointBelief>> {
    (0..10).map(|endpoint| fleet.snapshot(now_us, endpoint)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn replicas_that_saw_the_same_events_believe_the_same_and_repeated_ones_change_nothing(events in prop::collection::vec((event(), 0u64..400_000), 1..120)) {
        let (mut once, mut twice, mut now_us) = (fleet(6), fleet(6), 0);
        for (event, gap_us) in events {
            now_us += gap_us;
            apply(&mut once, now_us, &event);
            apply(&mut twice, now_us, &event);
            if matches!(event, Event::FirstToken(..) | Event::Ended(..)) {
                apply(&mut twice, now_us, &event);
            }
            prop_assert_eq!(beliefs(&once, now_us), beliefs(&twice, now_us));
        }
        for id in 0..40 {
            (0..8).for_each(|endpoint| once.ended(now_us, id, endpoint, Ended::Aborted));
        }
        for endpoint in 0..8 {
            prop_assert_eq!(once.sums(endpoint), Sums::default());
        }
    }
}

/// A prompt in the engine's own blocks.
fn engine_blocks(first: u32, tokens: u32, block_tokens: u32) -> Chain {
    let seed = Seed { model: "m", lora: None, cache_salt: None };
    let mut builder = ChainBuilder::new(&seed, block_tokens * 4, Chain::default());
    builder.token_ids(std::iter::once(first).chain(1..tokens));
    builder.finish_engine_blocks()
}

#[test]
fn a_prompt_in_the_engines_own_blocks_overlaps_by_whole_blocks_and_never_to_its_last_token() {
    let mut fleet = fleet(1);
    let chain = engine_blocks(7, 1_000, 16);
    let decision = Decided { prompt_tokens: 1_000, ..decided(1, 0, &chain) };
    fleet.decided(0, &decision);
    fleet.ended(1, 1, 0, COMPLETED);
    let overlap = |fleet: &mut Fleet, tokens: u32| {
        let mut plan = Plan::default();
        fleet.plan(&mut plan, &engine_blocks(7, tokens, 16), tokens, 2);
        plan.overlap_tokens(0)
    };
    assert_eq!(
        [992, 993, 1_000, 1_008, 2_000, 16, 15].map(|tokens| overlap(&mut fleet, tokens)),
        [976, 992, 992, 992, 992, 0, 0]
    );
}

#[test]
fn what_was_answered_is_cached_with_the_prompt_it_answered() {
    let mut fleet = fleet(2);
    // A prompt of 1,000 tokens is answered by 200 more, and comes back with the answer and 100 new ones.
    let conversation = |ends: &[u32]| {
        let seed = Seed { model: "m", lora: None, cache_salt: None };
        let mut builder = ChainBuilder::new(&seed, 16 * 4, Chain::default());
        let mut done = 0;
        for &end in ends {
            builder.token_ids(done..end);
            builder.end_turn();
            done = end;
        }
        builder.finish_engine_blocks()
    };
    let first = conversation(&[1_000]);
    fleet.decided(0, &Decided { prompt_tokens: 1_000, ..decided(1, 1, &first) });
    let answered = Ended::Completed { prompt_tokens: Some(1_000), cached_tokens: None, completion_tokens: Some(200) };
    fleet.ended(1, 1, 1, answered);
    fleet.scraped(2, 1, &Scrape { num_gpu_blocks: Some(10_000), block_size_tokens: Some(16), ..scrape(0.0) });
    let mut plan = Plan::default();
    fleet.plan(&mut plan, &conversation(&[1_000, 1_300]), 1_300, 3);
    assert_eq!((plan.prompt_tokens(), plan.overlap_tokens(0), plan.overlap_tokens(1)), (1_300, 0, 1_184));
    // One that only begins like it has the blocks of the prompt.
    fleet.plan(&mut plan, &conversation(&[1_001, 1_300]), 1_300, 4);
    assert_eq!(plan.overlap_tokens(1), 992);
}

#[test]
fn the_engines_own_blocks_are_remembered_as_many_as_its_cache_has_and_teach_nothing_about_bytes() {
    let mut fleet = fleet(1);
    let blocks = Scrape { num_gpu_blocks: Some(20), block_size_tokens: Some(32), ..scrape(0.0) };
    fleet.scraped(0, 0, &blocks);
    assert_eq!((fleet.block_tokens(0), fleet.block_tokens(1)), (Some(32), None));
    let estimate = fleet.estimate_tokens("m", 8_000);
    for id in 0..10 {
        let chain = engine_blocks(id, 320, 32);
        fleet.decided(0, &Decided { prompt_tokens: 320, ..decided(u64::from(id), 0, &chain) });
        let ended = Ended::Completed { prompt_tokens: Some(320), cached_tokens: None, completion_tokens: None };
        fleet.ended(1, u64::from(id), 0, ended);
    }
    assert_eq!(fleet.snapshot(2, 0).expect("known").blocks_held, 20);
    assert_eq!(fleet.estimate_tokens("m", 8_000), estimate);
    // One that is known by its bytes only makes no room for others.
    fleet.decided(3, &decided(99, 0, &prompt(b'a', 256)));
    assert_eq!(fleet.snapshot(4, 0).expect("known").blocks_held, 20);
}

#[test]
fn what_an_engine_says_of_its_blocks_and_of_a_prompt_is_bounded_by_the_prompt() {
    let texts = [prompt(b'a', 4_000), prompt(b'a', 6_000)];
    let ids = [300, 400].map(|count: u32| {
        let mut builder = ChainBuilder::new(&Seed { model: "m", lora: None, cache_salt: None }, 64, Chain::default());
        builder.token_ids(0..count);
        builder.separator(1);
        builder.token_ids(0..40);
        builder.finish_engine_blocks()
    });
    for [first, second] in [texts, ids] {
        for (block_size_tokens, told) in [(u32::MAX, u32::MAX), (u32::MAX, 0), (0, u32::MAX), (1, 1_000)] {
            let mut fleet = fleet(1);
            let said =
                Scrape { num_gpu_blocks: Some(u64::MAX), block_size_tokens: Some(block_size_tokens), ..scrape(0.0) };
            fleet.scraped(1, 0, &said);
            assert_eq!(fleet.decided(2, &decided(7, 0, &first)), Opening::Counted);
            let ended = Ended::Completed {
                prompt_tokens: Some(told),
                cached_tokens: Some(told),
                completion_tokens: Some(told),
            };
            fleet.ended(3, 7, 0, ended);
            for chain in [&first, &second] {
                let plan = planned(&mut fleet, chain, 4);
                assert!(plan.overlap_tokens(0) < plan.prompt_tokens());
                assert!(fleet.predict(&plan, 0).is_some());
                assert_eq!(fleet.decided(5, &decided(8, 0, chain)), Opening::Counted);
                fleet.ended(6, 8, 0, COMPLETED);
            }
        }
    }
}
