//! Documents from a Kubernetes API server.
//!
//! One task per resource lists and watches it ([`watch`]); one task keeps what they bring, judges the whole set after a
//! quiet moment ([`set`]) and hands out what is new: a snapshot, the pods behind selectors, whether the server is there.
//! Where it is away, nothing is handed out and everything stays as it is. The gateway that holds the lease ([`lease`])
//! writes what became of each object into its status, and warnings as Events ([`writer`]).
//!
//! The first snapshot waits for all six kinds, and for the Secrets they name: a set without its tenants would let everyone
//! in. A resource that is not served or not allowed is waited for, and told of.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::SystemTime;

use crds::Kind;
use k8s_openapi::api::core::v1 as core;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::DynamicObject;
use kube::{Api, Client};
use policy::{Code, Diagnostic};
use tokio::sync::{mpsc, watch as latest};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::cluster::{ClusterNews, Contact, Feedback, PodEndpoint, Pods, Settings};
use super::files::{FileState, secret_files};
use crate::limits::{POLL, SECRETS_MAX, SELECTORS_MAX, SETTLE, SETTLE_MAX};
use crate::secret::Lookup;
use crate::snapshot::{ResourceId, Snapshot};

mod backoff;
mod item;
mod lease;
mod set;
mod status;
mod watch;
mod writer;

use item::{Item, Key, Pod, PodSelector, SecretData, Subject};
use lease::Role;
use set::{Objects, Settled, Verdict};
use status::{Taken, Tally};
use watch::{Failure, Follow, News, Told};
use writer::{Desk, Facts, Write, Written};

/// News of watches that wait to be looked at; watches wait when there are more.
const TOLD_MAX: usize = 1_024;
/// News that wait to be taken; the source goes on when there is room.
const NEWS_MAX: usize = 16;
/// Writes that are under way.
const WRITES_MAX: usize = crate::limits::STATUS_WRITES_MAX * 2;
/// How often it is looked whether there is something to write.
const WRITE_EVERY: std::time::Duration = std::time::Duration::from_millis(250);

/// A followed cluster. Dropping it ends everything that follows it.
#[derive(Debug)]
pub struct Cluster {
    news: mpsc::Receiver<ClusterNews>,
    task: JoinHandle<()>,
}

impl Cluster {
    /// Begins to follow. To be called on a tokio runtime with time and network enabled. Statuses say what `feedback` does.
    #[must_use]
    pub fn follow(settings: Settings, feedback: latest::Receiver<Feedback>) -> Self {
        let (sender, news) = mpsc::channel(NEWS_MAX);
        let task = tokio::spawn(run(settings, sender, feedback));
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

/// The client of the settings, and the namespace that stands for "here".
async fn client(settings: &Settings) -> Result<(Client, String), String> {
    let config = match &settings.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let options = KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(file, &options).await;
            config.map_err(|error| format!("{}: {error}", path.display()))?
        }
        None => match kube::Config::incluster() {
            Ok(config) => config,
            Err(_) => kube::Config::infer().await.map_err(|error| error.to_string())?,
        },
    };
    let mut config = config;
    // Attempts are this source's business: each must be seen to be told of.
    config.default_retry = false;
    let namespace = settings.lease_namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).map_err(|error| error.to_string())?;
    Ok((client, namespace))
}

async fn run(settings: Settings, sender: mpsc::Sender<ClusterNews>, feedback: latest::Receiver<Feedback>) {
    let mut pause = backoff::Backoff::default();
    let mut told = String::new();
    // A kubeconfig may be written after this process has started. Ends when it can be read, or with whoever listens.
    let (client, namespace) = loop {
        match client(&settings).await {
            Ok(client) => break client,
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
    let _election = Task(tokio::spawn(lease::run(client.clone(), namespace, settings.identity.clone(), role_sender)));
    Follower::new(settings, client, sender, feedback, role).run().await;
}

/// Everything that is known of the cluster.
struct Follower {
    settings: Settings,
    client: Client,
    sender: mpsc::Sender<ClusterNews>,
    feedback: latest::Receiver<Feedback>,
    role: latest::Receiver<Role>,
    told: (mpsc::Sender<Told>, mpsc::Receiver<Told>),
    written: (mpsc::Sender<Written>, mpsc::Receiver<Written>),
    tasks: BTreeMap<Subject, Task>,
    /// Resources that were listed, and those that failed since without being reached again.
    listed: BTreeSet<Subject>,
    failing: BTreeMap<Subject, Failure>,
    /// What was last told; `None` before anything was.
    contact: Option<Contact>,
    objects: Objects,
    good: Objects,
    verdicts: BTreeMap<Key, Verdict>,
    in_force: Snapshot,
    secrets: BTreeMap<ResourceId, SecretData>,
    pods: BTreeMap<PodSelector, BTreeMap<ResourceId, Pod>>,
    /// What was last handed out.
    told_pods: Pods,
    told_refusal: Vec<Diagnostic>,
    /// Files of credentials in force, and the state they had.
    files: Vec<(PathBuf, Option<FileState>)>,
    /// What went beyond a bound, and was told.
    beyond: BTreeMap<&'static str, usize>,
    generation: u64,
    dirty: Dirty,
    desk: Desk,
    writing: usize,
}

/// What has changed since it was last looked at, and since when.
#[derive(Clone, Copy, Debug, Default)]
struct Dirty {
    set: Option<(Instant, Instant)>,
    pods: bool,
}

impl Dirty {
    fn set(&mut self) {
        let now = Instant::now();
        let first = self.set.map_or(now, |(first, _)| first);
        self.set = Some((first, now));
    }

    /// When the set is to be judged.
    fn due(self) -> Option<Instant> {
        self.set.map(|(first, last)| (last + SETTLE).min(first + SETTLE_MAX))
    }
}

impl Follower {
    fn new(
        settings: Settings,
        client: Client,
        sender: mpsc::Sender<ClusterNews>,
        feedback: latest::Receiver<Feedback>,
        role: latest::Receiver<Role>,
    ) -> Self {
        Self {
            settings,
            client,
            sender,
            feedback,
            role,
            told: mpsc::channel(TOLD_MAX),
            written: mpsc::channel(WRITES_MAX),
            tasks: BTreeMap::new(),
            listed: BTreeSet::new(),
            failing: BTreeMap::new(),
            contact: None,
            objects: Objects::new(),
            good: Objects::new(),
            verdicts: BTreeMap::new(),
            in_force: Snapshot::default(),
            secrets: BTreeMap::new(),
            pods: BTreeMap::new(),
            told_pods: Pods::new(),
            told_refusal: Vec::new(),
            files: Vec::new(),
            beyond: BTreeMap::new(),
            generation: 0,
            dirty: Dirty::default(),
            desk: Desk::default(),
            writing: 0,
        }
    }

    /// Runs until nobody listens.
    async fn run(mut self) {
        let mut namespaces = self.settings.namespaces.clone();
        if namespaces.is_empty() {
            namespaces.push(String::new());
        }
        for kind in Kind::CUSTOM_RESOURCES {
            for namespace in &namespaces {
                self.follow(Subject::Objects { kind, namespace: namespace.clone() });
            }
        }
        let mut write = tokio::time::interval(WRITE_EVERY);
        let mut look = tokio::time::interval(POLL);
        for ticks in [&mut write, &mut look] {
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        // Each turn is one piece of news; ends when nobody listens.
        loop {
            let due = self.dirty.due();
            let heard = tokio::select! {
                Some(told) = self.told.1.recv() => {
                    let mut heard = self.heard(told).await;
                    // What waits belongs to the same change; no more than the channel holds.
                    for _ in 0..TOLD_MAX {
                        let Ok(told) = self.told.1.try_recv() else { break };
                        heard = heard && self.heard(told).await;
                    }
                    heard && self.tell_pods().await
                }
                () = until(due) => self.settle().await,
                Some(written) = self.written.1.recv() => self.wrote(&written).await,
                _ = write.tick() => { self.write(); true }
                _ = look.tick() => { self.look_at_files(); true }
                () = self.sender.closed() => false,
            };
            if !heard {
                return;
            }
        }
    }

    /// Takes in what a watch tells; `false` when nobody listens any more.
    async fn heard(&mut self, told: Told) -> bool {
        let Told { subject, news } = told;
        if !self.tasks.contains_key(&subject) {
            // Of a watch that has ended meanwhile.
            return true;
        }
        match news {
            News::All(items) => {
                self.forget(&subject, &items);
                let first = self.listed.insert(subject.clone());
                let changed = items.into_iter().fold(first, |changed, item| self.put(&subject, item) || changed);
                if changed {
                    self.changed(&subject);
                }
                self.reached(&subject).await
            }
            News::Put(item) => {
                if self.put(&subject, item) {
                    self.changed(&subject);
                }
                true
            }
            News::Gone(item) => {
                self.gone(&subject, &item);
                self.changed(&subject);
                true
            }
            News::Reached => self.reached(&subject).await,
            News::Failed(failure) => self.failed(subject, failure).await,
        }
    }

    fn changed(&mut self, subject: &Subject) {
        match subject {
            Subject::Objects { .. } | Subject::Secret(_) => self.dirty.set(),
            Subject::Pods(_) if self.generation == 0 => self.dirty.set(),
            Subject::Pods(_) => self.dirty.pods = true,
        }
    }

    /// Removes what a list no longer has.
    fn forget(&mut self, subject: &Subject, items: &[Item]) {
        match subject {
            Subject::Objects { kind, namespace } => {
                let kept: BTreeSet<&Key> = items
                    .iter()
                    .filter_map(|item| match item {
                        Item::Object(object) => Some(&object.key),
                        Item::Pod(_) | Item::Secret(_) => None,
                    })
                    .collect();
                let before = self.objects.len();
                self.objects.retain(|key, _| {
                    let listed = key.kind == *kind && (namespace.is_empty() || key.id.namespace == *namespace);
                    !listed || kept.contains(key)
                });
                if self.objects.len() != before {
                    self.dirty.set();
                }
            }
            Subject::Pods(selector) => {
                self.pods.insert(selector.clone(), BTreeMap::new());
                self.dirty.pods = true;
            }
            Subject::Secret(id) => {
                if items.is_empty() && self.secrets.remove(id).is_some() {
                    self.dirty.set();
                }
            }
        }
    }

    /// Whether it is news.
    fn put(&mut self, subject: &Subject, item: Item) -> bool {
        match (item, subject) {
            (Item::Object(object), Subject::Objects { .. }) => {
                let same = self.objects.get(&object.key).is_some_and(|had| {
                    had.spec == object.spec && had.uid == object.uid && had.generation == object.generation
                });
                self.objects.insert(object.key.clone(), object);
                !same
            }
            (Item::Pod(pod), Subject::Pods(selector)) => {
                let pods = self.pods.entry(selector.clone()).or_default();
                pods.insert(pod.id.clone(), pod.clone()) != Some(pod)
            }
            (Item::Secret(secret), Subject::Secret(id)) => {
                let same = self.secrets.get(id) == Some(&secret);
                self.secrets.insert(id.clone(), secret);
                !same
            }
            (Item::Object(_) | Item::Pod(_) | Item::Secret(_), _) => false,
        }
    }

    fn gone(&mut self, subject: &Subject, item: &Item) {
        match (item, subject) {
            (Item::Object(object), Subject::Objects { .. }) => _ = self.objects.remove(&object.key),
            (Item::Pod(pod), Subject::Pods(selector)) => {
                if let Some(pods) = self.pods.get_mut(selector) {
                    pods.remove(&pod.id);
                }
            }
            (Item::Secret(_), Subject::Secret(id)) => _ = self.secrets.remove(id),
            (Item::Object(_) | Item::Pod(_) | Item::Secret(_), _) => {}
        }
    }

    async fn reached(&mut self, subject: &Subject) -> bool {
        let recovered = self.failing.remove(subject).is_some();
        let told = !recovered || self.note(format!("{subject}: can be read again")).await;
        told && self.contact().await
    }

    async fn failed(&mut self, subject: Subject, failure: Failure) -> bool {
        let known = self.failing.get(&subject) == Some(&failure);
        let note = match (&failure, known) {
            (Failure::Absent | Failure::Refused(_) | Failure::Invalid(_), false) => {
                Some(format!("{subject}: {failure}"))
            }
            (Failure::Absent | Failure::Refused(_) | Failure::Invalid(_), true) => None,
            (Failure::Expired | Failure::Away(_), _) => None,
        };
        // A Secret or pods that may not be read hold nothing up: their destinations are not ready.
        let waited_for = matches!(subject, Subject::Secret(_) | Subject::Pods(_)) && !self.listed.contains(&subject);
        if waited_for && !self.failing.contains_key(&subject) {
            self.changed(&subject);
        }
        self.failing.insert(subject, failure);
        let told = match note {
            Some(note) => self.note(note).await,
            None => true,
        };
        told && self.contact().await
    }

    /// Tells when there is more of something than is followed; `false` when nobody listens any more.
    async fn within(&mut self, what: &'static str, count: usize, most: usize) -> bool {
        if count <= most {
            self.beyond.remove(what);
            return true;
        }
        if self.beyond.insert(what, count) == Some(count) {
            return true;
        }
        self.note(format!("there are {count} {what}; {most} are followed, the others are as if they were not there"))
            .await
    }

    async fn note(&self, text: String) -> bool {
        self.sender.send(ClusterNews::Note(text)).await.is_ok()
    }

    /// Tells when the server went away or came back: it is away while any of our kinds cannot be read for want of an answer.
    async fn contact(&mut self) -> bool {
        let lost = self.failing.iter().find_map(|(subject, failure)| match (subject, failure) {
            (Subject::Objects { .. }, Failure::Away(why)) => Some(format!("{subject}: {why}")),
            (Subject::Objects { .. } | Subject::Pods(_) | Subject::Secret(_), _) => None,
        });
        let contact = match (lost, &self.contact) {
            (None, Some(Contact::With)) | (Some(_), Some(Contact::Without { .. })) => return true,
            (None, Some(Contact::Without { .. }) | None) => Contact::With,
            (Some(why), Some(Contact::With) | None) => Contact::Without { since: SystemTime::now(), why },
        };
        self.contact = Some(contact.clone());
        self.sender.send(ClusterNews::Contact(contact)).await.is_ok()
    }

    fn follow(&mut self, subject: Subject) {
        if self.tasks.contains_key(&subject) {
            return;
        }
        let (told, lasts) = (self.told.0.clone(), self.settings.watch_lasts);
        let task = match &subject {
            Subject::Objects { kind, namespace } => {
                let resource = writer::resource(*kind);
                let api = match namespace.as_str() {
                    "" => Api::all_with(self.client.clone(), &resource),
                    namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
                };
                let (labels, fields, read) = (None, None, item::object as fn(&_, _) -> _);
                let follow =
                    Follow::<DynamicObject> { subject: subject.clone(), api, labels, fields, read, lasts, told };
                tokio::spawn(follow.run())
            }
            Subject::Pods(selector) => {
                let api = Api::namespaced(self.client.clone(), &selector.namespace);
                let labels: Vec<String> = selector.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                let (labels, fields, read) = (Some(labels.join(",")), None, item::pod as fn(&_, _) -> _);
                let follow = Follow::<core::Pod> { subject: subject.clone(), api, labels, fields, read, lasts, told };
                tokio::spawn(follow.run())
            }
            Subject::Secret(id) => {
                let api = Api::namespaced(self.client.clone(), &id.namespace);
                let fields = Some(format!("metadata.name={}", id.name));
                let (labels, read) = (None, item::secret as fn(&_, _) -> _);
                let follow =
                    Follow::<core::Secret> { subject: subject.clone(), api, labels, fields, read, lasts, told };
                tokio::spawn(follow.run())
            }
        };
        self.tasks.insert(subject, Task(task));
    }

    /// Ends what is no longer followed, begins what is, and says whether all that is wanted was heard of.
    fn follow_only(&mut self, wanted: &BTreeSet<Subject>, is_of_these: fn(&Subject) -> bool) -> bool {
        let ended: Vec<Subject> =
            self.tasks.keys().filter(|subject| is_of_these(subject) && !wanted.contains(subject)).cloned().collect();
        for subject in ended {
            self.tasks.remove(&subject);
            self.listed.remove(&subject);
            self.failing.remove(&subject);
            match &subject {
                Subject::Secret(id) => _ = self.secrets.remove(id),
                Subject::Pods(selector) => _ = self.pods.remove(selector),
                Subject::Objects { .. } => {}
            }
        }
        for subject in wanted {
            self.follow(subject.clone());
        }
        wanted.iter().all(|subject| self.listed.contains(subject) || self.failing.contains_key(subject))
    }

    /// Judges the set and hands it out; `false` when nobody listens any more.
    async fn settle(&mut self) -> bool {
        self.dirty.set = None;
        let kinds = |subject: &Subject| matches!(subject, Subject::Objects { .. });
        if self.tasks.keys().any(|subject| kinds(subject) && !self.listed.contains(subject)) {
            return true;
        }
        let secrets = set::secrets(&self.objects);
        if !self.within("Secrets", secrets.len(), SECRETS_MAX).await {
            return false;
        }
        let wanted = secrets.into_iter().take(SECRETS_MAX).map(Subject::Secret).collect();
        let known = self.follow_only(&wanted, |subject| matches!(subject, Subject::Secret(_)));
        if !known {
            // Their news come here again.
            return true;
        }
        let (objects, good, secrets) = (self.objects.clone(), self.good.clone(), self.secrets.clone());
        let judged = tokio::task::spawn_blocking(move || {
            let find = |namespace: &str, name: &str, key: &str| {
                let id = ResourceId { namespace: namespace.to_owned(), name: name.to_owned() };
                secrets.get(&id).and_then(|secret| secret.values.get(key).cloned())
            };
            set::settle(&objects, &good, &Lookup::Cluster { secret_refs: &find })
        });
        match judged.await {
            Ok(Ok(settled)) => {
                self.told_refusal.clear();
                self.put_in_force(settled).await
            }
            Ok(Err(findings)) if findings == self.told_refusal => true,
            Ok(Err(findings)) => {
                self.told_refusal.clone_from(&findings);
                self.sender.send(ClusterNews::Refused(findings)).await.is_ok()
            }
            Err(_) => {
                let message = "judging the objects panicked; what was in force stays";
                self.sender.send(ClusterNews::Refused(vec![Diagnostic::new(Code::OverLimit, message)])).await.is_ok()
            }
        }
    }

    async fn put_in_force(&mut self, settled: Settled) -> bool {
        let Settled { mut snapshot, verdicts, good } = settled;
        let selectors: BTreeSet<PodSelector> = snapshot
            .worker_sets
            .iter()
            .filter(|set| !set.selector.is_empty())
            .map(|set| PodSelector { namespace: set.id.namespace.clone(), labels: set.selector.clone() })
            .collect();
        if !self.within("selectors of pods", selectors.len(), SELECTORS_MAX).await {
            return false;
        }
        let wanted = selectors.into_iter().take(SELECTORS_MAX).map(Subject::Pods).collect();
        let known = self.follow_only(&wanted, |subject| matches!(subject, Subject::Pods(_)));
        if !known && self.generation == 0 {
            // The first snapshot comes with its pods: a gateway that is ready must have somewhere to send requests. Their
            // news come here again.
            return true;
        }
        self.generation += 1;
        snapshot.generation = self.generation;
        (self.verdicts, self.good) = (verdicts, good);
        self.in_force = snapshot.clone();
        self.files = secret_files(&snapshot).into_iter().map(|path| (path.clone(), FileState::of(&path))).collect();
        self.dirty.pods = true;
        self.tell_pods().await && self.sender.send(ClusterNews::Snapshot(Box::new(snapshot))).await.is_ok()
    }

    /// Hands out the pods when they have changed. A worker set whose pods are not known yet keeps those it had.
    async fn tell_pods(&mut self) -> bool {
        if !std::mem::take(&mut self.dirty.pods) || self.generation == 0 {
            return true;
        }
        let sets = self.in_force.worker_sets.iter().filter(|set| !set.selector.is_empty());
        let pods: Pods = sets
            .map(|set| {
                let selector = PodSelector { namespace: set.id.namespace.clone(), labels: set.selector.clone() };
                let known = self.listed.contains(&Subject::Pods(selector.clone()));
                let found = self.pods.get(&selector).filter(|_| known);
                let had = || self.told_pods.get(&set.id).cloned().unwrap_or_default();
                (set.id.clone(), found.map_or_else(had, endpoints))
            })
            .collect();
        if pods == self.told_pods {
            return true;
        }
        self.told_pods.clone_from(&pods);
        self.sender.send(ClusterNews::Pods(pods)).await.is_ok()
    }

    /// A credential's file that has changed is a change of the set.
    fn look_at_files(&mut self) {
        if self.files.iter().any(|(path, state)| FileState::of(path) != *state) {
            self.dirty.set();
        }
    }

    /// Begins the writes that are due, when it is this process that writes.
    fn write(&mut self) {
        if *self.role.borrow() == Role::Reader || self.writing > 0 || self.generation == 0 {
            return;
        }
        let feedback = self.feedback.borrow().clone();
        let tally = Tally::new(&self.in_force, &feedback.worker_sets, &feedback.providers);
        let taken = if feedback.generation >= self.generation { Taken::Over } else { Taken::NotYet };
        let facts = Facts { objects: &self.objects, verdicts: &self.verdicts, tally: &tally, taken };
        let due: Vec<Write> = self.desk.due(&facts, Instant::now());
        self.writing = due.len();
        if due.is_empty() {
            return;
        }
        let (client, identity, written) = (self.client.clone(), self.settings.identity.clone(), self.written.0.clone());
        tokio::spawn(async move {
            for write in due {
                if written.send(writer::make(&client, &identity, write).await).await.is_err() {
                    return;
                }
            }
        });
    }

    async fn wrote(&mut self, written: &Written) -> bool {
        self.writing = self.writing.saturating_sub(1);
        self.desk.wrote(written, Instant::now());
        match (&written.write, &written.result) {
            (Write::Status { key, .. }, Err(failure @ (Failure::Refused(_) | Failure::Invalid(_)))) => {
                self.note(format!("the status of {} {} cannot be written: {failure}", key.kind, key.id)).await
            }
            (Write::Status { .. } | Write::Event { .. }, _) => true,
        }
    }
}

fn endpoints(pods: &BTreeMap<ResourceId, Pod>) -> Vec<PodEndpoint> {
    let listed = pods.values().filter_map(|pod| {
        let (name, uid) = (pod.id.name.clone(), pod.uid.clone());
        Some(PodEndpoint { name, uid, ip: pod.ip?, state: pod.state })
    });
    listed.collect()
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
