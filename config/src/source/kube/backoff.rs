//! Pauses between attempts: twice as long each time, up to a bound, and never the same for two processes.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::limits::RETRY_PAUSE;

/// The pause before the next attempt.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// It went well.
    pub(super) fn reset(&mut self) {
        self.attempts = 0;
    }

    /// Waits; longer than before.
    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(self.pause(fraction())).await;
    }

    fn pause(&mut self, fraction: f64) -> Duration {
        let (first, most) = RETRY_PAUSE;
        let pause = first.saturating_mul(1 << self.attempts.min(16)).min(most);
        self.attempts = self.attempts.saturating_add(1);
        pause.mul_f64(0.5 + 0.5 * fraction)
    }
}

/// A number from 0 to 1, another each time. Good enough to spread processes; no secret depends on it.
pub(super) fn fraction() -> f64 {
    let hash = RandomState::new().hash_one(0_u8);
    f64::from(u32::try_from(hash >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.pause(1.0)).collect();
        assert!(pauses.is_sorted());
        assert_eq!((pauses[0], pauses[19]), RETRY_PAUSE);
        backoff.reset();
        assert_eq!(backoff.pause(0.0), RETRY_PAUSE.0 / 2);
    }
}
