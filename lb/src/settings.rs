//! What the server's own file says to the data threads: fixed for the life of the process.

use std::time::Duration;

use crds::server::DecisionHeaders;

use crate::io::DriverInUse;

/// Bounds and time-outs of the data plane. Sizes in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Which driver the data threads run.
    pub(crate) driver: DriverInUse,
    /// Longest head of a request; longer is 431.
    pub(crate) request_head_bytes_max: usize,
    /// Longest body of a request; longer is 413.
    pub(crate) request_body_bytes_max: usize,
    /// All request bodies of the process together.
    pub(crate) request_bodies_bytes_max: usize,
    /// Connections of one thread; above it new ones are closed at once.
    pub(crate) connections_per_thread_max: usize,
    /// From the first byte of a head to its last.
    pub(crate) request_head_timeout: Duration,
    /// Between two bytes of a request body.
    pub(crate) request_body_idle_timeout: Duration,
    /// Until an upstream connection is up.
    pub(crate) connect_timeout: Duration,
    /// Until the first byte of an answer.
    pub(crate) first_byte_timeout: Duration,
    /// Between two bytes of an answer.
    pub(crate) idle_timeout: Duration,
    /// A client connection without a request; a client that does not read.
    pub(crate) client_idle_timeout: Duration,
    /// An idle upstream connection is closed after this; engines close theirs after 5 s.
    pub(crate) upstream_keep_alive: Duration,
    /// Whether lines are written for the access log.
    pub(crate) access_log: AccessLog,
    /// Whether answers carry `x-kinference-endpoint`, `-rule`, `-predicted-ttft-ms` and `-tags`.
    pub(crate) decision_headers: DecisionHeaders,
    /// Silence of an engine within a stream after which the client is sent a comment; `None`: it never is.
    pub(crate) stream_ping: Option<Duration>,
    /// Bytes of canonical prompt text in one block of a prefix chain.
    pub(crate) block_bytes: u32,
}

/// Whether there is an access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessLog {
    /// Lines are formatted and sent to the control thread.
    On,
    /// Nothing is formatted.
    Off,
}
