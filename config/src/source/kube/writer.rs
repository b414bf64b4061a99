//! Statuses and Events written to the API server: only what differs, a bounded number at once, and never in a loop with
//! what the watch then brings.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use crds::status::Status;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::item::{Key, Object};
use super::set::{InForce, Objects, Verdict};
use super::status::{Taken, Tally, line, listed, shortened, wanted};
use super::watch::Failure;
use crate::limits::{STATUS_EVERY, STATUS_WRITES_MAX};

/// Longest time for one write.
const WRITE_WITHIN: Duration = Duration::from_secs(10);
/// How long nothing is written after the server refused.
const PAUSE: Duration = Duration::from_secs(10);
/// How long the status of an object that had changed meanwhile waits for the watch to bring the change.
const OVERTAKEN_PAUSE: Duration = Duration::from_millis(500);
/// Events that are remembered as told.
const TOLD_MAX: usize = 10_000;

/// One write.
#[derive(Clone, Debug)]
pub(super) enum Write {
    /// `version` is the one that the status was made for.
    Status {
        key: Key,
        uid: String,
        version: String,
        status: Box<Status>,
    },
    Event {
        key: Key,
        uid: String,
        reason: String,
        message: String,
    },
}

/// How a write ended.
#[derive(Debug)]
pub(super) struct Written {
    pub write: Write,
    /// Of a status: what the server made of it, where it took it.
    pub result: Result<Option<Box<Status>>, Failure>,
}

/// The last write of a status.
#[derive(Debug)]
struct Last {
    at: Instant,
    wanted: Status,
    /// As the server has it: an older definition may have dropped fields.
    stored: Status,
}

/// What there is to write.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// What was written last, by uid: the watch may not have brought it yet.
    last: HashMap<String, Last>,
    /// Events that were told, by a hash of what they say.
    told: HashSet<u64>,
    paused_until: Option<Instant>,
    /// Objects whose status the server does not take as they are, by uid: an old server judges the whole object anew.
    unwritable: HashMap<String, i64>,
    /// Objects that had changed when their status was to be written, by uid, and when: the watch is to bring them.
    overtaken: HashMap<String, Instant>,
    /// Writes of statuses so far.
    pub writes: u64,
}

/// What statuses follow from.
pub(super) struct Facts<'f> {
    pub objects: &'f Objects,
    pub verdicts: &'f BTreeMap<Key, Verdict>,
    pub tally: &'f Tally,
    pub taken: Taken,
}

impl Desk {
    /// What is to be written now, at most as much as one pass may take.
    pub(super) fn due(&mut self, facts: &Facts<'_>, now: Instant) -> Vec<Write> {
        if self.paused_until.is_some_and(|until| now < until) {
            return Vec::new();
        }
        let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut due = Vec::new();
        for (key, object) in facts.objects {
            let Some(verdict) = facts.verdicts.get(key).filter(|v| v.generation == object.generation) else { continue };
            if due.len() >= STATUS_WRITES_MAX {
                break;
            }
            due.extend(self.events(key, object, verdict));
            if self.unwritable.get(&object.uid) == Some(&object.generation) {
                continue;
            }
            if self.overtaken.get(&object.uid).is_some_and(|at| now.duration_since(*at) < OVERTAKEN_PAUSE) {
                continue;
            }
            let last = self.last.get(&object.uid);
            let had = last.map_or(&object.status, |last| &last.wanted);
            let status = wanted(key, verdict, facts.tally, facts.taken, had, &time);
            let rested = last.is_none_or(|last| now.duration_since(last.at) >= STATUS_EVERY);
            // Someone else wrote over ours. By then the watch has brought what we wrote.
            let theirs = rested && last.is_some_and(|last| object.status != last.stored);
            let news = status.conditions != had.conditions;
            if status != *had && (news || rested) || theirs {
                let (uid, version) = (object.uid.clone(), object.version.clone());
                due.push(Write::Status { key: key.clone(), uid, version, status: Box::new(status) });
            }
        }
        let uids: HashSet<&str> = facts.objects.values().map(|object| object.uid.as_str()).collect();
        self.last.retain(|uid, _| uids.contains(uid.as_str()));
        self.unwritable.retain(|uid, _| uids.contains(uid.as_str()));
        self.overtaken.retain(|uid, _| uids.contains(uid.as_str()));
        due
    }

    fn events(&mut self, key: &Key, object: &Object, verdict: &Verdict) -> Vec<Write> {
        let mut texts: Vec<(String, String)> = Vec::new();
        if !verdict.errors.is_empty() {
            let stays = match verdict.in_force {
                InForce::Earlier(generation) => format!(" (generation {generation} stays in force)"),
                InForce::Current | InForce::No => String::new(),
            };
            texts.push(("Refused".to_owned(), format!("{}{stays}", listed(&verdict.errors))));
        }
        let findings = verdict.unresolved.iter().chain(&verdict.warnings);
        texts.extend(findings.map(|finding| (format!("{:?}", finding.code), line(finding))));
        if self.told.len() > TOLD_MAX {
            self.told.clear();
        }
        let hash = |text: &(String, String)| stable_hash(&(&object.uid, object.generation, text));
        let new: Vec<(String, String)> = texts.into_iter().filter(|text| !self.told.contains(&hash(text))).collect();
        self.told.extend(new.iter().map(hash));
        new.into_iter()
            .map(|(reason, message)| Write::Event { key: key.clone(), uid: object.uid.clone(), reason, message })
            .collect()
    }

    /// Takes in how a write ended.
    pub(super) fn wrote(&mut self, written: &Written, now: Instant) {
        match (&written.write, &written.result) {
            (Write::Status { uid, status, .. }, Ok(Some(stored))) => {
                self.writes += 1;
                let last = Last { at: now, wanted: (**status).clone(), stored: (**stored).clone() };
                self.last.insert(uid.clone(), last);
            }
            // Another version is on its way here.
            (Write::Status { uid, .. }, Ok(None)) => _ = self.overtaken.insert(uid.clone(), now),
            (Write::Status { .. }, Err(Failure::Absent | Failure::Expired)) => {}
            (Write::Event { .. }, Ok(_) | Err(Failure::Absent | Failure::Expired)) => {}
            (Write::Status { uid, status, .. }, Err(Failure::Invalid(_))) => {
                self.unwritable.insert(uid.clone(), status.observed_generation.unwrap_or(0));
            }
            (Write::Status { .. }, Err(Failure::Refused(_) | Failure::Away(_))) => {
                self.paused_until = Some(now + PAUSE);
            }
            (Write::Event { .. }, Err(Failure::Refused(_) | Failure::Invalid(_) | Failure::Away(_))) => {}
        }
    }
}

/// The same in every process, so that two gateways give an Event the same name.
fn stable_hash<T: std::hash::Hash>(value: &T) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// The resource of a kind, as the client wants it.
pub(super) fn resource(kind: crds::Kind) -> ApiResource {
    ApiResource {
        group: crds::GROUP.to_owned(),
        version: crds::VERSION.to_owned(),
        api_version: crds::API_VERSION.to_owned(),
        kind: kind.as_str().to_owned(),
        plural: kind.plural().to_owned(),
    }
}

/// Makes a write.
pub(super) async fn make(client: &Client, identity: &str, write: Write) -> Written {
    let made = async {
        match &write {
            Write::Status { key, version, status, .. } => {
                patch_status(client, key, version, status).await.map(|stored| stored.map(Box::new))
            }
            Write::Event { key, uid, reason, message } => {
                create_event(client, identity, key, uid, reason, message).await.map(|()| None)
            }
        }
    };
    let result = match timeout(WRITE_WITHIN, made).await {
        Ok(Ok(stored)) => Ok(stored),
        Ok(Err(error)) => Err(Failure::from(&error)),
        Err(_) => Err(Failure::Away(format!("no answer within {WRITE_WITHIN:?}"))),
    };
    Written { write, result }
}

/// What the server has then; `None` when the object is another one by now.
async fn patch_status(client: &Client, key: &Key, version: &str, status: &Status) -> kube::Result<Option<Status>> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.id.namespace, &resource(key.kind));
    // Of another version, and of another object of the name, it is another one's status: 409. A uid would be passed over.
    let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
    match api.patch_status(&key.id.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(object) => Ok(Some(serde_json::from_value(object.data["status"].clone()).unwrap_or_default())),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error),
    }
}

async fn create_event(
    client: &Client,
    identity: &str,
    key: &Key,
    uid: &str,
    reason: &str,
    message: &str,
) -> kube::Result<()> {
    let api: Api<Event> = Api::namespaced(client.clone(), &key.id.namespace);
    let now = Time(Timestamp::now());
    let about: String = key.id.name.chars().take(200).collect();
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{about}.{:016x}", stable_hash(&(uid, reason, message)))),
            namespace: Some(key.id.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(crds::API_VERSION.to_owned()),
            kind: Some(key.kind.as_str().to_owned()),
            name: Some(key.id.name.clone()),
            namespace: Some(key.id.namespace.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(shortened(message)),
        count: Some(1),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        source: Some(EventSource { component: Some("kinference".to_owned()), host: Some(identity.to_owned()) }),
        reporting_component: Some("kinference".to_owned()),
        reporting_instance: Some(identity.to_owned()),
        ..Event::default()
    };
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => Ok(()),
        // Told before, by this process or the one that wrote before it.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crds::Kind;
    use policy::{Code, Diagnostic};

    use super::*;
    use crate::snapshot::ResourceId;

    type Set = (Objects, BTreeMap<Key, Verdict>);

    fn facts<'f>(set: &'f Set, tally: &'f Tally, taken: Taken) -> Facts<'f> {
        Facts { objects: &set.0, verdicts: &set.1, tally, taken }
    }

    fn one(verdict: Verdict) -> Set {
        let key = Key { kind: Kind::InferencePool, id: ResourceId { namespace: "n".into(), name: "p".into() } };
        let (uid, version, status) = ("u".to_owned(), "1".to_owned(), Status::default());
        let object = Object { key: key.clone(), uid, version, generation: 1, spec: Ok(json!({})), status };
        (BTreeMap::from([(key.clone(), Arc::new(object))]), BTreeMap::from([(key, verdict)]))
    }

    fn verdict(warnings: Vec<Diagnostic>) -> Verdict {
        Verdict { generation: 1, errors: Vec::new(), unresolved: Vec::new(), warnings, in_force: InForce::Current }
    }

    #[tokio::test]
    async fn a_status_is_written_once_and_again_only_when_it_differs() {
        let mut set = one(verdict(Vec::new()));
        let (mut desk, tally) = (Desk::default(), Tally::default());
        let start = Instant::now();
        let due = desk.due(&facts(&set, &tally, Taken::Over), start);
        assert_eq!(due.len(), 1);
        let Write::Status { key, status, .. } = &due[0] else { panic!("a status") };
        desk.wrote(&Written { write: due[0].clone(), result: Ok(Some(status.clone())) }, start);
        // The watch has not brought it yet, then it has.
        assert!(desk.due(&facts(&set, &tally, Taken::Over), start).is_empty());
        let object = Object { status: (**status).clone(), ..(*set.0[key]).clone() };
        set.0.insert(key.clone(), Arc::new(object));
        let later = start + STATUS_EVERY;
        assert!(desk.due(&facts(&set, &tally, Taken::Over), later).is_empty());
        assert_eq!(desk.due(&facts(&set, &tally, Taken::NotYet), later).len(), 1);
    }

    #[tokio::test]
    async fn a_status_that_the_server_cuts_is_not_written_again_and_again() {
        let mut set = one(verdict(Vec::new()));
        let (mut desk, tally) = (Desk::default(), Tally::default());
        let now = Instant::now();
        let write = desk.due(&facts(&set, &tally, Taken::Over), now).remove(0);
        let cut = Status { observed_generation: None, ..Status::default() };
        desk.wrote(&Written { write, result: Ok(Some(Box::new(cut.clone()))) }, now);
        assert!(desk.due(&facts(&set, &tally, Taken::Over), now + STATUS_EVERY).is_empty());
        // Another hand, however, is seen.
        for object in set.0.values_mut() {
            let status = Status { observed_generation: Some(99), ..cut.clone() };
            *object = Arc::new(Object { status, ..(**object).clone() });
        }
        assert_eq!(desk.due(&facts(&set, &tally, Taken::Over), now + STATUS_EVERY).len(), 1);
    }

    #[tokio::test]
    async fn a_status_for_a_version_that_is_no_more_waits_for_the_next() {
        let set = one(verdict(Vec::new()));
        let (mut desk, tally) = (Desk::default(), Tally::default());
        let now = Instant::now();
        let write = desk.due(&facts(&set, &tally, Taken::Over), now).remove(0);
        assert!(matches!(&write, Write::Status { version, .. } if version == "1"));
        desk.wrote(&Written { write, result: Ok(None) }, now);
        assert!(desk.due(&facts(&set, &tally, Taken::Over), now).is_empty());
        assert_eq!(desk.due(&facts(&set, &tally, Taken::Over), now + OVERTAKEN_PAUSE).len(), 1);
    }

    #[tokio::test]
    async fn an_event_is_told_once() {
        let set = one(verdict(vec![Diagnostic::new(Code::NoEffect, "does nothing")]));
        let (mut desk, tally) = (Desk::default(), Tally::default());
        let events = |due: &[Write]| due.iter().filter(|write| matches!(write, Write::Event { .. })).count();
        assert_eq!(events(&desk.due(&facts(&set, &tally, Taken::Over), Instant::now())), 1);
        assert_eq!(events(&desk.due(&facts(&set, &tally, Taken::Over), Instant::now())), 0);
    }

    #[tokio::test]
    async fn a_status_that_is_not_taken_waits_for_another_version_of_its_object() {
        let mut set = one(verdict(Vec::new()));
        let (mut desk, tally) = (Desk::default(), Tally::default());
        let now = Instant::now();
        let write = desk.due(&facts(&set, &tally, Taken::Over), now).remove(0);
        desk.wrote(&Written { write, result: Err(Failure::Invalid("no".into())) }, now);
        assert!(desk.due(&facts(&set, &tally, Taken::Over), now + PAUSE).is_empty());
        for object in set.0.values_mut() {
            *object = Arc::new(Object { generation: 2, ..(**object).clone() });
        }
        set.1.values_mut().for_each(|verdict| verdict.generation = 2);
        assert_eq!(desk.due(&facts(&set, &tally, Taken::Over), now + PAUSE).len(), 1);
    }

    #[tokio::test]
    async fn after_a_refusal_nothing_is_written_for_a_while() {
        let set = one(verdict(Vec::new()));
        let (mut desk, tally) = (Desk::default(), Tally::default());
        let now = Instant::now();
        let write = desk.due(&facts(&set, &tally, Taken::Over), now).remove(0);
        desk.wrote(&Written { write, result: Err(Failure::Refused("no".into())) }, now);
        assert!(desk.due(&facts(&set, &tally, Taken::Over), now).is_empty());
        assert_eq!(desk.due(&facts(&set, &tally, Taken::Over), now + PAUSE).len(), 1);
    }
}
