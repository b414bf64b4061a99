//! Who may call, and how they are known.

use std::fmt;
use std::path::PathBuf;

use super::{RateLimits, ResourceId};
/// One InferenceTenant.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Namespace and name.
    pub id: ResourceId,
    /// SHA-256 of each key that names this tenant.
    pub key_sha256: Vec<[u8; 32]>,
    /// Files that keys were read from.
    pub key_files: Vec<PathBuf>,
    /// Signed token that names this tenant.
    pub jwt: Option<Jwt>,
    /// Subject alternative name of the client certificate that names this tenant.
    pub client_certificate_san: Option<String>,
    /// Limits over all its requests.
    pub limits: RateLimits,
    /// Higher is served first when requests must wait.
    pub priority: i32,
}

/// How a JSON Web Token names a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// Required `iss`.
    pub issuer: String,
    /// Required member of `aud`, when given.
    pub audience: Option<String>,
    /// Claim that is compared.
    pub claim: String,
    /// What the claim must equal.
    pub equals: String,
    /// Public keys (RFC 7517).
    pub keys: KeySource,
}

/// Where the public keys of an issuer come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// An address, as written; the schema check has parsed it.
    Url(String),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Url(url) => f.write_str(url),
        }
    }
}

/// A subject alternative name in the form in which two are compared: host names without regard to case (RFC 4343), a
/// URI byte by byte, as SPIFFE IDs are.
#[must_use]
pub fn comparable_name(name: &str) -> String {
    if name.contains("://") { name.to_owned() } else { name.to_ascii_lowercase() }
}

impl Tenant {
    /// A tenant that nobody can call as.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn without_keys(id: ResourceId) -> Self {
        Self {
            id,
            key_sha256: Vec::new(),
            key_files: Vec::new(),
            jwt: None,
            client_certificate_san: None,
            limits: RateLimits::default(),
            priority: 0,
        }
    }
}
