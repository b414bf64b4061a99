//! What is written back: conditions, counts, Events, by one of several and never in a loop.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use apiserver::{ApiServer, Seen};
use config::snapshot::ResourceId;
use config::source::cluster::Counts;
use crds::Kind;
use serde_json::{Value, json};

use crate::support::{condition, follow, follow_for, object, pool, resource, server, workers};

fn wait(server: &ApiServer, kind: Kind, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let found = server.wait(&resource(kind), "default", name, wanted);
    found.unwrap_or_else(|| panic!("never so: {:#?}", server.object(&resource(kind), "default", name)))
}

fn status_writes(seen: &[Seen], name: &str) -> usize {
    seen.iter().filter(|s| s.verb == "patch" && s.resource.ends_with("/status") && s.name == name).count()
}

#[test]
fn conditions_say_what_became_of_each_object() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    server.create(&pool("p", &["gemma", "missing"])).unwrap();
    server
        .store_unseen(&object(Kind::InferencePolicy, "odd", json!({ "rules": [{ "name": "x", "rout": {} }] })))
        .unwrap();
    let followed = follow(&server);
    followed.snapshot("the first", |snapshot| snapshot.pools.len() == 1);

    let good = wait(&server, Kind::InferenceWorkerSet, "gemma", |o| condition(o, "Programmed").0 == "True");
    assert_eq!(condition(&good, "Accepted").0, "True");
    assert_eq!(condition(&good, "ResolvedRefs").0, "True");
    assert_eq!(good["status"]["observedGeneration"], good["metadata"]["generation"]);

    let half = wait(&server, Kind::InferencePool, "p", |o| condition(o, "Programmed").0 == "True");
    let (status, reason, message) = condition(&half, "ResolvedRefs");
    assert_eq!((status, reason), ("False", "RefNotFound"));
    assert!(message.contains("spec.destinations[1].name") && message.contains("`missing`"), "{message}");

    let bad = wait(&server, Kind::InferencePolicy, "odd", |o| condition(o, "Accepted").0 == "False");
    let (_, reason, message) = condition(&bad, "Accepted");
    assert_eq!(reason, "Invalid");
    assert!(message.contains("spec.rules[0]") && message.contains("exactly one of"), "{message}");
    assert_eq!(condition(&bad, "Programmed").0, "False");
}

#[test]
fn a_bad_change_is_told_with_the_generation_that_stays() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    let followed = follow(&server);
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    wait(&server, Kind::InferenceWorkerSet, "gemma", |o| condition(o, "Programmed").0 == "True");
    // The schema lets it in, the lowering does not.
    let mut broken = workers("gemma");
    broken["spec"]["model"]["aliases"] = json!(["same", "same"]);
    server.replace(&broken).unwrap();
    let told = wait(&server, Kind::InferenceWorkerSet, "gemma", |o| condition(o, "Accepted").0 == "False");
    assert_eq!(told["status"]["observedGeneration"], 2);
    assert_eq!(condition(&told, "Programmed").2, "generation 1, the last good one, stays in force");
    server.replace(&workers("gemma")).unwrap();
    wait(&server, Kind::InferenceWorkerSet, "gemma", |o| {
        condition(o, "Programmed").0 == "True" && o["status"]["observedGeneration"] == 3
    });
}

#[test]
fn endpoints_are_counted_on_worker_sets_and_pools() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    server.create(&pool("p", &["gemma"])).unwrap();
    let followed = follow(&server);
    followed.snapshot("the first", |snapshot| snapshot.pools.len() == 1);
    let id = ResourceId { namespace: "default".into(), name: "gemma".into() };
    followed.feedback.send_modify(|feedback| {
        feedback.worker_sets.insert(id, Counts { ready: 2, all: 3 });
    });
    for (kind, name) in [(Kind::InferenceWorkerSet, "gemma"), (Kind::InferencePool, "p")] {
        wait(&server, kind, name, |o| o["status"]["readyEndpoints"] == 2 && o["status"]["endpoints"] == 3);
    }
}

#[test]
fn a_status_that_is_as_it_should_be_is_not_written_again() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    let followed = follow(&server);
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    let settled = wait(&server, Kind::InferenceWorkerSet, "gemma", |o| condition(o, "Programmed").0 == "True");
    let version = settled["metadata"]["resourceVersion"].clone();
    server.forget_seen();
    // A change without meaning, then one whose status is written later than any echo of the first.
    for number in 0..3 {
        let name = format!("next-{number}");
        server.create(&workers(&name)).unwrap();
        followed.snapshot("the next", |snapshot| snapshot.worker_sets.iter().any(|set| set.id.name == name));
        wait(&server, Kind::InferenceWorkerSet, &name, |o| condition(o, "Programmed").0 == "True");
    }
    assert_eq!(status_writes(&server.seen(), "gemma"), 0);
    let now = server.object(&resource(Kind::InferenceWorkerSet), "default", "gemma").unwrap();
    assert_eq!(now["metadata"]["resourceVersion"], version);
}

#[test]
fn a_status_that_someone_else_writes_over_is_put_right() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    let followed = follow(&server);
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    let right = wait(&server, Kind::InferenceWorkerSet, "gemma", |o| condition(o, "Programmed").0 == "True");
    let mut wrong = right.clone();
    wrong["metadata"]["resourceVersion"] = json!("");
    wrong["status"] = json!({});
    server.replace_status(&wrong).unwrap();
    wait(&server, Kind::InferenceWorkerSet, "gemma", |o| condition(o, "Programmed").0 == "True");
}

#[test]
fn warnings_and_refusals_are_events_that_describe_shows() {
    let server = server();
    let mut idle = workers("gemma");
    idle["spec"]["tokenizer"] = json!({ "file": "tokenizer.json" });
    server.create(&idle).unwrap();
    server.store_unseen(&object(Kind::InferencePolicy, "odd", json!({ "rules": 7 }))).unwrap();
    let followed = follow(&server);
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    wait(&server, Kind::InferencePolicy, "odd", |o| condition(o, "Accepted").0 == "False");
    assert!(server.wait_seen(|seen| seen.iter().filter(|s| s.verb == "create" && s.resource == "events").count() >= 2));
    let events = server.objects("events", "default");
    let told = |name: &str| events.iter().find(|event| event["involvedObject"]["name"] == name).cloned().unwrap();
    let refused = told("odd");
    assert_eq!((&refused["type"], &refused["reason"]), (&json!("Warning"), &json!("Refused")));
    let odd = server.object(&resource(Kind::InferencePolicy), "default", "odd").unwrap();
    assert_eq!(refused["involvedObject"]["uid"], odd["metadata"]["uid"]);
    assert_eq!(refused["involvedObject"]["kind"], "InferencePolicy");
}

#[test]
fn only_the_holder_of_the_lease_writes() {
    let server = server();
    let held = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "kinference-status", "namespace": "default" },
        "spec": { "holderIdentity": "another", "leaseDurationSeconds": 1 },
    });
    server.create(&held).unwrap();
    server.create(&workers("gemma")).unwrap();
    let followed = follow_for(&server, "me", Duration::from_secs(50));
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    assert!(server.wait_seen(|seen| seen.iter().any(|s| s.verb == "get" && s.resource == "leases")));
    assert_eq!(status_writes(&server.seen(), "gemma"), 0);
    // The other one does not renew it: it is taken when its time is over, and not before.
    let lease = server.wait("leases.coordination.k8s.io", "default", "kinference-status", |lease| {
        lease["spec"]["holderIdentity"] == "me"
    });
    assert_eq!(lease.unwrap()["spec"]["leaseTransitions"], 1);
    wait(&server, Kind::InferenceWorkerSet, "gemma", |o| condition(o, "Programmed").0 == "True");
}

#[test]
fn who_leaves_gives_the_lease_back_and_the_next_need_not_wait_for_its_end() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    let mut first = follow_for(&server, "first", Duration::from_secs(50));
    let holder = |lease: &Value| lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
    let wait = |who: &str| {
        let lease = server.wait("leases.coordination.k8s.io", "default", "kinference-status", |l| holder(l) == who);
        lease.unwrap_or_else(|| panic!("`{who}` never holds it"))
    };
    wait("first");
    first.leave();
    let lease = wait("");
    assert_eq!((&lease["spec"]["leaseDurationSeconds"], &lease["spec"]["leaseTransitions"]), (&json!(1), &json!(0)));
    // All else goes on, and no status is written any more.
    server.forget_seen();
    server.create(&workers("llama")).unwrap();
    first.snapshot("it still follows", |snapshot| snapshot.worker_sets.len() == 2);
    let _second = follow_for(&server, "second", Duration::from_secs(50));
    assert_eq!(wait("second")["spec"]["leaseTransitions"], 1);
}

#[test]
fn a_server_that_lets_no_status_be_written_is_still_followed() {
    let server = server();
    server.forbid("patch", "inferenceworkersets/status");
    server.create(&workers("gemma")).unwrap();
    let followed = follow(&server);
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    followed.note("cannot be written");
    server.create(&workers("llama")).unwrap();
    followed.snapshot("the next", |snapshot| snapshot.worker_sets.len() == 2);
}

/// What the Role and ClusterRole of the rendered manifest allow, as (resource, verb).
fn allowed() -> BTreeSet<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests/deployment.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let mut findings = Vec::new();
    let documents = config::load::documents(&config::SourceFile::new("deployment.yaml", &text), &mut findings);
    assert!(findings.is_empty(), "{findings:?}");
    let roles = documents.iter().map(|document| document.root.to_value());
    let rules = roles.filter(|role| role["kind"].as_str().is_some_and(|kind| kind.ends_with("Role")));
    let mut allowed = BTreeSet::new();
    for rule in rules.flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default()) {
        let texts = |name: &str| rule[name].as_array().into_iter().flatten().filter_map(Value::as_str);
        for resource in texts("resources") {
            allowed.extend(texts("verbs").map(|verb| (resource.to_owned(), verb.to_owned())));
        }
    }
    // Secrets are named one by one when the chart is installed.
    allowed.extend(["list", "watch"].map(|verb| ("secrets".to_owned(), verb.to_owned())));
    allowed
}

#[test]
fn nothing_is_asked_for_that_the_deployed_role_does_not_allow() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    server.create(&pool("p", &["gemma", "missing"])).unwrap();
    let key = json!({ "apiKeys": [{ "secretRef": { "name": "alice", "key": "token" } }] });
    server.create(&object(Kind::InferenceTenant, "alice", key)).unwrap();
    let followed = follow(&server);
    followed.snapshot("the first", |snapshot| snapshot.pools.len() == 1);
    let asked = |seen: &[Seen]| -> BTreeSet<(String, String)> {
        seen.iter().map(|seen| (seen.resource.clone(), seen.verb.clone())).collect()
    };
    let all = ["events create", "inferencepools/status patch", "leases create", "pods watch", "secrets watch"];
    assert!(server.wait_seen(|seen| {
        let asked = asked(seen);
        all.iter().all(|pair| pair.split_once(' ').is_some_and(|(r, v)| asked.contains(&(r.to_owned(), v.to_owned()))))
    }));
    let allowed = allowed();
    let beyond: Vec<_> = asked(&server.seen()).into_iter().filter(|pair| !allowed.contains(pair)).collect();
    assert!(beyond.is_empty(), "{beyond:?} is not allowed");
}
