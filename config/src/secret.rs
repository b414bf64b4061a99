//! Credentials: where they come from, and values that cannot be printed.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crds::server::Credentials;

/// Bytes of a file that holds a secret; the longest tokens in use have some thousands.
const SECRET_BYTES_MAX: u64 = 64 << 10;
/// Bytes of a file of authorities; a bundle of every public one is a quarter of it.
const AUTHORITIES_BYTES_MAX: u64 = 1 << 20;

/// A secret's bytes. Nothing prints them; they are overwritten by nothing when dropped, as the
/// process holds other copies (the environment) anyway.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Wraps a value.
    #[must_use]
    pub fn new(value: &str) -> Self {
        Self(value.into())
    }

    /// The value, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Where a secret comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// An environment variable of this process.
    Env(String),
    /// A file; trailing line breaks are cut off.
    File(PathBuf),
    /// A Kubernetes Secret of the resource's namespace.
    SecretRef {
        /// The Secret's name.
        name: String,
        /// The key in it.
        key: String,
    },
}

impl SecretSource {
    /// Reads it, where it is in this process's environment or in a file.
    ///
    /// # Errors
    /// Why there is none, without a word of its content.
    pub fn read(&self) -> Result<Secret, String> {
        Lookup::process().find("", self)
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Env(name) => write!(f, "environment variable {name}"),
            SecretSource::File(path) => write!(f, "file {}", path.display()),
            SecretSource::SecretRef { name, key } => write!(f, "key {key} of Secret {name}"),
        }
    }
}

/// A secret and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Where it comes from.
    pub source: SecretSource,
    /// The value, or why there is none. A destination whose credential has none is not ready.
    pub value: Result<Secret, String>,
}

/// How a destination is told who is calling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: Bearer ...`
    Bearer(Credential),
    /// A header of its own.
    ApiKeyHeader {
        /// The header's name.
        header: String,
        /// Its value.
        key: Credential,
    },
    /// AWS Signature Version 4.
    AwsSigV4 {
        /// AWS region.
        region: String,
        /// AWS service name, `bedrock`.
        service: String,
        /// Access key id.
        access_key_id: Credential,
        /// Secret access key.
        secret_access_key: Credential,
        /// Session token of temporary credentials.
        session_token: Option<Credential>,
    },
}

impl Auth {
    /// Every credential it needs.
    pub fn credentials(&self) -> impl Iterator<Item = &Credential> {
        let list: [Option<&Credential>; 3] = match self {
            Auth::Bearer(c) => [Some(c), None, None],
            Auth::ApiKeyHeader { key, .. } => [Some(key), None, None],
            Auth::AwsSigV4 { access_key_id, secret_access_key, session_token, .. } => {
                [Some(access_key_id), Some(secret_access_key), session_token.as_ref()]
            }
        };
        list.into_iter().flatten()
    }

    /// Why the destination cannot be used, or `None` when every credential has a value.
    #[must_use]
    pub fn missing(&self) -> Option<&str> {
        self.credentials().find_map(|c| c.value.as_ref().err().map(String::as_str))
    }
}

/// Looks a Kubernetes Secret's key up: namespace, name, key.
pub type SecretRefs<'a> = dyn Fn(&str, &str, &str) -> Option<String> + 'a;

/// How secrets are found while documents are lowered.
pub enum Lookup<'a> {
    /// In this process's environment, in files, and in the Kubernetes Secrets the caller knows.
    Process {
        /// The Kubernetes Secrets; files alone know none.
        secret_refs: &'a SecretRefs<'a>,
    },
    /// The same for objects of a cluster, whose writers need not be those of this process: what proves this process to the
    /// cluster is no secret of theirs.
    Cluster {
        /// The Kubernetes Secrets.
        secret_refs: &'a SecretRefs<'a>,
        /// Whether anything else is looked at.
        credentials: Credentials,
    },
    /// Nowhere: for checking documents where they are not in force. Nothing missing is reported.
    Skip,
}

impl Lookup<'_> {
    /// Environment and files only.
    #[must_use]
    pub fn process() -> Lookup<'static> {
        Lookup::Process { secret_refs: &|_, _, _| None }
    }

    /// Whether a secret that is not found is worth a warning.
    pub(crate) fn reports_missing(&self) -> bool {
        match self {
            Lookup::Process { .. } | Lookup::Cluster { .. } => true,
            Lookup::Skip => false,
        }
    }

    /// Reads a file of certificates that a document names.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) fn find_file(&self, file: &Path) -> Result<Arc<str>, String> {
        match self {
            Lookup::Cluster { .. } if proves_this_process(file) => {
                Err(format!("the file {} is this process's own", file.display()))
            }
            Lookup::Process { .. } | Lookup::Cluster { .. } => read_bounded(file, AUTHORITIES_BYTES_MAX)
                .map(Arc::from)
                .map_err(|error| format!("the file {} cannot be read: {error}", file.display())),
            Lookup::Skip => Err("files are not looked up here".to_owned()),
        }
    }

    /// Finds a secret's value.
    ///
    /// # Errors
    /// Why there is none, without a word of its content.
    pub(crate) fn find(&self, namespace: &str, source: &SecretSource) -> Result<Secret, String> {
        let secret_refs = match self {
            Lookup::Process { secret_refs } => secret_refs,
            Lookup::Cluster { secret_refs, credentials } => {
                for_objects(source, *credentials)?;
                secret_refs
            }
            Lookup::Skip => return Err("secrets are not looked up here".to_owned()),
        };
        let value = match source {
            SecretSource::Env(name) => std::env::var(name).map_err(|_| format!("the {source} is not set"))?,
            SecretSource::File(path) => {
                read_bounded(path, SECRET_BYTES_MAX).map_err(|e| format!("the {source} cannot be read: {e}"))?
            }
            SecretSource::SecretRef { name, key } => {
                secret_refs(namespace, name, key).ok_or_else(|| format!("the {source} is not there"))?
            }
        };
        let value = value.trim_end_matches(['\r', '\n']);
        if value.is_empty() {
            return Err(format!("the {source} is empty"));
        }
        // RFC 9110, section 5.5: a field value holds visible characters, spaces and tabs.
        if value.chars().any(char::is_control) {
            return Err(format!("the {source} holds control characters"));
        }
        Ok(Secret::new(value))
    }
}

/// Whether a credential of this process may be an object's.
fn for_objects(source: &SecretSource, credentials: Credentials) -> Result<(), String> {
    match (source, credentials) {
        (SecretSource::SecretRef { .. }, _) | (SecretSource::Env(_), Credentials::All) => Ok(()),
        (SecretSource::File(path), Credentials::All) if proves_this_process(path) => {
            Err(format!("the {source} is this process's own"))
        }
        (SecretSource::File(_), Credentials::All) => Ok(()),
        (SecretSource::Env(_) | SecretSource::File(_), Credentials::SecretsOnly) => Err(format!(
            "the {source} is not for objects of the cluster: name a Secret (`secretRef`), or let them with `kubernetes.credentials: All` in the server's file"
        )),
    }
}

/// Whether a path leads to the service account that a cluster mounts into every pod.
fn proves_this_process(path: &Path) -> bool {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    path.components().any(|part| part.as_os_str() == "kubernetes.io")
}

fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(bytes_max + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|n| n > bytes_max) {
        let message = format!("it has more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_a_cluster_cannot_have_the_token_of_this_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let account = folder.path().join("kubernetes.io/serviceaccount");
        std::fs::create_dir_all(&account).expect("made");
        std::fs::write(account.join("token"), "hunter2").expect("written");
        std::os::unix::fs::symlink(account.join("token"), folder.path().join("innocent")).expect("linked");
        std::fs::write(folder.path().join("key"), "open sesame").expect("written");
        let find = |name: &str| {
            let lookup = Lookup::Cluster { secret_refs: &|_, _, _| None, credentials: Credentials::All };
            lookup.find("default", &SecretSource::File(folder.path().join(name)))
        };
        assert!(find("kubernetes.io/serviceaccount/token").is_err());
        assert!(find("innocent").is_err());
        assert_eq!(find("key"), Ok(Secret::new("open sesame")));
    }

    #[test]
    fn objects_of_a_cluster_have_only_secrets_where_the_server_says_so() {
        let secret_refs = |_: &str, _: &str, _: &str| Some("of a Secret".to_owned());
        let lookup = Lookup::Cluster { secret_refs: &secret_refs, credentials: Credentials::SecretsOnly };
        let refused = lookup.find("default", &SecretSource::Env("PATH".into())).unwrap_err();
        assert!(refused.contains("secretRef") && refused.contains("kubernetes.credentials"), "{refused}");
        assert!(lookup.find("default", &SecretSource::File("/etc/hostname".into())).is_err());
        let source = SecretSource::SecretRef { name: "n".into(), key: "k".into() };
        assert_eq!(lookup.find("default", &source), Ok(Secret::new("of a Secret")));
    }

    #[test]
    fn no_debug_output_shows_a_secret() {
        let value = Ok(Secret::new("hunter2"));
        let auth = Auth::Bearer(Credential { source: SecretSource::Env("TOKEN".into()), value });
        let shown = format!("{auth:?} {auth:#?}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
