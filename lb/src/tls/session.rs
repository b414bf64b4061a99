//! One TLS connection: a socket of this thread and a rustls session between its bytes and ours.

use std::future::Future;
use std::io::{self, BufRead, IoSlice, Write};
use std::pin::Pin;
use std::time::Duration;

use rustls::ServerConnection;

use super::Acceptor;
use super::certificate::names_of;
use crate::io::{Buf, Conn, Out, SizeClass, until};

/// Most plaintext that is encrypted before it is sent: three full records, which fit in one pooled buffer.
const SEAL_BYTES_MAX: usize = 3 * RECORD_BYTES_MAX;
/// Longest plaintext of one record (RFC 8446, 5.1).
const RECORD_BYTES_MAX: usize = 16 << 10;
/// Most pieces of an [`Out`] that are encrypted in one call.
const SEAL_PIECES_MAX: usize = 64;
/// How long a client that reads nothing can put off the end of its connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// A future on the heap: what TLS needs while it waits takes no room in the tasks of plain connections.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A TLS connection. Closing without [`Self::shutdown`] is dropping, which the client sees as a truncation, as it should.
///
/// Bounds: at most one received buffer of ciphertext waits to be decrypted, rustls holds at most one unfinished record
/// (64 KiB within a handshake) and the plaintext of one read, and at most [`SEAL_BYTES_MAX`] are encrypted ahead of the socket.
#[derive(Debug)]
pub(crate) struct TlsConn {
    conn: Conn,
    session: ServerConnection,
    /// Received, of which the first `opened` bytes have been given to the session.
    sealed: Buf,
    opened: usize,
    /// Carries ciphertext to the socket; empty between sends.
    out: Out,
    client_names: Box<[String]>,
}

/// What decrypting the bytes at hand came to.
enum Opened {
    /// There is new plaintext.
    Some,
    /// More must be received first.
    Nothing,
    /// The client has closed its side in good order.
    End,
}

impl TlsConn {
    /// The server's side of a connection that was just accepted.
    pub(super) fn accepted(conn: Conn, acceptor: &Acceptor) -> io::Result<Self> {
        Ok(Self {
            conn,
            session: acceptor.session()?,
            sealed: Buf::default(),
            opened: 0,
            out: Out::default(),
            client_names: Box::default(),
        })
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

    /// As [`Conn::recv`]; an end of the socket without the client's `close_notify` is an error, for the bytes received may
    /// not be all that were sent (RFC 8446, 6.1).
    pub(crate) fn recv(&mut self, buf: Buf) -> Boxed<'_, (io::Result<usize>, Buf)> {
        Box::pin(self.recv_opened(buf))
    }

    /// As [`Conn::send`].
    pub(crate) fn send(&mut self, out: Out) -> Boxed<'_, (io::Result<()>, Out)> {
        Box::pin(self.send_sealed(out))
    }

    /// Says that nothing more comes, then ends our side of the socket.
    pub(super) fn shutdown(&mut self) -> Boxed<'_, ()> {
        Box::pin(self.end())
    }

    /// The handshake. A refusal is told to the client by an alert before this returns.
    async fn shake_hands(&mut self) -> io::Result<()> {
        loop {
            self.flush().await?;
            if !self.session.is_handshaking() {
                let certificate = self.session.peer_certificates().and_then(<[_]>::first);
                self.client_names = certificate.map(names_of).unwrap_or_default();
                return Ok(());
            }
            self.receive_sealed(SizeClass::Small.bytes()).await?;
            while self.session.is_handshaking() && self.has_sealed() {
                if let Err(error) = self.open_some() {
                    self.flush().await?;
                    return Err(error);
                }
            }
        }
    }

    async fn recv_opened(&mut self, mut buf: Buf) -> (io::Result<usize>, Buf) {
        let before = buf.len();
        loop {
            match self.open_into(&mut buf) {
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
            match self.seal(&out, sent) {
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

    async fn end(&mut self) {
        self.session.send_close_notify();
        let watch = self.conn.watch_shared();
        watch.arm(CLOSE_WITHIN);
        // Whoever does not take it has gone, or will see a truncation: both are true then.
        let _ = until(self.flush(), None, &watch).await;
        watch.disarm();
        self.conn.shutdown().await;
    }

    fn has_sealed(&self) -> bool {
        self.opened < self.sealed.len()
    }

    /// Gives the session one more piece of what was received, and lets it work on it.
    fn open_some(&mut self) -> io::Result<()> {
        let mut rest = self.sealed.get(self.opened..).unwrap_or_default();
        let taken = self.session.read_tls(&mut rest)?;
        if taken == 0 {
            // A record longer than there may be.
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.opened += taken;
        let worked = self.session.process_new_packets();
        worked.map(drop).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Decrypts what is at hand into the free part of `buf`.
    fn open_into(&mut self, buf: &mut Buf) -> io::Result<Opened> {
        let before = buf.len();
        // Each turn takes bytes out of `sealed`, fills `buf`, or ends.
        loop {
            let mut reader = self.session.reader();
            match reader.fill_buf() {
                Ok([]) if buf.len() > before => return Ok(Opened::Some),
                Ok([]) => return Ok(Opened::End),
                Ok(plain) => {
                    let taken = plain.len().min(buf.room());
                    buf.extend(&plain[..taken]);
                    reader.consume(taken);
                    if buf.room() == 0 {
                        return Ok(Opened::Some);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.has_sealed() {
                        self.open_some()?;
                    } else if buf.len() > before {
                        return Ok(Opened::Some);
                    } else {
                        return Ok(Opened::Nothing);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives from the socket, about as much as is wanted. Everything received before has been given to the session.
    async fn receive_sealed(&mut self, bytes_wanted: usize) -> io::Result<()> {
        // As on a plain connection, the room of the caller's buffer says whether it waits or takes in much.
        self.sealed = Buf::default();
        self.opened = 0;
        let buf = Buf::with_room(bytes_wanted.min(SizeClass::Large.bytes()));
        let (received, buf) = self.conn.recv(buf).await;
        self.sealed = buf;
        match received? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Encrypts what follows the first `sent` bytes of `out`, as much as may wait; says how much it was.
    fn seal(&mut self, out: &Out, sent: usize) -> io::Result<usize> {
        let mut pieces = [IoSlice::new(&[]); SEAL_PIECES_MAX];
        let (mut count, mut skip, mut left) = (0, sent, SEAL_BYTES_MAX);
        for slice in out.slices() {
            let skipped = skip.min(slice.len());
            skip -= skipped;
            let taken = (slice.len() - skipped).min(left);
            if taken > 0 {
                pieces[count] = IoSlice::new(&slice[skipped..skipped + taken]);
                count += 1;
                left -= taken;
            }
            if left == 0 || count == SEAL_PIECES_MAX {
                break;
            }
        }
        // Pieces that fit in one record become one record.
        self.session.writer().write_vectored(&pieces[..count])
    }

    /// Sends everything that is encrypted.
    async fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.put_sealed()?;
            let out = std::mem::take(&mut self.out);
            let (sent, out) = self.conn.send(out).await;
            self.out = out;
            self.out.clear();
            sent?;
        }
        Ok(())
    }

    /// Moves what is encrypted into `out`.
    fn put_sealed(&mut self) -> io::Result<()> {
        let mut ciphertext = Ciphertext { buf: Buf::pooled(SizeClass::Small) };
        while self.session.wants_write() {
            self.session.write_tls(&mut ciphertext)?;
        }
        let bytes = ciphertext.buf.len();
        self.out.clear();
        self.out.data = ciphertext.buf;
        self.out.push_data(0..bytes);
        Ok(())
    }
}

/// Where rustls writes records: into a pooled buffer.
struct Ciphertext {
    buf: Buf,
}

impl Write for Ciphertext {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buf.extend(bytes);
        Ok(bytes.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        // Once, so that it moves to a larger buffer at most once.
        self.buf.reserve(bytes);
        for piece in pieces {
            self.buf.extend(piece);
        }
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
