//! The model's own error over its last answers, and the switch that takes it out of use.

use super::Observed;

/// Answers looked back on.
pub(super) const AUDIT_ANSWERS: usize = 200;
/// Median error at which the model is taken out of use, and the lower one at which it comes back.
const FAILED_RATIO: f64 = 0.5;
const HEALED_RATIO: f64 = 0.4;
/// Error claimed before there are answers to judge by.
const ERROR_UNKNOWN: f64 = 0.5;
/// Least error claimed: no model of a busy machine is better.
const ERROR_MIN: f64 = 0.02;
/// Answers between two sortings of the ring once it is full; before that every answer sorts.
const REFRESH: u64 = 8;

/// Errors of the last 200 answers. The model is judged also while the fallback is in use, or it could
/// never come back.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// Signed relative errors of the model, oldest overwritten.
    errors: Vec<f32>,
    covered: Vec<Covered>,
    seen: u64,
    median_error: Option<f64>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Passed,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Covered {
    UnderP90,
    OverP90,
}

/// The self-audit in numbers, over the last 200 answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    /// Answers judged, at most 200.
    pub answers: u32,
    /// Median of `|actual - predicted| / actual`.
    pub median_error_ratio: f64,
    /// Mean of `(predicted - actual) / actual`: above zero predicts too long.
    pub bias_ratio: f64,
    /// Share of answers faster than their predicted p90; 0.9 when all is well.
    pub p90_coverage_ratio: f64,
}

impl Audit {
    pub(super) fn note(&mut self, model_s: f64, actual_s: f64, observed: &Observed) {
        let error = ((model_s - actual_s) / actual_s) as f32;
        let covered = if observed.actual_us <= observed.p90_us { Covered::UnderP90 } else { Covered::OverP90 };
        if self.errors.len() < AUDIT_ANSWERS {
            self.errors.push(error);
            self.covered.push(covered);
        } else {
            let at = (self.seen % AUDIT_ANSWERS as u64) as usize;
            self.errors[at] = error;
            self.covered[at] = covered;
        }
        self.seen += 1;
        if self.seen <= AUDIT_ANSWERS as u64 || self.seen.is_multiple_of(REFRESH) {
            self.judge();
        }
    }

    pub(super) fn failed(&self) -> bool {
        self.state == State::Failed
    }

    pub(super) fn error_ratio(&self) -> f64 {
        self.median_error.map_or(ERROR_UNKNOWN, |error| error.clamp(ERROR_MIN, 1.0))
    }

    pub(super) fn quality(&self) -> Quality {
        let answers = self.errors.len().max(1) as f64;
        let under = self.covered.iter().filter(|covered| **covered == Covered::UnderP90).count();
        Quality {
            answers: self.errors.len() as u32,
            median_error_ratio: self.median_error.unwrap_or(0.0),
            bias_ratio: self.errors.iter().map(|error| f64::from(*error)).sum::<f64>() / answers,
            p90_coverage_ratio: under as f64 / answers,
        }
    }

    fn judge(&mut self) {
        let mut sizes = [0.0_f32; AUDIT_ANSWERS];
        let sizes = &mut sizes[..self.errors.len()];
        sizes.iter_mut().zip(&self.errors).for_each(|(size, error)| *size = error.abs());
        let middle = sizes.len() / 2;
        let (_, median, _) = sizes.select_nth_unstable_by(middle, f32::total_cmp);
        let median = f64::from(*median);
        self.median_error = Some(median);
        self.state = match self.state {
            State::Passed if median > FAILED_RATIO && self.errors.len() == AUDIT_ANSWERS => State::Failed,
            State::Failed if median < HEALED_RATIO => State::Passed,
            State::Passed | State::Failed => self.state,
        };
    }
}
