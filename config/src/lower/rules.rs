//! Policies: checked once on their own, then bound to each pool they are attached to.

use std::collections::BTreeMap;

use crds::policy as wire;
use crds::value::{DurationCondition, NumberCondition, RatioCondition};
use policy::rule::{Exclude, ExcludeScope};
use policy::signal::WINDOW_S_MAX;
use policy::{
    Action, Api, Backend, Code, Consider, Deny, Diagnostic, DropCondition, HeaderCondition, HeaderTest, Match,
    Minimize, Mode, NumberRange, Parameter, Pattern, PoolDestination, Queue, Ranking, Rewrite, Route, Rule, SelectStep,
    Signal, SplitBy, Streaming, TagCondition, UpstreamHeader,
};

use super::Checked;
use crate::check::nearest;
use crate::limits::QUEUE_WAIT;
use crate::node::Path;
use crate::snapshot::{DestinationKind, Snapshot};

/// A policy document.
pub(super) struct Policy<'d> {
    pub(super) document: &'d Checked,
    pub(super) spec: &'d wire::InferencePolicySpec,
}

/// A reference to nothing, before it is known where it stands.
pub(super) struct Unresolved {
    message: String,
    suggestion: Option<String>,
}

impl Unresolved {
    pub(super) fn about(self, c: &Checked, path: &Path) -> Diagnostic {
        c.finding(Code::UnknownReference, path, self.message).suggest(self.suggestion)
    }
}

/// Finds the destination a reference means.
pub(super) fn resolve(
    snapshot: &Snapshot,
    namespace: &str,
    reference: &wire::DestinationRef,
) -> Result<DestinationKind, Unresolved> {
    let name = &reference.name;
    let known = destinations_of(snapshot, namespace, Some(backend_of(reference.kind)));
    known.get(name.as_str()).copied().ok_or_else(|| {
        let kind = match reference.kind {
            wire::DestinationKind::InferenceWorkerSet => "InferenceWorkerSet",
            wire::DestinationKind::InferenceProvider => "InferenceProvider",
        };
        let message = format!("there is no {kind} `{name}` in namespace `{namespace}`");
        Unresolved { message, suggestion: nearest(name, known.keys().copied()) }
    })
}

/// Every destination of a namespace, by name. Where a worker set and a provider share a name, the worker set.
fn destinations_of<'s>(
    snapshot: &'s Snapshot,
    namespace: &str,
    backend: Option<Backend>,
) -> BTreeMap<&'s str, DestinationKind> {
    let mut all = BTreeMap::new();
    if backend != Some(Backend::Local) {
        let list = snapshot.providers.iter().enumerate().filter(|(_, p)| p.id.namespace == namespace);
        all.extend(list.map(|(i, p)| (p.id.name.as_str(), DestinationKind::Provider(i))));
    }
    if backend != Some(Backend::External) {
        let list = snapshot.worker_sets.iter().enumerate().filter(|(_, w)| w.id.namespace == namespace);
        all.extend(list.map(|(i, w)| (w.id.name.as_str(), DestinationKind::WorkerSet(i))));
    }
    all
}

fn backend_of(kind: wire::DestinationKind) -> Backend {
    match kind {
        wire::DestinationKind::InferenceWorkerSet => Backend::Local,
        wire::DestinationKind::InferenceProvider => Backend::External,
    }
}

pub(super) fn backend(written: wire::Backend) -> Backend {
    match written {
        wire::Backend::Local => Backend::Local,
        wire::Backend::External => Backend::External,
    }
}

/// The path of a rule.
pub(super) fn rule_path(index: usize) -> Path {
    Path::spec().key("rules").index(index)
}

impl<'d> Policy<'d> {
    pub(super) fn new(document: &'d Checked, spec: &'d wire::InferencePolicySpec) -> Self {
        Self { document, spec }
    }

    /// What is wrong with the policy wherever it is attached.
    pub(super) fn check(&self, snapshot: &Snapshot, findings: &mut Vec<Diagnostic>) {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for (i, rule) in self.spec.rules.iter().enumerate() {
            let path = rule_path(i);
            if let Some(first) = names.insert(&rule.name, i) {
                let message = format!("the rule `{}` is here twice; the first is spec.rules[{first}]", rule.name);
                findings.push(self.document.finding(Code::DuplicateName, &path.key("name"), message));
            }
            if rule.name == policy::DEFAULT_RULE {
                let message = "`default` is the name of the rule that holds when no other does";
                findings.push(self.document.finding(Code::ReservedName, &path.key("name"), message));
            }
            for (j, entry) in rule.matches.iter().enumerate() {
                self.check_match(&path.key("matches").index(j), entry, findings);
            }
            if let Some(route) = &rule.route {
                self.check_route(&path.key("route"), route, snapshot, findings);
            }
        }
    }

    fn check_match(&self, path: &Path, entry: &wire::Match, findings: &mut Vec<Diagnostic>) {
        self.one_or_list(path, "model", entry.model.as_ref(), &entry.models, findings);
        self.one_or_list(path, "tenant", entry.tenant.as_ref(), &entry.tenants, findings);
        for (i, header) in entry.headers.iter().enumerate() {
            if let Some(Err(reason)) = header.regex.as_deref().map(HeaderTest::regex) {
                let path = path.key("headers").index(i).key("regex");
                let message = format!("the expression does not compile: {reason}");
                findings.push(self.document.finding(Code::BadRegex, &path, message));
            }
        }
    }

    /// `model` and `models` are two ways to say one thing.
    fn one_or_list(
        &self,
        path: &Path,
        field: &str,
        one: Option<&String>,
        list: &[String],
        findings: &mut Vec<Diagnostic>,
    ) {
        if one.is_some() && !list.is_empty() {
            let message = format!("`{field}` and `{field}s` are both given; put every value in `{field}s`");
            findings.push(self.document.finding(Code::ExactlyOneOf, &path.key(field), message));
        }
    }

    fn check_route(&self, path: &Path, route: &wire::Route, snapshot: &Snapshot, findings: &mut Vec<Diagnostic>) {
        let namespace = &self.document.id.namespace;
        for (i, entry) in route.consider.iter().flatten().enumerate() {
            let path = path.key("consider").index(i).key("destinations");
            for (j, reference) in entry.destinations.iter().flatten().enumerate() {
                if let Err(finding) = resolve(snapshot, namespace, reference) {
                    findings.push(finding.about(self.document, &path.index(j).key("name")));
                }
            }
        }
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for (i, entry) in route.exclude.iter().enumerate() {
            let path = path.key("exclude").index(i);
            if let Some(first) = names.insert(&entry.name, i) {
                let message = format!("the entry `{}` is here twice; the first is number {first}", entry.name);
                findings.push(self.document.finding(Code::DuplicateName, &path.key("name"), message));
            }
            self.check_drop(&path.key("drop"), &entry.drop, snapshot, findings);
        }
        for (i, step) in route.select.iter().flatten().enumerate() {
            let path = path.key("select").index(i).key("names");
            self.check_names(&path, step.names.as_ref(), Some(backend(step.backend)), snapshot, findings);
        }
        if let Some(queue) = &route.queue {
            let (low, high) = QUEUE_WAIT;
            if queue.max_wait.0 < low || queue.max_wait.0 > high {
                let message = format!("the wait {} is not between {low:?} and {high:?}", queue.max_wait);
                let path = path.key("queue").key("maxWait");
                findings.push(self.document.finding(Code::OutOfRange, &path, message));
            }
        }
        for rewrite in rewrites(route) {
            if let (Some(least), Some(most)) = (rewrite.at_least, rewrite.at_most)
                && least > most
            {
                let path = path.key("rewrite").key(rewrite.parameter.as_str()).key("atLeast");
                let message = format!("`atLeast` {least} is above `atMost` {most}");
                findings.push(self.document.finding(Code::OutOfRange, &path, message));
            }
        }
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        for (i, header) in route.upstream_headers.iter().enumerate() {
            let path = path.key("upstreamHeaders").index(i).key("name");
            let name = header.name.to_ascii_lowercase();
            if wire::RESERVED_HEADERS.contains(&name.as_str()) {
                let message = format!("the header `{name}` is one that the gateway writes or keeps to itself");
                findings.push(self.document.finding(Code::ReservedHeader, &path, message));
            }
            if let Some(first) = names.insert(name, i) {
                let message = format!("the header `{}` is here twice; the first is number {first}", header.name);
                findings.push(self.document.finding(Code::DuplicateName, &path, message));
            }
        }
    }

    fn check_drop(&self, path: &Path, drop: &wire::Drop, snapshot: &Snapshot, findings: &mut Vec<Diagnostic>) {
        self.one_or_list(path, "tenant", drop.tenant.as_ref(), &drop.tenants, findings);
        if let Some(condition) = &drop.backend {
            let path = path.key("backend").key("names");
            self.check_names(&path, condition.names.as_ref(), condition.backend.map(backend), snapshot, findings);
        }
        let windows = [
            ("queuedPrompts", drop.queued_prompts.map(|n| n.window)),
            ("errorRate", drop.error_rate.map(|n| n.window)),
        ];
        for (field, window) in windows {
            if let Some(window) = window.filter(|w| window_s(*w).is_none()) {
                let path = path.key(field).key("window");
                let message =
                    format!("the window {window} is not a whole number of seconds from 1s to {WINDOW_S_MAX}s");
                findings.push(self.document.finding(Code::OutOfRange, &path, message));
            }
        }
    }

    fn check_names(
        &self,
        path: &Path,
        names: Option<&Vec<String>>,
        backend: Option<Backend>,
        snapshot: &Snapshot,
        findings: &mut Vec<Diagnostic>,
    ) {
        let known = destinations_of(snapshot, &self.document.id.namespace, backend);
        for (i, name) in names.into_iter().flatten().enumerate() {
            if !known.contains_key(name.as_str()) {
                let namespace = &self.document.id.namespace;
                let kind = match backend {
                    Some(Backend::Local) => "InferenceWorkerSet",
                    Some(Backend::External) => "InferenceProvider",
                    None => "InferenceWorkerSet or InferenceProvider",
                };
                let message = format!("there is no {kind} `{name}` in namespace `{namespace}`");
                let suggestion = nearest(name, known.keys().copied());
                let finding = self.document.finding(Code::UnknownReference, &path.index(i), message);
                findings.push(finding.suggest(suggestion));
            }
        }
    }

    /// The rules as they work in one pool. Errors have been reported by [`Policy::check`]; what is wrong is left out.
    pub(super) fn bind(&self, pool: &[PoolDestination]) -> Vec<Rule> {
        self.spec.rules.iter().map(|rule| self.bind_rule(rule, pool)).collect()
    }

    fn bind_rule(&self, rule: &wire::Rule, pool: &[PoolDestination]) -> Rule {
        let action = match &rule.deny {
            Some(deny) => {
                Action::Deny(Deny { status: deny.status, code: deny.code.clone(), message: deny.message.clone() })
            }
            None => Action::Route(rule.route.as_ref().map(|r| bind_route(r, pool)).unwrap_or_default()),
        };
        Rule {
            name: rule.name.clone(),
            policy: self.document.id.name.clone(),
            mode: match rule.mode {
                wire::Mode::Enforced => Mode::Enforced,
                wire::Mode::Shadow => Mode::Shadow,
            },
            matches: rule.matches.iter().map(bind_match).collect(),
            action,
        }
    }
}

/// A window in whole seconds, when it is within the bounds.
fn window_s(window: crds::value::Duration) -> Option<u16> {
    let seconds = u16::try_from(window.0.as_secs()).ok()?;
    let whole = window.0.subsec_nanos() == 0;
    (whole && (1..=WINDOW_S_MAX).contains(&seconds)).then_some(seconds)
}

fn bind_match(entry: &wire::Match) -> Match {
    Match {
        models: patterns(entry.model.as_ref(), &entry.models),
        tenants: patterns(entry.tenant.as_ref(), &entry.tenants),
        tags: entry.tags.clone().map(tags).unwrap_or_default(),
        headers: entry.headers.iter().filter_map(bind_header).collect(),
        apis: entry.api.iter().copied().map(api).collect(),
        stream: entry.stream.map(streaming),
        prompt_tokens: entry.prompt_tokens.map(numbers).unwrap_or_default(),
    }
}

fn patterns(one: Option<&String>, list: &[String]) -> Vec<Pattern> {
    one.into_iter().chain(list).map(|text| Pattern::new(text)).collect()
}

pub(super) fn tags(written: wire::Tags) -> TagCondition {
    let sets = written.into_sets();
    TagCondition { any: sets.any, all: sets.all, none: sets.none }
}

fn bind_header(header: &wire::HeaderMatch) -> Option<HeaderCondition> {
    let test = match (&header.exact, &header.prefix, &header.regex, header.present) {
        (Some(text), _, _, _) => HeaderTest::Exact(text.clone()),
        (None, Some(text), _, _) => HeaderTest::Prefix(text.clone()),
        (None, None, Some(text), _) => HeaderTest::regex(text).ok()?,
        (None, None, None, Some(true)) => HeaderTest::Present,
        (None, None, None, Some(false)) => HeaderTest::Absent,
        (None, None, None, None) => return None,
    };
    Some(HeaderCondition { name: header.name.to_ascii_lowercase(), test })
}

/// The API a document names.
#[must_use]
pub(crate) fn api(written: wire::Api) -> Api {
    match written {
        wire::Api::ChatCompletions => Api::ChatCompletions,
        wire::Api::Completions => Api::Completions,
        wire::Api::Embeddings => Api::Embeddings,
        wire::Api::Responses => Api::Responses,
        wire::Api::Messages => Api::Messages,
        wire::Api::Rerank => Api::Rerank,
        wire::Api::Score => Api::Score,
        wire::Api::Tokenize => Api::Tokenize,
        wire::Api::Detokenize => Api::Detokenize,
        wire::Api::Transcriptions => Api::Transcriptions,
        wire::Api::Translations => Api::Translations,
        wire::Api::Other => Api::Other,
    }
}

/// Streaming as a document writes it.
#[must_use]
pub(crate) fn streaming(written: bool) -> Streaming {
    if written { Streaming::Yes } else { Streaming::No }
}

fn numbers(n: NumberCondition) -> NumberRange {
    NumberRange { greater_than: n.greater_than, at_least: n.at_least, less_than: n.less_than, at_most: n.at_most }
}

fn ratios(n: RatioCondition) -> NumberRange {
    NumberRange { greater_than: n.greater_than, at_least: n.at_least, less_than: n.less_than, at_most: n.at_most }
}

fn durations(n: DurationCondition) -> NumberRange {
    let us = |d: Option<crds::value::Duration>| d.map(crds::value::Duration::as_us);
    NumberRange {
        greater_than: us(n.greater_than),
        at_least: us(n.at_least),
        less_than: us(n.less_than),
        at_most: us(n.at_most),
    }
}

fn bind_route(route: &wire::Route, pool: &[PoolDestination]) -> Route {
    let consider = route.consider.iter().flatten().map(|entry| Consider {
        models: entry.models.as_ref().map(|m| m.names.clone()).unwrap_or_default(),
        destinations: entry
            .destinations
            .as_ref()
            .map(|list| list.iter().flat_map(|r| positions(pool, &r.name, Some(backend_of(r.kind)))).collect()),
    });
    let select = match &route.select {
        None => Route::default().select,
        Some(steps) => steps.iter().map(|s| bind_step(s, pool)).collect(),
    };
    Route {
        consider: consider.collect(),
        exclude: route.exclude.iter().map(|e| bind_exclude(e, pool)).collect(),
        select,
        queue: route.queue.map(|queue| Queue { wait_max: queue.max_wait.0, length_max: queue.max_length }),
        split_by: match route.split_by {
            wire::SplitBy::Conversation => SplitBy::Conversation,
            wire::SplitBy::Tenant => SplitBy::Tenant,
            wire::SplitBy::Request => SplitBy::Request,
        },
        rewrite: rewrites(route),
        headers: route.upstream_headers.iter().map(bind_upstream_header).collect(),
    }
}

fn bind_upstream_header(header: &wire::UpstreamHeader) -> UpstreamHeader {
    UpstreamHeader { name: header.name.to_ascii_lowercase(), value: header.value.clone() }
}

fn rewrites(route: &wire::Route) -> Vec<Rewrite> {
    let Some(written) = &route.rewrite else { return Vec::new() };
    let number = |n: wire::RewriteNumber| (n.set, n.default, n.at_least, n.at_most);
    let ratio = |n: wire::RewriteRatio| (n.set, n.default, n.at_least, n.at_most);
    let integer = |n: wire::RewriteInteger| {
        (n.set.map(f64::from), n.default.map(f64::from), n.at_least.map(f64::from), n.at_most.map(f64::from))
    };
    let all = [
        (Parameter::Temperature, written.temperature.map(number)),
        (Parameter::TopP, written.top_p.map(ratio)),
        (Parameter::TopK, written.top_k.map(integer)),
        (Parameter::MinP, written.min_p.map(ratio)),
        (Parameter::PresencePenalty, written.presence_penalty.map(number)),
        (Parameter::FrequencyPenalty, written.frequency_penalty.map(number)),
        (Parameter::RepetitionPenalty, written.repetition_penalty.map(number)),
        (Parameter::MaxTokens, written.max_tokens.map(integer)),
        (Parameter::Seed, written.seed.map(integer)),
    ];
    let given = all.into_iter().filter_map(|(parameter, values)| Some((parameter, values?)));
    given
        .map(|(parameter, (set, default, at_least, at_most))| Rewrite { parameter, set, default, at_least, at_most })
        .collect()
}

/// Indices of the destinations of a name in a pool.
fn positions(pool: &[PoolDestination], name: &str, backend: Option<Backend>) -> Vec<u16> {
    (0_u16..)
        .zip(pool)
        .filter(|(_, d)| d.name == name && backend.is_none_or(|b| b == d.backend))
        .map(|(i, _)| i)
        .collect()
}

fn bind_step(step: &wire::SelectStep, pool: &[PoolDestination]) -> SelectStep {
    let backend = backend(step.backend);
    let minimize = step.minimize.map(|m| match m {
        wire::Minimize::PredictedTtft => Minimize::PredictedTtft,
        wire::Minimize::PredictedLatency => Minimize::PredictedLatency,
        wire::Minimize::QueuedPrompts => Minimize::QueuedPrompts,
        wire::Minimize::InFlight => Minimize::InFlight,
        wire::Minimize::Cost => Minimize::Cost,
    });
    let ranking = match (minimize, backend) {
        (Some(minimize), _) => Ranking::Minimize(minimize),
        (None, Backend::Local) => Ranking::Minimize(Minimize::PredictedTtft),
        (None, Backend::External) => Ranking::Listed,
    };
    let destinations =
        step.names.as_ref().map(|names| names.iter().flat_map(|n| positions(pool, n, Some(backend))).collect());
    SelectStep { backend, destinations, ranking, weight: step.weight }
}

fn bind_exclude(entry: &wire::Exclude, pool: &[PoolDestination]) -> Exclude {
    let drop = &entry.drop;
    let mut conditions = Vec::new();
    if let Some(condition) = &drop.backend {
        conditions.extend(condition.backend.map(|b| DropCondition::Backend(backend(b))));
        let kind = condition.backend.map(backend);
        conditions.extend(
            condition.names.as_ref().map(|names| {
                DropCondition::Destinations(names.iter().flat_map(|n| positions(pool, n, kind)).collect())
            }),
        );
    }
    let windowed = |w: crds::value::Duration| window_s(w).unwrap_or(WINDOW_S_MAX);
    // In the order of what they cost to ask: counters first, predictions last.
    let tests = [
        (Signal::InFlight, drop.in_flight.map(numbers)),
        (Signal::RunningPrompts, drop.running_prompts.map(numbers)),
        (Signal::KvCacheUsage, drop.kv_cache_usage.map(ratios)),
        (Signal::CostPerMillionTokens, drop.cost_per_million_tokens.map(numbers)),
        (
            Signal::QueuedPrompts { window_s: drop.queued_prompts.map_or(WINDOW_S_MAX, |n| windowed(n.window)) },
            drop.queued_prompts.map(|n| NumberRange {
                greater_than: n.greater_than,
                at_least: n.at_least,
                less_than: n.less_than,
                at_most: n.at_most,
            }),
        ),
        (
            Signal::ErrorRate { window_s: drop.error_rate.map_or(WINDOW_S_MAX, |n| windowed(n.window)) },
            drop.error_rate.map(|n| NumberRange {
                greater_than: n.greater_than,
                at_least: n.at_least,
                less_than: n.less_than,
                at_most: n.at_most,
            }),
        ),
        (Signal::PrefixOverlap, drop.prefix_overlap.map(ratios)),
        (Signal::PredictedTtft, drop.predicted_ttft.map(durations)),
        (Signal::PredictedLatency, drop.predicted_latency.map(durations)),
    ];
    conditions.extend(
        tests.into_iter().filter_map(|(signal, range)| range.map(|range| DropCondition::Number { signal, range })),
    );
    conditions.extend(drop.context_window.map(|_| DropCondition::ContextBelowPrompt));
    Exclude {
        name: entry.name.clone(),
        applies_to: ExcludeScope {
            tags: drop.tags.clone().map(tags).unwrap_or_default(),
            tenants: patterns(drop.tenant.as_ref(), &drop.tenants),
            prompt_tokens: drop.prompt_tokens.map(numbers).unwrap_or_default(),
        },
        conditions,
    }
}
