//! Credentials: where they come from, and values that cannot be printed.

use std::fmt;
use std::path::PathBuf;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_debug_output_shows_a_secret() {
        let value = Ok(Secret::new("hunter2"));
        let auth = Auth::Bearer(Credential { source: SecretSource::Env("TOKEN".into()), value });
        let shown = format!("{auth:?} {auth:#?}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
