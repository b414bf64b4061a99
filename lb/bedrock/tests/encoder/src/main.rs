//! Event streams made by AWS's own encoder, a JSON object a line; `botocore_check.py --write` adds what botocore reads in them.

use std::fmt::Write as _;

use aws_smithy_eventstream::frame::write_message_to;
use aws_smithy_types::event_stream::{Header, HeaderValue, Message};
use aws_smithy_types::{DateTime, str_bytes::StrBytes};
use serde_json::{Value, json};

fn text(value: &str) -> HeaderValue {
    HeaderValue::String(StrBytes::from(value.to_owned()))
}

fn frame(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_message_to(message, &mut bytes).expect("a message that can be written");
    bytes
}

fn message(headers: &[(&str, &str)], payload: &[u8]) -> Message {
    headers.iter().fold(Message::new(payload.to_vec()), |message, (name, value)| {
        message.add_header(Header::new((*name).to_owned(), text(value)))
    })
}

fn event(kind: &str, payload: &Value) -> Vec<u8> {
    let headers = [(":event-type", kind), (":content-type", "application/json"), (":message-type", "event")];
    frame(&message(&headers, payload.to_string().as_bytes()))
}

fn exception(kind: &str, payload: &Value) -> Vec<u8> {
    let headers = [(":exception-type", kind), (":content-type", "application/json"), (":message-type", "exception")];
    frame(&message(&headers, payload.to_string().as_bytes()))
}

fn start() -> Vec<u8> {
    event("messageStart", &json!({ "p": "abcdefghijk", "role": "assistant" }))
}

fn delta(block: u64, delta: &Value) -> Vec<u8> {
    event("contentBlockDelta", &json!({ "contentBlockIndex": block, "delta": delta, "p": "abcdefghijklmnopqrs" }))
}

fn said(block: u64, text: &str) -> Vec<u8> {
    delta(block, &json!({ "text": text }))
}

fn stop(block: u64) -> Vec<u8> {
    event("contentBlockStop", &json!({ "contentBlockIndex": block, "p": "abc" }))
}

fn tool(block: u64, id: &str, name: &str) -> Vec<u8> {
    let start = json!({ "toolUse": { "toolUseId": id, "name": name } });
    event("contentBlockStart", &json!({ "contentBlockIndex": block, "p": "ab", "start": start }))
}

fn input(block: u64, text: &str) -> Vec<u8> {
    delta(block, &json!({ "toolUse": { "input": text } }))
}

fn ended(reason: &str) -> Vec<u8> {
    event("messageStop", &json!({ "p": "abcdef", "stopReason": reason }))
}

fn metadata() -> Vec<u8> {
    let usage = json!({ "inputTokens": 12, "outputTokens": 34, "totalTokens": 1146, "cacheReadInputTokens": 1000,
                        "cacheWriteInputTokens": 100 });
    event("metadata", &json!({ "metrics": { "latencyMs": 651 }, "p": "abcd", "usage": usage }))
}

/// An event with a header of every type beside its own.
fn typed() -> Vec<u8> {
    let own = message(
        &[(":event-type", "contentBlockDelta"), (":content-type", "application/json"), (":message-type", "event")],
        json!({ "contentBlockIndex": 0, "delta": { "text": "typed" } }).to_string().as_bytes(),
    );
    let more = [
        ("yes", HeaderValue::Bool(true)),
        ("no", HeaderValue::Bool(false)),
        ("byte", HeaderValue::Byte(-7)),
        ("short", HeaderValue::Int16(-30_000)),
        ("int", HeaderValue::Int32(2_000_000_000)),
        ("long", HeaderValue::Int64(-9_000_000_000_000_000_000)),
        ("bytes", HeaderValue::ByteArray(vec![0, 1, 254, 255].into())),
        ("text", text("naïve 🙂")),
        ("time", HeaderValue::Timestamp(DateTime::from_millis(1_700_000_000_123))),
        ("uuid", HeaderValue::Uuid(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff)),
    ];
    frame(&more.into_iter().fold(own, |message, (name, value)| message.add_header(Header::new(name, value))))
}

fn changed(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes[at] ^= 1;
    bytes
}

fn cut(bytes: Vec<u8>, off: usize) -> Vec<u8> {
    bytes[..bytes.len() - off].to_vec()
}

fn main() {
    let refused = json!({ "message": "Too many tokens, please wait before trying again." });
    let usual = [start(), said(0, "Hello"), said(0, ", \"wörld\"\n"), said(0, "🙂"), stop(0), ended("end_turn"), metadata()].concat();
    let streams: Vec<(&str, Vec<u8>)> = vec![
        ("text", usual.clone()),
        ("tools", [
            start(), said(0, "Let me look."), stop(0), tool(1, "tooluse_abc", "weather"), input(1, ""), input(1, "{\"city\": \"Z"),
            input(1, "ürich\"}"), stop(1), tool(2, "tooluse_def", "time"), input(2, ""), stop(2), ended("tool_use"), metadata(),
        ].concat()),
        ("interleaved tools", [
            start(), tool(0, "a", "one"), tool(1, "b", "two"), input(1, "{\"y\":"), input(0, "{\"x\":1}"), input(1, "2}"), stop(0),
            stop(1), ended("tool_use"), metadata(),
        ].concat()),
        ("reasoning", [
            start(), delta(0, &json!({ "reasoningContent": { "text": "Think" } })),
            delta(0, &json!({ "reasoningContent": { "text": "ing." } })),
            delta(0, &json!({ "reasoningContent": { "signature": "c2ln" } })),
            delta(0, &json!({ "reasoningContent": { "redactedContent": "AAEC" } })), stop(0), said(1, "42"), stop(1),
            ended("max_tokens"), metadata(),
        ].concat()),
        ("guardrail", [start(), said(0, "Sorry, I cannot."), stop(0), ended("guardrail_intervened"), metadata()].concat()),
        ("no metadata", [start(), said(0, "a"), stop(0), ended("stop_sequence")].concat()),
        ("context window", [start(), said(0, "a"), stop(0), ended("model_context_window_exceeded"), metadata()].concat()),
        ("malformed tool use", [start(), tool(0, "a", "one"), input(0, "{"), stop(0), ended("malformed_tool_use"), metadata()].concat()),
        ("a new stop reason", [start(), said(0, "a"), stop(0), ended("tired"), metadata()].concat()),
        ("a new event", [start(), event("somethingElse", &json!({ "a": 1 })), said(0, "a"), stop(0), ended("end_turn"), metadata()].concat()),
        ("a call that Bedrock runs", [
            start(),
            event("contentBlockStart", &json!({ "contentBlockIndex": 0, "start": { "toolUse": {
                "toolUseId": "s", "name": "nova_grounding", "type": "server_tool_use" } } })),
            input(0, "{}"), stop(0), said(1, "found"), stop(1), ended("end_turn"), metadata(),
        ].concat()),
        ("every type of header", [start(), typed(), stop(0), ended("end_turn"), metadata()].concat()),
        ("throttled at once", exception("throttlingException", &refused)),
        ("throttled later", [start(), said(0, "a"), exception("throttlingException", &refused)].concat()),
        ("model error", [start(), said(0, "a"), exception("modelStreamErrorException", &json!({
            "message": "The model stopped.", "originalStatusCode": 500, "originalMessage": "oops" }))].concat()),
        ("validation", exception("validationException", &json!({ "message": "Input is too long." }))),
        ("unavailable", exception("serviceUnavailableException", &json!({ "message": "Bedrock is unable to process." }))),
        ("internal", exception("internalServerException", &json!({ "message": "The system encountered an error." }))),
        ("an error message", frame(&message(&[(":message-type", "error"), (":error-code", "InternalServerException"),
            (":error-message", "An internal server error occurred")], b""))),
        ("ends inside a frame", cut(usual.clone(), 5)),
        ("ends between frames", [start(), said(0, "a")].concat()),
        ("a payload bit", [start(), changed(said(0, "abcdef"), 120), ended("end_turn")].concat()),
        ("a length bit", [start(), changed(said(0, "abcdef"), 2), ended("end_turn")].concat()),
        ("a checksum bit", { let last = usual.len() - 1; changed(usual, last) }),
        ("no event stream", b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>".to_vec()),
        ("nothing", Vec::new()),
    ];
    for (name, bytes) in streams {
        let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("writing to memory");
            hex
        });
        println!("{}", json!({ "name": name, "hex": hex }));
    }
}
