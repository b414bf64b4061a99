//! A reader of msgpack over bytes that may be anything (specification: github.com/msgpack/msgpack, `spec.md`).

use std::fmt;

/// Why a payload was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It ends within a value.
    Truncated,
    /// It holds something else than this.
    Unexpected(&'static str),
    /// An event lacks this field.
    Missing(&'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Truncated => f.write_str("it ends within a value"),
            Fault::Unexpected(wanted) => write!(f, "something else where {wanted} is expected"),
            Fault::Missing(field) => write!(f, "an event without `{field}`"),
        }
    }
}

/// One value; lists and maps are their heads alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    /// A truth value, a floating-point number, an extension: nothing here needs one.
    Other,
    Unsigned(u64),
    Negative(i64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// So many values follow.
    Array(u32),
    /// So many pairs follow.
    Map(u32),
}

impl Value<'_> {
    /// Values that belong to this one and are not read yet.
    pub(super) fn items(&self) -> u64 {
        match self {
            Value::Array(count) => u64::from(*count),
            Value::Map(pairs) => 2 * u64::from(*pairs),
            Value::Nil | Value::Other | Value::Unsigned(_) | Value::Negative(_) | Value::Text(_) | Value::Bytes(_) => 0,
        }
    }
}

pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// How many of `count` announced values there can be: each takes a byte at least.
    pub(super) fn room(&self, count: u32) -> usize {
        (count as usize).min(self.rest.len())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A big-endian number of `count` bytes, at most eight.
    fn number(&mut self, count: usize) -> Result<u64, Fault> {
        Ok(self.take(count)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn sized(&mut self, size_bytes: usize) -> Result<&'a [u8], Fault> {
        let length = self.number(size_bytes)?;
        self.take(usize::try_from(length).map_err(|_| Fault::Truncated)?)
    }

    /// A number of `count` bytes in two's complement.
    fn signed(&mut self, count: usize) -> Result<Value<'a>, Fault> {
        let shift = 64 - 8 * count as u32;
        let number = (self.number(count)? << shift) as i64 >> shift;
        Ok(u64::try_from(number).map_or(Value::Negative(number), Value::Unsigned))
    }

    fn other(&mut self, bytes: usize) -> Result<Value<'a>, Fault> {
        self.take(bytes).map(|_| Value::Other)
    }

    pub(super) fn next(&mut self) -> Result<Value<'a>, Fault> {
        let head = self.number(1)? as u8;
        Ok(match head {
            0x00..=0x7f => Value::Unsigned(u64::from(head)),
            0x80..=0x8f => Value::Map(u32::from(head & 0x0f)),
            0x90..=0x9f => Value::Array(u32::from(head & 0x0f)),
            0xa0..=0xbf => Value::Text(self.take(usize::from(head & 0x1f))?),
            0xc0 => Value::Nil,
            // 0xc1 is never used.
            0xc1 => return Err(Fault::Unexpected("a value")),
            0xc2 | 0xc3 => Value::Other,
            0xc4..=0xc6 => Value::Bytes(self.sized(1 << (head - 0xc4))?),
            0xc7..=0xc9 => {
                let length = self.number(1 << (head - 0xc7))?;
                self.other(usize::try_from(length).map_err(|_| Fault::Truncated)?.saturating_add(1))?
            }
            0xca => self.other(4)?,
            0xcb => self.other(8)?,
            0xcc..=0xcf => Value::Unsigned(self.number(1 << (head - 0xcc))?),
            0xd0..=0xd3 => self.signed(1 << (head - 0xd0))?,
            0xd4..=0xd8 => self.other(1 + (1 << (head - 0xd4)))?,
            0xd9..=0xdb => Value::Text(self.sized(1 << (head - 0xd9))?),
            0xdc | 0xdd => Value::Array(self.number(2 << (head - 0xdc))? as u32),
            0xde | 0xdf => Value::Map(self.number(2 << (head - 0xde))? as u32),
            0xe0..=0xff => Value::Negative(i64::from(head as i8)),
        })
    }

    /// The name of a field or of a kind.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Fault> {
        match self.next()? {
            Value::Text(name) => Ok(name),
            Value::Nil
            | Value::Other
            | Value::Unsigned(_)
            | Value::Negative(_)
            | Value::Bytes(_)
            | Value::Array(_)
            | Value::Map(_) => Err(Fault::Unexpected("a name")),
        }
    }

    /// How many items a list has; nil is none.
    pub(super) fn list(&mut self, wanted: &'static str) -> Result<Option<u32>, Fault> {
        match self.next()? {
            Value::Array(count) => Ok(Some(count)),
            Value::Nil => Ok(None),
            Value::Other
            | Value::Unsigned(_)
            | Value::Negative(_)
            | Value::Text(_)
            | Value::Bytes(_)
            | Value::Map(_) => Err(Fault::Unexpected(wanted)),
        }
    }

    /// Passes over one value with all it holds.
    pub(super) fn skip(&mut self) -> Result<(), Fault> {
        self.skip_items(1)
    }

    /// Passes over so many values with all they hold. Each takes a byte at least, so this ends with the payload.
    pub(super) fn skip_items(&mut self, mut count: u64) -> Result<(), Fault> {
        while count > 0 {
            count = (count - 1).saturating_add(self.next()?.items());
        }
        Ok(())
    }
}
