//! What all connections share: the store, what the tests want to go wrong, and what was asked.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use crate::resource::{Resource, built_in, defined};
use crate::store::Store;
use crate::{Expiry, Options, Seen};

/// Requests that are remembered.
const SEEN_MAX: usize = 20_000;
/// Lists that are being read page by page.
const PAGES_MAX: usize = 64;

/// The rest of a list that is read page by page.
#[derive(Debug)]
pub(crate) struct Page {
    pub token: String,
    pub version: u64,
    pub rest: Vec<Value>,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub store: Store,
    pub resources: Vec<Resource>,
    pub pages: VecDeque<Page>,
    pub seen: VecDeque<Seen>,
    pub forbidden: BTreeSet<(String, String)>,
    pub expiry: Expiry,
    /// Connections that were made before this many were, are dead: they stay open and nothing comes.
    pub dead_below: u64,
    pub connections: u64,
    /// The number of the next page of a list.
    pub tokens: u64,
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Tells watches to look.
    pub wake: watch::Sender<()>,
    pub options: Options,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Self {
        let state = State {
            store: Store::new(),
            resources: built_in(),
            pages: VecDeque::new(),
            seen: VecDeque::new(),
            forbidden: BTreeSet::new(),
            expiry: Expiry::Event,
            dead_below: 0,
            connections: 0,
            tokens: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), wake: watch::Sender::new(()), options }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called after a change, without the lock.
    pub(crate) fn publish(&self) {
        self.changed.notify_all();
        self.wake.send_replace(());
    }

    /// Waits until `found` finds something, at most for `within`.
    pub(crate) fn wait<T>(&self, within: std::time::Duration, mut found: impl FnMut(&State) -> Option<T>) -> Option<T> {
        let until = std::time::Instant::now() + within;
        let mut state = self.lock();
        loop {
            if let Some(found) = found(&state) {
                return Some(found);
            }
            let left = until.checked_duration_since(std::time::Instant::now())?;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    pub(crate) fn saw(&mut self, seen: Seen) {
        if self.seen.len() >= SEEN_MAX {
            self.seen.pop_front();
        }
        self.seen.push_back(seen);
    }

    pub(crate) fn keep_page(&mut self, version: u64, rest: Vec<Value>) -> String {
        if self.pages.len() >= PAGES_MAX {
            self.pages.pop_front();
        }
        self.tokens += 1;
        let token = format!("page-{}", self.tokens);
        self.pages.push_back(Page { token: token.clone(), version, rest });
        token
    }

    /// Serves what the CustomResourceDefinitions of now define; objects of those that are gone go with them.
    pub(crate) fn redefine(&mut self) {
        let definitions: Vec<Value> =
            self.store.list("customresourcedefinitions.apiextensions.k8s.io", "").map(|d| (**d).clone()).collect();
        self.resources = built_in();
        self.resources.extend(definitions.iter().flat_map(defined));
        let names: BTreeSet<String> = self.resources.iter().map(Resource::name).collect();
        self.store.delete_where(|key| !names.contains(&key.resource));
    }

    pub(crate) fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Resource> {
        self.resources.iter().find(|r| r.group == group && r.version == version && r.plural == plural)
    }

    /// The resource of an object, by its `apiVersion` and `kind`.
    pub(crate) fn resource_of(&self, object: &Value) -> Option<&Resource> {
        let (version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
        self.resources.iter().find(|resource| resource.api_version() == version && resource.kind == kind)
    }
}
