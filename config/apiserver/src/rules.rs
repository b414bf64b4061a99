//! What a real server checks that no schema says: names, labels, and of built-in kinds what whoever stands in for a kubelet or an
//! elected leader gets wrong. Each rule was seen on a kube-apiserver.

use serde_json::Value;

use crate::refusal::{Cause, Refusal};
use crate::resource::Resource;

const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const LABEL_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// Every reason to refuse an object beside its schema.
pub(crate) fn causes(resource: &Resource, object: &Value) -> Result<Vec<Cause>, Refusal> {
    let mut causes = Vec::new();
    metadata(resource, object, &mut causes)?;
    match resource.name().as_str() {
        "pods" => pod(object, &mut causes),
        "secrets" => secret(object, &mut causes)?,
        "events" => event(object, &mut causes),
        "leases.coordination.k8s.io" => lease(object, &mut causes)?,
        _ => {}
    }
    Ok(causes)
}

fn invalid(field: &str, value: &Value, why: &str) -> Cause {
    Cause { field: field.to_owned(), reason: "FieldValueInvalid", message: format!("Invalid value: {value}: {why}") }
}

fn required(field: &str) -> Cause {
    Cause { field: field.to_owned(), reason: "FieldValueRequired", message: "Required value".to_owned() }
}

fn metadata(resource: &Resource, object: &Value, causes: &mut Vec<Cause>) -> Result<(), Refusal> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    // Of an Event only what a path cannot hold is refused.
    let fits = match resource.name().as_str() {
        "events" => !name.contains(['/', '%']),
        _ => name.split('.').all(|part| is_word(part, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), b"-")),
    };
    if !fits {
        causes.push(invalid("metadata.name", &metadata["name"], SUBDOMAIN));
    }
    if name.len() > NAME_BYTES_MAX {
        let why = format!("must be no more than {NAME_BYTES_MAX} characters");
        causes.push(invalid("metadata.name", &metadata["name"], &why));
    }
    for kind in ["labels", "annotations"] {
        for (key, value) in metadata[kind].as_object().into_iter().flatten() {
            let Some(text) = value.as_str() else {
                let message =
                    format!("the metadata cannot be handled: {kind}: ReadString: expects a string, but found {value}");
                return Err(Refusal::bad_request(message));
            };
            let field = format!("metadata.{kind}");
            let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
            let of_label = |b: u8| b.is_ascii_alphanumeric();
            if !is_word(name, of_label, b"-_.") || name.len() > LABEL_BYTES_MAX || prefix.len() > NAME_BYTES_MAX {
                causes.push(invalid(&field, &Value::String(key.clone()), LABEL_NAME));
            }
            if kind == "labels"
                && !text.is_empty()
                && (!is_word(text, of_label, b"-_.") || text.len() > LABEL_BYTES_MAX)
            {
                causes.push(invalid(&field, value, LABEL));
            }
        }
    }
    Ok(())
}

/// Whether a text is not empty, begins and ends with a character of one kind, and has those of another between at most.
fn is_word(text: &str, of_ends: impl Fn(u8) -> bool, between: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(|b| of_ends(*b)) && bytes.last().is_some_and(|b| of_ends(*b));
    ends && bytes.iter().all(|b| of_ends(*b) || between.contains(b))
}

fn pod(pod: &Value, causes: &mut Vec<Cause>) {
    let containers = pod["spec"]["containers"].as_array().filter(|list| !list.is_empty());
    if containers.is_none() {
        causes.push(required("spec.containers"));
    }
    for (index, container) in containers.into_iter().flatten().enumerate() {
        for field in ["name", "image"] {
            if container[field].as_str().is_none_or(str::is_empty) {
                causes.push(required(&format!("spec.containers[{index}].{field}")));
            }
        }
    }
    let ip = &pod["status"]["podIP"];
    if ip.as_str().is_some_and(|text| !text.is_empty() && text.parse::<std::net::IpAddr>().is_err()) {
        causes.push(invalid("status.podIPs[0]", ip, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"));
    }
}

/// What may be changed of a pod's spec once it is there: nothing that the objects here have but images.
pub(crate) fn pod_change(old: &Value, new: &Value) -> Option<Cause> {
    let bare = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for container in spec["containers"].as_array_mut().into_iter().flatten() {
            container["image"] = Value::Null;
        }
        spec
    };
    let message = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, `spec.activeDeadlineSeconds` or `spec.tolerations` (only additions to existing tolerations)";
    let cause = || Cause { field: "spec".to_owned(), reason: "FieldValueForbidden", message: message.to_owned() };
    (bare(old) != bare(new)).then(cause)
}

fn secret(secret: &Value, causes: &mut Vec<Cause>) -> Result<(), Refusal> {
    for (key, value) in secret["data"].as_object().into_iter().flatten() {
        if !is_base64(value.as_str().unwrap_or_default()) {
            return Err(Refusal::bad_request(
                "Secret in version \"v1\" cannot be handled as a Secret: illegal base64 data",
            ));
        }
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
            let why = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
            causes.push(invalid(&format!("data[{key}]"), &Value::String(key.clone()), why));
        }
    }
    Ok(())
}

/// RFC 4648, section 4, with its padding.
fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    text.len().is_multiple_of(4)
        && text.len() - digits.len() <= 2
        && digits.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/".contains(&b))
}

fn event(event: &Value, causes: &mut Vec<Cause>) {
    let about = &event["involvedObject"]["namespace"];
    let same = about.as_str().is_none_or(|namespace| namespace.is_empty() || about == &event["metadata"]["namespace"]);
    if !same {
        causes.push(invalid("involvedObject.namespace", about, "does not match event.namespace"));
    }
}

fn lease(lease: &Value, causes: &mut Vec<Cause>) -> Result<(), Refusal> {
    let spec = &lease["spec"];
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) {
        causes.push(invalid("spec.leaseDurationSeconds", &spec["leaseDurationSeconds"], "must be greater than 0"));
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|count| count < 0) {
        causes.push(invalid("spec.leaseTransitions", &spec["leaseTransitions"], "must be greater than or equal to 0"));
    }
    for field in ["acquireTime", "renewTime"] {
        if spec[field].as_str().is_some_and(|time| !is_micro_time(time)) {
            let message = format!("Lease in version \"v1\" cannot be handled as a Lease: parsing time {}", spec[field]);
            return Err(Refusal::bad_request(message));
        }
    }
    Ok(())
}

/// `2006-01-02T15:04:05.000000Z`, or with an offset.
fn is_micro_time(time: &str) -> bool {
    let form = "dddd-dd-ddTdd:dd:dd.dddddd";
    let Some((head, zone)) = time.split_at_checked(form.len()) else { return false };
    let fits = |(byte, wanted): (u8, u8)| if wanted == b'd' { byte.is_ascii_digit() } else { byte == wanted };
    head.bytes().zip(form.bytes()).all(fits) && (zone == "Z" || (zone.len() == 6 && zone.starts_with(['+', '-'])))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resource::built_in;

    fn refused(plural: &str, object: &Value) -> Vec<String> {
        let resource = built_in().into_iter().find(|resource| resource.plural == plural).unwrap();
        match causes(&resource, object) {
            Ok(causes) => causes.into_iter().map(|cause| cause.field).collect(),
            Err(refusal) => vec![refusal.code.to_string()],
        }
    }

    #[test]
    fn names_and_labels_are_those_of_dns() {
        for name in ["Upper", "a_b", "a/b", "-a", "a..b", &"a".repeat(254)] {
            assert_eq!(refused("configmaps", &json!({ "metadata": { "name": name } })), ["metadata.name"], "{name}");
        }
        assert!(refused("configmaps", &json!({ "metadata": { "name": "a-1.b" } })).is_empty());
        assert!(refused("events", &json!({ "metadata": { "name": "Upper.1" } })).is_empty());
        let labels = |labels: Value| refused("configmaps", &json!({ "metadata": { "name": "a", "labels": labels } }));
        assert_eq!(labels(json!({ "a b": "c" })), ["metadata.labels"]);
        assert_eq!(labels(json!({ "a": "c c" })), ["metadata.labels"]);
        assert_eq!(labels(json!({ "a": 1 })), ["400"]);
        assert!(labels(json!({ "example.com/a": "", "b": "C_1" })).is_empty());
    }

    #[test]
    fn built_in_kinds_are_judged_by_what_whoever_writes_them_gets_wrong() {
        let object = |spec: Value| json!({ "metadata": { "name": "a", "namespace": "n" }, "spec": spec });
        assert_eq!(refused("leases", &object(json!({ "leaseDurationSeconds": 0 }))), ["spec.leaseDurationSeconds"]);
        assert_eq!(refused("leases", &object(json!({ "renewTime": "yesterday" }))), ["400"]);
        assert!(refused("leases", &object(json!({ "renewTime": "2026-01-01T00:00:00.000001Z" }))).is_empty());
        assert_eq!(refused("pods", &object(json!({}))), ["spec.containers"]);
        assert_eq!(refused("pods", &object(json!({ "containers": [{ "name": "c" }] }))), ["spec.containers[0].image"]);
        let secret = |data: Value| refused("secrets", &json!({ "metadata": { "name": "a" }, "data": data }));
        assert_eq!(secret(json!({ "a": "%%" })), ["400"]);
        assert_eq!(secret(json!({ "a/b": "YQ==" })), ["data[a/b]"]);
        let event =
            json!({ "metadata": { "name": "a", "namespace": "n" }, "involvedObject": { "namespace": "other" } });
        assert_eq!(refused("events", &event), ["involvedObject.namespace"]);
    }
}
