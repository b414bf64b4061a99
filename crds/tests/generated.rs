//! What is printed from the types is what is committed. `UPDATE=1 cargo test -p crds` prints it anew.

use std::path::Path;

use crds::Kind;
use crds::schema::{crd, reference};
use serde_json::{Map, Value};

/// Compares with the committed file, or writes it when asked to.
fn committed(path: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE").is_some_and(|v| v == "1") {
        std::fs::write(&path, generated).expect("writes");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(generated.lines()).position(|(a, b)| a != b);
    assert!(
        found == generated,
        "{} is not what the types print (first difference at line {:?}); run `UPDATE=1 cargo test -p crds`",
        path.display(),
        differs.map(|l| l + 1)
    );
}

#[test]
fn the_committed_definitions_are_those_of_the_types() {
    for kind in Kind::CUSTOM_RESOURCES {
        let yaml = crd::yaml(kind).expect("a custom resource");
        committed(&format!("yaml/{}.yaml", kind.plural()), &yaml);
    }
}

#[test]
fn the_committed_field_reference_is_that_of_the_types() {
    committed("../docs/reference/fields.md", &reference::markdown());
}

/// Calls `visit` with every node of a structural schema.
fn walk(path: &str, value: &Value, visit: &mut dyn FnMut(&str, &Map<String, Value>)) {
    let Value::Object(object) = value else { return };
    visit(path, object);
    for (name, child) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
        walk(&format!("{path}.{name}"), child, visit);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = object.get(key) {
            walk(&format!("{path}.{key}"), child, visit);
        }
    }
}

#[test]
fn every_definition_is_structural() {
    const ALLOWED: [&str; 20] = [
        "type",
        "description",
        "properties",
        "additionalProperties",
        "items",
        "required",
        "enum",
        "default",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
        "x-kubernetes-list-type",
    ];
    for kind in Kind::CUSTOM_RESOURCES {
        let definition = crd::definition(kind).expect("a custom resource");
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        walk("", schema, &mut |path, object| {
            for key in object.keys() {
                assert!(ALLOWED.contains(&key.as_str()), "{kind}{path} has {key}");
            }
            let open = object.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
            assert!(open || object.get("type").is_some_and(Value::is_string), "{kind}{path} has no type");
            assert!(
                !(object.contains_key("properties") && object.contains_key("additionalProperties")),
                "{kind}{path} has properties and additionalProperties"
            );
        });
    }
}

#[test]
fn short_names_and_plurals_are_unique() {
    let definitions = Kind::CUSTOM_RESOURCES.map(|k| crd::definition(k).expect("a custom resource"));
    for key in ["plural", "singular", "kind"] {
        let mut names: Vec<_> = definitions.iter().map(|d| d["spec"]["names"][key].to_string()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 6, "{key}");
    }
    let mut short: Vec<_> = definitions.iter().map(|d| d["spec"]["names"]["shortNames"].to_string()).collect();
    short.sort();
    short.dedup();
    assert_eq!(short.len(), 6);
}
