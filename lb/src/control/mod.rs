//! The control thread: everything that is not a request.
//!
//! One loop owns all state and waits for one thing at a time: a new snapshot from the [`source`], addresses of host
//! names ([`resolve`]), what the two tasks of each endpoint saw ([`watch`]), what data threads report, questions of the
//! [`admin`] server, signals. Whatever may take long happens in a task that sends its result here, so nothing waits for
//! anything else. What concerns requests goes to the data threads as messages.

mod access_log;
mod admin;
mod asked;
pub(crate) mod balancers;
pub(crate) mod certificates;
mod decisions;
pub mod door;
mod endpoints;
mod exposition;
mod fetch;
mod health;
pub(crate) mod journal;
mod keys;
mod kv;
mod learn;
mod models;
mod page;
pub(crate) mod registry;
mod report;
mod resolve;
mod scrape;
pub(crate) mod source;
pub(crate) mod status;
mod tokenizers;
mod watch;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::snapshot::PoolScope;
use config::source::cluster::{Contact, Feedback};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch as latest};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

pub(crate) use access_log::{AccessLog, Target};
use asked::Services;
use balancers::Balancers;
use certificates::{Certificates, InUse};
use endpoints::Endpoints;
pub(crate) use fetch::{FetchError, fetch};
use keys::Keys;
use kv::{KvNews, KvWhat};
pub(crate) use learn::{SERVERS_MAX, parse_url};
use registry::Registry;
use resolve::Resolver;
use source::{Source, SourceEvent};
use status::{ConfigStatus, Facts, Phase, Question, Refusal, Status};

use tokenizers::Tokenizers;
pub(crate) use tokenizers::load as load_tokenizer;

use crate::clock_us;
use crate::mailbox::{CacheNews, FromShard, ShardHandle, ToShard};
use crate::plan::{Accounts, Plan};
use crate::tags::Tagger;

/// Messages from tasks of the control thread that wait for its loop.
const SIGHTINGS_MAX: usize = 1_024;
/// Questions of the admin server that wait.
const QUESTIONS_MAX: usize = 64;
/// How long data threads have for refusing what they gave up.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait for the access log at the end.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// What the control thread is started with.
pub(crate) struct Setup {
    /// The data threads.
    pub shards: Vec<ShardHandle>,
    /// Their messages.
    pub from_shards: mpsc::Receiver<FromShard>,
    /// Where the admin server listens, when there is one.
    pub admin: Option<TcpListener>,
    /// Where snapshots come from.
    pub source: Source,
    /// Where lines of the access log go.
    pub access_log: AccessLog,
    /// Longest wait for requests to end after a signal.
    pub drain_timeout: Duration,
    /// What is told about this process.
    pub facts: Facts,
    /// Other balancers, and how they are heard.
    pub balancers: Option<balancers::Options>,
    /// The certificates of TLS listeners.
    pub certificates: Vec<InUse>,
    /// The pools that each listener serves.
    pub scopes: Vec<PoolScope>,
    /// Called once, when every endpoint is ready for the first time.
    pub on_ready: Option<Box<dyn FnOnce() + Send>>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Every request had ended.
    Drained,
    /// Requests were left when the time for them was over.
    DrainTimeout,
    /// A second signal.
    Forced,
}

/// Whether requests that run are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// For as long as the time to drain lasts.
    Left,
    /// Only those that are being refused.
    Refusing,
    /// No more.
    Over,
}

/// Runs on the calling thread until a signal ends it.
///
/// # Errors
/// When the runtime cannot be made.
pub(crate) fn run(setup: Setup) -> io::Result<Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(serve(setup));
    // Look-ups of names may be stuck in the system's resolver.
    runtime.shutdown_background();
    ended
}

/// The state of the loop.
struct Control {
    balancers: Option<Balancers>,
    shards: Vec<ShardHandle>,
    registry: Registry,
    resolver: Resolver,
    endpoints: Endpoints,
    outbox: kv::Outbox,
    certificates: Certificates,
    scopes: Vec<PoolScope>,
    tokenizers: Tokenizers,
    keys: Keys,
    accounts: Accounts,
    plan: Option<Arc<Plan>>,
    in_force_since: Option<SystemTime>,
    refusals: u64,
    last_refusal: Option<Refusal>,
    contact: Option<Contact>,
    /// What the first configuration waits for.
    waiting: Vec<String>,
    source: source::Running,
    feedback: latest::Sender<Feedback>,
    access_log: AccessLog,
    facts: Arc<Facts>,
    phase: Phase,
    drained: usize,
    drain_timeout: Duration,
    drain_until: Option<Instant>,
    patience: Patience,
    on_ready: Option<Box<dyn FnOnce() + Send>>,
    /// Endpoints that must be ready for `on_ready`.
    endpoints_min: usize,
    services: Services,
}

async fn serve(setup: Setup) -> io::Result<Ended> {
    let (sightings, mut sighted) = mpsc::channel(SIGHTINGS_MAX);
    let (kv_news, mut kv_heard) = mpsc::channel(SIGHTINGS_MAX);
    let (resolver, mut resolved) = Resolver::new();
    let (questions, mut asked) = mpsc::channel(QUESTIONS_MAX);
    let endpoints_min = setup.source.endpoints_min();
    let (feedback, told_back) = latest::channel(Feedback::default());
    let source = setup.source.start(told_back);
    let (certificates, mut changed_certificates) = Certificates::watch(setup.certificates);
    let (tokenizers, mut read_tokenizers) = Tokenizers::new(setup.shards.len());
    let (keys, mut found_keys) = Keys::new();
    if let Some(listener) = setup.admin {
        tokio::spawn(admin::serve(listener, setup.shards.clone(), questions));
    }
    let balancers = setup.balancers.map(|options| Balancers::start(options, setup.shards.clone())).transpose()?;
    let mut control = Control {
        balancers,
        shards: setup.shards,
        registry: Registry::default(),
        resolver,
        endpoints: Endpoints::new(watch::Outlets { sightings, kv: kv_news, inbound: kv::Inbound::default() }),
        outbox: kv::Outbox::default(),
        certificates,
        scopes: setup.scopes,
        tokenizers,
        keys,
        accounts: Accounts::default(),
        plan: None,
        in_force_since: None,
        refusals: 0,
        last_refusal: None,
        contact: None,
        waiting: Vec::new(),
        source,
        feedback,
        access_log: setup.access_log,
        facts: Arc::new(setup.facts),
        phase: Phase::Starting,
        drained: 0,
        drain_timeout: setup.drain_timeout,
        drain_until: None,
        patience: Patience::Left,
        on_ready: setup.on_ready,
        endpoints_min,
        services: Services::default(),
    };
    let mut from_shards = setup.from_shards;
    let mut signals = Signals::new()?;
    let mut reopen = Reopen::new()?;
    let mut tick = ticks(Duration::from_secs(1));
    let mut sweep = ticks(kv::SWEEP_EVERY);
    let ended = loop {
        tokio::select! {
            Some(message) = from_shards.recv() => control.heard(message),
            Some(event) = control.source.next() => control.source(event),
            Some(found) = resolved.recv() => {
                if control.resolver.take(found) {
                    control.replan();
                }
            }
            Some(sighting) = sighted.recv() => control.sighting(sighting),
            Some(news) = kv_heard.recv(), if control.outbox.has_room() => control.cache_news(news),
            _ = sweep.tick(), if !control.outbox.is_empty() => control.outbox.flush(&control.shards),
            Some(change) = changed_certificates.recv() => control.certificate(change),
            Some(found) = read_tokenizers.recv() => {
                if control.tokenizers.take(found) {
                    control.replan();
                }
            }
            Some(found) = found_keys.recv() => control.take_keys(found),
            Some(question) = asked.recv() => control.answer(question),
            () = signals.end() => {
                if control.phase == Phase::Draining {
                    break Ended::Forced;
                }
                control.drain();
            }
            () = reopen.asked() => control.access_log.reopen(),
            _ = tick.tick() => control.tick(),
            () = until(control.drain_until) => control.time_is_over(),
        }
        if let Some(ended) = control.drained() {
            break ended;
        }
    };
    control.end(ended, &mut from_shards).await;
    Ok(ended)
}

/// The classifiers of each pool. A pool with one that does not compile takes every prompt for personal.
fn taggers(snapshot: &config::Snapshot, before: &[Tagger]) -> Vec<Tagger> {
    let (taggers, faults) = Tagger::for_pools(snapshot, before);
    for (pool, why) in faults {
        journal::error(
            "a classifier does not compile; every prompt counts as unread",
            &[("pool", pool), ("why", &why)],
        );
    }
    taggers
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Every so often; late rather than twice at once.
fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Signals that ask for the access log to be opened anew.
struct Reopen {
    hangup: Signal,
    /// What nginx takes for the same; unhandled it would end the process.
    user: Signal,
}

impl Reopen {
    fn new() -> io::Result<Self> {
        Ok(Self { hangup: signal(SignalKind::hangup())?, user: signal(SignalKind::user_defined1())? })
    }

    async fn asked(&mut self) {
        let (hangup, user) = (&mut self.hangup, &mut self.user);
        tokio::select! {
            _ = hangup.recv() => {}
            _ = user.recv() => {}
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// SIGTERM or SIGINT.
    async fn end(&mut self) {
        let (terminate, interrupt) = (&mut self.terminate, &mut self.interrupt);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

impl Control {
    fn heard(&mut self, message: FromShard) {
        match message {
            FromShard::Failed { endpoint, incarnation, failure } => {
                self.endpoints.failed(endpoint, incarnation, failure);
            }
            FromShard::Told { endpoint, incarnation, text } => self.endpoints.told(endpoint, incarnation, text),
            FromShard::Classify(question) => {
                if let Some(shard) = self.shards.get(question.shard) {
                    self.services.ask(question, shard.clone());
                }
            }
            FromShard::Log(lines) => self.access_log.write(lines),
            FromShard::KeysWanted(source) => self.keys.wanted(&source),
            FromShard::Drained => self.drained += 1,
        }
    }

    fn source(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Snapshot(mut snapshot) => {
                let scopes = self.scopes.iter().enumerate();
                let unknown: Vec<_> = scopes.flat_map(|(i, scope)| snapshot.unknown_pools(i, scope)).collect();
                if !unknown.is_empty() {
                    Arc::make_mut(&mut snapshot).warnings.extend(unknown);
                }
                let known = self.plan.as_ref().map(|plan| plan.snapshot.clone());
                let known = known.as_ref().map_or(&[][..], |snapshot| &snapshot.warnings);
                for warning in snapshot.warnings.iter().filter(|warning| !known.contains(warning)) {
                    journal::warn("configuration warning", &[("finding", warning)]);
                }
                self.resolver.want(registry::host_names(&snapshot));
                self.tokenizers.want(&snapshot);
                let generation = snapshot.generation;
                self.put_in_force(snapshot);
                self.in_force_since = Some(SystemTime::now());
                journal::info("configuration in force", &[("generation", &generation)]);
            }
            SourceEvent::Refused(diagnostics) => {
                self.refusals += 1;
                for diagnostic in &diagnostics {
                    journal::error("configuration refused; what was in force stays", &[("finding", diagnostic)]);
                }
                self.last_refusal = Some(Refusal { at: SystemTime::now(), diagnostics });
            }
            SourceEvent::Pods(pods) => {
                self.registry.take_pods(pods);
                self.replan();
            }
            SourceEvent::Contact(contact) => self.contact(contact),
            SourceEvent::Waiting(reasons) => {
                for reason in reasons.iter().filter(|reason| !self.waiting.contains(reason)) {
                    journal::warn("nothing is in force yet", &[("waiting_for", reason)]);
                }
                self.waiting = reasons;
            }
        }
    }

    fn contact(&mut self, contact: Contact) {
        match (&contact, &self.contact) {
            (Contact::Without { why, .. }, _) => {
                journal::warn("the API server does not answer; what is in force stays", &[("why", why)]);
            }
            (Contact::With, Some(Contact::Without { since, .. })) => {
                let away_s = since.elapsed().unwrap_or_default().as_secs();
                journal::info("the API server answers again", &[("away_s", &away_s)]);
            }
            (Contact::With, Some(Contact::With) | None) => {}
        }
        self.contact = Some(contact);
    }

    /// Tells the source what became of its snapshot, when that has changed.
    fn tell_source(&self) {
        let Some(plan) = &self.plan else { return };
        let counts = self.endpoints.counts(plan);
        self.feedback.send_if_modified(|told| {
            let changed = *told != counts;
            *told = counts;
            changed
        });
    }

    fn certificate(&mut self, change: certificates::Change) {
        let Some((listener, acceptor)) = self.certificates.take(change) else { return };
        for (index, shard) in self.shards.iter().enumerate() {
            if shard.send(ToShard::Certificate { listener, acceptor: acceptor.clone() }).is_err() {
                journal::error("a data thread is stuck and misses a certificate", &[("thread", &index)]);
            }
        }
    }

    fn take_keys(&mut self, found: keys::Found) {
        if self.keys.take(found) {
            self.tell_keys();
        }
    }

    fn tell_keys(&self) {
        let ring = self.keys.ring();
        for (index, shard) in self.shards.iter().enumerate() {
            if shard.send(ToShard::Keys(ring.clone())).is_err() {
                journal::error("a data thread is stuck and misses the keys of issuers", &[("thread", &index)]);
            }
        }
    }

    /// The same snapshot with what has been found out about names and restarts since.
    fn replan(&mut self) {
        if let Some(plan) = &self.plan {
            self.put_in_force(plan.snapshot.clone());
        }
    }

    fn put_in_force(&mut self, snapshot: Arc<config::Snapshot>) {
        let planned = self.registry.plan(clock_us(), snapshot, self.resolver.addresses());
        if planned.left_out > 0 {
            journal::error(
                "too many endpoints; some are left out",
                &[("left_out", &planned.left_out), ("endpoints_max", &registry::ENDPOINTS_MAX)],
            );
        }
        let before = self.plan.as_ref().map_or(&[][..], |plan| plan.taggers.as_slice());
        let taggers = taggers(&planned.plan.snapshot, before);
        let exact = self.tokenizers.in_force(&planned.plan.snapshot);
        let accounts = self.accounts.of(&planned.plan.snapshot);
        let plan = Arc::new(Plan { taggers, exact, accounts, ..planned.plan });
        // Before the plan, so that the data threads have at least heard of every source.
        if self.keys.follow(&plan.snapshot) {
            self.tell_keys();
        }
        for (index, shard) in self.shards.iter().enumerate() {
            if shard.send(ToShard::Plan(plan.clone())).is_err() {
                journal::error("a data thread is stuck and misses a configuration", &[("thread", &index)]);
            }
        }
        // After the plan, so that the data threads know the endpoints meant.
        for message in self.endpoints.follow(&plan) {
            self.tell(&message);
        }
        if let Some(balancers) = &self.balancers {
            balancers.follow(&plan);
        }
        self.plan = Some(plan);
        if self.phase == Phase::Starting {
            self.phase = Phase::Serving;
        }
        self.tell_source();
    }

    fn tell(&self, message: &endpoints::Message) {
        for shard in &self.shards {
            // A thread that is stuck hears of the next state of things when it moves again.
            let _ = shard.send(message.to_shard());
        }
    }

    fn sighting(&mut self, sighting: watch::Sighting) {
        if matches!(sighting.seen, watch::Seen::Restarted) {
            self.registry.restarted(clock_us(), sighting.endpoint, sighting.incarnation);
            return self.replan();
        }
        if let Some(message) = self.endpoints.saw(sighting) {
            self.tell(&message);
        }
        if self.endpoints.all_ready(self.endpoints_min)
            && let Some(on_ready) = self.on_ready.take()
        {
            on_ready();
        }
    }

    fn cache_news(&mut self, news: KvNews) {
        let KvNews { endpoint, incarnation, what } = news;
        match what {
            KvWhat::Status(status) => self.endpoints.kv_status(endpoint, incarnation, status),
            KvWhat::Cache(what) => self.outbox.push(CacheNews { endpoint, incarnation, what }),
        }
    }

    fn tick(&mut self) {
        self.endpoints.mend();
        self.tell_source();
        self.tokenizers.tick();
    }

    fn drain(&mut self) {
        journal::info("draining; a second signal ends at once", &[("drain_timeout_s", &self.drain_timeout.as_secs())]);
        self.phase = Phase::Draining;
        self.source.leave();
        self.drain_until = Some(Instant::now() + self.drain_timeout);
        for (index, shard) in self.shards.iter().enumerate() {
            if shard.send(ToShard::Drain).is_err() {
                journal::error("a data thread is stuck and cannot be drained", &[("thread", &index)]);
            }
        }
    }

    /// The time to drain is over: who has no answer yet is told so, for which there is a little more.
    fn time_is_over(&mut self) {
        self.patience = match self.patience {
            Patience::Left => Patience::Refusing,
            Patience::Refusing | Patience::Over => Patience::Over,
        };
        self.drain_until = Some(Instant::now() + REFUSED_WITHIN);
        for shard in &self.shards {
            // One that is stuck tells nobody anything.
            let _ = shard.send(ToShard::GiveUp);
        }
    }

    /// How it ended, once nothing is left or nothing is waited for.
    fn drained(&self) -> Option<Ended> {
        let all = self.phase == Phase::Draining && self.drained >= self.shards.len();
        match self.patience {
            Patience::Left => all.then_some(Ended::Drained),
            Patience::Refusing => all.then_some(Ended::DrainTimeout),
            Patience::Over => Some(Ended::DrainTimeout),
        }
    }

    /// What is left to do once the loop is over.
    async fn end(&mut self, ended: Ended, from_shards: &mut mpsc::Receiver<FromShard>) {
        // Lines of the last requests may have come behind the last message that was looked at.
        while let Ok(message) = from_shards.try_recv() {
            self.heard(message);
        }
        self.access_log.flush(FLUSH_WITHIN);
        if ended != Ended::Forced {
            self.source.left().await;
        }
    }

    fn answer(&self, question: Question) {
        let status = Status {
            phase: self.phase,
            plan: self.plan.clone(),
            endpoints: self.plan.as_ref().map(|plan| self.endpoints.status(plan)).unwrap_or_default(),
            unresolved: self.resolver.errors(),
            config: ConfigStatus {
                in_force_since: self.in_force_since,
                refusals: self.refusals,
                last_refusal: self.last_refusal.clone(),
            },
            contact: self.contact.clone(),
            waiting: self.waiting.clone(),
            balancers: self.balancers.as_ref().map(Balancers::status),
            certificates: self.certificates.status(),
            tokenizers: self.plan.as_ref().map(|plan| self.tokenizers.status(&plan.snapshot)).unwrap_or_default(),
            keys: self.keys.status(),
            cache_news: self.outbox.status(),
            log_lines_dropped: self.access_log.dropped(),
            facts: self.facts.clone(),
        };
        // Whoever asked may have gone.
        let _ = question.send(status);
    }
}
