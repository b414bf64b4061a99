//! What an API server says of an object, by our definitions: field validation as `kubectl apply` asks for it, the schema, keys of
//! lists, and the rules in CEL, in the order of a real one, and no further than a real one goes
//! (`k8s.io/apiextensions-apiserver/pkg/registry/customresource`).

use std::collections::BTreeMap;

use crds::schema::crd;
use crds::{API_VERSION, Kind};
use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use kube_cel::{CompiledSchema, compile_schema};
use serde_json::{Map, Value, json};

/// A reason why an object is not stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Refusal {
    /// Where: `spec.rules[0].name`.
    pub(crate) path: String,
    /// What a person is told.
    pub(crate) message: String,
}

/// The definitions, ready to judge by.
pub(crate) struct ApiServer {
    definitions: BTreeMap<Kind, Definition>,
}

struct Definition {
    schema: Value,
    structure: Validator,
    rules: CompiledSchema,
}

impl ApiServer {
    pub(crate) fn new() -> Self {
        let definitions = Kind::CUSTOM_RESOURCES.into_iter().map(|kind| {
            let schema = schema(kind);
            let structure = jsonschema::validator_for(&schema).expect("a schema");
            let rules = compile_schema(&schema);
            (kind, Definition { schema, structure, rules })
        });
        Self { definitions: definitions.collect() }
    }

    /// Every reason to refuse an object; none when it is stored.
    pub(crate) fn apply(&self, object: &Value) -> Vec<Refusal> {
        let kind = object["kind"].as_str().and_then(Kind::from_name);
        let known = kind.filter(|_| object["apiVersion"] == API_VERSION).and_then(|kind| self.definitions.get(&kind));
        let Some(definition) = known else {
            return vec![refusal("", "no matches for this kind in this version")];
        };
        let mut refusals = Vec::new();
        unknown_fields(object, &definition.schema, "", &mut refusals);
        if !refusals.is_empty() {
            return refusals;
        }
        let mut blocked = false;
        let mut object = object.clone();
        drop_nulls(&mut object, &definition.schema);
        for error in definition.structure.iter_errors(&object) {
            blocked |= is_blocking(error.kind());
            refusals.push(refusal(&path_of(error.instance_path().as_str()), &error.to_string()));
        }
        repeated_keys(&object, &definition.schema, "", &mut refusals);
        if !blocked && let Err(errors) = kube_cel::validate_compiled(&definition.rules, &object, None) {
            refusals.extend(errors.iter().map(|e| refusal(&e.field_path, &e.message)));
        }
        refusals.sort();
        refusals
    }
}

/// Whether rules are not even asked where there is such an error.
fn is_blocking(kind: &ValidationErrorKind) -> bool {
    matches!(
        kind,
        ValidationErrorKind::Type { .. }
            | ValidationErrorKind::Required { .. }
            | ValidationErrorKind::Enum { .. }
            | ValidationErrorKind::MaxLength { .. }
            | ValidationErrorKind::MaxItems { .. }
    )
}

/// Fields of every object's metadata.
const METADATA: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The schema of a kind's objects.
pub(crate) fn schema(kind: Kind) -> Value {
    let definition = crd::definition(kind).expect("a custom resource");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn refusal(path: &str, message: &str) -> Refusal {
    Refusal { path: path.to_owned(), message: message.to_owned() }
}

/// `/spec/rules/0/name` as `spec.rules[0].name`.
fn path_of(pointer: &str) -> String {
    pointer.split('/').skip(1).fold(String::new(), |mut path, step| {
        match step.parse::<usize>() {
            Ok(index) => path.push_str(&format!("[{index}]")),
            Err(_) if path.is_empty() => path.push_str(step),
            Err(_) => path.push_str(&format!(".{step}")),
        }
        path
    })
}

/// Whether a node takes any content: metadata, which the API server judges by rules of its own, and what is preserved as it is.
fn is_open(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true || *schema == json!({ "type": "object" })
}

/// Calls `visit` with every property and item of `value` for which `schema` has a schema.
fn each_child(value: &Value, schema: &Value, path: &str, visit: &mut dyn FnMut(&Value, &Value, &str)) {
    match value {
        Value::Object(object) => {
            for (name, child) in object {
                let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                if let Some(schema) = schema["properties"].get(name).or_else(|| schema.get("additionalProperties")) {
                    visit(child, schema, &below);
                }
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                if let Some(schema) = schema.get("items") {
                    visit(item, schema, &format!("{path}[{i}]"));
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `fieldValidation=Strict`, which kubectl asks for: what the schema does not know is refused, and not dropped unseen.
fn unknown_fields(value: &Value, schema: &Value, path: &str, refusals: &mut Vec<Refusal>) {
    if is_open(schema) {
        let metadata = if path == "metadata" { value.as_object() } else { None };
        for name in metadata.into_iter().flat_map(Map::keys).filter(|name| !METADATA.contains(&name.as_str())) {
            refusals.push(refusal(&format!("metadata.{name}"), &format!("unknown field \"metadata.{name}\"")));
        }
        return;
    }
    if let (Value::Object(object), Some(Value::Object(properties))) = (value, schema.get("properties")) {
        for name in object.keys().filter(|name| !properties.contains_key(*name)) {
            let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            refusals.push(refusal(&place, &format!("unknown field \"{place}\"")));
        }
    }
    each_child(value, schema, path, &mut |child, schema, path| unknown_fields(child, schema, path, refusals));
}

/// A `null` where none is possible is as if the field were not there.
fn drop_nulls(value: &mut Value, schema: &Value) {
    if is_open(schema) {
        return;
    }
    match value {
        Value::Object(object) => {
            object.retain(|_, child| !child.is_null());
            for (name, child) in object {
                if let Some(schema) = schema["properties"].get(name).or_else(|| schema.get("additionalProperties")) {
                    drop_nulls(child, schema);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_nulls(item, &schema["items"])),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `x-kubernetes-list-type: map`: no two items with the same keys.
fn repeated_keys(value: &Value, schema: &Value, path: &str, refusals: &mut Vec<Refusal>) {
    if let (Value::Array(items), Some(Value::Array(names))) = (value, schema.get("x-kubernetes-list-map-keys")) {
        let keys = |item: &Value| -> Map<String, Value> {
            names.iter().filter_map(Value::as_str).map(|name| (name.to_owned(), item[name].clone())).collect()
        };
        for (i, item) in items.iter().enumerate() {
            if items.iter().take(i).any(|earlier| keys(earlier) == keys(item)) {
                let shown = Value::Object(keys(item));
                refusals.push(refusal(&format!("{path}[{i}]"), &format!("Duplicate value: {shown}")));
            }
        }
    }
    each_child(value, schema, path, &mut |child, schema, path| repeated_keys(child, schema, path, refusals));
}
