//! Where engines are in their steps, read from when the chunks of running answers come.
//!
//! An engine works in steps: each gives every running answer its next token and computes what prompts it can. A request that
//! comes in the middle of one waits for its end, and on a short prompt that wait is half of the time to first token. The ends of
//! steps can be heard: the chunks of all answers leave then.
//!
//! One [`Steps`] serves all data threads: what one hears, all know at once. Its cells are written without order; two threads
//! that hear the same step at once may count it twice, which moves the estimate of its length by a twentieth.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Chunks that come closer than this part of a step belong to the same one.
const SAME_STEP_RATIO: f64 = 0.3;
/// The median of the steps' lengths is followed by this part at each.
const LENGTH_STEP: f64 = 0.05;
/// A step that is this many times overdue is none that can be told of: the streams are silent.
const OVERDUE_MAX: f64 = 4.0;
/// Lengths that are believed, microseconds.
const LENGTH_US_MIN: u64 = 200;
const LENGTH_US_MAX: u64 = 2_000_000;

/// On a cache line of its own: data threads write at every chunk.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Step {
    /// When the last one ended, 0 before the first.
    ended_us: AtomicU64,
    /// Median length, 0 before the second.
    length_us: AtomicU64,
}

/// The steps of all endpoints, by slot.
#[derive(Clone, Debug)]
pub struct Steps(Arc<[Step]>);

impl Steps {
    /// Nothing heard yet of `endpoints_max` endpoints.
    #[must_use]
    pub fn new(endpoints_max: u32) -> Self {
        Self((0..endpoints_max).map(|_| Step::default()).collect())
    }

    /// A chunk of a running answer came.
    pub fn heard(&self, now_us: u64, endpoint: u32) {
        let Some(step) = self.0.get(endpoint as usize) else { return };
        let (ended_us, length_us) = (step.ended_us.load(Relaxed), step.length_us.load(Relaxed));
        let gap_us = now_us.saturating_sub(ended_us);
        if gap_us < LENGTH_US_MIN || (gap_us as f64) < length_us as f64 * SAME_STEP_RATIO {
            return;
        }
        step.ended_us.store(now_us, Relaxed);
        if ended_us == 0 || gap_us > LENGTH_US_MAX {
            return;
        }
        let followed = match length_us {
            0 => gap_us as f64,
            length_us if gap_us > length_us => length_us as f64 * (1.0 + LENGTH_STEP),
            length_us => length_us as f64 / (1.0 + LENGTH_STEP),
        };
        step.length_us.store((followed as u64).clamp(LENGTH_US_MIN, LENGTH_US_MAX), Relaxed);
    }

    /// Another engine is at this slot.
    pub(super) fn forget(&self, endpoint: u32) {
        if let Some(step) = self.0.get(endpoint as usize) {
            step.ended_us.store(0, Relaxed);
            step.length_us.store(0, Relaxed);
        }
    }

    /// When the step in progress began and how much of it is left, 0 to 1, by the usual length of a step; `None` when that
    /// cannot be told.
    pub(super) fn in_progress(&self, now_us: u64, endpoint: u32) -> Option<(u64, f64)> {
        let step = self.0.get(endpoint as usize)?;
        let (ended_us, length_us) = (step.ended_us.load(Relaxed), step.length_us.load(Relaxed));
        let passed = now_us.saturating_sub(ended_us) as f64 / length_us.max(1) as f64;
        (ended_us > 0 && length_us > 0 && passed < OVERDUE_MAX).then_some((ended_us, (1.0 - passed).max(0.0)))
    }
}
