//! One data thread: its listeners, its replica of everything a request needs, its mailbox.

use std::cell::{Cell, RefCell};
use std::io as std_io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use admission::jwt::VerifiedTokens;
use config::snapshot::PoolScope;
use crossbeam_channel::Receiver;
use predictor::classify::Memory as PieceMemory;
use predictor::fleet::{self, Backend, Fleet, Steps};
use predictor::ttft::Prior;
use tokio::sync::mpsc;

use crate::body::BodyMemory;
use crate::conn::{self, Entrance};
use crate::decide::Memory;
use crate::decisions::Decisions;
use crate::endpoints::{Endpoint, Table};
use crate::exact::Outcome;
use crate::exact::awaited::Awaited;
use crate::handover::{Scales, SharedLoad};
use crate::io::{self, Listener, Reactor};
use crate::keyring::Keyring;
use crate::log::Entry;
use crate::mailbox::{Failure, FromShard, ShardHandle, ToShard};
use crate::metrics::{EndpointReport, Metrics, ShardReport};
use crate::peer::{BATCH_EVENTS_MAX, PeerBatch, PeerEvent, PeerWhat};
use crate::plan::{EndpointSpec, LocalPlan};
use crate::queue::{self, Queues};
use crate::settings::Settings;
use crate::sys;
use crate::tags::remote::{Question, Service};
use crate::tls::Acceptor;
use crate::waits::{Ticket, Waits};

mod inbox;

/// How often batches for the other threads leave: they know within 5 ms.
const PEER_FLUSH: Duration = Duration::from_millis(2);
/// How often lines of the access log leave, and idle upstream connections are looked at.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// Lines leave earlier when there are this many bytes of them.
const LOG_BYTES_FLUSH: usize = 64 << 10;
/// Lines are dropped (and counted) when there are more bytes than this and nobody takes them.
const LOG_BYTES_MAX: usize = 4 << 20;
/// How long a draining thread stays for requests that are on their way on idle connections.
const IDLE_CONNECTIONS_DRAIN_US: u64 = 1_000_000;

/// What a data thread is started with.
pub(crate) struct ShardSetup {
    /// Its number, from 0.
    pub(crate) index: usize,
    /// Bounds and time-outs.
    pub(crate) settings: Arc<Settings>,
    /// Its own listening sockets.
    pub(crate) listeners: Vec<Listening>,
    /// Its messages.
    pub(crate) mailbox: Receiver<ToShard>,
    /// What wakes it.
    pub(crate) waker: sys::Waker,
    /// Where it shows what it has to do.
    pub(crate) load: Arc<SharedLoad>,
    /// Where all threads hear of the engines' steps.
    pub(crate) steps: Steps,
    /// To the control thread.
    pub(crate) control: mpsc::Sender<FromShard>,
    /// The way to this thread, for those who answer it.
    pub(crate) own: ShardHandle,
    /// The other data threads.
    pub(crate) peers: Vec<ShardHandle>,
    /// Bytes of request bodies that this thread may hold.
    pub(crate) body_bytes_max: usize,
}

/// A listening socket of one data thread.
pub(crate) struct Listening {
    pub(crate) socket: std::net::TcpListener,
    /// The pools served there.
    pub(crate) scope: PoolScope,
    /// What TLS connections are accepted with; `None` for plain ones.
    pub(crate) acceptor: Option<Acceptor>,
}

/// Everything a data thread owns. Borrowed only between two awaits, never across one.
pub(crate) struct Shard {
    pub(crate) index: usize,
    pub(crate) settings: Arc<Settings>,
    pub(crate) reactor: Rc<Reactor>,
    plan: RefCell<Option<Rc<LocalPlan>>>,
    pub(crate) table: RefCell<Table>,
    pub(crate) fleet: RefCell<Fleet>,
    pub(crate) memory: RefCell<Memory>,
    pub(crate) metrics: RefCell<Metrics>,
    pub(crate) decisions: RefCell<Decisions>,
    /// Requests that wait for room.
    pub(crate) queues: Queues,
    keys: RefCell<Arc<Keyring>>,
    /// Tokens that were verified by the keys and the plan in force, with the index of the tenant each names.
    pub(crate) tokens: RefCell<VerifiedTokens<usize>>,
    pub(crate) draining: Cell<bool>,
    /// Nobody is waited for any more: the process is about to end.
    pub(crate) gives_up: Cell<bool>,
    drain_since_us: Cell<u64>,
    /// Memory for request bodies.
    pub(crate) body_memory: Rc<BodyMemory>,
    /// Requests being tried again right now.
    pub(crate) retries_live: Cell<u32>,
    next_request: Cell<u64>,
    control: mpsc::Sender<FromShard>,
    own: ShardHandle,
    peers: Vec<ShardHandle>,
    /// Requests whose tokens are being made.
    pub(crate) awaited: Awaited,
    scales: Scales,
    batch: RefCell<Vec<PeerEvent>>,
    log_lines: RefCell<Vec<u8>>,
    drained_told: Cell<bool>,
    /// What the classifiers found in pieces of prompts that may come again.
    pub(crate) piece_memory: RefCell<PieceMemory>,
    waits: Waits,
}

/// Runs a data thread until the process ends.
///
/// # Errors
/// When the runtime cannot be made.
pub(crate) fn run(setup: ShardSetup) -> std_io::Result<()> {
    sys::pin_to_core(setup.index);
    let driver = setup.settings.driver;
    let mut result = Ok(());
    io::run(driver, async {
        result = serve(setup).await;
    })?;
    result
}

async fn serve(setup: ShardSetup) -> std_io::Result<()> {
    let reactor = Reactor::new(setup.waker)?;
    let limits = fleet::Limits {
        block_bytes: setup.settings.block_bytes,
        endpoints_max: config::limits::ENDPOINTS_MAX,
        seed: seed(),
        ..fleet::Limits::default()
    };
    let shard = Rc::new(Shard {
        index: setup.index,
        reactor: reactor.clone(),
        plan: RefCell::default(),
        table: RefCell::default(),
        fleet: RefCell::new(Fleet::sharing(limits, setup.steps)),
        memory: RefCell::default(),
        metrics: RefCell::default(),
        decisions: RefCell::default(),
        queues: Queues::default(),
        keys: RefCell::default(),
        tokens: RefCell::new(VerifiedTokens::new(config::limits::TOKENS_KEPT_MAX)),
        draining: Cell::new(false),
        gives_up: Cell::new(false),
        drain_since_us: Cell::new(0),
        body_memory: BodyMemory::new(setup.body_bytes_max),
        retries_live: Cell::new(0),
        next_request: Cell::new(seed() >> 24),
        control: setup.control,
        own: setup.own,
        peers: setup.peers,
        awaited: Awaited::default(),
        scales: Scales::new(setup.load, seed()),
        batch: RefCell::default(),
        log_lines: RefCell::default(),
        drained_told: Cell::new(false),
        piece_memory: RefCell::new(PieceMemory::new(seed())),
        waits: Waits::default(),
        settings: setup.settings,
    });
    io::spawn(reactor.clone().sweep());
    io::spawn(housekeeping(shard.clone()));
    io::spawn(look_for_room(shard.clone()));
    if !shard.peers.is_empty() {
        io::spawn(flush_peers(shard.clone()));
    }
    let mut doors = Vec::new();
    for (number, Listening { socket, scope, acceptor }) in setup.listeners.into_iter().enumerate() {
        let listener = Listener::from_std(socket)?;
        let entrance = Rc::new(Entrance { number, scope: Rc::new(scope), acceptor: RefCell::new(acceptor) });
        doors.push(Door { socket: listener.raw_fd(), entrance: entrance.clone() });
        io::spawn(conn::accept(shard.clone(), listener, entrance));
    }
    let mailbox = setup.mailbox;
    let on_wake = {
        let shard = shard.clone();
        move || {
            shard.waits.wake_yielded();
            shard.take_messages(&mailbox, &doors);
        }
    };
    // Messages may have come before the waker was watched.
    on_wake();
    reactor.serve(on_wake).await
}

/// What messages can do to a listener.
struct Door {
    socket: RawFd,
    entrance: Rc<Entrance>,
}

/// What the predictor is told of an endpoint.
pub(crate) fn predictor_spec(spec: &EndpointSpec) -> fleet::EndpointSpec<'_> {
    fleet::EndpointSpec {
        backend: match spec.backend {
            policy::Backend::Local => Backend::Engine,
            policy::Backend::External => Backend::Provider,
        },
        model: &spec.model,
        kind_key: &spec.kind,
        prior: Prior::default(),
        max_batched_tokens: config::limits::MAX_BATCHED_TOKENS_DEFAULT,
        kv_capacity_tokens: None,
    }
}

/// A number that differs from thread to thread and from start to start.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

async fn flush_peers(shard: Rc<Shard>) {
    loop {
        io::sleep(PEER_FLUSH).await;
        shard.flush_batch();
    }
}

async fn housekeeping(shard: Rc<Shard>) {
    loop {
        io::sleep(HOUSEKEEPING).await;
        shard.flush_log();
        shard.tell_if_drained();
        let now_us = io::now_us();
        for endpoint in shard.table.borrow().iter() {
            endpoint.close_stale(now_us, duration_us(endpoint.keep_alive(&shard.settings)));
        }
    }
}

/// Requests that wait look for room from time to time, whatever happens.
async fn look_for_room(shard: Rc<Shard>) {
    loop {
        io::sleep(queue::LOOK_EVERY).await;
        shard.queues.look(config::limits::QUEUE_LOOKS_MAX);
    }
}

/// In microseconds.
pub(crate) fn duration_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Shard {
    /// Lets the other tasks of the thread go first, and what the kernel has finished meanwhile.
    pub(crate) fn yield_now(&self) -> impl Future<Output = ()> + '_ {
        self.waits.turn(|| self.reactor.wake_again())
    }

    /// Has a classifying service asked; the answer is awaited by what is given. `None` when the control thread is stuck.
    pub(crate) fn ask_service(&self, service: Arc<Service>, body: Vec<u8>) -> Option<Ticket<'_>> {
        let ticket = self.waits.ticket();
        let question = Question { shard: self.index, ticket: ticket.number, service, body };
        self.control.try_send(FromShard::Classify(question)).ok()?;
        Some(ticket)
    }

    /// The other thread that is to take a connection accepted here; `None` when this one is.
    pub(crate) fn lighter_peer(&self) -> Option<&ShardHandle> {
        let peers: &[ShardHandle] = if self.draining.get() { &[] } else { &self.peers };
        self.scales.lighter(peers, self.settings.connections_per_thread_max)
    }

    /// A connection begins; its first request is on its way.
    pub(crate) fn connection_begins(&self) {
        self.metrics.borrow_mut().connections_open += 1;
        self.scales.first_request_awaited();
        self.show_load();
    }

    /// The first request of a connection has come, or the connection ends without one.
    pub(crate) fn connection_is_known(&self) {
        self.scales.first_request_no_more_awaited();
        self.show_load();
    }

    /// A connection has ended.
    pub(crate) fn connection_ends(&self) {
        self.metrics.borrow_mut().connections_open -= 1;
        self.show_load();
    }

    fn show_load(&self) {
        let metrics = self.metrics.borrow();
        self.scales.show(metrics.exchanges_open, metrics.connections_open);
    }

    /// Whether a plan is in force whose endpoints have all been asked.
    pub(crate) fn knows_its_endpoints(&self) -> bool {
        self.plan.borrow().is_some() && self.table.borrow().iter().all(|endpoint| endpoint.is_known())
    }

    /// The plan in force.
    pub(crate) fn plan(&self) -> Option<Rc<LocalPlan>> {
        self.plan.borrow().clone()
    }

    /// The public keys that tokens are checked with.
    pub(crate) fn keys(&self) -> Arc<Keyring> {
        self.keys.borrow().clone()
    }

    /// Tells the control thread something that is no harm to lose.
    pub(crate) fn tell_control(&self, message: FromShard) {
        let _ = self.control.try_send(message);
    }

    /// The way to this thread.
    pub(crate) fn own(&self) -> ShardHandle {
        self.own.clone()
    }

    /// Counts what became of a request that was to be tokenized.
    pub(crate) fn count_tokenized(&self, outcome: Outcome) {
        *self.metrics.borrow_mut().tokenized.entry(outcome).or_default() += 1;
    }

    fn report(&self) -> ShardReport {
        let now_us = io::now_us();
        let fleet = self.fleet.borrow();
        let endpoints = self.table.borrow();
        ShardReport {
            shard: self.index,
            metrics: Metrics {
                body_bytes: self.body_memory.held_bytes() as u64,
                body_waits: self.body_memory.waits(),
                ..self.metrics.borrow().clone()
            },
            endpoints: endpoints
                .iter()
                .map(|endpoint| EndpointReport {
                    endpoint: endpoint.spec.id,
                    incarnation: endpoint.spec.incarnation,
                    own_in_flight: endpoint.in_flight(),
                    idle_connections: u32::try_from(endpoint.idle_connections()).unwrap_or(u32::MAX),
                    belief: fleet.snapshot(now_us, endpoint.spec.id.0),
                })
                .collect(),
        }
    }

    /// A number for a request, unique over the process: the thread's number stands in the top bits.
    pub(crate) fn next_request_id(&self) -> u64 {
        let next = self.next_request.get().wrapping_add(1) & ((1 << 48) - 1);
        self.next_request.set(next);
        (self.index as u64) << 48 | next
    }

    /// Tells the other threads, in the next batch.
    pub(crate) fn tell_peers(&self, endpoint: &Endpoint, request: u64, at_us: u64, what: impl FnOnce() -> PeerWhat) {
        if self.peers.is_empty() {
            return;
        }
        let mut batch = self.batch.borrow_mut();
        if batch.len() >= BATCH_EVENTS_MAX {
            self.metrics.borrow_mut().peer_batches_dropped += 1;
            return;
        }
        let (endpoint, incarnation) = (endpoint.spec.id, endpoint.spec.incarnation);
        batch.push(PeerEvent { request, endpoint, incarnation, at_us, what: what() });
    }

    fn flush_batch(&self) {
        let mut waiting = self.batch.borrow_mut();
        if waiting.is_empty() {
            return;
        }
        let batch = Arc::new(PeerBatch { events: std::mem::take(&mut *waiting) });
        for peer in &self.peers {
            if peer.send(ToShard::Peer(batch.clone())).is_err() {
                self.metrics.borrow_mut().peer_batches_dropped += 1;
            }
        }
    }

    /// Tells the control thread that an endpoint failed, and keeps this thread's requests away from it meanwhile.
    pub(crate) fn report_failure(&self, endpoint: &Endpoint, failure: Failure) {
        let now_us = io::now_us();
        let id = endpoint.spec.id;
        *self.metrics.borrow_mut().failures.entry((id, failure)).or_default() += 1;
        match failure {
            Failure::Connect | Failure::Reset | Failure::Tls(_) | Failure::Redirect | Failure::Unauthorized => {
                endpoint.failed(now_us);
                endpoint.suspect(now_us);
            }
            Failure::FirstByteTimeout | Failure::IdleTimeout | Failure::BadAnswer | Failure::ServerError => {
                endpoint.failed(now_us);
            }
            Failure::Busy | Failure::Forbidden => return,
        }
        // A full box only delays what the next probe finds out anyway.
        let _ =
            self.control.try_send(FromShard::Failed { endpoint: id, incarnation: endpoint.spec.incarnation, failure });
    }

    /// Passes on what an endpoint says to the operator.
    pub(crate) fn tell_operator(&self, endpoint: &Endpoint, text: &str) {
        let (endpoint, incarnation) = (endpoint.spec.id, endpoint.spec.incarnation);
        // A full box: it will say so again.
        let _ = self.control.try_send(FromShard::Told { endpoint, incarnation, text: text.to_owned() });
    }

    /// A provider is busy: no thread asks it again for a while.
    pub(crate) fn back_off(&self, endpoint: &Endpoint, pause: Duration) {
        let now_us = io::now_us();
        let until_us = now_us.saturating_add(duration_us(pause));
        endpoint.back_off(until_us);
        self.tell_peers(endpoint, 0, now_us, || PeerWhat::BacksOff { until_us });
    }

    /// Writes a line of the access log.
    pub(crate) fn log(&self, entry: &Entry<'_>) {
        let mut lines = self.log_lines.borrow_mut();
        if lines.len() > LOG_BYTES_MAX {
            self.metrics.borrow_mut().log_lines_dropped += 1;
            return;
        }
        entry.push(&mut lines);
        let full = lines.len() >= LOG_BYTES_FLUSH;
        drop(lines);
        if full {
            self.flush_log();
        }
    }

    fn flush_log(&self) {
        let mut lines = self.log_lines.borrow_mut();
        if lines.is_empty() {
            return;
        }
        if let Ok(place) = self.control.try_reserve() {
            // As large as the last one got, so that it does not grow step by step.
            let room = Vec::with_capacity(lines.len());
            place.send(FromShard::Log(std::mem::replace(&mut *lines, room)));
        }
    }

    /// A request begins.
    pub(crate) fn exchange_begins(&self) {
        self.metrics.borrow_mut().exchanges_open += 1;
        self.show_load();
    }

    /// A request has ended.
    pub(crate) fn exchange_ends(&self) {
        self.metrics.borrow_mut().exchanges_open -= 1;
        self.show_load();
        self.tell_if_drained();
    }

    /// A thread is drained when no request is being worked on, and no connection is left on which one may be on its way: for
    /// a second clients find out by the answers they get that their connections end.
    fn tell_if_drained(&self) {
        if !self.draining.get() || self.drained_told.get() {
            return;
        }
        let (exchanges, connections) = {
            let metrics = self.metrics.borrow();
            (metrics.exchanges_open, metrics.connections_open)
        };
        let waited_us = io::now_us().saturating_sub(self.drain_since_us.get());
        if exchanges == 0
            && !self.scales.shared.expects()
            && (connections == 0 || waited_us >= IDLE_CONNECTIONS_DRAIN_US)
        {
            self.flush_log();
            self.drained_told.set(self.control.try_send(FromShard::Drained).is_ok());
        }
    }
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
