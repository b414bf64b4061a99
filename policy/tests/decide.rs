//! Decisions against a slow, obvious twin on random rules and fleets, and the rules one by one.

use std::cell::Cell;

use policy::rule::ExcludeScope;
use policy::{
    Action, Backend, Candidate, Consider, Decision, Deny, DropCondition, Exclude, Match, Minimize, Mode, NumberRange,
    Pattern, PoolDestination, Program, Ranking, Refusal, Request, Route, Rule, RuleIndex, Scratch, SelectStep, Signal,
    TagCondition, Target, Verdict, decide,
};
use proptest::prelude::*;

/// An endpoint with fixed values; counts how often it is asked.
#[derive(Clone, Debug, Default)]
struct Endpoint {
    destination: u16,
    model: u16,
    external: bool,
    down: bool,
    full: bool,
    queued: Option<f64>,
    ttft: Option<f64>,
    in_flight: Option<f64>,
    error: f64,
    asked: Cell<u32>,
}

impl Candidate for Endpoint {
    fn target(&self) -> Target {
        Target { destination: self.destination, model: self.model }
    }
    fn backend(&self) -> Backend {
        if self.external { Backend::External } else { Backend::Local }
    }
    fn ready(&self) -> bool {
        !self.down
    }
    fn at_limit(&self) -> bool {
        self.full
    }
    fn signal(&self, signal: Signal) -> Option<f64> {
        self.asked.set(self.asked.get() + 1);
        match signal {
            Signal::QueuedPrompts { .. } => self.queued,
            Signal::PredictedTtft => self.ttft,
            Signal::InFlight => self.in_flight,
            Signal::RunningPrompts
            | Signal::KvCacheUsage
            | Signal::PrefixOverlap
            | Signal::PredictedLatency
            | Signal::ErrorRate { .. }
            | Signal::CostPerMillionTokens
            | Signal::ContextWindow => None,
        }
    }
    fn uncertainty(&self) -> f64 {
        self.error
    }
}

fn pool() -> Vec<PoolDestination> {
    let destination = |name: &str, backend, models: &[&str]| PoolDestination {
        name: name.into(),
        backend,
        models: models.iter().map(|m| vec![(*m).to_owned()]).collect(),
    };
    vec![
        destination("l0", Backend::Local, &["a"]),
        destination("l1", Backend::Local, &["a", "b"]),
        destination("e0", Backend::External, &["a"]),
        destination("e1", Backend::External, &["b", "a"]),
    ]
}

const TARGETS: [(u16, u16, bool); 6] =
    [(0, 0, false), (1, 0, false), (1, 1, false), (2, 0, true), (3, 0, true), (3, 1, true)];

fn program(route: Route) -> Program {
    let rule = Rule {
        name: "r".into(),
        policy: "p".into(),
        mode: Mode::Enforced,
        matches: vec![],
        action: Action::Route(route),
    };
    Program::new(pool(), vec![rule]).expect("compiles")
}

fn local(ttft_ms: f64, in_flight: f64, error: f64) -> Endpoint {
    Endpoint { ttft: Some(ttft_ms * 1e3), in_flight: Some(in_flight), error, ..Endpoint::default() }
}

fn chosen(decision: Decision<'_>) -> usize {
    match decision {
        Decision::Chosen { candidate, .. } => candidate,
        Decision::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

fn choose(program: &Program, candidates: &[Endpoint], seed: u64) -> usize {
    chosen(decide(program, RuleIndex(0), &Request::chat("a", "t"), candidates, seed, &mut Scratch::new()))
}

#[test]
fn the_least_predicted_time_wins() {
    let candidates = [local(300.0, 0.0, 0.0), local(250.0, 9.0, 0.0), local(900.0, 0.0, 0.0)];
    assert_eq!(choose(&program(Route::default()), &candidates, 1), 1);
}

#[test]
fn ties_go_to_the_endpoint_with_fewer_in_flight() {
    let candidates = [local(260.0, 2.0, 0.1), local(250.0, 9.0, 0.1), local(900.0, 0.0, 0.1)];
    assert_eq!(choose(&program(Route::default()), &candidates, 1), 0, "260 is within 10 % of 250 and less loaded");
    let sure = [local(260.0, 2.0, 0.0), local(250.0, 9.0, 0.0)];
    assert_eq!(choose(&program(Route::default()), &sure, 1), 1);
}

#[test]
fn equals_share_the_requests_evenly_and_the_same_seed_decides_the_same() {
    let candidates: Vec<Endpoint> = (0..4).map(|_| local(250.0, 1.0, 0.0)).collect();
    let program = program(Route::default());
    let mut counts = [0_u32; 4];
    for seed in 0..4000 {
        let first = choose(&program, &candidates, seed);
        assert_eq!(first, choose(&program, &candidates, seed));
        counts[first] += 1;
    }
    // Four standard deviations around 1000.
    assert!(counts.iter().all(|c| (890..1110).contains(c)), "{counts:?}");
}

#[test]
fn an_unknown_prediction_comes_last_but_still_serves() {
    let unknown = Endpoint { in_flight: Some(0.0), ..Endpoint::default() };
    let candidates = [unknown.clone(), local(9000.0, 50.0, 0.0)];
    assert_eq!(choose(&program(Route::default()), &candidates, 1), 1);
    assert_eq!(choose(&program(Route::default()), &[unknown], 1), 0);
}

#[test]
fn a_claimed_error_beyond_the_bound_does_not_make_everything_equal() {
    let candidates = [local(100.0, 9.0, f64::INFINITY), local(200.0, 0.0, f64::INFINITY)];
    assert_eq!(choose(&program(Route::default()), &candidates, 1), 0);
}

#[test]
fn providers_are_tried_in_the_order_listed_or_named() {
    let external = |destination, model| Endpoint { destination, model, external: true, ..Endpoint::default() };
    let step =
        |destinations| SelectStep { backend: Backend::External, destinations, ranking: Ranking::Listed, weight: None };
    let route = |destinations| Route { select: vec![step(destinations)], ..Route::default() };
    let candidates = [external(3, 1), external(2, 0)];
    assert_eq!(choose(&program(route(None)), &candidates, 1), 1);
    assert_eq!(choose(&program(route(Some(vec![3, 2]))), &candidates, 1), 0);
    let first_down = [external(3, 1), Endpoint { down: true, ..external(2, 0) }];
    assert_eq!(choose(&program(route(None)), &first_down, 1), 0);
    let only_named = route(Some(vec![3]));
    let program = program(only_named);
    let decision = decide(&program, RuleIndex(0), &Request::chat("a", "t"), &[external(2, 0)], 1, &mut Scratch::new());
    assert_eq!(decision, Decision::Refused(Refusal::NoReadyEndpoint), "a provider that is not named is not reached");
}

fn queue_over(bound: f64) -> Exclude {
    Exclude {
        name: "busy".into(),
        applies_to: ExcludeScope::default(),
        conditions: vec![
            DropCondition::Backend(Backend::Local),
            DropCondition::Number {
                signal: Signal::QueuedPrompts { window_s: 30 },
                range: NumberRange { greater_than: Some(bound), ..NumberRange::default() },
            },
        ],
    }
}

fn refusal(route: Route, candidates: &[Endpoint]) -> Refusal<'static> {
    let program = Box::leak(Box::new(program(route)));
    match decide(program, RuleIndex(0), &Request::chat("a", "t"), candidates, 1, &mut Scratch::new()) {
        Decision::Refused(refusal) => refusal,
        Decision::Chosen { candidate, .. } => panic!("chose {candidate}"),
    }
}

#[test]
fn the_refusal_says_what_kept_the_candidates_away() {
    let busy = Endpoint { queued: Some(5.0), ..Endpoint::default() };
    let full = Endpoint { full: true, ..Endpoint::default() };
    let down = Endpoint { down: true, ..Endpoint::default() };
    let idle_provider = Endpoint { destination: 2, external: true, ..Endpoint::default() };
    let route = || Route { exclude: vec![queue_over(4.0)], ..Route::default() };
    assert_eq!(refusal(route(), &[busy.clone(), down.clone()]), Refusal::Overloaded { exclude: Some(0) });
    assert_eq!(refusal(route(), &[busy, idle_provider.clone()]), Refusal::Overloaded { exclude: Some(0) });
    assert_eq!(refusal(route(), &[full, down.clone()]), Refusal::Overloaded { exclude: None });
    assert_eq!(refusal(route(), &[down, idle_provider]), Refusal::NoReadyEndpoint);
    assert_eq!(refusal(route(), &[]), Refusal::NoReadyEndpoint);
}

#[test]
fn a_name_nobody_serves_is_not_found() {
    let program = program(Route::default());
    let decision =
        decide(&program, RuleIndex(0), &Request::chat("z", "t"), &[local(1.0, 0.0, 0.0)], 1, &mut Scratch::new());
    assert_eq!(decision, Decision::Refused(Refusal::ModelNotFound));
}

#[test]
fn an_unknown_value_never_drops() {
    let route = Route { exclude: vec![queue_over(4.0)], ..Route::default() };
    assert_eq!(choose(&program(route.clone()), &[Endpoint::default()], 1), 0);
    let nan = Endpoint { queued: Some(f64::NAN), ..Endpoint::default() };
    assert_eq!(choose(&program(route), &[nan], 1), 0);
}

#[test]
fn a_deny_rule_refuses_with_its_own_words() {
    let deny = Deny { status: 451, code: "no".into(), message: "never".into() };
    let rule = Rule {
        name: "blocked".into(),
        policy: "p".into(),
        mode: Mode::Enforced,
        matches: vec![Match { tenants: vec![Pattern::new("mallory")], ..Match::default() }],
        action: Action::Deny(deny),
    };
    let program = Program::new(pool(), vec![rule]).expect("compiles");
    let request = Request::chat("a", "mallory");
    let index = program.match_rule(&request);
    let decision = decide(&program, index, &request, &[local(1.0, 0.0, 0.0)], 1, &mut Scratch::new());
    assert_eq!(decision, Decision::Refused(Refusal::Denied { status: 451, code: "no", message: "never" }));
    assert_eq!(program.rule(program.match_rule(&Request::chat("a", "bob"))).name, "default");
}

#[test]
fn values_are_asked_for_only_when_needed() {
    let external = Endpoint { destination: 2, external: true, ..Endpoint::default() };
    let candidates = [local(1.0, 0.0, 0.0), external, Endpoint { down: true, ..Endpoint::default() }];
    let route = Route { exclude: vec![queue_over(4.0)], ..Route::default() };
    choose(&program(route), &candidates, 1);
    assert_eq!(candidates[1].asked.get(), 0, "the condition on the backend fails first, and no step looks at it");
    assert_eq!(candidates[2].asked.get(), 0, "not ready is decided before anything is measured");
}

#[test]
fn the_explanation_names_every_candidate_and_its_reason() {
    let program = program(Route { exclude: vec![queue_over(4.0)], ..Route::default() });
    let candidates = [
        local(250.0, 0.0, 0.0),
        Endpoint { queued: Some(9.0), ..Endpoint::default() },
        Endpoint { down: true, ..Endpoint::default() },
    ];
    let request = Request::chat("a", "t");
    let mut scratch = Scratch::new();
    let decision = decide(&program, RuleIndex(0), &request, &candidates, 1, &mut scratch);
    let label = |i: usize| format!("ep{i}");
    let explained =
        policy::explain::explain(&program, RuleIndex(0), &request, &candidates, &decision, &scratch, &label);
    let text = explained.human();
    for line in [
        "rule p/r: holds",
        "ep0 (Local l0, a): chosen, place 1; queuedPrompts/30s unknown, predictedTTFT 250.0ms",
        "ep1 (Local l0, a): dropped by exclude `busy` (it is Local; queuedPrompts/30s 9, above 4)",
        "ep2 (Local l0, a): not ready",
        "=> ep0, by select[0] (least PredictedTTFT)",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let json = explained.json();
    assert!(json.contains(r#""outcome":{"endpoint":"ep0","selectStep":0,"minimize":"PredictedTTFT"}"#), "{json}");
}

// The slow twin: the rules of the reference, step by step, with sets and no shortcuts.

#[derive(Debug, PartialEq)]
enum Twin {
    /// Any of these candidates may be chosen, by this step.
    OneOf(Vec<usize>, usize),
    NotFound,
    NoReady,
    Overloaded,
}

fn serves(target: (u16, u16, bool), name: &str) -> bool {
    pool()[usize::from(target.0)].models[usize::from(target.1)].iter().any(|n| n == name)
}

fn considered(route: &Route, target: (u16, u16, bool), asked: &str) -> bool {
    if route.consider.is_empty() {
        return serves(target, asked);
    }
    route.consider.iter().any(|c| {
        let named =
            if c.models.is_empty() { serves(target, asked) } else { c.models.iter().any(|m| serves(target, m)) };
        named && c.destinations.as_ref().is_none_or(|list| list.contains(&target.0))
    })
}

fn dropped(route: &Route, request: &Request<'_>, e: &Endpoint) -> bool {
    route.exclude.iter().any(|x| {
        x.applies_to.holds(request)
            && x.conditions.iter().all(|c| match c {
                DropCondition::Backend(b) => e.backend() == *b,
                DropCondition::Destinations(list) => list.contains(&e.destination),
                DropCondition::Number { signal, range } => e.signal(*signal).is_some_and(|v| range.contains(v)),
                DropCondition::ContextBelowPrompt => false,
            })
    })
}

fn takes(step: &SelectStep, e: &Endpoint) -> bool {
    step.backend == e.backend() && step.destinations.as_ref().is_none_or(|list| list.contains(&e.destination))
}

fn value(step: &SelectStep, e: &Endpoint) -> f64 {
    match step.ranking {
        Ranking::Listed => {
            let order = match &step.destinations {
                None => usize::from(e.destination),
                Some(list) => list.iter().position(|d| *d == e.destination).unwrap_or(usize::MAX),
            };
            order as f64 * 1000.0 + f64::from(e.model)
        }
        Ranking::Minimize(m) => e.signal(m.signal()).unwrap_or(f64::INFINITY),
    }
}

fn twin(route: &Route, request: &Request<'_>, candidates: &[Endpoint]) -> Twin {
    if !TARGETS.iter().any(|t| considered(route, *t, request.model)) {
        return Twin::NotFound;
    }
    let mine: Vec<usize> = (0..candidates.len())
        .filter(|i| considered(route, (candidates[*i].destination, candidates[*i].model, false), request.model))
        .collect();
    let alive: Vec<usize> = mine
        .iter()
        .copied()
        .filter(|i| !candidates[*i].down && !candidates[*i].full && !dropped(route, request, &candidates[*i]))
        .collect();
    for (n, step) in route.select.iter().enumerate() {
        let in_step: Vec<usize> = alive.iter().copied().filter(|i| takes(step, &candidates[*i])).collect();
        let least = in_step.iter().map(|i| value(step, &candidates[*i])).fold(f64::INFINITY, f64::min);
        let error = match step.ranking {
            Ranking::Minimize(Minimize::PredictedTtft) => in_step
                .iter()
                .filter(|i| value(step, &candidates[**i]) == least)
                .map(|i| candidates[*i].error)
                .fold(0.0, f64::max),
            Ranking::Listed | Ranking::Minimize(_) => 0.0,
        };
        let near: Vec<usize> =
            in_step.iter().copied().filter(|i| value(step, &candidates[*i]) <= least * (1.0 + error)).collect();
        let load = |i: &usize| candidates[*i].in_flight.unwrap_or(f64::INFINITY);
        let least_load = near.iter().map(load).fold(f64::INFINITY, f64::min);
        let best: Vec<usize> = near.into_iter().filter(|i| load(i) == least_load).collect();
        if !best.is_empty() {
            return Twin::OneOf(best, n);
        }
    }
    let reachable = mine.iter().filter(|i| route.select.iter().any(|s| takes(s, &candidates[**i])));
    if reachable.clone().any(|i| !candidates[*i].down) { Twin::Overloaded } else { Twin::NoReady }
}

fn any_number() -> impl Strategy<Value = Option<f64>> {
    proptest::option::weighted(0.8, (0..4_i32).prop_map(f64::from))
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let flags = (proptest::bool::weighted(0.15), proptest::bool::weighted(0.1));
    (proptest::sample::select(&TARGETS[..]), flags, any_number(), any_number(), any_number(), 0..3_i32).prop_map(
        |((destination, model, external), (down, full), queued, ttft, in_flight, error)| Endpoint {
            destination,
            model,
            external,
            down,
            full,
            queued,
            ttft,
            in_flight,
            error: f64::from(error) * 0.2,
            asked: Cell::new(0),
        },
    )
}

fn any_exclude() -> impl Strategy<Value = Exclude> {
    let condition = prop_oneof![
        Just(DropCondition::Backend(Backend::Local)),
        Just(DropCondition::Backend(Backend::External)),
        proptest::sample::subsequence(vec![0_u16, 1, 2, 3], 1..3).prop_map(DropCondition::Destinations),
        (proptest::bool::ANY, 0..4_i32).prop_map(|(queue, bound)| DropCondition::Number {
            signal: if queue { Signal::QueuedPrompts { window_s: 30 } } else { Signal::InFlight },
            range: NumberRange { greater_than: Some(f64::from(bound)), ..NumberRange::default() },
        }),
    ];
    let tags = proptest::option::of(Just("pii".to_owned()));
    (proptest::collection::vec(condition, 1..3), tags).prop_map(|(conditions, tag)| Exclude {
        name: "e".into(),
        applies_to: ExcludeScope {
            tags: TagCondition { any: tag.into_iter().collect(), ..TagCondition::default() },
            ..ExcludeScope::default()
        },
        conditions,
    })
}

fn any_route() -> impl Strategy<Value = Route> {
    let destinations =
        || proptest::option::of(proptest::sample::subsequence(vec![0_u16, 1, 2, 3], 1..4).prop_shuffle());
    let consider = (proptest::sample::subsequence(vec!["a".to_owned(), "b".to_owned()], 0..=2), destinations())
        .prop_map(|(models, destinations)| Consider { models, destinations });
    let ranking = prop_oneof![
        Just(Ranking::Listed),
        Just(Ranking::Minimize(Minimize::PredictedTtft)),
        Just(Ranking::Minimize(Minimize::QueuedPrompts)),
    ];
    let step = (any::<bool>(), destinations(), ranking).prop_map(|(external, destinations, ranking)| SelectStep {
        backend: if external { Backend::External } else { Backend::Local },
        destinations,
        ranking,
        weight: None,
    });
    let excludes = proptest::collection::vec(any_exclude(), 0..3);
    (proptest::collection::vec(consider, 0..3), excludes, proptest::collection::vec(step, 1..4))
        .prop_map(|(consider, exclude, select)| Route { consider, exclude, select, ..Route::default() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_decision_is_the_one_of_the_slow_twin(
        route in any_route(), candidates in proptest::collection::vec(any_endpoint(), 0..7),
        asked in proptest::sample::select(&["a", "b", "z"][..]), pii in any::<bool>(), seed in any::<u64>(),
    ) {
        let tags: &[&str] = if pii { &["pii-unscanned"] } else { &[] };
        let request = Request { tags, ..Request::chat(asked, "t") };
        let expected = twin(&route, &request, &candidates);
        let program = program(route);
        let mut scratch = Scratch::new();
        let got = decide(&program, RuleIndex(0), &request, &candidates, seed, &mut scratch);
        prop_assert_eq!(scratch.verdicts().len(), candidates.len());
        match (got, expected) {
            (Decision::Chosen { candidate, select_step }, Twin::OneOf(best, step)) => {
                prop_assert!(best.contains(&candidate), "{} is not among {:?}", candidate, best);
                prop_assert_eq!(usize::from(select_step), step);
                let winners = scratch.verdicts().iter().filter(|v| **v == Verdict::Chosen).count();
                prop_assert_eq!((winners, scratch.verdicts()[candidate]), (1, Verdict::Chosen));
            }
            (Decision::Refused(Refusal::ModelNotFound), Twin::NotFound)
            | (Decision::Refused(Refusal::NoReadyEndpoint), Twin::NoReady)
            | (Decision::Refused(Refusal::Overloaded { .. }), Twin::Overloaded) => {}
            (got, expected) => prop_assert!(false, "got {:?}, the twin {:?}", got, expected),
        }
    }

    #[test]
    fn the_order_of_the_candidates_changes_nothing_but_ties(
        route in any_route(), candidates in proptest::collection::vec(any_endpoint(), 1..7), seed in any::<u64>(),
    ) {
        let request = Request::chat("a", "t");
        let mut reversed = candidates.clone();
        reversed.reverse();
        let possible = match twin(&route, &request, &candidates) {
            Twin::OneOf(best, _) => best,
            Twin::NotFound | Twin::NoReady | Twin::Overloaded => Vec::new(),
        };
        let program = program(route);
        let one = decide(&program, RuleIndex(0), &request, &candidates, seed, &mut Scratch::new());
        let other = decide(&program, RuleIndex(0), &request, &reversed, seed, &mut Scratch::new());
        match (one, other) {
            (Decision::Chosen { candidate: a, .. }, Decision::Chosen { candidate: b, .. }) => {
                let b = candidates.len() - 1 - b;
                prop_assert!(a == b || (possible.contains(&a) && possible.contains(&b)));
            }
            (a, b) => prop_assert_eq!(a, b),
        }
    }

    #[test]
    fn the_rule_is_the_first_that_holds(
        models in proptest::collection::vec("[ab*]{1,3}", 0..6), asked in "[ab]{1,3}",
    ) {
        let rules: Vec<Rule> = models.iter().enumerate().map(|(i, m)| Rule {
            name: i.to_string(),
            policy: "p".into(),
            mode: Mode::Enforced,
            matches: vec![Match { models: vec![Pattern::new(m)], ..Match::default() }],
            action: Action::Route(Route::default()),
        }).collect();
        let expected = models.iter().position(|m| Pattern::new(m).matches(&asked)).map_or("default".to_owned(), |i| i.to_string());
        let program = Program::new(pool(), rules).expect("compiles");
        let index = program.match_rule(&Request::chat(&asked, "t"));
        prop_assert_eq!(&program.rule(index).name, &expected);
    }
}
