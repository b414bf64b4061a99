//! Refusals in an API server's own words: a `Status` with code, reason and details.

use serde_json::{Value, json};

use crate::resource::Resource;

/// Why a request is refused.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Value,
}

/// One finding about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    pub field: String,
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null }
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        self.details = json!({ "name": name, "kind": resource.plural });
        if !resource.group.is_empty() {
            self.details["group"] = json!(resource.group);
        }
        self
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", resource.name())).about(resource, name)
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.name());
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    pub(crate) fn conflict(resource: &Resource, name: &str, what: &str) -> Self {
        let why = match what {
            "uid" => "Precondition failed: UID in precondition does not match UID in object meta",
            _ => "the object has been modified; please apply your changes to the latest version and try again",
        };
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.name());
        Self::new(409, "Conflict", message).about(resource, name)
    }

    pub(crate) fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        let listed: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let text = match listed.as_slice() {
            [only] => only.clone(),
            _ => format!("[{}]", listed.join(", ")),
        };
        let kind = if resource.group.is_empty() {
            resource.kind.clone()
        } else {
            format!("{}.{}", resource.kind, resource.group)
        };
        let mut refusal = Self::new(422, "Invalid", format!("{kind} \"{name}\" is invalid: {text}"));
        let causes: Vec<Value> = causes
            .iter()
            .map(|cause| json!({ "reason": cause.reason, "message": cause.message, "field": cause.field }))
            .collect();
        refusal.details = json!({ "name": name, "group": resource.group, "kind": resource.kind, "causes": causes });
        refusal
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// As it is sent.
    pub(crate) fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_null() {
            body["details"] = self.details.clone();
        }
        body
    }
}
