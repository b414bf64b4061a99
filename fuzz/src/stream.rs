//! Streams of events and content codings: what comes in parts.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use lb::probe::body::{Decoded, decoded};
use lb::probe::forward::{Asked, Framed, Passed, passed};
use lb::probe::http1::chunk_of;
use lb::probe::openai::{self, Events};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::input::{option_of, splits};

const EVENT_BYTES_MAX: usize = config::limits::SSE_EVENT_BYTES_MAX;
/// Stands for this many bytes of an endless event.
const LONG: u8 = 0xFF;
const LONG_BYTES: usize = 300_000;
/// Where a payload ends, in an input with long events.
const CUT: u8 = 0xFE;

/// Events of a stream: those that a reading line by line finds, in any split, and all bytes are in one.
pub fn events(data: &[u8]) {
    let whole = read_events(&[data]);
    assert_eq!(whole, slow_events(data));
    let events: usize = whole.0.iter().map(|(bytes, _)| bytes.len()).sum();
    assert_eq!(events + whole.1.len(), data.len());
    for parts in splits(data) {
        assert_eq!(read_events(&parts), whole, "split");
    }
}

/// An event and its data.
type Event = (Vec<u8>, Vec<u8>);

fn read_events(parts: &[&[u8]]) -> (Vec<Event>, Vec<u8>) {
    let (mut reader, mut found) = (Events::default(), Vec::new());
    for part in parts {
        reader.feed(part, |bytes, data| found.push((bytes.to_vec(), data)));
        assert!(reader.carried().len() <= EVENT_BYTES_MAX, "more is kept than may be");
    }
    (found, reader.carried().to_vec())
}

/// Whole events and what is left.
fn slow_events(data: &[u8]) -> (Vec<Event>, Vec<u8>) {
    let (mut found, mut bytes, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        bytes.extend_from_slice(line);
        let Some(text) = line.strip_suffix(b"\n") else { break };
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if text.is_empty() {
            let texts: Vec<Vec<u8>> = std::mem::take(&mut texts);
            found.push((std::mem::take(&mut bytes), texts.join(&b'\n')));
        } else if let Some(value) = text.strip_prefix(b"data:") {
            texts.push(value.strip_prefix(b" ").unwrap_or(value).to_vec());
        }
    }
    (found, bytes)
}

/// Events that are too long to be kept: they are dropped, and no others, and what is kept meanwhile is bounded. `FF` stands for
/// a long run, `FE` for a cut.
pub fn long_events(data: &[u8]) {
    const LONG_RUNS_MAX: usize = 5;
    let mut runs = 0;
    let (mut payloads, mut all) = (vec![Vec::new()], Vec::new());
    for byte in data {
        let n = match *byte {
            CUT => {
                payloads.push(Vec::new());
                continue;
            }
            LONG if runs < LONG_RUNS_MAX => LONG_BYTES,
            _ => 1,
        };
        runs += usize::from(*byte == LONG);
        let end = all.len() + n;
        all.resize(end, *byte);
        if let Some(payload) = payloads.last_mut() {
            let end = payload.len() + n;
            payload.resize(end, *byte);
        }
    }
    let parts: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    let (found, _) = read_events(&parts);
    let mut found = found.into_iter().peekable();
    for (bytes, data) in slow_events(&all).0 {
        let is_next = found.next_if(|(next, _)| *next == bytes);
        match is_next {
            Some((_, found)) => assert!(found == data, "the data of an event"),
            None => assert!(bytes.len() > EVENT_BYTES_MAX, "an event of {} bytes is lost", bytes.len()),
        }
    }
    assert!(found.next().is_none(), "an event that nobody sent");
}

/// A stream passing through, with nothing, the model's name or the usage changed: what is shown is what a reading event by
/// event shows, however it is framed and split. The first byte says what is changed.
pub fn stream(data: &[u8]) {
    let (option, payload) = option_of(data);
    let model = (option & 1 != 0).then_some("shown/\"M\"");
    let asked = if option & 2 != 0 { Asked::ByUs } else { Asked::ByClient };
    let whole = passed(&[payload], Framed::UntilClose, model, asked);
    let slow = slow_passed(payload, model, asked);
    assert_eq!(String::from_utf8_lossy(&whole.shown), String::from_utf8_lossy(&slow.shown), "what is shown");
    assert_eq!((whole.output, whole.shown.len()), (slow.output, slow.shown.len()));
    // Names are looked for as they are written.
    if !payload.contains(&b'\\') {
        assert_eq!((whole.usage, whole.error), (slow.usage, slow.error), "what is read along");
    }
    for parts in splits(payload) {
        assert_eq!(passed(&parts, Framed::UntilClose, model, asked), whole, "split");
    }
    let mut framed: Vec<u8> = payload.chunks(11).flat_map(chunk_of).collect();
    framed.extend(b"0\r\n\r\n");
    let ended = Passed { ended: Some(true), ..whole };
    assert_eq!(passed(&[&framed], Framed::Chunked, model, asked), ended, "in chunks");
    for parts in splits(&framed) {
        assert_eq!(passed(&parts, Framed::Chunked, model, asked), ended, "in chunks, split");
    }
    // Bytes that claim to be chunks.
    let raw = passed(&[payload], Framed::Chunked, model, asked);
    for parts in splits(payload) {
        let parts = passed(&parts, Framed::Chunked, model, asked);
        assert_eq!(parts.ended, raw.ended);
        if raw.ended != Some(false) {
            assert_eq!(parts, raw, "claimed chunks, split");
        }
    }
}

fn slow_passed(payload: &[u8], model: Option<&str>, asked: Asked) -> Passed {
    let (events, rest) = slow_events(payload);
    let mut passed = Passed::default();
    for (bytes, data) in events {
        let document = openai::document(&data);
        let usage = document.as_ref().and_then(|document| document.usage);
        for (known, new) in passed.usage.iter_mut().zip(usage.unwrap_or_default()) {
            *known = new.or(*known);
        }
        passed.output |= document.as_ref().is_some_and(|document| document.output);
        passed.error |= document.as_ref().is_some_and(|document| document.is_error);
        if usage.is_some() && asked == Asked::ByUs && document.as_ref().is_some_and(|document| document.choices_empty) {
            continue;
        }
        let data_lines = bytes.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"data:")).count();
        let at = document.and_then(|document| document.model_at).filter(|_| data_lines == 1);
        match (model, at) {
            (Some(model), Some(at)) => {
                let start = bytes.windows(data.len()).position(|part| part == data).expect("data stands in its event");
                passed.shown.extend_from_slice(&bytes[..start + at.start]);
                passed.shown.extend(openai::json_string(model));
                passed.shown.extend_from_slice(&bytes[start + at.end..]);
            }
            (None, _) | (_, None) => passed.shown.extend(bytes),
        }
    }
    passed.shown.extend(rest);
    passed
}

/// Longest body that is decoded here.
const BODY_BYTES_MAX: usize = 256 << 10;

/// Content codings: the same in steps of any size, never more than the limit, the same as a plain decoder where that takes the
/// bytes, and what is encoded comes back. The first byte says which coding and the step.
pub fn coding(data: &[u8]) {
    let (option, body) = option_of(data);
    let coding = ["gzip", "deflate", "zstd"][usize::from(option) % 3];
    let whole = decoded(coding, body, 64 << 10, BODY_BYTES_MAX);
    // What is wrong first, too much or the bytes, depends on how far a step gets; what is whole does not.
    let whole_or = |decoded: Decoded| match decoded {
        Decoded::Whole(text) => Some(text),
        Decoded::TooLong | Decoded::Broken(_) => None,
    };
    let stepwise = decoded(coding, body, 1 + usize::from(option), BODY_BYTES_MAX);
    assert_eq!(whole_or(stepwise), whole_or(whole.clone()), "steps of another size");
    if let Decoded::Whole(text) = &whole {
        assert!(text.len() <= BODY_BYTES_MAX);
        if let Some(shorter) = text.len().checked_sub(1) {
            assert_eq!(decoded(coding, body, 64 << 10, shorter), Decoded::TooLong, "the limit is kept");
        }
    }
    if let Some(plain) = plainly_decoded(coding, body) {
        match &whole {
            Decoded::Whole(text) => assert_eq!(*text, plain),
            Decoded::TooLong => assert!(plain.len() > BODY_BYTES_MAX),
            // A plain decoder does not look at what follows.
            Decoded::Broken(_) => {}
        }
    }
    let text = &body[..body.len().min(4096)];
    let encoded = encode(coding, text);
    assert_eq!(decoded(coding, &encoded, 1 + usize::from(option), BODY_BYTES_MAX), Decoded::Whole(text.to_vec()));
    assert!(matches!(decoded(coding, &encoded[..encoded.len() - 1], 64 << 10, BODY_BYTES_MAX), Decoded::Broken(_)));
}

fn plainly_decoded(coding: &str, body: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let bound = BODY_BYTES_MAX as u64 + 1;
    let read = match coding {
        "gzip" => MultiGzDecoder::new(body).take(bound).read_to_end(&mut plain),
        "deflate" => ZlibDecoder::new(body).take(bound).read_to_end(&mut plain),
        _ => return None,
    };
    read.ok().filter(|_| !body.is_empty()).map(|_| plain)
}

fn encode(coding: &str, text: &[u8]) -> Vec<u8> {
    let written = match coding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text).and_then(|()| encoder.finish())
        }
        "deflate" => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text).and_then(|()| encoder.finish())
        }
        _ => Ok(compress_to_vec(text, CompressionLevel::Fastest)),
    };
    written.expect("memory takes everything")
}
