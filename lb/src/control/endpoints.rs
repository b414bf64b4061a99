//! The endpoints of the plan in force, as the control thread sees them: what watches each, and its last verdict.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::source::cluster::{Counts, Feedback};

use super::journal;
use super::kv::{Keys, KvOrders, KvStatus, Streams};
use super::registry::same_credential;
use super::status::EndpointStatus;
use super::watch::{Orders, Outlets, Seen, Sighting, Verdict, Watch};
use crate::clock_us;
use crate::mailbox::{Failure, Readiness, Scrape, ToShard};
use crate::plan::{EndpointId, EndpointSpec, Plan};

/// What the data threads must hear about one endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    endpoint: EndpointId,
    incarnation: u64,
    news: News,
}

#[derive(Debug, Clone, Copy)]
enum News {
    Readiness(Readiness),
    Scraped(Scrape),
    ScrapeFailed,
}

impl Message {
    /// A copy for one thread.
    pub(crate) fn to_shard(self) -> ToShard {
        let Self { endpoint, incarnation, news } = self;
        match news {
            News::Readiness(readiness) => ToShard::Readiness { endpoint, incarnation, readiness },
            News::Scraped(scrape) => ToShard::Scraped { endpoint, incarnation, scrape },
            News::ScrapeFailed => ToShard::ScrapeFailed { endpoint, incarnation },
        }
    }
}

#[derive(Debug)]
struct Entry {
    spec: Arc<EndpointSpec>,
    orders: Option<Orders>,
    /// `None` for an endpoint that cannot be used as configured.
    watch: Option<Watch>,
    verdict: Verdict,
    scraped_us: Option<u64>,
    scrape_error: Option<String>,
    scrapes_failed: u64,
    kv_events: Option<KvStatus>,
    /// What it said to the operator last, which is not logged twice in a row.
    told: String,
}

/// All endpoints, by number.
#[derive(Debug)]
pub(crate) struct Endpoints {
    entries: Vec<Option<Entry>>,
    outlets: Outlets,
}

impl Endpoints {
    /// None yet; their tasks will send to `outlets`.
    pub(crate) fn new(outlets: Outlets) -> Self {
        Self { entries: Vec::new(), outlets }
    }

    /// Takes over a plan: ends what watched endpoints that are gone, starts watching new ones, leaves the others alone.
    /// Returns what the data threads must hear: the verdict on each endpoint.
    pub(crate) fn follow(&mut self, plan: &Plan) -> Vec<Message> {
        let mut entries: Vec<Option<Entry>> = Vec::new();
        entries.resize_with(plan.endpoints.len(), || None);
        let mut messages = Vec::with_capacity(plan.endpoints.len());
        for (index, spec) in plan.endpoints.iter().enumerate() {
            let Some(spec) = spec else { continue };
            let had = self.entries.get_mut(index).and_then(Option::take);
            let had = had.filter(|entry| entry.spec.incarnation == spec.incarnation);
            let entry = self.entry(spec, orders(plan, spec), had);
            messages.push(entry.message(News::Readiness(entry.in_effect().readiness)));
            entries[index] = Some(entry);
        }
        for gone in self.entries.iter().flatten() {
            journal::info("endpoint removed", &[("endpoint", &gone.spec.name)]);
        }
        self.entries = entries;
        messages
    }

    fn entry(&self, spec: &Arc<EndpointSpec>, orders: Option<Orders>, had: Option<Entry>) -> Entry {
        if let Some(mut had) = had {
            had.tell_withheld(spec);
            let usable_as_before = had.spec.unusable == spec.unusable;
            let watched_as_before =
                had.orders == orders && same_credential(had.spec.credential.as_ref(), spec.credential.as_ref());
            had.spec = spec.clone();
            if usable_as_before {
                if !watched_as_before && had.watch.is_some() {
                    // Asked anew, and what is known holds until the answer.
                    had.watch = Some(Watch::start(spec, orders.clone(), &self.outlets));
                    had.orders = orders;
                    had.kv_events = None;
                }
                return had;
            }
        } else {
            journal::info("endpoint added", &[("endpoint", &spec.name), ("address", &spec.address)]);
        }
        let (watch, why) = match &spec.unusable {
            None => (Some(Watch::start(spec, orders.clone(), &self.outlets)), String::from("not asked yet")),
            Some(why) => {
                journal::warn("endpoint cannot be used", &[("endpoint", &spec.name), ("why", why)]);
                (None, why.clone())
            }
        };
        let readiness = if watch.is_some() { Readiness::Unknown } else { Readiness::NotReady };
        Entry {
            spec: spec.clone(),
            orders,
            watch,
            verdict: Verdict { readiness, why, since_us: clock_us() },
            scraped_us: None,
            scrape_error: None,
            scrapes_failed: 0,
            kv_events: None,
            told: String::new(),
        }
    }

    /// Passes a failed request on to whoever judges the endpoint.
    pub(crate) fn failed(&self, endpoint: EndpointId, incarnation: u64, failure: Failure) {
        let entry = self.entries.get(endpoint.index()).and_then(Option::as_ref);
        if let Some(watch) =
            entry.filter(|entry| entry.spec.incarnation == incarnation).and_then(|entry| entry.watch.as_ref())
        {
            watch.failed(failure);
        }
    }

    /// Logs what an endpoint says to the operator, where it is news.
    pub(crate) fn told(&mut self, endpoint: EndpointId, incarnation: u64, text: String) {
        let entry = self.entries.get_mut(endpoint.index()).and_then(Option::as_mut);
        let Some(entry) = entry.filter(|entry| entry.spec.incarnation == incarnation) else { return };
        if entry.told != text {
            journal::warn("endpoint says", &[("endpoint", &entry.spec.name), ("text", &text)]);
            entry.told = text;
        }
    }

    /// Takes in what was seen; returns what the data threads must hear.
    pub(crate) fn saw(&mut self, sighting: Sighting) -> Option<Message> {
        let entry = self.entries.get_mut(sighting.endpoint.index())?.as_mut()?;
        if entry.spec.incarnation != sighting.incarnation {
            return None;
        }
        let news = match sighting.seen {
            Seen::Health(verdict) => {
                entry.take_verdict(verdict);
                News::Readiness(entry.in_effect().readiness)
            }
            Seen::Scraped(scrape) => {
                entry.scraped_us = Some(scrape.began_us);
                if entry.scrape_error.take().is_some() {
                    journal::info("endpoint metrics are read again", &[("endpoint", &entry.spec.name)]);
                }
                News::Scraped(scrape)
            }
            Seen::ScrapeFailed(why) => {
                entry.scrapes_failed += 1;
                if entry.scrape_error.is_none() && entry.verdict.readiness == Readiness::Ready {
                    journal::warn("endpoint metrics cannot be read", &[("endpoint", &entry.spec.name), ("why", &why)]);
                }
                entry.scrape_error = Some(why);
                News::ScrapeFailed
            }
            // The plan changes; nothing to hear about the old one.
            Seen::Restarted => return None,
        };
        Some(entry.message(news))
    }

    /// Takes in what is told of an endpoint's event stream.
    pub(crate) fn kv_status(&mut self, endpoint: EndpointId, incarnation: u64, status: KvStatus) {
        let entry = self.entries.get_mut(endpoint.index()).and_then(Option::as_mut);
        if let Some(entry) = entry.filter(|entry| entry.spec.incarnation == incarnation) {
            entry.kv_events = Some(status);
        }
    }

    /// Whether there are so many endpoints, and all that can be used are ready.
    pub(crate) fn all_ready(&self, at_least: usize) -> bool {
        let usable = || self.entries.iter().flatten().filter(|e| e.watch.is_some() && e.spec.withheld.is_none());
        usable().count() >= at_least && usable().all(|entry| entry.verdict.readiness == Readiness::Ready)
    }

    /// Starts anew what has ended by itself: a task that panicked must not leave its endpoint unwatched.
    pub(crate) fn mend(&mut self) {
        for entry in self.entries.iter_mut().flatten() {
            if entry.watch.as_ref().is_some_and(Watch::is_broken) {
                journal::error(
                    "the watch over an endpoint broke and is started anew",
                    &[("endpoint", &entry.spec.name)],
                );
                entry.watch = Some(Watch::start(&entry.spec, entry.orders.clone(), &self.outlets));
            }
        }
    }

    /// All of them, in the order of the plan's destinations.
    pub(crate) fn status(&self, plan: &Plan) -> Vec<EndpointStatus> {
        let now_us = clock_us();
        let snapshot = &plan.snapshot;
        let workers = snapshot.worker_sets.iter().zip(&plan.worker_sets);
        let workers = workers.flat_map(|(set, ids)| ids.iter().map(|id| (&set.id.name, *id)));
        let providers = snapshot.providers.iter().zip(&plan.providers);
        let providers = providers.filter_map(|(provider, id)| id.map(|id| (&provider.id.name, id)));
        let entry = |id: EndpointId| self.entries.get(id.index()).and_then(Option::as_ref);
        workers
            .chain(providers)
            .filter_map(|(destination, id)| entry(id).map(|entry| entry.status(destination, now_us)))
            .collect()
    }
}

impl Endpoints {
    /// How many endpoints of each destination of a plan take requests.
    pub(crate) fn counts(&self, plan: &Plan) -> Feedback {
        let ready = |id: EndpointId| {
            let entry = self.entries.get(id.index()).and_then(Option::as_ref);
            entry.is_some_and(|entry| entry.in_effect().readiness == Readiness::Ready)
        };
        let counts = |ids: &[EndpointId]| {
            let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            Counts { ready: number(ids.iter().filter(|id| ready(**id)).count()), all: number(ids.len()) }
        };
        let snapshot = &plan.snapshot;
        let sets = snapshot.worker_sets.iter().zip(&plan.worker_sets);
        let providers = snapshot.providers.iter().zip(&plan.providers);
        Feedback {
            generation: snapshot.generation,
            worker_sets: sets.map(|(set, ids)| (set.id.clone(), counts(ids))).collect::<BTreeMap<_, _>>(),
            providers: providers.map(|(provider, id)| (provider.id.clone(), counts(id.as_slice()))).collect(),
        }
    }
}

impl Entry {
    fn message(&self, news: News) -> Message {
        Message { endpoint: self.spec.id, incarnation: self.spec.incarnation, news }
    }

    /// What holds: the verdict of its watch, unless its pod takes no new work.
    fn in_effect(&self) -> Verdict {
        match self.spec.withheld {
            None => self.verdict.clone(),
            Some(withheld) => {
                Verdict { readiness: Readiness::NotReady, why: withheld.why().to_owned(), ..self.verdict.clone() }
            }
        }
    }

    fn tell_withheld(&self, now: &EndpointSpec) {
        match (self.spec.withheld, now.withheld) {
            (before, Some(why)) if before != Some(why) => {
                journal::info("endpoint takes no new requests", &[("endpoint", &now.name), ("why", &why.why())]);
            }
            (Some(_), None) => journal::info("endpoint takes requests again", &[("endpoint", &now.name)]),
            (_, Some(_)) | (None, None) => {}
        }
    }

    fn take_verdict(&mut self, verdict: Verdict) {
        if verdict.readiness != self.verdict.readiness {
            match verdict.readiness {
                Readiness::Unknown => {}
                Readiness::Ready => journal::info("endpoint ready", &[("endpoint", &self.spec.name)]),
                Readiness::Ejected | Readiness::NotReady => {
                    journal::warn("endpoint not ready", &[("endpoint", &self.spec.name), ("why", &verdict.why)]);
                }
            }
        }
        self.verdict = verdict;
    }

    fn status(&self, destination: &str, now_us: u64) -> EndpointStatus {
        EndpointStatus {
            spec: self.spec.clone(),
            destination: destination.to_owned(),
            verdict: self.in_effect(),
            scrape_age_us: self.scraped_us.map(|at| now_us.saturating_sub(at)),
            scrape_error: self.scrape_error.clone(),
            scrapes_failed: self.scrapes_failed,
            kv_events: self.kv_events.clone(),
        }
    }
}

/// How an endpoint is to be watched; `None` for a provider.
fn orders(plan: &Plan, spec: &EndpointSpec) -> Option<Orders> {
    let index = plan.worker_sets.iter().position(|ids| ids.contains(&spec.id))?;
    let set = plan.snapshot.worker_sets.get(index)?;
    Some(Orders {
        models: set.models.iter().map(|model| model.upstream_name.clone()).collect(),
        metrics_path: set.metrics.path.clone(),
        metrics_interval: set.metrics.interval,
        kv_events: set.kv_events.as_ref().map(|events| KvOrders {
            model: spec.model.clone(),
            streams: events.listen.map_or(Streams::Connect(events.port), Streams::Await),
            ranks: events.ranks,
            topic: events.topic.clone(),
            replay_port: events.replay_port,
            keys: if set.tokenizer.is_some() { Keys::Exact } else { Keys::Unmatched },
        }),
    })
}
