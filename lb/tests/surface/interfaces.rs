//! Every interface besides chat and completions, with the bytes of a real vLLM where there are some.

use std::io::Write;

use serde_json::{Value, json};

use crate::backend::{ALIAS, Backend, MODEL, close, document};
use crate::support::client::{find, request};
use crate::support::{Answer, Client, Driver, Gateway, Setup, eventually, post};

on_both_drivers![
    a_captured_responses_stream_passes_byte_for_byte_and_is_understood,
    a_captured_responses_stream_shows_the_name_asked_for_in_every_event,
    captured_documents_are_understood_and_show_the_name_asked_for,
    an_anthropic_stream_is_understood_and_shows_the_name_asked_for,
    a_named_stream_that_breaks_off_ends_with_a_named_error_event,
    error_events_of_both_interfaces_are_seen,
    prompts_of_responses_and_messages_are_remembered_and_counted_ones_are_not,
    rerank_score_and_tokens_are_routed_by_their_model,
    every_text_to_be_ranked_or_scored_is_looked_at,
];

const RESPONSES_STREAM: &[u8] = include_bytes!("captured/responses_stream.resp");
const RESPONSES: &[u8] = include_bytes!("captured/responses.resp");
const MESSAGES: &[u8] = include_bytes!("captured/messages.resp");

fn start(driver: Driver, backend: &Backend) -> Gateway {
    Setup::new(backend.documents()).start(driver)
}

/// A backend that sends a captured answer and closes, as it was captured.
fn replaying(captured: &'static [u8], piece_bytes: usize) -> Backend {
    Backend::start(move |_, stream| {
        for piece in captured.chunks(piece_bytes) {
            stream.write_all(piece)?;
        }
        close()
    })
}

/// The body of a captured answer.
fn body_of(captured: &[u8]) -> String {
    let at = find(captured, b"\r\n\r\n").unwrap() + 4;
    let text = String::from_utf8(captured[at..].to_vec()).unwrap();
    if !text.contains("\r\n") {
        return text;
    }
    let (mut rest, mut body) = (text.as_str(), String::new());
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        body.push_str(&more[..size]);
        rest = &more[size + 2..];
    }
    body
}

fn send(gateway: &Gateway, path: &str, id: &str, body: &str) -> Answer {
    post(gateway.address, path, &format!("x-request-id: {id}\r\n"), body)
}

fn asking(model: &str) -> String {
    format!(r#"{{"model":"{model}","input":"Say hello.","max_output_tokens":3,"stream":true}}"#)
}

fn tokens(logged: &Value) -> [Option<u64>; 3] {
    ["prompt_tokens", "completion_tokens", "cached_tokens"].map(|name| logged[name].as_u64())
}

fn a_captured_responses_stream_passes_byte_for_byte_and_is_understood(driver: Driver) {
    for piece_bytes in [1, 100, 1_000_000] {
        let backend = replaying(RESPONSES_STREAM, piece_bytes);
        let gateway = start(driver, &backend);
        let answer = send(&gateway, "/v1/responses", "r", &asking(MODEL));
        assert_eq!((answer.status, answer.text()), (200, body_of(RESPONSES_STREAM)), "{piece_bytes}");
        // No field of this interface asks for usage: it always comes.
        assert_eq!(backend.last().text(), asking(MODEL));
        let logged = gateway.log_of("r");
        assert_eq!(tokens(&logged), [Some(22), Some(3), Some(0)]);
        assert_eq!((&logged["outcome"], logged["ttft_ms"].is_number()), (&json!("ok"), true), "{logged}");
    }
}

fn a_captured_responses_stream_shows_the_name_asked_for_in_every_event(driver: Driver) {
    for piece_bytes in [1, 100, 1_000_000] {
        let backend = replaying(RESPONSES_STREAM, piece_bytes);
        let gateway = start(driver, &backend);
        let answer = send(&gateway, "/v1/responses", "r", &asking(ALIAS));
        let expected = body_of(RESPONSES_STREAM).replace(r#""model":"tiny""#, &format!(r#""model":"{ALIAS}""#));
        assert_eq!(expected.matches(ALIAS).count(), 3);
        assert_eq!((answer.status, answer.text()), (200, expected), "{piece_bytes}");
        assert_eq!(backend.last().text(), asking(MODEL));
        assert_eq!(tokens(&gateway.log_of("r")), [Some(22), Some(3), Some(0)]);
    }
}

fn captured_documents_are_understood_and_show_the_name_asked_for(driver: Driver) {
    for (path, captured, counts) in [
        ("/v1/responses", RESPONSES, [Some(22), Some(4), Some(0)]),
        ("/v1/messages", MESSAGES, [Some(22), Some(4), None]),
    ] {
        let backend = replaying(captured, 50);
        let gateway = start(driver, &backend);
        for (id, model) in [("same", MODEL), ("other", ALIAS)] {
            let answer = send(&gateway, path, id, &format!(r#"{{"model":"{model}","messages":[],"input":[]}}"#));
            let expected = body_of(captured).replace(r#""model":"tiny""#, &format!(r#""model":"{model}""#));
            assert_eq!((answer.status, answer.text()), (200, expected), "{path}");
            assert_eq!(tokens(&gateway.log_of(id)), counts, "{path}");
        }
    }
}

/// A stream of Anthropic's Messages, in the shape that vLLM gives it.
const ANTHROPIC: [&str; 7] = [
    r#"{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[],"model":"tiny","stop_reason":null,"usage":{"input_tokens":22,"cache_read_input_tokens":16,"output_tokens":0}}}"#,
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
    r#"{"type":"ping"}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"My \"model\":\"tiny\""}}"#,
    r#"{"type":"content_block_stop","index":0}"#,
    r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}"#,
    r#"{"type":"message_stop"}"#,
];

fn events(data: &[&str]) -> String {
    let name = |data: &str| serde_json::from_str::<Value>(data).unwrap()["type"].as_str().unwrap().to_owned();
    data.iter().map(|data| format!("event: {}\ndata: {data}\n\n", name(data))).collect()
}

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Events in chunks of some bytes, and the last chunk.
fn chunked(text: &str, chunk_bytes: usize) -> String {
    let chunk = |bytes: &[u8]| format!("{:x}\r\n{}\r\n", bytes.len(), String::from_utf8_lossy(bytes));
    text.as_bytes().chunks(chunk_bytes).map(chunk).collect::<String>() + "0\r\n\r\n"
}

fn an_anthropic_stream_is_understood_and_shows_the_name_asked_for(driver: Driver) {
    for chunk_bytes in [3, 1_000_000] {
        let backend = Backend::saying(STREAM_HEAD.to_owned() + &chunked(&events(&ANTHROPIC), chunk_bytes));
        let gateway = start(driver, &backend);
        for (id, model) in [("same", MODEL), ("other", ALIAS)] {
            let asked = format!(r#"{{"model":"{model}","max_tokens":5,"stream":true,"messages":[]}}"#);
            let answer = send(&gateway, "/v1/messages", id, &asked);
            let expected = events(&ANTHROPIC).replacen(r#""model":"tiny""#, &format!(r#""model":"{model}""#), 1);
            assert_eq!((answer.status, answer.text()), (200, expected));
            let logged = gateway.log_of(id);
            assert_eq!(tokens(&logged), [Some(22), Some(5), Some(16)]);
            assert!(logged["ttft_ms"].is_number(), "{logged}");
        }
    }
}

fn a_named_stream_that_breaks_off_ends_with_a_named_error_event(driver: Driver) {
    let backend = Backend::start(|_, stream| {
        let begun = chunked(&events(&ANTHROPIC[..4]), 1_000_000);
        stream.write_all(format!("{STREAM_HEAD}{}", begun.trim_end_matches("0\r\n\r\n")).as_bytes())?;
        close()
    });
    let gateway = start(driver, &backend);
    for path in ["/v1/messages", "/v1/responses"] {
        let answer = send(&gateway, path, path, &format!(r#"{{"model":"{MODEL}","stream":true}}"#)).text();
        let (passed, error) = answer.split_at(events(&ANTHROPIC[..4]).len());
        assert_eq!(passed, events(&ANTHROPIC[..4]));
        let data = error.strip_prefix("event: error\ndata: ").unwrap_or_else(|| panic!("{error:?}"));
        let json: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&json["type"], &json["error"]["code"]), (&json!("error"), &json!("upstream_reset")));
        assert_eq!(gateway.log_of(path)["outcome"], "truncated");
    }
}

fn error_events_of_both_interfaces_are_seen(driver: Driver) {
    for (path, data) in [
        ("/v1/messages", r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#),
        ("/v1/responses", r#"{"type":"error","code":"server_error","message":"x","param":null}"#),
        (
            "/v1/responses",
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error"}}}"#,
        ),
    ] {
        let backend = Backend::saying(STREAM_HEAD.to_owned() + &chunked(&events(&[data]), 1_000));
        let gateway = start(driver, &backend);
        let answer = send(&gateway, path, "e", &format!(r#"{{"model":"{MODEL}","stream":true}}"#));
        assert_eq!(answer.text(), events(&[data]));
        assert_eq!(gateway.log_of("e")["outcome"], "error_event", "{data}");
    }
}

fn prompts_of_responses_and_messages_are_remembered_and_counted_ones_are_not(driver: Driver) {
    let backend = Backend::saying(document(r#"{"usage":{"input_tokens":3200,"output_tokens":1}}"#));
    let gateway = start(driver, &backend);
    let long = |topic: &str| format!("{topic}: {}", "all that is to be said about it ".repeat(200));
    let overlap = |id: &str, path: &str, body: &Value| {
        assert_eq!(send(&gateway, path, id, &body.to_string()).status, 200);
        gateway.log_of(id)["overlap_tokens"].as_u64().unwrap()
    };
    let input = json!({"model": MODEL, "instructions": long("trees"), "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": long("leaves")}]}]});
    assert_eq!(overlap("r1", "/v1/responses", &input), 0);
    assert!(overlap("r2", "/v1/responses", &input) > 1_000);
    let messages = json!({"model": MODEL, "max_tokens": 1, "system": [{"type": "text", "text": long("stones")}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": long("sand")}]}]});
    assert_eq!(overlap("c1", "/v1/messages/count_tokens", &messages), 0);
    assert_eq!(overlap("c2", "/v1/messages/count_tokens", &messages), 0);
    assert_eq!(overlap("m1", "/v1/messages", &messages), 0, "counting fills no cache");
    assert!(overlap("m2", "/v1/messages", &messages) > 1_000);
    for (api, count) in [("Responses", 2.0), ("Messages", 4.0)] {
        gateway.wait_for_metric("kinference_requests_total", &[&format!("api=\"{api}\"")], count);
    }
    gateway.expect_nothing_in_flight();
}

fn rerank_score_and_tokens_are_routed_by_their_model(driver: Driver) {
    let backend = Backend::saying(document(r#"{"model":"tiny","data":[1.5e0]}"#));
    let gateway = start(driver, &backend);
    for (path, api, more) in [
        ("/v1/rerank", "Rerank", r#""query":"q","documents":["a",{"text":"b"}]"#),
        ("/v1/score", "Score", r#""text_1":"a","text_2":["b","c"]"#),
        ("/tokenize", "Tokenize", r#""prompt":"Hello""#),
        ("/tokenize", "Tokenize", r#""messages":[{"role":"user","content":"Hi"}]"#),
        ("/detokenize", "Detokenize", r#""tokens":[1, 2,3]"#),
        ("/v1/embeddings", "Embeddings", r#""input":["a","b"]"#),
    ] {
        let body = |model: &str| format!(r#"{{ {more}, "model":"{model}" , "x":1e5}}"#);
        let answer = send(&gateway, &format!("{path}/?a=b"), more, &body(ALIAS));
        assert_eq!((answer.status, answer.text()), (200, format!(r#"{{"model":"{ALIAS}","data":[1.5e0]}}"#)), "{path}");
        let asked = backend.last();
        assert_eq!((asked.target.as_str(), asked.text()), (format!("{path}?a=b").as_str(), body(MODEL).as_str()));
        eventually(&format!("a request of {api} is counted"), || {
            (gateway.metric("kinference_requests_total", &[&format!("api=\"{api}\""), "model=\"org/other-name\""])
                > 0.0)
                .then_some(())
        });
        let mut client = Client::sending(gateway.address, request(path, "", r#"{"documents":[]}"#));
        assert_eq!(client.answer().error_code(), "missing_model");
    }
    gateway.expect_nothing_in_flight();
}

fn every_text_to_be_ranked_or_scored_is_looked_at(driver: Driver) {
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
    - name: rest
      route: {}
";
    let resources = backend.documents().replace(
        "    - { kind: InferenceWorkerSet, name: workers }\n",
        "    - { kind: InferenceWorkerSet, name: workers }\n  policyRef: [{ name: tags }]\n",
    ) + policy;
    let gateway = Setup::new(resources).start(driver);
    let secret = "AKIAIOSFODNN7EXAMPLQ";
    for (path, more) in [
        ("/v1/rerank", format!(r#""query":"{secret}","documents":["b"]"#)),
        ("/v1/rerank", format!(r#""query":"q","documents":["b","{secret}"]"#)),
        ("/v1/score", format!(r#""text_1":"a","text_2":["b","{secret}"]"#)),
        ("/v1/responses", format!(r#""instructions":"{secret}","input":"a""#)),
        (
            "/v1/responses",
            format!(r#""input":[{{"role":"user","content":[{{"type":"input_text","text":"{secret}"}}]}}]"#),
        ),
        ("/v1/messages", format!(r#""system":[{{"type":"text","text":"{secret}"}}],"messages":[]"#)),
        ("/tokenize", format!(r#""prompt":"{secret}""#)),
    ] {
        let ask = |more: &str| post(gateway.address, path, "", &format!(r#"{{"model":"{MODEL}",{more}}}"#)).status;
        assert_eq!((ask(&more), ask(&more.replace(secret, "nothing"))), (403, 200), "{path} {more}");
    }
}
