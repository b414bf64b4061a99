//! Hosted providers, and limits on what is asked of somebody.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{ResourceId, ServedModel};
use crate::secret::Auth;
/// One InferenceProvider.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Namespace and name.
    pub id: ResourceId,
    /// Which API it speaks.
    pub api: ProviderApi,
    /// Where it listens.
    pub base_url: BaseUrl,
    /// Whom it must prove to be where the connection is encrypted.
    pub tls: ProviderTls,
    /// Credential it asks for.
    pub auth: Option<Auth>,
    /// Models it serves, in the order written.
    pub models: Vec<ServedModel>,
    /// Limits of this balancer toward it.
    pub limits: RateLimits,
    /// How long each phase of a request may take.
    pub timeouts: ProviderTimeouts,
}

/// Whom a provider must prove to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderTls {
    /// Who vouches for it.
    pub authorities: Authorities,
    /// The name its certificate must be good for.
    pub server_name: String,
}

/// Who vouches for servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authorities {
    /// Those the system believes.
    System,
    /// Those in a file, and nobody else.
    File {
        /// Which file, to be watched.
        file: PathBuf,
        /// The PEM text in it, or why it cannot be read. A provider whose file cannot be read is not ready.
        pem: Result<Arc<str>, String>,
    },
}

/// Which API a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderApi {
    /// OpenAI's, or one compatible with it.
    OpenAi,
    /// Bedrock's Converse.
    Bedrock,
}

/// A parsed `http://` or `https://` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    /// Whether the connection is encrypted.
    pub tls: Tls,
    /// IP address or DNS name, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Path that goes before every API path: empty, or begins with `/` and does not end with one.
    pub path_prefix: String,
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// `https`
    Yes,
    /// `http`
    No,
}

/// Limits on requests and tokens; `None` = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests a minute, refilled evenly.
    pub requests_per_minute: Option<u32>,
    /// Prompt and answer tokens a minute, refilled evenly.
    pub tokens_per_minute: Option<u64>,
    /// Requests in flight at once.
    pub in_flight_max: Option<u32>,
}

/// How long each phase of a request to a provider may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderTimeouts {
    /// TCP and TLS handshakes.
    pub connect: Duration,
    /// From the last byte sent to the first byte of the answer.
    pub first_byte: Duration,
    /// Between two bytes of the answer.
    pub idle: Duration,
    /// The whole request; `None` = no limit.
    pub total: Option<Duration>,
}
