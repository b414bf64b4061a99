//! An example and a unit for every field of the reference. Examples are checked against the schemas by a test.

use serde_json::Value;

/// Names of bounds and of changes, which say nothing of what they bound: the field above them does.
const BOUNDS: [&str; 6] = ["greaterThan", "atLeast", "lessThan", "atMost", "set", "default"];

/// Examples of texts and numbers by the field's name, in YAML.
const EXAMPLES: [(&str, &str); 94] = [
    ("address", "10.0.0.5"),
    ("aliases", "[qwen-3.6]"),
    ("all", "[pii, tools]"),
    ("any", "[pii, secret]"),
    ("audience", "kinference"),
    ("baseURL", "https://api.example.com/v1"),
    ("cache", "10000"),
    ("certFile", "tls.crt"),
    ("chatTemplateFile", "chat.jinja"),
    ("claim", "sub"),
    ("caFile", "ca.crt"),
    ("clientCaFile", "ca.crt"),
    ("code", "tenant_blocked"),
    ("connectionsPerThread", "65536"),
    ("contextWindow", "131072"),
    ("conversation", "support-42"),
    ("costPerMillionTokens", "2.5"),
    ("currency", "USD"),
    ("dataParallelRanks", "2"),
    ("dataThreads", "auto"),
    ("endpoint", "\"10.0.0.5:8000\""),
    ("equals", "alice"),
    ("errorRate", "0.05"),
    ("exact", "search"),
    ("exclude", "busy"),
    ("file", "tokenizer.json"),
    ("frequencyPenalty", "0.5"),
    ("fromEnv", "DATABRICKS_TOKEN"),
    ("fromFile", "token.txt"),
    ("gpusPerEndpoint", "2"),
    ("inFlight", "8"),
    ("inputPerMillion", "0.5"),
    ("issuer", "https://login.example.com"),
    ("jwksFile", "jwks.json"),
    ("jwksUrl", "https://login.example.com/.well-known/jwks.json"),
    ("key", "token"),
    ("keyFile", "tls.key"),
    ("kubeconfig", "/etc/kubeconfig"),
    ("kvCacheUsage", "0.9"),
    ("maxInFlight", "64"),
    ("maxInFlightPerEndpoint", "256"),
    ("maxLength", "500"),
    ("maxTokens", "4096"),
    ("message", "This key is blocked."),
    ("minCount", "2"),
    ("minP", "0.05"),
    ("model", "qwen-3.6"),
    ("modelFile", "complexity.model"),
    ("models", "[qwen-3.6, Qwen/Qwen3.6-27B]"),
    ("name", "qwen"),
    ("namespaces", "[default]"),
    ("peers", "[\"balancers.kinference.svc:7946\"]"),
    ("names", "[qwen-3.6]"),
    ("negative", "[What is a contract?]"),
    ("none", "[pii]"),
    ("outputPerMillion", "1.5"),
    ("path", "/metrics"),
    ("perGpuSecond", "0.0007"),
    ("patterns", "['TICKET-[0-9]+']"),
    ("pools", "[qwen]"),
    ("port", "8000"),
    ("positive", "[Terminate the contract of 3 May.]"),
    ("prefix", "batch-"),
    ("prefixOverlap", "0.8"),
    ("presencePenalty", "0.5"),
    ("priority", "10"),
    ("promptTokens", "8000"),
    ("provider", "databricks"),
    ("queuedPrompts", "4"),
    ("regex", "'team-(a|b)'"),
    ("region", "eu-central-1"),
    ("repetitionPenalty", "1.1"),
    ("replayPort", "5558"),
    ("requestsPerMinute", "600"),
    ("resources", "[./resources]"),
    ("rule", "local-first"),
    ("runningPrompts", "16"),
    ("san", "spiffe://cluster/ns/alice/sa/app"),
    ("seed", "7"),
    ("servedName", "qwen"),
    ("serverName", "api.example.com"),
    ("service", "bedrock"),
    ("shadowRule", "try-first"),
    ("sha256", "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"),
    ("status", "403"),
    ("tag", "contract"),
    ("tags", "[pii]"),
    ("temperature", "0.7"),
    ("tenant", "alice"),
    ("tenants", "[alice, \"team-*\"]"),
    ("tokensPerMinute", "200000"),
    ("topK", "40"),
    ("topP", "0.9"),
    ("weight", "5"),
];

/// More examples, of fields that say what they are by where they stand.
const MORE: [(&str, &str); 5] = [
    ("topic", "\"kv@\""),
    ("upstreamName", "databricks-qwen-3-6"),
    ("url", "http://127.0.0.1:7000/classify"),
    ("value", "search"),
    ("workerSet", "qwen-vllm"),
];

/// Examples by the end of the path, of names that say little alone.
const BY_PATH: [(&str, &str); 21] = [
    ("accessLog.path", "/var/log/kinference/access.jsonl"),
    ("adapters[].aliases", "[qwen-legal]"),
    ("adapters[].name", "acme/qwen-3.6-legal"),
    ("apiKeyHeader.name", "api-key"),
    ("cases[].name", "hosted when our servers are busy"),
    ("consider[].destinations[].name", "qwen-vllm"),
    ("drop.backend.names", "[qwen-vllm]"),
    ("exclude[].name", "busy"),
    ("expect.model", "Qwen/Qwen3.6-27B"),
    ("headers[].name", "x-team"),
    ("kvEvents.port", "5557"),
    ("model.name", "Qwen/Qwen3.6-27B"),
    ("models[].name", "qwen-3.6"),
    ("policyRef[].name", "local-then-hosted"),
    ("rules[].name", "local-then-hosted"),
    ("secretRef.name", "hosted-credentials"),
    ("select[].names", "[databricks, bedrock]"),
    ("servedName", "qwen-3.6-27b"),
    ("spec.destinations[].name", "qwen-vllm"),
    ("upstreamHeaders[].name", "x-team"),
    ("pools", "[chat]"),
];

/// The example of a text or list at `path`.
fn example_at(path: &str) -> Option<&'static str> {
    let by_path = BY_PATH.iter().find(|(end, _)| path.ends_with(end)).map(|(_, example)| *example);
    by_path.or_else(|| find(&EXAMPLES, telling(path))).or_else(|| find(&MORE, telling(path)))
}

/// Units of numbers by the field's name.
const UNITS: [(&str, &str); 37] = [
    ("cache", "entries"),
    ("connectionsPerThread", "connections"),
    ("contextWindow", "tokens"),
    ("costPerMillionTokens", "currency per 1e6 tokens"),
    ("dataParallelRanks", "engines"),
    ("dataThreads", "threads"),
    ("errorRate", "ratio"),
    ("frequencyPenalty", "as the API has it"),
    ("gpusPerEndpoint", "GPUs"),
    ("inFlight", "requests"),
    ("inputPerMillion", "currency per 1e6 tokens"),
    ("kvCacheUsage", "ratio"),
    ("maxInFlight", "requests"),
    ("maxInFlightPerEndpoint", "requests"),
    ("maxLength", "requests"),
    ("maxTokens", "tokens"),
    ("minCount", "words"),
    ("minP", "ratio"),
    ("outputPerMillion", "currency per 1e6 tokens"),
    ("perGpuSecond", "currency per GPU-second"),
    ("port", "TCP port"),
    ("prefixOverlap", "ratio"),
    ("presencePenalty", "as the API has it"),
    ("priority", "higher goes first"),
    ("promptTokens", "tokens"),
    ("queuedPrompts", "requests"),
    ("repetitionPenalty", "as the API has it"),
    ("replayPort", "TCP port"),
    ("requestsPerMinute", "requests a minute"),
    ("runningPrompts", "requests"),
    ("seed", "as the API has it"),
    ("status", "HTTP status"),
    ("temperature", "as the API has it"),
    ("tokensPerMinute", "tokens a minute"),
    ("topK", "likeliest tokens"),
    ("topP", "ratio"),
    ("weight", "share of the split"),
];

/// The name that says what a field at `path` is.
fn telling(path: &str) -> &str {
    let mut names = path.rsplit('.').map(|name| name.trim_end_matches("[]"));
    let own = names.next().unwrap_or_default();
    if BOUNDS.contains(&own) { names.next().unwrap_or(own) } else { own }
}

fn find(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == name).map(|(_, found)| *found)
}

/// The value of a field at `path` as YAML; `None` for a mapping or a list of mappings, whose own fields have examples.
#[must_use]
pub fn example(path: &str, schema: &Value) -> Option<String> {
    let kind = schema.get("type").and_then(Value::as_str);
    if let Some(branches) = schema.get("anyOf").and_then(Value::as_array) {
        return branches.iter().find_map(|branch| example(path, branch));
    }
    if let Some(first) = schema.get("enum").and_then(|values| values.get(0)) {
        return Some(first.as_str().map_or_else(|| first.to_string(), str::to_owned));
    }
    match (kind, schema.get("format").and_then(Value::as_str)) {
        (Some("object"), _) => None,
        (Some("array"), _) => {
            let items = schema.get("items")?;
            match items.get("enum").and_then(|values| values.get(0)).and_then(Value::as_str) {
                Some(first) => Some(format!("[{first}]")),
                None if items.get("type").and_then(Value::as_str) == Some("object") => None,
                None => example_at(path).map(str::to_owned),
            }
        }
        (Some("boolean"), _) => Some("true".to_owned()),
        (_, Some("duration")) => Some(duration(telling(path)).to_owned()),
        (_, Some("bytes")) => Some("32MiB".to_owned()),
        (_, Some("socket-address")) => Some("0.0.0.0:8080".to_owned()),
        (_, _) => example_at(path).map(str::to_owned),
    }
}

fn duration(name: &str) -> &'static str {
    match name {
        "window" => "10s",
        "interval" => "100ms",
        "predictedTTFT" => "500ms",
        "drainTimeout" | "total" => "10m",
        "maxWait" => "2s",
        _ => "30s",
    }
}

/// The unit of a number at `path`; `None` for what is no number.
#[must_use]
pub fn unit(path: &str, schema: &Value) -> Option<&'static str> {
    let is_number = |schema: &Value| matches!(schema.get("type").and_then(Value::as_str), Some("integer" | "number"));
    let branches = schema.get("anyOf").and_then(Value::as_array);
    let number = is_number(schema) || branches.is_some_and(|branches| branches.iter().any(is_number));
    number.then(|| find(&UNITS, telling(path))).flatten()
}
