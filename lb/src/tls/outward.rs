//! TLS connections of the control thread to servers that the system's authorities vouch for.

use std::io;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The system's authorities as they were when it was made, and the sessions since then.
#[derive(Debug, Clone)]
pub(crate) struct Verifier {
    config: Arc<ClientConfig>,
}

impl Verifier {
    /// Reads the system's authorities: some milliseconds.
    pub(crate) async fn of_system() -> io::Result<Self> {
        let config = tokio::task::spawn_blocking(client_config).await.map_err(io::Error::other)??;
        Ok(Self { config: Arc::new(config) })
    }

    /// Encrypts a connection to `host`, and fails where it is not that host.
    pub(crate) async fn encrypt(&self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.config.clone()).connect(name, stream).await
    }
}

/// The same for one connection. The system's authorities are read anew: there are few such connections, and authorities change.
pub(crate) async fn verified_stream(stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
    Verifier::of_system().await?.encrypt(stream, host).await
}

fn client_config() -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(io::Error::other(format!("this system names no authorities to trust{why}")));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let versions = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    Ok(versions.with_root_certificates(roots).with_no_client_auth())
}
