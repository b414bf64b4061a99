//! Whether one endpoint takes requests: a pure state machine over what probes and requests saw.
//!
//! ```text
//!              probe ok                          5 request failures in 10 s
//!   Unknown ------------> Ready -------------------------------------------> Ejected
//!      |                  ^   | refused, wrong answer, 3 time-outs              | 1 s, 2 s, 4 s ... 30 s
//!      v       probe ok   |   v                                                 v
//!    Down ----------------+  Down                                      Ready, on probation
//! ```
//!
//! Probes say whether an engine is there and has its model; they cannot say whether it completes requests. That is
//! what reported failures are for: after five of them within ten seconds, unless the engine's own counter shows that it
//! completes more than it fails, the endpoint is ejected for a growing time, then let back in on probation, where the
//! next failure ejects it again. Busy (429, 503) is never a failure, nor is a 403, which may be about the request. Where everybody is ejected, requests go there all the
//! same: a moment in which all engines stood still must not become an outage of our making.

use std::time::Duration;

use crate::mailbox::{Failure, Readiness};

/// Request failures within [`FAILURE_WINDOW`] that eject an endpoint.
pub(crate) const FAILURES_TO_EJECT: u32 = 5;
/// Older failures do not count.
pub(crate) const FAILURE_WINDOW: Duration = Duration::from_secs(10);
/// First time out after an ejection; doubles with each one in a row.
pub(crate) const EJECTION_MIN: Duration = Duration::from_secs(1);
/// Longest time out after an ejection.
pub(crate) const EJECTION_MAX: Duration = Duration::from_secs(30);
/// Between probes of a ready endpoint.
pub(crate) const PROBE_READY: Duration = Duration::from_secs(2);
/// First pause between probes of an endpoint that is not ready; doubles.
pub(crate) const PROBE_DOWN_MIN: Duration = Duration::from_millis(250);
/// Longest pause between probes of an endpoint that is not ready.
pub(crate) const PROBE_DOWN_MAX: Duration = Duration::from_secs(5);
/// Least time between two probes that failed requests ask for.
pub(crate) const PROBE_ASKED_MIN: Duration = Duration::from_millis(200);
/// Time-outs of probes in a row that take an endpoint out: a busy engine answers late, and taking
/// it out for that would only make the others busier.
pub(crate) const TIMEOUTS_TO_DOWN: u32 = 3;

/// What a probe saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Probed {
    /// It answers and has its models.
    Good,
    /// It does not; this is why.
    Bad(String),
    /// Nothing came in time.
    Late(String),
}

/// Whether an endpoint is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probing {
    /// An engine: ready once a probe was good.
    On,
    /// A provider: taken to be ready.
    Off,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Unknown,
    Ready,
    Down { why: String, pause: Duration },
    Ejected { why: String, until_us: u64 },
}

/// The state machine. Times are microseconds of the process clock.
#[derive(Debug)]
pub(crate) struct Health {
    probing: Probing,
    state: State,
    since_us: u64,
    timeouts: u32,
    failures: Failures,
    /// Ejections in a row: the next lasts `EJECTION_MIN * 2^ejections`.
    ejections: u32,
    /// Until then the next failure ejects.
    probation_until_us: u64,
    next_probe_us: u64,
    last_probe_us: Option<u64>,
    last_probe: LastProbe,
    /// A request failed since the last probe began, so that what it says may be old.
    asked: Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Yes,
    No,
}

/// Whether the last probe that was answered or refused was good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastProbe {
    Good,
    Bad,
}

/// Failures in the current window.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    began_us: u64,
    succeeded_before: Option<f64>,
}

impl Health {
    /// An endpoint of which nothing is known; an engine is to be probed at once.
    pub(crate) fn new(now_us: u64, probing: Probing) -> Self {
        let state = match probing {
            Probing::On => State::Unknown,
            Probing::Off => State::Ready,
        };
        Self {
            probing,
            state,
            since_us: now_us,
            timeouts: 0,
            failures: Failures::default(),
            ejections: 0,
            probation_until_us: 0,
            next_probe_us: now_us,
            last_probe_us: None,
            last_probe: LastProbe::Good,
            asked: Asked::No,
        }
    }

    /// What the data threads are told.
    pub(crate) fn readiness(&self) -> Readiness {
        match self.state {
            State::Unknown => Readiness::Unknown,
            State::Ready => Readiness::Ready,
            State::Ejected { .. } if self.last_probe == LastProbe::Good => Readiness::Ejected,
            State::Ejected { .. } | State::Down { .. } => Readiness::NotReady,
        }
    }

    /// Why it is not ready; empty when it is.
    pub(crate) fn why(&self) -> String {
        match &self.state {
            State::Unknown => String::from("not asked yet"),
            State::Ready => String::new(),
            State::Down { why, .. } => why.clone(),
            State::Ejected { why, .. } => format!("ejected: {why}"),
        }
    }

    /// Since when the present state holds.
    pub(crate) fn since_us(&self) -> u64 {
        self.since_us
    }

    /// When [`Self::tick`] is due, and when a probe is, whichever comes first.
    pub(crate) fn wake_us(&self) -> u64 {
        let tick = match self.state {
            State::Ejected { until_us, .. } => until_us,
            State::Unknown | State::Ready | State::Down { .. } => u64::MAX,
        };
        tick.min(self.probe_us())
    }

    fn probe_us(&self) -> u64 {
        match self.probing {
            Probing::On => self.next_probe_us,
            Probing::Off => u64::MAX,
        }
    }

    /// Whether to probe now.
    pub(crate) fn probe_due(&self, now_us: u64) -> bool {
        now_us >= self.probe_us()
    }

    /// Time has passed: an ejection may be over.
    pub(crate) fn tick(&mut self, now_us: u64) {
        if let State::Ejected { until_us, .. } = self.state
            && now_us >= until_us
        {
            self.probation_until_us = now_us.saturating_add(us(FAILURE_WINDOW));
            match self.probing {
                // Only an engine that still answers is let back in.
                Probing::On => {
                    self.enter(
                        now_us,
                        State::Down { why: String::from("ejection over, to be probed"), pause: PROBE_DOWN_MIN },
                    );
                    self.next_probe_us = now_us;
                }
                Probing::Off => self.enter(now_us, State::Ready),
            }
        }
    }

    /// A probe begins.
    pub(crate) fn probe_begins(&mut self) {
        self.asked = Asked::No;
        self.next_probe_us = u64::MAX;
    }

    /// A probe has ended.
    pub(crate) fn probed(&mut self, now_us: u64, seen: Probed) {
        self.last_probe_us = Some(now_us);
        match seen {
            Probed::Good => {
                self.last_probe = LastProbe::Good;
                self.timeouts = 0;
                match self.state {
                    State::Unknown | State::Down { .. } => self.enter(now_us, State::Ready),
                    State::Ready | State::Ejected { .. } => {}
                }
            }
            Probed::Bad(why) => {
                self.last_probe = LastProbe::Bad;
                self.down(now_us, why);
            }
            Probed::Late(why) => {
                self.timeouts = self.timeouts.saturating_add(1);
                if self.state != State::Ready || self.timeouts >= TIMEOUTS_TO_DOWN {
                    self.down(now_us, why);
                }
            }
        }
        let pause = match (&self.state, self.asked) {
            (State::Down { pause, .. }, _) => *pause,
            (State::Ready, Asked::Yes) => PROBE_ASKED_MIN,
            (State::Unknown | State::Ready | State::Ejected { .. }, _) => PROBE_READY,
        };
        self.next_probe_us = now_us.saturating_add(us(pause));
    }

    fn down(&mut self, now_us: u64, why: String) {
        match &self.state {
            State::Down { pause, .. } => {
                let pause = (*pause * 2).min(PROBE_DOWN_MAX);
                self.state = State::Down { why, pause };
            }
            // Stays out for its time, and is probed when that is over.
            State::Ejected { .. } => {}
            State::Unknown | State::Ready => self.enter(now_us, State::Down { why, pause: PROBE_DOWN_MIN }),
        }
    }

    /// A request failed there. `succeeded_total` is the engine's own count of requests that ended well, where known.
    pub(crate) fn failed(&mut self, now_us: u64, failure: Failure, succeeded_total: Option<f64>) {
        match failure {
            Failure::Busy | Failure::Forbidden => return,
            Failure::Connect | Failure::Reset => self.ask_probe(now_us),
            Failure::FirstByteTimeout
            | Failure::IdleTimeout
            | Failure::BadAnswer
            | Failure::ServerError
            | Failure::Tls(_)
            | Failure::Redirect
            | Failure::Unauthorized => {}
        }
        if self.state != State::Ready {
            return;
        }
        if self.failures.count == 0 || now_us.saturating_sub(self.failures.began_us) > us(FAILURE_WINDOW) {
            self.failures = Failures { count: 0, began_us: now_us, succeeded_before: succeeded_total };
        }
        self.failures.count = self.failures.count.saturating_add(1);
        let on_probation = now_us < self.probation_until_us;
        let succeeded = match (self.failures.succeeded_before, succeeded_total) {
            (Some(before), Some(now)) => (now - before).max(0.0),
            _ => 0.0,
        };
        let mostly_fails = f64::from(self.failures.count) > succeeded;
        if on_probation || (self.failures.count >= FAILURES_TO_EJECT && mostly_fails) {
            self.eject(now_us, failure, on_probation);
        }
    }

    fn eject(&mut self, now_us: u64, failure: Failure, on_probation: bool) {
        self.ejections = if on_probation { self.ejections.saturating_add(1) } else { 1 };
        let doublings = self.ejections.saturating_sub(1).min(16);
        let time_out = EJECTION_MIN.saturating_mul(1 << doublings).min(EJECTION_MAX);
        let why = format!("{} requests failed, the last by {}", self.failures.count, failure.label());
        self.failures = Failures::default();
        self.enter(now_us, State::Ejected { why, until_us: now_us.saturating_add(us(time_out)) });
    }

    /// A probe now, unless there was one just before.
    fn ask_probe(&mut self, now_us: u64) {
        self.asked = Asked::Yes;
        if self.next_probe_us == u64::MAX {
            // One is under way.
            return;
        }
        let earliest = self.last_probe_us.map_or(now_us, |last| last.saturating_add(us(PROBE_ASKED_MIN)).max(now_us));
        self.next_probe_us = self.next_probe_us.min(earliest);
    }

    fn enter(&mut self, now_us: u64, state: State) {
        self.state = state;
        self.since_us = now_us;
        self.timeouts = 0;
    }
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;
    const MS: u64 = 1_000;

    fn ready_at(now_us: u64) -> Health {
        let mut health = Health::new(now_us, Probing::On);
        health.probed(now_us, Probed::Good);
        assert_eq!(health.readiness(), Readiness::Ready);
        health
    }

    fn bad() -> Probed {
        Probed::Bad(String::from("refused"))
    }

    #[test]
    fn an_engine_is_ready_after_its_first_good_probe_and_probed_at_once() {
        let mut health = Health::new(7, Probing::On);
        assert!(health.probe_due(7));
        assert_eq!(health.readiness(), Readiness::Unknown);
        health.probed(9, Probed::Good);
        assert_eq!((health.readiness(), health.wake_us()), (Readiness::Ready, 9 + 2 * S));
    }

    #[test]
    fn a_dead_engine_is_out_at_once_and_probed_ever_more_slowly() {
        let mut health = ready_at(0);
        let mut now = 2 * S;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            health.probed(now, bad());
            assert_eq!(health.readiness(), Readiness::NotReady);
            pauses.push((health.wake_us() - now) / MS);
            now = health.wake_us();
        }
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
        health.probed(now, Probed::Good);
        assert_eq!((health.readiness(), health.why().as_str()), (Readiness::Ready, ""));
    }

    #[test]
    fn a_late_answer_takes_an_engine_out_only_the_third_time_in_a_row() {
        let late = || Probed::Late(String::from("late"));
        let mut health = ready_at(0);
        for (probe, expected) in [
            (late(), Readiness::Ready),
            (late(), Readiness::Ready),
            (Probed::Good, Readiness::Ready),
            (late(), Readiness::Ready),
            (late(), Readiness::Ready),
            (late(), Readiness::NotReady),
        ] {
            health.probed(S, probe);
            assert_eq!(health.readiness(), expected);
        }
    }

    #[test]
    fn a_failed_connection_asks_for_a_probe_now_but_not_for_a_storm_of_them() {
        let mut health = ready_at(0);
        health.failed(S, Failure::Connect, None);
        assert!(health.probe_due(S));
        health.probe_begins();
        health.probed(S, Probed::Good);
        health.failed(S + MS, Failure::Reset, None);
        assert!(!health.probe_due(S + MS));
        assert_eq!(health.wake_us(), S + 200 * MS);
    }

    #[test]
    fn a_failure_while_a_probe_is_under_way_asks_for_another() {
        let mut health = ready_at(0);
        health.probe_begins();
        health.failed(S, Failure::Connect, None);
        assert!(!health.probe_due(S));
        health.probed(S + MS, Probed::Good);
        assert_eq!(health.wake_us(), S + 201 * MS);
    }

    #[test]
    fn five_failures_eject_and_the_way_back_leads_through_a_probe_and_a_probation() {
        let mut health = ready_at(0);
        for n in 1..=5 {
            assert_eq!(health.readiness(), Readiness::Ready, "after {} failures", n - 1);
            health.failed(n * MS, Failure::ServerError, None);
        }
        assert_eq!(health.readiness(), Readiness::Ejected);
        health.probed(400 * MS, bad());
        assert_eq!(health.readiness(), Readiness::NotReady, "who does not even answer is no last resort");
        health.probed(500 * MS, Probed::Good);
        assert_eq!(health.readiness(), Readiness::Ejected, "a probe does not end an ejection");

        let mut time_outs = Vec::new();
        let mut now = 5 * MS;
        for _ in 0..7 {
            let State::Ejected { until_us, .. } = health.state else { panic!("{:?}", health.state) };
            time_outs.push((until_us - now) / S);
            health.tick(until_us - 1);
            assert_eq!(health.readiness(), Readiness::Ejected);
            health.tick(until_us);
            assert!(health.probe_due(until_us));
            health.probed(until_us, Probed::Good);
            assert_eq!(health.readiness(), Readiness::Ready);
            now = until_us + MS;
            health.failed(now, Failure::ServerError, None);
            assert_eq!(health.readiness(), Readiness::Ejected, "one failure on probation is enough");
        }
        assert_eq!(time_outs, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn failures_far_apart_busy_answers_and_failures_among_many_successes_do_not_eject() {
        let mut health = ready_at(0);
        for n in 0..20 {
            health.failed(n * 6 * S, Failure::ServerError, None);
            health.failed(n * MS, Failure::Busy, None);
        }
        assert_eq!(health.readiness(), Readiness::Ready);

        let mut health = ready_at(0);
        for n in 0..200_u32 {
            health.failed(u64::from(n) * 10 * MS, Failure::ServerError, Some(f64::from(n) * 100.0));
        }
        assert_eq!(health.readiness(), Readiness::Ready);
    }

    #[test]
    fn a_provider_is_ready_without_probes_and_comes_back_without_one() {
        let mut health = Health::new(0, Probing::Off);
        assert_eq!((health.readiness(), health.wake_us()), (Readiness::Ready, u64::MAX));
        for _ in 0..5 {
            health.failed(1, Failure::Connect, None);
        }
        assert_eq!(health.readiness(), Readiness::Ejected);
        let until = health.wake_us();
        assert_eq!(until, 1 + S);
        health.tick(until);
        assert_eq!(health.readiness(), Readiness::Ready);
    }
}
