//! Doors of this room for fuzzing (see [`crate::probe`]): what engines say, what the admin server answers, without sockets.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::Snapshot;
use config::snapshot::StaticEndpoint;
use policy::Diagnostic;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::mpsc;

use super::admin::{self, Sources};
use super::kv::zmtp::{Connection, Role};
use super::report::Reports;
use super::status::{CacheNewsStatus, CertificatesStatus, ConfigStatus, Facts, Phase, Status};
use super::{exposition, journal, learn, models, scrape};
use crate::io::DriverInUse;
use crate::metrics::{Labels, ShardReport};

/// What an engine's page of metrics says.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Scraped {
    /// Requests accepted and not begun.
    pub waiting: Option<f64>,
    /// Requests being worked on.
    pub running: Option<f64>,
    /// Use of the cache, 0 to 1.
    pub kv_usage_ratio: Option<f64>,
    /// Blocks of the cache.
    pub num_gpu_blocks: Option<u64>,
    /// Tokens in a block.
    pub block_size_tokens: Option<u32>,
    /// Requests that ended well.
    pub succeeded_total: Option<f64>,
    /// When the process started, in seconds since 1970.
    pub started_s: Option<f64>,
}

/// Reads an engine's page of metrics.
#[must_use]
pub fn scraped(text: &[u8]) -> Scraped {
    let page = scrape::read(text);
    Scraped {
        waiting: page.waiting,
        running: page.running,
        kv_usage_ratio: page.kv_usage_ratio,
        num_gpu_blocks: page.num_gpu_blocks,
        block_size_tokens: page.block_size_tokens,
        succeeded_total: page.succeeded_total,
        started_s: page.started_s,
    }
}

/// What another balancer might say, signed, read and written again without its signature; nothing for what tells of no
/// endpoint, `None` for what is refused.
#[must_use]
pub fn balancer_told(said: &[u8]) -> Option<Vec<u8>> {
    super::balancers::reread(said)
}

/// What an engine's list of models is made into.
#[derive(Debug)]
pub struct Learned {
    /// Every name in the list.
    pub names: Vec<String>,
    /// The documents.
    pub text: String,
    /// What they come to.
    pub snapshot: Result<Snapshot, Vec<Diagnostic>>,
}

/// Reads an engine's list of models; `None` when it is none.
#[must_use]
pub fn learned(body: &[u8]) -> Option<Learned> {
    let listed = models::list(body).ok()?;
    let names = listed.iter().map(|model| model.id.clone()).collect();
    let server = StaticEndpoint { host: String::from("10.0.0.5"), port: 8000 };
    let (text, snapshot) = learn::lowered(&[(&server, &listed)]);
    Some(Learned { names, text, snapshot })
}

/// Reads a server's URL from the command line.
///
/// # Errors
/// What is wrong with it.
pub fn server_url(url: &str) -> Result<StaticEndpoint, String> {
    learn::parse_url(url)
}

/// The page of metrics after one request with these names.
#[must_use]
pub fn metrics_page(model: &str, tenant: &str, destination: &str, rule: &str) -> Option<String> {
    let mut report = ShardReport::default();
    let labels = Labels {
        model,
        model_served: model,
        tenant,
        destination,
        rule,
        api: "ChatCompletions",
        outcome: "ok",
        status: 200,
    };
    report.metrics.series.counts(&labels).requests = 1;
    exposition::text(status(), Reports { shards: vec![report], stuck: Vec::new() }).ok()
}

/// The journal's line about something called `name`, at a time in milliseconds since 1970.
#[must_use]
pub fn journal_line(message: &str, name: &str, unix_ms: u64) -> String {
    journal::line(Duration::from_millis(unix_ms), journal::Level::Info, message, &[("name", &name)])
}

/// What the admin server answers to a client that sends `bytes` and no more.
///
/// # Errors
/// When no runtime can be made.
pub fn admin_answer(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    Ok(runtime.block_on(async {
        let (questions, mut asked) = mpsc::channel(1);
        let sources = Arc::new(Sources { shards: Vec::new(), questions });
        let (mut client, server) = duplex(64 << 10);
        let control = async {
            while let Some(question) = asked.recv().await {
                // Who no longer waits for an answer needs none.
                let _ = question.send(status());
            }
        };
        let talk = async {
            let mut answer = Vec::new();
            // A server that has had enough may close before everything is sent.
            let _ = client.write_all(bytes).await;
            let _ = client.shutdown().await;
            let _ = client.read_to_end(&mut answer).await;
            answer
        };
        let ((), (), answer) = tokio::join!(admin::serve_connection(sources, server), control, talk);
        answer
    }))
}

/// The messages that a subscriber hears from a peer that sends `bytes` and no more, through a pipe of so many bytes, and why
/// it ended.
///
/// # Errors
/// When no runtime can be made.
pub fn published(bytes: &[u8], pipe_bytes: usize) -> std::io::Result<(Vec<Vec<Vec<u8>>>, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    Ok(runtime.block_on(async {
        let (mut peer, ours) = duplex(pipe_bytes.max(1));
        let talk = async {
            let (mut read, mut write) = tokio::io::split(&mut peer);
            let send = async {
                // A subscriber that has heard enough closes before everything is sent.
                let _ = write.write_all(bytes).await;
                let _ = write.shutdown().await;
            };
            let mut said = Vec::new();
            let _ = tokio::join!(send, read.read_to_end(&mut said));
        };
        let hear = async {
            let mut messages = Vec::new();
            let mut connection = match Connection::open(ours, Role::Subscriber).await {
                Ok(connection) => connection,
                Err(broken) => return (messages, broken.to_string()),
            };
            loop {
                match connection.message().await {
                    Ok(message) => messages.push(message),
                    Err(broken) => return (messages, broken.to_string()),
                }
            }
        };
        tokio::join!(talk, hear).1
    }))
}

fn status() -> Status {
    Status {
        phase: Phase::Starting,
        plan: None,
        endpoints: Vec::new(),
        unresolved: Vec::new(),
        config: ConfigStatus { in_force_since: None, refusals: 0, last_refusal: None },
        contact: None,
        waiting: Vec::new(),
        balancers: None,
        tokenizers: Vec::new(),
        certificates: CertificatesStatus::default(),
        keys: (Vec::new(), 0),
        cache_news: CacheNewsStatus::default(),
        log_lines_dropped: 0,
        facts: Arc::new(Facts {
            driver: DriverInUse::Epoll,
            data_threads: 0,
            open_files_max: 0,
            started: SystemTime::UNIX_EPOCH,
            sources: Vec::new(),
            server_file: None,
        }),
    }
}
