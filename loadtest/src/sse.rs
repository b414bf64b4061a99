//! Server-sent events, fed piece by piece however the pieces were cut.

/// Largest event; a stream that exceeds it is malformed.
const EVENT_BYTES_MAX: usize = 80 << 20;

/// Splits a stream into the data of its events. Lines may end in LF or CR LF; comments and other fields are skipped;
/// several data lines are joined by LF, as the HTML standard (section 9.2.6) says.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// A line that has not ended yet.
    line: Vec<u8>,
    /// Data lines of the event that has not ended yet, each followed by LF.
    data: Vec<u8>,
}

/// The stream holds an event larger than any real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl Events {
    /// Calls `event` with the data of each event that ends in this piece.
    pub fn feed(&mut self, piece: &[u8], mut event: impl FnMut(&[u8])) -> Result<(), TooLarge> {
        let mut rest = piece;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            if self.line.is_empty() {
                Self::take_line(&mut self.data, line, &mut event);
            } else {
                self.line.extend_from_slice(line);
                Self::take_line(&mut self.data, &self.line, &mut event);
                self.line.clear();
            }
        }
        self.line.extend_from_slice(rest);
        if self.line.len() + self.data.len() > EVENT_BYTES_MAX { Err(TooLarge) } else { Ok(()) }
    }

    /// Whether all bytes so far belong to complete events.
    pub fn at_boundary(&self) -> bool {
        self.line.is_empty() && self.data.is_empty()
    }

    fn take_line(data: &mut Vec<u8>, line: &[u8], event: &mut impl FnMut(&[u8])) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(value) = line.strip_prefix(b"data:") {
            data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
            data.push(b'\n');
        } else if line.is_empty()
            && let Some(whole) = data.strip_suffix(b"\n")
        {
            event(whole);
            data.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut events = Events::default();
        let mut found = Vec::new();
        for piece in pieces {
            events.feed(piece, |data| found.push(String::from_utf8_lossy(data).into_owned())).unwrap();
        }
        (found, events.at_boundary())
    }

    #[test]
    fn both_line_ends_comments_and_several_data_lines_are_read() {
        let stream = b": ping\n\ndata: a\n\ndata:b\r\n\r\nevent: x\ndata: c\ndata: d\n\n";
        assert_eq!(all(&[stream]), (vec!["a".to_owned(), "b".to_owned(), "c\nd".to_owned()], true));
        assert!(!all(&[b"data: a\n"]).1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn split_anywhere_equals_whole(at in 0..64_usize, other in 0..64_usize) {
            let stream: &[u8] = b"data: {\"a\":1}\n\n: x\r\n\r\ndata:two\r\n\r\ndata: x\ndata: y\n\ndata: [DONE]\n\n";
            let first = at.min(other).min(stream.len());
            let second = at.max(other).min(stream.len());
            prop_assert_eq!(all(&[&stream[..first], &stream[first..second], &stream[second..]]), all(&[stream]));
        }
    }
}
