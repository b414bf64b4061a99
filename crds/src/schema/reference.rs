//! The field reference, printed from the schemas.

use std::fmt::Write as _;

use serde_json::Value;

use super::example;
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
    out.push_str("| field | type | unit | default | example | description |\n|---|---|---|---|---|---|\n");
    each_field(root, schema, &mut |field| row(out, field));
}

/// One field of a schema.
#[derive(Clone, Copy, Debug)]
pub struct Field<'s> {
    /// `spec.rules[].name`
    pub path: &'s str,
    /// What it may be.
    pub schema: &'s Value,
    /// Whether it must be given.
    pub required: bool,
}

/// Calls `each` with every field below `schema`, which stands at `path`.
pub fn each_field(path: &str, schema: &Value, each: &mut dyn FnMut(Field<'_>)) {
    if let Some(items) = schema.get("items") {
        each_field(&format!("{path}[]"), items, each);
    }
    if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
        each_field(&format!("{path}.*"), values, each);
    }
    for branch in schema.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
        each_field(path, branch, each);
    }
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        each(Field { path: &below, schema: field, required: required.contains(&name.as_str()) });
        each_field(&below, field, each);
    }
}

fn row(out: &mut String, Field { path, schema, required }: Field<'_>) {
    let shown = if required { format!("**`{path}`**") } else { format!("`{path}`") };
    let default = match schema.get("default") {
        Some(Value::String(text)) => format!("`{text}`"),
        Some(Value::Object(_) | Value::Array(_)) | None => String::new(),
        Some(value) => format!("`{value}`"),
    };
    let unit = example::unit(path, schema).unwrap_or_default();
    let example = example::example(path, schema).map(|e| format!("`{}`", e.replace('|', "\\|"))).unwrap_or_default();
    let description = schema.get("description").and_then(Value::as_str).unwrap_or_default().replace('|', "\\|");
    let _ = writeln!(out, "| {shown} | {} | {unit} | {default} | {example} | {description} |", type_name(schema));
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
