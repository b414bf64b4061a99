//! How requests are spread over the engines.

use super::super::stage::{Judged, Stage, Which, ensure, expect_chat};

/// Requests of a burst.
const BURST: usize = 32;
/// Smallest share of a burst that an engine may get, of what would be even.
const SHARE_MIN: f64 = 0.4;

/// A burst of different prompts must reach all engines.
pub(crate) fn expect_spread(stage: &Stage<'_>) -> Judged {
    // The requests overlap, so that those decided last meet the load of those decided first.
    stage.fault(Which::All, "delay-head=200")?;
    let bodies: Vec<String> = (0..BURST).map(|_| stage.whole(2)).collect();
    for answer in stage.burst(&bodies) {
        expect_chat(&answer?.0, 2)?;
    }
    stage.repair();
    let shares = stage.shares();
    let even = BURST as f64 / shares.len() as f64;
    let least = shares.iter().min().copied().unwrap_or(0);
    ensure(least as f64 >= even * SHARE_MIN, || format!("a burst of {BURST} was spread as {shares:?}"))?;
    Ok(format!("a burst of {BURST} was spread as {shares:?}"))
}

pub(crate) fn burst(stage: &mut Stage<'_>) -> Judged {
    expect_spread(stage)
}

/// An engine that was killed with streams running begins anew with no load, neither avoided nor flooded.
pub(crate) fn load_after_a_restart(stage: &mut Stage<'_>) -> Judged {
    const STREAMS: usize = 16;
    let mut clients = Vec::with_capacity(STREAMS);
    for _ in 0..STREAMS {
        let mut client = stage.begin("", &stage.stream(30_000))?;
        let answer = client.answer_until(|answer| !answer.events().is_empty());
        answer.map_err(|trouble| trouble.to_string())?;
        clients.push(client);
    }
    stage.kill(0);
    stage.revive(0).map_err(|error| format!("the engine did not start again: {error}"))?;
    drop(clients);
    super::health::expect_back(stage)?;
    stage.forget();
    expect_spread(stage)
}
