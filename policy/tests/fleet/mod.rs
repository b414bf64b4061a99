//! A rule set and a fleet as large as people have: 50 rules, 100 candidates. Shared by the test that counts allocations and the
//! example that measures time.

use policy::rule::ExcludeScope;
use policy::{
    Action, Backend, Candidate, DropCondition, Exclude, HeaderCondition, HeaderTest, Match, Minimize, Mode,
    NumberRange, Pattern, PoolDestination, Program, Ranking, Route, Rule, SelectStep, Signal, TagCondition, Target,
};

/// One endpoint with values that differ from its neighbours'.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endpoint {
    destination: u16,
    ready: bool,
    queued: f64,
    ttft_us: f64,
    in_flight: f64,
}

impl Candidate for Endpoint {
    fn target(&self) -> Target {
        Target { destination: self.destination, model: 0 }
    }
    fn backend(&self) -> Backend {
        if self.destination < 3 { Backend::Local } else { Backend::External }
    }
    fn ready(&self) -> bool {
        self.ready
    }
    fn signal(&self, signal: Signal) -> Option<f64> {
        match signal {
            Signal::QueuedPrompts { .. } => Some(self.queued),
            Signal::PredictedTtft => Some(self.ttft_us),
            Signal::InFlight => Some(self.in_flight),
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
        0.05
    }
}

/// 98 servers in three worker sets and two providers, all of which serve `qwen-3.6`.
pub(crate) fn candidates() -> Vec<Endpoint> {
    let endpoint = |number: u16| Endpoint {
        destination: if number < 98 { number * 3 / 98 } else { number - 95 },
        ready: !number.is_multiple_of(17),
        queued: f64::from(number % 7),
        ttft_us: f64::from(100 + number * 37 % 101) * 1000.0,
        in_flight: f64::from(number % 11),
    };
    (0..100).map(endpoint).collect()
}

/// 49 rules that are for other requests, each for another reason, and one that holds.
pub(crate) fn program() -> Program {
    let name = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let destination = |n: usize| PoolDestination {
        name: format!("d{n}"),
        backend: if n < 3 { Backend::Local } else { Backend::External },
        models: vec![name(&["Qwen/Qwen3.6-27B", "qwen-3.6"])],
    };
    let mut rules: Vec<Rule> = (0..49)
        .map(|n| {
            let mut entry = Match { models: vec![Pattern::new("qwen-*"), Pattern::new("gemma-4")], ..Match::default() };
            match n % 5 {
                0 => entry.models = vec![Pattern::new(&format!("model-{n}"))],
                1 => entry.tenants = vec![Pattern::new(&format!("tenant-{n}")), Pattern::new("team-*-batch")],
                2 => entry.tags = TagCondition { any: name(&["pii", "secret"]), ..TagCondition::default() },
                3 => entry.prompt_tokens = NumberRange { greater_than: Some(50_000.0), ..NumberRange::default() },
                _ => {
                    let test = HeaderTest::Exact(format!("value-{n}"));
                    entry.headers = vec![HeaderCondition { name: "x-team".to_owned(), test }];
                }
            }
            rule(&format!("rule-{n}"), vec![entry], Route::default())
        })
        .collect();
    let condition = |signal, above| DropCondition::Number {
        signal,
        range: NumberRange { greater_than: Some(above), ..NumberRange::default() },
    };
    let exclude = |conditions| Exclude { name: "e".to_owned(), applies_to: ExcludeScope::default(), conditions };
    let route = Route {
        exclude: vec![
            exclude(vec![
                DropCondition::Backend(Backend::Local),
                condition(Signal::QueuedPrompts { window_s: 30 }, 4.0),
            ]),
            exclude(vec![condition(Signal::InFlight, 9.0)]),
        ],
        select: vec![
            SelectStep::local_by_ttft(),
            SelectStep {
                backend: Backend::External,
                destinations: None,
                ranking: Ranking::Minimize(Minimize::Cost),
                weight: None,
            },
        ],
        ..Route::default()
    };
    rules.push(rule("last", vec![Match { models: vec![Pattern::new("qwen-3.6")], ..Match::default() }], route));
    Program::new((0..5).map(destination).collect(), rules).expect("compiles")
}

/// The same with a split in place of the steps.
pub(crate) fn split_program() -> Program {
    let plain = program();
    let rules = plain.rules().iter().filter(|rule| rule.name != policy::DEFAULT_RULE).cloned();
    let rules = rules.map(|mut rule| {
        if let Action::Route(route) = &mut rule.action {
            route.select = (0..3).map(|d| step(d, 1 + u32::from(d))).collect();
        }
        rule
    });
    Program::new(plain.destinations().to_vec(), rules.collect()).expect("compiles")
}

fn step(destination: u16, weight: u32) -> SelectStep {
    SelectStep { destinations: Some(vec![destination]), weight: Some(weight), ..SelectStep::local_by_ttft() }
}

fn rule(name: &str, matches: Vec<Match>, route: Route) -> Rule {
    Rule { name: name.to_owned(), policy: "p".to_owned(), mode: Mode::Enforced, matches, action: Action::Route(route) }
}
