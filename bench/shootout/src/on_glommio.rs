//! glommio 0.9: three rings per thread, readiness through io_uring, reads into the task's buffer.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::rc::Rc;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement};

use crate::exchange::{Stream, Upstreams, serve};

impl Stream for TcpStream {
    async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = Self::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn recv(&mut self, mut buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        // Zeroes are written once: the length stays.
        buf.resize(buf.capacity(), 0);
        let result = self.read(&mut buf).await;
        (result, buf)
    }

    async fn send(&mut self, buf: Vec<u8>, range: Range<usize>) -> (io::Result<()>, Vec<u8>) {
        (self.write_all(&buf[range]).await, buf)
    }
}

/// Serves until the process ends. The thread is pinned from outside.
pub fn serve_all(listener: std::net::TcpListener, upstreams: Vec<SocketAddr>) -> io::Result<()> {
    let executor = LocalExecutorBuilder::new(Placement::Unbound).make()?;
    executor.run(async move {
        // SAFETY: the descriptor is a listening socket and has no other owner: `into_raw_fd` has given it away.
        let listener = unsafe { TcpListener::from_raw_fd(listener.into_raw_fd()) };
        let upstreams = Rc::new(Upstreams::new(upstreams));
        loop {
            let client = listener.accept().await?;
            client.set_nodelay(true)?;
            let upstreams = upstreams.clone();
            glommio::spawn_local(async move {
                // What breaks an exchange ends its connections and concerns nobody else.
                let _ = serve(client, &upstreams).await;
            })
            .detach();
        }
    })
}
