//! Reads: one object, a list in pages, a watch.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, sleep_until};

use crate::Expiry;
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::selector::Selector;
use crate::state::{Shared, State};
use crate::store::{Change, Event};
use crate::table::table;

/// How objects are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Objects,
    Tables,
}

/// A list that is asked for.
#[derive(Debug)]
pub(crate) struct ListOrder {
    pub namespace: String,
    pub selector: Selector,
    pub limit: usize,
    pub token: Option<String>,
    pub shown: Shown,
}

pub(crate) fn list(state: &mut State, resource: &Resource, order: &ListOrder) -> Result<Value, Refusal> {
    let (version, mut items) = match &order.token {
        None => {
            let all = state.store.list(&resource.name(), &order.namespace);
            let found: Vec<Value> =
                all.filter(|object| order.selector.matches(object)).map(|o| (**o).clone()).collect();
            (state.store.version, found)
        }
        Some(token) => {
            if !token.starts_with("page-") {
                return Err(Refusal::bad_request("invalid continue token: continue key is not valid"));
            }
            let at = state.pages.iter().position(|page| page.token == *token);
            let page = at.and_then(|at| state.pages.remove(at));
            page.filter(|page| page.version >= state.store.watchable_from)
                .map(|page| (page.version, page.rest))
                .ok_or_else(|| {
                    Refusal::expired("The provided continue parameter is too old to display a consistent list result.")
                })?
        }
    };
    let rest = if order.limit > 0 && items.len() > order.limit { items.split_off(order.limit) } else { Vec::new() };
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if !rest.is_empty() {
        metadata["remainingItemCount"] = json!(rest.len());
        metadata["continue"] = json!(state.keep_page(version, rest));
    }
    Ok(match order.shown {
        Shown::Tables => {
            let mut shown = table(resource, &items, &version.to_string());
            shown["metadata"] = metadata;
            shown
        }
        Shown::Objects => {
            let kind = format!("{}List", resource.kind);
            // Items of built-in lists do not repeat their kind; custom resources do.
            if resource.schema.is_none() {
                for item in &mut items {
                    let map = crate::patch::object_mut(item);
                    map.remove("kind");
                    map.remove("apiVersion");
                }
            }
            json!({ "kind": kind, "apiVersion": resource.api_version(), "metadata": metadata, "items": items })
        }
    })
}

/// A watch that is asked for.
#[derive(Debug)]
pub(crate) struct WatchOrder {
    pub namespace: String,
    pub selector: Selector,
    /// `None`: begin with what is there.
    pub from: Option<u64>,
    pub timeout: Duration,
    pub bookmarks: Bookmarks,
    pub shown: Shown,
    /// Which connection it is on.
    pub connection: u64,
}

/// Whether a watch is told how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bookmarks {
    Sent,
    None,
}

struct Watching {
    resource: Resource,
    order: WatchOrder,
    at: u64,
    sender: mpsc::Sender<Bytes>,
}

/// Begins a watch. One from a version that is no longer known is told so in an event, or where a test wants it by status.
pub(crate) fn watch(
    shared: &Arc<Shared>,
    resource: &Resource,
    order: WatchOrder,
) -> Result<mpsc::Receiver<Bytes>, Refusal> {
    let (sender, receiver) = mpsc::channel(16);
    let state = shared.lock();
    let mut first: Vec<Bytes> = Vec::new();
    let oldest = state.store.watchable_from;
    let expired = order
        .from
        .filter(|from| *from < oldest)
        .map(|from| Refusal::expired(format!("too old resource version: {from} ({oldest})")));
    if let Some(refusal) = expired {
        match state.expiry {
            Expiry::Status => return Err(refusal),
            Expiry::Event => {
                let _ = sender.try_send(line("ERROR", &refusal.body()));
                return Ok(receiver);
            }
        }
    }
    if order.from.is_none() {
        let all = state.store.list(&resource.name(), &order.namespace);
        first.extend(all.filter(|o| order.selector.matches(o)).map(|o| line("ADDED", &show(resource, order.shown, o))));
    }
    let at = order.from.unwrap_or(state.store.version);
    drop(state);
    let watching = Watching { resource: resource.clone(), order, at, sender };
    tokio::spawn(run(shared.clone(), watching, first));
    Ok(receiver)
}

async fn run(shared: Arc<Shared>, mut watching: Watching, first: Vec<Bytes>) {
    for line in first {
        if watching.sender.send(line).await.is_err() {
            return;
        }
    }
    let end = Instant::now() + watching.order.timeout;
    let every = shared.options.bookmark_every;
    let mut bookmarks = interval_at(Instant::now() + every, every);
    let mut woken = shared.wake.subscribe();
    // Ends at its time, with its resource, or with its reader.
    loop {
        let Some(lines) = watching.news(&shared) else { return };
        for line in lines {
            if watching.sender.send(line).await.is_err() {
                return;
            }
        }
        tokio::select! {
            changed = woken.changed() => if changed.is_err() { return },
            () = watching.sender.closed() => return,
            _ = bookmarks.tick() => if !watching.bookmark(&shared).await { return },
            () = sleep_until(end) => {
                watching.bookmark(&shared).await;
                return;
            }
        }
        while shared.lock().dead_below > watching.order.connection {
            // The other side hears nothing, not even an end.
            if woken.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Watching {
    /// What has happened since; `None` when the resource is no longer there, after the last of it was told.
    fn news(&mut self, shared: &Shared) -> Option<Vec<Bytes>> {
        let state = shared.lock();
        let name = self.resource.name();
        let lines: Vec<Bytes> = state
            .store
            .changes_after(self.at)
            .filter(|change| change.key.resource == name)
            .filter(|change| self.order.namespace.is_empty() || change.key.namespace == self.order.namespace)
            .filter_map(|change| self.told(change))
            .collect();
        self.at = state.store.version;
        let served = state.resource(&self.resource.group, &self.resource.version, &self.resource.plural).is_some();
        (served || !lines.is_empty()).then_some(lines)
    }

    /// A change as this watch sees it: with a selector, objects come and go as their labels change.
    fn told(&self, change: &Change) -> Option<Bytes> {
        let matches = |object: &Value| self.order.selector.matches(object);
        let before = change.before.as_deref().is_some_and(matches);
        let after = change.event != Event::Deleted && matches(&change.after);
        let (word, object) = match (before, after) {
            (false, true) => ("ADDED", &*change.after),
            (true, true) => ("MODIFIED", &*change.after),
            (true, false) if change.event == Event::Deleted => ("DELETED", &*change.after),
            // The object is as it was when it last matched, at the version of the change.
            (true, false) => ("DELETED", &*change.after),
            (false, false) => return None,
        };
        Some(line(word, &show(&self.resource, self.order.shown, object)))
    }

    async fn bookmark(&mut self, shared: &Shared) -> bool {
        if self.order.bookmarks == Bookmarks::None || self.order.shown == Shown::Tables {
            return true;
        }
        let (version, silent) = {
            let state = shared.lock();
            (self.at.max(100), state.dead_below > self.order.connection)
        };
        let object = json!({
            "kind": self.resource.kind, "apiVersion": self.resource.api_version(),
            "metadata": { "resourceVersion": version.to_string(), "creationTimestamp": null },
        });
        silent || self.sender.send(line("BOOKMARK", &object)).await.is_ok()
    }
}

fn show(resource: &Resource, shown: Shown, object: &Value) -> Value {
    match shown {
        Shown::Objects => object.clone(),
        Shown::Tables => {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            table(resource, std::slice::from_ref(object), version)
        }
    }
}

fn line(word: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({ "type": word, "object": object })))
}
