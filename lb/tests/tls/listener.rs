//! A gateway with a TLS listener, and clients that trust it.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use engine::Engine;
use rustls::crypto::ring;
use rustls::{ClientConfig, ClientConnection, StreamOwned, SupportedProtocolVersion};

use crate::pki::{Authority, Leaf};
use crate::support::{Client, Driver, Gateway, PATIENCE, Setup, fleet};

/// The name that clients ask for.
pub(crate) const HOST: &str = "gateway.test";
/// Another name that certificates of gateways are good for.
pub(crate) const OTHER_HOST: &str = "other.test";

/// A client over TLS.
pub(crate) type TlsClient = Client<TlsStream>;

/// Bytes over TLS.
pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// A gateway with one TLS listener.
pub(crate) struct TlsGateway {
    pub(crate) gateway: Gateway,
    /// Who issued its certificate.
    pub(crate) authority: Authority,
}

/// The listener's fields and files.
pub(crate) fn over_tls(setup: Setup, leaf: &Leaf) -> Setup {
    let mut setup = setup;
    setup.listener.push_str(", tls: { certFile: tls.crt, keyFile: tls.key }");
    setup.files.push(("tls.crt".into(), leaf.certificate_pem.clone()));
    setup.files.push(("tls.key".into(), leaf.key_pem()));
    setup
}

/// As [`over_tls`]; clients must show a certificate of `clients`.
pub(crate) fn with_client_certificates(setup: Setup, leaf: &Leaf, clients: &Authority) -> Setup {
    let mut setup = over_tls(setup, leaf);
    setup.listener = setup.listener.replace("tls.key }", "tls.key, clientCaFile: ca.crt }");
    setup.files.push(("ca.crt".into(), clients.pem()));
    setup
}

/// One engine behind a TLS listener.
pub(crate) fn start(driver: Driver, engine: &Engine) -> TlsGateway {
    start_with(driver, Setup::new(fleet(&[engine])))
}

/// A set-up behind a TLS listener.
pub(crate) fn start_with(driver: Driver, setup: Setup) -> TlsGateway {
    let authority = Authority::new("servers");
    let gateway = over_tls(setup, &authority.issue(&[HOST, OTHER_HOST])).start(driver);
    TlsGateway { gateway, authority }
}

impl TlsGateway {
    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.address
    }

    /// A connection that is ready.
    pub(crate) fn connect(&self) -> TlsClient {
        connect(self.address(), &self.trusting()).unwrap()
    }

    /// What a client without a certificate uses.
    pub(crate) fn trusting(&self) -> Arc<ClientConfig> {
        Arc::new(trusting(&self.authority, None))
    }

    /// A file beside the server's own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        beside(&self.gateway, name)
    }

    /// Puts another pair in place, one file after the other, each in one step.
    pub(crate) fn write_pair(&self, certificate_pem: &str, key_pem: &str) {
        for (name, content) in [("tls.crt", certificate_pem), ("tls.key", key_pem)] {
            fs::write(self.file("new"), content).unwrap();
            fs::rename(self.file("new"), self.file(name)).unwrap();
        }
    }
}

/// A file beside a gateway's own.
pub(crate) fn beside(gateway: &Gateway, name: &str) -> PathBuf {
    gateway.resource(&format!("../{name}"))
}

/// What a client uses that trusts `authority`, and shows `certificate` where it has one.
pub(crate) fn trusting(authority: &Authority, certificate: Option<&Leaf>) -> ClientConfig {
    trusting_with(rustls::ALL_VERSIONS, authority, certificate)
}

/// As [`trusting`], of these versions of TLS alone.
pub(crate) fn trusting_with(
    versions: &[&'static SupportedProtocolVersion],
    authority: &Authority,
    certificate: Option<&Leaf>,
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(versions).unwrap().with_root_certificates(authority.roots());
    match certificate {
        None => builder.with_no_client_auth(),
        Some(leaf) => builder.with_client_auth_cert(vec![leaf.certificate.clone()], leaf.key_der()).unwrap(),
    }
}

/// A socket to the gateway.
pub(crate) fn socket(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A client's side of a connection that has not begun.
pub(crate) fn session(config: &Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(Arc::clone(config), HOST.try_into().unwrap()).unwrap()
}

/// Connects, and finishes the handshake as far as the client can tell.
pub(crate) fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<TlsClient> {
    connect_stream(address, config).map(Client::over)
}

/// As [`connect`], for what may be refused later.
pub(crate) fn connect_stream(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<TlsStream> {
    let (mut session, mut stream) = (session(config), socket(address));
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(session, stream))
}
