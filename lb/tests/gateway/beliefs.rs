//! What is believed of engines is told at `/endpoints`, and what goes wrong with it is told and survived.

use engine::Settings;
use engine::step::{Parameters, StepCost};
use serde_json::Value;

use crate::support::engines::{ALIAS, MODEL, engine_of, fleet, pool, stream, worker_set_at};
use crate::support::scripted::{Metrics, Scripted, Then, document};
use crate::support::{Driver, Gateway, Setup, eventually};

on_both_drivers![
    metrics_under_other_names_are_known,
    a_scrape_that_hangs_is_told_and_requests_go_on,
    an_engine_that_is_slower_than_its_kind_is_told_and_spared,
];

const ANSWER: &str = r#"{"id":"c","object":"chat.completion","model":"org/tiny-1","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;

fn over(driver: Driver, server: &Scripted) -> Gateway {
    let resources = worker_set_at("workers", MODEL, ALIAS, &[server.address]) + &pool(&["workers"], &[]);
    Setup::new(resources).start(driver)
}

fn believed(gateway: &Gateway, server: &Scripted, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || Some(gateway.endpoint(server.address)).filter(&holds))
}

fn metrics_under_other_names_are_known(driver: Driver) {
    const PAGES: [&str; 3] = [
        "sglang:num_running_reqs{model_name=\"m\"} 2\nsglang:num_queue_reqs{model_name=\"m\"} 5\nsglang:token_usage{model_name=\"m\"} 0.5\n",
        "trtllm_num_requests_running{model_name=\"m\"} 2\ntrtllm_num_requests_waiting{model_name=\"m\"} 5\ntrtllm_kv_cache_utilization 0.5\n",
        "nv_trt_llm_request_metrics{request_type=\"waiting\"} 5\nnv_trt_llm_request_metrics{request_type=\"scheduled\"} 2\n\
         nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.5\n",
    ];
    for page in PAGES {
        let server = Scripted::with_metrics(document(ANSWER), Then::Keep, Metrics::Page(page));
        let gateway = over(driver, &server);
        let endpoint = believed(&gateway, &server, page, |endpoint| endpoint["belief"]["queuedPromptsNow"] == 5.0);
        let belief = &endpoint["belief"];
        assert_eq!(
            (&belief["runningPrompts"], &belief["kvCacheUsage"]),
            (&Value::from(2.0), &Value::from(0.5)),
            "{page}"
        );
    }
}

fn a_scrape_that_hangs_is_told_and_requests_go_on(driver: Driver) {
    let server = Scripted::with_metrics(document(ANSWER), Then::Keep, Metrics::Hang);
    let gateway = over(driver, &server);
    let endpoint = believed(&gateway, &server, "the scrape's error", |endpoint| endpoint["scrapeError"].is_string());
    assert_eq!(endpoint["readiness"], "ready", "{endpoint}");
    assert_eq!(
        (&endpoint["scrapeAgeSeconds"], &endpoint["belief"]["kvCacheUsage"]),
        (&Value::Null, &Value::Null),
        "{endpoint}"
    );
    for _ in 0..5 {
        assert_eq!(gateway.chat("", &crate::support::engines::chat(ALIAS, 1)).status, 200);
    }
    assert_eq!(gateway.endpoint(server.address)["belief"]["queuedPromptsNow"], 0.0, "own pending alone counts");
}

fn an_engine_that_is_slower_than_its_kind_is_told_and_spared(driver: Driver) {
    const REQUESTS_MAX: usize = 600;
    let paced = |base_us| {
        let cost = StepCost { base_us, ..StepCost::NONE };
        engine_of(Settings { parameters: Parameters { cost, ..Parameters::default() }, ..Settings::default() })
    };
    let (fast, slow) = (paced(4_000.0), paced(16_000.0));
    let gateway = Setup::new(fleet(&[&fast, &slow])).ready(2).start(driver);
    let slowness = |engine: &engine::Engine| gateway.endpoint(engine.addr())["belief"]["slowness"].as_f64();
    let told = (0..REQUESTS_MAX).find(|number| {
        let body = stream(ALIAS, 1).replace("Say hello.", &format!("{number} says hello."));
        assert_eq!(gateway.chat("", &body).status, 200);
        slowness(&fast).zip(slowness(&slow)).is_some_and(|(fast, slow)| slow > 1.2 * fast)
    });
    assert!(told.is_some(), "{:?} and {:?}", slowness(&fast), slowness(&slow));
    let sent = |engine: &engine::Engine| crate::support::engines::model_requests(engine).len();
    assert!(sent(&slow) < sent(&fast), "{} and {}", sent(&slow), sent(&fast));
}
