//! TLS on connections of clients and to upstreams: rustls without any I/O of its own, fed from and drained into this thread's buffers.
//!
//! [`Transport`] is what a connection is to the rest of the program: plain or TLS, told apart by one `match` per
//! operation, so that a plain connection pays a comparison and nothing else. TLS costs a copy each way: what arrives is
//! decrypted by rustls and copied into the caller's buffer, what is sent is encrypted piece by piece into a pooled one.
//!
//! The only place that names rustls. Versions 1.2 and 1.3, ALPN `http/1.1`; HTTP/2 is not offered.

mod certificate;
mod connector;
pub mod door;
mod outward;
mod records;
mod session;
mod transport;
mod validity;

pub(crate) use certificate::{Acceptor, Certificate, Identity};
pub(crate) use connector::{Connector, TlsFault};
pub(crate) use outward::{Verifier, verified_stream};
pub(crate) use session::{Sent, TlsConn};
pub(crate) use transport::{Established, NotEstablished, Transport};
