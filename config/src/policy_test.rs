//! Policy tests: requests and the state of the fleet, and what should come of them.

use std::fmt::Write as _;

use crds::policy_test::{Case, EndpointState, Expect};
use policy::{
    Backend, Candidate, Code, Decision, Diagnostic, HeaderMap, Refusal, Request, RuleIndex, Scratch, Signal, Target,
    decide,
};
use serde_json::Value;

use crate::lower::TestDocument;
use crate::node::Path;
use crate::snapshot::{DestinationKind, Pool, PoolScope, ServedModel, Snapshot};

/// The tags of a request body, as the classifiers give them. Classification lives elsewhere.
pub type Classify<'a> = dyn Fn(&Snapshot, &Value) -> Vec<String> + 'a;

/// What came of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseResult {
    /// The test document's name.
    pub test: String,
    /// The case's name.
    pub case: String,
    /// What was got, in words.
    pub got: String,
    /// For each expectation that did not hold: what was expected and what was got.
    pub failures: Vec<Diagnostic>,
}

impl CaseResult {
    /// Whether every expectation held.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Seeds each case is decided with: a case must hold however ties fall.
const SEEDS: [u64; 8] = [0, 1, 2, 3, 5, 8, 13, 21];

/// Runs the cases of `tests` against `snapshot`.
#[must_use]
pub fn run(snapshot: &Snapshot, tests: &[TestDocument], classify: &Classify<'_>) -> Vec<CaseResult> {
    let mut results = Vec::new();
    for test in tests {
        for (i, case) in test.test.cases.iter().enumerate() {
            let path = Path::default().key("cases").index(i);
            results.push(run_case(snapshot, test, &path, case, classify));
        }
    }
    results
}

/// The body as it would be sent: the model is written once, beside it.
fn with_model(body: &serde_json::Value, model: &str) -> serde_json::Value {
    let mut body = body.clone();
    if let Some(members) = body.as_object_mut() {
        members.entry("model").or_insert_with(|| model.into());
    }
    body
}

fn run_case(snapshot: &Snapshot, test: &TestDocument, path: &Path, case: &Case, classify: &Classify<'_>) -> CaseResult {
    let mut tags = case.request.tags.clone();
    if let Some(body) = &case.request.body {
        tags.extend(classify(snapshot, &with_model(body, &case.request.model)));
    }
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    let headers = HeaderMap(case.request.headers.iter().map(|(n, v)| (n.clone(), v.clone())).collect());
    let request = Request {
        model: &case.request.model,
        tenant: &case.request.tenant,
        tags: &tags,
        api: crate::lower::api(case.request.api),
        stream: crate::lower::streaming(case.request.stream),
        prompt_tokens: case.request.prompt_tokens.unwrap_or(f64::NAN),
        headers: &headers,
    };
    let mut failures = unknown_state(snapshot, test, path, case);
    let mut got = String::new();
    for seed in SEEDS {
        let outcome = outcome(snapshot, case, &request, seed);
        got = outcome.describe();
        let wrong = outcome.mismatches(&case.expect);
        if !wrong.is_empty() {
            let expect = path.key("expect");
            failures.extend(wrong.into_iter().map(|(at, expected, found)| {
                let path = at.iter().fold(expect.clone(), |p, key| p.key(key));
                let message = format!("case `{}`: expected {expected}, got {found}", case.name);
                test.raw.finding(Code::TestFailed, &path, message).expected(expected)
            }));
            break;
        }
    }
    CaseResult { test: test.test.metadata.name.clone(), case: case.name.clone(), got, failures }
}

/// State entries that name nothing: a misspelt address would make a case pass for the wrong reason.
fn unknown_state(snapshot: &Snapshot, test: &TestDocument, path: &Path, case: &Case) -> Vec<Diagnostic> {
    let mut known: Vec<String> = snapshot.providers.iter().map(|p| p.id.name.clone()).collect();
    for set in &snapshot.worker_sets {
        known.extend(set.endpoints.iter().map(ToString::to_string));
        if !set.selector.is_empty() {
            known.push(set.id.name.clone());
        }
    }
    let unknown = case.state.keys().filter(|name| !known.contains(*name));
    unknown
        .map(|name| {
            let message = format!("case `{}`: there is no endpoint or provider `{name}`", case.name);
            let suggestion = crate::check::nearest(name, known.iter().map(String::as_str));
            test.raw.finding(Code::UnknownReference, &path.key("state").key(name), message).suggest(suggestion)
        })
        .collect()
}

/// One endpoint of a case's fleet.
struct TestCandidate<'s> {
    name: String,
    destination: &'s str,
    target: Target,
    backend: Backend,
    model: &'s ServedModel,
    state: Option<&'s EndpointState>,
}

impl Candidate for TestCandidate<'_> {
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

/// Every endpoint a rule considers. A worker set whose pods are not written down stands as one endpoint of its name.
fn candidates<'s>(snapshot: &'s Snapshot, pool: &'s Pool, rule: RuleIndex, case: &'s Case) -> Vec<TestCandidate<'s>> {
    let mut list = Vec::new();
    for target in pool.program.targets(rule, &case.request.model) {
        let Some(destination) = pool.destinations.get(usize::from(target.destination)) else { continue };
        let Some(model) = snapshot.model(pool, *target) else { continue };
        let names = match destination.kind {
            DestinationKind::WorkerSet(i) => match snapshot.worker_sets.get(i) {
                Some(set) if !set.endpoints.is_empty() => set.endpoints.iter().map(ToString::to_string).collect(),
                Some(_) | None => vec![destination.name.clone()],
            },
            DestinationKind::Provider(_) => vec![destination.name.clone()],
        };
        for name in names {
            list.push(TestCandidate {
                state: case.state.get(&name),
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

/// What came of a request.
enum Outcome {
    Served { rule: String, backend: Backend, endpoint: String, destination: String, model: String },
    Refused { rule: Option<String>, status: u16, code: String, exclude: Option<String> },
}

fn outcome(snapshot: &Snapshot, case: &Case, request: &Request<'_>, seed: u64) -> Outcome {
    let Some((_, pool)) = snapshot.pool_for(request.model, &PoolScope::All) else {
        let refusal = Refusal::ModelNotFound;
        return Outcome::Refused {
            rule: None,
            status: refusal.status(),
            code: refusal.code().to_owned(),
            exclude: None,
        };
    };
    let index = pool.program.match_rule(request);
    let rule = pool.program.rule(index);
    let candidates = candidates(snapshot, pool, index, case);
    match decide(&pool.program, index, request, &candidates, seed, &mut Scratch::new()) {
        Decision::Chosen { candidate, .. } => match candidates.into_iter().nth(candidate) {
            Some(chosen) => Outcome::Served {
                rule: rule.name.clone(),
                backend: chosen.backend,
                destination: chosen.destination.to_owned(),
                model: chosen.model.upstream_name.clone(),
                endpoint: chosen.name,
            },
            None => unreachable_choice(),
        },
        Decision::Refused(refusal) => Outcome::Refused {
            rule: Some(rule.name.clone()),
            status: refusal.status(),
            code: refusal.code().to_owned(),
            exclude: excluded_by(rule, refusal),
        },
    }
}

/// A choice outside the candidates given would be a fault of the decision; shown as a refusal no test expects.
fn unreachable_choice() -> Outcome {
    Outcome::Refused { rule: None, status: 500, code: "internal".to_owned(), exclude: None }
}

/// The name of the exclude entry a refusal speaks of.
fn excluded_by(rule: &policy::Rule, refusal: Refusal<'_>) -> Option<String> {
    match (refusal, &rule.action) {
        (Refusal::Overloaded { exclude: Some(i) }, policy::Action::Route(route)) => {
            route.exclude.get(usize::from(i)).map(|e| e.name.clone())
        }
        (
            Refusal::Overloaded { .. } | Refusal::ModelNotFound | Refusal::NoReadyEndpoint | Refusal::Denied { .. },
            policy::Action::Route(_) | policy::Action::Deny(_),
        ) => None,
    }
}

/// An expectation that did not hold: where below `expect`, what was expected, what was got.
type Mismatch = (Vec<&'static str>, String, String);

impl Outcome {
    fn describe(&self) -> String {
        let mut out = String::new();
        let _ = match self {
            Outcome::Served { rule, endpoint, destination, model, .. } => {
                write!(out, "endpoint {endpoint} of {destination} with model {model} by rule {rule}")
            }
            Outcome::Refused { rule, status, code, exclude } => {
                let _ = write!(out, "error {status} {code}");
                if let Some(exclude) = exclude {
                    let _ = write!(out, " (exclude {exclude})");
                }
                rule.as_ref().map_or(Ok(()), |rule| write!(out, " by rule {rule}"))
            }
        };
        out
    }

    fn mismatches(&self, expect: &Expect) -> Vec<Mismatch> {
        let mut wrong: Vec<Mismatch> = Vec::new();
        let mut compare = |at: &[&'static str], expected: Option<&str>, found: Option<&str>| {
            if let Some(expected) = expected.filter(|e| Some(*e) != found) {
                let what = at.last().copied().unwrap_or_default();
                let found = found.map_or_else(|| self.describe(), |f| format!("{what} `{f}`"));
                wrong.push((at.to_vec(), format!("{what} `{expected}`"), found));
            }
        };
        match self {
            Outcome::Served { rule, backend, endpoint, destination, model } => {
                let (set, provider) = match backend {
                    Backend::Local => (Some(destination.as_str()), None),
                    Backend::External => (None, Some(destination.as_str())),
                };
                compare(&["rule"], expect.rule.as_deref(), Some(rule));
                compare(&["endpoint"], expect.endpoint.as_deref(), Some(endpoint));
                compare(&["workerSet"], expect.worker_set.as_deref(), set);
                compare(&["provider"], expect.provider.as_deref(), provider);
                compare(&["model"], expect.model.as_deref(), Some(model));
                if expect.error.is_some() {
                    wrong.push((vec!["error"], "an error".to_owned(), self.describe()));
                }
            }
            Outcome::Refused { rule, status, code, exclude } => {
                let error = expect.error.clone().unwrap_or_default();
                compare(&["rule"], expect.rule.as_deref(), rule.as_deref());
                compare(&["endpoint"], expect.endpoint.as_deref(), None);
                compare(&["workerSet"], expect.worker_set.as_deref(), None);
                compare(&["provider"], expect.provider.as_deref(), None);
                compare(&["model"], expect.model.as_deref(), None);
                let status_text = status.to_string();
                let expected_status = error.status.map(|s| s.to_string());
                compare(&["error", "status"], expected_status.as_deref(), Some(&status_text));
                compare(&["error", "code"], error.code.as_deref(), Some(code));
                compare(&["error", "exclude"], error.exclude.as_deref(), exclude.as_deref());
                // A case that expects only a rule, or only an endpoint, does not expect a refusal.
                if expect.error.is_none() && wrong.is_empty() {
                    wrong.push((Vec::new(), "no error".to_owned(), self.describe()));
                }
            }
        }
        wrong
    }
}
