//! Where snapshots come from: files or a cluster that are watched, or servers that are asked what they serve.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use config::snapshot::StaticEndpoint;
use config::source::WatchSettings;
#[cfg(feature = "kubernetes")]
use config::source::cluster::{ClusterNews, Settings};
use config::source::cluster::{Contact, Feedback, Leave, Pods};
use config::{Snapshot, SourceFile};
use policy::Diagnostic;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::{journal, learn};

/// Snapshots that wait to be put in force.
const EVENTS_MAX: usize = 16;
/// Longest wait at the end for a lease to be given back.
const LEFT_WITHIN: Duration = Duration::from_secs(1);

/// News from a source.
#[derive(Debug)]
pub(crate) enum SourceEvent {
    /// To be put in force.
    Snapshot(Arc<Snapshot>),
    /// A set that was refused; what was in force stays.
    Refused(Vec<Diagnostic>),
    /// The pods behind selectors.
    #[cfg_attr(not(feature = "kubernetes"), expect(dead_code, reason = "told by a cluster alone"))]
    Pods(Pods),
    /// The cluster went away or came back.
    #[cfg_attr(not(feature = "kubernetes"), expect(dead_code, reason = "told by a cluster alone"))]
    Contact(Contact),
    /// What the first snapshot waits for.
    #[cfg_attr(not(feature = "kubernetes"), expect(dead_code, reason = "told by a cluster alone"))]
    Waiting(Vec<String>),
}

/// A source that runs.
#[derive(Debug)]
pub(crate) struct Running {
    events: mpsc::Receiver<SourceEvent>,
    leave: Option<oneshot::Sender<oneshot::Sender<()>>>,
    left: Option<oneshot::Receiver<()>>,
}

impl Running {
    /// The next event; `None` when it has ended.
    pub(crate) async fn next(&mut self) -> Option<SourceEvent> {
        self.events.recv().await
    }

    /// Leaves to other processes what only one of them does. Events go on.
    pub(crate) fn leave(&mut self) {
        let Some(leave) = self.leave.take() else { return };
        let (answer, left) = oneshot::channel();
        if leave.send(answer).is_ok() {
            self.left = Some(left);
        }
    }

    /// Waits for a moment until that is done, where it was begun.
    pub(crate) async fn left(&mut self) {
        if let Some(left) = self.left.take() {
            // What is not done by then others find out for themselves.
            let _ = timeout(LEFT_WITHIN, left).await;
        }
    }
}

/// Where snapshots come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Files and folders of documents, watched.
    Files(Vec<PathBuf>),
    /// Servers that say what they serve.
    Servers(Vec<StaticEndpoint>),
    /// A cluster's API server.
    #[cfg(feature = "kubernetes")]
    Cluster(Settings),
}

impl Source {
    /// For people.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Files(paths) => paths.iter().map(|path| path.display().to_string()).collect(),
            Self::Servers(servers) => servers.iter().map(|server| format!("http://{server}")).collect(),
            #[cfg(feature = "kubernetes")]
            Self::Cluster(settings) => {
                let server =
                    settings.kubeconfig.as_ref().map_or("kubernetes".to_owned(), |file| file.display().to_string());
                if settings.namespaces.is_empty() {
                    vec![server]
                } else {
                    settings.namespaces.iter().map(|namespace| format!("{server}, namespace {namespace}")).collect()
                }
            }
        }
    }

    /// Endpoints there are at least once everything is known.
    pub(crate) fn endpoints_min(&self) -> usize {
        match self {
            Self::Files(_) => 1,
            Self::Servers(servers) => servers.len(),
            #[cfg(feature = "kubernetes")]
            Self::Cluster(_) => 1,
        }
    }

    /// Starts the source's task. What `feedback` says goes to whoever wants to know what became of a snapshot.
    pub(crate) fn start(self, feedback: watch::Receiver<Feedback>) -> Running {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (leave, asked): (_, Leave) = oneshot::channel();
        match self {
            Self::Files(paths) => {
                drop((feedback, asked));
                tokio::spawn(watch_files(paths, sender))
            }
            Self::Servers(servers) => {
                drop((feedback, asked));
                tokio::spawn(learn::run(servers, sender))
            }
            #[cfg(feature = "kubernetes")]
            Self::Cluster(settings) => tokio::spawn(follow_cluster(settings, feedback, asked, sender)),
        };
        Running { events, leave: Some(leave), left: None }
    }
}

async fn watch_files(paths: Vec<PathBuf>, events: mpsc::Sender<SourceEvent>) {
    let mut watch = config::source::watch(paths, WatchSettings::default());
    while let Some(set) = watch.next().await {
        let event = match set {
            Ok(snapshot) => SourceEvent::Snapshot(Arc::new(snapshot)),
            Err(findings) => SourceEvent::Refused(findings),
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
    journal::error("files are no longer watched; restart to see changes", &[]);
}

#[cfg(feature = "kubernetes")]
async fn follow_cluster(
    settings: Settings,
    feedback: watch::Receiver<Feedback>,
    asked: Leave,
    events: mpsc::Sender<SourceEvent>,
) {
    let mut cluster = config::source::kube::Cluster::follow(settings, feedback, asked);
    while let Some(news) = cluster.next().await {
        let event = match news {
            ClusterNews::Snapshot(snapshot) => SourceEvent::Snapshot(Arc::new(*snapshot)),
            ClusterNews::Pods(pods) => SourceEvent::Pods(pods),
            ClusterNews::Refused(findings) => SourceEvent::Refused(findings),
            ClusterNews::Contact(contact) => SourceEvent::Contact(contact),
            ClusterNews::Waiting(reasons) => SourceEvent::Waiting(reasons),
            ClusterNews::Note(text) => {
                journal::warn("the API server", &[("note", &text)]);
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
    journal::error("the cluster is no longer followed; restart to see changes", &[]);
}

/// What one text of documents means.
pub(crate) fn lower_text(name: &str, text: &str) -> Result<Snapshot, Vec<Diagnostic>> {
    config::load(&[SourceFile::new(name, text)], &config::Lookup::Skip).map(|loaded| loaded.snapshot)
}
