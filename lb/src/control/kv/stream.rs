//! The stream of one rank to which we connect: again and again, with growing pauses.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::Heard;
use super::zmtp::{Broken, Connection, Message, Role};

/// A connection that is not up by then counts as refused.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// First pause between attempts; doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause: an engine that comes back is heard again within this time.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// An engine may be silent for hours, so only the network tells whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Listens until whoever is told has gone.
pub(super) async fn run(rank: u32, address: SocketAddr, topic: String, heard: mpsc::Sender<(u32, Heard)>) {
    let mut pause = PAUSE_MIN;
    loop {
        let why = match subscribed(address, &topic).await {
            Ok(mut connection) => {
                pause = PAUSE_MIN;
                if heard.send((rank, Heard::Open)).await.is_err() {
                    return;
                }
                let Some(broken) = pass_on(&mut connection, rank, &heard).await else { return };
                broken.to_string()
            }
            Err(broken) => format!("no connection to {address}: {broken}"),
        };
        if heard.send((rank, Heard::Closed(why))).await.is_err() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn subscribed(address: SocketAddr, topic: &str) -> Result<Connection<TcpStream>, Broken> {
    let mut connection = connect(address, Role::Subscriber).await?;
    connection.subscribe(topic.as_bytes()).await?;
    Ok(connection)
}

/// A connection that notices when the other machine has gone.
pub(super) async fn connect(address: SocketAddr, role: Role) -> Result<Connection<TcpStream>, Broken> {
    let stream = timeout(CONNECT_WITHIN, TcpStream::connect(address)).await.map_err(|_| Broken::Late("answer"))??;
    keep_alive(&stream);
    Connection::open(stream, role).await
}

/// Has the kernel look after a connection on which nothing comes.
pub(super) fn keep_alive(stream: &TcpStream) {
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_EVERY).with_retries(KEEPALIVE_PROBES);
    // Without it a dead machine is noticed later, by the reads of its metrics.
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

/// Passes messages on until the connection breaks; `None` when nobody listens any more.
async fn pass_on(
    connection: &mut Connection<TcpStream>,
    rank: u32,
    heard: &mpsc::Sender<(u32, Heard)>,
) -> Option<Broken> {
    loop {
        let message = match connection.message().await.and_then(published) {
            Ok((_, sequence, payload)) => Heard::Message { sequence, payload },
            Err(broken) => return Some(broken),
        };
        heard.send((rank, message)).await.ok()?;
    }
}

/// Topic, number and payload of a published message.
pub(super) fn published(message: Message) -> Result<(Vec<u8>, u64, Vec<u8>), Broken> {
    let count = message.len();
    let Ok([topic, sequence, payload]) = <[Vec<u8>; 3]>::try_from(message) else {
        return Err(Broken::Protocol(format!(
            "a message of {count} frames where topic, number and events are expected"
        )));
    };
    Ok((topic, number(&sequence)?, payload))
}

/// A sequence number: eight bytes, the first the highest.
pub(super) fn number(frame: &[u8]) -> Result<u64, Broken> {
    let bytes = frame.try_into().map_err(|_| Broken::Protocol(String::from("a sequence number that is none")))?;
    Ok(u64::from_be_bytes(bytes))
}
