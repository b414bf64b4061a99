//! A server that answers every chat with the bytes that the test says, good HTTP or not.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::client::find;
use super::engines::MODEL;

/// What happens to a connection after a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The next request may come.
    Keep,
    /// It ends.
    Close,
    /// The next request may come, but this is said first, unasked.
    Say(&'static str),
    /// The answer comes with the head of the request already, and nothing more is read.
    Hold,
    /// The next request may come, but its first bytes end the server's side, and nothing of it is read.
    EndAtNext,
}

/// What is said when metrics are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metrics {
    /// That there are none.
    None,
    /// This page.
    Page(&'static str),
    /// Nothing, ever.
    Hang,
}

/// What the server does.
#[derive(Clone, Copy)]
struct Script<'a> {
    answer: &'a [u8],
    then: Then,
    metrics: Metrics,
}

/// The server. Dropping it ends it; its connections end with those who opened them.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    chats: Arc<Mutex<Vec<u32>>>,
    said: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scripted {
    /// A server that is well by every probe and answers each chat with `answer`.
    pub(crate) fn start(answer: impl Into<Vec<u8>>, then: Then) -> Self {
        Self::with_metrics(answer, then, Metrics::None)
    }

    /// The same, with a page of metrics.
    pub(crate) fn with_metrics(answer: impl Into<Vec<u8>>, then: Then, metrics: Metrics) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().unwrap();
        let (chats, stop) = (Arc::<Mutex<Vec<u32>>>::default(), Arc::<AtomicBool>::default());
        let said = Arc::<AtomicUsize>::default();
        let thread = std::thread::spawn({
            let (chats, stop, answer) = (Arc::clone(&chats), Arc::clone(&stop), Arc::<[u8]>::from(answer.into()));
            let said = Arc::clone(&said);
            move || {
                for (number, stream) in (0..).zip(listener.incoming()) {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let (chats, answer, said) = (Arc::clone(&chats), Arc::clone(&answer), Arc::clone(&said));
                    let stop = Arc::clone(&stop);
                    // Whatever goes wrong on the connection is what the gateway wanted.
                    std::thread::spawn(move || {
                        stream.and_then(|stream| {
                            serve(stream, number, &Script { answer: &answer, then, metrics }, &chats, &said, &stop)
                        })
                    });
                }
            }
        });
        Self { address, chats, said, stop, thread: Some(thread) }
    }

    /// Waits until every chat's connection has been told what [`Then::Say`] says.
    pub(crate) fn wait_until_said(&self) {
        super::eventually("it is said", || (self.said.load(Ordering::SeqCst) >= self.chats().len()).then_some(()));
    }

    /// The number of the connection of each chat, in order of arrival.
    pub(crate) fn chats(&self) -> Vec<u32> {
        self.chats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How often a connection that is held looks whether the server ends.
const HOLD_LOOK: std::time::Duration = std::time::Duration::from_millis(20);

fn serve(
    mut stream: TcpStream,
    number: u32,
    script: &Script<'_>,
    chats: &Mutex<Vec<u32>>,
    said: &AtomicUsize,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let Script { answer, then, metrics } = *script;
    let mut received = Vec::new();
    while let Some(path) = request(&mut stream, &mut received, then)? {
        if path.ends_with("/models") {
            let models = format!(r#"{{"object":"list","data":[{{"id":"{MODEL}","object":"model"}}]}}"#);
            stream.write_all(document(&models).as_bytes())?;
        } else if path.ends_with("/chat/completions") {
            chats.lock().unwrap_or_else(PoisonError::into_inner).push(number);
            stream.write_all(answer)?;
            match then {
                Then::Keep => {}
                Then::Close => return Ok(()),
                Then::Say(unasked) => {
                    stream.write_all(unasked.as_bytes())?;
                    said.fetch_add(1, Ordering::SeqCst);
                }
                Then::Hold => {
                    hold(stop);
                    return Ok(());
                }
                Then::EndAtNext => {
                    if stream.peek(&mut [0])? > 0 {
                        stream.shutdown(Shutdown::Write)?;
                        hold(stop);
                    }
                    return Ok(());
                }
            }
        } else if path.ends_with("/metrics") && metrics != Metrics::None {
            match metrics {
                Metrics::Page(page) => stream.write_all(document(page).as_bytes())?,
                Metrics::Hang | Metrics::None => hold(stop),
            }
        } else {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
        }
    }
    Ok(())
}

/// The socket stays open and unread while the server is there.
fn hold(stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(HOLD_LOOK);
    }
}

/// Reads a request and returns its path; `None` when the connection has ended.
fn request(stream: &mut TcpStream, received: &mut Vec<u8>, then: Then) -> std::io::Result<Option<String>> {
    let mut wanted = None;
    loop {
        if wanted.is_none()
            && let Some(end) = find(received, b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let body = if then == Then::Hold { 0 } else { length.unwrap_or(0) };
            wanted = Some((path, end + 4 + body));
        }
        if let Some((path, bytes)) = &wanted
            && received.len() >= *bytes
        {
            let path = path.clone();
            received.drain(..*bytes);
            return Ok(Some(path));
        }
        let mut bytes = [0; 4096];
        let n = stream.read(&mut bytes)?;
        if n == 0 {
            return Ok(None);
        }
        received.extend_from_slice(&bytes[..n]);
    }
}

/// A whole good answer with a JSON body.
pub(crate) fn document(json: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}", json.len())
}
