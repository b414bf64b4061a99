//! TLS: certificates, and the server's side of a session that somebody in the middle tampers with.

use std::io::{Read, Write};
use std::sync::{Arc, LazyLock};

use lb::probe::tls::{self, Server, Session};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// A certificate, the server that shows it, and clients that trust it.
struct Pair {
    chain: String,
    key: String,
    server: Server,
    client: Arc<ClientConfig>,
}

/// Made anew by each process: nothing here depends on the bytes of a key.
static PAIR: LazyLock<Pair> = LazyLock::new(|| {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate is made");
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let server = Server::from_pem(chain.as_bytes(), key.as_bytes(), None).expect("a good pair");
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a good certificate");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions of its own");
    let client = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
    Pair { chain, key, server, client }
});

/// PEM files of a listener, told apart by zero bytes, and the same bytes as DER: refused without a word of the key, or good.
pub fn certificate(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut next = || parts.next().unwrap_or_default();
    let (chain, key, authorities) = (next(), next(), next());
    check_pem(chain, key, Some(authorities).filter(|pem| !pem.is_empty()));
    check_pem(PAIR.chain.as_bytes(), key, None);
    check_pem(chain, PAIR.key.as_bytes(), None);
    check_pem(PAIR.chain.as_bytes(), PAIR.key.as_bytes(), Some(chain));
    // Years of four digits: 0000 to 9999.
    let expiry = tls::expiry_unix_s(data);
    assert!(expiry.is_none_or(|s| (-62_200_000_000..253_500_000_000).contains(&s)), "{expiry:?}");
    assert!(tls::client_names(data).len() <= 64);
}

fn check_pem(chain: &[u8], key: &[u8], authorities: Option<&[u8]>) {
    const SECRET_BYTES_MIN: usize = 24;
    if let Err(told) = Server::from_pem(chain, key, authorities) {
        let secrets =
            key.split(|byte| *byte == b'\n').filter(|line| line.len() >= SECRET_BYTES_MIN && !line.starts_with(b"-"));
        for secret in secrets {
            let shown = told.as_bytes().windows(SECRET_BYTES_MIN).any(|part| part == &secret[..SECRET_BYTES_MIN]);
            assert!(!shown, "a part of the key is in {told:?}");
        }
    }
}

/// Two sides and what is on its way between them.
struct Wire {
    client: ClientConnection,
    server: Session,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    /// What the client has written, and what of it the server has read.
    written: Vec<u8>,
    read: Vec<u8>,
    /// What the server has written, and what of it the client has read.
    answered: Vec<u8>,
    seen: Vec<u8>,
    tampered: bool,
    /// The server has ended the connection.
    ended: bool,
    closed: bool,
}

/// A session driven by the bytes: what each side reads is a beginning of what the other wrote, whatever is done to the bytes
/// between; untouched, in any split, it is all of it.
pub fn tls_session(data: &[u8]) {
    const STEPS_MAX: usize = 200;
    let pair = &*PAIR;
    let name = ServerName::try_from("localhost").expect("a host name");
    let mut wire = Wire {
        client: ClientConnection::new(pair.client.clone(), name).expect("a client"),
        server: Session::new(&pair.server).expect("a session"),
        to_server: Vec::new(),
        to_client: Vec::new(),
        written: Vec::new(),
        read: Vec::new(),
        answered: Vec::new(),
        seen: Vec::new(),
        tampered: false,
        ended: false,
        closed: false,
    };
    let mut rest = data;
    for _ in 0..STEPS_MAX {
        let [action, size, behind @ ..] = rest else { break };
        rest = behind;
        let size = usize::from(*size);
        match action % 9 {
            0 => wire.client_writes(size * 97),
            1 => wire.deliver_to_server(size + 1),
            2 => wire.deliver_to_server(size * 64 + 1),
            3 => wire.deliver_to_client(size * 64 + 1),
            4 => wire.flip(size),
            5 => {
                let garbage = &rest[..rest.len().min(size)];
                rest = &rest[garbage.len()..];
                wire.insert(garbage);
            }
            6 => wire.server_writes(size * 97),
            7 => wire.client_closes(),
            _ => wire.settle(),
        }
        wire.check();
    }
    wire.settle();
    wire.check();
    if !wire.tampered {
        assert!(!wire.ended || wire.closed, "an untouched session was ended");
        assert!(wire.closed || wire.server.is_established(), "an untouched handshake was not done");
        assert_eq!(wire.read.len(), wire.written.len(), "something is missing");
        assert_eq!(wire.seen.len(), wire.answered.len(), "something is missing");
    }
}

impl Wire {
    fn client_writes(&mut self, bytes: usize) {
        if self.closed {
            return;
        }
        let text: Vec<u8> = (0..bytes).map(|at| (at + self.written.len()) as u8).collect();
        // Kept back by a bound of its own when it is too much.
        let taken = self.client.writer().write(&text).unwrap_or(0);
        self.written.extend_from_slice(&text[..taken]);
        self.collect();
    }

    fn server_writes(&mut self, bytes: usize) {
        if self.ended || self.closed || !self.server.is_established() {
            return;
        }
        let text: Vec<u8> = (0..bytes).map(|at| (3 * (at + self.answered.len())) as u8).collect();
        let (head, body) = text.split_at(bytes / 3);
        self.to_client.extend(self.server.send(head, body).expect("an established session sends"));
        self.answered.extend(text);
    }

    /// Takes what the client has for the server.
    fn collect(&mut self) {
        while self.client.wants_write() {
            self.client.write_tls(&mut self.to_server).expect("memory takes everything");
        }
    }

    fn deliver_to_server(&mut self, bytes: usize) {
        self.collect();
        let part: Vec<u8> = self.to_server.drain(..bytes.min(self.to_server.len())).collect();
        if self.ended || part.is_empty() {
            return;
        }
        self.ended = !self.server.receive(&part, &mut self.read).unwrap_or(false);
        self.to_client.extend(self.server.to_client().expect("an alert is written"));
    }

    fn deliver_to_client(&mut self, bytes: usize) {
        let part: Vec<u8> = self.to_client.drain(..bytes.min(self.to_client.len())).collect();
        let mut rest = &part[..];
        while !rest.is_empty() {
            if self.client.read_tls(&mut rest).is_err() || self.client.process_new_packets().is_err() {
                assert!(self.tampered || self.ended, "a client refuses what the server says");
                break;
            }
            let mut plain = [0; 4096];
            while let Ok(n @ 1..) = self.client.reader().read(&mut plain) {
                self.seen.extend_from_slice(&plain[..n]);
            }
        }
        self.collect();
    }

    fn flip(&mut self, at: usize) {
        self.collect();
        if let Some(byte) = self.to_server.get_mut(at) {
            *byte ^= 1 << (at % 8);
            self.tampered = true;
        }
    }

    fn insert(&mut self, garbage: &[u8]) {
        self.to_server.splice(0..0, garbage.iter().copied());
        self.tampered |= !garbage.is_empty();
    }

    fn client_closes(&mut self) {
        if self.client.is_handshaking() {
            return;
        }
        self.client.send_close_notify();
        self.closed = true;
        self.collect();
    }

    /// Delivers everything, a few times over.
    fn settle(&mut self) {
        for _ in 0..8 {
            self.deliver_to_server(usize::MAX);
            self.deliver_to_client(usize::MAX);
        }
    }

    fn check(&self) {
        assert!(self.written.starts_with(&self.read), "the server reads what the client did not write");
        assert!(self.answered.starts_with(&self.seen), "the client reads what the server did not write");
    }
}
