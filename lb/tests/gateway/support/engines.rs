//! Engines, the documents that name them, and the requests they take.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use engine::fault::{Rule, parse_list};
use engine::step::{Parameters, StepCost};
use engine::{Engine, RequestRecord, Settings};

use super::{PATIENCE, eventually};

/// The name of the model that engines of these tests serve.
pub(crate) const MODEL: &str = "org/tiny-1";
/// Another name for it, known to the gateway alone.
pub(crate) const ALIAS: &str = "tiny";

/// An engine that answers as fast as it can.
pub(crate) fn engine() -> Engine {
    engine_of(Settings::instant())
}

/// An engine that needs so long for each token.
pub(crate) fn slow_engine(token_ms: u32) -> Engine {
    let cost = StepCost { base_us: f64::from(token_ms) * 1e3, ..StepCost::NONE };
    engine_of(Settings { parameters: Parameters { cost, ..Parameters::default() }, ..Settings::default() })
}

/// An engine with other settings; it serves [`MODEL`].
pub(crate) fn engine_of(settings: Settings) -> Engine {
    Engine::start(Settings { models: vec![MODEL.to_owned()], ..settings }).expect("loopback has a free port")
}

/// An address of this host that nobody else is at: what was bound there and is no longer stays free, as no client connects from
/// there and nobody else takes a port.
pub(crate) fn own_host() -> Ipv4Addr {
    static TAKEN: AtomicU8 = AtomicU8::new(0);
    Ipv4Addr::new(127, 0, 1, TAKEN.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
}

/// An engine that can be stopped and started again at its address, as fast as it can or needing so long for each token.
pub(crate) fn engine_at_own_host(token_ms: u32) -> Engine {
    let cost = StepCost { base_us: f64::from(token_ms) * 1e3, ..StepCost::NONE };
    let parameters = Parameters { cost, ..Parameters::default() };
    engine_of(Settings { parameters, listen: (own_host(), 0).into(), ..Settings::default() })
}

/// Stops the engine and starts another one at the same address.
pub(crate) fn restart(engine: &mut Engine, settings: &Settings) {
    let listen = engine.addr();
    engine.stop();
    *engine = eventually("the address is free again", || {
        Engine::start(Settings { models: vec![MODEL.to_owned()], listen, ..settings.clone() }).ok()
    });
}

/// From now on every request to the model gets these faults.
pub(crate) fn break_down(engine: &Engine, faults: &str) {
    engine.rule(Rule { faults: parse_list(faults).unwrap(), path: None, requests: None });
}

/// The next request to the model gets these faults.
pub(crate) fn break_once(engine: &Engine, faults: &str) {
    engine.rule(Rule { faults: parse_list(faults).unwrap(), path: None, requests: Some(1) });
}

/// No more faults.
pub(crate) fn repair(engine: &Engine) {
    engine.rule(Rule::default());
}

/// What the engine got besides questions about its health and metrics.
pub(crate) fn model_requests(engine: &Engine) -> Vec<RequestRecord> {
    engine.requests().into_iter().filter(|request| request.method == "POST").collect()
}

/// The only request that the engine got.
pub(crate) fn only_request(engine: &Engine) -> RequestRecord {
    let mut requests = model_requests(engine);
    assert_eq!(requests.len(), 1, "{requests:#?}");
    requests.remove(0)
}

/// Waits until the engine has nothing to do.
pub(crate) fn expect_idle(engine: &Engine) {
    let idle = engine.wait_until(PATIENCE, |stats| stats.running + stats.waiting == 0);
    idle.unwrap_or_else(|stats| panic!("the engine still works: {stats:?}"));
}

/// A worker set of engines.
pub(crate) fn worker_set(name: &str, model: &str, alias: &str, engines: &[&Engine]) -> String {
    let addresses: Vec<_> = engines.iter().map(|engine| engine.addr()).collect();
    worker_set_at(name, model, alias, &addresses)
}

/// A worker set of whatever listens there.
pub(crate) fn worker_set_at(name: &str, model: &str, alias: &str, addresses: &[SocketAddr]) -> String {
    let mut yaml = format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceWorkerSet\nmetadata: {{ name: {name}, namespace: default }}\nspec:\n  \
         model: {{ name: {model}, aliases: [{alias}] }}\n  metrics: {{ interval: 100ms }}\n  endpoints:\n"
    );
    for address in addresses {
        writeln!(yaml, "    - {{ address: {}, port: {} }}", address.ip(), address.port()).unwrap();
    }
    yaml + "---\n"
}

/// A pool of worker sets, with policies.
pub(crate) fn pool(worker_sets: &[&str], policies: &[&str]) -> String {
    let mut yaml = String::from(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePool\nmetadata: { name: pool, namespace: default }\nspec:\n  destinations:\n",
    );
    for name in worker_sets {
        writeln!(yaml, "    - {{ kind: InferenceWorkerSet, name: {name} }}").unwrap();
    }
    if !policies.is_empty() {
        writeln!(yaml, "  policyRef:").unwrap();
    }
    for name in policies {
        writeln!(yaml, "    - name: {name}").unwrap();
    }
    yaml + "---\n"
}

/// One worker set of all engines, in one pool.
pub(crate) fn fleet(engines: &[&Engine]) -> String {
    worker_set("workers", MODEL, ALIAS, engines) + &pool(&["workers"], &[])
}

/// Body of a chat that is answered as a whole.
pub(crate) fn chat(model: &str, output_tokens: u32) -> String {
    chat_of(model, "Say hello.", output_tokens, "")
}

/// Body of a chat that is answered in a stream.
pub(crate) fn stream(model: &str, output_tokens: u32) -> String {
    chat_of(model, "Say hello.", output_tokens, r#","stream":true"#)
}

/// Body of a chat; `more` are further members.
pub(crate) fn chat_of(model: &str, prompt: &str, output_tokens: u32, more: &str) -> String {
    let prompt = serde_json::Value::from(prompt);
    format!(
        r#"{{"model":"{model}","messages":[{{"role":"user","content":{prompt}}}],"max_tokens":{output_tokens}{more}}}"#
    )
}
