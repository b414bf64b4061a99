//! Documents from files and folders, watched.
//!
//! A change is in force within a second: filesystem events wake the reader, which waits for a quiet
//! moment and reads the whole set again. What is compared is the content, not the events, so an editor's
//! several writes, a `touch`, or the symlink swap of a mounted ConfigMap are one change or none. A slow
//! poll stands behind the events, for filesystems that send none.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use policy::{Code, Diagnostic};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::limits::{DEBOUNCE, DEBOUNCE_MAX, FILE_BYTES_MAX, FILES_MAX, FOLDER_DEPTH_MAX, POLL};
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
    /// Time between two looks without an event.
    pub poll: Duration,
}

impl Default for WatchSettings {
    fn default() -> Self {
        Self { debounce: DEBOUNCE, poll: POLL }
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
    loop {
        let secrets = last.as_ref().map(|l| l.secrets.clone()).unwrap_or_default();
        events.cover(&[&paths[..], &secrets].concat());
        let set = paths.clone();
        // Reading and checking thousands of documents takes longer than a control thread should be away.
        let Ok(read) = tokio::task::spawn_blocking(move || Reading::new(&set, secrets)).await else { return };
        if last.as_ref().is_none_or(|l| !l.same_as(&read)) {
            let Ok((read, result)) = tokio::task::spawn_blocking(move || read.load()).await else { return };
            last = Some(read);
            let result = result.map(|mut snapshot| {
                generation += 1;
                snapshot.generation = generation;
                snapshot
            });
            if sender.send(result).await.is_err() {
                return;
            }
        }
        // What was created while it was read has no events yet: read again now that it has.
        let secrets = last.as_ref().map(|l| l.secrets.as_slice()).unwrap_or_default();
        if !events.cover(&[&paths, secrets].concat()) {
            settled(&changed, settings).await;
        }
    }
}

/// Waits for an event or the poll, and after an event for a quiet moment.
pub(super) async fn settled(changed: &Notify, settings: WatchSettings) {
    if timeout(settings.poll, changed.notified()).await.is_err() {
        return;
    }
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
        let document = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        roots.iter().any(|root| path == root || (document && path.starts_with(root)))
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
    files: Result<Vec<SourceFile>, Vec<Diagnostic>>,
    /// Files that hold secrets of the set, and the state they had.
    secrets: Vec<PathBuf>,
    secret_states: Vec<Option<FileState>>,
}

impl Reading {
    fn new(paths: &[PathBuf], secrets: Vec<PathBuf>) -> Self {
        let secret_states = secrets.iter().map(|p| FileState::of(p)).collect();
        Self { files: read_set(paths), secrets, secret_states }
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
            self.secret_states = self.secrets.iter().map(|p| FileState::of(p)).collect();
        }
        (self, result)
    }
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
/// A path that is not there, a file that cannot be read, too many files.
pub fn read_set(paths: &[PathBuf]) -> Result<Vec<SourceFile>, Vec<Diagnostic>> {
    let mut read = read_once(paths);
    for _ in 1..READ_ATTEMPTS_MAX {
        let again = states(paths);
        if read.1 == again {
            break;
        }
        read = read_once(paths);
    }
    read.0
}

type States = Vec<(PathBuf, Option<FileState>)>;

fn states(paths: &[PathBuf]) -> States {
    let listed = list(paths).unwrap_or_default();
    listed.into_iter().map(|path| (path.clone(), FileState::of(&path))).collect()
}

fn read_once(paths: &[PathBuf]) -> (Result<Vec<SourceFile>, Vec<Diagnostic>>, States) {
    let listed = match list(paths) {
        Ok(listed) => listed,
        Err(findings) => return (Err(findings), Vec::new()),
    };
    let states = listed.iter().map(|path| (path.clone(), FileState::of(path))).collect();
    let mut files = Vec::new();
    let mut findings = Vec::new();
    for path in &listed {
        match read_file(path) {
            Ok(file) => files.push(file),
            Err(error) => findings.push(unreadable(path, &error)),
        }
    }
    (if findings.is_empty() { Ok(files) } else { Err(findings) }, states)
}

fn read_file(path: &Path) -> io::Result<SourceFile> {
    let mut bytes = Vec::new();
    // One byte more than allowed: the loader then says that the file is too large.
    let most = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    std::fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(SourceFile { name: path.to_string_lossy().into(), bytes })
}

fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    let name: Arc<str> = path.to_string_lossy().into();
    let mut finding = about_file(Code::Unreadable, &name, format!("`{name}` cannot be read: {error}"));
    finding.path = String::new();
    finding
}

/// Every file of the set, sorted, each once.
fn list(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Vec<Diagnostic>> {
    let mut files = BTreeSet::new();
    let mut findings = Vec::new();
    for path in paths {
        match std::fs::metadata(path) {
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
    for entry in entries.filter_map(Result::ok) {
        if files.len() > FILES_MAX {
            return;
        }
        let path = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        // Follows links; a link to nothing is a file that is going away.
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if hidden {
            continue;
        }
        if metadata.is_dir() && depth < FOLDER_DEPTH_MAX {
            list_folder(&path, depth + 1, files, findings);
        } else if metadata.is_file() && path.extension().is_some_and(|e| e == "yaml" || e == "yml") {
            files.insert(path);
        }
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
