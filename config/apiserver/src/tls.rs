//! HTTPS, as every real API server speaks it: a certificate for 127.0.0.1, made for one server and known from its kubeconfig.

use std::io;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// What a server shows, and what its clients believe.
#[derive(Clone)]
pub(crate) struct Identity {
    pub acceptor: TlsAcceptor,
    pub certificate_pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Makes one.
///
/// # Errors
/// When the library refuses, which it has no reason to.
pub(crate) fn identity() -> io::Result<Identity> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["127.0.0.1".to_owned()]).map_err(io::Error::other)?;
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).map_err(io::Error::other)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key))
        .map_err(io::Error::other)?;
    Ok(Identity { acceptor: TlsAcceptor::from(Arc::new(config)), certificate_pem: cert.pem() })
}
