//! TCP connections and listeners of one data thread.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;

use monoio::io::{AsyncReadRent, AsyncWriteRent};
use monoio::net::{TcpListener, TcpStream};

use super::out::Sendable;
use super::watch::Registration;
use super::{Buf, Out, Reactor, Watch};
use crate::sys::{self, Waiting};

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
        sys::waiting(self.stream.as_raw_fd()) != Waiting::Nothing
    }

    /// For a look at the socket while it is in use, by [`super::speaks`].
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Sends all of `out`, and gives it back in every case. The time that the connection's watch has armed begins anew with
    /// every byte that goes.
    pub(crate) async fn send(&mut self, mut out: Out) -> (io::Result<()>, Out) {
        let total = out.len();
        let mut sent = 0;
        let mut result = Ok(());
        while sent < total {
            let written;
            (written, out) = match out.into_sendable(sent) {
                Sendable::One(one) => {
                    let (written, one) = self.stream.write(one).await;
                    (written, one.out)
                }
                Sendable::Many(many) => {
                    let (written, many) = self.stream.writev(many).await;
                    (written, many.out)
                }
            };
            result = match written {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    sent += n;
                    self.watch().progressed();
                    Ok(())
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(error) => Err(error),
            };
            if result.is_err() {
                break;
            }
        }
        out.done();
        (result, out)
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

    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        let (stream, peer) = self.listener.accept().await?;
        Ok(Accepted { stream, peer })
    }
}

/// A connection that was accepted and not read from: to be kept, or passed on to another thread.
#[derive(Debug)]
pub(crate) struct Accepted {
    stream: TcpStream,
    /// Who is at the other end.
    pub(crate) peer: SocketAddr,
}

impl Accepted {
    /// It is served by this thread.
    pub(crate) fn keep(self, reactor: &Rc<Reactor>) -> io::Result<Conn> {
        Conn::new(reactor, self.stream)
    }

    /// The same connection by another descriptor, which belongs to no thread. The runtime offers no sound way to give up its
    /// own; that one is closed when `self` is dropped.
    pub(crate) fn duplicate(&self) -> io::Result<std::net::TcpStream> {
        // SAFETY: the descriptor is open as long as `self.stream`, which outlives the borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(self.stream.as_raw_fd()) };
        Ok(fd.try_clone_to_owned()?.into())
    }
}

/// Takes over a connection that was accepted elsewhere.
pub(crate) fn adopt(stream: std::net::TcpStream, reactor: &Rc<Reactor>) -> io::Result<Conn> {
    // As the runtime makes its own: epoll must not block; a ring waits, and on older kernels fails a write that would not.
    stream.set_nonblocking(monoio::utils::is_legacy())?;
    Conn::new(reactor, TcpStream::from_std(stream)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Buf, Driver, run};
    use crate::sys::Waker;
    use std::io::Read;

    /// Sends far more than a small send buffer holds on an adopted connection; what the peer has got of it.
    fn sent_on_an_adopted_connection(driver: Driver, bytes: usize) -> Option<usize> {
        // Where the kernel refuses io_uring there is nothing to be held.
        let driver = driver.choose().ok()?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        socket2::SockRef::from(&accepted).set_send_buffer_size(64 << 10).unwrap();
        // As `accept_waiting` gives it.
        accepted.set_nonblocking(true).unwrap();
        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            peer.read_to_end(&mut received).map(|_| received.len()).unwrap()
        });
        run(driver, async {
            let reactor = Reactor::new(Waker::new().unwrap()).unwrap();
            let mut conn = adopt(accepted, &reactor).unwrap();
            let mut out = Out::default();
            *out.data() = Buf::with_room(bytes);
            out.data().extend(&vec![b'x'; bytes]);
            out.push_data(0..bytes);
            conn.send(out).await.0.unwrap();
            conn.shutdown().await;
        })
        .unwrap();
        Some(reader.join().unwrap())
    }

    #[test]
    fn an_adopted_connection_waits_for_a_peer_that_reads_slowly() {
        const BYTES: usize = 1 << 20;
        assert_eq!(sent_on_an_adopted_connection(Driver::Epoll, BYTES), Some(BYTES));
        assert!(sent_on_an_adopted_connection(Driver::IoUring, BYTES).is_none_or(|sent| sent == BYTES));
    }
}
