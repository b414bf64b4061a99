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
        (&["serve", "--listen", "127.0.0.1:0"], "<URL|--kubernetes>"),
        (&["serve", "--listen", "127.0.0.1:0", "--kubernetes", "http://127.0.0.1:1"], "cannot be used with"),
        (&["serve", "--config", "a", "--kubernetes"], "cannot be used with"),
        (&["serve", "--listen", "127.0.0.1:0", "--kubeconfig", "a", "http://127.0.0.1:1"], "cannot be used with"),
        (&["serve", "--listen", "8080", "http://127.0.0.1:1"], "expected IP:PORT"),
        (&["serve", "--listen", "127.0.0.1:0", "127.0.0.1:8000"], "expected http://HOST:PORT"),
        (&["serve", "--listen", "127.0.0.1:0", "--driver", "kqueue", "http://127.0.0.1:1"], "auto, io_uring or epoll"),
        (&["serve", "--config", "a", "--listen", "127.0.0.1:0", "http://127.0.0.1:1"], "cannot be used with"),
        (&["demo", "--engines", "0"], "1..=64"),
        (&["ctl", "lint"], "<PATH>"),
        (&["ctl", "get", "endpoints", "--admin", "127.0.0.1:9090"], "expected http://HOST:PORT"),
        (&["ctl", "get", "endpoints", "-o", "json", "--admin", "127.0.0.1:9090"], "expected http://HOST:PORT"),
        (&["ctl", "why", "r-1", "-o", "json", "--admin", "127.0.0.1:9090"], "expected http://HOST:PORT"),
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
    for (flag, arguments) in [
        ("--listen", &["serve", "--listen", &address, "--admin", "127.0.0.1:0", "http://127.0.0.1:1"][..]),
        ("--admin", &["serve", "--listen", "127.0.0.1:0", "--admin", &address, "http://127.0.0.1:1"]),
        ("--listen", &["demo", "--listen", &address, "--admin", "127.0.0.1:0"]),
    ] {
        let output = kinference(arguments);
        assert_eq!(code(&output), Some(2), "{output:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(&address) && stderr.contains(&format!("choose another port ({flag}")), "{stderr}");
        assert_eq!(stderr.lines().filter(|line| line.starts_with("error:")).count(), 1, "{stderr}");
        assert!(!stderr.contains("another process listens"), "nothing is shared with who does not share: {stderr}");
    }
}

#[test]
fn lint_is_0_for_good_documents_1_for_wrong_ones_and_2_for_none() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(folder.path(), "good.yaml", GOOD);
    let output = kinference(&["ctl", "lint", &good]);
    assert_eq!((code(&output), text(&output.stdout).as_str()), (Some(0), "1 file, 0 errors, 0 warnings\n"));

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
    assert!(text(&output.stdout).contains("1 case, 0 failed"), "{output:?}");

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
fn a_resource_that_cannot_be_read_and_a_kubeconfig_that_leads_nowhere_are_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let resources = folder.path().join("resources");
    std::fs::create_dir(&resources).unwrap();
    write(&resources, "good.yaml", GOOD);
    std::os::unix::fs::symlink("nowhere.yaml", resources.join("tenants.yaml")).unwrap();
    let server = write(folder.path(), "server.yml", "listeners: [{ address: 127.0.0.1:0 }]\nresources: [resources]\n");
    let resources = resources.to_string_lossy();
    for arguments in [&["serve", "--config", &server][..], &["ctl", "lint", &resources]] {
        let output = kinference(arguments);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(code(&output), Some(2), "{said}");
        assert!(said.contains("K0004") && said.contains("a link to `nowhere.yaml`"), "{said}");
    }

    let empty = write(folder.path(), "kubeconfig", "");
    let file = "listeners: [{ address: 127.0.0.1:0 }]\nkubernetes: { enabled: true, kubeconfig: kubeconfig }\n";
    let server = write(folder.path(), "cluster.yml", file);
    for (arguments, why) in [
        (&["serve", "--listen", "127.0.0.1:0", "--kubernetes", "--kubeconfig", "/nowhere"][..], "cannot be read"),
        (&["serve", "--listen", "127.0.0.1:0", "--kubernetes", "--kubeconfig", &empty], "is empty"),
        (&["serve", "--config", &server], "is empty"),
    ] {
        let output = kinference(arguments);
        let stderr = text(&output.stderr);
        assert_eq!((code(&output), stderr.lines().count()), (Some(2), 1), "{output:?}");
        assert!(stderr.starts_with("error: the kubeconfig ") && stderr.contains(why), "{stderr}");
    }
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
fn an_access_log_that_is_a_pipe_without_a_reader_is_told_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let path = path.to_str().unwrap();
    let server = "http://127.0.0.1:1";
    let output =
        kinference(&["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--access-log", path, server]);
    assert_eq!(code(&output), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("a pipe that nobody reads"), "{output:?}");
}

#[test]
fn an_access_log_that_cannot_be_written_is_named_before_anything_listens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("absent/access.log");
    let file = folder.path().join("server.yaml");
    let written = format!(
        "listeners: [{{ address: \"127.0.0.1:0\" }}]\nresources: [set.yaml]\naccessLog: {{ path: {} }}\n",
        path.display()
    );
    std::fs::write(&file, written).unwrap();
    let set = "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceWorkerSet\nmetadata: { name: workers }\nspec: { model: { name: m }, \
               endpoints: [{ address: 127.0.0.1 }] }\n";
    std::fs::write(folder.path().join("set.yaml"), set).unwrap();
    let (path, file) = (path.to_str().unwrap(), file.to_str().unwrap());
    for arguments in [
        &["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--access-log", path, "http://127.0.0.1:1"][..],
        &["serve", "--config", file],
    ] {
        let output = kinference(arguments);
        assert_eq!(code(&output), Some(2), "{output:?}");
        let stderr = text(&output.stderr);
        for part in [path, "No such file", "--access-log", "accessLog.path"] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
        assert!(!stderr.contains("msg=listening"), "{stderr}");
    }
}

#[cfg(feature = "kubernetes")]
#[test]
fn a_kubeconfig_of_the_environment_that_is_not_there_is_refused_at_once() {
    let run = |named: &str| {
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--kubernetes"];
        Command::new(env!("CARGO_BIN_EXE_kinference")).args(arguments).env("KUBECONFIG", named).output().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let (empty, absent) = (folder.path().join("empty"), folder.path().join("absent"));
    std::fs::write(&empty, "").unwrap();
    let [empty, absent] = [empty, absent].map(|path| path.display().to_string());
    for (named, why) in [
        (absent.clone(), format!("KUBECONFIG: the kubeconfig {absent} cannot be read")),
        (empty.clone(), format!("KUBECONFIG: the kubeconfig {empty} is empty")),
        (format!("{absent}:{empty}"), format!("KUBECONFIG: the kubeconfig {absent} cannot be read")),
    ] {
        let output = run(&named);
        assert_eq!(code(&output), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(&why), "{}", text(&output.stderr));
    }
}

#[test]
fn a_gateway_that_is_not_there_is_exit_code_2() {
    // Where nobody else takes a port.
    let holder = std::net::TcpListener::bind("127.0.0.9:0").unwrap();
    let url = format!("http://{}", holder.local_addr().unwrap());
    drop(holder);
    let output = kinference(&["ctl", "get", "endpoints", "--admin", &url]);
    assert_eq!(code(&output), Some(2));
    assert!(text(&output.stderr).contains("is the gateway running"), "{output:?}");
}

/// Seed documents of the guide: a local set, two providers, a rule that keeps personal data.
fn overflow() -> [String; 2] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/tests/cases/seed-policies");
    ["fleet.yaml", "overflow.yaml"].map(|name| folder.join(name).to_str().expect("a path of ASCII").to_owned())
}

#[test]
fn explain_tells_the_decision_rule_by_rule_and_candidate_by_candidate() {
    let [fleet, policy] = overflow();
    let arguments = ["ctl", "explain", &fleet, &policy, "--model", "qwen-3.6"];
    let busy = ["--signal", "qwen-3-6-vllm.queued_prompts=5", "--signal", "databricks.ready=false"];
    let output = kinference(&[&arguments[..], &busy].concat());
    assert_eq!(code(&output), Some(0), "{output:?}");
    let stdout = text(&output.stdout);
    for line in [
        "rule overflow/personal-data-stays: does not hold: tags is [], asked for: all of [pii]",
        "rule overflow/local-then-hosted: holds",
        "dropped by exclude `busy` (it is Local; queuedPrompts/30s 5, above 2)",
        "databricks (External databricks, qwen-3.6): not ready",
        "=> bedrock, by select[1] (first in the listed order)",
    ] {
        assert!(stdout.contains(line), "{line} in\n{stdout}");
    }
    let output = kinference(&[&arguments[..], &busy, &["-o", "json"]].concat());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["decision"]["outcome"]["endpoint"], "bedrock");
    assert_eq!(value["decision"]["candidates"][0]["exclude"], "busy");
}

#[test]
fn explain_reads_a_body_as_a_data_thread_would() {
    let [fleet, policy] = overflow();
    let folder = tempfile::tempdir().unwrap();
    let card = "My card is 4111 1111 1111 1111, please refund it";
    let body =
        serde_json::json!({ "model": "qwen-3.6", "stream": true, "messages": [{ "role": "user", "content": card }] });
    let body = write(folder.path(), "body.json", &body.to_string());
    let state = write(folder.path(), "state.yaml", "127.0.0.1:18131: { queuedPrompts: 9 }\n");
    let output =
        kinference(&["ctl", "explain", "--config", &fleet, "--config", &policy, "--body", &body, "--state", &state]);
    let stdout = text(&output.stdout);
    assert!(stdout.contains("tags [pii, pii-credit-card], ChatCompletions, streamed"), "{stdout}");
    assert!(stdout.ends_with("=> 429 overloaded, exclude `busy`\n"), "{stdout}");
}

#[test]
fn what_explain_is_given_is_checked_like_a_document() {
    let [fleet, policy] = overflow();
    for (more, expected) in [
        (&["--model", "qwen-3.6", "--signal", "databricks.redy=false"][..], "did you mean `ready`?"),
        (&["--model", "qwen-3.6", "--signal", "databrick.ready=false"], "did you mean `databricks`?"),
        (&["--model", "qwen-3.6", "--api", "ChatCompletion"], "did you mean `ChatCompletions`?"),
        (&[], "which model is asked for?"),
    ] {
        let output = kinference(&[&["ctl", "explain", &fleet, &policy][..], more].concat());
        assert_eq!(code(&output), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(expected), "{output:?}");
    }
    let output = kinference(&["ctl", "explain", &fleet, &policy, "--model", "qwen-3.7"]);
    assert!(text(&output.stdout).contains("did you mean `qwen-3.6`?"), "{output:?}");
}

#[test]
fn diff_tells_fields_and_what_becomes_of_logged_requests() {
    let [fleet, policy] = overflow();
    let folder = tempfile::tempdir().unwrap();
    let changed = std::fs::read_to_string(&policy).unwrap().replace("tags: [pii]", "tags: [pii-email]");
    let changed = write(folder.path(), "new.yaml", &changed);
    let line = |id: &str, tags: &str| {
        format!(
            r#"{{"request_id":"{id}","path":"/v1/chat/completions","model":"qwen-3.6","tags":{tags},"stream":true}}"#
        )
    };
    let log = format!("{}\n{}\nnot a line of a log\n", line("one", r#"["pii"]"#), line("two", "[]"));
    let log = write(folder.path(), "access.jsonl", &log);
    let output = kinference(&["ctl", "diff", &policy, &changed, "--with", &fleet, "--log", &log]);
    assert_eq!(code(&output), Some(1), "{output:?}");
    let stdout = text(&output.stdout);
    for line in [
        "~ InferencePolicy default/overflow: rules[personal-data-stays].matches: ",
        "2 requests compared, 1 would come out differently",
        "1  error 429 overloaded, by rule personal-data-stays\n      ->  External databricks, databricks-qwen-3-6",
        "for example one",
        "tagged requests that would newly leave the cluster: 1 (pii 1)",
        "note: only the new rules look at the tags `pii-email`",
    ] {
        assert!(stdout.contains(line), "{line} in\n{stdout}");
    }
    let same = kinference(&["ctl", "diff", &policy, &policy, "--with", &fleet]);
    assert_eq!((code(&same), text(&same.stdout).as_str()), (Some(0), "no field is different\n"));
    let broken = kinference(&["ctl", "diff", &policy, "/nowhere.yaml", "--with", &fleet]);
    assert_eq!(code(&broken), Some(2), "{broken:?}");
}

#[test]
fn classify_shows_kinds_and_places_and_never_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "prompt.txt", "Card 4111 1111 1111 1111 please");
    let output = kinference(&["ctl", "classify", &file]);
    let stdout = text(&output.stdout);
    assert!(stdout.contains("pii-credit-card") && stdout.contains("credit_card at bytes 5 to 24"), "{stdout}");
    assert!(!stdout.contains("4111"), "{stdout}");
    let rows = write(folder.path(), "rows.jsonl", "{\"id\":7,\"text\":\"hello\"}\n{\"text\":\"4111111111111111\"}\n");
    let output = kinference(&["ctl", "classify", "--jsonl", &rows]);
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((lines.len(), lines[0]["id"].as_i64()), (2, Some(7)));
    assert_eq!(lines[1]["hits"][0], serde_json::json!({ "kind": "credit_card", "start": 0, "end": 16 }));
    let wrong = write(folder.path(), "wrong.jsonl", "{}\n");
    assert_eq!(code(&kinference(&["ctl", "classify", "--jsonl", &wrong])), Some(2));
}

#[test]
fn classify_judges_by_the_classifiers_of_documents_and_asks_no_service() {
    let folder = tempfile::tempdir().unwrap();
    let document = |name: &str, spec: &str| {
        format!(
            "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceClassifier\nmetadata: {{ name: {name} }}\nspec: {spec}\n---\n"
        )
    };
    let set = [
        document("words", "{ type: Keywords, tags: [{ tag: merger, any: [project heron] }] }"),
        document("codes", "{ type: Regex, tags: [{ tag: case-number, patterns: ['CN-[0-9]{4}'] }] }"),
        document(
            "tone",
            "{ type: Examples, tags: [{ tag: angry, positive: [this is an outrage, I am furious with you, never again you crooks], negative: [thank you so much, could you help me please, lovely weather today] }] }",
        ),
        document(
            "toxic",
            "{ type: HTTP, onError: AddTag, tags: [{ tag: toxic }], http: { url: 'http://127.0.0.1:9/' } }",
        ),
    ];
    let config = write(folder.path(), "classifiers.yaml", &set.concat());
    let prompt = "Status of Project Heron, see CN-2041. I am furious, this is an outrage. Card 4111 1111 1111 1111";
    let file = write(folder.path(), "prompt.txt", prompt);
    let output = kinference(&["ctl", "classify", "-f", &config, &file]);
    let stdout = text(&output.stdout);
    let tags = stdout.lines().next().unwrap_or_default();
    assert!(
        ["merger", "case-number", "angry"].iter().all(|tag| tags.contains(tag)),
        "{stdout}{}",
        text(&output.stderr)
    );
    assert!(!tags.contains("pii") && !tags.contains("toxic"), "only what the documents ask for: {stdout}");
    assert!(stdout.contains("not asked, as it is a service: default/toxic"), "{stdout}");
    let rows = write(folder.path(), "rows.jsonl", "{\"text\":\"hello\"}\n");
    let output = kinference(&["ctl", "classify", "--config", &config, "--jsonl", &rows]);
    let row: serde_json::Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
    assert_eq!(row["notAsked"], serde_json::json!(["default/toxic"]));
    let lint = kinference(&["ctl", "lint", &config]);
    assert!(text(&lint.stdout).contains("default/tone: tag `angry`: "), "{}", text(&lint.stdout));
}

#[test]
fn a_classifier_larger_than_its_bounds_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let pattern = "a".repeat(3000);
    let document = format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceClassifier\nmetadata: {{ name: long }}\nspec:\n  type: Regex\n  tags:\n    - tag: t\n      patterns: [ok, {pattern}]\n"
    );
    let config = write(folder.path(), "long.yaml", &document);
    let output = kinference(&["ctl", "lint", &config]);
    let stdout = text(&output.stdout);
    assert!(stdout.contains("K0017") && stdout.contains("spec.tags[0].patterns[1]"), "{stdout}");
    assert!(stdout.contains("must be 1 to 2048 bytes"), "{stdout}");
    assert_eq!(code(&output), Some(1));
}

#[test]
fn the_crds_are_printed_as_yaml_of_their_kinds() {
    let output = kinference(&["ctl", "schema", "--crds"]);
    assert_eq!(text(&output.stdout).matches("kind: CustomResourceDefinition").count(), 6);
}

#[test]
fn usage_adds_up_an_access_log_by_what_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let line = |tenant: &str, model: &str, completion: u32| {
        let backend = if completion == 3 { "External" } else { "Local" };
        format!(
            r#"{{"request_id":"r","tenant":"{tenant}","backend":"{backend}","ttft_ms":100.2,"model":"{model}","prompt_tokens":10,"completion_tokens":{completion},"cost":0.25}}"#
        )
    };
    let log = [line("alice", "m", 1), line("bob", "m", 2), line("alice", "m", 3), "started".to_owned()].join("\n");
    let log = write(folder.path(), "access.jsonl", &log);
    let output = kinference(&["ctl", "usage", &log]);
    assert_eq!(
        text(&output.stdout),
        "TENANT  MODEL  REQUESTS  PROMPT  CACHED  COMPLETION    COST  TTFT P50  TTFT P95  OVERFLOWED\n\
         alice   m             2      20       0           4  0.5000    100 ms    100 ms      50.0 %\n\
         bob     m             1      10       0           2  0.2500    100 ms    100 ms       0.0 %\n"
    );
    let output = kinference(&["ctl", "usage", "--by", "model", "-o", "json", &log]);
    let sums: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
    assert_eq!((&sums["model"], &sums["requests"], &sums["cost"]), (&"m".into(), &3.into(), &0.75.into()));
    assert_eq!(code(&kinference(&["ctl", "usage", "/nowhere.jsonl"])), Some(2));
    let named = kinference(&["ctl", "usage", "--by", "model", "-o", "json", "--log", &log]);
    assert_eq!((named.stdout, code(&kinference(&["ctl", "usage"]))), (output.stdout, Some(2)));
}

/// A local set and two providers.
const SET: &str = "\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: { name: own }
spec: { model: { name: full/m, aliases: [m] }, endpoints: [{ address: 10.0.0.5 }, { address: 10.0.0.6 }] }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceProvider
metadata: { name: databricks }
spec:
  type: OpenAI
  baseURL: 'https://bedrock-mantle.example.com/openai/v1'
  auth: { awsSigV4: { region: r, accessKeyId: { fromEnv: A }, secretAccessKey: { fromEnv: B } } }
  models: [{ name: m }]
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceProvider
metadata: { name: near }
spec: { type: OpenAI, baseURL: 'http://127.0.0.1:9101/v1', models: [{ name: m }] }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceClassifier
metadata: { name: personal }
spec: { type: PII }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceTenant
metadata: { name: alice }
spec: { apiKeys: [{ sha256: 3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7 }] }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: { name: all }
spec:
  destinations: [{ kind: InferenceWorkerSet, name: own }, { kind: InferenceProvider, name: databricks }, { kind: InferenceProvider, name: near }]
  policyRef: [{ name: p }]
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: p }
spec:
  rules:
    - { name: keep, matches: [{ tags: [pii] }], route: { select: [{ type: Local }] } }
    - { name: out, route: { select: [{ type: Local }, { type: External }] } }
";

fn with_cases(cases: &str) -> String {
    format!("{SET}---\nkind: PolicyTest\nmetadata: {{ name: t }}\ncases:\n{cases}")
}

#[test]
fn a_written_tag_of_a_kind_brings_the_tag_of_its_family_as_a_classifier_does() {
    let folder = tempfile::tempdir().unwrap();
    let cases = "- { name: one, request: { model: m, tags: [pii-email] }, expect: { rule: keep } }\n\
                 - { name: two, request: { model: m, tags: [pii-unscanned] }, expect: { rule: keep } }\n\
                 - { name: three, request: { model: m, tags: [piiother] }, expect: { rule: out } }\n";
    let set = write(folder.path(), "set.yaml", &with_cases(cases));
    let output = kinference(&["ctl", "test", &set]);
    assert_eq!(code(&output), Some(0), "{output:?}");
    let output = kinference(&["ctl", "explain", &set, "--model", "m", "--tag", "pii-email"]);
    assert!(text(&output.stdout).contains("tags [pii, pii-email]"), "{output:?}");
}

#[test]
fn a_caller_that_no_tenant_is_gets_401_where_a_case_expects_it_and_a_note_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let case = |tenant: &str, expect: &str| {
        let text = format!("- {{ name: c, request: {{ model: m, tenant: {tenant} }}, expect: {expect} }}\n");
        let set = write(folder.path(), "set.yaml", &with_cases(&text));
        let output = kinference(&["ctl", "test", &set]);
        (code(&output), text_of_notes(&output))
    };
    let told = |(_, notes): &(Option<i32>, String)| notes.contains("no InferenceTenant `bob`: such a caller gets 401");
    let refused = "{ error: { status: 401, code: invalid_api_key } }";
    assert_eq!(case("bob", refused), (Some(0), String::new()));
    assert_eq!(case("alice", refused).0, Some(1), "a known caller is let in");
    let strange = case("bob", "{ workerSet: own }");
    assert!(strange.0 == Some(0) && told(&strange), "{strange:?}");
    assert!(!told(&case("alice", "{ workerSet: own }")));
    let set = write(folder.path(), "set.yaml", SET);
    let output = kinference(&["ctl", "explain", &set, "--model", "m", "--tenant", "bob"]);
    assert!(text_of_notes(&output).contains("no InferenceTenant `bob`"), "{output:?}");
}

fn text_of_notes(output: &Output) -> String {
    text(&output.stdout).lines().filter(|line| line.starts_with("note:")).collect()
}

#[test]
fn a_limit_that_a_provider_does_not_have_and_an_unexpected_refusal_are_told_by_test() {
    let folder = tempfile::tempdir().unwrap();
    let cases = "- { name: c, request: { model: m }, state: { own: { atLimit: true }, near: { atLimit: true } }, expect: { rule: out } }\n\
                 - { name: d, request: { model: m, tags: [pii] }, state: { own: { atLimit: true } }, expect: { rule: keep } }\n\
                 - { name: e, request: { model: m, tags: [pii] }, state: { own: { atLimit: true } }, expect: { rule: keep, error: {} } }\n";
    let set = write(folder.path(), "set.yaml", &with_cases(cases));
    let output = kinference(&["ctl", "test", &set]);
    assert_eq!(code(&output), Some(1), "{output:?}");
    let stdout = text(&output.stdout);
    assert!(stdout.contains("`near` is said to be `atLimit`, but has no `limits.maxInFlight`"), "{stdout}");
    assert!(stdout.contains("got 429 overloaded; add `error:` to expect it"), "{stdout}");
    let output = kinference(&["ctl", "test", "-o", "json", &set]);
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let passed: Vec<Option<bool>> = lines.iter().map(|line| line["passed"].as_bool()).collect();
    assert_eq!(passed, [Some(true), Some(false), Some(true)]);
    assert_eq!(lines[1]["failures"][0]["code"], "K0024");
}

#[test]
fn explain_tells_ties_kinds_that_no_step_takes_and_tags_that_nothing_gives() {
    let folder = tempfile::tempdir().unwrap();
    let set = write(folder.path(), "set.yaml", SET);
    let output = kinference(&["ctl", "explain", &set, "--model", "m", "--tag", "pii"]);
    let stdout = text(&output.stdout);
    for part in
        [": tied, lost by chance", ": chosen, place 1", ": no step of this rule takes External", "by select[0] ("]
    {
        assert!(stdout.contains(part), "{part} in\n{stdout}");
    }
    let output = kinference(&["ctl", "explain", &set, "--model", "m", "--signal", "10.0.0.5:8000.inFlight=3"]);
    assert!(!text(&output.stdout).contains("tied"), "fewer in flight is no chance: {output:?}");
    let output = kinference(&["ctl", "explain", &set, "--model", "m", "--tag", "pi"]);
    assert!(text_of_notes(&output).contains("no classifier gives the tag `pi`; did you mean `pii`?"), "{output:?}");
    let narrow = write(folder.path(), "narrow.yaml", &SET.replace("[{ tags: [pii] }]", "[{ tags: [pii], model: m }]"));
    let explained = |model: &str, tag: &str| {
        text_of_notes(&kinference(&["ctl", "explain", &narrow, "--model", model, "--tag", tag]))
    };
    assert_eq!(explained("full/m", "pii"), "note: `full/m` is another name of `m` and is not taken by the rule `keep`");
    assert_eq!((explained("m", "pii"), explained("full/m", "code")), (String::new(), String::new()));
    for (option, cited) in [
        (["--signal", "own.redy=false"], "--signal own.redy=false: there is no field `redy` here"),
        (["--signal", "own.queuedPrompts=many"], "--signal own.queuedPrompts=many: expected a number"),
        (["--api", "Chat"], "--api: the text \"Chat\" is not possible here"),
    ] {
        let output = kinference(&[&["ctl", "explain", &set, "--model", "m"][..], &option].concat());
        let stderr = text(&output.stderr);
        assert!(stderr.contains(cited) && !stderr.contains("-->"), "{cited} in {stderr}");
    }
}

#[test]
fn diff_counts_lines_it_cannot_read_and_says_what_a_set_lacks() {
    let [fleet, policy] = overflow();
    let folder = tempfile::tempdir().unwrap();
    let lacking = kinference(&["ctl", "diff", &policy, &policy]);
    let stderr = text(&lacking.stderr);
    assert_eq!(code(&lacking), Some(2));
    assert!(stderr.contains("there is no InferenceProvider `databricks`"), "{stderr}");
    assert!(stderr.contains("`--with resources.yaml`"), "{stderr}");
    let compared = |log: &str| {
        let log = write(folder.path(), "access.jsonl", log);
        text(&kinference(&["ctl", "diff", &policy, &policy, "--with", &fleet, "--log", &log]).stdout)
    };
    assert!(compared("\n").contains("the log is empty"));
    let some = compared("{\"model\":\"qwen-3.6\"}\n{\"event\":\"x\"}\nstarted\n{\"model\":\n");
    for line in ["1 request compared, 0 would", "1 line is no request with a model", "2 lines are not readable as JSON"]
    {
        assert!(some.contains(line), "{line} in {some}");
    }
}

#[test]
fn a_key_in_place_of_its_hash_and_a_bound_as_text_are_told_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let key = SET.replace("3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7", "sk-plain-key");
    let output = kinference(&["ctl", "lint", "-o", "human", &write(folder.path(), "key.yaml", &key)]);
    let stdout = text(&output.stdout);
    assert!(stdout.contains("`printf %s KEY | sha256sum`, or use `fromEnv`"), "{stdout}");
    assert!(stdout.ends_with("1 file, 1 error, 0 warnings\n"), "{stdout}");
    let busy = |bound: &str| {
        let drop = format!("route: {{ exclude: [{{ name: busy, drop: {bound} }}], select");
        let set = SET.replace("route: { select", &drop);
        text(&kinference(&["ctl", "lint", &write(folder.path(), "busy.yaml", &set)]).stdout)
    };
    for (bound, example) in [
        ("{ queuedPrompts: '> 3' }", "expected e.g. `{ greaterThan: 3 }`"),
        ("{ kvCacheUsage: 0.9 }", "expected e.g. `{ greaterThan: 0.5 }`"),
        ("{ predictedTTFT: 1s }", "expected e.g. `{ greaterThan: 500ms }`"),
    ] {
        let stdout = busy(bound);
        assert!(stdout.contains(example), "{example} in {stdout}");
    }
}
