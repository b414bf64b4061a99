//! The one table of signals: everything a policy may know about a candidate.
//!
//! A signal is a number with a unit, a range and one source. A value that was never measured is
//! unknown, not zero: no condition on it holds, and in a ranking it comes last.

/// A number about one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    /// Requests the engine accepted but has not begun to prefill, mean over the window.
    QueuedPrompts {
        /// Length of the window in seconds, 1 to [`WINDOW_S_MAX`].
        window_s: u16,
    },
    /// Requests the engine is working on now.
    RunningPrompts,
    /// Requests this balancer (all cores) has sent there and that have not ended.
    InFlight,
    /// Share of the engine's KV cache in use.
    KvCacheUsage,
    /// Share of this prompt estimated to be cached there.
    PrefixOverlap,
    /// Predicted time to first token, in microseconds.
    PredictedTtft,
    /// Predicted time to the end of the answer, in microseconds.
    PredictedLatency,
    /// Share of answers that failed over the window.
    ErrorRate {
        /// Length of the window in seconds, 1 to [`WINDOW_S_MAX`].
        window_s: u16,
    },
    /// Price of a million tokens of this request, prompt and answer weighted by their estimated lengths.
    CostPerMillionTokens,
    /// Longest prompt and answer together the model accepts, in tokens.
    ContextWindow,
}

/// Longest window a signal may be averaged over, in seconds: the windows keep one slot a second and
/// 31 slots an endpoint, so 30 whole seconds are always covered.
pub const WINDOW_S_MAX: u16 = 30;

/// Window used where a policy names none, in seconds.
pub const WINDOW_S_DEFAULT: u16 = 30;

/// Who a signal's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Scraped from the engine, so known for Local endpoints only.
    Engine,
    /// Counted by this balancer, known for every candidate.
    Balancer,
    /// Estimated by the predictor, known for every candidate once it has learned.
    Predictor,
    /// Written in a resource.
    Configuration,
}

/// One row of the table of signals.
#[derive(Clone, Copy, Debug)]
pub struct SignalRow {
    /// The name in a policy's `drop`.
    pub field: &'static str,
    /// Unit of the value as a candidate gives it.
    pub unit: &'static str,
    /// Values that make sense, inclusive.
    pub range: (f64, f64),
    /// Who it comes from.
    pub source: Source,
}

/// Every signal with the default window, in the order of the documentation.
pub const ALL: [Signal; 10] = [
    Signal::QueuedPrompts { window_s: WINDOW_S_DEFAULT },
    Signal::RunningPrompts,
    Signal::InFlight,
    Signal::KvCacheUsage,
    Signal::PrefixOverlap,
    Signal::PredictedTtft,
    Signal::PredictedLatency,
    Signal::ErrorRate { window_s: WINDOW_S_DEFAULT },
    Signal::CostPerMillionTokens,
    Signal::ContextWindow,
];

impl Signal {
    /// The signal's row in the table.
    #[must_use]
    pub fn row(self) -> SignalRow {
        let (field, unit, range, source) = match self {
            Signal::QueuedPrompts { .. } => ("queuedPrompts", "requests", (0.0, f64::INFINITY), Source::Engine),
            Signal::RunningPrompts => ("runningPrompts", "requests", (0.0, f64::INFINITY), Source::Engine),
            Signal::InFlight => ("inFlight", "requests", (0.0, f64::INFINITY), Source::Balancer),
            Signal::KvCacheUsage => ("kvCacheUsage", "ratio", (0.0, 1.0), Source::Engine),
            Signal::PrefixOverlap => ("prefixOverlap", "ratio", (0.0, 1.0), Source::Predictor),
            Signal::PredictedTtft => ("predictedTTFT", "microseconds", (0.0, f64::INFINITY), Source::Predictor),
            Signal::PredictedLatency => ("predictedLatency", "microseconds", (0.0, f64::INFINITY), Source::Predictor),
            Signal::ErrorRate { .. } => ("errorRate", "ratio", (0.0, 1.0), Source::Balancer),
            Signal::CostPerMillionTokens => {
                ("costPerMillionTokens", "currency per 1e6 tokens", (0.0, f64::INFINITY), Source::Configuration)
            }
            Signal::ContextWindow => ("contextWindow", "tokens", (0.0, f64::INFINITY), Source::Configuration),
        };
        SignalRow { field, unit, range, source }
    }

    /// The window the value is averaged over, in seconds, for the signals that have one.
    #[must_use]
    pub fn window_s(self) -> Option<u16> {
        match self {
            Signal::QueuedPrompts { window_s } | Signal::ErrorRate { window_s } => Some(window_s),
            Signal::RunningPrompts
            | Signal::InFlight
            | Signal::KvCacheUsage
            | Signal::PrefixOverlap
            | Signal::PredictedTtft
            | Signal::PredictedLatency
            | Signal::CostPerMillionTokens
            | Signal::ContextWindow => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_are_unique() {
        let mut names: Vec<_> = ALL.iter().map(|s| s.row().field).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn default_windows_are_within_the_bound() {
        for signal in ALL {
            if let Some(window_s) = signal.window_s() {
                assert!((1..=WINDOW_S_MAX).contains(&window_s));
            }
        }
    }
}
