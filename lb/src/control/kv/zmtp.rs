//! The part of ZMTP 3.0 (ZeroMQ's wire protocol, rfc.zeromq.org/spec/23) that listening to an engine takes: a SUB socket toward
//! its PUB, a DEALER toward its ROUTER, without encryption, over one connection that either side may have opened.
//!
//! A peer may send anything: messages have a bound in bytes and frames, memory grows with what has come and not with what is
//! announced, and a connection that breaks the protocol ends with a reason. Version 3.0 is what we say we speak; newer peers
//! (libzmq 4.3 speaks 3.1) then speak it too.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

/// Longest message in bytes, all frames together. An engine step of 8,192 tokens makes about 50 kB.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 4 << 20;
/// Most frames of a message. Those of engines have three or four.
const FRAMES_MAX: usize = 8;
/// Commands that a peer may send between two messages.
const COMMANDS_MAX: usize = 64;
/// A handshake that takes longer has failed.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(2);
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// To hear what is published.
    Subscriber,
    /// To ask for what was missed.
    Asker,
}

impl Role {
    const fn socket_type(self) -> &'static [u8] {
        match self {
            Self::Subscriber => b"SUB",
            Self::Asker => b"DEALER",
        }
    }

    /// Socket types that a peer may be of.
    const fn peers(self) -> &'static [&'static [u8]] {
        match self {
            Self::Subscriber => &[b"PUB", b"XPUB"],
            Self::Asker => &[b"ROUTER", b"REP", b"DEALER"],
        }
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The connection itself.
    Io(io::Error),
    /// Nothing came in time.
    Late(&'static str),
    /// What came is not what it should be.
    Protocol(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => f.write_str("the engine closed it"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Late(what) => write!(f, "no {what} in time"),
            Self::Protocol(why) => f.write_str(why),
        }
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The frames of a message.
pub(crate) type Message = Vec<Vec<u8>>;

/// A connection whose handshake is done.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    stream: BufReader<S>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Greets the other side and is greeted.
    ///
    /// # Errors
    /// When it speaks something else, or is a socket of a kind that does not go with `role`.
    pub(crate) async fn open(stream: S, role: Role) -> Result<Self, Broken> {
        let mut connection = Self { stream: BufReader::with_capacity(READ_BYTES, stream) };
        match timeout(HANDSHAKE_WITHIN, connection.shake_hands(role)).await {
            Ok(done) => done.map(|()| connection),
            Err(_) => Err(Broken::Late("handshake")),
        }
    }

    async fn shake_hands(&mut self, role: Role) -> Result<(), Broken> {
        // Signature, version 3.0, mechanism NULL, not a server, filler.
        let mut greeting = [0; 64];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        self.stream.write_all(&greeting).await?;
        self.stream.flush().await?;
        let mut theirs = [0; 64];
        self.stream.read_exact(&mut theirs).await?;
        if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
            return Err(Broken::Protocol(String::from("it does not speak ZMTP 3")));
        }
        let mechanism = theirs[12..32].split(|byte| *byte == 0).next().unwrap_or_default();
        if mechanism != b"NULL" {
            let name = String::from_utf8_lossy(mechanism);
            return Err(Broken::Protocol(format!("it asks for security mechanism {name:?}; only NULL is spoken here")));
        }
        let mut ready = b"\x05READY".to_vec();
        for (name, value) in [(&b"Socket-Type"[..], role.socket_type()), (b"Identity", b"")] {
            ready.push(name.len() as u8);
            ready.extend_from_slice(name);
            ready.extend_from_slice(&(value.len() as u32).to_be_bytes());
            ready.extend_from_slice(value);
        }
        self.write_frame(COMMAND, &ready).await?;
        let (flags, body) = self.frame(MESSAGE_BYTES_MAX).await?;
        if flags & COMMAND == 0 {
            return Err(Broken::Protocol(String::from("a message before the end of its handshake")));
        }
        let theirs = ready_socket_type(&body)?;
        if !role.peers().contains(&theirs) {
            let (theirs, ours) = (String::from_utf8_lossy(theirs), String::from_utf8_lossy(role.socket_type()));
            return Err(Broken::Protocol(format!("it is a {theirs} socket, which a {ours} cannot talk to")));
        }
        Ok(())
    }

    /// Asks for every message whose first frame begins with `topic`.
    pub(crate) async fn subscribe(&mut self, topic: &[u8]) -> Result<(), Broken> {
        self.write_frame(0, &[&[1], topic].concat()).await
    }

    /// Sends a message.
    pub(crate) async fn send(&mut self, frames: &[&[u8]]) -> Result<(), Broken> {
        for (index, frame) in frames.iter().enumerate() {
            let flags = if index + 1 < frames.len() { MORE } else { 0 };
            self.write_frame(flags, frame).await?;
        }
        Ok(())
    }

    /// The next message. A call that is given up leaves the connection unusable.
    pub(crate) async fn message(&mut self) -> Result<Message, Broken> {
        let mut frames = Vec::with_capacity(4);
        let mut room_bytes = MESSAGE_BYTES_MAX;
        let mut commands = 0;
        loop {
            let (flags, body) = self.frame(room_bytes).await?;
            if flags & COMMAND != 0 {
                commands += 1;
                if commands > COMMANDS_MAX {
                    return Err(Broken::Protocol(String::from("too many commands")));
                }
                continue;
            }
            room_bytes -= body.len() as u64;
            frames.push(body);
            if flags & MORE == 0 {
                return Ok(frames);
            }
            if frames.len() == FRAMES_MAX {
                return Err(Broken::Protocol(format!("a message of more than {FRAMES_MAX} frames")));
            }
        }
    }

    async fn frame(&mut self, room_bytes: u64) -> Result<(u8, Vec<u8>), Broken> {
        let flags = self.stream.read_u8().await?;
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & COMMAND != 0 && flags & MORE != 0 {
            return Err(Broken::Protocol(format!("a frame with flags {flags:#04x}")));
        }
        let length = match flags & LONG {
            0 => u64::from(self.stream.read_u8().await?),
            _ => self.stream.read_u64().await?,
        };
        if length > room_bytes {
            return Err(Broken::Protocol(format!("a message of more than {MESSAGE_BYTES_MAX} bytes")));
        }
        let mut body = Vec::with_capacity((length as usize).min(READ_BYTES));
        let read = (&mut self.stream).take(length).read_to_end(&mut body).await?;
        if (read as u64) < length {
            return Err(Broken::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok((flags, body))
    }

    async fn write_frame(&mut self, flags: u8, body: &[u8]) -> Result<(), Broken> {
        let mut frame = Vec::with_capacity(body.len() + 9);
        match u8::try_from(body.len()) {
            Ok(length) => frame.extend_from_slice(&[flags, length]),
            Err(_) => {
                frame.push(flags | LONG);
                frame.extend_from_slice(&(body.len() as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(body);
        self.stream.write_all(&frame).await?;
        Ok(self.stream.flush().await?)
    }
}

/// The `Socket-Type` of a READY command.
fn ready_socket_type(body: &[u8]) -> Result<&[u8], Broken> {
    let wrong = || Broken::Protocol(String::from("a handshake that is none"));
    if let Some(reason) = body.strip_prefix(b"\x05ERROR") {
        let reason = String::from_utf8_lossy(reason.get(1..).unwrap_or_default());
        return Err(Broken::Protocol(format!("it refuses: {}", reason.chars().take(200).collect::<String>())));
    }
    let mut rest = body.strip_prefix(b"\x05READY").ok_or_else(wrong)?;
    // Each turn takes a byte at least.
    while let Some((length, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked(usize::from(*length)).ok_or_else(wrong)?;
        let (length, after) = after.split_first_chunk().ok_or_else(wrong)?;
        let (value, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or_else(wrong)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Ok(value);
        }
        rest = after;
    }
    Err(wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    const GREETING: &[u8] =
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

    fn ready(socket_type: &[u8]) -> Vec<u8> {
        let body = [b"\x05READY\x0bSocket-Type\0\0\0", &[socket_type.len() as u8][..], socket_type].concat();
        [&[COMMAND, body.len() as u8][..], &body].concat()
    }

    /// What a subscriber makes of these bytes: what it sent, and the messages until the end.
    async fn hear(bytes: &[u8]) -> (Vec<u8>, Vec<Message>, String) {
        let (ours, mut theirs) = duplex(1 << 20);
        theirs.write_all(bytes).await.unwrap();
        theirs.shutdown().await.unwrap();
        let mut messages = Vec::new();
        let why = match Connection::open(ours, Role::Subscriber).await {
            Ok(mut connection) => {
                connection.subscribe(b"kv").await.unwrap();
                loop {
                    match connection.message().await {
                        Ok(message) => messages.push(message),
                        Err(broken) => break broken.to_string(),
                    }
                }
            }
            Err(broken) => broken.to_string(),
        };
        let mut sent = Vec::new();
        theirs.read_to_end(&mut sent).await.unwrap();
        (sent, messages, why)
    }

    #[tokio::test]
    async fn a_publisher_is_greeted_subscribed_to_and_heard() {
        assert_eq!(GREETING.len(), 64);
        let long = vec![7; 300];
        let bytes = [
            GREETING,
            &ready(b"PUB"),
            b"\x01\x02kv\x01\x08\0\0\0\0\0\0\0\x05\x00\x03abc",
            // A command between messages says nothing to us.
            b"\x04\x05\x04PING",
            b"\x01\x00\x02\0\0\0\0\0\0\x01\x2c",
            &long,
        ]
        .concat();
        let (sent, messages, why) = hear(&bytes).await;
        assert_eq!(messages, [vec![b"kv".to_vec(), 5_u64.to_be_bytes().to_vec(), b"abc".to_vec()], vec![vec![], long]]);
        assert_eq!(why, "the engine closed it");
        assert_eq!((&sent[..1], sent[9], sent[10]), (&b"\xff"[..], 0x7f, 3));
        let handshake =
            [&b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03SUB\x08Identity\0\0\0\0"[..], b"\0\x03\x01kv"].concat();
        assert_eq!(sent[64..], handshake, "{:?}", String::from_utf8_lossy(&sent));
    }

    #[tokio::test]
    async fn a_peer_that_is_none_is_told_from_one() {
        let plain = [&GREETING[..12], b"PLAIN", &GREETING[17..]].concat();
        let old = [&GREETING[..10], b"\x02", &GREETING[11..]].concat();
        let cut = [GREETING, b"\x04\x06\x05READY"].concat();
        for (bytes, said) in [
            (
                &b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"[..],
                "it does not speak ZMTP 3",
            ),
            (&old, "it does not speak ZMTP 3"),
            (&plain, "it asks for security mechanism \"PLAIN\"; only NULL is spoken here"),
            (&[GREETING, &ready(b"ROUTER")].concat(), "it is a ROUTER socket, which a SUB cannot talk to"),
            (&[GREETING, b"\x04\x08\x05ERROR\x01x"].concat(), "it refuses: x"),
            (&[GREETING, b"\x00\x01x"].concat(), "a message before the end of its handshake"),
            (&cut, "a handshake that is none"),
            (&GREETING[..30], "the engine closed it"),
        ] {
            assert_eq!(hear(bytes).await.2, said);
        }
    }

    #[tokio::test]
    async fn messages_have_bounds() {
        let open = [GREETING, &ready(b"PUB")].concat();
        let huge = [&open[..], b"\x02\xff\xff\xff\xff\xff\xff\xff\xff", b"x"].concat();
        let frames = [&open[..], &b"\x01\x00".repeat(20)].concat();
        let commands = [&open[..], &b"\x04\x01x".repeat(200)].concat();
        let flags = [&open[..], b"\x08\x00"].concat();
        for (bytes, said) in [
            (huge, "a message of more than 4194304 bytes"),
            (frames, "a message of more than 8 frames"),
            (commands, "too many commands"),
            (flags, "a frame with flags 0x08"),
        ] {
            assert_eq!(hear(&bytes).await.2, said);
        }
    }
}
