//! HTTP/1.1 towards clients: framing, errors, and what of a request travels on.

use engine::{Engine, RequestRecord};
use serde_json::json;

use crate::support::client::{expect_good, request};
use crate::support::engines::{ALIAS, MODEL, only_request};
use crate::support::{Client, Driver, Gateway, Setup, chat, engine, fleet, get, model_requests, post, stream};

on_both_drivers![
    a_connection_is_kept_on_both_sides,
    pipelined_requests_are_answered_in_order,
    a_chunked_body_arrives_whole_however_it_is_split,
    the_engine_gets_the_bytes_that_the_client_sent,
    a_request_may_come_byte_by_byte,
    empty_lines_before_a_request_are_passed_over,
    http_1_0_clients_get_a_body_that_ends_with_the_connection,
    a_client_that_expects_100_continue_gets_it_when_the_head_is_good,
    a_trailing_slash_is_the_same_path,
    an_absolute_target_is_its_path,
    the_wrong_method_is_told_the_right_one,
    an_unknown_model_is_a_404_that_names_it,
    models_are_listed_by_name_and_alias,
    a_body_without_a_readable_model_is_a_400,
    other_paths_reach_an_engine,
    ambiguous_heads_are_refused_and_the_connection_ends,
    a_broken_chunk_is_refused_and_the_connection_ends,
    a_sane_request_id_is_kept_and_an_insane_one_replaced,
    credentials_of_the_client_stay_here,
    headers_of_one_hop_stay_here_in_both_directions,
    the_engine_is_told_who_asked,
    a_body_that_only_a_lenient_parser_reads_is_the_engines_to_judge,
];

fn start(driver: Driver, engine: &Engine) -> Gateway {
    Setup::new(fleet(&[engine])).start(driver)
}

/// The values of a header as the engine got it.
fn values<'a>(record: &'a RequestRecord, name: &str) -> Vec<&'a str> {
    let headers = record.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
    headers.map(|(_, value)| value.as_str()).collect()
}

fn a_connection_is_kept_on_both_sides(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let mut client = Client::connect(gateway.address);
    for body in [chat(MODEL, 3), stream(MODEL, 3), chat(MODEL, 4), stream(MODEL, 40)] {
        client.send(request("/v1/chat/completions", "", &body));
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("connection")), (200, None));
    }
    let requests = model_requests(&engine);
    assert_eq!(requests.len(), 4);
    assert!(requests.iter().all(|request| request.connection == requests[0].connection), "{requests:#?}");
    assert_eq!(gateway.metric("kinference_downstream_connections_total", &[]), 1.0);
    client.end_sending();
    client.expect_end();
}

fn pipelined_requests_are_answered_in_order(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let chats = "/v1/chat/completions";
    let many = [
        request(chats, "x-request-id: 1\r\n", &stream(MODEL, 30)),
        request(chats, "x-request-id: 2\r\n", &chat("nobody", 3)),
        "GET /v1/models HTTP/1.1\r\nHost: gateway\r\nx-request-id: 3\r\n\r\n".to_owned(),
        request(chats, "x-request-id: 4\r\n", &chat(MODEL, 3)),
        request(chats, "x-request-id: 5\r\nConnection: close\r\n", &stream(MODEL, 3)),
    ];
    let mut client = Client::sending(gateway.address, many.concat());
    let seen: Vec<_> = (0..5)
        .map(|_| {
            let answer = client.answer();
            (answer.header("x-request-id").unwrap().to_owned(), answer.status)
        })
        .collect();
    let expected = [("1", 200), ("2", 404), ("3", 200), ("4", 200), ("5", 200)];
    assert_eq!(seen, expected.map(|(id, status)| (id.to_owned(), status)));
    client.expect_end();
}

/// Keys twice, escapes, odd numbers and spaces: nothing that a parser would give back as it was.
fn odd_body() -> String {
    format!(
        r#" {{ "x":1.50, "model" : "{MODEL}","messages":[{{"role":"user","content":"h\u00e9llo 你好"}}],"max_tokens":2, "x":2e0,"\u0061":[]}}"#
    )
}

fn a_chunked_body_arrives_whole_however_it_is_split(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let body = odd_body();
    let mut client = Client::connect(gateway.address);
    for size in [1, 2, 7, 64, body.len()] {
        client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n");
        for chunk in body.as_bytes().chunks(size) {
            client.send(format!("{:X};name=\"value\"\r\n", chunk.len()));
            client.send(chunk);
            client.send("\r\n");
        }
        client.send("0\r\nx-trailer: 1\r\n\r\n");
        expect_good(&client.answer());
    }
    let requests = model_requests(&engine);
    assert_eq!(requests.len(), 5);
    for request in requests {
        assert_eq!(request.body, body);
        assert_eq!(values(&request, "content-length"), [body.len().to_string()]);
        assert!(values(&request, "transfer-encoding").is_empty());
    }
}

fn the_engine_gets_the_bytes_that_the_client_sent(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    expect_good(&gateway.chat("", &odd_body()));
    assert_eq!(only_request(&engine).body, odd_body());
}

fn a_request_may_come_byte_by_byte(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let mut client = Client::connect(gateway.address);
    client.send_byte_wise(request("/v1/chat/completions", "", &chat(MODEL, 2)));
    expect_good(&client.answer());
}

fn empty_lines_before_a_request_are_passed_over(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let mut client = Client::connect(gateway.address);
    for _ in 0..2 {
        client.send(format!("\r\n{}", request("/v1/chat/completions", "", &chat(MODEL, 2))));
        expect_good(&client.answer());
    }
}

fn http_1_0_clients_get_a_body_that_ends_with_the_connection(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let old =
        |headers: &str, body: &str| request("/v1/chat/completions", headers, body).replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut client = Client::sending(gateway.address, old("", &stream(MODEL, 5)));
    let head = client.head();
    assert_eq!((head.header("connection"), head.header("transfer-encoding")), (Some("close"), None));
    let answer = client.body_of(head);
    assert_eq!(answer.events().last().unwrap(), "[DONE]");

    let mut client = Client::sending(gateway.address, old("Connection: keep-alive\r\n", &chat(MODEL, 5)));
    let answer = client.answer();
    assert_eq!(answer.header("connection"), Some("keep-alive"));
    expect_good(&answer);
    client.send(old("", &chat(MODEL, 5)));
    let answer = client.answer();
    assert_eq!(answer.header("connection"), Some("close"));
    expect_good(&answer);
    client.expect_end();
}

fn a_client_that_expects_100_continue_gets_it_when_the_head_is_good(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(fleet(&[&engine])).server("limits: { requestBody: 1KiB }").start(driver);
    let body = chat(MODEL, 2);
    let whole = request("/v1/chat/completions", "Expect: 100-continue\r\n", &body);
    let (head, body) = whole.split_at(whole.len() - body.len());
    let mut client = Client::sending(gateway.address, head);
    assert_eq!(client.read_through(b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send(body);
    expect_good(&client.answer());
    assert!(values(&only_request(&engine), "expect").is_empty());
    // A body that comes at once needs no invitation.
    client.send(&whole);
    expect_good(&client.answer());
    // A body that is too long gets none.
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nExpect: 100-continue\r\nContent-Length: 1025\r\n\r\n";
    client.send(head);
    assert_eq!(client.answer().status, 413);
}

fn a_trailing_slash_is_the_same_path(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    expect_good(&post(gateway.address, "/v1/chat/completions/", "", &chat(MODEL, 2)));
    assert_eq!(only_request(&engine).path, "/v1/chat/completions");
    assert_eq!(get(gateway.address, "/v1/models/").json()["object"], "list");
}

fn an_absolute_target_is_its_path(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    expect_good(&post(gateway.address, "http://gateway.example/v1/chat/completions", "", &chat(MODEL, 2)));
    let seen = only_request(&engine);
    assert_eq!(seen.path, "/v1/chat/completions");
    assert_eq!(values(&seen, "host"), [engine.addr().to_string()]);
}

fn the_wrong_method_is_told_the_right_one(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let answer = get(gateway.address, "/v1/chat/completions");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    assert!(!answer.error_code().is_empty());
    let answer = post(gateway.address, "/v1/models", "", "{}");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")));
    assert!(model_requests(&engine).is_empty());
}

fn an_unknown_model_is_a_404_that_names_it(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let answer = gateway.chat("x-request-id: lost\r\n", &chat("nobody/serves-this", 2));
    assert_eq!((answer.status, answer.error_code().as_str()), (404, "model_not_found"));
    assert!(answer.text().contains("nobody/serves-this"), "{answer:?}");
    assert_eq!(gateway.log_of("lost")["error"], "model_not_found");
    assert!(model_requests(&engine).is_empty());
}

fn models_are_listed_by_name_and_alias(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let list = get(gateway.address, "/v1/models").json();
    let mut names: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, [MODEL, ALIAS]);
    for path in ["/v1/models/org/tiny-1", "/v1/models/org%2Ftiny-1"] {
        assert_eq!(get(gateway.address, path).json()["id"], MODEL, "{path}");
    }
    let answer = get(gateway.address, "/v1/models/nobody");
    assert_eq!((answer.status, answer.error_code().as_str()), (404, "model_not_found"));
    let mut client = Client::sending(gateway.address, "HEAD /v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n");
    assert_eq!(client.head().status, 200);
    client.send("GET /v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n");
    assert_eq!(client.answer().json(), list, "HEAD had no body");
}

fn a_body_without_a_readable_model_is_a_400(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let mut client = Client::connect(gateway.address);
    for (body, code) in [
        ("", "invalid_json"),
        ("not json", "invalid_json"),
        ("[]", "invalid_json"),
        ("{}", "missing_model"),
        (r#"{"model":7}"#, "missing_model"),
        (r#"{"model":""}"#, "missing_model"),
    ] {
        client.send(request("/v1/chat/completions", "", body));
        let answer = client.answer();
        assert_eq!((answer.status, answer.error_code().as_str()), (400, code), "{body:?}");
    }
    assert!(model_requests(&engine).is_empty());
}

fn other_paths_reach_an_engine(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let answer = get(gateway.address, "/version");
    assert_eq!((answer.status, answer.json()["version"].is_string()), (200, true), "{answer:?}");
    let answer = get(gateway.address, "/v1/no/such/thing?x=1");
    assert_eq!((answer.status, answer.json()), (404, json!({"detail": "Not Found"})));
    gateway.expect_nothing_in_flight();
}

fn ambiguous_heads_are_refused_and_the_connection_ends(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let smuggled = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: 0\r\n\r\n";
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Content-Length:\r\n",
        "Content-Length : 5\r\n",
        "Transfer-Encoding : chunked\r\n",
        "x-folded: a\r\n Content-Length: 5\r\n",
        "x\0y: 1\r\n",
    ] {
        let bytes = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n{lines}\r\n0\r\n\r\n{smuggled}");
        let mut client = Client::sending(gateway.address, bytes);
        client.end_sending();
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("connection")), (400, Some("close")), "{lines:?}");
        assert!(!answer.error_code().is_empty());
        client.expect_end();
    }
    for lines in [
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
    ] {
        let bytes = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n{lines}\r\n0\r\n\r\n{smuggled}");
        let mut client = Client::sending(gateway.address, bytes);
        client.end_sending();
        assert_eq!(client.answer().status, 501, "{lines:?}");
        client.expect_end();
    }
    assert!(model_requests(&engine).is_empty());
}

fn a_broken_chunk_is_refused_and_the_connection_ends(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    for chunks in ["zz\r\n", "5\r\nhelloo\r\n", "-1\r\n", "fffffffffffffffff\r\n", "\r\n", "5 5\r\nhello\r\n"] {
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut client = Client::sending(gateway.address, format!("{head}{chunks}0\r\n\r\n"));
        client.end_sending();
        let answer = client.answer();
        assert_eq!((answer.status, answer.error_code().as_str()), (400, "bad_chunked_body"), "{chunks:?}");
        client.expect_end();
    }
    assert!(model_requests(&engine).is_empty());
}

fn a_sane_request_id_is_kept_and_an_insane_one_replaced(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let mut ids = Vec::new();
    for (line, kept) in [
        ("x-request-id: my-id.7\r\n".to_owned(), Some("my-id.7")),
        (String::new(), None),
        ("x-request-id: two words\r\n".to_owned(), None),
        (format!("x-request-id: {}\r\n", "a".repeat(129)), None),
    ] {
        let answer = gateway.chat(&line, &chat(MODEL, 2));
        let id = answer.header("x-request-id").unwrap().to_owned();
        assert!(
            kept.is_none_or(|kept| kept == id) && (1..=128).contains(&id.len()) && !line.contains(&format!(" {id} "))
        );
        assert_eq!(answer.head.to_ascii_lowercase().matches("x-request-id").count(), 1);
        let seen = model_requests(&engine).pop().unwrap();
        assert_eq!(values(&seen, "x-request-id"), [id.as_str()]);
        let logged = gateway.log_of(&id);
        assert_eq!(
            (&logged["status"], &logged["outcome"], &logged["completion_tokens"]),
            (&json!(200), &json!("ok"), &json!(2))
        );
        ids.push(id);
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}

fn credentials_of_the_client_stay_here(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let names =
        ["Authorization", "api-key", "X-API-Key", "x-goog-api-key", "OpenAI-Organization", "openai-project", "Cookie"];
    let mut lines: String = names.iter().map(|name| format!("{name}: hush-hush\r\n")).collect();
    lines.push_str("x-request-id: spy\r\nx-other: stays\r\n");
    expect_good(&gateway.chat(&lines, &chat(MODEL, 2)));
    let seen = only_request(&engine);
    assert!(!format!("{:?}", seen.headers).contains("hush-hush"), "{:?}", seen.headers);
    assert_eq!(values(&seen, "x-other"), ["stays"]);
    assert!(!gateway.log_of("spy").to_string().contains("hush-hush"));
}

fn headers_of_one_hop_stay_here_in_both_directions(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let lines = "Connection: x-private, keep-alive\r\nx-private: 1\r\nKeep-Alive: timeout=9\r\nTE: trailers\r\nUpgrade: h2c\r\n\
                 Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic aA==\r\nx-public: 1\r\n";
    let answer = gateway.chat(lines, &chat(MODEL, 2));
    expect_good(&answer);
    let seen = only_request(&engine);
    for name in ["connection", "x-private", "keep-alive", "te", "upgrade", "proxy-connection", "proxy-authorization"] {
        assert!(values(&seen, name).is_empty(), "{name}: {:?}", seen.headers);
    }
    assert_eq!(values(&seen, "x-public"), ["1"]);
    assert_eq!(answer.head.to_ascii_lowercase().matches("content-length").count(), 1, "{}", answer.head);
}

fn the_engine_is_told_who_asked(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    expect_good(&gateway.chat("X-Forwarded-For: 10.1.2.3\r\nX-Forwarded-Proto: https\r\n", &chat(MODEL, 2)));
    let seen = only_request(&engine);
    assert_eq!(values(&seen, "x-forwarded-for"), ["10.1.2.3, 127.0.0.1"]);
    assert_eq!(values(&seen, "x-forwarded-proto"), ["http"]);
    assert_eq!(values(&seen, "host"), [engine.addr().to_string()]);
}

fn a_body_that_only_a_lenient_parser_reads_is_the_engines_to_judge(driver: Driver) {
    let engine = engine();
    let gateway = start(driver, &engine);
    let bodies = [
        format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"\ud800"}}],"max_tokens":2}}"#),
        format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"hi"}}],"max_tokens":2,"x":1e999}}"#),
        format!(r#"{{"model":"{MODEL}","messages":[],"x":NaN}}"#),
        format!(r#"{{"model":"{MODEL}","messages":7,"tools":{{}},"stream_options":[1]}}"#),
    ];
    for body in &bodies {
        let expected = post(engine.addr(), "/v1/chat/completions", "", body);
        let answer = gateway.chat("", body);
        assert_eq!((answer.status, answer.text()), (expected.status, expected.text()), "{body}");
        assert_eq!(&model_requests(&engine).pop().unwrap().body, body);
    }
    assert_eq!(model_requests(&engine).len(), 2 * bodies.len());
}
