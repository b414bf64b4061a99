//! Objects and pods come, change and go.

use config::source::cluster::{ClusterNews, PodState};
use crds::Kind;
use serde_json::json;

use crate::support::{follow, object, pod, pool, run_pod, server, workers};

#[test]
fn objects_come_change_and_go() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    let followed = follow(&server);
    let first = followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    assert!(first.pools.is_empty());
    server.create(&pool("p", &["gemma"])).unwrap();
    let second = followed.snapshot("a pool", |snapshot| snapshot.pools.len() == 1);
    assert!(second.generation > first.generation);
    let mut renamed = workers("gemma");
    renamed["spec"]["model"]["name"] = json!("gemma-5");
    server.replace(&renamed).unwrap();
    followed.snapshot("another model", |s| s.pool_for("gemma-5", &config::snapshot::PoolScope::All).is_some());
    server.delete(&pool("p", &[])).unwrap();
    followed.snapshot("no pool", |snapshot| snapshot.pools.is_empty());
}

#[test]
fn what_changes_nothing_is_not_handed_out_again() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    let followed = follow(&server);
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    let mut labelled = workers("gemma");
    labelled["metadata"]["labels"] = json!({ "team": "search" });
    server.replace(&labelled).unwrap();
    let mut status = workers("gemma");
    status["status"] = json!({ "readyEndpoints": 7 });
    server.replace_status(&status).unwrap();
    server.create(&workers("other")).unwrap();
    let next = followed.wait("the next snapshot", |news| match news {
        ClusterNews::Snapshot(snapshot) => Some(snapshot),
        _ => None,
    });
    assert_eq!((next.worker_sets.len(), next.generation), (2, 2));
}

#[test]
fn an_object_that_no_schema_would_let_in_is_isolated() {
    let server = server();
    server.store_unseen(&object(Kind::InferencePool, "broken", json!("no object at all"))).unwrap();
    server.store_unseen(&object(Kind::InferencePolicy, "odd", json!({ "rules": 7 }))).unwrap();
    server.create(&workers("gemma")).unwrap();
    server.create(&pool("p", &["gemma"])).unwrap();
    let followed = follow(&server);
    let snapshot = followed.snapshot("the rest", |snapshot| !snapshot.pools.is_empty());
    assert_eq!(snapshot.pools.iter().map(|pool| pool.id.name.as_str()).collect::<Vec<_>>(), ["p"]);
}

#[test]
fn a_list_of_several_pages_is_read_to_its_end() {
    let server = server();
    for number in 0..1_203 {
        let spec =
            json!({ "model": { "name": format!("m{number}") }, "selector": { "matchLabels": { "app": "none" } } });
        server.store_unseen(&object(Kind::InferenceWorkerSet, &format!("w{number:04}"), spec)).unwrap();
    }
    let followed = follow(&server);
    followed.snapshot("all of them", |snapshot| snapshot.worker_sets.len() == 1_203);
    let lists = server.seen().into_iter().filter(|seen| seen.verb == "list" && seen.resource == "inferenceworkersets");
    let tokens: Vec<bool> = lists.map(|seen| seen.query.contains_key("continue")).collect();
    assert_eq!(tokens, [false, true, true]);
}

#[test]
fn pods_come_with_the_first_snapshot_and_are_followed_to_their_end() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    run_pod(&server, &pod("a", "10.0.0.1", "True"));
    let mut other = pod("other", "10.0.0.9", "True");
    other["metadata"]["labels"]["app"] = json!("other");
    run_pod(&server, &other);
    let followed = follow(&server);
    let mut pods = Vec::new();
    followed.wait("the first snapshot", |news| match news {
        ClusterNews::Pods(all) => {
            pods = all.into_values().flatten().collect();
            None
        }
        ClusterNews::Snapshot(_) => Some(()),
        _ => None,
    });
    assert_eq!(pods.iter().map(|pod| (pod.name.as_str(), pod.state)).collect::<Vec<_>>(), [("a", PodState::Ready)]);

    run_pod(&server, &pod("b", "10.0.0.2", "False"));
    followed.pods("a pod that is not ready", |pods| pods.len() == 2 && pods[1].state == PodState::NotReady);
    server.replace_status(&pod("b", "10.0.0.2", "True")).unwrap();
    followed.pods("it is ready", |pods| pods.len() == 2 && pods[1].state == PodState::Ready);
    server.terminate(&pod("a", "", "")).unwrap();
    let leaving = followed.pods("the first sign of its end", |pods| pods[0].state == PodState::Terminating);
    assert_eq!(leaving.len(), 2);
    server.delete(&pod("a", "", "")).unwrap();
    followed.pods("its end", |pods| pods.len() == 1 && pods[0].name == "b");
}

#[test]
fn a_pod_of_the_same_name_and_address_is_another() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    run_pod(&server, &pod("a", "10.0.0.1", "True"));
    let followed = follow(&server);
    let first = followed.pods("the pod", |pods| pods.len() == 1);
    server.delete(&pod("a", "", "")).unwrap();
    run_pod(&server, &pod("a", "10.0.0.1", "True"));
    followed.pods("another pod", |pods| pods.len() == 1 && pods[0].uid != first[0].uid && pods[0].ip == first[0].ip);
}
