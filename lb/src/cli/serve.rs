//! `kinference serve`: from a file, or with everything on the command line.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use config::server_file::{AccessLog, Balancers, Listener, ResourceSource};
use config::snapshot::StaticEndpoint;
use config::{Lookup, ServerFile, SourceFile};
use crds::server::{Credentials, DataThreads};
use policy::Diagnostic;

use super::lint::human;
use super::set::read_bounded;
use super::{parse_address, run_server, usage};
use crate::control::source::Source;
use crate::control::{SERVERS_MAX, Target, parse_url};
use crate::io::Driver;
use crate::server::{ListenerOptions, Options, Sharing};
use crate::tls::Certificate;

/// Run a gateway: from a file (`--config`), by the resources of a cluster (`--listen ADDR --kubernetes`), or over the servers
/// given (`--listen ADDR URL...`).
#[derive(Debug, Args)]
#[command(
    override_usage = "kinference serve --config FILE\n       kinference serve --listen ADDR [OPTIONS] --kubernetes\n       kinference serve --listen ADDR [OPTIONS] URL..."
)]
#[command(group = ArgGroup::new("source").args(["urls", "kubernetes"]))]
pub(super) struct Serve {
    /// The server's own file; it says where resources come from: `resources: [FOLDER]` or `kubernetes: { enabled: true }`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "threads", "admin", "access_log", "urls", "kubernetes"], required_unless_present = "listen")]
    config: Option<PathBuf>,
    /// Where requests come in, as IP:PORT; may be given several times
    #[arg(long, value_name = "ADDR", value_parser = parse_address, requires = "source")]
    listen: Vec<SocketAddr>,
    /// Resources come from a Kubernetes API server: that of KUBECONFIG, else that of the pod this runs in, else ~/.kube/config
    #[arg(long, requires = "listen")]
    kubernetes: bool,
    /// A kubeconfig file, with --kubernetes
    #[arg(long, value_name = "FILE", requires = "kubernetes", conflicts_with = "urls")]
    kubeconfig: Option<PathBuf>,
    /// A namespace whose resources are used, with --kubernetes; may be given several times [default: all]
    #[arg(long, value_name = "NAME", requires = "kubernetes", conflicts_with = "urls")]
    namespace: Vec<String>,
    /// Data threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Where the admin server listens, as IP:PORT
    #[arg(long, value_name = "ADDR", value_parser = parse_address, default_value = "127.0.0.1:9090")]
    admin: SocketAddr,
    /// What the data threads run on: auto, io_uring or epoll
    #[arg(long, default_value = "auto", value_name = "DRIVER")]
    driver: Driver,
    /// A file for the access log; - is stdout, nothing is off
    #[arg(long, value_name = "PATH", default_value = "-")]
    access_log: String,
    /// The servers: http://HOST:PORT
    #[arg(value_name = "URL", value_parser = parse_url, requires = "listen")]
    urls: Vec<StaticEndpoint>,
}

impl Serve {
    /// Runs it until a signal ends it.
    pub(super) fn run(self) -> ExitCode {
        match self.options() {
            Ok(options) => run_server(options),
            Err(code) => code,
        }
    }

    fn options(self) -> Result<Options, ExitCode> {
        if let Some(path) = &self.config {
            return from_file(path, self.driver);
        }
        if self.urls.len() > SERVERS_MAX {
            return Err(usage(format!(
                "{} servers; at most {SERVERS_MAX} can be given, use a file for more",
                self.urls.len()
            )));
        }
        let twice =
            |address: &SocketAddr| address.port() != 0 && self.listen.iter().filter(|a| *a == address).count() > 1;
        if let Some(address) = self.listen.iter().find(|a| twice(a) || (a.port() != 0 && **a == self.admin)) {
            return Err(usage(format!("{address} is given twice: --listen and --admin need a port of their own each")));
        }
        let source = if self.kubernetes {
            in_cluster(self.namespace, self.kubeconfig, Credentials::default())?
        } else {
            let mut servers = self.urls;
            servers.sort();
            servers.dedup();
            Source::Servers(servers)
        };
        let defaults = ServerFile::default();
        Ok(Options {
            listeners: self.listen.into_iter().map(ListenerOptions::plain).collect(),
            admin: Some(self.admin),
            data_threads: self.threads.map(usize::from),
            driver: self.driver,
            source,
            balancers: None,
            server_file: None,
            access_log: Target::parse(&self.access_log),
            drain_timeout: defaults.drain_timeout,
            decision_headers: defaults.decision_headers,
            stream_ping: defaults.stream_ping,
            limits: defaults.limits,
            timeouts: defaults.timeouts,
            sharing: Sharing::Allowed,
            on_ready: None,
        })
    }
}

/// The options a file says, once everything it says, and everything it points to, is found good.
fn from_file(path: &Path, driver: Driver) -> Result<Options, ExitCode> {
    let cannot_read = |error| usage(format!("{} cannot be read: {error}", path.display()));
    let bytes = File::open(path).and_then(|mut file| read_bounded(&mut file)).map_err(cannot_read)?;
    let source_file = SourceFile { name: path.display().to_string().into(), bytes };
    let file = ServerFile::load(&source_file).map_err(|findings| refused(&findings, &[source_file]))?;
    let source = source(path, file.resources)?;
    let balancers = file.balancers.map(|balancers| with_secret(path, balancers)).transpose()?;
    let listeners = file.listeners.into_iter().map(|listener| with_certificate(path, listener));
    let listeners = listeners.collect::<Result<_, _>>()?;
    Ok(Options {
        listeners,
        admin: Some(file.admin),
        data_threads: match file.data_threads {
            DataThreads::Auto => None,
            DataThreads::Count(count) => Some(usize::from(count)),
        },
        driver,
        source,
        balancers,
        server_file: Some(path.to_owned()),
        access_log: match file.access_log {
            AccessLog::Off => Target::Off,
            AccessLog::Stdout => Target::Stdout,
            AccessLog::File(path) => Target::File(path),
        },
        drain_timeout: file.drain_timeout,
        decision_headers: file.decision_headers,
        stream_ping: file.stream_ping,
        limits: file.limits,
        timeouts: file.timeouts,
        sharing: Sharing::Allowed,
        on_ready: None,
    })
}

/// Where the file says that resources come from. Files are found good first: a server must not start without anything in
/// force; later, a broken set leaves the last good one.
fn source(path: &Path, resources: ResourceSource) -> Result<Source, ExitCode> {
    match resources {
        ResourceSource::Files(paths) if paths.is_empty() => {
            let ways = "name files or folders of documents in `resources`, or turn `kubernetes` on";
            Err(usage(format!("{}: nothing says where resources come from: {ways}", path.display())))
        }
        ResourceSource::Files(paths) => {
            let set = config::source::read_set(&paths).map_err(|findings| refused(&findings, &[]))?;
            config::load(&set, &Lookup::process()).map_err(|findings| refused(&findings, &set))?;
            Ok(Source::Files(paths))
        }
        ResourceSource::Kubernetes { namespaces, kubeconfig, credentials } => {
            in_cluster(namespaces, kubeconfig, credentials)
        }
    }
}

#[cfg(feature = "kubernetes")]
fn in_cluster(
    namespaces: Vec<String>,
    kubeconfig: Option<PathBuf>,
    credentials: Credentials,
) -> Result<Source, ExitCode> {
    let checked = match &kubeconfig {
        Some(path) => config::source::kube::check_kubeconfig(path),
        None => config::source::kube::check_environment(),
    };
    checked.map_err(usage)?;
    Ok(cluster(namespaces, kubeconfig, credentials))
}

#[cfg(not(feature = "kubernetes"))]
fn in_cluster(_: Vec<String>, _: Option<PathBuf>, _: Credentials) -> Result<Source, ExitCode> {
    Err(usage("this program was built without `kubernetes`: use `resources`".to_owned()))
}

/// A cluster. A pod is told its name and namespace by its environment; the number tells apart processes of one name.
#[cfg(feature = "kubernetes")]
fn cluster(namespaces: Vec<String>, kubeconfig: Option<PathBuf>, credentials: Credentials) -> Source {
    use std::hash::{BuildHasher, RandomState};
    let said = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let name = said("POD_NAME").or_else(|| said("HOSTNAME")).unwrap_or_else(|| "kinference".to_owned());
    let identity = format!("{name}_{:08x}", RandomState::new().hash_one(0_u8) >> 32);
    Source::Cluster(config::source::cluster::Settings {
        kubeconfig,
        namespaces,
        credentials,
        lease_namespace: said("POD_NAMESPACE"),
        ..config::source::cluster::Settings::new(identity)
    })
}

/// Fewer can be guessed.
const SHARED_SECRET_BYTES_MIN: usize = 16;

fn with_secret(path: &Path, balancers: Balancers) -> Result<(SocketAddr, Vec<String>, config::Secret), ExitCode> {
    let Balancers { address, peers, secret: source } = balancers;
    let bad = |why: String| usage(format!("{}: the secret of `balancers`: {why}", path.display()));
    let secret = source.read().map_err(bad)?;
    if secret.expose().len() < SHARED_SECRET_BYTES_MIN {
        return Err(bad(format!("it has fewer than {SHARED_SECRET_BYTES_MIN} bytes")));
    }
    Ok((address, peers, secret))
}

fn with_certificate(path: &Path, listener: Listener) -> Result<ListenerOptions, ExitCode> {
    let Listener { address, tls, pools } = listener;
    let bad = |error| usage(format!("{}: tls of the listener {address}: {error}", path.display()));
    let tls = tls.map(Certificate::load).transpose().map_err(bad)?;
    Ok(ListenerOptions { address, scope: pools, tls })
}

/// Shows what is wrong, each finding with its line.
fn refused(findings: &[Diagnostic], files: &[SourceFile]) -> ExitCode {
    eprint!("{}", human(findings, files));
    usage("the configuration is not put in force; see the findings above")
}
