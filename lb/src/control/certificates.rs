//! The certificates of TLS listeners, watched: a change of their files is in force for the next connection.
//!
//! One task per TLS listener waits for its files, reads and checks them away from the control loop, and sends what it found.
//! A broken state is told and counted; what was in force stays.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use config::source::{FileChanges, WatchSettings};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::journal;
use super::status::CertificatesStatus;
use crate::tls::{Acceptor, Certificate, Identity};

/// Changes that wait for the control loop. A task goes on only when its change was taken.
const CHANGES_MAX: usize = 16;
/// A certificate that ends this soon is worth a warning.
const EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 3_600);

/// A certificate that a listener shows.
#[derive(Debug)]
pub(crate) struct InUse {
    /// The listener, by its place in the options.
    pub listener: usize,
    /// Where it is.
    pub address: SocketAddr,
    /// Where the certificate comes from.
    pub certificate: Certificate,
    /// What it is now.
    pub identity: Identity,
}

/// The files of a listener have changed.
#[derive(Debug)]
pub(crate) struct Change {
    listener: usize,
    found: Result<Identity, String>,
}

/// What each TLS listener shows.
#[derive(Debug)]
pub(crate) struct Certificates {
    shown: Vec<Shown>,
    refusals: u64,
}

#[derive(Debug)]
struct Shown {
    listener: usize,
    address: SocketAddr,
    expires_unix_s: Option<i64>,
}

impl Certificates {
    /// Watches them for as long as the runtime lives.
    pub(crate) fn watch(in_use: Vec<InUse>) -> (Self, mpsc::Receiver<Change>) {
        let (changes, receiver) = mpsc::channel(CHANGES_MAX);
        let mut shown = Vec::with_capacity(in_use.len());
        for InUse { listener, address, certificate, identity } in in_use {
            warn_of_expiry(address, &identity);
            shown.push(Shown { listener, address, expires_unix_s: identity.expires_unix_s });
            tokio::spawn(watch(listener, certificate, changes.clone()));
        }
        (Self { shown, refusals: 0 }, receiver)
    }

    /// Takes a change in: what a listener is to accept with from now on, if it is good.
    pub(crate) fn take(&mut self, change: Change) -> Option<(usize, Acceptor)> {
        let shown = self.shown.iter_mut().find(|shown| shown.listener == change.listener)?;
        match change.found {
            Ok(identity) => {
                shown.expires_unix_s = identity.expires_unix_s;
                journal::info("certificate in force", &[("listener", &shown.address)]);
                warn_of_expiry(shown.address, &identity);
                Some((change.listener, identity.acceptor))
            }
            Err(why) => {
                self.refusals += 1;
                journal::error(
                    "certificate refused; what was in force stays",
                    &[("listener", &shown.address), ("why", &why)],
                );
                None
            }
        }
    }

    /// For the admin server.
    pub(crate) fn status(&self) -> CertificatesStatus {
        CertificatesStatus {
            in_use: self.shown.iter().map(|shown| (shown.address, shown.expires_unix_s)).collect(),
            refusals: self.refusals,
        }
    }
}

async fn watch(listener: usize, mut certificate: Certificate, changes: mpsc::Sender<Change>) {
    let mut files = FileChanges::new(certificate.paths(), WatchSettings::default());
    loop {
        files.next().await;
        let looked = spawn_blocking(move || {
            let found = certificate.reload();
            (certificate, found)
        });
        let Ok((back, found)) = looked.await else {
            journal::error("a certificate is no longer watched; restart to see changes", &[("listener", &listener)]);
            return;
        };
        certificate = back;
        let Some(found) = found else { continue };
        let change = Change { listener, found: found.map_err(|error| error.to_string()) };
        if changes.send(change).await.is_err() {
            return;
        }
    }
}

fn warn_of_expiry(address: SocketAddr, identity: &Identity) {
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let Some(left_s) = identity.expires_unix_s.map(|end_s| end_s.saturating_sub_unsigned(now_s)) else { return };
    if left_s <= 0 {
        journal::warn("the certificate has expired; clients refuse it", &[("listener", &address)]);
    } else if left_s.unsigned_abs() < EXPIRES_SOON.as_secs() {
        journal::warn("the certificate expires soon", &[("listener", &address), ("left_s", &left_s)]);
    }
}
