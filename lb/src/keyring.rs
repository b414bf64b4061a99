//! The public keys of issuers, as the data threads have them, and the question for newer ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use admission::jwt::KeySet;
use config::snapshot::KeySource;

/// A token that names an unknown key makes the keys be read again, but no more often than this: anybody can send such tokens.
const ASKED_EVERY_US: u64 = 10_000_000;
/// How long such a request waits for the keys at most.
pub(crate) const ANSWERED_WITHIN_US: u64 = 1_000_000;

/// The keys of every source that a configuration names.
#[derive(Debug, Default)]
pub(crate) struct Keyring {
    /// Rises when a key has come or gone.
    pub(crate) version: u64,
    /// By where they come from.
    pub(crate) sources: BTreeMap<KeySource, IssuerKeys>,
}

/// The keys of one source.
#[derive(Debug, Clone, Default)]
pub(crate) struct IssuerKeys {
    /// Those that were read last; `None` while none ever were.
    pub(crate) keys: Option<Arc<KeySet>>,
    /// Shared by all threads.
    pub(crate) last_asked: Arc<LastAsked>,
}

/// When newer keys were asked for the last time, by whichever thread.
#[derive(Debug)]
pub(crate) struct LastAsked(AtomicU64);

/// What comes of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asking {
    /// The keys are to be read now.
    Now,
    /// Somebody asked a moment ago: the answer is on its way.
    Already,
    /// It is too early to ask again.
    TooSoon,
}

impl Default for LastAsked {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl LastAsked {
    /// Asks, at this moment of the process clock.
    pub(crate) fn ask(&self, now_us: u64) -> Asking {
        let before = self.0.load(Relaxed);
        let age_us = now_us.saturating_sub(before);
        if before != u64::MAX && age_us < ASKED_EVERY_US {
            return if age_us < ANSWERED_WITHIN_US { Asking::Already } else { Asking::TooSoon };
        }
        match self.0.compare_exchange(before, now_us, Relaxed, Relaxed) {
            Ok(_) => Asking::Now,
            Err(_) => Asking::Already,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_keys_are_asked_for_once_in_ten_seconds() {
        let last = LastAsked::default();
        let asked: Vec<Asking> =
            [5, 6, 1_000_004, 1_000_006, 10_000_004, 10_000_005, 10_000_006].map(|now_us| last.ask(now_us)).to_vec();
        use Asking::{Already, Now, TooSoon};
        assert_eq!(asked, [Now, Already, Already, TooSoon, TooSoon, Now, Already]);
    }
}
