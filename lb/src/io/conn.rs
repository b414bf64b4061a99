//! TCP connections and listeners of one data thread.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;

use monoio::io::{AsyncReadRent, AsyncWriteRent};
use monoio::net::{TcpListener, TcpStream};

use super::out::Sendable;
use super::watch::Registration;
use super::{Buf, Out, Reactor, Watch};
use crate::sys;

/// One TCP connection. Closing is dropping; operations in flight keep their buffers until the kernel lets go of them.
#[derive(Debug)]
pub(crate) struct Conn {
    // Before `stream`: the slot is released before the descriptor is closed and can be reused by the kernel.
    registration: Registration,
    stream: TcpStream,
}

impl Conn {
    fn new(reactor: &Rc<Reactor>, stream: TcpStream) -> io::Result<Self> {
        let registration = reactor.register(stream.as_raw_fd())?;
        Ok(Self { registration, stream })
    }

    /// The watch of this connection: is the peer still there, and the deadline of what is awaited on it.
    pub(crate) fn watch(&self) -> &Watch {
        &self.registration.watch
    }

    /// The watch, to be kept beside a mutable use of the connection.
    pub(crate) fn watch_shared(&self) -> Rc<Watch> {
        self.registration.watch.clone()
    }

    /// Receives into the free part of `buf`; `Ok(0)` is the end of the stream. Gives the buffer back in every case.
    pub(crate) async fn recv(&mut self, buf: Buf) -> (io::Result<usize>, Buf) {
        let (result, spare) = self.stream.read(buf.into_spare()).await;
        (result, Buf::from_spare(spare))
    }

    /// Whether there is something to be received now: bytes, the end, an error.
    pub(crate) fn is_readable(&self) -> bool {
        sys::is_readable(self.stream.as_raw_fd())
    }

    /// For a look at the socket while it is in use, by [`sys::is_readable`].
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Sends all of `out`, and gives it back in every case. The time that the connection's watch has armed begins anew with
    /// every byte that goes.
    pub(crate) async fn send(&mut self, mut out: Out) -> (io::Result<()>, Out) {
        let total = out.len();
        let mut sent = 0;
        while sent < total {
            let result;
            (result, out) = match out.into_sendable(sent) {
                Sendable::One(one) => {
                    let (result, one) = self.stream.write(one).await;
                    (result, one.out)
                }
                Sendable::Many(many) => {
                    let (result, many) = self.stream.writev(many).await;
                    (result, many.out)
                }
            };
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), out),
                Ok(n) => {
                    sent += n;
                    self.watch().progressed();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(error), out),
            }
        }
        (Ok(()), out)
    }

    /// Ends our side of the connection; what was sent still arrives.
    pub(crate) async fn shutdown(&mut self) {
        // The peer may be gone already, which is what is wanted.
        let _ = self.stream.shutdown().await;
    }
}

/// Opens a connection to `address`.
pub(crate) async fn connect(reactor: &Rc<Reactor>, address: SocketAddr) -> io::Result<Conn> {
    let stream = TcpStream::connect_addr(address).await?;
    stream.set_nodelay(true)?;
    Conn::new(reactor, stream)
}

/// A listening socket of this thread. One task owns it to its end: an accept must not be cancelled, or it loses sockets.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
}

impl Listener {
    /// Takes over a socket that listens, is non-blocking and has `TCP_NODELAY` set (accepted sockets inherit it).
    pub(crate) fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::from_std(listener)? })
    }

    /// For [`crate::sys::stop_listening`].
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Takes over a connection that was accepted elsewhere.
    pub(crate) fn adopt(stream: std::net::TcpStream, reactor: &Rc<Reactor>) -> io::Result<(Conn, SocketAddr)> {
        let peer = stream.peer_addr()?;
        Ok((Conn::new(reactor, TcpStream::from_std(stream)?)?, peer))
    }

    /// The next connection.
    pub(crate) async fn accept(&self, reactor: &Rc<Reactor>) -> io::Result<(Conn, SocketAddr)> {
        let (stream, peer) = self.listener.accept().await?;
        Ok((Conn::new(reactor, stream)?, peer))
    }
}
