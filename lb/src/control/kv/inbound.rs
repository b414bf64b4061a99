//! Streams of engines that connect to us: vLLM's PUB socket does where its `endpoint` names a host, and many engines may name
//! the same one.
//!
//! Whose stream it is stands in the topic, `kv@10.0.0.5:8000@model` (or without the port where one endpoint alone has that
//! address), or else follows from where it comes from.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use predictor::kv_event;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::stream::{keep_alive, published};
use super::zmtp::{Broken, Connection, Role};
use super::{Heard, journal};
use crate::plan::EndpointSpec;

/// Connections to one address at a time: that many engines, each with some to spare.
const CONNECTIONS_MAX: usize = 2_048;
/// Pause after an address could not be listened at, and between two looks whether anybody still expects a stream there.
const AGAIN: Duration = Duration::from_secs(1);

/// The addresses at which streams are awaited.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inbound {
    doors: Arc<Mutex<Vec<Door>>>,
}

#[derive(Debug)]
struct Door {
    address: SocketAddr,
    routes: Routes,
    task: JoinHandle<()>,
}

/// Who expects a stream at a door.
type Routes = Arc<Mutex<Vec<Route>>>;

#[derive(Debug, Clone)]
struct Route {
    spec: Arc<EndpointSpec>,
    topic: String,
    heard: mpsc::Sender<(u32, Heard)>,
}

impl Inbound {
    /// From now on the streams of an endpoint are passed to `heard`, until that is closed.
    pub(super) fn expect(
        &self,
        listen: SocketAddr,
        topic: &str,
        spec: &Arc<EndpointSpec>,
        heard: mpsc::Sender<(u32, Heard)>,
    ) {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.retain(|door| !door.task.is_finished());
        let route = Route { spec: spec.clone(), topic: topic.to_owned(), heard };
        match doors.iter().find(|door| door.address == listen) {
            Some(door) => door.routes.lock().unwrap_or_else(PoisonError::into_inner).push(route),
            None => {
                let routes = Routes::new(Mutex::new(vec![route]));
                let task = tokio::spawn(stand(listen, routes.clone()));
                doors.push(Door { address: listen, routes, task });
            }
        }
    }
}

/// Those that still expect a stream.
fn living(routes: &Routes) -> Vec<Route> {
    let mut routes = routes.lock().unwrap_or_else(PoisonError::into_inner);
    routes.retain(|route| !route.heard.is_closed());
    routes.clone()
}

/// Takes connections as long as anybody expects one.
async fn stand(address: SocketAddr, routes: Routes) {
    let mut told = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) if !std::mem::replace(&mut told, true) => {
                journal::error("KV events cannot be awaited", &[("address", &address), ("error", &error)]);
            }
            Err(_) => {}
        }
        let expected = living(&routes);
        for route in &expected {
            let why = format!("{address} cannot be listened at");
            // Who does not keep up hears of it next time.
            let _ = route.heard.try_send((0, Heard::Closed(why)));
        }
        if expected.is_empty() {
            return;
        }
        sleep(AGAIN).await;
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while !living(&routes).is_empty() {
        let Ok(Ok((stream, peer))) = timeout(AGAIN, listener.accept()).await else { continue };
        let Ok(place) = room.clone().try_acquire_owned() else { continue };
        let routes = routes.clone();
        tokio::spawn(async move {
            attend(stream, peer.ip(), &routes).await;
            drop(place);
        });
    }
}

/// Passes on what comes on one connection.
async fn attend(stream: TcpStream, peer: IpAddr, routes: &Routes) {
    keep_alive(&stream);
    let mut whose = None;
    let mut told = false;
    let broken = match opened(stream, routes).await {
        Ok(mut connection) => loop {
            let (topic, sequence, payload) = match connection.message().await.and_then(published) {
                Ok(message) => message,
                Err(broken) => break broken,
            };
            if whose.is_none() {
                whose = introduced(&topic, peer, &payload, routes).await;
            }
            let Some((rank, route)) = &whose else {
                if !std::mem::replace(&mut told, true) {
                    let topic = String::from_utf8_lossy(&topic);
                    journal::warn("KV events of no known endpoint", &[("from", &peer), ("topic", &topic)]);
                }
                continue;
            };
            if route.heard.send((*rank, Heard::Message { sequence, payload })).await.is_err() {
                // The endpoint was removed or is listened to anew.
                whose = None;
            }
        },
        Err(broken) => broken,
    };
    match whose {
        Some((rank, route)) => {
            let _ = route.heard.send((rank, Heard::Closed(broken.to_string()))).await;
        }
        None => journal::warn("a stream of KV events is none", &[("from", &peer), ("why", &broken)]),
    }
}

async fn opened(stream: TcpStream, routes: &Routes) -> Result<Connection<TcpStream>, Broken> {
    let mut connection = Connection::open(stream, Role::Subscriber).await?;
    let mut topics: Vec<String> = living(routes).into_iter().map(|route| route.topic).collect();
    topics.sort_unstable();
    topics.dedup();
    for topic in topics {
        connection.subscribe(topic.as_bytes()).await?;
    }
    Ok(connection)
}

/// Whose stream it is, which has then been told that it is open.
async fn introduced(topic: &[u8], peer: IpAddr, payload: &[u8], routes: &Routes) -> Option<(u32, Route)> {
    let living = living(routes);
    let route = find(topic, peer, living.iter().map(|route| (&*route.spec, route)))?.clone();
    let rank = kv_event::decode(payload).ok().and_then(|batch| batch.rank).unwrap_or(0);
    route.heard.send((rank, Heard::Open)).await.ok()?;
    Some((rank, route))
}

/// The one endpoint that a topic names, or that has the address a stream comes from.
fn find<'a, T>(topic: &[u8], peer: IpAddr, endpoints: impl Iterator<Item = (&'a EndpointSpec, T)>) -> Option<T> {
    let named = topic.split(|byte| *byte == b'@').nth(1).and_then(|name| std::str::from_utf8(name).ok());
    let (mut by_name, mut by_topic_ip, mut by_peer) = (Vec::new(), Vec::new(), Vec::new());
    for (spec, found) in endpoints {
        let ip = spec.address.ip().to_canonical();
        if named == Some(&spec.name) || named == Some(&spec.address.to_string()) {
            by_name.push(found);
        } else if named.and_then(|name| name.parse::<IpAddr>().ok()).is_some_and(|named| named.to_canonical() == ip) {
            by_topic_ip.push(found);
        } else if named.is_none_or(str::is_empty) && ip == peer.to_canonical() {
            by_peer.push(found);
        }
    }
    let only = |mut found: Vec<T>| found.pop().filter(|_| found.is_empty());
    only(by_name).or_else(|| only(by_topic_ip)).or_else(|| only(by_peer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{EndpointId, EndpointTimeouts};

    fn spec(address: &str) -> EndpointSpec {
        EndpointSpec {
            id: EndpointId(0),
            incarnation: 0,
            name: address.to_owned(),
            backend: policy::Backend::Local,
            address: address.parse().unwrap(),
            other_addresses: Vec::new(),
            tls: None,
            host_header: String::new(),
            path_prefix: String::new(),
            credential: None,
            model: String::new(),
            kind: String::new(),
            in_flight_max: None,
            metered: None,
            timeouts: EndpointTimeouts::default(),
            unusable: None,
            dialect: crate::provider::Dialect::OpenAi,
            withheld: None,
        }
    }

    #[test]
    fn a_stream_belongs_to_whom_its_topic_names_or_else_to_whom_its_address_has() {
        let all = ["10.0.0.5:8000", "10.0.0.6:8000", "10.0.0.6:8001", "10.0.0.7:8000"].map(spec);
        let whose = |topic: &str, peer: &str| {
            let named = all.iter().map(|spec| (spec, spec.name.as_str()));
            find(topic.as_bytes(), peer.parse().unwrap(), named)
        };
        for (topic, peer, found) in [
            ("kv@10.0.0.6:8001@m", "10.0.0.5", Some("10.0.0.6:8001")),
            ("kv@10.0.0.5@m", "10.9.9.9", Some("10.0.0.5:8000")),
            ("kv@10.0.0.6@m", "10.9.9.9", None),
            ("kv", "10.0.0.7", Some("10.0.0.7:8000")),
            ("", "::ffff:10.0.0.7", Some("10.0.0.7:8000")),
            ("kv@", "10.0.0.6", None),
            ("kv@10.0.0.99:8000@m", "10.0.0.7", None),
        ] {
            assert_eq!(whose(topic, peer), found, "{topic} from {peer}");
        }
    }
}
