//! Keeps the copy of one endpoint's cache: takes what its streams say, asks again for what is missing, and tells what changed.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use predictor::fleet::{Evidence, TICK_US};
use predictor::kv_mirror::{CHANGE_KEYS_MAX, Change, Delta, Knowledge, Mirror, Received, Source};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::zmtp::{Broken, Connection, Message, Role};
use super::{BLOCKS_MAX, Heard, Keys, KvNews, KvOrders, KvState, KvStatus, KvWhat, journal, nth, stream};
use crate::clock_us;
use crate::mailbox::CacheWhat;
use crate::plan::EndpointSpec;

/// A stream that is back within this time was never away: what was missed is asked for.
const GRACE_US: u64 = 2_000_000;
/// How often it is looked at what time alone changes.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Counts are told this often.
const STATUS_EVERY_US: u64 = 250_000;
/// How far eviction has come is told this often.
const EVICTED_EVERY_US: u64 = TICK_US;
/// Silence that ends a replay. vLLM looks for questions every 100 ms.
const REPLAY_SILENCE: Duration = Duration::from_secs(2);
/// Questions for one gap. vLLM's socket drops what exceeds a thousand answers; it keeps ten thousand messages.
const REPLAY_ROUNDS_MAX: u32 = 32;
/// Between two replays.
const REPLAY_EVERY_US: u64 = 1_000_000;
/// What marks the end of a replay, in place of a number.
const REPLAY_END: u64 = u64::MAX;

/// Listens to one endpoint until nobody sends any more.
pub(super) async fn run(
    spec: Arc<EndpointSpec>,
    orders: KvOrders,
    news: mpsc::Sender<KvNews>,
    mut heard: mpsc::Receiver<(u32, Heard)>,
) {
    let mut keeper = Keeper::new(spec, orders, news);
    // Whatever was told by a keeper before this one is void.
    keeper.tell(KvWhat::Cache(CacheWhat::Evidence { evidence: Evidence::Record, block_tokens: 0 })).await;
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            next = heard.recv() => match next {
                Some((rank, heard)) => keeper.hear(rank, heard).await,
                None => return,
            },
            _ = look.tick() => {}
        }
        keeper.settle().await;
    }
}

/// The stream of a rank.
#[derive(Debug)]
enum Link {
    Open,
    Closed { since_us: u64, why: String },
}

struct Keeper {
    spec: Arc<EndpointSpec>,
    orders: KvOrders,
    news: mpsc::Sender<KvNews>,
    mirror: Mirror,
    links: Vec<Link>,
    /// What the data threads go by, and the size of a block as they know it.
    evidence: Evidence,
    block_tokens: u32,
    status: KvStatus,
    status_told_us: u64,
    replays: u64,
    replay_again_us: u64,
    /// What was last lost, for people.
    loss: String,
    evicted_at: Option<u32>,
    evicted_told_us: u64,
}

/// What became of one question.
enum Round {
    /// Everything there is was told.
    Whole,
    /// Some of it was not, or the engine is another: to be asked again.
    Again,
}

impl Keeper {
    fn new(spec: Arc<EndpointSpec>, orders: KvOrders, news: mpsc::Sender<KvNews>) -> Self {
        let mirror = Mirror::new(&orders.model, orders.ranks, BLOCKS_MAX);
        let now_us = clock_us();
        let closed = || Link::Closed { since_us: now_us, why: String::from("no stream yet") };
        let links = (0..orders.ranks.max(1)).map(|_| closed()).collect();
        let status = KvStatus {
            state: KvState::Waiting,
            since_us: now_us,
            why: String::new(),
            blocks: 0,
            block_tokens: 0,
            keys: orders.keys,
            counts: mirror.counts(),
            replays: 0,
        };
        Self {
            spec,
            orders,
            news,
            mirror,
            links,
            evidence: Evidence::Record,
            block_tokens: 0,
            status,
            status_told_us: 0,
            replays: 0,
            replay_again_us: 0,
            loss: String::new(),
            evicted_at: None,
            evicted_told_us: 0,
        }
    }

    async fn tell(&self, what: KvWhat) {
        let news = KvNews { endpoint: self.spec.id, incarnation: self.spec.incarnation, what };
        // The loop is gone only when the process ends.
        let _ = self.news.send(news).await;
    }

    async fn hear(&mut self, rank: u32, heard: Heard) {
        let Some(link) = self.links.get_mut(rank as usize) else { return };
        match heard {
            Heard::Open => {
                *link = Link::Open;
                // What was published before, and while nobody listened.
                if self.orders.replay_port.is_some() {
                    self.replay(rank).await;
                }
            }
            Heard::Closed(why) => {
                let since_us = match link {
                    Link::Open => clock_us(),
                    Link::Closed { since_us, .. } => *since_us,
                };
                *link = Link::Closed { since_us, why };
            }
            Heard::Message { sequence, payload } => self.message(rank, sequence, &payload).await,
        }
    }

    async fn message(&mut self, rank: u32, sequence: u64, payload: &[u8]) {
        // A restart, a gap, the message.
        for _ in 0..3 {
            match self.take(rank, Source::Live, sequence, payload).await {
                Received::Applied | Received::Duplicate => return,
                Received::Unreadable(fault) => {
                    return self.lose(&format!("message {sequence} cannot be read: {fault}"));
                }
                Received::Restarted => {
                    journal::info("engine starts its events anew", &[("endpoint", &self.spec.name)]);
                }
                Received::Gap { missing } => {
                    let filled = self.orders.replay_port.is_some() && self.replay(rank).await;
                    if !filled || self.mirror.next(rank) < sequence {
                        self.mirror.give_up(rank, sequence);
                        self.lose(&format!("messages {missing} to {} are missing", sequence - 1));
                    }
                }
            }
        }
    }

    fn lose(&mut self, why: &str) {
        if self.mirror.knowledge() == Knowledge::Partial && self.loss.is_empty() {
            journal::warn("engine's KV events are incomplete", &[("endpoint", &self.spec.name), ("why", &why)]);
        }
        why.clone_into(&mut self.loss);
    }

    /// Gives a message to the mirror, and tells what it changed.
    async fn take(&mut self, rank: u32, source: Source, sequence: u64, payload: &[u8]) -> Received {
        let mut delta = Delta::default();
        let tick = u32::try_from(clock_us() / TICK_US).unwrap_or(u32::MAX);
        let received = self.mirror.receive(rank, source, sequence, payload, tick, &mut delta);
        self.publish(delta).await;
        received
    }

    async fn publish(&mut self, delta: Delta) {
        self.evicted_at = self.evicted_at.max(delta.evicted_stored_at);
        for change in delta.changes {
            let what = match change {
                // Where events are no evidence yet, all keys are told once they are.
                Change::Stored(_) | Change::Removed(_) if self.evidence == Evidence::Record => continue,
                Change::Stored(keys) => CacheWhat::Stored(keys),
                Change::Removed(keys) => CacheWhat::Removed(keys),
                Change::Cleared => {
                    self.evicted_at = None;
                    CacheWhat::Cleared
                }
            };
            self.tell(KvWhat::Cache(what)).await;
        }
    }

    /// Asks for what is missing of a rank. Says whether everything came that the engine still has.
    async fn replay(&mut self, rank: u32) -> bool {
        let Some(address) = self.orders.replay_port.and_then(|port| nth(&self.spec, port, rank)) else {
            return false;
        };
        let early_us = self.replay_again_us.saturating_sub(clock_us());
        sleep(Duration::from_micros(early_us)).await;
        self.replay_again_us = clock_us() + REPLAY_EVERY_US;
        self.replays += 1;
        for _ in 0..REPLAY_ROUNDS_MAX {
            let round = match stream::connect(address, Role::Asker).await {
                Ok(connection) => self.round(connection, rank).await,
                Err(broken) => Err(broken),
            };
            match round {
                Ok(Round::Whole) => {
                    self.mirror.replayed(rank);
                    return true;
                }
                Ok(Round::Again) => {}
                Err(broken) => {
                    self.complain(&format!("no replay from {address}"), &broken);
                    return false;
                }
            }
        }
        self.complain(&format!("no whole replay from {address}"), &"answers are missing again and again");
        false
    }

    fn complain(&self, what: &str, why: &dyn Display) {
        let pairs: [journal::Pair<'_>; 3] = [("endpoint", &self.spec.name), ("what", &what), ("why", why)];
        journal::warn("engine's KV events cannot be asked for again", &pairs);
    }

    async fn round(&mut self, mut connection: Connection<TcpStream>, rank: u32) -> Result<Round, Broken> {
        let from = self.mirror.replay_from(rank);
        let knows_last = from < self.mirror.next(rank);
        connection.send(&[b"", &from.to_be_bytes()]).await?;
        let mut answers = 0_u64;
        loop {
            let message = timeout(REPLAY_SILENCE, connection.message()).await.map_err(|_| Broken::Late("replay"))??;
            let (sequence, payload) = replayed(message)?;
            if sequence == REPLAY_END {
                break;
            }
            answers += 1;
            match self.take(rank, Source::Replay, sequence, &payload).await {
                Received::Applied | Received::Duplicate => {}
                Received::Unreadable(fault) => self.lose(&format!("message {sequence} cannot be read: {fault}")),
                Received::Restarted => return Ok(Round::Again),
                // The engine keeps so many and no more.
                Received::Gap { missing } if answers == 1 => {
                    self.mirror.give_up(rank, sequence);
                    self.lose(&format!("messages {missing} to {} are no longer kept", sequence - 1));
                    self.take(rank, Source::Replay, sequence, &payload).await;
                }
                Received::Gap { .. } => return Ok(Round::Again),
            }
        }
        if answers == 0 && knows_last {
            // It would still have the last one that is known.
            let mut delta = Delta::default();
            self.mirror.restart(rank, &mut delta);
            self.publish(delta).await;
            return Ok(Round::Again);
        }
        Ok(Round::Whole)
    }

    /// Brings data threads and people up to date.
    async fn settle(&mut self) {
        let now_us = clock_us();
        let (state, why) = self.state(now_us);
        let evidence = match (self.orders.keys, state) {
            (Keys::Exact, KvState::Live) => Evidence::Events,
            (Keys::Exact, KvState::Gap) => Evidence::Corrected,
            (Keys::Exact, KvState::Waiting | KvState::Stale) | (Keys::Unmatched, _) => Evidence::Record,
        };
        if evidence != self.evidence || self.mirror.block_tokens() != self.block_tokens {
            self.change_evidence(evidence).await;
        }
        self.tell_evicted(now_us).await;
        self.tell_status(now_us, state, why).await;
    }

    fn state(&self, now_us: u64) -> (KvState, String) {
        let closed = self.links.iter().find_map(|link| match link {
            Link::Open => None,
            Link::Closed { since_us, why } => Some((*since_us, why)),
        });
        match (self.mirror.knowledge(), closed) {
            (Knowledge::Nothing, Some((_, why))) => (KvState::Waiting, why.clone()),
            (Knowledge::Nothing, None) => {
                (KvState::Waiting, format!("connected; nothing was published under topic {:?} yet", self.orders.topic))
            }
            (_, Some((since_us, why))) if now_us.saturating_sub(since_us) > GRACE_US => (KvState::Stale, why.clone()),
            (Knowledge::Partial, _) => (KvState::Gap, self.loss.clone()),
            (Knowledge::Complete, _) => (KvState::Live, String::new()),
        }
    }

    async fn change_evidence(&mut self, evidence: Evidence) {
        let block_tokens = self.mirror.block_tokens();
        self.block_tokens = block_tokens;
        self.tell(KvWhat::Cache(CacheWhat::Evidence { evidence, block_tokens })).await;
        if self.evidence == Evidence::Record && evidence != Evidence::Record {
            let keys: Vec<u64> = self.mirror.keys().collect();
            for keys in keys.chunks(CHANGE_KEYS_MAX) {
                self.tell(KvWhat::Cache(CacheWhat::Stored(keys.to_vec()))).await;
            }
        }
        self.evidence = evidence;
    }

    async fn tell_evicted(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.evicted_told_us) >= EVICTED_EVERY_US
            && let Some(stored_at) = self.evicted_at.take()
        {
            self.evicted_told_us = now_us;
            let stored_at_us = u64::from(stored_at) * TICK_US;
            self.tell(KvWhat::Cache(CacheWhat::Evicted { stored_at_us })).await;
        }
    }

    async fn tell_status(&mut self, now_us: u64, state: KvState, why: String) {
        if state == KvState::Live {
            self.loss.clear();
        }
        let changed = state != self.status.state;
        if changed {
            let pairs: [journal::Pair<'_>; 3] =
                [("endpoint", &self.spec.name), ("state", &state.as_str()), ("why", &why)];
            match state {
                KvState::Live | KvState::Waiting => journal::info("engine's KV events", &pairs),
                KvState::Gap | KvState::Stale => journal::warn("engine's KV events", &pairs),
            }
        }
        let status = KvStatus {
            state,
            since_us: if changed { now_us } else { self.status.since_us },
            why,
            blocks: self.mirror.blocks(),
            block_tokens: self.mirror.block_tokens(),
            keys: self.orders.keys,
            counts: self.mirror.counts(),
            replays: self.replays,
        };
        let due = changed || now_us.saturating_sub(self.status_told_us) >= STATUS_EVERY_US;
        if self.status_told_us == 0 || due && status != self.status {
            self.status_told_us = now_us;
            self.status = status.clone();
            self.tell(KvWhat::Status(status)).await;
        }
    }
}

/// Number and payload of an answer: the last two frames, behind an empty one and, with newer engines, the topic.
fn replayed(mut message: Message) -> Result<(u64, Vec<u8>), Broken> {
    let (Some(payload), Some(sequence)) = (message.pop(), message.pop()) else {
        return Err(Broken::Protocol(String::from("an answer of one frame")));
    };
    Ok((stream::number(&sequence)?, payload))
}
