//! The mean of a gauge over the last seconds, weighted by time.
//!
//! A gauge is a step function: a value holds until the next one. The window keeps, for each of the last 31 seconds, the
//! integral of the gauge up to the start of that second; a mean over `w` seconds is the difference of two integrals over
//! `w`. Feeding and reading are O(1) and the arithmetic is in integers (thousandths times microseconds), so that a gauge
//! that stood at 4 has a mean of exactly 4 and `greaterThan: 4` is false.
//!
//! It errs in one place: the far edge of the window falls inside a second, and within that second the integral is taken
//! as linear. A change in that second is off by at most half of itself for half a second.

/// Longest window in seconds.
pub const WINDOW_S_MAX: u32 = 30;
/// A gauge seen for less than this has no mean: it is too young to judge an endpoint by.
pub const SEEN_US_MIN: u64 = 5_000_000;

const SECOND_US: u64 = 1_000_000;
const SLOTS: usize = WINDOW_S_MAX as usize + 2;
const MILLI: f64 = 1_000.0;

/// Time-weighted mean of one gauge. Values are kept to a thousandth, at most 4,294,967.
#[derive(Clone, Debug)]
pub struct Window {
    /// Integral at the start of second `s`, at `s % SLOTS`, in thousandths times microseconds; wraps, only differences count.
    at_second: [u64; SLOTS],
    integral: u64,
    value_milli: u32,
    first_us: u64,
    last_us: u64,
    fed: Fed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fed {
    Never,
    Once,
}

impl Default for Window {
    fn default() -> Self {
        Window { at_second: [0; SLOTS], integral: 0, value_milli: 0, first_us: 0, last_us: 0, fed: Fed::Never }
    }
}

impl Window {
    /// The gauge has `value` from `now_us` on. Negative and not-a-number count as zero; a time before the last one counts
    /// as the last one.
    pub fn feed(&mut self, now_us: u64, value: f64) {
        match self.fed {
            Fed::Never => {
                *self = Window { first_us: now_us, last_us: now_us, fed: Fed::Once, ..Window::default() };
            }
            Fed::Once => self.advance(now_us),
        }
        self.value_milli = (value * MILLI).round() as u32;
    }

    /// The present value; unknown when never fed.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        match self.fed {
            Fed::Never => None,
            Fed::Once => Some(f64::from(self.value_milli) / MILLI),
        }
    }

    /// Microseconds since the first feed; 0 when never fed.
    #[must_use]
    pub fn age_us(&self, now_us: u64) -> u64 {
        match self.fed {
            Fed::Never => 0,
            Fed::Once => now_us.saturating_sub(self.first_us),
        }
    }

    /// Mean over the last `window_s` seconds (1 to [`WINDOW_S_MAX`], else brought into range), or over the whole life of
    /// a gauge that is younger. Unknown when seen for less than [`SEEN_US_MIN`].
    #[must_use]
    pub fn mean(&self, now_us: u64, window_s: u32) -> Option<f64> {
        let window_us = u64::from(window_s.clamp(1, WINDOW_S_MAX)) * SECOND_US;
        let now_us = now_us.max(self.last_us);
        let age_us = self.age_us(now_us);
        if self.fed == Fed::Never || age_us < SEEN_US_MIN {
            return None;
        }
        let span_us = window_us.min(age_us);
        let area = self.integral_at(now_us).wrapping_sub(self.integral_at(now_us - span_us));
        Some(area as f64 / span_us as f64 / MILLI)
    }

    fn advance(&mut self, now_us: u64) {
        let now_us = now_us.max(self.last_us);
        let (last_s, now_s) = (self.last_us / SECOND_US, now_us / SECOND_US);
        let from_s = (last_s + 1).max(now_s.saturating_sub(SLOTS as u64 - 1));
        for second in from_s..=now_s {
            self.at_second[(second % SLOTS as u64) as usize] = self.held_until(second * SECOND_US);
        }
        self.integral = self.held_until(now_us);
        self.last_us = now_us;
    }

    /// Integral at a time not before the last feed.
    fn held_until(&self, time_us: u64) -> u64 {
        self.integral.wrapping_add((time_us - self.last_us).wrapping_mul(u64::from(self.value_milli)))
    }

    /// Integral at a time within the window; times before the first feed have the integral 0.
    fn integral_at(&self, time_us: u64) -> u64 {
        if time_us >= self.last_us {
            return self.held_until(time_us);
        }
        if time_us <= self.first_us {
            return 0;
        }
        let second = time_us / SECOND_US;
        let (from_us, from) = match second * SECOND_US {
            start_us if start_us < self.first_us => (self.first_us, 0),
            start_us => (start_us, self.at_second[(second % SLOTS as u64) as usize]),
        };
        let (to_us, to) = match (second + 1) * SECOND_US {
            end_us if end_us > self.last_us => (self.last_us, self.integral),
            end_us => (end_us, self.at_second[((second + 1) % SLOTS as u64) as usize]),
        };
        let area = u128::from(to.wrapping_sub(from)) * u128::from(time_us - from_us) / u128::from(to_us - from_us);
        from.wrapping_add(area as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The integral, summed over every step.
    fn slow_mean(feeds: &[(u64, f64)], now_us: u64, window_s: u32) -> f64 {
        let from_us = now_us.saturating_sub(u64::from(window_s) * SECOND_US).max(feeds[0].0);
        let ends = feeds[1..].iter().map(|(at_us, _)| *at_us).chain([now_us]);
        let area: f64 = feeds
            .iter()
            .zip(ends)
            .map(|((start_us, value), end_us)| value * end_us.saturating_sub((*start_us).max(from_us)) as f64)
            .sum();
        area / (now_us - from_us) as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn the_mean_is_the_slow_integral(
            start_us in 0u64..100_000_000,
            steps in prop::collection::vec((0u64..6_000_000, 0u32..50), 1..80),
            rest_us in 0u64..70_000_000,
            window_s in 1u32..=30,
        ) {
            let (mut window, mut feeds, mut now_us) = (Window::default(), Vec::new(), start_us);
            for (gap_us, value) in steps {
                now_us += gap_us;
                window.feed(now_us, f64::from(value));
                feeds.push((now_us, f64::from(value)));
            }
            now_us += rest_us;
            match window.mean(now_us, window_s) {
                None => prop_assert!(now_us - feeds[0].0 < SEEN_US_MIN),
                Some(mean) => {
                    prop_assert!(now_us - feeds[0].0 >= SEEN_US_MIN);
                    // Only the second at the far edge is linear: at most the largest change for a quarter of it.
                    let edge = 50.0 * 0.25 / f64::from(window_s);
                    let slow = slow_mean(&feeds, now_us, window_s);
                    prop_assert!((mean - slow).abs() <= edge + 1e-3, "{} {}", mean, slow);
                }
            }
        }

        #[test]
        fn changes_on_whole_seconds_give_the_exact_mean(values in prop::collection::vec(0u32..50, 6..100), window_s in 1u32..=30) {
            let (mut window, mut feeds) = (Window::default(), Vec::new());
            for (second, value) in values.iter().enumerate() {
                window.feed(second as u64 * SECOND_US, f64::from(*value));
                feeds.push((second as u64 * SECOND_US, f64::from(*value)));
            }
            let now_us = values.len() as u64 * SECOND_US;
            let mean = window.mean(now_us, window_s).expect("old enough");
            prop_assert!((mean - slow_mean(&feeds, now_us, window_s)).abs() < 1e-9);
        }
    }

    #[test]
    fn a_gauge_that_stood_at_four_has_a_mean_of_exactly_four() {
        let mut window = Window::default();
        for step in 0..1_000_u64 {
            window.feed(12_345 + step * 333_331, 4.0);
            if let Some(mean) = window.mean(12_345 + step * 333_331 + 17, 30) {
                assert_eq!(mean, 4.0);
            }
        }
    }

    #[test]
    fn a_gauge_never_fed_or_seen_for_under_five_seconds_has_no_mean() {
        let mut window = Window::default();
        assert_eq!((window.mean(9_000_000, 30), window.value(), window.age_us(9_000_000)), (None, None, 0));
        window.feed(10_000_000, 7.0);
        assert_eq!(window.mean(14_999_999, 30), None);
        assert_eq!(window.mean(15_000_000, 30), Some(7.0));
        assert_eq!(window.age_us(15_000_000), 5_000_000);
    }

    #[test]
    fn a_peak_leaves_the_window_after_its_length() {
        let mut window = Window::default();
        window.feed(0, 0.0);
        window.feed(10_000_000, 60.0);
        window.feed(11_000_000, 0.0);
        assert_eq!(window.mean(40_000_000, 30), Some(2.0));
        assert_eq!(window.mean(41_000_000, 30), Some(0.0));
    }

    #[test]
    fn a_clock_that_steps_back_and_odd_values_do_no_harm() {
        let mut window = Window::default();
        window.feed(50_000_000, 5.0);
        window.feed(40_000_000, f64::NAN);
        window.feed(40_000_000, -3.0);
        assert_eq!(window.value(), Some(0.0));
        assert_eq!(window.mean(60_000_000, 30), Some(0.0));
    }
}
