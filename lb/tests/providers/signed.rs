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
    let headers = "Authorization: Bearer the-clients\r\nX-Amz-Date: 20200101T000000Z\r\nx-amz-target: the-clients\r\nx-trace: kept\r\n";
    for (number, (target, body)) in
        [("/v1/chat/completions", chat(ALIAS, 7)), ("/v1/chat/completions?b=2&a=%2F1", stream(ALIAS, 7))]
            .into_iter()
            .enumerate()
    {
        assert_eq!(post(gateway.address, target, headers, &body).status, 200);
        let seen = server.seen();
        assert_eq!(expect_signed(&seen, number), "content-type;host;x-amz-date;x-amz-security-token;x-team");
        let head = &seen.heads[number];
        assert!(head.starts_with(&format!("POST {} HTTP/1.1\r\n", target.replace("/v1", "/openai/v1"))), "{head}");
        assert!(!head.contains("the-clients") && header(head, "x-trace") == Some("kept"), "{head}");
        let sent = String::from_utf8(seen.bodies[number].clone()).unwrap();
        assert!(sent.contains(&format!("\"model\":\"{MODEL}\"")), "what is signed is what is sent: {sent}");
        assert_eq!(sent.contains("include_usage"), number == 1, "{sent}");
    }
    for secret in [SECRET_KEY, SESSION_TOKEN] {
        assert!(!gateway.said().join("\n").contains(secret));
    }
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
