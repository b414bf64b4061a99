//! Door of this room for benchmarks (see [`crate::probe`]): what one data thread knows, without its sockets, in a state as in use.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Lookup, SourceFile};
use policy::{Api, NoHeaders, Streaming};
use predictor::fleet::{self, Answer, Attempt, Decided, Ended, Fleet};
use predictor::prefix::chain::BLOCK_BYTES_DEFAULT;

use super::{Choice, Knowledge, Memory, Question, decide, pool_of};
use crate::control::registry::Registry;
use crate::endpoints::Table;
use crate::mailbox::Readiness;
use crate::openai::Request;
use crate::plan::Plan;
use crate::shard::predictor_spec;

/// Time between two requests of the simulated clock.
const GAP_US: u64 = 500;
/// Time between two scrapes of every endpoint.
const SCRAPE_US: u64 = 1_000_000;
/// Requests in flight for each endpoint; the oldest ends when there are more.
const OPEN_PER_ENDPOINT: usize = 4;

/// A request body, read: reading is not part of a decision.
#[derive(Debug)]
pub struct Asked {
    request: Request,
    body: Vec<u8>,
}

impl Asked {
    /// Reads the body of a chat.
    #[must_use]
    pub fn new(body: Vec<u8>) -> Option<Self> {
        let request = Request::parse(&body).ok()?;
        Some(Self { request, body })
    }
}

/// What one data thread knows, and the requests that it has in flight.
#[derive(Debug)]
pub struct Decider {
    plan: Plan,
    table: Table,
    fleet: Fleet,
    memory: Memory,
    now_us: u64,
    scraped_us: u64,
    request_id: u64,
    open: VecDeque<(u64, u32)>,
}

impl Decider {
    /// Endpoints and policy of these documents; all endpoints are ready. They must be named by address.
    ///
    /// # Errors
    /// When the documents are not valid.
    pub fn new(documents: &str) -> Result<Self, String> {
        let files = [SourceFile::new("bench.yaml", documents)];
        let loaded = config::load(&files, &Lookup::process())
            .map_err(|findings| findings.first().map_or(String::new(), |finding| finding.message.clone()))?;
        let plan = Registry::default().plan(0, Arc::new(loaded.snapshot), &Default::default()).plan;
        let mut fleet = Fleet::new(fleet::Limits {
            block_bytes: BLOCK_BYTES_DEFAULT,
            endpoints_max: config::limits::ENDPOINTS_MAX,
            seed: 1,
            ..fleet::Limits::default()
        });
        let mut table = Table::default();
        for endpoint in table.apply(&plan).added {
            endpoint.set_readiness(Readiness::Ready);
            fleet.add_endpoint(0, endpoint.spec.id.0, &predictor_spec(&endpoint.spec));
        }
        let open = VecDeque::new();
        Ok(Self { plan, table, fleet, memory: Memory::default(), now_us: 1, scraped_us: 0, request_id: 0, open })
    }

    /// Decides where a request goes, counts it there, and lets an older one end. How long the decision alone took, and the number of the
    /// endpoint; `None` when it was refused.
    pub fn decide(&mut self, asked: &Asked) -> Option<(Duration, u32)> {
        self.now_us += GAP_US;
        if self.now_us >= self.scraped_us + SCRAPE_US {
            self.scrape();
        }
        self.request_id += 1;
        let scope = config::snapshot::PoolScope::default();
        let pool = pool_of(&self.plan.snapshot, &asked.request.model, &scope).ok()?.1;
        let question = Question {
            request: &asked.request,
            body: &asked.body,
            chain: None,
            exact: &[],
            facts: policy::Request {
                model: &asked.request.model,
                tenant: "",
                tags: &[],
                api: Api::ChatCompletions,
                stream: Streaming::Yes,
                prompt_tokens: f64::NAN,
                headers: &NoHeaders,
                conversation: None,
            },
            now_us: self.now_us,
            seed: self.request_id,
            tried: &[],
            full: &[],
        };
        let mut knowledge = Knowledge {
            plan: &self.plan,
            table: &self.table,
            fleet: &mut self.fleet,
            memory: &mut self.memory,
            block_bytes: BLOCK_BYTES_DEFAULT,
        };
        let start = Instant::now();
        let choice = decide(pool, &question, &mut knowledge);
        let took = start.elapsed();
        let Choice { endpoint, prompt_tokens, overlap_tokens, chain, .. } = choice.ok()?;
        let (request_id, endpoint) = (self.request_id, endpoint.spec.id.0);
        let (answer, attempt) = (Answer::Streamed, Attempt::First);
        let decided = Decided { request_id, endpoint, chain: &chain, prompt_tokens, overlap_tokens, answer, attempt };
        self.fleet.decided(self.now_us, &decided);
        self.memory.recycle(chain);
        self.open.push_back((request_id, endpoint));
        self.end_the_oldest();
        Some((took, endpoint))
    }

    /// Number of endpoints.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.table.iter().count()
    }

    fn end_the_oldest(&mut self) {
        if self.open.len() <= self.endpoints() * OPEN_PER_ENDPOINT {
            return;
        }
        if let Some((id, endpoint)) = self.open.pop_front() {
            self.fleet.first_token(self.now_us, id, endpoint);
            let ended = Ended::Completed { prompt_tokens: None, cached_tokens: None, completion_tokens: Some(200) };
            self.fleet.ended(self.now_us, id, endpoint, ended);
        }
    }

    fn scrape(&mut self) {
        self.scraped_us = self.now_us;
        for endpoint in self.table.iter() {
            let scrape = fleet::Scrape {
                waiting: f64::from(endpoint.spec.id.0 % 3),
                running: OPEN_PER_ENDPOINT as f64,
                kv_usage_ratio: Some(0.5),
                num_gpu_blocks: Some(27_000),
                block_size_tokens: Some(16),
                own_in_flight_at_scrape: None,
            };
            self.fleet.scraped(self.now_us, endpoint.spec.id.0, &scrape);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENTS: &str = "\
        {apiVersion: kinference.buoyant.io/v1alpha1, kind: InferenceWorkerSet, metadata: {name: w}, \
        spec: {model: {name: m}, endpoints: [{address: 10.0.0.1, port: 1}, {address: 10.0.0.2, port: 1}]}}\n---\n\
        {apiVersion: kinference.buoyant.io/v1alpha1, kind: InferencePolicy, metadata: {name: p}, \
        spec: {rules: [{name: r, route: {select: [{type: Local, minimize: PredictedTTFT}]}}]}}\n---\n\
        {apiVersion: kinference.buoyant.io/v1alpha1, kind: InferencePool, metadata: {name: o}, \
        spec: {destinations: [{kind: InferenceWorkerSet, name: w}], policyRef: [{name: p}]}}\n";

    fn asked(text: &str) -> Asked {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
        Asked::new(body.into_bytes()).unwrap()
    }

    #[test]
    fn a_conversation_goes_back_to_where_it_was() {
        let mut decider = Decider::new(DOCUMENTS).unwrap();
        assert_eq!(decider.endpoints(), 2);
        let first = "once upon a time ".repeat(5_000);
        let (_, home) = decider.decide(&asked(&first)).unwrap();
        // Until it has ended: before that, its prompt is not cached.
        for other in 0..2 * OPEN_PER_ENDPOINT {
            assert!(decider.decide(&asked(&format!("another prompt {other}"))).unwrap().1 < 2);
        }
        let (_, again) = decider.decide(&asked(&format!("{first} and they lived"))).unwrap();
        assert_eq!(again, home);
    }

    #[test]
    fn documents_that_are_not_valid_are_an_error() {
        assert!(Decider::new("kind: Nothing").is_err());
    }
}
