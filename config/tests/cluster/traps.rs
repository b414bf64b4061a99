//! What goes wrong between an API server and whoever watches it.

use std::time::Duration;

use apiserver::{ApiServer, Expiry, Options, Transport};
use config::source::cluster::{ClusterNews, Contact};
use config::source::kube::check_kubeconfig;
use crds::Kind;

use crate::support::{Followed, bare, define, definition, follow, follow_for, pool, server, workers};

fn followed_with_one(server: &ApiServer) -> Followed {
    server.create(&workers("gemma")).unwrap();
    let followed = follow(server);
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    followed
}

/// Stops the server, changes everything behind the watchers' backs, and starts it again.
fn restart(server: &mut ApiServer) {
    server.stop();
    server.delete(&workers("gemma")).unwrap();
    server.create(&workers("llama")).unwrap();
    server.resume().unwrap();
}

fn has_llama(snapshot: &config::Snapshot) -> bool {
    snapshot.worker_sets.iter().map(|set| set.id.name.as_str()).eq(["llama"])
}

#[test]
fn a_version_that_is_too_old_means_a_new_list_when_an_event_says_so() {
    let mut server = server();
    let followed = followed_with_one(&server);
    restart(&mut server);
    followed.snapshot("the state after the restart", has_llama);
}

#[test]
fn a_version_that_is_too_old_means_a_new_list_when_the_status_says_so() {
    let mut server = server();
    server.expire_by(Expiry::Status);
    let followed = followed_with_one(&server);
    restart(&mut server);
    followed.snapshot("the state after the restart", has_llama);
}

#[test]
fn a_server_that_goes_away_changes_nothing_but_what_is_said_of_it() {
    let mut server = server();
    let address = server.address().to_string();
    let followed = followed_with_one(&server);
    server.stop();
    let contact = followed.contact("it is away", |contact| *contact != Contact::With);
    assert!(
        matches!(&contact, Contact::Without { why, .. } if why.contains("refused") && why.contains(&address)),
        "{contact:?}"
    );
    assert!(followed.rest().is_empty());
    server.resume().unwrap();
    followed.contact("it is back", |contact| *contact == Contact::With);
    server.create(&pool("p", &["gemma"])).unwrap();
    let next = followed.wait("a snapshot", |news| match news {
        ClusterNews::Snapshot(snapshot) => Some(snapshot),
        _ => None,
    });
    assert_eq!((next.pools.len(), next.worker_sets.len()), (1, 1));
}

#[test]
fn a_server_that_is_away_at_the_start_is_waited_for() {
    let mut server = server();
    server.create(&workers("gemma")).unwrap();
    server.stop();
    let followed = follow(&server);
    followed.contact("it is away", |contact| *contact != Contact::With);
    server.resume().unwrap();
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
}

#[test]
fn a_server_that_takes_connections_and_never_answers_is_told_of_by_its_address() {
    let server = server();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, server.kubeconfig().replace(&server.address().to_string(), &address)).unwrap();
    let followed = crate::support::follow_file(path);
    let told = followed.waiting("which server is waited for", |reasons| !reasons.is_empty());
    assert_eq!(told, [format!("the API server http://{address} has not answered yet")]);
}

#[test]
fn a_kubeconfig_that_leads_nowhere_is_told_in_one_line_without_what_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("users: t0ken\n", "not YAML of the form"),
        ("- t0ken: [", "not YAML of the form"),
        ("apiVersion: v1\nkind: Config\n", "cannot be used"),
    ];
    for (text, why) in cases {
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, text).unwrap();
        let told = check_kubeconfig(&path).unwrap_err();
        assert!(told.contains(why) && told.contains("kubeconfig ") && !told.contains("t0ken"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    assert!(check_kubeconfig(folder.path()).unwrap_err().contains("is not a file"));
    assert!(check_kubeconfig(&folder.path().join("none")).unwrap_err().contains("cannot be read"));
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, server().kubeconfig()).unwrap();
    assert_eq!(check_kubeconfig(&path), Ok(()));
}

#[test]
fn a_connection_whose_other_side_is_gone_is_given_up() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    let followed = follow_for(&server, "test", Duration::from_secs(1));
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    server.go_silent();
    server.create(&workers("llama")).unwrap();
    followed.snapshot("what the dead connection did not bring", |snapshot| snapshot.worker_sets.len() == 2);
}

#[test]
fn a_watch_that_ends_at_its_time_goes_on_from_where_it_was() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    let followed = follow_for(&server, "test", Duration::from_secs(1));
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    let watches = |seen: &[apiserver::Seen]| {
        seen.iter().filter(|seen| seen.verb == "watch" && seen.resource == "inferenceworkersets").count()
    };
    assert!(server.wait_seen(|seen| watches(seen) >= 3));
    server.create(&workers("llama")).unwrap();
    followed.snapshot("the next", |snapshot| snapshot.worker_sets.len() == 2);
    let lists = server.seen().into_iter().filter(|seen| seen.verb == "list" && seen.resource == "inferenceworkersets");
    assert_eq!(lists.count(), 1);
}

#[test]
fn a_definition_that_is_deleted_takes_its_objects_and_brings_them_back() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    server.create(&pool("p", &["gemma"])).unwrap();
    let followed = follow(&server);
    followed.snapshot("the first", |snapshot| snapshot.pools.len() == 1);
    server.delete(&definition(Kind::InferencePool)).unwrap();
    followed.snapshot("no pool", |snapshot| snapshot.pools.is_empty() && snapshot.worker_sets.len() == 1);
    followed.note("inferencepools: the resource is not served");
    server.create(&definition(Kind::InferencePool)).unwrap();
    server.create(&pool("p", &["gemma"])).unwrap();
    followed.snapshot("the pool again", |snapshot| snapshot.pools.len() == 1);
}

#[test]
fn definitions_that_are_not_installed_are_waited_for_and_the_way_out_is_told() {
    let server = bare();
    let followed = follow(&server);
    let told = followed.waiting("why nothing is in force", |reasons| !reasons.is_empty());
    assert_eq!(told.len(), 1, "{told:?}");
    for word in ["inferencepools", "inferencetenants", "kinfctl schema --crds | kubectl apply"] {
        assert!(told[0].contains(word), "{told:?}");
    }
    define(&server);
    server.create(&workers("gemma")).unwrap();
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
}

#[test]
fn a_server_that_speaks_tls_is_believed_by_its_kubeconfig_alone() {
    let options = Options { transport: Transport::Tls, ..Options::default() };
    let server = ApiServer::start(options.clone()).unwrap();
    define(&server);
    server.create(&workers("gemma")).unwrap();
    let followed = follow(&server);
    followed.snapshot("over TLS", |snapshot| snapshot.worker_sets.len() == 1);
    let other = ApiServer::start(options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, server.kubeconfig().replace(&server.address().to_string(), &other.address().to_string()))
        .unwrap();
    let stranger = crate::support::follow_file(path);
    let contact = stranger.contact("it is not believed", |contact| *contact != Contact::With);
    assert!(matches!(&contact, Contact::Without { why, .. } if why.contains("certificate")), "{contact:?}");
}

#[test]
fn nothing_is_in_force_before_every_kind_could_be_read() {
    let server = server();
    server.forbid("list", "inferencetenants");
    server.create(&workers("gemma")).unwrap();
    let followed = follow(&server);
    let told = followed.waiting("what is not allowed", |reasons| reasons.len() == 1);
    assert!(told[0].contains("inferencetenants") && told[0].contains("cannot list resource"), "{told:?}");
    // All the others have been listed by now: the refused one is tried again and again.
    assert!(server.wait_seen(|seen| {
        let lists = |plural: &str| seen.iter().filter(|s| s.verb == "list" && s.resource == plural).count();
        lists("inferencetenants") > 3 && lists("inferenceworkersets") > 0
    }));
    assert!(!followed.rest().iter().any(|news| matches!(news, ClusterNews::Snapshot(_))));
    server.allow_all();
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
}

#[test]
fn a_right_that_is_taken_away_changes_nothing() {
    let server = server();
    server.create(&workers("gemma")).unwrap();
    let followed = follow_for(&server, "test", Duration::from_secs(1));
    followed.snapshot("the first", |snapshot| snapshot.worker_sets.len() == 1);
    for verb in ["list", "watch"] {
        server.forbid(verb, "inferenceworkersets");
    }
    followed.note("cannot watch resource");
    server.create(&pool("p", &["gemma"])).unwrap();
    followed.snapshot("other kinds go on", |snapshot| snapshot.pools.len() == 1 && snapshot.worker_sets.len() == 1);
    server.create(&workers("llama")).unwrap();
    server.allow_all();
    followed.snapshot("what came meanwhile", |snapshot| snapshot.worker_sets.len() == 2);
}

#[test]
fn only_the_token_lets_in() {
    let options = apiserver::Options { token: Some("right".into()), ..apiserver::Options::default() };
    let server = ApiServer::start(options).unwrap();
    define(&server);
    let followed = follow(&server);
    followed.snapshot("let in", |snapshot| snapshot.worker_sets.is_empty());
    let wrong = apiserver::Options { token: Some("other".into()), ..apiserver::Options::default() };
    let locked = ApiServer::start(wrong).unwrap();
    define(&locked);
    // A kubeconfig of the first with the address of the second.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let text = server.kubeconfig().replace(&server.address().to_string(), &locked.address().to_string());
    std::fs::write(&path, text).unwrap();
    let refused = crate::support::follow_file(path);
    let told = refused.waiting("it is not let in", |reasons| reasons.len() == Kind::CUSTOM_RESOURCES.len());
    assert!(told.iter().all(|reason| reason.contains("Unauthorized") && !reason.contains("right")), "{told:?}");
}
