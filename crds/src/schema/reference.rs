//! The field reference, printed from the schemas.

use std::fmt::Write as _;

use serde_json::Value;

use crate::document::Kind;

/// Every field of every kind and of the server's own file, as Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# Fields\n\nPrinted from the types in `crds/src`; do not edit. Group and version: \
         `kinference.buoyant.io/v1alpha1`.\n\nUnits: a *duration* is a number and one of `us`, `ms`, `s`, `m`, `h`; a \
         *size* is a number and one of `B`, `KiB`, `MiB`, `GiB`, `KB`, `MB`, `GB`. Fields in **bold** must be given.\n",
    );
    for kind in Kind::ALL {
        let root = if kind == Kind::PolicyTest { "cases" } else { "spec" };
        section(&mut out, kind.as_str(), root, &super::spec(kind));
    }
    section(&mut out, "The server's own file", "", &super::server());
    out
}

fn section(out: &mut String, title: &str, root: &str, schema: &Value) {
    let _ = write!(out, "\n## {title}\n\n");
    if let Some(text) = schema.get("description").and_then(Value::as_str) {
        let _ = write!(out, "{text}\n\n");
    }
    out.push_str("| field | type | default | description |\n|---|---|---|---|\n");
    fields(out, root, schema);
}

fn fields(out: &mut String, path: &str, schema: &Value) {
    if let Some(items) = schema.get("items") {
        fields(out, &format!("{path}[]"), items);
    }
    if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
        fields(out, &format!("{path}.*"), values);
    }
    for branch in schema.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
        fields(out, path, branch);
    }
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let shown = if required.contains(&name.as_str()) { format!("**`{below}`**") } else { format!("`{below}`") };
        let default = match field.get("default") {
            Some(Value::String(text)) => format!("`{text}`"),
            Some(Value::Object(_) | Value::Array(_)) | None => String::new(),
            Some(value) => format!("`{value}`"),
        };
        let description = field.get("description").and_then(Value::as_str).unwrap_or_default();
        let _ = writeln!(out, "| {shown} | {} | {default} | {} |", type_name(field), description.replace('|', "\\|"));
        fields(out, &below, field);
    }
}

/// A type with its bounds, in words.
fn type_name(schema: &Value) -> String {
    if let Some(branches) = schema.get("anyOf").and_then(Value::as_array) {
        return branches.iter().map(type_name).collect::<Vec<_>>().join(" or ");
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let names: Vec<String> =
            values.iter().map(|v| format!("`{}`", v.as_str().map_or_else(|| v.to_string(), str::to_owned))).collect();
        return names.join(", ");
    }
    let bounds = match (schema.get("minimum"), schema.get("maximum")) {
        (Some(low), Some(high)) => format!(", {low} to {high}"),
        (Some(low), None) => format!(", {low} and up"),
        (None, Some(high)) => format!(", up to {high}"),
        (None, None) => String::new(),
    };
    let format = schema.get("format").and_then(Value::as_str);
    match (schema.get("type").and_then(Value::as_str), format) {
        (_, Some("duration")) => "duration".to_owned(),
        (_, Some("bytes")) => "size".to_owned(),
        (_, Some("url")) => "URL".to_owned(),
        (_, Some("sha256")) => "64 hex digits".to_owned(),
        (_, Some("socket-address")) => "IP address and port".to_owned(),
        (Some("string"), _) => "text".to_owned(),
        (Some("integer"), _) => format!("integer{bounds}"),
        (Some("number"), _) => format!("number{bounds}"),
        (Some("boolean"), _) => "`true` or `false`".to_owned(),
        (Some("object"), _) => "mapping".to_owned(),
        (Some("array"), _) => {
            let item = schema.get("items").map_or_else(String::new, |items| format!(" of {}", type_name(items)));
            format!("list{item}")
        }
        (Some(_) | None, _) => "any".to_owned(),
    }
}
