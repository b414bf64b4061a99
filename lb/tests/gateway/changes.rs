//! What a rule does besides choosing: splits, rules in shadow, parameters and headers, refusals on any path.

use engine::Engine;
use serde_json::{Value, json};

use crate::support::client::request;
use crate::support::engines::{ALIAS, MODEL, chat_of, engine, fleet, model_requests, pool, worker_set};
use crate::support::{Client, Driver, Gateway, Setup, chat, get, post};

on_both_drivers![
    parameters_and_headers_change_on_the_way_and_nothing_else,
    a_providers_key_goes_alone_whatever_the_client_calls_its_own,
    a_conversation_keeps_its_side_of_a_split,
    a_rule_in_shadow_is_counted_and_logged_and_does_nothing,
    a_refusal_that_names_no_model_holds_for_every_path,
];

const POLICY: &str = "---\napiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: { name: rules }\nspec:\n  rules:\n";

fn over(engine: &Engine, rules: &str) -> String {
    fleet(&[engine]).replace("spec:\n  destinations", "spec:\n  policyRef: [{ name: rules }]\n  destinations")
        + POLICY
        + rules
}

fn start(driver: Driver, resources: String, endpoints: usize) -> Gateway {
    Setup::new(resources).ready(endpoints).start(driver)
}

fn parameters_and_headers_change_on_the_way_and_nothing_else(driver: Driver) {
    let engine = engine();
    let rules = "    - name: bounded\n      route:\n        rewrite: { temperature: { atMost: 1 }, topP: { default: 0.9 } }\n        \
                 upstreamHeaders: [{ name: X-Team, value: search and ads }]\n";
    let gateway = start(driver, over(&engine, rules), 1);
    let body = chat_of(ALIAS, "hello", 3, r#","temperature":1.75,"metadata":{"temperature":1.75}"#);
    assert_eq!(gateway.chat("x-team: other\r\nx-other: kept\r\n", &body).status, 200);
    let sent = model_requests(&engine).pop().expect("it came");
    let mut want: Value = serde_json::from_str(&body).unwrap();
    want["model"] = json!(MODEL);
    want["temperature"] = json!(1);
    want["top_p"] = json!(0.9);
    assert_eq!(serde_json::from_str::<Value>(&sent.body).unwrap(), want);
    let named = |name: &str| -> Vec<&str> {
        let of_name = sent.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        of_name.map(|(_, value)| value.as_str()).collect()
    };
    assert_eq!(named("x-team"), ["search and ads"]);
    assert_eq!(named("x-other"), ["kept"]);
}

fn a_providers_key_goes_alone_whatever_the_client_calls_its_own(driver: Driver) {
    let hosted = engine();
    let resources = format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceProvider\nmetadata: {{ name: hosted }}\nspec:\n  type: OpenAI\n  \
         baseURL: http://{}/v1\n  auth: {{ apiKeyHeader: {{ name: X-Custom-Key, value: {{ fromEnv: HOSTED_KEY }} }} }}\n  \
         models: [{{ name: {ALIAS}, upstreamName: {MODEL} }}]\n---\napiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePool\n\
         metadata: {{ name: pool }}\nspec:\n  destinations: [{{ kind: InferenceProvider, name: hosted }}]\n  policyRef: [{{ name: rules }}]\n{POLICY}    - name: hosted\n      \
         route: {{ select: [{{ type: External }}] }}\n",
        hosted.addr()
    );
    let environment = vec![("HOSTED_KEY".to_owned(), "ours".to_owned())];
    let gateway = Setup { environment, ..Setup::new(resources) }.ready(1).start(driver);
    assert_eq!(gateway.chat("x-custom-key: the-clients\r\n", &chat(ALIAS, 3)).status, 200);
    let sent = model_requests(&hosted).pop().expect("it came");
    let keys: Vec<_> = sent.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-custom-key")).collect();
    assert_eq!(keys.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["ours"]);
}

fn a_conversation_keeps_its_side_of_a_split(driver: Driver) {
    let (stable, canary) = (engine(), engine());
    let rules = "    - name: canary\n      route:\n        select:\n          - { type: Local, names: [stable], weight: 50 }\n          \
                 - { type: Local, names: [canary], weight: 50 }\n";
    let resources = worker_set("stable", MODEL, ALIAS, &[&stable])
        + "---\n"
        + &worker_set("canary", MODEL, ALIAS, &[&canary])
        + "---\n"
        + &pool(&["stable", "canary"], &["rules"])
        + POLICY
        + rules;
    let gateway = start(driver, resources, 2);
    let mut sides = Vec::new();
    for conversation in 0..24 {
        let mut messages = vec![json!({ "role": "user", "content": format!("question {conversation}") })];
        let mut own = Vec::new();
        for turn in 0..3 {
            let id = format!("{conversation}-{turn}");
            let body = json!({ "model": ALIAS, "max_tokens": 1, "messages": messages }).to_string();
            assert_eq!(gateway.chat(&format!("x-request-id: {id}\r\n"), &body).status, 200);
            own.push(gateway.log_of(&id)["destination"].as_str().unwrap().to_owned());
            messages.push(json!({ "role": "assistant", "content": format!("answer {turn}") }));
            messages.push(json!({ "role": "user", "content": format!("and then {turn}") }));
        }
        assert!(own.windows(2).all(|pair| pair[0] == pair[1]), "{own:?}");
        sides.push(own.swap_remove(0));
    }
    let on_canary = sides.iter().filter(|side| *side == "canary").count();
    // Twelve are expected; all on one side happens once in eight million.
    assert!((1..24).contains(&on_canary), "{on_canary}");
}

fn a_rule_in_shadow_is_counted_and_logged_and_does_nothing(driver: Driver) {
    let engine = engine();
    let rules = "    - name: refuse-alice\n      mode: Shadow\n      matches: [{ headers: [{ name: x-user, exact: alice }] }]\n      \
                 deny: { code: not_alice }\n    - name: tried-out\n      mode: Shadow\n      route: {}\n    - name: all\n      route: {}\n";
    let gateway = start(driver, over(&engine, rules), 1);
    assert_eq!(gateway.chat("x-user: alice\r\nx-request-id: alice\r\n", &chat(ALIAS, 1)).status, 200);
    assert_eq!(gateway.chat("x-request-id: bob\r\n", &chat(ALIAS, 1)).status, 200);
    let (alice, bob) = (gateway.log_of("alice"), gateway.log_of("bob"));
    assert_eq!(
        (&alice["rule"], &alice["shadow_rule"], &alice["shadow_error"]),
        (&json!("all"), &json!("refuse-alice"), &json!("not_alice"))
    );
    assert_eq!((&bob["rule"], &bob["shadow_rule"]), (&json!("all"), &json!("tried-out")));
    assert_eq!(bob["shadow_destination"], bob["destination"]);
    gateway.wait_for_metric(
        "kinference_shadow_decisions_total",
        &[r#"rule="refuse-alice""#, r#"error="not_alice""#],
        1.0,
    );
    gateway.wait_for_metric("kinference_shadow_decisions_total", &[r#"rule="tried-out""#, r#"error="""#], 1.0);
}

fn a_refusal_that_names_no_model_holds_for_every_path(driver: Driver) {
    let engine = engine();
    let rules = "    - name: nobody-else\n      matches: [{ tenants: [anonymous], headers: [{ name: x-key, present: false }] }]\n      \
                 deny: { status: 451, code: no_key }\n";
    let gateway = start(driver, over(&engine, rules), 1);
    let refused = get(gateway.address, "/version");
    assert_eq!((refused.status, refused.error_code().as_str()), (451, "no_key"));
    assert_eq!(post(gateway.address, "/v1/chat/completions", "", &chat(ALIAS, 1)).status, 451);
    assert!(model_requests(&engine).is_empty());
    let mut client = Client::connect(gateway.address);
    client.send(request("/v1/chat/completions", "x-key: k\r\n", &chat(ALIAS, 1)));
    assert_eq!(client.answer().status, 200);
}
