//! `InferencePool`: destinations that stand in for each other, and the policies that choose among them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::DestinationRef;

/// Destinations, and the policies that choose among them. A request belongs to the first pool, by namespace then
/// name, one of whose destinations serves the model it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InferencePoolSpec {
    /// Where requests may go; the order written is the order in which providers take overflow.
    #[schemars(length(min = 1, max = 128), extend("x-unique-by" = ["kind", "name"]))]
    pub destinations: Vec<DestinationRef>,
    /// Policies in the same namespace; their rules are tried one policy after the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-unique-by" = ["name"]))]
    pub policy_ref: Vec<PolicyRef>,
    /// Which model name an answer shows.
    #[serde(default)]
    pub response_model: ResponseModel,
}

/// A policy in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyRef {
    /// Name of the InferencePolicy.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Which model name an answer shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ResponseModel {
    /// The name the client asked for.
    #[default]
    Requested,
    /// The name the server that answered gave.
    Actual,
}
