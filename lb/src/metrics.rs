//! What a data thread counts. One writer, no atomics: the control thread asks for a copy ([`ShardReport`]) and adds up.

use std::collections::{BTreeMap, HashMap};

use ahash::RandomState;

use crate::exact::Outcome;
use crate::mailbox::Failure;
use crate::openai::Usage;
use crate::plan::EndpointId;
use crate::queue;

/// Upper bounds in seconds of the buckets of [`Histogram`]s of durations.
pub(crate) const DURATION_BOUNDS_S: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

/// Most different label sets of one thread; what comes after is counted under `other`.
pub(crate) const SERIES_MAX: usize = 2_048;

/// A histogram over [`DURATION_BOUNDS_S`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    /// Observations at or below each bound (not cumulative); the last one is above all bounds.
    pub(crate) buckets: [u64; DURATION_BOUNDS_S.len() + 1],
    /// Sum in seconds.
    pub(crate) sum_s: f64,
}

impl Histogram {
    /// Adds one observation.
    pub(crate) fn observe_us(&mut self, us: u64) {
        let seconds = us as f64 / 1e6;
        let bucket = DURATION_BOUNDS_S.iter().position(|&bound| seconds <= bound).unwrap_or(DURATION_BOUNDS_S.len());
        self.buckets[bucket] += 1;
        self.sum_s += seconds;
    }

    /// Adds all observations of another.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine += theirs;
        }
        self.sum_s += other.sum_s;
    }
}

/// Labels of the request counts. Names come from the configuration, never from the request, so their number is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Labels<'a> {
    /// The configured name of the model asked for; empty when it is none.
    pub(crate) model: &'a str,
    /// The model that the server was sent; empty when there was none.
    pub(crate) model_served: &'a str,
    /// The tenant's name.
    pub(crate) tenant: &'a str,
    /// Worker set or provider that answered; empty when none did.
    pub(crate) destination: &'a str,
    /// The rule that decided; empty when none did.
    pub(crate) rule: &'a str,
    /// The interface, as [`policy::Api::as_str`] names it.
    pub(crate) api: &'static str,
    /// `ok`, `truncated`, `client_gone`, `denied`, ... as in the access log.
    pub(crate) outcome: &'static str,
    /// The status sent to the client; 0 when none was.
    pub(crate) status: u16,
}

/// One set of [`Labels`] with names of its own, and its counts.
#[derive(Debug, Clone)]
struct OneSeries {
    model: Box<str>,
    model_served: Box<str>,
    tenant: Box<str>,
    destination: Box<str>,
    rule: Box<str>,
    api: &'static str,
    outcome: &'static str,
    status: u16,
    counts: SeriesCounts,
}

impl OneSeries {
    fn new(labels: &Labels<'_>) -> Self {
        Self {
            model: labels.model.into(),
            model_served: labels.model_served.into(),
            tenant: labels.tenant.into(),
            destination: labels.destination.into(),
            rule: labels.rule.into(),
            api: labels.api,
            outcome: labels.outcome,
            status: labels.status,
            counts: SeriesCounts::default(),
        }
    }

    fn labels(&self) -> Labels<'_> {
        Labels {
            model: &self.model,
            model_served: &self.model_served,
            tenant: &self.tenant,
            destination: &self.destination,
            rule: &self.rule,
            api: self.api,
            outcome: self.outcome,
            status: self.status,
        }
    }
}

/// Counts by labels. Found by a hash of borrowed names: counting a request copies none of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeriesTable {
    hasher: RandomState,
    /// Places in `all` by hash; the rare ones that share a hash stand in a row.
    places: HashMap<u64, Vec<u32>, RandomState>,
    all: Vec<OneSeries>,
}

impl SeriesTable {
    /// The counts of `labels`, or those of `other` when there are too many already.
    pub(crate) fn counts(&mut self, labels: &Labels<'_>) -> &mut SeriesCounts {
        let at = self.find(labels).unwrap_or_else(|| {
            let full = self.all.len() >= SERIES_MAX;
            let other = "other";
            let folded =
                Labels { model: other, model_served: other, tenant: other, destination: other, rule: other, ..*labels };
            let labels = if full { &folded } else { labels };
            self.find(labels).unwrap_or_else(|| self.add(labels))
        });
        &mut self.all[at].counts
    }

    fn find(&self, labels: &Labels<'_>) -> Option<usize> {
        let places = self.places.get(&self.hasher.hash_one(labels))?;
        places.iter().map(|&at| at as usize).find(|&at| self.all[at].labels() == *labels)
    }

    fn add(&mut self, labels: &Labels<'_>) -> usize {
        let at = self.all.len();
        self.all.push(OneSeries::new(labels));
        self.places.entry(self.hasher.hash_one(labels)).or_default().push(at as u32);
        at
    }

    /// All label sets and their counts, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Labels<'_>, &SeriesCounts)> {
        self.all.iter().map(|one| (one.labels(), &one.counts))
    }
}

/// Counts of one set of [`Labels`].
#[derive(Debug, Clone, Default)]
pub(crate) struct SeriesCounts {
    /// Requests that ended.
    pub(crate) requests: u64,
    /// `prompt_tokens` as reported.
    pub(crate) prompt_tokens: u64,
    /// `cached_tokens` as reported.
    pub(crate) cached_tokens: u64,
    /// `completion_tokens` as reported.
    pub(crate) completion_tokens: u64,
    /// In the currencies of the destinations' prices.
    pub(crate) cost: f64,
    /// From the last byte of the request to the first content of the answer, streamed answers only.
    pub(crate) ttft: Histogram,
    /// From the last byte of the request to the last of the answer.
    pub(crate) duration: Histogram,
}

impl SeriesCounts {
    /// Adds token counts. Engines may claim anything: a sum that is too large stays at the largest.
    pub(crate) fn add_tokens(&mut self, usage: &Usage) {
        let add = |sum: &mut u64, tokens: Option<u64>| *sum = sum.saturating_add(tokens.unwrap_or(0));
        add(&mut self.prompt_tokens, usage.prompt_tokens);
        add(&mut self.cached_tokens, usage.cached_tokens);
        add(&mut self.completion_tokens, usage.completion_tokens);
    }

    /// The token counts.
    pub(crate) fn tokens(&self) -> Usage {
        Usage {
            prompt_tokens: Some(self.prompt_tokens),
            cached_tokens: Some(self.cached_tokens),
            completion_tokens: Some(self.completion_tokens),
        }
    }
}

/// Everything one data thread counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    /// Client connections taken.
    pub(crate) connections_accepted: u64,
    /// Client connections open now.
    pub(crate) connections_open: u64,
    /// Client connections accepted here and passed on to another thread, which counts them as taken.
    pub(crate) connections_handed_over: u64,
    /// Client connections turned away for want of room.
    pub(crate) connections_refused: u64,
    /// TLS handshakes that were done.
    pub(crate) tls_handshakes: u64,
    /// TLS handshakes that were refused, by either side, or not done in time.
    pub(crate) tls_handshakes_failed: u64,
    /// Accepts that failed (out of descriptors, mostly).
    pub(crate) accept_errors: u64,
    /// Tasks that ended by a panic: each is a bug, and cost one connection.
    pub(crate) panics: u64,
    /// Exchanges being worked on now.
    pub(crate) exchanges_open: u64,
    /// Bytes taken for request bodies now.
    pub(crate) body_bytes: u64,
    /// Times that a request body had to wait for memory.
    pub(crate) body_waits: u64,
    /// Requests that were answered without an upstream by a path (`/v1/models`) or an error before routing.
    pub(crate) requests_local: u64,
    /// Upstream attempts beyond the first of a request.
    pub(crate) retries: u64,
    /// Requests that went out again on a fresh connection because a kept one had died.
    pub(crate) replays: u64,
    /// Retries that were wanted and not in the budget.
    pub(crate) retries_refused: u64,
    /// New upstream connections.
    pub(crate) upstream_connects: u64,
    /// Of these, those that became TLS connections.
    pub(crate) upstream_tls_handshakes: u64,
    /// Requests on a kept upstream connection.
    pub(crate) upstream_reuses: u64,
    /// Lines of the access log that found no room.
    pub(crate) log_lines_dropped: u64,
    /// Batches for other data threads that found no room.
    pub(crate) peer_batches_dropped: u64,
    /// Requests to worker sets with a tokenizer, by what became of their tokens.
    pub(crate) tokenized: BTreeMap<Outcome, u64>,
    /// How long exchanges waited for tokens.
    pub(crate) tokenize_wait: Histogram,
    /// Prompts whose length was told exactly and then by the engine: those where both agree, and the others.
    pub(crate) exact_checks: [u64; 2],
    /// Failures by endpoint and kind.
    pub(crate) failures: HashMap<(EndpointId, Failure), u64, RandomState>,
    /// |predicted - actual| / actual of the time to first token, in hundredths, as a histogram: <=5 %, 10, 20, 50, 100, more.
    pub(crate) prediction_error: [u64; 6],
    /// Ended requests by their labels.
    pub(crate) series: SeriesTable,
    /// Requests that have waited for room, by pool and rule.
    pub(crate) queues: BTreeMap<[Box<str>; 2], QueueCounts>,
    /// Requests that a rule in shadow would have taken: by rule, then destination, then code of its refusal.
    pub(crate) shadowed: BTreeMap<[Box<str>; 3], u64>,
    /// Requests by the tags of their prompts.
    pub(crate) tagged: BTreeMap<Box<str>, u64>,
}

/// Requests that have waited under one rule.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueueCounts {
    /// By how it ended, as [`queue::Outcome::ALL`] counts.
    pub(crate) outcomes: [u64; queue::Outcome::ALL.len()],
    /// How long they waited, whatever came of it.
    pub(crate) waits: Histogram,
}

/// Upper bounds of [`Metrics::prediction_error`] as ratios; the last bucket is above all.
pub(crate) const PREDICTION_ERROR_BOUNDS: [f64; 5] = [0.05, 0.1, 0.2, 0.5, 1.0];

impl Metrics {
    /// Counts what a rule in shadow would have done. Names of rules that are gone stay, within a bound.
    pub(crate) fn shadow(&mut self, rule: &str, destination: &str, error: &str) {
        let key = [rule, destination, error].map(Box::from);
        if self.shadowed.len() < SERIES_MAX || self.shadowed.contains_key(&key) {
            *self.shadowed.entry(key).or_default() += 1;
        }
    }

    /// Counts a request that has waited, or was not let wait. Names of rules that are gone stay, within a bound.
    pub(crate) fn queued(&mut self, pool: &str, rule: &str, outcome: queue::Outcome, waited_us: u64) {
        let key = [pool, rule].map(Box::from);
        if self.queues.len() < SERIES_MAX || self.queues.contains_key(&key) {
            let counts = self.queues.entry(key).or_default();
            counts.outcomes[outcome as usize] += 1;
            if outcome != queue::Outcome::Full {
                counts.waits.observe_us(waited_us);
            }
        }
    }

    /// Counts the tags of a prompt. Names of tags that are gone stay, within a bound.
    pub(crate) fn tags(&mut self, tags: &[&str]) {
        for tag in tags {
            if let Some(count) = self.tagged.get_mut(*tag) {
                *count += 1;
            } else if self.tagged.len() < SERIES_MAX {
                self.tagged.insert((*tag).into(), 1);
            }
        }
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.connections_accepted += other.connections_accepted;
        self.connections_open += other.connections_open;
        self.connections_handed_over += other.connections_handed_over;
        self.connections_refused += other.connections_refused;
        self.tls_handshakes += other.tls_handshakes;
        self.tls_handshakes_failed += other.tls_handshakes_failed;
        self.accept_errors += other.accept_errors;
        self.panics += other.panics;
        self.exchanges_open += other.exchanges_open;
        self.body_bytes += other.body_bytes;
        self.body_waits += other.body_waits;
        self.requests_local += other.requests_local;
        self.retries += other.retries;
        self.replays += other.replays;
        self.retries_refused += other.retries_refused;
        self.upstream_connects += other.upstream_connects;
        self.upstream_tls_handshakes += other.upstream_tls_handshakes;
        self.upstream_reuses += other.upstream_reuses;
        self.log_lines_dropped += other.log_lines_dropped;
        self.peer_batches_dropped += other.peer_batches_dropped;
        for (outcome, n) in &other.tokenized {
            *self.tokenized.entry(*outcome).or_default() += n;
        }
        self.tokenize_wait.merge(&other.tokenize_wait);
        for (mine, theirs) in self.exact_checks.iter_mut().zip(other.exact_checks) {
            *mine += theirs;
        }
        for (key, n) in &other.shadowed {
            *self.shadowed.entry(key.clone()).or_default() += n;
        }
        for (key, counts) in &other.queues {
            let mine = self.queues.entry(key.clone()).or_default();
            mine.waits.merge(&counts.waits);
            for (mine, theirs) in mine.outcomes.iter_mut().zip(counts.outcomes) {
                *mine += theirs;
            }
        }
        for (tag, n) in &other.tagged {
            *self.tagged.entry(tag.clone()).or_default() += n;
        }
        for (key, n) in &other.failures {
            *self.failures.entry(*key).or_default() += n;
        }
        for (mine, theirs) in self.prediction_error.iter_mut().zip(other.prediction_error) {
            *mine += theirs;
        }
        for (labels, counts) in other.series.iter() {
            let mine = self.series.counts(&labels);
            mine.requests += counts.requests;
            mine.add_tokens(&counts.tokens());
            mine.cost += counts.cost;
            mine.ttft.merge(&counts.ttft);
            mine.duration.merge(&counts.duration);
        }
    }
}

/// What one data thread believes about an endpoint.
#[derive(Debug, Clone)]
pub(crate) struct EndpointReport {
    /// Which endpoint.
    pub(crate) endpoint: EndpointId,
    /// Which one at that number.
    pub(crate) incarnation: u64,
    /// Requests of this thread in flight there.
    pub(crate) own_in_flight: u32,
    /// Idle upstream connections of this thread.
    pub(crate) idle_connections: u32,
    /// Everything the predictor holds about it (the whole process's requests included).
    pub(crate) belief: Option<predictor::fleet::EndpointBelief>,
}

/// A copy of what one data thread knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShardReport {
    /// Number of the data thread.
    pub(crate) shard: usize,
    /// Its counts.
    pub(crate) metrics: Metrics,
    /// Its beliefs.
    pub(crate) endpoints: Vec<EndpointReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_engines_claim_never_overflows() {
        let mut counts = SeriesCounts::default();
        let claim = Usage { prompt_tokens: Some(u64::MAX - 1), cached_tokens: None, completion_tokens: Some(7) };
        counts.add_tokens(&claim);
        counts.add_tokens(&claim);
        let again = counts.tokens();
        counts.add_tokens(&again);
        assert_eq!((counts.prompt_tokens, counts.cached_tokens, counts.completion_tokens), (u64::MAX, 0, 28));
    }
}
