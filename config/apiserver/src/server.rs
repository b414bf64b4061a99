//! The server as tests hold it: started, stopped, made to misbehave, and looked into.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::http::answer;
use crate::state::{Shared, State};
use crate::store::{Effect, Key, Part};
use crate::tls::{self, Identity};
use crate::write::{self, FieldValidation, Terms};
use crate::{Expiry, Options, Seen, Transport};

/// How long a stopped server tries to have its port again.
const REBIND_WITHIN: Duration = Duration::from_secs(60);
/// How long [`ApiServer::wait`] waits.
const WAIT: Duration = Duration::from_secs(180);

/// An API server on a thread of its own; dropping it ends it.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    identity: Option<Identity>,
    shared: Arc<Shared>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

const TERMS: Terms<'_> =
    Terms { part: Part::Main, validation: FieldValidation::Strict, effect: Effect::Kept, manager: "test" };

impl ApiServer {
    /// Starts one with the namespaces `default` and `kube-system`, and nothing else.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(options.address)?;
        let address = listener.local_addr()?;
        let identity = match options.transport {
            Transport::Plain => None,
            Transport::Tls => Some(tls::identity()?),
        };
        let shared = Arc::new(Shared::new(options));
        let mut server = Self { address, identity, shared, running: None };
        for name in ["default", "kube-system"] {
            let namespace =
                serde_json::json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            server.create(&namespace).map_err(io::Error::other)?;
        }
        server.running = Some(run(listener, server.identity.clone(), &server.shared)?);
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A kubeconfig file that leads here.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        let token = self.shared.options.token.as_deref().unwrap_or("none");
        let (scheme, authority) = match &self.identity {
            None => ("http", String::new()),
            Some(identity) => {
                let pem = write::base64(identity.certificate_pem.as_bytes());
                ("https", format!(", certificate-authority-data: {pem}"))
            }
        };
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: stub\n\
             clusters: [{{ name: stub, cluster: {{ server: \"{scheme}://{}\"{authority} }} }}]\n\
             users: [{{ name: stub, user: {{ token: \"{token}\" }} }}]\n\
             contexts: [{{ name: stub, context: {{ cluster: stub, user: stub, namespace: default }} }}]\n",
            self.address
        )
    }

    /// Ends all connections and refuses new ones. What is stored stays.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            // Either may have ended by itself.
            let _ = running.stop.send(());
            let _ = running.thread.join();
        }
    }

    /// Listens again after [`ApiServer::stop`], at the same address. As after a restart of a real server, no version from before
    /// can be watched from.
    ///
    /// # Errors
    /// When the port has been taken by someone else.
    pub fn resume(&mut self) -> io::Result<()> {
        self.stop();
        self.compact();
        let until = Instant::now() + REBIND_WITHIN;
        let listener = loop {
            match TcpListener::bind(self.address) {
                Ok(listener) => break listener,
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => std::thread::yield_now(),
            }
        };
        self.running = Some(run(listener, self.identity.clone(), &self.shared)?);
        Ok(())
    }

    /// Forgets all changes: a watch from before is told 410.
    pub fn compact(&self) {
        self.shared.lock().store.compact();
    }

    /// How watches from before a compaction are told.
    pub fn expire_by(&self, expiry: Expiry) {
        self.shared.lock().expiry = expiry;
    }

    /// All connections of now stay open, and nothing more comes over them: what a lost route looks like. New ones work.
    pub fn go_silent(&self) {
        let mut state = self.shared.lock();
        state.dead_below = state.connections;
        drop(state);
        self.shared.publish();
    }

    /// Refuses a verb on a resource (`pods`, `inferencepools/status`) with 403.
    pub fn forbid(&self, verb: &str, resource: &str) {
        self.shared.lock().forbidden.insert((verb.to_owned(), resource.to_owned()));
    }

    /// Takes back every [`ApiServer::forbid`].
    pub fn allow_all(&self) {
        self.shared.lock().forbidden.clear();
    }

    /// Creates an object as a client would.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn create(&self, object: &Value) -> Result<Value, String> {
        self.change(object, |state, resource, key, object| {
            let namespace = key.namespace.clone();
            write::create(state, resource, &namespace, object, TERMS).map(|written| written.object)
        })
    }

    /// Replaces an object as a client would, whatever its version; without its status.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn replace(&self, object: &Value) -> Result<Value, String> {
        self.change(object, |state, resource, key, object| {
            write::update(state, resource, &key, object, TERMS).map(|written| written.object)
        })
    }

    /// Replaces an object's status.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn replace_status(&self, object: &Value) -> Result<Value, String> {
        self.change(object, |state, resource, key, object| {
            let terms = Terms { part: Part::Status, ..TERMS };
            write::update(state, resource, &key, object, terms).map(|written| written.object)
        })
    }

    /// Puts an object in place that no schema has judged: what an older definition let in. What the schema does not know is
    /// pruned all the same, as a real server does with what it reads from its storage.
    ///
    /// # Errors
    /// When it is there already, or its kind is not served.
    pub fn store_unseen(&self, object: &Value) -> Result<Value, String> {
        self.change(object, |state, resource, key, mut object| {
            if let Some(schema) = &resource.schema {
                crate::schema::prune(schema, &mut object);
                crate::schema::fill_in(schema, &mut object);
            }
            state.store.create(resource, &key, object, &crate::time::now(), Effect::Kept)
        })
    }

    /// Deletes an object at once; of a pod, what its node does at the end.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn delete(&self, object: &Value) -> Result<Value, String> {
        let options = serde_json::json!({ "gracePeriodSeconds": 0 });
        self.change(object, |state, resource, key, _| {
            deleted(write::delete(state, resource, &key, &options, Effect::Kept)?)
        })
    }

    /// Deletes a pod as a client does: it is marked, and ends when its node says so.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn terminate(&self, object: &Value) -> Result<Value, String> {
        let options = serde_json::json!({});
        self.change(object, |state, resource, key, _| {
            deleted(write::delete(state, resource, &key, &options, Effect::Kept)?)
        })
    }

    fn change(
        &self,
        object: &Value,
        change: impl FnOnce(
            &mut State,
            &crate::resource::Resource,
            Key,
            Value,
        ) -> Result<Arc<Value>, crate::refusal::Refusal>,
    ) -> Result<Value, String> {
        let mut state = self.shared.lock();
        let kind = &object["kind"];
        let resource = state.resource_of(object).cloned().ok_or_else(|| format!("the kind {kind} is not served"))?;
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let namespace = match resource.scope {
            crate::resource::Scope::Namespaced => Some(text("namespace")).filter(|n| !n.is_empty()),
            crate::resource::Scope::Cluster => Some(String::new()),
        };
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let key = Key { resource: resource.name(), namespace, name: text("name") };
        let written = change(&mut state, &resource, key, object.clone()).map_err(|refusal| refusal.message);
        drop(state);
        self.shared.publish();
        written.map(|object| (*object).clone())
    }

    /// An object, by `plural.group` (or the plural alone in the core group), namespace and name.
    #[must_use]
    pub fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = Key { resource: resource.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() };
        self.shared.lock().store.object(&key).map(|object| (**object).clone())
    }

    /// All objects of a resource in a namespace (empty: in all).
    #[must_use]
    pub fn objects(&self, resource: &str, namespace: &str) -> Vec<Value> {
        self.shared.lock().store.list(resource, namespace).map(|object| (**object).clone()).collect()
    }

    /// Waits until an object is as wanted, and returns it; `None` when it is not in time.
    #[must_use]
    pub fn wait(&self, resource: &str, namespace: &str, name: &str, wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        let key = Key { resource: resource.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() };
        self.shared.wait(WAIT, |state| {
            state.store.object(&key).filter(|object| wanted(object)).map(|object| (**object).clone())
        })
    }

    /// Waits until the requests are as wanted; `false` when they are not in time.
    #[must_use]
    pub fn wait_seen(&self, wanted: impl Fn(&[Seen]) -> bool) -> bool {
        self.shared
            .wait(WAIT, |state| {
                let seen: Vec<Seen> = state.seen.iter().cloned().collect();
                wanted(&seen).then_some(())
            })
            .is_some()
    }

    /// Requests so far, oldest first.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.lock().seen.iter().cloned().collect()
    }

    /// Forgets the requests so far.
    pub fn forget_seen(&self) {
        self.shared.lock().seen.clear();
    }
}

fn deleted(deleted: crate::store::Deleted) -> Result<Arc<Value>, crate::refusal::Refusal> {
    match deleted {
        crate::store::Deleted::Gone(object) | crate::store::Deleted::Marked(object) => Ok(object),
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Serves on a thread of its own until told to stop; every connection ends with it.
fn run(listener: TcpListener, identity: Option<Identity>, shared: &Arc<Shared>) -> io::Result<Running> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = oneshot::channel();
    let shared = shared.clone();
    let thread = std::thread::Builder::new().name("apiserver".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = stopped => {}
                _ = serve(listener, identity, shared) => {}
            }
        });
        runtime.shutdown_background();
    })?;
    Ok(Running { stop, thread })
}

async fn serve(listener: TcpListener, identity: Option<Identity>, shared: Arc<Shared>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        let number = {
            let mut state = shared.lock();
            state.connections += 1;
            state.connections - 1
        };
        let (shared, identity) = (shared.clone(), identity.clone());
        connections.spawn(async move {
            let service = service_fn(move |request| answer(shared.clone(), number, request));
            // A client that goes away is no matter, nor one that does not believe us.
            match identity {
                None => _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await,
                Some(identity) => {
                    if let Ok(stream) = identity.acceptor.accept(stream).await {
                        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                    }
                }
            }
        });
    }
}
