//! One request against a snapshot, with the state of the fleet given: what would come of it, and why.
//!
//! Policy tests, `explain` and `diff` ask the same question here that a data thread asks with what it has measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crds::policy_test::{EndpointState, TestRequest};
use policy::explain::{Explanation, explain};
use policy::{
    Action, Backend, Candidate, Code, Decision, Diagnostic, HeaderMap, Mode, Refusal, Request, Route, Rule, RuleIndex,
    Scratch, Signal, Target, decide,
};
use serde_json::Value;

use crate::check::Checker;
use crate::load::{SourceFile, about_file, documents};
use crate::snapshot::{DestinationKind, Pool, PoolScope, ResourceId, ServedModel, Snapshot};

/// Reads what stands under `request` of a policy test's case, from a file of its own.
///
/// # Errors
/// Every finding, at its place.
pub fn read_request(file: &SourceFile) -> Result<TestRequest, Vec<Diagnostic>> {
    read_part(file, "request")
}

/// Reads what stands under `state` of a policy test's case, from a file of its own. What comes later in `files` stands over
/// what comes earlier, field by field.
///
/// # Errors
/// Every finding, at its place.
pub fn read_state(files: &[SourceFile]) -> Result<FleetState, Vec<Diagnostic>> {
    let mut all = serde_json::Map::new();
    for file in files {
        let state: serde_json::Map<String, Value> = read_part(file, "state")?;
        for (name, fields) in state {
            match (all.get_mut(&name), fields) {
                (Some(Value::Object(known)), Value::Object(fields)) => known.extend(fields),
                (Some(_) | None, fields) => _ = all.insert(name, fields),
            }
        }
    }
    serde_json::from_value(Value::Object(all))
        .map_err(|error| vec![Diagnostic::new(Code::WrongType, error.to_string())])
}

/// A part of a policy test's case that is the whole of a file.
fn read_part<T: serde::de::DeserializeOwned>(file: &SourceFile, part: &str) -> Result<T, Vec<Diagnostic>> {
    let mut findings = Vec::new();
    let mut documents = documents(file, &mut findings).into_iter();
    if let Some(document) = documents.next() {
        let schema = crds::schema::spec(crds::Kind::PolicyTest);
        let schema = &schema["items"]["properties"][part];
        Checker::default().check(&document, schema, &mut findings);
        if findings.is_empty() {
            return serde_json::from_value(document.root.to_value())
                .map_err(|error| vec![Diagnostic::new(Code::WrongType, error.to_string())]);
        }
    }
    if findings.is_empty() {
        findings.push(about_file(Code::MissingField, &file.name, format!("the file has no {part}")));
    }
    Err(findings)
}

/// What is known of endpoints, by `host:port`, by a provider's name, or by a worker set's name for those of its endpoints that
/// are not listed themselves.
pub type FleetState = BTreeMap<String, EndpointState>;

/// What a written request says, ready to be looked at.
#[derive(Debug)]
pub struct Facts<'a> {
    written: &'a TestRequest,
    tags: Vec<&'a str>,
    headers: HeaderMap,
}

impl<'a> Facts<'a> {
    /// The request with the tags that the classifiers found beside those that are written. A written tag of one kind of
    /// finding brings the tag of its family, as a classifier gives both: `pii-email` is `pii` too.
    #[must_use]
    pub fn new(written: &'a TestRequest, found: &'a [String]) -> Self {
        let own = || written.tags.iter().map(String::as_str);
        let mut tags: Vec<&str> =
            own().chain(own().filter_map(family)).chain(found.iter().map(String::as_str)).collect();
        tags.sort_unstable();
        tags.dedup();
        let headers = HeaderMap(written.headers.iter().map(|(n, v)| (n.clone(), v.clone())).collect());
        Self { written, tags, headers }
    }

    /// The request as rules look at it.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        Request {
            model: &self.written.model,
            tenant: &self.written.tenant,
            tags: &self.tags,
            api: crate::lower::api(self.written.api),
            stream: crate::lower::streaming(self.written.stream),
            prompt_tokens: self.written.prompt_tokens.unwrap_or(f64::NAN),
            headers: &self.headers,
            conversation: self.written.conversation.as_deref().map(number_of),
        }
    }
}

/// The tag that a classifier gives beside `tag`. What could not be read is not found: rules take it for personal themselves.
fn family(tag: &str) -> Option<&str> {
    let families = ["pii", "secret", "network", "crypto"];
    let of_kind = |family: &&str| tag.strip_prefix(family).is_some_and(|kind| kind.starts_with('-'));
    families.into_iter().find(of_kind).filter(|_| tag != "pii-unscanned")
}

/// A number for a text: FNV-1a.
fn number_of(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// A request and a fleet.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// What is in force.
    pub snapshot: &'a Snapshot,
    /// The request.
    pub request: Request<'a>,
    /// What is known of endpoints. One that is not listed is ready, and nothing is known of it.
    pub state: &'a FleetState,
}

/// What comes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody answers.
    Served {
        /// The rule that decided.
        rule: String,
        /// The rule in shadow that would have decided in its place.
        shadow_rule: Option<String>,
        /// Local or External.
        backend: Backend,
        /// `host:port`, or the provider's name.
        endpoint: String,
        /// The worker set's or provider's name.
        destination: String,
        /// The model name that is sent.
        model: String,
    },
    /// Nobody does.
    Refused {
        /// The rule that decided; `None` when no pool serves the model.
        rule: Option<String>,
        /// The rule in shadow that would have decided in its place.
        shadow_rule: Option<String>,
        /// HTTP status.
        status: u16,
        /// Machine-readable code.
        code: String,
        /// The exclude entry that dropped the most candidates.
        exclude: Option<String>,
    },
}

impl Outcome {
    /// What a caller gets that no tenant is.
    pub(crate) fn unauthorized() -> Self {
        let code = "invalid_api_key".to_owned();
        Outcome::Refused { rule: None, shadow_rule: None, status: 401, code, exclude: None }
    }

    /// The rule in shadow that would have decided.
    #[must_use]
    pub fn shadow_rule(&self) -> Option<&str> {
        match self {
            Outcome::Served { shadow_rule, .. } | Outcome::Refused { shadow_rule, .. } => shadow_rule.as_deref(),
        }
    }

    /// Whether the prompt leaves the cluster.
    #[must_use]
    pub fn leaves_the_cluster(&self) -> bool {
        match self {
            Outcome::Served { backend, .. } => *backend == Backend::External,
            Outcome::Refused { .. } => false,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Served { rule, endpoint, destination, model, .. } => {
                write!(f, "endpoint {endpoint} of {destination} with model {model} by rule {rule}")?;
            }
            Outcome::Refused { rule, status, code, exclude, .. } => {
                write!(f, "error {status} {code}")?;
                if let Some(exclude) = exclude {
                    write!(f, " (exclude {exclude})")?;
                }
                if let Some(rule) = rule {
                    write!(f, " by rule {rule}")?;
                }
            }
        }
        match self.shadow_rule() {
            Some(rule) => write!(f, " (shadow rule {rule})"),
            None => Ok(()),
        }
    }
}

/// A decision with its reasons, and that of the rule in shadow.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// The pool that the model belongs to.
    pub pool: ResourceId,
    /// The decision.
    pub decision: Explanation,
    /// What the rule in shadow would have done.
    pub shadow: Option<Explanation>,
}

impl<'a> Trial<'a> {
    /// What a person should know of an outcome that a server would not give at once: a refusal before which the request would
    /// wait.
    #[must_use]
    pub fn caveat(&self, outcome: &Outcome) -> Option<String> {
        let overloaded = Refusal::Overloaded { exclude: None }.code();
        match outcome {
            Outcome::Refused { rule: Some(rule), code, .. } if *code == overloaded => self.waits(rule),
            Outcome::Served { .. } | Outcome::Refused { .. } => None,
        }
    }

    fn waits(&self, name: &str) -> Option<String> {
        let (_, pool) = self.snapshot.pool_for(self.request.model, &PoolScope::All)?;
        let rule = pool.program.rules().iter().find(|rule| rule.name == name)?;
        let Action::Route(Route { queue: Some(queue), .. }) = &rule.action else { return None };
        Some(format!("the rule `{name}` has a queue: a server lets such a request wait, {:?} at most", queue.wait_max))
    }

    /// That nobody calls under the request's tenant: with tenants configured, the gateway refuses whom it does not know.
    #[must_use]
    pub fn stranger(&self) -> Option<String> {
        let tenants = &self.snapshot.tenants;
        let tenant = self.request.tenant;
        let known = tenants.is_empty() || tenants.iter().any(|t| t.id.name == tenant);
        (!known).then(|| format!("no InferenceTenant `{tenant}`: such a caller gets 401"))
    }

    /// Rules before the one that decides which would have taken the request under another name of its model.
    #[must_use]
    pub fn missed_by_name(&self) -> Vec<String> {
        let Some((_, pool)) = self.snapshot.pool_for(self.request.model, &PoolScope::All) else { return Vec::new() };
        let asked = self.request.model;
        let models = pool.program.destinations().iter().flat_map(|d| &d.models);
        let same = models.filter(|names| names.iter().any(|name| name == asked));
        let others: BTreeSet<&str> = same.flatten().map(String::as_str).filter(|name| *name != asked).collect();
        let decides = pool.program.match_rule(&self.request);
        let earlier = pool.program.rules().iter().take(usize::from(decides.0));
        let missed = earlier.filter(|rule| rule.mode == Mode::Enforced).filter_map(|rule| {
            let by = others.iter().find(|name| rule.holds(&Request { model: name, ..self.request }))?;
            Some(format!("`{asked}` is another name of `{by}` and is not taken by the rule `{}`", rule.name))
        });
        missed.collect()
    }

    /// What comes of the request. `seed` settles ties.
    #[must_use]
    pub fn outcome(&self, seed: u64) -> Outcome {
        let Some((_, pool)) = self.snapshot.pool_for(self.request.model, &PoolScope::All) else {
            let refusal = Refusal::ModelNotFound;
            let (status, code) = (refusal.status(), refusal.code().to_owned());
            return Outcome::Refused { rule: None, shadow_rule: None, status, code, exclude: None };
        };
        let program = &pool.program;
        let index = program.match_rule(&self.request);
        let shadow = program.match_shadow(&self.request, index);
        let shadow_rule = shadow.map(|shadow| program.rule(shadow).name.clone());
        let rule = program.rule(index);
        let candidates = self.candidates(pool, index);
        match decide(program, index, &self.request, &candidates, seed, &mut Scratch::new()) {
            Decision::Chosen { candidate, .. } => match candidates.into_iter().nth(candidate) {
                Some(chosen) => Outcome::Served {
                    rule: rule.name.clone(),
                    shadow_rule,
                    backend: chosen.backend,
                    destination: chosen.destination.to_owned(),
                    model: chosen.model.upstream_name.clone(),
                    endpoint: chosen.name,
                },
                // A choice outside the candidates would be a fault of the decision; nobody expects this refusal.
                None => Outcome::Refused {
                    rule: None,
                    shadow_rule,
                    status: 500,
                    code: "internal".to_owned(),
                    exclude: None,
                },
            },
            Decision::Refused(refusal) => Outcome::Refused {
                rule: Some(rule.name.clone()),
                shadow_rule,
                status: refusal.status(),
                code: refusal.code().to_owned(),
                exclude: excluded_by(rule, refusal),
            },
        }
    }

    /// Why it comes so; `None` when no pool serves the model.
    #[must_use]
    pub fn explain(&self, seed: u64) -> Option<Explained> {
        let (_, pool) = self.snapshot.pool_for(self.request.model, &PoolScope::All)?;
        let index = pool.program.match_rule(&self.request);
        let shadow = pool.program.match_shadow(&self.request, index);
        Some(Explained {
            pool: pool.id.clone(),
            decision: self.explain_by(pool, index, seed),
            shadow: shadow.map(|index| self.explain_by(pool, index, seed)),
        })
    }

    fn explain_by(&self, pool: &Pool, rule: RuleIndex, seed: u64) -> Explanation {
        let candidates = self.candidates(pool, rule);
        let mut scratch = Scratch::new();
        let decision = decide(&pool.program, rule, &self.request, &candidates, seed, &mut scratch);
        let label = |i: usize| candidates.get(i).map(|c| c.name.clone()).unwrap_or_default();
        explain(&pool.program, rule, &self.request, &candidates, &decision, &scratch, &label)
    }

    /// Every endpoint a rule considers. A worker set whose pods are not written down stands as one endpoint of its name.
    fn candidates(&self, pool: &'a Pool, rule: RuleIndex) -> Vec<TrialCandidate<'a>> {
        let mut list = Vec::new();
        for target in pool.program.targets(rule, self.request.model) {
            let Some(destination) = pool.destinations.get(usize::from(target.destination)) else { continue };
            let Some(model) = self.snapshot.model(pool, *target) else { continue };
            let names = match destination.kind {
                DestinationKind::WorkerSet(i) => match self.snapshot.worker_sets.get(i) {
                    Some(set) if !set.endpoints.is_empty() => set.endpoints.iter().map(ToString::to_string).collect(),
                    Some(_) | None => vec![destination.name.clone()],
                },
                DestinationKind::Provider(_) => vec![destination.name.clone()],
            };
            for name in names {
                list.push(TrialCandidate {
                    state: self.state.get(&name).or_else(|| self.state.get(&destination.name)),
                    name,
                    destination: &destination.name,
                    target: *target,
                    backend: destination.kind.backend(),
                    model,
                });
            }
        }
        list
    }
}

/// The names in a state that stand for nothing, each with the nearest that does: a misspelt address would make a case pass for
/// the wrong reason.
#[must_use]
pub fn unknown_names<'s>(snapshot: &Snapshot, state: &'s FleetState) -> Vec<(&'s str, Option<String>)> {
    let mut known: Vec<String> = snapshot.providers.iter().map(|p| p.id.name.clone()).collect();
    for set in &snapshot.worker_sets {
        known.push(set.id.name.clone());
        known.extend(set.endpoints.iter().map(ToString::to_string));
    }
    let unknown = state.keys().filter(|name| !known.contains(*name));
    unknown.map(|name| (name.as_str(), crate::check::nearest(name, known.iter().map(String::as_str)))).collect()
}

/// Those of `tags` that no classifier and no shape of a request gives, each with the nearest that is given.
#[must_use]
pub fn unknown_tags<'t>(snapshot: &Snapshot, tags: &'t [String]) -> Vec<(&'t str, Option<String>)> {
    crate::lower::unknown_tags(snapshot, tags)
}

/// The names in a state that are said to be at a limit and have none.
#[must_use]
pub fn limitless<'s>(snapshot: &Snapshot, state: &'s FleetState) -> Vec<&'s str> {
    let has_none = |name: &str| {
        snapshot.providers.iter().any(|p| p.id.name == name && p.limits.in_flight_max.is_none())
            && !snapshot.worker_sets.iter().any(|set| set.id.name == name)
    };
    state.iter().filter(|(name, s)| s.at_limit && has_none(name)).map(|(name, _)| name.as_str()).collect()
}

/// One endpoint for one model.
struct TrialCandidate<'s> {
    name: String,
    destination: &'s str,
    target: Target,
    backend: Backend,
    model: &'s ServedModel,
    state: Option<&'s EndpointState>,
}

impl Candidate for TrialCandidate<'_> {
    fn target(&self) -> Target {
        self.target
    }

    fn backend(&self) -> Backend {
        self.backend
    }

    fn ready(&self) -> bool {
        self.state.is_none_or(|s| s.ready)
    }

    fn at_limit(&self) -> bool {
        self.state.is_some_and(|s| s.at_limit)
    }

    fn signal(&self, signal: Signal) -> Option<f64> {
        match signal {
            Signal::QueuedPrompts { .. } => self.state?.queued_prompts,
            Signal::RunningPrompts => self.state?.running_prompts,
            Signal::InFlight => self.state?.in_flight,
            Signal::KvCacheUsage => self.state?.kv_cache_usage,
            Signal::PrefixOverlap => self.state?.prefix_overlap,
            Signal::PredictedTtft => self.state?.predicted_ttft.map(crds::value::Duration::as_us),
            Signal::PredictedLatency => self.state?.predicted_latency.map(crds::value::Duration::as_us),
            Signal::ErrorRate { .. } => self.state?.error_rate,
            Signal::CostPerMillionTokens => {
                self.model.cost.as_ref().map(|c| f64::midpoint(c.input_per_million, c.output_per_million))
            }
            Signal::ContextWindow => self.model.context_window.map(f64::from),
        }
    }
}

/// The name of the exclude entry a refusal speaks of.
fn excluded_by(rule: &Rule, refusal: Refusal<'_>) -> Option<String> {
    match (refusal, &rule.action) {
        (Refusal::Overloaded { exclude: Some(i) }, Action::Route(route)) => {
            route.exclude.get(usize::from(i)).map(|e| e.name.clone())
        }
        (
            Refusal::Overloaded { .. } | Refusal::ModelNotFound | Refusal::NoReadyEndpoint | Refusal::Denied { .. },
            Action::Route(_) | Action::Deny(_),
        ) => None,
    }
}
