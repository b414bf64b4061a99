//! Services that classify text: InferenceClassifiers of `type: HTTP`.
//!
//! A data thread sends the texts of a prompt here, and waits no longer than the classifier's time-out. The service is sent
//! `{"classifier": NAME, "texts": [{"role": "user", "text": "..."}]}` by POST and answers `{"tags": ["..."]}`; tags that the classifier does
//! not list are passed over. At most `maxInFlight` are asked at once, what comes on top is answered like a failure; answers are kept by a
//! keyed hash of what was sent.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use config::snapshot::{ResourceId, Tls};
use hyper::body::Bytes;
use serde::Deserialize;
use tokio::net::lookup_host;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::fetch::{Fetcher, Origin, Proof};
use super::journal;
use crate::mailbox::{ShardHandle, ToShard};
use crate::tags::remote::{Question, Service};
use crate::tls::Verifier;

/// Longest answer of a service, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The services in use, by their classifiers.
#[derive(Debug, Default)]
pub(crate) struct Services {
    all: HashMap<ResourceId, Arc<Running>>,
}

/// One service: its connections, its answers.
#[derive(Debug)]
struct Running {
    service: Arc<Service>,
    seed: u64,
    in_flight: AtomicU32,
    idle: Mutex<Vec<Fetcher>>,
    kept: Mutex<Kept>,
    /// Read with the first connection.
    verifier: OnceCell<Verifier>,
}

/// Answers that are kept, the oldest first.
#[derive(Debug, Default)]
struct Kept {
    tags: HashMap<u128, Box<[u16]>>,
    order: VecDeque<u128>,
}

impl Kept {
    fn keep(&mut self, key: u128, tags: Box<[u16]>, entries_max: u32) {
        if entries_max == 0 || self.tags.insert(key, tags).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > entries_max as usize
            && let Some(oldest) = self.order.pop_front()
        {
            self.tags.remove(&oldest);
        }
    }
}

#[derive(Debug, Deserialize)]
struct Answered {
    tags: Vec<String>,
}

impl Services {
    /// Asks on behalf of a data thread, which hears of the answer, or that there is none.
    pub(crate) fn ask(&mut self, question: Question, shard: ShardHandle) {
        let Question { ticket, service, body, .. } = question;
        let known = self.all.get(&service.id).filter(|running| running.service == service).cloned();
        let running = known.unwrap_or_else(|| {
            let running = Arc::new(Running::new(service.clone()));
            self.all.insert(service.id.clone(), running.clone());
            running
        });
        let key = xxh3_128_with_seed(&body, running.seed);
        let tell = move |tags: Option<Box<[u16]>>| {
            // A thread that is stuck gave up waiting long ago.
            let _ = shard.send(ToShard::Classified { ticket, tags });
        };
        let kept = running.kept.lock().unwrap_or_else(PoisonError::into_inner).tags.get(&key).cloned();
        if kept.is_some() {
            return tell(kept);
        }
        if running.in_flight.fetch_add(1, Ordering::Relaxed) >= service.in_flight_max {
            running.in_flight.fetch_sub(1, Ordering::Relaxed);
            return tell(None);
        }
        tokio::spawn(async move {
            let answer = running.ask(body.into()).await;
            running.in_flight.fetch_sub(1, Ordering::Relaxed);
            if let Err(why) = &answer {
                journal::warn("a classifier did not answer", &[("classifier", &service.id), ("why", why)]);
            }
            let tags = answer.ok();
            if let Some(tags) = &tags {
                let mut kept = running.kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.keep(key, tags.clone(), service.cache_entries_max);
            }
            tell(tags);
        });
    }
}

impl Running {
    fn new(service: Arc<Service>) -> Self {
        let seed = RandomState::new().build_hasher().finish();
        let (in_flight, idle, kept) = (AtomicU32::new(0), Mutex::default(), Mutex::default());
        Self { service, seed, in_flight, idle, kept, verifier: OnceCell::new() }
    }

    /// Who it must prove to be, where its address is `https://`. The system's authorities are read once: those of today are
    /// believed for as long as the classifier stays as it is.
    async fn proof(&self) -> std::io::Result<Option<Proof>> {
        match self.service.url.tls {
            Tls::No => Ok(None),
            Tls::Yes => {
                let verifier = self.verifier.get_or_try_init(Verifier::of_system).await?.clone();
                Ok(Some(Proof { verifier, name: self.service.url.host.clone() }))
            }
        }
    }

    async fn ask(&self, body: Bytes) -> Result<Box<[u16]>, String> {
        let service = &self.service;
        let deadline = Instant::now() + service.timeout;
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut fetcher = match kept {
            Some(fetcher) => fetcher,
            None => {
                let mut found = timeout_at(deadline, lookup_host((service.url.host.as_str(), service.url.port)))
                    .await
                    .map_err(|_| String::from("its name was not found in time"))?
                    .map_err(|error| error.to_string())?;
                let address = found.next().ok_or("its name has no address")?;
                let host = format!("{}:{}", service.url.host, service.url.port);
                let proof = timeout_at(deadline, self.proof())
                    .await
                    .map_err(|_| String::from("the system's authorities were not read in time"))?
                    .map_err(|error| error.to_string())?;
                Fetcher::new(Origin { address, host, credential: None, proof })
            }
        };
        let path = if service.url.path_prefix.is_empty() { "/" } else { service.url.path_prefix.as_str() };
        let within = deadline.saturating_duration_since(Instant::now());
        let answer = fetcher.post(path, body, within).await.map_err(|error| error.to_string())?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(fetcher);
        if answer.status != 200 || answer.body.len() > ANSWER_BYTES_MAX {
            return Err(format!("status {}, {} bytes", answer.status, answer.body.len()));
        }
        // What is wrong with the answer is not told in its words: they may be the prompt's.
        let answered: Answered =
            serde_json::from_slice(&answer.body).map_err(|_| String::from("the answer is not {\"tags\": [...]}"))?;
        let place = |tag: &String| service.tags.iter().position(|known| known == tag);
        Ok(answered.tags.iter().filter_map(place).filter_map(|at| u16::try_from(at).ok()).collect())
    }
}
