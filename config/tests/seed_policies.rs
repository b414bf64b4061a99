//! The public guide's own documents: they load, lint clean, and route as their tests say.

use std::path::Path;

use config::{Loaded, Lookup, SourceFile, load};
use serde_json::Value;

fn file(name: &str) -> SourceFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/seed-policies").join(name);
    SourceFile { name: name.into(), bytes: std::fs::read(path).expect("the case is there") }
}

fn loaded(name: &str) -> Loaded {
    load(&[file("fleet.yaml"), file(name)], &Lookup::Skip).unwrap_or_else(|findings| {
        let text: String = findings.iter().map(|f| f.human(None)).collect();
        panic!("{name} does not load:\n{text}")
    })
}

/// Stands in for the classifiers: the only personal data in the seed bodies is a card number.
fn classify(_: &config::Snapshot, body: &Value) -> Vec<String> {
    if body.to_string().contains("4111 1111 1111 1111") { vec!["pii".to_owned()] } else { Vec::new() }
}

fn routes_as_its_test_says(name: &str, cases: usize) {
    let loaded = loaded(name);
    assert_eq!(loaded.snapshot.warnings, [], "{name} lints clean");
    let results = config::policy_test::run(&loaded.snapshot, &loaded.tests, &classify);
    assert_eq!(results.len(), cases);
    for result in &results {
        let text: String = result.failures.iter().map(|f| f.human(None)).collect();
        assert!(result.passed(), "{name}: {}\n{text}got {}", result.case, result.got);
    }
}

#[test]
fn redirect_routes_as_its_test_says() {
    routes_as_its_test_says("redirect.yaml", 4);
}

#[test]
fn fastest_of_two_routes_as_its_test_says() {
    routes_as_its_test_says("fastest-of-two.yaml", 3);
}

#[test]
fn overflow_routes_as_its_test_says() {
    routes_as_its_test_says("overflow.yaml", 4);
}

#[test]
fn complexity_routes_as_its_test_says() {
    routes_as_its_test_says("complexity.yaml", 3);
}

#[test]
fn the_tenant_is_found_by_the_hash_of_its_key() {
    let loaded = loaded("redirect.yaml");
    let key = <sha2::Sha256 as sha2::Digest>::digest(b"data").into();
    assert_eq!(loaded.snapshot.tenant_of_key(&key).map(|t| loaded.snapshot.tenants[t].id.name.as_str()), Some("alice"));
    assert!(loaded.snapshot.tenant_of_key(&[0; 32]).is_none());
}
