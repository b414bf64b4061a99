//! Signed tokens: who is believed, keys that change, keys that cannot be had.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;

use crate::issuer::{ISSUER, Publisher, SigningKey, key_set, now_s};
use crate::support::engines::MODEL;
use crate::support::{Answer, Driver, Gateway, Setup, chat, engine, eventually, fleet, model_requests};
use crate::{key_of, tenant, tenant_with_key};

on_both_drivers![
    a_token_names_its_tenant_and_a_bad_one_nobody,
    a_key_that_is_unknown_is_fetched_once_and_the_request_waits_for_it,
    keys_in_a_file_are_read_again_when_it_changes,
    keys_come_over_tls_from_whom_the_system_trusts,
    a_token_that_cannot_be_checked_yet_is_a_503,
];

fn alice(keys: &str) -> String {
    tenant("alice", &format!("jwt: {{ issuer: \"{ISSUER}\", audience: kinference, equals: alice, {keys} }}"))
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// A chat with this token and id.
fn ask(gateway: &Gateway, token: &str, id: &str) -> Answer {
    gateway.chat(&format!("{}x-request-id: {id}\r\n", bearer(token)), &chat(MODEL, 1))
}

fn expect_refused(gateway: &Gateway, token: &str, why: &str) {
    let answer = ask(gateway, token, "refused");
    assert_eq!((answer.status, answer.error_code().as_str()), (401, "invalid_token"), "{answer:?}");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    let said = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(said.contains(why), "{said}");
}

fn a_token_names_its_tenant_and_a_bad_one_nobody(driver: Driver) {
    let (engine, key) = (engine(), SigningKey::new("k1"));
    let tenants = alice("jwksFile: ../jwks.json")
        + &tenant(
            "carol",
            &format!("jwt: {{ issuer: \"{ISSUER}\", claim: groups, equals: c, jwksFile: ../jwks.json }}"),
        )
        + &tenant_with_key("bob", "");
    let mut setup = Setup::new(fleet(&[&engine]) + &tenants);
    setup.files.push(("jwks.json".into(), key_set(&[&key])));
    let gateway = setup.start(driver);
    let logged = |id: &str| gateway.log_of(id)["tenant"].as_str().unwrap().to_owned();

    // Twice: verified, then known.
    for id in ["a1", "a2"] {
        assert_eq!(ask(&gateway, &key.token("alice"), id).status, 200);
        assert_eq!(logged(id), "alice");
    }
    let claims = json!({ "iss": ISSUER, "groups": ["b", "c"], "exp": now_s() + 60 });
    assert_eq!(ask(&gateway, &key.token_of(&claims), "c1").status, 200);
    assert_eq!(logged("c1"), "carol");
    assert_eq!(gateway.chat(&format!("{}x-request-id: b1\r\n", key_of("bob")), &chat(MODEL, 1)).status, 200);
    assert_eq!(logged("b1"), "bob");
    assert_eq!(model_requests(&engine).len(), 4);

    let token_of = |more: serde_json::Value| {
        let mut claims = json!({ "iss": ISSUER, "aud": "kinference", "sub": "alice", "exp": now_s() + 60 });
        for (name, value) in more.as_object().unwrap() {
            claims[name] = value.clone();
        }
        key.token_of(&claims)
    };
    expect_refused(&gateway, &token_of(json!({ "exp": now_s() - 60 })), "expired");
    expect_refused(&gateway, &token_of(json!({ "nbf": now_s() + 600 })), "not valid yet");
    expect_refused(&gateway, &token_of(json!({ "aud": "others" })), "names no tenant");
    expect_refused(&gateway, &token_of(json!({ "sub": "mallory" })), "names no tenant");
    expect_refused(&gateway, &token_of(json!({ "iss": "https://elsewhere" })), "issuer");
    expect_refused(&gateway, &SigningKey::new("k1").token("alice"), "signature");
    let (signed, _) = key.token("alice").rsplit_once('.').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    expect_refused(&gateway, &format!("{signed}."), "signature");
    assert_eq!(gateway.chat(&bearer("not-a-token"), &chat(MODEL, 1)).error_code(), "invalid_api_key");
    assert_eq!(model_requests(&engine).len(), 4);
}

fn a_key_that_is_unknown_is_fetched_once_and_the_request_waits_for_it(driver: Driver) {
    let (engine, old, new) = (engine(), SigningKey::new("old"), SigningKey::new("new"));
    let publisher = Publisher::start(key_set(&[&old]), None);
    let url = format!("jwksUrl: \"http://{}/.well-known/jwks.json\"", publisher.address);
    let gateway = Setup::new(fleet(&[&engine]) + &alice(&url)).threads(2).start(driver);
    assert_eq!(ask(&gateway, &old.token("alice"), "1").status, 200);
    assert_eq!(publisher.fetched(), 1);
    publisher.publish(key_set(&[&new]));
    assert_eq!(ask(&gateway, &new.token("alice"), "2").status, 200);
    assert_eq!(publisher.fetched(), 2);
    // The old key is gone, and what was believed by it is no longer.
    expect_refused(&gateway, &old.token("alice"), "no key of that name");
    // However many ask.
    for name in ["x", "y", "z"] {
        expect_refused(&gateway, &SigningKey::new(name).token("alice"), "no key of that name");
    }
    assert_eq!(publisher.fetched(), 2);
}

fn keys_in_a_file_are_read_again_when_it_changes(driver: Driver) {
    let (engine, old, new) = (engine(), SigningKey::new("k"), SigningKey::new("k"));
    let mut setup = Setup::new(fleet(&[&engine]) + &alice("jwksFile: ../jwks.json"));
    setup.files.push(("jwks.json".into(), key_set(&[&old])));
    let gateway = setup.start(driver);
    let token = old.token("alice");
    assert_eq!(ask(&gateway, &token, "1").status, 200);
    let file = gateway.resource("../jwks.json");
    std::fs::write(&file, "{ broken").unwrap();
    gateway.wait_for_line(&["keys of an issuer cannot be read; those that are known stay"]);
    assert_eq!(ask(&gateway, &token, "2").status, 200);
    std::fs::write(&file, key_set(&[&new])).unwrap();
    eventually("the new key is in force", || (ask(&gateway, &new.token("alice"), "3").status == 200).then_some(()));
    expect_refused(&gateway, &token, "signature");
}

fn keys_come_over_tls_from_whom_the_system_trusts(driver: Driver) {
    let (engine, key) = (engine(), SigningKey::new("k"));
    let authority = || {
        let mut wanted = CertificateParams::new(Vec::new()).unwrap();
        wanted.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(wanted, KeyPair::generate().unwrap()).unwrap()
    };
    let (trusted, stranger) = (authority(), authority());
    let server = |issuer: &CertifiedIssuer<'static, KeyPair>| {
        let pair = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&pair, issuer).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let der = PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
        Arc::new(builder.with_single_cert(vec![leaf.der().clone()], der).unwrap())
    };
    for (issuer, expected) in [(&trusted, 200), (&stranger, 503)] {
        let publisher = Publisher::start(key_set(&[&key]), Some(server(issuer)));
        let url = format!("jwksUrl: \"https://localhost:{}/.well-known/jwks.json\"", publisher.address.port());
        let mut setup = Setup::new(fleet(&[&engine]) + &alice(&url));
        setup.files.push(("authorities.pem".into(), trusted.pem()));
        let folder = tempfile::tempdir().unwrap();
        let bundle = folder.path().join("authorities.pem");
        std::fs::write(&bundle, trusted.pem()).unwrap();
        setup.environment.push(("SSL_CERT_FILE".into(), bundle.display().to_string()));
        let gateway = setup.start(driver);
        let answer = ask(&gateway, &key.token("alice"), "1");
        assert_eq!(answer.status, expected, "{answer:?}");
    }
}

fn a_token_that_cannot_be_checked_yet_is_a_503(driver: Driver) {
    let (engine, key) = (engine(), SigningKey::new("k"));
    let gateway = Setup::new(fleet(&[&engine]) + &alice("jwksFile: ../not-there.json")).start(driver);
    let answer = ask(&gateway, &key.token("alice"), "1");
    assert_eq!((answer.status, answer.error_code().as_str()), (503, "issuer_keys_unknown"));
    assert!(answer.header("retry-after").is_some());
    gateway.wait_for_line(&["keys of an issuer cannot be read; its tokens are refused", "not-there.json"]);
    assert_eq!(gateway.metric("kinference_issuer_keys", &["not-there.json"]), 0.0);
    assert!(gateway.metric("kinference_issuer_keys_failures_total", &[]) >= 1.0);
}
