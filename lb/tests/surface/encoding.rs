//! Compressed request bodies.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::json;

use crate::backend::{ALIAS, Backend, MODEL, document};
use crate::support::{Client, Driver, Gateway, Setup};

on_both_drivers![
    a_compressed_body_arrives_decoded_with_its_splices,
    a_compressed_stream_is_asked_for_its_usage,
    a_bomb_is_refused_at_the_limit_of_what_it_becomes,
    a_compressed_body_over_the_limit_is_refused_readably_while_it_is_still_sent,
    unknown_and_stacked_codings_are_refused_with_what_is_accepted,
    a_broken_compressed_body_is_a_400_and_the_connection_stays,
    other_paths_are_read_where_they_can_be_and_pass_as_they_are_where_not,
];

const CHATS: &str = "/v1/chat/completions";
const CODINGS: [&str; 3] = ["gzip", "deflate", "zstd"];

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn encode(coding: &str, bytes: &[u8]) -> Vec<u8> {
    match coding {
        "gzip" => gzip(bytes),
        "deflate" => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        "zstd" => compress_to_vec(bytes, CompressionLevel::Fastest),
        other => panic!("no coding {other}"),
    }
}

/// A request with a binary body; `headers` are whole lines.
pub(crate) fn binary(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: gateway\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn chunked(path: &str, headers: &str, body: &[u8], chunk_bytes: usize) -> Vec<u8> {
    let mut out =
        format!("POST {path} HTTP/1.1\r\nHost: gateway\r\n{headers}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for chunk in body.chunks(chunk_bytes) {
        out.extend(format!("{:x}\r\n", chunk.len()).bytes());
        out.extend(chunk);
        out.extend(b"\r\n");
    }
    out.extend(b"0\r\n\r\n");
    out
}

fn start(driver: Driver, backend: &Backend) -> Gateway {
    Setup::new(backend.documents()).start(driver)
}

fn a_compressed_body_arrives_decoded_with_its_splices(driver: Driver) {
    let backend = Backend::saying(document(r#"{"model":"tiny"}"#));
    let gateway = start(driver, &backend);
    let mut client = Client::connect(gateway.address);
    for bytes in [10, 3_000_000] {
        let pad = "some text to be repeated, ".repeat(bytes / 26 + 1);
        let body = |model: &str| format!(r#"{{ "pad":"{pad}", "model":"{model}","messages":[]}}"#);
        for coding in CODINGS {
            let headers =
                format!("Content-Type: application/json\r\nContent-Encoding: {coding}\r\nContent-Digest: x\r\n");
            let encoded = encode(coding, body(ALIAS).as_bytes());
            for sent in [binary(CHATS, &headers, &encoded), chunked(CHATS, &headers, &encoded, 1_000)] {
                client.send(sent);
                let answer = client.answer();
                assert_eq!((answer.status, &answer.json()["model"]), (200, &json!(ALIAS)), "{coding}");
                let asked = backend.last();
                assert!(asked.body == body(MODEL).as_bytes(), "{coding}: {} bytes", asked.body.len());
                for name in ["content-encoding", "content-digest", "transfer-encoding"] {
                    assert_eq!(asked.header(name), None, "{coding}");
                }
                assert_eq!(asked.header("content-type"), Some("application/json"));
            }
        }
    }
    gateway.wait_for_metric("kinference_request_bodies_bytes", &[], 0.0);
}

fn a_compressed_stream_is_asked_for_its_usage(driver: Driver) {
    let backend = Backend::saying(document("{}"));
    let gateway = start(driver, &backend);
    let body = gzip(br#"{"model":"tiny","stream":true}"#);
    Client::sending(gateway.address, binary(CHATS, "Content-Encoding: x-gzip\r\n", &body)).answer();
    assert_eq!(backend.last().text(), r#"{"model":"tiny","stream":true,"stream_options":{"include_usage":true}}"#);
}

fn a_bomb_is_refused_at_the_limit_of_what_it_becomes(driver: Driver) {
    let backend = Backend::saying(document("{}"));
    let gateway = Setup::new(backend.documents()).server("limits: { requestBody: 1MiB }").start(driver);
    let zeros = vec![b' '; 64 << 20];
    for coding in CODINGS {
        let bomb = encode(coding, &zeros);
        assert!(bomb.len() < 1 << 20, "{coding}: {} bytes", bomb.len());
        let request = binary(CHATS, &format!("Content-Encoding: {coding}\r\n"), &bomb);
        let answer = Client::sending(gateway.address, request).answer();
        assert_eq!((answer.status, answer.error_code().as_str()), (413, "request_too_large"), "{coding}");
    }
    // As large as allowed is allowed.
    let json = r#"{"model":"tiny"}"#;
    let largest = json.to_owned() + &" ".repeat((1 << 20) - json.len());
    for (more, status) in [("", 200), (" ", 413)] {
        let body = gzip((largest.clone() + more).as_bytes());
        let request = binary(CHATS, "Content-Encoding: gzip\r\n", &body);
        assert_eq!(Client::sending(gateway.address, request).answer().status, status);
    }
    assert_eq!(backend.asked().len(), 1);
    gateway.wait_for_metric("kinference_request_bodies_bytes", &[], 0.0);
}

fn a_compressed_body_over_the_limit_is_refused_readably_while_it_is_still_sent(driver: Driver) {
    let backend = Backend::saying(document("{}"));
    let gateway = Setup::new(backend.documents()).server("limits: { requestBody: 64KiB }").start(driver);
    // Stored, not compressed: longer than the limit as it is.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(&vec![b'x'; 800 << 10]).unwrap();
    let body = encoder.finish().unwrap();
    let headers = "Content-Encoding: gzip\r\n";
    for request in [binary(CHATS, headers, &body), chunked(CHATS, headers, &body, 5_000)] {
        let mut client = Client::sending(gateway.address, request);
        client.end_sending();
        let answer = client.answer();
        assert_eq!((answer.status, answer.error_code().as_str()), (413, "request_too_large"));
        client.expect_end();
    }
    gateway.wait_for_metric("kinference_request_bodies_bytes", &[], 0.0);
}

fn unknown_and_stacked_codings_are_refused_with_what_is_accepted(driver: Driver) {
    let backend = Backend::saying(document("{}"));
    let gateway = start(driver, &backend);
    let mut client = Client::connect(gateway.address);
    for codings in ["br", "gzip, gzip", "zstd\r\nContent-Encoding: gzip", "compress", "identity, br"] {
        client.send(binary(CHATS, &format!("Content-Encoding: {codings}\r\n"), br#"{"model":"tiny"}"#));
        let answer = client.answer();
        assert_eq!((answer.status, answer.error_code().as_str()), (415, "unsupported_content_encoding"), "{codings}");
        assert_eq!(answer.header("accept-encoding"), Some("gzip, deflate, zstd"));
    }
    client.send(binary(CHATS, "Content-Encoding: identity\r\n", br#"{"model":"tiny"}"#));
    assert_eq!(client.answer().status, 200);
    assert_eq!(backend.asked().len(), 1);
}

fn a_broken_compressed_body_is_a_400_and_the_connection_stays(driver: Driver) {
    let backend = Backend::saying(document("{}"));
    let gateway = start(driver, &backend);
    let mut client = Client::connect(gateway.address);
    for coding in CODINGS {
        let good = encode(coding, br#"{"model":"tiny","messages":[]}"#);
        for body in [b"{\"model\":\"tiny\"}", &good[..good.len() / 2], &[&good[..], b"x"].concat()] {
            client.send(binary(CHATS, &format!("Content-Encoding: {coding}\r\n"), body));
            let answer = client.answer();
            assert_eq!((answer.status, answer.error_code().as_str()), (400, "bad_content_encoding"), "{coding}");
        }
        client.send(binary(CHATS, &format!("Content-Encoding: {coding}\r\n"), &good));
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(backend.asked().len(), 3);
}

fn other_paths_are_read_where_they_can_be_and_pass_as_they_are_where_not(driver: Driver) {
    let backend = Backend::saying(document("{}"));
    let gateway = start(driver, &backend);
    let plain = format!(r#"{{"model":"{ALIAS}"}}"#);
    let body = gzip(plain.as_bytes());
    let ask = |headers: &str| {
        let answer = Client::sending(gateway.address, binary("/custom", headers, &body)).answer();
        assert_eq!(answer.status, 200, "{headers}");
        backend.last()
    };
    let read = ask("Content-Type: application/json; charset=utf-8\r\nContent-Encoding: gzip\r\n");
    assert_eq!((read.text(), read.header("content-encoding")), (r#"{"model":"tiny"}"#, None));
    for headers in [
        "Content-Encoding: gzip\r\n",
        "Content-Type: application/json\r\nContent-Encoding: br\r\n",
        "Content-Type: application/json\r\nContent-Encoding: zstd\r\n",
    ] {
        let passed = ask(headers);
        assert_eq!(passed.body, body);
        assert!(passed.header("content-encoding").is_some());
    }
}
