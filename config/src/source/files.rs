//! Documents from files and folders, watched.
//!
//! A change is in force within a second: filesystem events wake the reader, which waits for a quiet
//! moment and reads the whole set again. What is compared is the content, not the events, so an editor's
//! several writes, a `touch`, or the symlink swap of a mounted ConfigMap are one change or none. A look at
//! the files' metadata each second finds what sends no event (the target of a link that lies elsewhere, a network
//! mount), and a slow poll that reads everything stands behind both.
//!
//! A set is in force whole or not at all: what may be a document and cannot be read (a link to nothing, a pipe, a folder too
//! deep) refuses the set, since one without its tenants would let everyone in. So does a set of which nothing is left.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::Metadata;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use policy::{Code, Diagnostic};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::limits::{DEBOUNCE, DEBOUNCE_MAX, FILE_BYTES_MAX, FILES_MAX, FINDINGS_MAX, FOLDER_DEPTH_MAX, LOOK, POLL};
use crate::load::{SourceFile, about_file};
use crate::lower::load;
use crate::secret::{Auth, Lookup, SecretSource};
use crate::snapshot::{Authorities, Snapshot};

/// How often a set of files is read again when a file was replaced while it was being read.
const READ_ATTEMPTS_MAX: u32 = 5;

/// When files are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchSettings {
    /// Quiet time after an event before the set is read.
    pub debounce: Duration,
    /// Time between two looks at the files' metadata without an event.
    pub look: Duration,
    /// Time between two readings without an event or another metadata.
    pub poll: Duration,
}

impl Default for WatchSettings {
    fn default() -> Self {
        Self { debounce: DEBOUNCE, look: LOOK, poll: POLL }
    }
}

/// A watched set of files. Dropping it ends the watch.
#[derive(Debug)]
pub struct FileWatch {
    sets: mpsc::Receiver<Result<Snapshot, Vec<Diagnostic>>>,
    task: JoinHandle<()>,
}

impl FileWatch {
    /// The next state of the set: first what is there now, then one item for each change. An `Err` means that the
    /// set is broken and what was in force before stays so. `None` when the watch has ended.
    pub async fn next(&mut self) -> Option<Result<Snapshot, Vec<Diagnostic>>> {
        self.sets.recv().await
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Watches files and folders of `*.yaml` and `*.yml`. To be called on a tokio runtime with time enabled.
///
/// A path that is not there yet is an error in the first item, and read once it is created. Without filesystem events
/// (none supported, or too many watches) the poll alone finds changes.
#[must_use]
pub fn watch(paths: Vec<PathBuf>, settings: WatchSettings) -> FileWatch {
    // One item waits at most: the reader goes on only when the last state was taken.
    let (sender, sets) = mpsc::channel(1);
    let task = tokio::spawn(run(paths, settings, sender));
    FileWatch { sets, task }
}

async fn run(paths: Vec<PathBuf>, settings: WatchSettings, sender: mpsc::Sender<Result<Snapshot, Vec<Diagnostic>>>) {
    let changed = Arc::new(Notify::new());
    let mut events = Events::new(Arc::clone(&changed), &paths);
    let mut last: Option<Reading> = None;
    let mut generation = 0;
    let mut something_in_force = false;
    // Each turn is one reading; ends with whoever listens.
    loop {
        let secrets = last.as_ref().map(|l| l.secrets.clone()).unwrap_or_default();
        events.cover(&[&paths[..], &secrets].concat());
        let set = paths.clone();
        // Reading and checking thousands of documents takes longer than a control thread should be away.
        let Ok(read) = tokio::task::spawn_blocking(move || Reading::new(&set, secrets)).await else { return };
        match &mut last {
            // What was touched and holds the same is no change, and is known as it looks now.
            Some(last) if last.same_as(&read) => last.states = read.states,
            Some(_) | None => {
                let Ok((read, result)) = tokio::task::spawn_blocking(move || read.load()).await else { return };
                last = Some(read);
                let result = result.and_then(|mut snapshot| {
                    if snapshot.is_empty() && something_in_force {
                        return Err(vec![nothing_left(&paths)]);
                    }
                    something_in_force = !snapshot.is_empty();
                    generation += 1;
                    snapshot.generation = generation;
                    Ok(snapshot)
                });
                if sender.send(result).await.is_err() {
                    return;
                }
            }
        }
        let Some(known) = &last else { return };
        // What was created while it was read has no events yet: read again now that it has.
        if !events.cover(&[&paths[..], &known.secrets].concat()) {
            due(&changed, settings, &paths, known).await;
        }
    }
}

fn nothing_left(paths: &[PathBuf]) -> Diagnostic {
    let names: Vec<String> = paths.iter().map(|path| format!("`{}`", path.display())).collect();
    let message = format!(
        "nothing is left of the set in {}; what was in force stays (to serve nothing on purpose, restart)",
        names.join(", ")
    );
    Diagnostic::new(Code::EmptySet, message)
}

/// Waits until it is time to read: after an event or a look that shows another state, each with a quiet moment, or after the poll.
async fn due(changed: &Notify, settings: WatchSettings, paths: &[PathBuf], known: &Reading) {
    let latest = Instant::now() + settings.poll;
    // Each turn is a look, until the poll.
    while Instant::now() < latest {
        if timeout_at(latest.min(Instant::now() + settings.look), changed.notified()).await.is_ok() {
            return quiet(changed, settings).await;
        }
        let (paths, secrets) = (paths.to_vec(), known.secrets.clone());
        let look = tokio::task::spawn_blocking(move || (states(&paths), secret_states(&secrets)));
        if !look.await.is_ok_and(|(set, secrets)| set == known.states && secrets == known.secret_states) {
            return quiet(changed, settings).await;
        }
    }
}

/// Waits for an event or the poll, and after an event for a quiet moment.
pub(super) async fn settled(changed: &Notify, settings: WatchSettings) {
    if timeout(settings.poll, changed.notified()).await.is_ok() {
        quiet(changed, settings).await;
    }
}

/// Waits for a moment without an event.
async fn quiet(changed: &Notify, settings: WatchSettings) {
    let latest = Instant::now() + DEBOUNCE_MAX.max(settings.debounce);
    // Each turn waits for a quiet time that ends by `latest`.
    while Instant::now() < latest {
        let quiet = (Instant::now() + settings.debounce).min(latest);
        if timeout_at(quiet, changed.notified()).await.is_err() {
            return;
        }
    }
}

/// Whether an event can mean a change of the set. Writes into a file beside the set (a log that grows with every request)
/// cannot; whatever changes names can, since a name of the set may be a link to it.
fn may_matter(event: &notify::Event, roots: &[PathBuf]) -> bool {
    let is_of_the_set = |path: &PathBuf| {
        roots.iter().any(|root| path == root || (is_named_as_document(path) && path.starts_with(root)))
    };
    match event.kind {
        notify::EventKind::Access(_) => false,
        notify::EventKind::Modify(notify::event::ModifyKind::Data(_)) => event.paths.iter().any(is_of_the_set),
        notify::EventKind::Any
        | notify::EventKind::Create(_)
        | notify::EventKind::Modify(_)
        | notify::EventKind::Remove(_)
        | notify::EventKind::Other => true,
    }
}

/// Filesystem events of the folders that matter.
pub(super) struct Events {
    watcher: Option<RecommendedWatcher>,
    /// The files and folders that matter, as absolute paths.
    roots: Arc<Mutex<Vec<PathBuf>>>,
    covered: BTreeSet<(PathBuf, bool)>,
}

impl Events {
    pub(super) fn new(changed: Arc<Notify>, paths: &[PathBuf]) -> Self {
        let roots = Arc::new(Mutex::new(absolute(paths)));
        let known = Arc::clone(&roots);
        // Beyond that, what the event says does not matter: the content is compared. Waking twice costs one reading.
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let roots = known.lock().unwrap_or_else(PoisonError::into_inner);
            if event.is_ok_and(|e| may_matter(&e, &roots)) {
                changed.notify_one();
            }
        });
        Self { watcher: watcher.ok(), roots, covered: BTreeSet::new() }
    }

    /// Watches every folder whose events may mean a change: of a file its folder (editors save by rename), of a folder
    /// itself with all below and its own folder (it may be replaced), of what is not there the nearest folder above that is.
    /// Whether anything is newly watched.
    pub(super) fn cover(&mut self, paths: &[PathBuf]) -> bool {
        let mut wanted = BTreeSet::new();
        let paths = absolute(paths);
        self.roots.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&paths);
        for absolute in paths {
            if absolute.is_dir() {
                wanted.insert((absolute.clone(), true));
            }
            if let Some(above) = absolute.ancestors().skip(1).find(|a| a.is_dir()) {
                wanted.insert((above.to_path_buf(), false));
            }
        }
        let Some(watcher) = &mut self.watcher else { return false };
        for (folder, _) in self.covered.difference(&wanted) {
            // It may be gone, which ends its watch too.
            let _ = watcher.unwatch(folder);
        }
        let mut covered: BTreeSet<_> = self.covered.intersection(&wanted).cloned().collect();
        for (folder, deep) in wanted.difference(&self.covered) {
            let mode = if *deep { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            if watcher.watch(folder, mode).is_ok() {
                covered.insert((folder.clone(), *deep));
            }
        }
        let more = covered.difference(&self.covered).next().is_some();
        self.covered = covered;
        more
    }
}

fn absolute(paths: &[PathBuf]) -> Vec<PathBuf> {
    paths.iter().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())).collect()
}

/// One reading of the set.
struct Reading {
    files: Files,
    /// The state its files had.
    states: States,
    /// Files that hold secrets of the set, and the state they had.
    secrets: Vec<PathBuf>,
    secret_states: Vec<Option<FileState>>,
}

impl Reading {
    fn new(paths: &[PathBuf], secrets: Vec<PathBuf>) -> Self {
        let secret_states = secret_states(&secrets);
        let (files, states) = read_steady(paths);
        Self { files, states, secrets, secret_states }
    }

    fn same_as(&self, other: &Self) -> bool {
        self.files == other.files && self.secret_states == other.secret_states
    }

    fn load(mut self) -> (Self, Result<Snapshot, Vec<Diagnostic>>) {
        let result = match &self.files {
            Ok(files) => load(files, &Lookup::process()).map(|loaded| loaded.snapshot),
            Err(findings) => Err(findings.clone()),
        };
        if let Ok(snapshot) = &result {
            self.secrets = secret_files(snapshot);
            self.secret_states = secret_states(&self.secrets);
        }
        (self, result)
    }
}

fn secret_states(secrets: &[PathBuf]) -> Vec<Option<FileState>> {
    secrets.iter().map(|path| FileState::of(path)).collect()
}

/// Files of credentials and authorities in force, of destinations and of tenants: a rotated one is a change of the set.
pub(super) fn secret_files(snapshot: &Snapshot) -> Vec<PathBuf> {
    let sets = snapshot.worker_sets.iter().filter_map(|w| w.auth.as_ref());
    let providers = snapshot.providers.iter().filter_map(|p| p.auth.as_ref());
    let files = sets.chain(providers).flat_map(Auth::credentials).filter_map(|c| match &c.source {
        SecretSource::File(path) => Some(path.clone()),
        SecretSource::Env(_) | SecretSource::SecretRef { .. } => None,
    });
    let authorities = snapshot.providers.iter().filter_map(|provider| match &provider.tls.authorities {
        Authorities::File { file, .. } => Some(file.clone()),
        Authorities::System => None,
    });
    let keys = snapshot.tenants.iter().flat_map(|tenant| tenant.key_files.iter().cloned());
    files.chain(authorities).chain(keys).collect::<BTreeSet<_>>().into_iter().collect()
}

/// What tells one state of a file from another without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileState {
    real: PathBuf,
    modified: Option<SystemTime>,
    bytes: u64,
}

impl FileState {
    pub(super) fn of(path: &Path) -> Option<Self> {
        let real = std::fs::canonicalize(path).ok()?;
        let metadata = std::fs::metadata(&real).ok()?;
        Some(Self { real, modified: metadata.modified().ok(), bytes: metadata.len() })
    }
}

/// Reads every `*.yaml` and `*.yml` of a list of files and folders, each once, in the order of their names.
///
/// Names that begin with a dot are left out: editors' temporary files, and the hidden folders behind a mounted ConfigMap,
/// whose visible files are links into them. A set that changes while it is read is read again, so that it never holds files of
/// two versions of a ConfigMap.
///
/// # Errors
/// A path that is not there; what may be a document and cannot be read: a link to nothing, a pipe or a folder named like a document,
/// a folder too deep; too many files.
pub fn read_set(paths: &[PathBuf]) -> Result<Vec<SourceFile>, Vec<Diagnostic>> {
    read_steady(paths).0
}

type Files = Result<Vec<SourceFile>, Vec<Diagnostic>>;

/// What the set consists of and how it looks from outside, or why that cannot be said.
type States = Result<Vec<(PathBuf, Option<FileState>)>, Vec<Diagnostic>>;

fn read_steady(paths: &[PathBuf]) -> (Files, States) {
    let mut read = read_once(paths);
    for _ in 1..READ_ATTEMPTS_MAX {
        if read.1 == states(paths) {
            break;
        }
        read = read_once(paths);
    }
    read
}

fn states(paths: &[PathBuf]) -> States {
    let state = |path: PathBuf| (path.clone(), FileState::of(&path));
    Ok(list(paths)?.into_iter().map(state).collect())
}

fn read_once(paths: &[PathBuf]) -> (Files, States) {
    let states = match states(paths) {
        Ok(states) => states,
        Err(findings) => return (Err(findings.clone()), Err(findings)),
    };
    let mut files = Vec::new();
    let mut findings = Vec::new();
    for (path, _) in &states {
        match read_file(path) {
            Ok(file) => files.push(file),
            Err(error) => findings.push(unreadable(path, &error)),
        }
    }
    (if findings.is_empty() { Ok(files) } else { Err(findings) }, Ok(states))
}

fn read_file(path: &Path) -> io::Result<SourceFile> {
    let mut bytes = Vec::new();
    // One byte more than allowed: the loader then says that the file is too large.
    let most = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    std::fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(SourceFile { name: path.to_string_lossy().into(), bytes })
}

fn unreadable(path: &Path, why: &dyn fmt::Display) -> Diagnostic {
    let name: Arc<str> = path.to_string_lossy().into();
    let mut finding = about_file(Code::Unreadable, &name, format!("`{name}` cannot be read: {why}"));
    finding.path = String::new();
    finding
}

/// Every file of the set, sorted, each once.
fn list(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Vec<Diagnostic>> {
    let mut files = BTreeSet::new();
    let mut findings = Vec::new();
    for path in paths {
        match std::fs::metadata(path) {
            Ok(metadata) if is_named_as_document(path) && !metadata.is_file() => {
                findings.push(no_file(path, &metadata));
            }
            Ok(metadata) if metadata.is_dir() => list_folder(path, 0, &mut files, &mut findings),
            Ok(_) => _ = files.insert(path.clone()),
            Err(error) => findings.push(unreadable(path, &error)),
        }
    }
    if files.len() > FILES_MAX
        && let Some(first) = paths.first()
    {
        let name: Arc<str> = first.to_string_lossy().into();
        findings.push(about_file(Code::OverLimit, &name, format!("there are more than {FILES_MAX} files")));
    }
    if findings.is_empty() { Ok(files.into_iter().collect()) } else { Err(findings) }
}

fn list_folder(folder: &Path, depth: usize, files: &mut BTreeSet<PathBuf>, findings: &mut Vec<Diagnostic>) {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            findings.push(unreadable(folder, &error));
            return;
        }
    };
    for entry in entries {
        if files.len() > FILES_MAX || findings.len() >= FINDINGS_MAX {
            return;
        }
        let path = match &entry {
            Ok(entry) if entry.file_name().to_string_lossy().starts_with('.') => continue,
            Ok(entry) => entry.path(),
            Err(error) => {
                findings.push(unreadable(folder, error));
                return;
            }
        };
        // Follows links.
        match std::fs::metadata(&path) {
            Ok(metadata) if is_named_as_document(&path) => {
                if metadata.is_file() {
                    files.insert(path);
                } else {
                    findings.push(no_file(&path, &metadata));
                }
            }
            Ok(metadata) if metadata.is_dir() && depth >= FOLDER_DEPTH_MAX => findings.push(too_deep(&path)),
            Ok(metadata) if metadata.is_dir() => list_folder(&path, depth + 1, files, findings),
            Ok(_) => {}
            Err(error) => findings.extend(lost(&path, &error)),
        }
    }
}

fn is_named_as_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn no_file(path: &Path, metadata: &Metadata) -> Diagnostic {
    let what = if metadata.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
    unreadable(path, &format!("it is named like a document and is {what}; give it another name or take it away"))
}

fn too_deep(path: &Path) -> Diagnostic {
    let name: Arc<str> = path.to_string_lossy().into();
    let message =
        format!("`{name}` lies deeper than the {FOLDER_DEPTH_MAX} folders that are read below a path of the set");
    about_file(Code::OverLimit, &name, message)
}

/// What cannot be looked at, unless it was removed since the folder was listed. A link to nothing counts whatever its name: a
/// folder of documents may be what is missing.
fn lost(path: &Path, error: &io::Error) -> Option<Diagnostic> {
    match std::fs::symlink_metadata(path) {
        Err(now) if now.kind() == ErrorKind::NotFound => None,
        Ok(link) if link.is_symlink() && error.kind() == ErrorKind::NotFound => {
            let target = std::fs::read_link(path).unwrap_or_default();
            Some(unreadable(path, &format!("it is a link to `{}`, which is not there", target.display())))
        }
        Ok(_) | Err(_) => Some(unreadable(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use notify::event::{CreateKind, DataChange, EventKind, ModifyKind, RenameMode};

    #[test]
    fn writes_beside_the_set_are_no_change_and_names_may_be() {
        let roots = [PathBuf::from("/etc/k/resources"), PathBuf::from("/etc/k/one.yaml")];
        let matters = |kind, path: &str| may_matter(&notify::Event::new(kind).add_path(path.into()), &roots);
        let write = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        assert!(!matters(write, "/etc/k/access.log"));
        assert!(!matters(write, "/etc/k/resources/access.log"));
        assert!(!matters(write, "/etc/k/other.yaml"));
        assert!(matters(write, "/etc/k/resources/deep/a.yaml"));
        assert!(matters(write, "/etc/k/one.yaml"));
        assert!(matters(EventKind::Create(CreateKind::Any), "/etc/k/..data_tmp"));
        assert!(matters(EventKind::Modify(ModifyKind::Name(RenameMode::To)), "/etc/k/..data"));
    }
}
