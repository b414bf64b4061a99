//! Reproducible random numbers: SplitMix64 (Steele, Lea, Flood 2014). Good enough for arrivals and lengths, and small.

use std::{ops::RangeInclusive, time::Duration};

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Uniform, 0 (included) to 1 (excluded).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in a range.
    pub fn within(&mut self, range: &RangeInclusive<u32>) -> u32 {
        let width = u64::from(range.end().saturating_sub(*range.start())) + 1;
        // The bias of the remainder is below 2^-32.
        range.start() + (self.bits() % width) as u32
    }

    /// Exponentially distributed with this mean: the gaps of a Poisson process.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.unit()).ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_with_the_seed_and_keep_their_range_and_mean() {
        let mut random = Random::new(7);
        let mut again = Random::new(7);
        let mean = Duration::from_millis(10);
        let mut sum = Duration::ZERO;
        for _ in 0..10_000 {
            assert_eq!(random.bits(), again.bits());
            assert!((3..=5).contains(&random.within(&(3..=5))));
            again.bits();
            sum += random.exponential(mean);
            again.bits();
        }
        let mean_ms = sum.as_secs_f64() * 1e3 / 1e4;
        assert!((9.5..10.5).contains(&mean_ms), "{mean_ms}");
    }
}
