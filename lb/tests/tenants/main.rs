//! Tenants as they are seen from outside: who is known by what, what each may use, who waits for whom, and that no secret is told.
//!
//! Every test runs once for each I/O driver, as in the gateway's own tests, whose support is used here too.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

#[macro_use]
#[path = "../gateway/support.rs"]
#[allow(dead_code, unused_imports, reason = "the gateway's own tests use the rest")]
mod support;

mod cost;
mod issuer;
mod limits;
#[path = "../tls/listener.rs"]
#[allow(dead_code, reason = "the tests of TLS use the rest")]
mod listener;
#[path = "../tls/pki.rs"]
#[allow(dead_code, reason = "the tests of TLS use the rest")]
mod pki;
mod queue;
mod secrets;
mod tokens;

use sha2::{Digest, Sha256};

/// An InferenceTenant; `spec` are the members of a flow mapping.
pub(crate) fn tenant(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceTenant\nmetadata: {{ name: {name}, namespace: default }}\n\
         spec: {{ {spec} }}\n---\n"
    )
}

/// A tenant that is known by a key of its name, `key-of-NAME`.
pub(crate) fn tenant_with_key(name: &str, more: &str) -> String {
    let sha256: String = Sha256::digest(format!("key-of-{name}")).iter().map(|byte| format!("{byte:02x}")).collect();
    tenant(name, &format!("apiKeys: [{{ sha256: {sha256} }}]{more}"))
}

/// The header line of a tenant's key.
pub(crate) fn key_of(name: &str) -> String {
    format!("Authorization: Bearer key-of-{name}\r\n")
}
