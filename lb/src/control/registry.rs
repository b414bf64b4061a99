//! Numbers for endpoints: from a snapshot and resolved names to a [`Plan`].
//!
//! Pure. The same server keeps its number and incarnation from plan to plan, so its beliefs, connections and counts go
//! on; a number that has become free rests before it is given away, so that late messages find nobody rather than a
//! stranger (the incarnation would stop them anyway).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bedrock::sigv4::{Credentials, Signer};
use config::snapshot::{Provider, ProviderApi, ResourceId, Tls, WorkerSet};
use config::source::cluster::{PodEndpoint, PodState, Pods};
use config::{Auth, Credential, Secret, Snapshot};

use crate::plan::{CredentialHeader, EndpointId, EndpointSpec, EndpointTimeouts, Plan, Withheld};
use crate::provider::Dialect;
use crate::quota::Metered;
use crate::tls::Connector;

/// Most endpoints of a plan: what the prefix index can tell apart.
pub(crate) const ENDPOINTS_MAX: usize = config::limits::ENDPOINTS_MAX as usize;

/// A number rests this long after its endpoint is gone, unless no other is left.
const REST: Duration = Duration::from_secs(60);

/// Addresses of the host names in use. IP addresses need no entry.
pub(crate) type Addresses = HashMap<String, Vec<IpAddr>>;

/// What makes two endpoints the same. Another model at the same address is another endpoint: what was learned
/// about its speed and its cache is void.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Identity {
    destination: ResourceId,
    backend: policy::Backend,
    /// The host as configured; of a pod its uid, as another pod may have its address.
    host: String,
    /// `None` for a provider: it is one server however many addresses its name stands for from time to time.
    address: Option<SocketAddr>,
    port: u16,
    kind: String,
}

#[derive(Debug)]
enum Slot {
    Used { identity: Identity, spec: Arc<EndpointSpec> },
    Resting { until_us: u64 },
}

/// Which endpoint has which number.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    slots: Vec<Slot>,
    incarnations: u64,
    pods: Pods,
}

/// A plan, and how many endpoints found no number.
#[derive(Debug)]
pub(crate) struct Planned {
    pub plan: Plan,
    pub left_out: usize,
}

/// An endpoint that is wanted: its spec but for number and incarnation.
struct Wanted {
    identity: Identity,
    spec: EndpointSpec,
}

impl Registry {
    /// The plan of a snapshot with its names resolved as in `addresses`; but for the classifiers, which are not its business.
    pub(crate) fn plan(&mut self, now_us: u64, snapshot: Arc<Snapshot>, addresses: &Addresses) -> Planned {
        let pods = |set: &WorkerSet| self.pods.get(&set.id).map_or(&[][..], Vec::as_slice);
        let sets: Vec<Vec<Wanted>> =
            snapshot.worker_sets.iter().map(|set| of_worker_set(set, addresses, pods(set))).collect();
        let providers: Vec<Option<Wanted>> = snapshot
            .providers
            .iter()
            .map(|provider| of_provider(provider, self.address_in_use(provider), addresses))
            .collect();

        let wanted: HashSet<&Identity> =
            sets.iter().flatten().chain(providers.iter().flatten()).map(|w| &w.identity).collect();
        for slot in &mut self.slots {
            if let Slot::Used { identity, .. } = slot
                && !wanted.contains(identity)
            {
                *slot = Slot::Resting { until_us: now_us.saturating_add(REST.as_micros() as u64) };
            }
        }
        drop(wanted);

        let mut left_out = 0;
        let mut place = |wanted: Wanted| {
            let id = self.place(now_us, wanted);
            left_out += usize::from(id.is_none());
            id
        };
        let worker_sets = sets.into_iter().map(|set| set.into_iter().filter_map(&mut place).collect()).collect();
        let providers = providers.into_iter().map(|provider| provider.and_then(&mut place)).collect();
        let endpoints = self.slots.iter().map(|slot| slot.spec().cloned()).collect();
        let plan = Plan::new(snapshot, endpoints, worker_sets, providers);
        Planned { plan, left_out }
    }

    /// The pods of the next plan.
    pub(crate) fn take_pods(&mut self, pods: Pods) {
        self.pods = pods;
    }

    /// The server at this number was restarted: from the next plan on it is another one.
    pub(crate) fn restarted(&mut self, now_us: u64, id: EndpointId, incarnation: u64) {
        if let Some(slot) = self.slots.get_mut(id.index())
            && slot.spec().is_some_and(|spec| spec.incarnation == incarnation)
        {
            *slot = Slot::Resting { until_us: now_us.saturating_add(REST.as_micros() as u64) };
        }
    }

    fn place(&mut self, now_us: u64, wanted: Wanted) -> Option<EndpointId> {
        let have = self.slots.iter_mut().find_map(|slot| match slot {
            Slot::Used { identity, spec } if *identity == wanted.identity => Some(spec),
            Slot::Used { .. } | Slot::Resting { .. } => None,
        });
        if let Some(have) = have {
            let mut spec = EndpointSpec { id: have.id, incarnation: have.incarnation, ..wanted.spec };
            if let (Some(new), Some(old)) = (&mut spec.metered, &have.metered) {
                // What is used of a limit outlives the limit.
                new.quota = old.quota.clone();
            }
            if !same_terms(have, &spec) {
                *have = Arc::new(spec);
            }
            return Some(have.id);
        }
        let index = self.free(now_us)?;
        self.incarnations += 1;
        let id = EndpointId(u32::try_from(index).ok()?);
        let spec = Arc::new(EndpointSpec { id, incarnation: self.incarnations, ..wanted.spec });
        self.slots[index] = Slot::Used { identity: wanted.identity, spec };
        Some(id)
    }

    /// A number to give away: one that has rested, else a new one, else the one that has rested longest.
    fn free(&mut self, now_us: u64) -> Option<usize> {
        let resting = |slot: &Slot| match slot {
            Slot::Resting { until_us } => Some(*until_us),
            Slot::Used { .. } => None,
        };
        let rested = self.slots.iter().position(|slot| resting(slot).is_some_and(|until| until <= now_us));
        if rested.is_some() {
            return rested;
        }
        if self.slots.len() < ENDPOINTS_MAX {
            self.slots.push(Slot::Resting { until_us: now_us });
            return Some(self.slots.len() - 1);
        }
        let longest =
            self.slots.iter().enumerate().filter_map(|(index, slot)| resting(slot).map(|until| (until, index))).min();
        longest.map(|(_, index)| index)
    }

    /// The address at which a provider is in use now.
    fn address_in_use(&self, provider: &Provider) -> Option<IpAddr> {
        self.slots.iter().find_map(|slot| match slot {
            Slot::Used { identity, spec }
                if identity.destination == provider.id && identity.backend == policy::Backend::External =>
            {
                Some(spec.address.ip())
            }
            Slot::Used { .. } | Slot::Resting { .. } => None,
        })
    }
}

impl Slot {
    fn spec(&self) -> Option<&Arc<EndpointSpec>> {
        match self {
            Self::Used { spec, .. } => Some(spec),
            Self::Resting { .. } => None,
        }
    }
}

/// Whether nothing has changed that a request would notice.
fn same_terms(a: &EndpointSpec, b: &EndpointSpec) -> bool {
    a.name == b.name
        && a.host_header == b.host_header
        && a.path_prefix == b.path_prefix
        && same_credential(a.credential.as_ref(), b.credential.as_ref())
        && a.model == b.model
        && (a.address, &a.other_addresses) == (b.address, &b.other_addresses)
        && a.tls == b.tls
        && (a.dialect, &a.signer) == (b.dialect, &b.signer)
        && a.in_flight_max == b.in_flight_max
        && a.metered.as_ref().map(|metered| metered.limits) == b.metered.as_ref().map(|metered| metered.limits)
        && a.timeouts == b.timeouts
        && a.unusable == b.unusable
        && a.withheld == b.withheld
}

/// Every host name of a snapshot that has to be resolved.
pub(crate) fn host_names(snapshot: &Snapshot) -> HashSet<String> {
    let workers = snapshot.worker_sets.iter().flat_map(|set| set.endpoints.iter().map(|endpoint| &endpoint.host));
    let providers = snapshot.providers.iter().map(|provider| &provider.base_url.host);
    workers.chain(providers).filter(|host| host.parse::<IpAddr>().is_err()).cloned().collect()
}

/// Addresses of a host: itself, or what its name stands for. With both families only IPv4 counts, as `localhost` would
/// otherwise be two servers.
fn addresses_of(host: &str, addresses: &Addresses) -> Vec<IpAddr> {
    if let Ok(address) = host.parse() {
        return vec![address];
    }
    let mut all = addresses.get(host).cloned().unwrap_or_default();
    if all.iter().any(IpAddr::is_ipv4) {
        all.retain(IpAddr::is_ipv4);
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// One place where a worker set's model is served.
struct Place {
    name: String,
    host: String,
    host_header: String,
    address: SocketAddr,
    withheld: Option<Withheld>,
}

fn of_pod(set: &WorkerSet, pod: &PodEndpoint) -> Place {
    let address = SocketAddr::new(pod.ip, set.port);
    Place {
        name: format!("{}:{}", pod.name, set.port),
        host: pod.uid.clone(),
        host_header: address.to_string(),
        address,
        withheld: match pod.state {
            PodState::Ready => None,
            PodState::NotReady => Some(Withheld::NotReady),
            PodState::Terminating => Some(Withheld::Terminating),
        },
    }
}

fn of_worker_set(set: &WorkerSet, addresses: &Addresses, pods: &[PodEndpoint]) -> Vec<Wanted> {
    let (credential, unusable) = credential_header(set.auth.as_ref());
    let model = set.models.first().map_or("", |model| model.upstream_name.as_str());
    let mut places: Vec<Place> = pods.iter().map(|pod| of_pod(set, pod)).collect();
    for endpoint in &set.endpoints {
        let found = addresses_of(&endpoint.host, addresses);
        for ip in &found {
            // A name that stands for several servers (a headless service) gives each a name of its own.
            let name = if found.len() == 1 { endpoint.to_string() } else { format!("{endpoint} ({ip})") };
            places.push(Place {
                name,
                host: endpoint.host.clone(),
                host_header: endpoint.to_string(),
                address: SocketAddr::new(*ip, endpoint.port),
                withheld: None,
            });
        }
    }
    let mut wanted: Vec<Wanted> = Vec::with_capacity(places.len());
    for place in places {
        let identity = Identity {
            destination: set.id.clone(),
            backend: policy::Backend::Local,
            host: place.host,
            address: Some(place.address),
            port: place.address.port(),
            kind: format!("{model} @ {}", set.id),
        };
        // Of two pods at one address, as while one takes the place of the other, both are there.
        let same = |other: &Wanted| {
            other.identity.address == identity.address && (pods.is_empty() || other.identity.host == identity.host)
        };
        if wanted.iter().any(same) {
            continue;
        }
        let spec = EndpointSpec {
            id: EndpointId(0),
            incarnation: 0,
            name: place.name,
            backend: policy::Backend::Local,
            dialect: Dialect::OpenAi,
            address: place.address,
            other_addresses: Vec::new(),
            tls: None,
            host_header: place.host_header,
            path_prefix: String::new(),
            credential: credential.clone(),
            signer: None,
            model: model.to_owned(),
            kind: identity.kind.clone(),
            in_flight_max: set.limits.in_flight_per_endpoint_max,
            metered: None,
            timeouts: EndpointTimeouts::default(),
            unusable: unusable.clone(),
            withheld: place.withheld,
        };
        wanted.push(Wanted { identity, spec });
    }
    wanted
}

/// Providers answer from many addresses that change with every look-up; the one in use stays as long as it is named, and the
/// others are tried when it fails.
fn of_provider(provider: &Provider, in_use: Option<IpAddr>, addresses: &Addresses) -> Option<Wanted> {
    let url = &provider.base_url;
    let found = addresses_of(&url.host, addresses);
    let ip = in_use.filter(|ip| found.contains(ip)).or_else(|| found.first().copied())?;
    let others = found.iter().filter(|other| **other != ip).map(|other| SocketAddr::new(*other, url.port));
    let (tls, untrusting) = match url.tls {
        Tls::No => (None, None),
        Tls::Yes => match Connector::new(&provider.tls) {
            Ok(connector) => (Some(connector), None),
            Err(why) => (None, Some(why)),
        },
    };
    let (credential, missing) = credential_header(provider.auth.as_ref());
    let (signer, unsigned) = match signer(provider.auth.as_ref()).transpose() {
        Ok(signer) => (signer, None),
        Err(why) => (None, Some(why)),
    };
    let authority = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
    let port_default = match url.tls {
        Tls::Yes => 443,
        Tls::No => 80,
    };
    let identity = Identity {
        destination: provider.id.clone(),
        backend: policy::Backend::External,
        host: url.host.clone(),
        address: None,
        port: url.port,
        kind: format!("provider {}", provider.id),
    };
    let spec = EndpointSpec {
        id: EndpointId(0),
        incarnation: 0,
        name: provider.id.name.clone(),
        backend: policy::Backend::External,
        dialect: match provider.api {
            ProviderApi::OpenAi => Dialect::OpenAi,
            ProviderApi::Bedrock => Dialect::Bedrock,
        },
        address: SocketAddr::new(ip, url.port),
        other_addresses: others.collect(),
        tls,
        host_header: if url.port == port_default { authority } else { format!("{authority}:{}", url.port) },
        path_prefix: url.path_prefix.clone(),
        credential,
        signer,
        model: provider.id.to_string(),
        kind: identity.kind.clone(),
        in_flight_max: provider.limits.in_flight_max,
        metered: Metered::new(provider.limits),
        timeouts: EndpointTimeouts {
            connect: Some(provider.timeouts.connect),
            first_byte: Some(provider.timeouts.first_byte),
            idle: Some(provider.timeouts.idle),
            total: provider.timeouts.total,
        },
        unusable: missing.or(unsigned).or(untrusting),
        withheld: None,
    };
    Some(Wanted { identity, spec })
}

/// The header to send, or why there is none although one is needed.
fn credential_header(auth: Option<&Auth>) -> (Option<CredentialHeader>, Option<String>) {
    let header = |name: &str, credential: &Credential, value: fn(&Secret) -> Secret| match &credential.value {
        Ok(secret) => (Some(CredentialHeader { name: name.to_owned(), value: value(secret) }), None),
        Err(why) => (None, Some(format!("the credential is missing: {why}"))),
    };
    match auth {
        None => (None, None),
        Some(Auth::Bearer(token)) => {
            header("authorization", token, |secret| Secret::new(&format!("Bearer {}", secret.expose())))
        }
        Some(Auth::ApiKeyHeader { header: name, key }) => header(name, key, Secret::clone),
        // No header of its own: each request is signed.
        Some(Auth::AwsSigV4 { .. }) => (None, None),
    }
}

/// What signs requests where the credential is one to sign with; or why it cannot be used.
fn signer(auth: Option<&Auth>) -> Option<Result<Signer, String>> {
    let (region, service, id, key, token) = match auth? {
        Auth::AwsSigV4 { region, service, access_key_id, secret_access_key, session_token } => {
            (region, service, access_key_id, secret_access_key, session_token)
        }
        Auth::Bearer(_) | Auth::ApiKeyHeader { .. } => return None,
    };
    let value = |credential: &Credential| match &credential.value {
        Ok(secret) => Ok(secret.clone()),
        Err(why) => Err(format!("the credential is missing: {why}")),
    };
    let credentials = || {
        let (id, key, token) = (value(id)?, value(key)?, token.as_ref().map(value).transpose()?);
        Credentials::new(id.expose(), key.expose(), token.as_ref().map(Secret::expose))
            .map_err(|error| error.to_string())
    };
    Some(credentials().map(|credentials| Signer::new(credentials, region, service)))
}

/// Whether both are sent as the same header.
pub(crate) fn same_credential(a: Option<&CredentialHeader>, b: Option<&CredentialHeader>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.name == b.name && a.value == b.value,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::snapshot::{
        Authorities, BaseUrl, Metrics, ModelKind, ProviderTimeouts, ProviderTls, RateLimits, ServedModel,
        StaticEndpoint, WorkerSetLimits,
    };

    fn set(name: &str, model: &str, hosts: &[&str]) -> WorkerSet {
        WorkerSet {
            id: ResourceId { namespace: "default".into(), name: name.into() },
            models: vec![ServedModel {
                names: vec![model.into()],
                upstream_name: model.into(),
                context_window: None,
                cost: None,
                kind: ModelKind::Base,
            }],
            endpoints: hosts.iter().map(|host| StaticEndpoint { host: (*host).into(), port: 8000 }).collect(),
            selector: Vec::new(),
            port: 8000,
            metrics: Metrics { path: "/metrics".into(), interval: Duration::from_secs(1) },
            kv_events: None,
            tokenizer: None,
            gpu_cost: None,
            limits: WorkerSetLimits { in_flight_per_endpoint_max: None },
            auth: None,
        }
    }

    fn snapshot(sets: Vec<WorkerSet>) -> Arc<Snapshot> {
        let mut snapshot = Snapshot::default();
        snapshot.worker_sets = sets;
        Arc::new(snapshot)
    }

    fn names(plan: &Plan) -> Vec<Option<(&str, u64)>> {
        plan.endpoints.iter().map(|e| e.as_ref().map(|e| (e.name.as_str(), e.incarnation))).collect()
    }

    #[test]
    fn a_server_that_stays_keeps_number_incarnation_and_even_its_spec() {
        let mut registry = Registry::default();
        let none = Addresses::new();
        let first = registry.plan(0, snapshot(vec![set("a", "m", &["10.0.0.1", "10.0.0.2"])]), &none).plan;
        let second = registry.plan(1, snapshot(vec![set("a", "m", &["10.0.0.3", "10.0.0.2"])]), &none).plan;
        assert_eq!(names(&first), [Some(("10.0.0.1:8000", 1)), Some(("10.0.0.2:8000", 2))]);
        assert_eq!(names(&second), [None, Some(("10.0.0.2:8000", 2)), Some(("10.0.0.3:8000", 3))]);
        assert_eq!(second.worker_sets, [[EndpointId(2), EndpointId(1)]]);
        assert!(Arc::ptr_eq(first.endpoints[1].as_ref().unwrap(), second.endpoints[1].as_ref().unwrap()));
    }

    #[test]
    fn a_number_rests_a_minute_before_it_is_given_away() {
        let mut registry = Registry::default();
        let none = Addresses::new();
        registry.plan(0, snapshot(vec![set("a", "m", &["10.0.0.1"])]), &none);
        registry.plan(1, snapshot(vec![]), &none);
        let soon = registry.plan(2, snapshot(vec![set("a", "m", &["10.0.0.1"])]), &none).plan;
        assert_eq!(names(&soon), [None, Some(("10.0.0.1:8000", 2))]);
        let later = registry.plan(61_000_000, snapshot(vec![set("a", "m", &["10.0.0.1", "10.0.0.9"])]), &none).plan;
        assert_eq!(names(&later), [Some(("10.0.0.9:8000", 3)), Some(("10.0.0.1:8000", 2))]);
    }

    #[test]
    fn another_model_at_the_same_address_and_a_restart_are_new_incarnations_and_new_terms_are_not() {
        let mut registry = Registry::default();
        let none = Addresses::new();
        registry.plan(0, snapshot(vec![set("a", "m", &["10.0.0.1"])]), &none);
        let mut limited = set("a", "m", &["10.0.0.1"]);
        limited.limits.in_flight_per_endpoint_max = Some(3);
        let plan = registry.plan(1, snapshot(vec![limited]), &none).plan;
        let spec = plan.endpoints[0].as_ref().unwrap();
        assert_eq!((spec.incarnation, spec.in_flight_max), (1, Some(3)));

        let plan = registry.plan(2, snapshot(vec![set("a", "other", &["10.0.0.1"])]), &none).plan;
        assert_eq!(names(&plan), [None, Some(("10.0.0.1:8000", 2))]);

        registry.restarted(3, EndpointId(1), 77);
        registry.restarted(3, EndpointId(1), 2);
        let plan = registry.plan(4, snapshot(vec![set("a", "other", &["10.0.0.1"])]), &none).plan;
        assert_eq!(names(&plan), [None, None, Some(("10.0.0.1:8000", 3))]);
    }

    #[test]
    fn a_name_of_two_families_is_one_server_and_a_name_of_two_addresses_two() {
        let mut registry = Registry::default();
        let addresses = Addresses::from([
            ("localhost".into(), vec!["::1".parse().unwrap(), "127.0.0.1".parse().unwrap()]),
            ("pods".into(), vec!["10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap()]),
        ]);
        let plan = registry.plan(0, snapshot(vec![set("a", "m", &["localhost", "pods", "unknown"])]), &addresses).plan;
        let names: Vec<_> = plan.endpoints.iter().flatten().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["localhost:8000", "pods:8000 (10.0.0.1)", "pods:8000 (10.0.0.2)"]);
        assert_eq!(plan.endpoints[0].as_ref().unwrap().address, "127.0.0.1:8000".parse().unwrap());
    }

    fn provider(limits: RateLimits) -> Provider {
        let seconds = Duration::from_secs;
        Provider {
            id: ResourceId { namespace: "default".into(), name: "hosted".into() },
            api: ProviderApi::OpenAi,
            base_url: BaseUrl { tls: Tls::No, host: "api.test".into(), port: 80, path_prefix: String::new() },
            tls: ProviderTls { authorities: Authorities::System, server_name: "api.test".into() },
            auth: None,
            models: Vec::new(),
            limits,
            timeouts: ProviderTimeouts {
                connect: seconds(1),
                first_byte: seconds(1),
                idle: seconds(1),
                total: Some(seconds(9)),
            },
        }
    }

    fn hosted(registry: &mut Registry, limits: RateLimits, found: &[&str]) -> Option<Arc<EndpointSpec>> {
        let mut snapshot = Snapshot::default();
        snapshot.providers = vec![provider(limits)];
        let found: Vec<IpAddr> = found.iter().map(|ip| ip.parse().unwrap()).collect();
        let plan = registry.plan(0, Arc::new(snapshot), &Addresses::from([("api.test".into(), found)])).plan;
        plan.providers[0].and_then(|id| plan.endpoints[id.index()].clone())
    }

    #[test]
    fn a_provider_is_one_endpoint_whatever_its_name_resolves_to() {
        let mut registry = Registry::default();
        let none = RateLimits::default();
        assert!(hosted(&mut registry, none, &[]).is_none(), "its name is not resolved yet");
        let first = hosted(&mut registry, none, &["10.0.0.2", "10.0.0.1"]).unwrap();
        let of = |spec: &EndpointSpec| {
            let others: Vec<String> = spec.other_addresses.iter().map(ToString::to_string).collect();
            (spec.incarnation, spec.address.to_string(), others)
        };
        assert_eq!(of(&first), (1, "10.0.0.1:80".into(), vec!["10.0.0.2:80".into()]));
        // The one in use stays as long as it is named.
        let second = hosted(&mut registry, none, &["10.0.0.0", "10.0.0.1"]).unwrap();
        assert_eq!(of(&second), (1, "10.0.0.1:80".into(), vec!["10.0.0.0:80".into()]));
        let third = hosted(&mut registry, none, &["10.0.0.9"]).unwrap();
        assert_eq!(of(&third), (1, "10.0.0.9:80".into(), vec![]));
        assert!(Arc::ptr_eq(&third, &hosted(&mut registry, none, &["10.0.0.9"]).unwrap()), "nothing has changed");
    }

    #[test]
    fn what_is_used_of_a_limit_outlives_a_change_of_it() {
        let mut registry = Registry::default();
        let limits = |requests| RateLimits { requests_per_minute: Some(requests), ..RateLimits::default() };
        let sent =
            |spec: &EndpointSpec| spec.metered.as_ref().unwrap().admit(0, 0).map(|mut permit| permit.settle(0)).is_ok();
        let spec = hosted(&mut registry, limits(1), &["10.0.0.1"]).unwrap();
        assert_eq!([sent(&spec), sent(&spec)], [true, false]);
        let spec = hosted(&mut registry, limits(2), &["10.0.0.1"]).unwrap();
        assert_eq!([sent(&spec), sent(&spec)], [true, false]);
    }

    #[test]
    fn a_pod_is_its_uid_and_address_and_what_it_says_of_itself_is_no_new_life() {
        let pod = |uid: &str, ip: &str, state: PodState| PodEndpoint {
            name: "vllm-0".into(),
            uid: uid.into(),
            ip: ip.parse().unwrap(),
            state,
        };
        let mut registry = Registry::default();
        let mut plan = |now_us: u64, pods: Vec<PodEndpoint>| {
            let workers = set("a", "m", &[]);
            registry.take_pods(Pods::from([(workers.id.clone(), pods)]));
            registry.plan(now_us, snapshot(vec![workers]), &Addresses::new()).plan
        };
        let first = plan(0, vec![pod("u1", "10.0.0.1", PodState::Ready)]);
        assert_eq!(names(&first), [Some(("vllm-0:8000", 1))]);
        let leaving = plan(1, vec![pod("u1", "10.0.0.1", PodState::Terminating)]);
        let spec = leaving.endpoints[0].as_ref().unwrap();
        assert_eq!((spec.incarnation, spec.withheld), (1, Some(Withheld::Terminating)));
        let replaced = plan(2, vec![pod("u2", "10.0.0.1", PodState::NotReady)]);
        assert_eq!(names(&replaced), [None, Some(("vllm-0:8000", 2))]);
    }

    #[test]
    fn endpoints_beyond_the_bound_are_left_out_and_counted() {
        let hosts: Vec<String> = (0..ENDPOINTS_MAX + 3).map(|n| format!("10.1.{}.{}", n / 250, n % 250)).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let planned = Registry::default().plan(0, snapshot(vec![set("a", "m", &hosts)]), &Addresses::new());
        assert_eq!((planned.plan.endpoints.len(), planned.left_out), (ENDPOINTS_MAX, 3));
    }
}
