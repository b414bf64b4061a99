//! A set of objects judged: each stands or falls for itself, and the rest goes into force.
//!
//! The lowering is that of files. Where a document fails, its last version that was good takes its place; where there is
//! none, it is left out; then the set is lowered again, as what is left may fail for want of it.
//!
//! What is left out must not open anything. A pool is not served without its policies; a policy that is gone while a pool
//! still names it stays in force there. A tenant that is refused is a tenant without a key: with none, everyone would be
//! let in. A pool whose rules look at tags is not served while a classifier of its namespace is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::Kind;
use policy::{Code, Diagnostic, Severity};

use super::item::{Key, Object};
use crate::lower::{Origin, load_objects};
use crate::node::Path;
use crate::secret::Lookup;
use crate::snapshot::{ResourceId, Snapshot, Tenant};

/// Rounds of lowering. A failure is followed by those of what refers to it; references are two steps deep, each of which may
/// fall back once.
const ROUNDS_MAX: usize = 12;

/// Objects by name.
pub(super) type Objects = BTreeMap<Key, Arc<Object>>;

/// What became of one object.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub generation: i64,
    /// Why it is refused; empty when it is not.
    pub errors: Vec<Diagnostic>,
    /// What it refers to that is not there.
    pub unresolved: Vec<Diagnostic>,
    /// What is probably not meant.
    pub warnings: Vec<Diagnostic>,
    pub in_force: InForce,
}

/// Which version of an object is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InForce {
    /// This one.
    Current,
    /// An earlier one, of this generation.
    Earlier(i64),
    /// None.
    No,
}

/// What comes of a set.
#[derive(Debug)]
pub(super) struct Settled {
    /// To be put in force.
    pub snapshot: Snapshot,
    /// About each object.
    pub verdicts: BTreeMap<Key, Verdict>,
    /// The version of each object to fall back to next time.
    pub good: Objects,
}

/// Which version of an object is tried.
enum Choice {
    Current(Arc<Object>),
    Earlier(Arc<Object>),
    Out,
}

impl Choice {
    fn object(&self) -> Option<&Arc<Object>> {
        match self {
            Choice::Current(object) | Choice::Earlier(object) => Some(object),
            Choice::Out => None,
        }
    }
}

/// Judges a set. `good` are the versions that were in force before.
///
/// # Errors
/// Findings that are about no single object; what was in force stays.
pub(super) fn settle(current: &Objects, good: &Objects, lookup: &Lookup<'_>) -> Result<Settled, Vec<Diagnostic>> {
    let mut choices: BTreeMap<Key, Choice> = BTreeMap::new();
    let mut errors: BTreeMap<Key, Vec<Diagnostic>> = BTreeMap::new();
    for (key, object) in current {
        let choice = match &object.spec {
            Ok(_) => Choice::Current(object.clone()),
            Err(why) => {
                let message = format!("the object cannot be read: {why}");
                errors.entry(key.clone()).or_default().push(Diagnostic::new(Code::WrongType, message));
                earlier(good, key)
            }
        };
        choices.insert(key.clone(), choice);
    }
    let missing: BTreeMap<Key, Vec<Key>> = missing_policies(current);
    for key in missing.values().flatten() {
        choices.insert(key.clone(), earlier(good, key));
    }
    let names: BTreeMap<String, Key> = choices.keys().map(|key| (Object::name(key), key.clone())).collect();
    for _ in 0..ROUNDS_MAX {
        let documents = choices.values().filter_map(|choice| choice.object()?.document()).collect();
        let (snapshot, findings) = load_objects(documents, lookup);
        let mut failed: BTreeSet<Key> = BTreeSet::new();
        for finding in findings.iter().filter(|finding| Origin::Cluster.is_fatal(finding)) {
            let Some(key) = about(finding, &names) else { return Err(findings) };
            if matches!(choices.get(key), Some(Choice::Current(_))) {
                errors.entry(key.clone()).or_default().push(finding.clone());
            }
            failed.insert(key.clone());
        }
        if failed.is_empty() {
            return Ok(settled(current, &choices, &missing, errors, snapshot, findings, &names));
        }
        for key in failed {
            let next = match choices.get(&key) {
                Some(Choice::Current(_)) => earlier(good, &key),
                Some(Choice::Earlier(_) | Choice::Out) | None => Choice::Out,
            };
            choices.insert(key, next);
        }
    }
    let message = format!("the objects do not settle within {ROUNDS_MAX} rounds");
    Err(vec![Diagnostic::new(Code::OverLimit, message)])
}

fn earlier(good: &Objects, key: &Key) -> Choice {
    good.get(key).map_or(Choice::Out, |object| Choice::Earlier(object.clone()))
}

/// The object a finding is about.
fn about<'n>(finding: &Diagnostic, names: &'n BTreeMap<String, Key>) -> Option<&'n Key> {
    names.get(&*finding.span.as_ref()?.file)
}

/// The policies that a pool names and that are not there, by pool.
fn missing_policies(current: &Objects) -> BTreeMap<Key, Vec<Key>> {
    let mut missing: BTreeMap<Key, Vec<Key>> = BTreeMap::new();
    for (key, object) in current.iter().filter(|(key, _)| key.kind == Kind::InferencePool) {
        for policy in policies_of(key, object).filter(|policy| !current.contains_key(policy)) {
            missing.entry(key.clone()).or_default().push(policy);
        }
    }
    missing
}

fn settled(
    current: &Objects,
    choices: &BTreeMap<Key, Choice>,
    missing: &BTreeMap<Key, Vec<Key>>,
    mut errors: BTreeMap<Key, Vec<Diagnostic>>,
    mut snapshot: Snapshot,
    findings: Vec<Diagnostic>,
    names: &BTreeMap<String, Key>,
) -> Settled {
    let closed = close(current, choices, &mut snapshot);
    let pools: BTreeSet<&ResourceId> = snapshot.pools.iter().map(|pool| &pool.id).collect();
    let mut verdicts: BTreeMap<Key, Verdict> = BTreeMap::new();
    for (key, object) in current {
        let served = key.kind != Kind::InferencePool || pools.contains(&key.id);
        let in_force = match choices.get(key) {
            Some(Choice::Current(_)) if served => InForce::Current,
            Some(Choice::Earlier(object)) if served => InForce::Earlier(object.generation),
            Some(Choice::Current(_) | Choice::Earlier(_) | Choice::Out) | None => InForce::No,
        };
        let errors = errors.remove(key).unwrap_or_default();
        let (unresolved, warnings) = (Vec::new(), Vec::new());
        let generation = object.generation;
        verdicts.insert(key.clone(), Verdict { generation, errors, unresolved, warnings, in_force });
    }
    for (pool, policies) in missing {
        let Some(verdict) = verdicts.get_mut(pool) else { continue };
        for policy in policies.iter().filter(|policy| choices.get(policy).is_some_and(|c| c.object().is_some())) {
            let message = format!("there is no InferencePolicy `{}`; its last version stays in force here", policy.id);
            let path = Path::spec().key("policyRef").to_string();
            verdict.unresolved.push(Diagnostic::new(Code::UnknownReference, message).at(path, None));
        }
    }
    for (pool, classifier) in closed {
        let Some(verdict) = verdicts.get_mut(&pool) else { continue };
        let message = format!("the InferenceClassifier `{}` is refused, and rules look at tags", classifier.id);
        verdict.unresolved.push(Diagnostic::new(Code::UnknownReference, message));
    }
    for finding in findings {
        let verdict = about(&finding, names).and_then(|key| verdicts.get_mut(key));
        let shown = match about(&finding, names) {
            Some(key) => placed(finding.clone(), &Object::name(key)),
            None => finding.clone(),
        };
        snapshot.warnings.push(shown);
        let Some(verdict) = verdict else { continue };
        match (finding.code, finding.severity) {
            (Code::UnknownReference | Code::SecretMissing, _) => verdict.unresolved.push(finding),
            (_, Severity::Warning | Severity::Error) => verdict.warnings.push(finding),
        }
    }
    let good = choices.iter().filter_map(|(key, choice)| Some((key.clone(), choice.object()?.clone()))).collect();
    Settled { snapshot, verdicts, good }
}

/// Closes what the absence of a refused object would open. Returns the pools that are not served for want of a classifier.
fn close(current: &Objects, choices: &BTreeMap<Key, Choice>, snapshot: &mut Snapshot) -> Vec<(Key, Key)> {
    let out = |kind: Kind| choices.iter().filter(move |(key, c)| key.kind == kind && c.object().is_none());
    let tenants: Vec<Tenant> =
        out(Kind::InferenceTenant).map(|(key, _)| Tenant::without_keys(key.id.clone())).collect();
    let mut closed = Vec::new();
    for (classifier, _) in out(Kind::InferenceClassifier) {
        let pools = current.iter().filter(|(key, _)| key.kind == Kind::InferencePool);
        for (pool, object) in pools.filter(|(key, _)| key.id.namespace == classifier.id.namespace) {
            if policies_of(pool, object).any(|policy| looks_at_tags(choices.get(&policy))) {
                closed.push((pool.clone(), classifier.clone()));
            }
        }
    }
    if tenants.is_empty() && closed.is_empty() {
        return closed;
    }
    snapshot.pools.retain(|pool| !closed.iter().any(|(key, _)| key.id == pool.id));
    snapshot.tenants.extend(tenants);
    snapshot.tenants.sort_by(|a, b| a.id.cmp(&b.id));
    *snapshot = std::mem::take(snapshot).indexed();
    closed
}

/// The policies that a pool names.
fn policies_of(pool: &Key, object: &Object) -> impl Iterator<Item = Key> {
    let list = object.spec.as_ref().ok().and_then(|spec| spec["policyRef"].as_array());
    let namespace = pool.id.namespace.clone();
    list.into_iter().flatten().filter_map(|entry| entry["name"].as_str()).map(move |name| Key {
        kind: Kind::InferencePolicy,
        id: ResourceId { namespace: namespace.clone(), name: name.to_owned() },
    })
}

fn looks_at_tags(policy: Option<&Choice>) -> bool {
    fn has_tags(value: &serde_json::Value) -> bool {
        match value {
            serde_json::Value::Object(fields) => fields.iter().any(|(name, value)| name == "tags" || has_tags(value)),
            serde_json::Value::Array(items) => items.iter().any(has_tags),
            serde_json::Value::Null
            | serde_json::Value::Bool(_)
            | serde_json::Value::Number(_)
            | serde_json::Value::String(_) => false,
        }
    }
    policy.and_then(Choice::object).is_some_and(|policy| policy.spec.as_ref().is_ok_and(has_tags))
}

/// A finding about an object names it in its text: there is no line to point at.
fn placed(mut finding: Diagnostic, name: &str) -> Diagnostic {
    finding.span = None;
    finding.severity = Severity::Warning;
    let field = if finding.path.is_empty() { String::new() } else { format!(" {}", finding.path) };
    finding.message = format!("{name}{field}: {}", finding.message);
    finding
}

/// Every Secret that an object refers to, by a scan for `secretRef`: also those of objects that do not pass.
pub(super) fn secrets(objects: &Objects) -> BTreeSet<ResourceId> {
    fn scan(value: &serde_json::Value, namespace: &str, found: &mut BTreeSet<ResourceId>) {
        match value {
            serde_json::Value::Object(fields) => {
                let name = fields.get("secretRef").and_then(|reference| reference["name"].as_str());
                found.extend(name.map(|name| ResourceId { namespace: namespace.to_owned(), name: name.to_owned() }));
                fields.values().for_each(|value| scan(value, namespace, found));
            }
            serde_json::Value::Array(items) => items.iter().for_each(|value| scan(value, namespace, found)),
            serde_json::Value::Null
            | serde_json::Value::Bool(_)
            | serde_json::Value::Number(_)
            | serde_json::Value::String(_) => {}
        }
    }
    let mut found = BTreeSet::new();
    for (key, object) in objects {
        if let Ok(spec) = &object.spec {
            scan(spec, &key.id.namespace, &mut found);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(kind: Kind, name: &str, generation: i64, spec: Value) -> (Key, Arc<Object>) {
        let key = Key { kind, id: ResourceId { namespace: "default".into(), name: name.into() } };
        let status = crds::status::Status::default();
        (
            key.clone(),
            Arc::new(Object { key, uid: name.into(), version: "1".into(), generation, spec: Ok(spec), status }),
        )
    }

    fn workers(name: &str) -> (Key, Arc<Object>) {
        let spec = json!({ "model": { "name": "m" }, "selector": { "matchLabels": { "app": name } } });
        object(Kind::InferenceWorkerSet, name, 1, spec)
    }

    fn pool(destinations: &[&str], policies: &[&str]) -> (Key, Arc<Object>) {
        let destinations: Vec<Value> =
            destinations.iter().map(|name| json!({ "kind": "InferenceWorkerSet", "name": name })).collect();
        let policies: Vec<Value> = policies.iter().map(|name| json!({ "name": name })).collect();
        object(Kind::InferencePool, "p", 1, json!({ "destinations": destinations, "policyRef": policies }))
    }

    fn refusing(generation: i64, status: u32) -> (Key, Arc<Object>) {
        let spec = json!({ "rules": [{ "name": "no", "deny": { "status": status, "code": "no", "message": "no" } }] });
        object(Kind::InferencePolicy, "closed", generation, spec)
    }

    fn settled(current: impl IntoIterator<Item = (Key, Arc<Object>)>, good: &Objects) -> Settled {
        settle(&current.into_iter().collect(), good, &Lookup::process()).unwrap()
    }

    fn verdict<'s>(settled: &'s Settled, key: &(Key, Arc<Object>)) -> &'s Verdict {
        &settled.verdicts[&key.0]
    }

    #[test]
    fn a_bad_object_is_left_out_and_the_rest_goes_into_force() {
        let bad = object(Kind::InferenceWorkerSet, "bad", 1, json!({ "model": { "nam": "m" } }));
        let settled = settled([workers("a"), bad.clone(), pool(&["a"], &[])], &Objects::new());
        assert_eq!((settled.snapshot.pools.len(), settled.snapshot.worker_sets.len()), (1, 1));
        assert_eq!(verdict(&settled, &bad).in_force, InForce::No);
        assert!(verdict(&settled, &bad).errors.iter().any(|error| error.path == "spec.model.nam"));
        assert!(verdict(&settled, &workers("a")).errors.is_empty());
    }

    #[test]
    fn a_good_version_stays_in_force_behind_a_bad_one() {
        let before = settled([workers("a"), pool(&["a"], &["closed"]), refusing(1, 403)], &Objects::new());
        let broken = refusing(2, 9_999);
        let after = settled([workers("a"), pool(&["a"], &["closed"]), broken.clone()], &before.good);
        assert_eq!(verdict(&after, &broken).in_force, InForce::Earlier(1));
        assert!(!verdict(&after, &broken).errors.is_empty());
        assert_eq!(after.snapshot.pools.len(), 1);
        // And again: what is fallen back to does not wear off.
        let later = settled([workers("a"), pool(&["a"], &["closed"]), broken.clone()], &after.good);
        assert_eq!(verdict(&later, &broken).in_force, InForce::Earlier(1));
    }

    #[test]
    fn a_destination_that_is_not_there_is_left_out_until_it_comes() {
        let both = pool(&["a", "b"], &[]);
        let alone = settled([workers("a"), both.clone()], &Objects::new());
        assert_eq!(alone.snapshot.pools[0].destinations.len(), 1);
        assert_eq!(verdict(&alone, &both).in_force, InForce::Current);
        assert!(verdict(&alone, &both).unresolved[0].message.contains("`b`"));
        let together = settled([workers("a"), workers("b"), both.clone()], &alone.good);
        assert_eq!(together.snapshot.pools[0].destinations.len(), 2);
        assert!(verdict(&together, &both).unresolved.is_empty());
    }

    #[test]
    fn a_pool_without_its_policy_is_not_served_and_a_deleted_policy_stays() {
        let closed = pool(&["a"], &["closed"]);
        let open = settled([workers("a"), closed.clone()], &Objects::new());
        assert!(open.snapshot.pools.is_empty());
        assert_eq!(verdict(&open, &closed).in_force, InForce::No);
        let before = settled([workers("a"), closed.clone(), refusing(1, 403)], &open.good);
        assert_eq!(verdict(&before, &closed).in_force, InForce::Current);
        let after = settled([workers("a"), closed.clone()], &before.good);
        assert_eq!(verdict(&after, &closed).in_force, InForce::Current);
        assert!(verdict(&after, &closed).unresolved[0].message.contains("stays in force"));
        let detached = settled([workers("a"), pool(&["a"], &[])], &after.good);
        assert!(!detached.good.contains_key(&refusing(1, 403).0));
    }

    #[test]
    fn a_tenant_that_is_refused_lets_nobody_in() {
        let broken = object(Kind::InferenceTenant, "alice", 1, json!({ "apiKeys": [{ "sha256": "short" }] }));
        let settled = settled([workers("a"), broken.clone()], &Objects::new());
        assert_eq!(verdict(&settled, &broken).in_force, InForce::No);
        let tenants: Vec<usize> = settled.snapshot.tenants.iter().map(|tenant| tenant.key_sha256.len()).collect();
        assert_eq!(tenants, [0]);
    }

    #[test]
    fn a_pool_whose_rules_look_at_tags_is_not_served_without_its_classifier() {
        let rule = json!({ "name": "home", "matches": [{ "tags": { "any": ["pii"] } }], "route": {} });
        let policy = object(Kind::InferencePolicy, "closed", 1, json!({ "rules": [rule] }));
        let classifier = |kinds: &[&str], generation| {
            object(Kind::InferenceClassifier, "pii", generation, json!({ "type": "PII", "kinds": kinds }))
        };
        let looking = pool(&["a"], &["closed"]);
        let broken = classifier(&["Nothing"], 1);
        let out = settled([workers("a"), looking.clone(), policy.clone(), broken.clone()], &Objects::new());
        assert!(out.snapshot.pools.is_empty());
        assert!(verdict(&out, &looking).unresolved[0].message.contains("default/pii"));
        let good = classifier(&["Email"], 2);
        let back = settled([workers("a"), looking.clone(), policy.clone(), good], &out.good);
        assert_eq!(back.snapshot.pools.len(), 1);
        // A broken change of it leaves the last good one, and the pool.
        let after = settled([workers("a"), looking.clone(), policy, classifier(&["Nothing"], 3)], &back.good);
        assert_eq!((after.snapshot.pools.len(), after.snapshot.classifiers.len()), (1, 1));
    }

    #[test]
    fn secrets_are_found_wherever_they_are_named() {
        let provider = object(
            Kind::InferenceProvider,
            "x",
            1,
            json!({ "auth": { "bearer": { "secretRef": { "name": "one", "key": "k" } } } }),
        );
        let tenant = object(
            Kind::InferenceTenant,
            "t",
            1,
            json!({ "apiKeys": [{ "secretRef": { "name": "two", "key": "k" } }] }),
        );
        let found = secrets(&[provider, tenant].into_iter().collect());
        let names: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["default/one", "default/two"]);
    }
}
