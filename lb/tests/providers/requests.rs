//! Requests that go well: over HTTPS, on kept connections, under the names and the credential of the provider.

use std::fs;
use std::net::Shutdown;

use rustls::HandshakeKind;

use crate::hosted::{
    HOST, TOKEN, hosted, hosted_with, in_front_of, provider, provider_at, providers_only, setup, trusted,
};
use crate::server::{Manner, Server};
use crate::support::client::request;
use crate::support::engines::{ALIAS, MODEL, break_once, expect_idle};
use crate::support::scripted::document;
use crate::support::{Client, Driver, chat, eventually, model_requests, stream};

on_both_drivers![
    whole_and_streamed_answers_come_over_https_under_the_name_asked_for,
    what_a_provider_gets_is_ours_and_nothing_of_who_asked,
    what_a_provider_answers_cannot_pass_for_ours,
    a_connection_is_kept_and_the_next_session_is_resumed,
    the_name_of_the_server_is_told_and_http_1_1_agreed_upon,
    a_server_may_have_another_name_than_its_address,
    long_prompts_and_long_answers_go_through,
    an_answer_that_comes_before_the_prompt_is_sent_ends_the_upload,
    what_is_cut_off_without_a_word_is_not_taken_for_whole,
    a_client_that_leaves_ends_the_work_of_the_provider,
    a_rotated_credential_and_authority_are_in_force_without_a_restart,
    a_request_that_takes_too_long_in_all_is_ended,
];

const JSON: &str = r#"{"object":"chat.completion","model":"org/tiny-1"}"#;

fn whole_and_streamed_answers_come_over_https_under_the_name_asked_for(driver: Driver) {
    let (authority, leaf) = trusted();
    let engine = hosted(&leaf);
    let gateway = in_front_of(driver, &engine, &authority, "");
    let whole = gateway.chat("", &chat(ALIAS, 5));
    assert_eq!((whole.status, whole.json()["model"].as_str()), (200, Some(ALIAS)), "{whole:?}");
    let streamed = gateway.chat("x-request-id: streamed\r\n", &stream(ALIAS, 5));
    assert_eq!(streamed.events().last().unwrap(), "[DONE]");
    assert_eq!(Some(streamed.said().as_str()), whole.json()["choices"][0]["message"]["content"].as_str());
    assert!(!streamed.text().contains(MODEL), "{}", streamed.text());
    for event in streamed.events().iter().filter(|event| *event != "[DONE]") {
        assert_eq!(serde_json::from_str::<serde_json::Value>(event).unwrap()["model"], ALIAS);
    }
    let asked = model_requests(&engine);
    assert!(asked.iter().all(|request| request.model.as_deref() == Some(MODEL)), "{asked:#?}");
    let line = gateway.log_of("streamed");
    assert_eq!((&line["destination"], &line["model_served"]), (&"hosted".into(), &MODEL.into()), "{line}");
    assert!(line["ttft_ms"].is_number() && line["completion_tokens"].is_number(), "{line}");
    gateway.expect_nothing_in_flight();
}

fn what_a_provider_gets_is_ours_and_nothing_of_who_asked(driver: Driver) {
    let (authority, leaf) = trusted();
    let engine = hosted(&leaf);
    let gateway = in_front_of(driver, &engine, &authority, "");
    let headers = "Authorization: Bearer the-clients\r\napi-key: the-clients\r\nx-api-key: the-clients\r\nCookie: a=the-clients\r\n\
                   OpenAI-Organization: the-clients\r\nX-Forwarded-For: 10.9.8.7\r\nForwarded: for=10.9.8.7\r\n\
                   X-Forwarded-Email: the-clients\r\nX-Real-IP: 10.9.8.7\r\nTrue-Client-IP: 10.9.8.7\r\nCF-Connecting-IP: 10.9.8.7\r\n\
                   X-Envoy-External-Address: 10.9.8.7\r\nVia: the-clients\r\nX-Remote-User: the-clients\r\n\
                   X-MS-Client-Principal: the-clients\r\nX-Auth-Request-Email: the-clients\r\nX-Access-Token: the-clients\r\n\
                   Ocp-Apim-Subscription-Key: the-clients\r\nX-Amzn-Trace-Id: the-clients\r\nX-Goog-User-Project: the-clients\r\n\
                   X-Kinference-Tags: the-clients\r\nAnthropic-Version: 2023-06-01\r\nOpenAI-Beta: assistants=v2\r\n\
                   Idempotency-Key: i\r\ntraceparent: 00-1\r\nUser-Agent: sdk/1\r\n";
    assert_eq!(gateway.chat(headers, &chat(ALIAS, 1)).status, 200);
    let sent = model_requests(&engine).pop().unwrap();
    let text = format!("{:?}", sent.headers);
    assert!(!text.contains("the-clients") && !text.contains("10.9.8.7") && !text.contains("127.0.0.1"), "{text}");
    let named = |name: &str| sent.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).collect::<Vec<_>>();
    let of = |name: &str| named(name).iter().map(|(_, value)| value.clone()).collect::<Vec<_>>();
    assert_eq!(of("authorization"), [format!("Bearer {TOKEN}")]);
    assert_eq!(of("host"), [format!("{HOST}:{}", engine.addr().port())]);
    for (name, value) in [
        ("anthropic-version", "2023-06-01"),
        ("openai-beta", "assistants=v2"),
        ("idempotency-key", "i"),
        ("traceparent", "00-1"),
        ("user-agent", "sdk/1"),
    ] {
        assert_eq!(of(name), [value]);
    }
    let said = gateway.said().join("\n");
    assert!(!said.contains(TOKEN), "{said}");
    for page in ["/metrics", "/endpoints", "/config", "/decisions"] {
        assert!(!gateway.page(page).text().contains(TOKEN), "{page}");
    }
}

fn what_a_provider_answers_cannot_pass_for_ours(driver: Driver) {
    let (authority, leaf) = trusted();
    let lines = "\r\nX-Kinference-Endpoint: theirs\r\nx-kinference-rule: theirs\r\nSet-Cookie: a=theirs\r\nRetry-After: 7\r\nOpenAI-Organization: theirs\r\n\
                 openai-project: theirs\r\nCF-Ray: theirs\r\ncf-cache-status: theirs\r\nServer: theirs\r\nVia: theirs\r\nx-request-id: theirs\r\n\
                 x-ratelimit-remaining-tokens: theirs\r\nopenai-processing-ms: 31\r\nContent-Language: en\r\n";
    let server = Server::start(&leaf, Manner::Answers(document(JSON).replacen("\r\n", lines, 1).into()));
    let resources = provider("hosted", server.port, "") + &providers_only(&["hosted"]);
    let gateway = setup(resources, &authority).start(driver);
    let answer = gateway.chat("", &chat(ALIAS, 1));
    assert_eq!(answer.status, 200);
    for (name, value) in [("retry-after", "7"), ("openai-processing-ms", "31"), ("content-language", "en")] {
        assert_eq!(answer.header(name), Some(value), "{}", answer.head);
    }
    assert!(!answer.head.contains("theirs"), "{}", answer.head);
}

fn a_connection_is_kept_and_the_next_session_is_resumed(driver: Driver) {
    let (authority, leaf) = trusted();
    let engine = hosted(&leaf);
    let gateway = in_front_of(driver, &engine, &authority, "");
    for _ in 0..5 {
        assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
        assert_eq!(gateway.chat("", &stream(ALIAS, 2)).status, 200);
    }
    assert_eq!(engine.stats().connections_accepted, 1);
    assert_eq!(gateway.metric("kinference_upstream_tls_handshakes_total", &[]), 1.0);

    let closing = document(JSON).replacen("\r\n", "\r\nConnection: close\r\n", 1);
    let server = Server::start(&leaf, Manner::Answers(closing.into()));
    let resources = provider("hosted", server.port, "") + &providers_only(&["hosted"]);
    let gateway = setup(resources, &authority).start(driver);
    for _ in 0..3 {
        assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
    }
    let kinds = server.seen().handshakes;
    assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed), Some(HandshakeKind::Resumed)]);
}

fn the_name_of_the_server_is_told_and_http_1_1_agreed_upon(driver: Driver) {
    let (authority, leaf) = trusted();
    let server = Server::start(&leaf, Manner::Answers(document(JSON).into()));
    let resources = provider("hosted", server.port, "") + &providers_only(&["hosted"]);
    let gateway = setup(resources, &authority).start(driver);
    assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
    let seen = server.seen();
    assert_eq!((seen.names, seen.protocols), (vec![Some(HOST.to_owned())], vec![Some(b"http/1.1".to_vec())]));
}

fn a_server_may_have_another_name_than_its_address(driver: Driver) {
    let (authority, _) = trusted();
    let leaf = authority.issue(&["private.provider.test"]);
    let server = Server::start(&leaf, Manner::Answers(document(JSON).into()));
    let tls = "  tls: { caFile: ../ca.crt, serverName: private.provider.test }\n";
    let url = format!("https://127.0.0.1:{}/v1", server.port);
    let gateway = setup(provider_at("hosted", &url, tls) + &providers_only(&["hosted"]), &authority).start(driver);
    assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
    let seen = server.seen();
    assert_eq!(seen.names, [Some("private.provider.test".to_owned())]);
    assert!(seen.heads[0].contains(&format!("host: 127.0.0.1:{}\r\n", server.port)), "{}", seen.heads[0]);
}

fn long_prompts_and_long_answers_go_through(driver: Driver) {
    let (authority, leaf) = trusted();
    let settings = engine::Settings { body_kept_bytes_max: 16 << 20, ..engine::Settings::instant() };
    let engine = hosted_with(&leaf, settings);
    let gateway = in_front_of(driver, &engine, &authority, "");
    // More than the buffers of two sockets hold, and on a new connection: tickets arrive while it is sent.
    let body = format!("{}{}", chat(ALIAS, 2), " ".repeat(9 << 20));
    assert_eq!(gateway.chat("", &body).status, 200);
    assert!(model_requests(&engine)[0].body == body.replacen(ALIAS, MODEL, 1), "the provider got every byte");
    for asked in [chat(ALIAS, 2), stream(ALIAS, 2)] {
        break_once(&engine, "huge-chunk=3000000");
        let answer = gateway.chat("", &asked);
        assert!(answer.status == 200 && answer.body.len() > 3_000_000);
    }
}

fn an_answer_that_comes_before_the_prompt_is_sent_ends_the_upload(driver: Driver) {
    let (authority, leaf) = trusted();
    let refusal = "HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let server = Server::start(&leaf, Manner::AnswersHead(refusal.into()));
    let resources = provider("hosted", server.port, "") + &providers_only(&["hosted"]);
    let gateway = setup(resources, &authority).start(driver);
    let body = format!("{}{}", chat(ALIAS, 2), " ".repeat(24 << 20));
    let answer = gateway.chat("", &body);
    assert_eq!((answer.status, answer.text().as_str()), (413, "{}"));
    gateway.expect_nothing_in_flight();
}

fn what_is_cut_off_without_a_word_is_not_taken_for_whole(driver: Driver) {
    let (authority, leaf) = trusted();
    // Without a length the end of the connection is the end of the answer: anybody on the way could make one.
    let cut = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{JSON}");
    for (manner, status) in [
        (Manner::CutsOff(cut.clone().into()), 502),
        (Manner::Answers(cut.replacen("\r\n", "\r\nConnection: close\r\n", 1).into()), 200),
    ] {
        let server = Server::start(&leaf, manner);
        let resources = provider("hosted", server.port, "") + &providers_only(&["hosted"]);
        let gateway = setup(resources, &authority).start(driver);
        let answer = gateway.chat("", &chat(ALIAS, 2));
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

fn a_client_that_leaves_ends_the_work_of_the_provider(driver: Driver) {
    let (authority, leaf) = trusted();
    let cost = engine::step::StepCost { base_us: 20_000.0, ..engine::step::StepCost::NONE };
    let parameters = engine::step::Parameters { cost, ..engine::step::Parameters::default() };
    let engine = hosted_with(&leaf, engine::Settings { parameters, ..engine::Settings::default() });
    let gateway = in_front_of(driver, &engine, &authority, "");
    for body in [stream(ALIAS, 4000), chat(ALIAS, 4000)] {
        let mut client = Client::sending(gateway.address, request("/v1/chat/completions", "", &body));
        engine.wait_until(crate::support::PATIENCE, |stats| stats.running == 1).unwrap();
        if body.contains("stream") {
            client.head();
        }
        client.stream().shutdown(Shutdown::Both).unwrap();
        expect_idle(&engine);
    }
    gateway.expect_nothing_in_flight();
}

fn a_rotated_credential_and_authority_are_in_force_without_a_restart(driver: Driver) {
    let (authority, leaf) = trusted();
    let engine = hosted(&leaf);
    let stranger = crate::pki::Authority::new("stranger");
    let auth = "  auth: { apiKeyHeader: { value: { fromFile: ../key } } }\n";
    let resources = provider("hosted", engine.addr().port(), auth) + &providers_only(&["hosted"]);
    let mut setup = setup(resources, &stranger);
    setup.files.push(("key".to_owned(), "first\n".to_owned()));
    let gateway = setup.start(driver);
    let answer = gateway.chat("", &chat(ALIAS, 1));
    assert_eq!((answer.status, answer.error_code().as_str()), (502, "upstream_tls_failed"));

    let put = |name: &str, content: &str| {
        let new = gateway.resource("../new");
        fs::write(&new, content).unwrap();
        fs::rename(new, gateway.resource(&format!("../{name}"))).unwrap();
    };
    let key = || {
        let sent = model_requests(&engine).pop()?;
        sent.headers.into_iter().find(|(name, _)| name == "api-key").map(|(_, value)| value)
    };
    put("ca.crt", &authority.pem());
    eventually("the new authority is believed", || (gateway.chat("", &chat(ALIAS, 1)).status == 200).then_some(()));
    assert_eq!(key().as_deref(), Some("first"));
    put("key", "second\n");
    eventually("the new key is sent", || {
        assert_eq!(gateway.chat("", &chat(ALIAS, 1)).status, 200);
        (key().as_deref() == Some("second")).then_some(())
    });
}

fn a_request_that_takes_too_long_in_all_is_ended(driver: Driver) {
    let (authority, leaf) = trusted();
    let cost = engine::step::StepCost { base_us: 20_000.0, ..engine::step::StepCost::NONE };
    let parameters = engine::step::Parameters { cost, ..engine::step::Parameters::default() };
    let engine = hosted_with(&leaf, engine::Settings { parameters, ..engine::Settings::default() });
    let gateway = in_front_of(driver, &engine, &authority, "  timeouts: { total: 3s }\n");
    let streamed = gateway.chat("", &stream(ALIAS, 4000));
    assert_eq!(streamed.status, 200);
    let events = streamed.events();
    let error: serde_json::Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "upstream_timeout", "{error}");
    assert!(events.len() > 2 && !events.contains(&"[DONE]".to_owned()));
    let whole = gateway.chat("", &chat(ALIAS, 4000));
    assert_eq!((whole.status, whole.error_code().as_str()), (504, "upstream_timeout"));
    expect_idle(&engine);
    gateway.expect_nothing_in_flight();
}
