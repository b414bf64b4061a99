//! Secrets: only those that are named, followed as they change, never shown.

use config::{Auth, Snapshot};
use crds::Kind;
use serde_json::{Value, json};

use crate::support::{follow, object, server};

fn provider() -> Value {
    let spec = json!({
        "type": "OpenAI", "baseURL": "http://127.0.0.1:9/v1",
        "auth": { "bearer": { "secretRef": { "name": "hosted", "key": "token" } } },
        "models": [{ "name": "big" }],
    });
    object(Kind::InferenceProvider, "hosted", spec)
}

fn secret(token: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "hosted", "namespace": "default" },
        "stringData": { "token": token },
    })
}

fn token(snapshot: &Snapshot) -> Option<&str> {
    match snapshot.providers.first()?.auth.as_ref()? {
        Auth::Bearer(credential) => credential.value.as_ref().ok().map(config::Secret::expose),
        Auth::ApiKeyHeader { .. } | Auth::AwsSigV4 { .. } => None,
    }
}

#[test]
fn a_secret_is_waited_for_taken_and_followed() {
    let server = server();
    server.create(&provider()).unwrap();
    let followed = follow(&server);
    let first = followed.snapshot("without the Secret", |snapshot| snapshot.providers.len() == 1);
    assert_eq!(token(&first), None);
    server.create(&secret("one")).unwrap();
    followed.snapshot("with it", |snapshot| token(snapshot) == Some("one"));
    server.replace(&secret("two")).unwrap();
    followed.snapshot("rotated", |snapshot| token(snapshot) == Some("two"));
    server.delete(&secret("")).unwrap();
    followed.snapshot("without it", |snapshot| token(snapshot).is_none());
}

#[test]
fn no_other_secret_is_ever_asked_for() {
    let server = server();
    server.create(&provider()).unwrap();
    server.create(&secret("one")).unwrap();
    let followed = follow(&server);
    followed.snapshot("with the Secret", |snapshot| token(snapshot) == Some("one"));
    let seen = server.seen();
    let asked: Vec<_> = seen.iter().filter(|seen| seen.resource == "secrets").collect();
    assert!(!asked.is_empty());
    for seen in asked {
        let fields = seen.query.get("fieldSelector").map(String::as_str);
        assert_eq!((seen.namespace.as_str(), fields), ("default", Some("metadata.name=hosted")), "{seen:?}");
    }
}

#[test]
fn a_secret_that_may_not_be_read_holds_nothing_up() {
    let server = server();
    server.forbid("list", "secrets");
    server.create(&provider()).unwrap();
    server.create(&secret("one")).unwrap();
    let followed = follow(&server);
    let snapshot = followed.snapshot("the rest", |snapshot| snapshot.providers.len() == 1);
    assert_eq!(token(&snapshot), None);
    server.allow_all();
    followed.snapshot("once it may be", |snapshot| token(snapshot) == Some("one"));
}

#[test]
fn a_tenants_key_comes_from_a_secret() {
    let server = server();
    let spec = json!({ "apiKeys": [{ "secretRef": { "name": "hosted", "key": "token" } }] });
    server.create(&object(Kind::InferenceTenant, "alice", spec)).unwrap();
    server.create(&secret("one")).unwrap();
    let followed = follow(&server);
    followed.snapshot("alice with her key", |snapshot| {
        snapshot.tenants.first().is_some_and(|tenant| tenant.key_sha256.len() == 1)
    });
}

#[test]
fn a_credentials_file_is_followed_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "one").unwrap();
    let server = server();
    let mut provider = provider();
    provider["spec"]["auth"]["bearer"] = json!({ "fromFile": file });
    server.create(&provider).unwrap();
    let followed = follow(&server);
    followed.snapshot("the key", |snapshot| token(snapshot) == Some("one"));
    std::fs::write(&file, "another").unwrap();
    followed.snapshot("the next one", |snapshot| token(snapshot) == Some("another"));
}
