//! What stands in `deploy/` fits the binary: its flags, its file, its paths, its metrics. `deploy/check/run` checks the rest, with Helm
//! and the schemas of Kubernetes.

mod access;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use config::load::documents;
use config::server_file::ResourceSource;
use config::{ServerFile, SourceFile};
use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate stands in the workspace").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

const MANIFESTS: [&str; 3] = ["deployment", "daemonset", "files"];

/// The objects of a committed manifest.
fn manifest(name: &str) -> Vec<Value> {
    let path = format!("deploy/manifests/{name}.yaml");
    let mut findings = Vec::new();
    let objects = documents(&SourceFile::new(&path, &read(&path)), &mut findings);
    assert!(findings.is_empty(), "{findings:?}");
    objects.iter().map(|object| object.root.to_value()).collect()
}

fn of_kind<'v>(objects: &'v [Value], kinds: &[&str]) -> Vec<&'v Value> {
    objects.iter().filter(|object| kinds.iter().any(|kind| object["kind"] == *kind)).collect()
}

fn container(objects: &[Value]) -> &Value {
    let workloads = of_kind(objects, &["Deployment", "DaemonSet"]);
    assert_eq!(workloads.len(), 1);
    &workloads[0]["spec"]["template"]["spec"]["containers"][0]
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Fails when the binary does not know one of the flags.
fn takes(arguments: &[&str]) {
    let (command, flags) = arguments.split_first().expect("a command");
    let help = Command::new(env!("CARGO_BIN_EXE_kinference")).args([command, "--help"]).output().expect("runs");
    assert!(help.status.success(), "there is no command {command}");
    let help = String::from_utf8_lossy(&help.stdout);
    for flag in flags.iter().filter(|argument| argument.starts_with("--")) {
        assert!(help.contains(&format!("{flag} <")), "`{command}` does not take {flag}");
    }
}

#[test]
fn manifests_start_the_server_with_flags_that_it_takes_and_a_file_that_it_reads() {
    for name in MANIFESTS {
        let objects = manifest(name);
        let container = container(&objects);
        takes(&texts(&container["args"]));
        let file =
            of_kind(&objects, &["ConfigMap"]).into_iter().find_map(|map| map["data"]["kinference.yaml"].as_str());
        let file = ServerFile::load(&SourceFile::new("kinference.yaml", file.expect("a server's file")));
        let file = file.unwrap_or_else(|findings| panic!("{name}: {findings:?}"));
        assert_eq!(matches!(file.resources, ResourceSource::Kubernetes { .. }), name != "files");
        let ports: BTreeSet<u64> =
            container["ports"].as_array().expect("a list").iter().filter_map(|p| p["containerPort"].as_u64()).collect();
        let listens = file.listeners.iter().map(|l| l.address).chain([file.admin]);
        assert_eq!(listens.map(|address| u64::from(address.port())).collect::<BTreeSet<_>>(), ports, "{name}");
    }
}

#[test]
fn a_pod_has_time_to_be_forgotten_and_to_drain() {
    for name in MANIFESTS {
        let objects = manifest(name);
        let pod = &of_kind(&objects, &["Deployment", "DaemonSet"])[0]["spec"]["template"]["spec"];
        let waits_s = container(&objects)["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().expect("a number");
        let file =
            of_kind(&objects, &["ConfigMap"]).into_iter().find_map(|map| map["data"]["kinference.yaml"].as_str());
        let file =
            ServerFile::load(&SourceFile::new("kinference.yaml", file.expect("a server's file"))).expect("loads");
        let grace_s = pod["terminationGracePeriodSeconds"].as_u64().expect("a number");
        assert!(grace_s > waits_s + file.drain_timeout.as_secs(), "{name}: {grace_s}");
    }
}

#[test]
fn the_unit_and_the_image_start_the_server_with_flags_that_it_takes() {
    let unit = read("deploy/systemd/kinference.service");
    let command =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/kinference ")).expect("a command");
    takes(&command.split(' ').collect::<Vec<_>>());
    let image = read("deploy/docker/Dockerfile");
    let command = image.lines().find_map(|line| line.strip_prefix("CMD ")).expect("a command");
    let command: Vec<String> = serde_json::from_str(command).expect("a list");
    takes(&command.iter().map(String::as_str).collect::<Vec<_>>());
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running demo.
struct Demo {
    _process: Running,
    /// Open as long as it runs: it writes there.
    _log: BufReader<ChildStderr>,
    gateway: String,
    admin: String,
}

fn demo() -> Demo {
    let mut process = Command::new(env!("CARGO_BIN_EXE_kinference"))
        .args(["demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut log = BufReader::new(process.stderr.take().expect("is piped"));
    let (mut gateway, mut admin) = (String::new(), String::new());
    let address =
        |line: &str| line.split_once(" address=").and_then(|(_, rest)| rest.split(' ').next().map(str::to_owned));
    for line in log.by_ref().lines() {
        let line = line.expect("is text");
        if line.contains("msg=listening") {
            gateway = address(&line).expect("an address");
        } else if line.contains("msg=\"admin server listening\"") {
            admin = address(&line).expect("an address");
        } else if line.contains("msg=\"endpoint ready\"") {
            break;
        }
    }
    assert!(!gateway.is_empty() && !admin.is_empty(), "the demo does not start");
    Demo { _process: Running(process), _log: log, gateway, admin }
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.write_all(request.as_bytes()).expect("takes the request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answers");
    answer
}

fn get(address: &str, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
}

#[test]
fn the_admin_server_answers_what_the_kubelet_asks() {
    let demo = demo();
    for name in MANIFESTS {
        let objects = manifest(name);
        for probe in ["livenessProbe", "readinessProbe"] {
            let path = container(&objects)[probe]["httpGet"]["path"].as_str().expect("a path").to_owned();
            let answer = get(&demo.admin, &path);
            assert!(answer.starts_with("HTTP/1.1 200 "), "{name}: {probe} {path}: {answer}");
        }
    }
}

/// Names in a text that look like those of metrics.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| ["kinference_", "gen_ai_", "process_"].iter().any(|prefix| word.starts_with(prefix))).collect()
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_metrics_that_there_are() {
    let demo = demo();
    let body = r#"{"model":"demo","stream":true,"max_tokens":2,"messages":[{"role":"user","content":"hello"}]}"#;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    assert!(ask(&demo.gateway, &(head + body)).contains("[DONE]"));
    let metrics = get(&demo.admin, "/metrics");
    let mut known = BTreeSet::new();
    for line in metrics.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            known.insert(name.to_owned());
            if kind == "histogram" {
                known.extend(["bucket", "sum", "count"].map(|end| format!("{name}_{end}")));
            }
        }
        // Labels begin as metrics do.
        known.extend(names(line).into_iter().filter(|name| line.contains(&format!("{name}=\""))).map(str::to_owned));
    }
    for path in ["deploy/grafana/kinference.json", "deploy/prometheus/alerts.yaml"] {
        let text = read(path);
        // Annotations speak of metrics too, and of `grafana_dashboard` and the like never.
        let asked = names(&text);
        assert!(asked.len() > 10, "{path}: {asked:?}");
        for name in asked {
            assert!(known.contains(name), "{path} asks for {name}, which is no metric");
        }
    }
}
