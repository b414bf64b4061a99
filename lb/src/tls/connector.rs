//! What TLS connections to upstreams are made with: whom we believe, and the name that must be proven.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use config::snapshot::{Authorities, ProviderTls};
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore};

/// Sessions kept by one data thread for one upstream, to be resumed. rustls keeps at most eight tickets of a server, and
/// uses each of TLS 1.3 once.
const SESSIONS_MAX: usize = 8;

/// What TLS connections to one upstream are made with.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// What it was made of: two of the same are the same.
    terms: ProviderTls,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PartialEq for Connector {
    fn eq(&self, other: &Self) -> bool {
        self.terms == other.terms
    }
}

impl Connector {
    /// Versions 1.2 and 1.3, ALPN `http/1.1`, the server's certificate verified against the authorities and the name.
    ///
    /// # Errors
    /// Why no server could ever be believed, for the operator.
    pub(crate) fn new(terms: &ProviderTls) -> Result<Self, String> {
        let name = ServerName::try_from(terms.server_name.trim_end_matches('.').to_owned())
            .map_err(|_| format!("`{}` is no name that a certificate could be good for", terms.server_name))?;
        let roots = match &terms.authorities {
            Authorities::System => system_roots()?,
            Authorities::File { pem: Err(why), .. } => return Err(why.clone()),
            Authorities::File { file, pem: Ok(pem) } => {
                roots_of(pem.as_bytes()).map_err(|why| format!("{} {why}", file.display()))?.into()
            }
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), name, terms: terms.clone() })
    }

    /// The same with sessions of its own: a data thread shares none with another.
    pub(crate) fn with_own_sessions(&self) -> Self {
        let mut config = (*self.config).clone();
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        Self { config: Arc::new(config), ..self.clone() }
    }

    /// The session of a new connection.
    pub(super) fn session(&self) -> io::Result<ClientConnection> {
        ClientConnection::new(self.config.clone(), self.name.clone()).map_err(io::Error::other)
    }
}

/// The authorities that the system believes; read once, as everything that links to a TLS library does.
fn system_roots() -> Result<Arc<RootCertStore>, String> {
    static ROOTS: OnceLock<Result<Arc<RootCertStore>, String>> = OnceLock::new();
    ROOTS
        .get_or_init(|| {
            let mut roots = RootCertStore::empty();
            // Single files that cannot be read or parsed are none of ours, as long as something is left.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err("this system has no certificate authorities: install its package `ca-certificates`, set \
                            SSL_CERT_FILE, or name a `tls.caFile`"
                    .to_owned());
            }
            Ok(roots.into())
        })
        .clone()
}

fn roots_of(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| format!("is not valid PEM: {error}"))?;
        roots.add(certificate).map_err(|error| format!("holds an authority that cannot be used: {error}"))?;
    }
    if roots.is_empty() { Err("holds no certificate (-----BEGIN CERTIFICATE-----)".to_owned()) } else { Ok(roots) }
}

/// Why there is no TLS connection to an upstream. Nothing of a request has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum TlsFault {
    /// No authority that is believed vouches for its certificate.
    UnknownAuthority,
    /// Its certificate is not valid now.
    Expired,
    /// Its certificate is good for other names.
    WrongName,
    /// Its certificate cannot be used for another reason.
    BadCertificate,
    /// What it says is not TLS.
    NotTls,
    /// It closed the connection.
    Closed,
    /// It refused by an alert, or the two sides agree on nothing.
    Refused,
    /// It fell silent.
    TimedOut,
}

impl TlsFault {
    /// What a failed handshake came to.
    pub(super) fn of(error: &io::Error) -> Self {
        let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
            return Self::Closed;
        };
        // Both enums are open: rustls adds members.
        #[allow(clippy::wildcard_enum_match_arm)]
        match error {
            rustls::Error::InvalidCertificate(certificate) => match certificate {
                // The second: an authority of the right name with another key.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownAuthority,
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Self::Expired,
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Self::WrongName,
                _ => Self::BadCertificate,
            },
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            _ => Self::Refused,
        }
    }

    /// The label in metrics and logs.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::UnknownAuthority => "tls_unknown_authority",
            Self::Expired => "tls_expired",
            Self::WrongName => "tls_wrong_name",
            Self::BadCertificate => "tls_bad_certificate",
            Self::NotTls => "tls_not_spoken",
            Self::Closed => "tls_closed",
            Self::Refused => "tls_refused",
            Self::TimedOut => "tls_timed_out",
        }
    }

    /// For whoever asked, after "TLS with the endpoint failed: ".
    pub(crate) const fn message(self) -> &'static str {
        match self {
            Self::UnknownAuthority => "no authority that is believed vouches for its certificate",
            Self::Expired => "its certificate has expired or is not valid yet",
            Self::WrongName => "its certificate is good for another name",
            Self::BadCertificate => "its certificate cannot be used",
            Self::NotTls => "it does not speak TLS",
            Self::Closed => "it closed the connection within the handshake",
            Self::Refused => "it refused the handshake",
            Self::TimedOut => "the TLS handshake timed out",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(pem: &str) -> ProviderTls {
        let authorities = Authorities::File { file: "ca.crt".into(), pem: Ok(pem.into()) };
        ProviderTls { authorities, server_name: "api.test".into() }
    }

    #[test]
    fn a_file_of_authorities_that_holds_none_is_named_with_what_is_wrong() {
        for (pem, wrong) in [
            ("", "ca.crt holds no certificate"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "ca.crt holds an authority that cannot"),
            ("-----BEGIN CERTIFICATE-----\n", "ca.crt is not valid PEM"),
        ] {
            let told = Connector::new(&file(pem)).expect_err(pem);
            assert!(told.contains(wrong), "{told}");
        }
    }

    #[test]
    fn what_is_made_of_the_same_terms_is_the_same() {
        let pem = rcgen::generate_simple_self_signed(vec!["api.test".into()]).unwrap().cert.pem();
        let connector = Connector::new(&file(&pem)).unwrap();
        assert!(connector == Connector::new(&file(&pem)).unwrap().with_own_sessions());
        assert!(connector != Connector::new(&ProviderTls { server_name: "b.test".into(), ..file(&pem) }).unwrap());
    }
}
