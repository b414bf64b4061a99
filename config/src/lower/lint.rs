//! Warnings: what is in force and probably not meant.
//!
//! A rule is judged by every pool its policy is attached to: it is worth a warning when it can do
//! nothing in any of them, and a leak when it can leak in one.

use std::collections::{BTreeMap, BTreeSet};

use crds::policy as wire;
use policy::reach::{Leak, Unreachable, is_impossible, personal_data_leaks, step_targets, unreachable};
use policy::{Action, Backend, Code, Diagnostic, DropCondition, Signal, TagCondition};

use super::rules::{Policy, backend, rule_path};
use crate::check::nearest;
use crate::node::Path;
use crate::snapshot::{Classifier, ClassifierKind, DestinationKind, Pool, RateLimits, ResourceId, Snapshot};

/// Who calls where there are no tenants.
const ANONYMOUS: &str = "anonymous";

/// Tags given by the shape of a request, without a classifier being configured.
const SHAPE_TAGS: [&str; 10] = [
    "code",
    "math",
    "tools",
    "image",
    "audio",
    "json-schema",
    "multi-turn",
    "long-context",
    "injection-suspect",
    "factual-question",
];

pub(super) fn warn(snapshot: &Snapshot, policies: &BTreeMap<&ResourceId, Policy<'_>>, findings: &mut Vec<Diagnostic>) {
    let analysed: Vec<Analysed<'_>> = snapshot.pools.iter().map(Analysed::new).collect();
    for (id, policy) in policies {
        let pools: Vec<Attached<'_>> = analysed
            .iter()
            .filter(|a| a.pool.id.namespace == id.namespace)
            .filter_map(|a| Attached::new(a, &id.name))
            .collect();
        if pools.is_empty() {
            let path = Path::default().key("metadata").key("name");
            let message = format!("no pool refers to the policy `{}`", id.name);
            findings.push(policy.document.finding(Code::PolicyNotAttached, &path, message));
            continue;
        }
        let known = Tags::of(snapshot, Some(&id.namespace));
        for (i, rule) in policy.spec.rules.iter().enumerate() {
            let rule = RuleLint { policy, pools: &pools, index: i, path: rule_path(i), rule };
            rule.reach(findings);
            rule.models(findings);
            rule.tenants(snapshot, findings);
            rule.tags(&known, findings);
            if let Some(route) = &rule.rule.route {
                rule.excludes(route, findings);
                rule.steps(route, &known, findings);
                rule.idle(route, snapshot, findings);
            }
        }
    }
}

/// A pool and what its program can never do: found once, as it looks at every pair of rules.
struct Analysed<'s> {
    pool: &'s Pool,
    unreachable: Vec<Unreachable>,
    leaks: Vec<Leak>,
    names: BTreeSet<&'s str>,
}

impl<'s> Analysed<'s> {
    fn new(pool: &'s Pool) -> Self {
        Self {
            pool,
            unreachable: unreachable(&pool.program),
            leaks: personal_data_leaks(&pool.program),
            names: pool.names(),
        }
    }
}

/// A pool and where the policy's rules begin in its program.
struct Attached<'s> {
    analysed: &'s Analysed<'s>,
    pool: &'s Pool,
    first_rule: usize,
}

impl<'s> Attached<'s> {
    fn new(analysed: &'s Analysed<'s>, policy: &str) -> Option<Self> {
        let pool = analysed.pool;
        let first_rule = pool.program.rules().iter().position(|r| r.policy == policy)?;
        Some(Self { analysed, pool, first_rule })
    }
}

struct RuleLint<'d> {
    policy: &'d Policy<'d>,
    pools: &'d [Attached<'d>],
    index: usize,
    path: Path,
    rule: &'d wire::Rule,
}

impl RuleLint<'_> {
    fn push(&self, code: Code, path: &Path, message: String, findings: &mut Vec<Diagnostic>) {
        findings.push(self.policy.document.finding(code, path, message));
    }

    fn reach(&self, findings: &mut Vec<Diagnostic>) {
        let mut taken_by = None;
        for attached in self.pools {
            let at = attached.first_rule + self.index;
            match attached.analysed.unreachable.iter().find(|u| u.rule == at) {
                Some(found) => taken_by = attached.pool.program.rules().get(found.taken_by),
                None => return,
            }
        }
        if let Some(earlier) = taken_by {
            let message = format!(
                "no request reaches the rule `{}`: the rule `{}/{}` takes them",
                self.rule.name, earlier.policy, earlier.name
            );
            self.push(Code::UnreachableRule, &self.path.key("name"), message, findings);
        }
    }

    /// Names no attached pool serves.
    fn models(&self, findings: &mut Vec<Diagnostic>) {
        let mut named: Vec<(Path, &String)> = Vec::new();
        for (i, entry) in self.rule.matches.iter().enumerate() {
            let path = self.path.key("matches").index(i);
            named.extend(entry.model.iter().map(|name| (path.key("model"), name)));
            named.extend(entry.models.iter().enumerate().map(|(j, name)| (path.key("models").index(j), name)));
        }
        let consider = self.rule.route.iter().flat_map(|r| r.consider.iter().flatten());
        for (i, entry) in consider.enumerate() {
            let path = self.path.key("route").key("consider").index(i).key("models").key("names");
            let names = entry.models.iter().flat_map(|m| &m.names).enumerate();
            named.extend(names.map(|(j, name)| (path.index(j), name)));
        }
        for (path, name) in named {
            let pattern = policy::Pattern::new(name);
            let served = self.pools.iter().flat_map(|a| a.analysed.names.iter().copied()).any(|n| pattern.matches(n));
            if !served {
                let nearest = nearest(name, self.pools.iter().flat_map(|a| a.analysed.names.iter().copied()));
                let message = format!("no destination of the policy's pools serves a model `{name}`");
                findings.push(self.policy.document.finding(Code::ModelNotServed, &path, message).suggest(nearest));
            }
        }
    }

    /// Callers there are none of: a rule that is to refuse somebody and refuses nobody is worse than none.
    fn tenants(&self, snapshot: &Snapshot, findings: &mut Vec<Diagnostic>) {
        let configured = snapshot.tenants.iter().map(|t| t.id.name.as_str());
        let known: Vec<&str> =
            configured.chain([ANONYMOUS].into_iter().filter(|_| snapshot.tenants.is_empty())).collect();
        let mut named: Vec<(Path, &String)> = Vec::new();
        for (i, entry) in self.rule.matches.iter().enumerate() {
            let path = self.path.key("matches").index(i);
            named.extend(entry.tenant.iter().map(|name| (path.key("tenant"), name)));
            named.extend(entry.tenants.iter().enumerate().map(|(j, name)| (path.key("tenants").index(j), name)));
        }
        for (i, entry) in self.rule.route.iter().flat_map(|r| &r.exclude).enumerate() {
            let path = self.path.key("route").key("exclude").index(i).key("drop");
            named.extend(entry.drop.tenant.iter().map(|name| (path.key("tenant"), name)));
            named.extend(entry.drop.tenants.iter().enumerate().map(|(j, name)| (path.key("tenants").index(j), name)));
        }
        for (path, name) in named {
            let pattern = policy::Pattern::new(name);
            if !known.iter().any(|tenant| pattern.matches(tenant)) {
                let message = match snapshot.tenants.is_empty() {
                    true => {
                        format!("there is no InferenceTenant `{name}`: with none at all every caller is `{ANONYMOUS}`")
                    }
                    false => format!("there is no InferenceTenant `{name}`"),
                };
                let finding = self.policy.document.finding(Code::UnknownTenant, &path, message);
                findings.push(finding.suggest(nearest(name, known.iter().copied())));
            }
        }
    }

    /// Tags nothing gives.
    fn tags(&self, known: &Tags, findings: &mut Vec<Diagnostic>) {
        let mut named: Vec<(Path, TagCondition)> = Vec::new();
        for (i, entry) in self.rule.matches.iter().enumerate() {
            let path = self.path.key("matches").index(i).key("tags");
            named.extend(entry.tags.clone().map(|tags| (path, super::rules::tags(tags))));
        }
        for (i, entry) in self.rule.route.iter().flat_map(|r| &r.exclude).enumerate() {
            let path = self.path.key("route").key("exclude").index(i).key("drop").key("tags");
            named.extend(entry.drop.tags.clone().map(|tags| (path, super::rules::tags(tags))));
        }
        for (path, condition) in named {
            for tag in condition.tags().filter(|tag| !known.gives(tag)) {
                let message = format!("no classifier of the namespace gives the tag `{tag}`");
                let nearest = nearest(tag, known.names.iter().map(String::as_str));
                findings.push(self.policy.document.finding(Code::TagNeverSet, &path, message).suggest(nearest));
            }
        }
    }

    /// Exclude entries that can never hold for a candidate.
    fn excludes(&self, route: &wire::Route, findings: &mut Vec<Diagnostic>) {
        for (i, entry) in route.exclude.iter().enumerate() {
            let path = self.path.key("route").key("exclude").index(i);
            let reasons: Vec<String> = self
                .pools
                .iter()
                .filter_map(|attached| {
                    let rule = attached.pool.program.rules().get(attached.first_rule + self.index)?;
                    match &rule.action {
                        Action::Route(route) => route.exclude.get(i).and_then(|e| never_drops(&e.conditions)),
                        Action::Deny(_) => None,
                    }
                })
                .collect();
            if let Some(reason) = reasons.first().filter(|_| reasons.len() == self.pools.len()) {
                let message = format!("the entry `{}` can never drop a candidate: {reason}", entry.name);
                self.push(Code::ExcludeNeverHolds, &path.key("drop"), message, findings);
            }
        }
    }

    /// Steps without candidates, and External steps personal data can reach.
    fn steps(&self, route: &wire::Route, known: &Tags, findings: &mut Vec<Diagnostic>) {
        for (i, step) in route.select.iter().flatten().enumerate() {
            let path = self.path.key("route").key("select").index(i);
            let empty = self.pools.iter().all(|attached| {
                let program = &attached.pool.program;
                match program.rules().get(attached.first_rule + self.index).map(|r| &r.action) {
                    Some(Action::Route(bound)) => {
                        bound.select.get(i).is_none_or(|s| step_targets(program, bound, s).is_empty())
                    }
                    Some(Action::Deny(_)) | None => true,
                }
            });
            // A weight of 0 is how a share is taken away for a while.
            if empty && step.weight != Some(0) {
                let kind = backend(step.backend).as_str();
                let message = format!("no {kind} destination of the policy's pools is considered by the rule");
                self.push(Code::SelectStepEmpty, &path, message, findings);
            }
            // Without a classifier for personal data no prompt is ever tagged `pii`.
            if known.gives("pii") {
                findings.extend(self.leak(&path, i));
            }
        }
    }

    /// The finding that a prompt tagged `pii` gets out by a step, with the way it takes.
    fn leak(&self, path: &Path, step: usize) -> Option<Diagnostic> {
        let (pool, leak) = self.pools.iter().find_map(|attached| {
            let rule = attached.first_rule + self.index;
            let leaks = &attached.analysed.leaks;
            leaks.iter().find(|l| l.rule == rule && l.select_step == step).map(|leak| (attached.pool, leak))
        })?;
        let to = pool.destinations.get(usize::from(leak.target.destination)).map_or("", |d| d.name.as_str());
        let (can, when) = match self.rule.mode {
            wire::Mode::Enforced => ("can", ""),
            wire::Mode::Shadow => ("could", ", once the rule is enforced"),
        };
        let shown = leak.example.as_ref().map(|e| format!(": {e} is taken by no earlier rule")).unwrap_or_default();
        let message = format!(
            "a prompt tagged `pii` {can} leave the cluster to `{to}` by the rule `{}`{when}{shown}; put a rule that keeps \
             `pii` Local before it, or an exclude entry with `tags: [pii]` and `backend: {{type: External}}` in it",
            self.rule.name
        );
        Some(self.policy.document.finding(Code::PersonalDataMayLeave, path, message))
    }

    /// Whether a destination of a pool may be at a limit.
    fn has_limits(&self, snapshot: &Snapshot) -> bool {
        let mut destinations = self.pools.iter().flat_map(|attached| &attached.pool.destinations);
        destinations.any(|destination| match destination.kind {
            DestinationKind::WorkerSet(i) => {
                snapshot.worker_sets.get(i).is_some_and(|set| set.limits.in_flight_per_endpoint_max.is_some())
            }
            DestinationKind::Provider(i) => {
                snapshot.providers.get(i).is_some_and(|provider| provider.limits != RateLimits::default())
            }
        })
    }

    /// Fields that do nothing where they stand.
    fn idle(&self, route: &wire::Route, snapshot: &Snapshot, findings: &mut Vec<Diagnostic>) {
        let path = self.path.key("route");
        let steps = route.select.as_deref().unwrap_or_default();
        let weighted = |i: usize| steps.get(i).is_some_and(|s| s.weight.is_some());
        let mut idle = |path: &Path, message: String| self.push(Code::NoEffect, path, message, findings);
        for (i, step) in steps.iter().enumerate() {
            let path = path.key("select").index(i);
            if step.weight.is_some_and(|w| w > 0) && !weighted(i + 1) && !(i > 0 && weighted(i - 1)) {
                idle(&path.key("weight"), "`weight` has no effect: no neighbouring step has one".to_owned());
            }
            if step.minimize == Some(wire::Minimize::PredictedLatency) {
                let instead = "the length of answers is not predicted, so all candidates are equal";
                let message = format!("`minimize: PredictedLatency` has no effect in this version: {instead}");
                idle(&path.key("minimize"), message);
            }
        }
        for (i, entry) in route.exclude.iter().enumerate() {
            if entry.drop.predicted_latency.is_some() {
                let path = path.key("exclude").index(i).key("drop").key("predictedLatency");
                let instead = "the length of answers is not predicted, so the condition never holds";
                idle(&path, format!("`predictedLatency` has no effect in this version: {instead}"));
            }
        }
        if route.split_by != wire::SplitBy::default() && !(0..steps.len()).any(weighted) {
            idle(&path.key("splitBy"), "`splitBy` has no effect: no step has a `weight`".to_owned());
        }
        if route.queue.is_some() && route.exclude.is_empty() && !self.has_limits(snapshot) {
            let instead = "no entry of `exclude` and no limit of a destination ever keeps its requests back";
            idle(&path.key("queue"), format!("`queue` has no effect: {instead}"));
        }
        if self.rule.mode == wire::Mode::Shadow {
            let changes = [
                ("rewrite", route.rewrite.is_some()),
                ("upstreamHeaders", !route.upstream_headers.is_empty()),
                ("queue", route.queue.is_some()),
            ];
            for (field, _) in changes.iter().filter(|(_, given)| *given) {
                idle(&path.key(field), format!("`{field}` has no effect: the rule is in mode Shadow"));
            }
        }
    }
}

/// Why conditions never hold together, or `None` when they may.
fn never_drops(conditions: &[DropCondition]) -> Option<String> {
    let external = conditions.contains(&DropCondition::Backend(Backend::External));
    conditions.iter().find_map(|condition| match condition {
        DropCondition::Destinations(list) if list.is_empty() => {
            Some("no destination of the pool is meant by its names".to_owned())
        }
        DropCondition::Number { signal, range } => {
            let row = signal.row();
            if is_impossible(range, row.range) {
                Some(format!("no value of `{}` satisfies its bounds", row.field))
            } else if external && unknown_outside(*signal) {
                Some(format!("`{}` is never known for External", row.field))
            } else {
                None
            }
        }
        DropCondition::Backend(_) | DropCondition::Destinations(_) | DropCondition::ContextBelowPrompt => None,
    })
}

/// Whether a signal is read from an engine or its cache, and so known for Local only.
fn unknown_outside(signal: Signal) -> bool {
    match signal {
        Signal::QueuedPrompts { .. } | Signal::RunningPrompts | Signal::KvCacheUsage | Signal::PrefixOverlap => true,
        Signal::InFlight
        | Signal::PredictedTtft
        | Signal::PredictedLatency
        | Signal::ErrorRate { .. }
        | Signal::CostPerMillionTokens
        | Signal::ContextWindow => false,
    }
}

/// Those of `tags` that nothing in any namespace gives, each with the nearest that something does.
pub(crate) fn unknown_tags<'t>(snapshot: &Snapshot, tags: &'t [String]) -> Vec<(&'t str, Option<String>)> {
    let known = Tags::of(snapshot, None);
    let unknown = tags.iter().filter(|tag| !known.gives(tag));
    unknown.map(|tag| (tag.as_str(), nearest(tag, known.names.iter().map(String::as_str)))).collect()
}

/// Tags that prompts of a namespace may carry.
struct Tags {
    /// Tags by their names, for suggestions too.
    names: Vec<String>,
    /// Beginnings of families of tags.
    families: Vec<&'static str>,
}

impl Tags {
    /// Of one namespace, or of all.
    fn of(snapshot: &Snapshot, namespace: Option<&str>) -> Self {
        let mut names: Vec<String> = SHAPE_TAGS.map(str::to_owned).to_vec();
        let mut families = vec!["language-"];
        let asked = |c: &&Classifier| namespace.is_none_or(|namespace| c.id.namespace == namespace);
        for classifier in snapshot.classifiers.iter().filter(asked) {
            match &classifier.kind {
                ClassifierKind::Pii { .. } => {
                    names.extend(["pii", "pii-unscanned", "network", "crypto"].map(str::to_owned));
                    families.extend(["pii-", "network-", "crypto-"]);
                }
                ClassifierKind::Secrets => {
                    names.push("secret".to_owned());
                    families.push("secret-");
                }
                ClassifierKind::Complexity { .. } => {
                    names.extend(["complexity-low".to_owned(), "complexity-high".to_owned()]);
                }
                ClassifierKind::Keywords { tags } => names.extend(tags.iter().map(|t| t.tag.clone())),
                ClassifierKind::Regex { tags } => names.extend(tags.iter().map(|(tag, _)| tag.clone())),
                ClassifierKind::Examples { tags } => names.extend(tags.iter().map(|t| t.tag.clone())),
                ClassifierKind::Http { tags, .. } => names.extend(tags.iter().cloned()),
            }
        }
        Self { names, families }
    }

    fn gives(&self, tag: &str) -> bool {
        self.names.iter().any(|n| n == tag) || self.families.iter().any(|f| tag.starts_with(f))
    }
}
