//! What a client and Bedrock see of the translation: golden files, which botocore has checked too (`botocore_check.py`), and the
//! rules behind them.

use std::collections::BTreeMap;

use bedrock::frames::Frames;
use bedrock::{ChatStream, Completion, Delivery, FIELDS, FRAME_BYTES_MAX, Failure, Fault, Refusal, Reply, Retry};
use bedrock::{Treatment, Usage, completion, converse};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

const REQUESTS: &str = include_str!("golden/requests.jsonl");
const ANSWERS: &str = include_str!("golden/answers.jsonl");
const STREAMS: &str = include_str!("golden/streams.jsonl");
const DOCUMENTATION: &str = include_str!("../../../docs/bedrock.md");

const REPLY: Reply<'_> = Reply { id: "chatcmpl-1", created_unix_s: 1_700_000_000, model: "m" };

fn lines(text: &str) -> Vec<Value> {
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert!(lines.len() > 15, "{} lines", lines.len());
    lines
}

/// The text of a member of each line, as it stands: the order of keys and the digits of numbers are part of it.
fn texts<'a>(file: &'a str, member: &str) -> Vec<&'a str> {
    let line =
        |line: &'a str| -> BTreeMap<&'a str, &'a RawValue> { serde_json::from_str(line).expect("a line of JSON") };
    file.lines().map(|text| line(text).get(member).map_or("", |raw| raw.get())).collect()
}

fn parsed(json: &[u8]) -> Value {
    serde_json::from_slice(json).expect("what is written is JSON")
}

fn refused(body: &str) -> Refusal {
    converse(body.as_bytes()).expect_err("a refusal")
}

fn asked(fields: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"Hi"}}]{fields}}}"#)
}

// ---- requests ----

#[test]
fn requests_are_translated_as_written_down() {
    for (line, body) in lines(REQUESTS).iter().zip(texts(REQUESTS, "openai")) {
        let made = converse(body.as_bytes());
        match (made, line["refused"].as_str()) {
            (Ok(made), None) => assert_eq!(parsed(&made.body), line["converse"], "{}", line["name"]),
            (Err(refusal), Some(expected)) => assert_eq!(refusal.to_string(), expected, "{}", line["name"]),
            (made, _) => panic!("{}: {made:?}", line["name"]),
        }
    }
}

#[test]
fn schemas_and_arguments_keep_the_order_of_keys_and_the_digits_of_numbers() {
    let schema =
        r#"{"type":"object","properties":{"zone":{"maximum":1.50},"alpha":{"minimum":12345678901234567890123}}}"#;
    let body = format!(
        r#"{{"model":"m","temperature":0.70,"messages":[{{"role":"user","content":"x"}},
            {{"role":"assistant","tool_calls":[{{"id":"c","function":{{"name":"f","arguments":"{{\"z\":1.0,\"a\":2e0}}"}}}}]}},
            {{"role":"tool","tool_call_id":"c","content":"y"}}],
            "tools":[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]}}"#
    );
    let made = String::from_utf8(converse(body.as_bytes()).unwrap().body).unwrap();
    for kept in [schema, r#"{"z":1.0,"a":2e0}"#, r#""temperature":0.70"#] {
        assert!(made.contains(kept), "{kept} in {made}");
    }
}

#[test]
fn the_delivery_is_the_one_that_was_asked_for() {
    let delivery = |fields: &str| converse(asked(fields).as_bytes()).unwrap().delivery;
    assert_eq!(delivery(""), Delivery::Whole);
    assert_eq!(delivery(r#","stream":false,"stream_options":{"include_usage":true}"#), Delivery::Whole);
    assert_eq!(delivery(r#","stream":true"#), Delivery::Streamed);
    assert_eq!(delivery(r#","stream":true,"stream_options":{"include_usage":false}"#), Delivery::Streamed);
    assert_eq!(delivery(r#","stream":true,"stream_options":{"include_usage":true}"#), Delivery::StreamedWithUsage);
}

#[test]
fn what_is_left_out_is_named() {
    let body = asked(r#","seed":1,"user":"u","frequency_penalty":0,"top_k":null,"not_a_field":1"#);
    assert_eq!(converse(body.as_bytes()).unwrap().left_out, ["frequency_penalty", "seed", "user"]);
}

#[test]
fn every_field_does_what_the_table_says() {
    let something = |field: &str| match field {
        "temperature" | "top_p" => json!(0.5),
        "max_tokens" | "max_completion_tokens" => json!(5),
        "stream" => json!(true),
        "stop" => json!(["x"]),
        "tools" => json!([{ "type": "function", "function": { "name": "f" } }]),
        "response_format" => json!({ "type": "json_schema", "json_schema": { "schema": {} } }),
        _ => json!("auto?"),
    };
    for field in FIELDS {
        let plain = converse(asked("").as_bytes()).unwrap();
        let with = |value: &str| converse(asked(&format!(r#","{}":{value}"#, field.name)).as_bytes());
        match field.treatment {
            // Not alone, or not without a meaning.
            Treatment::Translated(_)
                if ["model", "messages", "stream_options", "tool_choice"].contains(&field.name) => {}
            Treatment::Translated(_) => {
                let made = with(&something(field.name).to_string()).unwrap();
                assert_ne!((made.body, made.delivery), (plain.body, plain.delivery), "{}", field.name);
                assert!(made.left_out.is_empty(), "{}", field.name);
            }
            Treatment::Dropped(_) => {
                let made = with(&something(field.name).to_string()).unwrap();
                assert_eq!((made.body, made.left_out), (plain.body, vec![field.name]));
            }
            Treatment::Refused { harmless, why } => {
                let refusal = with(&something(field.name).to_string()).unwrap_err();
                assert_eq!(refusal.to_string(), format!("{}: {why}", field.name));
                assert_eq!((refusal.param(), refusal.retry()), (Some(field.name), Retry::Elsewhere));
                for value in harmless.iter().chain(&["null"]) {
                    let made = with(&format!(" {value} ")).unwrap();
                    assert_eq!((made.body, made.left_out.len()), (plain.body.clone(), 0), "{} {value}", field.name);
                }
            }
        }
    }
}

#[test]
fn the_table_of_fields_is_the_one_in_the_documentation() {
    let table: String = FIELDS
        .iter()
        .map(|field| match field.treatment {
            Treatment::Translated(to) => format!("| `{}` | translated | {to} |\n", field.name),
            Treatment::Dropped(why) => format!("| `{}` | left out | {why} |\n", field.name),
            Treatment::Refused { harmless, why } => {
                let but = harmless.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
                let but = if but.is_empty() { but } else { format!(" (but {but})") };
                format!("| `{}` | refused{but} | {why} |\n", field.name)
            }
        })
        .collect();
    assert!(DOCUMENTATION.contains(&table), "docs/bedrock.md must have this table:\n{table}");
}

#[test]
fn what_is_wrong_everywhere_is_not_tried_again() {
    let lone_surrogate = "{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}";
    for (body, code) in [
        ("", "invalid_json"),
        ("nothing", "invalid_json"),
        ("{\"messages\":[", "invalid_json"),
        ("{\"messages\":[]} and more", "invalid_json"),
        ("[]", "invalid_request_body"),
        ("{}", "invalid_request_body"),
        (lone_surrogate, "invalid_request_body"),
    ] {
        let refusal = refused(body);
        assert_eq!((refusal.status(), refusal.code(), refusal.retry()), (400, code, Retry::Never), "{body}");
        assert_eq!(refusal.kind(), "invalid_request_error");
    }
    assert_eq!(converse(b"{\"messages\":\xFF}").unwrap_err().to_string(), "The request body is not valid JSON.");
}

#[test]
fn a_name_that_stands_twice_is_refused() {
    let refusal = refused(r#"{"messages":[{"role":"user","content":"a","content":"b"}]}"#);
    assert_eq!(refusal.param(), Some("messages[0]"));
    let many: String = (0..300).map(|number| format!(r#","f{number}":1"#)).collect();
    assert_eq!(refused(&asked(&many)).param(), None);
    let some: String = (0..250).map(|number| format!(r#","f{number}":1"#)).collect();
    assert!(converse(asked(&some).as_bytes()).is_ok());
}

#[test]
fn nesting_without_end_is_no_danger() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    assert!(converse(asked(&format!(r#","unknown":{deep}"#)).as_bytes()).is_ok());
    assert_eq!(refused(&asked(&format!(r#","n":{deep}"#))).param(), Some("n"));
    assert_eq!(refused(&format!(r#"{{"messages":{deep}}}"#)).param(), Some("messages[0]"));
}

#[test]
fn other_interfaces_are_refused_with_what_is_served() {
    let refusal = Refusal::interface();
    assert_eq!((refusal.status(), refusal.code()), (400, "unsupported_by_provider"));
    assert_eq!((refusal.param(), refusal.retry()), (None, Retry::Elsewhere));
    assert!(refusal.to_string().contains("/v1/chat/completions"), "{refusal}");
}

#[test]
fn no_refusal_quotes_the_request() {
    const SECRET: &str = "Zanzibar";
    let values =
        [json!(SECRET), json!([SECRET]), json!({ SECRET: SECRET }), json!([[SECRET]]), json!([{ "type": SECRET }])];
    let mut refusals = 0;
    for field in FIELDS.iter().map(|field| field.name) {
        for value in &values {
            let mut body = parsed(asked("").as_bytes());
            body[field] = value.clone();
            if let Err(refusal) = converse(body.to_string().as_bytes()) {
                refusals += 1;
                assert!(!format!("{refusal} {refusal:?}").contains(SECRET), "{refusal:?}");
            }
        }
    }
    assert!(refusals > 100, "{refusals}");
}

/// A message of a random conversation: its role, and which texts it has.
fn message() -> impl Strategy<Value = Value> {
    let text = prop_oneof!["[a-z]{1,8}", Just(" \n".to_owned()), Just(String::new())];
    (0..5_u8, prop::collection::vec(text, 1..3)).prop_map(|(kind, texts)| {
        let parts: Vec<Value> = texts.iter().map(|text| json!({ "type": "text", "text": text })).collect();
        match kind {
            0 => json!({ "role": "system", "content": parts }),
            1 => json!({ "role": "user", "content": parts }),
            2 => json!({ "role": "assistant", "content": texts[0] }),
            3 => json!({ "role": "assistant", "content": null, "tool_calls":
                    [{ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } }] }),
            _ => json!({ "role": "tool", "tool_call_id": "c", "content": parts }),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn roles_alternate_and_no_text_is_lost_or_blank(messages in prop::collection::vec(message(), 0..12)) {
        let body = json!({ "model": "m", "messages": messages }).to_string();
        let Ok(made) = converse(body.as_bytes()) else {
            let first = messages.iter().find(|message| message["role"] != "system").map(|message| &message["role"]);
            prop_assert!(first.is_none_or(|role| role == "assistant" || role == "user"));
            return Ok(());
        };
        let made = parsed(&made.body);
        let turns = made["messages"].as_array().expect("turns");
        for (index, turn) in turns.iter().enumerate() {
            prop_assert_eq!(&turn["role"], if index % 2 == 0 { "user" } else { "assistant" });
            prop_assert!(!turn["content"].as_array().expect("blocks").is_empty());
        }
        let texts = |wanted: fn(&str) -> bool| -> Vec<String> {
            let of = |message: &Value| match &message["content"] {
                Value::String(text) => vec![text.clone()],
                Value::Array(parts) => parts.iter().map(|part| part["text"].as_str().expect("text").to_owned()).collect(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
            };
            let chosen = messages.iter().filter(|message| wanted(message["role"].as_str().expect("a role")));
            chosen.flat_map(of).filter(|text| !text.trim().is_empty()).collect()
        };
        let block_texts = |block: &Value| -> Vec<String> {
            let result = block["toolResult"]["content"].as_array().into_iter().flatten();
            result.chain([block]).filter_map(|block| Some(block["text"].as_str()?.to_owned())).collect()
        };
        let said: Vec<String> =
            turns.iter().flat_map(|turn| turn["content"].as_array().expect("blocks")).flat_map(block_texts).collect();
        prop_assert_eq!(said, texts(|role| role != "system"));
        let instructions: Vec<String> = made["system"].as_array().into_iter().flatten().flat_map(block_texts).collect();
        prop_assert_eq!(instructions, texts(|role| role == "system"));
    }

    #[test]
    fn any_body_is_translated_or_refused(body in ".{0,200}") {
        let _ = converse(body.as_bytes());
    }
}

// ---- answers ----

#[test]
fn answers_are_translated_as_written_down() {
    for (line, body) in lines(ANSWERS).iter().zip(texts(ANSWERS, "converse")) {
        let body = line["text"].as_str().unwrap_or(body);
        match (completion(body.as_bytes(), REPLY), line["failure"].as_str()) {
            (Ok(Completion { body, usage }), None) => {
                assert_eq!(parsed(&body), line["openai"], "{}", line["name"]);
                let shown = &line["openai"]["usage"];
                assert_eq!(shown["prompt_tokens"], usage.prompt_tokens);
                assert_eq!(shown["completion_tokens"], usage.completion_tokens);
                assert_eq!(shown["prompt_tokens_details"]["cached_tokens"], usage.cached_tokens);
            }
            (Err(failure), Some(expected)) => assert_eq!(failure.to_string(), expected, "{}", line["name"]),
            (made, _) => panic!("{}: {made:?}", line["name"]),
        }
    }
}

#[test]
fn arguments_of_a_call_are_the_models_own_text() {
    let body = r#"{"output":{"message":{"role":"assistant","content":[{"toolUse":{"toolUseId":"t","name":"f",
        "input":{"z":1.50,"a":12345678901234567890123}}}]}},"stopReason":"tool_use","usage":{}}"#;
    let made = parsed(&completion(body.as_bytes(), REPLY).unwrap().body);
    let call = &made["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], r#"{"z":1.50,"a":12345678901234567890123}"#);
}

// ---- streams ----

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hexadecimal digit") as u8;
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn golden(name: &str) -> Vec<u8> {
    let line = lines(STREAMS).into_iter().find(|line| line["name"] == name).expect("a stream of this name");
    unhex(line["hex"].as_str().expect("hexadecimal digits"))
}

/// What became of an answer's bytes: the events, and the failure.
fn streamed<'a>(
    parts: impl IntoIterator<Item = &'a [u8]>,
    delivery: Delivery,
) -> (String, Option<Failure>, Option<Usage>) {
    let (mut stream, mut out) = (ChatStream::new(REPLY, delivery, FRAME_BYTES_MAX), Vec::new());
    let fed = parts.into_iter().try_for_each(|part| stream.feed(part, &mut out));
    let result = fed.and_then(|()| stream.end(&mut out));
    assert_eq!(stream.is_done(), out.ends_with(b"data: [DONE]\n\n"));
    (String::from_utf8(out).expect("events are text"), result.err(), stream.usage())
}

#[test]
fn streams_are_translated_as_written_down_wherever_they_are_split() {
    for line in lines(STREAMS) {
        let bytes = unhex(line["hex"].as_str().expect("hexadecimal digits"));
        for size in [1, 7, 64, 1 << 20] {
            let (events, failure, _) = streamed(bytes.chunks(size), Delivery::StreamedWithUsage);
            assert_eq!(events, line["sse"].as_str().expect("events"), "{} by {size}", line["name"]);
            assert_eq!(failure.map(|failure| failure.to_string()).as_deref(), line["failure"].as_str());
        }
    }
}

#[test]
fn frames_of_awss_own_encoder_hold_the_events_that_botocore_reads() {
    for line in lines(STREAMS) {
        let bytes = unhex(line["hex"].as_str().expect("hexadecimal digits"));
        let (mut frames, mut rest, mut events) = (Frames::new(FRAME_BYTES_MAX), &bytes[..], Vec::new());
        while let Ok(Some(message)) = frames.read(&mut rest) {
            let Some(kind) = message.text(":event-type") else { break };
            let mut payload = parsed(message.payload());
            // Padding is no part of the service's model.
            payload.as_object_mut().expect("an object").remove("p");
            events.push(BTreeMap::from([(kind.to_owned(), payload)]));
        }
        // Of an event that it does not know botocore tells nothing.
        events.retain(|event| !event.contains_key("somethingElse"));
        let expected: Vec<_> =
            line["events"].as_array().expect("events").iter().filter(|event| **event != json!({})).collect();
        assert_eq!(json!(events), json!(expected), "{}", line["name"]);
    }
}

#[test]
fn usage_is_told_to_those_who_ask_and_known_in_any_case() {
    let bytes = golden("text");
    let (asked, _, usage) = streamed([&bytes[..]], Delivery::StreamedWithUsage);
    let (plain, failure, usage_of_plain) = streamed([&bytes[..]], Delivery::Streamed);
    assert_eq!(usage, Some(Usage { prompt_tokens: 1112, completion_tokens: 34, cached_tokens: 1000 }));
    assert_eq!((usage, failure), (usage_of_plain, None));
    assert_eq!((asked.matches("prompt_tokens\"").count(), plain.matches("usage").count()), (1, 0));
}

#[test]
fn done_is_told_with_the_last_event_and_not_only_at_the_end_of_the_connection() {
    let (mut stream, mut out) = (ChatStream::new(REPLY, Delivery::Streamed, FRAME_BYTES_MAX), Vec::new());
    stream.feed(&golden("text"), &mut out).unwrap();
    assert!(stream.is_done() && out.ends_with(b"data: [DONE]\n\n"));
    let before = out.len();
    stream.end(&mut out).unwrap();
    assert_eq!(out.len(), before);
}

#[test]
fn the_role_goes_first_even_where_bedrock_does_not_begin_with_it() {
    let bytes = golden("text");
    let first = Frames::new(FRAME_BYTES_MAX)
        .read(&mut &bytes[..])
        .unwrap()
        .map(|_| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let (without, _, _) = streamed([&bytes[first.unwrap() as usize..]], Delivery::StreamedWithUsage);
    assert_eq!(without, streamed([&bytes[..]], Delivery::StreamedWithUsage).0);
}

#[test]
fn nothing_is_added_to_an_answer_that_has_ended() {
    let (events, failure, _) = streamed([&golden("no metadata")[..], &golden("text")], Delivery::Streamed);
    assert_eq!(failure.map(|failure| failure.fault()), Some(Fault::Unreadable));
    assert!(events.trim_end().ends_with(r#""finish_reason":"stop"}]}"#), "{events}");
}

#[test]
fn a_frame_longer_than_the_bound_ends_the_stream() {
    let (mut stream, mut out) = (ChatStream::new(REPLY, Delivery::Streamed, 100), Vec::new());
    let failure = stream.feed(&golden("text"), &mut out).unwrap_err();
    assert!(matches!(failure.fault(), Fault::Frame(_)), "{failure:?}");
    assert_eq!(stream.feed(b"", &mut out), Err(failure));
    assert!(out.is_empty());
}

#[test]
fn a_failure_after_the_beginning_is_an_error_event_and_no_done() {
    let (mut events, failure, _) = streamed([&golden("model error")[..]], Delivery::Streamed);
    let mut event = Vec::new();
    failure.unwrap().push_event(&mut event);
    events.push_str(std::str::from_utf8(&event).unwrap());
    let last = events.trim_end().rsplit("\n\n").next().unwrap().strip_prefix("data: ").unwrap();
    let expected = json!({ "error": { "message": "the model failed at Bedrock while it was answering",
                                      "type": "server_error", "param": null, "code": "provider_model_error" } });
    assert_eq!(parsed(last.as_bytes()), expected);
    assert!(!events.contains("[DONE]"));
}

// ---- errors ----

#[test]
fn every_exception_has_its_status_code_and_retry() {
    let table = [
        ("ThrottlingException", 429, 429, "provider_throttled", Retry::Elsewhere),
        ("ServiceQuotaExceededException", 400, 429, "provider_quota_exceeded", Retry::Elsewhere),
        ("ValidationException", 400, 400, "provider_refused_request", Retry::Never),
        ("AccessDeniedException", 403, 502, "provider_access_denied", Retry::Elsewhere),
        ("UnrecognizedClientException", 403, 502, "provider_credential_refused", Retry::Elsewhere),
        ("ExpiredTokenException", 403, 502, "provider_credential_refused", Retry::Elsewhere),
        ("InvalidSignatureException", 403, 502, "provider_credential_refused", Retry::Elsewhere),
        ("ResourceNotFoundException", 404, 502, "provider_model_not_found", Retry::Elsewhere),
        ("ModelTimeoutException", 408, 504, "provider_model_timeout", Retry::Never),
        ("ModelErrorException", 424, 502, "provider_model_error", Retry::Again),
        ("ModelNotReadyException", 429, 503, "provider_model_not_ready", Retry::Again),
        ("InternalServerException", 500, 502, "provider_error", Retry::Again),
        ("ServiceUnavailableException", 503, 503, "provider_unavailable", Retry::Elsewhere),
    ];
    for (name, theirs, ours, code, retry) in table {
        let long = format!("{name}:http://internal.amazon.com/coral/com.amazon.bedrock/");
        let typed = json!({ "__type": format!("com.amazon.coral.service#{name}"), "Message": "x" }).to_string();
        let coded = json!({ "code": name, "message": "x" }).to_string();
        let ways = [
            Failure::of_answer(theirs, Some(name), b""),
            Failure::of_answer(theirs, Some(&long), b"{}"),
            Failure::of_answer(theirs, None, typed.as_bytes()),
            Failure::of_answer(theirs, None, coded.as_bytes()),
        ];
        for failure in ways {
            assert_eq!((failure.status(), failure.code(), failure.retry()), (ours, code, retry), "{name}");
            assert_eq!(failure.kind() == "server_error", ours >= 500);
        }
        assert!(
            DOCUMENTATION.contains(&format!("| `{name}` | {theirs} | {ours} `{code}` | ")),
            "{name} in docs/bedrock.md"
        );
    }
}

#[test]
fn an_error_without_a_name_is_known_by_its_status() {
    let status = |status| Failure::of_answer(status, None, b"<html>busy</html>").fault();
    assert_eq!(status(401), Fault::AccessDenied);
    assert_eq!(status(413), Fault::TooLarge);
    assert_eq!(status(424), Fault::ModelError);
    assert_eq!(status(429), Fault::Throttled);
    assert_eq!(status(503), Fault::Unavailable);
    assert_eq!(status(302), Fault::Other(302));
    let shown = |status| {
        let failure = Failure::of_answer(status, Some("SomethingNew"), b"");
        (failure.status(), failure.retry())
    };
    assert_eq!(
        (shown(302), shown(418), shown(599)),
        ((502, Retry::Elsewhere), (400, Retry::Never), (502, Retry::Elsewhere))
    );
}

#[test]
fn the_client_is_told_about_its_request_and_the_operator_about_the_account() {
    let denied =
        "User: arn:aws:sts::123456789012:assumed-role/gateway is not authorized to perform: bedrock:InvokeModel";
    let body = |message: &str| json!({ "message": message }).to_string().into_bytes();
    let failure = Failure::of_answer(403, Some("AccessDeniedException"), &body(denied));
    assert!(!failure.message().contains("arn:"), "{}", failure.message());
    assert_eq!(failure.operator_detail(), Some(denied));
    let failure = Failure::of_answer(400, Some("ValidationException"), &body("The text field is blank."));
    assert_eq!(failure.message(), "Bedrock refused the request: The text field is blank.");
    assert_eq!(failure.operator_detail(), None);
    let body = body("The model arn:aws:bedrock:us-east-1:123456789012:imported-model/abc does not take tools.");
    let told = Failure::of_answer(400, Some("ValidationException"), &body).message();
    assert_eq!(told, "Bedrock refused the request: The model (an ARN) does not take tools.");
    assert_eq!(
        (format!("{failure}"), format!("{failure:?}")),
        ("Bedrock refused the request".to_owned(), "Failure(Validation)".to_owned())
    );
}

#[test]
fn what_bedrock_says_is_bounded() {
    let body = json!({ "message": "ü".repeat(5_000) }).to_string();
    assert!(Failure::of_answer(400, Some("ValidationException"), body.as_bytes()).message().len() < 1_100);
}

#[test]
fn events_that_are_errors_are_known_by_their_names() {
    let fault = |name| streamed([&golden(name)[..]], Delivery::Streamed).1.expect("a failure").fault();
    assert_eq!(fault("throttled at once"), Fault::Throttled);
    assert_eq!(fault("throttled later"), Fault::Throttled);
    assert_eq!(fault("model error"), Fault::ModelStream);
    assert_eq!(fault("validation"), Fault::Validation);
    assert_eq!(fault("unavailable"), Fault::Unavailable);
    assert_eq!(fault("internal"), Fault::Internal);
    assert_eq!(fault("an error message"), Fault::Internal);
    assert_eq!(fault("malformed tool use"), Fault::MalformedOutput);
    assert_eq!(
        (fault("ends inside a frame"), fault("ends between frames"), fault("nothing")),
        (Fault::CutOff, Fault::CutOff, Fault::CutOff)
    );
}
