//! `application/vnd.amazon.eventstream`: the binary frames that a ConverseStream answer is made of.
//!
//! ```text
//! | bytes of the frame u32 | bytes of its headers u32 | CRC-32 of these eight | headers | payload | CRC-32 of all before |
//! ```
//!
//! Numbers are big-endian (<https://smithy.io/2.0/aws/amazon-eventstream.html>). [`Frames`] takes the bytes as they come and
//! gives whole messages. It holds at most one frame, of bounded length; a length is believed only after its checksum. After a
//! frame that is broken nothing more can be read: where the next one begins is not known.

use std::fmt;

/// Most bytes of a frame: the format's own limit on a payload, 16 MiB. Converse's events have some hundred bytes.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Most bytes of a frame's headers: the format's own limit.
const HEADERS_BYTES_MAX: usize = 128 << 10;
/// Most headers of a frame: Converse sends three. They are compared with each other, so that there are no two of one name.
const HEADERS_MAX: usize = 64;
/// Kept for the next frame; a longer one gives its memory back.
const KEPT_BYTES_MAX: usize = 64 << 10;

const PRELUDE_BYTES: usize = 12;
const CHECKSUM_BYTES: usize = 4;
const FRAME_BYTES_MIN: usize = PRELUDE_BYTES + CHECKSUM_BYTES;

/// Why a stream of frames cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The checksum of the lengths is wrong: bytes were lost or changed, or this is no event stream.
    LengthsChecksum,
    /// The checksum of the frame is wrong.
    Checksum,
    /// A frame of this many bytes, more than may be.
    TooLong {
        /// Of the whole frame.
        bytes: u32,
        /// What may be.
        bytes_max: usize,
    },
    /// Lengths that contradict each other, or more header bytes than the format allows.
    Lengths,
    /// A header that is cut off, has no name, a type that is not known, or text that is not UTF-8.
    Header,
    /// Two headers of one name.
    HeaderTwice,
    /// More headers than are read.
    HeadersTooMany,
    /// The stream ended inside a frame; this many of its bytes came.
    Truncated {
        /// Of the frame.
        bytes: usize,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LengthsChecksum => formatter.write_str("event stream: wrong checksum of a frame's lengths"),
            Self::Checksum => formatter.write_str("event stream: wrong checksum of a frame"),
            Self::TooLong { bytes, bytes_max } => {
                write!(formatter, "event stream: a frame of {bytes} bytes, where at most {bytes_max} are read")
            }
            Self::Lengths => formatter.write_str("event stream: the lengths of a frame contradict each other"),
            Self::Header => formatter.write_str("event stream: a header of a frame cannot be read"),
            Self::HeaderTwice => formatter.write_str("event stream: a frame has two headers of one name"),
            Self::HeadersTooMany => write!(formatter, "event stream: a frame has more than {HEADERS_MAX} headers"),
            Self::Truncated { bytes } => {
                write!(formatter, "event stream: the stream ended {bytes} bytes into a frame")
            }
        }
    }
}

impl std::error::Error for FrameError {}

/// Reads frames from bytes that come in parts.
#[derive(Debug)]
pub struct Frames {
    /// The beginning of a frame, or one that was given out.
    held: Vec<u8>,
    given: bool,
    broken: Option<FrameError>,
    frame_bytes_max: usize,
}

impl Frames {
    /// Frames of at most `frame_bytes_max` bytes, and never more than [`FRAME_BYTES_MAX`].
    #[must_use]
    pub fn new(frame_bytes_max: usize) -> Self {
        let frame_bytes_max = frame_bytes_max.min(FRAME_BYTES_MAX);
        Self { held: Vec::new(), given: false, broken: None, frame_bytes_max }
    }

    /// The next message, taking its bytes off `input`; `None` when `input` is empty and more must come. A frame that lies
    /// whole in `input` is not copied.
    ///
    /// # Errors
    /// A broken frame; every later call gives the same error.
    pub fn read<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8]) -> Result<Option<Message<'a>>, FrameError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        if self.given {
            self.given = false;
            self.held.clear();
            self.held.shrink_to(KEPT_BYTES_MAX);
        }
        match self.whole(input) {
            Ok(None) => Ok(None),
            Ok(Some(Place::Input { headers_bytes, frame })) => Ok(Some(Message::of(frame, headers_bytes))),
            Ok(Some(Place::Held { headers_bytes })) => {
                self.given = true;
                Ok(Some(Message::of(&self.held, headers_bytes)))
            }
            Err(error) => {
                self.broken = Some(error);
                self.held = Vec::new();
                Err(error)
            }
        }
    }

    /// Whether the stream may end here.
    ///
    /// # Errors
    /// It may not: a frame is unfinished or was broken.
    pub fn end(&self) -> Result<(), FrameError> {
        match (self.broken, self.given || self.held.is_empty()) {
            (Some(error), _) => Err(error),
            (None, true) => Ok(()),
            (None, false) => Err(FrameError::Truncated { bytes: self.held.len() }),
        }
    }

    /// Bytes held of an unfinished frame.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        if self.given { 0 } else { self.held.len() }
    }

    /// A checked frame: in `input`, or in `held` with the bytes taken off `input`.
    fn whole<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Place<'a>>, FrameError> {
        if self.held.is_empty()
            && let Some(frame_bytes) = frame_bytes(input, self.frame_bytes_max)?
            && let Some((frame, rest)) = input.split_at_checked(frame_bytes)
        {
            *input = rest;
            return Ok(Some(Place::Input { headers_bytes: checked(frame)?, frame }));
        }
        // The lengths, then the frame: two rounds.
        loop {
            let frame_bytes = frame_bytes(&self.held, self.frame_bytes_max)?;
            let wanted = frame_bytes.unwrap_or(PRELUDE_BYTES).saturating_sub(self.held.len());
            let (part, rest) = input.split_at(wanted.min(input.len()));
            self.held.extend_from_slice(part);
            *input = rest;
            if part.len() < wanted {
                return Ok(None);
            }
            if frame_bytes.is_some() {
                return Ok(Some(Place::Held { headers_bytes: checked(&self.held)? }));
            }
        }
    }
}

/// Where a whole frame stands.
enum Place<'a> {
    Input { frame: &'a [u8], headers_bytes: usize },
    Held { headers_bytes: usize },
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

/// The length of the frame that begins here, once its lengths are there and checked.
fn frame_bytes(bytes: &[u8], frame_bytes_max: usize) -> Result<Option<usize>, FrameError> {
    let (Some(frame), Some(headers), Some(checksum)) = (number(bytes, 0), number(bytes, 4), number(bytes, 8)) else {
        return Ok(None);
    };
    if crc32fast::hash(&bytes[..8]) != checksum {
        return Err(FrameError::LengthsChecksum);
    }
    let (frame_bytes, headers_bytes) = (frame as usize, headers as usize);
    if frame_bytes > frame_bytes_max {
        return Err(FrameError::TooLong { bytes: frame, bytes_max: frame_bytes_max });
    }
    if headers_bytes > HEADERS_BYTES_MAX || headers_bytes.saturating_add(FRAME_BYTES_MIN) > frame_bytes {
        return Err(FrameError::Lengths);
    }
    Ok(Some(frame_bytes))
}

/// Checks a frame whose lengths are checked; the bytes of its headers.
fn checked(frame: &[u8]) -> Result<usize, FrameError> {
    let end = frame.len().saturating_sub(CHECKSUM_BYTES);
    if number(frame, end) != Some(crc32fast::hash(&frame[..end])) {
        return Err(FrameError::Checksum);
    }
    let headers_bytes = number(frame, 4).ok_or(FrameError::Lengths)? as usize;
    let headers = frame.get(PRELUDE_BYTES..PRELUDE_BYTES + headers_bytes).ok_or(FrameError::Lengths)?;
    let (mut names, mut rest) = (Vec::with_capacity(4), headers);
    while !rest.is_empty() {
        let (name, _, after) = header(rest).ok_or(FrameError::Header)?;
        if names.len() == HEADERS_MAX {
            return Err(FrameError::HeadersTooMany);
        }
        if names.contains(&name) {
            return Err(FrameError::HeaderTwice);
        }
        names.push(name);
        rest = after;
    }
    Ok(headers_bytes)
}

/// A message: one frame, checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    headers: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// Of a frame that is checked.
    fn of(frame: &'a [u8], headers_bytes: usize) -> Self {
        let body = frame.get(PRELUDE_BYTES..frame.len() - CHECKSUM_BYTES).unwrap_or_default();
        let (headers, payload) = body.split_at_checked(headers_bytes).unwrap_or_default();
        Self { headers, payload }
    }

    /// Headers in their order.
    #[must_use]
    pub fn headers(&self) -> Headers<'a> {
        Headers { rest: self.headers }
    }

    /// The value of a header that holds text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.headers().find(|header| header.0 == name).and_then(|(_, value)| match value {
            Value::Text(text) => Some(text),
            Value::Bool(_)
            | Value::I8(_)
            | Value::I16(_)
            | Value::I32(_)
            | Value::I64(_)
            | Value::Bytes(_)
            | Value::Timestamp(_)
            | Value::Uuid(_) => None,
        })
    }

    /// What the message carries: for Converse, JSON.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Headers with the names of its events, not what they say.
impl fmt::Debug for Message<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Message({} header bytes, {} payload bytes)", self.headers.len(), self.payload.len())
    }
}

/// A header's value: every type of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Types 0 and 1.
    Bool(bool),
    /// Type 2.
    I8(i8),
    /// Type 3.
    I16(i16),
    /// Type 4.
    I32(i32),
    /// Type 5.
    I64(i64),
    /// Type 6.
    Bytes(&'a [u8]),
    /// Type 7.
    Text(&'a str),
    /// Type 8: milliseconds since 1970.
    Timestamp(i64),
    /// Type 9.
    Uuid([u8; 16]),
}

/// The headers of a message.
#[derive(Debug, Clone)]
pub struct Headers<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        // All were read once when the frame was checked.
        let (name, value, rest) = header(self.rest)?;
        self.rest = rest;
        Some((name, value))
    }
}

/// The first header of these bytes, and what follows it.
fn header(bytes: &[u8]) -> Option<(&str, Value<'_>, &[u8])> {
    let (name_bytes, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*name_bytes))?;
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
    let (kind, rest) = rest.split_first()?;
    let (value, rest) = match kind {
        0 => (Value::Bool(true), rest),
        1 => (Value::Bool(false), rest),
        2 => fixed(rest, |bytes| Value::I8(i8::from_be_bytes(bytes)))?,
        3 => fixed(rest, |bytes| Value::I16(i16::from_be_bytes(bytes)))?,
        4 => fixed(rest, |bytes| Value::I32(i32::from_be_bytes(bytes)))?,
        5 => fixed(rest, |bytes| Value::I64(i64::from_be_bytes(bytes)))?,
        6 => counted(rest, |bytes| Some(Value::Bytes(bytes)))?,
        7 => counted(rest, |bytes| std::str::from_utf8(bytes).ok().map(Value::Text))?,
        8 => fixed(rest, |bytes| Value::Timestamp(i64::from_be_bytes(bytes)))?,
        9 => fixed(rest, Value::Uuid)?,
        _ => return None,
    };
    Some((name, value, rest))
}

fn fixed<const N: usize>(bytes: &[u8], value: impl FnOnce([u8; N]) -> Value<'static>) -> Option<(Value<'_>, &[u8])> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    Some((value(*first), rest))
}

/// A value behind its length in two bytes.
fn counted<'a>(bytes: &'a [u8], value: impl FnOnce(&'a [u8]) -> Option<Value<'a>>) -> Option<(Value<'a>, &'a [u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (value_bytes, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some((value(value_bytes)?, rest))
}

#[cfg(test)]
mod tests;
