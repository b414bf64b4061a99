//! Other balancers in front of the same engines: each tells the others what it has sent to each endpoint and has not got
//! back: what changed at once, forty times a second at most, and all of it four times a second. A balancer that sees a
//! quarter of the requests would else know a quarter of the queue.
//!
//! UDP: what is lost is told again, and what is late is void anyway. Who the others are is a list of names, looked up again
//! and again: a headless Service is all of its pods. A balancer that finds itself among them passes itself over.

mod wire;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::Secret;
use predictor::fleet::PeerSums;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use wire::{DATAGRAM_BYTES_MAX, Entry, Key, Refused, Senders, Telling};

use super::report::answers;
use crate::mailbox::{OwnSums, ShardHandle, ToShard, ToldSums};
use crate::plan::Plan;

/// Between two tellings of what changed.
const TELL_EVERY: Duration = Duration::from_millis(25);
/// All is told at one in so many: what was lost is made good, and who has nothing new is there all the same.
const TELL_ALL_AT: u32 = 10;
/// Between two look-ups of names.
const RESOLVE_EVERY: Duration = Duration::from_secs(5);
/// Longest look-up of a name.
const RESOLVE_WITHIN: Duration = Duration::from_secs(2);
/// Addresses that are told; more balancers than anyone runs.
const ADDRESSES_MAX: usize = 256;
/// A balancer that was not heard for so long is not counted.
const HEARD_US: u64 = 3_000_000;

/// How balancers find each other.
pub(crate) struct Options {
    /// Where the others are heard.
    pub(crate) socket: UdpSocket,
    /// The others, as `host:port`.
    pub(crate) peers: Vec<String>,
    /// What all of them know.
    pub(crate) secret: Secret,
}

/// Counts for the metrics page.
#[derive(Debug, Default)]
struct Counts {
    heard: AtomicUsize,
    refused: AtomicU64,
    unsent: AtomicU64,
}

/// The state of the exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BalancersStatus {
    /// Balancers heard within three seconds.
    pub heard: usize,
    /// Datagrams that were not taken.
    pub refused: u64,
    /// Datagrams that could not be sent.
    pub unsent: u64,
}

/// The running exchange; dropping it ends it.
#[derive(Debug)]
pub(super) struct Balancers {
    plans: watch::Sender<Option<Arc<Plan>>>,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

impl Balancers {
    /// Starts it. To be called on the control thread's runtime.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub(super) fn start(options: Options, shards: Vec<ShardHandle>) -> io::Result<Self> {
        options.socket.set_nonblocking(true)?;
        let socket = tokio::net::UdpSocket::from_std(options.socket)?;
        let (plans, plan) = watch::channel(None);
        let counts = Arc::<Counts>::default();
        let (names, addresses) = watch::channel(Vec::new());
        let exchange = Exchange {
            socket,
            key: Key::new(options.secret.expose()),
            me: RandomState::new().hash_one(0_u8),
            shards,
            plan,
            addresses,
            senders: Senders::default(),
            told: HashMap::new(),
            since_all: 0,
            counts: counts.clone(),
        };
        let peers = options.peers;
        let task = tokio::spawn(async move {
            tokio::select! {
                () = resolve(peers, names) => {}
                () = exchange.run() => {}
            }
        });
        Ok(Self { plans, counts, task })
    }

    /// The endpoints of now.
    pub(super) fn follow(&self, plan: &Arc<Plan>) {
        self.plans.send_replace(Some(plan.clone()));
    }

    pub(super) fn status(&self) -> BalancersStatus {
        BalancersStatus {
            heard: self.counts.heard.load(Ordering::Relaxed),
            refused: self.counts.refused.load(Ordering::Relaxed),
            unsent: self.counts.unsent.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Balancers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Looks names up until nobody wants to know. A name that is not found keeps the addresses it had.
async fn resolve(peers: Vec<String>, sender: watch::Sender<Vec<SocketAddr>>) {
    let mut known: HashMap<String, Vec<SocketAddr>> = HashMap::new();
    while !sender.is_closed() {
        for peer in &peers {
            if let Ok(Ok(found)) = timeout(RESOLVE_WITHIN, tokio::net::lookup_host(peer.as_str())).await {
                known.insert(peer.clone(), found.collect());
            }
        }
        let mut all: Vec<SocketAddr> = known.values().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        all.truncate(ADDRESSES_MAX);
        sender.send_if_modified(|addresses| std::mem::replace(addresses, all.clone()) != all);
        tokio::time::sleep(RESOLVE_EVERY).await;
    }
}

struct Exchange {
    socket: tokio::net::UdpSocket,
    key: Key,
    me: u64,
    shards: Vec<ShardHandle>,
    plan: watch::Receiver<Option<Arc<Plan>>>,
    addresses: watch::Receiver<Vec<SocketAddr>>,
    senders: Senders,
    /// What was told last of each endpoint: of one that has nothing left, that is told once.
    told: HashMap<u64, PeerSums>,
    /// Tellings since all was told.
    since_all: u32,
    counts: Arc<Counts>,
}

impl Exchange {
    async fn run(mut self) {
        let mut tick = interval(TELL_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        // Ends with the process.
        loop {
            tokio::select! {
                _ = tick.tick() => self.tell().await,
                received = self.socket.recv_from(&mut buffer) => {
                    // An error here is about a datagram sent earlier: its address has nobody.
                    if let Ok((bytes, _)) = received {
                        self.hear(&buffer[..bytes]);
                    }
                }
            }
        }
    }

    async fn tell(&mut self) {
        self.counts.heard.store(self.senders.heard_within(unix_us(), HEARD_US), Ordering::Relaxed);
        let addresses = self.addresses.borrow().clone();
        let Some(plan) = self.plan.borrow().clone().filter(|_| !addresses.is_empty()) else { return };
        let Some(shard) = self.shards.first() else { return };
        // Data threads are replicas of each other: one knows what all have sent.
        let (sender, receiver) = std_mpsc::sync_channel(1);
        if shard.send(ToShard::Sums(sender)).is_err() {
            return;
        }
        let Some(sums) = answers(receiver, 1).await.pop() else { return };
        let entries = self.entries(&plan, &sums);
        for datagram in wire::encode(&self.key, self.me, unix_us(), &entries) {
            for address in &addresses {
                // What cannot be sent now is told again.
                if self.socket.try_send_to(&datagram, *address).is_err() {
                    self.counts.unsent.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn entries(&mut self, plan: &Plan, sums: &[OwnSums]) -> Vec<Entry> {
        let open = sums.iter().filter_map(|own| {
            let spec = plan.endpoints.get(own.endpoint.index())?.as_ref()?;
            (spec.incarnation == own.incarnation).then(|| Entry { endpoint: common_name(spec), sums: own.sums })
        });
        let mut entries: Vec<Entry> = open.collect();
        let now: HashMap<u64, PeerSums> = entries.iter().map(|entry| (entry.endpoint, entry.sums)).collect();
        let done = self.told.keys().filter(|endpoint| !now.contains_key(endpoint));
        entries.extend(done.map(|endpoint| Entry { endpoint: *endpoint, sums: PeerSums::default() }));
        let before = std::mem::replace(&mut self.told, now);
        self.since_all += 1;
        if self.since_all < TELL_ALL_AT {
            entries.retain(|entry| before.get(&entry.endpoint) != Some(&entry.sums));
            return entries;
        }
        self.since_all = 0;
        if entries.is_empty() {
            // A sign of life: whoever has nothing to tell is there all the same.
            entries.push(Entry { endpoint: 0, sums: PeerSums::default() });
        }
        entries
    }

    fn hear(&mut self, bytes: &[u8]) {
        let taken = wire::decode(&self.key, bytes).and_then(|telling| {
            if telling.sender != self.me {
                self.senders.hear(unix_us(), &telling)?;
            }
            Ok(telling)
        });
        match taken {
            Ok(telling) if telling.sender == self.me => {}
            Ok(telling) => self.pass_on(&telling),
            Err(Refused::Unknown | Refused::Forged | Refused::Late | Refused::TooMany) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn pass_on(&self, telling: &Telling) {
        let Some(plan) = self.plan.borrow().clone() else { return };
        let specs = plan.endpoints.iter().flatten().filter(|spec| spec.backend == policy::Backend::Local);
        let known: HashMap<u64, _> = specs.map(|spec| (common_name(spec), spec)).collect();
        let told = telling.entries.iter().filter_map(|entry| {
            let spec = known.get(&entry.endpoint)?;
            let (balancer, sums) = (telling.sender, entry.sums);
            Some(ToldSums { balancer, endpoint: spec.id, incarnation: spec.incarnation, sums })
        });
        let told: Arc<[ToldSums]> = told.collect();
        if told.is_empty() {
            return;
        }
        for shard in &self.shards {
            // A thread that is stuck hears the next telling when it moves again.
            let _ = shard.send(ToShard::Told(told.clone()));
        }
    }
}

/// Signs what another balancer might say, reads it, and writes what was read again; `None` when it is refused.
pub(super) fn reread(said: &[u8]) -> Option<Vec<u8>> {
    wire::reread(said)
}

/// An endpoint as all balancers name it: by what it serves for whom, and where.
fn common_name(spec: &crate::plan::EndpointSpec) -> u64 {
    xxhash_rust::xxh3::xxh3_64(format!("{} {}", spec.kind, spec.address).as_bytes())
}

/// Now, in microseconds since 1970.
fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
