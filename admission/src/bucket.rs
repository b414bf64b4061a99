//! A token bucket in one word: as many units at once as may be used in a minute, refilled evenly.
//!
//! The word is the moment at which the bucket will be full again (the "theoretical arrival time" of GCRA, ITU-T I.371). What
//! is missing from the bucket is the time until then, so refilling needs no writing, and taking is one compare-and-swap: over any
//! number of threads, never a unit more is taken than there is. A limit that changes keeps the used share: half empty stays half empty.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const NS_PER_MINUTE: u64 = 60_000_000_000;

/// How many units a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    per_minute: u64,
    /// Time in which one unit comes back. Rounded up: with more than ten million units a minute they come back a little
    /// slower than written (0.02 % at ten million), never faster.
    unit_ns: u64,
}

impl Rate {
    /// So many units a minute; 0 is taken for 1.
    #[must_use]
    pub fn per_minute(units: u64) -> Self {
        let per_minute = units.max(1);
        Self { per_minute, unit_ns: NS_PER_MINUTE.div_ceil(per_minute) }
    }

    /// Units a minute.
    #[must_use]
    pub fn units(self) -> u64 {
        self.per_minute
    }

    fn ns(self, units: u64) -> u64 {
        units.saturating_mul(self.unit_ns)
    }
}

/// What a bucket holds at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Units that a full bucket holds.
    pub limit: u64,
    /// Units that can be taken now.
    pub remaining: u64,
    /// Time until it is full, if nothing is taken meanwhile.
    pub full_after_ns: u64,
}

/// The bucket. Starts full.
#[derive(Debug, Default)]
pub struct Bucket {
    full_at_ns: AtomicU64,
}

impl Bucket {
    /// Takes `units`, or nothing; more than a full bucket holds is taken for a full bucket.
    ///
    /// # Errors
    /// The time after which there will be enough, if nobody takes any meanwhile.
    pub fn take(&self, rate: Rate, units: u64, now_ns: u64) -> Result<(), u64> {
        let wanted_ns = rate.ns(units.min(rate.per_minute));
        let capacity_ns = rate.ns(rate.per_minute);
        let taken = |full_at_ns: u64| full_at_ns.max(now_ns).saturating_add(wanted_ns);
        let fits = |full_at_ns: u64| taken(full_at_ns).saturating_sub(now_ns) <= capacity_ns;
        match self.full_at_ns.fetch_update(Relaxed, Relaxed, |at| fits(at).then(|| taken(at))) {
            Ok(_) => Ok(()),
            Err(at) => Err(taken(at).saturating_sub(now_ns).saturating_sub(capacity_ns)),
        }
    }

    /// Takes `units` that have been used, whether they are there or not: a debt is paid off before anything can be taken.
    pub fn charge(&self, rate: Rate, units: u64, now_ns: u64) {
        let charged_ns = rate.ns(units);
        // A closure that never declines cannot fail.
        let _ = self.full_at_ns.fetch_update(Relaxed, Relaxed, |at| Some(at.max(now_ns).saturating_add(charged_ns)));
    }

    /// Gives `units` back that were taken and not used. A full bucket stays full.
    pub fn give_back(&self, rate: Rate, units: u64) {
        let given_ns = rate.ns(units.min(rate.per_minute));
        let _ = self.full_at_ns.fetch_update(Relaxed, Relaxed, |at| Some(at.saturating_sub(given_ns)));
    }

    /// What it holds now.
    #[must_use]
    pub fn level(&self, rate: Rate, now_ns: u64) -> Level {
        let full_after_ns = self.full_at_ns.load(Relaxed).saturating_sub(now_ns);
        let used = full_after_ns.div_ceil(rate.unit_ns);
        Level { limit: rate.per_minute, remaining: rate.per_minute.saturating_sub(used), full_after_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START_NS: u64 = 5_000_000_000;

    #[test]
    fn a_full_bucket_gives_a_minutes_worth_at_once_and_then_one_by_one() {
        for per_minute in [1, 7, 60, 599, 1_000_000] {
            let (bucket, rate) = (Bucket::default(), Rate::per_minute(per_minute));
            let taken = (0..per_minute + 5).filter(|_| bucket.take(rate, 1, START_NS).is_ok()).count() as u64;
            assert_eq!(taken, per_minute);
            let wait_ns = bucket.take(rate, 1, START_NS).unwrap_err();
            assert!(bucket.take(rate, 1, START_NS + wait_ns - 1).is_err());
            assert_eq!(bucket.take(rate, 1, START_NS + wait_ns), Ok(()));
            assert_eq!(bucket.level(rate, START_NS + wait_ns).remaining, 0);
        }
    }

    #[test]
    fn more_than_a_full_bucket_is_taken_for_a_full_one() {
        let (bucket, rate) = (Bucket::default(), Rate::per_minute(100));
        assert_eq!(bucket.take(rate, u64::MAX, START_NS), Ok(()));
        assert_eq!(bucket.level(rate, START_NS), Level { limit: 100, remaining: 0, full_after_ns: NS_PER_MINUTE });
        assert_eq!(bucket.level(rate, START_NS + NS_PER_MINUTE).remaining, 100);
    }

    #[test]
    fn a_debt_is_paid_off_before_anything_is_taken_and_a_gift_never_overfills() {
        let (bucket, rate) = (Bucket::default(), Rate::per_minute(60));
        bucket.charge(rate, 90, START_NS);
        assert_eq!(bucket.take(rate, 1, START_NS), Err(31 * 1_000_000_000));
        bucket.give_back(rate, 40);
        assert_eq!(bucket.level(rate, START_NS).remaining, 10);
        for _ in 0..10 {
            bucket.give_back(rate, 60);
        }
        assert_eq!(bucket.level(rate, START_NS).remaining, 60);
        assert_eq!(bucket.take(rate, 60, START_NS), Ok(()));
        assert!(bucket.take(rate, 1, START_NS).is_err());
    }

    #[test]
    fn a_limit_that_changes_keeps_the_used_share() {
        let bucket = Bucket::default();
        assert_eq!(bucket.take(Rate::per_minute(100), 50, START_NS), Ok(()));
        assert_eq!(bucket.level(Rate::per_minute(1_000), START_NS).remaining, 500);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is asked and when: over any stretch no more is taken than a full bucket and what came back within it.
        #[test]
        fn no_stretch_of_time_has_more_than_a_bucket_and_its_refill(
            per_minute in 1_u64..5_000,
            asked in prop::collection::vec((0_u64..3_000_000_000, 0_u64..2_000), 1..200),
        ) {
            let (bucket, rate) = (Bucket::default(), Rate::per_minute(per_minute));
            let mut now_ns = START_NS;
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (pause_ns, units) in asked {
                now_ns += pause_ns;
                if bucket.take(rate, units, now_ns).is_ok() {
                    taken.push((now_ns, units.min(per_minute)));
                }
            }
            for (i, &(from_ns, _)) in taken.iter().enumerate() {
                let mut sum = 0;
                for &(at_ns, units) in &taken[i..] {
                    sum += units;
                    let refill = u128::from(at_ns - from_ns) * u128::from(per_minute) / u128::from(NS_PER_MINUTE);
                    prop_assert!(u128::from(sum) <= u128::from(per_minute) + refill + 1);
                }
            }
        }
    }
}
