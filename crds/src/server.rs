//! The server's own file: what this process listens on and where its resources come from. Not a resource.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::secret::SecretValue;
use crate::value::{Bytes, Duration};

/// What this process listens on and where its resources come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerSpec {
    /// Where requests come in.
    #[serde(default = "listeners")]
    #[schemars(length(min = 1, max = 64))]
    pub listeners: Vec<Listener>,
    /// Where metrics, health and state are read.
    #[serde(default)]
    pub admin: Admin,
    /// Threads that move requests: a number, or `auto` for one per core.
    #[serde(default)]
    pub data_threads: DataThreads,
    /// Files or folders of `*.yaml`, watched; relative to this file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1)))]
    pub resources: Vec<String>,
    /// Resources from a Kubernetes API server, instead of files.
    #[serde(default)]
    pub kubernetes: Kubernetes,
    /// Other balancers in front of the same engines. Each tells the others what it has sent where, as it changes; absent:
    /// this one judges by what engines report and by its own requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balancers: Option<Balancers>,
    /// Bounds of what one process takes on.
    #[serde(default)]
    pub limits: ServerLimits,
    /// How long each phase of a request may take.
    #[serde(default)]
    pub timeouts: ServerTimeouts,
    /// One JSON line for each request.
    #[serde(default)]
    pub access_log: AccessLog,
    /// Whether answers say where they come from, in `x-kinference-endpoint`, `-rule` and
    /// `-predicted-ttft-ms`, and what their prompts were found to be, in `x-kinference-tags`.
    #[serde(default)]
    pub decision_headers: DecisionHeaders,
    /// Silence of an engine within a stream of events after which the client is sent a comment (`: ping`), so that
    /// nothing on the way takes the connection for dead; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_ping: Option<Duration>,
    /// How long running requests may take to end when the process is asked to stop.
    #[serde(default = "drain_timeout")]
    pub drain_timeout: Duration,
}

/// Whether answers say where they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DecisionHeaders {
    /// Clients see nothing of it.
    #[default]
    Hidden,
    /// Each answer carries the headers.
    Shown,
}

fn listeners() -> Vec<Listener> {
    vec![Listener { address: "0.0.0.0:8080".to_owned(), tls: None, pools: Vec::new() }]
}

fn drain_timeout() -> Duration {
    Duration::from_secs(600)
}

impl Default for ServerSpec {
    fn default() -> Self {
        Self {
            listeners: listeners(),
            admin: Admin::default(),
            data_threads: DataThreads::Auto,
            resources: Vec::new(),
            kubernetes: Kubernetes::default(),
            balancers: None,
            limits: ServerLimits::default(),
            timeouts: ServerTimeouts::default(),
            access_log: AccessLog::default(),
            decision_headers: DecisionHeaders::default(),
            stream_ping: None,
            drain_timeout: drain_timeout(),
        }
    }
}

/// Where requests come in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Listener {
    /// IP address and TCP port.
    #[schemars(extend("format" = "socket-address"))]
    pub address: String,
    /// TLS; absent: plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Pools served here, as `name` or `namespace/name`; empty: every pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1)))]
    pub pools: Vec<String>,
}

/// TLS of a listener: versions 1.2 and 1.3, HTTP/1.1. Files are relative to this file, PEM, and read again when they change;
/// a broken state is refused, and the last good one stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tls {
    /// Certificate chain, the listener's own certificate first.
    #[schemars(length(min = 1))]
    pub cert_file: String,
    /// Private key, without a passphrase.
    #[schemars(length(min = 1))]
    pub key_file: String,
    /// Authorities of client certificates: every client must show one of theirs. Absent: none is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub client_ca_file: Option<String>,
}

/// Where metrics, health and state are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Admin {
    /// IP address and TCP port.
    #[serde(default = "admin_address")]
    #[schemars(extend("format" = "socket-address"))]
    pub address: String,
}

fn admin_address() -> String {
    "127.0.0.1:9090".to_owned()
}

impl Default for Admin {
    fn default() -> Self {
        Self { address: admin_address() }
    }
}

/// Threads that move requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataThreads {
    /// One per core.
    #[default]
    Auto,
    /// So many.
    Count(u16),
}

impl DataThreads {
    /// Most threads that may be asked for; more than any machine this runs on has cores.
    pub const MAX: u16 = 1024;
}

impl Serialize for DataThreads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            DataThreads::Auto => serializer.serialize_str("auto"),
            DataThreads::Count(count) => serializer.serialize_u16(*count),
        }
    }
}

impl<'de> Deserialize<'de> for DataThreads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = DataThreads;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "`auto`, or a number from 1 to {}", DataThreads::MAX)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<DataThreads, E> {
                if text == "auto" {
                    Ok(DataThreads::Auto)
                } else {
                    Err(E::invalid_value(de::Unexpected::Str(text), &self))
                }
            }
            fn visit_u64<E: de::Error>(self, count: u64) -> Result<DataThreads, E> {
                match u16::try_from(count) {
                    Ok(n) if (1..=DataThreads::MAX).contains(&n) => Ok(DataThreads::Count(n)),
                    Ok(_) | Err(_) => Err(E::invalid_value(de::Unexpected::Unsigned(count), &self)),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for DataThreads {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "DataThreads".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string", "enum": ["auto"] },
                { "type": "integer", "minimum": 1, "maximum": DataThreads::MAX },
            ]
        })
    }
}

/// Resources from a Kubernetes API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kubernetes {
    /// Whether resources come from there; with `resources` it is an error.
    #[serde(default)]
    pub enabled: bool,
    /// Namespaces that are watched, each by six watches; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1)))]
    pub namespaces: Vec<String>,
    /// A kubeconfig file; empty: what `KUBECONFIG` names, else the pod's service account, else `~/.kube/config`.
    #[serde(default)]
    pub kubeconfig: String,
    /// Where credentials that objects name may come from.
    #[serde(default)]
    pub credentials: Credentials,
}

/// Where credentials that objects of a cluster name may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Credentials {
    /// From anywhere: also from this process's environment and files (`fromEnv`, `fromFile`). Whoever may write an
    /// InferenceProvider in a watched namespace can have those sent to an address of theirs.
    #[default]
    All,
    /// From Secrets of the object's own namespace alone.
    SecretsOnly,
}

/// Other balancers in front of the same engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Balancers {
    /// IP address and UDP port where this one hears the others.
    #[serde(default = "balancers_address")]
    #[schemars(extend("format" = "socket-address"))]
    pub address: String,
    /// The others, as `host:port`; names are looked up again and again, and each address is a balancer: a headless Service is
    /// all of its pods. This one may be among them.
    #[schemars(length(min = 1, max = 64), inner(length(min = 3)))]
    pub peers: Vec<String>,
    /// What all of them know and nobody else, 16 bytes or more: what they tell is signed with it. `fromEnv` or `fromFile`.
    pub secret: SecretValue,
}

fn balancers_address() -> String {
    "0.0.0.0:7946".to_owned()
}

/// Bounds of what one process takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerLimits {
    /// Largest request body.
    #[serde(default = "request_body")]
    pub request_body: Bytes,
    /// All request bodies held at once, and what is made of them and of answers at providers that speak another API.
    #[serde(default = "request_bodies_total")]
    pub request_bodies_total: Bytes,
    /// Largest request head.
    #[serde(default = "request_head")]
    pub request_head: Bytes,
    /// Client connections of one data thread.
    #[serde(default = "connections_per_thread")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub connections_per_thread: u32,
}

fn request_body() -> Bytes {
    Bytes(32 << 20)
}

fn request_bodies_total() -> Bytes {
    Bytes(1 << 30)
}

fn request_head() -> Bytes {
    Bytes(64 << 10)
}

fn connections_per_thread() -> u32 {
    65536
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            request_body: request_body(),
            request_bodies_total: request_bodies_total(),
            request_head: request_head(),
            connections_per_thread: connections_per_thread(),
        }
    }
}

/// How long each phase of a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerTimeouts {
    /// From the first byte of a request's head to its last.
    #[serde(default = "request_head_time")]
    pub request_head: Duration,
    /// Between two bytes of a request's body.
    #[serde(default = "request_body_idle")]
    pub request_body_idle: Duration,
    /// Connecting to an endpoint.
    #[serde(default = "connect")]
    pub connect: Duration,
    /// From the last byte sent to an endpoint to the first byte of its answer.
    #[serde(default = "first_byte")]
    pub first_byte: Duration,
    /// Between two bytes of an answer.
    #[serde(default = "idle")]
    pub idle: Duration,
    /// A client connection without a request.
    #[serde(default = "client_idle")]
    pub client_idle: Duration,
}

fn request_head_time() -> Duration {
    Duration::from_secs(10)
}

fn request_body_idle() -> Duration {
    Duration::from_secs(30)
}

fn connect() -> Duration {
    Duration::from_secs(1)
}

fn first_byte() -> Duration {
    Duration::from_secs(120)
}

fn idle() -> Duration {
    Duration::from_secs(60)
}

fn client_idle() -> Duration {
    Duration::from_secs(75)
}

impl Default for ServerTimeouts {
    fn default() -> Self {
        Self {
            request_head: request_head_time(),
            request_body_idle: request_body_idle(),
            connect: connect(),
            first_byte: first_byte(),
            idle: idle(),
            client_idle: client_idle(),
        }
    }
}

/// One JSON line for each request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccessLog {
    /// A file, `-` for standard output, empty for none.
    #[serde(default = "access_log_path")]
    pub path: String,
}

fn access_log_path() -> String {
    "-".to_owned()
}

impl Default for AccessLog {
    fn default() -> Self {
        Self { path: access_log_path() }
    }
}
