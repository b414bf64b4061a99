//! A connection, of a client or to an upstream, plain or TLS.
//!
//! Whoever receives or sends matches on the two kinds: another layer of futures between would cost every plain connection
//! some hundred bytes for its whole life. For the same reason those of the TLS side are boxed.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use super::connector::{Connector, TlsFault};
use super::{Acceptor, TlsConn};
use crate::io::{Conn, Watch, until};

/// A connection, plain or TLS.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Bytes as they are.
    Plain(Conn),
    /// Encrypted. Boxed: the session is some KiB, and most listeners are plain.
    Tls(Box<TlsConn>),
}

/// How the client reached us, as told to upstreams in `X-Forwarded-Proto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// As in a URL.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// What a connection has become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Established {
    /// It was ready as it was.
    Plain,
    /// The handshake is done.
    Tls,
}

/// Why a connection never came to its first request.
#[derive(Debug)]
pub(crate) enum NotEstablished {
    /// The two sides do not agree, or one of them does not speak TLS.
    Refused,
    /// The handshake was not done in time.
    TimedOut,
}

impl Transport {
    /// A connection that was just accepted; TLS where the listener has an acceptor.
    pub(crate) fn accepted(conn: Conn, acceptor: Option<&Acceptor>) -> io::Result<Self> {
        match acceptor {
            None => Ok(Self::Plain(conn)),
            Some(acceptor) => Ok(Self::Tls(Box::new(TlsConn::accepted(conn, acceptor)?))),
        }
    }

    /// Makes the connection ready for requests, within `timeout`. After a refusal the client has been told by an alert.
    pub(crate) async fn establish(&mut self, timeout: Duration) -> Result<Established, NotEstablished> {
        let Self::Tls(conn) = self else { return Ok(Established::Plain) };
        let watch = conn.raw().watch_shared();
        watch.arm(timeout);
        let done = Box::pin(until(conn.handshake(), None, &watch)).await;
        watch.disarm();
        match done {
            Ok(Ok(())) => Ok(Established::Tls),
            Ok(Err(_)) => Err(NotEstablished::Refused),
            Err(_) => Err(NotEstablished::TimedOut),
        }
    }

    /// Our side of a TLS connection over one that was just made; ready when the handshake is done. A refusal has been told to
    /// the server by an alert. The caller puts a bound on the time.
    pub(crate) async fn connect(conn: Conn, connector: &Connector) -> Result<Self, TlsFault> {
        let mut conn = Box::new(TlsConn::connected(conn, connector).map_err(|error| TlsFault::of(&error))?);
        match conn.handshake().await {
            Ok(()) => Ok(Self::Tls(conn)),
            Err(error) => Err(TlsFault::of(&error)),
        }
    }

    /// Whether there is something to be received now: bytes, the end, an error.
    pub(crate) fn is_readable(&mut self) -> bool {
        match self {
            Self::Plain(conn) => conn.is_readable(),
            Self::Tls(conn) => conn.is_readable(),
        }
    }

    /// The watch of this connection: is the peer still there, and the deadline of what is awaited on it.
    pub(crate) fn watch(&self) -> &Watch {
        self.raw().watch()
    }

    /// The watch, to be kept beside a mutable use of the connection.
    pub(crate) fn watch_shared(&self) -> Rc<Watch> {
        self.raw().watch_shared()
    }

    /// Ends our side of the connection in good order; what was sent still arrives.
    pub(crate) async fn shutdown(&mut self) {
        match self {
            Self::Plain(conn) => conn.shutdown().await,
            Self::Tls(conn) => conn.shutdown().await,
        }
    }

    /// The socket, for reading off what nobody wants any more.
    pub(crate) fn raw_mut(&mut self) -> &mut Conn {
        match self {
            Self::Plain(conn) => conn,
            Self::Tls(conn) => conn.raw_mut(),
        }
    }

    /// How the client reached us.
    pub(crate) const fn scheme(&self) -> Scheme {
        match self {
            Self::Plain(_) => Scheme::Http,
            Self::Tls(_) => Scheme::Https,
        }
    }

    /// The names in the client's certificate, which a configured authority vouches for; empty where there is none.
    pub(crate) fn client_names(&self) -> &[String] {
        match self {
            Self::Plain(_) => &[],
            Self::Tls(conn) => conn.client_names(),
        }
    }

    fn raw(&self) -> &Conn {
        match self {
            Self::Plain(conn) => conn,
            Self::Tls(conn) => conn.raw(),
        }
    }
}
