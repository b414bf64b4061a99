//! Authorities and the certificates that they issue.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An authority.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key.
pub(crate) struct Leaf {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) certificate_pem: String,
    key: KeyPair,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut wanted = CertificateParams::new(Vec::new()).unwrap();
        wanted.distinguished_name.push(DnType::CommonName, name);
        wanted.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self { issuer: CertifiedIssuer::self_signed(wanted, KeyPair::generate().unwrap()).unwrap() }
    }

    /// A certificate for names; one with `://` is a URI.
    pub(crate) fn issue(&self, names: &[&str]) -> Leaf {
        self.issue_until(names, 2090)
    }

    /// A certificate that expires with the beginning of a year.
    pub(crate) fn issue_until(&self, names: &[&str], year: i32) -> Leaf {
        let mut wanted = CertificateParams::new(Vec::new()).unwrap();
        wanted.subject_alt_names = names.iter().map(|name| san(name)).collect();
        wanted.not_before = rcgen::date_time_ymd(2020, 1, 1);
        wanted.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = wanted.signed_by(&key, &self.issuer).unwrap();
        Leaf { certificate: certificate.der().clone(), certificate_pem: certificate.pem(), key }
    }

    /// Its own certificate.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// To believe it, and nobody else.
    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        Arc::new(roots)
    }
}

fn san(name: &str) -> SanType {
    if name.contains("://") {
        SanType::URI(name.try_into().unwrap())
    } else {
        SanType::DnsName(name.try_into().unwrap())
    }
}

impl Leaf {
    pub(crate) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    pub(crate) fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).unwrap()
    }
}
