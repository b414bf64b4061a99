//! What the server holds: objects, one version counter over all of them, and the changes that watches are told.
//!
//! Pure: time comes in as text. Everything is behind one lock of the caller, so a version is a place in one order of
//! events, as it is with etcd.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::patch;
use crate::refusal::Refusal;
use crate::resource::{Resource, Scope};

/// Changes kept for watches; a watch that asks for older ones is told 410.
const CHANGES_MAX: usize = 10_000;

/// Where an object stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// `plural.group`, or the plural alone in the core group.
    pub resource: String,
    pub namespace: String,
    pub name: String,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Added,
    Modified,
    Deleted,
}

/// One change, with the object before and after it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub version: u64,
    pub key: Key,
    pub event: Event,
    pub before: Option<Arc<Value>>,
    pub after: Arc<Value>,
}

/// Which part of an object a write may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but the status, where the resource has a subresource for it.
    Main,
    /// The status alone.
    Status,
}

/// Whether a write is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Kept,
    DryRun,
}

/// All objects.
#[derive(Debug)]
pub(crate) struct Store {
    pub version: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    changes: VecDeque<Change>,
    /// Watches from a version below this are told 410.
    pub watchable_from: u64,
    uids: u64,
}

impl Store {
    pub(crate) fn new() -> Self {
        // Real servers are never at version 0, and clients must not think that versions begin anywhere.
        Self { version: 100, objects: BTreeMap::new(), changes: VecDeque::new(), watchable_from: 100, uids: 0 }
    }

    pub(crate) fn object(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// Objects of a resource in a namespace (empty: in all), by namespace and name.
    pub(crate) fn list<'s>(
        &'s self,
        resource: &str,
        namespace: &str,
    ) -> impl Iterator<Item = &'s Arc<Value>> + use<'s> {
        let from = Key { resource: resource.to_owned(), namespace: namespace.to_owned(), name: String::new() };
        let (resource, namespace) = (resource.to_owned(), namespace.to_owned());
        self.objects
            .range(from..)
            .take_while(move |(key, _)| {
                key.resource == resource && (namespace.is_empty() || key.namespace == namespace)
            })
            .map(|(_, object)| object)
    }

    /// Changes after a version, oldest first.
    pub(crate) fn changes_after(&self, version: u64) -> impl Iterator<Item = &Change> {
        let start = self.changes.partition_point(|change| change.version <= version);
        self.changes.range(start..)
    }

    /// Forgets all changes: a watch must begin at the version of now.
    pub(crate) fn compact(&mut self) {
        self.changes.clear();
        self.version += 1;
        self.watchable_from = self.version;
    }

    /// A new object. What only a server writes is written here.
    pub(crate) fn create(
        &mut self,
        resource: &Resource,
        key: &Key,
        mut object: Value,
        now: &str,
        effect: Effect,
    ) -> Result<Arc<Value>, Refusal> {
        if self.objects.contains_key(key) {
            return Err(Refusal::already_exists(resource, &key.name));
        }
        self.uids += 1;
        let metadata = metadata_mut(&mut object);
        metadata.insert("name".into(), json!(key.name));
        match resource.scope {
            Scope::Namespaced => _ = metadata.insert("namespace".into(), json!(key.namespace)),
            Scope::Cluster => _ = metadata.remove("namespace"),
        }
        metadata.insert("uid".into(), json!(format!("00000000-0000-4000-8000-{:012x}", self.uids)));
        metadata.insert("creationTimestamp".into(), json!(now));
        if resource.status_subresource {
            metadata.insert("generation".into(), json!(1));
        }
        for name in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            metadata.remove(name);
        }
        Ok(self.commit(key, Event::Added, object, effect))
    }

    /// Replaces an object. What a client may not write stays as it is; a write that changes nothing keeps the version. The caller
    /// has put in who owns what.
    pub(crate) fn update(
        &mut self,
        resource: &Resource,
        key: &Key,
        wanted: Value,
        part: Part,
        effect: Effect,
    ) -> Result<Arc<Value>, Refusal> {
        let old = self.objects.get(key).cloned().ok_or_else(|| Refusal::not_found(resource, &key.name))?;
        for (field, word) in [("resourceVersion", "version"), ("uid", "uid")] {
            let said = wanted["metadata"][field].as_str().filter(|text| !text.is_empty());
            if said.is_some_and(|said| Some(said) != old["metadata"][field].as_str()) {
                return Err(Refusal::conflict(resource, &key.name, word));
            }
        }
        let mut new = match part {
            Part::Main => main_part(resource, &old, wanted),
            Part::Status => {
                let mut new = (*old).clone();
                set(&mut new, "status", wanted.get("status").cloned());
                let owners = wanted["metadata"].get("managedFields").cloned();
                set(patch::entry(&mut new, "metadata"), "managedFields", owners);
                new
            }
        };
        let content = |object: &Value| {
            let mut object = object.clone();
            for name in ["metadata", "status"] {
                set(&mut object, name, None);
            }
            object
        };
        if resource.status_subresource && content(&old) != content(&new) {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(1);
            metadata_mut(&mut new).insert("generation".into(), json!(generation + 1));
        }
        if *old == new {
            return Ok(old);
        }
        let ending = new["metadata"].get("deletionTimestamp").is_some();
        let held = new["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        // A pod has a kubelet to end it, even when nothing holds it any more.
        if ending && !held && resource.name() != "pods" {
            return Ok(self.commit(key, Event::Deleted, new, effect));
        }
        Ok(self.commit(key, Event::Modified, new, effect))
    }

    /// Deletes an object, or marks it where something must end it first: finalizers, or the node of a pod.
    pub(crate) fn delete(
        &mut self,
        resource: &Resource,
        key: &Key,
        grace_s: Option<u64>,
        now: &str,
        effect: Effect,
    ) -> Result<Deleted, Refusal> {
        let old = self.objects.get(key).cloned().ok_or_else(|| Refusal::not_found(resource, &key.name))?;
        let held = old["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let on_a_node = resource.name() == "pods" && old["spec"]["nodeName"].is_string();
        let grace_s = grace_s.unwrap_or(if on_a_node { 30 } else { 0 });
        if held || (on_a_node && grace_s > 0) {
            if old["metadata"].get("deletionTimestamp").is_some() {
                return Ok(Deleted::Marked(old));
            }
            let mut new = (*old).clone();
            let metadata = metadata_mut(&mut new);
            metadata.insert("deletionTimestamp".into(), json!(now));
            metadata.insert("deletionGracePeriodSeconds".into(), json!(grace_s));
            return Ok(Deleted::Marked(self.commit(key, Event::Modified, new, effect)));
        }
        Ok(Deleted::Gone(self.commit(key, Event::Deleted, (*old).clone(), effect)))
    }

    /// Deletes every object of a resource, or of a namespace.
    pub(crate) fn delete_where(&mut self, doomed: impl Fn(&Key) -> bool) {
        let keys: Vec<Key> = self.objects.keys().filter(|key| doomed(key)).cloned().collect();
        for key in keys {
            if let Some(object) = self.objects.get(&key).cloned() {
                self.commit(&key, Event::Deleted, (*object).clone(), Effect::Kept);
            }
        }
    }

    fn commit(&mut self, key: &Key, event: Event, mut object: Value, effect: Effect) -> Arc<Value> {
        if effect == Effect::DryRun {
            return Arc::new(object);
        }
        self.version += 1;
        metadata_mut(&mut object).insert("resourceVersion".into(), json!(self.version.to_string()));
        let after = Arc::new(object);
        let before = match event {
            Event::Added | Event::Modified => self.objects.insert(key.clone(), after.clone()),
            Event::Deleted => self.objects.remove(key),
        };
        let change = Change { version: self.version, key: key.clone(), event, before, after: after.clone() };
        self.changes.push_back(change);
        if self.changes.len() > CHANGES_MAX
            && let Some(dropped) = self.changes.pop_front()
        {
            self.watchable_from = self.watchable_from.max(dropped.version);
        }
        after
    }
}

/// What came of a deletion.
#[derive(Clone, Debug)]
pub(crate) enum Deleted {
    Gone(Arc<Value>),
    Marked(Arc<Value>),
}

/// What a write of the main part makes of an object.
fn main_part(resource: &Resource, old: &Value, mut wanted: Value) -> Value {
    for name in ["uid", "creationTimestamp", "generation", "resourceVersion", "name", "namespace"]
        .into_iter()
        .chain(["deletionTimestamp", "deletionGracePeriodSeconds"])
    {
        let kept = old["metadata"].get(name).cloned();
        let metadata = metadata_mut(&mut wanted);
        match kept {
            Some(value) => _ = metadata.insert(name.into(), value),
            None => _ = metadata.remove(name),
        }
    }
    if resource.status_subresource {
        set(&mut wanted, "status", old.get("status").cloned());
    }
    wanted
}

fn set(object: &mut Value, name: &str, value: Option<Value>) {
    let map = patch::object_mut(object);
    match value {
        Some(value) => _ = map.insert(name.to_owned(), value),
        None => _ = map.remove(name),
    }
}

pub(crate) fn metadata_mut(object: &mut Value) -> &mut serde_json::Map<String, Value> {
    let map = patch::object_mut(object);
    patch::object_mut(map.entry("metadata").or_insert_with(|| json!({})))
}
