//! An issuer of tokens, and where it publishes its keys.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::{ServerConnection, StreamOwned};
use serde_json::{Value, json};

/// Who issues the tokens of these tests.
pub(crate) const ISSUER: &str = "https://login.example.com";

fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// One key of an issuer.
pub(crate) struct SigningKey {
    id: String,
    pair: Ed25519KeyPair,
}

impl SigningKey {
    pub(crate) fn new(id: &str) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self { id: id.to_owned(), pair: Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap() }
    }

    /// A token of this subject that is good for another hour.
    pub(crate) fn token(&self, subject: &str) -> String {
        self.token_of(&json!({ "iss": ISSUER, "aud": "kinference", "sub": subject, "exp": now_s() + 3_600 }))
    }

    pub(crate) fn token_of(&self, claims: &Value) -> String {
        let header = json!({ "alg": "EdDSA", "kid": self.id });
        let signed = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let signature = self.pair.sign(signed.as_bytes());
        format!("{signed}.{}", b64(signature))
    }
}

/// The public keys of these, as an issuer publishes them.
pub(crate) fn key_set(keys: &[&SigningKey]) -> String {
    let keys: Vec<Value> = keys
        .iter()
        .map(|key| json!({ "kty": "OKP", "crv": "Ed25519", "kid": key.id, "use": "sig", "x": b64(key.pair.public_key()) }))
        .collect();
    json!({ "keys": keys }).to_string()
}

/// A server that publishes keys.
pub(crate) struct Publisher {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    keys: Mutex<String>,
    fetched: AtomicUsize,
    stop: AtomicBool,
    tls: Option<Arc<rustls::ServerConfig>>,
}

impl Publisher {
    pub(crate) fn start(keys: String, tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            keys: Mutex::new(keys),
            fetched: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            tls,
        });
        let serving = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if serving.stop.load(Ordering::SeqCst) {
                    return;
                }
                // Whoever is not served well tells so itself.
                let _ = serving.answer(stream);
            }
        });
        Self { address, shared, thread: Some(thread) }
    }

    pub(crate) fn publish(&self, keys: String) {
        *self.shared.keys.lock().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// How often the keys were fetched.
    pub(crate) fn fetched(&self) -> usize {
        self.shared.fetched.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        match &self.tls {
            None => self.speak(stream),
            Some(config) => {
                let session = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
                self.speak(StreamOwned::new(session, stream))
            }
        }
    }

    fn speak(&self, mut stream: impl Read + Write) -> std::io::Result<()> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
            head.push(byte[0]);
        }
        let found = head.starts_with(b"GET /.well-known/jwks.json HTTP/1.1\r\n");
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (status, body) = if found { ("200 OK", keys.as_str()) } else { ("404 Not Found", "") };
        self.fetched.fetch_add(1, Ordering::SeqCst);
        let length = body.len();
        stream.write_all(
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}").as_bytes(),
        )?;
        stream.flush()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
