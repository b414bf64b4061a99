//! What the fleet is told: its sizes, endpoints, metrics readings, choices and ends.

use crate::prefix::chain::{BLOCK_BYTES_DEFAULT, Chain};
use crate::ttft::Prior;

/// Sizes and the seed of a [`Fleet`](super::Fleet).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Endpoint slots, at most 1,024.
    pub endpoints_max: u32,
    /// Kinds and models, each. Beyond it new ones share the first.
    pub kinds_max: u32,
    /// Requests open at a time over the process; beyond it requests go uncounted.
    pub requests_max: u32,
    /// Bytes of the prefix index.
    pub index_bytes_max: usize,
    /// Bytes of canonical text in a block, as given to the chain builder.
    pub block_bytes: u32,
    /// Secret of this process, for hash tables.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            endpoints_max: 256,
            kinds_max: 256,
            requests_max: 1 << 16,
            index_bytes_max: 64 << 20,
            block_bytes: BLOCK_BYTES_DEFAULT,
            seed: 0,
        }
    }
}

/// What answers behind an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// An engine whose queue and cache this balancer fills.
    Engine,
    /// A provider whose load cannot be seen.
    Provider,
}

/// A new endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointSpec<'a> {
    /// What answers.
    pub backend: Backend,
    /// Model served; endpoints of one model share the bytes-per-token factor.
    pub model: &'a str,
    /// Model, GPU and engine settings in one string; endpoints of one kind share a model of time.
    pub kind_key: &'a str,
    /// Belief about the kind before its first answer; counts when the kind is new.
    pub prior: Prior,
    /// Tokens an engine step prefills at most.
    pub max_batched_tokens: u64,
    /// Tokens the KV cache holds, when known.
    pub kv_capacity_tokens: Option<u64>,
}

/// One reading of an engine's metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scrape {
    /// `vllm:num_requests_waiting`.
    pub waiting: f64,
    /// `vllm:num_requests_running`.
    pub running: f64,
    /// `vllm:kv_cache_usage_perc`, 0 to 1.
    pub kv_usage_ratio: Option<f64>,
    /// `num_gpu_blocks` of `vllm:cache_config_info`.
    pub num_gpu_blocks: Option<u64>,
    /// `block_size` of the same, tokens.
    pub block_size_tokens: Option<u32>,
    /// Requests this process had open there when the engine was asked; `None`: as many as now.
    pub own_in_flight_at_scrape: Option<u32>,
}

/// Whether the answer comes as it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Streamed: its first token is seen.
    Streamed,
    /// Whole: its first token is presumed.
    Whole,
}

/// Whether this is the request's first endpoint. Retries are counted and not learned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The first.
    First,
    /// A later one.
    Retry,
}

/// A choice that was made.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// Unique over the process.
    pub request_id: u64,
    /// Slot chosen.
    pub endpoint: u32,
    /// The prompt.
    pub chain: &'a Chain,
    /// Tokens of the prompt, estimated.
    pub prompt_tokens: u32,
    /// Of these, expected in the endpoint's cache.
    pub overlap_tokens: u32,
    /// How the answer comes.
    pub answer: Answer,
    /// Which attempt this is.
    pub attempt: Attempt,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Answered in full.
    Completed {
        /// `usage.prompt_tokens`.
        prompt_tokens: Option<u32>,
        /// `usage.prompt_tokens_details.cached_tokens`.
        cached_tokens: Option<u32>,
        /// `usage.completion_tokens`. An answer sent whole with one token (an embedding counts as one) teaches.
        completion_tokens: Option<u32>,
    },
    /// The client left.
    Aborted,
    /// The endpoint failed.
    Failed,
    /// The endpoint refused (429, 503).
    Refused,
}

/// Whether an endpoint was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It was.
    Added,
    /// The slot is not below `endpoints_max`.
    OutOfRange,
}
