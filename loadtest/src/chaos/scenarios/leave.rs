//! Clients that go away: the engine must stop working for them.

use std::time::Duration;

use engine::Outcome;

use super::super::{
    client::Client,
    stage::{CHAT, Judged, Miss, Stage, Which, ensure, eventually, expect_chat, fail},
};

/// The engine must hear of it within this time: a second of the usual patience. A proxy that passes it on does so at once; the
/// rest is for a busy machine.
fn gone_max(stage: &Stage<'_>) -> Duration {
    stage.plan.patience / 8
}

/// Tokens of an answer that nobody waits for: it would take a minute.
const LONG_TOKENS: u32 = 30_000;

/// How a client leaves.
#[derive(Clone, Copy)]
enum Exit {
    Close,
    Reset,
}

fn leave(client: Client, exit: Exit) {
    match exit {
        Exit::Close => drop(client),
        Exit::Reset => client.reset(),
    }
}

/// Waits for the engine to have a request.
fn expect_asked(stage: &Stage<'_>) -> Result<(), Miss> {
    let asked = eventually(stage.plan.patience, || !stage.asked_any().is_empty());
    ensure(asked.is_some(), || "the request has not reached an engine".to_owned())
}

/// All of the scenario's requests must be known to be aborted in time.
fn expect_aborted(stage: &Stage<'_>) -> Judged {
    let aborted = || stage.asked_any().iter().all(|record| record.outcome == Outcome::Aborted);
    match eventually(gone_max(stage), aborted) {
        Some(after) => Ok(format!("the engine stopped after {} ms", after.as_millis())),
        None => fail(format!("the engine still works {} ms after the client has left", gone_max(stage).as_millis())),
    }
}

fn within_a_stream(stage: &Stage<'_>, exit: Exit) -> Judged {
    let mut client = stage.begin("", &stage.stream(LONG_TOKENS))?;
    let answer = client.answer_until(|answer| answer.events().len() >= 3);
    let answer = answer.map_err(|trouble| trouble.to_string())?;
    ensure(answer.events().len() >= 3, || format!("no events: {}", answer.brief()))?;
    leave(client, exit);
    expect_aborted(stage)
}

pub(crate) fn close_within_a_stream(stage: &mut Stage<'_>) -> Judged {
    within_a_stream(stage, Exit::Close)
}

pub(crate) fn reset_within_a_stream(stage: &mut Stage<'_>) -> Judged {
    within_a_stream(stage, Exit::Reset)
}

/// Engines that are silent before the head, and after some events.
pub(crate) fn leave_a_silent_engine(stage: &mut Stage<'_>) -> Judged {
    let mut remark = String::new();
    for fault in ["hang-before-head", "hang-mid-stream=2"] {
        for exit in [Exit::Close, Exit::Reset] {
            stage.forget();
            stage.fault(Which::All, fault)?;
            let client = stage.begin("", &stage.stream(20))?;
            expect_asked(stage)?;
            leave(client, exit);
            remark = expect_aborted(stage).map_err(|miss| match miss {
                Miss::Fail(why) => Miss::Fail(format!("{fault}: {why}")),
                Miss::NotApplicable(why) => Miss::NotApplicable(why),
            })?;
            stage.repair();
        }
    }
    Ok(remark)
}

pub(crate) fn leave_before_an_unstreamed_answer(stage: &mut Stage<'_>) -> Judged {
    let client = stage.begin("", &stage.whole(LONG_TOKENS))?;
    expect_asked(stage)?;
    leave(client, Exit::Close);
    expect_aborted(stage)
}

/// Half a body, then a close: no engine may take it for a request.
pub(crate) fn leave_within_the_request(stage: &mut Stage<'_>) -> Judged {
    let request = stage.chat_request("", &stage.whole(3));
    let mut client = stage.client()?;
    client.send(&request[..request.len() - 10]).map_err(|error| format!("sending failed: {error}"))?;
    leave(client, Exit::Close);
    let answer = stage.chat("", &stage.whole(3))?;
    expect_chat(&answer, 3)?;
    let asked = stage.asked_any().len();
    ensure(asked == 1, || format!("{asked} requests have reached the engines instead of the one that was whole"))?;
    Ok(String::new())
}

/// Many clients leave at every point; afterwards nothing is running, and nobody is taken for busy.
pub(crate) fn load_after_aborts(stage: &mut Stage<'_>) -> Judged {
    const CLIENTS: usize = 40;
    stage.fault(Which::All, "delay-first-token=100")?;
    let mut clients = Vec::with_capacity(CLIENTS);
    for number in 0..CLIENTS {
        let body = if number % 2 == 0 { stage.stream(LONG_TOKENS) } else { stage.whole(LONG_TOKENS) };
        let client = stage.begin("", &body)?;
        match number % 4 {
            0 => leave(client, Exit::Reset),
            1 => leave(client, Exit::Close),
            _ => clients.push(client),
        }
    }
    expect_asked(stage)?;
    clients.into_iter().for_each(|client| leave(client, Exit::Close));
    expect_aborted(stage)?;
    stage.repair();
    stage.forget();
    let remark = super::spread::expect_spread(stage)?;
    // Requests of clients that had left before the proxy read them may have come late, and must have ended as well.
    let idle = eventually(gone_max(stage), || stage.in_progress() == 0);
    ensure(idle.is_some(), || format!("{} requests of clients that have left still run", stage.in_progress()))?;
    Ok(remark)
}

/// A client that does not read holds up nobody else, and gets everything when it reads at last.
pub(crate) fn slow_reader(stage: &mut Stage<'_>) -> Judged {
    const PAD_BYTES: usize = 8 << 20;
    stage.fault(Which::All, &format!("huge-chunk={PAD_BYTES}"))?;
    let mut slow = stage.begin("", &stage.stream(3))?;
    expect_asked(stage)?;
    stage.repair();
    let mut worst = Duration::ZERO;
    for _ in 0..10 {
        let start = std::time::Instant::now();
        expect_chat(&stage.chat("", &stage.whole(3))?, 3)?;
        worst = worst.max(start.elapsed());
    }
    ensure(worst < gone_max(stage), || format!("another client waited {} ms", worst.as_millis()))?;
    let answer = slow.answer().map_err(|trouble| trouble.to_string())?;
    ensure(answer.is_done() && answer.body.len() > PAD_BYTES, || {
        format!("the slow client got {} bytes, {:?}", answer.body.len(), answer.ending)
    })?;
    Ok(format!("others waited {} ms at most", worst.as_millis()))
}

/// What a client does not read must stay at the engine and not pile up in the proxy.
pub(crate) fn back_pressure(stage: &mut Stage<'_>) -> Judged {
    /// Far more than the socket buffers of two connections hold.
    const PAD_BYTES: usize = 60 << 20;
    stage.fault(Which::All, &format!("huge-chunk={PAD_BYTES}"))?;
    let mut client = stage.client()?;
    client.send(&stage.post(CHAT, "", stage.stream(3).as_bytes())).map_err(|error| error.to_string())?;
    expect_asked(stage)?;
    let gone_on = eventually(stage.plan.patience / 4, || stage.in_progress() == 0);
    ensure(gone_on.is_none(), || format!("{} MiB went into the proxy while the client did not read", PAD_BYTES >> 20))?;
    Ok(String::new())
}
