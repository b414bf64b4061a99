//! What requests cost at servers of our own: the time there, divided among all that were there.

use crate::support::engines::{ALIAS, MODEL, pool, slow_engine, worker_set};
use crate::support::{Driver, Setup, chat};

on_both_drivers![the_time_at_a_server_is_divided_among_its_requests];

fn the_time_at_a_server_is_divided_among_its_requests(driver: Driver) {
    let engine = slow_engine(10);
    let set = worker_set("workers", MODEL, ALIAS, &[&engine])
        .replace("spec:\n", "spec:\n  cost: { perGpuSecond: 0.5, gpusPerEndpoint: 2 }\n");
    let gateway = Setup::new(set + &pool(&["workers"], &[])).start(driver);
    let named = |id: &str| format!("x-request-id: {id}\r\n");
    let of = |id: &str| {
        let line = gateway.log_of(id);
        (line["cost"].as_f64().unwrap(), line["duration_ms"].as_f64().unwrap() / 1e3)
    };
    assert_eq!(gateway.chat(&named("alone"), &chat(MODEL, 150)).status, 200);
    let (cost, seconds) = of("alone");
    assert!(cost > 0.2 && cost <= seconds * 1.02 && cost > seconds * 0.5, "{cost} for {seconds} s");

    // All at once: together they cost about as much as the longest of them alone.
    let mut together: Vec<_> = (0..4).map(|n| gateway.send_chat(&named(&format!("t{n}")), &chat(MODEL, 150))).collect();
    together.iter_mut().for_each(|client| assert_eq!(client.answer().status, 200));
    let all: Vec<(f64, f64)> = (0..4).map(|n| of(&format!("t{n}"))).collect();
    let sum: f64 = all.iter().map(|(cost, _)| cost).sum();
    let longest = all.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    let each: f64 = all.iter().map(|(_, seconds)| seconds).sum();
    assert!(sum > longest * 0.5 && sum < each * 0.75, "{all:?}");
    let told = gateway.metric("kinference_cost_total", &[&format!("model_served=\"{MODEL}\"")]);
    assert!((told - cost - sum).abs() < 1e-6, "{told} for {cost} and {sum}");
}
