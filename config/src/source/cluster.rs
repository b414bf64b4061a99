//! What a cluster tells a gateway, and what the gateway tells back: plain values, whatever client reads the cluster.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crds::server::Credentials;
use policy::Diagnostic;
use tokio::sync::oneshot;

use crate::limits::WATCH_LASTS;
use crate::snapshot::{ResourceId, Snapshot};

/// Which API server, and what of it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A kubeconfig file; `None`: what `KUBECONFIG` names, else the pod's service account, else `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Where credentials that objects name may come from.
    pub credentials: Credentials,
    /// Namespaces that are watched; empty: all.
    pub namespaces: Vec<String>,
    /// This process among the others, unlike any of them.
    pub identity: String,
    /// Where the lease is; `None`: the namespace of the service account or of the kubeconfig's context.
    pub lease_namespace: Option<String>,
    /// How long one watch lasts, and so about how long a change may go unseen over a connection whose other side is gone.
    pub watch_lasts: Duration,
}

impl Settings {
    /// All namespaces of the cluster found in the usual places.
    #[must_use]
    pub fn new(identity: String) -> Self {
        Self {
            kubeconfig: None,
            credentials: Credentials::All,
            namespaces: Vec::new(),
            identity,
            lease_namespace: None,
            watch_lasts: WATCH_LASTS,
        }
    }
}

/// Whether a pod takes new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// It is ready, readiness gates included.
    Ready,
    /// It says that it is not.
    NotReady,
    /// It is being deleted: it ends its work and takes no more.
    Terminating,
}

/// One pod of a worker set, as an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEndpoint {
    /// The pod's name.
    pub name: String,
    /// Another pod of the same name and address has another.
    pub uid: String,
    /// Where it listens, on the worker set's port.
    pub ip: IpAddr,
    /// Whether it takes new work.
    pub state: PodState,
}

/// The pods of each worker set that selects any.
pub type Pods = BTreeMap<ResourceId, Vec<PodEndpoint>>;

/// Whether the API server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// It does.
    With,
    /// It does not; what was in force stays.
    Without {
        /// Since when.
        since: SystemTime,
        /// What was tried, and what came of it.
        why: String,
    },
}

/// What a cluster has to tell.
#[derive(Debug)]
pub enum ClusterNews {
    /// To be put in force.
    Snapshot(Box<Snapshot>),
    /// The pods behind selectors, all of them.
    Pods(Pods),
    /// A set that was refused as a whole; what was in force stays.
    Refused(Vec<Diagnostic>),
    /// The API server went away or came back.
    Contact(Contact),
    /// What the first snapshot waits for, and what to do about it; told before it, and when that changes.
    Waiting(Vec<String>),
    /// Something to know that changes nothing.
    Note(String),
}

/// How a gateway that ends takes its leave: it sends a sender, which is answered or dropped once others may write statuses.
pub type Leave = oneshot::Receiver<oneshot::Sender<()>>;

/// Endpoints of a worker set, or a provider as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that take requests.
    pub ready: u32,
    /// All of them.
    pub all: u32,
}

/// What the gateway tells back, for statuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// The generation of the snapshot in force.
    pub generation: u64,
    /// By worker set.
    pub worker_sets: BTreeMap<ResourceId, Counts>,
    /// By provider.
    pub providers: BTreeMap<ResourceId, Counts>,
}
