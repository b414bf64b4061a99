//! What two sets of documents do differently: field by field, and request by request.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crds::policy_test::{EndpointState, TestRequest};
use serde_json::Value;

use crate::load::{SourceFile, documents};
use crate::snapshot::Snapshot;
use crate::trial::{Facts, FleetState, Outcome, Trial};

/// Requests kept of each kind of difference, to show what it is about.
pub const EXAMPLES_MAX: usize = 3;

/// Kinds of difference that are told apart; the rest is counted as one.
pub const KINDS_MAX: usize = 1_000;

/// One field that two sets have differently.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldChange {
    /// `InferencePolicy default/overflow`
    pub resource: String,
    /// The field, items of a list by their name where they have one; empty for a whole resource.
    pub path: String,
    /// What stood there; `None`: nothing.
    pub old: Option<Value>,
    /// What stands there; `None`: nothing.
    pub new: Option<Value>,
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FieldChange { resource, path, old, new } = self;
        let place = if path.is_empty() { resource.clone() } else { format!("{resource}: {path}") };
        match (old, new) {
            (Some(old), Some(new)) => write!(f, "~ {place}: {old} -> {new}"),
            (None, Some(_)) if path.is_empty() => write!(f, "+ {place}"),
            (Some(_), None) if path.is_empty() => write!(f, "- {place}"),
            (None, Some(new)) => write!(f, "+ {place}: {new}"),
            (Some(old), None) => write!(f, "- {place}: {old}"),
            (None, None) => Ok(()),
        }
    }
}

/// Every field that differs, by resource, then in the order of the documents. Policy tests are left out: they do nothing.
#[must_use]
pub fn fields(old: &[SourceFile], new: &[SourceFile]) -> Vec<FieldChange> {
    let (old, new) = (resources(old), resources(new));
    let mut changes = Vec::new();
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let mut walk = Walk { resource: name, changes: &mut changes };
        walk.compare("", old.get(name), new.get(name));
    }
    changes
}

/// The `spec` of every resource, by kind, namespace and name. What cannot be read is the loader's to tell.
fn resources(files: &[SourceFile]) -> BTreeMap<String, Value> {
    let documents = files.iter().flat_map(|file| documents(file, &mut Vec::new()));
    let named = documents.filter_map(|document| {
        let root = document.root.to_value();
        let kind = root.get("kind")?.as_str().filter(|kind| *kind != "PolicyTest")?;
        let metadata = root.get("metadata")?;
        let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or("default");
        let name = metadata.get("name")?.as_str()?;
        Some((format!("{kind} {namespace}/{name}"), root.get("spec").cloned().unwrap_or_default()))
    });
    named.collect()
}

struct Walk<'w> {
    resource: &'w str,
    changes: &'w mut Vec<FieldChange>,
}

impl Walk<'_> {
    fn push(&mut self, path: &str, old: Option<&Value>, new: Option<&Value>) {
        let (resource, path) = (self.resource.to_owned(), path.to_owned());
        self.changes.push(FieldChange { resource, path, old: old.cloned(), new: new.cloned() });
    }

    /// Documents are nested no deeper than their loader allows.
    fn compare(&mut self, path: &str, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (old, new) if old == new => {}
            (Some(Value::Object(a)), Some(Value::Object(b))) => {
                let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
                for key in keys {
                    let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    self.compare(&below, a.get(key), b.get(key));
                }
            }
            (Some(Value::Array(a)), Some(Value::Array(b))) => match (by_name(a), by_name(b)) {
                (Some(old), Some(new)) => self.compare_named(path, &old, &new),
                (Some(_) | None, Some(_) | None) => {
                    self.push(path, old, new);
                }
            },
            (old, new) => self.push(path, old, new),
        }
    }

    fn compare_named(&mut self, path: &str, old: &[(&str, &Value)], new: &[(&str, &Value)]) {
        let find = |list: &[(&str, &Value)], name: &str| list.iter().position(|(n, _)| *n == name);
        for (name, value) in old {
            let now = find(new, name).and_then(|at| new.get(at)).map(|(_, v)| *v);
            self.compare(&format!("{path}[{name}]"), Some(value), now);
        }
        for (name, value) in new.iter().filter(|(name, _)| find(old, name).is_none()) {
            self.compare(&format!("{path}[{name}]"), None, Some(value));
        }
        let common = |list: &[(&str, &Value)], other: &[(&str, &Value)]| -> Vec<Value> {
            list.iter().filter(|(n, _)| find(other, n).is_some()).map(|(n, _)| Value::from(*n)).collect()
        };
        let (before, after) = (common(old, new), common(new, old));
        if before != after {
            self.push(&format!("{path} (order)"), Some(&Value::Array(before)), Some(&Value::Array(after)));
        }
    }
}

/// The items of a list by their names, when each has one of its own.
fn by_name(items: &[Value]) -> Option<Vec<(&str, &Value)>> {
    let named: Option<Vec<(&str, &Value)>> =
        items.iter().map(|item| Some((item.get("name")?.as_str()?, item))).collect();
    let named = named?;
    let names: BTreeSet<&str> = named.iter().map(|(name, _)| *name).collect();
    (names.len() == items.len()).then_some(named)
}

/// How much room the cluster has while requests are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Load {
    /// As the state given says.
    Given,
    /// Every Local endpoint is at its limit: what overflows, and where to.
    LocalFull,
}

/// One kind of difference between two sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutcomeChange {
    /// How many requests.
    pub count: u64,
    /// Some of them, as their callers named them.
    pub examples: Vec<String>,
}

/// What two sets do differently with requests.
#[derive(Debug)]
pub struct Comparison<'s> {
    old: Side<'s>,
    new: Side<'s>,
    /// Requests compared.
    pub requests: u64,
    /// Requests that at least one load makes different.
    pub requests_changed: u64,
    /// By load, what came of a request and what would.
    pub changes: BTreeMap<(Load, String, String), OutcomeChange>,
    /// Differences beyond [`KINDS_MAX`] kinds.
    pub changes_uncounted: u64,
    /// Requests with a tag that would leave the cluster at some load and did not before.
    pub tagged_newly_leaving: u64,
    /// The same by tag.
    pub newly_leaving_by_tag: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Side<'s> {
    snapshot: &'s Snapshot,
    states: [(Load, FleetState); 2],
}

impl<'s> Side<'s> {
    fn new(snapshot: &'s Snapshot, state: &FleetState) -> Self {
        let mut full = state.clone();
        for set in &snapshot.worker_sets {
            full.entry(set.id.name.clone()).or_default();
            let names = set.endpoints.iter().map(ToString::to_string).chain([set.id.name.clone()]);
            for name in names {
                if let Some(known) = full.get_mut(&name) {
                    *known = EndpointState { at_limit: true, ..known.clone() };
                }
            }
        }
        Self { snapshot, states: [(Load::Given, state.clone()), (Load::LocalFull, full)] }
    }
}

impl<'s> Comparison<'s> {
    /// A comparison that has seen no request. `state` is what is known of endpoints.
    #[must_use]
    pub fn new(old: &'s Snapshot, new: &'s Snapshot, state: &FleetState) -> Self {
        Self {
            old: Side::new(old, state),
            new: Side::new(new, state),
            requests: 0,
            requests_changed: 0,
            changes: BTreeMap::new(),
            changes_uncounted: 0,
            tagged_newly_leaving: 0,
            newly_leaving_by_tag: BTreeMap::new(),
        }
    }

    /// Compares what comes of one request; `label` names it in examples.
    pub fn add(&mut self, request: &TestRequest, label: &str) {
        let facts = Facts::new(request, &[]);
        let seed = self.requests;
        self.requests += 1;
        let (mut changed, mut leaving) = (false, false);
        let pairs = self.old.states.iter().zip(&self.new.states);
        let outcomes: Vec<(Load, Outcome, Outcome)> = pairs
            .map(|((load, old), (_, new))| {
                let trial = |snapshot, state| Trial { snapshot, request: facts.request(), state }.outcome(seed);
                (*load, trial(self.old.snapshot, old), trial(self.new.snapshot, new))
            })
            .collect();
        for (load, old, new) in outcomes {
            leaving |= new.leaves_the_cluster() && !old.leaves_the_cluster();
            let (old, new) = (class(&old), class(&new));
            if old != new {
                changed = true;
                self.count((load, old, new), label);
            }
        }
        self.requests_changed += u64::from(changed);
        if leaving && !request.tags.is_empty() {
            self.tagged_newly_leaving += 1;
            for tag in &request.tags {
                *self.newly_leaving_by_tag.entry(tag.clone()).or_default() += 1;
            }
        }
    }

    fn count(&mut self, kind: (Load, String, String), label: &str) {
        if self.changes.len() >= KINDS_MAX && !self.changes.contains_key(&kind) {
            self.changes_uncounted += 1;
            return;
        }
        let change = self.changes.entry(kind).or_default();
        change.count += 1;
        if change.examples.len() < EXAMPLES_MAX {
            change.examples.push(label.to_owned());
        }
    }
}

/// An outcome without what chance decides.
fn class(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Served { rule, backend, destination, model, .. } => {
            format!("{} {destination}, {model}, by rule {rule}", backend.as_str())
        }
        Outcome::Refused { rule, status, code, exclude, .. } => {
            let exclude = exclude.as_ref().map(|e| format!(" (exclude {e})")).unwrap_or_default();
            let rule = rule.as_ref().map(|r| format!(", by rule {r}")).unwrap_or_default();
            format!("error {status} {code}{exclude}{rule}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Lookup;

    const FLEET: &str = "\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: { name: ws }
spec: { model: { name: m }, endpoints: [{ address: a, port: 1 }, { address: b, port: 1 }] }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceProvider
metadata: { name: cloud }
spec: { type: OpenAI, baseURL: 'http://c', models: [{ name: m }] }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceClassifier
metadata: { name: pii }
spec: { type: PII }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: { name: p }
spec:
  destinations: [{ kind: InferenceWorkerSet, name: ws }, { kind: InferenceProvider, name: cloud }]
  policyRef: [{ name: x }]
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: x }
spec:
  rules:
";
    const KEEP: &str = "    - { name: keep, matches: [{ tags: [pii] }], route: {} }\n";
    const OUT: &str = "    - { name: out, route: { select: [{ type: Local }, { type: External }] } }\n";

    fn set(rules: &[&str]) -> Vec<SourceFile> {
        vec![SourceFile::new("set.yaml", &format!("{FLEET}{}", rules.concat()))]
    }

    fn snapshot(files: &[SourceFile]) -> Snapshot {
        crate::load(files, &Lookup::Skip).expect("loads").snapshot
    }

    fn request(tags: &[&str]) -> TestRequest {
        serde_json::from_value(serde_json::json!({ "model": "m", "tags": tags })).expect("a request")
    }

    #[test]
    fn tagged_requests_that_would_newly_leave_are_counted_with_the_cluster_full() {
        let (old, new) = (set(&[KEEP, OUT]), set(&[OUT]));
        let (old, new) = (snapshot(&old), snapshot(&new));
        let mut comparison = Comparison::new(&old, &new, &FleetState::new());
        comparison.add(&request(&["pii"]), "one");
        comparison.add(&request(&[]), "two");
        comparison.add(&request(&["pii", "pii-email"]), "three");
        assert_eq!((comparison.requests, comparison.requests_changed, comparison.tagged_newly_leaving), (3, 2, 2));
        assert_eq!(comparison.newly_leaving_by_tag["pii-email"], 1);
        let full = comparison.changes.iter().find(|((load, ..), _)| *load == Load::LocalFull).expect("differs");
        assert_eq!(full.0.1, "error 429 overloaded, by rule keep");
        assert_eq!(full.0.2, "External cloud, m, by rule out");
        assert_eq!((full.1.count, full.1.examples.clone()), (2, vec!["one".to_owned(), "three".to_owned()]));
        let back = {
            let mut comparison = Comparison::new(&new, &old, &FleetState::new());
            comparison.add(&request(&["pii"]), "one");
            comparison.tagged_newly_leaving
        };
        assert_eq!(back, 0);
    }

    #[test]
    fn the_same_set_is_no_difference_whatever_chance_does() {
        let files = set(&[KEEP, OUT]);
        let snapshot = snapshot(&files);
        let mut comparison = Comparison::new(&snapshot, &snapshot, &FleetState::new());
        for _ in 0..20 {
            comparison.add(&request(&[]), "r");
        }
        assert!(comparison.changes.is_empty() && fields(&files, &files).is_empty());
    }

    #[test]
    fn items_of_lists_are_told_apart_by_their_names() {
        let other = OUT.replace("type: Local", "type: Local, minimize: InFlight");
        let shown = |old: &[&str], new: &[&str]| -> Vec<String> {
            fields(&set(old), &set(new)).iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            shown(&[KEEP, OUT], &[OUT]),
            [r#"- InferencePolicy default/x: rules[keep]: {"matches":[{"tags":["pii"]}],"name":"keep","route":{}}"#]
        );
        assert_eq!(
            shown(&[KEEP, OUT], &[OUT, KEEP]),
            [r#"~ InferencePolicy default/x: rules (order): ["keep","out"] -> ["out","keep"]"#]
        );
        let changed = shown(&[KEEP, OUT], &[KEEP, &other]);
        assert_eq!(changed.len(), 1);
        assert!(changed[0].starts_with("~ InferencePolicy default/x: rules[out].route.select: "), "{changed:?}");
    }
}
