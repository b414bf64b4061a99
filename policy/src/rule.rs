//! A pool's rules, compiled: which rule a request falls under and which models it may be served by.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;

use crate::condition::{DropCondition, Match, NumberRange, Pattern, TagCondition, any_pattern};
use crate::matcher::Matcher;
use crate::request::Request;
use crate::rewrite::Rewrite;
use crate::signal::{self, Signal};

/// Name of the rule that holds when no other does. It considers every destination serving the name
/// asked for and selects the Local endpoint with the least predicted time to first token.
pub const DEFAULT_RULE: &str = "default";

/// Exclude entries a rule may have: a decision keeps which of them apply to the request in one 64-bit word.
pub const EXCLUDES_MAX: usize = 64;

/// Rules a pool may have, over all its policies, so that a request meets a bounded number of tests.
pub const RULES_MAX: usize = 4096;

/// Destinations a pool may have, and models a destination may serve: indices are 16 bits wide.
pub const INDEX_MAX: usize = u16::MAX as usize;

/// Where an answer is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Backend {
    /// An engine of an InferenceWorkerSet: data stays in the cluster.
    Local,
    /// A model of an InferenceProvider: data leaves the cluster.
    External,
}

impl Backend {
    /// The name used in policies and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Backend::Local => "Local",
            Backend::External => "External",
        }
    }
}

/// A (destination, model) pair of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Index in the pool's destinations.
    pub destination: u16,
    /// Index in that destination's models.
    pub model: u16,
}

/// Place of a rule in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleIndex(pub u16);

/// What a program must know about one destination of its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDestination {
    /// The resource's name.
    pub name: String,
    /// Which kind of destination it is.
    pub backend: Backend,
    /// For each model it serves, every name a client may ask for it by.
    pub models: Vec<Vec<String>>,
}

/// One rule: the requests it is for and what happens to them.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Unique within its policy.
    pub name: String,
    /// The policy it stands in; empty for the default rule.
    pub policy: String,
    /// Whether it decides.
    pub mode: Mode,
    /// The rule holds when one of these does; empty holds for every request.
    pub matches: Vec<Match>,
    /// What happens to its requests.
    pub action: Action,
}

/// Whether a rule decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It takes its requests.
    #[default]
    Enforced,
    /// It takes no request: what it would have done with one is only found out and told.
    Shadow,
}

/// What a rule does with a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Choose an endpoint.
    Route(Route),
    /// Refuse.
    Deny(Deny),
}

/// How a rule chooses an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Union of what may serve the request; empty = every destination serving the name asked for.
    pub consider: Vec<Consider>,
    /// Each entry drops the candidates for which all its conditions hold.
    pub exclude: Vec<Exclude>,
    /// Tried in order; the first with a surviving candidate wins. Neighbours with a weight are one split.
    pub select: Vec<SelectStep>,
    /// Where its requests wait when every candidate was dropped; `None`: they do not.
    pub queue: Option<Queue>,
    /// Which requests stay together in a split.
    pub split_by: SplitBy,
    /// What changes in the sampling parameters of its requests, one entry a parameter.
    pub rewrite: Vec<Rewrite>,
    /// Headers that its requests carry to whoever answers.
    pub headers: Vec<UpstreamHeader>,
}

impl Default for Route {
    /// The rule `default`: Local only, least predicted time to first token.
    fn default() -> Self {
        Self {
            consider: Vec::new(),
            exclude: Vec::new(),
            select: vec![SelectStep::local_by_ttft()],
            queue: None,
            split_by: SplitBy::default(),
            rewrite: Vec::new(),
            headers: Vec::new(),
        }
    }
}

/// How requests wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Longest wait.
    pub wait_max: Duration,
    /// Most requests that wait at once.
    pub length_max: u32,
}

/// Which requests of a split go the same way as long as nothing is full, down or written anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitBy {
    /// Those of one conversation.
    #[default]
    Conversation,
    /// Those of one tenant.
    Tenant,
    /// None: each is drawn for itself.
    Request,
}

/// A header that requests carry to whoever answers, in place of what the client sent under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamHeader {
    /// In lower case.
    pub name: String,
    /// Visible ASCII, spaces and tabs.
    pub value: String,
}

/// One part of what a rule considers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consider {
    /// Names or aliases of models; empty = the name asked for.
    pub models: Vec<String>,
    /// Indices of destinations it is narrowed to; `None` = all.
    pub destinations: Option<Vec<u16>>,
}

/// A refusal written in a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deny {
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// Machine-readable code of the error body.
    pub code: String,
    /// Human-readable message of the error body.
    pub message: String,
}

/// One exclude entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Exclude {
    /// Named in the answer when it left nothing.
    pub name: String,
    /// Conditions on the request; the entry drops nothing from other requests.
    pub applies_to: ExcludeScope,
    /// Conditions on a candidate, all of which must hold for it to be dropped.
    pub conditions: Vec<DropCondition>,
}

/// Which requests an exclude entry applies to; the default applies to all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExcludeScope {
    /// Tags of the prompt.
    pub tags: TagCondition,
    /// Tenants; empty asks nothing.
    pub tenants: Vec<Pattern>,
    /// Estimated prompt length in tokens.
    pub prompt_tokens: NumberRange,
}

impl ExcludeScope {
    /// Whether the entry applies to `request`.
    #[must_use]
    pub fn holds(&self, request: &Request<'_>) -> bool {
        any_pattern(&self.tenants, request.tenant)
            && self.prompt_tokens.contains(request.prompt_tokens)
            && self.tags.holds(request)
    }
}

/// One step of a rule's `select`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectStep {
    /// Which candidates it looks at.
    pub backend: Backend,
    /// Destinations it is narrowed to, in the order to try them; `None` = all, in the pool's order.
    pub destinations: Option<Vec<u16>>,
    /// How it chooses among the survivors.
    pub ranking: Ranking,
    /// Its share of the split it stands in, beside the weights of its neighbours; `None`: it is a step of its own.
    pub weight: Option<u32>,
}

impl SelectStep {
    /// `{type: Local, minimize: PredictedTTFT}`, what a rule does when it says nothing else.
    #[must_use]
    pub fn local_by_ttft() -> Self {
        Self {
            backend: Backend::Local,
            destinations: None,
            ranking: Ranking::Minimize(Minimize::PredictedTtft),
            weight: None,
        }
    }

    /// Whether it could ever choose `destination` of kind `backend`.
    #[must_use]
    pub fn takes(&self, backend: Backend, destination: u16) -> bool {
        self.backend == backend && self.weight != Some(0) && self.position(destination).is_some()
    }

    /// Position of a destination in the order to try, or `None` when the step does not look at it.
    #[must_use]
    pub fn position(&self, destination: u16) -> Option<usize> {
        match &self.destinations {
            None => Some(usize::from(destination)),
            Some(listed) => listed.iter().position(|d| *d == destination),
        }
    }
}

/// How a select step chooses among survivors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranking {
    /// The first destination in order with a survivor.
    Listed,
    /// The least value of a signal.
    Minimize(Minimize),
}

/// What a select step may minimise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Minimize {
    /// Predicted time to first token.
    PredictedTtft,
    /// Predicted time to the end of the answer.
    PredictedLatency,
    /// Queued prompts, mean over the default window.
    QueuedPrompts,
    /// This balancer's own requests in flight.
    InFlight,
    /// Price of a million tokens.
    Cost,
}

impl Minimize {
    /// The signal it reads.
    #[must_use]
    pub fn signal(self) -> Signal {
        match self {
            Minimize::PredictedTtft => Signal::PredictedTtft,
            Minimize::PredictedLatency => Signal::PredictedLatency,
            Minimize::QueuedPrompts => Signal::QueuedPrompts { window_s: signal::WINDOW_S_DEFAULT },
            Minimize::InFlight => Signal::InFlight,
            Minimize::Cost => Signal::CostPerMillionTokens,
        }
    }

    /// The name used in policies.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Minimize::PredictedTtft => "PredictedTTFT",
            Minimize::PredictedLatency => "PredictedLatency",
            Minimize::QueuedPrompts => "QueuedPrompts",
            Minimize::InFlight => "InFlight",
            Minimize::Cost => "Cost",
        }
    }
}

/// Why rules do not make a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramError {
    /// More than [`RULES_MAX`] rules.
    TooManyRules(usize),
    /// A rule with more than [`EXCLUDES_MAX`] exclude entries.
    TooManyExcludes {
        /// The rule's name.
        rule: String,
        /// How many it has.
        count: usize,
    },
    /// More destinations or models than an index can name.
    TooManyTargets,
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramError::TooManyRules(count) => write!(f, "{count} rules; at most {RULES_MAX} may apply to one pool"),
            ProgramError::TooManyExcludes { rule, count } => {
                write!(f, "rule `{rule}` has {count} exclude entries; at most {EXCLUDES_MAX} are possible")
            }
            ProgramError::TooManyTargets => write!(f, "more destinations or models than {INDEX_MAX}"),
        }
    }
}

impl std::error::Error for ProgramError {}

/// The rules of one pool, compiled. Immutable and shared by every data thread.
#[derive(Clone, Debug)]
pub struct Program {
    destinations: Vec<PoolDestination>,
    rules: Vec<Rule>,
    /// For each rule the targets it considers.
    targets: Vec<TargetTable>,
    matcher: Matcher,
    tags: Vec<String>,
    signals: Vec<Signal>,
    windows_s: Vec<u16>,
    external: bool,
    shadow: bool,
    splits_conversations: bool,
}

/// Targets by the name asked for.
type TargetsByName = AHashMap<Box<str>, Box<[Target]>>;

/// The targets of one rule, by the name asked for. Shared between the rules that consider the same.
#[derive(Clone, Debug)]
struct TargetTable {
    by_name: Option<Arc<TargetsByName>>,
    /// For names not in the table, and for every name when there is no table.
    otherwise: Box<[Target]>,
}

impl Program {
    /// Compiles the rules of a pool, in the order they are tried; the rule [`DEFAULT_RULE`] is added at the end.
    ///
    /// # Errors
    /// When the rules or destinations exceed a bound.
    pub fn new(destinations: Vec<PoolDestination>, mut rules: Vec<Rule>) -> Result<Self, ProgramError> {
        if rules.len() >= RULES_MAX {
            return Err(ProgramError::TooManyRules(rules.len()));
        }
        if destinations.len() > INDEX_MAX || destinations.iter().any(|d| d.models.len() > INDEX_MAX) {
            return Err(ProgramError::TooManyTargets);
        }
        rules.push(Rule {
            name: DEFAULT_RULE.to_owned(),
            policy: String::new(),
            mode: Mode::Enforced,
            matches: Vec::new(),
            action: Action::Route(Route::default()),
        });
        let by_asked = TargetTable {
            by_name: Some(Arc::new(table_of(&destinations, &[Consider::default()]))),
            otherwise: Box::default(),
        };
        let mut targets = Vec::with_capacity(rules.len());
        for rule in &rules {
            targets.push(match &rule.action {
                Action::Deny(_) => TargetTable { by_name: None, otherwise: Box::default() },
                Action::Route(route) if route.exclude.len() > EXCLUDES_MAX => {
                    return Err(ProgramError::TooManyExcludes { rule: rule.name.clone(), count: route.exclude.len() });
                }
                Action::Route(route) if route.consider.is_empty() => by_asked.clone(),
                Action::Route(route) => targets_of(&destinations, route),
            });
        }
        let signals = signals_of(&rules);
        let windows: BTreeSet<u16> = signals.iter().filter_map(|s| s.window_s()).collect();
        let tags = tags_of(&rules);
        let names = destinations.iter().flat_map(|d| d.models.iter().flatten()).map(String::as_str);
        Ok(Self {
            matcher: Matcher::new(&rules, names, &tags),
            tags,
            windows_s: windows.into_iter().collect(),
            external: external_in_play(&destinations, &rules),
            shadow: rules.iter().any(|rule| rule.mode == Mode::Shadow),
            splits_conversations: splits_conversations(&rules),
            signals,
            destinations,
            rules,
            targets,
        })
    }

    /// The first enforced rule that holds for `request`: the one that decides.
    #[must_use]
    pub fn match_rule(&self, request: &Request<'_>) -> RuleIndex {
        let first = self.matcher.first(request, &self.tags, Mode::Enforced, self.rules.len());
        // The last rule holds for every request.
        RuleIndex(first.unwrap_or(u16::try_from(self.rules.len().saturating_sub(1)).unwrap_or(u16::MAX)))
    }

    /// The rule that would decide in place of `enforced` if those in shadow were in force: the first of them that stands
    /// before it and holds. At most one, so that a request costs at most one decision more.
    #[must_use]
    pub fn match_shadow(&self, request: &Request<'_>, enforced: RuleIndex) -> Option<RuleIndex> {
        if !self.shadow {
            return None;
        }
        self.matcher.first(request, &self.tags, Mode::Shadow, usize::from(enforced.0)).map(RuleIndex)
    }

    /// A rule by its place. A place that is not in this program names the default rule.
    #[must_use]
    pub fn rule(&self, index: RuleIndex) -> &Rule {
        let last = self.rules.len().saturating_sub(1);
        &self.rules[usize::from(index.0).min(last)]
    }

    /// Every rule in the order they are tried, the default rule last.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The pool's destinations, in its order.
    #[must_use]
    pub fn destinations(&self) -> &[PoolDestination] {
        &self.destinations
    }

    /// The (destination, model) pairs a rule considers for a request asking for `model_asked`,
    /// in the pool's order.
    #[must_use]
    pub fn targets(&self, index: RuleIndex, model_asked: &str) -> &[Target] {
        let last = self.targets.len().saturating_sub(1);
        let table = &self.targets[usize::from(index.0).min(last)];
        match &table.by_name {
            Some(by_name) => by_name.get(model_asked).unwrap_or(&table.otherwise),
            None => &table.otherwise,
        }
    }

    /// Whether a destination of the pool serves `name`.
    #[must_use]
    pub fn serves(&self, name: &str) -> bool {
        !self.targets(RuleIndex(u16::MAX), name).is_empty()
    }

    /// Every tag a rule looks at, sorted: only the classifiers that give one of these need to run.
    #[must_use]
    pub fn tags_referenced(&self) -> &[String] {
        &self.tags
    }

    /// Every signal a rule looks at, sorted.
    #[must_use]
    pub fn signals_referenced(&self) -> &[Signal] {
        &self.signals
    }

    /// Every window a referenced signal is averaged over, in seconds, ascending.
    #[must_use]
    pub fn windows_s(&self) -> &[u16] {
        &self.windows_s
    }

    /// Whether some split keeps conversations together, so that requests must tell theirs.
    #[must_use]
    pub fn splits_conversations(&self) -> bool {
        self.splits_conversations
    }

    /// Whether some rule is in shadow.
    #[must_use]
    pub fn has_shadow(&self) -> bool {
        self.shadow
    }

    /// Whether some rule may send a request to a provider, so that prompts must be scanned for personal data.
    #[must_use]
    pub fn external_in_play(&self) -> bool {
        self.external
    }
}

impl Rule {
    /// Whether the rule is for `request`.
    #[must_use]
    pub fn holds(&self, request: &Request<'_>) -> bool {
        self.matches.is_empty() || self.matches.iter().any(|m| m.holds(request))
    }
}

/// The targets of a route that says what it considers.
fn targets_of(destinations: &[PoolDestination], route: &Route) -> TargetTable {
    let (fixed, by_asked): (Vec<Consider>, Vec<Consider>) =
        route.consider.iter().cloned().partition(|c| !c.models.is_empty());
    let otherwise = collect_targets(destinations, &fixed, "");
    let by_name = if by_asked.is_empty() { None } else { Some(Arc::new(table_of(destinations, &route.consider))) };
    TargetTable { by_name, otherwise }
}

/// The targets of `consider` for every name the destinations serve.
fn table_of(destinations: &[PoolDestination], consider: &[Consider]) -> TargetsByName {
    let names: BTreeSet<&str> =
        destinations.iter().flat_map(|d| d.models.iter().flatten()).map(String::as_str).collect();
    names.into_iter().map(|name| (name.into(), collect_targets(destinations, consider, name))).collect()
}

fn collect_targets(destinations: &[PoolDestination], consider: &[Consider], asked: &str) -> Box<[Target]> {
    let mut targets = Vec::new();
    for (d, destination) in (0_u16..).zip(destinations) {
        for (m, names) in (0_u16..).zip(&destination.models) {
            let wanted = consider.iter().any(|entry| {
                entry.destinations.as_ref().is_none_or(|list| list.contains(&d))
                    && if entry.models.is_empty() {
                        names.iter().any(|n| n == asked)
                    } else {
                        names.iter().any(|n| entry.models.contains(n))
                    }
            });
            if wanted {
                targets.push(Target { destination: d, model: m });
            }
        }
    }
    targets.into_boxed_slice()
}

fn routes(rules: &[Rule]) -> impl Iterator<Item = &Route> {
    rules.iter().filter_map(|rule| match &rule.action {
        Action::Route(route) => Some(route),
        Action::Deny(_) => None,
    })
}

fn splits_conversations(rules: &[Rule]) -> bool {
    routes(rules)
        .any(|route| route.split_by == SplitBy::Conversation && route.select.iter().any(|s| s.weight.is_some()))
}

fn tags_of(rules: &[Rule]) -> Vec<String> {
    let matched = rules.iter().flat_map(|r| &r.matches).map(|m| &m.tags);
    let scoped = routes(rules).flat_map(|r| &r.exclude).map(|e| &e.applies_to.tags);
    let tags: BTreeSet<&str> = matched.chain(scoped).flat_map(TagCondition::tags).collect();
    tags.into_iter().map(str::to_owned).collect()
}

fn signals_of(rules: &[Rule]) -> Vec<Signal> {
    let mut signals = BTreeSet::new();
    for route in routes(rules) {
        for condition in route.exclude.iter().flat_map(|e| &e.conditions) {
            match condition {
                DropCondition::Number { signal, .. } => _ = signals.insert(*signal),
                DropCondition::ContextBelowPrompt => _ = signals.insert(Signal::ContextWindow),
                DropCondition::Backend(_) | DropCondition::Destinations(_) => {}
            }
        }
        for step in &route.select {
            match step.ranking {
                Ranking::Minimize(minimize) => _ = signals.insert(minimize.signal()),
                Ranking::Listed => {}
            }
        }
    }
    signals.into_iter().collect()
}

fn external_in_play(destinations: &[PoolDestination], rules: &[Rule]) -> bool {
    routes(rules).flat_map(|r| &r.select).any(|step| {
        step.backend == Backend::External
            && (0_u16..).zip(destinations).any(|(d, destination)| {
                destination.backend == Backend::External && !destination.models.is_empty() && step.position(d).is_some()
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> Vec<PoolDestination> {
        let names = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        vec![
            PoolDestination {
                name: "gemma".into(),
                backend: Backend::Local,
                models: vec![names(&["google/gemma", "gemma"])],
            },
            PoolDestination {
                name: "qwen".into(),
                backend: Backend::Local,
                models: vec![names(&["Qwen/Qwen", "qwen"]), names(&["sql-lora"])],
            },
            PoolDestination { name: "cloud".into(), backend: Backend::External, models: vec![names(&["qwen"])] },
        ]
    }

    fn route(consider: Vec<Consider>) -> Vec<Rule> {
        let route = Route { consider, ..Route::default() };
        vec![Rule {
            name: "r".into(),
            policy: "p".into(),
            mode: Mode::Enforced,
            matches: vec![],
            action: Action::Route(route),
        }]
    }

    fn target(destination: u16, model: u16) -> Target {
        Target { destination, model }
    }

    #[test]
    fn without_consider_every_destination_serving_the_name_asked_for_is_a_target() {
        let program = Program::new(fleet(), vec![]).expect("compiles");
        assert_eq!(program.targets(RuleIndex(0), "qwen"), [target(1, 0), target(2, 0)]);
        assert_eq!(program.targets(RuleIndex(0), "Qwen/Qwen"), [target(1, 0)]);
        assert_eq!(program.targets(RuleIndex(0), "llama"), []);
        assert!(program.serves("sql-lora") && !program.serves("llama"));
    }

    #[test]
    fn named_models_replace_the_name_asked_for() {
        let consider = Consider { models: vec!["gemma".into()], destinations: None };
        let program = Program::new(fleet(), route(vec![consider])).expect("compiles");
        assert_eq!(program.targets(RuleIndex(0), "qwen"), [target(0, 0)]);
        assert_eq!(program.targets(RuleIndex(0), "anything"), [target(0, 0)]);
    }

    #[test]
    fn entries_are_united_and_narrowed_each_by_its_own_destinations() {
        let consider = vec![
            Consider { models: vec![], destinations: Some(vec![2]) },
            Consider { models: vec!["gemma".into(), "qwen".into()], destinations: Some(vec![0]) },
        ];
        let program = Program::new(fleet(), route(consider)).expect("compiles");
        assert_eq!(program.targets(RuleIndex(0), "qwen"), [target(0, 0), target(2, 0)]);
        assert_eq!(program.targets(RuleIndex(0), "llama"), [target(0, 0)]);
    }

    #[test]
    fn too_many_exclude_entries_are_refused() {
        let exclude = Exclude { name: "e".into(), applies_to: ExcludeScope::default(), conditions: Vec::new() };
        let action = Action::Route(Route { exclude: vec![exclude; EXCLUDES_MAX + 1], ..Route::default() });
        let rule = Rule { name: "r".into(), policy: "p".into(), mode: Mode::Enforced, matches: vec![], action };
        let error = Program::new(fleet(), vec![rule]).expect_err("over the bound");
        assert_eq!(error, ProgramError::TooManyExcludes { rule: "r".into(), count: EXCLUDES_MAX + 1 });
    }

    #[test]
    fn external_is_in_play_only_when_a_step_names_it() {
        assert!(!Program::new(fleet(), vec![]).expect("compiles").external_in_play());
        let step =
            SelectStep { backend: Backend::External, destinations: None, ranking: Ranking::Listed, weight: None };
        let action = Action::Route(Route { select: vec![step], ..Route::default() });
        let rule = Rule { name: "r".into(), policy: "p".into(), mode: Mode::Enforced, matches: vec![], action };
        assert!(Program::new(fleet(), vec![rule]).expect("compiles").external_in_play());
    }
}
