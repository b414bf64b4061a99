//! Configuration: YAML, documents, the server's file, values with a syntax of their own, and the decisions of what comes into
//! force.

use config::load::documents;
use config::node::{Content, Node};
use config::snapshot::{DestinationKind, Pool, PoolScope};
use config::{Lookup, ServerFile, Snapshot, SourceFile, limits, policy_test, url};
use crds::value::{Bytes, Duration};
use lb::probe::control::server_url;
use policy::explain::explain;
use policy::{Backend, Candidate, Decision, Diagnostic, Request, Scratch, Severity, Signal, Target, Verdict, decide};
use serde_json::Value;

use crate::input::Choices;
use crate::json::Json;

fn file(data: &[u8]) -> SourceFile {
    SourceFile { name: "folder/file.yaml".into(), bytes: data.to_vec() }
}

/// YAML: every node stands inside the file and within the bounds, every finding can be shown, and what is JSON means what it
/// means as JSON.
pub fn yaml(data: &[u8]) {
    let mut findings = Vec::new();
    let documents = documents(&file(data), &mut findings);
    check_findings(data, &findings);
    let mut nodes = 0;
    for document in &documents {
        nodes += check_node(&document.root, lines_of(data), 1);
    }
    assert!(nodes <= limits::NODES_MAX, "{nodes} nodes");
    let json = serde_json::from_slice::<Value>(data);
    if let (Ok(json @ (Value::Object(_) | Value::Array(_))), true) = (json, findings.is_empty())
        && data.len() < 1_000
        && let Some(strict) = Json::parse(data)
        && is_plain(&strict)
    {
        assert_eq!(documents.len(), 1, "JSON is one document");
        assert_eq!(documents[0].root.to_value(), json, "JSON is YAML");
    }
}

/// Numbers that are the same in both, texts that YAML may hold.
fn is_plain(json: &Json) -> bool {
    match json {
        Json::Null | Json::Bool(_) => true,
        Json::Number(number) => number.as_i64().is_some(),
        Json::String(text) => text.chars().all(|c| !c.is_control()),
        Json::Array(list) => list.iter().all(is_plain),
        Json::Object(members) => {
            members.iter().all(|(key, value)| is_plain(value) && !key.chars().any(char::is_control))
        }
    }
}

fn lines_of(data: &[u8]) -> u32 {
    // Any of YAML's line breaks, and the line behind the last.
    let breaks = data.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
    u32::try_from(breaks).unwrap_or(u32::MAX).saturating_add(2)
}

fn check_node(node: &Node, lines: u32, depth: usize) -> usize {
    assert!(depth <= limits::NODE_DEPTH_MAX + 1, "deeper than may be");
    let place = node.place;
    assert!(place.line >= 1 && place.column >= 1 && place.line <= lines, "{place:?} of {lines} lines");
    assert!((place.line, place.column) <= (place.end_line, place.end_column), "{place:?} ends before it begins");
    match &node.content {
        Content::List(items) => 1 + items.iter().map(|item| check_node(item, lines, depth + 1)).sum::<usize>(),
        Content::Mapping(entries) => {
            1 + entries.iter().map(|entry| check_node(&entry.value, lines, depth + 1)).sum::<usize>()
        }
        Content::Null | Content::Bool(_) | Content::Integer(_) | Content::Float(_) | Content::Text(_) => 1,
    }
}

fn check_findings(data: &[u8], findings: &[Diagnostic]) {
    let source = String::from_utf8_lossy(data);
    for finding in findings {
        if let Some(span) = &finding.span {
            assert!(span.line >= 1 && span.column >= 1 && span.line <= lines_of(data), "{finding}");
        }
        let json: Value = serde_json::from_str(&finding.json()).expect("a finding is JSON");
        assert!(json.is_object());
        assert!(!finding.human(Some(&source)).is_empty());
        assert_eq!(finding.github().lines().count(), 1, "{}", finding.github());
    }
}

/// Documents to a snapshot: refused with findings, or in force; then every pool decides, the same each time, for somebody who
/// may answer.
pub fn documents_in_force(data: &[u8]) {
    match config::load(&[file(data)], &Lookup::Skip) {
        Err(findings) => {
            assert!(findings.iter().any(|finding| finding.severity == Severity::Error), "refused without an error");
            assert!(findings.len() <= limits::FINDINGS_MAX + 1);
            check_findings(data, &findings);
        }
        Ok(loaded) => {
            check_findings(data, &loaded.snapshot.warnings);
            assert!(loaded.snapshot.warnings.iter().all(|finding| finding.severity == Severity::Warning));
            let results = policy_test::run(&loaded.snapshot, &loaded.tests, &|_, _| Vec::new());
            let cases: usize = loaded.tests.iter().map(|test| test.test.cases.len()).sum();
            assert_eq!(results.len(), cases);
            let mut choices = Choices::of(data);
            for pool in loaded.snapshot.pools.iter().take(4) {
                for _ in 0..6 {
                    decide_once(&loaded.snapshot, pool, &mut choices);
                }
            }
        }
    }
}

/// An endpoint that something is known of.
struct Endpoint {
    target: Target,
    backend: Backend,
    facts: u64,
}

impl Candidate for Endpoint {
    fn target(&self) -> Target {
        self.target
    }

    fn backend(&self) -> Backend {
        self.backend
    }

    fn ready(&self) -> bool {
        self.facts & 7 != 0
    }

    fn at_limit(&self) -> bool {
        self.facts >> 3 & 7 == 0
    }

    fn signal(&self, signal: Signal) -> Option<f64> {
        let name = format!("{signal:?}");
        let mut choices = Choices::new(self.facts ^ Choices::of(name.as_bytes()).word());
        choices.one_of(&[
            None,
            Some(0.0),
            Some(0.5),
            Some(3.0),
            Some(1e6),
            Some(1e300),
            Some(f64::NAN),
            Some(f64::INFINITY),
        ])
    }

    fn uncertainty(&self) -> f64 {
        Choices::new(self.facts).one_of(&[0.0, 0.2, 0.7, f64::NAN])
    }
}

fn decide_once(snapshot: &Snapshot, pool: &Pool, choices: &mut Choices) {
    let names: Vec<&str> = pool.names().into_iter().collect();
    let model = if names.is_empty() { "m" } else { choices.one_of(&names) };
    let tenants: Vec<&str> =
        snapshot.tenants.iter().map(|tenant| tenant.id.name.as_str()).chain(["anonymous"]).collect();
    let asked: Vec<&str> = pool.program.tags_referenced().iter().map(String::as_str).chain(["pii-unscanned"]).collect();
    let tags: Vec<&str> = (0..choices.below(3)).map(|_| choices.one_of(&asked)).collect();
    let request = Request {
        tags: &tags,
        prompt_tokens: choices.one_of(&[f64::NAN, 0.0, 700.0, 1e9]),
        ..Request::chat(model, choices.one_of(&tenants))
    };
    let found = snapshot.pool_for(model, &PoolScope::All).is_some();
    assert!(found || names.is_empty(), "no pool for a name that one serves");
    let rule = pool.program.match_rule(&request);
    let mut endpoints = Vec::new();
    for target in pool.program.targets(rule, model) {
        let destination = &pool.destinations[usize::from(target.destination)];
        assert!(snapshot.model(pool, *target).is_some(), "a target without a model");
        let several = match destination.kind {
            DestinationKind::WorkerSet(_) => 2,
            DestinationKind::Provider(_) => 1,
        };
        let backend = destination.kind.backend();
        endpoints.extend((0..several).map(|_| Endpoint { target: *target, backend, facts: choices.word() }));
    }
    let (seed, mut scratch) = (choices.word(), Scratch::new());
    let decision = decide(&pool.program, rule, &request, &endpoints, seed, &mut scratch);
    assert_eq!(
        decide(&pool.program, rule, &request, &endpoints, seed, &mut Scratch::new()),
        decision,
        "not the same again"
    );
    assert_eq!(scratch.verdicts().len(), endpoints.len());
    match decision {
        Decision::Chosen { candidate, .. } => {
            let chosen = &endpoints[candidate];
            assert!(chosen.ready() && !chosen.at_limit(), "somebody who may not answer was chosen");
            assert_eq!(scratch.verdicts()[candidate], Verdict::Chosen);
            assert_eq!(scratch.verdicts().iter().filter(|verdict| **verdict == Verdict::Chosen).count(), 1);
        }
        Decision::Refused(refusal) => {
            assert!((400..600).contains(&refusal.status()), "status {}", refusal.status());
            assert!(!scratch.verdicts().contains(&Verdict::Chosen));
        }
    }
    let told = explain(&pool.program, rule, &request, &endpoints, &decision, &scratch, &|at| format!("endpoint {at}"));
    assert!(!told.human().is_empty());
    assert!(Json::parse(told.json().as_bytes()).is_some(), "an explanation is JSON");
}

/// The server's own file: refused with findings, or within every bound.
pub fn server_file(data: &[u8]) {
    match ServerFile::load(&file(data)) {
        Err(findings) => {
            assert!(!findings.is_empty() && findings.len() <= limits::FINDINGS_MAX + 1);
            check_findings(data, &findings);
        }
        Ok(server) => {
            assert!(server.limits.request_body_bytes_max <= limits::REQUEST_BODY_BYTES_MAX);
            let (least, most) = limits::REQUEST_HEAD_BYTES;
            assert!((least..=most).contains(&server.limits.request_head_bytes_max));
            assert!(server.stream_ping.is_none_or(|interval| interval >= limits::STREAM_PING_MIN));
        }
    }
}

/// Durations, sizes and URLs: what is read, written again, is read as the same.
pub fn values(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(duration) = Duration::parse(text) {
        assert!(duration.0 <= crds::value::DURATION_MAX);
        assert_eq!(Duration::parse(&duration.to_string()), Ok(duration));
    }
    if let Ok(bytes) = Bytes::parse(text) {
        assert_eq!(Bytes::parse(&bytes.to_string()), Ok(bytes));
    }
    if let Ok(base) = url::parse_base_url(text) {
        assert_eq!(url::check_host(&base.host), Ok(()));
        assert!(base.port != 0 && !base.path_prefix.ends_with('/'));
        // It stands in a request line.
        assert!(base.path_prefix.chars().all(|c| c > ' ' && c != '\u{7f}'), "{base:?}");
        let host = if base.host.contains(':') { format!("[{}]", base.host) } else { base.host.clone() };
        let scheme = if text.starts_with("https") { "https" } else { "http" };
        let again = format!("{scheme}://{host}:{}{}", base.port, base.path_prefix);
        assert_eq!(url::parse_base_url(&again).map(|again| format!("{again:?}")), Ok(format!("{base:?}")));
    }
    if let Ok(server) = server_url(text) {
        assert!(server.port != 0 && !server.host.is_empty());
        assert!(server.host.chars().all(|c| c > ' ' && c != '\u{7f}'), "{server:?} stands in a header");
        assert_eq!(server_url(&format!("http://{server}")).map(|again| again.to_string()), Ok(server.to_string()));
    }
}
