//! What a program can never do, and what it might do with personal data.
//!
//! Whether some requests are all taken by earlier rules is shown entry by entry; where no single entry takes
//! them all, they are split (by model, API, streaming, tag) and each part is shown on its own, within a
//! bound. Tenants, headers and prompt lengths are not split. So a rule named unreachable is truly
//! unreachable and a leak that is not named does not exist; the other way round a rare false alarm is possible.

use crate::condition::{DropCondition, Match, NumberRange, Pattern, TagCondition, any_pattern};
use crate::request::{Api, Request, Streaming};
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
    let names = names(program);
    let mut splits = SPLITS_MAX;
    let mut found = Vec::new();
    for (i, rule) in rules.iter().take(own).enumerate() {
        let earlier: Vec<Match> = rules.iter().take(i).flat_map(entries).collect();
        if !earlier.is_empty() && entries(rule).iter().all(|entry| all_taken(entry, &earlier, &names, &mut splits)) {
            // Where several take part, the first that takes a whole entry is named, else the one just before.
            let whole = |r: &Rule| entries(rule).iter().any(|entry| entries(r).iter().any(|e| covers(e, entry)));
            let taken_by = rules.iter().take(i).position(whole).unwrap_or(i.saturating_sub(1));
            found.push(Unreachable { rule: i, taken_by });
        }
    }
    found
}

/// External steps that a request tagged `pii` can reach.
#[must_use]
pub fn personal_data_leaks(program: &Program) -> Vec<Leak> {
    let rules = program.rules();
    let names = names(program);
    let mut splits = SPLITS_MAX;
    let mut leaks = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let Action::Route(route) = &rule.action else { continue };
        let earlier: Vec<Match> = rules.iter().take(i).flat_map(entries).collect();
        for (select_step, step) in route.select.iter().enumerate() {
            let external = step_targets(program, route, step);
            if step.backend != Backend::External || external.is_empty() {
                continue;
            }
            let leaks_out = entries(rule).iter().filter_map(tagged_personal).any(|entry| {
                let taken = all_taken(&entry, &earlier, &names, &mut splits);
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

/// Parts the requests of a whole program are split into before the analysis gives up and takes the rest for reachable.
/// A policy written by a person needs some dozens; the bound keeps checking a set within the second a change may take.
const SPLITS_MAX: u32 = 5_000;

/// A model name no destination serves: paths without a model in their body are routed too.
const NO_NAME: &str = "\0";

/// Every name a request of the pool may ask for. Empty when one holds a star, which a pattern could not tell apart.
fn names(program: &Program) -> Vec<String> {
    let served = program.destinations().iter().flat_map(|d| d.models.iter().flatten().cloned());
    let mut names: Vec<String> = served.chain([NO_NAME.to_owned()]).collect();
    names.sort();
    names.dedup();
    if names.iter().any(|n| n.contains('*')) { Vec::new() } else { names }
}

/// Whether every request of `entry` is taken by one of `earlier`.
fn all_taken(entry: &Match, earlier: &[Match], names: &[String], splits: &mut u32) -> bool {
    if nobody(&entry.tags) || earlier.iter().any(|e| covers(e, entry)) {
        return true;
    }
    if *splits == 0 {
        return false;
    }
    *splits -= 1;
    // Each split settles one model, API, streaming or tag for good, so the depth is bounded by their number.
    split(entry, earlier, names).is_some_and(|parts| parts.iter().all(|part| all_taken(part, earlier, names, splits)))
}

/// Whether no prompt carries tags like these: one is asked for and forbidden.
fn nobody(tags: &TagCondition) -> bool {
    let certain: Vec<&str> = tags.all.iter().map(String::as_str).collect();
    let least = Request { tags: &certain, ..Request::chat("", "") };
    tags.none.iter().any(|t| least.has_tag(t))
}

/// Parts that together are `entry`, split by something `earlier` asks about and `entry` leaves open.
fn split(entry: &Match, earlier: &[Match], names: &[String]) -> Option<Vec<Match>> {
    let settled = matches!(entry.models.as_slice(), [only] if only.is_exact());
    if !settled && !names.is_empty() && earlier.iter().any(|e| !e.models.is_empty()) {
        let matching = names.iter().filter(|n| any_pattern(&entry.models, n));
        return Some(matching.map(|n| Match { models: vec![Pattern::new(n)], ..entry.clone() }).collect());
    }
    if entry.stream.is_none() && earlier.iter().any(|e| e.stream.is_some()) {
        let part = |stream| Match { stream: Some(stream), ..entry.clone() };
        return Some(vec![part(Streaming::Yes), part(Streaming::No)]);
    }
    if entry.apis.len() != 1 && earlier.iter().any(|e| !e.apis.is_empty()) {
        let apis: &[Api] = if entry.apis.is_empty() { &Api::ALL } else { &entry.apis };
        return Some(apis.iter().map(|api| Match { apis: vec![*api], ..entry.clone() }).collect());
    }
    let open = |tag: &&str| !entry.tags.all.iter().chain(&entry.tags.none).any(|t| t == tag);
    let tag = earlier.iter().flat_map(|e| e.tags.tags()).find(open)?;
    let (mut with, mut without) = (entry.clone(), entry.clone());
    with.tags.all.push(tag.to_owned());
    without.tags.none.push(tag.to_owned());
    Some(vec![with, without])
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

    #[test]
    fn several_entries_together_may_cover_what_none_covers_alone() {
        let streamed = |stream| Match { stream: Some(stream), ..tagged(&[], &["pii"], &[]) };
        let keep = |entries| rule(entries, Backend::Local, vec![]);
        let out = || rule(vec![], Backend::External, vec![]);
        assert_eq!(leaks(vec![keep(vec![streamed(Streaming::Yes), streamed(Streaming::No)]), out()]), 0);
        assert_eq!(leaks(vec![keep(vec![streamed(Streaming::Yes)]), out()]), 1);
        let low_or_not = vec![tagged(&[], &["pii", "low"], &[]), tagged(&[], &["pii"], &["low"])];
        assert_eq!(leaks(vec![keep(low_or_not), out()]), 0);
        let named = |name: &str| Match { models: vec![Pattern::new(name)], ..tagged(&[], &["pii"], &[]) };
        assert_eq!(leaks(vec![keep(vec![named("m")]), out()]), 1, "a path without a model is routed too");
        assert_eq!(leaks(vec![keep(vec![named("*")]), out()]), 0);
        let only_m =
            rule(vec![Match { models: vec![Pattern::new("m")], ..Match::default() }], Backend::External, vec![]);
        assert_eq!(leaks(vec![keep(vec![named("m")]), only_m]), 0);
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
        fn no_request_reaches_a_rule_called_unreachable(
            entries in proptest::collection::vec(any_match(), 1..5),
            model in proptest::sample::select(&["m", ""][..]), streamed in any::<bool>(), tokens in 0..6_i32,
            tags in proptest::sample::subsequence(vec!["pii", "pii-email", "pii-unscanned", "low"], 0..=4),
        ) {
            let rules = entries.into_iter().map(|e| rule(vec![e], Backend::External, vec![])).collect();
            let program = Program::new(pool(), rules).expect("compiles");
            let request = Request {
                tags: &tags,
                stream: if streamed { Streaming::Yes } else { Streaming::No },
                prompt_tokens: f64::from(tokens) * 0.5,
                ..Request::chat(model, "t")
            };
            let reached = usize::from(program.match_rule(&request).0);
            prop_assert!(unreachable(&program).iter().all(|u| u.rule != reached));
            let leaks = personal_data_leaks(&program);
            let own = program.rules().len() - 1;
            if request.has_tag("pii") && reached < own {
                prop_assert!(leaks.iter().any(|l| l.rule == reached), "a leak is always named");
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
