//! Writes: admission of an object (schema, defaults, pruning), then the store.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::owners::{self, Conflicts, Operation, Owner};
use crate::refusal::{Cause, Refusal};
use crate::resource::{Resource, Scope};
use crate::state::State;
use crate::store::{Deleted, Effect, Key, Part, metadata_mut};
use crate::{patch, rules, schema, time};

/// Media types of patches of a custom resource.
pub(crate) const PATCHES: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

/// What a client wants to happen with fields that the schema does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// How a write is meant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'t> {
    pub part: Part,
    pub validation: FieldValidation,
    pub effect: Effect,
    /// Who writes: `fieldManager`, or the program's name.
    pub manager: &'t str,
}

impl Terms<'_> {
    fn owner(self, operation: Operation) -> Owner {
        let subresource = match self.part {
            Part::Main => "",
            Part::Status => "status",
        };
        Owner { manager: self.manager.to_owned(), operation, subresource }
    }
}

/// An object that was written, and what the client is warned of.
#[derive(Debug)]
pub(crate) struct Written {
    pub object: Arc<Value>,
    pub warnings: Vec<String>,
}

/// The media types of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Merge,
    Json,
    Strategic,
}

pub(crate) fn create(
    state: &mut State,
    resource: &Resource,
    namespace: &str,
    mut object: Value,
    terms: Terms<'_>,
) -> Result<Written, Refusal> {
    judge_kind(resource, &object)?;
    metadata_mut(&mut object).remove("managedFields");
    insert(state, resource, namespace, object, terms, Ownership::ByWriting)
}

/// Whether who owns what is still to be found out from what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ownership {
    ByWriting,
    /// It stands in the object.
    Applied,
}

fn insert(
    state: &mut State,
    resource: &Resource,
    namespace: &str,
    mut object: Value,
    terms: Terms<'_>,
    ownership: Ownership,
) -> Result<Written, Refusal> {
    if object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
        return Err(Refusal::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let name = match (object["metadata"]["name"].as_str(), object["metadata"]["generateName"].as_str()) {
        (Some(name), _) if !name.is_empty() => name.to_owned(),
        (_, Some(prefix)) => format!("{prefix}{:05}", state.store.version),
        (Some(_) | None, None) => {
            let cause = Cause {
                field: "metadata.name".into(),
                reason: "FieldValueRequired",
                message: "Required value: name or generateName is required".into(),
            };
            return Err(Refusal::invalid(resource, "", &[cause]));
        }
    };
    let said = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    if resource.scope == Scope::Namespaced && said != namespace {
        let message = format!(
            "the namespace of the provided object does not match the namespace sent on the request ({said}, {namespace})"
        );
        return Err(Refusal::bad_request(message));
    }
    let key = Key { resource: resource.name(), namespace: namespace.to_owned(), name };
    if resource.scope == Scope::Namespaced {
        let home = Key { resource: "namespaces".into(), namespace: String::new(), name: namespace.to_owned() };
        if state.store.object(&home).is_none() {
            let namespaces = state.resource("", "v1", "namespaces").cloned();
            return Err(namespaces.map_or_else(
                || Refusal::new(404, "NotFound", "no namespaces"),
                |namespaces| Refusal::not_found(&namespaces, namespace),
            ));
        }
    }
    let warnings = admit(resource, &key.name, &mut object, None, terms.validation)?;
    if resource.status_subresource {
        patch::object_mut(&mut object).remove("status");
    }
    match resource.name().as_str() {
        "pods" => object["status"] = json!({ "phase": "Pending" }),
        "namespaces" => object["status"] = json!({ "phase": "Active" }),
        "customresourcedefinitions.apiextensions.k8s.io" => establish(&mut object),
        "secrets" => encode(&mut object),
        _ => {}
    }
    if ownership == Ownership::ByWriting {
        let owner = terms.owner(Operation::Update);
        owners::note_write(resource.schema.as_deref(), None, &mut object, owner, &time::now());
    }
    let object = state.store.create(resource, &key, object, &time::now(), terms.effect)?;
    settle(state, resource, terms.effect);
    Ok(Written { object, warnings })
}

pub(crate) fn update(
    state: &mut State,
    resource: &Resource,
    key: &Key,
    object: Value,
    terms: Terms<'_>,
) -> Result<Written, Refusal> {
    judge_kind(resource, &object)?;
    replace(state, resource, key, object, terms, Ownership::ByWriting)
}

fn replace(
    state: &mut State,
    resource: &Resource,
    key: &Key,
    mut object: Value,
    terms: Terms<'_>,
    ownership: Ownership,
) -> Result<Written, Refusal> {
    let old = state.store.object(key).cloned().ok_or_else(|| Refusal::not_found(resource, &key.name))?;
    // What a write may not touch is not judged by what the client says about it.
    match terms.part {
        Part::Main if resource.status_subresource => match old.get("status") {
            Some(status) => object["status"] = status.clone(),
            None => _ = patch::object_mut(&mut object).remove("status"),
        },
        Part::Main => {}
        Part::Status => {
            let mut whole = (*old).clone();
            let map = patch::object_mut(&mut whole);
            match object.get("status") {
                Some(status) => _ = map.insert("status".into(), status.clone()),
                None => _ = map.remove("status"),
            }
            for name in ["resourceVersion", "uid", "managedFields"] {
                if let Some(said) = object["metadata"].get(name) {
                    metadata_mut(&mut whole).insert(name.into(), said.clone());
                }
            }
            object = whole;
        }
    }
    let warnings = admit(resource, &key.name, &mut object, Some(&old), terms.validation)?;
    if resource.name() == "secrets" {
        encode(&mut object);
    }
    if ownership == Ownership::ByWriting {
        let owner = terms.owner(Operation::Update);
        owners::note_write(resource.schema.as_deref(), Some(&old), &mut object, owner, &time::now());
    }
    let object = state.store.update(resource, key, object, terms.part, terms.effect)?;
    settle(state, resource, terms.effect);
    Ok(Written { object, warnings })
}

/// Server-side apply: creates the object, or merges what is applied into it.
pub(crate) fn apply(
    state: &mut State,
    resource: &Resource,
    key: &Key,
    mut config: Value,
    conflicts: Conflicts,
    terms: Terms<'_>,
) -> Result<(Written, Existence), Refusal> {
    if !config["metadata"]["managedFields"].is_null() {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    if let Some(said) = config["metadata"]["name"].as_str().filter(|said| *said != key.name) {
        let message = format!("the name of the object ({said}) does not match the name on the URL ({})", key.name);
        return Err(Refusal::bad_request(message));
    }
    judge_kind(resource, &config)?;
    metadata_mut(&mut config).insert("name".into(), json!(key.name));
    if let Some(schema) = &resource.schema
        && let Some(unknown) = schema::prune(schema, &mut config).first()
    {
        // Whatever `fieldValidation` says.
        let message = format!("failed to create typed patch object: .{unknown}: field not declared in schema");
        return Err(Refusal::new(500, "", message));
    }
    if resource.status_subresource && terms.part == Part::Main {
        patch::object_mut(&mut config).remove("status");
    }
    let old = state.store.object(key).cloned();
    let owner = terms.owner(Operation::Apply);
    let schema = resource.schema.as_deref();
    let mut object = owners::apply(schema, old.as_deref(), &config, &owner, conflicts, &time::now())?;
    for name in ["resourceVersion", "uid"] {
        if let Some(said) = config["metadata"].get(name) {
            metadata_mut(&mut object).insert(name.into(), said.clone());
        }
    }
    let (written, existence) = match old {
        None if !config["metadata"]["uid"].is_null() => return Err(Refusal::conflict(resource, &key.name, "uid")),
        None => (insert(state, resource, &key.namespace, object, terms, Ownership::Applied)?, Existence::New),
        Some(_) => (replace(state, resource, key, object, terms, Ownership::Applied)?, Existence::Old),
    };
    Ok((written, existence))
}

/// Whether an object was there before it was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existence {
    New,
    Old,
}

/// Patches an object: the patched object is written like any other.
pub(crate) fn patch(
    state: &mut State,
    resource: &Resource,
    key: &Key,
    kind: PatchKind,
    body: &Value,
    terms: Terms<'_>,
) -> Result<Written, Refusal> {
    let old = state.store.object(key).cloned().ok_or_else(|| Refusal::not_found(resource, &key.name))?;
    if kind == PatchKind::Strategic && resource.schema.is_some() {
        return Err(Refusal::unsupported_media_type(PATCHES));
    }
    let mut object = match kind {
        PatchKind::Json => patch::apply(&old, body).map_err(|why| {
            let message = format!("the server rejected our request due to an error in our request: {why}");
            Refusal::new(422, "Invalid", message)
        })?,
        PatchKind::Merge | PatchKind::Strategic => {
            let mut object = (*old).clone();
            patch::merge(&mut object, body);
            object
        }
    };
    if !object.is_object() {
        return Err(Refusal::new(422, "Invalid", format!(" \"\" is invalid: patch: Invalid value: \"{body}\"")));
    }
    // A patch has no precondition of the uid: it cannot be changed, and a write of the status alone does not look at it.
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    if uid(&object) != uid(&old) {
        match terms.part {
            Part::Main => {
                let message = format!("Invalid value: {}: field is immutable", uid(&object));
                let cause = Cause { field: "metadata.uid".into(), reason: "FieldValueInvalid", message };
                return Err(Refusal::invalid(resource, &key.name, &[cause]));
            }
            Part::Status => _ = metadata_mut(&mut object).insert("uid".into(), uid(&old)),
        }
    }
    update(state, resource, key, object, terms)
}

pub(crate) fn delete(
    state: &mut State,
    resource: &Resource,
    key: &Key,
    options: &Value,
    effect: Effect,
) -> Result<Deleted, Refusal> {
    let old = state.store.object(key).cloned().ok_or_else(|| Refusal::not_found(resource, &key.name))?;
    for field in ["uid", "resourceVersion"] {
        let wanted = options["preconditions"][field].as_str();
        if wanted.is_some() && wanted != old["metadata"][field].as_str() {
            return Err(Refusal::conflict(resource, &key.name, field));
        }
    }
    let deleted = state.store.delete(resource, key, options["gracePeriodSeconds"].as_u64(), &time::now(), effect)?;
    if resource.name() == "namespaces" && effect == Effect::Kept {
        let gone = key.name.clone();
        state.store.delete_where(|key| key.namespace == gone);
    }
    settle(state, resource, effect);
    Ok(deleted)
}

/// Prunes, fills in and judges an object; what is to be warned of comes back.
fn admit(
    resource: &Resource,
    name: &str,
    object: &mut Value,
    old: Option<&Value>,
    validation: FieldValidation,
) -> Result<Vec<String>, Refusal> {
    judge_kind(resource, object)?;
    if object["metadata"]["name"].as_str().is_some_and(|said| said != name) {
        let said = object["metadata"]["name"].as_str().unwrap_or_default();
        let message = format!("the name of the object ({said}) does not match the name on the URL ({name})");
        return Err(Refusal::bad_request(message));
    }
    let mut warnings = Vec::new();
    let mut causes = rules::causes(resource, object)?;
    if let Some(schema) = &resource.schema {
        warnings = unknown_fields(schema, object, validation)?;
        schema::fill_in(schema, object);
        causes.extend(schema::validate(schema, object, old));
    } else if let (Some(old), "pods") = (old, resource.name().as_str()) {
        causes.extend(rules::pod_change(old, object));
    }
    if let Some(old) = old {
        // What was wrong before and has not been touched is let be (CRD validation ratcheting, in servers since 1.30).
        causes.retain(|cause| {
            let path = match cause.reason {
                "FieldValueRequired" => cause.field.rsplit_once('.').map_or("", |(parent, _)| parent),
                _ => cause.field.as_str(),
            };
            let place = schema::pointer(path);
            object.pointer(&place) != old.pointer(&place)
        });
    }
    if causes.is_empty() { Ok(warnings) } else { Err(Refusal::invalid(resource, name, &causes)) }
}

fn judge_kind(resource: &Resource, object: &Value) -> Result<(), Refusal> {
    if !object.is_object() {
        let message = format!("the object provided is unrecognized (must be of type {})", resource.kind);
        return Err(Refusal::bad_request(message));
    }
    let (kind, version) = (object["kind"].as_str().unwrap_or_default(), object["apiVersion"].as_str());
    if kind.is_empty() {
        let message = format!("{} cannot be handled: Object 'Kind' is missing in '{object}'", resource.kind);
        return Err(Refusal::bad_request(message));
    }
    if version == Some(&resource.api_version()) {
        if kind == resource.kind {
            return Ok(());
        }
        let message = format!("Invalid value: {kind:?}: must be {}", resource.kind);
        let cause = Cause { field: "kind".into(), reason: "FieldValueInvalid", message };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        return Err(Refusal::invalid(resource, name, &[cause]));
    }
    let (said, wanted) = (version.unwrap_or_default(), resource.api_version());
    let message = format!("the API version in the data ({said}) does not match the expected API version ({wanted})");
    Err(Refusal::bad_request(message))
}

/// Prunes what the schema does not know; what is to be warned of comes back.
fn unknown_fields(schema: &Value, object: &mut Value, validation: FieldValidation) -> Result<Vec<String>, Refusal> {
    let unknown = schema::prune(schema, object).into_iter().map(|path| format!("unknown field \"{path}\""));
    let unknown: Vec<String> = unknown.collect();
    match validation {
        FieldValidation::Strict if !unknown.is_empty() => {
            Err(Refusal::bad_request(format!("strict decoding error: {}", unknown.join(", "))))
        }
        FieldValidation::Warn => Ok(unknown),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
    }
}

/// What a controller of a real server does with a new CustomResourceDefinition within milliseconds.
fn establish(definition: &mut Value) {
    let condition = |kind: &str, reason: &str| json!({ "type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": time::now() });
    let versions: Vec<Value> = definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|version| version["name"].clone())
        .collect();
    definition["status"] = json!({
        "acceptedNames": definition["spec"]["names"],
        "conditions": [condition("NamesAccepted", "NoConflicts"), condition("Established", "InitialNamesAccepted")],
        "storedVersions": versions,
    });
}

/// `stringData` of a Secret is written as `data`.
fn encode(secret: &mut Value) {
    let Some(Value::Object(plain)) = patch::object_mut(secret).remove("stringData") else { return };
    for (name, text) in plain {
        secret["data"][name] = json!(base64(text.as_str().unwrap_or_default().as_bytes()));
    }
}

/// RFC 4648, section 4.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

fn settle(state: &mut State, resource: &Resource, effect: Effect) {
    if resource.plural == "customresourcedefinitions" && effect == Effect::Kept {
        state.redefine();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let coded = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        assert_eq!(texts.map(|text| base64(text.as_bytes())), coded);
    }
}
