//! The certificate of a listener: read from its files, checked, made into what connections are accepted with.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::server_file::TlsFiles;
use config::snapshot::comparable_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use sha2::{Digest, Sha256};

use super::validity::not_after_unix_s;

/// Largest file that is read; a bundle of every public authority is a quarter of it.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most names of a client's certificate that are looked at.
const CLIENT_NAMES_MAX: usize = 64;
/// How often files are read again when they change while they are read (the swap of a mounted Secret).
const READ_ATTEMPTS_MAX: u32 = 5;

/// What connections of a listener are accepted with. Shared by all data threads; cloning counts a reference.
#[derive(Clone)]
pub(crate) struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// The session of a new connection.
    pub(super) fn session(&self) -> io::Result<ServerConnection> {
        ServerConnection::new(self.config.clone()).map_err(io::Error::other)
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

/// One state of a listener's files, found good.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// What to accept connections with.
    pub(crate) acceptor: Acceptor,
    /// When the certificate expires, in seconds since 1970.
    pub(crate) expires_unix_s: Option<i64>,
}

/// The certificate of one listener through its changes.
pub(crate) struct Certificate {
    files: TlsFiles,
    /// Tells the last state that was looked at from the next one, good or not.
    seen: Fingerprint,
    /// Outlives changes, so that clients resume their sessions across one.
    tickets: Arc<dyn ProducesTickets>,
    provider: Arc<CryptoProvider>,
}

type Fingerprint = [u8; 32];

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Certificate {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn load(files: TlsFiles) -> Result<(Self, Identity), CertificateError> {
        let provider = Arc::new(ring::default_provider());
        let tickets = ring::Ticketer::new().map_err(|error| CertificateError::Tickets(error.to_string()))?;
        let mut certificate = Self { files, seen: [0; 32], tickets, provider };
        let (seen, identity) = certificate.look();
        certificate.seen = seen;
        identity.map(|identity| (certificate, identity))
    }

    /// Checks what files might hold, without any.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn judge(contents: &Contents) -> Result<Identity, CertificateError> {
        let client_ca_file = contents.client_authorities.is_some().then(|| PathBuf::from("ca.crt"));
        let files = TlsFiles { cert_file: "tls.crt".into(), key_file: "tls.key".into(), client_ca_file };
        let tickets = ring::Ticketer::new().map_err(|error| CertificateError::Tickets(error.to_string()))?;
        let provider = Arc::new(ring::default_provider());
        Self { files, seen: [0; 32], tickets, provider }.identity(contents)
    }

    /// Reads the files again: `None` when they hold what they held the last time.
    pub(crate) fn reload(&mut self) -> Option<Result<Identity, CertificateError>> {
        let (seen, identity) = self.look();
        if seen == self.seen {
            return None;
        }
        self.seen = seen;
        Some(identity)
    }

    /// The files to be watched.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let TlsFiles { cert_file, key_file, client_ca_file } = &self.files;
        [cert_file, key_file].into_iter().chain(client_ca_file).cloned().collect()
    }

    /// Reads and checks until a good state is found, or a bad one that stays.
    fn look(&self) -> (Fingerprint, Result<Identity, CertificateError>) {
        let mut found = self.look_once();
        for _ in 1..READ_ATTEMPTS_MAX {
            if found.1.is_ok() {
                break;
            }
            let again = self.look_once();
            let stays = again.0 == found.0;
            found = again;
            if stays {
                break;
            }
        }
        found
    }

    fn look_once(&self) -> (Fingerprint, Result<Identity, CertificateError>) {
        match Contents::read(&self.files) {
            Ok(contents) => (contents.fingerprint(), self.identity(&contents)),
            Err(error) => (Sha256::digest(error.to_string()).into(), Err(error)),
        }
    }

    fn identity(&self, contents: &Contents) -> Result<Identity, CertificateError> {
        let TlsFiles { cert_file, key_file, client_ca_file } = &self.files;
        let chain = certificates(cert_file, &contents.chain)?;
        let expires_unix_s = chain.first().and_then(|leaf| not_after_unix_s(leaf));
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|_| CertificateError::NoKey { file: key_file.clone() })?;
        let unusable = |error: rustls::Error| CertificateError::Unusable {
            certificate: cert_file.clone(),
            key: key_file.clone(),
            error: error.to_string(),
        };
        let builder = ServerConfig::builder_with_provider(self.provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
        let mut config = match (client_ca_file, &contents.client_authorities) {
            (Some(file), Some(pem)) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(authorities(file, pem)?.into(), self.provider.clone());
                let bad = |error| CertificateError::BadAuthority { file: file.clone(), error: format!("{error}") };
                builder.with_client_cert_verifier(verifier.build().map_err(bad)?)
            }
            (Some(_) | None, _) => builder.with_no_client_auth(),
        }
        .with_single_cert(chain, key)
        .map_err(unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Sessions are resumed by tickets, which need no shared table. Not where clients show certificates: a resumed
        // session would outlive the certificate, or the authority, that it began with.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        if client_ca_file.is_none() {
            config.ticketer = self.tickets.clone();
        } else {
            config.send_tls13_tickets = 0;
        }
        Ok(Identity { acceptor: Acceptor { config: Arc::new(config) }, expires_unix_s })
    }
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let bad = |error| CertificateError::BadPem { file: file.to_owned(), error: format!("{error}") };
    let chain = read.map_err(bad)?;
    if chain.is_empty() {
        return Err(CertificateError::NoCertificate { file: file.to_owned() });
    }
    Ok(chain)
}

fn authorities(file: &Path, pem: &[u8]) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(file, pem)? {
        let bad = |error| CertificateError::BadAuthority { file: file.to_owned(), error: format!("{error}") };
        roots.add(authority).map_err(bad)?;
    }
    Ok(roots)
}

/// What the files of a listener hold.
pub(super) struct Contents {
    pub(super) chain: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) client_authorities: Option<Vec<u8>>,
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, CertificateError> {
        Ok(Self {
            chain: read_bounded(&files.cert_file)?,
            key: read_bounded(&files.key_file)?,
            client_authorities: files.client_ca_file.as_deref().map(read_bounded).transpose()?,
        })
    }

    fn fingerprint(&self) -> Fingerprint {
        let mut hash = Sha256::new();
        for part in [Some(&self.chain), Some(&self.key), self.client_authorities.as_ref()].into_iter().flatten() {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(CertificateError::Unreadable { file: path.to_owned(), error }),
        Ok(_) if bytes.len() as u64 > FILE_BYTES_MAX => Err(CertificateError::TooLong { file: path.to_owned() }),
        Ok(_) => Ok(bytes),
    }
}

/// The URI and DNS names of a verified client certificate, in the form in which tenants are looked up.
pub(super) fn names_of(certificate: &CertificateDer<'_>) -> Box<[String]> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Box::default() };
    let names = certificate.valid_uri_names().chain(certificate.valid_dns_names());
    names.take(CLIENT_NAMES_MAX).map(comparable_name).collect()
}

/// What is wrong with the files of a listener. Nothing of a key is in it.
#[derive(Debug)]
pub(crate) enum CertificateError {
    /// A file cannot be read.
    Unreadable {
        /// Which.
        file: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// A file is no certificate: too long for one.
    TooLong {
        /// Which.
        file: PathBuf,
    },
    /// A file is not PEM.
    BadPem {
        /// Which.
        file: PathBuf,
        /// Why not.
        error: String,
    },
    /// A file holds no certificate.
    NoCertificate {
        /// Which.
        file: PathBuf,
    },
    /// A file holds no private key.
    NoKey {
        /// Which.
        file: PathBuf,
    },
    /// Certificate and key are not a pair that can be used.
    Unusable {
        /// The chain's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why not.
        error: String,
    },
    /// An authority of client certificates cannot be used.
    BadAuthority {
        /// Its file.
        file: PathBuf,
        /// Why not.
        error: String,
    },
    /// No keys for session tickets: the kernel gives no random bytes.
    Tickets(String),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { file, error } => write!(f, "{} cannot be read: {error}", file.display()),
            Self::TooLong { file } => write!(f, "{} is larger than {FILE_BYTES_MAX} bytes", file.display()),
            Self::BadPem { file, error } => write!(f, "{} is not valid PEM: {error}", file.display()),
            Self::NoCertificate { file } => {
                write!(f, "{} holds no certificate (-----BEGIN CERTIFICATE-----)", file.display())
            }
            Self::NoKey { file } => {
                write!(
                    f,
                    "{} holds no private key that can be read (PKCS #8, PKCS #1 or SEC1, no passphrase)",
                    file.display()
                )
            }
            Self::Unusable { certificate, key, error } => {
                write!(f, "{} and {} cannot be used together: {error}", certificate.display(), key.display())
            }
            Self::BadAuthority { file, error } => {
                write!(f, "{} holds an authority that cannot be used: {error}", file.display())
            }
            Self::Tickets(error) => write!(f, "no keys for session tickets can be made: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Pair {
        certificate: String,
        key: String,
    }

    fn pair() -> Pair {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        Pair { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    fn put(folder: &Path, pair: &Pair) -> TlsFiles {
        let files =
            TlsFiles { cert_file: folder.join("tls.crt"), key_file: folder.join("tls.key"), client_ca_file: None };
        fs::write(&files.cert_file, &pair.certificate).unwrap();
        fs::write(&files.key_file, &pair.key).unwrap();
        files
    }

    #[test]
    fn only_a_change_of_what_the_files_hold_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (pair(), pair());
        let (mut certificate, _) = Certificate::load(put(folder.path(), &first)).unwrap();
        put(folder.path(), &first);
        assert!(certificate.reload().is_none(), "the same bytes were written again");
        put(folder.path(), &second);
        assert!(certificate.reload().unwrap().is_ok());
        assert!(certificate.reload().is_none());
    }

    #[test]
    fn a_broken_pair_is_told_once_and_a_mended_one_is_good() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (pair(), pair());
        let (mut certificate, _) = Certificate::load(put(folder.path(), &first)).unwrap();
        put(folder.path(), &Pair { certificate: second.certificate, key: first.key.clone() });
        let told = certificate.reload().unwrap().unwrap_err().to_string();
        assert!(told.contains("cannot be used together"), "{told}");
        assert!(certificate.reload().is_none());
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        let told = certificate.reload().unwrap().unwrap_err().to_string();
        assert!(told.contains("tls.key cannot be read"), "{told}");
        assert!(certificate.reload().is_none());
        put(folder.path(), &first);
        assert!(certificate.reload().unwrap().is_ok());
    }

    #[test]
    fn every_kind_of_wrong_file_is_named_and_no_key_is_shown() {
        let good = pair();
        let told = |certificate: &str, key: &str| {
            let folder = tempfile::tempdir().unwrap();
            let files = put(folder.path(), &Pair { certificate: certificate.into(), key: key.into() });
            Certificate::load(files).unwrap_err().to_string()
        };
        assert!(told("", &good.key).contains("tls.crt holds no certificate"));
        assert!(told(&good.key, &good.key).contains("tls.crt holds no certificate"));
        assert!(told(&good.certificate, "").contains("tls.key holds no private key"));
        assert!(told(&good.certificate, &good.certificate).contains("tls.key holds no private key"));
        assert!(told("-----BEGIN CERTIFICATE-----\n???", &good.key).contains("tls.crt is not valid PEM"));
        let torn = good.key.replacen("MI", "AA", 1);
        let message = told(&good.certificate, &torn);
        let secret = good.key.lines().nth(1).unwrap();
        assert!(message.contains("tls.key") && !message.contains(&secret[8..]), "{message}");
        assert!(told(&"x".repeat(2 << 20), &good.key).contains("larger than"));
    }

    #[test]
    fn the_names_of_a_client_are_its_uris_and_host_names_in_comparable_form() {
        let mut wanted = rcgen::CertificateParams::new(vec!["Client.Example.com".to_owned()]).unwrap();
        wanted.subject_alt_names.push(rcgen::SanType::URI("spiffe://cluster/ns/A".try_into().unwrap()));
        let certificate = wanted.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert_eq!(*names_of(certificate.der()), ["spiffe://cluster/ns/A", "client.example.com"]);
        assert!(names_of(&CertificateDer::from(vec![0x30, 0x80, 1])).is_empty());
    }
}
