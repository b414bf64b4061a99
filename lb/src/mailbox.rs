//! Messages between the control thread and the data threads. Every box is bounded.

use std::sync::Arc;
use std::sync::mpsc as std_mpsc;

use config::snapshot::KeySource;
use crossbeam_channel::{Receiver, Sender, TrySendError};
use predictor::fleet::{Evidence, PeerSums};

use crate::decisions::{DecisionReport, Wanted};
use crate::exact;
use crate::handover::{Arrival, SharedLoad};
use crate::keyring::Keyring;
use crate::metrics::ShardReport;
use crate::peer::PeerBatch;
use crate::plan::{EndpointId, Plan};
use crate::sys::Waker;
use crate::tags::remote::Question;
use crate::tls::{Acceptor, TlsFault};

/// Messages a data thread's box holds. Peers send at most one batch every 2 ms each, so this is seconds of a stall.
pub(crate) const MAILBOX_MESSAGES_MAX: usize = 16_384;

/// Messages from data threads that the control thread's box holds.
pub(crate) const CONTROL_MESSAGES_MAX: usize = 16_384;

/// To a data thread.
#[derive(Debug)]
pub(crate) enum ToShard {
    /// This is in force from the next request on.
    Plan(Arc<Plan>),
    /// Whether requests may go to an endpoint.
    Readiness {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Ignored when the number has been given to another since.
        incarnation: u64,
        /// What holds from now on.
        readiness: Readiness,
    },
    /// Fresh numbers from an endpoint's own metrics.
    Scraped {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Ignored when the number has been given to another since.
        incarnation: u64,
        /// The numbers.
        scrape: Scrape,
    },
    /// An endpoint's metrics could not be read.
    ScrapeFailed {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Ignored when the number has been given to another since.
        incarnation: u64,
    },
    /// What engines tell of their caches, in order; a bounded number of blocks.
    Cache(Arc<Vec<CacheNews>>),
    /// What another data thread decided and saw.
    Peer(Arc<PeerBatch>),
    /// A connection that another data thread accepted.
    Connection(Arrival),
    /// Connections are accepted with this from now on; those that are open go on as they began.
    Certificate {
        /// Which listener, by its place in the options.
        listener: usize,
        /// What to accept with.
        acceptor: Acceptor,
    },
    /// What another balancer has sent to endpoints.
    Told(Arc<[ToldSums]>),
    /// Send what this process has sent to endpoints and has not got back.
    Sums(std_mpsc::SyncSender<Vec<OwnSums>>),
    /// What a helper thread made of the body of a request that waits under this ticket.
    Tokenized {
        /// Which request.
        ticket: u64,
        /// Its tokens, or why there are none.
        answer: exact::Answer,
    },
    /// The public keys that tokens are checked with from now on.
    Keys(Arc<Keyring>),
    /// A classifying service has answered, with the places of its tags, or not.
    Classified {
        /// What was asked.
        ticket: u64,
        /// None when there is no answer.
        tags: Option<Box<[u16]>>,
    },
    /// Send a copy of all counts and beliefs.
    Report(std_mpsc::SyncSender<ShardReport>),
    /// Send what is kept of the last decisions.
    Decisions(Wanted, std_mpsc::SyncSender<Vec<DecisionReport>>),
    /// Stop accepting, end kept-alive connections, say [`FromShard::Drained`] when the last exchange has ended.
    Drain,
    /// The time to drain is over: who has no answer yet gets a refusal.
    GiveUp,
}

/// What another balancer has sent to an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToldSums {
    /// Who.
    pub(crate) balancer: u64,
    /// Which endpoint.
    pub(crate) endpoint: EndpointId,
    /// Ignored when the number has been given to another since.
    pub(crate) incarnation: u64,
    /// What.
    pub(crate) sums: PeerSums,
}

/// What this process has sent to an endpoint, as a data thread counts it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnSums {
    /// Which endpoint.
    pub(crate) endpoint: EndpointId,
    /// Which one at that number.
    pub(crate) incarnation: u64,
    /// What.
    pub(crate) sums: PeerSums,
}

/// Whether an endpoint takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Readiness {
    /// Not asked yet.
    #[default]
    Unknown,
    /// It answers and lists its model.
    Ready,
    /// It answers, but requests failed there: it is left alone for a while, and used only when there is nobody else.
    Ejected,
    /// It does not answer, or not with its model.
    NotReady,
}

/// What one read of an engine's `/metrics` says.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Scrape {
    /// When the read began, in microseconds of the process clock ([`crate::clock_us`]).
    pub(crate) began_us: u64,
    /// `vllm:num_requests_waiting`
    pub(crate) waiting: f64,
    /// `vllm:num_requests_running`
    pub(crate) running: f64,
    /// `vllm:kv_cache_usage_perc`, 0 to 1.
    pub(crate) kv_usage_ratio: Option<f64>,
    /// `num_gpu_blocks` of `vllm:cache_config_info`.
    pub(crate) num_gpu_blocks: Option<u64>,
    /// `block_size` of `vllm:cache_config_info`, in tokens.
    pub(crate) block_size_tokens: Option<u32>,
}

/// What an engine tells of its cache.
#[derive(Debug)]
pub(crate) struct CacheNews {
    /// Which endpoint.
    pub(crate) endpoint: EndpointId,
    /// Ignored when the number has been given to another since.
    pub(crate) incarnation: u64,
    /// What is new.
    pub(crate) what: CacheWhat,
}

/// See the methods of [`predictor::fleet::Fleet`] of these names.
#[derive(Debug)]
pub(crate) enum CacheWhat {
    /// What the overlap rests on from now on, and the tokens in a block of the engine.
    Evidence { evidence: Evidence, block_tokens: u32 },
    /// Blocks stored, those of one prompt in order.
    Stored(Vec<u64>),
    /// Blocks dropped.
    Removed(Vec<u64>),
    /// All of them.
    Cleared,
    /// When a block was stored that was evicted since, in microseconds of the process clock.
    Evicted { stored_at_us: u64 },
}

/// From a data thread.
#[derive(Debug)]
pub(crate) enum FromShard {
    /// An endpoint failed a request in a way that says something about the endpoint.
    Failed {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Which one at that number.
        incarnation: u64,
        /// How.
        failure: Failure,
    },
    /// A token names a key that is not known: the keys of its issuer are to be read again.
    KeysWanted(KeySource),
    /// What an endpoint says to the operator about a credential, a model's name or a limit; nothing of a request.
    Told {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Which one at that number.
        incarnation: u64,
        /// Its words, shortened.
        text: String,
    },
    /// A prompt is to be classified by a service.
    Classify(Question),
    /// Whole lines of the access log.
    Log(Vec<u8>),
    /// A draining thread has no exchange left.
    Drained,
}

/// How an endpoint failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// No connection.
    Connect,
    /// The connection ended before or within the answer.
    Reset,
    /// No first byte in time.
    FirstByteTimeout,
    /// Silence within the answer.
    IdleTimeout,
    /// An answer that is not HTTP.
    BadAnswer,
    /// A 5xx status (other than 503).
    ServerError,
    /// 429 or 503: busy, not broken.
    Busy,
    /// No TLS connection.
    Tls(TlsFault),
    /// A provider sends its callers elsewhere.
    Redirect,
    /// A provider does not know this gateway's credential.
    Unauthorized,
    /// A provider refuses a request, or this gateway's credential; which of the two cannot be told.
    Forbidden,
}

impl Failure {
    /// The label in metrics and logs.
    #[must_use]
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::BadAnswer => "bad_answer",
            Self::ServerError => "server_error",
            Self::Busy => "busy",
            Self::Tls(fault) => fault.label(),
            Self::Redirect => "redirect",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
        }
    }
}

/// The sending side of a data thread's box.
#[derive(Debug, Clone)]
pub(crate) struct ShardHandle {
    sender: Sender<ToShard>,
    waker: Waker,
    /// What the thread has to do.
    pub(crate) load: Arc<SharedLoad>,
}

impl ShardHandle {
    /// A box and its sending side.
    #[must_use]
    pub(crate) fn new(waker: Waker) -> (Self, Receiver<ToShard>) {
        let (sender, receiver) = crossbeam_channel::bounded(MAILBOX_MESSAGES_MAX);
        (Self { sender, waker, load: Arc::default() }, receiver)
    }

    /// Puts a message in the box and wakes its thread.
    ///
    /// # Errors
    /// Gives the message back when the box is full: the thread has been stuck for seconds.
    pub(crate) fn send(&self, message: ToShard) -> Result<(), ToShard> {
        let sent = self.sender.try_send(message).map_err(|error| match error {
            TrySendError::Full(message) | TrySendError::Disconnected(message) => message,
        });
        self.waker.wake();
        sent
    }

    /// Passes a connection to the thread.
    ///
    /// # Errors
    /// Gives it back when the thread drains, or when its box is full.
    pub(crate) fn pass(&self, arrival: Arrival) -> Result<(), ToShard> {
        let message = ToShard::Connection(arrival);
        if !self.load.announce() {
            return Err(message);
        }
        self.send(message).inspect_err(|_| self.load.arrived())
    }
}
