//! A server that is well by every probe, keeps what it is asked, and answers what the test says.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::support::client::find;
use crate::support::engines::{pool, worker_set_at};

/// The name of the model that backends serve.
pub(crate) const MODEL: &str = "tiny";
/// Another name for it, known to the gateway alone.
pub(crate) const ALIAS: &str = "org/other-name";

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) target: String,
    /// Header lines in lower case, each with its line end.
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    /// The first value of a header, in lower case; the name in lower case as well.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(known, _)| *known == name).map(|(_, value)| value.trim()).next()
    }

    /// The body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// The server. Dropping it ends it; its connections end with those who opened them.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Backend {
    /// A server that has `answer` write its answers; where that fails, the connection ends.
    pub(crate) fn start(
        answer: impl Fn(&Asked, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().unwrap();
        let (asked, stop) = (Arc::<Mutex<Vec<Asked>>>::default(), Arc::<AtomicBool>::default());
        let thread = std::thread::spawn({
            let (asked, stop, answer) = (Arc::clone(&asked), Arc::clone(&stop), Arc::new(answer));
            move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let (asked, answer) = (Arc::clone(&asked), Arc::clone(&answer));
                    // Whatever goes wrong on the connection is what the gateway wanted.
                    std::thread::spawn(move || stream.and_then(|stream| serve(stream, &asked, &*answer)));
                }
            }
        });
        Self { address, asked, stop, thread: Some(thread) }
    }

    /// A server that always answers the same.
    pub(crate) fn saying(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |_, stream| stream.write_all(&answer))
    }

    /// Everything that it was asked by the gateway's clients.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it was asked last.
    pub(crate) fn last(&self) -> Asked {
        self.asked().pop().expect("it was asked something")
    }

    /// Documents: this one server in one pool.
    pub(crate) fn documents(&self) -> String {
        worker_set_at("workers", MODEL, ALIAS, &[self.address]) + &pool(&["workers"], &[])
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A whole answer with a JSON body.
pub(crate) fn document(json: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}", json.len())
}

/// Ends the connection behind an answer.
pub(crate) fn close() -> std::io::Result<()> {
    Err(Error::from(ErrorKind::ConnectionAborted))
}

fn serve(
    mut stream: TcpStream,
    asked: &Mutex<Vec<Asked>>,
    answer: &dyn Fn(&Asked, &mut TcpStream) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut received = Vec::new();
    while let Some(request) = receive(&mut stream, &mut received)? {
        // Every request of a client comes with an id; probes have none.
        if request.header("x-request-id").is_some() {
            asked.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
            answer(&request, &mut stream)?;
        } else if request.target.ends_with("/models") {
            let models = format!(r#"{{"object":"list","data":[{{"id":"{MODEL}"}},{{"id":"large"}}]}}"#);
            stream.write_all(document(&models).as_bytes())?;
        } else {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
        }
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, received: &mut Vec<u8>) -> std::io::Result<Option<Asked>> {
    let mut more = || -> std::io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; 64 << 10];
        let n = stream.read(&mut bytes)?;
        bytes.truncate(n);
        Ok((n > 0).then_some(bytes))
    };
    let end = loop {
        if let Some(end) = find(received, b"\r\n\r\n") {
            break end + 4;
        }
        match more()? {
            Some(bytes) => received.extend(bytes),
            None => return Ok(None),
        }
    };
    let head: Vec<u8> = received.drain(..end).collect();
    let head = String::from_utf8_lossy(&head).into_owned();
    let (line, lines) = head.split_once("\r\n").unwrap();
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut asked = Asked { method, target, head: lines.to_ascii_lowercase(), body: Vec::new() };
    let length = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
    while received.len() < length {
        match more()? {
            Some(bytes) => received.extend(bytes),
            None => return Ok(None),
        }
    }
    asked.body = received.drain(..length).collect();
    Ok(Some(asked))
}
