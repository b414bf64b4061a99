//! A stand-in for a Kubernetes API server, for tests and for trying things out with kubectl.
//!
//! Faithful in what a client of custom resources meets, by measurements on kube-apiserver 1.36: discovery; lists in pages
//! and their expiry; watches as chunked events with selectors, bookmarks, a clean end at `timeoutSeconds`, and 410 as an
//! event in a stream of status 200; one numeric version over all objects; custom resources as their definitions say
//! (pruning, defaults, schema, CEL, printer columns, the status subresource); generations; writes that change nothing;
//! 401, 403, 404 (as a `Status`, and as plain text where no API is), 409, 410, 415, 422; deletion with finalizers and of
//! pods in two steps; definitions that go and come back; a restart; who owns which field, and server-side apply with its
//! conflicts (of JSON, as kubectl and client libraries send it; lists of built-in resources are one field each).
//!
//! Not there: storage, admission plugins, RBAC (single refusals can be asked for, [`ApiServer::forbid`]), HTTP/2, protobuf. Not
//! for the open: it trusts whoever reaches it.
#![forbid(unsafe_code)]

mod discovery;
mod http;
mod openapi2;
mod owners;
mod patch;
mod query;
mod read;
mod refusal;
mod resource;
mod rules;
mod schema;
mod selector;
mod server;
mod state;
mod store;
mod table;
mod time;
mod tls;
mod write;

use std::collections::BTreeMap;
use std::time::Duration;

pub use server::ApiServer;

/// How a server behaves for all its life.
#[derive(Clone, Debug)]
pub struct Options {
    /// What clients must send as `Authorization: Bearer`; `None` lets everyone in.
    pub token: Option<String>,
    /// Time between two bookmarks of a watch; a real server takes a minute.
    pub bookmark_every: Duration,
    /// Where to listen; port 0 takes any.
    pub address: std::net::SocketAddr,
    /// Whether connections are encrypted.
    pub transport: Transport,
}

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// HTTP.
    Plain,
    /// HTTPS, with a certificate that the kubeconfig names the authority of.
    Tls,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            token: None,
            bookmark_every: Duration::from_secs(60),
            address: std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
            transport: Transport::Plain,
        }
    }
}

/// How a watch from a version that is no longer known is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Status 200 and one ERROR event of code 410, as by a watch cache.
    Event,
    /// Status 410.
    Status,
}

/// A request that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The plural, with `/status` behind it for the subresource.
    pub resource: String,
    /// The namespace; empty for all, or where there is none.
    pub namespace: String,
    /// The object; empty for a list.
    pub name: String,
    /// The query, decoded.
    pub query: BTreeMap<String, String>,
}
