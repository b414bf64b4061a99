//! Certificates that change while clients connect: no request fails, a broken pair changes nothing and is told.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::pki_types::CertificateDer;

use crate::listener::{
    HOST, TlsGateway, beside, connect, connect_stream, over_tls, start, start_with, trusting, with_client_certificates,
};
use crate::pki::{Authority, Leaf};
use crate::support::client::request;
use crate::support::engines::{MODEL, slow_engine};
use crate::support::{Driver, Gateway, Setup, chat, engine, eventually, fleet, stream};

on_both_drivers![
    a_pair_is_changed_under_load_without_a_failed_request,
    a_mounted_secret_is_swapped_as_one_change,
    a_broken_pair_is_refused_and_the_old_one_stays,
    client_authorities_change_too,
    an_expired_certificate_is_shown_with_a_warning,
    of_several_listeners_the_one_whose_files_change_changes,
];

/// 2090-01-01, when certificates of these tests expire.
const EXPIRY_UNIX_S: f64 = 3_786_912_000.0;

/// What a new connection is shown.
fn shown(tls: &TlsGateway) -> CertificateDer<'static> {
    let client = tls.connect();
    client.stream().conn.peer_certificates().unwrap()[0].clone().into_owned()
}

fn wait_until_shown(tls: &TlsGateway, leaf: &Leaf) {
    eventually("new connections are shown the new certificate", || (shown(tls) == leaf.certificate).then_some(()));
}

fn a_pair_is_changed_under_load_without_a_failed_request(driver: Driver) {
    let engine = slow_engine(1);
    let tls = start_with(driver, Setup::new(fleet(&[&engine])).threads(2));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let (stop, address) = (&stop, tls.address());
                // Half of the clients keep their connection, half of the requests stream.
                let config = tls.trusting();
                scope.spawn(move || {
                    let mut client = connect(address, &config).unwrap();
                    let mut answered = 0_u32;
                    while !stop.load(Ordering::Relaxed) {
                        if number % 2 == 0 {
                            client = connect(address, &config).unwrap();
                        }
                        let body = if answered.is_multiple_of(2) { chat(MODEL, 4) } else { stream(MODEL, 4) };
                        client.send(request("/v1/chat/completions", "", &body));
                        let answer = client.answer();
                        assert_eq!(answer.status, 200, "{answer:?}");
                        answered += 1;
                    }
                    answered
                })
            })
            .collect();
        for _ in 0..3 {
            let next = tls.authority.issue(&[HOST]);
            tls.write_pair(&next.certificate_pem, &next.key_pem());
            // Each data thread hears of it by itself: enough connections to meet both.
            for _ in 0..8 {
                wait_until_shown(&tls, &next);
            }
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().unwrap() > 0, "there was load");
        }
    });
    assert_eq!(tls.gateway.metric("kinference_tls_handshake_failures_total", &[]), 0.0);
    let listener = format!("listener=\"{}\"", tls.address());
    assert_eq!(tls.gateway.metric("kinference_tls_certificate_expiry_seconds", &[&listener]), EXPIRY_UNIX_S);
}

/// Puts a version of a Secret in place as the kubelet does: `..data` is swapped, the names are links into it.
fn mount(folder: &Path, version: &str, leaf: &Leaf) {
    let data = folder.join(format!("..{version}"));
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("tls.crt"), &leaf.certificate_pem).unwrap();
    fs::write(data.join("tls.key"), leaf.key_pem()).unwrap();
    symlink(format!("..{version}"), folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
}

fn a_mounted_secret_is_swapped_as_one_change(driver: Driver) {
    let (engine, authority, folder) = (engine(), Authority::new("servers"), tempfile::tempdir().unwrap());
    let first = authority.issue(&[HOST]);
    mount(folder.path(), "1", &first);
    for name in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{name}"), folder.path().join(name)).unwrap();
    }
    let mut setup = over_tls(Setup::new(fleet(&[&engine])), &first);
    for name in ["tls.crt", "tls.key"] {
        setup.listener = setup.listener.replace(name, folder.path().join(name).to_str().unwrap());
    }
    let tls = TlsGateway { gateway: setup.start(driver), authority };
    for version in ["2", "3"] {
        let next = tls.authority.issue(&[HOST]);
        mount(folder.path(), version, &next);
        wait_until_shown(&tls, &next);
    }
    assert_eq!(tls.gateway.metric("kinference_tls_certificate_refusals_total", &[]), 0.0);
}

fn a_broken_pair_is_refused_and_the_old_one_stays(driver: Driver) {
    let engine = engine();
    let tls = start(driver, &engine);
    let before = shown(&tls);
    let next = tls.authority.issue(&[HOST]);
    let torn = next.certificate_pem.replace("END CERTIFICATE", "END");
    fs::write(tls.file("tls.crt"), torn).unwrap();
    tls.gateway.wait_for_metric("kinference_tls_certificate_refusals_total", &[], 1.0);
    let line = tls.gateway.wait_for_line(&["certificate refused; what was in force stays", "tls.crt"]);
    assert!(line.contains(&tls.address().to_string()), "{line}");
    assert!(shown(&tls) == before);

    // The certificate is whole now, but belongs to another key.
    fs::write(tls.file("tls.crt"), &next.certificate_pem).unwrap();
    tls.gateway.wait_for_metric("kinference_tls_certificate_refusals_total", &[], 2.0);
    assert!(shown(&tls) == before);

    fs::write(tls.file("tls.key"), next.key_pem()).unwrap();
    wait_until_shown(&tls, &next);
    let mut client = tls.connect();
    client.send(request("/v1/chat/completions", "", &chat(MODEL, 1)));
    assert_eq!(client.answer().status, 200);
}

fn client_authorities_change_too(driver: Driver) {
    let (engine, servers) = (engine(), Authority::new("servers"));
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let setup = with_client_certificates(Setup::new(fleet(&[&engine])), &servers.issue(&[HOST]), &old);
    let gateway = setup.start(driver);
    let works = |authority: &Authority| {
        let config = Arc::new(trusting(&servers, Some(&authority.issue(&["client.test"]))));
        let Ok(mut stream) = connect_stream(gateway.address, &config) else { return false };
        stream.write_all(request("/v1/chat/completions", "", &chat(MODEL, 1)).as_bytes()).is_ok()
            && stream.read(&mut [0; 64]).is_ok_and(|n| n > 0)
    };
    assert!(works(&old) && !works(&new));
    fs::write(beside(&gateway, "ca.crt"), new.pem()).unwrap();
    eventually("the new authority is believed", || works(&new).then_some(()));
    assert!(!works(&old), "and the old one no more");
}

fn an_expired_certificate_is_shown_with_a_warning(driver: Driver) {
    let (engine, authority) = (engine(), Authority::new("servers"));
    let expired = authority.issue_until(&[HOST], 2021);
    let tls = TlsGateway { gateway: over_tls(Setup::new(fleet(&[&engine])), &expired).start(driver), authority };
    tls.gateway.wait_for_line(&["level=warn", "the certificate has expired", &tls.address().to_string()]);
    let refused = connect(tls.address(), &tls.trusting()).unwrap_err().to_string();
    assert!(refused.contains("xpired"), "{refused}");
    let next = tls.authority.issue(&[HOST]);
    tls.write_pair(&next.certificate_pem, &next.key_pem());
    eventually("the new certificate is shown", || connect(tls.address(), &tls.trusting()).ok());
}

/// Where the two TLS listeners are, by the metric about their certificates.
fn tls_addresses(gateway: &Gateway) -> Vec<SocketAddr> {
    let page = gateway.page("/metrics").text();
    let lines =
        page.lines().filter_map(|line| line.strip_prefix("kinference_tls_certificate_expiry_seconds{listener=\""));
    lines.map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
}

fn of_several_listeners_the_one_whose_files_change_changes(driver: Driver) {
    let (engine, authority) = (engine(), Authority::new("servers"));
    let (one, other) = (authority.issue(&[HOST]), authority.issue(&[HOST]));
    let mut setup = Setup::new(fleet(&[&engine]));
    for (name, leaf) in [("one", &one), ("other", &other)] {
        let listener =
            format!(" }}, {{ address: \"127.0.0.1:0\", tls: {{ certFile: {name}.crt, keyFile: {name}.key }}");
        setup.listener.push_str(&listener);
        setup.files.push((format!("{name}.crt"), leaf.certificate_pem.clone()));
        setup.files.push((format!("{name}.key"), leaf.key_pem()));
    }
    let gateway = setup.start(driver);
    let config = Arc::new(trusting(&authority, None));
    let shown = |address| {
        let stream = connect_stream(address, &config).unwrap();
        stream.conn.peer_certificates().unwrap()[0].clone().into_owned()
    };
    let address_of = |leaf: &Leaf| {
        let mut addresses = tls_addresses(&gateway).into_iter();
        addresses.find(|address| shown(*address) == leaf.certificate).unwrap()
    };
    let (at_one, at_other) = (address_of(&one), address_of(&other));
    let next = authority.issue(&[HOST]);
    fs::write(beside(&gateway, "other.crt"), &next.certificate_pem).unwrap();
    fs::write(beside(&gateway, "other.key"), next.key_pem()).unwrap();
    eventually("the other listener shows the new certificate", || (shown(at_other) == next.certificate).then_some(()));
    assert!(shown(at_one) == one.certificate);
    assert_eq!(gateway.chat("", &chat(MODEL, 1)).status, 200, "the first listener is plain still");
}
