//! What follows a cluster: takes in what the watches tell, judges the set after a quiet moment, hands out what is new, and
//! has statuses written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crds::Kind;
use k8s_openapi::api::core::v1 as core;
use kube::core::DynamicObject;
use kube::{Api, Client};
use policy::{Code, Diagnostic};
use tokio::sync::{mpsc, watch as latest};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::Task;
use super::item::{self, Key, PodSelector, Subject};
use super::known::{Changed, Known};
use super::lease::Role;
use super::reach::Reach;
use super::set::{self, Objects, Settled, Verdict};
use super::status::{Taken, Tally};
use super::watch::{Failure, Follow, News, Told};
use super::writer::{self, Desk, Facts, Write, Written};
use crate::limits::{ANSWER_WITHIN, POLL, SECRETS_MAX, SELECTORS_MAX, SETTLE, SETTLE_MAX, STATUS_WRITES_MAX};
use crate::secret::Lookup;
use crate::snapshot::{ResourceId, Snapshot};
use crate::source::cluster::{ClusterNews, Feedback, Pods, Settings};
use crate::source::files::{FileState, secret_files};

/// News of watches that wait to be looked at; watches wait when there are more.
const TOLD_MAX: usize = 1_024;
/// Writes that are under way.
const WRITES_MAX: usize = STATUS_WRITES_MAX * 2;
/// How often it is looked whether there is something to write.
const WRITE_EVERY: Duration = Duration::from_millis(250);

/// Everything that is known of the cluster.
pub(super) struct Follower {
    settings: Settings,
    client: Client,
    sender: mpsc::Sender<ClusterNews>,
    feedback: latest::Receiver<Feedback>,
    role: latest::Receiver<Role>,
    told: (mpsc::Sender<Told>, mpsc::Receiver<Told>),
    written: (mpsc::Sender<Written>, mpsc::Receiver<Written>),
    tasks: BTreeMap<Subject, Task>,
    /// The server's address, for people.
    server: String,
    reach: Reach,
    known: Known,
    good: Objects,
    verdicts: BTreeMap<Key, Verdict>,
    in_force: Snapshot,
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
    pub(super) fn new(
        settings: Settings,
        (client, server): (Client, String),
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
            reach: Reach::of(server.clone()),
            server,
            known: Known::default(),
            good: Objects::new(),
            verdicts: BTreeMap::new(),
            in_force: Snapshot::default(),
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
    pub(super) async fn run(mut self) {
        let mut namespaces = self.settings.namespaces.clone();
        if namespaces.is_empty() {
            namespaces.push(String::new());
        }
        for kind in Kind::CUSTOM_RESOURCES {
            for namespace in &namespaces {
                self.follow(Subject::Objects { kind, namespace: namespace.clone() });
            }
        }
        let (mut write, mut look) = (interval(WRITE_EVERY), interval(POLL));
        for ticks in [&mut write, &mut look] {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let mut overdue = Some(Instant::now() + ANSWER_WITHIN);
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
                () = until(overdue) => {
                    overdue = None;
                    self.reach.is_overdue();
                    self.tell_waiting().await
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
                let first = self.reach.list(&subject);
                if self.known.list(&subject, items) == Changed::Yes || first {
                    self.changed(&subject);
                }
                self.reached(&subject).await
            }
            News::Put(item) => {
                if self.known.put(&subject, item) == Changed::Yes {
                    self.changed(&subject);
                }
                true
            }
            News::Gone(item) => {
                self.known.remove(&subject, &item);
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

    async fn reached(&mut self, subject: &Subject) -> bool {
        let note = self.reach.reached(subject).filter(|_| !self.is_waited_for(subject));
        self.tell_reach(note).await
    }

    async fn failed(&mut self, subject: Subject, failure: Failure) -> bool {
        // A Secret or pods that may not be read hold nothing up: their destinations are not ready.
        if !matches!(subject, Subject::Objects { .. }) && !self.reach.has_heard_of(&subject) {
            self.changed(&subject);
        }
        let waited_for = self.is_waited_for(&subject);
        let note = self.reach.failed(subject, &failure).filter(|_| !waited_for);
        self.tell_reach(note).await
    }

    /// Whether the first snapshot waits for it: that is told of as a whole.
    fn is_waited_for(&self, subject: &Subject) -> bool {
        self.generation == 0 && matches!(subject, Subject::Objects { .. })
    }

    /// Tells what has changed about what can be read; `false` when nobody listens any more.
    async fn tell_reach(&mut self, note: Option<String>) -> bool {
        if let Some(note) = note
            && !self.note(note).await
        {
            return false;
        }
        if let Some(contact) = self.reach.contact()
            && !self.tell(ClusterNews::Contact(contact)).await
        {
            return false;
        }
        self.tell_waiting().await
    }

    /// Tells what the first snapshot waits for, when that has changed; `false` when nobody listens any more.
    async fn tell_waiting(&mut self) -> bool {
        let kinds = self.tasks.keys().filter(|subject| matches!(subject, Subject::Objects { .. }));
        match self.reach.waiting(kinds) {
            Some(waiting) if self.generation == 0 => self.tell(ClusterNews::Waiting(waiting)).await,
            Some(_) | None => true,
        }
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
        self.tell(ClusterNews::Note(format!("{}: {text}", self.server))).await
    }

    /// Whether anybody listens.
    async fn tell(&self, news: ClusterNews) -> bool {
        self.sender.send(news).await.is_ok()
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
            self.reach.forget(&subject);
            self.known.forget(&subject);
        }
        for subject in wanted {
            self.follow(subject.clone());
        }
        wanted.iter().all(|subject| self.reach.has_heard_of(subject))
    }

    /// Judges the set and hands it out; `false` when nobody listens any more.
    async fn settle(&mut self) -> bool {
        self.dirty.set = None;
        let kinds = |subject: &Subject| matches!(subject, Subject::Objects { .. });
        if self.tasks.keys().any(|subject| kinds(subject) && !self.reach.has_listed(subject)) {
            return true;
        }
        let secrets = set::secrets(&self.known.objects);
        if !self.within("Secrets", secrets.len(), SECRETS_MAX).await {
            return false;
        }
        let wanted = secrets.into_iter().take(SECRETS_MAX).map(Subject::Secret).collect();
        let known = self.follow_only(&wanted, |subject| matches!(subject, Subject::Secret(_)));
        if !known {
            // Their news come here again.
            return true;
        }
        let (objects, good, secrets) = (self.known.objects.clone(), self.good.clone(), self.known.secrets.clone());
        let credentials = self.settings.credentials;
        let judged = tokio::task::spawn_blocking(move || {
            let find = |namespace: &str, name: &str, key: &str| {
                let id = ResourceId { namespace: namespace.to_owned(), name: name.to_owned() };
                secrets.get(&id).and_then(|secret| secret.values.get(key).cloned())
            };
            set::settle(&objects, &good, &Lookup::Cluster { secret_refs: &find, credentials })
        });
        match judged.await {
            Ok(Ok(settled)) => {
                self.told_refusal.clear();
                self.put_in_force(settled).await
            }
            Ok(Err(findings)) if findings == self.told_refusal => true,
            Ok(Err(findings)) => {
                self.told_refusal.clone_from(&findings);
                self.tell(ClusterNews::Refused(findings)).await
            }
            Err(_) => {
                let message = "judging the objects panicked; what was in force stays";
                self.tell(ClusterNews::Refused(vec![Diagnostic::new(Code::OverLimit, message)])).await
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
        self.tell_pods().await && self.tell(ClusterNews::Snapshot(Box::new(snapshot))).await
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
                let known = self.reach.has_listed(&Subject::Pods(selector.clone()));
                let found = self.known.endpoints(&selector).filter(|_| known);
                let had = || self.told_pods.get(&set.id).cloned().unwrap_or_default();
                (set.id.clone(), found.unwrap_or_else(had))
            })
            .collect();
        if pods == self.told_pods {
            return true;
        }
        self.told_pods.clone_from(&pods);
        self.tell(ClusterNews::Pods(pods)).await
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
        let facts = Facts { objects: &self.known.objects, verdicts: &self.verdicts, tally: &tally, taken };
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

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
