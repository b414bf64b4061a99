//! Documents from a Kubernetes API server.
//!
//! One task per resource lists and watches it (`watch`); one task (`follower`) keeps what they bring (`known`, `reach`), judges
//! the whole set after a quiet moment (`set`) and hands out what is new: a snapshot, the pods behind selectors, whether the
//! server is there. Where it is away, nothing is handed out and everything stays as it is. The gateway that holds the lease
//! (`lease`) writes what became of each object into its status, and warnings as Events (`writer`).
//!
//! The first snapshot waits for all six kinds, and for the Secrets they name: a set without its tenants would let everyone
//! in. A resource that is not served or not allowed is waited for, and told of.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use tokio::sync::{mpsc, watch as latest};
use tokio::task::JoinHandle;

use super::cluster::{ClusterNews, Contact, Feedback, Leave, Settings};

mod backoff;
mod follower;
mod item;
mod known;
mod lease;
mod reach;
mod set;
mod status;
mod watch;
mod writer;

use follower::Follower;
use lease::Role;

/// Bytes of a kubeconfig: with the certificates of hundreds of clusters it has one.
const KUBECONFIG_BYTES_MAX: u64 = 4 << 20;
/// News that wait to be taken; the source goes on when there is room.
const NEWS_MAX: usize = 16;

/// A followed cluster. Dropping it ends everything that follows it.
#[derive(Debug)]
pub struct Cluster {
    news: mpsc::Receiver<ClusterNews>,
    task: JoinHandle<()>,
}

impl Cluster {
    /// Begins to follow. To be called on a tokio runtime with time and network enabled. Statuses say what `feedback` does, until
    /// this process is told to `leave` them to others; all else goes on then.
    #[must_use]
    pub fn follow(settings: Settings, feedback: latest::Receiver<Feedback>, leave: Leave) -> Self {
        let (sender, news) = mpsc::channel(NEWS_MAX);
        let task = tokio::spawn(run(settings, sender, feedback, leave));
        Self { news, task }
    }

    /// The next news; `None` when it has ended.
    pub async fn next(&mut self) -> Option<ClusterNews> {
        self.news.recv().await
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A task that ends with what it serves.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What is needed to reach a server.
struct Access {
    client: Client,
    /// The server's address, for people.
    server: String,
    /// The namespace that stands for "here".
    namespace: String,
}

/// Whether a kubeconfig file leads to a server, which is not asked.
///
/// # Errors
/// What is wrong with it, in one line that holds nothing of the file.
pub fn check_kubeconfig(path: &Path) -> Result<(), String> {
    check_readable(path)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| error.to_string())?;
    let loaded = runtime.block_on(async {
        let file = Kubeconfig::read_from(path)?;
        kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await
    });
    match loaded {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the kubeconfig {} cannot be used: {}", path.display(), said(&error))),
    }
}

/// Whether it is a file that holds something, and not too much.
fn check_readable(path: &Path) -> Result<(), String> {
    let wrong = |why: &dyn fmt::Display| Err(format!("the kubeconfig {} {why}", path.display()));
    let file = match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return wrong(&"is not a file"),
        Ok(_) => std::fs::File::open(path),
        Err(error) => Err(error),
    };
    let mut bytes = Vec::new();
    if let Err(error) = file.and_then(|file| file.take(KUBECONFIG_BYTES_MAX + 1).read_to_end(&mut bytes)) {
        return wrong(&format_args!("cannot be read: {error}"));
    }
    if bytes.trim_ascii().is_empty() {
        return wrong(&"is empty");
    }
    if u64::try_from(bytes.len()).is_ok_and(|length| length > KUBECONFIG_BYTES_MAX) {
        return wrong(&format_args!("has more than {KUBECONFIG_BYTES_MAX} bytes"));
    }
    Ok(())
}

/// Whether what `KUBECONFIG` names can be read, where it names anything. One file must lead to a server; of several, each may
/// hold a part.
///
/// # Errors
/// What is wrong, in one line that holds nothing of the files.
pub fn check_environment() -> Result<(), String> {
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let paths: Vec<_> = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    let checked = match paths.as_slice() {
        [path] => check_kubeconfig(path),
        paths => paths.iter().try_for_each(|path| check_readable(path)),
    };
    checked.map_err(|why| format!("KUBECONFIG: {why}"))
}

/// What is wrong with a kubeconfig, in one line. Its parser shows the text around a fault, which may be a token.
fn said(error: &KubeconfigError) -> String {
    if matches!(error, KubeconfigError::Parse(_)) {
        "it is not YAML of the form of a kubeconfig".to_owned()
    } else {
        error.to_string().replace(['\n', '\r'], " ")
    }
}

/// The server's address without what may be a credential.
fn address(config: &kube::Config) -> String {
    let uri = &config.cluster_url;
    let port = uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    let path = uri.path().trim_end_matches('/');
    format!("{}://{}{port}{path}", uri.scheme_str().unwrap_or("https"), uri.host().unwrap_or_default())
}

/// The way to the server of the settings.
async fn access(settings: &Settings) -> Result<Access, String> {
    let mut config = match &settings.kubeconfig {
        Some(path) => from_file(path).await?,
        // Who sets KUBECONFIG means it, also in a pod.
        None if std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty()) => usual().await?,
        None => match kube::Config::incluster() {
            Ok(config) => config,
            Err(_) => usual().await?,
        },
    };
    // Attempts are this source's business: each must be seen to be told of.
    config.default_retry = false;
    let namespace = settings.lease_namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let server = address(&config);
    let client = Client::try_from(config).map_err(|error| format!("{server}: {error}"))?;
    Ok(Access { client, server, namespace })
}

async fn from_file(path: &Path) -> Result<kube::Config, String> {
    let said = |error: KubeconfigError| format!("{}: {}", path.display(), said(&error));
    let file = Kubeconfig::read_from(path).map_err(said)?;
    kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(said)
}

/// Where kubectl looks: what KUBECONFIG names, else `~/.kube/config`, else the account of the pod.
async fn usual() -> Result<kube::Config, String> {
    kube::Config::infer().await.map_err(|error| {
        let of_file = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<KubeconfigError>());
        of_file.map_or_else(
            || error.to_string(),
            |of_file| format!("there is no pod's account and no usable kubeconfig: {}", said(of_file)),
        )
    })
}

async fn run(
    settings: Settings,
    sender: mpsc::Sender<ClusterNews>,
    feedback: latest::Receiver<Feedback>,
    leave: Leave,
) {
    let mut pause = backoff::Backoff::default();
    let mut told = String::new();
    // A kubeconfig may be written after this process has started. Ends when it can be read, or with whoever listens.
    let Access { client, server, namespace } = loop {
        match access(&settings).await {
            Ok(access) => break access,
            Err(why) => {
                if told != why {
                    let contact = Contact::Without { since: SystemTime::now(), why: why.clone() };
                    if sender.send(ClusterNews::Contact(contact)).await.is_err() {
                        return;
                    }
                    told = why;
                }
                pause.wait().await;
            }
        }
    };
    let (role_sender, role) = latest::channel(Role::Reader);
    let _election =
        Task(tokio::spawn(lease::run(client.clone(), namespace, settings.identity.clone(), role_sender, leave)));
    Follower::new(settings, (client, server), sender, feedback, role).run().await;
}
