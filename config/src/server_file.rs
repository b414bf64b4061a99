//! The server's own file: what this process listens on and where its resources come from.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crds::server::{Credentials, DataThreads, DecisionHeaders, ServerSpec};
use policy::{Code, Diagnostic, Severity};

use crate::check::Checker;
use crate::limits::{REQUEST_BODY_BYTES_MAX, REQUEST_HEAD_BYTES, STREAM_PING_MIN};
use crate::load::{SourceFile, documents};
use crate::lower::settle;
use crate::node::{Path, RawDocument};
use crate::secret::SecretSource;
use crate::snapshot::PoolScope;

/// The server's own file, checked, with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFile {
    /// Where requests come in; at least one.
    pub listeners: Vec<Listener>,
    /// Where metrics, health and state are read.
    pub admin: SocketAddr,
    /// Threads that move requests.
    pub data_threads: DataThreads,
    /// Where resources come from.
    pub resources: ResourceSource,
    /// Other balancers in front of the same engines.
    pub balancers: Option<Balancers>,
    /// Bounds of what the process takes on.
    pub limits: ServerLimits,
    /// How long each phase of a request may take.
    pub timeouts: ServerTimeouts,
    /// Where the access log goes.
    pub access_log: AccessLog,
    /// Whether answers say where they come from.
    pub decision_headers: DecisionHeaders,
    /// Silence of an engine within a stream after which the client is sent a comment; `None` = never.
    pub stream_ping: Option<Duration>,
    /// How long running requests may take to end when the process is asked to stop.
    pub drain_timeout: Duration,
}

/// Where requests come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// IP address and TCP port.
    pub address: SocketAddr,
    /// TLS; `None` = plain text.
    pub tls: Option<TlsFiles>,
    /// Pools served here.
    pub pools: PoolScope,
}

/// PEM files of a TLS listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain.
    pub cert_file: PathBuf,
    /// Private key.
    pub key_file: PathBuf,
    /// Authorities of client certificates; `None` = none is asked for.
    pub client_ca_file: Option<PathBuf>,
}

/// Where resources come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResourceSource {
    /// Files and folders; may be none when endpoints are named on the command line.
    Files(Vec<PathBuf>),
    /// A Kubernetes API server.
    Kubernetes {
        /// Namespaces watched; empty = all.
        namespaces: Vec<String>,
        /// A kubeconfig; `None` = what `KUBECONFIG` names, else the pod's service account, else `~/.kube/config`.
        kubeconfig: Option<PathBuf>,
        /// Where credentials that objects name may come from.
        credentials: Credentials,
    },
}

/// How balancers find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancers {
    /// Where this one hears the others, over UDP.
    pub address: SocketAddr,
    /// The others, as `host:port`.
    pub peers: Vec<String>,
    /// What all of them know.
    pub secret: SecretSource,
}

/// Bounds of what the process takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Largest request body, in bytes.
    pub request_body_bytes_max: u64,
    /// All request bodies held at once, in bytes.
    pub request_bodies_total_bytes_max: u64,
    /// Largest request head, in bytes.
    pub request_head_bytes_max: u64,
    /// Client connections of one data thread.
    pub connections_per_thread_max: u32,
}

/// How long each phase of a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTimeouts {
    /// From the first byte of a head to its last.
    pub request_head: Duration,
    /// Between two bytes of a request's body.
    pub request_body_idle: Duration,
    /// Connecting to an endpoint.
    pub connect: Duration,
    /// From the last byte sent to an endpoint to the first byte of its answer.
    pub first_byte: Duration,
    /// Between two bytes of an answer.
    pub idle: Duration,
    /// A client connection without a request.
    pub client_idle: Duration,
}

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Nowhere.
    Off,
    /// Standard output.
    Stdout,
    /// A file, appended to.
    File(PathBuf),
}

impl ServerFile {
    /// Reads the server's own file. An empty one is all defaults.
    ///
    /// # Errors
    /// Every finding, ordered by place, when one of them is an error.
    pub fn load(file: &SourceFile) -> Result<Self, Vec<Diagnostic>> {
        let mut findings = Vec::new();
        let mut raw = documents(file, &mut findings);
        if let Some(second) = raw.get(1) {
            let message = "the server's file is one document; resources belong in the files named in `resources`";
            findings.push(second.finding(Code::Syntax, &Path::default(), message));
        }
        if findings.iter().any(|f| f.severity == Severity::Error) {
            settle(&mut findings);
            return Err(findings);
        }
        let Some(raw) = (!raw.is_empty()).then(|| raw.remove(0)) else { return Ok(Self::default()) };
        Checker::default().check(&raw, &crds::schema::server(), &mut findings);
        if findings.is_empty() {
            match serde_json::from_value::<ServerSpec>(raw.root.to_value()) {
                Ok(spec) => return lower(&raw, &spec),
                Err(error) => findings.push(raw.finding(Code::WrongType, &Path::default(), error.to_string())),
            }
        }
        settle(&mut findings);
        Err(findings)
    }
}

impl Default for ServerFile {
    fn default() -> Self {
        let root = crate::node::Node { place: crate::node::Place::default(), content: crate::node::Content::Null };
        let raw = RawDocument { file: "".into(), root };
        // The defaults are valid: a test holds them to it.
        build(&raw, &ServerSpec::default(), &mut Vec::new())
    }
}

fn lower(raw: &RawDocument, spec: &ServerSpec) -> Result<ServerFile, Vec<Diagnostic>> {
    let mut findings = Vec::new();
    let built = build(raw, spec, &mut findings);
    check(raw, spec, &built, &mut findings);
    if findings.is_empty() {
        return Ok(built);
    }
    settle(&mut findings);
    Err(findings)
}

/// The parsed form of a value that the schema has checked; a finding when it has not.
fn address(raw: &RawDocument, path: &Path, text: &str, findings: &mut Vec<Diagnostic>) -> SocketAddr {
    text.parse().unwrap_or_else(|_| {
        findings.push(raw.finding(Code::BadFormat, path, format!("`{text}` is not an address and a port")));
        SocketAddr::from(([127, 0, 0, 1], 0))
    })
}

fn build(raw: &RawDocument, spec: &ServerSpec, findings: &mut Vec<Diagnostic>) -> ServerFile {
    let folder = std::path::Path::new(&*raw.file).parent().unwrap_or(std::path::Path::new("")).to_path_buf();
    let listeners = spec.listeners.iter().enumerate().map(|(i, l)| {
        let path = Path::default().key("listeners").index(i).key("address");
        Listener {
            address: address(raw, &path, &l.address, findings),
            tls: l.tls.as_ref().map(|tls| TlsFiles {
                cert_file: folder.join(&tls.cert_file),
                key_file: folder.join(&tls.key_file),
                client_ca_file: tls.client_ca_file.as_ref().map(|f| folder.join(f)),
            }),
            pools: if l.pools.is_empty() { PoolScope::All } else { PoolScope::Named(l.pools.clone()) },
        }
    });
    let listeners = listeners.collect();
    let resources = if spec.kubernetes.enabled {
        ResourceSource::Kubernetes {
            namespaces: spec.kubernetes.namespaces.clone(),
            kubeconfig: Some(&spec.kubernetes.kubeconfig).filter(|k| !k.is_empty()).map(|k| folder.join(k)),
            credentials: spec.kubernetes.credentials,
        }
    } else {
        ResourceSource::Files(spec.resources.iter().map(|r| folder.join(r)).collect())
    };
    let balancers = spec.balancers.as_ref().and_then(|written| balancers(raw, &folder, written, findings));
    ServerFile {
        listeners,
        balancers,
        admin: address(raw, &Path::default().key("admin").key("address"), &spec.admin.address, findings),
        data_threads: spec.data_threads,
        resources,
        limits: ServerLimits {
            request_body_bytes_max: spec.limits.request_body.0,
            request_bodies_total_bytes_max: spec.limits.request_bodies_total.0,
            request_head_bytes_max: spec.limits.request_head.0,
            connections_per_thread_max: spec.limits.connections_per_thread,
        },
        timeouts: ServerTimeouts {
            request_head: spec.timeouts.request_head.0,
            request_body_idle: spec.timeouts.request_body_idle.0,
            connect: spec.timeouts.connect.0,
            first_byte: spec.timeouts.first_byte.0,
            idle: spec.timeouts.idle.0,
            client_idle: spec.timeouts.client_idle.0,
        },
        access_log: match spec.access_log.path.as_str() {
            "" => AccessLog::Off,
            "-" => AccessLog::Stdout,
            path => AccessLog::File(folder.join(path)),
        },
        decision_headers: spec.decision_headers,
        stream_ping: spec.stream_ping.map(|interval| interval.0),
        drain_timeout: spec.drain_timeout.0,
    }
}

fn balancers(
    raw: &RawDocument,
    folder: &std::path::Path,
    written: &crds::server::Balancers,
    findings: &mut Vec<Diagnostic>,
) -> Option<Balancers> {
    let path = Path::default().key("balancers");
    for (i, peer) in written.peers.iter().enumerate() {
        let port =
            peer.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok())?);
        if port.is_none_or(|port| port == 0) {
            let path = path.key("peers").index(i);
            let message = format!("`{peer}` has no port");
            findings.push(raw.finding(Code::BadFormat, &path, message).expected("`host:port`"));
        }
    }
    let env = written.secret.from_env.as_ref().map(|name| SecretSource::Env(name.clone()));
    let file = || written.secret.from_file.as_ref().map(|file| SecretSource::File(folder.join(file)));
    let Some(secret) = env.or_else(file) else {
        let message = "this file belongs to no namespace: a Secret is mounted or put into the environment";
        let finding = raw.finding(Code::Unsupported, &path.key("secret").key("secretRef"), message);
        findings.push(finding.expected("`fromEnv` or `fromFile`"));
        return None;
    };
    let address = address(raw, &path.key("address"), &written.address, findings);
    Some(Balancers { address, peers: written.peers.clone(), secret })
}

/// What the schema cannot say.
fn check(raw: &RawDocument, spec: &ServerSpec, built: &ServerFile, findings: &mut Vec<Diagnostic>) {
    let root = Path::default();
    if spec.kubernetes.enabled && !spec.resources.is_empty() {
        let message = "resources come from files or from Kubernetes, not from both";
        findings.push(raw.finding(Code::ExactlyOneOf, &root.key("resources"), message));
    }
    for (i, listener) in built.listeners.iter().enumerate() {
        // Port 0 asks for any free port, so two of them are not the same.
        let same = |other: &Listener| other.address == listener.address && listener.address.port() != 0;
        let path = root.key("listeners").index(i).key("address");
        if built.listeners.iter().take(i).any(same) || (built.admin == listener.address && built.admin.port() != 0) {
            let message = format!("the address {} is used twice", listener.address);
            findings.push(raw.finding(Code::DuplicateName, &path, message));
        }
    }
    let limits = root.key("limits");
    let body = built.limits.request_body_bytes_max;
    if body == 0 || body > REQUEST_BODY_BYTES_MAX {
        let message = format!(
            "{} is not between 1B and {}",
            spec.limits.request_body,
            crds::value::Bytes(REQUEST_BODY_BYTES_MAX)
        );
        findings.push(raw.finding(Code::OutOfRange, &limits.key("requestBody"), message));
    }
    if built.limits.request_bodies_total_bytes_max < body {
        let message = "all request bodies together must be allowed at least the size of one";
        findings.push(raw.finding(Code::OutOfRange, &limits.key("requestBodiesTotal"), message));
    }
    let (low, high) = REQUEST_HEAD_BYTES;
    if !(low..=high).contains(&built.limits.request_head_bytes_max) {
        let (low, high) = (crds::value::Bytes(low), crds::value::Bytes(high));
        let message = format!("{} is not between {low} and {high}", spec.limits.request_head);
        findings.push(raw.finding(Code::OutOfRange, &limits.key("requestHead"), message));
    }
    if let Some(interval) = spec.stream_ping.filter(|interval| interval.0 < STREAM_PING_MIN) {
        let message = format!("{interval} is shorter than {}", crds::value::Duration(STREAM_PING_MIN));
        findings.push(raw.finding(Code::OutOfRange, &root.key("streamPing"), message));
    }
    let t = &spec.timeouts;
    let timeouts = [
        ("requestHead", t.request_head),
        ("requestBodyIdle", t.request_body_idle),
        ("connect", t.connect),
        ("firstByte", t.first_byte),
        ("idle", t.idle),
        ("clientIdle", t.client_idle),
    ];
    for (field, value) in timeouts {
        if value.0.is_zero() {
            let message = format!("`{field}` must be longer than nothing");
            findings.push(raw.finding(Code::OutOfRange, &root.key("timeouts").key(field), message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<ServerFile, Vec<Diagnostic>> {
        ServerFile::load(&SourceFile::new("conf/kinference.yaml", text))
    }

    #[test]
    fn an_empty_file_is_all_defaults_and_they_are_valid() {
        assert_eq!(load(""), Ok(ServerFile::default()));
        let spelled_out = serde_json::to_string(&ServerSpec::default()).expect("serialises");
        let mut built = load(&spelled_out).expect("the defaults pass every check");
        built.resources = ServerFile::default().resources;
        assert_eq!(built, ServerFile::default());
    }

    #[test]
    fn the_reference_file_loads_and_its_paths_are_relative_to_it() {
        let text = "
listeners:
  - address: 0.0.0.0:8080
    tls: { certFile: tls.crt, keyFile: tls.key, clientCaFile: ca.crt }
    pools: []
admin: { address: 127.0.0.1:9090 }
dataThreads: auto
resources: [./resources]
kubernetes: { enabled: false, namespaces: [], kubeconfig: \"\" }
limits: { requestBody: 32MiB, requestBodiesTotal: 1GiB, requestHead: 64KiB, connectionsPerThread: 65536 }
timeouts: { requestHead: 10s, requestBodyIdle: 30s, connect: 1s, firstByte: 120s, idle: 60s, clientIdle: 75s }
accessLog: { path: \"-\" }
drainTimeout: 10m
";
        let built = load(text).expect("loads");
        assert_eq!(built.resources, ResourceSource::Files(vec![PathBuf::from("conf/./resources")]));
        assert_eq!(built.listeners[0].tls.as_ref().map(|t| t.cert_file.clone()), Some(PathBuf::from("conf/tls.crt")));
        let defaults = ServerFile::default();
        assert_eq!((built.limits, built.timeouts), (defaults.limits, defaults.timeouts));
    }

    #[test]
    fn both_sources_at_once_is_an_error() {
        let findings = load("resources: [a]\nkubernetes: { enabled: true }\n").expect_err("refused");
        assert_eq!(
            findings.iter().map(|f| (f.code, f.path.as_str())).collect::<Vec<_>>(),
            [(Code::ExactlyOneOf, "resources")]
        );
    }

    #[test]
    fn pings_are_off_unless_asked_for_and_never_a_flood() {
        assert_eq!(load("").expect("loads").stream_ping, None);
        assert_eq!(load("streamPing: 15s\n").expect("loads").stream_ping, Some(Duration::from_secs(15)));
        for text in ["streamPing: 0s\n", "streamPing: 99ms\n"] {
            let findings = load(text).expect_err("refused");
            assert_eq!((findings[0].code, findings[0].path.as_str()), (Code::OutOfRange, "streamPing"));
        }
    }

    #[test]
    fn an_address_is_used_once() {
        let findings = load("listeners: [{ address: 127.0.0.1:9090 }]\n").expect_err("refused");
        assert_eq!(findings[0].path, "listeners[0].address");
        assert!(load("listeners: [{ address: 127.0.0.1:0 }, { address: 127.0.0.1:0 }]\n").is_ok());
    }

    #[test]
    fn every_finding_comes_at_once_with_its_place() {
        let findings = load("dataThreads: many\nlimits:\n  requestBody: 5XB\nlisteners: []\ntimeout: {}\n");
        let findings = findings.expect_err("refused");
        let places: Vec<_> = findings.iter().map(|f| (f.span.as_ref().map_or(0, |s| s.line), f.code)).collect();
        assert_eq!(
            places,
            [(1, Code::UnknownValue), (3, Code::BadFormat), (4, Code::EmptyList), (5, Code::UnknownField)]
        );
        assert_eq!(findings[3].suggestion.as_deref(), Some("timeouts"));
    }
}
