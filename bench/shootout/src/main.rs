//! One protocol core on several I/O drivers, to be measured side by side: `bench/shootout.py` does it.
//!
//! ```text
//! shootout monoio-io_uring|monoio-epoll|glommio|ring IP:PORT UPSTREAM_IP:PORT...
//! ```
//!
//! A plain proxy of one thread: requests go to the upstreams in turn, connections of both sides are kept. All drivers run the same
//! [`relay`]; only reading, writing and waking differ.

mod exchange;
mod on_glommio;
mod on_monoio;
mod on_ring;
mod relay;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

use socket2::{Domain, Socket, Type};

const USAGE: &str = "usage: shootout monoio-io_uring|monoio-epoll|glommio|ring IP:PORT UPSTREAM_IP:PORT...";
const BACKLOG: i32 = 4096;

/// What the core runs on.
#[derive(Clone, Copy)]
enum Driver {
    MonoioIoUring,
    MonoioEpoll,
    Glommio,
    Ring,
}

impl Driver {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "monoio-io_uring" => Self::MonoioIoUring,
            "monoio-epoll" => Self::MonoioEpoll,
            "glommio" => Self::Glommio,
            "ring" => Self::Ring,
            _ => return None,
        })
    }
}

/// Accepted sockets inherit `TCP_NODELAY`.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let addresses: Option<Vec<SocketAddr>> = arguments.iter().skip(1).map(|text| text.parse().ok()).collect();
    let driver = arguments.first().and_then(|name| Driver::named(name));
    let (Some(driver), Some([address, upstreams @ ..])) = (driver, addresses.as_deref()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if upstreams.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let upstreams = upstreams.to_vec();
    let result = listen(*address).and_then(|listener| match driver {
        Driver::MonoioIoUring => on_monoio::io_uring(listener, upstreams),
        Driver::MonoioEpoll => {
            listener.set_nonblocking(true)?;
            on_monoio::epoll(listener, upstreams)
        }
        Driver::Glommio => on_glommio::serve_all(listener, upstreams),
        Driver::Ring => on_ring::serve(listener, upstreams),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shootout: {error}");
            ExitCode::FAILURE
        }
    }
}
