//! The admin server: health, metrics and the state of things, on a port of its own.
//!
//! HTTP/1.1 by hyper on the control thread; nothing here is on the path of a request. Bounded in connections, in the size
//! of what it reads (heads only; bodies are never looked at) and in time.

use std::convert::Infallible;
use std::net::TcpListener as StdTcpListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::report::Reports;
use super::status::{Question, Status};
use super::{decisions, exposition, journal, page};
use crate::decisions::Wanted;
use crate::mailbox::ShardHandle;

/// Connections at once: a few people, a few scrapers, a kubelet.
const CONNECTIONS_MAX: usize = 512;
/// From the first byte of a head to its last; also how long an idle connection is kept.
const HEAD_WITHIN: Duration = Duration::from_secs(2);
/// Longest life of a connection.
const CONNECTION_WITHIN: Duration = Duration::from_secs(3_600);
/// The control loop answers within its turn; when it does not, that is what there is to say.
const STATUS_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of a head.
const HEAD_BYTES_MAX: usize = 16 << 10;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

/// What the answers are made from.
pub(super) struct Sources {
    pub(super) shards: Vec<ShardHandle>,
    pub(super) questions: mpsc::Sender<Question>,
}

/// Serves until the process ends.
pub(crate) async fn serve(listener: StdTcpListener, shards: Vec<ShardHandle>, questions: mpsc::Sender<Question>) {
    let listener = match listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)) {
        Ok(listener) => listener,
        Err(error) => return journal::error("the admin server cannot listen", &[("error", &error)]),
    };
    let sources = Arc::new(Sources { shards, questions });
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Ends when the semaphore is closed, which it never is.
    while let Ok(place) = room.clone().acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                journal::warn("the admin server cannot accept", &[("error", &error)]);
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let sources = sources.clone();
        tokio::spawn(async move {
            serve_connection(sources, stream).await;
            drop(place);
        });
    }
}

/// Answers on one connection until it ends, or has lived long enough.
pub(super) async fn serve_connection(sources: Arc<Sources>, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let service = service_fn(move |request: Request<Incoming>| {
        let sources = sources.clone();
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        async move { Ok::<_, Infallible>(answer(&sources, request.method(), &path).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // How a connection to the admin port ends is nobody's business.
    let _ = timeout(CONNECTION_WITHIN, connection).await;
}

/// What an answer is made of.
struct Page {
    status: StatusCode,
    content_type: &'static str,
    body: String,
}

impl Page {
    fn ok(content_type: &'static str, body: String) -> Self {
        Self { status: StatusCode::OK, content_type, body }
    }

    fn problem(status: StatusCode, message: &str) -> Self {
        Self { status, content_type: TEXT, body: format!("{message}\n") }
    }
}

async fn answer(sources: &Sources, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let page = match *method {
        Method::GET | Method::HEAD => page_at(sources, path).await,
        _ => Page::problem(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here"),
    };
    let refused = page.status == StatusCode::METHOD_NOT_ALLOWED;
    let mut response = Response::new(Full::new(Bytes::from(page.body)));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if refused {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

async fn page_at(sources: &Sources, path: &str) -> Page {
    if let Some(wanted) = decisions::wanted(path) {
        return decisions_page(sources, wanted).await;
    }
    match path.split('?').next().unwrap_or(path) {
        "/" => Page::ok(HTML, String::from(page::HTML)),
        "/healthz" => Page::ok(TEXT, String::from("ok\n")),
        "/readyz" => match status(sources).await {
            Some(status) => {
                let (code, body) = page::readyz(&status);
                Page { status: code, content_type: JSON, body }
            }
            None => stuck(),
        },
        "/config" => match status(sources).await {
            Some(status) => Page::ok(JSON, page::config(&status)),
            None => stuck(),
        },
        "/endpoints" => match status(sources).await {
            Some(status) => Page::ok(JSON, page::endpoints(&status, &Reports::collect(&sources.shards).await)),
            None => stuck(),
        },
        "/metrics" => match status(sources).await {
            Some(status) => match exposition::text(status, Reports::collect(&sources.shards).await) {
                Ok(text) => Page::ok(exposition::CONTENT_TYPE, text),
                Err(_) => Page::problem(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written"),
            },
            None => stuck(),
        },
        _ => Page::problem(
            StatusCode::NOT_FOUND,
            "nothing here; there are /, /healthz, /readyz, /metrics, /endpoints, /decisions and /config",
        ),
    }
}

async fn decisions_page(sources: &Sources, wanted: Result<Wanted, String>) -> Page {
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(message) => return Page::problem(StatusCode::BAD_REQUEST, &message),
    };
    let found = decisions::collect(&sources.shards, &wanted).await;
    match wanted {
        Wanted::Of(_) if found.is_empty() => Page::problem(
            StatusCode::NOT_FOUND,
            "no decision is kept for this request: each data thread keeps its last 1,000, and those of the last few configurations",
        ),
        Wanted::Of(_) | Wanted::Latest(_) => Page::ok(JSON, decisions::page(&found)),
    }
}

fn stuck() -> Page {
    Page::problem(StatusCode::SERVICE_UNAVAILABLE, "the control thread does not answer")
}

async fn status(sources: &Sources) -> Option<Status> {
    let (question, answer) = oneshot::channel();
    let asked = async {
        sources.questions.send(question).await.ok()?;
        answer.await.ok()
    };
    timeout(STATUS_WITHIN, asked).await.ok().flatten()
}
