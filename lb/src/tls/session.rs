//! One TLS connection: a socket of this thread, and its records between the socket's bytes and ours.

use std::future::Future;
use std::io;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::time::Duration;

use super::certificate::Acceptor;
use super::connector::Connector;
use super::records::{Opened, Records, TakenIn};
use crate::io::{Buf, Conn, Out, SizeClass, sleep, unless, until};
use crate::sys::{self, Waiting};

/// How long a peer that reads nothing can put off the end of its connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// How often a socket that is written to is looked at for an answer.
const LISTEN: Duration = Duration::from_millis(20);

/// What a send came to.
#[derive(Debug)]
pub(crate) enum Sent {
    /// Everything has gone, or cannot go; this is what it was.
    All(Out),
    /// The peer answers; what was still to be sent is lost, and nothing more can be sent.
    Answered,
}

/// Ends when there is data from the peer, whose records are taken in while another operation writes to the socket. Where the
/// peer has ended its side, the connection is ended, so that the write fails and gives its buffer back.
async fn listen(socket: RawFd, records: &mut Records) {
    loop {
        // What cannot be decrypted will be told to whoever receives.
        if records.take_in().unwrap_or(TakenIn::Data) == TakenIn::Data {
            return;
        }
        sleep(LISTEN).await;
        match receive_now(socket, records) {
            Waiting::Nothing | Waiting::Bytes => {}
            Waiting::End => {
                sys::shut_down(socket);
                return std::future::pending().await;
            }
        }
    }
}

/// Gives `records` what waits on the socket.
fn receive_now(socket: RawFd, records: &mut Records) -> Waiting {
    let mut bytes = [0; SizeClass::Small.bytes()];
    let (waiting, received) = sys::take_waiting(socket, &mut bytes);
    if received > 0 {
        let mut buf = Buf::pooled(SizeClass::Small);
        buf.extend(&bytes[..received]);
        records.receive(buf);
    }
    waiting
}

/// A future on the heap: what TLS needs while it waits takes no room in the tasks of plain connections.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A TLS connection. Closing without [`Self::shutdown`] is dropping, which the peer sees as a truncation, as it should.
///
/// Bounds are those of [`Records`]: nothing more is received before all is decrypted, nor encrypted before all is sent.
#[derive(Debug)]
pub(crate) struct TlsConn {
    conn: Conn,
    records: Records,
    /// Carries ciphertext to the socket; empty between sends.
    out: Out,
    client_names: Box<[String]>,
}

impl TlsConn {
    /// The server's side of a connection that was just accepted.
    pub(super) fn accepted(conn: Conn, acceptor: &Acceptor) -> io::Result<Self> {
        Ok(Self { conn, records: Records::new(acceptor)?, out: Out::default(), client_names: Box::default() })
    }

    /// Our side of a connection that was just made to a server.
    pub(super) fn connected(conn: Conn, connector: &Connector) -> io::Result<Self> {
        let records = Records::connecting(connector)?;
        Ok(Self { conn, records, out: Out::default(), client_names: Box::default() })
    }

    /// Whether there is something to be received now: bytes, the end, an error.
    pub(super) fn is_readable(&mut self) -> bool {
        !self.records.is_drained() || self.conn.is_readable()
    }

    pub(super) fn raw(&self) -> &Conn {
        &self.conn
    }

    pub(super) fn raw_mut(&mut self) -> &mut Conn {
        &mut self.conn
    }

    /// The names in the client's certificate, once the handshake is done.
    pub(super) fn client_names(&self) -> &[String] {
        &self.client_names
    }

    /// [`Self::shake_hands`], boxed.
    pub(super) fn handshake(&mut self) -> Boxed<'_, io::Result<()>> {
        Box::pin(self.shake_hands())
    }

    /// As [`Conn::recv`]; an end of the socket without the peer's `close_notify` is an error, for the bytes received may
    /// not be all that were sent (RFC 8446, 6.1).
    pub(crate) fn recv(&mut self, buf: Buf) -> Boxed<'_, (io::Result<usize>, Buf)> {
        Box::pin(self.recv_opened(buf))
    }

    /// As [`Conn::send`].
    pub(crate) fn send(&mut self, out: Out) -> Boxed<'_, (io::Result<()>, Out)> {
        Box::pin(self.send_sealed(out))
    }

    /// As [`Self::send`], but ends early when the peer answers meanwhile. The records that are not data (session tickets come
    /// just then) are no answer, which only decrypting them tells.
    pub(crate) fn send_until_answered(&mut self, out: Out) -> Boxed<'_, Sent> {
        Box::pin(self.send_listening(out))
    }

    /// Says that nothing more comes, then ends our side of the socket.
    pub(super) fn shutdown(&mut self) -> Boxed<'_, ()> {
        Box::pin(self.end())
    }

    /// The handshake. A refusal is told to the peer by an alert before this returns.
    async fn shake_hands(&mut self) -> io::Result<()> {
        loop {
            self.flush().await?;
            if !self.records.is_handshaking() {
                self.client_names = self.records.client_names();
                return Ok(());
            }
            self.receive_sealed(SizeClass::Small.bytes()).await?;
            if let Err(error) = self.records.shake_hands() {
                self.flush().await?;
                return Err(error);
            }
        }
    }

    async fn recv_opened(&mut self, mut buf: Buf) -> (io::Result<usize>, Buf) {
        let before = buf.len();
        loop {
            match self.records.open_into(&mut buf) {
                Ok(Opened::Some) => return (Ok(buf.len() - before), buf),
                Ok(Opened::End) => return (Ok(0), buf),
                Ok(Opened::Nothing) => {}
                Err(error) => {
                    // The alert is a courtesy: whether it can be sent changes nothing.
                    let _ = self.flush().await;
                    return (Err(error), buf);
                }
            }
            // An answer to what was just received, such as a key update, must not wait for the next send.
            if let Err(error) = self.flush().await {
                return (Err(error), buf);
            }
            if let Err(error) = self.receive_sealed(buf.room()).await {
                return (Err(error), buf);
            }
        }
    }

    async fn send_sealed(&mut self, out: Out) -> (io::Result<()>, Out) {
        let total = out.len();
        let mut sent = 0;
        while sent < total {
            match self.records.seal(&out, sent) {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), out),
                Ok(n) => sent += n,
                Err(error) => return (Err(error), out),
            }
            if let Err(error) = self.flush().await {
                return (Err(error), out);
            }
        }
        (Ok(()), out)
    }

    async fn send_listening(&mut self, out: Out) -> Sent {
        let total = out.len();
        let mut sent = 0;
        // A send that fails is told by the receive that follows: a server may answer before it closes.
        while sent < total {
            match self.records.seal(&out, sent) {
                Ok(0) | Err(_) => return Sent::All(out),
                Ok(n) => sent += n,
            }
            while self.records.wants_write() {
                let mut sealed = std::mem::take(&mut self.out);
                if self.records.put_sealed(&mut sealed).is_err() {
                    return Sent::All(out);
                }
                let socket = self.conn.raw_fd();
                let Some((result, sealed)) = unless(self.conn.send(sealed), listen(socket, &mut self.records)).await
                else {
                    return Sent::Answered;
                };
                self.out = sealed;
                self.out.clear();
                if result.is_err() {
                    return Sent::All(out);
                }
            }
        }
        Sent::All(out)
    }

    async fn end(&mut self) {
        self.records.close();
        let watch = self.conn.watch_shared();
        watch.arm(CLOSE_WITHIN);
        // Whoever does not take it has gone, or will see a truncation: both are true then.
        let _ = until(self.flush(), None, &watch).await;
        watch.disarm();
        self.conn.shutdown().await;
    }

    /// Receives from the socket, about as much as is wanted. Everything received before has been given to the session.
    async fn receive_sealed(&mut self, bytes_wanted: usize) -> io::Result<()> {
        // As on a plain connection, the room of the caller's buffer says whether it waits or takes in much.
        self.records.receive(Buf::default());
        let buf = Buf::with_room(bytes_wanted.min(SizeClass::Large.bytes()));
        let (received, buf) = self.conn.recv(buf).await;
        self.records.receive(buf);
        match received? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Sends everything that is encrypted.
    async fn flush(&mut self) -> io::Result<()> {
        while self.records.wants_write() {
            let mut out = std::mem::take(&mut self.out);
            self.records.put_sealed(&mut out)?;
            let (sent, out) = self.conn.send(out).await;
            self.out = out;
            self.out.clear();
            sent?;
        }
        Ok(())
    }
}
