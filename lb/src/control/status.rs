//! What the control thread knows, as handed to the admin server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use config::source::cluster::Contact;
use policy::Diagnostic;
use tokio::sync::oneshot;

use super::balancers::BalancersStatus;
use super::keys::KeysStatus;
use super::kv::KvStatus;
use super::tokenizers;
use super::watch::Verdict;
use crate::io::DriverInUse;
use crate::plan::{EndpointSpec, Plan};

/// Where to send the state of things.
pub(crate) type Question = oneshot::Sender<Status>;

/// What is fixed for the life of the process.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// What the data threads run on.
    pub driver: DriverInUse,
    /// How many there are.
    pub data_threads: usize,
    /// Descriptors this process may have open.
    pub open_files_max: u64,
    /// When it started.
    pub started: SystemTime,
    /// Where the configuration comes from, for people.
    pub sources: Vec<String>,
    /// The server's own file, when there is one.
    pub server_file: Option<PathBuf>,
}

/// Where the process is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is in force yet.
    Starting,
    /// Requests are answered.
    Serving,
    /// No new requests are taken.
    Draining,
}

/// The state of things.
#[derive(Debug)]
pub(crate) struct Status {
    pub phase: Phase,
    pub plan: Option<Arc<Plan>>,
    pub endpoints: Vec<EndpointStatus>,
    /// Host names that cannot be resolved, and why.
    pub unresolved: Vec<(String, String)>,
    pub config: ConfigStatus,
    /// Whether the cluster that resources come from answers; `None` when they come from elsewhere.
    pub contact: Option<Contact>,
    /// What the first configuration waits for, and what to do about it.
    pub waiting: Vec<String>,
    /// What is heard of other balancers; `None` when there are none.
    pub balancers: Option<BalancersStatus>,
    pub certificates: CertificatesStatus,
    /// Worker sets that name a tokenizer, and what became of it.
    pub tokenizers: Vec<(String, tokenizers::State)>,
    /// The keys of token issuers, and readings of them that failed since the start.
    pub keys: (Vec<KeysStatus>, u64),
    /// What data threads are yet to be told of caches, and sweeps of it that they missed.
    pub cache_news: CacheNewsStatus,
    /// Lines of the access log that the writer lost.
    pub log_lines_dropped: u64,
    pub facts: Arc<Facts>,
}

/// News of caches on their way to the data threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheNewsStatus {
    /// Blocks that wait; news without blocks count as a few.
    pub keys_waiting: usize,
    /// Sweeps that found no room at a data thread.
    pub sweeps_lost: u64,
}

/// The certificates of TLS listeners.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CertificatesStatus {
    /// Of each TLS listener: where it is, and when what it shows expires, in seconds since 1970.
    pub in_use: Vec<(SocketAddr, Option<i64>)>,
    /// Changes of files that were refused.
    pub refusals: u64,
}

/// What is in force and what is not.
#[derive(Debug, Clone)]
pub(crate) struct ConfigStatus {
    pub in_force_since: Option<SystemTime>,
    /// Sets that were refused since the start.
    pub refusals: u64,
    pub last_refusal: Option<Refusal>,
}

/// A set that was refused.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub at: SystemTime,
    pub diagnostics: Vec<Diagnostic>,
}

/// One endpoint as the control thread sees it.
#[derive(Debug, Clone)]
pub(crate) struct EndpointStatus {
    pub spec: Arc<EndpointSpec>,
    /// Name of its worker set or provider.
    pub destination: String,
    pub verdict: Verdict,
    /// Age of the last good read of its metrics, in microseconds.
    pub scrape_age_us: Option<u64>,
    /// Why the last read failed, if it did.
    pub scrape_error: Option<String>,
    /// Reads that failed since it is known.
    pub scrapes_failed: u64,
    /// Its event stream, when it is listened to.
    pub kv_events: Option<KvStatus>,
}
