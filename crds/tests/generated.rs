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

/// Fields of the server's file that the chart writes itself.
const CHART_WRITES: [&str; 6] = ["listeners", "admin", "resources", "kubernetes", "balancers", "drainTimeout"];

#[test]
fn the_chart_takes_the_fields_of_the_servers_file_and_no_others() {
    let path = "../deploy/helm/kinference/values.schema.json";
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("reads");
    let mut schema: Value = serde_json::from_str(&text).expect("is JSON");
    let mut server = crds::schema::server();
    let properties = server["properties"].as_object_mut().expect("an object");
    properties.retain(|name, _| !CHART_WRITES.contains(&name.as_str()));
    plain(&mut server);
    schema["properties"]["server"] = server;
    let generated = serde_json::to_string_pretty(&schema).expect("prints");
    committed(path, &format!("{generated}\n"));
}

/// Drops the keywords that only this project knows.
fn plain(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !key.starts_with("x-") && key != "format");
            object.values_mut().for_each(plain);
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
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
    const ALLOWED: [&str; 21] = [
        "type",
        "format",
        "description",
        "properties",
        "additionalProperties",
        "items",
        "required",
        "enum",
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
        "x-kubernetes-list-map-keys",
    ];
    for kind in Kind::CUSTOM_RESOURCES {
        let definition = crd::definition(kind).expect("a custom resource");
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        walk("", schema, &mut |path, object| {
            let format = object.get("format").and_then(Value::as_str);
            assert!(matches!(format, None | Some("date-time")), "{kind}{path} has the format {format:?}");
            for key in object.keys() {
                assert!(ALLOWED.contains(&key.as_str()), "{kind}{path} has {key}");
            }
            // Keys of a list must be there in every item, and be plain values.
            for key in object.get("x-kubernetes-list-map-keys").and_then(Value::as_array).into_iter().flatten() {
                let items = &object["items"];
                assert!(items["required"].as_array().is_some_and(|names| names.contains(key)), "{kind}{path}: {key}");
                assert_eq!(items["properties"][key.as_str().expect("text")]["type"], "string", "{kind}{path}: {key}");
            }
            for rule in object.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten() {
                let message = rule["message"].as_str().unwrap_or_default();
                assert!(!message.is_empty() && !message.contains('\n'), "{kind}{path}: {rule}");
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

/// The schema at a JSONPath of plain names, such as `.spec.model.name`.
fn at<'s>(schema: &'s Value, path: &str) -> Option<&'s Value> {
    path.split('.').filter(|name| !name.is_empty()).try_fold(schema, |at, name| at.get("properties")?.get(name))
}

#[test]
fn every_kind_has_a_status_and_columns_that_show_what_there_is() {
    for kind in Kind::CUSTOM_RESOURCES {
        let definition = crd::definition(kind).expect("a custom resource");
        let version = &definition["spec"]["versions"][0];
        assert_eq!(version["subresources"], serde_json::json!({ "status": {} }), "{kind}");
        let schema = &version["schema"]["openAPIV3Schema"];
        let columns = version["additionalPrinterColumns"].as_array().expect("a list");
        let names: Vec<&str> = columns.iter().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!((names.first(), names.last()), (Some(&"Accepted"), Some(&"Age")), "{kind}");
        let wanted: &[&str] = match kind {
            Kind::InferenceWorkerSet => &["Model", "Ready", "Endpoints"],
            Kind::InferencePool => &["Ready"],
            Kind::InferencePolicy
            | Kind::InferenceProvider
            | Kind::InferenceTenant
            | Kind::InferenceClassifier
            | Kind::PolicyTest => &[],
        };
        assert!(wanted.iter().all(|name| names.contains(name)), "{kind}: {names:?}");
        for column in columns {
            let (path, shown) = (column["jsonPath"].as_str().expect("text"), &column["type"]);
            if let Some((list, rest)) = path.split_once("[?(@.type==") {
                let field = rest.rsplit_once('.').map_or("", |(_, field)| field);
                let items = &at(schema, list).expect("a list of conditions")["items"];
                assert!(at(items, field).is_some(), "{kind}: {path}");
            } else if path != ".metadata.creationTimestamp" {
                assert_eq!(at(schema, path).map(|s| &s["type"]), Some(shown), "{kind}: {path}");
            }
        }
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
