//! Documents that change under load: no request fails, a broken set changes nothing and is told with its place.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use engine::Engine;
use serde_json::Value;

use crate::support::client::request;
use crate::support::engines::{ALIAS, MODEL, chat_of, pool, slow_engine, worker_set};
use crate::support::{Client, Driver, Gateway, Setup, chat, engine, eventually, fleet, model_requests, stream};

on_both_drivers![
    a_policy_is_changed_broken_and_repaired_under_load,
    a_config_map_is_swapped_as_one_change,
    an_endpoint_is_removed_and_comes_back_under_load,
    names_come_and_go_with_their_documents,
    a_set_that_lost_a_file_or_all_of_them_changes_nothing,
    pools_of_a_listener_that_do_not_exist_are_told,
];

/// Clients that ask one thing after the other until told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<usize>>,
}

impl Load {
    /// Half of the clients stream; each keeps its connection.
    pub(crate) fn start(gateway: &Gateway, clients: usize) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let client = |number: usize| {
            let (stop, address) = (Arc::clone(&stop), gateway.address);
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                let mut answered = 0;
                while !stop.load(Ordering::Relaxed) {
                    let prompt = format!("{number} says hello for the {answered}th time");
                    let streams = number % 2 == 1;
                    let more = if streams { r#","stream":true"# } else { "" };
                    client.send(request("/v1/chat/completions", "", &chat_of(MODEL, &prompt, 4, more)));
                    let answer = client.answer();
                    assert_eq!(answer.status, 200, "{answer:?}");
                    assert!(!streams || answer.events().last().unwrap() == "[DONE]", "{answer:?}");
                    answered += 1;
                }
                answered
            })
        };
        Self { clients: (0..clients).map(client).collect(), stop }
    }

    /// Ends it; every request was answered well.
    pub(crate) fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            let answered = client.join().expect("every request is answered");
            assert!(answered > 0, "there was load");
        }
    }
}

/// A policy with one rule of this name.
fn policy(rule: &str) -> String {
    format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: {{ name: policy, namespace: default }}\nspec:\n  \
         rules:\n    - name: {rule}\n      matches: [{{ model: {MODEL} }}]\n      route:\n        select: [{{ type: Local, minimize: PredictedTTFT }}]\n---\n"
    )
}

/// Documents whose policy stands last.
fn documents(engine: &Engine, rule: &str) -> String {
    worker_set("workers", MODEL, ALIAS, &[engine]) + &pool(&["workers"], &["policy"]) + &policy(rule)
}

/// The rule that decides now.
fn rule_in_force(gateway: &Gateway, number: &mut u32) -> String {
    *number += 1;
    let id = format!("rule-{number}");
    assert_eq!(gateway.chat(&format!("x-request-id: {id}\r\n"), &chat(MODEL, 2)).status, 200);
    gateway.log_of(&id)["rule"].as_str().unwrap().to_owned()
}

fn wait_for_generation(gateway: &Gateway, generation: u64) {
    eventually("the change is in force", || (gateway.config()["generation"] == generation).then_some(()));
}

fn a_policy_is_changed_broken_and_repaired_under_load(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(documents(&engine, "one")).threads(2).start(driver);
    let load = Load::start(&gateway, 4);
    let mut number = 0;
    assert_eq!(rule_in_force(&gateway, &mut number), "one");

    gateway.write_resources(&documents(&engine, "two"));
    wait_for_generation(&gateway, 2);
    assert_eq!(rule_in_force(&gateway, &mut number), "two");

    let broken = documents(&engine, "three").replace("minimize: PredictedTTFT", "minimise: PredictedTTFT");
    let line = 1 + broken.lines().position(|line| line.contains("minimise")).unwrap();
    let column = 1 + broken.lines().nth(line - 1).unwrap().find("minimise").unwrap();
    gateway.write_resources(&broken);
    let told = gateway.wait_for_line(&["level=error", "configuration refused", &format!("all.yaml:{line}:{column}")]);
    assert!(told.contains("minimize"), "the right name is told: {told}");
    let config = eventually("the refusal is shown", || Some(gateway.config()).filter(|config| config["refusals"] == 1));
    assert_eq!(config["generation"], 2);
    let findings = config["lastRefusal"]["diagnostics"].as_array().unwrap();
    let here = |finding: &Value| finding["finding"]["line"] == line && finding["finding"]["column"] == column;
    assert!(findings.iter().any(here), "{config}");
    assert_eq!(rule_in_force(&gateway, &mut number), "two", "the last good set stays");
    assert_eq!(gateway.metric("kinference_config_refusals_total", &[]), 1.0);

    gateway.write_resources("kind: [");
    eventually("text that is no YAML is refused as well", || (gateway.config()["refusals"] == 2).then_some(()));

    gateway.write_resources(&documents(&engine, "three"));
    wait_for_generation(&gateway, 3);
    assert_eq!(rule_in_force(&gateway, &mut number), "three");
    load.finish();
    gateway.expect_nothing_in_flight();
}

/// Puts documents into a folder as the kubelet mounts a ConfigMap: the file is a link through `..data`, which is a link
/// to a folder of its own that is replaced in one step.
fn mount(folder: &Path, version: u32, yaml: &str) {
    let name = format!("..version-{version}");
    fs::create_dir(folder.join(&name)).unwrap();
    fs::write(folder.join(&name).join("policy.yaml"), yaml).unwrap();
    symlink(&name, folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    if version == 1 {
        symlink("..data/policy.yaml", folder.join("policy.yaml")).unwrap();
    } else {
        fs::remove_dir_all(folder.join(format!("..version-{}", version - 1))).unwrap();
    }
}

fn a_config_map_is_swapped_as_one_change(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(fleet(&[&engine])).start(driver);
    let load = Load::start(&gateway, 2);
    let folder = gateway.resource("mounted");
    fs::create_dir(&folder).unwrap();
    let mut number = 0;
    for version in 1..=4 {
        // The pool that comes first by name gets the requests.
        let pool = pool(&["workers"], &["policy"]).replace("name: pool,", "name: a-pool,");
        let rule = format!("mounted-{version}");
        mount(&folder, version, &(pool + &policy(&rule)));
        eventually("the mounted policy is in force", || (rule_in_force(&gateway, &mut number) == rule).then_some(()));
    }
    let config = gateway.config();
    assert_eq!(config["refusals"], 0, "half of a swap is never seen: {config}");
    load.finish();
}

fn an_endpoint_is_removed_and_comes_back_under_load(driver: Driver) {
    let (stays, goes) = (slow_engine(2), slow_engine(2));
    let gateway = Setup::new(fleet(&[&stays, &goes])).threads(2).ready(2).start(driver);
    let load = Load::start(&gateway, 6);
    eventually("both are asked", || {
        [&stays, &goes].iter().all(|engine| model_requests(engine).len() > 5).then_some(())
    });
    // A stream that is open while its endpoint goes away.
    let mut attempts = 0;
    let mut long = eventually("a stream runs on the one that goes", || {
        attempts += 1;
        let id = format!("long-{attempts}");
        let mut client = gateway.send_chat(&format!("x-request-id: {id}\r\n"), &stream(MODEL, 1_500));
        client.head();
        model_requests(&goes).iter().any(|request| request.id == id).then_some(client)
    });
    gateway.write_resources(&fleet(&[&stays]));
    wait_for_generation(&gateway, 2);
    eventually("the load leaves it", || (goes.stats().running <= 1).then_some(()));
    let head =
        crate::support::Answer { status: 200, head: "transfer-encoding: chunked\r\n".to_owned(), body: Vec::new() };
    assert_eq!(long.body_of(head).events().last().unwrap(), "[DONE]");
    assert!(gateway.endpoint(goes.addr()).is_null(), "it is no longer listed");

    let last = |engine: &Engine| model_requests(engine).last().map(|request| request.number);
    let before = last(&goes);
    gateway.write_resources(&fleet(&[&stays, &goes]));
    gateway.wait_for_readiness(goes.addr(), "ready");
    eventually("it is asked again", || (last(&goes) > before).then_some(()));
    load.finish();
    gateway.expect_nothing_in_flight();
}

fn a_set_that_lost_a_file_or_all_of_them_changes_nothing(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(documents(&engine, "first")).start(driver);
    let folder = gateway.resource(".");
    symlink("nowhere.yaml", folder.join("tenants.yaml")).unwrap();
    gateway.wait_for_line(&["configuration refused", "K0004", "a link to `nowhere.yaml`"]);
    for entry in fs::read_dir(&folder).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    gateway.wait_for_line(&["configuration refused", "K0005"]);
    assert_eq!(gateway.config()["generation"], 1);
    assert_eq!(gateway.chat("", &chat(MODEL, 1)).status, 200);
}

fn pools_of_a_listener_that_do_not_exist_are_told(driver: Driver) {
    let engine = engine();
    let setup = Setup { listener: String::from(", pools: [nope, pool]"), ..Setup::new(documents(&engine, "first")) };
    let gateway = setup.start(driver);
    let line = gateway.wait_for_line(&["configuration warning", "K0122"]);
    assert!(line.contains("`nope`") && line.contains("listeners[0].pools[0]"), "{line}");
    assert_eq!(gateway.config()["warnings"].as_array().map(Vec::len), Some(1), "{}", gateway.config());
    assert_eq!(gateway.chat("", &chat(MODEL, 1)).status, 200);
}

fn names_come_and_go_with_their_documents(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(fleet(&[&engine])).start(driver);
    let mut client = Client::connect(gateway.address);
    let mut status = |model: &str| {
        client.send(request("/v1/chat/completions", "", &chat(model, 2)));
        client.answer().status
    };
    assert_eq!((status(ALIAS), status("fresh")), (200, 404));
    gateway.write_resources(&fleet(&[&engine]).replace(&format!("[{ALIAS}]"), "[fresh]"));
    wait_for_generation(&gateway, 2);
    // The control thread says so a moment before the data thread that has this connection knows.
    eventually("the change holds on a connection from before it", || {
        ((status(ALIAS), status("fresh")) == (404, 200)).then_some(())
    });
}
