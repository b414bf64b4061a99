//! Request bodies: what the client sends is what the engine gets.

use std::time::Duration;

use engine::RequestRecord;

use super::super::stage::{CHAT, Judged, Miss, Stage, difference, ensure, expect_chat, fail};

/// The one request that has reached the engines.
pub(super) fn only_request(stage: &Stage<'_>) -> Result<RequestRecord, Miss> {
    let mut asked = stage.asked_any();
    match (asked.pop(), asked.len()) {
        (Some(record), 0) => Ok(record),
        (_, more) => {
            fail(format!("{} requests have reached the engines instead of 1", if more == 0 { 0 } else { more + 1 }))
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(70).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Sends a body and compares bytes at the engine, and the status with the one the engine gives without the proxy.
fn expect_verbatim(stage: &mut Stage<'_>, body: &str) -> Result<(), Miss> {
    stage.forget();
    let request = stage.post(CHAT, "", body.as_bytes());
    let through = stage.ask(&request)?;
    let record = match only_request(stage) {
        Ok(record) => record,
        Err(_) => return fail(format!("{} did not reach the engine: {}", short(body), through.brief())),
    };
    ensure(record.body == body, || format!("the body differs {}", difference(body, &record.body)))?;
    let direct = stage.direct(0, &request)?;
    ensure(through.status == direct.status, || {
        format!("{}: {} instead of the engine's {}", short(body), through.brief(), direct.status)
    })
}

/// Members that no gateway has to understand, after a body that every engine does.
const ODD_MEMBERS: [&str; 14] = [
    r#""temperature":null,"stop":null,"tools":null,"user":null"#,
    r#""unknown_field":{"a":[1,2,{"b":null}]}"#,
    r#""user":12345"#,
    r#""user":{"id":"x"}"#,
    r#""metadata":{"model":"another","stream":true}"#,
    r#""chat_template_kwargs":{"enable_thinking":false}"#,
    r#""stream":null"#,
    r#""stream":"yes""#,
    r#""stream_options":null"#,
    r#""priority":"high""#,
    r#""cache_salt":17"#,
    r#""logit_bias":{"50256":-100}"#,
    r#""tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"tool_choice":"auto""#,
    r#""":"","\u0000":"\u0000","é😀":"é😀""#,
];

/// Unknown, null and oddly typed members pass unchanged and are judged by the engine alone.
pub(crate) fn odd_members(stage: &mut Stage<'_>) -> Judged {
    for odd in ODD_MEMBERS {
        let body = stage.body(2, &format!(",{odd}"));
        expect_verbatim(stage, &body)?;
    }
    let model = stage.plan.model.clone();
    let messages = [
        r#"{"role":"user","content":null}"#,
        r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:,x"}}]}"#,
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}"#,
        r#"{"role":"user","content":"a","name":null,"refusal":null,"extra":[]}"#,
        r#"{"role":"user","content":7}"#,
    ];
    for message in messages {
        expect_verbatim(stage, &format!(r#"{{"model":"{model}","messages":[{message}],"max_tokens":2}}"#))?;
    }
    Ok(format!("{} bodies", ODD_MEMBERS.len() + messages.len()))
}

/// Order, white space, escapes, numbers and duplicates stay.
pub(crate) fn bytes_stay(stage: &mut Stage<'_>) -> Judged {
    let model = stage.plan.model.clone();
    let bodies = [
        format!(
            "{{\n  \"max_tokens\" : 2 ,\r\n\t\"messages\":[{{\"content\":\"a\",\"role\":\"user\"}}],\"model\":\"{model}\"}}\n"
        ),
        format!(
            r#"{{"messages":[{{"role":"user","content":"\u0041\u00e9\/\ud83d\ude00\b"}}],"model":"{model}","max_tokens":2}}"#
        ),
        format!(
            r#"{{"model":"{model}","messages":[],"max_tokens":2,"seed":12345678901234567890123,"temperature":1.0,"top_p":1.00e0,"x":-0,"y":1E400}}"#
        ),
        format!(r#"{{"model":"{model}","messages":[],"max_tokens":3,"max_tokens":2,"stop":["a","a"]}}"#),
        format!(
            r#"{{"model":"{model}","messages":[{{"role":"user","content":"a"}}],"max_tokens":2,"stream":true,"stream_options":{{ "include_usage" :true}}}}"#
        ),
    ];
    for body in &bodies {
        expect_verbatim(stage, body)?;
    }
    Ok(format!("{} bodies", bodies.len()))
}

/// Half of a surrogate pair is no Unicode, and yet engines may take it.
pub(crate) fn lone_surrogates(stage: &mut Stage<'_>) -> Judged {
    let model = stage.plan.model.clone();
    for text in [r"\ud800", r"a\udc00b", r"\ud83d x \ude00"] {
        let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":2}}"#);
        expect_verbatim(stage, &body)?;
    }
    Ok(String::new())
}

/// A body without a readable model is refused in JSON, and never with a 5xx.
pub(crate) fn no_model(stage: &mut Stage<'_>) -> Judged {
    let bodies = [r#"{"messages":[],"max_tokens":2}"#, r#"{"model":7,"messages":[]}"#, "not json", "[]", ""];
    let mut forwarded = 0;
    for body in bodies {
        stage.forget();
        let answer = stage.ask(&stage.post(CHAT, "", body.as_bytes()))?;
        if !stage.asked_any().is_empty() {
            forwarded += 1;
            continue;
        }
        ensure((400..500).contains(&answer.status), || format!("{body:?}: {}", answer.brief()))?;
        ensure(answer.json()["error"]["message"].is_string(), || {
            format!("{body:?}: no JSON error: {}", answer.brief())
        })?;
    }
    if forwarded == bodies.len() {
        return Err(Miss::NotApplicable("the proxy does not read models: the engine answers".to_owned()));
    }
    ensure(forwarded == 0, || format!("{forwarded} of {} such bodies were sent to an engine", bodies.len()))?;
    Ok(String::new())
}

/// The model in the answer is the one that was asked for.
pub(crate) fn model_name(stage: &mut Stage<'_>) -> Judged {
    let model = stage.plan.model.clone();
    let answer = stage.chat("", &stage.whole(2))?;
    expect_chat(&answer, 2)?;
    ensure(answer.json()["model"] == *model, || format!("the answer names {}", answer.json()["model"]))?;
    let answer = stage.chat("", &stage.stream(3))?;
    let events = answer.events();
    let chunks = events.iter().filter(|event| event.as_str() != "[DONE]");
    let named = chunks.filter(|event| event.contains(&format!(r#""model":"{model}""#))).count();
    ensure(named > 0 && named + 1 == events.len(), || format!("{named} of {} events name the model", events.len()))?;
    let asked = stage.asked_any();
    ensure(asked.iter().all(|record| record.model.as_ref() == Some(&model)), || {
        "the engine saw another model".to_owned()
    })?;
    Ok(String::new())
}

/// Sends a body in chunks of this size.
fn chunked(stage: &Stage<'_>, body: &[u8], chunk_bytes: usize, end: &str) -> Vec<u8> {
    let headers = "content-type: application/json\r\ntransfer-encoding: chunked\r\n";
    let mut request = stage.head("POST", CHAT, headers).into_bytes();
    for chunk in body.chunks(chunk_bytes) {
        request.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(end.as_bytes());
    request
}

/// Chunked bodies reach the engine whole, framed in exactly one way.
pub(crate) fn chunked_bodies(stage: &mut Stage<'_>) -> Judged {
    for (chunk_bytes, pad_bytes, end) in [
        (1, 0, "0\r\n\r\n"),
        (7, 0, "0\r\n\r\n"),
        (100_000, 0, "000\r\nx-trailer: 1\r\n\r\n"),
        (5000, 300_000, "0\r\n\r\n"),
    ] {
        stage.forget();
        let body = stage.body(2, &format!(r#","metadata":"{}""#, "x".repeat(pad_bytes)));
        let answer = stage.ask(&chunked(stage, body.as_bytes(), chunk_bytes, end))?;
        expect_chat(&answer, 2).map_err(|_| format!("chunks of {chunk_bytes}: {}", answer.brief()))?;
        let record = only_request(stage)?;
        ensure(record.body == body, || {
            format!("chunks of {chunk_bytes}: the body differs {}", difference(&body, &record.body))
        })?;
        let framing = |name: &str| record.headers.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name)).count();
        let framings = (framing("content-length"), framing("transfer-encoding"));
        ensure(framings == (1, 0) || framings == (0, 1), || format!("lengths and encodings: {framings:?}"))?;
    }
    Ok(String::new())
}

/// A request that comes byte by byte is one like any other.
pub(crate) fn byte_by_byte(stage: &mut Stage<'_>) -> Judged {
    let body = stage.whole(2);
    for request in [stage.chat_request("", &body), chunked(stage, body.as_bytes(), 3, "0\r\n\r\n")] {
        stage.forget();
        let mut client = stage.client()?;
        for byte in &request {
            client.send(std::slice::from_ref(byte)).map_err(|error| format!("sending failed: {error}"))?;
            std::thread::sleep(Duration::from_micros(100));
        }
        let answer = client.answer().map_err(|trouble| trouble.to_string())?;
        expect_chat(&answer, 2)?;
        let record = only_request(stage)?;
        ensure(record.body == body, || format!("the body differs {}", difference(&body, &record.body)))?;
    }
    Ok(String::new())
}

/// Many large bodies at once are all answered: with 200, or a refusal that a client understands.
pub(crate) fn many_large_bodies(stage: &mut Stage<'_>) -> Judged {
    const BODIES: usize = 24;
    const BODY_BYTES: usize = 2 << 20;
    let pad = "x".repeat(BODY_BYTES);
    let bodies: Vec<String> = (0..BODIES).map(|_| stage.body(2, &format!(r#","metadata":"{pad}""#))).collect();
    let (mut whole, mut refused) = (0, 0);
    for answer in stage.burst(&bodies) {
        let (answer, _) = answer?;
        match answer.status {
            200 => {
                expect_chat(&answer, 2)?;
                whole += 1;
            }
            413 | 429 | 503 => refused += 1,
            _ => return fail(answer.brief()),
        }
    }
    let least = stage.asked_any().iter().map(|record| record.body_bytes).min();
    if whole == 0 {
        return Err(Miss::NotApplicable(format!("bodies of {} MiB are refused", BODY_BYTES >> 20)));
    }
    ensure(least.is_some_and(|least| least > BODY_BYTES as u64), || format!("a body of {least:?} bytes arrived"))?;
    expect_chat(&stage.chat("", &stage.whole(2))?, 2)?;
    Ok(format!("{whole} answered, {refused} refused"))
}

/// `data` as a gzip file (RFC 1952) of stored blocks (RFC 1951, section 3.2.4).
fn gzip(data: &[u8]) -> Vec<u8> {
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let blocks = data.chunks(usize::from(u16::MAX));
    let last = blocks.len().saturating_sub(1);
    for (number, block) in blocks.enumerate() {
        let bytes = u16::try_from(block.len()).unwrap_or(u16::MAX);
        file.push(u8::from(number == last));
        file.extend_from_slice(&bytes.to_le_bytes());
        file.extend_from_slice(&(!bytes).to_le_bytes());
        file.extend_from_slice(block);
    }
    let crc = data.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    });
    file.extend_from_slice(&(!crc).to_le_bytes());
    file.extend_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes());
    file
}

/// A gzip body arrives as it is and labelled, or decoded and not labelled, or is refused with 415.
pub(crate) fn gzip_body(stage: &mut Stage<'_>) -> Judged {
    let body = stage.whole(2);
    let packed = gzip(body.as_bytes());
    let answer = stage.ask(&stage.post(CHAT, "content-encoding: gzip\r\n", &packed))?;
    if answer.status == 415 && stage.asked_any().is_empty() {
        return Ok("refused with 415".to_owned());
    }
    let record = only_request(stage).map_err(|_| format!("it did not reach an engine: {}", answer.brief()))?;
    let labelled = record.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-encoding"));
    let remark = match (labelled, record.body == body, record.body == String::from_utf8_lossy(&packed)) {
        (false, true, _) => "decoded",
        (true, _, true) => "passed as it is",
        (_, decoded, same) => return fail(format!("labelled: {labelled}, decoded: {decoded}, unchanged: {same}")),
    };
    Ok(remark.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_files_have_the_check_sum_of_their_content() {
        let file = gzip(b"123456789");
        // The check value of CRC-32 (ISO 3309) and the length.
        assert_eq!(file[file.len() - 8..], [0x26, 0x39, 0xf4, 0xcb, 9, 0, 0, 0]);
        assert_eq!(file[10..24], *b"\x01\x09\x00\xf6\xff123456789");
    }
}
