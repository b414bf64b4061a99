//! The tasks of each endpoint: one asks whether it is well, one reads its metrics, and where it publishes events of its cache,
//! [`super::kv`] listens. Each has its own connection, so that no endpoint waits for another, nor a probe for a long page of
//! metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::fetch::{FetchError, Fetcher, Origin};
use super::health::{Health, Probed, Probing};
use super::kv::{Inbound, KvNews, KvOrders, Listening};
use super::{models, scrape};
use crate::clock_us;
use crate::mailbox::{Failure, Readiness, Scrape};
use crate::plan::{EndpointId, EndpointSpec};

/// A probe that takes longer is late.
const PROBE_WITHIN: Duration = Duration::from_secs(2);

/// A read of metrics that takes longer has failed.
const SCRAPE_WITHIN: Duration = Duration::from_secs(1);

/// Longest pause between reads of metrics that fail.
const SCRAPE_FAILING_MAX: Duration = Duration::from_secs(5);

/// Failed requests that wait to be looked at, per endpoint. Five are enough for a verdict.
const FAILURES_MAX: usize = 64;

/// What to watch of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Orders {
    /// Models that must be in its list.
    pub models: Vec<String>,
    /// Path of its metrics.
    pub metrics_path: String,
    /// Between two reads of them.
    pub metrics_interval: Duration,
    /// Its event streams, when it has any.
    pub kv_events: Option<KvOrders>,
}

/// Where what is seen goes.
#[derive(Debug, Clone)]
pub(crate) struct Outlets {
    /// Health and metrics.
    pub sightings: mpsc::Sender<Sighting>,
    /// Caches.
    pub kv: mpsc::Sender<KvNews>,
    /// Where engines connect.
    pub inbound: Inbound,
}

/// What the tasks tell the control loop.
#[derive(Debug)]
pub(crate) struct Sighting {
    /// Which endpoint.
    pub endpoint: EndpointId,
    /// Which one at that number.
    pub incarnation: u64,
    /// What was seen.
    pub seen: Seen,
}

/// What was seen of an endpoint.
#[derive(Debug)]
pub(crate) enum Seen {
    /// A verdict, new or confirmed after a failed request.
    Health(Verdict),
    /// Its metrics.
    Scraped(Scrape),
    /// Why its metrics could not be read.
    ScrapeFailed(String),
    /// Its process is another one than before.
    Restarted,
}

/// Whether an endpoint takes requests, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// What the data threads are told.
    pub readiness: Readiness,
    /// Why it is not ready; empty when it is.
    pub why: String,
    /// Since when, on the process clock.
    pub since_us: u64,
}

/// The tasks of one endpoint; dropping this ends them.
#[derive(Debug)]
pub(crate) struct Watch {
    failures: mpsc::Sender<Failure>,
    tasks: Vec<JoinHandle<()>>,
    listening: Option<Listening>,
}

impl Watch {
    /// Starts watching. A provider has no orders: it is judged by failed requests alone.
    pub(crate) fn start(spec: &Arc<EndpointSpec>, orders: Option<Orders>, outlets: &Outlets) -> Self {
        let (failures, failed) = mpsc::channel(FAILURES_MAX);
        let reporter = Reporter { spec: spec.clone(), sightings: outlets.sightings.clone() };
        let origin = Origin {
            address: spec.address,
            host: spec.host_header.clone(),
            credential: spec.credential.clone(),
            proof: None,
        };
        let succeeded = Arc::new(Succeeded::default());
        let kv_events = orders.as_ref().and_then(|orders| orders.kv_events.as_ref());
        let listening = kv_events.map(|orders| Listening::start(spec, orders, &outlets.inbound, &outlets.kv));
        let mut tasks = Vec::with_capacity(2);
        if let Some(orders) = &orders {
            let scraper = Scraper {
                reporter: reporter.clone(),
                fetcher: Fetcher::new(origin.clone()),
                succeeded: succeeded.clone(),
                started_s: None,
            };
            tasks.push(tokio::spawn(scraper.run(orders.metrics_path.clone(), orders.metrics_interval)));
        }
        let probing = if orders.is_some() { Probing::On } else { Probing::Off };
        let prober = Prober {
            reporter,
            health: Health::new(clock_us(), probing),
            models: orders.map(|orders| orders.models.into()).unwrap_or_default(),
            succeeded,
            told: None,
            connect_failed: false,
        };
        tasks.push(tokio::spawn(prober.run(Fetcher::new(origin), failed)));
        Self { failures, tasks, listening }
    }

    /// A request failed there.
    pub(crate) fn failed(&self, failure: Failure) {
        // When there is no room, more than enough failures are being looked at.
        let _ = self.failures.try_send(failure);
    }

    /// Whether a task has ended by itself, which none ever should.
    pub(crate) fn is_broken(&self) -> bool {
        self.tasks.iter().any(JoinHandle::is_finished) || self.listening.as_ref().is_some_and(Listening::is_broken)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[derive(Debug, Clone)]
struct Reporter {
    spec: Arc<EndpointSpec>,
    sightings: mpsc::Sender<Sighting>,
}

impl Reporter {
    async fn tell(&self, seen: Seen) {
        let sighting = Sighting { endpoint: self.spec.id, incarnation: self.spec.incarnation, seen };
        // The loop is gone only when the process ends.
        let _ = self.sightings.send(sighting).await;
    }
}

/// The engine's count of requests that ended well, from the reader of metrics to the judge. NaN: unknown.
#[derive(Debug)]
struct Succeeded(AtomicU64);

impl Default for Succeeded {
    fn default() -> Self {
        Self(AtomicU64::new(f64::NAN.to_bits()))
    }
}

impl Succeeded {
    fn set(&self, total: Option<f64>) {
        self.0.store(total.unwrap_or(f64::NAN).to_bits(), Ordering::Relaxed);
    }

    fn total(&self) -> Option<f64> {
        Some(f64::from_bits(self.0.load(Ordering::Relaxed))).filter(|total| !total.is_nan())
    }
}

struct Prober {
    reporter: Reporter,
    health: Health,
    models: Arc<[String]>,
    succeeded: Arc<Succeeded>,
    told: Option<Verdict>,
    /// A request found no connection: the next probe makes one too. An engine that is shutting down may go on
    /// answering on those it has.
    connect_failed: bool,
}

impl Prober {
    async fn run(mut self, fetcher: Fetcher, mut failures: mpsc::Receiver<Failure>) {
        let mut idle = Some(fetcher);
        // Ends only when it is aborted, or when its `Watch` is gone.
        loop {
            let now = clock_us();
            self.health.tick(now);
            self.tell_news().await;
            let Some(mut fetcher) = idle.take_if(|_| self.health.probe_due(now)) else {
                tokio::select! {
                    () = sleep(Duration::from_micros(self.health.wake_us().saturating_sub(now).min(WAIT_US_MAX))) => {}
                    failure = failures.recv() => match failure {
                        Some(failure) => self.failed(failure),
                        None => return,
                    },
                }
                continue;
            };
            self.health.probe_begins();
            if std::mem::take(&mut self.connect_failed) {
                fetcher.disconnect();
            }
            let models = self.models.clone();
            let seen = {
                let probe = probe(&mut fetcher, &models);
                tokio::pin!(probe);
                loop {
                    tokio::select! {
                        seen = &mut probe => break seen,
                        Some(failure) = failures.recv() => {
                            self.failed(failure);
                            self.tell_news().await;
                        }
                    }
                }
            };
            idle = Some(fetcher);
            self.health.probed(clock_us(), seen);
            // Also when nothing has changed: whoever saw a request fail is waiting to hear.
            self.told = None;
        }
    }

    fn failed(&mut self, failure: Failure) {
        self.connect_failed |= failure == Failure::Connect;
        self.health.failed(clock_us(), failure, self.succeeded.total());
    }

    async fn tell_news(&mut self) {
        let verdict =
            Verdict { readiness: self.health.readiness(), why: self.health.why(), since_us: self.health.since_us() };
        // An endpoint whose orders changed keeps its old verdict until there is a new one.
        if verdict.readiness != Readiness::Unknown && self.told.as_ref() != Some(&verdict) {
            self.told = Some(verdict.clone());
            self.reporter.tell(Seen::Health(verdict)).await;
        }
    }
}

/// Longest uninterrupted wait: an endless one would overflow the timer.
const WAIT_US_MAX: u64 = 3_600_000_000;

async fn probe(fetcher: &mut Fetcher, wanted: &[String]) -> Probed {
    match fetcher.get("/v1/models", PROBE_WITHIN).await {
        Ok(answer) if answer.status == 200 => match models::list(&answer.body) {
            Ok(listed) => match wanted.iter().find(|name| !listed.iter().any(|model| model.id == **name)) {
                None => Probed::Good,
                Some(missing) => {
                    let listed: Vec<&str> = listed.iter().take(8).map(|model| model.id.as_str()).collect();
                    Probed::Bad(format!("model {missing:?} is not in its /v1/models, which lists {listed:?}"))
                }
            },
            Err(why) => Probed::Bad(why),
        },
        Ok(answer) => Probed::Bad(format!("/v1/models answers with status {}", answer.status)),
        Err(error @ FetchError::Timeout(_)) => Probed::Late(error.to_string()),
        Err(error @ (FetchError::Connect(_) | FetchError::Broken(_) | FetchError::Unaskable(_))) => {
            Probed::Bad(error.to_string())
        }
    }
}

struct Scraper {
    reporter: Reporter,
    fetcher: Fetcher,
    succeeded: Arc<Succeeded>,
    started_s: Option<f64>,
}

impl Scraper {
    async fn run(mut self, path: String, interval: Duration) {
        let mut failing = 0_u32;
        // Ends only when it is aborted.
        loop {
            let began_us = clock_us();
            match self.read(&path, began_us).await {
                Ok(scrape) => {
                    failing = 0;
                    self.reporter.tell(Seen::Scraped(scrape)).await;
                }
                Err(why) => {
                    failing = failing.saturating_add(1);
                    self.succeeded.set(None);
                    self.reporter.tell(Seen::ScrapeFailed(why)).await;
                }
            }
            let slower = interval.saturating_mul(1 << failing.min(6)).min(SCRAPE_FAILING_MAX);
            let pause = if failing < 3 { interval } else { interval.max(slower) };
            let took = Duration::from_micros(clock_us().saturating_sub(began_us));
            // An engine that takes long to answer gets some rest in any case.
            sleep(pause.saturating_sub(took).max(pause / 4)).await;
        }
    }

    async fn read(&mut self, path: &str, began_us: u64) -> Result<Scrape, String> {
        let answer = self.fetcher.get(path, SCRAPE_WITHIN).await.map_err(|error| error.to_string())?;
        if answer.status != 200 {
            return Err(format!("{path} answers with status {}", answer.status));
        }
        let page = scrape::read(&answer.body);
        self.succeeded.set(page.succeeded_total);
        if let (Some(before), Some(now)) = (self.started_s, page.started_s)
            && (before - now).abs() > 0.5
        {
            self.reporter.tell(Seen::Restarted).await;
        }
        self.started_s = page.started_s.or(self.started_s);
        page.scrape(began_us).ok_or_else(|| format!("{path} has no vLLM or SGLang metrics"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const MODELS: &str = r#"{"data":[{"id":"m"}]}"#;

    fn spec(address: std::net::SocketAddr) -> Arc<EndpointSpec> {
        Arc::new(EndpointSpec {
            id: EndpointId(3),
            incarnation: 9,
            name: address.to_string(),
            backend: policy::Backend::Local,
            dialect: crate::provider::Dialect::OpenAi,
            address,
            other_addresses: Vec::new(),
            tls: None,
            host_header: address.to_string(),
            path_prefix: String::new(),
            credential: None,
            signer: None,
            model: String::new(),
            kind: String::new(),
            in_flight_max: None,
            metered: None,
            timeouts: crate::plan::EndpointTimeouts::default(),
            unusable: None,
            withheld: None,
        })
    }

    fn orders(models: &[&str]) -> Orders {
        Orders {
            models: models.iter().map(|&model| model.into()).collect(),
            metrics_path: "/metrics".into(),
            metrics_interval: Duration::from_millis(5),
            kv_events: None,
        }
    }

    fn outlets(sightings: &mpsc::Sender<Sighting>) -> Outlets {
        Outlets { sightings: sightings.clone(), kv: mpsc::channel(1).0, inbound: Inbound::default() }
    }

    /// Answers every request on every connection until dropped.
    async fn serve(listener: TcpListener, metrics: String) {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let metrics = metrics.clone();
            connections.spawn(async move {
                let mut head = Vec::new();
                let mut byte = [0];
                while stream.read(&mut byte).await.is_ok_and(|n| n == 1) {
                    head.push(byte[0]);
                    if head.ends_with(b"\r\n\r\n") {
                        let body = if head.starts_with(b"GET /v1/models") { MODELS } else { &metrics };
                        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                        head.clear();
                    }
                }
            });
        }
    }

    async fn until(sightings: &mut mpsc::Receiver<Sighting>, wanted: impl Fn(&Seen) -> bool) -> Seen {
        let wait = async {
            loop {
                let sighting = sightings.recv().await.unwrap();
                assert_eq!((sighting.endpoint, sighting.incarnation), (EndpointId(3), 9));
                if wanted(&sighting.seen) {
                    return sighting.seen;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(180), wait).await.expect("seen in time")
    }

    fn is(readiness: Readiness) -> impl Fn(&Seen) -> bool {
        move |seen| matches!(seen, Seen::Health(verdict) if verdict.readiness == readiness)
    }

    #[tokio::test]
    async fn an_engine_is_seen_ready_scraped_dead_and_alive_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let page = "vllm:num_requests_waiting 3\nvllm:num_requests_running 2\n";
        let server = tokio::spawn(serve(listener, page.into()));
        let (sender, mut sightings) = mpsc::channel(64);
        let watch = Watch::start(&spec(address), Some(orders(&["m"])), &outlets(&sender));
        until(&mut sightings, is(Readiness::Ready)).await;
        until(&mut sightings, |seen| matches!(seen, Seen::Scraped(s) if s.waiting == 3.0 && s.running == 2.0)).await;

        server.abort();
        assert!(server.await.is_err());
        watch.failed(Failure::Connect);
        let Seen::Health(verdict) = until(&mut sightings, is(Readiness::NotReady)).await else { panic!() };
        assert!(verdict.why.contains("no connection") || verdict.why.contains("broken"), "{}", verdict.why);
        until(&mut sightings, |seen| matches!(seen, Seen::ScrapeFailed(_))).await;

        let server = tokio::spawn(serve(TcpListener::bind(address).await.unwrap(), page.into()));
        until(&mut sightings, is(Readiness::Ready)).await;
        assert!(!watch.is_broken());
        server.abort();
    }

    #[tokio::test]
    async fn an_engine_without_the_model_is_not_ready_and_says_which() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, String::new()));
        let (sender, mut sightings) = mpsc::channel(64);
        let _watch = Watch::start(&spec(address), Some(orders(&["m", "sql-lora"])), &outlets(&sender));
        let Seen::Health(verdict) = until(&mut sightings, is(Readiness::NotReady)).await else { panic!() };
        assert!(verdict.why.contains("sql-lora"), "{}", verdict.why);
        until(&mut sightings, |seen| matches!(seen, Seen::ScrapeFailed(why) if why.contains("no vLLM"))).await;
        server.abort();
    }

    #[tokio::test]
    async fn a_provider_is_ready_unasked_and_ejected_by_failed_requests() {
        let (sender, mut sightings) = mpsc::channel(64);
        let watch = Watch::start(&spec("127.0.0.1:9".parse().unwrap()), None, &outlets(&sender));
        until(&mut sightings, is(Readiness::Ready)).await;
        for _ in 0..5 {
            watch.failed(Failure::ServerError);
        }
        until(&mut sightings, is(Readiness::Ejected)).await;
        until(&mut sightings, is(Readiness::Ready)).await;
    }
}
