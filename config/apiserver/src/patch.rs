//! The patches an API server knows: JSON merge patch (RFC 7386) and JSON patch (RFC 6902).
//!
//! A strategic merge patch of a built-in resource is taken for a merge patch: it differs in lists with keys, which the
//! resources here that are patched so do not have.

use serde_json::{Map, Value, json};

/// The value as an object; anything else becomes an empty one.
pub(crate) fn object_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        // Made an object above.
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => unreachable!(),
    }
}

/// What is under a name; an empty object where nothing was.
pub(crate) fn entry<'v>(value: &'v mut Value, name: &str) -> &'v mut Value {
    object_mut(value).entry(name).or_insert_with(|| json!({}))
}

/// RFC 7386, section 2.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    let target = object_mut(target);
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// RFC 6902: all operations or none.
pub(crate) fn apply(target: &Value, operations: &Value) -> Result<Value, String> {
    let operations = operations.as_array().ok_or("a JSON patch is a list of operations")?;
    let mut result = target.clone();
    for operation in operations {
        let path = operation["path"].as_str().ok_or("an operation has no path")?;
        let value = || operation.get("value").cloned().ok_or("an operation has no value");
        match operation["op"].as_str() {
            Some("add") => insert(&mut result, path, value()?)?,
            Some("remove") => _ = remove(&mut result, path)?,
            Some("replace") => {
                remove(&mut result, path)?;
                insert(&mut result, path, value()?)?;
            }
            Some("test") => {
                if result.pointer(path) != Some(&value()?) {
                    return Err(format!("testing value {path} failed"));
                }
            }
            Some(op @ ("move" | "copy")) => {
                let from = operation["from"].as_str().ok_or("an operation has no from")?;
                let value = result.pointer(from).cloned().ok_or(format!("{from} is not there"))?;
                if op == "move" {
                    remove(&mut result, from)?;
                }
                insert(&mut result, path, value)?;
            }
            Some(_) | None => return Err("an operation is none of RFC 6902".to_owned()),
        }
    }
    Ok(result)
}

fn split(path: &str) -> Option<(&str, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    Some((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn insert(target: &mut Value, path: &str, value: Value) -> Result<(), String> {
    if path.is_empty() {
        *target = value;
        return Ok(());
    }
    let missing = || format!("{path} is not there");
    let (parent, last) = split(path).ok_or_else(missing)?;
    match target.pointer_mut(parent).ok_or_else(missing)? {
        Value::Object(map) => _ = map.insert(last, value),
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) => {
            let index: usize = last.parse().ok().filter(|index| *index <= list.len()).ok_or_else(missing)?;
            list.insert(index, value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return Err(missing()),
    }
    Ok(())
}

fn remove(target: &mut Value, path: &str) -> Result<Value, String> {
    let missing = || format!("{path} is not there");
    let (parent, last) = split(path).ok_or_else(missing)?;
    match target.pointer_mut(parent).ok_or_else(missing)? {
        Value::Object(map) => map.remove(&last).ok_or_else(missing),
        Value::Array(list) => {
            let index: usize = last.parse().ok().filter(|index| *index < list.len()).ok_or_else(missing)?;
            Ok(list.remove(index))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(missing()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_patch_sets_removes_and_replaces_lists_whole() {
        let mut target = json!({ "a": { "b": 1, "c": [1, 2] }, "d": 3 });
        merge(&mut target, &json!({ "a": { "b": null, "c": [3] }, "e": { "f": 1 } }));
        assert_eq!(target, json!({ "a": { "c": [3] }, "d": 3, "e": { "f": 1 } }));
    }

    #[test]
    fn a_json_patch_works_as_a_whole_or_not_at_all() {
        let target = json!({ "a": [1, 2], "x/y": 1 });
        let patched = apply(
            &target,
            &json!([
                { "op": "add", "path": "/a/1", "value": 9 },
                { "op": "replace", "path": "/x~1y", "value": 2 },
                { "op": "remove", "path": "/a/0" },
            ]),
        );
        assert_eq!(patched.unwrap(), json!({ "a": [9, 2], "x/y": 2 }));
        assert!(apply(&target, &json!([{ "op": "test", "path": "/a/0", "value": 5 }])).is_err());
        assert!(apply(&target, &json!([{ "op": "remove", "path": "/a/7" }])).is_err());
    }
}
