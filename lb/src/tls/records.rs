//! The records of one TLS connection, without I/O: ciphertext in a buffer on one side, plaintext on the other, rustls between.

use std::io::{self, BufRead, IoSlice, Write};

use rustls::Connection;

use super::certificate::{Acceptor, names_of};
use super::connector::Connector;
use crate::io::{Buf, Out, SizeClass};

/// Most plaintext that is encrypted before it is sent: three full records, which fit in one pooled buffer.
const SEAL_BYTES_MAX: usize = 3 * RECORD_BYTES_MAX;
/// Longest plaintext of one record (RFC 8446, 5.1).
const RECORD_BYTES_MAX: usize = 16 << 10;
/// Most pieces of an [`Out`] that are encrypted in one call.
const SEAL_PIECES_MAX: usize = 64;

/// One side of a session. Bounds: one received buffer of ciphertext waits to be decrypted, rustls holds at most one
/// unfinished record (64 KiB within a handshake) and the plaintext of one read, and at most [`SEAL_BYTES_MAX`] are encrypted
/// by one [`Self::seal`].
#[derive(Debug)]
pub(super) struct Records {
    session: Connection,
    /// Received, of which the first `opened` bytes have been given to the session.
    sealed: Buf,
    opened: usize,
}

/// What decrypting the bytes at hand came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    /// There is new plaintext.
    Some,
    /// More must be received first.
    Nothing,
    /// The peer has closed its side in good order.
    End,
}

/// What working on the bytes at hand without taking data came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakenIn {
    /// There was no data in it.
    All,
    /// There is data to be taken, or the peer has ended its side.
    Data,
}

impl Records {
    /// Of a connection that was just accepted.
    pub(super) fn new(acceptor: &Acceptor) -> io::Result<Self> {
        Ok(Self::of(acceptor.session()?.into()))
    }

    /// Of a connection that was just made.
    pub(super) fn connecting(connector: &Connector) -> io::Result<Self> {
        Ok(Self::of(connector.session()?.into()))
    }

    fn of(session: Connection) -> Self {
        Self { session, sealed: Buf::default(), opened: 0 }
    }

    /// The handshake is not done.
    pub(super) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// There is something for the peer.
    pub(super) fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// The names in the client's certificate; empty before the handshake is done.
    pub(super) fn client_names(&self) -> Box<[String]> {
        self.session.peer_certificates().and_then(<[_]>::first).map(names_of).unwrap_or_default()
    }

    /// Takes what was received, in place of the last buffer, which has been used up.
    pub(super) fn receive(&mut self, sealed: Buf) {
        self.sealed = sealed;
        self.opened = 0;
    }

    /// Works on the handshake with what was received.
    pub(super) fn shake_hands(&mut self) -> io::Result<()> {
        while self.session.is_handshaking() && self.has_sealed() {
            self.open_some()?;
        }
        Ok(())
    }

    /// Says that nothing more comes.
    pub(super) fn close(&mut self) {
        self.session.send_close_notify();
    }

    /// Works on what was received as far as there is no data in it.
    pub(super) fn take_in(&mut self) -> io::Result<TakenIn> {
        while self.has_no_data() {
            if !self.has_sealed() {
                return Ok(TakenIn::All);
            }
            self.open_some()?;
        }
        Ok(TakenIn::Data)
    }

    /// Nothing of what was received waits to be taken.
    pub(super) fn is_drained(&mut self) -> bool {
        self.has_no_data() && !self.has_sealed()
    }

    /// No data is decrypted, and the peer has not ended its side.
    fn has_no_data(&mut self) -> bool {
        matches!(self.session.reader().fill_buf(), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Something received has not been given to the session yet.
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
    pub(super) fn open_into(&mut self, buf: &mut Buf) -> io::Result<Opened> {
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

    /// Encrypts what follows the first `sent` bytes of `out`, as much as may wait; says how much it was.
    pub(super) fn seal(&mut self, out: &Out, sent: usize) -> io::Result<usize> {
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

    /// Moves what is encrypted into `out`, in place of what was there.
    pub(super) fn put_sealed(&mut self, out: &mut Out) -> io::Result<()> {
        let mut ciphertext = Ciphertext { buf: Buf::pooled(SizeClass::Small) };
        while self.session.wants_write() {
            self.session.write_tls(&mut ciphertext)?;
        }
        let bytes = ciphertext.buf.len();
        out.clear();
        *out.data() = ciphertext.buf;
        out.push_data(0..bytes);
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
