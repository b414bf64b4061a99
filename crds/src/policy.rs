//! `InferencePolicy`: which endpoint answers which request.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::value::{Duration, DurationCondition, NumberCondition, RatioCondition};

/// Headers no policy may write: they frame the message, name the connection, carry a credential, or are written by the gateway.
pub const RESERVED_HEADERS: [&str; 28] = [
    "accept-encoding",
    "api-key",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "openai-organization",
    "openai-project",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-security-token",
    "x-api-key",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-goog-api-key",
    "x-request-id",
];

/// CEL and its message: bounds of a parameter.
const BOUNDS_IN_ORDER: [&str; 2] =
    ["!has(self.atLeast) || !has(self.atMost) || self.atLeast <= self.atMost", "atLeast is above atMost"];

/// CEL and its message: lengths of a window that are kept.
const WINDOW: [&str; 2] = [
    "duration(self) >= duration('1s') && duration(self) <= duration('30s') && duration(self).getMilliseconds() % 1000 == 0",
    "the window must be a whole number of seconds from 1s to 30s",
];

/// Which endpoint answers which request. In force where a pool refers to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InferencePolicySpec {
    /// The first rule whose `matches` holds decides, in the order written.
    #[schemars(length(min = 1, max = 256), extend("x-unique-by" = ["name"]))]
    pub rules: Vec<Rule>,
}

/// One rule: the requests it is for, and what happens to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-exactly-one-of" = ["route", "deny"]))]
pub struct Rule {
    /// Unique within the policy; shown in logs, errors and metrics.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Whether the rule decides, or is only tried out.
    #[serde(default)]
    pub mode: Mode,
    /// The rule holds when one of the entries does. Absent or empty: every request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub matches: Vec<Match>,
    /// Choose an endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<Route>,
    /// Refuse the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny: Option<Deny>,
}

/// Whether a rule decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// It takes its requests.
    #[default]
    Enforced,
    /// It takes none: for a request that it would have taken, what it would have done is counted and logged.
    Shadow,
}

/// One entry of `matches`; it holds when all its fields do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-cel" = [
    ["!(has(self.model) && has(self.models))", "model and models are both given; put every value in models"],
    ["!(has(self.tenant) && has(self.tenants))", "tenant and tenants are both given; put every value in tenants"],
]))]
pub struct Match {
    /// The model name the client asked for; `*` stands for any run of characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub model: Option<String>,
    /// The same with several names, any of which will do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub models: Vec<String>,
    /// The tenant that is calling; `*` stands for any run of characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub tenant: Option<String>,
    /// The same with several tenants, any of which will do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub tenants: Vec<String>,
    /// Tags the classifiers put on the prompt: a list (all of them), or `any`, `all` and `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Tags>,
    /// Headers of the request, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    pub headers: Vec<HeaderMatch>,
    /// APIs, any of which will do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub api: Vec<Api>,
    /// Whether the client asked for a streamed answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Estimated length of the prompt in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<NumberCondition>,
}

/// A test over the tags of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tags {
    /// A plain list: every one of them.
    List(Vec<String>),
    /// Sets that are combined.
    Sets(TagSets),
}

/// Sets of tags; all that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct TagSets {
    /// At least one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub any: Vec<String>,
    /// Every one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub all: Vec<String>,
    /// Not one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub none: Vec<String>,
}

impl Tags {
    /// The same as sets.
    #[must_use]
    pub fn into_sets(self) -> TagSets {
        match self {
            Tags::List(all) => TagSets { all, ..TagSets::default() },
            Tags::Sets(sets) => sets,
        }
    }
}

impl Serialize for Tags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Tags::List(list) => list.serialize(serializer),
            Tags::Sets(sets) => sets.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Tags {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Tags;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of tags, or a mapping with `any`, `all` or `none`")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Tags, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Tags::List)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Tags, A::Error> {
                TagSets::deserialize(MapAccessDeserializer::new(map)).map(Tags::Sets)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Tags {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Tags".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let sets = generator.subschema_for::<TagSets>();
        json_schema!({
            "anyOf": [
                { "type": "array", "minItems": 1, "items": { "type": "string", "minLength": 1 } },
                sets,
            ]
        })
    }
}

/// A test over one header. Exactly one of `exact`, `prefix`, `regex`, `present`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-exactly-one-of" = ["exact", "prefix", "regex", "present"]))]
pub struct HeaderMatch {
    /// Name of the header, compared without regard to case.
    #[schemars(length(min = 1), pattern("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"), extend("x-expected" = "a header's name, such as `x-team`"))]
    pub name: String,
    /// The value is this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<String>,
    /// The value begins with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub prefix: Option<String>,
    /// The whole value matches this regular expression (RE2 syntax; no look-around, no back-references).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// `true`: the header is there. `false`: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// The API a request is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Api {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages` and its `count_tokens`
    Messages,
    /// `POST /v1/rerank`
    Rerank,
    /// `POST /v1/score`
    Score,
    /// `POST /tokenize`
    Tokenize,
    /// `POST /detokenize`
    Detokenize,
    /// `POST /v1/audio/transcriptions`
    Transcriptions,
    /// `POST /v1/audio/translations`
    Translations,
    /// Any other path.
    Other,
}

/// How a rule chooses an endpoint. Every part may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// What may serve the request: the union of the entries. Absent: every destination of the pool that serves the
    /// name asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub consider: Option<Vec<Consider>>,
    /// Each entry drops the candidates for which all its conditions hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-list-map-keys" = ["name"]))]
    pub exclude: Vec<Exclude>,
    /// Steps tried in order; the first with a surviving candidate wins. Absent: Local by least predicted time to first
    /// token. External is never reached unless a step names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub select: Option<Vec<SelectStep>>,
    /// Where requests wait when `exclude` and limits have dropped every candidate. Absent: they are refused at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// Which requests go the same way where steps of `select` have a `weight`.
    #[serde(default)]
    pub split_by: SplitBy,
    /// Sampling parameters that change on the way to whoever answers; all others stay as the client wrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<Rewrite>,
    /// Headers added for whoever answers, each in place of what the client sent under that name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16), extend("x-cel" = [[
        "self.all(a, self.exists_one(b, b.name.lowerAscii() == a.name.lowerAscii()))",
        "a name is here twice in upstreamHeaders"
    ]]))]
    pub upstream_headers: Vec<UpstreamHeader>,
}

/// A queue in the gateway. Whose tenant has the higher `priority` goes first; tenants of one priority get equal shares of tokens.
/// Each data thread has a queue of its own, and looks at it whenever one of its requests ends and every 20 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Queue {
    /// Longest wait, 1ms to 10m; then the request is decided once more, and refused if still nobody can take it.
    #[schemars(extend("x-cel" = [[
        "duration(self) >= duration('1ms') && duration(self) <= duration('10m')",
        "the wait must be from 1ms to 10m"
    ]]))]
    pub max_wait: Duration,
    /// Most requests that wait under this rule, over all data threads; one more is refused at once.
    #[serde(default = "queue_length")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_length: u32,
}

fn queue_length() -> u32 {
    1_000
}

/// Which requests of a split go the same way, as long as nothing is full, down or written anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SplitBy {
    /// Those of one conversation: the same caller and the same first message of the user.
    #[default]
    Conversation,
    /// Those of one tenant.
    Tenant,
    /// None: each is drawn for itself.
    Request,
}

/// Changes of sampling parameters, under the names of their fields in `camelCase`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct Rewrite {
    /// `temperature`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<RewriteNumber>,
    /// `top_p`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<RewriteRatio>,
    /// `top_k`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<RewriteInteger>,
    /// `min_p`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<RewriteRatio>,
    /// `presence_penalty`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<RewriteNumber>,
    /// `frequency_penalty`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<RewriteNumber>,
    /// `repetition_penalty`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<RewriteNumber>,
    /// `max_tokens`, `max_completion_tokens` or `max_output_tokens`, whichever the request writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<RewriteInteger>,
    /// `seed`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<RewriteInteger>,
}

/// What becomes of a parameter that is a number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-at-least-one-of" = ["set", "default", "atLeast", "atMost"], "x-cel" = [BOUNDS_IN_ORDER]))]
pub struct RewriteNumber {
    /// The value, whatever the client wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<f64>,
    /// The value where the client wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<f64>,
    /// A lower value is raised to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// A higher value is lowered to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}

/// What becomes of a parameter between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-at-least-one-of" = ["set", "default", "atLeast", "atMost"], "x-cel" = [BOUNDS_IN_ORDER]))]
pub struct RewriteRatio {
    /// The value, whatever the client wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub set: Option<f64>,
    /// The value where the client wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub default: Option<f64>,
    /// A lower value is raised to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub at_least: Option<f64>,
    /// A higher value is lowered to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub at_most: Option<f64>,
}

/// What becomes of a parameter that is a whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-at-least-one-of" = ["set", "default", "atLeast", "atMost"], "x-cel" = [BOUNDS_IN_ORDER]))]
pub struct RewriteInteger {
    /// The value, whatever the client wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<i32>,
    /// The value where the client wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<i32>,
    /// A lower value is raised to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<i32>,
    /// A higher value is lowered to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<i32>,
}

/// A header for whoever answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpstreamHeader {
    /// Its name; not one that the gateway writes itself, nor one of a credential.
    #[schemars(
        length(min = 1, max = 64),
        pattern("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"),
        extend("x-expected" = "a header's name, such as `x-team`", "x-not-one-of" = RESERVED_HEADERS)
    )]
    pub name: String,
    /// Its value: visible ASCII with spaces and tabs inside.
    #[schemars(length(max = 1024), pattern("^[!-~]([ -~\\t]*[!-~])?$|^$"), extend("x-expected" = "visible ASCII, with spaces and tabs only inside"))]
    pub value: String,
}

/// One part of what a rule considers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Consider {
    /// Models; absent: the name asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<ModelNames>,
    /// Narrows the entry to these destinations of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub destinations: Option<Vec<DestinationRef>>,
}

/// Models by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelNames {
    /// Names or aliases.
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub names: Vec<String>,
}

/// A destination in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DestinationRef {
    /// Kind of the resource.
    pub kind: DestinationKind,
    /// Name of the resource.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Kinds of resource a pool can send requests to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DestinationKind {
    /// Engines inside the cluster.
    InferenceWorkerSet,
    /// A hosted API outside it.
    InferenceProvider,
}

/// An entry that drops candidates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exclude {
    /// Unique within the rule; named in the answer when nothing is left.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Conditions, all of which must hold for a candidate to be dropped.
    pub drop: Drop,
}

/// Conditions of an exclude entry. One on a value that is unknown for a candidate does not hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "x-cel" = [
    ["!(has(self.tenant) && has(self.tenants))", "tenant and tenants are both given; put every value in tenants"],
]))]
pub struct Drop {
    /// Which candidates; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendCondition>,
    /// Requests the engine accepted but has not begun to prefill, mean over the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_prompts: Option<WindowedNumber>,
    /// Requests the engine is working on now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_prompts: Option<NumberCondition>,
    /// Requests this balancer (all cores) has sent there and that have not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<NumberCondition>,
    /// Share of the engine's KV cache in use, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_usage: Option<RatioCondition>,
    /// Share of the prompt estimated to be cached there, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_overlap: Option<RatioCondition>,
    /// Predicted time to the first token.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "predictedTTFT")]
    pub predicted_ttft: Option<DurationCondition>,
    /// Predicted time to the end of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_latency: Option<DurationCondition>,
    /// Share of answers that failed over the window, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_rate: Option<WindowedRatio>,
    /// Price of a million tokens of this request, in the currency of the model's `cost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_per_million_tokens: Option<NumberCondition>,
    /// The model's context window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<ContextWindowCondition>,
    /// The entry applies only to requests with such tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Tags>,
    /// The entry applies only to requests of this tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub tenant: Option<String>,
    /// The entry applies only to requests of these tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub tenants: Vec<String>,
    /// The entry applies only to requests whose prompt is estimated to have so many tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<NumberCondition>,
}

/// Candidates by where their answer is computed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct BackendCondition {
    /// Kind of backend; absent: both.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub backend: Option<Backend>,
    /// Destinations of the pool, by name; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub names: Option<Vec<String>>,
}

/// Where an answer is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Backend {
    /// An engine of an InferenceWorkerSet: data stays in the cluster.
    Local,
    /// A model of an InferenceProvider: data leaves the cluster.
    External,
}

/// Bounds of a mean over a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-at-least-one-of" = ["greaterThan", "atLeast", "lessThan", "atMost"]))]
pub struct WindowedNumber {
    /// The value is above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greater_than: Option<f64>,
    /// The value is this or above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The value is below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub less_than: Option<f64>,
    /// The value is this or below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Length of the window, whole seconds from 1s to 30s.
    #[serde(default = "window")]
    #[schemars(extend("x-cel" = [WINDOW]))]
    pub window: Duration,
}

/// Bounds of a share between 0 and 1 over a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-at-least-one-of" = ["greaterThan", "atLeast", "lessThan", "atMost"]))]
pub struct WindowedRatio {
    /// The value is above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub greater_than: Option<f64>,
    /// The value is this or above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub at_least: Option<f64>,
    /// The value is below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub less_than: Option<f64>,
    /// The value is this or below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub at_most: Option<f64>,
    /// Length of the window, whole seconds from 1s to 30s.
    #[serde(default = "window")]
    #[schemars(extend("x-cel" = [WINDOW]))]
    pub window: Duration,
}

fn window() -> Duration {
    Duration::from_secs(30)
}

/// A condition on the model's context window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextWindowCondition {
    /// The window is known and shorter than the prompt is estimated to be. Only `true` makes sense.
    #[schemars(extend("enum" = [true]))]
    pub less_than_prompt: bool,
}

/// One step of `select`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SelectStep {
    /// Which candidates it looks at.
    #[serde(rename = "type")]
    pub backend: Backend,
    /// The value whose least wins. Absent: `PredictedTTFT` for Local; the order of the destinations for External.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimize: Option<Minimize>,
    /// Only these destinations, and for External in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub names: Option<Vec<String>>,
    /// Neighbouring steps that all have a weight are one split: each request is drawn to one of them in proportion to the
    /// weights; where that one has no surviving candidate, to the next. 0: no request at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_000_000))]
    pub weight: Option<u32>,
}

/// What a step may minimise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Minimize {
    /// Predicted time to the first token.
    #[serde(rename = "PredictedTTFT")]
    PredictedTtft,
    /// Predicted time to the end of the answer.
    PredictedLatency,
    /// Queued prompts, mean over 30 s.
    QueuedPrompts,
    /// Requests this balancer (all cores) has in flight there.
    InFlight,
    /// Price of a million tokens.
    Cost,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Deny {
    /// HTTP status of the answer.
    #[serde(default = "deny_status")]
    #[schemars(range(min = 400, max = 599))]
    pub status: u16,
    /// Machine-readable `code` of the error body.
    #[serde(default = "deny_code")]
    #[schemars(length(min = 1))]
    pub code: String,
    /// Human-readable `message` of the error body.
    #[serde(default = "deny_message")]
    pub message: String,
}

fn deny_status() -> u16 {
    403
}

fn deny_code() -> String {
    "denied_by_policy".to_owned()
}

fn deny_message() -> String {
    "A policy of this gateway refuses the request.".to_owned()
}
