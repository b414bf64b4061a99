//! Audio to be written down: forms with a file, routed by their `model`.

use serde_json::json;

use crate::backend::{ALIAS, Backend, MODEL, document};
use crate::encoding::{binary, gzip};
use crate::support::engines::{pool, worker_set_at};
use crate::support::{Answer, Client, Driver, Gateway, Setup};

on_both_drivers![
    the_model_of_a_form_is_found_behind_the_file_and_nothing_else_changes,
    a_compressed_form_is_read_as_well,
    a_form_without_a_readable_model_is_a_400_in_json,
    policy_decides_on_forms,
    a_streamed_transcription_is_observed_and_shows_the_name_asked_for,
    audio_and_its_prompt_are_looked_at_for_what_must_stay,
];

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const TRANSLATIONS: &str = "/v1/audio/translations";
const FORM: &str = "Content-Type: multipart/form-data; boundary=\"--=_b\"\r\n";

fn field(name: &str, value: &str) -> Vec<u8> {
    format!("----=_b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").into_bytes()
}

/// A file of all bytes, with line breaks and things that look like a form's.
fn file(bytes: usize) -> Vec<u8> {
    let mut part = b"----=_b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n".to_vec();
    part.extend((0..bytes).map(|n| (n * n / 7) as u8));
    part.extend(b"\r\n----=_c\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwrong\r\n----=_bb\r\n\r\n");
    part
}

fn form(parts: &[Vec<u8>]) -> Vec<u8> {
    [&parts.concat()[..], b"----=_b--\r\n"].concat()
}

fn start(driver: Driver, backend: &Backend) -> Gateway {
    Setup::new(backend.documents()).start(driver)
}

fn send(gateway: &Gateway, path: &str, headers: &str, body: &[u8]) -> Answer {
    Client::sending(gateway.address, binary(path, headers, body)).answer()
}

fn the_model_of_a_form_is_found_behind_the_file_and_nothing_else_changes(driver: Driver) {
    let backend = Backend::saying(document(r#"{"text":"hello","usage":{"type":"duration","seconds":1}}"#));
    let gateway = start(driver, &backend);
    for (bytes, path) in [(100, TRANSCRIPTIONS), (5_000_000, TRANSLATIONS)] {
        let with = |model: &str| {
            form(&[field("language", "en"), file(bytes), field("model", model), field("temperature", "0.5")])
        };
        for asked in [ALIAS, MODEL] {
            let headers = format!("{FORM}x-request-id: {bytes}-{}\r\n", asked.len());
            let answer = send(&gateway, path, &headers, &with(asked));
            assert_eq!((answer.status, &answer.json()["text"]), (200, &json!("hello")));
            let seen = backend.last();
            assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", path));
            assert!(seen.body == with(MODEL), "{} bytes instead of {}", seen.body.len(), with(MODEL).len());
            assert_eq!(seen.header("content-type"), Some("multipart/form-data; boundary=\"--=_b\""));
            let logged = gateway.log_of(&format!("{bytes}-{}", asked.len()));
            assert_eq!((&logged["model"], &logged["model_served"]), (&json!(asked), &json!(MODEL)));
            assert_eq!((&logged["outcome"], &logged["stream"]), (&json!("ok"), &json!(false)));
        }
    }
    for api in ["Transcriptions", "Translations"] {
        gateway.wait_for_metric("kinference_requests_total", &[&format!("api=\"{api}\"")], 2.0);
    }
    gateway.expect_nothing_in_flight();
}

fn a_compressed_form_is_read_as_well(driver: Driver) {
    let backend = Backend::saying(document("{}"));
    let gateway = start(driver, &backend);
    let body = gzip(&form(&[file(10_000), field("model", ALIAS)]));
    assert_eq!(send(&gateway, TRANSCRIPTIONS, &format!("{FORM}Content-Encoding: gzip\r\n"), &body).status, 200);
    assert!(backend.last().body == form(&[file(10_000), field("model", MODEL)]));
}

fn a_form_without_a_readable_model_is_a_400_in_json(driver: Driver) {
    let backend = Backend::saying(document("{}"));
    let gateway = start(driver, &backend);
    let good = form(&[field("model", MODEL)]);
    let cases: [(&str, &[u8], &str); 6] = [
        (FORM, &form(&[file(10)]), "missing_model"),
        (FORM, &form(&[field("model", "")]), "missing_model"),
        (FORM, &good[..good.len() - 8], "invalid_form"),
        (FORM, b"", "invalid_form"),
        ("Content-Type: application/json\r\n", br#"{"model":"tiny"}"#, "invalid_form"),
        ("Content-Type: multipart/form-data\r\n", &good, "invalid_form"),
    ];
    for (headers, body, code) in cases {
        let answer = send(&gateway, TRANSCRIPTIONS, headers, body);
        assert_eq!((answer.status, answer.error_code().as_str()), (400, code));
    }
    let answer = send(&gateway, TRANSCRIPTIONS, FORM, &form(&[field("model", "unknown")]));
    assert_eq!((answer.status, answer.error_code().as_str()), (404, "model_not_found"));
    let answer = Client::sending(gateway.address, format!("GET {TRANSLATIONS} HTTP/1.1\r\nHost: x\r\n\r\n")).answer();
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    assert_eq!(backend.asked().len(), 0);
}

fn policy_decides_on_forms(driver: Driver) {
    let backend = Backend::saying(document("{}"));
    let policy = "
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: no-translations, namespace: default }
spec:
  rules:
    - name: refuse
      matches: [{ api: [Translations] }]
      deny: { status: 403, code: no_translations, message: Not here. }
    - name: rest
      route: {}
";
    let resources =
        worker_set_at("workers", MODEL, ALIAS, &[backend.address]) + &pool(&["workers"], &["no-translations"]) + policy;
    let gateway = Setup::new(resources).start(driver);
    let body = form(&[field("model", MODEL)]);
    let answer = send(&gateway, TRANSLATIONS, FORM, &body);
    assert_eq!((answer.status, answer.error_code().as_str()), (403, "no_translations"));
    assert_eq!(send(&gateway, TRANSCRIPTIONS, &format!("{FORM}x-request-id: rest\r\n"), &body).status, 200);
    assert_eq!(gateway.log_of("rest")["rule"], "rest");
    assert_eq!(backend.asked().len(), 1);
}

fn a_streamed_transcription_is_observed_and_shows_the_name_asked_for(driver: Driver) {
    let events = "data: {\"object\":\"transcription.chunk\",\"model\":\"tiny\",\"choices\":[{\"delta\":{\"content\":\"hel\"}}]}\n\n\
        data: {\"object\":\"transcription.chunk\",\"model\":\"tiny\",\"choices\":[{\"delta\":{\"content\":\"lo\"}}]}\n\ndata: [DONE]\n\n";
    let backend = Backend::saying(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\r\n{events}",
        events.len()
    ));
    let gateway = start(driver, &backend);
    let body = form(&[field("stream", "true"), field("model", ALIAS)]);
    let answer = send(&gateway, TRANSCRIPTIONS, &format!("{FORM}x-request-id: streamed\r\n"), &body);
    assert_eq!(answer.text(), events.replace("tiny", ALIAS));
    let logged = gateway.log_of("streamed");
    assert_eq!((&logged["stream"], logged["ttft_ms"].is_number()), (&json!(true), true), "{logged}");
}

fn audio_and_its_prompt_are_looked_at_for_what_must_stay(driver: Driver) {
    let backend = Backend::saying(document("{}"));
    let policy = "
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceClassifier
metadata: { name: secrets, namespace: default }
spec: { type: Secrets }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: tags, namespace: default }
spec:
  rules:
    - name: secret
      matches: [{ tags: [secret] }]
      deny: { status: 403, code: secret, message: A secret. }
    - name: audio
      matches: [{ tags: [audio] }]
      route: {}
    - name: rest
      route: {}
";
    let resources =
        worker_set_at("workers", MODEL, ALIAS, &[backend.address]) + &pool(&["workers"], &["tags"]) + policy;
    let gateway = Setup::new(resources).start(driver);
    let ask = |prompt: &str, id: &str| {
        let body = form(&[file(100), field("prompt", prompt), field("model", MODEL)]);
        send(&gateway, TRANSCRIPTIONS, &format!("{FORM}x-request-id: {id}\r\n"), &body).status
    };
    assert_eq!(ask("AWS key AKIAIOSFODNN7EXAMPLQ", "secret"), 403);
    assert_eq!(ask("A talk on trees", "plain"), 200);
    assert_eq!(gateway.log_of("plain")["rule"], "audio");
}
