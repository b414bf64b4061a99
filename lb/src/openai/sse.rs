//! Server-sent events, read along in any split (WHATWG HTML, 9.2.6): LF or CRLF, `data:` with or without a space, several data
//! lines. The bytes are not changed here.

use std::ops::Range;

/// Longest event that is kept while its end has not come; a longer one passes unread.
pub(crate) const EVENT_BYTES_MAX: usize = config::limits::SSE_EVENT_BYTES_MAX;

/// Where the bytes of an event are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the payload just given.
    Payload(Range<usize>),
    /// Begun in earlier payloads; the first `usize` bytes of the payload just given end it.
    Carried(usize),
}

/// One whole event, its closing empty line included.
#[derive(Debug)]
pub(crate) struct Event<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) place: Place,
}

impl Event<'_> {
    /// The range in `bytes` of the data, when it stands on exactly one line (as every engine sends it).
    pub(crate) fn data(&self) -> Option<Range<usize>> {
        let mut found = None;
        for line in lines(self.bytes) {
            let text = &self.bytes[line.clone()];
            if let Some(rest) = text.strip_prefix(b"data:") {
                if found.is_some() {
                    return None;
                }
                let space = usize::from(rest.first() == Some(&b' '));
                found = Some(line.start + 5 + space..line.end);
            }
        }
        found
    }

    /// All data lines joined by line feeds, for the rare event that has several.
    pub(crate) fn joined_data(&self) -> Vec<u8> {
        let mut joined = Vec::new();
        let mut first = true;
        for line in lines(self.bytes) {
            if let Some(rest) = self.bytes[line].strip_prefix(b"data:") {
                if !first {
                    joined.push(b'\n');
                }
                first = false;
                joined.extend_from_slice(rest.strip_prefix(b" ").unwrap_or(rest));
            }
        }
        joined
    }
}

/// The lines of a whole event without their ends.
fn lines(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = 0;
    memchr::memchr_iter(b'\n', bytes).map(move |end| {
        let from = std::mem::replace(&mut start, end + 1);
        let cr = usize::from(end > from && bytes[end - 1] == b'\r');
        from..end - cr
    })
}

/// Finds events in payloads that are split anywhere.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    /// Bytes of an event whose end has not come yet.
    carried: Vec<u8>,
    /// The current event is too long to be kept.
    overlong: bool,
}

impl EventReader {
    /// Calls `each` with every event that ends in `payload`, in order.
    pub(crate) fn feed(&mut self, payload: &[u8], mut each: impl FnMut(Event<'_>)) {
        let mut from = 0;
        if !self.carried.is_empty() {
            // The two bytes that may belong to an empty line are looked at again.
            let seen = self.carried.len();
            self.carried.extend_from_slice(payload);
            let Some(end) = event_end(&self.carried, seen.saturating_sub(3)) else { return };
            from = end - seen;
            if !self.overlong {
                each(Event { bytes: &self.carried[..end], place: Place::Carried(from) });
            }
            self.carried.clear();
            self.overlong = false;
        }
        while let Some(length) = event_end(&payload[from..], 0) {
            let range = from..from + length;
            each(Event { bytes: &payload[range.clone()], place: Place::Payload(range) });
            from += length;
        }
        self.carried.extend_from_slice(&payload[from..]);
    }

    /// The bytes of the unfinished event.
    pub(crate) fn carried(&self) -> &[u8] {
        &self.carried
    }

    /// An event has begun and not ended.
    pub(crate) fn is_inside_event(&self) -> bool {
        !self.carried.is_empty()
    }

    /// The unfinished event is too long to be kept whole.
    pub(crate) fn is_overlong(&self) -> bool {
        self.carried.len() > EVENT_BYTES_MAX
    }

    /// Lets go of an unfinished event that is too long; to be called after every [`Self::feed`].
    pub(crate) fn bound(&mut self) {
        if self.is_overlong() {
            self.overlong = true;
            // Enough to find the empty line that ends it. What is in front is no line break: the bytes kept are not the
            // first of an event, and a line feed at their start ends no empty line.
            let keep = self.carried.len() - 3;
            self.carried.drain(..keep);
            self.carried.splice(0..0, *b"..");
        }
    }
}

/// One past the empty line that ends the first event of `bytes`, looking from `from`.
fn event_end(bytes: &[u8], from: usize) -> Option<usize> {
    for at in memchr::memchr_iter(b'\n', bytes.get(from..)?) {
        let lf = from + at;
        let line_is_empty = match lf {
            0 => true,
            1 => bytes[0] == b'\n' || bytes[0] == b'\r',
            _ => bytes[lf - 1] == b'\n' || (bytes[lf - 1] == b'\r' && bytes[lf - 2] == b'\n'),
        };
        if line_is_empty {
            return Some(lf + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(payloads: &[&[u8]]) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut reader = EventReader::default();
        let mut events = Vec::new();
        for payload in payloads {
            reader.feed(payload, |event| {
                if let Place::Payload(range) = &event.place {
                    assert_eq!(&payload[range.clone()], event.bytes);
                }
                events.push((event.bytes.to_vec(), event.data().map(|range| event.bytes[range].to_vec())));
            });
        }
        events
    }

    #[test]
    fn both_line_ends_and_both_spacings_are_read() {
        let text = b"data: {\"a\":1}\n\ndata:{\"b\":2}\r\n\r\nevent: x\nid: 7\ndata: c\n\n: ping\n\ndata: [DONE]\n\n";
        let data: Vec<_> = read(&[text]).into_iter().map(|(_, data)| data).collect();
        let want: [Option<&[u8]>; 5] = [Some(b"{\"a\":1}"), Some(b"{\"b\":2}"), Some(b"c"), None, Some(b"[DONE]")];
        assert_eq!(data, want.map(|d| d.map(<[u8]>::to_vec)));
    }

    #[test]
    fn several_data_lines_are_one_text() {
        let mut reader = EventReader::default();
        let mut joined = Vec::new();
        reader.feed(b"data: a\ndata:b\n\n", |event| {
            assert_eq!(event.data(), None);
            joined = event.joined_data();
        });
        assert_eq!(joined, b"a\nb");
    }

    #[test]
    fn an_endless_event_takes_bounded_memory_and_the_next_is_read() {
        let mut reader = EventReader::default();
        let (mut seen, mut overlong) = (0, false);
        for _ in 0..(3 * EVENT_BYTES_MAX / 1000) {
            reader.feed(&[b'x'; 1000], |_| seen += 1);
            overlong |= reader.is_overlong();
            reader.bound();
            assert!(reader.carried.len() <= EVENT_BYTES_MAX + 1000);
        }
        assert!(overlong);
        reader.feed(b"\n\ndata: a\n\n", |event| {
            seen += 1;
            assert_eq!(event.bytes, b"data: a\n\n");
        });
        assert_eq!(seen, 1);
    }

    #[test]
    fn a_line_end_where_an_overlong_event_was_cut_is_no_empty_line() {
        for tail in ["\nab", "\r\nx", "a\n\r", "ab\n"] {
            let mut reader = EventReader::default();
            let mut long = vec![b'x'; EVENT_BYTES_MAX];
            long.extend(tail.bytes());
            reader.feed(&long, |_| panic!("{tail:?} ends nothing"));
            reader.bound();
            reader.feed(b"c", |_| panic!("{tail:?} ends nothing"));
            let mut seen = Vec::new();
            reader.feed(b"\n\ndata: a\n\n", |event| seen.push(event.bytes.to_vec()));
            assert_eq!(seen, [b"data: a\n\n"], "{tail:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn split_anywhere_equals_whole(
            events in proptest::collection::vec((prop_oneof![Just("data: "), Just("data:"), Just(": "), Just("event: x\ndata: ")], "[a-z{}\" ]{0,12}", any::<bool>()), 0..6),
            cuts in proptest::collection::vec(0_usize..200, 0..6),
        ) {
            let mut text = Vec::new();
            for (prefix, data, crlf) in events {
                let event = format!("{prefix}{data}\n\n");
                text.extend(if crlf { event.replace('\n', "\r\n") } else { event }.into_bytes());
            }
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&c| c <= text.len()).collect();
            cuts.sort_unstable();
            let (mut parts, mut from) = (Vec::new(), 0);
            for cut in cuts.into_iter().chain([text.len()]) {
                parts.push(&text[from..cut]);
                from = cut;
            }
            let whole = read(&[&text]);
            prop_assert_eq!(read(&parts), whole.clone());
            prop_assert_eq!(whole.into_iter().flat_map(|(bytes, _)| bytes).collect::<Vec<_>>(), text);
        }

        #[test]
        fn no_bytes_panic(payloads in proptest::collection::vec(proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), any::<u8>()], 0..20), 0..6)) {
            read(&payloads.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}
