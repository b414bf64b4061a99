//! Paths, header lines and the rules of HTTP/1.1 around them.

use super::super::stage::{CHAT, Judged, Miss, Stage, Which, ensure, expect_chat, expect_ok};
use super::body::only_request;

/// A trailing slash is the same path, and never a redirect: clients would lose the body.
pub(crate) fn trailing_slash(stage: &mut Stage<'_>) -> Judged {
    let answer = stage.ask(&stage.post(&format!("{CHAT}/"), "", stage.whole(2).as_bytes()))?;
    ensure(!(300..400).contains(&answer.status), || format!("a redirect: {}", answer.brief()))?;
    if answer.status == 404 && !stage.asked_any().is_empty() {
        return Err(Miss::NotApplicable("no redirect; the path is passed as it is, the engine says 404".to_owned()));
    }
    expect_chat(&answer, 2)?;
    Ok(String::new())
}

/// Paths that the proxy does not know are passed on.
pub(crate) fn unknown_paths(stage: &mut Stage<'_>) -> Judged {
    let body = stage.whole(2);
    for (method, path) in [("POST", "/v1/chaos/new-api"), ("POST", "/chaos"), ("GET", "/chaos/page?x=1")] {
        stage.forget();
        let request = if method == "POST" {
            stage.post(path, "", body.as_bytes())
        } else {
            stage.head(method, path, "").into_bytes()
        };
        let answer = stage.ask(&request)?;
        let record =
            only_request(stage).map_err(|_| format!("{method} {path} did not get through: {}", answer.brief()))?;
        ensure(path.starts_with(&record.path), || format!("{path} became {}", record.path))?;
        // The engine does not know them either.
        ensure(answer.status == 404 && answer.json()["detail"] == "Not Found", || {
            format!("{path}: {}", answer.brief())
        })?;
    }
    Ok(String::new())
}

/// What a client proves itself with is the proxy's business and not the engine's.
pub(crate) fn credentials(stage: &mut Stage<'_>) -> Judged {
    const SECRET: &str = "chaos-secret";
    let headers = format!(
        "authorization: Bearer {SECRET}\r\nx-api-key: {SECRET}\r\nproxy-authorization: Basic {SECRET}\r\ncookie: session={SECRET}\r\n"
    );
    expect_chat(&stage.chat(&headers, &stage.whole(2))?, 2)?;
    let record = only_request(stage)?;
    let leaked: Vec<_> =
        record.headers.iter().filter(|(_, value)| value.contains(SECRET)).map(|(name, _)| name.as_str()).collect();
    ensure(leaked.is_empty(), || format!("the engine sees {}", leaked.join(", ")))?;
    Ok(String::new())
}

/// A sane id is kept, sent on and returned; a missing or absurd one is made or replaced.
pub(crate) fn request_id(stage: &mut Stage<'_>) -> Judged {
    let long = "x".repeat(300);
    for (sent, kept) in [(Some("chaos-1234_5.6"), true), (None, false), (Some(long.as_str()), false)] {
        stage.forget();
        let headers = sent.map_or(String::new(), |id| format!("x-request-id: {id}\r\n"));
        let answer = stage.chat(&headers, &stage.whole(2))?;
        expect_chat(&answer, 2)?;
        let record = only_request(stage)?;
        let upstream = record.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-request-id"));
        let upstream = upstream.map(|(_, value)| value.as_str());
        let sent = sent.map_or("no id", |id| &id[..id.len().min(20)]);
        let Some(returned) = answer.header("x-request-id") else {
            return Err(Miss::Fail(format!("{sent}: the answer has no x-request-id")));
        };
        ensure(upstream == Some(returned), || {
            format!("{sent}: the client sees {returned:?}, the engine {upstream:?}")
        })?;
        ensure((returned == sent) == kept, || format!("{sent}: {returned:?} was returned"))?;
        let sane =
            !returned.is_empty() && returned.len() <= 128 && returned.bytes().all(|byte| byte.is_ascii_graphic());
        ensure(sane, || format!("{sent}: {} bytes were returned as id", returned.len()))?;
    }
    Ok(String::new())
}

/// A client that waits for `100 Continue` gets it at once (curl would otherwise wait a second, others for ever).
pub(crate) fn expect_continue(stage: &mut Stage<'_>) -> Judged {
    let body = stage.whole(2);
    let headers =
        format!("content-type: application/json\r\nexpect: 100-continue\r\ncontent-length: {}\r\n", body.len());
    let mut client = stage.client()?;
    client.send(stage.head("POST", CHAT, &headers).as_bytes()).map_err(|error| error.to_string())?;
    client.patience(stage.plan.patience / 4);
    let interim = client.interim().map_err(|trouble| format!("waiting for 100 Continue: {trouble}"))?;
    ensure(interim == 100, || format!("{interim} instead of 100 Continue"))?;
    client.patience(stage.plan.patience);
    client.send(body.as_bytes()).map_err(|error| error.to_string())?;
    let answer = client.answer().map_err(|trouble| trouble.to_string())?;
    expect_chat(&answer, 2)?;
    ensure(answer.interim.is_empty(), || format!("further interim answers: {:?}", answer.interim))?;
    Ok(String::new())
}

/// Several requests in one write are answered in their order.
pub(crate) fn pipelining(stage: &mut Stage<'_>) -> Judged {
    // The first takes longest, so that answers out of order would show.
    let tokens = [40, 3, 9, 1];
    let requests: Vec<u8> = tokens.iter().flat_map(|tokens| stage.chat_request("", &stage.whole(*tokens))).collect();
    let mut client = stage.client()?;
    client.send(&requests).map_err(|error| format!("sending failed: {error}"))?;
    for (at, tokens) in tokens.iter().enumerate() {
        let answer = client.answer().map_err(|trouble| format!("answer {}: {trouble}", at + 1))?;
        expect_chat(&answer, *tokens)?;
    }
    Ok(String::new())
}

/// One connection carries many requests, streamed or not, and stays usable after a refused one.
pub(crate) fn keep_alive(stage: &mut Stage<'_>) -> Judged {
    let mut client = stage.client()?;
    for number in 0..12 {
        let (body, tokens) = match number % 3 {
            0 => (stage.whole(2), Some(2)),
            1 => (stage.stream(2), None),
            _ => (stage.body(0, ""), None),
        };
        client.send(&stage.chat_request("", &body)).map_err(|error| format!("request {number}: {error}"))?;
        let answer = client.answer().map_err(|trouble| format!("request {number}: {trouble}"))?;
        match (number % 3, tokens) {
            (_, Some(tokens)) => expect_chat(&answer, tokens)?,
            (1, None) => expect_ok(&answer)?,
            (_, None) => ensure(answer.status == 400, || format!("expected the engine's 400, got {}", answer.brief()))?,
        }
    }
    Ok(String::new())
}

/// A client of HTTP/1.0 gets an answer without chunks, and the connection ends.
pub(crate) fn http_1_0(stage: &mut Stage<'_>) -> Judged {
    for (body, streamed) in [(stage.whole(2), Streamed::No), (stage.stream(2), Streamed::Yes)] {
        let request = String::from_utf8_lossy(&stage.chat_request("", &body)).replacen("HTTP/1.1", "HTTP/1.0", 1);
        let mut client = stage.client()?;
        client.send(request.as_bytes()).map_err(|error| format!("sending failed: {error}"))?;
        let answer = client.answer().map_err(|trouble| trouble.to_string())?;
        ensure(answer.header("transfer-encoding").is_none(), || "chunks for a client of HTTP/1.0".to_owned())?;
        match streamed {
            Streamed::No => expect_chat(&answer, 2)?,
            Streamed::Yes => ensure(answer.is_done(), || format!("no complete stream: {}", answer.brief()))?,
        }
        ensure(client.is_closed(), || "the connection goes on".to_owned())?;
    }
    Ok(String::new())
}

#[derive(Clone, Copy)]
enum Streamed {
    Yes,
    No,
}

/// Header lines for one hop end there, also those that `Connection` names (RFC 9110, section 7.6.1).
pub(crate) fn hop_by_hop(stage: &mut Stage<'_>) -> Judged {
    let headers = "connection: keep-alive, x-chaos-hop\r\nx-chaos-hop: 1\r\nkeep-alive: timeout=9\r\nte: trailers\r\n\
                   upgrade: h2c\r\nx-chaos-end: 1\r\n";
    expect_chat(&stage.chat(headers, &stage.whole(2))?, 2)?;
    let record = only_request(stage)?;
    let has = |name: &str| record.headers.iter().any(|(found, _)| found.eq_ignore_ascii_case(name));
    let passed: Vec<_> = ["x-chaos-hop", "keep-alive", "te", "upgrade"].into_iter().filter(|name| has(name)).collect();
    ensure(passed.is_empty(), || format!("passed on: {}", passed.join(", ")))?;
    ensure(has("x-chaos-end"), || "an ordinary header line was not passed on".to_owned())?;
    Ok(String::new())
}

/// What the engine says in its error answers reaches the client whole.
pub(crate) fn engine_errors_pass(stage: &mut Stage<'_>) -> Judged {
    for status in [400, 401, 404, 422, 500] {
        stage.fault(Which::All, &format!("status={status}"))?;
        let answer = stage.chat("", &stage.whole(2))?;
        stage.repair();
        ensure(answer.status == status, || format!("{status} became {}", answer.brief()))?;
        ensure(answer.json()["error"]["code"] == status, || format!("{status}: the body differs: {}", answer.brief()))?;
    }
    Ok(String::new())
}
