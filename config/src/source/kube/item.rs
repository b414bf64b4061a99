//! What is read from an API server, cut down to what is used.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crds::status::Status;
use crds::{API_VERSION, Kind};
use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;
use kube::core::{DeserializeGuard, DynamicObject};
use serde_json::{Value, json};

use crate::node::{Node, RawDocument};
use crate::snapshot::ResourceId;
use crate::source::cluster::PodState;

/// What one watch is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// Objects of a kind, in a namespace (empty: in all).
    Objects { kind: Kind, namespace: String },
    /// The pods of a selector.
    Pods(PodSelector),
    /// One Secret.
    Secret(ResourceId),
}

/// Pods of a namespace with certain labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodSelector {
    pub namespace: String,
    /// Sorted by key.
    pub labels: Vec<(String, String)>,
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Objects { kind, namespace } if namespace.is_empty() => write!(f, "{}", kind.plural()),
            Subject::Objects { kind, namespace } => write!(f, "{} of {namespace}", kind.plural()),
            Subject::Pods(selector) => write!(f, "pods of {}", selector.namespace),
            Subject::Secret(id) => write!(f, "Secret {id}"),
        }
    }
}

/// One object.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Object(Arc<Object>),
    Pod(Pod),
    Secret(SecretData),
}

/// Kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub kind: Kind,
    pub id: ResourceId,
}

/// An object of one of our kinds.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub key: Key,
    pub uid: String,
    /// Of this state of it: its status is written to no other.
    pub version: String,
    /// Rises with every change of `spec`.
    pub generation: i64,
    /// `spec` as it is stored, or why the object cannot be read at all.
    pub spec: Result<Value, String>,
    pub status: Status,
}

/// One pod, as an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub id: ResourceId,
    pub uid: String,
    /// `None` before it runs and after it has ended.
    pub ip: Option<IpAddr>,
    pub state: PodState,
}

/// What a Secret holds.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SecretData {
    pub id: ResourceId,
    pub values: BTreeMap<String, String>,
}

impl std::fmt::Debug for SecretData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretData").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Object {
    /// How the object is named in findings. No path: files that it names are looked for where the process runs.
    pub(super) fn name(key: &Key) -> String {
        format!("{} {} ({})", key.kind, key.id.name, key.id.namespace)
    }

    /// As a document. `None` when it cannot be read.
    pub(super) fn document(&self) -> Option<RawDocument> {
        let spec = self.spec.as_ref().ok()?;
        let document = json!({
            "apiVersion": API_VERSION,
            "kind": self.key.kind.as_str(),
            "metadata": { "name": self.key.id.name, "namespace": self.key.id.namespace },
            "spec": spec,
        });
        Some(RawDocument { file: Self::name(&self.key).into(), root: Node::from_value(&document) })
    }
}

fn id(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<ResourceId> {
    Some(ResourceId { namespace: metadata.namespace.clone().unwrap_or_default(), name: metadata.name.clone()? })
}

/// Reads an object of one of our kinds. Only one without a name is nothing.
pub(super) fn object(subject: &Subject, guard: DeserializeGuard<DynamicObject>) -> Option<Item> {
    let Subject::Objects { kind, .. } = subject else { return None };
    let metadata = kube::Resource::meta(&guard);
    let key = Key { kind: *kind, id: id(metadata)? };
    let (uid, generation) = (metadata.uid.clone().unwrap_or_default(), metadata.generation.unwrap_or(0));
    let version = metadata.resource_version.clone().unwrap_or_default();
    let (spec, status) = match guard.0 {
        Ok(mut object) => {
            // A status that is not ours to read is written anew.
            let status = serde_json::from_value(object.data["status"].take()).unwrap_or_default();
            (Ok(object.data["spec"].take()), status)
        }
        Err(invalid) => (Err(invalid.error), Status::default()),
    };
    Some(Item::Object(Arc::new(Object { key, uid, version, generation, spec, status })))
}

/// Reads a pod.
pub(super) fn pod(_: &Subject, guard: DeserializeGuard<core::Pod>) -> Option<Item> {
    let pod = guard.0.ok()?;
    let id = id(&pod.metadata)?;
    let uid = pod.uid().unwrap_or_default();
    let status = pod.status.unwrap_or_default();
    let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let ip = status.pod_ip.as_deref().filter(|_| !ended).and_then(|text| text.parse().ok());
    // The kubelet counts readiness gates in.
    let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let state = match (pod.metadata.deletion_timestamp.is_some(), ready) {
        (true, _) => PodState::Terminating,
        (false, true) => PodState::Ready,
        (false, false) => PodState::NotReady,
    };
    Some(Item::Pod(Pod { id, uid, ip, state }))
}

/// Reads a Secret. Values that are no text are left out: no credential here is.
pub(super) fn secret(_: &Subject, guard: DeserializeGuard<core::Secret>) -> Option<Item> {
    let secret = guard.0.ok()?;
    let values = secret.data.unwrap_or_default().into_iter();
    let values = values.filter_map(|(name, value)| Some((name, String::from_utf8(value.0).ok()?))).collect();
    Some(Item::Secret(SecretData { id: id(&secret.metadata)?, values }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_pod(value: Value) -> Pod {
        let subject = Subject::Secret(ResourceId { namespace: String::new(), name: String::new() });
        let guard = serde_json::from_value(value).unwrap();
        let Some(Item::Pod(pod)) = pod(&subject, guard) else { panic!("no pod") };
        pod
    }

    #[test]
    fn a_pod_is_ready_by_its_condition_and_terminating_from_the_first_sign() {
        let pod = |deleted: Value, ready: &str, phase: &str| {
            read_pod(json!({
                "metadata": { "name": "p", "namespace": "n", "uid": "u", "deletionTimestamp": deleted },
                "status": { "phase": phase, "podIP": "10.0.0.1", "conditions": [{ "type": "Ready", "status": ready }] },
            }))
        };
        assert_eq!(pod(Value::Null, "True", "Running").state, PodState::Ready);
        assert_eq!(pod(Value::Null, "False", "Running").state, PodState::NotReady);
        assert_eq!(pod(json!("2026-01-01T00:00:00Z"), "True", "Running").state, PodState::Terminating);
        assert_eq!(pod(Value::Null, "True", "Running").ip, "10.0.0.1".parse().ok());
        assert_eq!(pod(Value::Null, "False", "Failed").ip, None);
    }

    #[test]
    fn no_debug_output_shows_what_a_secret_holds() {
        let subject = Subject::Secret(ResourceId { namespace: String::new(), name: String::new() });
        let value = json!({ "metadata": { "name": "s" }, "data": { "key": "aHVudGVyMg==" } });
        let item = secret(&subject, serde_json::from_value(value).unwrap()).unwrap();
        let Item::Secret(data) = &item else { panic!("no Secret") };
        assert_eq!(data.values["key"], "hunter2");
        assert!(!format!("{item:?}").contains("hunter2"));
    }

    #[test]
    fn an_object_that_cannot_be_read_keeps_its_name() {
        let subject = Subject::Objects { kind: Kind::InferencePool, namespace: String::new() };
        let value =
            json!({ "kind": 7, "apiVersion": "x", "metadata": { "name": "p", "namespace": "n", "generation": 3 } });
        let guard = serde_json::from_value(value).unwrap();
        let Some(Item::Object(object)) = object(&subject, guard) else { panic!("no object") };
        assert_eq!((Object::name(&object.key), object.generation), ("InferencePool p (n)".into(), 3));
        assert!(object.document().is_none() || object.spec.is_ok());
    }
}
