use proptest::prelude::*;

use super::*;

/// A frame with these bytes as its headers: the obvious writing of the format.
fn frame(headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let total = (FRAME_BYTES_MIN + headers.len() + payload.len()) as u32;
    with_lengths(total, headers.len() as u32, headers, payload)
}

fn with_lengths(total: u32, headers_bytes: u32, headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = [total.to_be_bytes(), headers_bytes.to_be_bytes()].concat();
    bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
    bytes.extend([headers, payload].concat());
    bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
    bytes
}

fn header_bytes(name: &str, value: Value<'_>) -> Vec<u8> {
    let mut bytes = vec![name.len() as u8];
    bytes.extend(name.bytes());
    let counted = |kind: u8, value: &[u8]| [&[kind][..], &(value.len() as u16).to_be_bytes(), value].concat();
    bytes.extend(match value {
        Value::Bool(true) => vec![0],
        Value::Bool(false) => vec![1],
        Value::I8(number) => [&[2][..], &number.to_be_bytes()].concat(),
        Value::I16(number) => [&[3][..], &number.to_be_bytes()].concat(),
        Value::I32(number) => [&[4][..], &number.to_be_bytes()].concat(),
        Value::I64(number) => [&[5][..], &number.to_be_bytes()].concat(),
        Value::Bytes(value) => counted(6, value),
        Value::Text(text) => counted(7, text.as_bytes()),
        Value::Timestamp(number) => [&[8][..], &number.to_be_bytes()].concat(),
        Value::Uuid(id) => [&[9][..], &id].concat(),
    });
    bytes
}

/// What came of a stream: messages as their headers (printed) and payload, and how it ended.
type Read = (Vec<(Vec<String>, Vec<u8>)>, Result<(), FrameError>);

fn read<'a>(parts: impl IntoIterator<Item = &'a [u8]>, frame_bytes_max: usize) -> Read {
    let (mut frames, mut messages) = (Frames::new(frame_bytes_max), Vec::new());
    for mut part in parts {
        loop {
            match frames.read(&mut part) {
                Ok(Some(message)) => {
                    let headers = message.headers().map(|header| format!("{header:?}")).collect();
                    messages.push((headers, message.payload().to_vec()));
                }
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(frames.read(&mut part), Err(error), "once broken, always");
                    assert_eq!(frames.end(), Err(error));
                    assert_eq!(frames.held_bytes(), 0);
                    return (messages, Err(error));
                }
            }
            assert!(frames.held_bytes() <= frame_bytes_max, "more is held than a frame");
        }
        assert!(part.is_empty(), "all is taken");
    }
    let end = frames.end();
    (messages, end)
}

fn whole(bytes: &[u8]) -> Read {
    read([bytes], FRAME_BYTES_MAX)
}

fn failed(bytes: &[u8]) -> FrameError {
    let (messages, end) = whole(bytes);
    assert!(messages.is_empty(), "{messages:?}");
    end.unwrap_err()
}

#[test]
fn every_type_of_header_is_read() {
    let headers = [
        ("yes", Value::Bool(true)),
        ("no", Value::Bool(false)),
        ("byte", Value::I8(-7)),
        ("short", Value::I16(-30_000)),
        ("int", Value::I32(i32::MIN)),
        ("long", Value::I64(i64::MAX)),
        ("bytes", Value::Bytes(&[0, 255])),
        ("text", Value::Text("naïve")),
        ("time", Value::Timestamp(1_700_000_000_123)),
        ("uuid", Value::Uuid([7; 16])),
    ];
    let bytes: Vec<u8> = headers.iter().flat_map(|(name, value)| header_bytes(name, *value)).collect();
    let bytes = frame(&bytes, b"payload");
    let mut frames = Frames::new(FRAME_BYTES_MAX);
    let message = frames.read(&mut &bytes[..]).unwrap().unwrap();
    assert_eq!(message.headers().collect::<Vec<_>>(), headers);
    assert_eq!(message.payload(), b"payload");
    assert_eq!((message.text("text"), message.text("int"), message.text("none")), (Some("naïve"), None, None));
}

#[test]
fn a_length_is_believed_only_after_its_checksum() {
    let mut bytes = frame(b"", b"abc");
    bytes[0] = 0x7F;
    assert_eq!(failed(&bytes[..12]), FrameError::LengthsChecksum);
}

#[test]
fn a_frame_that_is_too_long_is_refused_by_its_lengths_alone() {
    let bytes = with_lengths(1 << 30, 0, b"", b"");
    assert_eq!(failed(&bytes[..12]), FrameError::TooLong { bytes: 1 << 30, bytes_max: FRAME_BYTES_MAX });
    let (messages, end) = read([&frame(b"", &[0; 100])[..]], 115);
    assert_eq!((messages.len(), end), (0, Err(FrameError::TooLong { bytes: 116, bytes_max: 115 })));
    assert_eq!(read([&frame(b"", &[0; 100])[..]], 116).0.len(), 1);
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    assert_eq!(failed(&with_lengths(15, 0, b"", b"")), FrameError::Lengths);
    assert_eq!(failed(&with_lengths(20, 5, b"", b"abcd")), FrameError::Lengths);
    assert_eq!(failed(&with_lengths(u32::MAX >> 9, u32::MAX, b"", b"abcd")), FrameError::Lengths);
    assert_eq!(failed(&with_lengths(200_000, 150_000, b"", b"")), FrameError::Lengths);
}

#[test]
fn broken_headers_are_refused() {
    let good = header_bytes("a", Value::Text("b"));
    let cut = &good[..good.len() - 1];
    let unknown = [1, b'a', 10];
    let nameless = header_bytes("", Value::Bool(true));
    let no_text = [1, b'a', 7, 0, 1, 0xFF];
    let no_name = [1, 0xFF, 0];
    for headers in [cut, &unknown, &nameless, &no_text, &no_name, &[200, b'a']] {
        assert_eq!(failed(&frame(headers, b"")), FrameError::Header, "{headers:?}");
    }
    assert_eq!(failed(&frame(&[&good[..], &good].concat(), b"")), FrameError::HeaderTwice);
    let many = |count: usize| -> Vec<u8> {
        (0..count).flat_map(|number| header_bytes(&number.to_string(), Value::Bool(true))).collect()
    };
    assert_eq!(failed(&frame(&many(HEADERS_MAX + 1), b"")), FrameError::HeadersTooMany);
    assert_eq!(whole(&frame(&many(HEADERS_MAX), b"")).0[0].0.len(), HEADERS_MAX);
}

#[test]
fn a_stream_may_end_between_frames_only() {
    let bytes = [frame(b"", b"one"), frame(b"", b"two")].concat();
    for length in 0..=bytes.len() {
        let (messages, end) = whole(&bytes[..length]);
        assert_eq!(messages.len(), length / 19);
        let expected = if length % 19 == 0 { Ok(()) } else { Err(FrameError::Truncated { bytes: length % 19 }) };
        assert_eq!(end, expected, "{length}");
    }
}

#[test]
fn a_long_frame_gives_its_memory_back() {
    let long = frame(b"", &vec![7; 1 << 20]);
    let mut frames = Frames::new(FRAME_BYTES_MAX);
    let (first, rest) = long.split_at(100);
    assert_eq!(frames.read(&mut &first[..]), Ok(None));
    assert!(frames.read(&mut &rest[..]).unwrap().is_some());
    assert_eq!(frames.read(&mut &first[..50]), Ok(None));
    assert!(frames.held.capacity() <= KEPT_BYTES_MAX, "{}", frames.held.capacity());
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let headers = prop::collection::btree_map("[a-z:-]{1,12}", ".{0,20}", 0..5);
    (headers, prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(headers, payload)| {
        let headers: Vec<u8> = headers.iter().flat_map(|(name, text)| header_bytes(name, Value::Text(text))).collect();
        frame(&headers, &payload)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn split_anywhere_equals_whole(frames in prop::collection::vec(any_frame(), 1..4), sizes in prop::collection::vec(1..90_usize, 1..20)) {
        let bytes = frames.concat();
        let expected = whole(&bytes);
        prop_assert_eq!(expected.0.len(), frames.len());
        prop_assert_eq!(read(bytes.chunks(1), FRAME_BYTES_MAX), expected.clone());
        let (mut rest, mut parts) = (&bytes[..], Vec::new());
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (part, after) = rest.split_at(rest.len().min(*size));
            parts.push(part);
            rest = after;
        }
        prop_assert_eq!(read(parts, FRAME_BYTES_MAX), expected);
    }

    #[test]
    fn no_changed_bit_goes_unseen(bytes in any_frame(), at: prop::sample::Index, bit in 0..8_u8) {
        let mut changed = bytes.clone();
        changed[at.index(bytes.len())] ^= 1 << bit;
        let (messages, end) = whole(&changed);
        prop_assert!(messages.is_empty());
        prop_assert!(end.is_err());
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = whole(&bytes);
    }

    #[test]
    fn any_headers_are_read_or_refused(headers in prop::collection::vec(any::<u8>(), 0..60)) {
        let bytes = frame(&headers, b"p");
        match whole(&bytes) {
            (messages, Ok(())) => prop_assert_eq!(messages.len(), 1),
            (messages, Err(_)) => prop_assert!(messages.is_empty()),
        }
    }
}
