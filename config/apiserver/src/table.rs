//! Tables as kubectl asks for them: rows printed by the server, from the columns of the CustomResourceDefinition.

use serde_json::{Value, json};

use crate::resource::{Column, Resource};
use crate::time;

/// A table of objects.
pub(crate) fn table(resource: &Resource, objects: &[Value], version: &str) -> Value {
    let mut definitions = vec![json!({
        "name": "Name", "type": "string", "format": "name", "description": "", "priority": 0,
    })];
    let columns = columns(resource);
    for column in &columns {
        definitions.push(json!({
            "name": column.name, "type": column.kind, "format": "", "description": "", "priority": column.priority,
        }));
    }
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut cells = vec![object["metadata"]["name"].clone()];
            cells.extend(columns.iter().map(|column| cell(column, object)));
            let meta = json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
            });
            json!({ "cells": cells, "object": meta })
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": { "resourceVersion": version },
        "columnDefinitions": definitions, "rows": rows,
    })
}

fn columns(resource: &Resource) -> Vec<Column> {
    let column = |name: &str, kind: &str, path: &str| Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        path: path.to_owned(),
        priority: 0,
    };
    let age = column("Age", "date", ".metadata.creationTimestamp");
    match resource.name().as_str() {
        "events" => vec![
            column("Last Seen", "date", ".lastTimestamp"),
            column("Type", "string", ".type"),
            column("Reason", "string", ".reason"),
            column("Object", "string", ".involvedObject.name"),
            column("Message", "string", ".message"),
        ],
        "pods" => vec![column("Status", "string", ".status.phase"), age],
        _ if resource.columns.is_empty() => vec![age],
        _ => resource.columns.clone(),
    }
}

fn cell(column: &Column, object: &Value) -> Value {
    let found = look_up(object, &column.path);
    match (column.kind.as_str(), found) {
        ("date", Some(Value::String(text))) => json!(time::age(text)),
        ("date", _) => json!("<unknown>"),
        (_, Some(value)) => value.clone(),
        (_, None) => Value::Null,
    }
}

/// A JSONPath of the kind that columns have: `.a.b`, `[0]`, `[?(@.type=='Ready')]`.
pub(crate) fn look_up<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let mut value = value;
    let mut rest = path;
    // Each turn takes a step off the path.
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("[?(@.") {
            let (test, after) = after.split_once(")]")?;
            let (name, wanted) = test.split_once("==")?;
            let wanted = wanted.trim().trim_matches(['\'', '"']);
            value = value
                .as_array()?
                .iter()
                .find(|item| look_up(item, &format!(".{}", name.trim())) == Some(&json!(wanted)))?;
            rest = after;
        } else if let Some(after) = rest.strip_prefix('[') {
            let (index, after) = after.split_once(']')?;
            value = value.get(index.parse::<usize>().ok()?)?;
            rest = after;
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            value = value.get(&after[..end])?;
            rest = &after[end..];
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_columns_find_what_they_name() {
        let object = json!({ "status": { "conditions": [{ "type": "A", "status": "False" }, { "type": "B", "status": "True" }] } });
        assert_eq!(look_up(&object, ".status.conditions[?(@.type=='B')].status"), Some(&json!("True")));
        assert_eq!(look_up(&object, ".status.conditions[0].type"), Some(&json!("A")));
        assert_eq!(look_up(&object, ".spec.model"), None);
    }
}
