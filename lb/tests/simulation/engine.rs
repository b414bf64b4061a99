//! The engines of a seed: servers that are well by every probe and do to each request what the script says, and a book of what
//! they did.

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;

use crate::content::{Id, answer_body, model, prompt, wants_usage};
use crate::script::{Act, Answer, Ask, Coding, ENGINES, How, Interim, Pace, Request, Script, Stop, Then, Usage};
use crate::support::PATIENCE;
use crate::support::client::find;

/// What an engine did to one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) engine: usize,
    pub(crate) act: Act,
}

/// What all engines of a seed know together.
#[derive(Debug)]
pub(crate) struct Book {
    script: Script,
    pages: Mutex<Pages>,
    changed: Condvar,
    sick: [AtomicBool; ENGINES],
    barred: [AtomicBool; ENGINES],
    deaf: [AtomicBool; ENGINES],
    connections: AtomicUsize,
}

#[derive(Debug, Default)]
struct Pages {
    attempts: HashMap<Id, Vec<Attempt>>,
    running: usize,
    wrong: Vec<String>,
    over: bool,
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of a request, attempt by attempt.
    pub(crate) fn attempts(&self, id: Id) -> Vec<Attempt> {
        self.pages().attempts.get(&id).cloned().unwrap_or_default()
    }

    /// Attempts of the whole seed at which an engine failed.
    pub(crate) fn failures(&self) -> usize {
        self.pages().attempts.values().flatten().filter(|attempt| attempt.act.is_failure()).count()
    }

    /// What must not be, as the engines saw it.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.pages().wrong.clone()
    }

    fn is_wrong(&self, what: String) {
        self.pages().wrong.push(what);
    }

    /// Attempts that have begun and not ended, and connections that are open.
    pub(crate) fn open(&self) -> (usize, usize) {
        (self.pages().running, self.connections.load(Ordering::SeqCst))
    }

    /// An attempt begins.
    fn begin(&self, id: Id, engine: usize) -> Option<(Request, usize, Act)> {
        let request = self.script.connections.get(id.connection)?.requests.get(id.request)?.clone();
        let mut pages = self.pages();
        let attempts = pages.attempts.entry(id).or_default();
        let number = attempts.len();
        let act = request.acts.get(number).copied().unwrap_or(PLAIN);
        attempts.push(Attempt { engine, act });
        pages.running += 1;
        Some((request, number, act))
    }

    fn end(&self) {
        self.pages().running -= 1;
    }

    /// The clients of the seed have all they will get.
    pub(crate) fn close(&self) {
        self.pages().over = true;
        self.changed.notify_all();
    }

    fn wait_until_closed(&self) {
        let pages = self.pages();
        let waited = self.changed.wait_timeout_while(pages, 2 * PATIENCE, |pages| !pages.over);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// What is answered when the script says nothing.
const PLAIN: Act =
    Act::Answer(Answer { coding: Coding::Length, pace: Pace::Whole, pad: 0, interim: Interim::None, then: Then::Keep });

/// The engines. Dropping them ends them; their connections end with those who opened them.
#[derive(Debug)]
pub(crate) struct Engines {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) book: Arc<Book>,
    threads: Vec<JoinHandle<()>>,
}

impl Engines {
    pub(crate) fn start(script: &Script) -> Self {
        let book = Arc::new(Book {
            script: script.clone(),
            pages: Mutex::default(),
            changed: Condvar::new(),
            sick: Default::default(),
            barred: Default::default(),
            deaf: Default::default(),
            connections: AtomicUsize::new(0),
        });
        let mut engines = Self { addresses: Vec::new(), book, threads: Vec::new() };
        for engine in 0..ENGINES {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
            engines.addresses.push(listener.local_addr().expect("it is bound"));
            let book = Arc::clone(&engines.book);
            engines.threads.push(std::thread::spawn(move || listen(&listener, engine, &book)));
        }
        engines
    }

    /// Says to probes that it is not well.
    pub(crate) fn sicken(&self, engine: usize) {
        self.book.sick[engine].store(true, Ordering::SeqCst);
    }

    /// Resets connections that come from now on.
    pub(crate) fn bar(&self, engine: usize) {
        self.book.barred[engine].store(true, Ordering::SeqCst);
    }

    /// Takes no more connections.
    pub(crate) fn refuse(&self, engine: usize) {
        self.book.deaf[engine].store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.addresses[engine]);
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.book.close();
        (0..ENGINES).for_each(|engine| self.refuse(engine));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn listen(listener: &TcpListener, engine: usize, book: &Arc<Book>) {
    for stream in listener.incoming() {
        if book.deaf[engine].load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        if book.barred[engine].load(Ordering::SeqCst) {
            let _ = ended(&stream, How::Reset);
            continue;
        }
        book.connections.fetch_add(1, Ordering::SeqCst);
        let book = Arc::clone(book);
        std::thread::spawn(move || {
            // Whatever goes wrong on the connection is what the gateway wanted.
            let _ = stream
                .set_nodelay(true)
                .and_then(|()| Served { stream, received: Vec::new(), engine, book: &book }.serve());
            book.connections.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// Ends a connection; an error, so that nothing more is done with it.
fn ended(stream: &TcpStream, how: How) -> std::io::Result<()> {
    if how == How::Reset {
        SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
    }
    Err(Error::from(ErrorKind::ConnectionAborted))
}

/// One connection to an engine.
struct Served<'a> {
    stream: TcpStream,
    received: Vec<u8>,
    engine: usize,
    book: &'a Book,
}

struct Head {
    path: String,
    id: Option<Id>,
    length: usize,
}

impl Served<'_> {
    fn serve(mut self) -> std::io::Result<()> {
        // Longer than anything in a seed takes.
        self.stream.set_read_timeout(Some(2 * PATIENCE))?;
        self.stream.set_write_timeout(Some(2 * PATIENCE))?;
        while let Some(head) = self.head()? {
            let Some(id) = head.id else {
                self.skip(head.length)?;
                self.probe(&head.path)?;
                continue;
            };
            let Some((request, number, act)) = self.book.begin(id, self.engine) else {
                self.book.is_wrong(format!("{id} came to an engine of another seed"));
                return Ok(());
            };
            let done = self.attempt(id, &request, number, act, head.length);
            self.book.end();
            done?;
            self.afterwards(act)?;
        }
        Ok(())
    }

    fn more(&mut self) -> std::io::Result<usize> {
        let mut bytes = [0; 64 << 10];
        let n = loop {
            match self.stream.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        self.received.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    /// The next head; `None` when the connection has ended.
    fn head(&mut self) -> std::io::Result<Option<Head>> {
        let end = loop {
            if let Some(end) = find(&self.received, b"\r\n\r\n") {
                break end + 4;
            }
            if self.more()? == 0 {
                if !self.received.is_empty() {
                    self.book.is_wrong(format!("half a head came: {:?}", String::from_utf8_lossy(&self.received)));
                }
                return Ok(None);
            }
        };
        let head: Vec<u8> = self.received.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let value = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.filter(|(known, _)| *known == name).map(|(_, value)| value.to_owned()).next()
        };
        Ok(Some(Head {
            path: head.split(' ').nth(1).unwrap_or_default().to_owned(),
            id: value("x-request-id").and_then(|id| id.parse().ok()),
            length: value("content-length").and_then(|length| length.parse().ok()).unwrap_or(0),
        }))
    }

    fn skip(&mut self, bytes: usize) -> std::io::Result<Vec<u8>> {
        while self.received.len() < bytes {
            if self.more()? == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
        }
        Ok(self.received.drain(..bytes).collect())
    }

    fn probe(&mut self, path: &str) -> std::io::Result<()> {
        let sick = self.book.sick[self.engine].load(Ordering::SeqCst);
        let (status, body) = match path {
            _ if sick => ("500 Sick", String::new()),
            "/v1/models" => {
                let model = model(self.book.script.seed);
                ("200 OK", format!(r#"{{"object":"list","data":[{{"id":"{model}","object":"model"}}]}}"#))
            }
            _ => ("404 Not Found", String::new()),
        };
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        self.stream.write_all((head + &body).as_bytes())
    }

    /// One attempt, to the end of what the script has for it.
    fn attempt(&mut self, id: Id, request: &Request, number: usize, act: Act, length: usize) -> std::io::Result<()> {
        match act {
            Act::VanishUnread(how) => return ended(&self.stream, how),
            Act::Early => {
                let body = answer_body(id, request.ask, number, act, Usage::NotAsked);
                let head = head_of("413 Too Much", "application/json", Coding::Length, body.len(), Then::SayClose);
                self.stream.write_all((head + &body).as_bytes())?;
                return self.drain();
            }
            Act::Answer(_)
            | Act::Status(_)
            | Act::Vanish(_)
            | Act::Garbage
            | Act::HalfHead
            | Act::Silent
            | Act::Cut(..)
            | Act::ErrorEvent(_) => {}
        }
        let body = self.skip(length)?;
        if find(&body, format!("\"{}\"", prompt(id, request.pad)).as_bytes()).is_none() {
            self.book.is_wrong(format!("{id}: the body that came is not what was sent"));
        }
        let usage = if wants_usage(&body) { Usage::Asked } else { Usage::NotAsked };
        let text = answer_body(id, request.ask, number, act, usage);
        match act {
            Act::Answer(answer) | Act::ErrorEvent(answer) => {
                let (mut bytes, _) = encoded(request.ask, &text, answer);
                if answer.then == Then::Babble {
                    bytes.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nbabble");
                }
                self.write(&bytes, answer.pace)
            }
            Act::Status(code) => {
                let head = head_of(&format!("{code} So"), "application/json", Coding::Length, text.len(), Then::Keep);
                self.stream.write_all((head + &text).as_bytes())
            }
            Act::Vanish(how) => ended(&self.stream, how),
            Act::Garbage => {
                self.stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")?;
                ended(&self.stream, How::Close)
            }
            Act::HalfHead => {
                self.stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Ty")?;
                ended(&self.stream, How::Close)
            }
            Act::Silent => self.drain(),
            Act::Cut(answer, thousandths, stop) => self.cut(request.ask, &text, answer, thousandths, stop),
            Act::Early | Act::VanishUnread(_) => Ok(()),
        }
    }

    fn cut(&mut self, ask: Ask, text: &str, answer: Answer, thousandths: usize, stop: Stop) -> std::io::Result<()> {
        let (bytes, body_at) = encoded(ask, text, answer);
        let part = &bytes[..body_at + (bytes.len() - body_at) * thousandths / 1_000];
        match stop {
            Stop::End(how) => {
                self.write(part, answer.pace)?;
                ended(&self.stream, how)
            }
            Stop::Silence => {
                self.write(part, answer.pace)?;
                self.drain()
            }
            Stop::BadChunk => {
                // In place of the last chunk, of a part.
                let (mut bytes, _) = encoded(ask, &text[..text.len() * thousandths / 1_000], answer);
                bytes.truncate(bytes.len() - LAST_CHUNK.len());
                bytes.extend_from_slice(b"no chunk\r\n");
                self.write(&bytes, answer.pace)?;
                self.drain()
            }
        }
    }

    /// Reads on until the gateway leaves.
    fn drain(&mut self) -> std::io::Result<()> {
        loop {
            match self.more() {
                Ok(0) => return ended(&self.stream, How::Close),
                Ok(_) => self.received.clear(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    self.book.is_wrong(String::from("the gateway never let go of a connection that says nothing"));
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn write(&mut self, bytes: &[u8], pace: Pace) -> std::io::Result<()> {
        write_paced(&mut self.stream, bytes, pace)
    }

    /// What becomes of the connection.
    fn afterwards(&mut self, act: Act) -> std::io::Result<()> {
        let (Act::Answer(answer) | Act::ErrorEvent(answer)) = act else { return Ok(()) };
        match answer.then {
            Then::Keep => Ok(()),
            Then::SayClose | Then::CloseQuietly => ended(&self.stream, How::Close),
            Then::HalfClose | Then::Babble => {
                if answer.then == Then::HalfClose {
                    self.stream.shutdown(Shutdown::Write)?;
                }
                self.drain()
            }
            Then::ResetAtNext => {
                self.more()?;
                ended(&self.stream, How::Reset)
            }
            Then::HalfCloseAtNext => {
                if self.more()? > 0 {
                    self.stream.shutdown(Shutdown::Write)?;
                    // What it does not read, it cannot see the end of.
                    self.book.wait_until_closed();
                }
                ended(&self.stream, How::Close)
            }
        }
    }
}

/// Writes in pieces.
pub(crate) fn write_paced(stream: &mut TcpStream, bytes: &[u8], pace: Pace) -> std::io::Result<()> {
    let piece = match pace {
        Pace::Whole => bytes.len(),
        Pace::Pieces(pieces) => bytes.len() / pieces + 1,
        Pace::ByteWise => 1,
    };
    bytes.chunks(piece.max(1)).try_for_each(|piece| stream.write_all(piece))
}

/// A whole answer, and where its body begins.
fn encoded(ask: Ask, body: &str, answer: Answer) -> (Vec<u8>, usize) {
    let mut bytes = match answer.interim {
        Interim::None => String::new(),
        Interim::Hints => String::from("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
    };
    bytes += &head_of("200 OK", ask.media(), answer.coding, body.len(), answer.then);
    let mut bytes = bytes.into_bytes();
    let body_at = bytes.len();
    push_body(&mut bytes, body.as_bytes(), answer.coding);
    (bytes, body_at)
}

fn head_of(status: &str, media: &str, coding: Coding, length: usize, then: Then) -> String {
    let framing = match coding {
        Coding::Length => format!("Content-Length: {length}\r\n"),
        Coding::Chunked(_) => String::from("Transfer-Encoding: chunked\r\n"),
        Coding::UntilClose => String::new(),
    };
    let close = if then == Then::SayClose { "Connection: close\r\n" } else { "" };
    format!("HTTP/1.1 {status}\r\nContent-Type: {media}\r\n{framing}{close}\r\n")
}

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

fn push_body(to: &mut Vec<u8>, body: &[u8], coding: Coding) {
    match coding {
        Coding::Length | Coding::UntilClose => to.extend_from_slice(body),
        Coding::Chunked(bytes) => {
            for chunk in body.chunks(bytes) {
                to.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                to.extend_from_slice(chunk);
                to.extend_from_slice(b"\r\n");
            }
            to.extend_from_slice(LAST_CHUNK);
        }
    }
}
