//! Several balancers in front of the same engines: what one has sent, the others know.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use engine::step::{Parameters, StepCost};
use engine::{Engine, Settings};

use crate::support::client::request;
use crate::support::engines::{ALIAS, MODEL, chat_of, engine_of, own_host, pool, worker_set};
use crate::support::{Client, Driver, Gateway, Setup, chat, eventually, model_requests};

const BALANCERS: usize = 4;

/// Ports that nobody has.
fn free_ports() -> Vec<SocketAddr> {
    let sockets: Vec<UdpSocket> = (0..BALANCERS).map(|_| UdpSocket::bind((own_host(), 0)).unwrap()).collect();
    sockets.iter().map(|socket| socket.local_addr().unwrap()).collect()
}

/// A balancer over these engines that hears the others, and reads engines' own numbers once at its start.
fn balancer(driver: Driver, engines: &[&Engine], ports: &[SocketAddr], number: usize) -> Gateway {
    let resources = worker_set("workers", MODEL, ALIAS, engines).replace("interval: 100ms", "interval: 60s");
    let peers: Vec<String> = ports.iter().map(|address| format!("\"{address}\"")).collect();
    let setup = Setup::new(resources + &pool(&["workers"], &[])).ready(engines.len()).server(&format!(
        "balancers: {{ address: \"{}\", peers: [{}], secret: {{ fromEnv: SHARED }} }}",
        ports[number],
        peers.join(", ")
    ));
    Setup { environment: vec![("SHARED".into(), "known to all of them".into())], ..setup }.start(driver)
}

/// An engine that reads a hundred tokens a second.
fn slow_reader() -> Engine {
    let cost = StepCost { base_us: 1e3, prefill_token_us: 1e4, ..StepCost::NONE };
    engine_of(Settings { parameters: Parameters { cost, ..Parameters::default() }, ..Settings::default() })
}

fn others_in_flight(gateway: &Gateway, engine: &Engine) -> u64 {
    gateway.endpoint(engine.addr())["belief"]["otherBalancersInFlight"].as_u64().unwrap_or_default()
}

#[test]
fn what_one_of_four_balancers_has_sent_keeps_the_others_away() {
    let (busy, idle) = (slow_reader(), slow_reader());
    let ports = free_ports();
    // The first knows one engine alone, and loads it.
    let first = balancer(Driver::Epoll, &[&busy], &ports, 0);
    let others: Vec<Gateway> =
        (1..BALANCERS).map(|number| balancer(Driver::Epoll, &[&busy, &idle], &ports, number)).collect();
    first.wait_for_metric("kinference_balancers_heard", &[], 3.0);
    // Prompts that are read for minutes: no other endpoint is nearly as late.
    let send = |number: u32| {
        let prompt: String = (0..6_000).map(|word| format!("{number}.{word} ")).collect();
        let body = chat_of(ALIAS, &prompt, 1, r#","stream":true"#);
        Client::sending(first.address, request("/v1/chat/completions", "", &body))
    };
    let mut clients: Vec<Client> = (0..6).map(send).collect();
    for gateway in &others {
        eventually("the load is heard of", || (others_in_flight(gateway, &busy) == 6).then_some(()));
        for _ in 0..4 {
            assert_eq!(gateway.chat("", &chat(ALIAS, 1)).status, 200);
        }
    }
    assert_eq!((model_requests(&busy).len(), model_requests(&idle).len()), (6, 12));

    clients.clear();
    for gateway in &others {
        eventually("its end is heard of", || (others_in_flight(gateway, &busy) == 0).then_some(()));
    }

    // Whoever does not know the secret is not heard.
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    stranger.send_to(b"KIN1 and nothing that is signed, but long enough to be", ports[0]).unwrap();
    first.wait_for_metric("kinference_balancers_datagrams_refused_total", &[], 1.0);
}
