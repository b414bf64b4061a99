//! The tokenizers of worker sets, read and watched: a change of their files is in force from the next plan on.
//!
//! One task for each set of files reads them away from the control loop (a large tokenizer takes a second) and sends what it
//! found. Until then, and where they cannot be used, the worker set's prompts are estimated by bytes, which is told here, on
//! `/endpoints` and in the metrics.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use config::Snapshot;
use config::snapshot::Tokenizer as Files;
use config::source::{FileChanges, WatchSettings};
use tokenizer::{Part, TEMPLATE_BYTES_MAX, TOKENIZER_BYTES_MAX, Tokenizer};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_blocking};

use super::journal;
use crate::exact::Exact;
use crate::exact::workers::Workers;

/// Findings that wait for the control loop. A task goes on only when its finding was taken.
const FOUND_MAX: usize = 64;
/// Longest `tokenizer_config.json`. The largest known ones have a megabyte, most of it reserved tokens.
const CONFIG_BYTES_MAX: usize = 16 << 20;

/// What became of a worker set's tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It is being read for the first time.
    Loading,
    /// Prompts are told by it. The text says why a later state of its files is not in force, where that is so.
    Exact(Option<String>),
    /// It cannot be used, for this reason.
    Unusable(String),
}

/// Files were read.
pub(crate) struct Found {
    files: Files,
    read: Result<Tokenizer, Fault>,
}

/// Why files cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    /// The field that names the file.
    field: &'static str,
    file: PathBuf,
    why: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {}", self.field, self.file.display(), self.why)
    }
}

/// All tokenizers that the snapshot in force names.
pub(crate) struct Tokenizers {
    known: HashMap<Files, Known>,
    found: mpsc::Sender<Found>,
    /// Started when the first tokenizer is in force.
    workers: Option<Workers>,
    threads: usize,
    /// Replaced ones. They are large, so they are freed here and not on the data thread that uses one last.
    retired: Vec<Arc<Exact>>,
}

struct Known {
    task: AbortHandle,
    exact: Option<Arc<Exact>>,
    fault: Option<String>,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tokenizers {
    /// None yet. One helper thread is to serve two data threads.
    pub(crate) fn new(data_threads: usize) -> (Self, mpsc::Receiver<Found>) {
        let threads = data_threads.div_ceil(2).min(config::limits::TOKENIZE_THREADS_MAX);
        let (found, receiver) = mpsc::channel(FOUND_MAX);
        (Self { known: HashMap::new(), found, workers: None, threads, retired: Vec::new() }, receiver)
    }

    /// Reads and watches what a snapshot names, and nothing else any more.
    pub(crate) fn want(&mut self, snapshot: &Snapshot) {
        let wanted: Vec<&Files> = snapshot.worker_sets.iter().filter_map(|set| set.tokenizer.as_ref()).collect();
        let gone: Vec<Files> = self.known.keys().filter(|files| !wanted.contains(files)).cloned().collect();
        for files in gone {
            self.retired.extend(self.known.remove(&files).and_then(|mut known| known.exact.take()));
        }
        for files in wanted {
            if !self.known.contains_key(files) {
                let task = tokio::spawn(watch(files.clone(), self.found.clone())).abort_handle();
                self.known.insert(files.clone(), Known { task, exact: None, fault: None });
            }
        }
    }

    /// Takes in what was read; says whether the plan changes by it.
    pub(crate) fn take(&mut self, found: Found) -> bool {
        let Found { files, read } = found;
        let Some(known) = self.known.get_mut(&files) else { return false };
        let read = read.map_err(|fault| fault.to_string()).and_then(|tokenizer| {
            let workers = match &self.workers {
                Some(workers) => workers.clone(),
                None => Workers::start(self.threads).map_err(|error| format!("no helper thread: {error}"))?,
            };
            self.workers = Some(workers.clone());
            Ok(Arc::new(Exact { tokenizer, workers }))
        });
        match read {
            Ok(exact) => {
                if !exact.tokenizer.has_chat_template() {
                    let file = files.file.display();
                    journal::warn("there is no chat template; chats are estimated by bytes", &[("file", &file)]);
                }
                journal::info("tokenizer in force", &[("file", &files.file.display())]);
                known.fault = None;
                self.retired.extend(known.exact.replace(exact));
                true
            }
            Err(why) => {
                let instead = match known.exact {
                    Some(_) => "tokenizer refused; what was in force stays",
                    None => "tokenizer cannot be used; tokens are estimated by bytes",
                };
                journal::error(instead, &[("why", &why)]);
                known.fault = Some(why);
                false
            }
        }
    }

    /// The tokenizer of each worker set, where one is in force.
    pub(crate) fn in_force(&self, snapshot: &Snapshot) -> Vec<Option<Arc<Exact>>> {
        let of = |files: &Files| self.known.get(files)?.exact.clone();
        snapshot.worker_sets.iter().map(|set| set.tokenizer.as_ref().and_then(of)).collect()
    }

    /// Worker sets that name a tokenizer, and what became of it.
    pub(crate) fn status(&self, snapshot: &Snapshot) -> Vec<(String, State)> {
        let state = |files: &Files| match self.known.get(files) {
            None => State::Loading,
            Some(Known { exact: Some(_), fault, .. }) => State::Exact(fault.clone()),
            Some(Known { exact: None, fault: Some(why), .. }) => State::Unusable(why.clone()),
            Some(Known { exact: None, fault: None, .. }) => State::Loading,
        };
        let sets = snapshot.worker_sets.iter();
        sets.filter_map(|set| Some((set.id.name.clone(), state(set.tokenizer.as_ref()?)))).collect()
    }

    /// Frees what nobody uses any more.
    pub(crate) fn tick(&mut self) {
        let (unused, used) =
            std::mem::take(&mut self.retired).into_iter().partition(|exact| Arc::strong_count(exact) == 1);
        self.retired = used;
        let unused: Vec<Arc<Exact>> = unused;
        if !unused.is_empty() {
            spawn_blocking(move || drop(unused));
        }
    }
}

/// Reads files now and whenever they have changed.
async fn watch(files: Files, found: mpsc::Sender<Found>) {
    let mut seen = None;
    let mut changes = FileChanges::new(paths(&files), WatchSettings::default());
    loop {
        let stamp = paths(&files).iter().map(|path| stamp(path)).collect::<Vec<_>>();
        if seen.as_ref() != Some(&stamp) {
            seen = Some(stamp);
            let looked = files.clone();
            let Ok(read) = spawn_blocking(move || read(&looked)).await else {
                let file = files.file.display();
                journal::error("a tokenizer is no longer watched; restart to see changes", &[("file", &file)]);
                return;
            };
            if found.send(Found { files: files.clone(), read }).await.is_err() {
                return;
            }
        }
        changes.next().await;
    }
}

/// What tells two states of a file apart.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// The folder that a model's files are in: `file` itself, or the one it is in.
fn folder(files: &Files) -> PathBuf {
    match files.file.is_dir() {
        true => files.file.clone(),
        false => files.file.parent().unwrap_or(Path::new("")).to_owned(),
    }
}

/// `tokenizer.json`, its configuration, and the chat template.
fn paths(files: &Files) -> Vec<PathBuf> {
    let folder = folder(files);
    let tokenizer = if files.file.is_dir() { folder.join("tokenizer.json") } else { files.file.clone() };
    let template = files.chat_template_file.clone().unwrap_or_else(|| folder.join("chat_template.jinja"));
    vec![tokenizer, folder.join("tokenizer_config.json"), template]
}

/// Reads the files of a tokenizer, at once.
///
/// # Errors
/// Says which file cannot be used, and why.
pub(crate) fn load(files: &Files) -> Result<Tokenizer, String> {
    read(files).map_err(|fault| fault.to_string())
}

fn read(files: &Files) -> Result<Tokenizer, Fault> {
    const FIELD: &str = "spec.tokenizer.file";
    const TEMPLATE_FIELD: &str = "spec.tokenizer.chatTemplateFile";
    let paths = paths(files);
    let fault = |field: &'static str, path: &Path| {
        let file = path.to_owned();
        move |error: io::Error| Fault { field, file, why: error.to_string() }
    };
    let tokenizer = bytes(&paths[0], TOKENIZER_BYTES_MAX).map_err(fault(FIELD, &paths[0]))?;
    let config = optional(bytes(&paths[1], CONFIG_BYTES_MAX)).map_err(fault(FIELD, &paths[1]))?;
    let template = bytes(&paths[2], TEMPLATE_BYTES_MAX).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "is not UTF-8"))
    });
    let (field, template) = match files.chat_template_file {
        Some(_) => (TEMPLATE_FIELD, template.map(Some)),
        None => (FIELD, optional(template)),
    };
    let template = template.map_err(fault(field, &paths[2]))?;
    let files =
        tokenizer::Files { tokenizer: &tokenizer, config: config.as_deref(), chat_template: template.as_deref() };
    Tokenizer::new(&files).map_err(|unusable| {
        let (field, file) = match unusable.part {
            Part::Tokenizer => (FIELD, &paths[0]),
            Part::Config => (FIELD, &paths[1]),
            Part::ChatTemplate if template.is_some() => (field, &paths[2]),
            Part::ChatTemplate => (FIELD, &paths[1]),
        };
        Fault { field, file: file.clone(), why: unusable.why }
    })
}

/// A file's content, within a bound.
fn bytes(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(bytes_max as u64 + 1).read_to_end(&mut content)?;
    if content.len() > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("has more than {bytes_max} bytes")));
    }
    Ok(content)
}

/// Nothing, where there is no such file.
fn optional<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../predictor/tokenizer/tests/data").join(name)
    }

    fn files(file: PathBuf) -> Files {
        Files { file, chat_template_file: None }
    }

    #[test]
    fn a_folder_and_its_tokenizer_are_the_same() {
        for file in [model("chatml"), model("chatml").join("tokenizer.json")] {
            let tokenizer = read(&files(file)).unwrap();
            assert!(tokenizer.has_chat_template());
            let chat = br#"{"messages":[{"role":"user","content":"a"}]}"#;
            assert!(tokenizer.chat_text(chat, 0).unwrap().starts_with("<|im_start|>system\nYou help"));
        }
        let named =
            Files { chat_template_file: Some(model("inst").join("chat_template.jinja")), ..files(model("chatml")) };
        let chat = br#"{"messages":[{"role":"user","content":"a"}]}"#;
        assert_eq!(read(&named).unwrap().chat_text(chat, 0).unwrap(), "[INST] a[/INST]");
    }

    #[test]
    fn a_fault_names_the_field_and_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let told = |files: &Files| read(files).unwrap_err().to_string();
        let missing = told(&files(folder.path().to_owned()));
        assert!(
            missing.starts_with("spec.tokenizer.file: ") && missing.contains("tokenizer.json: No such file"),
            "{missing}"
        );
        std::fs::write(path("tokenizer.json"), "{").unwrap();
        let broken = told(&files(path("tokenizer.json")));
        assert!(
            broken.starts_with(&format!("spec.tokenizer.file: {}: ", path("tokenizer.json").display())),
            "{broken}"
        );
        std::fs::copy(model("inst").join("tokenizer.json"), path("tokenizer.json")).unwrap();
        assert!(!read(&files(path("tokenizer.json"))).unwrap().has_chat_template());
        let named = Files { chat_template_file: Some(path("t.jinja")), ..files(path("tokenizer.json")) };
        assert!(told(&named).starts_with("spec.tokenizer.chatTemplateFile: "), "{}", told(&named));
        std::fs::write(path("t.jinja"), "{% for %}").unwrap();
        assert!(told(&named).contains("t.jinja: line 1: "), "{}", told(&named));
        std::fs::write(path("tokenizer_config.json"), "[]").unwrap();
        assert!(told(&files(path("tokenizer.json"))).contains("tokenizer_config.json: "));
    }
}
