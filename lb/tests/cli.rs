//! The command line as a person meets it: exit codes, and what stands on stderr when something is wrong.

use std::path::Path;
use std::process::{Command, Output};

fn kinference(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kinference")).args(arguments).output().expect("the binary runs")
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).expect("the folder takes a file");
    path.to_str().expect("a path of ASCII").to_owned()
}

const GOOD: &str = "\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: { name: gemma }
spec:
  model: { name: gemma-4 }
  endpoints: [{ address: 10.0.0.5 }, { address: 10.0.0.6 }]
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: { name: all }
spec:
  destinations: [{ kind: InferenceWorkerSet, name: gemma }]
";

#[test]
fn the_version_is_told_under_both_names() {
    for arguments in [&["version"][..], &["--version"], &["ctl", "version"]] {
        let output = kinference(arguments);
        assert_eq!(code(&output), Some(0));
        assert!(text(&output.stdout).contains(env!("CARGO_PKG_VERSION")), "{output:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let kinfctl = folder.path().join("kinfctl");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kinference"), &kinfctl).unwrap();
    let output = Command::new(kinfctl).arg("version").output().unwrap();
    assert_eq!(text(&output.stdout), format!("kinfctl {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_wrong_command_line_is_exit_code_2_and_says_what_was_expected() {
    for (arguments, expected) in [
        (&["serve"][..], "--config"),
        (&["serve", "--listen", "127.0.0.1:0"], "<URL>"),
        (&["serve", "--listen", "8080", "http://127.0.0.1:1"], "expected IP:PORT"),
        (&["serve", "--listen", "127.0.0.1:0", "127.0.0.1:8000"], "expected http://HOST:PORT"),
        (&["serve", "--listen", "127.0.0.1:0", "--driver", "kqueue", "http://127.0.0.1:1"], "auto, io_uring or epoll"),
        (&["serve", "--config", "a", "--listen", "127.0.0.1:0", "http://127.0.0.1:1"], "cannot be used with"),
        (&["demo", "--engines", "0"], "1..=64"),
        (&["ctl", "lint"], "<PATH>"),
        (&["ctl", "get", "endpoints", "--admin", "127.0.0.1:9090"], "expected http://HOST:PORT"),
    ] {
        let output = kinference(arguments);
        assert_eq!(code(&output), Some(2), "{arguments:?}: {output:?}");
        assert!(text(&output.stderr).contains(expected), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn a_port_in_use_is_exit_code_2_and_one_line_that_says_what_to_do() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    for arguments in [
        &["serve", "--listen", &address, "--admin", "127.0.0.1:0", "http://127.0.0.1:1"][..],
        &["serve", "--listen", "127.0.0.1:0", "--admin", &address, "http://127.0.0.1:1"],
        &["demo", "--listen", &address, "--admin", "127.0.0.1:0"],
    ] {
        let output = kinference(arguments);
        assert_eq!(code(&output), Some(2), "{output:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(&address) && stderr.contains("choose another port"), "{stderr}");
        assert_eq!(stderr.lines().filter(|line| line.starts_with("error:")).count(), 1, "{stderr}");
    }
}

#[test]
fn lint_is_0_for_good_documents_1_for_wrong_ones_and_2_for_none() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(folder.path(), "good.yaml", GOOD);
    let output = kinference(&["ctl", "lint", &good]);
    assert_eq!((code(&output), text(&output.stdout).as_str()), (Some(0), "1 files, 0 errors, 0 warnings\n"));

    let wrong = write(folder.path(), "wrong.yaml", &GOOD.replace("endpoints:", "endpoint:"));
    let output = kinference(&["ctl", "lint", &wrong]);
    assert_eq!(code(&output), Some(1));
    let stdout = text(&output.stdout);
    assert!(stdout.contains("wrong.yaml:6:3") && stdout.contains("did you mean `endpoints`?"), "{stdout}");

    for arguments in [["ctl", "lint", "/nowhere.yaml"], ["ctl", "lint", "/dev/null/x"]] {
        assert_eq!(code(&kinference(&arguments)), Some(2), "{arguments:?}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(code(&kinference(&["ctl", "lint", empty.path().to_str().unwrap()])), Some(2));
}

#[test]
fn lint_speaks_json_and_github() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = write(folder.path(), "wrong.yaml", &GOOD.replace("endpoints:", "endpoint:"));
    let json = text(&kinference(&["ctl", "lint", "--format", "json", &wrong]).stdout);
    for line in json.lines() {
        let finding: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(finding["line"].is_u64(), "{finding}");
    }
    assert!(json.contains("unknown-field"), "{json}");
    let github = text(&kinference(&["ctl", "lint", "--format", "github", &wrong]).stdout);
    assert!(github.lines().all(|line| line.starts_with("::error ")) && github.contains("line=6"), "{github}");
}

#[test]
fn policy_tests_are_0_when_all_pass_and_1_when_one_fails() {
    let folder = tempfile::tempdir().unwrap();
    let case = |endpoint: &str| {
        format!(
            "{GOOD}---\napiVersion: kinference.buoyant.io/v1alpha1\nkind: PolicyTest\nmetadata: {{ name: t }}\ncases:\n\
             - name: the faster one answers\n  request: {{ model: gemma-4 }}\n  state:\n    \
             10.0.0.5:8000: {{ predictedTTFT: 100ms }}\n    10.0.0.6:8000: {{ predictedTTFT: 900ms }}\n  \
             expect: {{ endpoint: \"{endpoint}\" }}\n"
        )
    };
    let passing = write(folder.path(), "passing.yaml", &case("10.0.0.5:8000"));
    let output = kinference(&["ctl", "test", &passing]);
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("1 cases, 0 failed"), "{output:?}");

    let failing = write(folder.path(), "failing.yaml", &case("10.0.0.6:8000"));
    let output = kinference(&["ctl", "test", &failing]);
    assert_eq!(code(&output), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("FAIL  t: the faster one answers"), "{output:?}");

    let none = write(folder.path(), "none.yaml", GOOD);
    assert_eq!(code(&kinference(&["ctl", "test", &none])), Some(2));
}

#[test]
fn a_server_does_not_start_on_a_broken_configuration_and_shows_where_it_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "resources.yaml",
        &GOOD.replace("InferenceWorkerSet, name: gemma", "InferenceWorkerSet, name: gema"),
    );
    let server =
        write(folder.path(), "server.yml", "listeners: [{ address: 127.0.0.1:0 }]\nresources: [resources.yaml]\n");
    let output = kinference(&["serve", "--config", &server]);
    assert_eq!(code(&output), Some(2), "{output:?}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("resources.yaml:12:") && stderr.contains("did you mean `gemma`?"), "{stderr}");

    let server = write(folder.path(), "server.yml", "listener: [{ address: 127.0.0.1:0 }]\n");
    let output = kinference(&["serve", "--config", &server]);
    assert_eq!(code(&output), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("server.yml:1:1"), "{output:?}");

    let output = kinference(&["serve", "--config", "/nowhere.yaml"]);
    assert_eq!(code(&output), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("cannot be read"), "{output:?}");
}

#[test]
fn the_schema_is_json_that_knows_every_kind() {
    let output = kinference(&["ctl", "schema"]);
    assert_eq!(code(&output), Some(0));
    let _: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for kind in ["InferencePolicy", "InferencePool", "InferenceWorkerSet", "InferenceProvider", "InferenceTenant"] {
        assert!(text(&output.stdout).contains(kind), "{kind}");
    }
}

#[test]
fn a_gateway_that_is_not_there_is_exit_code_2() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", holder.local_addr().unwrap());
    drop(holder);
    let output = kinference(&["ctl", "get", "endpoints", "--admin", &url]);
    assert_eq!(code(&output), Some(2));
    assert!(text(&output.stderr).contains("is the gateway running"), "{output:?}");
}
