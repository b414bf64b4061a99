//! monoio 0.2: io_uring with the flags that the product uses, and its epoll driver.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;

use monoio::buf::IoBuf;
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};

use crate::exchange::{Stream, Upstreams, serve};

/// Entries of the submission queue, or events of a wait.
const ENTRIES: u32 = 4096;

impl Stream for TcpStream {
    async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = Self::connect_addr(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn recv(&mut self, mut buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        buf.clear();
        self.read(buf).await
    }

    async fn send(&mut self, buf: Vec<u8>, range: Range<usize>) -> (io::Result<()>, Vec<u8>) {
        let (result, slice) = self.write_all(buf.slice(range)).await;
        (result.map(|_| ()), slice.into_inner())
    }
}

/// Serves on io_uring, until the process ends.
pub fn io_uring(listener: std::net::TcpListener, upstreams: Vec<SocketAddr>) -> io::Result<()> {
    let mut ring = io_uring_monoio::IoUring::builder();
    ring.setup_single_issuer().setup_defer_taskrun();
    let builder = RuntimeBuilder::<IoUringDriver>::new().uring_builder(ring);
    builder.with_entries(ENTRIES).build()?.block_on(run(listener, upstreams))
}

/// Serves on epoll, until the process ends.
pub fn epoll(listener: std::net::TcpListener, upstreams: Vec<SocketAddr>) -> io::Result<()> {
    RuntimeBuilder::<LegacyDriver>::new().with_entries(ENTRIES).build()?.block_on(run(listener, upstreams))
}

async fn run(listener: std::net::TcpListener, upstreams: Vec<SocketAddr>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let upstreams = Rc::new(Upstreams::new(upstreams));
    loop {
        let (client, _) = listener.accept().await?;
        let upstreams = upstreams.clone();
        drop(monoio::spawn(async move {
            // What breaks an exchange ends its connections and concerns nobody else.
            let _ = serve(client, &upstreams).await;
        }));
    }
}
