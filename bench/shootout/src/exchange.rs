//! The relay on a runtime with tasks: one task for each client, reading one side and writing the other.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use crate::relay::{Keep, Relay, Send, Way};

/// A first read: a small request and its head, a few events.
const READ_BYTES_MIN: usize = 2 << 10;
/// A read after one that was full.
const READ_BYTES_MAX: usize = 64 << 10;

/// A TCP connection of a runtime. Buffers are given and come back, as io_uring needs it.
pub trait Stream: Sized {
    /// Opens a connection, with `TCP_NODELAY`.
    async fn connect(address: SocketAddr) -> io::Result<Self>;
    /// Receives into the buffer, from its begin, as much as it has capacity for; 0 is the end of the stream.
    async fn recv(&mut self, buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>);
    /// Sends all bytes of this range.
    async fn send(&mut self, buf: Vec<u8>, range: Range<usize>) -> (io::Result<()>, Vec<u8>);
}

/// Open connections to the upstreams, which take turns. Of one thread.
pub struct Upstreams<S> {
    addresses: Vec<SocketAddr>,
    next: Cell<usize>,
    /// As many as there were exchanges at a time.
    idle: RefCell<Vec<S>>,
}

impl<S: Stream> Upstreams<S> {
    /// None is open yet.
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, next: Cell::new(0), idle: RefCell::default() }
    }

    async fn take(&self) -> io::Result<S> {
        let idle = self.idle.borrow_mut().pop();
        match idle {
            Some(stream) => Ok(stream),
            None => {
                let turn = self.next.replace(self.next.get().wrapping_add(1));
                S::connect(self.addresses[turn % self.addresses.len()]).await
            }
        }
    }
}

/// Serves a client until it leaves or something breaks.
pub async fn serve<S: Stream>(mut client: S, upstreams: &Upstreams<S>) -> io::Result<()> {
    let mut buf = Vec::with_capacity(READ_BYTES_MIN);
    let mut out = Vec::new();
    loop {
        let mut upstream = None;
        let mut relay = Relay::new(Way::Request);
        while !relay.is_done() {
            let n;
            (n, buf) = client.recv(buf).await;
            let n = n?;
            if n == 0 {
                return Ok(());
            }
            let send = relay.feed(&buf[..n], &mut out)?;
            if upstream.is_none() && send != Send::Nothing {
                upstream = Some(upstreams.take().await?);
            }
            if let Some(upstream) = &mut upstream {
                (buf, out) = pass(upstream, send, buf, out).await?;
            }
            buf = sized(buf, n);
        }
        let keep_client = relay.keep();
        let Some(mut upstream) = upstream else { return Ok(()) };

        let mut relay = Relay::new(Way::Response);
        while !relay.is_done() {
            let n;
            (n, buf) = upstream.recv(buf).await;
            let n = n?;
            if n == 0 {
                return if relay.may_end() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            let send = relay.feed(&buf[..n], &mut out)?;
            (buf, out) = pass(&mut client, send, buf, out).await?;
            buf = sized(buf, n);
        }
        if relay.keep() == Keep::Open {
            upstreams.idle.borrow_mut().push(upstream);
        }
        if keep_client == Keep::Close {
            return Ok(());
        }
    }
}

async fn pass<S: Stream>(to: &mut S, send: Send, mut buf: Vec<u8>, mut out: Vec<u8>) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let sent;
    match send {
        Send::Nothing => return Ok((buf, out)),
        Send::Written => {
            let all = 0..out.len();
            (sent, out) = to.send(out, all).await;
        }
        Send::Received(range) => (sent, buf) = to.send(buf, range).await,
    }
    sent?;
    Ok((buf, out))
}

/// A buffer for the next read: larger after one that was full, small again after a small one.
fn sized(buf: Vec<u8>, received: usize) -> Vec<u8> {
    if received == buf.capacity() && received < READ_BYTES_MAX {
        Vec::with_capacity(READ_BYTES_MAX)
    } else if buf.capacity() > READ_BYTES_MIN && received < READ_BYTES_MIN {
        Vec::with_capacity(READ_BYTES_MIN)
    } else {
        buf
    }
}
