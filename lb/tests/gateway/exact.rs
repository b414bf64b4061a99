//! Exact mode: prompts in the tokens of a worker set's own tokenizer.

use std::fs;
use std::path::{Path, PathBuf};

use engine::{Engine, Settings};
use serde_json::Value;
use tokenizer::{Files, Tokenizer};

use crate::support::engines::{ALIAS, MODEL, chat_of, engine_of, pool, worker_set};
use crate::support::{Driver, Gateway, Setup, engine, eventually};

on_both_drivers![
    prompts_are_counted_in_the_tokens_of_the_template_and_found_again_by_whole_blocks,
    candidates_with_and_without_a_tokenizer_each_have_their_own_count,
    a_tokenizer_that_cannot_be_read_is_told_and_its_prompts_go_by_bytes_until_it_can,
];

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../predictor/tokenizer/tests/data/chatml")
}

/// What the tokenizer itself counts.
fn tokens_of(body: &str) -> u64 {
    let read = |name: &str| fs::read(model().join(name)).unwrap();
    let template = String::from_utf8(read("chat_template.jinja")).unwrap();
    let (tokenizer, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
    let files = Files { tokenizer: &tokenizer, config: Some(&config), chat_template: Some(&template) };
    Tokenizer::new(&files).unwrap().chat(body.as_bytes(), 0).unwrap().ids.len() as u64
}

/// A worker set with a tokenizer.
fn exact_set(name: &str, engines: &[&Engine], file: &Path) -> String {
    let set = worker_set(name, MODEL, ALIAS, engines);
    set.replacen("  model:", &format!("  tokenizer: {{ file: \"{}\" }}\n  model:", file.display()), 1)
}

fn prompts_by(gateway: &Gateway) -> Vec<(Value, String)> {
    let shown = gateway.page("/endpoints").json();
    let sets = shown["tokenizers"].as_array().cloned().unwrap_or_default();
    sets.into_iter().map(|set| (set["promptsBy"].clone(), set["why"].as_str().unwrap_or_default().to_owned())).collect()
}

fn expect_tokens(gateway: &Gateway) {
    eventually("the tokenizer is in force", || {
        (prompts_by(gateway) == [("tokens".into(), String::new())]).then_some(())
    });
}

/// The decision about a request: tokens of the prompt, and of the candidates' overlaps.
fn told(gateway: &Gateway, request_id: &str) -> (u64, Vec<u64>) {
    eventually("the decision is kept", || {
        let answer = gateway.page(&format!("/decisions/{request_id}"));
        let answer = (answer.status == 200).then(|| answer.json())?;
        let decision = &answer["decisions"][0];
        (!decision["result"].is_null()).then_some(())?;
        let overlap = |candidate: &Value| candidate["overlapTokens"].as_u64().unwrap();
        let overlaps = decision["candidates"].as_array()?.iter().map(overlap).collect();
        Some((decision["promptTokens"].as_u64()?, overlaps))
    })
}

/// Asks until the tokens came in time: a busy machine, and this build, may be too slow for a prompt that was never seen. What was
/// begun is remembered. Gives the overlaps of the candidates.
fn exactly(gateway: &Gateway, name: &str, body: &str) -> Vec<u64> {
    let tokens = tokens_of(body);
    let mut asked = 0;
    eventually("the prompt is told exactly", || {
        asked += 1;
        let id = format!("{name}-{asked}");
        assert_eq!(gateway.chat(&format!("x-request-id: {id}\r\n"), body).status, 200);
        let (counted, overlaps) = told(gateway, &id);
        (counted == tokens).then_some(overlaps)
    })
}

fn metric(gateway: &Gateway, line: &str) -> Option<String> {
    let page = gateway.page("/metrics").text();
    page.lines().find_map(|found| found.strip_prefix(line).map(|value| value.trim().to_owned()))
}

fn prompts_are_counted_in_the_tokens_of_the_template_and_found_again_by_whole_blocks(driver: Driver) {
    let engine = engine_of(Settings::instant());
    let resources = exact_set("workers", &[&engine], &model()) + &pool(&["workers"], &[]);
    let gateway = Setup::new(resources).start(driver);
    expect_tokens(&gateway);
    assert_eq!(metric(&gateway, "kinference_tokenizer_in_force{worker_set=\"workers\"}"), Some(String::from("1")));
    // Once the engine's metrics are read, its block size is known.
    eventually("the engine told its blocks", || {
        let shown = gateway.page("/endpoints").json();
        shown["endpoints"][0]["belief"]["kvCapacityTokens"].as_u64()
    });
    let question = "Which endpoint answers a long prompt with many words in it? ".repeat(40);
    let body = chat_of(MODEL, &question, 2, r#","stream":true,"stream_options":{"include_usage":true}"#);
    assert_eq!(exactly(&gateway, "first", &body), [0]);
    let block = 16;
    assert_eq!(exactly(&gateway, "again", &body), [(tokens_of(&body) - 1) / block * block]);
    let counted = metric(&gateway, "kinference_prompts_tokenized_total{outcome=\"exact\"}");
    assert!(counted.is_some_and(|counted| counted.parse::<u64>().unwrap() >= 2));
}

fn candidates_with_and_without_a_tokenizer_each_have_their_own_count(driver: Driver) {
    let (exact, plain) = (engine(), engine());
    let resources = exact_set("exact", &[&exact], &model())
        + &worker_set("plain", MODEL, ALIAS, &[&plain])
        + &pool(&["exact", "plain"], &[]);
    let gateway = Setup::new(resources).ready(2).start(driver);
    expect_tokens(&gateway);
    let question = "A prompt that both of them get to see, one after the other. ".repeat(60);
    let body = chat_of(MODEL, &question, 2, "");
    for turn in 0..4 {
        let overlaps = exactly(&gateway, &format!("turn-{turn}"), &body);
        assert_eq!(overlaps.len(), 2);
        let known = overlaps.iter().any(|&tokens| tokens > 500);
        assert!(turn == 0 || known, "who had it before is known: {overlaps:?}");
    }
}

fn a_tokenizer_that_cannot_be_read_is_told_and_its_prompts_go_by_bytes_until_it_can(driver: Driver) {
    let engine = engine();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokenizer.json");
    fs::write(&file, "{").unwrap();
    let resources = exact_set("workers", &[&engine], &file) + &pool(&["workers"], &[]);
    let gateway = Setup::new(resources).start(driver);
    eventually("it is told why", || {
        let told = prompts_by(&gateway);
        let (by, why) = told.first()?;
        (*by == "bytes" && why.contains("spec.tokenizer.file: ") && why.contains("tokenizer.json")).then_some(())
    });
    assert_eq!(metric(&gateway, "kinference_tokenizer_in_force{worker_set=\"workers\"}"), Some(String::from("0")));
    let body = chat_of(MODEL, "Hello?", 2, "");
    assert_eq!(gateway.chat("", &body).status, 200);
    assert_eq!(metric(&gateway, "kinference_prompts_tokenized_total{outcome=\"exact\"}"), None);
    for name in ["tokenizer_config.json", "chat_template.jinja", "tokenizer.json"] {
        fs::copy(model().join(name), folder.path().join(name)).unwrap();
    }
    expect_tokens(&gateway);
    // A broken state later changes nothing but what is told.
    fs::write(&file, "{}").unwrap();
    eventually("the refusal is told", || {
        let told = prompts_by(&gateway);
        let (by, why) = told.first()?;
        (*by == "tokens" && !why.is_empty()).then_some(())
    });
    exactly(&gateway, "still", &body);
}
