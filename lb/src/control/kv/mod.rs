//! What engines themselves tell of their KV caches: vLLM's event stream over ZeroMQ, one [`keeper`] for each endpoint.
//!
//! ```text
//! engine PUB --> stream (a task for each rank)  --\
//! engine PUB --> inbound (where engines connect) ---> keeper: mirror, replays --> control loop: outbox --> data threads
//! engine ROUTER <------------- asked for what was missed --/
//! ```
//!
//! Nothing is dropped on the way: every channel is bounded, and who cannot go on waits, back to the engine's socket. What the
//! engine then drops shows in the sequence numbers and is asked for again. The [`outbox`] gives data threads a few hundred
//! keys at a time.

mod inbound;
mod keeper;
mod outbox;
mod stream;
pub(crate) mod zmtp;

use std::net::SocketAddr;
use std::sync::Arc;

use predictor::kv_mirror::Counts;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(crate) use inbound::Inbound;
pub(crate) use outbox::{Outbox, SWEEP_EVERY};

use super::journal;
use crate::mailbox::CacheWhat;
use crate::plan::{EndpointId, EndpointSpec};

/// Most different blocks kept of one endpoint: 4 million tokens at 16 each, some 16 MB.
const BLOCKS_MAX: usize = 1 << 18;
/// Messages of one endpoint that wait for its keeper.
const HEARD_MAX: usize = 8;

/// How to listen to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvOrders {
    /// The base model, as the engine is sent it.
    pub model: String,
    /// Where its streams come from.
    pub streams: Streams,
    /// Engines behind the address.
    pub ranks: u32,
    /// Beginning of the topics.
    pub topic: String,
    /// Port of replays of the first rank.
    pub replay_port: Option<u16>,
    /// Whether blocks are found by requests.
    pub keys: Keys,
}

/// Who connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Streams {
    /// We do, to this port for the first rank.
    Connect(u16),
    /// The engines do, to this address of ours.
    Await(SocketAddr),
}

/// Whether the keys of an engine's blocks are those of our chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Prompts are cut into the engine's own tokens.
    Exact,
    /// Prompts are known by their bytes: events tell of clears and of evictions.
    Unmatched,
}

/// What a keeper tells the control loop.
#[derive(Debug)]
pub(crate) struct KvNews {
    /// Which endpoint.
    pub endpoint: EndpointId,
    /// Which one at that number.
    pub incarnation: u64,
    /// What is new.
    pub what: KvWhat,
}

/// What is new of an endpoint's cache.
#[derive(Debug)]
pub(crate) enum KvWhat {
    /// For people.
    Status(KvStatus),
    /// For the data threads.
    Cache(CacheWhat),
}

/// How well an endpoint's cache is known from its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KvState {
    /// Nothing was heard yet.
    Waiting,
    /// Every block is known.
    Live,
    /// Messages are missing: what was stored or removed then is not known.
    Gap,
    /// The stream has ended.
    Stale,
}

impl KvState {
    /// In documents and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Live => "live",
            Self::Gap => "gap",
            Self::Stale => "stale",
        }
    }
}

/// What is told of an endpoint's event stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvStatus {
    /// How well its cache is known.
    pub state: KvState,
    /// Since when, on the process clock.
    pub since_us: u64,
    /// Why it is not known better; empty when it is live.
    pub why: String,
    /// Different blocks it holds, as far as known.
    pub blocks: usize,
    /// Tokens in each; 0 while unknown.
    pub block_tokens: u32,
    /// Whether requests find them.
    pub keys: Keys,
    /// Counts since the stream was first listened to.
    pub counts: Counts,
    /// Replays asked for.
    pub replays: u64,
}

/// What was heard of one rank.
#[derive(Debug)]
enum Heard {
    /// A connection is up, and subscribed.
    Open,
    /// A message.
    Message {
        /// Its number.
        sequence: u64,
        /// What it says.
        payload: Vec<u8>,
    },
    /// The connection has ended, or could not be made.
    Closed(String),
}

/// The tasks that listen to one endpoint; dropping this ends them.
#[derive(Debug)]
pub(crate) struct Listening {
    tasks: Vec<JoinHandle<()>>,
}

impl Listening {
    /// Starts to listen.
    pub(crate) fn start(
        spec: &Arc<EndpointSpec>,
        orders: &KvOrders,
        inbound: &Inbound,
        news: &mpsc::Sender<KvNews>,
    ) -> Self {
        let (sender, heard) = mpsc::channel(HEARD_MAX);
        let mut tasks = vec![tokio::spawn(keeper::run(spec.clone(), orders.clone(), news.clone(), heard))];
        match orders.streams {
            Streams::Connect(port) => {
                for rank in 0..orders.ranks {
                    let Some(address) = nth(spec, port, rank) else { break };
                    tasks.push(tokio::spawn(stream::run(rank, address, orders.topic.clone(), sender.clone())));
                }
            }
            Streams::Await(listen) => inbound.expect(listen, &orders.topic, spec, sender),
        }
        Self { tasks }
    }

    /// Whether a task has ended by itself, which none ever should.
    pub(crate) fn is_broken(&self) -> bool {
        self.tasks.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Where a rank of an endpoint is, given the port of its first.
fn nth(spec: &EndpointSpec, port: u16, rank: u32) -> Option<SocketAddr> {
    let port = u16::try_from(u32::from(port) + rank).ok()?;
    Some(SocketAddr::new(spec.address.ip(), port))
}
