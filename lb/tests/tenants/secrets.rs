//! Secrets and prompts are told to nobody who need not know them: everything that the process writes and serves is searched for
//! marks that were put into keys, tokens, credentials, private keys and prompts, on good ways, on bad ones and over changes.

use std::fs;
use std::sync::Arc;

use crate::issuer::{ISSUER, SigningKey, key_set};
use crate::listener::{HOST, connect, trusting, with_client_certificates};
use crate::pki::Authority;
use crate::support::client::request;
use crate::support::engines::{ALIAS, MODEL, worker_set};
use crate::support::{Driver, Setup, engine, eventually, fleet, model_requests};
use crate::tenant;

on_both_drivers![no_secret_and_no_prompt_is_ever_told, a_key_that_cannot_be_read_is_told_by_what_it_is_missed_for,];

const KEY: &str = "MARK-api-key-5f1c";
const WRONG_KEY: &str = "MARK-wrong-key-91ab";
const CREDENTIAL: &str = "MARK-credential-77d0";
const PROMPT: &str = "MARK-prompt-c0ffee";
const SUBJECT: &str = "MARK-subject-0b0e";
/// Written where the name or the hash of a secret belongs.
const MISPLACED: [&str; 4] = ["MARK-misplaced-a1", "MARK-misplaced-b2", "MARK-misplaced-c3", "MARK-misplaced-d4"];

fn documents(engine: &engine::Engine, more: &str) -> String {
    let head = |kind: &str, name: &str| {
        format!(
            "apiVersion: kinference.buoyant.io/v1alpha1\nkind: {kind}\nmetadata: {{ name: {name}, namespace: default }}\n"
        )
    };
    worker_set("workers", MODEL, ALIAS, &[engine])
        + &head("InferenceProvider", "hosted")
        + &format!(
            "spec:\n  type: OpenAI\n  baseURL: http://{}\n  auth: {{ bearer: {{ fromEnv: MARKED_CREDENTIAL }} }}\n  \
             models: [{{ name: hosted, upstreamName: {MODEL} }}]\n---\n",
            engine.addr()
        )
        + &head("InferencePolicy", "away")
        + "spec: { rules: [{ name: away, matches: [{ model: hosted }], route: { select: [{ type: External }] } }] }\n---\n"
        + &head("InferencePool", "pool")
        + "spec:\n  destinations: [{ kind: InferenceWorkerSet, name: workers }, { kind: InferenceProvider, name: hosted }]\n  \
           policyRef: [{ name: away }]\n---\n"
        + &tenant("alice", "apiKeys: [{ fromFile: ../alice.key }], limits: { requestsPerMinute: 100 }")
        + &tenant("bob", &format!("jwt: {{ issuer: \"{ISSUER}\", equals: bob, jwksFile: ../jwks.json }}"))
        + more
}

fn body(model: &str, more: &str) -> String {
    format!(
        r#"{{"model":"{model}","messages":[{{"role":"user","content":"{PROMPT} says hello"}}],"max_tokens":6{more}}}"#
    )
}

fn no_secret_and_no_prompt_is_ever_told(driver: Driver) {
    let (engine, issuer) = (engine(), SigningKey::new("k"));
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let (server_leaf, client_leaf) = (servers.issue(&[HOST]), clients.issue(&["nobody.example.com"]));
    let mut setup = Setup::new(documents(&engine, ""));
    setup.files.push(("alice.key".into(), format!("{KEY}\n")));
    setup.files.push(("jwks.json".into(), key_set(&[&issuer])));
    setup.environment.push(("MARKED_CREDENTIAL".into(), CREDENTIAL.into()));
    let mut gateway = with_client_certificates(setup, &server_leaf, &clients).start(driver);
    let trust = Arc::new(trusting(&servers, Some(&client_leaf)));
    let address = gateway.address;
    let ask = |key: &str, headers: &str, body: &str| {
        let mut client = connect(address, &trust).unwrap();
        let headers = format!("Authorization: Bearer {key}\r\n{headers}");
        client.send(request("/v1/chat/completions", &headers, body));
        client
    };
    let (good_token, stranger) = (issuer.token("bob"), issuer.token(SUBJECT));
    let mut answers = Vec::new();

    // Good ways.
    for (key, model, more) in
        [(KEY, MODEL, ""), (KEY, ALIAS, r#","stream":true"#), (&good_token, MODEL, ""), (KEY, "hosted", "")]
    {
        let answer = ask(key, "", &body(model, more)).answer();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let sent = model_requests(&engine);
    let credentials: Vec<&str> = sent
        .iter()
        .flat_map(|request| &request.headers)
        .filter(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(credentials, [format!("Bearer {CREDENTIAL}")], "the provider's alone, and no client's");

    // Bad ways: unknown callers, bodies that are none, engines that fail, answers that break off, clients that leave.
    for (key, headers, body, status) in [
        (WRONG_KEY, "", body(MODEL, ""), 401),
        (&stranger, "", body(MODEL, ""), 401),
        (KEY, "", format!("{{\"messages\":\"{PROMPT}"), 400),
        (KEY, "", format!("{{\"messages\":\"{PROMPT}\"}}"), 400),
        (KEY, "", body("unknown", ""), 404),
        (KEY, "x-fault: status=500\r\n", body(MODEL, ""), 500),
        (KEY, "x-fault: reset-before-head\r\n", body(MODEL, ""), 502),
    ] {
        let answer = ask(key, headers, &body).answer();
        assert_eq!(answer.status, status, "{answer:?}");
        answers.push(format!("{answer:?} {}", answer.text()));
    }
    let ready = || gateway.wait_for_readiness(engine.addr(), "ready");
    ready();
    let cut = ask(KEY, "x-fault: reset-mid-stream=3\r\n", &body(MODEL, r#","stream":true"#)).answer();
    assert!(cut.text().contains("upstream_reset"), "{cut:?}");
    ready();
    let mut leaves = ask(KEY, "x-fault: hang-mid-stream=2\r\n", &body(MODEL, r#","stream":true"#));
    leaves.head();
    drop(leaves);
    gateway.wait_for_metric("kinference_requests_total", &["outcome=\"client_gone\""], 1.0);

    // Changes: a new key, documents with secrets where they do not belong, keys of an issuer that are none.
    fs::write(gateway.resource("../alice.key"), format!("{KEY}-new\n")).unwrap();
    gateway.write_resources(&documents(&engine, "# changed\n"));
    eventually("the new key is in force", || {
        let answer = ask(&format!("{KEY}-new"), "", &body(MODEL, "")).answer();
        (answer.status == 200).then_some(())
    });
    assert_eq!(ask(KEY, "", &body(MODEL, "")).answer().status, 401);
    let [a, b, c, d] = MISPLACED;
    let broken = tenant("carol", &format!("apiKeys: [{{ sha256: {a} }}, {b}]"))
        + &tenant("dave", &format!("apiKeys: {c}"))
        + &worker_set("more", "m", "n", &[&engine]).replace("spec:\n", &format!("spec:\n  auth: {{ bearer: {d} }}\n"));
    gateway.write_resources(&documents(&engine, &broken));
    gateway.wait_for_metric("kinference_config_refusals_total", &[], 1.0);
    fs::write(gateway.resource("../jwks.json"), format!("{{ \"{SUBJECT}\"")).unwrap();
    gateway.wait_for_line(&["keys of an issuer cannot be read"]);

    // Everything that was served and written, to the end of the process.
    let mut told = answers;
    for page in ["/", "/metrics", "/config", "/decisions", "/endpoints", "/readyz", "/healthz"] {
        let answer = gateway.page(page);
        assert!(!answer.body.is_empty(), "{page}");
        told.push(format!("{page}: {}", answer.text()));
    }
    assert!(told.iter().any(|page| page.contains("is no hash")), "the findings are told");
    gateway.signal("TERM");
    gateway.wait();
    told.extend(gateway.said());
    told.extend(gateway.printed());
    let log = fs::read_to_string(gateway.resource("../access.log")).unwrap();
    assert!(log.lines().count() >= 13, "{log}");
    told.push(log);

    expect_no_mark(&told, &[good_token, stranger], &[server_leaf.key_pem(), client_leaf.key_pem()]);
}

/// Nothing that was told holds a mark, a signature of a token, or a line of a private key.
fn expect_no_mark(told: &[String], tokens: &[String], private_keys: &[String]) {
    let key_lines =
        private_keys.iter().flat_map(|pem| pem.lines()).filter(|line| line.len() > 20 && !line.starts_with('-'));
    let signatures = tokens.iter().filter_map(|token| Some(token.rsplit_once('.')?.1));
    for mark in ["MARK-"].into_iter().chain(signatures).chain(key_lines) {
        for text in told {
            assert!(!text.contains(mark), "{mark} is in {text}");
        }
    }
}

fn a_key_that_cannot_be_read_is_told_by_what_it_is_missed_for(driver: Driver) {
    let engine = engine();
    let tenants = tenant("alice", "apiKeys: [{ fromFile: ../absent.key }]");
    let gateway = Setup::new(fleet(&[&engine]) + &tenants).start(driver);
    let line = gateway.wait_for_line(&["K0107", "absent.key", "nobody is known by this key"]);
    assert!(!line.contains("destination"), "{line}");
}
