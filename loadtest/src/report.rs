//! The result of a run, for people and for programs.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::Serialize;

use crate::tally::{Quantiles, Tally};

/// Everything a run found. Times are in microseconds, rates per second.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// From the first request to the last answer.
    pub elapsed_s: f64,
    /// Requests by class; `ok` are the right ones.
    pub requests: BTreeMap<String, u64>,
    /// Right answers a second.
    pub ok_per_s: f64,
    /// Events a second.
    pub events_per_s: f64,
    /// Body bytes received.
    pub body_bytes: u64,
    /// Connections opened.
    pub connections: u64,
    /// Requests sent again because a kept connection had just been closed.
    pub resent: u64,
    /// Prompt, cached and answer tokens as reported by the answers.
    pub prompt_tokens: u64,
    /// See above.
    pub cached_tokens: u64,
    /// See above.
    pub output_tokens: u64,
    /// From the intended sending to the first text.
    pub first_token: Quantiles,
    /// Between events with text.
    pub gap: Quantiles,
    /// From the intended sending to the end of the answer.
    pub duration: Quantiles,
    /// How late requests were sent: the generator's own error.
    pub lag: Quantiles,
    /// What was wrong with the first wrong answers.
    pub examples: Vec<String>,
}

impl Report {
    /// Sums a run up.
    pub fn new(tally: &Tally, elapsed: Duration) -> Self {
        let elapsed_s = elapsed.as_secs_f64().max(1e-9);
        let per_s = |count: u64| (count as f64 / elapsed_s * 10.0).round() / 10.0;
        Self {
            elapsed_s,
            requests: tally.classes.clone(),
            ok_per_s: per_s(tally.of_class("ok")),
            events_per_s: per_s(tally.events),
            body_bytes: tally.body_bytes,
            connections: tally.connections,
            resent: tally.resent,
            prompt_tokens: tally.prompt_tokens,
            cached_tokens: tally.cached_tokens,
            output_tokens: tally.output_tokens,
            first_token: tally.first_token.quantiles(),
            gap: tally.gap.quantiles(),
            duration: tally.duration.quantiles(),
            lag: tally.lag.quantiles(),
            examples: tally.examples.clone(),
        }
    }

    /// Whether any answer was wrong.
    pub fn verdict(&self) -> Verdict {
        if self.requests.contains_key("wrong") || self.requests.contains_key("malformed http") {
            Verdict::Wrong
        } else if !["ok", "abandoned"].iter().any(|class| self.requests.contains_key(*class)) {
            Verdict::Unanswered
        } else {
            Verdict::Right
        }
    }
}

/// Whether the answers were right; failures that the client could recognise as such do not make a run wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All complete answers were right.
    Right,
    /// Some complete answer was not.
    Wrong,
    /// There was none, and not because the clients left.
    Unanswered,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.requests.values().sum();
        writeln!(f, "{total} requests in {:.1} s", self.elapsed_s)?;
        for (class, count) in &self.requests {
            writeln!(f, "  {class:<22}{count:>10}")?;
        }
        writeln!(f, "answers    {:>12.1} /s", self.ok_per_s)?;
        writeln!(f, "events     {:>12.1} /s", self.events_per_s)?;
        let (prompt, cached) = (self.prompt_tokens, self.cached_tokens);
        let share = if prompt == 0 { 0.0 } else { cached as f64 / prompt as f64 * 100.0 };
        writeln!(f, "tokens     {prompt} prompt ({share:.1} % cached), {} answer", self.output_tokens)?;
        writeln!(f, "connections {} opened, {} requests sent again", self.connections, self.resent)?;
        writeln!(f, "\n{:<14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}", "", "mean", "p50", "p90", "p99", "p99.9", "max")?;
        for (name, times) in [
            ("first token", &self.first_token),
            ("gap", &self.gap),
            ("duration", &self.duration),
            ("sending late", &self.lag),
        ] {
            if times.count > 0 {
                let mean_us = times.mean_us.round() as u64;
                let columns = [mean_us, times.p50_us, times.p90_us, times.p99_us, times.p999_us, times.max_us];
                let cells: String = columns.iter().map(|us| format!("{:>10}", readable(*us))).collect();
                writeln!(f, "{name:<14}{cells}")?;
            }
        }
        for example in &self.examples {
            writeln!(f, "wrong: {example}")?;
        }
        Ok(())
    }
}

/// A time with a unit that suits its size.
fn readable(us: u64) -> String {
    match us {
        0..10_000 => format!("{us} us"),
        10_000..10_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Outcome;

    #[test]
    fn only_wrong_answers_make_a_run_wrong() {
        let mut tally = Tally::default();
        tally.count(Outcome::Right);
        tally.count(Outcome::Status(503));
        tally.count(Outcome::Timeout);
        assert_eq!(Report::new(&tally, Duration::from_secs(1)).verdict(), Verdict::Right);
        tally.count(Outcome::Wrong("text".to_owned()));
        let report = Report::new(&tally, Duration::from_secs(1));
        assert_eq!(report.verdict(), Verdict::Wrong);
        assert!(report.to_string().contains("wrong: text"));
    }

    #[test]
    fn times_are_shown_with_a_fitting_unit() {
        assert_eq!([readable(950), readable(12_340), readable(12_340_000)], ["950 us", "12.3 ms", "12.3 s"]);
    }
}
