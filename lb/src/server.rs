//! The server: opens what is needed, starts the threads, waits, ends.
//!
//! Start order: open-file limit, driver, listening sockets (one of each per data thread, sharing the port), data threads,
//! and on the calling thread the control loop. Whatever can be wrong with how the process was started is found before
//! the first thread runs and told in one line. Data threads run until the process ends: a ring may hold their buffers.

use predictor::fleet::Steps;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use config::server_file::{ServerLimits, ServerTimeouts};
use config::snapshot::PoolScope;
use crds::server::DecisionHeaders;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::mpsc;

use crate::control::certificates::InUse;
use crate::control::source::Source;
use crate::control::status::Facts;
use crate::control::{self, Ended, Target, journal};
use crate::io::Driver;
use crate::mailbox::{CONTROL_MESSAGES_MAX, ShardHandle};
use crate::settings::{AccessLog, Settings};
use crate::shard::{self, Listening, ShardSetup};
use crate::sys::{self, Waker};
use crate::tls::{Certificate, Identity};

/// Connections that wait to be accepted on one socket; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4_096;
/// A port that is in use is tried this long: a process that just ended may still be letting go of it.
const BIND_WITHIN: Duration = Duration::from_millis(100);
const BIND_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// Descriptors below which a warning is due: every request holds two.
const OPEN_FILES_FEW: u64 = 4_096;

/// Everything that can be chosen about a server.
pub(crate) struct Options {
    /// Where requests come in.
    pub(crate) listeners: Vec<ListenerOptions>,
    /// Where the admin server listens; `None` for none.
    pub(crate) admin: Option<SocketAddr>,
    /// Data threads; `None` is one per core.
    pub(crate) data_threads: Option<usize>,
    /// What the data threads are to run on.
    pub(crate) driver: Driver,
    /// Where the configuration comes from.
    pub(crate) source: Source,
    /// The server's own file, when there is one.
    pub(crate) server_file: Option<PathBuf>,
    /// Where lines of the access log go.
    pub(crate) access_log: Target,
    /// Longest wait for requests to end after a signal.
    pub(crate) drain_timeout: Duration,
    /// Whether answers say where they come from.
    pub(crate) decision_headers: DecisionHeaders,
    /// Silence of an engine within a stream after which the client is sent a comment.
    pub(crate) stream_ping: Option<Duration>,
    /// Other balancers: where they are heard, who they are, and what all know.
    pub(crate) balancers: Option<(SocketAddr, Vec<String>, config::Secret)>,
    /// Bounds of requests.
    pub(crate) limits: ServerLimits,
    /// Time-outs of requests.
    pub(crate) timeouts: ServerTimeouts,
    /// Whether an address may be shared with another process.
    pub(crate) sharing: Sharing,
    /// Called once when every endpoint is ready for the first time, with where to find the server.
    pub(crate) on_ready: Option<OnReady>,
}

/// Where requests come in, and how.
pub(crate) struct ListenerOptions {
    /// IP address and port.
    pub(crate) address: SocketAddr,
    /// The pools served there.
    pub(crate) scope: PoolScope,
    /// The certificate, where TLS is spoken, and what it is now.
    pub(crate) tls: Option<(Certificate, Identity)>,
}

impl ListenerOptions {
    /// Plain HTTP, all pools.
    pub(crate) fn plain(address: SocketAddr) -> Self {
        Self { address, scope: PoolScope::All, tls: None }
    }
}

/// What is done once a server is ready.
pub(crate) type OnReady = Box<dyn FnOnce(&Bound) + Send>;

/// Whether an address may be shared with another process that shares it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// A new process may start beside the old one.
    Allowed,
    /// An address in use is refused.
    Refused,
}

/// Where a server listens, with the ports that port 0 has become.
#[derive(Debug, Clone)]
pub(crate) struct Bound {
    /// For requests, in the order of the options.
    pub(crate) listeners: Vec<SocketAddr>,
    /// For the admin server.
    pub(crate) admin: Option<SocketAddr>,
}

/// Why a server does not start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The driver that was asked for does not work here.
    Driver(String),
    /// An address cannot be listened on.
    Bind {
        /// What is to be there.
        place: Place,
        /// Which.
        address: SocketAddr,
        /// What the kernel says.
        error: io::Error,
    },
    /// The access log cannot be written to.
    AccessLog {
        /// Where it was to be.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// Something else the kernel refuses.
    Io {
        /// What was to be done.
        what: &'static str,
        /// What the kernel says.
        error: io::Error,
    },
}

/// What listens at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Clients' connections.
    Listener,
    /// The admin server.
    Admin,
    /// Other balancers.
    Balancers,
}

impl Place {
    /// Where its address is said.
    fn said(self) -> &'static str {
        match self {
            Self::Listener => "--listen, or listeners in the server's file",
            Self::Admin => "--admin, or admin.address in the server's file",
            Self::Balancers => "balancers.address in the server's file",
        }
    }
}

impl fmt::Display for StartError {
    // `io::ErrorKind` grows without notice.
    #[allow(clippy::wildcard_enum_match_arm)]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(why) => f.write_str(why),
            Self::Bind { place, address, error } => match error.kind() {
                io::ErrorKind::AddrInUse => {
                    let said = place.said();
                    write!(f, "{address} is in use by another process: stop it, or choose another port ({said})")
                }
                io::ErrorKind::AddrNotAvailable => {
                    write!(f, "{address} is not an address of this machine: use one that is, or 0.0.0.0 for all")
                }
                io::ErrorKind::PermissionDenied => {
                    write!(
                        f,
                        "{address} may not be listened on by this user: use a port from 1024 up, or grant CAP_NET_BIND_SERVICE"
                    )
                }
                _ => write!(f, "cannot listen on {address}: {error}"),
            },
            Self::AccessLog { path, error } => write!(
                f,
                "the access log {} cannot be written to: {error}; choose another place (--access-log, or accessLog.path in the server's file)",
                path.display()
            ),
            Self::Io { what, error } => write!(f, "cannot {what}: {error}"),
        }
    }
}

/// Before anything listens: what cannot be written down shall not be answered either.
fn open_access_log(target: &Target) -> Result<control::AccessLog, StartError> {
    control::AccessLog::open(target).map_err(|error| match target {
        Target::File(path) => StartError::AccessLog { path: path.clone(), error },
        Target::Stdout | Target::Off => StartError::Io { what: "start the thread of the access log", error },
    })
}

/// Runs a server until a signal ends it.
///
/// # Errors
/// When it cannot start.
pub(crate) fn run(mut options: Options) -> Result<ExitCode, StartError> {
    sys::keep_freed_memory();
    let open_files_max = sys::raise_open_files();
    let driver = options.driver.choose().map_err(StartError::Driver)?;
    let access_log = open_access_log(&options.access_log)?;
    let threads = options.data_threads.unwrap_or_else(cores).max(1);
    let (sockets, bound) = bind_all(&options, threads)?;
    let admin = options.admin.map(|address| bind_admin(address, options.sharing)).transpose()?;
    let balancers = match options.balancers.take() {
        None => None,
        Some((address, peers, secret)) => {
            let socket = bind_datagrams(address).map_err(|error| StartError::Bind {
                place: Place::Balancers,
                address,
                error,
            })?;
            Some(control::balancers::Options { socket, peers, secret })
        }
    };
    let bound = Bound { admin: admin.as_ref().and_then(|admin| admin.local_addr().ok()), ..bound };

    let settings = Arc::new(settings(&options, driver));
    let (control, from_shards) = mpsc::channel(CONTROL_MESSAGES_MAX);
    let shards = start_shards(sockets, &settings, &control)?;
    drop(control);
    say_hello(&options, &bound, driver, threads, open_files_max);

    let scopes = options.listeners.iter().map(|listener| listener.scope.clone()).collect();
    let certificates = watched_certificates(options.listeners, &bound);
    let facts = Facts {
        driver,
        data_threads: threads,
        open_files_max,
        started: SystemTime::now(),
        sources: options.source.names(),
        server_file: options.server_file,
    };
    let on_ready = options.on_ready.map(|on_ready| Box::new(move || on_ready(&bound)) as Box<dyn FnOnce() + Send>);
    let ended = control::run(control::Setup {
        shards,
        from_shards,
        admin,
        source: options.source,
        access_log,
        drain_timeout: options.drain_timeout,
        facts,
        balancers,
        certificates,
        scopes,
        on_ready,
    });
    match ended.map_err(|error| StartError::Io { what: "start the control thread", error })? {
        Ended::Drained => {
            journal::info("ended; every request was answered", &[]);
            Ok(ExitCode::SUCCESS)
        }
        Ended::DrainTimeout => {
            journal::warn("ended; the drain time-out was over before the last request", &[]);
            Ok(ExitCode::SUCCESS)
        }
        Ended::Forced => {
            journal::warn("ended at once by a second signal", &[]);
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The certificates in use, to be watched.
fn watched_certificates(listeners: Vec<ListenerOptions>, bound: &Bound) -> Vec<InUse> {
    let in_use =
        listeners.into_iter().zip(&bound.listeners).enumerate().filter_map(|(listener, (options, address))| {
            let (certificate, identity) = options.tls?;
            Some(InUse { listener, address: *address, certificate, identity })
        });
    in_use.collect()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn say_hello(options: &Options, bound: &Bound, driver: crate::io::DriverInUse, threads: usize, open_files_max: u64) {
    for (address, listener) in bound.listeners.iter().zip(&options.listeners) {
        let tls = if listener.tls.is_some() { "on" } else { "off" };
        journal::info("listening", &[("address", address), ("tls", &tls), ("threads", &threads), ("driver", &driver)]);
    }
    if let Some(address) = &bound.admin {
        journal::info("admin server listening", &[("address", address)]);
    }
    if options.driver == Driver::Auto && driver == crate::io::DriverInUse::Epoll {
        journal::info("io_uring is not available here; epoll is used", &[]);
    }
    if open_files_max < OPEN_FILES_FEW {
        journal::warn(
            "few files may be open; raise the limit (ulimit -n, LimitNOFILE)",
            &[("open_files_max", &open_files_max)],
        );
    }
}

fn settings(options: &Options, driver: crate::io::DriverInUse) -> Settings {
    let (limits, timeouts) = (&options.limits, &options.timeouts);
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    Settings {
        driver,
        request_head_bytes_max: bytes(limits.request_head_bytes_max),
        request_body_bytes_max: bytes(limits.request_body_bytes_max),
        request_bodies_bytes_max: bytes(limits.request_bodies_total_bytes_max),
        connections_per_thread_max: limits.connections_per_thread_max as usize,
        request_head_timeout: timeouts.request_head,
        request_body_idle_timeout: timeouts.request_body_idle,
        connect_timeout: timeouts.connect,
        first_byte_timeout: timeouts.first_byte,
        idle_timeout: timeouts.idle,
        client_idle_timeout: timeouts.client_idle,
        upstream_keep_alive: Duration::from_secs(4),
        access_log: if options.access_log == Target::Off { AccessLog::Off } else { AccessLog::On },
        decision_headers: options.decision_headers,
        stream_ping: options.stream_ping,
        block_bytes: predictor::prefix::chain::BLOCK_BYTES_DEFAULT,
    }
}

/// The sockets of one data thread.
type Sockets = Vec<Listening>;

/// Binds every listener once for each data thread.
fn bind_all(options: &Options, threads: usize) -> Result<(Vec<Sockets>, Bound), StartError> {
    let mut sockets: Vec<Sockets> = (0..threads).map(|_| Vec::with_capacity(options.listeners.len())).collect();
    let mut bound = Bound { listeners: Vec::with_capacity(options.listeners.len()), admin: None };
    for ListenerOptions { address: wanted, scope, tls } in &options.listeners {
        let failed = |error| StartError::Bind { place: Place::Listener, address: *wanted, error };
        // Without SO_REUSEPORT the kernel says so when anybody listens there, however they share it.
        let taken = match options.sharing {
            Sharing::Refused => {
                drop(bind(*wanted, Reuse::Address).map_err(failed)?);
                false
            }
            Sharing::Allowed => {
                bind_once(*wanted, Reuse::Address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
            }
        };
        let mut address = *wanted;
        for of_thread in &mut sockets {
            let socket = bind(address, Reuse::Port).map_err(failed)?;
            // The first thread finds a port for port 0, the others join it.
            address = socket.local_addr().map_err(failed)?;
            let acceptor = tls.as_ref().map(|(_, identity)| identity.acceptor.clone());
            of_thread.push(Listening { socket, scope: scope.clone(), acceptor });
        }
        if taken {
            journal::warn(
                "another process listens at this address; until it ends, connections go to either, each by its own configuration",
                &[("address", wanted)],
            );
        }
        bound.listeners.push(address);
    }
    Ok((sockets, bound))
}

fn bind_admin(address: SocketAddr, sharing: Sharing) -> Result<TcpListener, StartError> {
    let reuse = match sharing {
        Sharing::Allowed => Reuse::Port,
        Sharing::Refused => Reuse::Address,
    };
    bind(address, reuse).map_err(|error| StartError::Bind { place: Place::Admin, address, error })
}

/// A socket for datagrams. A new process may have it beside the old one: what only one of them hears is told again.
fn bind_datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// How a listening socket treats others at its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reuse {
    /// `SO_REUSEADDR`: old connections at the address do not matter.
    Address,
    /// `SO_REUSEPORT` too: others may listen there as well.
    Port,
}

/// A listening socket.
fn bind(address: SocketAddr, reuse: Reuse) -> io::Result<TcpListener> {
    bind_within(address, reuse, BIND_WITHIN)
}

/// A listening socket. Tries again for so long when the address is in use.
fn bind_within(address: SocketAddr, reuse: Reuse, within: Duration) -> io::Result<TcpListener> {
    let until = Instant::now() + within;
    loop {
        match bind_once(address, reuse) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(BIND_AGAIN_AFTER);
            }
            result => return result,
        }
    }
}

fn bind_once(address: SocketAddr, reuse: Reuse) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    match reuse {
        Reuse::Address => {}
        Reuse::Port => socket.set_reuse_port(true)?,
    }
    // Accepted connections inherit it (tcp(7)).
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn start_shards(
    sockets: Vec<Sockets>,
    settings: &Arc<Settings>,
    control: &mpsc::Sender<crate::mailbox::FromShard>,
) -> Result<Vec<ShardHandle>, StartError> {
    let failed = |what| move |error| StartError::Io { what, error };
    let threads = sockets.len();
    let mut boxes = Vec::with_capacity(threads);
    for _ in 0..threads {
        let waker = Waker::new().map_err(failed("make an eventfd"))?;
        let (handle, mailbox) = ShardHandle::new(waker.clone());
        boxes.push((handle, mailbox, waker));
    }
    let steps = Steps::new(config::limits::ENDPOINTS_MAX);
    let handles: Vec<ShardHandle> = boxes.iter().map(|(handle, ..)| handle.clone()).collect();
    for (index, ((_, mailbox, waker), listeners)) in boxes.into_iter().zip(sockets).enumerate() {
        let others = handles.iter().enumerate().filter(|(other, _)| *other != index);
        let setup = ShardSetup {
            index,
            settings: settings.clone(),
            listeners,
            mailbox,
            waker,
            load: handles[index].load.clone(),
            steps: steps.clone(),
            control: control.clone(),
            own: handles[index].clone(),
            peers: others.map(|(_, handle)| handle.clone()).collect(),
            body_bytes_max: settings.request_bodies_bytes_max / threads,
        };
        let thread = std::thread::Builder::new().name(format!("data-{index}"));
        thread.spawn(move || run_shard(setup)).map_err(failed("start a data thread"))?;
    }
    Ok(handles)
}

/// A data thread must not end before the process does: half of the connections would hang with nobody to tell.
fn run_shard(setup: ShardSetup) {
    let index = setup.index;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shard::run(setup)));
    match result {
        Ok(Ok(())) => journal::error("a data thread ended; aborting", &[("thread", &index)]),
        Ok(Err(error)) => {
            journal::error("a data thread cannot run; aborting", &[("thread", &index), ("error", &error)]);
        }
        // The place of the panic has been written by the panic hook.
        Err(_) => journal::error("a data thread panicked; aborting", &[("thread", &index)]),
    }
    journal::flush();
    std::process::abort();
}

/// Writes where a panic happened, and nothing of what it says: that may hold part of a request.
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let at = panic.location().map_or_else(|| String::from("unknown"), ToString::to_string);
        journal::error("panic", &[("thread", &thread.name().unwrap_or("unnamed")), ("at", &at)]);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: &str = "127.0.0.1:0";

    #[test]
    fn sockets_of_several_threads_share_one_port_and_an_exclusive_look_sees_them() {
        let first = bind(ANY.parse().unwrap(), Reuse::Port).unwrap();
        let address = first.local_addr().unwrap();
        let second = bind(address, Reuse::Port).unwrap();
        assert_eq!(second.local_addr().unwrap(), address);
        let error = bind(address, Reuse::Address).unwrap_err();
        let told = StartError::Bind { place: Place::Listener, address, error }.to_string();
        assert!(told.contains("is in use") && told.contains(&address.to_string()), "{told}");
    }

    #[test]
    fn a_port_that_becomes_free_within_the_grace_is_taken() {
        let holder = bind(ANY.parse().unwrap(), Reuse::Address).unwrap();
        let address = holder.local_addr().unwrap();
        let letting_go = std::thread::spawn(move || {
            std::thread::yield_now();
            drop(holder);
        });
        assert!(bind_within(address, Reuse::Port, Duration::from_secs(20)).is_ok());
        letting_go.join().unwrap();
    }

    #[test]
    fn an_address_of_another_machine_is_said_to_be_one() {
        let address = "192.0.2.1:8080".parse().unwrap();
        let error = bind(address, Reuse::Port).unwrap_err();
        assert!(
            StartError::Bind { place: Place::Admin, address, error }
                .to_string()
                .contains("not an address of this machine")
        );
    }
}
