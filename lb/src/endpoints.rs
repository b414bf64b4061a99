//! What one data thread knows about each endpoint beside the predictor's beliefs: is it ready, how many requests are in
//! flight, which connections are kept.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::mailbox::Readiness;
use crate::plan::{EndpointId, EndpointSpec, Plan};
use crate::settings::Settings;
use crate::tls::{Connector, Transport};

/// Most idle connections kept to one endpoint by one data thread.
const IDLE_CONNECTIONS_MAX: usize = 1_024;

/// One endpoint on this thread. Outlives its place in the plan for as long as a request uses it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) spec: Arc<EndpointSpec>,
    readiness: Cell<Readiness>,
    /// Not to be used before this time: a failure was just seen here, and the control thread is looking into it.
    suspect_until_us: Cell<u64>,
    in_flight: Cell<u32>,
    idle: RefCell<Vec<IdleConn>>,
    answers: RefCell<AnswerWindow>,
    /// What this thread makes TLS connections with.
    connector: Option<Connector>,
    /// Which of its addresses is in use: the one after it when that fails.
    address_turn: Cell<usize>,
    /// It has asked to be left alone until this time.
    backs_off_until_us: Cell<u64>,
    clock: Cell<ShareClock>,
}

/// Time divided among the requests that an endpoint has, as this thread knows of them: it goes by `1/n` of a microsecond a microsecond. What
/// it went on by during a request is that request's share of the endpoint; all shares add up to the time in which the
/// endpoint had anything to do.
#[derive(Debug, Clone, Copy, Default)]
struct ShareClock {
    share_us: f64,
    at_us: u64,
    requests: u32,
}

/// Answers and failures of the last 31 seconds, by the second.
#[derive(Debug, Clone, Default)]
struct AnswerWindow {
    /// `(second, answers, failures)`; a slot of another second is empty.
    slots: [(u64, u32, u32); 31],
}

impl AnswerWindow {
    fn add(&mut self, now_us: u64, failures: u32) {
        let second = now_us / 1_000_000;
        let slot = &mut self.slots[(second % 31) as usize];
        if slot.0 != second {
            *slot = (second, 0, 0);
        }
        slot.1 += 1;
        slot.2 += failures;
    }

    fn failed_ratio(&self, now_us: u64, window_s: u16) -> Option<f64> {
        let from = (now_us / 1_000_000).saturating_sub(u64::from(window_s));
        let inside = self.slots.iter().filter(|slot| slot.0 >= from);
        let (answers, failures) =
            inside.fold((0_u64, 0_u64), |sum, slot| (sum.0 + u64::from(slot.1), sum.1 + u64::from(slot.2)));
        (answers > 0).then(|| failures as f64 / answers as f64)
    }
}

#[derive(Debug)]
struct IdleConn {
    conn: Transport,
    since_us: u64,
}

/// How long an endpoint is avoided by the thread that saw it fail, until the control thread has found out more.
const SUSPECT_US: u64 = 1_000_000;

impl Endpoint {
    fn new(spec: Arc<EndpointSpec>) -> Rc<Self> {
        let readiness = match (&spec.unusable, spec.backend) {
            // Hosted providers are not probed: they are ready until they fail.
            (None, policy::Backend::External) => Readiness::Ready,
            (None, policy::Backend::Local) => Readiness::Unknown,
            (Some(_), _) => Readiness::NotReady,
        };
        Rc::new(Self {
            readiness: Cell::new(readiness),
            suspect_until_us: Cell::new(0),
            in_flight: Cell::new(0),
            idle: RefCell::default(),
            answers: RefCell::default(),
            connector: spec.tls.as_ref().map(Connector::with_own_sessions),
            address_turn: Cell::new(0),
            backs_off_until_us: Cell::new(0),
            clock: Cell::default(),
            spec,
        })
    }

    /// It has so many requests from now on, of the whole process. Gives the time by the endpoint's divided clock.
    pub(crate) fn shared_by(&self, requests: u32, now_us: u64) -> f64 {
        let ShareClock { share_us, at_us, requests: before } = self.clock.get();
        let passed_us = now_us.saturating_sub(at_us) as f64;
        let share_us = if before == 0 { share_us } else { share_us + passed_us / f64::from(before) };
        self.clock.set(ShareClock { share_us, at_us: now_us, requests });
        share_us
    }

    /// Whether requests may go here now.
    pub(crate) fn is_ready(&self, now_us: u64) -> bool {
        self.readiness.get() == Readiness::Ready && self.suspect_until_us.get() <= now_us
    }

    /// It answers, but was just seen failing, or has failed so often that it is ejected: used only when nothing better is left.
    pub(crate) fn is_suspect(&self, now_us: u64) -> bool {
        match self.readiness.get() {
            Readiness::Ready => self.suspect_until_us.get() > now_us,
            Readiness::Ejected => true,
            Readiness::NotReady | Readiness::Unknown => false,
        }
    }

    /// Whether anything has been found out about it.
    pub(crate) fn is_known(&self) -> bool {
        self.readiness.get() != Readiness::Unknown
    }

    /// Keeps new requests away for a moment.
    pub(crate) fn suspect(&self, now_us: u64) {
        self.suspect_until_us.set(now_us + SUSPECT_US);
    }

    /// What the control thread has found out.
    pub(crate) fn set_readiness(&self, readiness: Readiness) {
        self.readiness.set(readiness);
        self.suspect_until_us.set(0);
        match readiness {
            Readiness::Ready => {}
            Readiness::Ejected | Readiness::NotReady | Readiness::Unknown => self.idle.borrow_mut().clear(),
        }
    }

    /// A request was answered here.
    pub(crate) fn answered(&self, now_us: u64) {
        self.answers.borrow_mut().add(now_us, 0);
    }

    /// A request failed here.
    pub(crate) fn failed(&self, now_us: u64) {
        self.answers.borrow_mut().add(now_us, 1);
    }

    /// Share of this thread's requests that failed here in the last `window_s` seconds; unknown when there were none.
    pub(crate) fn error_ratio(&self, now_us: u64, window_s: u16) -> Option<f64> {
        self.answers.borrow().failed_ratio(now_us, window_s)
    }

    /// Requests of this thread in flight here.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// A kept connection that is still good: not closed by the peer, not idle for too long.
    pub(crate) fn take_idle(&self, now_us: u64, keep_alive_us: u64) -> Option<Transport> {
        let mut idle = self.idle.borrow_mut();
        while let Some(mut kept) = idle.pop() {
            // Whatever an idle server says belongs to no request, least of all to the next client's.
            let silent = !kept.conn.watch().is_gone() && !kept.conn.is_readable();
            if silent && now_us.saturating_sub(kept.since_us) < keep_alive_us {
                return Some(kept.conn);
            }
        }
        None
    }

    /// Keeps a connection whose exchange has ended cleanly.
    pub(crate) fn keep(&self, conn: Transport, now_us: u64) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_CONNECTIONS_MAX && !conn.watch().is_gone() && self.readiness.get() == Readiness::Ready {
            conn.watch().disarm();
            idle.push(IdleConn { conn, since_us: now_us });
        }
    }

    /// How long a connection is kept for the next request.
    pub(crate) fn keep_alive(&self, settings: &Settings) -> Duration {
        match self.connector {
            None => settings.upstream_keep_alive,
            Some(_) => config::limits::TLS_UPSTREAM_KEEP_ALIVE.max(settings.upstream_keep_alive),
        }
    }

    /// What TLS connections are made with; `None` for plain ones.
    pub(crate) fn connector(&self) -> Option<&Connector> {
        self.connector.as_ref()
    }

    /// Where to connect now.
    pub(crate) fn address(&self) -> SocketAddr {
        let others = &self.spec.other_addresses;
        match self.address_turn.get() % (others.len() + 1) {
            0 => self.spec.address,
            turn => others.get(turn - 1).copied().unwrap_or(self.spec.address),
        }
    }

    /// Nobody answers at the address in use: the next connection goes to another one.
    pub(crate) fn turn_address(&self) {
        self.address_turn.set(self.address_turn.get().wrapping_add(1));
    }

    /// It has asked to be left alone.
    pub(crate) fn back_off(&self, until_us: u64) {
        self.backs_off_until_us.set(self.backs_off_until_us.get().max(until_us));
    }

    /// Whether it is to be left alone now.
    pub(crate) fn backs_off(&self, now_us: u64) -> bool {
        self.backs_off_until_us.get() > now_us
    }

    /// For how long it is to be left alone.
    pub(crate) fn backs_off_for_us(&self, now_us: u64) -> u64 {
        self.backs_off_until_us.get().saturating_sub(now_us)
    }

    /// Closes what has been idle for too long or was closed by the peer. The oldest stand first.
    pub(crate) fn close_stale(&self, now_us: u64, keep_alive_us: u64) {
        let mut idle = self.idle.borrow_mut();
        if !idle.is_empty() {
            idle.retain(|kept| !kept.conn.watch().is_gone() && now_us.saturating_sub(kept.since_us) < keep_alive_us);
        }
    }

    /// Kept connections.
    pub(crate) fn idle_connections(&self) -> usize {
        self.idle.borrow().len()
    }
}

/// One request in flight at an endpoint: counted from its making to its drop, on every path.
#[derive(Debug)]
pub(crate) struct Lease {
    endpoint: Rc<Endpoint>,
}

impl Lease {
    /// Counts a request.
    pub(crate) fn new(endpoint: Rc<Endpoint>) -> Self {
        endpoint.in_flight.set(endpoint.in_flight.get() + 1);
        Self { endpoint }
    }

    /// Where the request is.
    pub(crate) fn endpoint(&self) -> &Rc<Endpoint> {
        &self.endpoint
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.endpoint.in_flight.set(self.endpoint.in_flight.get().saturating_sub(1));
    }
}

/// All endpoints of the plan in force, by number.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Option<Rc<Endpoint>>>,
}

/// What changed when a plan came into force.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// New endpoints.
    pub(crate) added: Vec<Rc<Endpoint>>,
    /// Endpoints that are no longer there (or were replaced at the same number).
    pub(crate) removed: Vec<EndpointId>,
}

impl Table {
    /// Takes over the endpoints of `plan`; those that stay keep their state.
    pub(crate) fn apply(&mut self, plan: &Plan) -> Changes {
        let mut changes = Changes::default();
        // A server that goes on under another name (a served name, a worker set) was reachable a moment ago: it takes
        // requests at once, and the next probe has the last word.
        let was_ready: Vec<_> = self
            .iter()
            .filter(|endpoint| endpoint.readiness.get() == Readiness::Ready)
            .map(|e| e.spec.address)
            .collect();
        let slots = plan.endpoints.len().max(self.slots.len());
        self.slots.resize(slots, None);
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let wanted = plan.endpoints.get(index).and_then(Option::as_ref);
            let stays = match (slot.as_ref(), wanted) {
                (Some(have), Some(want)) => have.spec.incarnation == want.incarnation,
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            if stays {
                if let (Some(have), Some(want)) = (slot.as_ref(), wanted)
                    && !Arc::ptr_eq(&have.spec, want)
                {
                    // The same server under new terms (limits, credential): its state goes on.
                    *slot = Some(have.with_spec(want.clone()));
                }
                continue;
            }
            if let Some(gone) = slot.take() {
                changes.removed.push(gone.spec.id);
            }
            if let Some(want) = wanted {
                let endpoint = Endpoint::new(want.clone());
                if endpoint.readiness.get() == Readiness::Unknown && was_ready.contains(&want.address) {
                    endpoint.readiness.set(Readiness::Ready);
                }
                changes.added.push(endpoint.clone());
                *slot = Some(endpoint);
            }
        }
        changes
    }

    /// The endpoint with this number.
    pub(crate) fn endpoint(&self, id: EndpointId) -> Option<&Rc<Endpoint>> {
        self.slots.get(id.index())?.as_ref()
    }

    /// The endpoint with this number, if it is still the one that was meant.
    pub(crate) fn incarnation(&self, id: EndpointId, incarnation: u64) -> Option<&Rc<Endpoint>> {
        self.endpoint(id).filter(|endpoint| endpoint.spec.incarnation == incarnation)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rc<Endpoint>> {
        self.slots.iter().flatten()
    }
}

impl Endpoint {
    /// The same endpoint with new terms. Requests in flight stay counted at the old one, which they hold.
    fn with_spec(&self, spec: Arc<EndpointSpec>) -> Rc<Self> {
        // Connections and sessions that were begun with another trust end with it.
        let same_trust = self.spec.tls == spec.tls;
        let own = || spec.tls.as_ref().map(Connector::with_own_sessions);
        let idle = self.idle.take();
        Rc::new(Self {
            readiness: Cell::new(self.readiness.get()),
            suspect_until_us: Cell::new(self.suspect_until_us.get()),
            in_flight: Cell::new(0),
            idle: RefCell::new(if same_trust { idle } else { Vec::new() }),
            answers: RefCell::new(self.answers.take()),
            connector: if same_trust { self.connector.clone() } else { own() },
            address_turn: self.address_turn.clone(),
            backs_off_until_us: self.backs_off_until_us.clone(),
            clock: self.clock.clone(),
            spec,
        })
    }
}
