//! Bedrock: its frames, its answers and streams, and the requests that are made for it.

use bedrock::frames::{FrameError, Frames};
use bedrock::{ChatStream, Delivery, FIELDS, FRAME_BYTES_MAX, Reply, completion, converse};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::input::splits;

const REPLY: Reply<'_> = Reply { id: "chatcmpl-1", created_unix_s: 1, model: "m" };
/// Bytes of a frame that may be held here.
const HELD_BYTES_MAX: usize = 4 << 10;

/// Frames, as the bytes are, and with the bytes as headers and payload under right checksums: the same in any split, what a slow
/// reading finds, and never more held than a frame.
pub fn aws_frames(data: &[u8]) {
    frames_hold(data);
    for headers_bytes in [0, data.len() / 2, data.len()] {
        let framed = frame(&data[..headers_bytes], &data[headers_bytes..]);
        frames_hold(&[&framed[..], &framed].concat());
    }
}

type ReadFrames = (Vec<Vec<u8>>, Result<(), FrameError>);

fn frames_hold(data: &[u8]) {
    let whole = read_frames(&[data]);
    let slow = slow_payloads(data);
    assert_eq!(whole.0, slow[..whole.0.len()]);
    assert!(whole.1.is_err() || whole.0.len() == slow.len());
    for parts in splits(data) {
        assert_eq!(read_frames(&parts), whole, "split");
    }
}

fn read_frames(parts: &[&[u8]]) -> ReadFrames {
    let (mut frames, mut payloads) = (Frames::new(HELD_BYTES_MAX), Vec::new());
    for part in parts {
        let mut rest = *part;
        loop {
            match frames.read(&mut rest) {
                Ok(Some(message)) => {
                    assert!(message.headers().all(|(name, _)| !name.is_empty()));
                    payloads.push(message.payload().to_vec());
                }
                Ok(None) => break,
                Err(error) => return (payloads, Err(error)),
            }
            assert!(frames.held_bytes() <= HELD_BYTES_MAX, "more is held than a frame");
        }
    }
    (payloads, frames.end())
}

/// Payloads of frames whose lengths and last checksum are right; headers are not looked at.
fn slow_payloads(data: &[u8]) -> Vec<Vec<u8>> {
    let number =
        |at: usize| data.get(at..at + 4).map(|bytes| bytes.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)));
    let (mut payloads, mut at) = (Vec::new(), 0);
    while let (Some(total), Some(headers)) = (number(at), number(at + 4)) {
        let Some(frame) =
            data.get(at..at.saturating_add(total)).filter(|frame| frame.len() >= 16 + headers.min(1 << 30))
        else {
            break;
        };
        let end = total - 4;
        if number(at + end) != Some(slow_checksum(&frame[..end]) as usize) {
            break;
        }
        payloads.push(frame[12 + headers..end].to_vec());
        at += total;
    }
    payloads
}

/// CRC-32, bit by bit.
fn slow_checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 })
    })
}

fn frame(headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let total = (16 + headers.len() + payload.len()) as u32;
    let mut bytes = [total.to_be_bytes(), (headers.len() as u32).to_be_bytes()].concat();
    bytes.extend(slow_checksum(&bytes).to_be_bytes());
    bytes.extend([headers, payload].concat());
    bytes.extend(slow_checksum(&bytes).to_be_bytes());
    bytes
}

/// A request: refused with a place and no quotation, or JSON with alternating roles, the user first, not much longer.
pub fn converse_request(data: &[u8]) {
    let made = match converse(data) {
        Ok(made) => made,
        Err(refusal) => {
            assert!(refusal.to_string().len() < 400, "{refusal}");
            return;
        }
    };
    assert!(made.body.len() <= 4 * data.len() + 256, "{} of {} bytes", made.body.len(), data.len());
    assert!(made.left_out.iter().all(|name| FIELDS.iter().any(|field| field.name == *name)));
    let body = std::str::from_utf8(&made.body).expect("text");
    // As it stands: a schema may be nested deeper than a tree of values is built, and hold halves of surrogate pairs.
    let _: &RawValue = serde_json::from_str(body).expect("JSON");
    let Ok(body) = serde_json::from_str::<Value>(body) else { return };
    let turns = body["messages"].as_array().expect("turns");
    assert!(!turns.is_empty());
    for (index, turn) in turns.iter().enumerate() {
        assert_eq!(turn["role"], if index % 2 == 0 { "user" } else { "assistant" });
        assert!(turn["content"].as_array().is_some_and(|blocks| !blocks.is_empty()));
    }
}

/// A whole answer: a failure, or JSON with one choice.
pub fn converse_answer(data: &[u8]) {
    let Ok(made) = completion(data, REPLY) else { return };
    let answer: Value = serde_json::from_slice(&made.body).expect("JSON");
    let choice = &answer["choices"][0];
    assert!(choice["message"]["content"].is_string() || choice["message"]["tool_calls"].is_array());
    assert_eq!(answer["usage"]["prompt_tokens"], made.usage.prompt_tokens);
}

/// A stream, a line an event (`messageStop {"stopReason":"end_turn"}`): the same in any split; well-formed events, the role first,
/// one reason at most, `[DONE]` at the end of an answer that ended well and nowhere else.
pub fn converse_stream(data: &[u8]) {
    let mut framed = Vec::new();
    for line in data.split(|byte| *byte == b'\n') {
        let space = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
        let (kind, payload) = (&line[..space], line.get(space + 1..).unwrap_or_default());
        let mut headers = Vec::new();
        let exception = kind.ends_with(b"Exception");
        let (name, message_type) = if exception { (":exception-type", "exception") } else { (":event-type", "event") };
        for (name, value) in [(name, kind), (":message-type", message_type.as_bytes())] {
            let value = &value[..value.len().min(200)];
            headers.extend([name.len() as u8]);
            headers.extend(name.bytes());
            headers.extend([7, 0, value.len() as u8]);
            headers.extend(value);
        }
        framed.extend(frame(&headers, payload));
    }
    for delivery in [Delivery::Streamed, Delivery::StreamedWithUsage] {
        let whole = streamed(&[&framed], delivery);
        well_formed(&whole.0, &whole.1);
        for parts in splits(&framed) {
            assert_eq!(streamed(&parts, delivery), whole, "split");
        }
    }
}

fn streamed(parts: &[&[u8]], delivery: Delivery) -> (String, Result<(), String>) {
    let (mut stream, mut out) = (ChatStream::new(REPLY, delivery, FRAME_BYTES_MAX), Vec::new());
    let fed = parts.iter().try_for_each(|part| stream.feed(part, &mut out));
    let result = fed.and_then(|()| stream.end(&mut out)).map_err(|failure| failure.to_string());
    (String::from_utf8(out).expect("text"), result)
}

fn well_formed(events: &str, result: &Result<(), String>) {
    let mut events: Vec<&str> = events.split_terminator("\n\n").collect();
    let done = events.last() == Some(&"data: [DONE]");
    assert!(done || result.is_err(), "an answer ends with [DONE] or a failure");
    if done {
        events.pop();
    }
    let (mut reasons, mut choices) = (0, 0);
    for event in events {
        let chunk: Value = serde_json::from_str(event.strip_prefix("data: ").expect("data")).expect("JSON");
        for choice in chunk["choices"].as_array().expect("choices") {
            assert_eq!(choice["delta"]["role"].is_string(), choices == 0, "the role first, and once");
            choices += 1;
            reasons += usize::from(choice["finish_reason"].is_string());
        }
    }
    assert!(reasons <= 1 && (!done || reasons == 1), "{reasons} reasons");
}
