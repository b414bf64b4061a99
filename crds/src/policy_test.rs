//! `PolicyTest`: requests and the state of the fleet, with what should come of them. Files only.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::Api;
use crate::value::Duration;

/// One case: a request, the state of the fleet, and what should come of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Case {
    /// What the case shows; unique in the document.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The request.
    pub request: TestRequest,
    /// What is known of each endpoint, by `host:port`, by a provider's name, or by a worker set's name for all its endpoints
    /// that are not listed themselves. An endpoint that is not listed is ready and nothing is known of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub state: BTreeMap<String, EndpointState>,
    /// What should come of it.
    pub expect: Expect,
}

/// The request of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TestRequest {
    /// The model name asked for.
    #[schemars(length(min = 1))]
    pub model: String,
    /// Who is calling. One that no InferenceTenant is gets 401 where tenants are configured: a case that expects that passes,
    /// any other is decided by the rules, with a note.
    #[serde(default = "anonymous")]
    pub tenant: String,
    /// Tags of the prompt, beside those the classifiers find in `body`. `pii-email` brings `pii`, as the classifier gives both; so
    /// with `secret-...`, `network-...` and `crypto-...`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// A request body for the classifiers to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub body: Option<serde_json::Value>,
    /// Headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The API.
    #[serde(default = "chat_completions")]
    pub api: Api,
    /// Whether a streamed answer is asked for.
    #[serde(default)]
    pub stream: bool,
    /// Length of the prompt in tokens; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub prompt_tokens: Option<f64>,
    /// Any text that requests of one conversation share, for splits; absent: the case must hold however they fall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub conversation: Option<String>,
}

fn anonymous() -> String {
    "anonymous".to_owned()
}

fn chat_completions() -> Api {
    Api::ChatCompletions
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "additionalProperties": true })
}

/// What is known of an endpoint; what is absent is unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointState {
    /// Whether it can be used.
    #[serde(default = "ready")]
    pub ready: bool,
    /// Whether a limit of its own is reached; a provider has one only with `limits.maxInFlight`.
    #[serde(default)]
    pub at_limit: bool,
    /// Queued prompts, mean over every window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub queued_prompts: Option<f64>,
    /// Running prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub running_prompts: Option<f64>,
    /// Requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub in_flight: Option<f64>,
    /// Share of the KV cache in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub kv_cache_usage: Option<f64>,
    /// Share of the prompt that is cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub prefix_overlap: Option<f64>,
    /// Predicted time to the first token.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "predictedTTFT")]
    pub predicted_ttft: Option<Duration>,
    /// Predicted time to the end of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_latency: Option<Duration>,
    /// Share of answers that failed, over every window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub error_rate: Option<f64>,
}

fn ready() -> bool {
    true
}

impl Default for EndpointState {
    /// Ready, and nothing is known of it.
    fn default() -> Self {
        Self {
            ready: ready(),
            at_limit: false,
            queued_prompts: None,
            running_prompts: None,
            in_flight: None,
            kv_cache_usage: None,
            prefix_overlap: None,
            predicted_ttft: None,
            predicted_latency: None,
            error_rate: None,
        }
    }
}

/// What should come of a case; every field given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct Expect {
    /// The endpoint that answers, `host:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The worker set that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_set: Option<String>,
    /// The provider that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model name the server that answers is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The rule that decides; `default` when none holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The rule in mode `Shadow` that would decide if it were enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_rule: Option<String>,
    /// The refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ExpectError>,
}

/// The refusal a case expects; every field given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExpectError {
    /// HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 400, max = 599))]
    pub status: Option<u16>,
    /// Machine-readable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The exclude entry that is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude: Option<String>,
}
