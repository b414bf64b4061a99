//! What requests to Bedrock hold while they are under way, when they go there, and what they cost.

use serde_json::json;

use crate::bedrock::{ANSWERS, KEYS, STREAMS, bedrock_provider, frames, golden, with_keys};
use crate::hosted::{hosted, provider, providers_only, trusted};
use crate::server::{Manner, Server};
use crate::support::engines::{ALIAS, MODEL, chat_of, pool, worker_set};
use crate::support::scripted::document;
use crate::support::{Driver, Gateway, chat, engine, eventually, model_requests, stream};

on_both_drivers![
    what_is_made_of_a_prompt_is_in_the_memory_of_bodies,
    what_is_kept_of_an_answer_is_in_the_memory_of_bodies,
    what_the_local_engine_has_no_room_for_goes_to_bedrock_at_its_price,
];

const LIMITS: &str = "limits: { requestBody: 1MiB, requestBodiesTotal: 1MiB }";

fn held(gateway: &Gateway, bytes: usize) {
    gateway.wait_for_metric("kinference_request_bodies_bytes", &[], bytes as f64);
}

fn what_is_made_of_a_prompt_is_in_the_memory_of_bodies(driver: Driver) {
    let (authority, leaf) = trusted();
    let second = hosted(&leaf);
    let answer = document(&golden(ANSWERS, "text")["converse"].to_string());
    let server = Server::start(&leaf, Manner::Pauses(Vec::new(), answer.into()));
    let bedrock = bedrock_provider("bedrock", server.port, KEYS);
    let body = chat_of(ALIAS, &"word ".repeat(60_000), 2, "");
    // A third of the account for the prompt, a third for what is made of it: the next has no room for both.
    for names in [&["bedrock"][..], &["bedrock", "second"]] {
        let resources = bedrock.clone() + &provider("second", second.addr().port(), "") + &providers_only(names);
        let gateway = with_keys(resources, &authority).server(LIMITS).ready(2).start(driver);
        let before = (server.seen().bodies.len(), model_requests(&second).len());
        let first = gateway.send_chat("", &body);
        eventually("the first is there", || (server.seen().bodies.len() > before.0).then_some(()));
        let sent = server.seen().bodies[before.0].len();
        assert!(sent > body.len() / 2);
        held(&gateway, body.len() + sent);
        let answer = gateway.chat("", &body);
        match names.len() {
            1 => {
                assert_eq!((answer.status, answer.error_code().as_str()), (503, "request_memory_exhausted"));
                assert_eq!(model_requests(&second).len(), before.1);
            }
            _ => {
                assert_eq!(answer.status, 200, "who takes it as it is needs no such room: {answer:?}");
                assert_eq!(model_requests(&second).len(), before.1 + 1);
            }
        }
        assert_eq!(server.seen().bodies.len(), before.0 + 1);
        held(&gateway, body.len() + sent);
        drop(first);
        held(&gateway, 0);
        gateway.expect_nothing_in_flight();
    }
}

fn what_is_kept_of_an_answer_is_in_the_memory_of_bodies(driver: Driver) {
    let (authority, leaf) = trusted();
    let text = "word ".repeat(60_000);
    let converse = json!({
        "output": { "message": { "role": "assistant", "content": [{ "text": text }] } },
        "stopReason": "end_turn",
        "usage": { "inputTokens": 3, "outputTokens": 5 },
    });
    let whole = document(&converse.to_string()).into_bytes();
    let head_bytes = crate::support::client::find(&whole, b"\r\n\r\n").unwrap() + 4;
    let (begun, rest) = whole.split_at(head_bytes + 200_000);
    let server = Server::start(&leaf, Manner::Pauses(begun.to_vec(), rest.to_vec()));
    let resources = bedrock_provider("bedrock", server.port, KEYS) + &providers_only(&["bedrock"]);
    let gateway = with_keys(resources, &authority).server(LIMITS).start(driver);
    let leaving = gateway.send_chat("", &chat(ALIAS, 7));
    held(&gateway, 200_000);
    drop(leaving);
    held(&gateway, 0);
    let mut client = gateway.send_chat("", &chat(ALIAS, 7));
    held(&gateway, 200_000);
    server.go_on();
    let answer = client.answer();
    assert_eq!(answer.json()["choices"][0]["message"]["content"], text);
    held(&gateway, 0);

    // A frame of 136 bytes, and the beginning of another.
    let all = frames(&golden(STREAMS, "text"));
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", all.len());
    let begun = [head.as_bytes(), &all[..236]].concat();
    let server = Server::start(&leaf, Manner::Pauses(begun, all[236..].to_vec()));
    let resources = bedrock_provider("bedrock", server.port, KEYS) + &providers_only(&["bedrock"]);
    let gateway = with_keys(resources, &authority).server(LIMITS).start(driver);
    let mut client = gateway.send_chat("", &stream(ALIAS, 7));
    eventually("the beginning is held, and the event that was sent", || {
        let bytes = gateway.metric("kinference_request_bodies_bytes", &[]) as usize;
        (100..1_000).contains(&bytes).then_some(())
    });
    server.go_on();
    assert_eq!(client.answer().events().last().unwrap(), "[DONE]");
    held(&gateway, 0);
}

fn what_the_local_engine_has_no_room_for_goes_to_bedrock_at_its_price(driver: Driver) {
    let (authority, leaf) = trusted();
    let local = engine();
    let server =
        Server::start(&leaf, Manner::Answers(document(&golden(ANSWERS, "text")["converse"].to_string()).into()));
    let set = worker_set("workers", MODEL, ALIAS, &[&local])
        .replace("spec:\n", "spec:\n  limits: { maxInFlightPerEndpoint: 1 }\n");
    let priced = bedrock_provider("bedrock", server.port, KEYS)
        .replace("v1:0\" }", "v1:0\", cost: { inputPerMillion: 3, outputPerMillion: 15 } }");
    assert!(priced.contains("inputPerMillion"));
    let pool = pool(&["workers"], &["overflow"])
        .replace("name: workers }\n", "name: workers }\n    - { kind: InferenceProvider, name: bedrock }\n");
    let policy = "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: { name: overflow, namespace: default }\n\
                  spec: { rules: [{ name: both, route: { select: [{ type: Local }, { type: External }] } }] }\n---\n";
    let gateway = with_keys(set + &priced + &pool + policy, &authority).ready(2).start(driver);
    let mut first = gateway.send_chat("x-request-id: first\r\nx-fault: hang-mid-stream=1\r\n", &stream(ALIAS, 3));
    assert_eq!(first.head().status, 200);
    for number in 0..3 {
        assert_eq!(gateway.chat(&format!("x-request-id: over-{number}\r\n"), &chat(ALIAS, 7)).status, 200);
        let line = gateway.log_of(&format!("over-{number}"));
        assert_eq!((&line["destination"], &line["outcome"]), (&json!("bedrock"), &json!("ok")), "{line}");
        assert_eq!((&line["prompt_tokens"], &line["completion_tokens"]), (&json!(10), &json!(5)), "{line}");
        let cost = line["cost"].as_f64().unwrap();
        assert!((cost - (10.0 * 3.0 + 5.0 * 15.0) / 1e6).abs() < 1e-12, "{line}");
    }
    let told = gateway.metric("kinference_cost_total", &["destination=\"bedrock\""]);
    assert!((told - 3.0 * 105e-6).abs() < 1e-9, "{told}");
    drop(first);
    gateway.expect_nothing_in_flight();
    assert_eq!(gateway.chat("x-request-id: back\r\n", &chat(ALIAS, 2)).status, 200);
    for id in ["first", "back"] {
        assert_eq!(gateway.log_of(id)["destination"], "workers");
    }
    assert_eq!(server.seen().heads.len(), 3);
    gateway.expect_nothing_in_flight();
}
