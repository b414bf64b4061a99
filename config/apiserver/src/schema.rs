//! What a CustomResourceDefinition's schema does to an object: unknown fields are pruned, defaults filled in, the rest is
//! validated, then its CEL rules are evaluated. Messages are those of a real server, which people see through kubectl.

use regex_automata::meta::Regex;
use serde_json::{Map, Value, json};

use crate::refusal::Cause;

/// Removes what the schema does not know, and returns the paths of it. Metadata is not the schema's business.
pub(crate) fn prune(schema: &Value, object: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let known = ["apiVersion", "kind", "metadata"];
    let Value::Object(map) = object else { return unknown };
    let names: Vec<String> = map.keys().filter(|name| !known.contains(&name.as_str())).cloned().collect();
    for name in names {
        match schema["properties"].get(&name) {
            Some(below) => prune_below(below, map.entry(name.clone()).or_insert(Value::Null), &name, &mut unknown),
            None => {
                map.remove(&name);
                unknown.push(name);
            }
        }
    }
    unknown
}

fn preserves(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == json!(true)
}

fn prune_below(schema: &Value, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            let names: Vec<String> = map.keys().cloned().collect();
            for name in names {
                let below = schema["properties"]
                    .get(&name)
                    .or_else(|| schema.get("additionalProperties").filter(|others| others.is_object()));
                let path = format!("{path}.{name}");
                match below {
                    Some(below) => prune_below(below, map.entry(name).or_insert(Value::Null), &path, unknown),
                    None if preserves(schema) => {}
                    None => {
                        map.remove(&name);
                        unknown.push(path);
                    }
                }
            }
        }
        Value::Array(list) => {
            if let Some(below) = schema.get("items") {
                for (index, item) in list.iter_mut().enumerate() {
                    prune_below(below, item, &format!("{path}[{index}]"), unknown);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Fills in defaults, also inside of what is a default itself, and drops a `null` where none may be.
pub(crate) fn fill_in(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            let properties = &schema["properties"];
            map.retain(|name, found| {
                !found.is_null() || properties.get(name).is_none_or(|below| below["nullable"] == json!(true))
            });
            for (name, below) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = below.get("default")
                    && map.get(name).is_none_or(|found| found.is_null() && below["nullable"] != json!(true))
                {
                    map.insert(name.clone(), default.clone());
                }
                if let Some(found) = map.get_mut(name) {
                    fill_in(below, found);
                }
            }
            if let Some(others) = schema.get("additionalProperties").filter(|others| others.is_object()) {
                map.values_mut().for_each(|found| fill_in(others, found));
            }
        }
        Value::Array(list) => {
            if let Some(below) = schema.get("items") {
                list.iter_mut().for_each(|item| fill_in(below, item));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Everything the schema refuses; its CEL rules are asked only about an object of the right shape, as on a real server.
pub(crate) fn validate(schema: &Value, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    check(schema, object, "", &mut causes);
    if causes.is_empty()
        && let Err(errors) = kube_cel::Validator::new().validate(schema, object, old)
    {
        causes.extend(errors.into_vec().into_iter().map(|error| {
            let kind = match type_of(object.pointer(&pointer(&error.field_path)).unwrap_or(&Value::Null)) {
                "null" => "object",
                kind => kind,
            };
            let message = format!("Invalid value: \"{kind}\": {}", error.message);
            Cause { field: error.field_path, reason: "FieldValueInvalid", message }
        }));
    }
    causes
}

/// A path of a finding as a JSON pointer.
pub(crate) fn pointer(path: &str) -> String {
    let steps = path.split(['.', '[', ']']).filter(|step| !step.is_empty());
    steps.fold(String::new(), |pointer, step| pointer + "/" + step)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Adds one cause. `shown` is the value as a real server shows it.
fn refuse(causes: &mut Vec<Cause>, path: &str, shown: &Value, message: &str) {
    let message = format!("Invalid value: {shown}: {} in body {message}", last(path));
    causes.push(Cause { field: path.to_owned(), reason: "FieldValueInvalid", message });
}

fn last(path: &str) -> &str {
    if path.is_empty() { "<nil>" } else { path }
}

fn check(schema: &Value, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    if schema["x-kubernetes-int-or-string"] == json!(true) {
        if !matches!(type_of(value), "integer" | "string") {
            refuse(causes, path, &json!(type_of(value)), "must be of type integer,string");
        }
        return;
    }
    if let Some(wanted) = schema["type"].as_str() {
        let found = type_of(value);
        let fits = wanted == found
            || (wanted == "number" && found == "integer")
            || (found == "null" && schema["nullable"] == json!(true))
            || (wanted == "integer" && value.as_f64().is_some_and(|number| number.fract() == 0.0));
        if !fits {
            let message = format!("must be of type {wanted}: \"{found}\"");
            return refuse(causes, path, &json!(found), &message);
        }
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(value)
    {
        let listed: Vec<String> = values.iter().map(Value::to_string).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", listed.join(", "));
        causes.push(Cause { field: path.to_owned(), reason: "FieldValueNotSupported", message });
    }
    match value {
        Value::Object(map) => check_object(schema, map, path, causes),
        Value::Array(list) => check_list(schema, list, path, causes),
        Value::String(text) => check_text(schema, text, path, causes),
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            if let Some(least) = schema["minimum"].as_f64().filter(|least| number < *least) {
                refuse(causes, path, value, &format!("should be greater than or equal to {least}"));
            }
            if let Some(most) = schema["maximum"].as_f64().filter(|most| number > *most) {
                refuse(causes, path, value, &format!("should be less than or equal to {most}"));
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_object(schema: &Value, map: &Map<String, Value>, path: &str, causes: &mut Vec<Cause>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !map.contains_key(name) {
            let message = "Required value".to_owned();
            causes.push(Cause { field: below(name), reason: "FieldValueRequired", message });
        }
    }
    if let Some(least) = schema["minProperties"].as_u64().filter(|least| (map.len() as u64) < *least) {
        let message = format!("should have at least {least} properties");
        refuse(causes, path, &json!(map.len()), &message);
    }
    for (name, value) in map {
        let others = schema.get("additionalProperties").filter(|others| others.is_object());
        if let Some(schema) = schema["properties"].get(name).or(others) {
            check(schema, value, &below(name), causes);
        }
    }
}

fn check_list(schema: &Value, list: &[Value], path: &str, causes: &mut Vec<Cause>) {
    if let Some(least) = schema["minItems"].as_u64().filter(|least| (list.len() as u64) < *least) {
        refuse(causes, path, &json!(list.len()), &format!("should have at least {least} items"));
    }
    if let Some(most) = schema["maxItems"].as_u64().filter(|most| (list.len() as u64) > *most) {
        let message = format!("Too many: {}: must have at most {most} items", list.len());
        causes.push(Cause { field: path.to_owned(), reason: "FieldValueTooMany", message });
    }
    if let Some(schema) = schema.get("items") {
        for (index, item) in list.iter().enumerate() {
            check(schema, item, &format!("{path}[{index}]"), causes);
        }
    }
}

fn check_text(schema: &Value, text: &str, path: &str, causes: &mut Vec<Cause>) {
    let characters = text.chars().count() as u64;
    if let Some(least) = schema["minLength"].as_u64().filter(|least| characters < *least) {
        refuse(causes, path, &json!(text), &format!("should be at least {least} chars long"));
    }
    if let Some(most) = schema["maxLength"].as_u64().filter(|most| characters > *most) {
        let message = format!("Too long: may not be more than {most} bytes");
        causes.push(Cause { field: path.to_owned(), reason: "FieldValueTooLong", message });
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && Regex::new(pattern).is_ok_and(|regex| !regex.is_match(text))
    {
        refuse(causes, path, &json!(text), &format!("should match '{pattern}'"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object", "required": ["spec"],
            "properties": { "spec": {
                "type": "object", "required": ["list"],
                "x-kubernetes-validations": [{ "rule": "has(self.a) != has(self.b)", "message": "exactly one of a, b" }],
                "properties": {
                    "list": { "type": "array", "minItems": 1, "items": { "type": "string", "enum": ["x", "y"] } },
                    "port": { "type": "integer", "minimum": 1, "default": 8000 },
                    "a": { "type": "string" }, "b": { "type": "string" },
                    "free": { "x-kubernetes-preserve-unknown-fields": true },
                },
            } },
        })
    }

    fn messages(object: &Value) -> Vec<String> {
        validate(&schema(), object, None)
            .into_iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect()
    }

    #[test]
    fn unknown_fields_are_pruned_and_named_and_free_ones_kept() {
        let mut object =
            json!({ "kind": "K", "metadata": { "x": 1 }, "spec": { "lst": 1, "free": { "any": 1 } }, "more": 2 });
        assert_eq!(prune(&schema(), &mut object), ["more", "spec.lst"]);
        assert_eq!(object, json!({ "kind": "K", "metadata": { "x": 1 }, "spec": { "free": { "any": 1 } } }));
    }

    #[test]
    fn findings_have_a_real_servers_words() {
        assert_eq!(messages(&json!({ "spec": { "a": "" } })), ["spec.list: Required value"]);
        let object = json!({ "spec": { "list": ["z"], "port": 0 } });
        assert_eq!(
            messages(&object),
            [
                "spec.list[0]: Unsupported value: \"z\": supported values: \"x\", \"y\"",
                "spec.port: Invalid value: 0: spec.port in body should be greater than or equal to 1"
            ]
        );
        let object = json!({ "spec": "text" });
        assert_eq!(
            messages(&object),
            ["spec: Invalid value: \"string\": spec in body must be of type object: \"string\""]
        );
    }

    #[test]
    fn rules_are_asked_of_an_object_of_the_right_shape() {
        assert_eq!(
            messages(&json!({ "spec": { "list": ["x"] } })),
            ["spec: Invalid value: \"object\": exactly one of a, b"]
        );
        assert!(messages(&json!({ "spec": { "list": ["x"], "a": "" } })).is_empty());
    }

    #[test]
    fn defaults_are_filled_in() {
        let mut object = json!({ "spec": {} });
        fill_in(&schema(), &mut object);
        assert_eq!(object, json!({ "spec": { "port": 8000 } }));
    }
}
