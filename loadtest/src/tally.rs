//! What came of the requests: counts by class and distributions of times.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::http::Broken;

/// Longest time told apart: one hour.
const TIME_US_MAX: u64 = 3_600_000_000;
/// Examples of wrong answers kept.
const EXAMPLES_MAX: usize = 10;

/// A distribution of times in microseconds, to three digits.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "the bounds are constants and valid")]
        Self(Histogram::new_with_bounds(1, TIME_US_MAX, 3).expect("valid bounds"))
    }
}

/// Quantiles of a distribution in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// How many values.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Half are below.
    pub p50_us: u64,
    /// 90 of 100 are below.
    pub p90_us: u64,
    /// 99 of 100 are below.
    pub p99_us: u64,
    /// 999 of 1000 are below.
    pub p999_us: u64,
    /// Largest.
    pub max_us: u64,
}

impl Times {
    /// Counts a value; what exceeds an hour counts as an hour.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_micros()).unwrap_or(TIME_US_MAX));
    }

    fn merge(&mut self, other: &Self) {
        // Fails only for values out of bounds, and all bounds are the same.
        let _ = self.0.add(&other.0);
    }

    /// The quantiles reported.
    pub fn quantiles(&self) -> Quantiles {
        if self.0.is_empty() {
            return Quantiles::default();
        }
        Quantiles {
            count: self.0.len(),
            mean_us: (self.0.mean() * 10.0).round() / 10.0,
            p50_us: self.0.value_at_quantile(0.5),
            p90_us: self.0.value_at_quantile(0.9),
            p99_us: self.0.value_at_quantile(0.99),
            p999_us: self.0.value_at_quantile(0.999),
            max_us: self.0.max(),
        }
    }
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered, and right as far as checked.
    Right,
    /// Answered in full, but not what it should be.
    Wrong(String),
    /// An HTTP status other than 200.
    Status(u16),
    /// The connection or the protocol broke.
    Broken(Broken),
    /// An error event in the stream: the failure was told in order.
    ErrorEvent,
    /// No complete answer in time.
    Timeout,
    /// The client left before it had its answer, as it was told to.
    Abandoned,
    /// Never sent: too many connections were open for too long.
    Unsent,
}

impl Outcome {
    /// The class it is counted under.
    pub fn class(&self) -> String {
        match self {
            Self::Right => "ok".to_owned(),
            Self::Wrong(_) => "wrong".to_owned(),
            Self::Status(status) => format!("status {status}"),
            Self::Broken(Broken::Connect) => "connect".to_owned(),
            Self::Broken(Broken::Reset) => "reset".to_owned(),
            Self::Broken(Broken::Closed) => "closed before answer".to_owned(),
            Self::Broken(Broken::Truncated) => "truncated".to_owned(),
            Self::Broken(Broken::Malformed) => "malformed http".to_owned(),
            Self::ErrorEvent => "error event".to_owned(),
            Self::Timeout => "timeout".to_owned(),
            Self::Abandoned => "abandoned".to_owned(),
            Self::Unsent => "unsent".to_owned(),
        }
    }
}

/// Results of one thread, or of all.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests by class.
    pub classes: BTreeMap<String, u64>,
    /// What was wrong with the first wrong answers.
    pub examples: Vec<String>,
    /// From the intended sending to the end of the answer; right answers only.
    pub duration: Times,
    /// From the intended sending to the first text of a streamed answer, also of those that break off later.
    pub first_token: Times,
    /// Between events with text of one stream.
    pub gap: Times,
    /// From the intended to the actual sending: how late this generator was. All requests.
    pub lag: Times,
    /// Events received.
    pub events: u64,
    /// Body bytes received.
    pub body_bytes: u64,
    /// Connections opened.
    pub connections: u64,
    /// Requests sent again because a kept connection had just been closed.
    pub resent: u64,
    /// Prompt tokens as reported.
    pub prompt_tokens: u64,
    /// Those of them reported as cached.
    pub cached_tokens: u64,
    /// Answer tokens as reported.
    pub output_tokens: u64,
}

impl Tally {
    /// Counts a request.
    pub fn count(&mut self, outcome: Outcome) {
        *self.classes.entry(outcome.class()).or_default() += 1;
        if let Outcome::Wrong(what) = outcome
            && self.examples.len() < EXAMPLES_MAX
        {
            self.examples.push(what);
        }
    }

    /// Adds the results of another thread.
    pub fn merge(&mut self, other: &Self) {
        for (class, count) in &other.classes {
            *self.classes.entry(class.clone()).or_default() += count;
        }
        self.examples.extend(other.examples.iter().take(EXAMPLES_MAX - self.examples.len()).cloned());
        self.duration.merge(&other.duration);
        self.first_token.merge(&other.first_token);
        self.gap.merge(&other.gap);
        self.lag.merge(&other.lag);
        self.events += other.events;
        self.body_bytes += other.body_bytes;
        self.connections += other.connections;
        self.resent += other.resent;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.output_tokens += other.output_tokens;
    }

    /// Requests of a class.
    pub fn of_class(&self, class: &str) -> u64 {
        self.classes.get(class).copied().unwrap_or(0)
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        self.classes.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_tallies_have_the_sum_of_all_counts() {
        let mut one = Tally::default();
        one.count(Outcome::Right);
        one.duration.record(Duration::from_micros(100));
        let mut two = Tally::default();
        two.count(Outcome::Right);
        two.count(Outcome::Wrong("text".to_owned()));
        two.duration.record(Duration::from_micros(300));
        one.merge(&two);
        assert_eq!((one.of_class("ok"), one.of_class("wrong"), one.total()), (2, 1, 3));
        assert_eq!(one.examples, ["text"]);
        let times = one.duration.quantiles();
        assert_eq!((times.count, times.p50_us, times.max_us), (2, 100, 300));
    }

    #[test]
    fn times_beyond_an_hour_count_as_an_hour() {
        let mut times = Times::default();
        times.record(Duration::from_secs(10_000));
        assert!(times.quantiles().max_us >= TIME_US_MAX / 1000 * 999);
    }
}
