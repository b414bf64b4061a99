//! What is in force: one immutable value made from a whole set of documents, shared by every thread.
//!
//! A snapshot is complete and consistent: every reference in it is an index into one of its own
//! lists, every default is filled in, every bound has been checked. A request pins the snapshot it
//! began with. Lists are ordered by namespace, then name, whatever order the documents came in.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ahash::AHashMap;
use policy::{Backend, Code, Diagnostic, Program};

use crate::secret::Auth;

mod classifier;
mod provider;
mod tenant;

pub use classifier::{Classifier, ClassifierKind, ExampleTag, KeywordTag, OnError, Scope, WordBoundary};
pub use provider::{Authorities, BaseUrl, Provider, ProviderApi, ProviderTimeouts, ProviderTls, RateLimits, Tls};
pub use tenant::{Jwt, KeySource, Tenant, comparable_name};

/// A namespace and a name, which tell a resource from all others of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId {
    /// The namespace; `default` where a file names none.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Everything in force.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Rises by one with every snapshot a source hands out; 0 for one that came from no source.
    pub generation: u64,
    /// Pools, by namespace then name.
    pub pools: Vec<Pool>,
    /// Worker sets, by namespace then name; those in no pool too.
    pub worker_sets: Vec<WorkerSet>,
    /// Providers, by namespace then name; those in no pool too.
    pub providers: Vec<Provider>,
    /// Tenants, by namespace then name. With none, every caller is `anonymous`.
    pub tenants: Vec<Tenant>,
    /// Classifiers, by namespace then name.
    pub classifiers: Vec<Classifier>,
    /// What is in force and probably not meant.
    pub warnings: Vec<Diagnostic>,
    /// Keys with the index of their tenant in `tenants`, by the first eight bytes of their SHA-256.
    pub(crate) tenants_by_key: AHashMap<[u8; 8], Vec<([u8; 32], usize)>>,
    /// Indices in `tenants` of those that tokens of an issuer may name.
    pub(crate) tenants_by_issuer: AHashMap<String, Vec<usize>>,
    /// Index in `tenants` by a subject alternative name, as [`comparable_name`] has it.
    pub(crate) tenant_by_certificate: AHashMap<String, usize>,
    /// Indices in `pools`, ascending, by each name one of its destinations serves.
    pub(crate) pools_by_model: BTreeMap<String, Vec<usize>>,
}

/// One InferencePool: destinations and the program that chooses among them.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Namespace and name.
    pub id: ResourceId,
    /// Destinations in the order written, which is the overflow order; `policy::Target` indexes this list.
    pub destinations: Vec<Destination>,
    /// The compiled rules.
    pub program: Program,
    /// Which model name an answer shows.
    pub response_model: ResponseModel,
}

/// One destination of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Which resource it is.
    pub kind: DestinationKind,
    /// The resource's name, in the pool's namespace.
    pub name: String,
}

/// Which resource a destination is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DestinationKind {
    /// Index in the snapshot's `worker_sets`.
    WorkerSet(usize),
    /// Index in the snapshot's `providers`.
    Provider(usize),
}

impl DestinationKind {
    /// Whether data stays in the cluster.
    #[must_use]
    pub fn backend(self) -> Backend {
        match self {
            DestinationKind::WorkerSet(_) => Backend::Local,
            DestinationKind::Provider(_) => Backend::External,
        }
    }
}

/// Which model name an answer shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseModel {
    /// The name the client asked for.
    #[default]
    Requested,
    /// The name the server that answered gave.
    Actual,
}

/// A model as one destination serves it; `policy::Target` indexes the destination's list of these.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedModel {
    /// What clients may ask for: the name first, then its aliases.
    pub names: Vec<String>,
    /// What the server is sent.
    pub upstream_name: String,
    /// Longest prompt and answer together, in tokens, where it is written down.
    pub context_window: Option<u32>,
    /// Price, where it is written down.
    pub cost: Option<Cost>,
    /// Base model or adapter.
    pub kind: ModelKind,
}

/// Whether a served model is a base model or an adapter over one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// A whole model.
    Base,
    /// A LoRA adapter loaded over the worker set's base model.
    Adapter,
}

/// Price of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Price of a million prompt tokens.
    pub input_per_million: f64,
    /// Price of a million answer tokens.
    pub output_per_million: f64,
    /// ISO 4217 code, `USD`.
    pub currency: String,
}

/// One InferenceWorkerSet.
#[derive(Clone, Debug)]
pub struct WorkerSet {
    /// Namespace and name.
    pub id: ResourceId,
    /// The base model, then its adapters.
    pub models: Vec<ServedModel>,
    /// Endpoints written down; empty when they come from `selector`.
    pub endpoints: Vec<StaticEndpoint>,
    /// Labels of the pods that are its endpoints, sorted by key; empty when `endpoints` is written.
    pub selector: Vec<(String, String)>,
    /// Port of the pods behind `selector`.
    pub port: u16,
    /// Where and how often state is read.
    pub metrics: Metrics,
    /// The engines' own event streams, when configured.
    pub kv_events: Option<KvEvents>,
    /// Exact tokens, when configured.
    pub tokenizer: Option<Tokenizer>,
    /// Limits of each endpoint.
    pub limits: WorkerSetLimits,
    /// Credential the engines ask for.
    pub auth: Option<Auth>,
    /// What an endpoint costs while it works, where it is written down.
    pub gpu_cost: Option<GpuCost>,
}

/// What an endpoint costs while it works.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuCost {
    /// Price of one second of the endpoint, with all its GPUs.
    pub per_second: f64,
    /// ISO 4217 code, `USD`.
    pub currency: String,
}

/// An endpoint written in a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StaticEndpoint {
    /// IP address or DNS name, without brackets; names are resolved again and again.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for StaticEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Where and how often an engine's state is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// HTTP path of the Prometheus text.
    pub path: String,
    /// Time between two reads.
    pub interval: Duration,
}

/// An engine's KV-cache event stream (ZeroMQ PUB).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEvents {
    /// TCP port on every endpoint.
    pub port: u16,
    /// Topic to subscribe to, by prefix.
    pub topic: String,
    /// TCP port of replays on every endpoint.
    pub replay_port: Option<u16>,
    /// Engines behind each address, at ports one after the other.
    pub ranks: u32,
    /// Where engines connect, when they do.
    pub listen: Option<SocketAddr>,
}

/// Files that let prompts be cut into the engine's own tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tokenizer {
    /// `tokenizer.json`, or the folder it is in.
    pub file: PathBuf,
    /// A chat template, when it is not the tokenizer's own.
    pub chat_template_file: Option<PathBuf>,
}

/// Limits of a worker set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSetLimits {
    /// Requests this balancer (all cores) keeps in flight on one endpoint; `None` = no limit.
    pub in_flight_per_endpoint_max: Option<u32>,
}

/// Which pools a listener serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PoolScope {
    /// Every pool.
    #[default]
    All,
    /// These, by `name` or `namespace/name`.
    Named(Vec<String>),
}

impl PoolScope {
    /// Whether `pool` is among them.
    #[must_use]
    pub fn contains(&self, pool: &ResourceId) -> bool {
        match self {
            PoolScope::All => true,
            PoolScope::Named(names) => names.iter().any(|name| is_named(pool, name)),
        }
    }
}

/// Whether a listener means `pool` by a name.
fn is_named(pool: &ResourceId, by: &str) -> bool {
    match by.split_once('/') {
        Some((namespace, name)) => namespace == pool.namespace && name == pool.name,
        None => by == pool.name,
    }
}

impl Snapshot {
    /// Whether there is nothing to serve and nobody to serve it to.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
            && self.worker_sets.is_empty()
            && self.providers.is_empty()
            && self.tenants.is_empty()
            && self.classifiers.is_empty()
    }

    /// A warning for each name of a listener's `pools` that no pool has; `scope` is that of the listener of this index.
    #[must_use]
    pub fn unknown_pools(&self, listener: usize, scope: &PoolScope) -> Vec<Diagnostic> {
        let PoolScope::Named(names) = scope else { return Vec::new() };
        let is_there = |name: &str| self.pools.iter().any(|pool| is_named(&pool.id, name));
        let unknown = names.iter().enumerate().filter(|(_, name)| !is_there(name));
        unknown
            .map(|(i, name)| {
                let path = format!("listeners[{listener}].pools[{i}]");
                let message = format!("`{path}` names the InferencePool `{name}`, which does not exist");
                Diagnostic::new(Code::UnknownPool, message)
                    .at(path, None)
                    .suggest(crate::check::nearest(name, self.pools.iter().map(|pool| pool.id.name.as_str())))
            })
            .collect()
    }

    /// Fills the indexes from the lists. To be called once the lists are complete and sorted.
    #[must_use]
    pub fn indexed(mut self) -> Self {
        self.tenants_by_key.clear();
        self.tenants_by_issuer.clear();
        for (i, tenant) in self.tenants.iter().enumerate() {
            for key in &tenant.key_sha256 {
                self.tenants_by_key.entry(beginning(key)).or_default().push((*key, i));
            }
            if let Some(jwt) = &tenant.jwt {
                self.tenants_by_issuer.entry(jwt.issuer.clone()).or_default().push(i);
            }
        }
        let names =
            self.tenants.iter().enumerate().filter_map(|(i, t)| Some((t.client_certificate_san.as_deref()?, i)));
        self.tenant_by_certificate = names.map(|(name, i)| (comparable_name(name), i)).collect();
        let mut pools_by_model: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (i, pool) in self.pools.iter().enumerate() {
            for name in pool.names() {
                pools_by_model.entry(name.to_owned()).or_default().push(i);
            }
        }
        self.pools_by_model = pools_by_model;
        self
    }

    /// The tenant one of whose keys has this SHA-256, by its index. How long it takes tells nothing of how much of a hash is right.
    #[must_use]
    pub fn tenant_of_key(&self, sha256: &[u8; 32]) -> Option<usize> {
        let alike = self.tenants_by_key.get(&beginning(sha256))?;
        alike.iter().fold(None, |found, (key, tenant)| if same(key, sha256) { Some(*tenant) } else { found })
    }

    /// Tenants, by their indices, that a token of this issuer may name.
    #[must_use]
    pub fn tenants_of_issuer(&self, issuer: &str) -> &[usize] {
        self.tenants_by_issuer.get(issuer).map_or(&[], Vec::as_slice)
    }

    /// Whether any tenant is named by tokens.
    #[must_use]
    pub fn believes_tokens(&self) -> bool {
        !self.tenants_by_issuer.is_empty()
    }

    /// The tenant that a client certificate names by one of its subject alternative names, by its index; `name` as
    /// [`comparable_name`] has it.
    #[must_use]
    pub fn tenant_of_certificate(&self, name: &str) -> Option<usize> {
        self.tenant_by_certificate.get(name).copied()
    }

    /// The first pool in `scope`, by namespace then name, one of whose destinations serves `model`.
    #[must_use]
    pub fn pool_for(&self, model: &str, scope: &PoolScope) -> Option<(usize, &Pool)> {
        let pools = self.pools_by_model.get(model)?;
        pools.iter().find_map(|i| self.pools.get(*i).filter(|p| scope.contains(&p.id)).map(|p| (*i, p)))
    }

    /// Every name a client may ask for in `scope`, sorted.
    pub fn model_names<'a>(&'a self, scope: &'a PoolScope) -> impl Iterator<Item = &'a str> {
        self.pools_by_model.iter().filter_map(move |(name, pools)| {
            let served = pools.iter().filter_map(|i| self.pools.get(*i)).any(|p| scope.contains(&p.id));
            served.then_some(name.as_str())
        })
    }

    /// The models a destination serves.
    #[must_use]
    pub fn models(&self, destination: DestinationKind) -> &[ServedModel] {
        match destination {
            DestinationKind::WorkerSet(i) => self.worker_sets.get(i).map_or(&[], |w| &w.models),
            DestinationKind::Provider(i) => self.providers.get(i).map_or(&[], |p| &p.models),
        }
    }

    /// The model a target of `pool` means.
    #[must_use]
    pub fn model(&self, pool: &Pool, target: policy::Target) -> Option<&ServedModel> {
        let destination = pool.destinations.get(usize::from(target.destination))?;
        self.models(destination.kind).get(usize::from(target.model))
    }
}

fn beginning(sha256: &[u8; 32]) -> [u8; 8] {
    sha256.first_chunk().copied().unwrap_or_default()
}

/// Compares all bytes, whatever the first ones say.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |differing, (a, b)| std::hint::black_box(differing | (a ^ b))) == 0
}

impl Pool {
    /// Whether one of its destinations serves `name`.
    #[must_use]
    pub fn serves(&self, name: &str) -> bool {
        self.program.serves(name)
    }

    /// Every name its destinations serve, sorted.
    #[must_use]
    pub fn names(&self) -> BTreeSet<&str> {
        self.program.destinations().iter().flat_map(|d| d.models.iter().flatten()).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::SourceFile;
    use crate::secret::Lookup;

    fn snapshot() -> Snapshot {
        let mut text = String::new();
        for (namespace, name, model) in [("b", "one", "m"), ("a", "two", "m"), ("a", "three", "n")] {
            for (kind, spec) in [
                ("InferenceWorkerSet", format!("{{ model: {{ name: {model} }}, endpoints: [{{ address: h }}] }}")),
                ("InferencePool", format!("{{ destinations: [{{ kind: InferenceWorkerSet, name: {name} }}] }}")),
            ] {
                text.push_str(&format!(
                    "apiVersion: {}\nkind: {kind}\nmetadata: {{ name: {name}, namespace: {namespace} }}\nspec: {spec}\n---\n",
                    crds::API_VERSION
                ));
            }
        }
        crate::load(&[SourceFile::new("f.yaml", &text)], &Lookup::Skip).expect("loads").snapshot
    }

    #[test]
    fn a_model_belongs_to_the_first_pool_by_namespace_then_name() {
        let snapshot = snapshot();
        let found = |scope: &PoolScope| snapshot.pool_for("m", scope).map(|(_, pool)| pool.id.to_string());
        assert_eq!(found(&PoolScope::All).as_deref(), Some("a/two"));
        assert_eq!(found(&PoolScope::Named(vec!["one".into()])).as_deref(), Some("b/one"));
        assert_eq!(found(&PoolScope::Named(vec!["b/two".into()])), None);
    }

    #[test]
    fn a_certificate_names_the_tenant_with_its_name_in_any_case_for_hosts_and_exactly_for_uris() {
        let tenant = |name: &str, san: &str| {
            format!(
                "apiVersion: {}\nkind: InferenceTenant\nmetadata: {{ name: {name} }}\nspec: {{ clientCertificate: {{ san: \"{san}\" }} }}\n---\n",
                crds::API_VERSION
            )
        };
        let text = tenant("app", "spiffe://cluster/ns/A/sa/app") + &tenant("host", "Client.Example.com");
        let snapshot = crate::load(&[SourceFile::new("f.yaml", &text)], &Lookup::Skip).expect("loads").snapshot;
        let found = |name: &str| {
            snapshot.tenant_of_certificate(&comparable_name(name)).map(|t| snapshot.tenants[t].id.name.as_str())
        };
        assert_eq!(found("spiffe://cluster/ns/A/sa/app"), Some("app"));
        assert_eq!(found("spiffe://cluster/ns/a/sa/app"), None);
        assert_eq!(found("CLIENT.example.com"), Some("host"));
        assert_eq!(found("other.example.com"), None);
    }

    #[test]
    fn model_names_are_sorted_each_once_and_those_of_the_scope() {
        let snapshot = snapshot();
        assert_eq!(snapshot.model_names(&PoolScope::All).collect::<Vec<_>>(), ["m", "n"]);
        let one = PoolScope::Named(vec!["b/one".into()]);
        assert_eq!(snapshot.model_names(&one).collect::<Vec<_>>(), ["m"]);
    }
}
