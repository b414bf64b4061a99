//! Why a request went where it went: `/decisions` of the admin server, and `kinfctl why`.

use std::process::Command;

use engine::{Engine, Settings};
use serde_json::Value;

use crate::support::{Driver, Gateway, eventually, stream};

on_both_drivers![
    a_decision_is_told_by_the_id_of_its_request,
    a_refusal_is_told_with_what_dropped_each_candidate,
    what_is_not_kept_and_what_cannot_be_asked_are_told_apart,
];

fn engine() -> Engine {
    Engine::start(Settings::instant()).expect("loopback has a free port")
}

/// The decisions about one request, once it is over.
fn decisions_of(gateway: &Gateway, request_id: &str) -> Vec<Value> {
    eventually("the decision is kept, and how it ended", || {
        let answer = gateway.page(&format!("/decisions/{request_id}"));
        let decisions = (answer.status == 200).then(|| answer.json()["decisions"].as_array().cloned())??;
        (!decisions[0]["result"].is_null()).then_some(decisions)
    })
}

fn kinfctl_why(gateway: &Gateway, request_id: &str) -> String {
    let admin = format!("http://{}", gateway.admin);
    let program = env!("CARGO_BIN_EXE_kinference");
    let output = Command::new(program).args(["ctl", "why", request_id, "--admin", &admin]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn a_decision_is_told_by_the_id_of_its_request(driver: Driver) {
    let engines = [engine(), engine()];
    let gateway = Gateway::over_servers(driver, &[engines[0].addr(), engines[1].addr()]);
    let answer = gateway.chat("x-request-id: first\r\n", &stream("mock", 3));
    assert_eq!(answer.status, 200, "{answer:?}");
    gateway.chat("x-request-id: second\r\n", &stream("mock", 3));

    let decisions = decisions_of(&gateway, "first");
    let [decision] = decisions.as_slice() else { panic!("one attempt, one decision: {decisions:?}") };
    let candidates = decision["candidates"].as_array().unwrap();
    assert_eq!((candidates.len(), &decision["candidatesOmitted"]), (2, &Value::from(0)));
    assert_eq!(
        (candidates[0]["verdict"].as_str(), candidates[1]["verdict"].as_str()),
        (Some("chosen"), Some("ranked"))
    );
    assert_eq!(candidates[0]["endpoint"], decision["endpoint"]);
    let addresses = engines.each_ref().map(|engine| engine.addr().to_string());
    for candidate in candidates {
        assert!(addresses.iter().any(|address| candidate["endpoint"] == address.as_str()), "{candidate}");
        assert!(candidate["predictedTtftMs"].as_f64().is_some_and(|ms| ms > 0.0), "{candidate}");
    }
    assert_eq!((&decision["result"]["outcome"], &decision["result"]["status"]), (&"ok".into(), &200.into()));
    assert!(decision["result"]["ttftMs"].as_f64().is_some(), "{decision}");
    assert!(!decision.to_string().contains("Say hello"), "no prompt text: {decision}");

    let latest = gateway.page("/decisions?limit=1").json();
    let latest = latest["decisions"].as_array().unwrap();
    assert_eq!((latest.len(), &latest[0]["requestId"]), (1, &"second".into()));

    let told = kinfctl_why(&gateway, "first");
    for part in ["request first (attempt 1)", "sent to 127.0.0.1:", "predicted", "best alternative: 127.0.0.1:"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

fn a_refusal_is_told_with_what_dropped_each_candidate(driver: Driver) {
    let engine = engine();
    let gateway = Gateway::over_servers(driver, &[engine.addr()]);
    drop(engine);
    // The first attempt finds out that it is gone.
    let answer = gateway.chat("x-request-id: nobody\r\n", &stream("mock", 3));
    assert!(answer.status >= 500, "{answer:?}");
    let decisions = decisions_of(&gateway, "nobody");
    let last = &decisions[0];
    assert!(last["attempt"].as_u64() > Some(1) || last["refused"] == "no_ready_endpoint", "{decisions:?}");
    assert_eq!(last["result"]["status"], answer.status);
    assert!(kinfctl_why(&gateway, "nobody").contains("refused: no_ready_endpoint"), "{decisions:?}");
}

fn what_is_not_kept_and_what_cannot_be_asked_are_told_apart(driver: Driver) {
    let engine = engine();
    let gateway = Gateway::over_servers(driver, &[engine.addr()]);
    let missing = gateway.page("/decisions/never-seen");
    assert_eq!(missing.status, 404, "{missing:?}");
    assert!(missing.text().contains("1,000"), "{missing:?}");
    let odd = gateway.page("/decisions?limit=all");
    assert_eq!(odd.status, 400, "{odd:?}");
    assert!(odd.text().contains("limit=all"), "{odd:?}");
}
