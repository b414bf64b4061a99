//! The public keys of token issuers: read from files and addresses, again and again.
//!
//! One task per source. A source that cannot be read keeps the keys it had; that is told and counted. When the keys of any source
//! change, all data threads get all keys anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use admission::jwt::KeySet;
use config::Snapshot;
use config::snapshot::{BaseUrl, KeySource, Tls};
use config::source::{FileChanges, WatchSettings};
use config::url::parse_base_url;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::fetch::{Answer, FetchError, get_once};
use super::journal;
use crate::keyring::{IssuerKeys, Keyring, LastAsked};
use crate::tls::verified_stream;

/// Between two fetches of keys: issuers announce new ones hours ahead, and a token that names a new one asks for it.
const FETCH_EVERY: Duration = Duration::from_secs(600);
/// First pause after a fetch that failed; doubles up to [`FETCH_EVERY`].
const FETCH_AGAIN: Duration = Duration::from_secs(1);
/// A fetch that takes longer has failed.
const FETCH_WITHIN: Duration = Duration::from_secs(5);
/// Longest file of keys; a set of a hundred keys has 100 KB.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Readings that wait for the control loop.
const FOUND_MAX: usize = 64;

/// What a task has read.
#[derive(Debug)]
pub(crate) struct Found {
    source: KeySource,
    why: Reading,
    keys: Result<KeySet, String>,
}

/// Why keys were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// It was time to, or the file may have changed.
    InPassing,
    /// A request waits for it: the question came before the reading began.
    Asked,
}

/// Every source of the configuration in force.
#[derive(Debug)]
pub(crate) struct Keys {
    watched: BTreeMap<KeySource, Watched>,
    found: mpsc::Sender<Found>,
    failures: u64,
    /// Rises when a key has come or gone.
    version: u64,
}

#[derive(Debug)]
struct Watched {
    task: JoinHandle<()>,
    /// Has the keys read at once. One question is enough, whoever asks.
    again: mpsc::Sender<()>,
    keys: Option<Arc<KeySet>>,
    error: Option<String>,
    last_asked: Arc<LastAsked>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is told of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeysStatus {
    /// Where the keys come from.
    pub source: String,
    /// How many there are.
    pub keys: usize,
    /// Why the last reading failed, if it did.
    pub error: Option<String>,
}

impl Keys {
    /// No source yet.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Found>) {
        let (found, receiver) = mpsc::channel(FOUND_MAX);
        (Self { watched: BTreeMap::new(), found, failures: 0, version: 0 }, receiver)
    }

    /// Watches the sources of `snapshot` and no others. Whether that changed anything.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) -> bool {
        let rules = snapshot.tenants.iter().filter_map(|tenant| tenant.jwt.as_ref());
        let wanted: BTreeSet<&KeySource> = rules.map(|rule| &rule.keys).collect();
        let before = self.watched.len();
        self.watched.retain(|source, _| wanted.contains(source));
        let mut changed = self.watched.len() != before;
        for source in wanted {
            if !self.watched.contains_key(source) {
                let (again, asked) = mpsc::channel(1);
                let task = match source.clone() {
                    KeySource::File(_) => tokio::spawn(watch_file(source.clone(), asked, self.found.clone())),
                    KeySource::Url(_) => tokio::spawn(fetch_again(source.clone(), asked, self.found.clone())),
                };
                let watched = Watched { task, again, keys: None, error: None, last_asked: Arc::default() };
                self.watched.insert(source.clone(), watched);
                changed = true;
            }
        }
        self.version += u64::from(changed);
        changed
    }

    /// A token named a key that is not known: its source is read again.
    pub(crate) fn wanted(&self, source: &KeySource) {
        if let Some(watched) = self.watched.get(source) {
            // A full box: it is about to be read anyway.
            let _ = watched.again.try_send(());
        }
    }

    /// Takes a reading in. Whether the data threads are to be told: something is new, or a request waits for the answer.
    pub(crate) fn take(&mut self, found: Found) -> bool {
        let Some(watched) = self.watched.get_mut(&found.source) else { return false };
        let before = self.version;
        match found.keys {
            Ok(keys) => {
                watched.error = None;
                if watched.keys.as_deref() != Some(&keys) {
                    journal::info("keys of an issuer in force", &[("source", &found.source), ("keys", &keys.len())]);
                    watched.keys = Some(Arc::new(keys));
                    self.version += 1;
                }
            }
            Err(why) => {
                self.failures += 1;
                if watched.error.as_ref() != Some(&why) {
                    let message = match watched.keys {
                        Some(_) => "keys of an issuer cannot be read; those that are known stay",
                        None => "keys of an issuer cannot be read; its tokens are refused",
                    };
                    journal::error(message, &[("source", &found.source), ("why", &why)]);
                    watched.error = Some(why);
                }
            }
        }
        found.why == Reading::Asked || self.version != before
    }

    /// All keys, for the data threads.
    pub(crate) fn ring(&self) -> Arc<Keyring> {
        let sources = self.watched.iter().map(|(source, watched)| {
            let keys = IssuerKeys { keys: watched.keys.clone(), last_asked: watched.last_asked.clone() };
            (source.clone(), keys)
        });
        Arc::new(Keyring { version: self.version, sources: sources.collect() })
    }

    /// For the admin server.
    pub(crate) fn status(&self) -> (Vec<KeysStatus>, u64) {
        let all = self.watched.iter().map(|(source, watched)| KeysStatus {
            source: source.to_string(),
            keys: watched.keys.as_ref().map_or(0, |keys| keys.len()),
            error: watched.error.clone(),
        });
        (all.collect(), self.failures)
    }
}

/// Reads a file at once, whenever it may have changed, and when asked.
async fn watch_file(source: KeySource, mut asked: mpsc::Receiver<()>, found: mpsc::Sender<Found>) {
    let KeySource::File(path) = &source else { return };
    let mut changes = FileChanges::new(vec![path.clone()], WatchSettings::default());
    let mut why = Reading::InPassing;
    loop {
        let wanted = path.clone();
        let Ok(keys) = spawn_blocking(move || read_file(&wanted)).await else { return };
        if found.send(Found { source: source.clone(), why, keys }).await.is_err() {
            return;
        }
        why = tokio::select! {
            () = changes.next() => Reading::InPassing,
            again = asked.recv() => if again.is_some() { Reading::Asked } else { return },
        };
    }
}

fn read_file(path: &std::path::Path) -> Result<KeySet, String> {
    use std::io::Read as _;
    let mut json = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut json).map_err(|error| error.to_string())?;
    if json.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    KeySet::parse(&json).map_err(|error| error.to_string())
}

/// Fetches at once, every ten minutes, and when asked; after a failure sooner, and then more and more rarely.
async fn fetch_again(source: KeySource, mut asked: mpsc::Receiver<()>, found: mpsc::Sender<Found>) {
    let KeySource::Url(url) = &source else { return };
    let (mut failed, mut why) = (0_u32, Reading::InPassing);
    loop {
        let keys = fetch(url).await;
        failed = if keys.is_ok() { 0 } else { failed.saturating_add(1) };
        if found.send(Found { source: source.clone(), why, keys }).await.is_err() {
            return;
        }
        let pause = match failed {
            0 => FETCH_EVERY,
            n => FETCH_AGAIN.saturating_mul(1 << (n - 1).min(10)).min(FETCH_EVERY),
        };
        why = tokio::select! {
            () = sleep(pause) => Reading::InPassing,
            again = asked.recv() => if again.is_some() { Reading::Asked } else { return },
        };
    }
}

async fn fetch(url: &str) -> Result<KeySet, String> {
    let base = parse_base_url(url)?;
    let answer = timeout(FETCH_WITHIN, get(&base)).await;
    let answer = answer.unwrap_or(Err(FetchError::Timeout(FETCH_WITHIN))).map_err(|error| error.to_string())?;
    if answer.status != 200 {
        return Err(format!("it answers with status {}", answer.status));
    }
    KeySet::parse(&answer.body).map_err(|error| error.to_string())
}

async fn get(url: &BaseUrl) -> Result<Answer, FetchError> {
    let failed = |error: std::io::Error| FetchError::Connect(error.to_string());
    let stream = TcpStream::connect((url.host.as_str(), url.port)).await.map_err(failed)?;
    let default_port = match url.tls {
        Tls::Yes => 443,
        Tls::No => 80,
    };
    let name = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
    let host = if url.port == default_port { name } else { format!("{name}:{}", url.port) };
    let path = if url.path_prefix.is_empty() { "/" } else { url.path_prefix.as_str() };
    match url.tls {
        Tls::No => get_once(stream, &host, path).await,
        Tls::Yes => get_once(verified_stream(stream, &url.host).await.map_err(failed)?, &host, path).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_source_that_breaks_keeps_its_keys_and_one_that_is_no_longer_named_is_forgotten() {
        let (mut keys, mut found) = Keys::new();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jwks.json");
        let key = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
        std::fs::write(&path, key).unwrap();
        let yaml = format!(
            "apiVersion: {}\nkind: InferenceTenant\nmetadata: {{ name: a }}\nspec: {{ jwt: {{ issuer: i, equals: a, jwksFile: {} }} }}\n",
            crds::API_VERSION,
            path.display()
        );
        let snapshot = super::super::source::lower_text("t.yaml", &yaml).unwrap();
        assert!(keys.follow(&snapshot) && !keys.follow(&snapshot));
        assert!(keys.take(found.recv().await.unwrap()));
        let source = KeySource::File(path.clone());
        let count = |keys: &Keys| keys.ring().sources[&source].keys.as_ref().map(|keys| keys.len());
        assert_eq!(count(&keys), Some(1));
        std::fs::write(&path, "{").unwrap();
        keys.wanted(&source);
        // What was read before the question, because the file may have changed, is no answer to it.
        while !keys.take(found.recv().await.unwrap()) {}
        assert_eq!(count(&keys), Some(1));
        let (status, failures) = keys.status();
        assert!(failures >= 1 && status[0].error.as_ref().is_some_and(|why| why.contains("keys")), "{status:?}");
        assert!(keys.follow(&Snapshot::default()) && keys.ring().sources.is_empty());
    }
}
