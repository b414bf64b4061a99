//! An API server with our definitions, and a follower on a thread of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use apiserver::{ApiServer, Options};
use config::Snapshot;
use config::source::cluster::{ClusterNews, Contact, Feedback, PodEndpoint, Settings};
use config::source::kube::Cluster;
use crds::Kind;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

/// The longest wait for anything that must happen; only a failing test ever takes so long.
const PATIENCE: Duration = Duration::from_secs(180);

/// The plural and group of a kind, as the server names it.
pub(crate) fn resource(kind: Kind) -> String {
    format!("{}.{}", kind.plural(), crds::GROUP)
}

/// A server without our definitions.
pub(crate) fn bare() -> ApiServer {
    // Each at an address of its own, from where nobody connects: its port is still free when it starts again.
    static STARTED: AtomicU8 = AtomicU8::new(0);
    let host = [127, 0, 2, STARTED.fetch_add(1, Ordering::Relaxed).wrapping_add(1)];
    let bookmark_every = Duration::from_millis(200);
    ApiServer::start(Options { bookmark_every, address: (host, 0).into(), ..Options::default() }).unwrap()
}

/// Installs our definitions.
pub(crate) fn define(server: &ApiServer) {
    for kind in Kind::CUSTOM_RESOURCES {
        server.create(&definition(kind)).unwrap();
    }
}

pub(crate) fn definition(kind: Kind) -> Value {
    crds::schema::crd::definition(kind).unwrap()
}

/// A server with our definitions.
pub(crate) fn server() -> ApiServer {
    let server = bare();
    define(&server);
    server
}

/// A follower; it ends when dropped.
#[derive(Debug)]
pub(crate) struct Followed {
    news: Receiver<ClusterNews>,
    pub(crate) feedback: watch::Sender<Feedback>,
    leave: Option<oneshot::Sender<oneshot::Sender<()>>>,
    _ending: Ending,
    /// Holds the kubeconfig for as long as it is followed.
    #[allow(dead_code, reason = "held")]
    folder: Option<tempfile::TempDir>,
}

#[derive(Debug)]
struct Ending {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Follows a server, with watches that last for `watch_lasts`.
pub(crate) fn follow_for(server: &ApiServer, identity: &str, watch_lasts: Duration) -> Followed {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, server.kubeconfig()).unwrap();
    let settings = Settings { kubeconfig: Some(kubeconfig), watch_lasts, ..Settings::new(identity.to_owned()) };
    Followed { folder: Some(folder), ..follow_by(settings) }
}

/// Follows what a kubeconfig file leads to.
pub(crate) fn follow_file(kubeconfig: PathBuf) -> Followed {
    follow_by(Settings { kubeconfig: Some(kubeconfig), ..Settings::new("test".to_owned()) })
}

fn follow_by(settings: Settings) -> Followed {
    let (sender, news) = channel();
    let (feedback, told) = watch::channel(Feedback::default());
    let (stop, stopped) = oneshot::channel();
    let (leave, asked) = oneshot::channel();
    let tell_back = feedback.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut cluster = Cluster::follow(settings, told, asked);
            let forward = async {
                while let Some(news) = cluster.next().await {
                    // As a gateway whose data threads take everything over at once.
                    if let ClusterNews::Snapshot(snapshot) = &news {
                        tell_back.send_modify(|feedback| feedback.generation = snapshot.generation);
                    }
                    if sender.send(news).is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = forward => {}
                _ = stopped => {}
            }
        });
    });
    Followed {
        news,
        feedback,
        leave: Some(leave),
        _ending: Ending { stop: Some(stop), thread: Some(thread) },
        folder: None,
    }
}

/// Follows a server.
pub(crate) fn follow(server: &ApiServer) -> Followed {
    follow_for(server, "test", Duration::from_secs(50))
}

impl Followed {
    /// Waits for news that are as wanted; others are passed over.
    pub(crate) fn wait<T>(&self, what: &str, mut wanted: impl FnMut(ClusterNews) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        let mut passed = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(news) = self.news.recv_timeout(left) else { panic!("never came: {what}; but {passed:#?}") };
            passed.push(format!("{news:?}").chars().take(300).collect::<String>());
            if let Some(found) = wanted(news) {
                return found;
            }
        }
    }

    /// Waits for a snapshot that is as wanted.
    pub(crate) fn snapshot(&self, what: &str, wanted: impl Fn(&Snapshot) -> bool) -> Box<Snapshot> {
        self.wait(what, |news| match news {
            ClusterNews::Snapshot(snapshot) if wanted(&snapshot) => Some(snapshot),
            _ => None,
        })
    }

    /// Waits until the pods of the worker set `gemma` are as wanted.
    pub(crate) fn pods(&self, what: &str, wanted: impl Fn(&[PodEndpoint]) -> bool) -> Vec<PodEndpoint> {
        self.wait(what, |news| match news {
            ClusterNews::Pods(pods) => {
                let found = pods.into_iter().find(|(id, _)| id.name == "gemma").map(|(_, pods)| pods);
                found.filter(|pods| wanted(pods))
            }
            _ => None,
        })
    }

    /// Waits until the server is said to be there, or not.
    pub(crate) fn contact(&self, what: &str, wanted: impl Fn(&Contact) -> bool) -> Contact {
        self.wait(what, |news| match news {
            ClusterNews::Contact(contact) if wanted(&contact) => Some(contact),
            _ => None,
        })
    }

    /// Waits for a note that holds `text`.
    pub(crate) fn note(&self, text: &str) -> String {
        self.wait(text, |news| match news {
            ClusterNews::Note(note) if note.contains(text) => Some(note),
            _ => None,
        })
    }

    /// Waits until it has left the writing of statuses to others.
    pub(crate) fn leave(&mut self) {
        let (answer, left) = oneshot::channel();
        self.leave.take().expect("it is here").send(answer).expect("it listens");
        left.blocking_recv().expect("an answer");
    }

    /// Waits for what the first snapshot waits for.
    pub(crate) fn waiting(&self, what: &str, wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        self.wait(what, |news| match news {
            ClusterNews::Waiting(reasons) if wanted(&reasons) => Some(reasons),
            _ => None,
        })
    }

    /// What has come and was not waited for.
    pub(crate) fn rest(&self) -> Vec<ClusterNews> {
        self.news.try_iter().collect()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let (Some(stop), Some(thread)) = (self.stop.take(), self.thread.take()) {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

/// An object of one of our kinds in the namespace `default`.
pub(crate) fn object(kind: Kind, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": crds::API_VERSION, "kind": kind.as_str(),
        "metadata": { "name": name, "namespace": "default" }, "spec": spec,
    })
}

/// A worker set over pods with the label `app: NAME`.
pub(crate) fn workers(name: &str) -> Value {
    let spec = json!({ "model": { "name": name }, "selector": { "matchLabels": { "app": name } } });
    object(Kind::InferenceWorkerSet, name, spec)
}

/// A pool over worker sets.
pub(crate) fn pool(name: &str, destinations: &[&str]) -> Value {
    let list: Vec<Value> = destinations.iter().map(|n| json!({ "kind": "InferenceWorkerSet", "name": n })).collect();
    object(Kind::InferencePool, name, json!({ "destinations": list }))
}

/// A running pod with the label `app: gemma`.
pub(crate) fn pod(name: &str, ip: &str, ready: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": { "app": "gemma" } },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "vllm", "image": "vllm" }] },
        "status": { "phase": "Running", "podIP": ip, "conditions": [{ "type": "Ready", "status": ready }] },
    })
}

/// Creates a pod with its status.
pub(crate) fn run_pod(server: &ApiServer, pod: &Value) {
    server.create(pod).unwrap();
    server.replace_status(pod).unwrap();
}

/// The status of a condition, and its reason and message.
pub(crate) fn condition<'v>(object: &'v Value, kind: &str) -> (&'v str, &'v str, &'v str) {
    let list = object["status"]["conditions"].as_array();
    let found = list.into_iter().flatten().find(|condition| condition["type"] == kind);
    found.map_or(("", "", ""), |condition| {
        let text = |name: &str| condition[name].as_str().unwrap_or_default();
        (text("status"), text("reason"), text("message"))
    })
}
