//! Where snapshots come from: files that are watched, or servers that are asked what they serve.

use std::path::PathBuf;
use std::sync::Arc;

use config::snapshot::StaticEndpoint;
use config::source::WatchSettings;
use config::{Snapshot, SourceFile};
use policy::Diagnostic;
use tokio::sync::mpsc;

use super::{journal, learn};

/// Snapshots that wait to be put in force.
const EVENTS_MAX: usize = 16;

/// News from a source.
#[derive(Debug)]
pub(crate) enum SourceEvent {
    /// To be put in force.
    Snapshot(Arc<Snapshot>),
    /// A set that was refused; what was in force stays.
    Refused(Vec<Diagnostic>),
}

/// Where snapshots come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Files and folders of documents, watched.
    Files(Vec<PathBuf>),
    /// Servers that say what they serve.
    Servers(Vec<StaticEndpoint>),
}

impl Source {
    /// For people.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Files(paths) => paths.iter().map(|path| path.display().to_string()).collect(),
            Self::Servers(servers) => servers.iter().map(|server| format!("http://{server}")).collect(),
        }
    }

    /// Endpoints there are at least once everything is known.
    pub(crate) fn endpoints_min(&self) -> usize {
        match self {
            Self::Files(_) => 1,
            Self::Servers(servers) => servers.len(),
        }
    }

    /// Starts the source's task.
    pub(crate) fn start(self) -> mpsc::Receiver<SourceEvent> {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        match self {
            Self::Files(paths) => tokio::spawn(watch_files(paths, sender)),
            Self::Servers(servers) => tokio::spawn(learn::run(servers, sender)),
        };
        receiver
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

/// What one text of documents means.
pub(crate) fn lower_text(name: &str, text: &str) -> Result<Snapshot, Vec<Diagnostic>> {
    config::load(&[SourceFile::new(name, text)], &config::Lookup::Skip).map(|loaded| loaded.snapshot)
}
