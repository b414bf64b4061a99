//! What a program can never do, and what it might do with personal data.
//!
//! The analysis compares entries one with one, so it knows that an entry is covered by another, not that
//! it is covered by several together. It never calls reachable what is not, save by that; so a rule it
//! names is truly unreachable, and a leak it does not name does not exist.

use crate::condition::{DropCondition, Match, NumberRange, Pattern, TagCondition};
use crate::request::Request;
use crate::rule::{Action, Backend, Exclude, ExcludeScope, Program, Route, Rule, SelectStep, Target};

/// A rule no request reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// Index of the rule.
    pub rule: usize,
    /// Index of the first earlier rule that takes some of its requests.
    pub taken_by: usize,
}

/// A way for a prompt tagged `pii` to leave the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Index of the rule.
    pub rule: usize,
    /// Index of its External step.
    pub select_step: usize,
}

/// Rules all of whose entries are covered by entries of earlier rules. The default rule is not looked at.
#[must_use]
pub fn unreachable(program: &Program) -> Vec<Unreachable> {
    let rules = program.rules();
    let own = rules.len().saturating_sub(1);
    let mut found = Vec::new();
    for (i, rule) in rules.iter().take(own).enumerate() {
        let mut taken_by = None;
        let covered = entries(rule).iter().all(|entry| {
            let by = rules.iter().take(i).position(|r| entries(r).iter().any(|e| covers(e, entry)));
            taken_by = taken_by.into_iter().chain(by).min();
            by.is_some()
        });
        if let Some(taken_by) = taken_by.filter(|_| covered) {
            found.push(Unreachable { rule: i, taken_by });
        }
    }
    found
}

/// External steps that a request tagged `pii` can reach.
#[must_use]
pub fn personal_data_leaks(program: &Program) -> Vec<Leak> {
    let rules = program.rules();
    let mut leaks = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let Action::Route(route) = &rule.action else { continue };
        for (select_step, step) in route.select.iter().enumerate() {
            let external = step_targets(program, route, step);
            if step.backend != Backend::External || external.is_empty() {
                continue;
            }
            let leaks_out = entries(rule).iter().filter_map(tagged_personal).any(|entry| {
                let taken = rules.iter().take(i).any(|r| entries(r).iter().any(|e| covers(e, &entry)));
                !taken && !external.iter().all(|t| route.exclude.iter().any(|e| always_drops(e, *t, &entry)))
            });
            if leaks_out {
                leaks.push(Leak { rule: i, select_step });
            }
        }
    }
    leaks
}

/// Targets a select step could ever choose from.
#[must_use]
pub fn step_targets(program: &Program, route: &Route, step: &SelectStep) -> Vec<Target> {
    let mut targets = Vec::new();
    for (d, destination) in (0_u16..).zip(program.destinations()) {
        if destination.backend != step.backend || step.position(d).is_none() {
            continue;
        }
        for (m, names) in (0_u16..).zip(&destination.models) {
            let considered = route.consider.is_empty()
                || route.consider.iter().any(|c| {
                    c.destinations.as_ref().is_none_or(|list| list.contains(&d))
                        && (c.models.is_empty() || names.iter().any(|n| c.models.contains(n)))
                });
            if considered {
                targets.push(Target { destination: d, model: m });
            }
        }
    }
    targets
}

/// A rule's entries; one that asks nothing when it has none.
fn entries(rule: &Rule) -> Vec<Match> {
    if rule.matches.is_empty() { vec![Match::default()] } else { rule.matches.clone() }
}

/// The entry narrowed to requests tagged `pii`; `None` when it takes none of them.
fn tagged_personal(entry: &Match) -> Option<Match> {
    let mut entry = entry.clone();
    if entry.tags.none.iter().any(|t| t == "pii") {
        return None;
    }
    entry.tags.all.push("pii".to_owned());
    Some(entry)
}

/// Whether an exclude entry drops an External target for every request of `entry`.
fn always_drops(exclude: &Exclude, target: Target, entry: &Match) -> bool {
    let ExcludeScope { tags, tenants, prompt_tokens } = &exclude.applies_to;
    let scope =
        Match { tags: tags.clone(), tenants: tenants.clone(), prompt_tokens: *prompt_tokens, ..Match::default() };
    covers(&scope, entry)
        && exclude.conditions.iter().all(|c| match c {
            DropCondition::Backend(backend) => *backend == Backend::External,
            DropCondition::Destinations(list) => list.contains(&target.destination),
            // Whether a value lies in a range is not known beforehand.
            DropCondition::Number { .. } | DropCondition::ContextBelowPrompt => false,
        })
}

/// Whether every request that `later` takes is also taken by `earlier`.
#[must_use]
pub fn covers(earlier: &Match, later: &Match) -> bool {
    patterns_cover(&earlier.models, &later.models)
        && patterns_cover(&earlier.tenants, &later.tenants)
        && tags_cover(&earlier.tags, &later.tags)
        && earlier.headers.iter().all(|h| later.headers.contains(h))
        && (earlier.apis.is_empty() || (!later.apis.is_empty() && later.apis.iter().all(|a| earlier.apis.contains(a))))
        && (earlier.stream.is_none() || earlier.stream == later.stream)
        && range_covers(&earlier.prompt_tokens, &later.prompt_tokens)
}

/// A pattern's own text stands for all it matches: a star in it can only be matched by a star.
fn patterns_cover(earlier: &[Pattern], later: &[Pattern]) -> bool {
    earlier.is_empty() || (!later.is_empty() && later.iter().all(|l| earlier.iter().any(|e| e.matches(l.as_str()))))
}

fn tags_cover(earlier: &TagCondition, later: &TagCondition) -> bool {
    // The tags every request of `later` carries, as a request that carries no others.
    let mut certain: Vec<&str> = later.all.iter().map(String::as_str).collect();
    if let [only] = later.any.as_slice() {
        certain.push(only);
    }
    let least = Request { tags: &certain, ..Request::chat("", "") };
    let any = earlier.any.is_empty()
        || earlier.any.iter().any(|t| least.has_tag(t))
        || (!later.any.is_empty() && later.any.iter().all(|t| earlier.any.contains(t)));
    any && earlier.all.iter().all(|t| least.has_tag(t)) && earlier.none.iter().all(|t| later.none.contains(t))
}

fn range_covers(earlier: &NumberRange, later: &NumberRange) -> bool {
    let above =
        |bound: f64| later.greater_than.is_some_and(|l| l >= bound) || later.at_least.is_some_and(|l| l > bound);
    let from =
        |bound: f64| later.greater_than.is_some_and(|l| l >= bound) || later.at_least.is_some_and(|l| l >= bound);
    let below = |bound: f64| later.less_than.is_some_and(|l| l <= bound) || later.at_most.is_some_and(|l| l < bound);
    let up_to = |bound: f64| later.less_than.is_some_and(|l| l <= bound) || later.at_most.is_some_and(|l| l <= bound);
    earlier.greater_than.is_none_or(above)
        && earlier.at_least.is_none_or(from)
        && earlier.less_than.is_none_or(below)
        && earlier.at_most.is_none_or(up_to)
}

/// Whether no number lies in the range, given the numbers that make sense.
#[must_use]
pub fn is_impossible(range: &NumberRange, sensible: (f64, f64)) -> bool {
    let (low, high) = sensible;
    let at_least = range.at_least.unwrap_or(low).max(low);
    let at_most = range.at_most.unwrap_or(high).min(high);
    at_least > at_most
        || range.greater_than.is_some_and(|g| g >= at_most || range.less_than.is_some_and(|l| g >= l))
        || range.less_than.is_some_and(|l| l <= at_least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Streaming;
    use crate::rule::{Consider, PoolDestination, Ranking};
    use proptest::prelude::*;

    fn tagged(any: &[&str], all: &[&str], none: &[&str]) -> Match {
        let list = |tags: &[&str]| tags.iter().map(|t| (*t).to_owned()).collect();
        Match { tags: TagCondition { any: list(any), all: list(all), none: list(none) }, ..Match::default() }
    }

    fn pool() -> Vec<PoolDestination> {
        let models = vec![vec!["m".to_owned()]];
        vec![
            PoolDestination { name: "here".into(), backend: Backend::Local, models: models.clone() },
            PoolDestination { name: "there".into(), backend: Backend::External, models },
        ]
    }

    fn rule(matches: Vec<Match>, backend: Backend, exclude: Vec<Exclude>) -> Rule {
        let select = vec![SelectStep { backend, destinations: None, ranking: Ranking::Listed }];
        let action = Action::Route(Route { exclude, select, consider: Vec::<Consider>::new() });
        Rule { name: "r".into(), policy: "p".into(), matches, action }
    }

    fn leaks(rules: Vec<Rule>) -> usize {
        personal_data_leaks(&Program::new(pool(), rules).expect("compiles")).len()
    }

    #[test]
    fn an_external_step_open_to_all_leaks() {
        assert_eq!(leaks(vec![rule(vec![], Backend::External, vec![])]), 1);
        assert_eq!(leaks(vec![rule(vec![], Backend::Local, vec![])]), 0);
    }

    #[test]
    fn an_earlier_rule_for_personal_data_closes_the_leak() {
        let keep = rule(vec![tagged(&[], &["pii"], &[])], Backend::Local, vec![]);
        assert_eq!(leaks(vec![keep.clone(), rule(vec![], Backend::External, vec![])]), 0);
        let narrow = Match { models: vec![Pattern::new("other")], ..tagged(&[], &["pii"], &[]) };
        let narrow = rule(vec![narrow], Backend::Local, vec![]);
        assert_eq!(leaks(vec![narrow, rule(vec![], Backend::External, vec![])]), 1);
        assert_eq!(leaks(vec![rule(vec![], Backend::External, vec![]), keep]), 1, "a later rule comes too late");
    }

    #[test]
    fn a_rule_that_asks_for_no_personal_data_does_not_leak() {
        assert_eq!(leaks(vec![rule(vec![tagged(&[], &[], &["pii"])], Backend::External, vec![])]), 0);
        // Another tag absent says nothing about `pii`.
        assert_eq!(leaks(vec![rule(vec![tagged(&[], &[], &["pii-email"])], Backend::External, vec![])]), 1);
    }

    #[test]
    fn an_exclude_entry_for_personal_data_closes_the_leak() {
        let entry = |conditions| Exclude {
            name: "e".into(),
            applies_to: ExcludeScope { tags: tagged(&["pii"], &[], &[]).tags, ..ExcludeScope::default() },
            conditions,
        };
        let closed = entry(vec![DropCondition::Backend(Backend::External)]);
        assert_eq!(leaks(vec![rule(vec![], Backend::External, vec![closed])]), 0);
        let local = entry(vec![DropCondition::Backend(Backend::Local)]);
        assert_eq!(leaks(vec![rule(vec![], Backend::External, vec![local])]), 1);
        let sometimes = entry(vec![
            DropCondition::Backend(Backend::External),
            DropCondition::Number { signal: crate::Signal::InFlight, range: NumberRange::default() },
        ]);
        assert_eq!(leaks(vec![rule(vec![], Backend::External, vec![sometimes])]), 1);
    }

    #[test]
    fn a_rule_behind_one_that_takes_all_its_requests_is_unreachable() {
        let model = |name: &str| Match { models: vec![Pattern::new(name)], ..Match::default() };
        let rules = vec![
            rule(vec![model("qwen-*")], Backend::Local, vec![]),
            rule(vec![model("qwen-3"), model("gemma")], Backend::Local, vec![]),
            rule(vec![model("qwen-3*")], Backend::Local, vec![]),
        ];
        let found = unreachable(&Program::new(pool(), rules).expect("compiles"));
        assert_eq!(found, [Unreachable { rule: 2, taken_by: 0 }]);
    }

    fn any_match() -> impl Strategy<Value = Match> {
        let tags = || proptest::sample::subsequence(vec!["pii", "pii-email", "pii-unscanned", "low"], 0..=2);
        let models = proptest::sample::subsequence(vec!["a", "ab", "a*", "*", "*b"], 0..=2);
        let bound = || proptest::option::of(0..4_i32);
        (models, tags(), tags(), tags(), proptest::option::of(any::<bool>()), bound(), bound()).prop_map(
            |(models, any, all, none, stream, low, high)| Match {
                models: models.into_iter().map(Pattern::new).collect(),
                stream: stream.map(|s| if s { Streaming::Yes } else { Streaming::No }),
                prompt_tokens: NumberRange {
                    greater_than: low.map(f64::from),
                    at_most: high.map(f64::from),
                    ..NumberRange::default()
                },
                ..tagged(&any, &all, &none)
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn what_a_covered_entry_takes_the_covering_one_takes_too(
            earlier in any_match(), later in any_match(),
            model in "[ab]{1,3}", streamed in any::<bool>(), tokens in 0..6_i32,
            tags in proptest::sample::subsequence(vec!["pii", "pii-email", "pii-unscanned", "low"], 0..=4),
        ) {
            let request = Request {
                tags: &tags,
                stream: if streamed { Streaming::Yes } else { Streaming::No },
                prompt_tokens: f64::from(tokens) * 0.5,
                ..Request::chat(&model, "t")
            };
            if covers(&earlier, &later) && later.holds(&request) {
                prop_assert!(earlier.holds(&request));
            }
        }

        #[test]
        fn nothing_lies_in_an_impossible_range(low in 0..5_i32, high in 0..5_i32, open in any::<bool>(), value in -1..11_i32) {
            let (low, high) = (f64::from(low), f64::from(high));
            let range = if open {
                NumberRange { greater_than: Some(low), less_than: Some(high), ..NumberRange::default() }
            } else {
                NumberRange { at_least: Some(low), at_most: Some(high), ..NumberRange::default() }
            };
            let value = f64::from(value) * 0.5;
            if is_impossible(&range, (0.0, 4.0)) && (0.0..=4.0).contains(&value) {
                prop_assert!(!range.contains(value));
            }
            if !is_impossible(&range, (0.0, 4.0)) {
                prop_assert!(range.contains(f64::midpoint(low, high.min(4.0))));
            }
        }
    }
}
