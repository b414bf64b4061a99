use proptest::prelude::*;

use super::*;

fn parameters() -> Parameters {
    Parameters {
        batched_tokens_max: 64,
        running_max: 4,
        queued_max: None,
        block_tokens: 16,
        blocks_max: 100,
        prefix_caching: PrefixCaching::On,
        cost: StepCost {
            base_us: 1000.0,
            prefill_token_us: 10.0,
            attention_pair_us: 0.5,
            decode_us: 100.0,
            kv_token_us: 1.0,
        },
    }
}

/// A request whose blocks are `stem + 0, stem + 1, ...`: equal stems share their prefix.
fn request(id: RequestId, stem: u64, prompt_tokens: u32, output_tokens: u32) -> Request {
    let blocks = u64::from((prompt_tokens + output_tokens) / 16);
    Request { id, prompt_tokens, output_tokens, blocks: (0..blocks).map(|index| stem * 1000 + index).collect() }
}

fn run_to_end(timeline: &mut Timeline) -> Vec<Timed> {
    let mut events = Vec::new();
    for _ in 0..100_000 {
        let Some(next_us) = timeline.next_us() else { return events };
        timeline.advance_to(next_us, &mut events);
    }
    panic!("the engine never came to rest");
}

fn token_times(events: &[Timed], id: RequestId) -> Vec<u64> {
    let of_id = |timed: &&Timed| matches!(timed.event, Event::Token { id: found, .. } if found == id);
    events.iter().filter(of_id).map(|timed| timed.at_us).collect()
}

fn cached(events: &[Timed], id: RequestId) -> Option<u32> {
    events.iter().find_map(|timed| match timed.event {
        Event::Admitted { id: found, cached_tokens } if found == id => Some(cached_tokens),
        Event::Admitted { .. } | Event::Token { .. } | Event::Finished { .. } | Event::Preempted { .. } => None,
    })
}

#[test]
fn a_step_costs_base_plus_tokens_plus_attention() {
    let mut timeline = Timeline::new(parameters());
    timeline.submit(request(1, 1, 32, 2)).unwrap();
    let events = run_to_end(&mut timeline);
    let prefill_us = 1000 + 32 * 10 + 32 * 16 / 2;
    let decode_us = 1000 + 100 + 32;
    assert_eq!(token_times(&events, 1), [prefill_us, prefill_us + decode_us]);
}

#[test]
fn a_prompt_over_the_budget_takes_several_steps() {
    let mut timeline = Timeline::new(parameters());
    timeline.submit(request(1, 1, 150, 1)).unwrap();
    run_to_end(&mut timeline);
    assert_eq!(timeline.model().totals().steps, 3);
    assert_eq!(timeline.model().totals().prefill_tokens, 150);
}

#[test]
fn a_repeated_prompt_finds_all_blocks_but_computes_its_last_token() {
    let mut timeline = Timeline::new(parameters());
    timeline.submit(request(1, 1, 64, 1)).unwrap();
    run_to_end(&mut timeline);
    timeline.submit(request(2, 1, 64, 1)).unwrap();
    let events = run_to_end(&mut timeline);
    assert_eq!(cached(&events, 2), Some(48), "a prompt of whole blocks recomputes the last one");
    timeline.submit(request(3, 1, 65, 1)).unwrap();
    let events = run_to_end(&mut timeline);
    assert_eq!(cached(&events, 3), Some(64));
}

#[test]
fn the_next_turn_finds_the_answer_of_the_turn_before() {
    let mut timeline = Timeline::new(parameters());
    timeline.submit(request(1, 1, 32, 33)).unwrap();
    run_to_end(&mut timeline);
    timeline.submit(request(2, 1, 80, 1)).unwrap();
    let events = run_to_end(&mut timeline);
    // 65 tokens known, of which the last was never computed: 64 in four full blocks.
    assert_eq!(cached(&events, 2), Some(64));
}

#[test]
fn without_prefix_caching_nothing_is_found() {
    let mut timeline = Timeline::new(Parameters { prefix_caching: PrefixCaching::Off, ..parameters() });
    for id in 1..3 {
        timeline.submit(request(id, 1, 64, 1)).unwrap();
        let events = run_to_end(&mut timeline);
        assert_eq!(cached(&events, id), Some(0));
    }
}

#[test]
fn the_cache_reset_forgets_everything() {
    let mut timeline = Timeline::new(parameters());
    timeline.submit(request(1, 1, 64, 1)).unwrap();
    run_to_end(&mut timeline);
    timeline.reset_prefix_cache();
    timeline.submit(request(2, 1, 64, 1)).unwrap();
    assert_eq!(cached(&run_to_end(&mut timeline), 2), Some(0));
}

#[test]
fn requests_past_the_running_limit_wait_for_a_place() {
    let mut timeline = Timeline::new(parameters());
    for id in 0..5 {
        timeline.submit(request(id, id, 8, 3)).unwrap();
    }
    let mut events = Vec::new();
    timeline.advance_to(0, &mut events);
    assert_eq!((timeline.model().running(), timeline.model().waiting()), (4, 1));
    let events = run_to_end(&mut timeline);
    assert!(token_times(&events, 4)[0] > token_times(&events, 0)[2], "the fifth starts when one has ended");
}

#[test]
fn the_newest_request_is_preempted_when_blocks_run_out() {
    let mut timeline = Timeline::new(Parameters { blocks_max: 4, ..parameters() });
    timeline.submit(request(1, 1, 30, 30)).unwrap();
    timeline.submit(request(2, 2, 30, 30)).unwrap();
    let events = run_to_end(&mut timeline);
    let preempted: Vec<_> =
        events.iter().filter(|timed| matches!(timed.event, Event::Preempted { .. })).map(|timed| timed.event).collect();
    assert_eq!(preempted.first(), Some(&Event::Preempted { id: 2 }));
    assert!(!preempted.contains(&Event::Preempted { id: 1 }));
    assert_eq!(token_times(&events, 2).len(), 30);
}

#[test]
fn a_full_queue_refuses() {
    let mut model = Model::new(Parameters { queued_max: Some(1), ..parameters() });
    model.submit(request(1, 1, 8, 1)).unwrap();
    assert_eq!(model.submit(request(2, 2, 8, 1)), Err(Refusal::QueueFull));
    assert!(model.abort(1));
    assert_eq!(model.submit(request(2, 2, 8, 1)), Ok(()));
}

#[test]
fn what_can_never_fit_is_refused() {
    let mut model = Model::new(parameters());
    assert_eq!(model.submit(request(1, 1, 1600, 1)), Err(Refusal::TooLong));
    assert_eq!(model.submit(request(1, 1, 1599, 1)), Ok(()));
    assert_eq!(model.submit(request(1, 1, 8, 1)), Err(Refusal::DuplicateId));
}

#[test]
fn an_abort_frees_blocks_at_once_and_gets_no_more_tokens() {
    let mut timeline = Timeline::new(parameters());
    timeline.submit(request(1, 1, 32, 10)).unwrap();
    let mut events = Vec::new();
    timeline.advance_to(0, &mut events);
    assert!(timeline.model().kv_usage_ratio() > 0.0);
    assert!(timeline.abort(1));
    assert!(!timeline.abort(1));
    assert_eq!(timeline.model().kv_usage_ratio(), 0.0);
    assert!(token_times(&run_to_end(&mut timeline), 1).is_empty());
}

#[test]
fn an_idle_engine_starts_a_step_when_work_arrives() {
    let mut timeline = Timeline::new(parameters());
    let mut events = Vec::new();
    assert_eq!(timeline.next_us(), None);
    timeline.advance_to(5_000, &mut events);
    timeline.submit(request(1, 1, 1, 1)).unwrap();
    assert_eq!(timeline.next_us(), Some(5_000));
    let events = run_to_end(&mut timeline);
    assert_eq!(token_times(&events, 1)[0], 5_000 + 1010);
}

#[derive(Clone, Debug)]
struct Arrival {
    after_us: u64,
    stem: u64,
    prompt_tokens: u32,
    output_tokens: u32,
    abort: bool,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    (0..5_000_u64, 0..3_u64, 1..100_u32, 1..40_u32, prop::bool::weighted(0.1)).prop_map(
        |(after_us, stem, prompt_tokens, output_tokens, abort)| Arrival {
            after_us,
            stem,
            prompt_tokens,
            output_tokens,
            abort,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_each_of_its_tokens_once_and_in_order(
        arrivals in prop::collection::vec(arrival(), 1..30),
        blocks_max in 10..60_u32,
        batched_tokens_max in 1..80_u32,
        running_max in 1..6_u32,
    ) {
        let mut timeline =
            Timeline::new(Parameters { blocks_max, batched_tokens_max, running_max, ..parameters() });
        let mut events = Vec::new();
        for (id, arrival) in (0..).zip(&arrivals) {
            timeline.advance_to(timeline.now_us() + arrival.after_us, &mut events);
            timeline.submit(request(id, arrival.stem, arrival.prompt_tokens, arrival.output_tokens)).unwrap();
            if arrival.abort {
                timeline.abort(id);
            }
        }
        events.extend(run_to_end(&mut timeline));

        let mut last_us = 0;
        let mut made = vec![0; arrivals.len()];
        let mut finished = vec![0; arrivals.len()];
        let mut first_admissions = Vec::new();
        for Timed { at_us, event } in events {
            prop_assert!(at_us >= last_us);
            last_us = at_us;
            match event {
                Event::Admitted { id, cached_tokens } => {
                    let prompt_tokens = arrivals[id as usize].prompt_tokens;
                    if first_admissions.contains(&id) {
                        prop_assert!(cached_tokens <= prompt_tokens);
                    } else {
                        prop_assert!(cached_tokens < prompt_tokens, "one token at least is computed");
                        first_admissions.push(id);
                    }
                }
                Event::Token { id, index } => {
                    prop_assert_eq!(index, made[id as usize]);
                    made[id as usize] += 1;
                }
                Event::Finished { id } => finished[id as usize] += 1,
                Event::Preempted { .. } => {}
            }
        }
        prop_assert!(first_admissions.is_sorted(), "first come, first served: {:?}", first_admissions);
        for (id, arrival) in arrivals.iter().enumerate() {
            let expected = if arrival.abort { (0, 0) } else { (arrival.output_tokens, 1) };
            prop_assert_eq!((made[id], finished[id]), expected);
        }
        prop_assert_eq!(timeline.model().kv_usage_ratio(), 0.0, "all blocks are given back");
    }

    #[test]
    fn computed_and_cached_tokens_sum_to_the_prompts(
        arrivals in prop::collection::vec(arrival(), 1..20),
    ) {
        let mut timeline = Timeline::new(Parameters { blocks_max: 100_000, ..parameters() });
        for (id, arrival) in (0..).zip(&arrivals) {
            timeline.submit(request(id, arrival.stem, arrival.prompt_tokens, arrival.output_tokens)).unwrap();
        }
        run_to_end(&mut timeline);
        let totals = timeline.model().totals();
        let prompts: u64 = arrivals.iter().map(|arrival| u64::from(arrival.prompt_tokens)).sum();
        prop_assert_eq!(totals.preemptions, 0);
        prop_assert_eq!(totals.prefill_tokens + totals.cache_hit_tokens, prompts);
        prop_assert_eq!(totals.cache_query_tokens, prompts);
    }

    #[test]
    fn the_clock_may_be_moved_in_any_steps(
        arrivals in prop::collection::vec(arrival(), 1..10),
        stride_us in 1..20_000_u64,
    ) {
        let mut by_event = Timeline::new(parameters());
        let mut by_stride = Timeline::new(parameters());
        for (id, arrival) in (0..).zip(&arrivals) {
            let request = request(id, arrival.stem, arrival.prompt_tokens, arrival.output_tokens);
            by_event.submit(request.clone()).unwrap();
            by_stride.submit(request).unwrap();
        }
        let expected = run_to_end(&mut by_event);
        let mut events = Vec::new();
        while by_stride.next_us().is_some() {
            by_stride.advance_to(by_stride.now_us() + stride_us, &mut events);
        }
        prop_assert_eq!(events, expected);
    }

    #[test]
    fn a_forecast_is_what_comes_when_blocks_are_plenty(
        arrivals in prop::collection::vec(arrival(), 1..12),
        elapsed_us in 0..20_000_u64,
        prompt_tokens in 1..300_u32,
    ) {
        let mut timeline = Timeline::new(Parameters { blocks_max: 100_000, ..parameters() });
        for (id, arrival) in (0..).zip(&arrivals) {
            timeline.submit(request(id, id, arrival.prompt_tokens, arrival.output_tokens)).unwrap();
        }
        let mut events = Vec::new();
        timeline.advance_to(elapsed_us, &mut events);
        // Its prefix is the prompt of the first arrival.
        let mut newcomer = request(99, 0, prompt_tokens, 1);
        newcomer.blocks.truncate(arrivals[0].prompt_tokens as usize / 16);
        let forecast_us = timeline.forecast_us(prompt_tokens, &newcomer.blocks, 100_000).unwrap();
        timeline.submit(newcomer).unwrap();
        let first_us = token_times(&run_to_end(&mut timeline), 99)[0] - elapsed_us;
        prop_assert_eq!(forecast_us.round() as u64, first_us);
        prop_assert_eq!(timeline.forecast_us(prompt_tokens, &[], 0), None);
    }
}
