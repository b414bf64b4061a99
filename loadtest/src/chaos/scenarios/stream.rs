//! Streams: bytes and their times, cuts, silence.

use std::time::{Duration, Instant};

use super::super::{
    client::{Answer, Ending},
    stage::{Judged, Miss, Stage, Which, difference, ensure, eventually, expect_ok, expect_stream, fail},
};

/// Ways to write the same stream, all legal.
const VARIANTS: [&str; 9] = [
    "bare-data",
    "crlf-lines",
    "crlf-lines,bare-data",
    "byte-wise",
    "byte-wise,crlf-lines",
    "coalesce=4",
    "split-chunks=1",
    "split-chunks=7,crlf-lines",
    "huge-chunk=300000",
];

/// The body with what differs between two answers to one request made equal: ids, times, and how much of the prompt was cached.
fn comparable(answer: &Answer) -> String {
    let mut text = answer.text();
    for mark in ["\"id\":\"chatcmpl-", "\"created\":", "\"cached_tokens\":"] {
        let mut made = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(at) = rest.find(mark) {
            let (before, after) = rest.split_at(at + mark.len());
            made.push_str(before);
            rest = after.trim_start_matches(|c: char| !matches!(c, '"' | ',' | '}'));
        }
        made.push_str(rest);
        text = made;
    }
    text
}

/// The stream without its event of usage alone.
fn without_usage(text: &str) -> String {
    let blank = if text.contains("\r\n\r\n") { "\r\n\r\n" } else { "\n\n" };
    text.split_inclusive(blank).filter(|event| !event.contains(r#""choices":[]"#)).collect()
}

const ASKS_FOR_USAGE: &str = r#","stream_options":{"include_usage":true}"#;

/// Through the proxy a stream has the same bytes as without it.
fn expect_same(stage: &Stage<'_>, faults: &str) -> Result<(), Miss> {
    stage.fault(Which::All, faults)?;
    let unasked = stage.stream(9);
    let asked = format!("{}{ASKS_FOR_USAGE}}}", unasked.strip_suffix('}').unwrap_or(&unasked));
    let compared = |body: &str| -> Result<(String, String), Miss> {
        let request = stage.chat_request("", body);
        let (through, direct) = (stage.ask(&request)?, stage.direct(0, &request)?);
        ensure(through.status == direct.status && through.ending == direct.ending, || {
            format!("{faults}: {} instead of {}", through.brief(), direct.brief())
        })?;
        Ok((comparable(&through), comparable(&direct)))
    };
    let ((found, expected), (found_asked, expected_asked)) = (compared(&unasked)?, compared(&asked)?);
    stage.repair();
    ensure(found_asked == expected_asked, || format!("{faults}: {}", difference(&expected_asked, &found_asked)))?;
    // A proxy that wants to know the usage asks for it, takes it out, and leaves the rest as the engine wrote it.
    ensure(found == expected || found == without_usage(&expected_asked), || {
        format!("{faults}: {}", difference(&expected, &found))
    })
}

pub(crate) fn variants_are_byte_equal(stage: &mut Stage<'_>) -> Judged {
    for variant in VARIANTS {
        expect_same(stage, variant)?;
    }
    Ok(format!("{} variants", VARIANTS.len()))
}

/// What the engine says about itself in a stream that ends in good order is passed on, and nothing is added.
pub(crate) fn odd_ends_are_byte_equal(stage: &mut Stage<'_>) -> Judged {
    for faults in ["error-event=2", "error-event=0", "no-done", "no-usage"] {
        expect_same(stage, faults)?;
    }
    Ok(String::new())
}

/// Events pass while the engine is silent: nothing waits for more.
pub(crate) fn events_pass_at_once(stage: &mut Stage<'_>) -> Judged {
    const EVENTS: usize = 3;
    stage.fault(Which::All, &format!("hang-mid-stream={EVENTS}"))?;
    let start = Instant::now();
    let mut client = stage.begin("", &stage.stream(20))?;
    client.patience(stage.plan.patience / 4);
    let answer = client.answer_until(|answer| answer.events().len() == EVENTS);
    let events = answer.map_or(0, |answer| answer.events().len());
    ensure(events == EVENTS, || {
        format!("{events} of {EVENTS} events after {} ms; they wait in the proxy", start.elapsed().as_millis())
    })?;
    Ok(format!("after {} ms", start.elapsed().as_millis()))
}

/// A stream that was cut: the client can see it, nobody pretends, nobody tries again.
fn expect_honest_cut(stage: &mut Stage<'_>, faults: &str) -> Result<Ending, Miss> {
    stage.forget();
    stage.fault(Which::All, faults)?;
    let mut client = stage.begin("", &stage.stream(20))?;
    let answer = client.answer().map_err(|trouble| format!("{faults}: {trouble}"))?;
    stage.repair();
    ensure(!answer.is_done(), || format!("{faults}: [DONE] at the end of a stream that was cut off"))?;
    ensure(answer.ending == Ending::Truncated || answer.has_error_event(), || {
        format!("{faults}: no error event and no truncation, but {}", answer.brief())
    })?;
    // A second attempt would follow at once; give it the time.
    let again = eventually(Duration::from_millis(100), || stage.asked_any().len() > 1);
    ensure(again.is_none(), || format!("{faults}: the request was sent again after the answer had begun"))?;
    Ok(answer.ending)
}

pub(crate) fn cut_within_a_stream(stage: &mut Stage<'_>) -> Judged {
    let mut remark = "";
    for faults in ["reset-mid-stream=3", "early-end=3", "early-end=3,split-chunks=5", "reset-mid-stream=1"] {
        remark = match expect_honest_cut(stage, faults)? {
            Ending::Complete => "error event",
            Ending::Open | Ending::Truncated | Ending::Silent => "truncation",
        };
    }
    Ok(format!("by {remark}"))
}

/// Half a document is never passed off for a whole one.
pub(crate) fn cut_within_a_document(stage: &mut Stage<'_>) -> Judged {
    let mut remark = String::new();
    for faults in ["reset-mid-stream=0", "early-end=0"] {
        stage.fault(Which::All, faults)?;
        let answer = stage.chat("", &stage.whole(9));
        stage.repair();
        match answer {
            Ok(answer) if answer.status >= 500 => remark = format!("{}", answer.status),
            Ok(answer) if answer.ending == Ending::Truncated => remark = "truncation".to_owned(),
            Ok(answer) => return fail(format!("{faults}: {}", answer.brief())),
            Err(Miss::Fail(why)) if why.contains("no answer") => return fail(format!("{faults}: {why}")),
            Err(_) => remark = "close".to_owned(),
        }
    }
    Ok(format!("by {remark}"))
}

/// The client sees usage exactly when it has asked for it, and the requests ends right either way.
pub(crate) fn usage_only_when_asked_for(stage: &mut Stage<'_>) -> Judged {
    let cases = [
        ("", 0),
        (r#","stream_options":{"include_usage":false}"#, 0),
        (r#","stream_options":null"#, 0),
        (r#","stream_options":{}"#, 0),
        (r#","stream_options":{"include_usage":true}"#, 1),
        (r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#, 10),
    ];
    for (more, at_least) in cases {
        let answer = stage.chat("", &stage.body(9, &format!(r#","stream":true{more}"#)))?;
        expect_stream(&answer)?;
        let events = answer.events();
        let usages = events.iter().filter(|event| event.contains(r#""usage":{"#)).count();
        let right = if at_least == 0 { usages == 0 } else { usages >= at_least };
        ensure(right, || format!("{usages} events with usage for {more:?}"))?;
        let empty = events.iter().filter(|event| event.contains(r#""choices":[]"#)).count();
        ensure(empty == at_least.min(1), || format!("{empty} events without choices for {more:?}"))?;
    }
    Ok(String::new())
}

/// Silence before the head and within the answer, longer than careless idle limits.
pub(crate) fn silence_is_survived(stage: &mut Stage<'_>) -> Judged {
    let silence = stage.plan.silence;
    let mut waiting = Vec::new();
    for fault in ["delay-head", "delay-first-token"] {
        for body in [stage.stream(3), stage.whole(3)] {
            let before = stage.asked_any().len();
            stage.fault(Which::All, &format!("{fault}={}", silence.as_millis()))?;
            let mut client = stage.begin("", &body)?;
            let asked = eventually(stage.plan.patience, || stage.asked_any().len() > before);
            ensure(asked.is_some(), || "the request has not reached an engine".to_owned())?;
            stage.repair();
            client.patience(silence + stage.plan.patience);
            waiting.push((fault, client));
        }
    }
    for (fault, mut client) in waiting {
        let answer = client.answer().map_err(|trouble| format!("{fault}: {trouble}"))?;
        expect_ok(&answer)?;
        ensure(answer.is_done() || answer.json()["usage"].is_object(), || format!("{fault}: {}", answer.brief()))?;
    }
    Ok(format!("{} s", silence.as_secs_f64()))
}
