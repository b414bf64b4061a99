//! What the engine saw and did: counters, and a bounded ring of the last requests, so that tests can tell what reached
//! the upstream side of a proxy.

use std::{
    collections::VecDeque,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// Counters and gauges of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Connections open now.
    pub connections_open: u64,
    /// Connections accepted since the start.
    pub connections_accepted: u64,
    /// Requests read since the start, to any path but `/debug` and `/fault`.
    pub received: u64,
    /// Model requests in a step now (`vllm:num_requests_running`).
    pub running: u64,
    /// Model requests in the queue now (`vllm:num_requests_waiting`).
    pub waiting: u64,
    /// Requests whose answer, of whatever status, was written in full.
    pub completed: u64,
    /// Requests whose client left before the answer was complete.
    pub aborted: u64,
    /// Requests cut off by a fault.
    pub faulted: u64,
    /// Requests refused because the queue was full.
    pub refused: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Those of them found in the prefix cache.
    pub cached_tokens: u64,
    /// Answer tokens made.
    pub output_tokens: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Not yet.
    InProgress,
    /// Answered in full.
    Completed,
    /// The client left first.
    Aborted,
    /// A fault cut it off.
    Faulted,
}

/// One request as the engine saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Counted from 1 in order of arrival.
    pub number: u64,
    /// The client's `x-request-id`, or one made here.
    pub id: String,
    /// Which connection it came on, counted from 1.
    pub connection: u64,
    /// Method.
    pub method: String,
    /// Path without query.
    pub path: String,
    /// Header lines in order, names as sent.
    pub headers: Vec<(String, String)>,
    /// Length of the body.
    pub body_bytes: u64,
    /// The body's first bytes, up to [`crate::Settings::body_kept_bytes_max`]; not UTF-8 becomes U+FFFD.
    pub body: String,
    /// Model named in the body, once parsed.
    pub model: Option<String>,
    /// Hash of the prompt's tokens, once parsed.
    pub prompt_hash: Option<u64>,
    /// Length of the prompt in tokens, once parsed.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens found in the prefix cache, once admitted.
    pub cached_tokens: Option<u64>,
    /// Status of the answer, once begun.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: Outcome,
}

/// Counters and the ring.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) connections_open: AtomicU64,
    connections_accepted: AtomicU64,
    received: AtomicU64,
    completed: AtomicU64,
    aborted: AtomicU64,
    faulted: AtomicU64,
    ring: Mutex<VecDeque<RequestRecord>>,
    records_max: usize,
    /// Threads in [`Self::wait`]; with none, changes cost nothing more.
    waiters: AtomicU64,
    change: (Mutex<()>, Condvar),
}

impl Ledger {
    pub(crate) fn new(records_max: usize) -> Self {
        Self {
            connections_open: AtomicU64::new(0),
            connections_accepted: AtomicU64::new(0),
            received: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            aborted: AtomicU64::new(0),
            faulted: AtomicU64::new(0),
            ring: Mutex::new(VecDeque::new()),
            records_max,
            waiters: AtomicU64::new(0),
            change: (Mutex::new(()), Condvar::new()),
        }
    }

    /// Blocks the thread until `done` says so; asks at each change of the counters and every few ms.
    pub(crate) fn wait(&self, done: &mut dyn FnMut() -> bool) {
        /// Gauges of the model change without a word; look again after this time.
        const LOOK_AGAIN: Duration = Duration::from_millis(5);
        self.waiters.fetch_add(1, Ordering::SeqCst);
        while !done() {
            let guard = self.change.0.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.change.1.wait_timeout(guard, LOOK_AGAIN));
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    fn changed(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.change.1.notify_all();
        }
    }

    /// Counts a connection and numbers it.
    pub(crate) fn connected(&self) -> u64 {
        self.connections_open.fetch_add(1, Ordering::Relaxed);
        self.connections_accepted.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn disconnected(&self) {
        self.connections_open.fetch_sub(1, Ordering::Release);
        self.changed();
    }

    /// Counts a request and numbers it.
    pub(crate) fn received(&self) -> u64 {
        self.received.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether records are kept at all; making one costs copies.
    pub(crate) fn keeps_records(&self) -> bool {
        self.records_max > 0
    }

    pub(crate) fn keep(&self, record: RequestRecord) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() == self.records_max {
            ring.pop_front();
        }
        ring.push_back(record);
    }

    /// Changes a record if it is still in the ring.
    pub(crate) fn amend(&self, number: u64, change: impl FnOnce(&mut RequestRecord)) {
        if !self.keeps_records() {
            return;
        }
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(at) = ring.binary_search_by_key(&number, |record| record.number) {
            change(&mut ring[at]);
        }
    }

    pub(crate) fn ended(&self, number: u64, outcome: Outcome) {
        let counter = match outcome {
            Outcome::InProgress => return,
            Outcome::Completed => &self.completed,
            Outcome::Aborted => &self.aborted,
            Outcome::Faulted => &self.faulted,
        };
        // The record first: who sees the counter finds the record up to date.
        self.amend(number, |record| record.outcome = outcome);
        counter.fetch_add(1, Ordering::Release);
        self.changed();
    }

    pub(crate) fn records(&self) -> Vec<RequestRecord> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The counters of connections and requests; those of the model are the caller's to add.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            connections_open: self.connections_open.load(Ordering::Acquire),
            connections_accepted: self.connections_accepted.load(Ordering::Acquire),
            received: self.received.load(Ordering::Acquire),
            completed: self.completed.load(Ordering::Acquire),
            aborted: self.aborted.load(Ordering::Acquire),
            faulted: self.faulted.load(Ordering::Acquire),
            ..Stats::default()
        }
    }
}
