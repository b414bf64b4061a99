//! CustomResourceDefinitions, printed from the schemas.
//!
//! A structural schema (Kubernetes, "Specifying a structural schema") allows no `additionalProperties`
//! beside `properties`, no alternatives with types of their own, and has a type at every node. What the
//! plain form says with its own keywords becomes CEL rules here. The API server refuses a definition whose rules could cost too much,
//! by the longest lists and texts there may be: a list above a rule, and a text inside one, needs a bound.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::document::Kind;
use crate::status::Status;
use crate::{GROUP, VERSION};

/// A DNS name or an IPv4 address.
const HOST: &str =
    r"([0-9A-Za-z_]([0-9A-Za-z_-]{0,61}[0-9A-Za-z_])?\.)*[0-9A-Za-z_]([0-9A-Za-z_-]{0,61}[0-9A-Za-z_])?\.?";
/// An IPv4 address.
const IPV4: &str = r"((25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})";
/// An IPv6 address, roughly.
const IPV6: &str = "[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*";
/// Longest text of a duration: `168h` in microseconds has twelve digits.
const DURATION_LENGTH_MAX: u32 = 32;

/// The definition of a kind, or `None` for one that is not a Kubernetes resource.
#[must_use]
pub fn definition(kind: Kind) -> Option<Value> {
    let (short, columns) = match kind {
        Kind::InferencePolicy => ("ipol", json!([])),
        Kind::InferencePool => ("ipool", json!([column("Ready", "integer", ".status.readyEndpoints")])),
        Kind::InferenceWorkerSet => (
            "iws",
            json!([
                column("Model", "string", ".spec.model.name"),
                column("Ready", "integer", ".status.readyEndpoints"),
                column("Endpoints", "integer", ".status.endpoints"),
            ]),
        ),
        Kind::InferenceProvider => {
            ("iprov", json!([column("Type", "string", ".spec.type"), column("URL", "string", ".spec.baseURL")]))
        }
        Kind::InferenceTenant => ("iten", json!([column("Priority", "integer", ".spec.priority")])),
        Kind::InferenceClassifier => ("icls", json!([column("Type", "string", ".spec.type")])),
        Kind::PolicyTest => return None,
    };
    let mut columns = columns.as_array().cloned().unwrap_or_default();
    columns.insert(0, column("Accepted", "string", ".status.conditions[?(@.type=='Accepted')].status"));
    columns.push(wide("Programmed", ".status.conditions[?(@.type=='Programmed')].status"));
    columns.push(wide("Reason", ".status.conditions[?(@.type=='Accepted')].reason"));
    columns.push(column("Age", "date", ".metadata.creationTimestamp"));
    let mut spec = super::spec(kind);
    let mut status = super::of::<Status>();
    let description = spec.get("description").cloned().unwrap_or_default();
    structural(&mut spec);
    structural(&mut status);
    let schema = json!({
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": spec,
            "status": status,
        },
    });
    Some(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{GROUP}", kind.plural()) },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.as_str(),
                "listKind": format!("{kind}List"),
                "plural": kind.plural(),
                "singular": kind.as_str().to_lowercase(),
                "shortNames": [short],
                "categories": ["kinference"],
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns,
                "schema": { "openAPIV3Schema": schema },
            }],
        },
    }))
}

fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

/// A column that `kubectl get -o wide` shows.
fn wide(name: &str, path: &str) -> Value {
    json!({ "name": name, "type": "string", "jsonPath": path, "priority": 1 })
}

/// Makes a schema in the plain form structural.
fn structural(value: &mut Value) {
    let Value::Object(object) = value else { return };
    if object.contains_key("anyOf") {
        // A list or a mapping: no structural schema says so. The balancer checks it and says what is wrong in the status.
        object.retain(|key, _| key == "description");
        object.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
        return;
    }
    if object.contains_key("properties") {
        object.remove("additionalProperties");
    }
    if object.get("type") == Some(&json!("boolean")) && object.get("enum") == Some(&json!([true])) {
        object.remove("enum");
        object.insert("x-kubernetes-validations".to_owned(), json!([{ "rule": "self", "message": "must be true" }]));
    }
    formats(object);
    tell_default(object);
    object.remove("x-descriptions");
    object.remove("x-expected");
    let rules = rules(object);
    if !rules.is_empty() {
        object.insert("x-kubernetes-validations".to_owned(), Value::Array(rules));
    }
    if let Some(keys) = object.remove("x-list-map-keys") {
        object.insert("x-kubernetes-list-type".to_owned(), json!("map"));
        object.insert("x-kubernetes-list-map-keys".to_owned(), keys);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = object.get_mut(key) {
            structural(child);
        }
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(structural);
    }
}

/// A default is told and not given to the API server, which would write it into every object it stores: a later version could not
/// change it, and nobody could tell what was meant from what was left out.
fn tell_default(object: &mut Map<String, Value>) {
    let Some(default) = object.remove("default") else { return };
    let shown = match &default {
        Value::String(text) if text.is_empty() => return,
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => default.to_string(),
        // That of each field inside is told there.
        Value::Null | Value::Array(_) | Value::Object(_) => return,
    };
    let told = object.get("description").and_then(Value::as_str).unwrap_or_default();
    let told = format!("{told} Default: `{shown}`.");
    object.insert("description".to_owned(), json!(told.trim_start()));
}

/// A CRD knows few formats: those of ours become patterns and rules. The balancer checks them again, and more closely.
fn formats(object: &mut Map<String, Value>) {
    let Some(format) = object.remove("format") else { return };
    match format.as_str() {
        Some("date-time") => {
            object.insert("format".to_owned(), format);
        }
        Some("url") => {
            let pattern = format!(r"^https?://({HOST}|\[{IPV6}\])(:[0-9]{{1,5}})?(/[^?#\\\s]*)?$");
            object.insert("pattern".to_owned(), json!(pattern));
        }
        Some("host") => {
            object.insert("pattern".to_owned(), json!(format!(r"^({HOST}|{IPV6}|\[{IPV6}\])$")));
        }
        Some("socket-address") => {
            object.insert("pattern".to_owned(), json!(format!(r"^({IPV4}|\[{IPV6}\]):[0-9]{{1,5}}$")));
        }
        Some("duration") => {
            // Parsing is paid for by the longest text there may be.
            object.insert("maxLength".to_owned(), json!(DURATION_LENGTH_MAX));
            if !object.contains_key("x-cel") {
                object.insert("x-cel".to_owned(), json!([["duration(self) <= duration('168h')", "longer than 168h"]]));
            }
        }
        Some(_) | None => {}
    }
}

/// The CEL rules of a node, from the keywords that say them in the plain form.
fn rules(object: &mut Map<String, Value>) -> Vec<Value> {
    let mut rules: Vec<Value> =
        object.remove("x-kubernetes-validations").and_then(|v| v.as_array().cloned()).unwrap_or_default();
    if let Some(names) = object.remove("x-exactly-one-of") {
        let names = texts(&names);
        let terms: Vec<String> = names.iter().map(|n| format!("(has(self.{n}) ? 1 : 0)")).collect();
        let message = format!("exactly one of {} must be given", names.join(", "));
        rules.push(json!({ "rule": format!("{} == 1", terms.join(" + ")), "message": message }));
    }
    if let Some(names) = object.remove("x-at-least-one-of") {
        let names = texts(&names);
        let terms: Vec<String> = names.iter().map(|n| format!("has(self.{n})")).collect();
        let message = format!("at least one of {} must be given", names.join(", "));
        rules.push(json!({ "rule": terms.join(" || "), "message": message }));
    }
    if let Some(names) = object.remove("x-unique-by") {
        let names = texts(&names);
        let equal: Vec<String> = names.iter().map(|n| format!("b.{n} == a.{n}")).collect();
        let rule = format!("self.all(a, self.exists_one(b, {}))", equal.join(" && "));
        rules.push(json!({ "rule": rule, "message": format!("two items have the same {}", names.join(" and ")) }));
    }
    if let Some(names) = object.remove("x-not-one-of") {
        let list = texts(&names).iter().map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ");
        let message = "the gateway writes this header itself, or keeps it to itself";
        rules.push(json!({ "rule": format!("!(self.lowerAscii() in [{list}])"), "message": message }));
    }
    for pair in object.remove("x-cel").iter().flat_map(|v| v.as_array().into_iter().flatten()) {
        rules.push(json!({ "rule": pair[0], "message": pair[1] }));
    }
    rules
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The definition as YAML.
#[must_use]
pub fn yaml(kind: Kind) -> Option<String> {
    let mut out = String::from("# Printed from the types in crds/src; do not edit.\n");
    write_value(&mut out, &definition(kind)?, 0);
    Some(out)
}

/// Block style YAML. Scalars are written as JSON, which YAML contains; plain words without quotes.
fn write_value(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(object) if !object.is_empty() => write_object(out, object, indent),
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let _ = write!(out, "{:indent$}- ", "");
                let mut text = String::new();
                write_value(&mut text, item, indent + 2);
                out.push_str(text.trim_start());
            }
        }
        Value::Object(_) | Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let _ = writeln!(out, "{:indent$}{}", "", scalar(value));
        }
    }
}

fn write_object(out: &mut String, object: &Map<String, Value>, indent: usize) {
    for (key, value) in object {
        let key = scalar(&Value::String(key.clone()));
        let nested = match value {
            Value::Object(inner) => !inner.is_empty(),
            Value::Array(inner) => !inner.is_empty(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        };
        if nested {
            let _ = writeln!(out, "{:indent$}{key}:", "");
            write_value(out, value, indent + 2);
        } else {
            let _ = writeln!(out, "{:indent$}{key}: {}", "", scalar(value));
        }
    }
}

/// A scalar on one line. Only words that can mean nothing else go without quotes.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let word = text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/'));
            let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
            if word && !reserved.contains(&text.to_lowercase().as_str()) { text.clone() } else { value.to_string() }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}
