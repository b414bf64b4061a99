//! Whole rule sets: matching against a slow obvious twin, and the analysis of leaks against brute force.

use std::collections::{BTreeSet, HashSet};

use policy::reach::{personal_data_leaks, unreachable};
use policy::rule::{EXCLUDES_MAX, ExcludeScope};
use policy::{
    Action, Api, Backend, Candidate, Consider, Decision, Deny, DropCondition, Exclude, HeaderCondition, HeaderMap,
    HeaderTest, Match, Mode, NumberRange, Pattern, PoolDestination, Program, Ranking, Request, Route, Rule, RuleIndex,
    Scratch, SelectStep, Signal, SplitBy, Streaming, TagCondition, Target, decide,
};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const TAGS: [&str; 3] = ["pii", "pii-email", "pii-unscanned"];
const MODELS: [&str; 3] = ["a", "b", ""];
const TENANTS: [&str; 3] = ["alice", "albert", "zoe"];
const TOKENS: [f64; 5] = [f64::NAN, 0.0, 0.5, 1.0, 9.0];
/// Of a header; it may be sent several times.
const VALUES: [&str; 4] = ["x", "xy", "xz", "1"];

fn pool() -> Vec<PoolDestination> {
    let destination = |name: &str, backend, models: &[&str]| PoolDestination {
        name: name.into(),
        backend,
        models: models.iter().map(|m| vec![(*m).to_owned()]).collect(),
    };
    vec![
        destination("local", Backend::Local, &["a", "b"]),
        destination("one", Backend::External, &["a"]),
        destination("two", Backend::External, &["b", "a"]),
    ]
}

fn words(list: &[&'static str], most: usize) -> impl Strategy<Value = Vec<String>> + use<> {
    let owned: Vec<String> = list.iter().map(|w| (*w).to_owned()).collect();
    prop_oneof![2 => Just(Vec::new()), 1 => subsequence(owned, 0..=most)]
}

fn any_tags() -> impl Strategy<Value = TagCondition> {
    (words(&TAGS, 2), words(&TAGS, 2), words(&TAGS, 2)).prop_map(|(any, all, none)| TagCondition { any, all, none })
}

fn any_range() -> impl Strategy<Value = NumberRange> {
    let bound = || proptest::option::weighted(0.15, (0..2_i32).prop_map(f64::from));
    (bound(), bound(), bound(), bound()).prop_map(|(greater_than, at_least, less_than, at_most)| NumberRange {
        greater_than,
        at_least,
        less_than,
        at_most,
    })
}

fn any_header() -> impl Strategy<Value = HeaderCondition> {
    let test = prop_oneof![
        select(vec!["x", "xy"]).prop_map(|text| HeaderTest::Exact(text.to_owned())),
        Just(HeaderTest::Prefix("x".to_owned())),
        Just(HeaderTest::Present),
        Just(HeaderTest::Absent),
    ];
    test.prop_map(|test| HeaderCondition { name: "h".into(), test })
}

fn any_match() -> impl Strategy<Value = Match> {
    let patterns = |list: Vec<Pattern>| prop_oneof![2 => Just(Vec::new()), 1 => subsequence(list, 0..=2)];
    let models = patterns(["a", "b", "*", "a*", "c"].map(Pattern::new).to_vec());
    let tenants = patterns(["alice", "al*", "*"].map(Pattern::new).to_vec());
    let apis = prop_oneof![3 => Just(Vec::new()), 1 => Just(vec![Api::Score])];
    let stream = proptest::option::weighted(0.3, select(vec![Streaming::Yes, Streaming::No]));
    let headers = proptest::collection::vec(any_header(), 0..3).prop_map(|mut list| {
        list.truncate(2);
        list
    });
    (models, tenants, any_tags(), headers, apis, stream, any_range()).prop_map(
        |(models, tenants, tags, headers, apis, stream, prompt_tokens)| Match {
            models,
            tenants,
            tags,
            headers,
            apis,
            stream,
            prompt_tokens,
        },
    )
}

fn any_exclude() -> impl Strategy<Value = Exclude> {
    let condition = prop_oneof![
        3 => Just(DropCondition::Backend(Backend::External)),
        1 => Just(DropCondition::Backend(Backend::Local)),
        2 => subsequence(vec![0_u16, 1, 2], 1..=2).prop_map(DropCondition::Destinations),
        1 => Just(DropCondition::Number { signal: Signal::InFlight, range: NumberRange::default() }),
    ];
    let tenants = prop_oneof![3 => Just(Vec::new()), 1 => Just(vec![Pattern::new("al*")])];
    (any_tags(), tenants, any_range(), proptest::collection::vec(condition, 1..3)).prop_map(
        |(tags, tenants, prompt_tokens, conditions)| Exclude {
            name: "e".into(),
            applies_to: ExcludeScope { tags, tenants, prompt_tokens },
            conditions,
        },
    )
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let destinations = || proptest::option::of(subsequence(vec![0_u16, 1, 2], 1..=2));
    let models = subsequence(vec!["a".to_owned(), "b".to_owned()], 0..=1);
    let consider = (models, destinations()).prop_map(|(models, destinations)| Consider { models, destinations });
    let weight = proptest::option::weighted(0.4, 0..3_u32);
    let step =
        (proptest::bool::weighted(0.7), destinations(), weight).prop_map(|(out, destinations, weight)| SelectStep {
            backend: if out { Backend::External } else { Backend::Local },
            destinations,
            ranking: Ranking::Listed,
            weight,
        });
    let route = (
        prop_oneof![2 => Just(Vec::new()), 1 => proptest::collection::vec(consider, 1..3)],
        proptest::collection::vec(any_exclude(), 0..3),
        proptest::collection::vec(step, 1..4),
    )
        .prop_map(|(consider, exclude, select)| {
            Action::Route(Route { consider, exclude, select, split_by: SplitBy::Conversation, ..Route::default() })
        });
    let deny = Just(Action::Deny(Deny { status: 403, code: "no".into(), message: String::new() }));
    let mode = prop_oneof![4 => Just(Mode::Enforced), 1 => Just(Mode::Shadow)];
    (mode, proptest::collection::vec(any_match(), 0..3), prop_oneof![3 => route, 1 => deny])
        .prop_map(|(mode, matches, action)| Rule { name: "r".into(), policy: "p".into(), mode, matches, action })
}

/// Calls `each` with every request of a world small enough to look at whole.
fn every_request(each: &mut dyn FnMut(&Request<'_>)) {
    let subset = |bits: u32| (0..4).filter(move |i| bits & (1 << i) != 0);
    let tag_sets: Vec<Vec<&str>> = (0..8_u32).map(|bits| subset(bits).map(|i| TAGS[i]).collect()).collect();
    let line = |i: usize| ("h".to_owned(), VALUES[i].to_owned());
    let headers: Vec<HeaderMap> = (0..16_u32).map(|bits| HeaderMap(subset(bits).map(line).collect())).collect();
    for model in MODELS {
        for tenant in TENANTS {
            for tags in &tag_sets {
                for headers in &headers {
                    for api in [Api::ChatCompletions, Api::Score] {
                        for stream in [Streaming::Yes, Streaming::No] {
                            for prompt_tokens in TOKENS {
                                let conversation = None;
                                each(&Request {
                                    model,
                                    tenant,
                                    tags,
                                    api,
                                    stream,
                                    prompt_tokens,
                                    headers,
                                    conversation,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What a rule asks, said again step by step.
fn holds_slowly(rule: &Rule, request: &Request<'_>) -> bool {
    let glob = |list: &[Pattern], text: &str| list.is_empty() || list.iter().any(|p| p.matches(text));
    let has = |tag: &String| {
        request.tags.contains(&tag.as_str()) || (tag.starts_with("pii") && request.tags.contains(&"pii-unscanned"))
    };
    let tags = |t: &TagCondition| {
        (t.any.is_empty() || t.any.iter().any(has)) && t.all.iter().all(has) && !t.none.iter().any(has)
    };
    let entry = |m: &Match| {
        let tokens = &m.prompt_tokens;
        let n = request.prompt_tokens;
        [tokens.greater_than.map(|b| n > b), tokens.at_least.map(|b| n >= b)].into_iter().flatten().all(|ok| ok)
            && [tokens.less_than.map(|b| n < b), tokens.at_most.map(|b| n <= b)].into_iter().flatten().all(|ok| ok)
            && glob(&m.models, request.model)
            && glob(&m.tenants, request.tenant)
            && tags(&m.tags)
            && (m.apis.is_empty() || m.apis.contains(&request.api))
            && (m.stream.is_none() || m.stream == Some(request.stream))
            && m.headers.iter().all(|h| h.holds(request))
    };
    rule.matches.is_empty() || rule.matches.iter().any(entry)
}

struct OneReady {
    target: Target,
}

impl Candidate for OneReady {
    fn target(&self) -> Target {
        self.target
    }
    fn backend(&self) -> Backend {
        Backend::External
    }
    fn ready(&self) -> bool {
        true
    }
    fn signal(&self, _: Signal) -> Option<f64> {
        None
    }
}

/// The External steps that some request tagged `pii` reaches, found by trying every request on every target alone.
fn leaks_by_brute_force(program: &Program) -> BTreeSet<(usize, usize)> {
    let mut found = BTreeSet::new();
    let mut scratch = Scratch::new();
    let mut looked_at = HashSet::new();
    every_request(&mut |request| {
        if !request.has_tag("pii") {
            return;
        }
        let rule = program.match_rule(request);
        for &target in program.targets(rule, request.model) {
            if program.destinations()[usize::from(target.destination)].backend == Backend::Local {
                continue;
            }
            // What excludes look at decides; the rest of the request only chose the rule.
            let tags = TAGS.map(|tag| request.tags.contains(&tag));
            let at = |list: &[&str], word: &str| list.iter().position(|w| *w == word);
            let key = (rule, target, tags, at(&TENANTS, request.tenant), request.prompt_tokens.to_bits());
            if !looked_at.insert((key, at(&MODELS, request.model))) {
                continue;
            }
            for conversation in 0..24 {
                let request = Request { conversation: Some(conversation), ..*request };
                let candidates = [OneReady { target }];
                if let Decision::Chosen { select_step, .. } =
                    decide(program, rule, &request, &candidates, 0, &mut scratch)
                {
                    found.insert((usize::from(rule.0), usize::from(select_step)));
                }
            }
        }
    });
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_rule_is_that_of_the_slow_twin_and_shadows_stand_before_it(
        rules in proptest::collection::vec(any_rule(), 0..6), skip in 0..97_usize,
    ) {
        let program = Program::new(pool(), rules.clone()).expect("compiles");
        let mut at = 0;
        let mut wrong = None;
        every_request(&mut |request| {
            at += 1;
            if at % 97 != skip {
                return;
            }
            let enforced = rules.iter().position(|r| r.mode == Mode::Enforced && holds_slowly(r, request));
            let enforced = enforced.unwrap_or(rules.len());
            let shadow = rules.iter().take(enforced).position(|r| r.mode == Mode::Shadow && holds_slowly(r, request));
            let got = program.match_rule(request);
            let got_shadow = program.match_shadow(request, got).map(|s| usize::from(s.0));
            if (usize::from(got.0), got_shadow) != (enforced, shadow) {
                wrong = Some(format!("{request:?}: {got:?} {got_shadow:?}, the twin {enforced} {shadow:?}"));
            }
        });
        prop_assert_eq!(wrong, None);
    }

    #[test]
    fn the_leaks_are_those_that_brute_force_finds(rules in proptest::collection::vec(any_rule(), 1..5)) {
        let program = Program::new(pool(), rules).expect("compiles");
        let enforced = |rule: usize| program.rules()[rule].mode == Mode::Enforced;
        let leaks = personal_data_leaks(&program);
        let analysed: BTreeSet<(usize, usize)> =
            leaks.iter().filter(|l| enforced(l.rule)).map(|l| (l.rule, l.select_step)).collect();
        prop_assert_eq!(&analysed, &leaks_by_brute_force(&program));
        for leak in leaks.iter().filter(|l| enforced(l.rule)) {
            let example = leak.example.as_ref().expect("the world is small");
            example.request(|request| {
                prop_assert!(request.has_tag("pii"), "{}", example);
                prop_assert_eq!(program.match_rule(request), RuleIndex(leak.rule as u16), "{}", example);
                prop_assert!(program.targets(program.match_rule(request), request.model).contains(&leak.target));
                let candidates = [OneReady { target: leak.target }];
                let decision = decide(&program, program.match_rule(request), request, &candidates, 0, &mut Scratch::new());
                let chosen = matches!(decision, Decision::Chosen { .. });
                prop_assert!(chosen, "{}", example);
                Ok(())
            })?;
        }
    }

    #[test]
    fn a_rule_is_called_unreachable_when_and_only_when_no_request_reaches_it(
        rules in proptest::collection::vec(any_rule(), 1..5),
    ) {
        let program = Program::new(pool(), rules.clone()).expect("compiles");
        let mut reached = BTreeSet::new();
        every_request(&mut |request| {
            // Names that nobody serves stand in for the empty one in turn.
            let unserved: &[&str] = if request.model.is_empty() { &["", "c", "a1"] } else { &[request.model] };
            for &model in unserved {
                let request = Request { model, ..*request };
                let enforced = usize::from(program.match_rule(&request).0);
                reached.insert(enforced);
                let shadows = program.rules().iter().enumerate().take(enforced);
                reached.extend(shadows.filter(|(_, r)| r.mode == Mode::Shadow && r.holds(&request)).map(|(i, _)| i));
            }
        });
        let called: BTreeSet<usize> = unreachable(&program).iter().map(|u| u.rule).collect();
        for rule in called.intersection(&reached) {
            prop_assert!(false, "the rule {} is reached", rule);
        }
        // A rule that no request at all could hold for is no other rule's doing.
        for rule in (0..rules.len()).filter(|r| !reached.contains(r) && !called.contains(r)) {
            let earlier = rules.iter().take(rule).any(|r| r.mode == Mode::Enforced);
            prop_assert!(!earlier, "the rule {} is not reached", rule);
        }
    }
}

fn split(weights: &[u32], split_by: SplitBy) -> Program {
    let select = weights.iter().enumerate().map(|(i, weight)| SelectStep {
        backend: Backend::External,
        destinations: Some(vec![u16::try_from(i).expect("few") + 1]),
        ranking: Ranking::Listed,
        weight: Some(*weight),
    });
    let route = Route { select: select.collect(), split_by, ..Route::default() };
    let rule = Rule {
        name: "canary".into(),
        policy: "p".into(),
        mode: Mode::Enforced,
        matches: vec![],
        action: Action::Route(route),
    };
    Program::new(pool(), vec![rule]).expect("compiles")
}

/// Which step each of `count` conversations goes by.
fn drawn(program: &Program, count: u64, ready: &[u16]) -> Vec<u16> {
    let model = |destination: u16| if destination == 1 { 0 } else { 1 };
    let candidates: Vec<OneReady> =
        ready.iter().map(|d| OneReady { target: Target { destination: *d, model: model(*d) } }).collect();
    let one = |conversation| {
        let request = Request { conversation: Some(conversation), ..Request::chat("a", "t") };
        match decide(program, RuleIndex(0), &request, &candidates, conversation, &mut Scratch::new()) {
            Decision::Chosen { select_step, .. } => select_step,
            Decision::Refused(refusal) => panic!("{refusal:?}"),
        }
    };
    (0..count).map(one).collect()
}

#[test]
fn a_split_draws_its_steps_in_proportion_to_their_weights() {
    let steps = drawn(&split(&[95, 5], SplitBy::Conversation), 20_000, &[1, 2]);
    let canary = steps.iter().filter(|s| **s == 1).count();
    // 1000 expected, standard deviation 31.
    assert!((876..1124).contains(&canary), "{canary}");
}

#[test]
fn a_conversation_stays_where_it_is_when_a_weight_grows() {
    let before = drawn(&split(&[95, 5], SplitBy::Conversation), 2000, &[1, 2]);
    assert_eq!(before, drawn(&split(&[95, 5], SplitBy::Conversation), 2000, &[1, 2]));
    let after = drawn(&split(&[95, 25], SplitBy::Conversation), 2000, &[1, 2]);
    let moved_back = before.iter().zip(&after).filter(|(b, a)| **b == 1 && **a == 0).count();
    assert_eq!(moved_back, 0, "whoever had the canary keeps it");
    assert!(after.iter().filter(|s| **s == 1).count() > 300);
}

#[test]
fn a_step_without_candidates_leaves_its_share_to_the_others_of_the_split_but_not_to_weight_0() {
    assert!(drawn(&split(&[95, 5], SplitBy::Conversation), 500, &[1]).iter().all(|s| *s == 0));
    assert!(drawn(&split(&[95, 5], SplitBy::Conversation), 500, &[2]).iter().all(|s| *s == 1));
    let program = split(&[95, 0], SplitBy::Conversation);
    let request = Request::chat("a", "t");
    let candidates = [OneReady { target: Target { destination: 2, model: 1 } }];
    let decision = decide(&program, RuleIndex(0), &request, &candidates, 0, &mut Scratch::new());
    assert!(matches!(decision, Decision::Refused(_)), "{decision:?}");
}

#[test]
fn a_split_by_tenant_keeps_a_tenant_whatever_its_conversations() {
    let program = split(&[50, 50], SplitBy::Tenant);
    assert_eq!(drawn(&program, 300, &[1, 2]).iter().collect::<BTreeSet<_>>().len(), 1);
    let each = drawn(&split(&[50, 50], SplitBy::Request), 300, &[1, 2]);
    assert_eq!(each.iter().collect::<BTreeSet<_>>().len(), 2);
}

#[test]
fn a_large_rule_set_is_analysed_within_its_bound() {
    // Every entry is a new question about tags: the worst there is for case analysis.
    let tag = |i: usize| format!("t{i}");
    let rule = |i: usize| {
        let tags = TagCondition { all: vec![tag(i)], none: vec![tag(i + 1)], any: vec![tag(i + 2), tag(i + 3)] };
        let entry = Match { tags, tenants: vec![Pattern::new(&format!("*{i}*"))], ..Match::default() };
        let step =
            SelectStep { backend: Backend::External, destinations: None, ranking: Ranking::Listed, weight: None };
        let action = Action::Route(Route { select: vec![step], ..Route::default() });
        Rule { name: tag(i), policy: "p".into(), mode: Mode::Enforced, matches: vec![entry; EXCLUDES_MAX], action }
    };
    let program = Program::new(pool(), (0..40).map(rule).collect()).expect("compiles");
    assert_eq!(personal_data_leaks(&program).len(), 40, "each can leak");
    assert!(unreachable(&program).is_empty());
}
