//! The public guide's own policies over real engines: which server answers, under which name, and what never leaves.

use engine::step::{Parameters, StepCost};
use engine::{Engine, Settings};
use serde_json::{Value, json};

use crate::support::client::request;
use crate::support::engines::{chat_of, only_request};
use crate::support::{Answer, Client, Driver, Gateway, Setup, chat, eventually, get, model_requests, post, stream};

on_both_drivers![
    alice_is_moved_to_another_model_under_the_name_she_asked_for,
    a_caller_without_a_known_key_is_refused,
    the_overflow_goes_to_providers_in_order_and_personal_data_nowhere,
    simple_prompts_may_use_the_small_model,
    a_rule_may_deny,
    the_faster_of_two_models_answers,
];

const FLEET: &str = include_str!("../../../config/tests/cases/seed-policies/fleet.yaml");
const REDIRECT: &str = include_str!("../../../config/tests/cases/seed-policies/redirect.yaml");
const OVERFLOW: &str = include_str!("../../../config/tests/cases/seed-policies/overflow.yaml");
const COMPLEXITY: &str = include_str!("../../../config/tests/cases/seed-policies/complexity.yaml");
const FASTEST: &str = include_str!("../../../config/tests/cases/seed-policies/fastest-of-two.yaml");

const GEMMA: &str = "google/gemma-4-31b-it";
const QWEN_25: &str = "Qwen/Qwen2.5-72B-Instruct";
const QWEN_36: &str = "Qwen/Qwen3.6-27B";
const GLM: &str = "zai-org/GLM-5.3";
const ALICE: &str = "Authorization: Bearer data\r\n";

fn instant(model: &str) -> Engine {
    engine_of(model, Settings::instant())
}

fn engine_of(model: &str, settings: Settings) -> Engine {
    Engine::start(Settings { models: vec![model.to_owned()], ..settings }).expect("loopback has a free port")
}

/// The documents of the fleet whose every port is mapped to an engine, and the policy.
fn seed(policy: &str, engines: &[(u16, &Engine)]) -> String {
    let mut yaml = String::new();
    for document in FLEET.split("---\n") {
        // One endpoint of each worker set is enough.
        let second = document.find(" }, { address:").map_or(document.len(), |at| at + 2);
        let end = document.find("}]").map_or(document.len(), |at| at + 1);
        let mut document =
            if second < end { document[..second].to_owned() + &document[end..] } else { document.to_owned() };
        for (port, engine) in engines {
            let at = engine.addr().port();
            document = document.replace(&format!("port: {port} "), &format!("port: {at} "));
            document = document.replace(&format!("127.0.0.1:{port}/"), &format!("127.0.0.1:{at}/"));
        }
        if !document.contains("port: 18") && !document.contains("127.0.0.1:18") {
            yaml.push_str(&document);
            yaml.push_str("---\n");
        }
    }
    yaml + policy
}

/// Without tenants: everybody is anonymous.
fn open_to_all(yaml: &str) -> String {
    let documents = yaml.split("---\n").filter(|document| !document.contains("kind: InferenceTenant"));
    documents.collect::<Vec<_>>().join("---\n")
}

fn start(driver: Driver, resources: String, endpoints: usize) -> Gateway {
    let mut setup = Setup::new(resources).ready(endpoints);
    setup.environment = [("TEST_DATABRICKS_TOKEN", "databricks-secret"), ("TEST_BEDROCK_TOKEN", "bedrock-secret")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    setup.start(driver)
}

fn expect_model(answer: &Answer, model: &str) {
    assert_eq!((answer.status, answer.json()["model"].as_str()), (200, Some(model)), "{answer:?}");
}

/// sha256 of "bobs-key".
const BOB: &str = "---\napiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceTenant\nmetadata: { name: bob, namespace: default }\n\
                   spec: { apiKeys: [{ sha256: \"d4dec180a993cd5fa065cac46b9bbfd1528c39080afa14d683a5bc657c453892\" }] }\n";

fn alice_is_moved_to_another_model_under_the_name_she_asked_for(driver: Driver) {
    let (gemma, qwen) = (instant(GEMMA), instant(QWEN_25));
    let gateway = start(driver, seed(REDIRECT, &[(18101, &gemma), (18111, &qwen)]) + BOB, 2);
    expect_model(&gateway.chat(&format!("{ALICE}x-request-id: moved\r\n"), &chat("qwen-2.5", 3)), "qwen-2.5");
    let events = gateway.chat("api-key: data\r\n", &stream("qwen-2.5", 3)).events();
    assert!(
        events[..4].iter().all(|event| serde_json::from_str::<Value>(event).unwrap()["model"] == "qwen-2.5"),
        "{events:?}"
    );
    assert_eq!((model_requests(&gemma).len(), model_requests(&qwen).len()), (2, 0));
    assert!(model_requests(&gemma).iter().all(|request| request.model.as_deref() == Some(GEMMA)));
    assert!(!format!("{:?}", model_requests(&gemma)).contains("Bearer"), "the key stays here");
    let logged = gateway.log_of("moved");
    for (key, value) in [
        ("tenant", "alice"),
        ("rule", "alice-qwen-to-gemma"),
        ("model", "qwen-2.5"),
        ("model_served", GEMMA),
        ("destination", "gemma-4-vllm"),
    ] {
        assert_eq!(logged[key], value, "{logged}");
    }
    // The rule names neither the full name nor other callers.
    expect_model(&gateway.chat(ALICE, &chat(QWEN_25, 3)), QWEN_25);
    expect_model(&gateway.chat("Authorization: Bearer bobs-key\r\n", &chat("qwen-2.5", 3)), "qwen-2.5");
    assert_eq!((model_requests(&gemma).len(), model_requests(&qwen).len()), (2, 2));
    let answer = gateway.chat(ALICE, &chat("llama-9", 3));
    assert_eq!((answer.status, answer.error_code().as_str()), (404, "model_not_found"));
}

fn a_caller_without_a_known_key_is_refused(driver: Driver) {
    let (gemma, qwen) = (instant(GEMMA), instant(QWEN_25));
    let gateway = start(driver, seed(REDIRECT, &[(18101, &gemma), (18111, &qwen)]), 2);
    let mut client = Client::connect(gateway.address);
    for credential in [
        "",
        "Authorization: Bearer Data\r\n",
        "Authorization: Basic data\r\n",
        "x-api-key: dat\r\n",
        "Authorization: data\r\n",
    ] {
        client.send(request("/v1/chat/completions", credential, &chat("qwen-2.5", 3)));
        let answer = client.answer();
        assert_eq!(answer.status, 401, "{credential:?}");
        assert!(!answer.error_code().is_empty());
    }
    assert_eq!(get(gateway.address, "/v1/models").status, 401);
    assert!(model_requests(&gemma).is_empty() && model_requests(&qwen).is_empty());
}

fn the_overflow_goes_to_providers_in_order_and_personal_data_nowhere(driver: Driver) {
    const CARD: &str = "My card is 4111 1111 1111 1111, please refund it";
    // One at a time, for ever.
    let cost = StepCost { base_us: 100_000.0, ..StepCost::NONE };
    let parameters = Parameters { running_max: 1, cost, ..Parameters::default() };
    let local = engine_of(QWEN_36, Settings { parameters, ..Settings::default() });
    let mut databricks = instant("databricks-qwen-3-6");
    let bedrock = instant("qwen.qwen3-6-27b-v1:0");
    let documents = seed(OVERFLOW, &[(18131, &local), (18191, &databricks), (18192, &bedrock)]);
    let documents = open_to_all(&documents).replace("/serving-endpoints", "/v1").replace("/openai/v1", "/v1");
    let gateway = start(driver, documents, 3);
    let send =
        |id: &str, prompt: &str| gateway.chat(&format!("x-request-id: {id}\r\n"), &chat_of("qwen-3.6", prompt, 3, ""));

    expect_model(&send("local", "Hello"), "qwen-3.6");
    assert_eq!(gateway.log_of("local")["destination"], "qwen-3-6-vllm");
    // Others fill the queue.
    let others: Vec<_> = (0..40)
        .map(|_| Client::sending(local.addr(), request("/v1/chat/completions", "", &chat(QWEN_36, 100_000))))
        .collect();
    eventually("the queue has been long for a while", || {
        let belief = gateway.endpoint(local.addr())["belief"].clone();
        (belief["queuedPromptsMean30s"].as_f64()? > 2.0).then_some(())
    });
    let hosted = eventually("the overflow leaves", || {
        let id = format!("overflow-{}", model_requests(&databricks).len() + model_requests(&local).len());
        let mut client = gateway.send_chat(&format!("x-request-id: {id}\r\n"), &chat_of("qwen-3.6", "Hello", 3, ""));
        eventually("it is somewhere", || {
            let requests = [&local, &databricks, &bedrock].map(model_requests);
            requests.iter().flatten().any(|request| request.id == id).then_some(())
        });
        let out = model_requests(&databricks).into_iter().find(|request| request.id == id)?;
        expect_model(&client.answer(), "qwen-3.6");
        Some(out)
    });
    assert_eq!((hosted.path.as_str(), hosted.model.as_deref()), ("/v1/chat/completions", Some("databricks-qwen-3-6")));
    let bearer: Vec<_> = hosted.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("authorization")).collect();
    assert_eq!(bearer, [&("authorization".to_owned(), "Bearer databricks-secret".to_owned())]);
    let logged = gateway.log_of(&hosted.id);
    assert_eq!((&logged["destination"], &logged["rule"]), (&json!("databricks"), &json!("local-then-hosted")));
    assert!(logged["cost"].as_f64().is_some_and(|cost| cost > 0.0), "{logged}");

    let answer = send("personal", CARD);
    assert_eq!((answer.status, answer.error_code().as_str()), (429, "overloaded"));
    assert!(answer.header("retry-after").is_some());
    assert!(answer.text().contains("`busy`") && answer.text().contains("`personal-data-stays`"), "{answer:?}");
    let logged = gateway.log_of("personal");
    assert_eq!(
        (&logged["exclude"], &logged["rule"], &logged["outcome"]),
        (&json!("busy"), &json!("personal-data-stays"), &json!("overloaded"))
    );
    assert!(logged["tags"].to_string().contains("\"pii\""), "{logged}");
    assert!(!logged.to_string().contains("4111"), "{logged}");
    for provider in [&databricks, &bedrock] {
        assert!(model_requests(provider).iter().all(|request| !request.body.contains("4111")));
    }

    assert!(model_requests(&bedrock).is_empty());
    databricks.stop();
    expect_model(&send("second", "Hello"), "qwen-3.6");
    assert_eq!(only_request(&bedrock).model.as_deref(), Some("qwen.qwen3-6-27b-v1:0"));
    assert_eq!(gateway.log_of("second")["destination"], "bedrock");
    drop(others);
}

fn simple_prompts_may_use_the_small_model(driver: Driver) {
    let (large, small) = (instant(GLM), instant(QWEN_36));
    let gateway = start(driver, open_to_all(&seed(COMPLEXITY, &[(18121, &large), (18131, &small)])), 2);
    let send = |id: &str, prompt: &str| {
        expect_model(&gateway.chat(&format!("x-request-id: {id}\r\n"), &chat_of("glm-5.3", prompt, 3, "")), "glm-5.3");
        gateway.log_of(id)
    };
    let mut number = 0;
    eventually("the small model is used", || {
        number += 1;
        let logged = send(&format!("simple-{number}"), &format!("What is {number} plus {number}?"));
        assert_eq!(logged["rule"], "simple-prompts-may-use-the-small-model", "{logged}");
        assert!(logged["tags"].to_string().contains("complexity-low"), "{logged}");
        (!model_requests(&small).is_empty()).then_some(())
    });
    let before = model_requests(&small).len();
    for number in 0..10 {
        let prompt = format!(
            "Prove that every bounded sequence of {number} real variables has a convergent subsequence, compare three proofs step by step, then \
             derive the complexity of a lock-free algorithm in Rust that finds it, analyse its memory ordering and write it with tests."
        );
        let logged = send(&format!("hard-{number}"), &prompt);
        assert!(!logged["tags"].to_string().contains("complexity-low"), "{logged}");
        assert_eq!(logged["model_served"], GLM, "{logged}");
    }
    assert_eq!(model_requests(&small).len(), before);
}

fn a_rule_may_deny(driver: Driver) {
    const POLICY: &str = "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: { name: redirect, namespace: default }\nspec:\n  \
                          rules:\n    - name: no-streams\n      matches: [{ stream: true, model: qwen-* }]\n      \
                          deny: { status: 403, code: no_streams, message: \"Streams are not for you.\" }\n---\n";
    let (gemma, qwen) = (instant(GEMMA), instant(QWEN_25));
    let pool = REDIRECT.split("---\n").find(|document| document.contains("kind: InferencePool")).unwrap();
    let gateway = start(driver, open_to_all(&seed(&format!("{POLICY}{pool}"), &[(18101, &gemma), (18111, &qwen)])), 2);
    let answer = gateway.chat("x-request-id: denied\r\n", &stream("qwen-2.5", 3));
    assert_eq!((answer.status, answer.error_code().as_str()), (403, "no_streams"));
    assert_eq!(answer.json()["error"]["message"], "Streams are not for you.");
    let logged = gateway.log_of("denied");
    assert_eq!((&logged["rule"], &logged["outcome"]), (&json!("no-streams"), &json!("denied")));
    assert_eq!(gateway.chat("", &chat("qwen-2.5", 3)).status, 200);
    assert_eq!(gateway.chat("", &stream("gemma-4", 3)).status, 200);
}

fn the_faster_of_two_models_answers(driver: Driver) {
    let cost = StepCost { base_us: 100_000.0, ..StepCost::NONE };
    let slow = engine_of(
        QWEN_25,
        Settings { parameters: Parameters { cost, ..Parameters::default() }, ..Settings::default() },
    );
    let fast = instant(GEMMA);
    let gateway = start(driver, seed(FASTEST, &[(18101, &fast), (18111, &slow)]), 2);
    for number in 0..40 {
        let answer =
            gateway.chat(ALICE, &chat_of("qwen-2.5", &format!("{number} times hello"), 1, r#","stream":true"#));
        assert_eq!(answer.events().last().unwrap(), "[DONE]");
    }
    let slow_ones = model_requests(&slow).len();
    assert!(slow_ones < 10, "{slow_ones} of 40 went to the slow one");
    // A model that she may not be moved to is not touched.
    assert_eq!(post(gateway.address, "/v1/chat/completions", ALICE, &chat(QWEN_25, 1)).status, 200);
    assert_eq!(model_requests(&slow).len(), slow_ones + 1);
}
