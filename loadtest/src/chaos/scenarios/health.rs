//! Endpoints that die, fail, are slow, and come back.

use std::time::{Duration, Instant};

use engine::Outcome;

use super::super::stage::{Judged, Stage, Which, ensure, eventually, expect_chat, fail};

/// A repaired engine must be in use again within so much patience.
const BACK_PATIENCE: f64 = 1.5;
/// Time between two requests while waiting for that.
const PACE: Duration = Duration::from_millis(25);

/// Sends requests, all of which must be answered, until engine 0 has got one.
pub(crate) fn expect_back(stage: &mut Stage<'_>) -> Judged {
    stage.forget();
    let back_max = stage.plan.patience.mul_f64(BACK_PATIENCE);
    let start = Instant::now();
    while start.elapsed() < back_max {
        // Both at once, so that one engine alone is not always the better choice.
        for answer in stage.burst(&[stage.whole(2), stage.whole(2)]) {
            let (answer, _) = answer?;
            expect_chat(&answer, 2)?;
        }
        if !stage.asked(0).is_empty() {
            return Ok(format!("used again after {} ms", start.elapsed().as_millis()));
        }
        std::thread::sleep(PACE);
    }
    fail(format!("not used again within {} s", back_max.as_secs_f64()))
}

/// A killed engine is left out and used again by itself when it is back.
pub(crate) fn dead_and_back(stage: &mut Stage<'_>) -> Judged {
    stage.kill(0);
    for number in 1..=20 {
        let answer = stage.chat("", &stage.whole(2))?;
        expect_chat(&answer, 2).map_err(|_| format!("while it is dead, request {number}: {}", answer.brief()))?;
    }
    stage.revive(0).map_err(|error| format!("the engine did not start again: {error}"))?;
    expect_back(stage)
}

/// An engine that answers nothing but 500 is left out after some time, and used again when it is well.
pub(crate) fn failing_and_back(stage: &mut Stage<'_>) -> Judged {
    const REQUESTS_MAX: usize = 100;
    /// Requests in a row without asking the failing engine that count as left out.
    const LEFT_OUT: usize = 8;
    stage.fault(Which::One(0), "status=500")?;
    let (mut spared, mut last) = (0, 0);
    for _ in 0..REQUESTS_MAX {
        // A 500 reaches the client; that is not judged here.
        stage.chat("", &stage.whole(2))?;
        let asked = stage.asked(0).len();
        spared = if asked == last { spared + 1 } else { 0 };
        last = asked;
        if spared == LEFT_OUT && last > 0 {
            break;
        }
    }
    ensure(spared >= LEFT_OUT, || format!("{last} of {REQUESTS_MAX} requests went to an engine that always fails"))?;
    stage.repair();
    expect_back(stage)
}

/// Errors that the client has caused neither take an engine out nor are they tried again.
pub(crate) fn client_errors_do_not_count(stage: &mut Stage<'_>) -> Judged {
    const REQUESTS: usize = 40;
    for status in [400, 404, 422] {
        stage.forget();
        stage.fault(Which::One(0), &format!("status={status}"))?;
        for _ in 0..REQUESTS {
            let answer = stage.chat("", &stage.whole(2))?;
            ensure(answer.status == 200 || answer.status == status, || answer.brief())?;
        }
        let asked = stage.asked_any().len();
        ensure(asked == REQUESTS, || format!("{status}: the engines had {asked} requests for {REQUESTS}"))?;
        stage.repair();
    }
    stage.forget();
    super::spread::expect_spread(stage)
}

/// An engine that thinks long delays only those who wait for it.
pub(crate) fn slow_endpoint(stage: &mut Stage<'_>) -> Judged {
    const REQUESTS: usize = 32;
    // Slower than any other request, and not so slow that the proxy gives it up.
    let slow_max = stage.plan.patience / 4;
    let slow_time = stage.plan.first_byte_timeout.map_or(slow_max, |limit| slow_max.min(limit / 2));
    stage.fault(Which::One(0), &format!("delay-head={}", slow_time.as_millis()))?;
    let bodies: Vec<String> = (0..REQUESTS).map(|_| stage.whole(2)).collect();
    let (mut slow, mut fast_max) = (0, Duration::ZERO);
    for answer in stage.burst(&bodies) {
        let (answer, took) = answer?;
        expect_chat(&answer, 2)?;
        if took >= slow_time { slow += 1 } else { fast_max = fast_max.max(took) }
    }
    let asked = stage.asked(0).len();
    ensure(slow <= asked, || format!("{slow} requests were slow, but only {asked} had the slow engine"))?;
    ensure(slow < REQUESTS, || "every request had the slow engine".to_owned())?;
    Ok(format!("{} others took {} ms at most", REQUESTS - slow, fast_max.as_millis()))
}

/// An engine that never answers is given up after the time the proxy was told to wait.
pub(crate) fn first_byte_timeout(stage: &mut Stage<'_>) -> Judged {
    let Some(limit) = stage.plan.first_byte_timeout else {
        return Err(super::super::stage::Miss::NotApplicable(
            "needs --first-byte-timeout, the time that the proxy is set to wait".to_owned(),
        ));
    };
    stage.fault(Which::All, "hang-before-head")?;
    let start = Instant::now();
    let mut client = stage.begin("", &stage.whole(2))?;
    // Every engine may be tried.
    client.patience(limit * 3 + stage.plan.patience);
    let answer = client.answer().map_err(|trouble| trouble.to_string())?;
    let took = start.elapsed();
    ensure(answer.status == 504 || answer.status == 502, || format!("expected 504, got {}", answer.brief()))?;
    ensure(took >= limit / 2, || format!("given up after {} ms already", took.as_millis()))?;
    let stopped = || stage.asked_any().iter().all(|record| record.outcome == Outcome::Aborted);
    ensure(eventually(stage.plan.patience / 4, stopped).is_some(), || "the engine is still working".to_owned())?;
    Ok(format!("{} after {} ms", answer.status, took.as_millis()))
}
