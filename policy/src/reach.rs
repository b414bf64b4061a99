//! What a program can never do, and what it might do with personal data.
//!
//! Each question is put as: is there a request of this rule that none of these earlier entries takes? It is answered by
//! exhaustive case analysis (`search`), so a rule named unreachable is truly unreachable, a leak that is not named does
//! not exist, and one that is named comes with a request that shows it. Two bounds keep this from being exact: a regular
//! expression over a header whose values cannot be made up, and `STEPS_MAX`; beyond either, a rule counts as reachable.

use crate::condition::{DropCondition, Match, NumberRange};
use crate::rule::{Action, Backend, Exclude, ExcludeScope, Mode, Program, Route, Rule, RuleIndex, SelectStep, Target};

mod search;

pub use search::Example;

use search::{Found, Steps, search};

/// A rule no request reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// Index of the rule.
    pub rule: usize,
    /// Index of the first earlier rule that takes some of its requests.
    pub taken_by: usize,
}

/// A way for a prompt tagged `pii` to leave the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    /// Index of the rule. One in shadow is looked at as if it were enforced.
    pub rule: usize,
    /// Index of its External step.
    pub select_step: usize,
    /// Where the prompt goes.
    pub target: Target,
    /// A request that goes there; `None` when the analysis gave up.
    pub example: Option<Example>,
}

/// Earlier entries looked at for one program before the analysis gives up: a second's work, so that a change of the
/// configuration stays in force within its time. A policy written by a person needs some thousands, one of a thousand rules
/// some millions.
const STEPS_MAX: u64 = 20_000_000;

/// Rules all of whose requests are taken by earlier rules. The default rule is not looked at.
#[must_use]
pub fn unreachable(program: &Program) -> Vec<Unreachable> {
    let rules = program.rules();
    let own = rules.len().saturating_sub(1);
    let entries: Vec<Vec<Match>> = rules.iter().map(entries).collect();
    // Names that nobody serves yet count too: that a rule is for one of them is another finding.
    let written: Vec<String> = entries.iter().flatten().flat_map(|m| &m.models).flat_map(search::instances).collect();
    let mut names = names(program);
    names.extend(written.iter().map(String::as_str));
    let mut steps = Steps::new(STEPS_MAX);
    let mut found = Vec::new();
    for (i, own_entries) in entries.iter().take(own).enumerate() {
        let earlier = enforced_before(rules, &entries, i);
        let mut taken = |entry: &Match, by: &[&Match]| search(entry, None, &names, by, &mut steps) == Found::Nothing;
        if !earlier.is_empty() && own_entries.iter().all(|entry| taken(entry, &earlier)) {
            // Where several take part, the first that takes a whole entry is named, else the one just before.
            let mut whole = |by: &Vec<Match>| {
                let by: Vec<&Match> = by.iter().collect();
                own_entries.iter().any(|entry| taken(entry, &by))
            };
            let before = rules.iter().zip(&entries).take(i).enumerate().filter(|(_, (r, _))| r.mode == Mode::Enforced);
            let mut last = i.saturating_sub(1);
            let mut taken_by = None;
            for (at, (_, by)) in before {
                last = at;
                if taken_by.is_none() && whole(by) {
                    taken_by = Some(at);
                }
            }
            found.push(Unreachable { rule: i, taken_by: taken_by.unwrap_or(last) });
        }
    }
    found
}

/// External steps that a request tagged `pii` can reach, each once.
#[must_use]
pub fn personal_data_leaks(program: &Program) -> Vec<Leak> {
    let rules = program.rules();
    let entries: Vec<Vec<Match>> = rules.iter().map(entries).collect();
    let names = names(program);
    let mut steps = Steps::new(STEPS_MAX);
    let mut leaks: Vec<Leak> = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let Action::Route(route) = &rule.action else { continue };
        for (target, takers) in external_targets(program, route) {
            let index = RuleIndex(u16::try_from(i).unwrap_or(u16::MAX));
            let considered: Vec<&str> =
                names.iter().copied().filter(|name| program.targets(index, name).contains(&target)).collect();
            let kept: Vec<Match> = route.exclude.iter().filter_map(|e| always_drops(e, target)).collect();
            // The rule's own excludes first: where they drop the target for all, no other entry needs to be looked at.
            let mut obstacles: Vec<&Match> = kept.iter().collect();
            obstacles.extend(enforced_before(rules, &entries, i));
            for entry in entries.get(i).into_iter().flatten() {
                let example = match search(entry, Some("pii"), &considered, &obstacles, &mut steps) {
                    Found::Nothing => continue,
                    Found::Request(example) => Some(*example),
                    Found::GaveUp => None,
                };
                for &select_step in &takers {
                    if !leaks.iter().any(|leak| leak.rule == i && leak.select_step == select_step) {
                        leaks.push(Leak { rule: i, select_step, target, example: example.clone() });
                    }
                }
                break;
            }
        }
    }
    leaks.sort_by_key(|leak| (leak.rule, leak.select_step));
    leaks
}

/// Targets a select step could ever choose from.
#[must_use]
pub fn step_targets(program: &Program, route: &Route, step: &SelectStep) -> Vec<Target> {
    let mut targets = Vec::new();
    for (d, destination) in (0_u16..).zip(program.destinations()) {
        if !step.takes(destination.backend, d) {
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

/// The External targets a route may choose, each with the steps that may choose it: the first that looks at it, and with
/// that the others of its split.
fn external_targets(program: &Program, route: &Route) -> Vec<(Target, Vec<usize>)> {
    let mut found: Vec<(Target, Vec<usize>)> = Vec::new();
    for step in route.select.iter().filter(|step| step.backend == Backend::External) {
        for target in step_targets(program, route, step) {
            let takes = |s: &SelectStep| s.takes(Backend::External, target.destination);
            let Some(first) = route.select.iter().position(takes) else { continue };
            if found.iter().any(|(known, _)| *known == target) {
                continue;
            }
            let rest = route.select.iter().enumerate().skip(first);
            let split = route.select.get(first).is_some_and(|s| s.weight.is_some());
            let takers =
                rest.take_while(|(at, s)| *at == first || (split && s.weight.is_some())).filter(|(_, s)| takes(s));
            found.push((target, takers.map(|(at, _)| at).collect()));
        }
    }
    found
}

/// A rule's entries; one that asks nothing when it has none.
fn entries(rule: &Rule) -> Vec<Match> {
    if rule.matches.is_empty() { vec![Match::default()] } else { rule.matches.clone() }
}

/// The entries of the enforced rules before one: what its requests must get past.
fn enforced_before<'e>(rules: &[Rule], entries: &'e [Vec<Match>], rule: usize) -> Vec<&'e Match> {
    let before = rules.iter().zip(entries).take(rule);
    before.filter(|(r, _)| r.mode == Mode::Enforced).flat_map(|(_, entries)| entries).collect()
}

/// Every name a request of the pool may ask for; none at all comes last, as paths without a model in their body are routed too.
fn names(program: &Program) -> Vec<&str> {
    let mut names: Vec<&str> =
        program.destinations().iter().flat_map(|d| d.models.iter().flatten()).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names.push("");
    names
}

/// The requests for which an exclude entry is certain to drop an External target; `None` when it never is.
fn always_drops(exclude: &Exclude, target: Target) -> Option<Match> {
    let certain = exclude.conditions.iter().all(|c| match c {
        DropCondition::Backend(backend) => *backend == Backend::External,
        DropCondition::Destinations(list) => list.contains(&target.destination),
        // Whether a value lies in a range is not known beforehand, nor whether it will be known at all.
        DropCondition::Number { .. } | DropCondition::ContextBelowPrompt => false,
    });
    let ExcludeScope { tags, tenants, prompt_tokens } = &exclude.applies_to;
    let scope =
        Match { tags: tags.clone(), tenants: tenants.clone(), prompt_tokens: *prompt_tokens, ..Match::default() };
    certain.then_some(scope)
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
    use crate::condition::{Pattern, TagCondition};
    use crate::request::{Request, Streaming};
    use crate::rule::{PoolDestination, Ranking};
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
        let select = vec![SelectStep { backend, destinations: None, ranking: Ranking::Listed, weight: None }];
        let action = Action::Route(Route { exclude, select, ..Route::default() });
        Rule { name: "r".into(), policy: "p".into(), mode: Mode::Enforced, matches, action }
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
        assert_eq!(leaks(vec![keep(vec![named("m")]), out()]), 0, "the pool serves no other name");
        assert_eq!(leaks(vec![keep(vec![named("n")]), out()]), 1);
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
