//! A small HTTP client for what the control thread reads: one address, one kept connection, one request at a time.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::plan::CredentialHeader;
use crate::tls::Verifier;

/// Longest answer that is read, in bytes: the metrics of an engine are 70 kB, of one with many adapters some more.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// A connection that is not up by then counts as refused: the machine is gone or cut off.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Where and as whom to ask.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// Where to connect.
    pub address: SocketAddr,
    /// Value of the `Host` header.
    pub host: String,
    /// The header that says who is asking.
    pub credential: Option<CredentialHeader>,
    /// Who it must prove to be; `None` for a connection that is not encrypted.
    pub proof: Option<Proof>,
}

/// Who a server must prove to be, and to whom.
#[derive(Debug, Clone)]
pub(crate) struct Proof {
    /// Whom it must convince.
    pub verifier: Verifier,
    /// The name its certificate must be good for.
    pub name: String,
}

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FetchError {
    /// No connection: nobody listens there.
    Connect(String),
    /// Nothing, or not everything, came in time.
    Timeout(Duration),
    /// The connection ended, or what came is not HTTP, or it is too long.
    Broken(String),
    /// The question cannot be put (a path or host that is none).
    Unaskable(String),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(why) => write!(f, "no connection: {why}"),
            Self::Timeout(after) => write!(f, "no answer within {} ms", after.as_millis()),
            Self::Broken(why) => write!(f, "broken answer: {why}"),
            Self::Unaskable(why) => write!(f, "request cannot be made: {why}"),
        }
    }
}

/// The client. Dropping it closes its connection.
pub(crate) struct Fetcher {
    origin: Origin,
    kept: Option<SendRequest<Full<Bytes>>>,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("address", &self.origin.address).finish_non_exhaustive()
    }
}

impl Fetcher {
    /// A client without a connection yet.
    pub(crate) fn new(origin: Origin) -> Self {
        Self { origin, kept: None }
    }

    /// Drops the kept connection: the next question makes one.
    pub(crate) fn disconnect(&mut self) {
        self.kept = None;
    }

    /// GETs `path`; everything together takes at most `within`. A kept connection that turns out to be closed by
    /// the other side (engines do that after 5 s) is replaced once.
    pub(crate) async fn get(&mut self, path: &str, within: Duration) -> Result<Answer, FetchError> {
        self.send(self.request(Method::GET, path, Bytes::new())?, within).await
    }

    /// POSTs JSON to `path`, as [`Fetcher::get`] gets.
    pub(crate) async fn post(&mut self, path: &str, json: Bytes, within: Duration) -> Result<Answer, FetchError> {
        self.send(self.request(Method::POST, path, json)?, within).await
    }

    async fn send(&mut self, request: Request<Full<Bytes>>, within: Duration) -> Result<Answer, FetchError> {
        let deadline = Instant::now() + within;
        let mut attempt = self.kept.take().filter(|kept| !kept.is_closed());
        loop {
            let fresh = attempt.is_none();
            let exchange = self.exchange(attempt.take(), request.clone());
            match timeout_at(deadline, exchange).await {
                Err(_) => return Err(FetchError::Timeout(within)),
                Ok(Err(FetchError::Broken(_))) if !fresh => {}
                Ok(result) => return result,
            }
        }
    }

    fn request(&self, method: Method, path: &str, json: Bytes) -> Result<Request<Full<Bytes>>, FetchError> {
        let mut request = Request::builder().method(method).uri(path);
        if !json.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(credential) = &self.origin.credential {
            let mut value = HeaderValue::try_from(credential.value.expose())
                .map_err(|_| FetchError::Unaskable(String::from("the credential is not a header value")))?;
            value.set_sensitive(true);
            request = request.header(credential.name.as_str(), value);
        }
        request
            .header(HOST, self.origin.host.as_str())
            .header(USER_AGENT, "kinference")
            .header(ACCEPT, "*/*")
            .body(Full::new(json))
            .map_err(|error| FetchError::Unaskable(error.to_string()))
    }

    async fn exchange(
        &mut self,
        kept: Option<SendRequest<Full<Bytes>>>,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, FetchError> {
        let broken = |error: &dyn fmt::Display| FetchError::Broken(error.to_string());
        let mut sender = match kept {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        sender.ready().await.map_err(|e| broken(&e))?;
        let response = sender.send_request(request).await.map_err(|e| broken(&e))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|e| broken(&e))?;
        self.kept = Some(sender);
        Ok(Answer { status, body: body.to_bytes() })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, FetchError> {
        let failed = |error: &dyn fmt::Display| FetchError::Connect(error.to_string());
        let connect = timeout(CONNECT_WITHIN, TcpStream::connect(self.origin.address));
        let stream = connect.await.map_err(|_| failed(&"nobody answers"))?.map_err(|e| failed(&e))?;
        stream.set_nodelay(true).map_err(|e| failed(&e))?;
        match &self.origin.proof {
            None => speak(stream).await,
            Some(Proof { verifier, name }) => {
                speak(verifier.encrypt(stream, name).await.map_err(|e| failed(&e))?).await
            }
        }
    }
}

/// Begins to speak HTTP on a connection.
async fn speak<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|error| FetchError::Connect(error.to_string()))?;
    // Ends by itself when the sender is dropped or the other side closes.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

/// GETs `path` on a connection that is used for nothing else.
pub(crate) async fn get_once<S>(stream: S, host: &str, path: &str) -> Result<Answer, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |error: &dyn fmt::Display| FetchError::Broken(error.to_string());
    let request = Request::builder().method(Method::GET).uri(path).header(HOST, host);
    let request = request.header(USER_AGENT, "kinference").header(ACCEPT, "application/json");
    let request = request.body(Full::<Bytes>::default()).map_err(|error| FetchError::Unaskable(error.to_string()))?;
    let mut sender = speak(stream).await?;
    let response = sender.send_request(request).await.map_err(|e| broken(&e))?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|e| broken(&e))?;
    Ok(Answer { status, body: body.to_bytes() })
}

/// Asks once, from a thread without a runtime. `url` is `http://HOST[:PORT]`.
pub(crate) fn fetch(url: &str, path: &str, within: Duration) -> Result<Answer, FetchError> {
    let server = super::learn::parse_url(url).map_err(FetchError::Unaskable)?;
    let failed = |error: std::io::Error| FetchError::Connect(error.to_string());
    let mut addresses = (server.host.as_str(), server.port).to_socket_addrs().map_err(failed)?;
    let address = addresses.next().ok_or_else(|| FetchError::Connect(String::from("the name has no address")))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let origin = Origin { address, host: server.to_string(), credential: None, proof: None };
    runtime.block_on(Fetcher::new(origin).get(path, within))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn fetcher(address: SocketAddr) -> Fetcher {
        let credential = CredentialHeader { name: "authorization".into(), value: config::Secret::new("Bearer s3cret") };
        Fetcher::new(Origin { address, host: address.to_string(), credential: Some(credential), proof: None })
    }

    async fn read_head(stream: &mut TcpStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte).await.unwrap() == 0 {
                break;
            }
            head.push(byte[0]);
        }
        String::from_utf8(head).unwrap()
    }

    const LONG: Duration = Duration::from_secs(180);

    #[tokio::test]
    async fn a_kept_connection_that_was_closed_is_replaced_unseen() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut fetcher = fetcher(listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            for body in ["one", "two"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let head = read_head(&mut stream).await;
                assert!(head.to_lowercase().contains("authorization: bearer s3cret"), "{head}");
                stream
                    .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{body}").as_bytes())
                    .await
                    .unwrap();
            }
        });
        assert_eq!(&fetcher.get("/a", LONG).await.unwrap().body[..], b"one");
        assert_eq!(&fetcher.get("/b", LONG).await.unwrap().body[..], b"two");
        server.await.unwrap();
    }

    #[tokio::test]
    async fn nobody_listening_is_told_from_nobody_answering() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let within = Duration::from_millis(20);
        assert_eq!(fetcher(address).get("/", within).await.unwrap_err(), FetchError::Timeout(within));
        drop(listener);
        assert!(matches!(fetcher(address).get("/", LONG).await, Err(FetchError::Connect(_))));
    }

    #[tokio::test]
    async fn an_answer_without_end_is_cut_at_the_bound() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut fetcher = fetcher(listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            while stream.write_all(&[b'x'; 65_536]).await.is_ok() {}
        });
        assert!(matches!(fetcher.get("/", LONG).await, Err(FetchError::Broken(_))));
    }
}
