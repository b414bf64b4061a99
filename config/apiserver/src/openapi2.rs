//! OpenAPI 2 as a protobuf message: all that kubectl before 1.27 takes, and what it validates documents by where the server does
//! not. Only what it reads: names, types, required fields and kinds, of custom resources; what is not in it is not validated.
//!
//! Field numbers are those of `openapi.v2` in gnostic's OpenAPIv2.proto.

use serde_json::Value;

use crate::resource::Resource;

/// The media type of the answer. Clients ask by one with an `@`, which none of them can read itself.
pub(crate) const MEDIA_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Wire type of what has a length.
const LENGTH: u64 = 2;

/// The document of everything that has a schema.
pub(crate) fn document(resources: &[Resource]) -> Vec<u8> {
    let mut info = Vec::new();
    text(&mut info, 1, "Kubernetes");
    text(&mut info, 2, "stub");
    let mut definitions = Vec::new();
    for resource in resources {
        let Some(of_kind) = &resource.schema else { continue };
        let mut value = schema(of_kind);
        let mut kind = Vec::new();
        let yaml = format!("- group: {}\n  kind: {}\n  version: {}\n", resource.group, resource.kind, resource.version);
        text(&mut kind, 2, &yaml);
        message(&mut value, 31, &named("x-kubernetes-group-version-kind", &kind));
        let name = format!("{}.{}.{}", resource.group, resource.version, resource.kind);
        message(&mut definitions, 1, &named(&name, &value));
    }
    let mut document = Vec::new();
    text(&mut document, 1, "2.0");
    message(&mut document, 2, &info);
    message(&mut document, 8, &[]);
    message(&mut document, 9, &definitions);
    document
}

fn schema(schema: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    if schema["x-kubernetes-preserve-unknown-fields"] == true || schema["x-kubernetes-int-or-string"] == true {
        return bytes;
    }
    if let Some(description) = schema["description"].as_str() {
        text(&mut bytes, 4, description);
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        text(&mut bytes, 19, name);
    }
    if let Some(others) = schema.get("additionalProperties").filter(|others| others.is_object()) {
        let mut item = Vec::new();
        message(&mut item, 1, &self::schema(others));
        message(&mut bytes, 21, &item);
    }
    if let Some(name) = schema["type"].as_str() {
        let mut item = Vec::new();
        text(&mut item, 1, name);
        message(&mut bytes, 22, &item);
    }
    if let Some(items) = schema.get("items") {
        let mut item = Vec::new();
        message(&mut item, 1, &self::schema(items));
        message(&mut bytes, 23, &item);
    }
    if let Some(properties) = schema["properties"].as_object() {
        let mut list = Vec::new();
        for (name, below) in properties {
            message(&mut list, 1, &named(name, &self::schema(below)));
        }
        message(&mut bytes, 25, &list);
    }
    bytes
}

/// A pair of a name and a message.
fn named(name: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    text(&mut bytes, 1, name);
    message(&mut bytes, 2, value);
    bytes
}

fn text(bytes: &mut Vec<u8>, field: u64, value: &str) {
    message(bytes, field, value.as_bytes());
}

fn message(bytes: &mut Vec<u8>, field: u64, value: &[u8]) {
    number(bytes, field << 3 | LENGTH);
    number(bytes, value.len() as u64);
    bytes.extend(value);
}

/// Base 128, the lowest seven bits first.
fn number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_written_by_number_and_length() {
        // field 22 { field 1 "object" }, field 25 { field 1 { field 1 "a", field 2 {} } }
        let bytes = schema(&json!({ "type": "object", "properties": { "a": {} } }));
        assert_eq!(bytes, b"\xb2\x01\x08\x0a\x06object\xca\x01\x07\x0a\x05\x0a\x01a\x12\x00");
        let mut long = Vec::new();
        text(&mut long, 1, &"x".repeat(300));
        assert_eq!(long[..3], [0x0a, 0xac, 0x02]);
    }
}
