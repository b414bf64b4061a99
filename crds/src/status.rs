//! What the balancer writes back to the API server: the same shape for every kind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of the resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// `metadata.generation` that the conditions are about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Accepted`, `ResolvedRefs` and `Programmed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Pools and worker sets: endpoints that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_endpoints: Option<i32>,
    /// Pools and worker sets: all endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<i32>,
}

/// One condition, as in every Kubernetes resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Name of the condition.
    #[serde(rename = "type")]
    pub condition: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// One word on why.
    pub reason: String,
    /// A sentence for a person.
    pub message: String,
    /// RFC 3339 time at which `status` last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// `metadata.generation` it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
