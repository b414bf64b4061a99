//! What the gateway asks an API server for is what the chart allows it, and nothing that the chart allows is never asked for.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use apiserver::{ApiServer, Options, Seen};
use crds::Kind;
use serde_json::{Value, json};

use crate::{Running, manifest, of_kind, texts};

/// Objects that make the gateway do all that it ever does: a selector, a Secret that is named, a policy with a warning.
fn objects() -> Vec<Value> {
    let object = |kind: Kind, name: &str, spec: Value| {
        let metadata = json!({ "name": name, "namespace": "default" });
        json!({ "apiVersion": crds::API_VERSION, "kind": kind.as_str(), "metadata": metadata, "spec": spec })
    };
    let selector = json!({ "model": { "name": "m" }, "selector": { "matchLabels": { "app": "vllm" } } });
    let provider = json!({
        "type": "OpenAI", "baseURL": "http://127.0.0.1:1", "models": [{ "name": "p" }],
        "auth": { "bearer": { "secretRef": { "name": "token", "key": "key" } } },
    });
    let both = json!([{ "kind": "InferenceWorkerSet", "name": "w" }, { "kind": "InferenceProvider", "name": "p" }]);
    let unreachable = json!({ "rules": [{ "name": "all", "route": {} }, { "name": "never", "route": {} }] });
    let words = json!({ "type": "Keywords", "tags": [{ "tag": "t", "any": ["word"] }] });
    vec![
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "token", "namespace": "default" },
            "data": { "key": "c2VjcmV0" },
        }),
        object(Kind::InferenceWorkerSet, "w", selector),
        object(Kind::InferenceProvider, "p", provider),
        object(Kind::InferenceTenant, "t", json!({ "apiKeys": [{ "sha256": "0".repeat(64) }] })),
        object(Kind::InferenceClassifier, "c", words),
        object(Kind::InferencePolicy, "policy", unreachable),
        object(Kind::InferencePool, "pool", json!({ "destinations": both, "policyRef": [{ "name": "policy" }] })),
    ]
}

/// The server's file of the manifest, on free ports and with a kubeconfig in place of the pod's account.
fn server_file(objects: &[Value], kubeconfig: &Path) -> String {
    let text = of_kind(objects, &["ConfigMap"]).into_iter().find_map(|map| map["data"]["kinference.yaml"].as_str());
    let mut findings = Vec::new();
    let file = config::SourceFile::new("kinference.yaml", text.expect("a server's file"));
    let mut file = config::load::documents(&file, &mut findings)[0].root.to_value();
    file["listeners"] = json!([{ "address": "127.0.0.1:0" }]);
    file["admin"]["address"] = json!("127.0.0.1:0");
    file["kubernetes"]["kubeconfig"] = json!(kubeconfig);
    file.to_string()
}

/// The permission that a request needs: verb and resource.
fn needs(seen: &Seen) -> (String, String) {
    (seen.verb.clone(), seen.resource.clone())
}

#[test]
fn the_gateway_asks_for_what_the_chart_allows_and_for_all_of_it() {
    let server = ApiServer::start(Options::default()).expect("listens");
    for kind in Kind::CUSTOM_RESOURCES {
        server.create(&crds::schema::crd::definition(kind).expect("a definition")).expect("is stored");
    }
    for object in objects() {
        server.create(&object).expect("is stored");
    }
    server.forget_seen();
    let folder = tempfile::tempdir().expect("a folder");
    let (kubeconfig, file) = (folder.path().join("kubeconfig"), folder.path().join("kinference.yaml"));
    std::fs::write(&kubeconfig, server.kubeconfig()).expect("writes");
    let objects = manifest("deployment");
    std::fs::write(&file, server_file(&objects, &kubeconfig)).expect("writes");
    let process = Command::new(env!("CARGO_BIN_EXE_kinference"))
        .args(["serve", "--config"])
        .arg(&file)
        .env("POD_NAME", "kinference-0")
        .env("POD_NAMESPACE", "default")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let running = Running(process.expect("runs"));

    let allowed = allowed(&objects);
    let plain: BTreeSet<(String, String)> =
        allowed.iter().map(|(verb, resource, _)| (verb.clone(), resource.clone())).collect();
    let asked = |seen: &[Seen]| seen.iter().map(needs).collect::<BTreeSet<_>>();
    let all = server.wait_seen(|seen| plain.is_subset(&asked(seen)));
    let seen = server.seen();
    drop(running);
    assert!(all, "allowed and never asked for: {:?}", plain.difference(&asked(&seen)).collect::<Vec<_>>());
    for request in &seen {
        let (verb, resource) = needs(request);
        let named = |name: &Option<String>| name.as_ref().is_none_or(|name| *name == request.name);
        // Each Secret has a rule of its own, which allows a list and a watch of its name alone.
        let secret = resource == "secrets"
            && ["list", "watch"].contains(&verb.as_str())
            && request.query.get("fieldSelector").is_some_and(|selector| selector == "metadata.name=token");
        let by_rule = allowed.iter().any(|(v, r, name)| *v == verb && *r == resource && named(name));
        assert!(secret || by_rule, "the chart does not allow {request:?}");
    }
    assert!(seen.iter().any(|request| request.resource == "secrets"), "no Secret was read");
}

/// What the rules of a manifest allow: verb, resource, and the one object where there is one.
fn allowed(objects: &[Value]) -> Vec<(String, String, Option<String>)> {
    let mut allowed = Vec::new();
    for role in of_kind(objects, &["ClusterRole", "Role"]) {
        for rule in role["rules"].as_array().expect("a list") {
            for (verb, resource) in texts(&rule["verbs"]).into_iter().flat_map(|verb| {
                texts(&rule["resources"]).into_iter().map(move |resource| (verb.to_owned(), resource.to_owned()))
            }) {
                let names = texts(&rule["resourceNames"]);
                let name = names.first().map(|name| (*name).to_owned());
                allowed.push((verb, resource, name));
            }
        }
    }
    allowed
}
