//! Client certificates: who must show one, and who they say is calling.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;

use engine::Engine;
use rustls::{HandshakeKind, version};
use serde_json::Value;

use crate::listener::{HOST, TlsClient, connect, connect_stream, trusting, trusting_with, with_client_certificates};
use crate::pki::{Authority, Leaf};
use crate::support::client::request;
use crate::support::engines::MODEL;
use crate::support::{Answer, Driver, Gateway, Setup, chat, engine, fleet, model_requests};

on_both_drivers![
    a_client_without_a_good_certificate_gets_nowhere,
    a_name_in_the_certificate_is_the_tenant_whatever_key_is_sent,
    a_certificate_that_names_nobody_leaves_the_word_to_the_key,
    without_tenants_a_good_certificate_is_enough,
    sessions_with_client_certificates_are_not_resumed,
];

const SPIFFE: &str = "spiffe://cluster/ns/alice/sa/app";

struct Mutual {
    gateway: Gateway,
    servers: Authority,
    clients: Authority,
    engine: Engine,
}

impl Mutual {
    fn start(driver: Driver, tenants: &str) -> Self {
        let (servers, clients, engine) = (Authority::new("servers"), Authority::new("clients"), engine());
        let setup = Setup::new(fleet(&[&engine]) + tenants);
        let gateway = with_client_certificates(setup, &servers.issue(&[HOST]), &clients).start(driver);
        Self { gateway, servers, clients, engine }
    }

    fn address(&self) -> SocketAddr {
        self.gateway.address
    }

    fn connect(&self, leaf: &Leaf) -> TlsClient {
        connect(self.address(), &Arc::new(trusting(&self.servers, Some(leaf)))).unwrap()
    }

    /// A chat with this certificate, and the tenant that it was logged under.
    fn chat(&self, leaf: &Leaf, id: &str, headers: &str) -> (Answer, Value) {
        let mut client = self.connect(leaf);
        let headers = format!("x-request-id: {id}\r\n{headers}");
        client.send(request("/v1/chat/completions", &headers, &chat(MODEL, 1)));
        let answer = client.answer();
        (answer, self.gateway.log_of(id)["tenant"].clone())
    }
}

fn tenant(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceTenant\nmetadata: {{ name: {name}, namespace: default }}\n\
         spec: {{ {spec} }}\n---\n"
    )
}

fn tenants() -> String {
    // The SHA-256 of `key-of-bob`.
    let key = "808a1d81b5de08d72083995df738947d519d230a20c236003268f0f4b65ee475";
    tenant("alice", &format!("clientCertificate: {{ san: \"{SPIFFE}\" }}"))
        + &tenant("carol", "clientCertificate: { san: Carol.Example.com }")
        + &tenant("bob", &format!("apiKeys: [{{ sha256: {key} }}]"))
}

fn a_client_without_a_good_certificate_gets_nowhere(driver: Driver) {
    let mutual = Mutual::start(driver, "");
    let stranger = Authority::new("clients").issue(&[SPIFFE]);
    for version in [&version::TLS12, &version::TLS13] {
        for certificate in [None, Some(&stranger)] {
            let config = Arc::new(trusting_with(&[version], &mutual.servers, certificate));
            // In TLS 1.3 the client may be done before it hears that the server is not.
            let Ok(mut stream) = connect_stream(mutual.address(), &config) else { continue };
            assert_eq!(version.version, rustls::ProtocolVersion::TLSv1_3);
            let heard = stream.read(&mut [0; 64]).map_err(|error| error.to_string());
            assert!(heard.as_ref().is_err_and(|why| why.contains("received fatal alert")), "{heard:?}");
        }
    }
    mutual.gateway.wait_for_metric("kinference_tls_handshake_failures_total", &[], 4.0);
    assert_eq!(mutual.gateway.metric("kinference_tls_handshakes_total", &[]), 0.0);
    assert!(model_requests(&mutual.engine).is_empty());
}

fn a_name_in_the_certificate_is_the_tenant_whatever_key_is_sent(driver: Driver) {
    let mutual = Mutual::start(driver, &tenants());
    let alice = mutual.clients.issue(&["unknown.example.com", SPIFFE]);
    let carol = mutual.clients.issue(&["carol.example.com"]);
    for (leaf, id, headers, tenant) in [
        (&alice, "a1", "", "alice"),
        (&alice, "a2", "Authorization: Bearer made-up\r\n", "alice"),
        (&alice, "a3", "Authorization: Bearer key-of-bob\r\n", "alice"),
        (&carol, "c1", "", "carol"),
    ] {
        let (answer, logged) = mutual.chat(leaf, id, headers);
        assert_eq!((answer.status, logged.as_str()), (200, Some(tenant)), "{id}: {answer:?}");
    }
}

fn a_certificate_that_names_nobody_leaves_the_word_to_the_key(driver: Driver) {
    let mutual = Mutual::start(driver, &tenants());
    let nobody = mutual.clients.issue(&["spiffe://cluster/ns/alice/sa/other"]);
    let (answer, logged) = mutual.chat(&nobody, "n1", "Authorization: Bearer key-of-bob\r\n");
    assert_eq!((answer.status, logged.as_str()), (200, Some("bob")), "{answer:?}");
    let (answer, _) = mutual.chat(&nobody, "n2", "Authorization: Bearer made-up\r\n");
    assert_eq!(answer.status, 401);
    let (answer, _) = mutual.chat(&nobody, "n3", "");
    assert_eq!(answer.status, 401);
    assert_eq!(model_requests(&mutual.engine).len(), 1);
}

fn without_tenants_a_good_certificate_is_enough(driver: Driver) {
    let mutual = Mutual::start(driver, "");
    let (answer, logged) = mutual.chat(&mutual.clients.issue(&[SPIFFE]), "any", "");
    assert_eq!((answer.status, logged.as_str()), (200, Some("anonymous")));
}

fn sessions_with_client_certificates_are_not_resumed(driver: Driver) {
    let mutual = Mutual::start(driver, "");
    let leaf = mutual.clients.issue(&[SPIFFE]);
    for version in [&version::TLS12, &version::TLS13] {
        let config = Arc::new(trusting_with(&[version], &mutual.servers, Some(&leaf)));
        for _ in 0..3 {
            let mut client = connect(mutual.address(), &config).unwrap();
            client.send(request("/v1/chat/completions", "", &chat(MODEL, 1)));
            assert_eq!(client.answer().status, 200);
            assert_eq!(client.stream().conn.handshake_kind(), Some(HandshakeKind::Full));
        }
    }
}
