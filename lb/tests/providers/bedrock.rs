//! Providers of type Bedrock: what they are sent, and what clients get of what they say. The answers are the golden ones of the
//! crate that translates.

use serde_json::{Value, json};

use crate::hosted::{HOST, hosted, provider, provider_at, providers_only, setup, trusted};
use crate::pki::{Authority, Leaf};
use crate::server::{Manner, Server};
use crate::signature::{self, expect_signed};
use crate::support::engines::ALIAS;
use crate::support::scripted::document;
use crate::support::{Answer, Driver, Gateway, Setup, chat, model_requests, post, stream};

on_both_drivers![
    a_chat_goes_to_converse_signed_and_nothing_of_the_client_with_it,
    an_api_key_of_bedrock_is_sent_as_a_bearer,
    streams_become_openais_however_they_are_cut,
    usage_that_nobody_asked_for_is_counted_and_not_shown,
    a_stream_that_begins_with_an_error_is_none_yet,
    what_bedrock_refuses_is_told_and_what_is_its_own_trouble_goes_elsewhere,
    what_converse_does_not_have_goes_to_a_provider_that_has_it,
    an_answer_that_is_too_long_is_told_so,
    without_its_keys_it_is_never_asked,
];

pub(crate) const MODEL: &str = "anthropic.claude-3-5-sonnet-20240620-v1:0";
pub(crate) const ANSWERS: &str = include_str!("../../bedrock/tests/golden/answers.jsonl");
pub(crate) const STREAMS: &str = include_str!("../../bedrock/tests/golden/streams.jsonl");

pub(crate) const KEYS: &str = "  auth: { awsSigV4: { region: eu-central-1, accessKeyId: { fromEnv: AWS_ID }, secretAccessKey: { fromEnv: AWS_KEY }, \
                    sessionToken: { fromEnv: AWS_SESSION } } }\n";

/// A provider of type Bedrock.
pub(crate) fn bedrock_provider(name: &str, port: u16, auth: &str) -> String {
    let yaml = provider_at(name, &format!("https://{HOST}:{port}"), auth);
    yaml.replace("type: OpenAI", "type: Bedrock")
        .replace("upstreamName: org/tiny-1", &format!("upstreamName: \"{MODEL}\""))
}

pub(crate) fn with_keys(resources: String, authority: &Authority) -> Setup {
    let mut setup = setup(resources, authority);
    for (name, value) in
        [("AWS_ID", signature::KEY_ID), ("AWS_KEY", signature::SECRET_KEY), ("AWS_SESSION", signature::SESSION_TOKEN)]
    {
        setup.environment.push((name.to_owned(), value.to_owned()));
    }
    setup
}

/// A gateway in front of Bedrock, whose every answer this is, and perhaps another provider.
pub(crate) fn start(driver: Driver, answer: Vec<u8>, second: Option<u16>) -> (Gateway, Server) {
    let (authority, leaf): (Authority, Leaf) = trusted();
    start_trusting(driver, answer, second, &authority, &leaf)
}

pub(crate) fn start_trusting(
    driver: Driver,
    answer: Vec<u8>,
    second: Option<u16>,
    authority: &Authority,
    leaf: &Leaf,
) -> (Gateway, Server) {
    let server = Server::start(leaf, Manner::Answers(answer));
    let mut resources = bedrock_provider("bedrock", server.port, KEYS);
    let mut names = vec!["bedrock"];
    if let Some(port) = second {
        resources += &provider("second", port, "");
        names.push("second");
    }
    let gateway = with_keys(resources + &providers_only(&names), authority).ready(names.len()).start(driver);
    (gateway, server)
}

pub(crate) fn golden(lines: &str, name: &str) -> Value {
    let mut lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.find(|line| line["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

pub(crate) fn frames(line: &Value) -> Vec<u8> {
    let hex = line["hex"].as_str().unwrap();
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// An answer of frames in HTTP chunks of so many bytes.
pub(crate) fn event_stream(frames: &[u8], chunk_bytes: usize) -> Vec<u8> {
    let mut answer =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nTransfer-Encoding: chunked\r\n\
                       x-amzn-RequestId: theirs\r\n\r\n"
            .to_vec();
    for chunk in frames.chunks(chunk_bytes) {
        answer.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        answer.extend_from_slice(chunk);
        answer.extend_from_slice(b"\r\n");
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}

pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn a_chat_goes_to_converse_signed_and_nothing_of_the_client_with_it(driver: Driver) {
    let line = golden(ANSWERS, "text");
    let (gateway, server) = start(driver, document(&line["converse"].to_string()).into(), None);
    let headers = "Authorization: Bearer the-clients\r\nx-trace: the-clients\r\nx-request-id: one\r\n";
    for _ in 0..2 {
        let answer = gateway.chat(headers, &chat(ALIAS, 7));
        let (got, want) = (answer.json(), &line["openai"]);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{answer:?}");
        assert_eq!((&got["model"], &got["id"]), (&json!(ALIAS), &json!("chatcmpl-one")));
        assert_eq!((&got["choices"], &got["usage"]), (&want["choices"], &want["usage"]));
    }
    let seen = server.seen();
    assert_eq!(seen.connections, 1, "the connection is kept");
    let head = &seen.heads[0];
    let path = "POST /model/anthropic.claude-3-5-sonnet-20240620-v1%3A0/converse HTTP/1.1\r\n";
    assert!(head.starts_with(path) && !head.contains("the-clients"), "{head}");
    let body: Value = serde_json::from_slice(&seen.bodies[0]).unwrap();
    assert_eq!(body["messages"], json!([{ "role": "user", "content": [{ "text": "Say hello." }] }]));
    assert_eq!(body["inferenceConfig"], json!({ "maxTokens": 7 }));
    assert_eq!(expect_signed(&seen, 0), "content-type;host;x-amz-date;x-amz-security-token");
    let log = gateway.log_of("one");
    assert_eq!(
        (&log["prompt_tokens"], &log["completion_tokens"], &log["outcome"]),
        (&json!(10), &json!(5), &json!("ok"))
    );
    for secret in ["wJalrXUtnFEMI", "session/+="] {
        assert!(!gateway.said().join("\n").contains(secret));
        assert!(!gateway.page("/endpoints").text().contains(secret));
    }
    gateway.expect_nothing_in_flight();
}

fn an_api_key_of_bedrock_is_sent_as_a_bearer(driver: Driver) {
    let (authority, leaf) = trusted();
    let line = golden(ANSWERS, "text");
    let server = Server::start(&leaf, Manner::Answers(document(&line["converse"].to_string()).into()));
    let resources = bedrock_provider("bedrock", server.port, "") + &providers_only(&["bedrock"]);
    let gateway = setup(resources, &authority).start(driver);
    assert_eq!(gateway.chat("", &chat(ALIAS, 7)).status, 200);
    let head = server.seen().heads.remove(0);
    assert_eq!(header(&head, "authorization"), Some(format!("Bearer {}", crate::hosted::TOKEN).as_str()));
    assert_eq!(header(&head, "x-amz-date"), None);
}

/// The data of each event but the last, without what differs from answer to answer.
fn comparable(events: &str) -> Vec<Value> {
    let data = events.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
    data.map(|data| match serde_json::from_str::<Value>(data) {
        Ok(mut json) => {
            for name in ["id", "created", "model"] {
                json.as_object_mut().unwrap().remove(name);
            }
            json
        }
        Err(_) => json!(data),
    })
    .collect()
}

/// A stream ends once: with an error, or with `[DONE]`.
pub(crate) fn expect_one_end(answer: &Answer) {
    let events = answer.events();
    let ends = events.iter().filter(|event| *event == "[DONE]" || event.starts_with(r#"{"error""#)).count();
    assert_eq!(ends, 1, "{events:#?}");
    let last = events.last().unwrap();
    assert!(last == "[DONE]" || last.starts_with(r#"{"error""#), "{events:#?}");
}

fn streams_become_openais_however_they_are_cut(driver: Driver) {
    let body =
        stream(ALIAS, 7).replace("\"stream\":true", "\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    let (authority, leaf) = trusted();
    for line in STREAMS.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let (name, want) = (&line["name"], comparable(line["sse"].as_str().unwrap()));
        let answer = event_stream(&frames(&line), 97);
        let (gateway, _server) = start_trusting(driver, answer, None, &authority, &leaf);
        let answer = gateway.chat("x-request-id: it\r\n", &body);
        let code = |answer: &Answer| match answer.status {
            200 => comparable(&answer.text()).pop().unwrap()["error"]["code"].as_str().map(str::to_owned),
            _ => Some(answer.error_code()),
        };
        assert!(answer.status == 200 || want.is_empty(), "{name}: {answer:?}");
        let failed = !line["failure"].is_null();
        assert_eq!(code(&answer).is_some(), failed, "{name}: {answer:?}");
        if answer.status == 200 {
            assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
            assert_eq!(answer.header("x-amzn-requestid"), None);
            let mut got = comparable(&answer.text());
            if failed {
                got.pop();
            }
            assert_eq!(got, want, "{name}");
            expect_one_end(&answer);
        }
        // What Bedrock says in place of the rest is an answer; what cannot be read is none.
        let broken = code(&answer).as_deref() == Some("provider_bad_answer");
        let outcome = match (failed, answer.status) {
            (false, _) => "ok",
            (true, 200) => {
                if broken {
                    "truncated"
                } else {
                    "error_event"
                }
            }
            (true, 400) => "bad_request",
            (true, _) => "upstream_error",
        };
        assert_eq!(gateway.log_of("it")["outcome"], outcome, "{name}");
        let labels = ["endpoint=\"bedrock\"", "failure=\"bad_answer\""];
        crate::support::eventually(&format!("{name} counts as what it is"), || {
            let counted = gateway.metric("kinference_endpoint_failures_total", &labels);
            (counted == f64::from(u8::from(broken))).then_some(())
        });
        gateway.expect_nothing_in_flight();
    }
}

fn usage_that_nobody_asked_for_is_counted_and_not_shown(driver: Driver) {
    let (gateway, server) = start(driver, event_stream(&frames(&golden(STREAMS, "text")), usize::MAX), None);
    for _ in 0..2 {
        let answer = gateway.chat("x-request-id: quiet\r\n", &stream(ALIAS, 7));
        assert_eq!(
            (answer.said().as_str(), answer.events().last().unwrap().as_str()),
            ("Hello, \"wörld\"\n🙂", "[DONE]")
        );
        assert!(!answer.text().contains("prompt_tokens") && !answer.text().contains(MODEL), "{}", answer.text());
    }
    let log = gateway.log_of("quiet");
    assert_eq!((&log["prompt_tokens"], &log["cached_tokens"]), (&json!(1112), &json!(1000)), "{log}");
    assert!(log["ttft_ms"].is_number());
    assert!(server.seen().heads[0].contains("/converse-stream HTTP/1.1"));
    assert_eq!(server.seen().connections, 1, "the connection is kept");
}

fn a_stream_that_begins_with_an_error_is_none_yet(driver: Driver) {
    let (authority, leaf) = trusted();
    let second = hosted(&leaf);
    for (name, elsewhere) in [
        ("throttled at once", true),
        ("unavailable", true),
        ("internal", true),
        ("no event stream", true),
        ("nothing", true),
        ("validation", false),
        ("throttled later", false),
    ] {
        for chunk_bytes in [7, usize::MAX] {
            let answer = event_stream(&frames(&golden(STREAMS, name)), chunk_bytes);
            let (gateway, server) = start_trusting(driver, answer, Some(second.addr().port()), &authority, &leaf);
            let before = model_requests(&second).len();
            let answer = gateway.chat("x-request-id: it\r\n", &stream(ALIAS, 2));
            assert_eq!(model_requests(&second).len() - before, usize::from(elsewhere), "{name}: {answer:?}");
            assert_eq!(server.seen().heads.len(), 1);
            if elsewhere {
                expect_one_end(&answer);
                assert_eq!(answer.events().pop().as_deref(), Some("[DONE]"), "{name}");
                let line = gateway.log_of("it");
                assert_eq!((&line["destination"], &line["retries"]), (&json!("second"), &json!(1)), "{name}: {line}");
            }
            gateway.expect_nothing_in_flight();
        }
    }
}

fn error(status: &str, kind: &str, message: &str) -> Vec<u8> {
    let body = json!({ "message": message }).to_string();
    let lines = format!("{status}\r\nx-amzn-ErrorType: {kind}:http://internal.amazon.com/\r\n");
    document(&body).replacen("200 OK\r\n", &lines, 1).into()
}

fn what_bedrock_refuses_is_told_and_what_is_its_own_trouble_goes_elsewhere(driver: Driver) {
    let (authority, leaf) = trusted();
    let second = hosted(&leaf);
    let arn = "arn:aws:iam::123456789012:role/gateway is not authorized";
    for (status, kind, message, code, elsewhere) in [
        ("429 Too Many Requests", "ThrottlingException", "Too many tokens", (429, "provider_throttled"), true),
        ("403 Forbidden", "AccessDeniedException", arn, (502, "provider_access_denied"), true),
        ("403 Forbidden", "ExpiredTokenException", arn, (502, "provider_credential_refused"), true),
        ("503 Service Unavailable", "ServiceUnavailableException", "", (503, "provider_unavailable"), true),
        ("400 Bad Request", "ValidationException", "too long", (400, "provider_refused_request"), false),
        ("408 Request Timeout", "ModelTimeoutException", "", (504, "provider_model_timeout"), false),
    ] {
        let answer = error(status, kind, message);
        for body in [chat(ALIAS, 2), stream(ALIAS, 2)] {
            let (gateway, server) = start_trusting(driver, answer.clone(), None, &authority, &leaf);
            let told = gateway.chat("", &body);
            assert_eq!((told.status, told.error_code().as_str()), code, "{kind}: {told:?}");
            assert!(!told.text().contains("arn:aws") && !told.head.contains("amzn"), "{told:?}");
            assert_eq!(told.header("retry-after").is_some(), matches!(code.0, 429 | 503), "{told:?}");
            assert_eq!(server.seen().heads.len(), 1);
            gateway.expect_nothing_in_flight();
            if code.0 == 400 {
                assert_eq!(gateway.chat("", &body).status, 400);
                assert_eq!(server.seen().connections, 1, "an error that came whole leaves the connection good");
            }
            if message == arn {
                gateway.wait_for_line(&["endpoint says", "endpoint=bedrock", "arn:aws:iam::123456789012"]);
            }
        }
        let (gateway, _server) = start_trusting(driver, answer, Some(second.addr().port()), &authority, &leaf);
        let before = model_requests(&second).len();
        let told = gateway.chat("", &chat(ALIAS, 2));
        assert_eq!(
            (told.status == 200, model_requests(&second).len() > before),
            (elsewhere, elsewhere),
            "{kind}: {told:?}"
        );
    }
}

fn what_converse_does_not_have_goes_to_a_provider_that_has_it(driver: Driver) {
    let (authority, leaf) = trusted();
    let second = hosted(&leaf);
    let answer: Vec<u8> = document(&golden(ANSWERS, "text")["converse"].to_string()).into();
    let biased = chat(ALIAS, 2).replace("\"max_tokens\"", "\"logit_bias\":{\"50256\":-100},\"max_tokens\"");
    let completion = format!(r#"{{"model":"{ALIAS}","prompt":"Once","max_tokens":2}}"#);
    for (path, body, param) in [
        ("/v1/chat/completions", biased.as_str(), json!("logit_bias")),
        ("/v1/completions", completion.as_str(), Value::Null),
    ] {
        let (gateway, server) = start_trusting(driver, answer.clone(), None, &authority, &leaf);
        let told = post(gateway.address, path, "", body);
        assert_eq!((told.status, told.error_code().as_str()), (400, "unsupported_by_provider"), "{told:?}");
        assert_eq!(told.json()["error"]["param"], param);
        assert_eq!(server.seen().connections, 0, "nothing was asked of it");
        let (gateway, _server) = start_trusting(driver, answer.clone(), Some(second.addr().port()), &authority, &leaf);
        let before = model_requests(&second).len();
        assert_eq!(post(gateway.address, path, "", body).status, 200);
        assert_eq!(model_requests(&second).len(), before + 1);
    }
    let (gateway, _server) = start_trusting(driver, answer, Some(second.addr().port()), &authority, &leaf);
    let wrong = chat(ALIAS, 2).replace("\"user\"", "7");
    let told = gateway.chat("", &wrong);
    assert_eq!(
        (told.status, told.error_code().as_str()),
        (400, "invalid_request_body"),
        "nobody could read it: {told:?}"
    );
    let (gateway, server) = start_trusting(driver, Vec::new(), None, &authority, &leaf);
    let told = gateway.chat("", &chat(ALIAS, 2).replace("\"user\"", "user"));
    assert_eq!((told.status, told.error_code().as_str()), (400, "invalid_json"), "{told:?}");
    assert_eq!(server.seen().connections, 0);
}

fn an_answer_that_is_too_long_is_told_so(driver: Driver) {
    let long = document(&json!({ "output": "a".repeat(9 << 20) }).to_string());
    let (gateway, _server) = start(driver, long.into(), None);
    let told = gateway.chat("x-request-id: long\r\n", &chat(ALIAS, 2));
    assert_eq!((told.status, told.error_code().as_str()), (502, "provider_answer_too_long"), "{told:?}");
    assert!(told.text().contains("longer than 8388608 bytes"), "{}", told.text());
    assert_eq!(gateway.log_of("long")["outcome"], "truncated");
    gateway.expect_nothing_in_flight();
}

fn without_its_keys_it_is_never_asked(driver: Driver) {
    let (authority, leaf) = trusted();
    let second = hosted(&leaf);
    let resources = bedrock_provider("bedrock", 1, KEYS)
        + &provider("second", second.addr().port(), "")
        + &providers_only(&["bedrock", "second"]);
    let gateway = setup(resources, &authority).ready(1).start(driver);
    assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
    gateway.wait_for_line(&["endpoint cannot be used", "endpoint=bedrock", "is not set"]);
}
