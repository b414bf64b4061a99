//! Doors of this room for fuzzing (see [`crate::probe`]): certificates from bytes, and the server's side of a session without
//! a socket.

use std::io;

use super::Acceptor;
use super::certificate::{Certificate, Contents};
use super::records::{Opened, Records};
use super::validity::not_after_unix_s;
use crate::io::{Buf, Out, SizeClass};

/// What a listener accepts connections with.
#[derive(Debug, Clone)]
pub struct Server {
    acceptor: Acceptor,
    /// When the certificate expires, in seconds since 1970.
    pub expires_unix_s: Option<i64>,
}

impl Server {
    /// Reads a chain, a key and perhaps the authorities of client certificates, all as PEM.
    ///
    /// # Errors
    /// What is wrong with them, for the log.
    pub fn from_pem(chain: &[u8], key: &[u8], client_authorities: Option<&[u8]>) -> Result<Self, String> {
        let client_authorities = client_authorities.map(<[u8]>::to_vec);
        let contents = Contents { chain: chain.to_vec(), key: key.to_vec(), client_authorities };
        let identity = Certificate::judge(&contents).map_err(|error| error.to_string())?;
        Ok(Self { acceptor: identity.acceptor, expires_unix_s: identity.expires_unix_s })
    }
}

/// The names of a client's certificate, given as DER.
#[must_use]
pub fn client_names(certificate: &[u8]) -> Vec<String> {
    super::certificate::names_of(&certificate.into()).into_vec()
}

/// The end of a DER certificate's validity in seconds since 1970.
#[must_use]
pub fn expiry_unix_s(certificate: &[u8]) -> Option<i64> {
    not_after_unix_s(certificate)
}

/// The server's side of one connection, driven as a data thread drives it.
#[derive(Debug)]
pub struct Session {
    records: Records,
}

impl Session {
    /// Of a connection that was just accepted.
    ///
    /// # Errors
    /// When rustls makes none.
    pub fn new(server: &Server) -> io::Result<Self> {
        Ok(Self { records: Records::new(&server.acceptor)? })
    }

    /// Takes what came from the client in one receive and appends the plaintext of it to `plain`. `false`: the client has
    /// closed its side in good order.
    ///
    /// # Errors
    /// When the connection is to be ended.
    pub fn receive(&mut self, sealed: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        let mut received = Buf::with_room(sealed.len());
        received.extend(sealed);
        self.records.receive(received);
        self.records.shake_hands()?;
        if self.records.is_handshaking() {
            return Ok(true);
        }
        // Every turn gives plaintext or ends.
        loop {
            let mut buf = Buf::pooled(SizeClass::Small);
            let opened = self.records.open_into(&mut buf);
            plain.extend_from_slice(&buf);
            match opened? {
                Opened::Some if buf.is_empty() => return Err(io::ErrorKind::WriteZero.into()),
                Opened::Some => {}
                Opened::Nothing => return Ok(true),
                Opened::End => return Ok(false),
            }
        }
    }

    /// Encrypts an answer made of two pieces.
    ///
    /// # Errors
    /// When rustls refuses.
    pub fn send(&mut self, head: &[u8], body: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Out::default();
        out.push_small(head);
        out.data().extend(body);
        out.push_data(0..body.len());
        let mut sealed = Vec::new();
        let mut sent = 0;
        while sent < head.len() + body.len() {
            match self.records.seal(&out, sent)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => sent += n,
            }
            sealed.extend(self.to_client()?);
        }
        Ok(sealed)
    }

    /// The handshake is done.
    #[must_use]
    pub fn is_established(&self) -> bool {
        !self.records.is_handshaking()
    }

    /// What is to be sent to the client now.
    ///
    /// # Errors
    /// When rustls refuses.
    pub fn to_client(&mut self) -> io::Result<Vec<u8>> {
        let mut out = Out::default();
        let mut sealed = Vec::new();
        while self.records.wants_write() {
            self.records.put_sealed(&mut out)?;
            out.slices().for_each(|slice| sealed.extend_from_slice(slice));
        }
        Ok(sealed)
    }
}
