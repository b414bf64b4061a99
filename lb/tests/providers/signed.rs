//! Requests that are signed: what is under the signature, and with whose keys.

use std::fs;

use crate::bedrock::{ANSWERS, KEYS, bedrock_provider, golden, header, with_keys};
use crate::hosted::{HOST, provider_at, providers_only, trusted};
use crate::server::{Manner, Server};
use crate::signature::{KEY_ID, SECRET_KEY, SESSION_TOKEN, expect_signed, expect_signed_by};
use crate::support::engines::{ALIAS, MODEL};
use crate::support::scripted::document;
use crate::support::{Driver, chat, eventually, post, stream};

on_both_drivers![
    what_a_rule_adds_for_bedrock_goes_once_and_under_the_signature,
    an_openai_request_is_signed_as_it_goes,
    what_aws_calls_an_error_is_told_to_the_operator,
    rotated_session_credentials_sign_the_next_request,
];

/// A pool whose rule adds headers, one of which no proxy leaves alone.
fn adding_headers(name: &str) -> String {
    providers_only(&[name]).replace(
        "select: [{ type: External }]",
        "select: [{ type: External }], upstreamHeaders: [{ name: X-Team, value: \"search  and find\" }, { name: user-agent, value: ours }]",
    )
}

fn converse_answer() -> Vec<u8> {
    document(&golden(ANSWERS, "text")["converse"].to_string()).into()
}

fn what_a_rule_adds_for_bedrock_goes_once_and_under_the_signature(driver: Driver) {
    let (authority, leaf) = trusted();
    let server = Server::start(&leaf, Manner::Answers(converse_answer()));
    let resources = bedrock_provider("bedrock", server.port, KEYS) + &adding_headers("bedrock");
    let gateway = with_keys(resources, &authority).start(driver);
    assert_eq!(gateway.chat("x-team: the-clients\r\n", &chat(ALIAS, 7)).status, 200);
    let seen = server.seen();
    assert_eq!(expect_signed(&seen, 0), "content-type;host;x-amz-date;x-amz-security-token;x-team");
    let head = &seen.heads[0];
    assert_eq!(header(head, "user-agent"), Some("ours"), "sent, and not signed: proxies change it");
    assert_eq!(head.matches("x-team: ").count(), 1, "{head}");
}

fn an_openai_request_is_signed_as_it_goes(driver: Driver) {
    let (authority, leaf) = trusted();
    let answer = r#"{"object":"chat.completion","model":"org/tiny-1"}"#;
    let server = Server::start(&leaf, Manner::Answers(document(answer).into()));
    let url = format!("https://{HOST}:{}/openai/v1", server.port);
    let resources = provider_at("aws", &url, KEYS) + &adding_headers("aws");
    let gateway = with_keys(resources, &authority).start(driver);
    let headers = "Authorization: Bearer the-clients\r\nX-Amz-Date: 20200101T000000Z\r\nx-amz-target: the-clients\r\ntraceparent: kept\r\n";
    // Of the query a provider gets the version of the interface, and that is signed.
    let targets = [
        ("/v1/chat/completions?user=the-clients", "/openai/v1/chat/completions", chat(ALIAS, 7)),
        (
            "/v1/chat/completions?key=the-clients&api-version=2%2F1",
            "/openai/v1/chat/completions?api-version=2%2F1",
            stream(ALIAS, 7),
        ),
    ];
    for (number, (target, sent_to, body)) in targets.into_iter().enumerate() {
        assert_eq!(post(gateway.address, target, headers, &body).status, 200);
        let seen = server.seen();
        assert_eq!(expect_signed(&seen, number), "content-type;host;x-amz-date;x-amz-security-token;x-team");
        let head = &seen.heads[number];
        assert!(head.starts_with(&format!("POST {sent_to} HTTP/1.1\r\n")), "{head}");
        assert!(!head.contains("the-clients") && header(head, "traceparent") == Some("kept"), "{head}");
        let sent = String::from_utf8(seen.bodies[number].clone()).unwrap();
        assert!(sent.contains(&format!("\"model\":\"{MODEL}\"")), "what is signed is what is sent: {sent}");
        assert_eq!(sent.contains("include_usage"), number == 1, "{sent}");
    }
    for secret in [SECRET_KEY, SESSION_TOKEN] {
        assert!(!gateway.said().join("\n").contains(secret));
    }
}

fn what_aws_calls_an_error_is_told_to_the_operator(driver: Driver) {
    let (authority, leaf) = trusted();
    let body = format!(r#"{{"message":"The security token {SESSION_TOKEN} is expired"}}"#);
    let lines = "403 Forbidden\r\nx-amzn-ErrorType: ExpiredTokenException:http://internal.amazon.com/\r\n";
    let answer = document(&body).replacen("200 OK\r\n", lines, 1);
    let server = Server::start(&leaf, Manner::Answers(answer.into()));
    let url = format!("https://{HOST}:{}/openai/v1", server.port);
    let gateway = with_keys(provider_at("aws", &url, KEYS) + &providers_only(&["aws"]), &authority).start(driver);
    let told = gateway.chat("", &chat(ALIAS, 7));
    assert_eq!((told.status, told.error_code().as_str()), (502, "upstream_forbidden"));
    assert!(!told.text().contains("ExpiredToken") && !told.head.contains("amzn"), "{told:?}");
    gateway.wait_for_line(&["endpoint says", "endpoint=aws", "ExpiredTokenException"]);
    assert!(!gateway.said().join("\n").contains(SESSION_TOKEN));
}

fn rotated_session_credentials_sign_the_next_request(driver: Driver) {
    let (authority, leaf) = trusted();
    let server = Server::start(&leaf, Manner::Answers(converse_answer()));
    let keys = "  auth: { awsSigV4: { region: eu-central-1, accessKeyId: { fromFile: ../id }, secretAccessKey: { fromFile: ../key }, \
                sessionToken: { fromFile: ../token } } }\n";
    let resources = bedrock_provider("bedrock", server.port, keys) + &providers_only(&["bedrock"]);
    let mut setup = with_keys(resources, &authority);
    for (name, content) in [("id", KEY_ID), ("key", "first-key"), ("token", "first-token")] {
        setup.files.push((name.to_owned(), format!("{content}\n")));
    }
    let gateway = setup.start(driver);
    assert_eq!(gateway.chat("", &chat(ALIAS, 7)).status, 200);
    expect_signed_by(&server.seen(), 0, "first-key", "first-token");
    for (name, content) in [("key", "second-key"), ("token", "second-token")] {
        let new = gateway.resource("../new");
        fs::write(&new, format!("{content}\n")).unwrap();
        fs::rename(new, gateway.resource(&format!("../{name}"))).unwrap();
    }
    eventually("the new credentials are in force", || {
        assert_eq!(gateway.chat("", &chat(ALIAS, 7)).status, 200);
        let seen = server.seen();
        let (head, last) = (seen.heads.last().unwrap(), seen.heads.len() - 1);
        (header(head, "x-amz-security-token") == Some("second-token")).then(|| {
            // Files change one by one: for a moment the new token may stand with the old key.
            std::panic::catch_unwind(|| expect_signed_by(&seen, last, "second-key", "second-token")).ok()
        })?
    });
    for secret in ["first-key", "second-key", "first-token", "second-token"] {
        assert!(!gateway.said().join("\n").contains(secret));
    }
}
