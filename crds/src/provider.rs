//! `InferenceProvider`: a hosted API outside the cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::secret::Auth;
use crate::value::Duration;

/// A hosted API outside the cluster. Reached only by rules whose `select` has an External step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InferenceProviderSpec {
    /// Which API it speaks.
    #[serde(rename = "type")]
    pub api: ProviderType,
    /// URL that goes before every API path, in place of a leading `/v1` where it has a path of its own: `http://h/a` makes
    /// `/a/chat/completions` of `/v1/chat/completions`, `http://h` leaves it. For Bedrock it goes before `/model/...`, mostly
    /// `https://bedrock-runtime.REGION.amazonaws.com`.
    #[serde(rename = "baseURL")]
    #[schemars(extend("format" = "url"))]
    pub base_url: String,
    /// Whom an `https://` provider must prove to be.
    #[serde(default)]
    pub tls: ProviderTls,
    /// The credential it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Models it serves.
    #[schemars(length(min = 1))]
    pub models: Vec<ProviderModel>,
    /// Limits of this balancer toward it.
    #[serde(default)]
    pub limits: Limits,
    /// How long each phase of a request may take.
    #[serde(default)]
    pub timeouts: ProviderTimeouts,
}

/// Whom a provider reached by `https://` must prove to be. Without effect for `http://`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderTls {
    /// A file of PEM certificates, relative to the document it is named in: the authorities that are believed, in place of the
    /// system's. Read again when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub ca_file: Option<String>,
    /// The name that its certificate must be good for, and that is told in the handshake (SNI); absent: the host of `baseURL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub server_name: Option<String>,
}

/// Which API a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProviderType {
    /// OpenAI's, or any compatible one: Databricks, Bedrock's compatible endpoint, Azure v1, vLLM elsewhere.
    OpenAI,
    /// Bedrock's Converse: chat completions, whole and streamed, and nothing else.
    Bedrock,
}

/// A model a provider serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderModel {
    /// Name clients ask for, and what the provider is sent where `upstreamName` is absent.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Other names clients may ask for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub aliases: Vec<String>,
    /// Name the provider knows it by and is sent; absent: `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub upstream_name: Option<String>,
    /// Longest prompt and answer together, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub context_window: Option<u32>,
    /// Price, for `minimize: Cost`, `costPerMillionTokens` and the access log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// Price of tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cost {
    /// Price of a million prompt tokens.
    #[schemars(range(min = 0.0))]
    pub input_per_million: f64,
    /// Price of a million answer tokens.
    #[schemars(range(min = 0.0))]
    pub output_per_million: f64,
    /// ISO 4217 code of the currency.
    #[serde(default = "currency")]
    #[schemars(pattern("^[A-Z]{3}$"))]
    pub currency: String,
}

fn currency() -> String {
    "USD".to_owned()
}

/// Limits on requests and tokens; an absent one is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Requests a minute. An InferenceProvider is passed over when it was sent so many in the last sixty seconds. An
    /// InferenceTenant may begin so many at once after a minute of rest, and they come back evenly; beyond that it gets 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests_per_minute: Option<u32>,
    /// Prompt and answer tokens a minute, in the same way: reserved when a request is sent, as estimated and with `max_tokens`, and
    /// settled by what the answer says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub tokens_per_minute: Option<u64>,
    /// Requests in flight at once. An InferenceProvider at this limit is passed over; an InferenceTenant gets 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_in_flight: Option<u32>,
}

/// How long each phase of a request to a provider may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderTimeouts {
    /// TCP and TLS handshakes.
    #[serde(default = "connect")]
    pub connect: Duration,
    /// From the last byte of the request to the first byte of the answer.
    #[serde(default = "first_byte")]
    pub first_byte: Duration,
    /// Between two bytes of the answer.
    #[serde(default = "idle")]
    pub idle: Duration,
    /// From the connection to the last byte of the answer; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Duration>,
}

impl Default for ProviderTimeouts {
    fn default() -> Self {
        Self { connect: connect(), first_byte: first_byte(), idle: idle(), total: None }
    }
}

fn connect() -> Duration {
    Duration::from_secs(2)
}

fn first_byte() -> Duration {
    Duration::from_secs(30)
}

fn idle() -> Duration {
    Duration::from_secs(60)
}
