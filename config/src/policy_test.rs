//! Policy tests: requests and the state of the fleet, and what should come of them.

use std::sync::Arc;

use crds::policy_test::{Case, Expect};
use policy::{Backend, Code, Diagnostic};
use serde_json::Value;

use crate::lower::TestDocument;
use crate::node::Path;
use crate::snapshot::Snapshot;
use crate::trial::{Facts, Outcome, Trial, limitless};

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
    /// The file it stands in.
    pub file: Arc<str>,
    /// What makes it differ from what a server would do, whether it passed or not; the same in many cases of a file.
    pub notes: Vec<String>,
}

impl CaseResult {
    /// Whether every expectation held.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

/// The tenant of a case that names none.
const ANONYMOUS: &str = "anonymous";

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
pub(crate) fn with_model(body: &serde_json::Value, model: &str) -> serde_json::Value {
    let mut body = body.clone();
    if let Some(members) = body.as_object_mut() {
        members.entry("model").or_insert_with(|| model.into());
    }
    body
}

fn run_case(snapshot: &Snapshot, test: &TestDocument, path: &Path, case: &Case, classify: &Classify<'_>) -> CaseResult {
    let found = match &case.request.body {
        Some(body) => classify(snapshot, &with_model(body, &case.request.model)),
        None => Vec::new(),
    };
    let facts = Facts::new(&case.request, &found);
    let trial = Trial { snapshot, request: facts.request(), state: &case.state };
    let mut failures = unknown_state(snapshot, test, path, case);
    let mut notes: Vec<String> = limitless(snapshot, &case.state)
        .into_iter()
        .map(|name| format!("`{name}` is said to be `atLimit`, but has no `limits.maxInFlight`: it never is"))
        .collect();
    let stranger = trial.stranger().filter(|_| case.request.tenant != ANONYMOUS || expects_unauthorized(case));
    let mut got = String::new();
    for seed in SEEDS {
        let outcome = match &stranger {
            Some(_) if expects_unauthorized(case) => Outcome::unauthorized(),
            Some(_) | None => trial.outcome(seed),
        };
        notes.extend(trial.caveat(&outcome));
        got = outcome.to_string();
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
    // A case that expects what a server would answer needs no note.
    notes.extend(stranger.filter(|_| !expects_unauthorized(case)));
    notes.sort();
    notes.dedup();
    let (test, file) = (test.test.metadata.name.clone(), Arc::clone(&test.raw.file));
    CaseResult { test, case: case.name.clone(), got, failures, file, notes }
}

/// Whether a case is about a caller that is not known. All others ask what the rules do, and a caller of theirs may have any name.
fn expects_unauthorized(case: &Case) -> bool {
    case.expect.error.as_ref().is_some_and(|error| error.status == Some(401))
}

/// State entries that name nothing: a misspelt address would make a case pass for the wrong reason.
fn unknown_state(snapshot: &Snapshot, test: &TestDocument, path: &Path, case: &Case) -> Vec<Diagnostic> {
    let unknown = crate::trial::unknown_names(snapshot, &case.state).into_iter();
    unknown
        .map(|(name, suggestion)| {
            let message = format!("case `{}`: there is no endpoint, worker set or provider `{name}`", case.name);
            test.raw.finding(Code::UnknownReference, &path.key("state").key(name), message).suggest(suggestion)
        })
        .collect()
}

/// An expectation that did not hold: where below `expect`, what was expected, what was got.
type Mismatch = (Vec<&'static str>, String, String);

impl Outcome {
    fn mismatches(&self, expect: &Expect) -> Vec<Mismatch> {
        let mut wrong: Vec<Mismatch> = Vec::new();
        let mut compare = |at: &[&'static str], expected: Option<&str>, found: Option<&str>| {
            if let Some(expected) = expected.filter(|e| Some(*e) != found) {
                let what = at.last().copied().unwrap_or_default();
                let found = found.map_or_else(|| self.to_string(), |f| format!("{what} `{f}`"));
                wrong.push((at.to_vec(), format!("{what} `{expected}`"), found));
            }
        };
        compare(&["shadowRule"], expect.shadow_rule.as_deref(), self.shadow_rule());
        match self {
            Outcome::Served { rule, backend, endpoint, destination, model, .. } => {
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
                    wrong.push((vec!["error"], "an error".to_owned(), self.to_string()));
                }
            }
            Outcome::Refused { rule, status, code, exclude, .. } => {
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
                    let got = format!("{status} {code}; add `error:` to expect it");
                    wrong.push((Vec::new(), "no error".to_owned(), got));
                }
            }
        }
        wrong
    }
}
