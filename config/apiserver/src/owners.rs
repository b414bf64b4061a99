//! Who owns which field of an object, and server-side apply, which rests on it.
//!
//! As `sigs.k8s.io/structured-merge-diff` does it, cut down: a list is one field unless its schema says that it is a map with
//! keys or a set; built-in resources have no schema here, so their lists are one field each, and what a real server merges item
//! by item (the containers of a pod) is replaced as a whole.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::refusal::{Cause, Refusal};
use crate::store::metadata_mut;

/// A place in an object, in the steps of `fieldsV1`: `f:spec`, `k:{"name":"x"}`, `v:"x"`.
type Path = Vec<String>;
type Fields = BTreeSet<Path>;

/// How an owner came to own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Apply,
    Update,
}

/// Who owns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub manager: String,
    pub operation: Operation,
    /// `status`, or empty.
    pub subresource: &'static str,
}

/// What happens where another owner has another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflicts {
    /// Nothing is applied.
    Refuse,
    /// It is overwritten, and owned from then on.
    Force,
}

#[derive(Clone, Debug)]
struct Owned {
    fields: Fields,
    version: String,
    time: Value,
}

type Owners = BTreeMap<Owner, Owned>;

/// Fields of the metadata that a server writes, or that name the object: nobody's.
const NOBODYS: [&str; 10] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Notes in `new` who owns what after `owner` has written it.
pub(crate) fn note_write(schema: Option<&Value>, old: Option<&Value>, new: &mut Value, owner: Owner, now: &str) {
    let mut owners = old.map(owners_of).unwrap_or_default();
    let before = old.map(|old| fields_of(schema, old)).unwrap_or_default();
    let after = fields_of(schema, new);
    let differs = |path: &&Path| old.and_then(|old| at(old, path)) != at(new, path);
    let changed: Fields = after.iter().filter(differs).cloned().collect();
    let gone: Fields = before.difference(&after).cloned().collect();
    for (other, owned) in &mut owners {
        owned.fields.retain(|path| !gone.contains(path) && (*other == owner || !changed.contains(path)));
    }
    if !changed.is_empty() {
        let owned = owners.entry(owner).or_insert_with(|| fresh(new, now));
        owned.fields.extend(changed);
        owned.time = json!(now);
    }
    put(&owners, new);
}

/// What applying `config` makes of an object; `None` where there is none yet.
pub(crate) fn apply(
    schema: Option<&Value>,
    old: Option<&Value>,
    config: &Value,
    owner: &Owner,
    conflicts: Conflicts,
    now: &str,
) -> Result<Value, Refusal> {
    let mut owners = old.map(owners_of).unwrap_or_default();
    let applied = fields_of(schema, config);
    let disputed = |owned: &Owned| -> Fields {
        let others = owned.fields.iter().filter(|path| applied.contains(*path));
        others.filter(|path| old.and_then(|old| at(old, path)) != at(config, path)).cloned().collect()
    };
    let found: Vec<(Owner, Owned, Fields)> = owners
        .iter()
        .filter(|(other, _)| *other != owner)
        .map(|(other, owned)| (other.clone(), owned.clone(), disputed(owned)))
        .filter(|(_, _, fields)| !fields.is_empty())
        .collect();
    match conflicts {
        Conflicts::Refuse if !found.is_empty() => return Err(refusal(&found)),
        Conflicts::Refuse => {}
        Conflicts::Force => {
            for (other, _, fields) in &found {
                if let Some(owned) = owners.get_mut(other) {
                    owned.fields.retain(|path| !fields.contains(path));
                }
            }
        }
    }
    let mut new = old.cloned().unwrap_or_else(|| {
        json!({ "apiVersion": config["apiVersion"], "kind": config["kind"], "metadata": { "name": config["metadata"]["name"] } })
    });
    let before = owners.remove(owner);
    let dropped = before.iter().flat_map(|owned| &owned.fields).filter(|path| !applied.contains(*path));
    // In their order an item goes before what is in it, which nobody else owns either.
    let dropped = dropped.filter(|path| !owners.values().any(|owned| owned.fields.contains(*path)));
    dropped.for_each(|path| remove(&mut new, path));
    for path in &applied {
        if let Some(value) = at(config, path) {
            set(&mut new, path, value);
        }
    }
    let same = before.as_ref().is_some_and(|before| before.fields == applied) && old == Some(&new);
    let time = before.filter(|_| same).map_or_else(|| json!(now), |before| before.time);
    owners.insert(owner.clone(), Owned { fields: applied, time, ..fresh(config, now) });
    put(&owners, &mut new);
    Ok(new)
}

fn fresh(object: &Value, now: &str) -> Owned {
    let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    Owned { fields: Fields::new(), version, time: json!(now) }
}

/// In a real server's words.
fn refusal(found: &[(Owner, Owned, Fields)]) -> Refusal {
    let mut causes = Vec::new();
    let mut groups = Vec::new();
    for (owner, owned, fields) in found {
        let who = match owner.operation {
            Operation::Apply => format!("conflict with \"{}\"", owner.manager),
            Operation::Update => format!("conflict with \"{}\" using {}", owner.manager, owned.version),
        };
        let places: Vec<String> = fields.iter().map(shown).collect();
        let cause =
            |field: &String| Cause { field: field.clone(), reason: "FieldManagerConflict", message: who.clone() };
        causes.extend(places.iter().map(cause));
        groups.push((who, places));
    }
    let count = causes.len();
    let text = match groups.as_slice() {
        [(who, places)] if places.len() == 1 => format!("{who}: {}", places[0]),
        _ => {
            let listed = groups.iter().map(|(who, places)| format!("{who}:\n- {}", places.join("\n- ")));
            listed.collect::<Vec<String>>().join("\n")
        }
    };
    let plural = if count == 1 { "conflict" } else { "conflicts" };
    let mut refusal = Refusal::new(409, "Conflict", format!("Apply failed with {count} {plural}: {text}"));
    let causes: Vec<Value> = causes
        .iter()
        .map(|cause| json!({ "reason": cause.reason, "message": cause.message, "field": cause.field }))
        .collect();
    refusal.details = json!({ "causes": causes });
    refusal
}

/// `.spec.rules[name="x"].route`.
fn shown(path: &Path) -> String {
    path.iter().fold(String::new(), |mut text, step| {
        match step.split_once(':') {
            Some(("f", name)) => text.push_str(&format!(".{name}")),
            Some(("k", keys)) => {
                let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                text.push_str(&format!("[{}]", keys.join(",")));
            }
            Some((_, value)) => text.push_str(&format!("[={value}]")),
            None => {}
        }
        text
    })
}

// ---- fields of an object ----

fn fields_of(schema: Option<&Value>, object: &Value) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        match name.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    if !NOBODYS.contains(&name.as_str()) {
                        collect(None, value, vec!["f:metadata".into(), format!("f:{name}")], &mut fields);
                    }
                }
            }
            _ => {
                let below = schema.map(|schema| &schema["properties"][name]);
                collect(below, value, vec![format!("f:{name}")], &mut fields);
            }
        }
    }
    fields
}

/// Keys of the items of a list, where its schema says that it is a map.
fn keys_of(schema: Option<&Value>) -> Option<Vec<&str>> {
    let schema = schema.filter(|schema| schema["x-kubernetes-list-type"] == "map")?;
    Some(schema["x-kubernetes-list-map-keys"].as_array()?.iter().filter_map(Value::as_str).collect())
}

fn collect(schema: Option<&Value>, value: &Value, path: Path, fields: &mut Fields) {
    let below = |step: String| [path.clone(), vec![step]].concat();
    match value {
        Value::Object(map) if !map.is_empty() => {
            if schema.is_some_and(|schema| schema["x-kubernetes-map-type"] == "atomic") {
                fields.insert(path);
                return;
            }
            for (name, value) in map {
                let child = schema.and_then(|s| s["properties"].get(name).or_else(|| s.get("additionalProperties")));
                collect(child, value, below(format!("f:{name}")), fields);
            }
        }
        Value::Array(items) if !items.is_empty() => match keys_of(schema) {
            Some(keys) => {
                let items_schema = schema.and_then(|schema| schema.get("items"));
                for item in items {
                    let named: BTreeMap<&str, &Value> = keys.iter().map(|key| (*key, &item[*key])).collect();
                    let path = below(format!("k:{}", json!(named)));
                    fields.insert(path.clone());
                    collect(items_schema, item, path, fields);
                }
            }
            None if schema.is_some_and(|schema| schema["x-kubernetes-list-type"] == "set") => {
                fields.extend(items.iter().map(|item| below(format!("v:{item}"))));
            }
            None => _ = fields.insert(path),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            fields.insert(path);
        }
    }
}

/// What a step leads to.
fn index_of(list: &[Value], step: &str) -> Option<usize> {
    match step.split_once(':')? {
        ("k", keys) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).ok()?;
            list.iter().position(|item| keys.iter().all(|(name, value)| item[name] == *value))
        }
        (_, value) => {
            let value: Value = serde_json::from_str(value).ok()?;
            list.iter().position(|item| *item == value)
        }
    }
}

/// The value at a place. An item with keys is a place of its own, and what is in it is not compared with it.
fn at<'v>(object: &'v Value, path: &[String]) -> Option<&'v Value> {
    static ITEM: Value = Value::Null;
    let mut value = object;
    for step in path {
        value = match step.strip_prefix("f:") {
            Some(name) => value.get(name)?,
            None => {
                let list = value.as_array()?;
                &list[index_of(list, step)?]
            }
        };
    }
    if path.last().is_some_and(|step| step.starts_with("k:")) { Some(&ITEM) } else { Some(value) }
}

fn set(object: &mut Value, path: &[String], wanted: &Value) {
    let mut value = object;
    for step in path {
        if let Some(name) = step.strip_prefix("f:") {
            value = crate::patch::object_mut(value).entry(name.to_owned()).or_insert(Value::Null);
            continue;
        }
        if !value.is_array() {
            *value = json!([]);
        }
        let Some(list) = value.as_array_mut() else { return };
        let index = match index_of(list, step) {
            Some(index) => index,
            None => {
                let item = step.split_once(':').and_then(|(_, text)| serde_json::from_str(text).ok());
                list.push(item.unwrap_or(Value::Null));
                list.len() - 1
            }
        };
        value = &mut list[index];
    }
    // An empty mapping is there, and takes nothing away.
    let kept = wanted.as_object().is_some_and(Map::is_empty) && value.is_object();
    if path.last().is_some_and(|step| step.starts_with("f:")) && !kept {
        *value = wanted.clone();
    }
}

/// Removes what is at a place, and objects that are empty then.
fn remove(object: &mut Value, path: &[String]) {
    let Some((first, rest)) = path.split_first() else { return };
    match (first.strip_prefix("f:"), object) {
        (Some(name), Value::Object(map)) => {
            if rest.is_empty() {
                map.remove(name);
            } else if let Some(child) = map.get_mut(name) {
                remove(child, rest);
                if child.as_object().is_some_and(Map::is_empty) || child.as_array().is_some_and(Vec::is_empty) {
                    map.remove(name);
                }
            }
        }
        (None, Value::Array(list)) => {
            if let Some(index) = index_of(list, first) {
                if rest.is_empty() {
                    list.remove(index);
                } else {
                    remove(&mut list[index], rest);
                }
            }
        }
        (
            _,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_),
        ) => {}
    }
}

// ---- metadata.managedFields ----

fn owners_of(object: &Value) -> Owners {
    let entries = object["metadata"]["managedFields"].as_array();
    let read = |entry: &Value| {
        let mut fields = Fields::new();
        from_tree(&entry["fieldsV1"], &mut Vec::new(), &mut fields);
        let owner = Owner {
            manager: entry["manager"].as_str().unwrap_or_default().to_owned(),
            operation: if entry["operation"] == "Apply" { Operation::Apply } else { Operation::Update },
            subresource: if entry["subresource"] == "status" { "status" } else { "" },
        };
        let version = entry["apiVersion"].as_str().unwrap_or_default().to_owned();
        (owner, Owned { fields, version, time: entry["time"].clone() })
    };
    entries.into_iter().flatten().map(read).collect()
}

fn put(owners: &Owners, object: &mut Value) {
    let entry = |(owner, owned): (&Owner, &Owned)| {
        let operation = match owner.operation {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        };
        let mut entry = json!({
            "manager": owner.manager, "operation": operation, "apiVersion": owned.version, "time": owned.time,
            "fieldsType": "FieldsV1", "fieldsV1": to_tree(&owned.fields),
        });
        if !owner.subresource.is_empty() {
            entry["subresource"] = json!(owner.subresource);
        }
        entry
    };
    let entries: Vec<Value> = owners.iter().filter(|(_, owned)| !owned.fields.is_empty()).map(entry).collect();
    let metadata = metadata_mut(object);
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".into(), json!(entries));
    }
}

fn to_tree(fields: &Fields) -> Value {
    let mut tree = json!({});
    for path in fields {
        let mut node = &mut tree;
        for step in path {
            node = crate::patch::object_mut(node).entry(step.clone()).or_insert_with(|| json!({}));
        }
        if path.last().is_some_and(|step| step.starts_with("k:")) {
            // The item itself, beside what is in it.
            node["."] = json!({});
        }
    }
    tree
}

fn from_tree(node: &Value, path: &mut Path, fields: &mut Fields) {
    let Some(map) = node.as_object() else { return };
    if !path.is_empty() && (map.is_empty() || map.contains_key(".")) {
        fields.insert(path.clone());
    }
    for (step, child) in map.iter().filter(|(step, _)| *step != ".") {
        path.push(step.clone());
        from_tree(child, path, fields);
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        let rules = json!({
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": { "type": "object", "properties": { "name": {}, "port": {}, "list": {} } },
        });
        json!({ "properties": { "spec": { "properties": { "rules": rules, "a": {}, "b": {} } } } })
    }

    fn owner(manager: &str) -> Owner {
        Owner { manager: manager.to_owned(), operation: Operation::Apply, subresource: "" }
    }

    fn config(spec: &Value) -> Value {
        json!({ "apiVersion": "g/v1", "kind": "K", "metadata": { "name": "x" }, "spec": spec })
    }

    fn applied(old: Option<&Value>, spec: &Value, who: &str, conflicts: Conflicts) -> Result<Value, Refusal> {
        apply(Some(&schema()), old, &config(spec), &owner(who), conflicts, "now")
    }

    #[test]
    fn what_is_no_longer_applied_goes_and_what_others_apply_stays() {
        let first = applied(None, &json!({ "a": 1, "b": 2 }), "one", Conflicts::Refuse).unwrap();
        let both = applied(Some(&first), &json!({ "b": 2 }), "two", Conflicts::Refuse).unwrap();
        let after = applied(Some(&both), &json!({}), "one", Conflicts::Refuse).unwrap();
        assert_eq!(after["spec"], json!({ "b": 2 }));
    }

    #[test]
    fn another_value_than_another_owners_is_a_conflict_unless_forced() {
        let first = applied(None, &json!({ "a": 1 }), "one", Conflicts::Refuse).unwrap();
        let refused = applied(Some(&first), &json!({ "a": 2 }), "two", Conflicts::Refuse).unwrap_err();
        assert_eq!(refused.message, "Apply failed with 1 conflict: conflict with \"one\": .spec.a");
        let forced = applied(Some(&first), &json!({ "a": 2 }), "two", Conflicts::Force).unwrap();
        assert_eq!(forced["spec"]["a"], 2);
        // The first owner has lost it, and no longer takes it away.
        let after = applied(Some(&forced), &json!({}), "one", Conflicts::Refuse).unwrap();
        assert_eq!(after["spec"]["a"], 2);
    }

    #[test]
    fn items_with_keys_are_merged_and_other_lists_are_one_value() {
        let mine = json!({ "rules": [{ "name": "x", "port": 1, "list": [1, 2] }] });
        let first = applied(None, &mine, "one", Conflicts::Refuse).unwrap();
        let second = applied(Some(&first), &json!({ "rules": [{ "name": "y" }] }), "two", Conflicts::Refuse).unwrap();
        assert_eq!(second["spec"]["rules"].as_array().unwrap().len(), 2);
        let refused =
            applied(Some(&second), &json!({ "rules": [{ "name": "x", "list": [1] }] }), "two", Conflicts::Refuse);
        assert!(refused.unwrap_err().message.contains(".spec.rules[name=\"x\"].list"));
        let gone = applied(Some(&second), &json!({}), "one", Conflicts::Refuse).unwrap();
        assert_eq!(gone["spec"]["rules"], json!([{ "name": "y" }]));
    }

    #[test]
    fn an_update_takes_what_it_changes() {
        let first = applied(None, &json!({ "a": 1, "b": 1 }), "one", Conflicts::Refuse).unwrap();
        let mut changed = first.clone();
        changed["spec"]["a"] = json!(2);
        let editor = Owner { manager: "edit".into(), operation: Operation::Update, subresource: "" };
        note_write(Some(&schema()), Some(&first), &mut changed, editor, "later");
        let refused = applied(Some(&changed), &json!({ "a": 1, "b": 1 }), "one", Conflicts::Refuse).unwrap_err();
        assert!(refused.message.contains("conflict with \"edit\"") && refused.message.ends_with(".spec.a"));
    }

    #[test]
    fn applying_the_same_again_changes_nothing() {
        let spec = json!({ "a": 1, "rules": [{ "name": "x", "port": 1 }] });
        let first = applied(None, &spec, "one", Conflicts::Refuse).unwrap();
        let again = apply(Some(&schema()), Some(&first), &config(&spec), &owner("one"), Conflicts::Refuse, "later");
        assert_eq!(again.unwrap(), first);
    }
}
