//! A server that behaves as the test says: within the handshake, and in what it answers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustls::crypto::ring;
use rustls::{HandshakeKind, ServerConfig, ServerConnection, StreamOwned};

use crate::pki::Leaf;
use crate::support::client::find;

/// How it behaves.
#[derive(Clone, Debug)]
pub(crate) enum Manner {
    /// Each request of a connection is answered so.
    Answers(Vec<u8>),
    /// A request is answered so when its head has come, and nothing more is read; the connection stays open.
    AnswersHead(Vec<u8>),
    /// One request is answered so, then the socket ends without a word of TLS.
    CutsOff(Vec<u8>),
    /// A request is answered with the first part, and with the second when the test says so.
    Pauses(Vec<u8>, Vec<u8>),
    /// What comes first is read, then the connection ends.
    ClosesInHandshake,
    /// What comes first is read, then nothing happens.
    SilentInHandshake,
    /// Speaks HTTP without TLS.
    Plain,
}

/// The server. Dropping it ends it.
pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Mutex<Seen>>,
    signals: Arc<Signals>,
    thread: Option<JoinHandle<()>>,
}

/// What connections are told meanwhile.
#[derive(Debug, Default)]
struct Signals {
    /// The server ends.
    stop: AtomicBool,
    /// [`Manner::Pauses`] goes on.
    go_on: AtomicBool,
}

/// What it has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Heads of requests.
    pub(crate) heads: Vec<String>,
    /// Bodies of requests.
    pub(crate) bodies: Vec<Vec<u8>>,
    /// Server names asked for in handshakes.
    pub(crate) names: Vec<Option<String>>,
    /// Whether sessions were new.
    pub(crate) handshakes: Vec<Option<HandshakeKind>>,
    /// Protocols agreed upon.
    pub(crate) protocols: Vec<Option<Vec<u8>>>,
    /// Connections accepted.
    pub(crate) connections: usize,
    /// Connections that the other side ended during a pause.
    pub(crate) left: usize,
}

impl Server {
    pub(crate) fn start(leaf: &Leaf, manner: Manner) -> Self {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let mut config = builder.with_single_cert(vec![leaf.certificate.clone()], leaf.key_der()).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let port = listener.local_addr().unwrap().port();
        let (seen, signals) = (Arc::<Mutex<Seen>>::default(), Arc::<Signals>::default());
        let thread = std::thread::spawn({
            let (seen, signals) = (Arc::clone(&seen), Arc::clone(&signals));
            move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if signals.stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let (seen, signals) = (Arc::clone(&seen), Arc::clone(&signals));
                    let (config, manner) = (Arc::clone(&config), manner.clone());
                    lock(&seen).connections += 1;
                    // Whatever goes wrong on the connection is what the gateway wanted.
                    std::thread::spawn(move || serve(stream, &config, &manner, &seen, &signals));
                }
            }
        });
        Self { port, seen, signals, thread: Some(thread) }
    }

    /// Ends the pauses of [`Manner::Pauses`], and lets there be no more.
    pub(crate) fn go_on(&self) {
        self.signals.go_on.store(true, Ordering::SeqCst);
    }

    pub(crate) fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signals.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How often a connection that is held looks whether the server ends.
const HOLD_LOOK: std::time::Duration = std::time::Duration::from_millis(20);

fn hold(signals: &Signals) {
    while !signals.stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(HOLD_LOOK);
    }
}

/// Waits for the word to go on; an error when the other side ends the connection, or the server does.
fn pause(
    stream: &mut StreamOwned<ServerConnection, TcpStream>,
    seen: &Mutex<Seen>,
    signals: &Signals,
) -> std::io::Result<()> {
    stream.sock.set_read_timeout(Some(HOLD_LOOK))?;
    while !signals.go_on.load(Ordering::SeqCst) {
        if signals.stop.load(Ordering::SeqCst) {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        match stream.read(&mut [0; 1024]) {
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Ok(n) if n > 0 => {}
            Ok(_) | Err(_) => {
                lock(seen).left += 1;
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    stream.sock.set_read_timeout(None)
}

fn serve(
    mut stream: TcpStream,
    config: &Arc<ServerConfig>,
    manner: &Manner,
    seen: &Mutex<Seen>,
    signals: &Signals,
) -> std::io::Result<()> {
    match manner {
        Manner::ClosesInHandshake => stream.read(&mut [0; 4096]).map(drop),
        Manner::SilentInHandshake => {
            let _hello = stream.read(&mut [0; 4096])?;
            hold(signals);
            Ok(())
        }
        Manner::Plain => {
            let _hello = stream.read(&mut [0; 4096])?;
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        }
        Manner::Answers(_) | Manner::AnswersHead(_) | Manner::CutsOff(_) | Manner::Pauses(..) => {
            let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream);
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock)?;
            }
            {
                let mut seen = lock(seen);
                seen.names.push(stream.conn.server_name().map(str::to_owned));
                seen.handshakes.push(stream.conn.handshake_kind());
                seen.protocols.push(stream.conn.alpn_protocol().map(<[u8]>::to_vec));
            }
            answer(&mut stream, manner, seen, signals)
        }
    }
}

fn answer(
    stream: &mut StreamOwned<ServerConnection, TcpStream>,
    manner: &Manner,
    seen: &Mutex<Seen>,
    signals: &Signals,
) -> std::io::Result<()> {
    let mut received = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = find(&received, b"\r\n\r\n") {
                break end + 4;
            }
            receive(stream, &mut received)?;
        };
        let head = String::from_utf8_lossy(&received[..end]).into_owned();
        lock(seen).heads.push(head.clone());
        let (text, body) = match manner {
            Manner::AnswersHead(text) => {
                stream.write_all(text)?;
                stream.flush()?;
                hold(signals);
                return Ok(());
            }
            Manner::Answers(text) | Manner::CutsOff(text) | Manner::Pauses(text, _) => {
                let lengths = head.lines().filter_map(|line| line.strip_prefix("content-length: "));
                (text, lengths.filter_map(|length| length.parse::<usize>().ok()).next().unwrap_or(0))
            }
            Manner::ClosesInHandshake | Manner::SilentInHandshake | Manner::Plain => return Ok(()),
        };
        while received.len() < end + body {
            receive(stream, &mut received)?;
        }
        lock(seen).bodies.push(received[end..end + body].to_vec());
        received.drain(..end + body);
        stream.write_all(text)?;
        stream.flush()?;
        if matches!(manner, Manner::CutsOff(_)) {
            return Ok(());
        }
        if let Manner::Pauses(_, rest) = manner {
            pause(stream, seen, signals)?;
            stream.write_all(rest)?;
            stream.flush()?;
        }
        if find(&text.to_ascii_lowercase(), b"connection: close").is_some() {
            stream.conn.send_close_notify();
            return stream.flush();
        }
    }
}

fn receive(stream: &mut StreamOwned<ServerConnection, TcpStream>, received: &mut Vec<u8>) -> std::io::Result<()> {
    let mut bytes = [0; 16 << 10];
    match stream.read(&mut bytes)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        n => {
            received.extend_from_slice(&bytes[..n]);
            Ok(())
        }
    }
}
