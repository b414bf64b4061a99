//! What a data thread is told by the others, and what it does then.

use std::rc::Rc;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use predictor::fleet::{self, Decided, PeerSums};

use super::{Door, Shard, predictor_spec, unix_ms};
use crate::conn;
use crate::handover::Arrival;
use crate::io;
use crate::mailbox::{CacheNews, CacheWhat, OwnSums, Scrape, ToShard, ToldSums};
use crate::peer::{PeerBatch, PeerWhat};
use crate::plan::{EndpointId, LocalPlan, Plan};
use crate::sys;

/// Most messages taken from the mailbox before other work gets a turn.
const MESSAGES_PER_TURN: usize = 1_024;

impl Shard {
    pub(super) fn take_messages(self: &Rc<Self>, mailbox: &Receiver<ToShard>, doors: &[Door]) {
        for message in mailbox.try_iter().take(MESSAGES_PER_TURN) {
            match message {
                ToShard::Plan(plan) => self.apply(plan),
                ToShard::Readiness { endpoint, incarnation, readiness } => {
                    if let Some(endpoint) = self.table.borrow().incarnation(endpoint, incarnation) {
                        endpoint.set_readiness(readiness);
                    }
                }
                ToShard::Scraped { endpoint, incarnation, scrape } => self.scraped(endpoint, incarnation, &scrape),
                ToShard::ScrapeFailed { endpoint, incarnation } => {
                    if self.table.borrow().incarnation(endpoint, incarnation).is_some() {
                        self.fleet.borrow_mut().scrape_failed(io::now_us(), endpoint.0);
                    }
                }
                ToShard::Cache(news) => self.take_cache_news(&news),
                ToShard::Peer(batch) => self.apply_batch(&batch),
                ToShard::Connection(arrival) => self.take_arrival(arrival, doors),
                ToShard::Certificate { listener, acceptor } => {
                    if let Some(door) = doors.get(listener) {
                        *door.entrance.acceptor.borrow_mut() = Some(acceptor);
                    }
                }
                ToShard::Told(told) => self.told(&told),
                ToShard::Sums(reply) => {
                    let _ = reply.try_send(self.own_sums());
                }
                ToShard::Tokenized { ticket, answer } => self.awaited.arrived(ticket, answer),
                ToShard::Keys(keys) => {
                    if self.keys.replace(keys.clone()).version != keys.version {
                        self.tokens.borrow_mut().clear();
                    }
                }
                ToShard::Classified { ticket, tags } => self.waits.answered(ticket, tags),
                ToShard::Report(reply) => {
                    // Whoever asked may have stopped waiting.
                    let _ = reply.try_send(self.report());
                }
                ToShard::Decisions(wanted, reply) => {
                    let found = self.decisions.borrow().report(self.index, &wanted, io::now_us(), unix_ms());
                    let _ = reply.try_send(found);
                }
                ToShard::Drain => {
                    self.draining.set(true);
                    self.drain_since_us.set(io::now_us());
                    self.scales.shared.shut();
                    for door in doors {
                        // Closing with connections in the queue would reset them; after the last one there is little time
                        // for another.
                        conn::admit_waiting(self, door.socket, &door.entrance);
                        sys::stop_listening(door.socket);
                    }
                    self.tell_if_drained();
                }
                ToShard::GiveUp => {
                    self.gives_up.set(true);
                    self.reactor.wake_all();
                }
            }
        }
        // Other threads' requests may have ended, endpoints may be less busy than they were.
        self.queues.look(1);
        if !mailbox.is_empty() {
            self.reactor.wake_again();
        }
    }

    /// Another balancer's requests count in the load of endpoints.
    fn told(&self, told: &[ToldSums]) {
        let (table, mut fleet, now_us) = (self.table.borrow(), self.fleet.borrow_mut(), io::now_us());
        for ToldSums { balancer, endpoint, incarnation, sums } in told {
            if table.incarnation(*endpoint, *incarnation).is_some() {
                fleet.heard(now_us, *balancer, endpoint.0, *sums);
            }
        }
    }

    /// What this process has sent to workers and has not got back.
    fn own_sums(&self) -> Vec<OwnSums> {
        let (fleet, table, now_us) = (self.fleet.borrow(), self.table.borrow(), io::now_us());
        let workers = table.iter().filter(|endpoint| endpoint.spec.backend == policy::Backend::Local);
        let sums = workers.map(|endpoint| {
            let spec = &endpoint.spec;
            let sums = fleet.sums_to_tell(now_us, spec.id.0);
            OwnSums { endpoint: spec.id, incarnation: spec.incarnation, sums }
        });
        sums.filter(|own| own.sums != PeerSums::default()).collect()
    }

    fn take_arrival(self: &Rc<Self>, arrival: Arrival, doors: &[Door]) {
        if let Some(door) = doors.get(arrival.listener) {
            conn::admit_arrival(self, arrival, &door.entrance);
        }
        // Only now: a thread that drains must count it one way or the other.
        self.scales.shared.arrived();
    }

    fn apply(&self, plan: Arc<Plan>) {
        let changes = self.table.borrow_mut().apply(&plan);
        let now_us = io::now_us();
        let mut fleet = self.fleet.borrow_mut();
        for id in changes.removed {
            fleet.remove_endpoint(now_us, id.0);
        }
        for endpoint in changes.added {
            fleet.add_endpoint(now_us, endpoint.spec.id.0, &predictor_spec(&endpoint.spec));
        }
        *self.plan.borrow_mut() = Some(LocalPlan::new(plan));
        self.decisions.borrow_mut().plan_changed();
        self.tokens.borrow_mut().clear();
    }

    fn scraped(&self, id: EndpointId, incarnation: u64, scrape: &Scrape) {
        if self.table.borrow().incarnation(id, incarnation).is_none() {
            return;
        }
        let scrape = fleet::Scrape {
            waiting: scrape.waiting,
            running: scrape.running,
            kv_usage_ratio: scrape.kv_usage_ratio,
            num_gpu_blocks: scrape.num_gpu_blocks,
            block_size_tokens: scrape.block_size_tokens,
            own_in_flight_at_scrape: None,
        };
        self.fleet.borrow_mut().scraped(io::now_us(), id.0, &scrape);
    }

    fn take_cache_news(&self, all: &[CacheNews]) {
        let table = self.table.borrow();
        let mut fleet = self.fleet.borrow_mut();
        for CacheNews { endpoint, incarnation, what } in all {
            if table.incarnation(*endpoint, *incarnation).is_none() {
                continue;
            }
            match what {
                CacheWhat::Evidence { evidence, block_tokens } => {
                    fleet.cache_evidence(endpoint.0, *evidence, *block_tokens);
                }
                CacheWhat::Stored(keys) => fleet.cache_stored(io::now_us(), endpoint.0, keys),
                CacheWhat::Removed(keys) => fleet.cache_removed(endpoint.0, keys),
                CacheWhat::Cleared => fleet.cache_cleared(endpoint.0),
                CacheWhat::Evicted { stored_at_us } => fleet.cache_evicted(endpoint.0, *stored_at_us),
            }
        }
    }

    fn apply_batch(&self, batch: &PeerBatch) {
        let table = self.table.borrow();
        let mut fleet = self.fleet.borrow_mut();
        for event in &batch.events {
            let Some(endpoint) = table.incarnation(event.endpoint, event.incarnation) else { continue };
            match &event.what {
                PeerWhat::Decided { chain, prompt_tokens, overlap_tokens, answer, attempt } => {
                    fleet.decided(
                        event.at_us,
                        &Decided {
                            request_id: event.request,
                            endpoint: event.endpoint.0,
                            chain,
                            prompt_tokens: *prompt_tokens,
                            overlap_tokens: *overlap_tokens,
                            answer: *answer,
                            attempt: *attempt,
                        },
                    );
                }
                PeerWhat::FirstToken => {
                    fleet.first_token(event.at_us, event.request, event.endpoint.0);
                }
                PeerWhat::Ended(ended) => fleet.ended(event.at_us, event.request, event.endpoint.0, *ended),
                PeerWhat::BacksOff { until_us } => endpoint.back_off(*until_us),
            }
        }
    }
}
