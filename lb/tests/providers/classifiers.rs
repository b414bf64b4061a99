//! Classifiers of `type: HTTP` over TLS, and several of them.

use crate::hosted::{HOST, trusted};
use crate::pki::Authority;
use crate::server::{Manner, Server};
use crate::support::engines::{ALIAS, MODEL, chat_of, engine, pool, worker_set};
use crate::support::scripted::document;
use crate::support::{Driver, Setup, eventually};

on_both_drivers![a_service_is_asked_over_https_when_its_certificate_holds, several_services_are_asked_at_once,];

/// A service that gives this tag to everything.
fn answer(tag: &str) -> Vec<u8> {
    document(&format!(r#"{{"tags":["{tag}"]}}"#)).into()
}

/// Whatever has all these tags is denied; each tag is given by the service at its port.
fn denying(services: &[(&str, u16)], engine: &engine::Engine) -> String {
    let tags: Vec<&str> = services.iter().map(|(tag, _)| *tag).collect();
    let mut documents = worker_set("workers", MODEL, ALIAS, &[engine]) + &pool(&["workers"], &["tags"]);
    documents += &format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: {{ name: tags, namespace: default }}\nspec:\n  rules:\n    \
         - name: not-these\n      matches: [{{ tags: [{}] }}]\n      deny: {{ status: 403, code: not_these, message: No. }}\n",
        tags.join(", ")
    );
    for (tag, port) in services {
        documents += &format!(
            "---\napiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceClassifier\nmetadata: {{ name: {tag}, namespace: default }}\n\
             spec: {{ type: HTTP, http: {{ url: \"https://{HOST}:{port}/tags\", timeout: 20s }}, tags: [{{ tag: {tag} }}], onError: Ignore }}\n"
        );
    }
    documents
}

/// A gateway on a system that believes this authority.
fn believing(authority: &Authority, documents: String) -> (Setup, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("authorities.pem");
    std::fs::write(&bundle, authority.pem()).unwrap();
    let mut setup = Setup::new(documents);
    setup.environment.push(("SSL_CERT_FILE".to_owned(), bundle.display().to_string()));
    (setup, folder)
}

fn a_service_is_asked_over_https_when_its_certificate_holds(driver: Driver) {
    let engine = engine();
    let (authority, leaf) = trusted();
    let service = Server::start(&leaf, Manner::Answers(answer("contract")));
    let (setup, _bundle) = believing(&authority, denying(&[("contract", service.port)], &engine));
    let gateway = setup.start(driver);
    for prompt in ["this contract", "another contract"] {
        assert_eq!(gateway.chat("", &chat_of(MODEL, prompt, 2, "")).error_code(), "not_these");
    }
    let seen = service.seen();
    assert!(seen.heads[0].starts_with("POST /tags HTTP/1.1\r\n"), "{}", seen.heads[0]);
    assert_eq!((seen.heads.len(), seen.connections), (2, 1), "the connection is kept");
    assert_eq!(seen.names, [Some(HOST.to_owned())]);

    // Somebody else of the same name: nothing is sent, and the classifier is one that does not answer.
    let stranger = Server::start(&Authority::new("hosted").issue(&[HOST]), Manner::Answers(answer("contract")));
    let (setup, _bundle) = believing(&authority, denying(&[("contract", stranger.port)], &engine));
    let gateway = setup.start(driver);
    assert_eq!(gateway.chat("", &chat_of(MODEL, "this contract", 2, "")).status, 200);
    assert_eq!(stranger.seen().heads, Vec::<String>::new());
    gateway.wait_for_line(&["a classifier did not answer", "contract", "certificate"]);
}

fn several_services_are_asked_at_once(driver: Driver) {
    let engine = engine();
    let (authority, leaf) = trusted();
    let services =
        ["one", "two", "three"].map(|tag| (tag, Server::start(&leaf, Manner::Pauses(Vec::new(), answer(tag)))));
    let ports = services.each_ref().map(|(tag, server)| (*tag, server.port));
    let (setup, _bundle) = believing(&authority, denying(&ports, &engine));
    let gateway = setup.start(driver);
    let mut client = gateway.send_chat("", &chat_of(MODEL, "hello", 2, ""));
    eventually("all are asked before any has answered", || {
        services.iter().all(|(_, server)| server.seen().bodies.len() == 1).then_some(())
    });
    services.iter().for_each(|(_, server)| server.go_on());
    assert_eq!(client.answer().error_code(), "not_these");
}
