//! Requests that must be refused: readable for an honest client, without effect for a dishonest one.

use std::time::Instant;

use super::super::{
    client::Client,
    stage::{CHAT, Judged, Miss, Stage, ensure, expect_chat, fail},
};

/// A body larger than the usual limits of gateways, smaller than what the engine takes.
const TOO_LARGE_BYTES: usize = 48 << 20;
/// Bytes that a client sends on after the proxy has answered, before it reads.
const SENT_ON_BYTES: usize = 256 << 10;
/// Bytes of filling sent at once.
const PIECE_BYTES: usize = 64 << 10;

/// How the sending of a large body went.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// All of it.
    Whole,
    /// The proxy has answered before.
    Answered,
    /// The connection broke; an answer may be there all the same.
    Broken,
}

/// Sends filling until the proxy says something, then a little more; `piece` is filling in its framing.
fn send_until_answered(stage: &Stage<'_>, client: &mut Client, piece: &[u8], pieces: usize) -> Result<Sent, Miss> {
    let start = Instant::now();
    let mut sent_on = 0;
    for number in 0..pieces {
        if client.has_news() {
            sent_on += piece.len();
        }
        if sent_on > SENT_ON_BYTES {
            return Ok(Sent::Answered);
        }
        if client.send(piece).is_err() {
            return Ok(Sent::Broken);
        }
        if start.elapsed() > stage.plan.patience {
            return fail(format!(
                "only {} MiB were taken in {} s",
                (number * piece.len()) >> 20,
                start.elapsed().as_secs()
            ));
        }
    }
    Ok(Sent::Whole)
}

fn expect_413(stage: &Stage<'_>, mut client: Client, sent: Sent) -> Judged {
    let remark = match sent {
        Sent::Whole => "read after sending all",
        Sent::Answered => "read while sending",
        Sent::Broken => "read after sending had failed",
    };
    let answer = client.answer().map_err(|trouble| format!("{trouble}, {remark}"))?;
    if answer.status == 200 {
        return Err(Miss::NotApplicable(format!("bodies of {} MiB are accepted", TOO_LARGE_BYTES >> 20)));
    }
    ensure(answer.status == 413, || format!("expected 413, got {}", answer.brief()))?;
    ensure(answer.json()["error"]["message"].is_string(), || format!("not a JSON error: {}", answer.brief()))?;
    ensure(stage.asked_any().is_empty(), || "it has reached an engine".to_owned())?;
    drop(client);
    expect_chat(&stage.chat("", &stage.whole(2))?, 2)?;
    Ok(remark.to_owned())
}

/// A body announced as too large is refused in JSON while the client is still sending.
pub(crate) fn too_large_with_length(stage: &mut Stage<'_>) -> Judged {
    let start = stage.body(2, r#","metadata":""#);
    let start = start.strip_suffix('}').unwrap_or(&start);
    let piece = [b'x'; PIECE_BYTES];
    let pieces = TOO_LARGE_BYTES / PIECE_BYTES;
    let bytes = start.len() + pieces * PIECE_BYTES + 2;
    let headers = format!("content-type: application/json\r\ncontent-length: {bytes}\r\n");
    let mut client = stage.client()?;
    let head = stage.head("POST", CHAT, &headers);
    client.send(format!("{head}{start}").as_bytes()).map_err(|error| error.to_string())?;
    let sent = send_until_answered(stage, &mut client, &piece, pieces)?;
    if sent == Sent::Whole {
        // May fail when the proxy has answered at the last moment.
        let _ = client.send(b"\"}");
    }
    expect_413(stage, client, sent)
}

/// The same without a length in advance.
pub(crate) fn too_large_in_chunks(stage: &mut Stage<'_>) -> Judged {
    let start = stage.body(2, r#","metadata":""#);
    let start = start.strip_suffix('}').unwrap_or(&start);
    let headers = "content-type: application/json\r\ntransfer-encoding: chunked\r\n";
    let mut client = stage.client()?;
    let head = stage.head("POST", CHAT, headers);
    client.send(format!("{head}{:x}\r\n{start}\r\n", start.len()).as_bytes()).map_err(|error| error.to_string())?;
    let piece = format!("{PIECE_BYTES:x}\r\n{}\r\n", "x".repeat(PIECE_BYTES));
    let sent = send_until_answered(stage, &mut client, piece.as_bytes(), TOO_LARGE_BYTES / PIECE_BYTES)?;
    if sent == Sent::Whole {
        // As above.
        let _ = client.send(b"2\r\n\"}\r\n0\r\n\r\n");
    }
    expect_413(stage, client, sent)
}

/// What follows a head that two parsers may read in two ways: a request of its own if the guess is right.
fn smuggled(stage: &Stage<'_>) -> String {
    stage.head("GET", "/chaos-smuggled", "")
}

/// Heads and bodies that two parsers may read differently (RFC 9112, sections 5.1, 6.1, 6.3 and 7.1), each followed by
/// a request hidden in what one of the two takes for the body.
fn ambiguous(stage: &Stage<'_>) -> Vec<(&'static str, String)> {
    let hidden = smuggled(stage);
    let length = hidden.len() + 5;
    let post = |headers: &str, rest: &str| format!("{}{rest}", stage.head("POST", CHAT, headers));
    vec![
        (
            "length and chunked",
            post(&format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n"), &format!("0\r\n\r\n{hidden}")),
        ),
        ("two lengths", post(&format!("content-length: 0\r\ncontent-length: {length}\r\n"), &hidden)),
        ("a list of lengths", post(&format!("content-length: 0, {length}\r\n"), &hidden)),
        ("a signed length", post("content-length: +0\r\n", &hidden)),
        ("space before the colon", post("content-length: 0\r\ntransfer-encoding : chunked\r\n", &hidden)),
        ("chunked is not last", post("transfer-encoding: chunked, identity\r\n", &format!("0\r\n\r\n{hidden}"))),
        ("an unknown coding", post("transfer-encoding: xchunked\r\n", &format!("0\r\n\r\n{hidden}"))),
        ("a bad chunk size", post("transfer-encoding: chunked\r\n", &format!("0x0\r\n\r\n{hidden}"))),
        ("a signed chunk size", post("transfer-encoding: chunked\r\n", &format!("+0\r\n\r\n{hidden}"))),
        ("a chunk longer than said", post("transfer-encoding: chunked\r\n", &format!("1\r\nxx\r\n0\r\n\r\n{hidden}"))),
        (
            "a chunk size beyond all bounds",
            post("transfer-encoding: chunked\r\n", &format!("10000000000000000\r\n\r\n0\r\n\r\n{hidden}")),
        ),
        ("a folded header line", post("content-length: 0\r\n transfer-encoding: chunked\r\n", &hidden)),
        ("a bare CR in a value", post("x-a: b\rcontent-length: 5\r\ncontent-length: 0\r\n", &hidden)),
    ]
}

/// Each is refused with a 4xx (or 501) and the connection closed; nothing hidden reaches an engine.
pub(crate) fn smuggling(stage: &mut Stage<'_>) -> Judged {
    let cases = ambiguous(stage);
    let mut wrong = Vec::new();
    for (name, request) in &cases {
        let mut client = stage.client()?;
        // A proxy may refuse and close before everything is sent.
        let _ = client.send(request.as_bytes());
        match client.answer() {
            Ok(answer) if matches!(answer.status, 400..=499 | 501) => {
                client.patience(stage.plan.patience / 4);
                if !client.is_closed() {
                    wrong.push(format!("{name}: the connection goes on"));
                }
            }
            Ok(answer) => wrong.push(format!("{name}: {}", answer.status)),
            Err(super::super::client::Trouble::Closed | super::super::client::Trouble::Reset) => {}
            Err(trouble) => wrong.push(format!("{name}: {trouble}")),
        }
        if stage.asked_any().iter().any(|record| record.path.starts_with("/chaos")) {
            return fail(format!("{name}: the hidden request has reached an engine"));
        }
    }
    expect_chat(&stage.chat("", &stage.whole(2))?, 2)?;
    ensure(wrong.is_empty(), || wrong.join("; "))?;
    Ok(format!("{} heads and bodies", cases.len()))
}

/// Heads beyond all bounds are refused, and nobody else notices.
pub(crate) fn oversized_head(stage: &mut Stage<'_>) -> Judged {
    let many: String = (0..5000).map(|number| format!("x-{number}: {number}\r\n")).collect();
    let long = format!("x-long: {}\r\n", "y".repeat(2 << 20));
    for (name, headers) in [("5000 headers", many), ("2 MiB", long)] {
        let request = stage.chat_request(&headers, &stage.whole(2));
        match stage.ask(&request) {
            Ok(answer) => ensure((400..500).contains(&answer.status), || format!("{name}: {}", answer.brief()))?,
            // A reset may overtake the refusal while we send.
            Err(Miss::Fail(why)) if why.contains("sending failed") || why.contains("reset") => {}
            Err(miss) => return Err(miss),
        }
        ensure(stage.asked_any().is_empty(), || format!("{name}: it has reached an engine"))?;
        expect_chat(&stage.chat("", &stage.whole(2))?, 2)?;
        stage.forget();
    }
    Ok(String::new())
}
