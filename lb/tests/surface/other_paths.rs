//! Paths that nobody knows: any method, with or without a body or a model, passed as they are and accounted like all others.

use std::io::Write;

use serde_json::json;

use crate::backend::{ALIAS, Backend, MODEL, close, document};
use crate::support::engines::worker_set_at;
use crate::support::{Answer, Client, Driver, Gateway, Setup, post};

on_both_drivers![
    every_method_passes_with_its_body_and_is_accounted,
    answers_without_a_body_keep_their_headers_and_the_connection,
    large_downloads_pass_whole_by_length_in_chunks_and_until_close,
    a_download_that_breaks_off_is_seen_to,
    the_model_of_an_unknown_path_decides_where_it_goes,
    compressed_answers_pass_as_they_are,
    a_tunnel_is_refused,
];

fn start(driver: Driver, backend: &Backend) -> Gateway {
    Setup::new(backend.documents()).start(driver)
}

fn send(gateway: &Gateway, method: &str, target: &str, headers: &str, body: &str) -> Answer {
    let mut client = Client::sending(
        gateway.address,
        format!("{method} {target} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n{headers}\r\n{body}"),
    );
    let mut head = client.head();
    if head.status == 100 {
        head = client.head();
    }
    if method == "HEAD" {
        client.expect_end();
        return head;
    }
    client.body_of(head)
}

fn every_method_passes_with_its_body_and_is_accounted(driver: Driver) {
    let answer = "HTTP/1.1 418 Teapot\r\nContent-Type: text/plain\r\nX-Own: 1\r\nContent-Length: 5\r\n\r\nshort";
    let backend = Backend::start(move |asked, stream| {
        let end = if asked.method == "HEAD" { answer.len() - 5 } else { answer.len() };
        stream.write_all(&answer.as_bytes()[..end])
    });
    let gateway = start(driver, &backend);
    let body = "\0\u{1}no JSON at all";
    for (method, target, headers, body) in [
        ("GET", "/some/page?x=%2F&y", "", ""),
        ("HEAD", "/", "", ""),
        ("DELETE", "/v1/files/7", "", ""),
        ("PUT", "/v1/files/", "Content-Length: 0\r\n", ""),
        ("PATCH", "/x", "Content-Length: 16\r\nContent-Type: application/merge-patch+json\r\n", body),
        ("POST", "/x", "Content-Length: 16\r\nExpect: 100-continue\r\n", body),
        ("OPTIONS", "/v2/rerank", "", ""),
        ("PROPFIND", "/x", "Transfer-Encoding: chunked\r\n", "4\r\nabcd\r\n0\r\n\r\n"),
    ] {
        let id = format!("{method}-id");
        let answer = send(&gateway, method, target, &format!("{headers}x-request-id: {id}\r\n"), body);
        assert_eq!((answer.status, answer.header("x-own")), (418, Some("1")), "{method}");
        assert_eq!(answer.text(), if method == "HEAD" { "" } else { "short" });
        let asked = backend.last();
        assert_eq!((asked.method.as_str(), asked.target.as_str()), (method, target));
        assert_eq!(asked.text(), if method == "PROPFIND" { "abcd" } else { body });
        if method == "PUT" {
            assert_eq!(asked.header("content-length"), Some("0"));
        }
        let logged = gateway.log_of(&id);
        let path = target.split('?').next().unwrap();
        let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
        assert_eq!((&logged["method"], &logged["path"]), (&json!(method), &json!(path)));
        assert_eq!((&logged["status"], &logged["outcome"]), (&json!(418), &json!("upstream_status")));
        assert_eq!(logged["request_bytes"], asked.body.len());
        assert!(logged["response_bytes"].as_u64().is_some_and(|bytes| bytes > 50), "{logged}");
        assert_eq!(logged["destination"], "workers");
    }
    gateway.wait_for_metric("kinference_requests_total", &["api=\"Other\"", "status=\"418\""], 8.0);
    gateway.expect_nothing_in_flight();
}

fn answers_without_a_body_keep_their_headers_and_the_connection(driver: Driver) {
    for (method, head, length) in [
        ("GET", "204 No Content\r\n", None),
        ("GET", "304 Not Modified\r\nETag: \"e\"\r\nContent-Length: 12345\r\n", Some("12345")),
        ("GET", "304 Not Modified\r\nETag: \"e\"\r\n", None),
        ("HEAD", "200 OK\r\nContent-Type: application/json\r\nContent-Length: 12345\r\n", Some("12345")),
        ("HEAD", "200 OK\r\nTransfer-Encoding: chunked\r\n", None),
        ("HEAD", "404 Not Found\r\nContent-Length: 9\r\n", Some("9")),
        ("GET", "200 OK\r\nContent-Length: 0\r\n", Some("0")),
    ] {
        let backend = Backend::saying(format!("HTTP/1.1 {head}\r\n"));
        let gateway = start(driver, &backend);
        let mut client = Client::connect(gateway.address);
        // The second answer begins where the first ends.
        for _ in 0..2 {
            client.send(format!("{method} /thing HTTP/1.1\r\nHost: gateway\r\n\r\n"));
            let answer = client.head();
            assert_eq!(answer.status.to_string(), head[..3]);
            assert_eq!(answer.header("content-length"), length, "{method} {head}");
            assert_eq!(answer.header("transfer-encoding"), None);
            assert_eq!(answer.header("etag"), head.contains("ETag").then_some("\"e\""));
        }
        client.end_sending();
        client.expect_end();
        // Only an answer that says itself that it has no body is believed to have none on its way.
        let reused = if length == Some("0") { 1.0 } else { 0.0 };
        assert_eq!(gateway.metric("kinference_upstream_reuses_total", &[]), reused, "{method} {head}");
    }
}

/// Bytes in which a lost, doubled or moved piece shows.
fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect()
}

fn large_downloads_pass_whole_by_length_in_chunks_and_until_close(driver: Driver) {
    const LENGTH: usize = 20 << 20;
    let backend = Backend::start(|asked, stream| {
        let content = bytes(LENGTH);
        let (kind, framing) = asked.target.trim_start_matches('/').split_once('/').unwrap();
        let kind = kind.replace('-', "/");
        match framing {
            "length" => {
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {LENGTH}\r\n\r\n")?;
                stream.write_all(&content)
            }
            "chunks" => {
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                for chunk in content.chunks(300_000) {
                    write!(stream, "{:x}\r\n", chunk.len())?;
                    stream.write_all(chunk)?;
                    stream.write_all(b"\r\n")?;
                }
                stream.write_all(b"0\r\n\r\n")
            }
            _ => {
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n")?;
                stream.write_all(&content)?;
                close()
            }
        }
    });
    let gateway = start(driver, &backend);
    // JSON is collected to be read, up to a bound; the rest goes through.
    for kind in ["audio-wav", "application-json"] {
        for framing in ["length", "chunks", "close"] {
            let id = format!("{kind}-{framing}");
            let target = format!("/{kind}/{framing}");
            let answer = send(&gateway, "GET", &target, &format!("x-request-id: {id}\r\n"), "");
            assert!(answer.body == bytes(LENGTH), "{id}: {} bytes", answer.body.len());
            let length = answer.header("content-length");
            assert_eq!(length.is_some(), framing == "length", "{id}");
            let logged = gateway.log_of(&id);
            assert_eq!(logged["outcome"], "ok", "{id}");
            assert!(logged["response_bytes"].as_u64().is_some_and(|bytes| bytes >= LENGTH as u64), "{logged}");
        }
    }
    gateway.expect_nothing_in_flight();
}

fn a_download_that_breaks_off_is_seen_to(driver: Driver) {
    let backend = Backend::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nContent-Length: 1000000\r\n\r\n")?;
        stream.write_all(&bytes(500_000))?;
        close()
    });
    let gateway = start(driver, &backend);
    let mut client = Client::sending(gateway.address, "GET /file HTTP/1.1\r\nHost: x\r\nx-request-id: cut\r\n\r\n");
    assert_eq!(client.head().header("content-length"), Some("1000000"));
    // The end comes before the length says: no client can take it for whole.
    assert!(client.rest().0.len() < 1_000_000);
    assert_eq!(gateway.log_of("cut")["outcome"], "truncated");
    gateway.expect_nothing_in_flight();
}

fn the_model_of_an_unknown_path_decides_where_it_goes(driver: Driver) {
    let (first, second) = (Backend::saying(document("{}")), Backend::saying(document(r#"{"model":"large"}"#)));
    let pool = |name: &str, set: &str| {
        format!(
            "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePool\nmetadata: {{ name: {name}, namespace: default }}\n\
             spec: {{ destinations: [{{ kind: InferenceWorkerSet, name: {set} }}] }}\n---\n"
        )
    };
    let resources = worker_set_at("a", MODEL, ALIAS, &[first.address])
        + &worker_set_at("b", "large", "org/large", &[second.address])
        + &pool("a", "a")
        + &pool("b", "b");
    let gateway = Setup::new(resources).ready(2).start(driver);
    let answer = post(gateway.address, "/custom", "", r#"{"x":[1], "model":"org/large"}"#);
    assert_eq!((answer.status, answer.text().as_str()), (200, r#"{"model":"org/large"}"#));
    assert_eq!(second.last().text(), r#"{"x":[1], "model":"large"}"#);
    for body in [r#"{"x":1}"#, "[1]", "", r#"{"model":7}"#] {
        assert_eq!(post(gateway.address, "/custom", "", body).status, 200);
        assert_eq!(first.last().text(), body);
    }
    assert_eq!(post(gateway.address, "/custom", "", r#"{"model":"nobody"}"#).error_code(), "model_not_found");
    assert_eq!((first.asked().len(), second.asked().len()), (4, 1));
}

fn compressed_answers_pass_as_they_are(driver: Driver) {
    let body = crate::encoding::gzip(br#"{"model":"tiny"}"#);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let backend = Backend::saying([head.as_bytes(), &body].concat());
    let gateway = start(driver, &backend);
    let answer =
        post(gateway.address, "/custom", "Accept-Encoding: gzip, br\r\n", &format!(r#"{{"model":"{ALIAS}"}}"#));
    assert_eq!((answer.header("content-encoding"), &answer.body), (Some("gzip"), &body));
    assert_eq!(backend.last().header("accept-encoding"), Some("gzip, br"));
}

fn a_tunnel_is_refused(driver: Driver) {
    let backend = Backend::saying("HTTP/1.1 200 OK\r\n\r\n");
    let gateway = start(driver, &backend);
    let answer = Client::sending(gateway.address, "CONNECT host:443 HTTP/1.1\r\nHost: host:443\r\n\r\n").answer();
    assert_eq!((answer.status, answer.error_code().as_str()), (405, "method_not_allowed"));
    assert_eq!(backend.asked().len(), 0);
}
