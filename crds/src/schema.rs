//! JSON Schema of every kind, in a plain form that is easy to walk.
//!
//! The form: `type` is one name; an enum of documented variants is one `enum` list with
//! `x-descriptions` beside it; nothing is nullable; nothing refers elsewhere. Keywords of our own say
//! what Kubernetes says with CEL: `x-exactly-one-of`, `x-at-least-one-of`, `x-unique-by`, `x-not-one-of` and, for all else, pairs of
//! a rule and its message in `x-cel`; `x-list-map-keys` names the fields by which the items of a list without order are told apart;
//! `x-expected` says in words what a `pattern` asks for; and `format` names a syntax (`duration`, `bytes`, `url`, `host`, `sha256`,
//! `socket-address`). What only Kubernetes reads here, the `config` crate judges with more knowledge.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::API_VERSION;
use crate::classifier::InferenceClassifierSpec;
use crate::document::{Kind, Metadata};
use crate::policy::InferencePolicySpec;
use crate::policy_test::Case;
use crate::pool::InferencePoolSpec;
use crate::provider::InferenceProviderSpec;
use crate::server::ServerSpec;
use crate::tenant::InferenceTenantSpec;
use crate::worker_set::InferenceWorkerSetSpec;

pub mod crd;
pub mod example;
pub mod reference;

/// Metadata that only an API server writes; accepted and ignored, as `kubectl get -o yaml` prints it.
const SERVER_WRITTEN: [&str; 8] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "finalizers",
    "ownerReferences",
    "selfLink",
];

/// The schema of a kind's `spec` (of `PolicyTest`, of its `cases`).
#[must_use]
pub fn spec(kind: Kind) -> Value {
    match kind {
        Kind::InferencePolicy => of::<InferencePolicySpec>(),
        Kind::InferencePool => of::<InferencePoolSpec>(),
        Kind::InferenceWorkerSet => of::<InferenceWorkerSetSpec>(),
        Kind::InferenceProvider => of::<InferenceProviderSpec>(),
        Kind::InferenceTenant => of::<InferenceTenantSpec>(),
        Kind::InferenceClassifier => of::<InferenceClassifierSpec>(),
        Kind::PolicyTest => {
            json!({ "type": "array", "minItems": 1, "items": of::<Case>(), "description": "The cases, each on its own." })
        }
    }
}

/// The schema of a whole document of a kind.
#[must_use]
pub fn document(kind: Kind) -> Value {
    let mut metadata = of::<Metadata>();
    if let Some(properties) = metadata.get_mut("properties").and_then(Value::as_object_mut) {
        for name in SERVER_WRITTEN {
            properties.insert(name.to_owned(), json!({}));
        }
    }
    metadata["additionalProperties"] = json!(false);
    let mut properties = Map::new();
    properties.insert("kind".to_owned(), json!({ "type": "string", "enum": [kind.as_str()] }));
    properties.insert("apiVersion".to_owned(), json!({ "type": "string", "enum": [API_VERSION] }));
    properties.insert("metadata".to_owned(), metadata);
    let (body, required) = match kind {
        Kind::PolicyTest => ("cases", json!(["kind", "metadata", "cases"])),
        Kind::InferencePolicy
        | Kind::InferencePool
        | Kind::InferenceWorkerSet
        | Kind::InferenceProvider
        | Kind::InferenceTenant
        | Kind::InferenceClassifier => {
            properties.insert("status".to_owned(), json!({}));
            ("spec", json!(["apiVersion", "kind", "metadata", "spec"]))
        }
    };
    properties.insert(body.to_owned(), spec(kind));
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// The schema of the server's own file.
#[must_use]
pub fn server() -> Value {
    of::<ServerSpec>()
}

/// One JSON Schema for editors: a document of any kind, told apart by `kind`.
#[must_use]
pub fn editor() -> Value {
    let branches: Vec<Value> = Kind::ALL
        .into_iter()
        .map(|kind| {
            let when = json!({ "properties": { "kind": { "const": kind.as_str() } }, "required": ["kind"] });
            json!({ "if": when, "then": document(kind) })
        })
        .collect();
    let kinds: Vec<&str> = Kind::ALL.into_iter().map(Kind::as_str).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Kinference resource",
        "type": "object",
        "required": ["kind"],
        "properties": { "kind": { "enum": kinds } },
        "allOf": branches,
    })
}

/// The schema of a type in the plain form.
fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut value = SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value();
    simplify(&mut value);
    value
}

/// Brings a schema and everything below it into the plain form.
fn simplify(value: &mut Value) {
    let Value::Object(object) = value else { return };
    object.remove("title");
    object.remove("$schema");
    drop_null(object);
    merge_variants(object);
    let named = object
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(|f| f.starts_with("int") || f.starts_with("uint") || f == "double" || f == "float");
    if named {
        object.remove("format");
    }
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = object.get_mut(key) {
            simplify(child);
        }
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(simplify);
    }
    if let Some(Value::Array(branches)) = object.get_mut("anyOf") {
        branches.iter_mut().for_each(simplify);
    }
}

/// An optional field is one that may be left out; `null` is a mistake, most often an indentation.
fn drop_null(object: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = object.get("type") {
        let kept: Vec<Value> = types.iter().filter(|t| *t != "null").cloned().collect();
        if let [only] = kept.as_slice() {
            object.insert("type".to_owned(), only.clone());
        }
    }
    if object.get("default") == Some(&Value::Null) {
        object.remove("default");
    }
    let Some(Value::Array(branches)) = object.get_mut("anyOf") else { return };
    branches.retain(|b| b.get("type") != Some(&json!("null")));
    if branches.len() == 1
        && let Some(Value::Object(only)) = branches.pop()
    {
        object.remove("anyOf");
        for (key, value) in only {
            // What is said about the field stands over what is said about its type.
            object.entry(key).or_insert(value);
        }
    }
}

/// `oneOf` constants with descriptions become one list of values.
fn merge_variants(object: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = object.get("oneOf") else { return };
    let mut values = Vec::new();
    let mut descriptions = Map::new();
    for variant in variants {
        let described = variant.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
        let listed = variant.get("enum").and_then(Value::as_array).cloned().unwrap_or_default();
        for value in variant.get("const").cloned().into_iter().chain(listed) {
            if let Some(name) = value.as_str() {
                descriptions.insert(name.to_owned(), Value::String(described.clone()));
            }
            values.push(value);
        }
    }
    object.remove("oneOf");
    object.insert("type".to_owned(), json!("string"));
    object.insert("enum".to_owned(), Value::Array(values));
    object.insert("x-descriptions".to_owned(), Value::Object(descriptions));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `visit` with every schema below `value` and its path.
    fn walk(path: &str, value: &Value, visit: &mut dyn FnMut(&str, &Map<String, Value>)) {
        let Value::Object(object) = value else { return };
        visit(path, object);
        for (name, child) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
            walk(&format!("{path}.{name}"), child, visit);
        }
        for key in ["items", "additionalProperties"] {
            if let Some(child) = object.get(key) {
                walk(&format!("{path}[]"), child, visit);
            }
        }
        for child in object.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
            walk(&format!("{path}|"), child, visit);
        }
    }

    #[test]
    fn every_schema_is_in_the_plain_form() {
        let mut roots: Vec<Value> = Kind::ALL.into_iter().map(spec).collect();
        roots.push(server());
        for root in roots {
            walk("", &root, &mut |path, object| {
                for key in ["$ref", "oneOf", "allOf", "const", "nullable", "$defs"] {
                    assert!(!object.contains_key(key), "{path} has {key}");
                }
                let typed = object.get("type").is_some_and(Value::is_string) || object.contains_key("anyOf");
                assert!(typed, "{path} has no single type: {object:?}");
            });
        }
    }

    #[test]
    fn every_field_is_documented() {
        let mut roots: Vec<Value> = Kind::ALL.into_iter().map(spec).collect();
        roots.push(server());
        for root in roots {
            walk("", &root, &mut |path, object| {
                for (name, child) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
                    assert!(child.get("description").is_some(), "{path}.{name} has no description");
                }
            });
        }
    }

    #[test]
    fn objects_refuse_fields_they_do_not_know() {
        for kind in Kind::ALL {
            walk("", &spec(kind), &mut |path, object| {
                if object.contains_key("properties") {
                    assert_eq!(object.get("additionalProperties"), Some(&json!(false)), "{kind} {path}");
                }
            });
        }
    }
}
