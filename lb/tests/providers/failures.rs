//! Providers that fail: each way is told apart, another provider takes the request, and the one that failed comes back.

use engine::Engine;

use crate::hosted::{HOST, TOKEN, hosted, in_front_of, provider, provider_at, providers_only, setup, trusted};
use crate::pki::{Authority, Leaf};
use crate::server::{Manner, Server};
use crate::support::engines::{ALIAS, break_down, repair};
use crate::support::scripted::document;
use crate::support::{Driver, Gateway, chat, eventually, model_requests, stream};

on_both_drivers![
    every_failed_handshake_says_why_and_the_next_provider_takes_the_request,
    a_refused_credential_is_not_tried_again_there_and_nothing_for_the_client,
    a_redirect_is_never_followed,
    a_busy_provider_is_left_alone_for_as_long_as_it_says,
    a_client_is_told_for_how_long_all_providers_are_left_alone,
    a_busy_provider_is_left_alone_by_all_threads,
    a_failing_provider_is_ejected_and_comes_back_by_itself,
    a_provider_without_its_credential_or_authority_is_never_asked,
];

/// A gateway in front of a provider that fails and, where `second` is one, another that does not.
fn failing_first(driver: Driver, authority: &Authority, port: u16, fields: &str, second: Option<&Engine>) -> Gateway {
    let mut resources = provider("first", port, fields);
    let mut names = vec!["first"];
    if let Some(engine) = second {
        resources += &provider("second", engine.addr().port(), "");
        names.push("second");
    }
    setup(resources + &providers_only(&names), authority).ready(names.len()).start(driver)
}

struct Case {
    what: &'static str,
    leaf: Leaf,
    manner: Manner,
    fields: &'static str,
    code: &'static str,
    message: &'static str,
    failure: &'static str,
}

fn cases(authority: &Authority) -> Vec<Case> {
    let good = || authority.issue(&[HOST]);
    let answers = || Manner::Answers(document("{}").into());
    let tls = "upstream_tls_failed";
    let case =
        |what, leaf, manner, message, failure| Case { what, leaf, manner, fields: "", code: tls, message, failure };
    let slow = Case {
        fields: "  timeouts: { connect: 200ms }\n",
        ..case("slow handshake", good(), Manner::SilentInHandshake, "the TLS handshake timed out", "tls_timed_out")
    };
    vec![
        case(
            "a stranger of the same name",
            Authority::new("hosted").issue(&[HOST]),
            answers(),
            "no authority that is believed vouches for its certificate",
            "tls_unknown_authority",
        ),
        case(
            "wrong authority",
            Authority::new("stranger").issue(&[HOST]),
            answers(),
            "no authority that is believed vouches for its certificate",
            "tls_unknown_authority",
        ),
        case("expired", authority.issue_until(&[HOST], 2021), answers(), "has expired", "tls_expired"),
        case("wrong name", authority.issue(&["other.test"]), answers(), "good for another name", "tls_wrong_name"),
        case("plain HTTP", good(), Manner::Plain, "does not speak TLS", "tls_not_spoken"),
        case("closed", good(), Manner::ClosesInHandshake, "closed the connection within the handshake", "tls_closed"),
        slow,
    ]
}

fn every_failed_handshake_says_why_and_the_next_provider_takes_the_request(driver: Driver) {
    let (authority, leaf) = trusted();
    let second = hosted(&leaf);
    for case in cases(&authority) {
        let first = Server::start(&case.leaf, case.manner);
        let gateway = failing_first(driver, &authority, first.port, case.fields, None);
        let answer = gateway.chat("", &chat(ALIAS, 2));
        assert_eq!((answer.status, answer.error_code().as_str()), (502, case.code), "{}: {answer:?}", case.what);
        assert!(answer.text().contains(case.message), "{}: {}", case.what, answer.text());
        let label = format!("failure=\"{}\"", case.failure);
        gateway.wait_for_metric("kinference_endpoint_failures_total", &[&label], 1.0);
        gateway.expect_nothing_in_flight();

        let gateway = failing_first(driver, &authority, first.port, case.fields, Some(&second));
        for body in [chat(ALIAS, 2), stream(ALIAS, 2)] {
            assert_eq!(gateway.chat("", &body).status, 200, "{}", case.what);
        }
        assert_eq!(first.seen().heads, Vec::<String>::new(), "{}: nothing was sent", case.what);
        gateway.expect_nothing_in_flight();
    }
}

fn status_answer(status: &str, lines: &str) -> Manner {
    let body = format!(r#"{{"error":{{"message":"Incorrect API key provided: {TOKEN}"}}}}"#);
    Manner::Answers(document(&body).replacen("200 OK\r\n", &format!("{status}\r\n{lines}"), 1).into())
}

fn a_refused_credential_is_not_tried_again_there_and_nothing_for_the_client(driver: Driver) {
    let (authority, leaf) = trusted();
    let second = hosted(&leaf);
    for (status, code) in [("401 Unauthorized", "upstream_unauthorized"), ("403 Forbidden", "upstream_forbidden")] {
        let first = Server::start(&leaf, status_answer(status, ""));
        let gateway = failing_first(driver, &authority, first.port, "", None);
        let answer = gateway.chat("Authorization: Bearer mine\r\n", &chat(ALIAS, 2));
        assert_eq!((answer.status, answer.error_code().as_str()), (502, code), "{answer:?}");
        assert!(!answer.text().contains(TOKEN) && answer.text().contains("gateway's own credential"), "{answer:?}");
        assert_eq!(first.seen().heads.len(), 1, "asked once");
        gateway.expect_nothing_in_flight();

        let gateway = failing_first(driver, &authority, first.port, "", Some(&second));
        assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
        assert_eq!(first.seen().heads.len(), 2, "asked once more, by the other gateway");
        assert!(!gateway.said().join("\n").contains(TOKEN));
    }
}

fn a_redirect_is_never_followed(driver: Driver) {
    let (authority, leaf) = trusted();
    let elsewhere = hosted(&leaf);
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let location = format!("Location: https://{HOST}:{}/v1/chat/completions\r\n", elsewhere.addr().port());
        let first = Server::start(&leaf, status_answer(status, &location));
        let gateway = failing_first(driver, &authority, first.port, "", None);
        let answer = gateway.chat("", &stream(ALIAS, 2));
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "upstream_redirect"), "{answer:?}");
        assert_eq!(answer.header("location"), None);
        assert_eq!(elsewhere.stats().received, 0);
    }
}

fn a_busy_provider_is_left_alone_for_as_long_as_it_says(driver: Driver) {
    let (authority, leaf) = trusted();
    let second = hosted(&leaf);
    let first = Server::start(&leaf, status_answer("429 Too Many Requests", "Retry-After: 2\r\n"));
    let gateway = failing_first(driver, &authority, first.port, "", Some(&second));
    let begun = std::time::Instant::now();
    assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
    eventually("it is asked again", || {
        assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
        (first.seen().heads.len() == 2).then_some(())
    });
    assert!(begun.elapsed() >= std::time::Duration::from_secs(2), "asked again after {:?}", begun.elapsed());

    // With nobody else, the provider's own answer is the client's, and then ours until the time is over.
    let first = Server::start(&leaf, status_answer("429 Too Many Requests", "Retry-After: 300\r\n"));
    let alone = failing_first(driver, &authority, first.port, "", None);
    let answer = alone.chat("", &chat(ALIAS, 2));
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("300")));
    let answer = alone.chat("", &chat(ALIAS, 2));
    assert_eq!((answer.status, answer.error_code().as_str()), (429, "overloaded"));
    let wait_s: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=300).contains(&wait_s), "{answer:?}");
}

fn a_client_is_told_for_how_long_all_providers_are_left_alone(driver: Driver) {
    let (authority, leaf) = trusted();
    let busy =
        |seconds| Server::start(&leaf, status_answer("429 Too Many Requests", &format!("Retry-After: {seconds}\r\n")));
    // Longer than anybody is believed, and shorter: the first that comes back is the one to wait for.
    let (first, second) = (busy(86_400), busy(90));
    let alone = failing_first(driver, &authority, first.port, "", None);
    assert_eq!(alone.chat("", &chat(ALIAS, 2)).status, 429);
    let told = |gateway: &Gateway| {
        let answer = gateway.chat("", &chat(ALIAS, 2));
        assert_eq!((answer.status, answer.error_code().as_str()), (429, "overloaded"), "{answer:?}");
        answer.header("retry-after").unwrap().parse::<u64>().unwrap()
    };
    assert!((200..=300).contains(&told(&alone)), "{}", told(&alone));
    let resources = provider("first", first.port, "") + &provider("second", second.port, "");
    let both = setup(resources + &providers_only(&["first", "second"]), &authority).ready(2).start(driver);
    assert_eq!(both.chat("", &chat(ALIAS, 2)).status, 429);
    assert!((30..=90).contains(&told(&both)), "{}", told(&both));
}

fn a_busy_provider_is_left_alone_by_all_threads(driver: Driver) {
    let (authority, leaf) = trusted();
    let second = hosted(&leaf);
    let first = Server::start(&leaf, status_answer("503 Service Unavailable", "retry-after-ms: 60000\r\n"));
    let resources = provider("first", first.port, "") + &provider("second", second.addr().port(), "");
    let resources = resources + &providers_only(&["first", "second"]);
    let gateway = setup(resources, &authority).threads(3).ready(2).start(driver);
    assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
    // The others hear of it within some milliseconds; whoever asks before that is the last.
    let asked_once = || {
        let before = first.seen().heads.len();
        let clients: Vec<_> = (0..24).map(|_| gateway.send_chat("", &chat(ALIAS, 2))).collect();
        clients.into_iter().for_each(|mut client| assert_eq!(client.answer().status, 200));
        (first.seen().heads.len() == before).then_some(())
    };
    eventually("no thread asks it any more", asked_once);
    asked_once().expect("nor does any later");
    assert!(first.seen().heads.len() <= 3 * 24, "{}", first.seen().heads.len());
}

fn a_failing_provider_is_ejected_and_comes_back_by_itself(driver: Driver) {
    let (authority, leaf) = trusted();
    let (first, second) = (hosted(&leaf), hosted(&leaf));
    break_down(&first, "status=500");
    let gateway = failing_first(driver, &authority, first.addr().port(), "", Some(&second));
    let address = first.addr();
    for _ in 0..5 {
        assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 500, "it may have been at work: not tried again");
    }
    gateway.wait_for_readiness(address, "ejected");
    let before = model_requests(&first).len();
    assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
    assert_eq!(model_requests(&first).len(), before);
    repair(&first);
    eventually("it is used again", || {
        assert_eq!(gateway.chat("", &chat(ALIAS, 2)).status, 200);
        (model_requests(&first).len() > before).then_some(())
    });
    gateway.wait_for_readiness(address, "ready");
}

fn a_provider_without_its_credential_or_authority_is_never_asked(driver: Driver) {
    let (authority, leaf) = trusted();
    let engine = hosted(&leaf);
    let port = engine.addr().port();
    let resources = provider("no-key", port, "  auth: { bearer: { fromFile: ../absent } }\n")
        + &provider("no-authority", port, "  tls: { caFile: ../absent.crt }\n")
        + &provider("bad-authority", port, "  tls: { caFile: ../key.pem }\n")
        + &provider("good", port, "")
        + &providers_only(&["no-key", "no-authority", "bad-authority", "good"]);
    let mut setup = setup(resources, &authority);
    setup.files.push(("key.pem".to_owned(), leaf.key_pem()));
    let gateway = setup.ready(1).start(driver);
    let answer = gateway.chat("x-request-id: one\r\n", &chat(ALIAS, 1));
    assert_eq!((answer.status, gateway.log_of("one")["destination"].as_str()), (200, Some("good")));
    for (name, why) in [
        ("no-key", "absent cannot be read"),
        ("no-authority", "absent.crt cannot be read"),
        ("bad-authority", "key.pem holds no certificate"),
    ] {
        gateway.wait_for_line(&["endpoint cannot be used", &format!("endpoint={name}"), why]);
    }
    drop(gateway);
    let url = format!("https://{HOST}:{port}/v1");
    let resources = provider_at("hosted", &url, "  tls: {}\n") + &providers_only(&["hosted"]);
    let gateway = crate::hosted::setup(resources, &authority).start(driver);
    assert_eq!(gateway.chat("", &chat(ALIAS, 1)).error_code(), "upstream_tls_failed", "the system does not know it");
    let gateway = in_front_of(driver, &engine, &authority, "");
    assert_eq!(gateway.chat("", &chat(ALIAS, 1)).status, 200);
}
