//! The definitions against the loader: an API server refuses what the loader refuses, where a schema and CEL can say it, and
//! nothing that the loader accepts.

mod cost;
mod server;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use config::load::documents;
use config::node::{Content, Node};
use config::{Lookup, SourceFile, load};
use crds::Kind;
use policy::{Code, Diagnostic, Severity};
use serde_json::{Value, json};

use server::{ApiServer, Refusal};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate stands in the workspace").to_owned()
}

/// Name and text of every document file of a folder.
fn files(folder: &str) -> Vec<(String, String)> {
    let entries =
        std::fs::read_dir(root().join(folder)).expect("the folder is there").map(|e| e.expect("reads").path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect();
    files.sort();
    let named = |path: &PathBuf| path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
    files.iter().map(|path| (named(path), std::fs::read_to_string(path).expect("reads"))).collect()
}

/// What a client would send: the objects of a file; `None` when it is not YAML, or what JSON cannot say.
fn objects(text: &str) -> Option<Vec<Value>> {
    fn is_json(node: &Node) -> bool {
        match &node.content {
            Content::Float(number) => number.is_finite(),
            Content::List(items) => items.iter().all(is_json),
            Content::Mapping(entries) => entries.iter().all(|entry| is_json(&entry.value)),
            Content::Null | Content::Bool(_) | Content::Integer(_) | Content::Text(_) => true,
        }
    }
    let mut findings = Vec::new();
    let raw = documents(&SourceFile::new("case.yaml", text), &mut findings);
    let sent = findings.is_empty() && raw.iter().all(|document| is_json(&document.root));
    sent.then(|| raw.iter().map(|document| document.root.to_value()).collect())
}

fn is_custom_resource(object: &Value) -> bool {
    object["kind"] != Kind::PolicyTest.as_str()
}

/// The errors that the loader finds.
fn errors(text: &str) -> Vec<Diagnostic> {
    let findings = load(&[SourceFile::new("case.yaml", text)], &Lookup::Skip).map(|_| Vec::new());
    findings.unwrap_or_else(|findings| findings.into_iter().filter(|f| f.severity == Severity::Error).collect())
}

/// Findings that no schema can make: about more than one object, or about a syntax that CEL does not know.
fn is_beyond_a_schema(code: Code) -> bool {
    matches!(code, Code::UnknownReference | Code::BadRegex)
}

/// Cases in which only the balancer sees what is wrong, and why.
const ONLY_THE_BALANCER: [(&str, &str); 5] = [
    ("duplicate-alias", "a name and its aliases are told apart, within a model and across models"),
    ("duplicate-resource", "the API server knows one object of a name: the second replaces the first"),
    ("same-certificate-of-two-tenants", "about two objects"),
    ("same-key-of-two-tenants", "about two objects"),
    ("same-token-of-two-tenants", "about two objects"),
];

#[test]
fn what_the_loader_refuses_the_api_server_refuses_and_names_the_field() {
    let server = ApiServer::new();
    let mut wrong = Vec::new();
    let mut refused = 0;
    for (case, text) in files("config/tests/cases/broken") {
        let Some(objects) = objects(&text) else { continue };
        let errors = errors(&text);
        let refusals: Vec<Refusal> =
            objects.iter().filter(|o| is_custom_resource(o)).flat_map(|o| server.apply(o)).collect();
        let exempt = ONLY_THE_BALANCER.iter().any(|(name, _)| *name == case);
        let sayable: Vec<&Diagnostic> =
            errors.iter().filter(|e| !is_beyond_a_schema(e.code) && !e.path.starts_with("cases")).collect();
        if exempt || sayable.is_empty() {
            if !refusals.is_empty() {
                wrong.push(format!("{case}: the loader has nothing against it, or alone can see it: {refusals:?}"));
            }
            continue;
        }
        refused += 1;
        if refusals.is_empty() {
            wrong.push(format!("{case}: stored, although {}: {}", sayable[0].path, sayable[0].message));
        }
        // What an API server does not tell at once it tells when the rest is mended: it is not asked to tell everything.
        for refusal in &refusals {
            if !errors.iter().any(|error| names(refusal, &error.path)) {
                wrong.push(format!("{case}: no finding of the loader is about {refusal:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused >= 40, "only {refused} cases");
}

/// Whether a refusal tells of the field at a path: by its place, or by its place above and the field's name.
fn names(refusal: &Refusal, path: &str) -> bool {
    let field = path.rsplit(['.', ']']).next().unwrap_or(path);
    refusal.path == path
        || path.is_empty()
        || (path.starts_with(&refusal.path) && (field.is_empty() || refusal.message.contains(field)))
        || (refusal.path.is_empty() && matches!(path, "kind" | "apiVersion"))
}

#[test]
fn what_the_loader_accepts_the_api_server_accepts() {
    let server = ApiServer::new();
    let mut accepted = 0;
    for folder in ["config/tests/cases/seed-policies", "config/tests/cases/broken", "examples/policies"] {
        for (case, text) in files(folder) {
            if !errors(&text).is_empty() {
                continue;
            }
            for object in objects(&text).into_iter().flatten().filter(is_custom_resource) {
                assert_eq!(server.apply(&object), [], "{folder}/{case}: {object}");
                accepted += 1;
            }
        }
    }
    assert!(accepted >= 100, "only {accepted} objects");
}

/// One object of each kind in which every field that may stand beside the others is written.
fn full() -> Vec<Value> {
    let text = include_str!("full.yaml");
    assert!(errors(text).is_empty(), "{:?}", errors(text));
    objects(text).expect("is YAML")
}

#[test]
fn objects_with_every_field_are_accepted() {
    let server = ApiServer::new();
    let objects = full();
    let kinds: BTreeSet<&str> = objects.iter().filter_map(|o| o["kind"].as_str()).collect();
    assert_eq!(kinds.len(), Kind::CUSTOM_RESOURCES.len());
    for object in &objects {
        assert_eq!(server.apply(object), [], "{object}");
    }
    let mut missing = Vec::new();
    for kind in Kind::CUSTOM_RESOURCES {
        let mut written = BTreeSet::new();
        objects.iter().filter(|o| o["kind"] == kind.as_str()).for_each(|o| fields("spec", &o["spec"], &mut written));
        crds::schema::reference::each_field("spec", &crds::schema::spec(kind), &mut |field| {
            // Where a secret may stand and what it may be is tried with each once, not with all.
            let of_secret =
                ["fromEnv", "fromFile", "secretRef", "awsSigV4"].iter().any(|part| field.path.contains(part));
            if !written.contains(field.path) && !field.path.ends_with('*') && !of_secret {
                missing.push(format!("{kind} {}", field.path));
            }
        });
    }
    assert!(missing.is_empty(), "full.yaml does not write {missing:#?}");
}

/// The paths of all fields below a value, in the form of the reference.
fn fields(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, child) in object {
                let below = format!("{path}.{name}");
                fields(&below, child, found);
                found.insert(below);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(&format!("{path}[]"), item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Every place in a value, as a JSON pointer.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(object) => object.iter().for_each(|(name, v)| pointers(v, &format!("{at}/{name}"), found)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| pointers(v, &format!("{at}/{i}"), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// An object with one thing wrong, or merely else, at a place.
fn changes(object: &Value, pointer: &str) -> Vec<Value> {
    let mut changed = Vec::new();
    let others = [
        json!("x"),
        json!(""),
        json!(-1),
        json!(1),
        json!(0.5),
        json!(1_000_000),
        json!(true),
        json!([]),
        json!({}),
        json!(["x"]),
        json!("5s"),
        json!("400h"),
        json!("1500ms"),
        json!("PII"),
        json!("Regex"),
        json!("HTTP"),
        json!("authorization"),
    ];
    for other in others {
        let mut copy = object.clone();
        if let Some(value) = copy.pointer_mut(pointer)
            && *value != other
        {
            *value = other;
            changed.push(copy);
        }
    }
    if let Some((above, name)) = pointer.rsplit_once('/') {
        let mut copy = object.clone();
        match copy.pointer_mut(above) {
            Some(Value::Object(fields)) => drop(fields.remove(name)),
            Some(Value::Array(items)) => {
                // Twice the same item: names that must be unique are not.
                let index: usize = name.parse().expect("an index");
                items.push(items[index].clone());
            }
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => {}
        }
        changed.push(copy);
    }
    if let Some(Value::Object(_)) = object.pointer(pointer) {
        let mut copy = object.clone();
        copy.pointer_mut(pointer).expect("is there")["noSuchField"] = json!(1);
        changed.push(copy);
    }
    changed
}

/// What only the loader sees of a changed object: a reason for each.
fn only_the_loader(error: &Diagnostic) -> bool {
    // A list or a mapping: no structural schema says so, and nothing inside it is checked.
    let tags = error.path.contains(".tags") && error.path.starts_with("spec.rules");
    // Endpoints that are the same with the port of their set, models that share one of several names.
    let same = error.code == Code::DuplicateName && !error.path.ends_with(".name") && !error.path.ends_with(".tag");
    let models = ["models[", "adapters["].iter().any(|list| error.path.contains(list));
    tags || same || (error.code == Code::DuplicateName && models)
}

/// Of the changes of each object, one in so many is tried; `KINFERENCE_ALL_CHANGES=1` tries all, in some minutes.
const CHANGES_STEP: usize = 7;

#[test]
fn changed_objects_are_judged_alike_by_both() {
    let step = if std::env::var_os("KINFERENCE_ALL_CHANGES").is_some() { 1 } else { CHANGES_STEP };
    let others: String = full().iter().map(|o| format!("---\n{o}\n")).collect();
    let server = ApiServer::new();
    let (mut both, mut neither, mut wrong) = (0, 0, Vec::new());
    for object in full() {
        let mut places = Vec::new();
        pointers(&object["spec"], "/spec", &mut places);
        for changed in places.iter().flat_map(|pointer| changes(&object, pointer)).step_by(step) {
            let refusals = server.apply(&changed);
            // Two references are known to be the same where what they mean is there.
            let referring = object["kind"] == Kind::InferencePool.as_str();
            let text =
                if referring { others.replace(&object.to_string(), &changed.to_string()) } else { changed.to_string() };
            let mut errors = errors(&text);
            errors.retain(|error| !is_beyond_a_schema(error.code));
            let sayable = errors.iter().find(|error| !only_the_loader(error));
            match (refusals.is_empty(), errors.is_empty(), sayable) {
                (true, true, _) | (true, false, None) => neither += 1,
                (false, false, _) => both += 1,
                (false, true, _) => wrong.push(format!("only the API server: {refusals:?}\n  {changed}")),
                (true, false, Some(e)) => wrong.push(format!("only the loader: {} {}\n  {changed}", e.path, e.message)),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        both + neither + wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(both > 5_000 / step && neither > 500 / step, "{both} refused by both, {neither} by neither");
}

#[test]
fn nothing_is_written_into_objects_that_are_stored() {
    for kind in Kind::CUSTOM_RESOURCES {
        for object in full().iter().filter(|o| o["kind"] == kind.as_str()) {
            let mut bare = object.clone();
            strip(&mut bare, &server::schema(kind));
            assert_eq!(kube_cel::apply_defaults(&server::schema(kind), &bare), bare, "{kind}");
        }
    }
}

/// Drops every field that need not be there.
fn strip(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(object) => {
            let needed: Vec<&str> =
                schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            if schema.get("properties").is_some() {
                object.retain(|name, _| needed.contains(&name.as_str()));
            }
            object.iter_mut().for_each(|(name, child)| strip(child, &schema["properties"][name.as_str()]));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| strip(item, &schema["items"])),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
