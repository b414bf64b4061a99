//! Failures before the first byte: tried elsewhere, once, and nothing is done twice.

use std::time::Duration;

use super::super::stage::{Judged, Miss, Stage, Which, ensure, eventually, expect_chat, expect_stream, fail};

/// Requests until the broken engine must have been asked.
const REQUESTS_MAX: usize = 60;
/// Engines that are no longer busy must be in use again within this time, or more where more patience is asked for.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// One engine fails so; no client may notice.
fn is_tried_elsewhere(stage: &Stage<'_>, faults: &str) -> Result<(), Miss> {
    stage.fault(Which::One(0), faults)?;
    for number in 0..REQUESTS_MAX {
        let seen = |miss| match miss {
            Miss::Fail(why) => Miss::Fail(format!("{faults}, request {}: {why}", number + 1)),
            Miss::NotApplicable(why) => Miss::NotApplicable(why),
        };
        let judged = if number % 2 == 0 {
            stage.chat("", &stage.whole(2)).and_then(|answer| expect_chat(&answer, 2))
        } else {
            stage.chat("", &stage.stream(2)).and_then(|answer| expect_stream(&answer))
        };
        judged.map_err(seen)?;
        // One more than the first: the second may come as a probe.
        if stage.asked(0).len() >= 2 || (number > 20 && !stage.asked(0).is_empty()) {
            return Ok(());
        }
    }
    if stage.asked(0).is_empty() {
        // A proxy that goes by the prompts or by the past may leave it out: then nothing was shown, neither way.
        return Err(Miss::NotApplicable(format!("{faults}: the engine was not asked in {REQUESTS_MAX} requests")));
    }
    Ok(())
}

pub(crate) fn reset_before_the_head(stage: &mut Stage<'_>) -> Judged {
    is_tried_elsewhere(stage, "reset-before-head")?;
    Ok(String::new())
}

pub(crate) fn close_before_the_head(stage: &mut Stage<'_>) -> Judged {
    is_tried_elsewhere(stage, "close-before-head")?;
    Ok(String::new())
}

pub(crate) fn busy_503(stage: &mut Stage<'_>) -> Judged {
    is_tried_elsewhere(stage, "status=503")?;
    Ok(String::new())
}

pub(crate) fn busy_429(stage: &mut Stage<'_>) -> Judged {
    is_tried_elsewhere(stage, "status=429/1")?;
    Ok(String::new())
}

pub(crate) fn bad_gateway_502(stage: &mut Stage<'_>) -> Judged {
    is_tried_elsewhere(stage, "status=502")?;
    Ok(String::new())
}

pub(crate) fn connection_refused(stage: &mut Stage<'_>) -> Judged {
    stage.kill(0);
    for number in 1..=20 {
        let answer = stage.chat("", &stage.whole(2))?;
        expect_chat(&answer, 2).map_err(|_| format!("request {number}: {}", answer.brief()))?;
    }
    Ok(String::new())
}

/// All engines are busy: the client hears so soon, and the engines are not asked over and over.
pub(crate) fn all_busy(stage: &mut Stage<'_>) -> Judged {
    /// Attempts at most for one request.
    const ATTEMPTS_MAX: usize = 4;
    const REQUESTS: usize = 10;
    let mut most = 0;
    for (faults, status) in [("status=503", 503), ("status=429/7", 429)] {
        stage.fault(Which::All, faults)?;
        for _ in 0..REQUESTS {
            stage.forget();
            let answer = stage.chat("", &stage.whole(2))?;
            ensure([status, 502, 503].contains(&answer.status), || format!("{faults}: {}", answer.brief()))?;
            let attempts = stage.asked_any().len();
            ensure(attempts <= ATTEMPTS_MAX, || format!("{faults}: {attempts} attempts for one request"))?;
            most = most.max(attempts);
        }
        stage.repair();
    }
    let used = || stage.chat("", &stage.whole(2)).is_ok_and(|answer| expect_chat(&answer, 2).is_ok());
    let busy_max = stage.plan.patience.max(BUSY_MAX);
    match eventually(busy_max, used) {
        Some(after) => Ok(format!("{most} attempts at most, used again after {} ms", after.as_millis())),
        None => fail(format!("not used again {} s after they were busy", busy_max.as_secs())),
    }
}

/// Engines close kept connections at the moment the next request comes; no client may notice, nothing is done twice.
pub(crate) fn keep_alive_race(stage: &mut Stage<'_>) -> Judged {
    const REQUESTS: usize = 30;
    for faults in ["close-on-reuse", "close-after"] {
        stage.forget();
        stage.fault(Which::All, faults)?;
        for number in 1..=REQUESTS {
            let answer = stage.chat("", &stage.whole(2))?;
            expect_chat(&answer, 2).map_err(|_| format!("{faults}, request {number}: {}", answer.brief()))?;
        }
        let asked = stage.asked_any().len();
        ensure(asked == REQUESTS, || format!("{faults}: the engines had {asked} requests for {REQUESTS}"))?;
        stage.repair();
    }
    Ok(String::new())
}
