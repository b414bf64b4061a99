//! Resources from an API server: pods are endpoints for as long as they take work, and clients see nothing of what happens
//! to the server.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use apiserver::{ApiServer, Options, Seen};
use crds::Kind;
use engine::step::{Parameters, StepCost};
use engine::{Engine, Settings};
use serde_json::{Value, json};

use crate::config_reload::Load;
use crate::support::engines::{ALIAS, MODEL, expect_idle, own_host};
use crate::support::{Client, Driver, Setup, chat, eventually, model_requests, stream};

on_both_drivers![
    unplugging_the_api_server_changes_nothing_for_clients,
    a_pod_that_is_deleted_gets_no_new_work_and_finishes_what_it_has,
    a_gateway_that_starts_without_an_api_server_waits_for_it,
    an_api_server_that_never_answers_is_told_of_by_its_address,
    a_gateway_without_definitions_says_what_to_do_and_goes_on_once_it_is_done,
];

/// An API server with our definitions, and engines that are pods.
struct World {
    server: ApiServer,
    engines: Vec<Engine>,
}

impl World {
    /// Engines that need so long for each token, all on one port, none of them a pod yet.
    fn new(engines: u8, token_ms: u32) -> Self {
        // Where it can be stopped and started again.
        let server = ApiServer::start(Options { address: (own_host(), 0).into(), ..Options::default() }).unwrap();
        for kind in Kind::CUSTOM_RESOURCES {
            server.create(&crds::schema::crd::definition(kind).unwrap()).unwrap();
        }
        let cost = StepCost { base_us: f64::from(token_ms) * 1e3, ..StepCost::NONE };
        let settings = Settings {
            models: vec![MODEL.to_owned()],
            parameters: Parameters { cost, ..Parameters::default() },
            ..Settings::default()
        };
        let start = |listen: SocketAddr| Engine::start(Settings { listen, ..settings.clone() });
        let address = |number: u8, port: u16| SocketAddr::from((Ipv4Addr::new(127, 0, 0, number + 2), port));
        // The port that the first one gets may be taken at the next address.
        let engines = eventually("a port that is free at all addresses", || {
            let first = start(address(0, 0)).ok()?;
            let port = first.addr().port();
            let others = (1..engines).map(|number| start(address(number, port)).ok()).collect::<Vec<_>>();
            std::iter::once(Some(first)).chain(others).collect::<Option<Vec<Engine>>>()
        });
        Self { server, engines }
    }

    /// The worker set of the pods and its pool.
    fn create_resources(&self) {
        let spec = json!({
            "model": { "name": MODEL, "aliases": [ALIAS] }, "port": self.engines[0].addr().port(),
            "selector": { "matchLabels": { "app": "vllm" } }, "metrics": { "interval": "100ms" },
        });
        self.server.create(&object("InferenceWorkerSet", "workers", spec)).unwrap();
        let spec = json!({ "destinations": [{ "kind": "InferenceWorkerSet", "name": "workers" }] });
        self.server.create(&object("InferencePool", "pool", spec)).unwrap();
    }

    /// Makes an engine a pod that is ready.
    fn run_pod(&self, number: usize) {
        let pod = self.pod(number);
        self.server.create(&pod).unwrap();
        self.server.replace_status(&pod).unwrap();
    }

    fn pod(&self, number: usize) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("vllm-{number}"), "namespace": "default", "labels": { "app": "vllm" } },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "vllm", "image": "vllm" }] },
            "status": {
                "phase": "Running", "podIP": self.engines[number].addr().ip().to_string(),
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        })
    }

    fn gateway(&self) -> Setup {
        Setup::over_cluster(self.server.kubeconfig())
    }
}

#[allow(clippy::needless_pass_by_value, reason = "objects are written where they are used")]
fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": crds::API_VERSION, "kind": kind, "metadata": { "name": name, "namespace": "default" }, "spec": spec,
    })
}

fn unplugging_the_api_server_changes_nothing_for_clients(driver: Driver) {
    let mut world = World::new(2, 1);
    world.create_resources();
    world.run_pod(0);
    world.run_pod(1);
    let gateway = world.gateway().ready(2).start(driver);
    gateway.wait_for_metric("kinference_kubernetes_connected", &[], 1.0);
    let load = Load::start(&gateway, 4);
    world.server.stop();
    gateway.wait_for_line(&["the API server does not answer", "refused"]);
    gateway.wait_for_metric("kinference_kubernetes_connected", &[], 0.0);
    assert!(gateway.metric("kinference_kubernetes_away_since_seconds", &[]) > 1.7e9);
    let answered = || gateway.metric("kinference_requests_total", &[]);
    let before = answered();
    eventually("requests go on", || (answered() > before + 50.0).then_some(()));
    let ready = gateway.page("/readyz");
    assert_eq!((ready.status, ready.json()["endpointsReady"].as_u64()), (200, Some(2)));
    assert_eq!(gateway.config()["kubernetes"]["connected"], false);
    world.server.resume().unwrap();
    gateway.wait_for_line(&["the API server answers again"]);
    gateway.wait_for_metric("kinference_kubernetes_connected", &[], 1.0);
    load.finish();
    assert_eq!(gateway.config()["generation"], 1);
}

fn a_pod_that_is_deleted_gets_no_new_work_and_finishes_what_it_has(driver: Driver) {
    let world = World::new(2, 20);
    world.create_resources();
    world.run_pod(0);
    let gateway = world.gateway().ready(1).start(driver);
    let leaving = world.engines[0].addr();
    let long = Client::sending(
        gateway.address,
        crate::support::client::request("/v1/chat/completions", "", &stream(ALIAS, 100)),
    );
    eventually("the long one has begun", || (model_requests(&world.engines[0]).len() == 1).then_some(()));
    world.run_pod(1);
    gateway.wait_for_readiness(world.engines[1].addr(), "ready");

    world.server.terminate(&world.pod(0)).unwrap();
    gateway.wait_for_readiness(leaving, "not_ready");
    assert_eq!(gateway.endpoint(leaving)["why"], "the pod is being deleted");
    for _ in 0..6 {
        assert_eq!(gateway.chat("", &chat(ALIAS, 1)).status, 200);
    }
    assert_eq!((model_requests(&world.engines[0]).len(), model_requests(&world.engines[1]).len()), (1, 6));
    let mut long = long;
    let answer = long.answer();
    assert_eq!((answer.status, answer.events().last().map(String::as_str)), (200, Some("[DONE]")));
    expect_idle(&world.engines[0]);

    world.server.delete(&world.pod(0)).unwrap();
    gateway.wait_for_line(&["endpoint removed", "vllm-0"]);
    assert_eq!(gateway.chat("", &chat(ALIAS, 1)).status, 200);
    gateway.expect_nothing_in_flight();
}

fn a_gateway_that_starts_without_an_api_server_waits_for_it(driver: Driver) {
    let mut world = World::new(1, 0);
    world.create_resources();
    world.run_pod(0);
    world.server.stop();
    let gateway = world.gateway().ready(0).start(driver);
    gateway.wait_for_line(&["the API server does not answer", "refused"]);
    let ready = gateway.page("/readyz");
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json()["reasons"][0], "no configuration is in force yet");
    world.server.resume().unwrap();
    gateway.wait_for_endpoints(1);
    assert_eq!(gateway.chat("", &chat(ALIAS, 1)).status, 200);
    let resource = format!("inferenceworkersets.{}", crds::GROUP);
    let counted = world.server.wait(&resource, "default", "workers", |object| object["status"]["readyEndpoints"] == 1);
    assert!(counted.is_some());
}

fn an_api_server_that_never_answers_is_told_of_by_its_address(driver: Driver) {
    let server = ApiServer::start(Options::default()).unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let kubeconfig = server.kubeconfig().replace(&server.address().to_string(), &address);
    let gateway = Setup::over_cluster(kubeconfig).ready(0).start(driver);
    gateway.wait_for_line(&["nothing is in force yet", &address, "has not answered"]);
    let ready = gateway.page("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.json()["reasons"][1].as_str().is_some_and(|reason| reason.contains(&address)), "{}", ready.json());
}

fn a_gateway_without_definitions_says_what_to_do_and_goes_on_once_it_is_done(driver: Driver) {
    let server = ApiServer::start(Options::default()).unwrap();
    let gateway = Setup::over_cluster(server.kubeconfig()).ready(0).start(driver);
    let way_out = "kinfctl schema --crds | kubectl apply";
    gateway.wait_for_line(&["nothing is in force yet", "not installed", way_out]);
    let ready = gateway.page("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.json()["reasons"][1].as_str().is_some_and(|reason| reason.contains(way_out)), "{}", ready.json());
    for kind in Kind::CUSTOM_RESOURCES {
        server.create(&crds::schema::crd::definition(kind).unwrap()).unwrap();
    }
    gateway.wait_for_line(&["configuration in force"]);
    assert_eq!(gateway.page("/readyz").json()["reasons"][0], "no endpoint is ready");
}

// ---- kubectl ----

/// kubectl with files of its own; `None` where there is none.
struct Kubectl {
    folder: tempfile::TempDir,
}

impl Kubectl {
    fn new(server: &ApiServer) -> Option<Self> {
        if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
            // Past the test runner, which shows nothing of a test that passes.
            let _ = writeln!(std::io::stderr(), "passed over: there is no kubectl (Debian: kubernetes-client)");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config"), server.kubeconfig()).unwrap();
        Some(Self { folder })
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("kubectl");
        command.env("KUBECONFIG", self.folder.path().join("config")).env("HOME", self.folder.path());
        command.args(arguments).output().unwrap()
    }

    /// What it prints when all is well.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Writes a file and applies it.
    fn apply(&self, yaml: &str) -> String {
        self.run(&["apply", "-f", &self.file(yaml)])
    }

    fn file(&self, yaml: &str) -> String {
        let path = self.folder.path().join("applied.yaml");
        std::fs::write(&path, yaml).unwrap();
        path.to_string_lossy().into_owned()
    }
}

/// The tenant's key.
const KEY: &str = "alice's own";

fn sha256(text: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn six_kinds(engine: SocketAddr, alias: &str) -> String {
    let version = crds::API_VERSION;
    let document = |kind: &str, name: &str, spec: &str| {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{ name: {name} }}\nspec: {spec}\n---\n")
    };
    let workers = format!(
        "{{ model: {{ name: {MODEL}, aliases: [{alias}] }}, endpoints: [{{ address: {} }}], port: {}, metrics: {{ interval: 100ms }} }}",
        engine.ip(),
        engine.port()
    );
    [
        document("InferenceWorkerSet", "workers", &workers),
        document(
            "InferenceProvider",
            "hosted",
            "{ type: OpenAI, baseURL: \"http://127.0.0.1:9/v1\", models: [{ name: big }] }",
        ),
        document("InferenceClassifier", "words", "{ type: Keywords, tags: [{ tag: greeting, any: [hello] }] }"),
        document("InferenceTenant", "alice", &format!("{{ apiKeys: [{{ sha256: {:?} }}] }}", sha256(KEY))),
        document("InferencePolicy", "local", "{ rules: [{ name: here, route: { select: [{ type: Local }] } }] }"),
        document(
            "InferencePool",
            "pool",
            "{ destinations: [{ kind: InferenceWorkerSet, name: workers }], policyRef: [{ name: local }] }",
        ),
    ]
    .concat()
}

#[test]
fn with_kubectl_six_kinds_are_applied_changed_and_deleted_and_their_statuses_read_back() {
    let server = ApiServer::start(Options::default()).unwrap();
    let Some(kubectl) = Kubectl::new(&server) else { return };
    let definitions: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("crds/yaml");
    kubectl.run(&["apply", "-f", &definitions.to_string_lossy()]);
    let engine = crate::support::engine();
    let gateway = Setup::over_cluster(server.kubeconfig()).ready(0).start(Driver::Epoll);
    eventually("something is in force", || gateway.config()["generation"].as_u64());
    let key = format!("authorization: Bearer {KEY}\r\n");
    let status = |model: &str| gateway.chat(&key, &chat(model, 1)).status;
    // Nothing of ours is ever listed again: what has its effect was told by a watch, at once.
    let lists = || {
        let ours =
            |seen: &Seen| seen.verb == "list" && seen.namespace.is_empty() && seen.resource.starts_with("inference");
        server.seen().iter().filter(|seen| ours(seen)).count()
    };
    let listed = lists();
    let told = |what: &str, mut so: Box<dyn FnMut() -> bool + '_>| {
        eventually(what, || so().then_some(()));
        assert_eq!(lists(), listed, "{what}");
    };

    let applied = kubectl.apply(&six_kinds(engine.addr(), ALIAS));
    assert_eq!(applied.lines().filter(|line| line.ends_with(" created")).count(), 6, "{applied}");
    told(
        "what was applied is in force",
        Box::new(|| gateway.config()["pools"][0]["models"].to_string().contains(ALIAS)),
    );
    gateway.wait_for_readiness(engine.addr(), "ready");
    assert_eq!(status(ALIAS), 200);

    kubectl.apply(&six_kinds(engine.addr(), "renamed"));
    told("what was changed is in force", Box::new(|| status(ALIAS) == 404 && status("renamed") == 200));

    for (kind, name) in
        [("iws", "workers"), ("iprov", "hosted"), ("icls", "words"), ("iten", "alice"), ("ipol", "local")]
            .into_iter()
            .chain([("ipool", "pool")])
    {
        let column = || kubectl.run(&["get", kind, name, "--no-headers"]);
        eventually(&format!("{kind} is accepted"), || column().contains("True").then_some(()));
    }
    let table = eventually("the endpoint is counted", || {
        let table = kubectl.run(&["get", "iws"]);
        table
            .contains(MODEL)
            .then(|| table.lines().nth(1).map(|row| row.split_whitespace().nth(3) == Some("1")))??
            .then_some(table)
    });
    assert!(table.starts_with("NAME") && table.contains("READY"), "{table}");

    // In by the schema, refused by the gateway: told in the status and as an Event.
    let broken = six_kinds(engine.addr(), "same, same");
    kubectl.apply(&broken);
    let described = eventually("describe shows why", || {
        let text = kubectl.run(&["describe", "iws", "workers"]);
        (text.contains("stays in force") && text.contains("Refused")).then_some(text)
    });
    assert!(described.contains("the name `same` is taken by"), "{described}");
    assert_eq!(status("renamed"), 200, "the last good version stays");

    let refused =
        kubectl.output(&["apply", "-f", &kubectl.file(&six_kinds(engine.addr(), ALIAS).replace("port: ", "prt: "))]);
    assert!(!refused.status.success());
    // By the server, or by an older kubectl itself.
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("unknown field") && said.contains("prt\""), "{said}");

    // Another manager of fields is told of what it would overwrite, and statuses that are written meanwhile are no conflict.
    let elsewhere = six_kinds(engine.addr(), "elsewhere");
    let server_side = ["apply", "--server-side", "--field-manager=pipeline", "-f"];
    let conflict = kubectl.output(&[&server_side[..], &[&kubectl.file(&elsewhere)]].concat());
    let said = String::from_utf8_lossy(&conflict.stderr);
    assert!(!conflict.status.success() && said.contains("conflict with \"kubectl-client-side-apply\""), "{said}");
    let force = ["--force-conflicts"];
    kubectl.run(&[&server_side[..], &[&kubectl.file(&elsewhere)], &force].concat());
    told("what was applied on the server's side is in force", Box::new(|| status("elsewhere") == 200));
    kubectl.run(&[&server_side[..], &[&kubectl.file(&six_kinds(engine.addr(), "renamed"))]].concat());
    told("and changed by its manager", Box::new(|| status("renamed") == 200));

    kubectl.run(&["delete", "ipool", "pool"]);
    told("what was deleted is gone", Box::new(|| status("renamed") == 404));
}
