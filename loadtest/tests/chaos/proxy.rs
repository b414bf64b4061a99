//! A small proxy that does right, but for one sin. A thread for each connection; nothing of it is fast.

use std::{
    io::{self, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::wire::{Ambiguous, Chunks, Expectations, Half, Message, NoRequest, Reading, Reads, Wire, without_chunks};

/// How long it says to wait for an engine's first byte: on a busy machine a good engine may need seconds for it.
pub(crate) fn first_byte_max(sin: Sin) -> Duration {
    Duration::from_millis(if sin == Sin::Nothing { 10_000 } else { 1_500 })
}

/// How long an engine that has failed is left alone: for some requests, also on a busy machine.
fn ejected(sin: Sin) -> Duration {
    Duration::from_millis(if sin == Sin::Nothing { 2_000 } else { 400 })
}

/// Answers of 5xx in a row that count as a failure.
const ERRORS_MAX: usize = 3;

/// What the proxy does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sin {
    Nothing,
    WorksForTheGone,
    SendsHalfRequests,
    LeaksUsage,
    TidiesStreams,
    CollectsAnswers,
    InventsDone,
    RetriesWithinAnswers,
    FillsDocuments,
    NeverRetries,
    RetriesForEver,
    IsImpatient,
    ReusesBlindly,
    TakesTurns,
    WaitsForEver,
    NeverForgives,
    NeverEjects,
    BlamesForClientErrors,
    PrefersTheFirst,
    KnowsItsPaths,
    SerialisesAnew,
    RefusesInPlainText,
    ResetsLargeRequests,
    DropsLabels,
    RefusesChunks,
    ReadsOnce,
    Redirects,
    RenamesModels,
    PassesEverything,
    IgnoresExpectations,
    AnswersOnce,
    ChunksForAll,
    ReplacesErrors,
    GuessesLengths,
    BlamesItself,
    MakesUpAnswers,
}

#[derive(Default)]
struct State {
    in_flight: AtomicUsize,
    errors: AtomicUsize,
    down_until: Mutex<Option<Instant>>,
    idle: Mutex<Vec<Wire>>,
}

struct Shared {
    sin: Sin,
    engines: Vec<SocketAddr>,
    states: Vec<State>,
    turns: AtomicUsize,
    ids: AtomicUsize,
    stopped: AtomicBool,
    turn: Mutex<()>,
    sockets: Mutex<Vec<TcpStream>>,
}

/// A running proxy; ends with its threads when dropped.
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn start(engines: &[SocketAddr], sin: Sin) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            sin,
            engines: engines.to_vec(),
            states: engines.iter().map(|_| State::default()).collect(),
            turns: AtomicUsize::new(0),
            ids: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            turn: Mutex::new(()),
            sockets: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut threads = Vec::new();
            while let Ok((stream, _)) = listener.accept() {
                if accepting.stopped.load(Ordering::SeqCst) {
                    break;
                }
                let shared = Arc::clone(&accepting);
                shared.hold(&stream);
                threads.push(std::thread::spawn(move || shared.serve(stream)));
            }
            drop(listener);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        Ok(Self { addr, shared, thread: Some(thread) })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the listener.
        drop(TcpStream::connect(self.addr));
        for socket in self.shared.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.thread.take().unwrap().join().unwrap();
    }
}

#[derive(PartialEq)]
enum After {
    KeepAlive,
    Close,
}

/// How the sending of an engine's answer ended.
#[derive(PartialEq)]
enum Relayed {
    Whole,
    Truncated,
}

/// Why an engine gave no answer that can be passed on.
struct Failed(u16);

struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// Remembers a socket so that the end of the proxy ends those who wait for it.
    fn hold(&self, socket: &TcpStream) {
        socket.set_nodelay(true).unwrap();
        let mut sockets = self.sockets.lock().unwrap();
        sockets.push(socket.try_clone().unwrap());
        if self.stopped.load(Ordering::SeqCst) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn reading(&self) -> Reading {
        let sin = self.sin;
        Reading {
            body_bytes_max: if sin == Sin::ResetsLargeRequests { 1 << 20 } else { 32 << 20 },
            chunks: if sin == Sin::RefusesChunks { Chunks::Refused } else { Chunks::Taken },
            ambiguous: if sin == Sin::GuessesLengths { Ambiguous::Guessed } else { Ambiguous::Refused },
            half: if sin == Sin::SendsHalfRequests { Half::Taken } else { Half::Dropped },
            reads: if sin == Sin::ReadsOnce { Reads::Once } else { Reads::AsNeeded },
            expectations: if sin == Sin::IgnoresExpectations { Expectations::Ignored } else { Expectations::Met },
        }
    }

    fn serve(&self, stream: TcpStream) {
        let mut client = Wire::new(stream);
        loop {
            if self.sin == Sin::MakesUpAnswers {
                if client.fill().unwrap_or(0) == 0 {
                    return;
                }
                client.inbox.clear();
                let _ = client.stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
                continue;
            }
            match client.read_request(self.reading()) {
                Ok(request) => {
                    let turn = (self.sin == Sin::TakesTurns).then(|| self.turn.lock().unwrap());
                    let after = self.answer(&mut client, request).unwrap_or(After::Close);
                    drop(turn);
                    if after == After::Close || self.sin == Sin::AnswersOnce {
                        return linger(&mut client);
                    }
                }
                Err(NoRequest::Refused(_)) if self.sin == Sin::ResetsLargeRequests => return,
                Err(NoRequest::Refused(status)) => {
                    let status = if self.sin == Sin::BlamesItself { 500 } else { status };
                    let _ = self.refuse(&mut client, status, After::Close);
                    return linger(&mut client);
                }
                Err(NoRequest::Gone) => return,
            }
        }
    }

    fn refuse(&self, client: &mut Wire, status: u16, after: After) -> io::Result<After> {
        let (media, body) = if self.sin == Sin::RefusesInPlainText {
            ("text/plain", "no".to_owned())
        } else {
            ("application/json", format!(r#"{{"error":{{"message":"refused","code":{status}}}}}"#))
        };
        let close = if after == After::Close { "connection: close\r\n" } else { "" };
        let bytes = body.len();
        let head = format!("HTTP/1.1 {status} No\r\ncontent-type: {media}\r\ncontent-length: {bytes}\r\n{close}\r\n");
        client.stream.write_all(format!("{head}{body}").as_bytes())?;
        Ok(after)
    }

    fn answer(&self, client: &mut Wire, mut request: Message) -> io::Result<After> {
        let mut words = request.first.split(' ').map(str::to_owned);
        let [method, path, version] = [(); 3].map(|()| words.next().unwrap_or_default());
        let path = match path.strip_suffix('/') {
            Some(_) if self.sin == Sin::Redirects => return self.refuse(client, 307, After::KeepAlive),
            Some(stem) if !stem.is_empty() => stem.to_owned(),
            _ => path,
        };
        if self.sin == Sin::KnowsItsPaths && path != "/v1/chat/completions" {
            return self.refuse(client, 404, After::KeepAlive);
        }
        request.first = format!("{method} {path} HTTP/1.1");
        if method == "POST" && !self.prepare_body(&mut request) {
            return self.refuse(client, 400, After::KeepAlive);
        }
        self.prepare_head(&mut request);
        let after = self.forward(client, &request, version == "HTTP/1.0")?;
        Ok(if version == "HTTP/1.0" { After::Close } else { after })
    }

    /// False where the body names no model.
    fn prepare_body(&self, request: &mut Message) -> bool {
        if request.header("content-encoding").is_some() {
            return true;
        }
        let text = String::from_utf8_lossy(&request.body).into_owned();
        if self.sin == Sin::SerialisesAnew {
            let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) else { return false };
            request.body = value.to_string().into_bytes();
        }
        if self.sin == Sin::LeaksUsage && text.contains(r#""stream":true"#) {
            request.body.pop();
            request.body.extend_from_slice(br#","stream_options":{"include_usage":true}}"#);
        }
        request.set("content-length", &request.body.len().to_string());
        text.contains(r#""model":""#)
    }

    fn prepare_head(&self, request: &mut Message) {
        if self.sin == Sin::DropsLabels {
            request.remove("content-encoding");
        }
        if self.sin == Sin::PassesEverything {
            return;
        }
        let named: Vec<String> =
            request.header("connection").unwrap_or_default().split(',').map(|name| name.trim().to_owned()).collect();
        named.iter().for_each(|name| request.remove(name));
        let private = ["authorization", "x-api-key", "proxy-authorization", "cookie"];
        for name in ["connection", "keep-alive", "te", "upgrade"].iter().chain(&private) {
            request.remove(name);
        }
        let sane = |id: &&str| id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_graphic());
        let made = format!("made-{}", self.ids.fetch_add(1, Ordering::SeqCst));
        let id = request.header("x-request-id").filter(sane).map_or(made, str::to_owned);
        request.set("x-request-id", &id);
        if self.sin != Sin::ReusesBlindly {
            request.set("connection", "close");
        }
    }

    /// Decides, sends, and tries again elsewhere as long as nothing has been answered.
    fn forward(&self, client: &mut Wire, request: &Message, is_1_0: bool) -> io::Result<After> {
        let mut tried = Vec::new();
        loop {
            let engine = self.choose(&tried);
            tried.push(engine);
            let last = match self.sin {
                Sin::NeverRetries | Sin::ReusesBlindly => true,
                Sin::RetriesForEver => tried.len() >= 10,
                _ => tried.len() >= self.engines.len(),
            };
            self.states[engine].in_flight.fetch_add(1, Ordering::SeqCst);
            let _counted = InFlight(&self.states[engine].in_flight);
            match self.attempt(client, request, engine, last, is_1_0)? {
                Ok(after) => return Ok(after),
                Err(Failed(status)) if last => return self.refuse(client, status, After::KeepAlive),
                Err(Failed(_)) => {}
            }
        }
    }

    /// The engine with the least in flight, of those that have not failed lately and were not tried.
    fn choose(&self, tried: &[usize]) -> usize {
        if self.sin == Sin::PrefersTheFirst && tried.is_empty() {
            return 0;
        }
        let turn = self.turns.fetch_add(1, Ordering::SeqCst);
        let engines = self.engines.len();
        let key = |engine: &usize| {
            let down = self.states[*engine].down_until.lock().unwrap().is_some_and(|until| until > Instant::now());
            let times = tried.iter().filter(|tried| *tried == engine).count();
            (times, down, self.states[*engine].in_flight.load(Ordering::SeqCst))
        };
        (0..engines).map(|at| (at + turn) % engines).min_by_key(key).unwrap()
    }

    fn blame(&self, engine: usize) {
        // Whoever blames for client errors is found out by whom it leaves aside, however slow the machine is.
        let for_good = matches!(self.sin, Sin::NeverForgives | Sin::BlamesForClientErrors);
        let time = if for_good { Duration::from_secs(3600) } else { ejected(self.sin) };
        if self.sin != Sin::NeverEjects {
            *self.states[engine].down_until.lock().unwrap() = Some(Instant::now() + time);
        }
    }

    fn judge(&self, engine: usize, status: u16) {
        let counts = matches!(status, 500 | 502 | 504) || (self.sin == Sin::BlamesForClientErrors && status >= 400);
        let errors = &self.states[engine].errors;
        if !counts {
            errors.store(0, Ordering::SeqCst);
        } else if errors.fetch_add(1, Ordering::SeqCst) + 1 >= ERRORS_MAX {
            self.blame(engine);
        }
    }

    fn connect(&self, engine: usize) -> io::Result<Wire> {
        if let Some(idle) = self.states[engine].idle.lock().unwrap().pop() {
            return Ok(idle);
        }
        let stream = TcpStream::connect(self.engines[engine])?;
        self.hold(&stream);
        Ok(Wire::new(stream))
    }

    /// Sends a request to an engine and waits for the head of its answer.
    fn send(&self, client: Option<&Wire>, engine: usize, request: &Message) -> Result<(Wire, Message), Stop> {
        let wait = match self.sin {
            Sin::IsImpatient => Duration::from_millis(200),
            Sin::WaitsForEver => Duration::from_secs(30),
            sin => first_byte_max(sin),
        };
        let mut upstream = self.connect(engine)?;
        upstream.stream.write_all(&request.head())?;
        upstream.stream.write_all(&request.body)?;
        let start = Instant::now();
        while !upstream.inbox.windows(4).any(|four| four == b"\r\n\r\n") {
            if fill_watching(&mut upstream, client, wait.saturating_sub(start.elapsed()))? == 0 {
                return Err(Stop::Broken);
            }
        }
        let head = upstream.read_head(Reading { reads: Reads::AsNeeded, ..self.reading() });
        head.map(|head| (upstream, head)).map_err(|_| Stop::Broken)
    }

    /// The outer error is the client's, the inner one the engine's.
    fn attempt(
        &self,
        client: &mut Wire,
        request: &Message,
        engine: usize,
        last: bool,
        is_1_0: bool,
    ) -> io::Result<Result<After, Failed>> {
        let watched = (self.sin != Sin::WorksForTheGone).then_some(&*client);
        let (mut upstream, mut head) = match self.send(watched, engine, request) {
            Ok(sent) => sent,
            Err(Stop::Gone) => return Err(io::ErrorKind::ConnectionAborted.into()),
            Err(stop) => {
                self.blame(engine);
                // Only what failed at once is tried again.
                let late = stop == Stop::Late;
                return if late { self.refuse(client, 504, After::KeepAlive).map(Ok) } else { Ok(Err(Failed(502))) };
            }
        };
        let status = head.first.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        self.judge(engine, status);
        if matches!(status, 502 | 503 | 429) && !last {
            return Ok(Err(Failed(status)));
        }
        if status >= 400 && self.sin == Sin::ReplacesErrors {
            return self.refuse(client, 502, After::KeepAlive).map(Ok);
        }
        head.remove("connection");
        if let Some(id) = request.header("x-request-id") {
            head.set("x-request-id", id);
        }
        let relayed = self.relay(client, &mut upstream, &mut head, is_1_0);
        if self.sin == Sin::ReusesBlindly && matches!(relayed, Ok(Relayed::Whole)) {
            self.states[engine].idle.lock().unwrap().push(upstream);
        } else {
            drop(upstream);
        }
        match relayed? {
            Relayed::Whole => Ok(Ok(After::KeepAlive)),
            Relayed::Truncated => {
                self.blame(engine);
                self.end_truncated(client, request, &head)
            }
        }
    }

    /// What to do with an answer that was cut off.
    fn end_truncated(&self, client: &mut Wire, request: &Message, head: &Message) -> io::Result<Result<After, Failed>> {
        match self.sin {
            Sin::InventsDone => client.stream.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")?,
            Sin::RetriesWithinAnswers => {
                if let Ok((mut again, _)) = self.send(None, 1, request) {
                    while again.fill().unwrap_or(0) > 0 {}
                    client.stream.write_all(&again.inbox)?;
                }
            }
            Sin::FillsDocuments => {
                let bytes = head.header("content-length").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
                client.stream.write_all(&vec![b' '; bytes])?;
            }
            _ => {}
        }
        Ok(Ok(After::Close))
    }

    fn relay(&self, client: &mut Wire, from: &mut Wire, head: &mut Message, is_1_0: bool) -> io::Result<Relayed> {
        let collects = match self.sin {
            Sin::CollectsAnswers | Sin::TidiesStreams => true,
            Sin::ChunksForAll => false,
            _ => is_1_0,
        };
        let length = head.header("content-length").map(|bytes| bytes.parse::<usize>().unwrap());
        let mut end = End { left: length, tail: b"\r\n".to_vec() };
        let mut collected = Vec::new();
        if !collects {
            client.stream.write_all(&head.head())?;
        }
        loop {
            let mut piece = std::mem::take(&mut from.inbox);
            end.see(&piece);
            if self.sin == Sin::RenamesModels {
                piece = rename(piece);
            }
            if collects {
                collected.extend_from_slice(&piece);
            } else {
                match client.stream.write_all(&piece) {
                    Err(_) if self.sin == Sin::WorksForTheGone => {}
                    other => other?,
                }
            }
            if end.is_reached() {
                break;
            }
            let watched = (self.sin != Sin::WorksForTheGone).then_some(&*client);
            let patience = Duration::from_secs(if self.sin == Sin::IsImpatient { 0 } else { 60 });
            match fill_watching(from, watched, patience) {
                Ok(0) | Err(Stop::Broken | Stop::Late) => return Ok(Relayed::Truncated),
                Ok(_) => {}
                Err(Stop::Gone) => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        if collects {
            if length.is_none() {
                collected = without_chunks(&collected);
            }
            if self.sin == Sin::TidiesStreams && length.is_none() {
                collected = tidy(&collected);
            }
            head.remove("transfer-encoding");
            head.set("content-length", &collected.len().to_string());
            client.stream.write_all(&head.head())?;
            client.stream.write_all(&collected)?;
        }
        Ok(Relayed::Whole)
    }
}

/// Why the wait for an engine ended.
#[derive(PartialEq)]
enum Stop {
    /// The client has left.
    Gone,
    /// Patience is over.
    Late,
    Broken,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// Reads what an engine sends, and looks every few milliseconds whether the client is still there.
fn fill_watching(from: &mut Wire, client: Option<&Wire>, patience: Duration) -> Result<usize, Stop> {
    let start = Instant::now();
    from.stream.set_read_timeout(Some(Duration::from_millis(2)))?;
    loop {
        match from.fill() {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            other => return Ok(other?),
        }
        if client.is_some_and(has_left) {
            return Err(Stop::Gone);
        }
        if start.elapsed() > patience {
            return Err(Stop::Late);
        }
    }
}

fn has_left(client: &Wire) -> bool {
    client.stream.set_nonblocking(true).unwrap();
    let seen = client.stream.peek(&mut [0]);
    client.stream.set_nonblocking(false).unwrap();
    match seen {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// Ends the connection so that the client can read what it was told last, though it may still be sending.
fn linger(client: &mut Wire) {
    const LINGER_BYTES_MAX: usize = 64 << 20;
    let _ = client.stream.shutdown(Shutdown::Write);
    let _ = client.stream.set_read_timeout(Some(Duration::from_secs(2)));
    let mut read = 0;
    while read < LINGER_BYTES_MAX {
        client.inbox.clear();
        match client.fill() {
            Ok(0) | Err(_) => return,
            Ok(bytes) => read += bytes,
        }
    }
}

/// Knows where an answer ends: by its length, or by the last chunk.
struct End {
    left: Option<usize>,
    tail: Vec<u8>,
}

impl End {
    fn see(&mut self, piece: &[u8]) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(piece.len());
        }
        self.tail.extend_from_slice(&piece[piece.len().saturating_sub(7)..]);
        let from = self.tail.len().saturating_sub(7);
        self.tail.drain(..from);
    }

    fn is_reached(&self) -> bool {
        self.left.map_or(self.tail == b"\r\n0\r\n\r\n", |left| left == 0)
    }
}

/// Another model of the same length, in every place.
fn rename(mut piece: Vec<u8>) -> Vec<u8> {
    const NAME: &[u8] = br#""model":"mock""#;
    let mut from = 0;
    while let Some(at) = piece[from..].windows(NAME.len()).position(|part| part == NAME) {
        from += at + NAME.len();
        piece[from - 5..from - 1].copy_from_slice(b"sham");
    }
    piece
}

/// A stream as somebody might think that it should be.
fn tidy(stream: &[u8]) -> Vec<u8> {
    let mut text = String::from_utf8_lossy(stream).replace("\r\n", "\n").replace("data:{", "data: {");
    if !text.contains("[DONE]") {
        text.push_str("data: [DONE]\n\n");
    }
    text.into_bytes()
}
