//! The mock server: settings, life cycle, connections and paths.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{
    answer,
    fault::{self, Afterwards, Fault, Plan, Rule},
    http::{self, Connection, Persistence, RawRequest, ReadError},
    kv_events::{KvEvents, Line, Publisher},
    openai::{Api, ApiError, PromptDetails, Served},
    pages::{Route, control, route},
    pump::Pump,
    record::{Ledger, Outcome, RequestRecord, Stats},
    step::Parameters,
    tls::{Stream, Tls},
};

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Names of the model; the first one is shown in metrics. Empty counts as one named `mock`.
    pub models: Vec<String>,
    /// Longest prompt and answer together (`max_model_len`).
    pub model_tokens_max: u32,
    /// Limits and speed of the step model.
    pub parameters: Parameters,
    /// Real seconds per second of the model: 0.1 runs ten times as fast, 0 as fast as possible.
    pub time_scale: f64,
    /// Idle connections are closed after this time; uvicorn's default is 5 s.
    pub keep_alive: Duration,
    /// Whether `/v1/embeddings` works; a generating model's answers 404.
    pub embeddings: Embeddings,
    /// Whether answers say how much of the prompt was cached.
    pub prompt_details: PromptDetails,
    /// Standing faults of all model requests.
    pub faults: Vec<Fault>,
    /// Requests remembered for [`Engine::requests`]; 0 remembers none and saves the copies.
    pub records_max: usize,
    /// Bytes of each body remembered.
    pub body_kept_bytes_max: usize,
    /// Connections open at a time; further ones are closed at once.
    pub connections_max: u64,
    /// What TLS connections are accepted with; `None` for plain ones.
    pub tls: Option<Tls>,
    /// How events of the KV cache are published, when they are.
    pub kv_events: Option<KvEvents>,
}

/// Whether the engine makes embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Embeddings {
    /// `/v1/embeddings` answers.
    Served,
    /// 404, as vLLM does for a generating model.
    NotFound,
}

impl Default for Settings {
    /// Port 0 on loopback, model `mock`, real time, no faults.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            models: vec!["mock".to_owned()],
            model_tokens_max: 131_072,
            parameters: Parameters::default(),
            time_scale: 1.0,
            keep_alive: Duration::from_secs(5),
            embeddings: Embeddings::NotFound,
            prompt_details: PromptDetails::Reported,
            faults: Vec::new(),
            records_max: 1024,
            body_kept_bytes_max: 64 << 10,
            connections_max: 16_384,
            tls: None,
            kv_events: None,
        }
    }
}

impl Settings {
    /// An engine that answers as fast as it can: for tests and for measuring what stands in front of it.
    pub fn instant() -> Self {
        let parameters = Parameters { cost: crate::step::StepCost::NONE, ..Parameters::default() };
        Self { time_scale: 0.0, parameters, ..Self::default() }
    }
}

/// Longest TLS handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Standing rules at a time; older ones beyond this are dropped.
const RULES_MAX: usize = 64;

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) pump: Arc<Pump>,
    pub(crate) publisher: Option<Arc<Publisher>>,
    pub(crate) ledger: Ledger,
    rules: Mutex<Vec<Rule>>,
    ids: AtomicU64,
}

/// Where an engine's sockets are.
#[derive(Clone, Copy, Debug)]
struct Bound {
    http: SocketAddr,
    kv_events: Option<SocketAddr>,
    kv_replay: Option<SocketAddr>,
}

/// A running mock server, on a thread of its own. Dropping it stops it.
pub struct Engine {
    bound: Bound,
    shared: Arc<Shared>,
    stop: watch::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Binds the socket and serves until stopped. When this returns, connections are accepted.
    pub fn start(mut settings: Settings) -> io::Result<Self> {
        if settings.models.is_empty() {
            settings.models.push("mock".to_owned());
        }
        let rule = Rule { faults: settings.faults.clone(), path: None, requests: None };
        let (blocks_max, block_tokens) = (settings.parameters.blocks_max, settings.parameters.block_tokens);
        let publisher = settings.kv_events.clone().map(|events| Publisher::new(events, blocks_max, block_tokens));
        let shared = Arc::new(Shared {
            pump: Pump::new(settings.parameters.clone(), settings.time_scale, publisher.clone()),
            publisher,
            ledger: Ledger::new(settings.records_max),
            rules: Mutex::new(vec![rule]),
            ids: AtomicU64::new(0),
            settings,
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = watch::channel(());
        let (bound, address) = std::sync::mpsc::channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            // Dropping the runtime at the end drops every connection.
            runtime.block_on(serve(served, stopped, bound));
        })?;
        let bound = address.recv().map_err(|_| io::Error::other("the engine's thread ended early"))??;
        Ok(Self { bound, shared, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.bound.http
    }

    /// Where its KV events are, when it binds the stream.
    pub fn kv_events_addr(&self) -> Option<SocketAddr> {
        self.bound.kv_events
    }

    /// Where its KV events can be asked for again.
    pub fn kv_replay_addr(&self) -> Option<SocketAddr> {
        self.bound.kv_replay
    }

    /// Messages of KV events so far, sent or not.
    pub fn kv_messages(&self) -> u64 {
        self.shared.publisher.as_ref().map_or(0, |publisher| publisher.count())
    }

    /// The next messages are numbered and kept, and not sent.
    pub fn withhold_kv_events(&self, messages: u32) {
        self.shared.publisher.iter().for_each(|publisher| publisher.withhold(messages));
    }

    /// Replays no longer tell what was published so far.
    pub fn forget_kv_events(&self) {
        self.shared.publisher.iter().for_each(|publisher| publisher.forget());
    }

    /// Cuts the stream of KV events, or lets it be connected to again.
    pub fn set_kv_line(&self, line: Line) {
        self.shared.publisher.iter().for_each(|publisher| publisher.set_line(line));
    }

    /// Stops like a killed process: listener and connections close at once. May be called again.
    pub fn stop(&mut self) {
        // Fails when the thread has ended already.
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Blocks the thread until the stats fulfil a condition, and returns them; the stats as they are when that does not
    /// happen within `patience`. For tests: no polling, no sleeping.
    pub fn wait_until(&self, patience: Duration, mut condition: impl FnMut(&Stats) -> bool) -> Result<Stats, Stats> {
        let deadline = Instant::now() + patience;
        let mut stats = self.stats();
        let mut fulfilled = false;
        self.shared.ledger.wait(&mut || {
            stats = self.stats();
            fulfilled = condition(&stats);
            fulfilled || Instant::now() >= deadline
        });
        if fulfilled { Ok(stats) } else { Err(stats) }
    }

    /// The last requests, oldest first.
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.shared.ledger.records()
    }

    /// Adds a standing rule; of contradicting rules the newest holds. A rule without faults ends all rules before it.
    pub fn rule(&self, rule: Rule) {
        self.shared.rule(rule);
    }

    /// Forgets the prefix cache.
    pub fn reset_prefix_cache(&self) {
        self.shared.pump.reset_prefix_cache();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<()>,
    bound: std::sync::mpsc::Sender<io::Result<Bound>>,
) {
    let listener = match bind(&shared).await {
        Ok((listener, addresses)) => {
            let _ = bound.send(Ok(addresses));
            listener
        }
        Err(error) => {
            // The receiver waits for exactly this.
            let _ = bound.send(Err(error));
            return;
        }
    };
    let pump = Arc::clone(&shared.pump);
    tokio::spawn(async move { pump.run().await });
    tokio::select! {
        () = accept(listener, shared) => {}
        // Either told to stop or the handle is gone.
        _ = stopped.changed() => {}
    }
}

async fn bind(shared: &Shared) -> io::Result<(TcpListener, Bound)> {
    let listener = TcpListener::bind(shared.settings.listen).await?;
    let (kv_events, kv_replay) = match &shared.publisher {
        Some(publisher) => publisher.start().await?,
        None => (None, None),
    };
    let http = listener.local_addr()?;
    Ok((listener, Bound { http, kv_events, kv_replay }))
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(shared.accept_delay()).await;
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: let some connections end.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        if shared.ledger.connections_open.load(Ordering::Relaxed) < shared.settings.connections_max {
            let number = shared.ledger.connected();
            tokio::spawn(serve_connection(stream, number, Arc::clone(&shared)));
        }
    }
}

/// Counts the connection as long as it lives, whichever way its task ends.
struct OpenConnection<'a>(&'a Ledger);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}

async fn serve_connection(stream: TcpStream, number: u64, shared: Arc<Shared>) {
    let _open = OpenConnection(&shared.ledger);
    // Without it answers still are right, only slower.
    let _ = stream.set_nodelay(true);
    let stream = match &shared.settings.tls {
        None => Stream::Plain(stream),
        // A client that does not come to an end with it is none.
        Some(tls) => match tokio::time::timeout(HANDSHAKE_TIME_MAX, tls.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(_)) | Err(_) => return,
        },
    };
    let mut connection = Connection::new(stream);
    loop {
        let request = match connection.next_request(shared.settings.keep_alive).await {
            Ok(request) => request,
            Err(ReadError::Over) => return,
            Err(ReadError::Invalid(status, reason)) => {
                let start = http::head_start(status, unix_s());
                let plain = format!(
                    "{start}content-type: text/plain; charset=utf-8\r\nconnection: close\r\n\
                     content-length: {}\r\n\r\n{reason}",
                    reason.len()
                );
                // The connection ends either way.
                let _ = connection.write_all(plain.as_bytes()).await;
                return;
            }
        };
        let persistence = request.persistence;
        match answer_request(&mut connection, request, number, &shared).await {
            End::Answered(Afterwards::AsAgreed) if persistence == Persistence::KeepAlive => {}
            End::Answered(Afterwards::CloseOnReuse) => {
                connection.readable().await;
                return;
            }
            End::Answered(Afterwards::AsAgreed | Afterwards::Close) | End::Close => return,
            End::Reset => {
                connection.reset();
                return;
            }
        }
    }
}

/// What is to become of the connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Answered(Afterwards),
    /// The client has left, or a fault wants the end.
    Close,
    Reset,
}

/// One request on its way: its number in the ledger and the faults that concern it. Dropped without an outcome, as when
/// the engine is stopped, it counts as cut off by us.
pub(crate) struct Exchange<'a> {
    pub(crate) shared: &'a Shared,
    number: u64,
    pub(crate) id: String,
    pub(crate) plan: Plan,
    pub(crate) persistence: Persistence,
    outcome: Outcome,
}

impl Exchange<'_> {
    pub(crate) fn amend(&self, change: impl FnOnce(&mut RequestRecord)) {
        self.shared.ledger.amend(self.number, change);
    }

    /// Notes how it ended. The first word holds.
    pub(crate) fn end(&mut self, outcome: Outcome) {
        if self.outcome == Outcome::InProgress {
            self.outcome = outcome;
            self.shared.ledger.ended(self.number, outcome);
        }
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        self.end(Outcome::Faulted);
    }
}

async fn answer_request(connection: &mut Connection, request: RawRequest, number: u64, shared: &Shared) -> End {
    if let Some((status, body)) = control(&request, shared) {
        let head = answer::json_head(status, body.len(), "", request.persistence);
        let _ = connection.write_all(format!("{head}{body}").as_bytes()).await;
        return End::Answered(Afterwards::AsAgreed);
    }
    let mut exchange = match shared.open(&request, number) {
        Ok(exchange) => exchange,
        Err(error) => {
            let body = json!({"error": {"message": error.to_string(), "type": "x-fault", "param": null, "code": 400}});
            let body = body.to_string();
            let head = answer::json_head(400, body.len(), "", request.persistence);
            let _ = connection.write_all(format!("{head}{body}").as_bytes()).await;
            return End::Answered(Afterwards::AsAgreed);
        }
    };
    if let Some(end) = answer::faults_before_head(connection, &mut exchange).await {
        return end;
    }
    match (request.method.as_str(), route(&request.path)) {
        ("POST", Route::Model(Api::Embeddings)) if shared.settings.embeddings == Embeddings::NotFound => {
            answer::error(connection, &mut exchange, &ApiError::detail(404, "Not Found")).await
        }
        ("POST", Route::Model(api)) => answer::model(connection, &mut exchange, api, &request.body).await,
        ("GET", Route::Get(page)) => {
            let body = shared.page(page);
            answer::page(connection, &mut exchange, page.content_type(), &body).await
        }
        ("POST", Route::Post(action)) => match shared.act(action, &request.body) {
            Ok(body) => answer::page(connection, &mut exchange, Some("application/json"), &body).await,
            Err(error) => answer::error(connection, &mut exchange, &error).await,
        },
        (_, Route::Unknown) => answer::error(connection, &mut exchange, &ApiError::detail(404, "Not Found")).await,
        (_, Route::Model(_) | Route::Get(_) | Route::Post(_)) => {
            answer::error(connection, &mut exchange, &ApiError::detail(405, "Method Not Allowed")).await
        }
    }
}

pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Shared {
    pub(crate) fn served(&self) -> Served<'_> {
        Served { models: &self.settings.models, model_tokens_max: self.settings.model_tokens_max }
    }

    pub(crate) fn stats(&self) -> Stats {
        let (gauges, totals) = (self.pump.gauges(), self.pump.totals());
        Stats {
            running: gauges.running as u64,
            waiting: gauges.waiting as u64,
            refused: self.pump.refused(),
            prompt_tokens: totals.cache_query_tokens,
            cached_tokens: totals.cache_hit_tokens,
            output_tokens: totals.output_tokens,
            ..self.ledger.stats()
        }
    }

    pub(crate) fn rule(&self, rule: Rule) {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if rule.faults.is_empty() {
            rules.clear();
            return;
        }
        if rules.len() == RULES_MAX {
            rules.remove(0);
        }
        rules.push(rule);
    }

    fn accept_delay(&self) -> Duration {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut plan = Plan::default();
        rules.iter().flat_map(|rule| &rule.faults).for_each(|fault| plan.add(*fault));
        plan.accept_delay
    }

    /// Registers a request and settles which faults concern it.
    fn open(&self, request: &RawRequest, connection: u64) -> Result<Exchange<'_>, fault::ParseFaultError> {
        let mut plan = self.standing_faults(request);
        for (name, value) in &request.headers {
            if name.eq_ignore_ascii_case("x-fault") {
                fault::parse_list(value)?.into_iter().for_each(|fault| plan.add(fault));
            }
        }
        let id = match request.header("x-request-id") {
            Some(id) => id.to_owned(),
            None => {
                // Looks random, as vLLM's does, and never repeats: multiplication by an odd number is a bijection.
                let count = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
                format!("{:016x}", count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            }
        };
        let number = self.ledger.received();
        if self.ledger.keeps_records() {
            let kept = request.body.len().min(self.settings.body_kept_bytes_max);
            self.ledger.keep(RequestRecord {
                number,
                id: id.clone(),
                connection,
                method: request.method.clone(),
                path: request.path.clone(),
                headers: request.headers.clone(),
                body_bytes: request.body.len() as u64,
                body: String::from_utf8_lossy(&request.body[..kept]).into_owned(),
                model: None,
                prompt_hash: None,
                prompt_tokens: None,
                cached_tokens: None,
                status: None,
                outcome: Outcome::InProgress,
            });
        }
        Ok(Exchange { shared: self, number, id, plan, persistence: request.persistence, outcome: Outcome::InProgress })
    }

    fn standing_faults(&self, request: &RawRequest) -> Plan {
        let mut plan = Plan::default();
        let runs_model = matches!(route(&request.path), Route::Model(_));
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        for rule in rules.iter_mut() {
            let concerned = rule.path.as_ref().map_or(runs_model, |path| *path == request.path);
            if !concerned || rule.requests == Some(0) {
                continue;
            }
            rule.faults.iter().for_each(|fault| plan.add(*fault));
            if let Some(requests) = &mut rule.requests {
                *requests -= 1;
            }
        }
        rules.retain(|rule| rule.requests != Some(0));
        plan
    }
}
