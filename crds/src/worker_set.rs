//! `InferenceWorkerSet`: vLLM servers that serve the same model.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::secret::Auth;
use crate::value::Duration;

/// vLLM servers that serve the same model. Exactly one of `selector` and `endpoints`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// The model's tokenizer, for exact token counts and the engines' own cache blocks. Prompts are estimated by bytes without it, and
    /// while it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Tokenizer>,
    /// Limits of this balancer toward the endpoints.
    #[serde(default)]
    pub limits: WorkerSetLimits,
    /// What the servers cost while they work, for the access log and the cost metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<GpuCost>,
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

/// What a server costs while it works. A request is charged the time it was at the server, divided among all that were there with
/// it; time in which the server had nothing to do is nobody's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuCost {
    /// Price of one GPU for one second.
    #[schemars(range(min = 0.0))]
    pub per_gpu_second: f64,
    /// GPUs of one endpoint.
    #[serde(default = "gpus")]
    #[schemars(range(min = 1))]
    pub gpus_per_endpoint: u32,
    /// ISO 4217 code of the currency.
    #[serde(default = "currency")]
    #[schemars(pattern("^[A-Z]{3}$"))]
    pub currency: String,
}

fn gpus() -> u32 {
    1
}

fn currency() -> String {
    "USD".to_owned()
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
    /// TCP port of the stream on every endpoint. The engine binds it: vLLM does where its `endpoint` has a `*`, as in
    /// `tcp://*:5557`.
    #[serde(default = "kv_events_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// Topic to subscribe to; every topic that begins with it is read. vLLM's own default is the empty one.
    #[serde(default = "kv_events_topic")]
    #[schemars(length(max = 200))]
    pub topic: String,
    /// TCP port where every endpoint tells again what was missed (vLLM's `replay_endpoint`). Absent: what is missed is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub replay_port: Option<u16>,
    /// Engines behind one address (`--data-parallel-size`); the next has the next port, of the stream and of replays.
    #[serde(default = "ranks")]
    #[schemars(range(min = 1, max = 64))]
    pub data_parallel_ranks: u32,
    /// IP address and TCP port where this gateway awaits the streams, for engines that connect (vLLM's `endpoint` names a
    /// host); `port` is then unused. The topic tells whose stream it is, as in `kv@10.0.0.5:8000@model`, or else the address it
    /// comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "socket-address"))]
    pub listen: Option<String>,
}

fn ranks() -> u32 {
    1
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
    /// A `tokenizer.json` or the folder it is in, relative to the document it is named in. `tokenizer_config.json` is read from the
    /// same folder.
    #[schemars(length(min = 1))]
    pub file: String,
    /// A chat template, relative to the document, as given to `vllm serve --chat-template`; absent: the `chat_template.jinja` beside the
    /// tokenizer, or the one in its configuration.
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
