//! Connections are spread over the data threads by what each has to do, and none is lost on its way from one to another.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::client::request;
use crate::support::engines::MODEL;
use crate::support::{Client, Driver, Gateway, Setup, chat, engine, eventually, fleet, post, stream};

on_both_drivers![
    streams_on_kept_connections_are_spread_evenly_over_data_threads,
    connections_opened_before_the_signal_are_answered_by_the_old_process_or_the_new_one,
    a_new_process_takes_no_request_before_it_knows_its_endpoints,
];

const THREADS: usize = 4;

/// A count of each data thread.
fn by_thread(gateway: &Gateway, name: &str) -> Vec<u64> {
    (0..THREADS).map(|thread| gateway.metric(name, &[&format!("thread=\"{thread}\"")]) as u64).collect()
}

fn streams_on_kept_connections_are_spread_evenly_over_data_threads(driver: Driver) {
    const STREAMS: usize = 64;
    let engine = engine();
    let gateway = Setup::new(fleet(&[&engine])).threads(THREADS).start(driver);
    let begin = |client: &mut Client| {
        client.send(request("/v1/chat/completions", "x-fault: hang-mid-stream=1\r\n", &stream(MODEL, 3)));
    };
    let mut clients: Vec<_> = (0..STREAMS).map(|_| Client::connect(gateway.address)).collect();
    clients.iter_mut().for_each(begin);
    for client in &mut clients {
        assert_eq!(client.head().status, 200);
        client.chunk();
    }
    for name in ["kinference_thread_requests_open", "kinference_thread_connections_open"] {
        let counts = by_thread(&gateway, name);
        assert_eq!(counts.iter().sum::<u64>() as usize, STREAMS, "{name}: {counts:?}");
        // A quarter above the mean. Nobody chooses the kernel's hash: it alone leaves the fullest at 20 on average.
        assert!(counts.iter().all(|&count| count as usize * THREADS * 4 <= STREAMS * 5), "{name}: {counts:?}");
    }
    assert!(gateway.metric("kinference_downstream_connections_handed_over_total", &[]) > 0.0);
    assert_eq!(gateway.metric("kinference_downstream_connections_total", &[]) as usize, STREAMS);
    drop(clients);
    gateway.expect_nothing_in_flight();
    eventually("no thread has a connection", || {
        by_thread(&gateway, "kinference_thread_connections_open").iter().all(|&count| count == 0).then_some(())
    });
}

fn connections_opened_before_the_signal_are_answered_by_the_old_process_or_the_new_one(driver: Driver) {
    // As many as the engine can be sent at once.
    const CONNECTIONS: usize = 96;
    let engine = engine();
    let setup = Setup::new(fleet(&[&engine])).threads(THREADS);
    let mut old = setup.clone().start(driver);
    let held = old.send_chat("x-fault: hang-mid-stream=1\r\n", &stream(MODEL, 3));
    let new = setup.at(old.address).start(driver);
    new.wait_for_line(&["level=warn", "another process listens at this address", &old.address.to_string()]);
    // The kernel gives each to a listening socket of either process; the old one is busy passing its own around.
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| Client::connect(old.address)).collect();
    old.signal("TERM");
    for client in &mut clients {
        client.send(request("/v1/chat/completions", "", &chat(MODEL, 1)));
    }
    let closing = clients.iter_mut().map(Client::answer).filter(|answer| {
        assert_eq!(answer.status, 200);
        answer.header("connection") == Some("close")
    });
    assert!(closing.count() > 0, "some came by the old process");
    drop(held);
    assert_eq!(old.wait().code(), Some(0));
    assert_eq!(new.chat("", &chat(MODEL, 1)).status, 200);
    new.expect_nothing_in_flight();
}

fn a_new_process_takes_no_request_before_it_knows_its_endpoints(driver: Driver) {
    let engine = engine();
    let old = Setup::new(fleet(&[&engine])).start(driver);
    let (address, stop) = (old.address, AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Each on a connection of its own: the kernel gives it to either process from the moment that both listen.
        let client = scope.spawn(|| {
            let mut answered = 0;
            while !stop.load(Ordering::SeqCst) {
                let answer = post(address, "/v1/chat/completions", "", &chat(MODEL, 1));
                assert_eq!(answer.status, 200, "after {answered}: {answer:?}");
                answered += 1;
            }
            answered
        });
        let new = Setup::new(fleet(&[&engine])).at(address).start(driver);
        eventually("the new process answers too", || {
            (client.is_finished() || new.metric("kinference_requests_total", &[]) > 0.0).then_some(())
        });
        stop.store(true, Ordering::SeqCst);
        assert!(client.join().expect("every request is answered") > 0);
    });
}
