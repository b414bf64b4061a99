//! What the control thread hands to the data threads: a snapshot with its endpoints found, as one immutable value.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use admission::Account;
use bedrock::sigv4::Signer;
use config::snapshot::ResourceId;
use config::{Secret, Snapshot};

use crate::exact::Exact;
use crate::provider::Dialect;
use crate::queue::WaitingCounts;
use crate::quota::Metered;
use crate::tags::Tagger;
use crate::tls::Connector;

/// The dense number of an endpoint. Reused after an endpoint is gone, hence the [`EndpointSpec::incarnation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct EndpointId(pub u32);

impl EndpointId {
    /// As an index.
    #[must_use]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One server that answers requests. Everything here is fixed for its life; what changes is told by messages.
#[derive(Debug, Clone)]
pub(crate) struct EndpointSpec {
    /// Its place in [`Plan::endpoints`].
    pub(crate) id: EndpointId,
    /// Unique over the life of the process: a replaced server at the same address has another.
    pub(crate) incarnation: u64,
    /// `host:port` as configured, or the provider's name: for people, logs and metrics.
    pub(crate) name: String,
    /// Local or External.
    pub(crate) backend: policy::Backend,
    /// What it speaks.
    pub(crate) dialect: Dialect,
    /// Where to connect.
    pub(crate) address: SocketAddr,
    /// Where to connect when that fails: a provider's name stands for many.
    pub(crate) other_addresses: Vec<SocketAddr>,
    /// What TLS connections are made with; `None` for plain ones.
    pub(crate) tls: Option<Connector>,
    /// Value of the `Host` header.
    pub(crate) host_header: String,
    /// Goes before the path, in place of a leading `/v1` (providers); empty for a worker.
    pub(crate) path_prefix: String,
    /// The destination's own credential, ready to be sent.
    pub(crate) credential: Option<CredentialHeader>,
    /// Signs requests, where the destination wants that in place of a credential.
    pub(crate) signer: Option<Signer>,
    /// The (base) model it serves, as the server is sent it. Endpoints of one model share the length of a token.
    pub(crate) model: String,
    /// Endpoints of one kind share what is learned about their speed: the model and settings they run.
    pub(crate) kind: String,
    /// Most requests in flight here; `None` is no limit.
    pub(crate) in_flight_max: Option<u32>,
    /// A provider's limits, counted over all threads; `None` where there are none.
    pub(crate) metered: Option<Metered>,
    /// Time-outs that replace those of the server's file.
    pub(crate) timeouts: EndpointTimeouts,
    /// Why it can never be ready as configured (a missing credential, a protocol not supported); `None` when it can.
    pub(crate) unusable: Option<String>,
    /// Why its pod takes no new work now; `None` when it does, and for all that is no pod.
    pub(crate) withheld: Option<Withheld>,
}

/// Why a pod takes no new work, by what the cluster says. What runs there goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Withheld {
    /// It is not ready.
    NotReady,
    /// It is being deleted.
    Terminating,
}

impl Withheld {
    /// For people.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::NotReady => "the pod is not ready",
            Self::Terminating => "the pod is being deleted",
        }
    }
}

/// The header that tells a destination who is calling.
#[derive(Debug, Clone)]
pub(crate) struct CredentialHeader {
    /// `authorization`, `api-key`, ...
    pub(crate) name: String,
    /// Its whole value (`Bearer ...`).
    pub(crate) value: Secret,
}

/// Time-outs of one destination; `None` takes the server's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EndpointTimeouts {
    /// Until the connection is up.
    pub(crate) connect: Option<Duration>,
    /// Until the first byte of the answer.
    pub(crate) first_byte: Option<Duration>,
    /// Between two bytes of the answer.
    pub(crate) idle: Option<Duration>,
    /// From the connection to the last byte of the answer; `None`: no limit.
    pub(crate) total: Option<Duration>,
}

/// A snapshot in force.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The rules and names.
    pub(crate) snapshot: Arc<Snapshot>,
    /// By [`EndpointId`]; `None` is a free number.
    pub(crate) endpoints: Vec<Option<Arc<EndpointSpec>>>,
    /// The endpoints of each worker set of the snapshot, in its order.
    pub(crate) worker_sets: Vec<Vec<EndpointId>>,
    /// The classifiers of each pool of the snapshot, in its order.
    pub(crate) taggers: Vec<Tagger>,
    /// The tokenizer of each worker set of the snapshot, in its order, where one is in force.
    pub(crate) exact: Vec<Option<Arc<Exact>>>,
    /// What each tenant of the snapshot has used, in its order; the same over changes of the snapshot.
    pub(crate) accounts: Vec<Arc<Account>>,
    /// How many requests wait under each rule.
    pub(crate) waiting: WaitingCounts,
    /// The endpoint of each provider of the snapshot, in its order; `None` while its name cannot be resolved.
    pub(crate) providers: Vec<Option<EndpointId>>,
}

/// A plan as one data thread holds it. Requests count references to this, which only their thread does: the count of the
/// plan itself would be a line of memory that all threads write.
#[derive(Debug)]
pub(crate) struct LocalPlan(Arc<Plan>);

impl LocalPlan {
    pub(crate) fn new(plan: Arc<Plan>) -> Rc<Self> {
        Rc::new(Self(plan))
    }
}

impl Deref for LocalPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.0
    }
}

impl Plan {
    /// Joins a snapshot and its endpoints, and compiles its classifiers; no tokenizer is in force yet. The texts say which do not compile.
    #[must_use]
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        endpoints: Vec<Option<Arc<EndpointSpec>>>,
        worker_sets: Vec<Vec<EndpointId>>,
        providers: Vec<Option<EndpointId>>,
    ) -> (Self, Vec<String>) {
        let (taggers, faults): (Vec<_>, Vec<_>) =
            snapshot.pools.iter().map(|pool| Tagger::for_pool(&snapshot, pool)).unzip();
        let accounts = Accounts::default().of(&snapshot);
        let waiting = WaitingCounts::of(&snapshot.pools);
        (
            Self { snapshot, endpoints, worker_sets, taggers, exact: Vec::new(), accounts, waiting, providers },
            faults.into_iter().flatten().collect(),
        )
    }
}

/// What tenants have used, over all changes of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    by_tenant: BTreeMap<ResourceId, Arc<Account>>,
}

impl Accounts {
    /// Those of the tenants of `snapshot`, in its order. Of tenants that are gone nothing is kept.
    pub(crate) fn of(&mut self, snapshot: &Snapshot) -> Vec<Arc<Account>> {
        let mut before = std::mem::take(&mut self.by_tenant);
        for tenant in &snapshot.tenants {
            let account = before.remove(&tenant.id).unwrap_or_default();
            self.by_tenant.insert(tenant.id.clone(), account);
        }
        snapshot.tenants.iter().filter_map(|tenant| self.by_tenant.get(&tenant.id).cloned()).collect()
    }
}
