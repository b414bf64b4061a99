//! `InferenceWorkerSet`: vLLM servers that serve the same model.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::secret::Auth;
use crate::value::Duration;

/// vLLM servers that serve the same model. Exactly one of `selector` and `endpoints`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-exactly-one-of" = ["selector", "endpoints"]))]
pub struct InferenceWorkerSetSpec {
    /// The model they serve.
    pub model: Model,
    /// Kubernetes: the pods; only ready ones are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Addresses; DNS names are resolved again and again, and each address is an endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub endpoints: Option<Vec<Endpoint>>,
    /// TCP port where an endpoint or pod names none.
    #[serde(default = "port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// Where and how often the engines' state is read.
    #[serde(default)]
    pub metrics: Metrics,
    /// The engines' own stream of KV-cache events, for exact knowledge of what is cached where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_events: Option<KvEvents>,
    /// The model's tokenizer, for exact token counts and cache blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Tokenizer>,
    /// Limits of this balancer toward the endpoints.
    #[serde(default)]
    pub limits: WorkerSetLimits,
    /// The credential the engines ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// LoRA adapters; those an engine reports in `/v1/models` need not be written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<Adapter>,
}

fn port() -> u16 {
    8000
}

/// The model a worker set serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    /// Name clients ask for, and what the engines are sent where `servedName` is absent.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Other names clients may ask for; no engine is sent one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub aliases: Vec<String>,
    /// Name the engines know it by and are sent: vLLM's `--served-model-name`, which is its `--model` where not given. Absent:
    /// `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub served_name: Option<String>,
    /// Longest prompt and answer together, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub context_window: Option<u32>,
}

/// Pods by their labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    /// Labels a pod must have, each with this value.
    #[schemars(extend("minProperties" = 1))]
    pub match_labels: BTreeMap<String, String>,
}

/// One address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Endpoint {
    /// IP address or DNS name, without a port.
    #[schemars(length(min = 1), extend("format" = "host"))]
    pub address: String,
    /// TCP port; absent: the worker set's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
}

/// Where and how often the engines' state is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metrics {
    /// HTTP path of the Prometheus text.
    #[serde(default = "metrics_path")]
    #[schemars(pattern("^/"))]
    pub path: String,
    /// Time between two reads, 50ms to 1m.
    #[serde(default = "metrics_interval")]
    #[schemars(extend("x-cel" = [[
        "duration(self) >= duration('50ms') && duration(self) <= duration('1m')",
        "the interval must be from 50ms to 1m"
    ]]))]
    pub interval: Duration,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { path: metrics_path(), interval: metrics_interval() }
    }
}

fn metrics_path() -> String {
    "/metrics".to_owned()
}

fn metrics_interval() -> Duration {
    Duration::from_secs(1)
}

/// The engines' own stream of KV-cache events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KvEvents {
    /// TCP port of the stream on every endpoint.
    #[serde(default = "kv_events_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// Topic to subscribe to; every topic that begins with it is read.
    #[serde(default = "kv_events_topic")]
    pub topic: String,
}

fn kv_events_port() -> u16 {
    5557
}

fn kv_events_topic() -> String {
    "kv@".to_owned()
}

/// The model's tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tokenizer {
    /// A `tokenizer.json`, relative to the document it is named in.
    #[schemars(length(min = 1))]
    pub file: String,
    /// A chat template, relative to the document; absent: the one beside the tokenizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub chat_template_file: Option<String>,
}

/// Limits of this balancer toward the endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkerSetLimits {
    /// Requests kept in flight on one endpoint; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_in_flight_per_endpoint: Option<u32>,
}

/// A LoRA adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Adapter {
    /// Name clients ask for and the engines know.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Other names clients may ask for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub aliases: Vec<String>,
}
