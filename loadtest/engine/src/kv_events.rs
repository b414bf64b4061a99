//! The engine's KV-cache events, as vLLM 0.32 publishes them: a PUB socket, numbered messages, and a ROUTER that tells the last
//! ones again.
//!
//! At the end of each step one message says which blocks can be found from now on and which no longer, `[time, [events], rank]`
//! in msgpack, events by field name, hashes as 64-bit numbers. Messages can be withheld, forgotten and cut off on command, as a
//! network and a restart would.

mod payload;
mod socket;

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{net::TcpListener, sync::watch};

use crate::{openai::Call, step::BlockChange};

/// How the engine publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEvents {
    /// Where its stream is.
    pub stream: Stream,
    /// Where messages can be asked for again; port 0 takes a free one.
    pub replay: Option<SocketAddr>,
    /// First frame of each message.
    pub topic: String,
    /// Messages kept for replays (`buffer_steps`).
    pub kept_max: usize,
}

impl Default for KvEvents {
    /// Any port of loopback, with replays, under topic `kv@`.
    fn default() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { stream: Stream::Bind(any), replay: Some(any), topic: "kv@".to_owned(), kept_max: 10_000 }
    }
}

/// Which side of the stream connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Subscribers do; port 0 takes a free one.
    Bind(SocketAddr),
    /// The engine does.
    Connect(SocketAddr),
}

/// Whether the stream works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// It does.
    Up,
    /// Connections are closed, and new ones at once.
    Cut,
}

/// What a block is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    parent: Option<u64>,
    tokens: Vec<u32>,
    salt: Option<String>,
}

/// A message as it is sent: number and payload.
type Sent = (u64, Arc<[u8]>);

#[derive(Default)]
struct State {
    /// Blocks of requests taken so far, and the order in which they came.
    catalog: HashMap<u64, Content>,
    order: VecDeque<u64>,
    next: u64,
    kept: VecDeque<Sent>,
    withheld: u32,
    subscribers: Vec<tokio::sync::mpsc::Sender<Sent>>,
}

/// The publishing side.
pub(crate) struct Publisher {
    settings: KvEvents,
    blocks_max: usize,
    block_tokens: u32,
    line: watch::Sender<Line>,
    state: Mutex<State>,
}

/// Messages that wait for a slow subscriber; it misses further ones, as with a PUB socket's high-water mark.
const WAITING_MAX: usize = 10_000;
/// Blocks described at a time, as a multiple of those that the cache holds.
const DESCRIBED: usize = 8;

impl Publisher {
    pub(crate) fn new(settings: KvEvents, blocks_max: u32, block_tokens: u32) -> Arc<Self> {
        let (line, _) = watch::channel(Line::Up);
        let blocks_max = blocks_max as usize;
        Arc::new(Self { settings, blocks_max, block_tokens: block_tokens.max(1), line, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns what the blocks of a request are made of, before they are stored.
    pub(crate) fn describe(&self, call: &Call, hashes: &[u64]) {
        let answer = (0..call.output_tokens).map(|position| call.answer.token(position).id());
        let tokens: Vec<u32> = call.prompt.iter().copied().chain(answer).collect();
        let mut state = self.lock();
        let mut parent = None;
        for (hash, tokens) in hashes.iter().zip(tokens.chunks_exact(self.block_tokens as usize)) {
            let content = || {
                let salt = if parent.is_none() { call.cache_salt.clone() } else { None };
                Content { parent, tokens: tokens.to_vec(), salt }
            };
            if !state.catalog.contains_key(hash) {
                state.catalog.insert(*hash, content());
                state.order.push_back(*hash);
            }
            parent = Some(*hash);
        }
        while state.order.len() > DESCRIBED * self.blocks_max.max(1_024) {
            if let Some(oldest) = state.order.pop_front() {
                state.catalog.remove(&oldest);
            }
        }
    }

    /// Publishes what a step changed.
    pub(crate) fn publish(&self, changes: &[BlockChange], unix_s: f64) {
        if changes.is_empty() {
            return;
        }
        let mut state = self.lock();
        let payload: Arc<[u8]> = payload::batch(changes, &state.catalog, self.block_tokens, unix_s).into();
        let sent = (state.next, payload);
        state.next += 1;
        state.kept.push_back(sent.clone());
        while state.kept.len() > self.settings.kept_max {
            state.kept.pop_front();
        }
        if state.withheld > 0 {
            state.withheld -= 1;
            return;
        }
        state.subscribers.retain(|subscriber| {
            use tokio::sync::mpsc::error::TrySendError;
            !matches!(subscriber.try_send(sent.clone()), Err(TrySendError::Closed(_)))
        });
    }

    pub(crate) fn count(&self) -> u64 {
        self.lock().next
    }

    pub(crate) fn withhold(&self, messages: u32) {
        self.lock().withheld = messages;
    }

    pub(crate) fn forget(&self) {
        self.lock().kept.clear();
    }

    pub(crate) fn set_line(&self, line: Line) {
        self.line.send_replace(line);
    }

    fn subscribe(&self) -> tokio::sync::mpsc::Receiver<Sent> {
        let (sender, receiver) = tokio::sync::mpsc::channel(WAITING_MAX);
        self.lock().subscribers.push(sender);
        receiver
    }

    fn kept_from(&self, first: u64) -> Vec<Sent> {
        self.lock().kept.iter().filter(|(number, _)| *number >= first).cloned().collect()
    }

    /// Binds the sockets; they serve as long as the runtime lives. Says where stream and replays are.
    pub(crate) async fn start(self: &Arc<Self>) -> io::Result<(Option<SocketAddr>, Option<SocketAddr>)> {
        let stream = match self.settings.stream {
            Stream::Bind(address) => {
                let listener = TcpListener::bind(address).await?;
                let address = listener.local_addr()?;
                tokio::spawn(socket::stand(Arc::clone(self), listener, socket::Kind::Publisher));
                Some(address)
            }
            Stream::Connect(address) => {
                tokio::spawn(socket::call(Arc::clone(self), address));
                None
            }
        };
        let replay = match self.settings.replay {
            Some(address) => {
                let listener = TcpListener::bind(address).await?;
                let address = listener.local_addr()?;
                tokio::spawn(socket::stand(Arc::clone(self), listener, socket::Kind::Router));
                Some(address)
            }
            None => None,
        };
        Ok((stream, replay))
    }
}
