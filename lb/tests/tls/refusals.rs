//! Peers that speak no TLS, or not to the end: each is told or dropped, none is waited for.

use std::io::{Read, Write};
use std::process::Command;

use crate::listener::{HOST, connect, over_tls, session, socket, start, start_with};
use crate::pki::Authority;
use crate::support::client::request;
use crate::support::engines::MODEL;
use crate::support::{Driver, Setup, chat, engine, eventually, fleet};

on_both_drivers![
    who_speaks_no_tls_gets_an_alert_and_the_end,
    a_handshake_that_is_not_done_in_time_ends,
    a_broken_record_ends_the_connection_with_an_alert,
    no_server_starts_without_a_good_pair,
];

/// `ContentType` of an alert (RFC 8446, 5.1).
const ALERT: u8 = 21;

fn who_speaks_no_tls_gets_an_alert_and_the_end(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    let long = "x".repeat(300_000);
    let strange = ["GET / HTTP/1.1\r\nHost: gateway\r\n\r\n", "\0\0\0\0\0\0", "SSH-2.0-OpenSSH_9.9\r\n", &long];
    for bytes in strange {
        let mut socket = socket(tls.address());
        // The gateway may end the connection before everything is sent.
        let _ = socket.write_all(bytes.as_bytes());
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.first(), Some(&ALERT), "{answer:?} to {:?}", &bytes[..6]);
    }
    tls.gateway.wait_for_metric("kinference_tls_handshake_failures_total", &[], strange.len() as f64);
    tls.gateway.wait_for_metric("kinference_downstream_connections_open", &[], 0.0);
}

fn a_handshake_that_is_not_done_in_time_ends(driver: Driver) {
    let engine = engine();
    let tls = start_with(driver, Setup::new(fleet(&[&engine])).server("timeouts: { requestHead: 2s }"));
    let mut hello = Vec::new();
    session(&tls.trusting()).write_tls(&mut hello).unwrap();
    let begun = [&b""[..], &hello[..1], &hello[..hello.len() / 2], &hello].map(|begun| {
        let mut socket = socket(tls.address());
        socket.write_all(begun).unwrap();
        socket
    });
    for mut socket in begun {
        // It ends although the client does not.
        socket.read_to_end(&mut Vec::new()).unwrap();
    }
    tls.gateway.wait_for_metric("kinference_tls_handshake_failures_total", &[], 4.0);
    tls.gateway.wait_for_metric("kinference_downstream_connections_open", &[], 0.0);
    // A handshake that is done in time, which a client on a busy machine may need some attempts for.
    let mut client = eventually("a handshake is done", || connect(tls.address(), &tls.trusting()).ok());
    client.send(request("/v1/chat/completions", "", &chat(MODEL, 1)));
    assert_eq!(client.answer().status, 200);
}

fn a_broken_record_ends_the_connection_with_an_alert(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    let mut client = tls.connect();
    client.send(request("/v1/chat/completions", "", &chat(MODEL, 1)));
    assert_eq!(client.answer().status, 200);
    let mut socket = client.stream().sock.try_clone().unwrap();
    // A record of application data that was never encrypted.
    socket.write_all(&[&[23, 3, 3, 0, 32][..], &[7; 32]].concat()).unwrap();
    let mut rest = [0; 1024];
    let n = socket.read(&mut rest).unwrap();
    // An alert, itself encrypted as application data, then the end.
    assert!(n > 5 && rest[0] == 23, "{:?}", &rest[..n]);
    assert_eq!(socket.read(&mut rest).unwrap(), 0);
    tls.gateway.wait_for_metric("kinference_downstream_connections_open", &[], 0.0);
}

fn no_server_starts_without_a_good_pair(driver: Driver) {
    let authority = Authority::new("servers");
    let (one, other) = (authority.issue(&[HOST]), authority.issue(&[HOST]));
    for (certificate, key, expected) in [
        (one.certificate_pem.as_str(), other.key_pem(), "cannot be used together"),
        ("", one.key_pem(), "tls.crt holds no certificate"),
        (one.certificate_pem.as_str(), String::new(), "tls.key holds no private key"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let setup = over_tls(Setup::new(String::new()), &one);
        let put = |name: &str, content: &str| std::fs::write(folder.path().join(name), content).unwrap();
        put("all.yaml", &fleet(&[]).replace("endpoints:\n", "endpoints: [{ address: 127.0.0.1 }]\n"));
        put("tls.crt", certificate);
        put("tls.key", &key);
        put(
            "kinference.yml",
            &format!("listeners: [{{ address: \"127.0.0.1:0\"{} }}]\nresources: [all.yaml]\n", setup.listener),
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_kinference"));
        let output = command.args(["serve", "--driver", driver.name(), "--config"]);
        let output = output.arg(folder.path().join("kinference.yml")).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(expected) && told.contains("tls of the listener 127.0.0.1:0"), "{told}");
    }
}
