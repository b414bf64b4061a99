//! Time to first token, learned online.
//!
//! ```text
//! ttft = exp(s_endpoint) * theta_kind . x          p90 = ttft * exp(q[band of ttft])
//! ```
//!
//! A *kind* is one model on one GPU with one set of engine settings; its `theta` (seconds, never negative) is learned
//! from every endpoint of the kind, so a new endpoint starts with what the others taught. `s` is the endpoint's own
//! deviation: a slow machine, a noisy neighbour.
//!
//! `theta` minimises a decayed, weighted square error with a ridge to the prior, by two sweeps of non-negative
//! coordinate descent at each answer, about 0.5 us. (Recursive least squares with forgetting was tried and blew up: its
//! covariance grows without bound in directions that traffic does not excite.) Residuals are clipped at three robust
//! sigmas, so one stalled answer moves nothing much.
//!
//! The model audits itself over its last 200 answers; when its median error there exceeds one half it is replaced by a
//! formula that cannot be wrong by learning, and says so in [`Basis`].

use crate::ledger::Work;

mod audit;

pub use audit::{Audit, Quality};

/// Number of features.
pub const FEATURES: usize = 9;
/// Tokens that make one unit of a token feature.
pub const TOKENS_UNIT: f64 = 8_192.0;
/// A kind counts as learning for its first answers, this many.
pub const LEARNING_ANSWERS: u64 = 20;
/// Bands of predicted time, each twice as long as the one before, for the spread of actual times.
pub const BANDS: usize = 12;

/// Time below which answers are not weighted up further, in seconds: network and scheduling noise.
const TTFT_FLOOR_S: f64 = 0.02;
const DECAY: f64 = 0.998;
/// Weight of the prior in answers' worth.
const RIDGE: f64 = 0.05;
const CLIP_SIGMAS: f64 = 3.0;
const SWEEPS: usize = 2;
const SCALE_KEPT: f64 = 0.998;
const SCALE_STEP: f64 = 0.05;
const SCALE_CLIP: f64 = 0.7;
/// A band's quantile is `BAND_QUANTILE` mean absolute deviations for its first `BAND_WARM` answers (what it is for a
/// normal spread), then tracked by steps
/// that shrink to `QUANTILE_STEP` deviations.
const BAND_QUANTILE: f64 = 1.6;
const BAND_WARM: u32 = 24;
const QUANTILE_STEP: f64 = 0.1;
/// Mean absolute log deviation before the first answer.
const SPREAD_PRIOR: f64 = 0.3;
const QUANTILE: f64 = 0.9;
const TTFT_S_MAX: f64 = 3_600.0;
/// Courtesy to running answers: this part of the own prefill time is charged for each.
const COURTESY: f64 = 0.05;

/// What the prediction is made from, in the order of `theta`.
pub type Features = [f64; FEATURES];

/// The load of an endpoint and the request that may be added to it, before scaling.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The request itself.
    pub work: Work,
    /// Uncached tokens ahead of it, less what the endpoint did since its last sign of progress.
    pub ahead_new_tokens: f64,
    /// Attention pairs ahead of it, likewise.
    pub ahead_attention: f64,
    /// How much of the step in progress is left before a newcomer can take part in one: 0 on an idle engine, 1 where the step
    /// computes what is ahead.
    pub step_left: f64,
    /// Answers being decoded.
    pub decoding: f64,
    /// Tokens in the contexts of those.
    pub decoding_tokens: f64,
    /// Tokens waiting there that this balancer did not send.
    pub others_tokens: f64,
    /// Tokens the KV cache holds; unknown leaves cache pressure out.
    pub kv_capacity_tokens: Option<f64>,
    /// Tokens an engine step prefills at most.
    pub max_batched_tokens: f64,
}

impl Load {
    /// The features of an engine.
    #[must_use]
    pub fn engine(&self) -> Features {
        let prompt = f64::from(self.work.prompt_tokens());
        let new = self.ahead_new_tokens + f64::from(self.work.new_tokens());
        let attention = self.ahead_attention + self.work.attention_x2() as f64 / 2.0;
        // The step in progress cannot be joined.
        let steps = self.step_left + 1.0 + new / self.max_batched_tokens.max(1.0);
        let pressure = match self.kv_capacity_tokens {
            Some(capacity) if capacity >= 1.0 => {
                (10.0 * ((self.decoding_tokens + prompt) / capacity - 0.9)).clamp(0.0, 100.0)
            }
            Some(_) | None => 0.0,
        };
        [
            1.0,
            new / TOKENS_UNIT,
            attention / (TOKENS_UNIT * TOKENS_UNIT),
            steps * self.decoding / 10.0,
            steps * self.decoding_tokens / 1e5,
            pressure,
            self.others_tokens / TOKENS_UNIT,
            self.step_left,
            prompt / TOKENS_UNIT,
        ]
    }

    /// The features of a provider whose load cannot be seen: a constant and the length of the prompt.
    #[must_use]
    pub fn provider(&self) -> Features {
        let mut features = [0.0; FEATURES];
        features[0] = 1.0;
        features[FEATURES - 1] = f64::from(self.work.prompt_tokens()) / TOKENS_UNIT;
        features
    }
}

/// What is believed of a kind before its first answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Seconds to prefill one token.
    pub seconds_per_token: f64,
    /// Seconds any answer takes.
    pub base_s: f64,
}

impl Default for Prior {
    /// 1e-4 s a token and 20 ms.
    fn default() -> Self {
        Prior { seconds_per_token: 1e-4, base_s: 0.02 }
    }
}

impl Prior {
    /// From the hardware: prefill is bound by arithmetic, two operations a parameter and token, at about half of the
    /// GPU's dense peak.
    #[must_use]
    pub fn from_hardware(parameters: f64, peak_flops: f64) -> Prior {
        let seconds_per_token = 2.0 * parameters / (0.5 * peak_flops);
        match seconds_per_token.is_finite() && seconds_per_token > 0.0 {
            true => Prior { seconds_per_token: seconds_per_token.clamp(1e-7, 1e-1), ..Prior::default() },
            false => Prior::default(),
        }
    }

    fn theta(self) -> Features {
        let chunk_s = self.seconds_per_token.max(1e-9) * TOKENS_UNIT;
        let base_s = self.base_s.max(1e-4);
        [base_s, chunk_s, 0.2 * chunk_s, 0.1 * base_s, 0.25 * base_s, 1.0, chunk_s, base_s, 0.02 * chunk_s]
    }
}

/// What stands behind a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Prior and the first few answers: good for an order, not for a promise.
    Learning,
    /// The learned model.
    Learned,
    /// The model's error is too large; tokens ahead times requests in flight.
    Fallback,
}

/// An expectation for one request on one endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Expected time to first token, microseconds.
    pub ttft_us: u64,
    /// Nine in ten should be faster than this, microseconds.
    pub p90_us: u64,
    /// What to minimise, microseconds: `ttft_us` and the courtesy to answers that run there.
    pub cost_us: u64,
    /// The kind's median relative error, 0 to 1: costs closer than this are as good as equal.
    pub error_ratio: f64,
    /// What stands behind it.
    pub basis: Basis,
}

/// Predictions closer than this are taken as equal, however unsure the predictor is: a wider band gives warm caches away.
const NEAR_RATIO: f64 = 0.05;

impl Prediction {
    /// Costs of other endpoints that are no more than this part above the least are as good.
    #[must_use]
    pub fn near_ratio(&self) -> f64 {
        self.error_ratio.min(NEAR_RATIO)
    }
}

/// An endpoint's deviation from its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    s: f64,
    factor: f64,
}

impl Default for Scale {
    fn default() -> Self {
        Scale { s: 0.0, factor: 1.0 }
    }
}

impl Scale {
    /// How many times slower than its kind the endpoint is.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// After so many half-lives in which nothing was heard.
    pub(crate) fn forgotten(self, half_lives: f64) -> Self {
        let s = self.s * (-half_lives).exp2();
        Scale { s, factor: s.exp() }
    }

    fn learn(&mut self, log_ratio: f64) {
        self.s = (SCALE_KEPT * self.s + SCALE_STEP * log_ratio.clamp(-SCALE_CLIP, SCALE_CLIP)).clamp(-5.0, 5.0);
        self.factor = self.s.exp();
    }
}

/// A time that was predicted and then seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Predicted at the decision, microseconds.
    pub predicted_us: u64,
    /// p90 predicted at the decision, microseconds.
    pub p90_us: u64,
    /// Seen, microseconds.
    pub actual_us: u64,
}

/// The model of one kind.
#[derive(Clone, Debug)]
pub struct Kind {
    prior: Features,
    theta: Features,
    gram: [Features; FEATURES],
    moment: Features,
    /// Robust relative spread of residuals.
    sigma: f64,
    /// Mean absolute log deviation over all bands.
    spread: f64,
    bands: [Band; BANDS],
    answers: u64,
    audit: Audit,
}

#[derive(Clone, Copy, Debug)]
struct Band {
    q: f64,
    /// `exp(q)`.
    factor: f64,
    spread: f64,
    answers: u32,
}

impl Kind {
    /// A kind before its first answer.
    #[must_use]
    pub fn new(prior: Prior) -> Kind {
        let theta = prior.theta();
        Kind {
            prior: theta,
            theta,
            gram: [[0.0; FEATURES]; FEATURES],
            moment: [0.0; FEATURES],
            sigma: 1.0,
            spread: SPREAD_PRIOR,
            bands: [Band { q: 0.0, factor: 1.0, spread: SPREAD_PRIOR, answers: 0 }; BANDS],
            answers: 0,
            audit: Audit::default(),
        }
    }

    /// Answers learned from.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// What stands behind the next prediction.
    #[must_use]
    pub fn basis(&self) -> Basis {
        match (self.audit.failed(), self.answers < LEARNING_ANSWERS) {
            (true, _) => Basis::Fallback,
            (false, true) => Basis::Learning,
            (false, false) => Basis::Learned,
        }
    }

    /// The coefficients in seconds, in the order of [`Load::engine`].
    #[must_use]
    pub fn theta(&self) -> &Features {
        &self.theta
    }

    /// Median relative error of the last answers, 0.02 to 1; 0.5 before the first.
    #[must_use]
    pub fn error_ratio(&self) -> f64 {
        self.audit.error_ratio()
    }

    /// The error of the last answers.
    #[must_use]
    pub fn quality(&self) -> Quality {
        self.audit.quality()
    }

    /// Tokens a second an endpoint prefills when it does nothing else.
    #[must_use]
    pub fn tokens_per_s(&self, scale: Scale) -> f64 {
        TOKENS_UNIT / (scale.factor * self.theta[1]).max(1e-6)
    }

    /// Seconds that prefilling this takes by itself.
    #[must_use]
    pub fn prefill_s(&self, scale: Scale, work: Work) -> f64 {
        self.work_s(scale, f64::from(work.new_tokens()), work.attention_x2() as f64 / 2.0)
    }

    /// Seconds that prefilling so many tokens with so many attention pairs takes by itself.
    #[must_use]
    pub fn work_s(&self, scale: Scale, tokens: f64, pairs: f64) -> f64 {
        let own = self.theta[1] * tokens / TOKENS_UNIT + self.theta[2] * pairs / (TOKENS_UNIT * TOKENS_UNIT);
        (scale.factor * own).max(1e-6)
    }

    /// Seconds to first token by the model alone.
    #[must_use]
    pub fn model_s(&self, scale: Scale, features: &Features) -> f64 {
        (scale.factor * dot(&self.theta, features)).clamp(1e-6, TTFT_S_MAX)
    }

    /// The expectation for a request; `load` and `features` describe the same endpoint and request.
    #[must_use]
    pub fn predict(&self, scale: Scale, load: &Load, in_flight: u32, features: &Features) -> Prediction {
        let basis = self.basis();
        let model_s = self.model_s(scale, features);
        let (ttft_s, cost_s) = match basis {
            Basis::Learning | Basis::Learned => {
                (model_s, model_s + COURTESY * load.decoding * self.prefill_s(scale, load.work))
            }
            Basis::Fallback => {
                let tokens = load.ahead_new_tokens + f64::from(load.work.new_tokens());
                let prior_s = tokens * (f64::from(in_flight) + 1.0) * self.prior[1] / TOKENS_UNIT;
                (prior_s, prior_s)
            }
        };
        let ttft_s = ttft_s.min(TTFT_S_MAX);
        Prediction {
            ttft_us: micros(ttft_s),
            p90_us: micros(ttft_s * self.p90_factor(ttft_s)),
            cost_us: micros(cost_s),
            error_ratio: self.audit.error_ratio(),
            basis,
        }
    }

    /// Learns from one first token. `features` are those of the decision, `predicted` and `p90` what
    /// [`Kind::predict`] gave then, `model_us` what the model alone gave then.
    pub fn learn(&mut self, scale: &mut Scale, features: &Features, model_us: u64, observed: &Observed) {
        let actual_s = (observed.actual_us as f64 / 1e6).clamp(1e-6, TTFT_S_MAX);
        let model_then_s = (model_us as f64 / 1e6).max(1e-6);
        self.audit.note(model_then_s, actual_s, observed);
        self.learn_band(model_then_s, (actual_s / model_then_s).ln());
        self.learn_theta(features, actual_s / scale.factor);
        scale.learn((actual_s / self.model_s(*scale, features)).ln());
        self.answers = self.answers.saturating_add(1);
    }

    /// How many times the expectation the p90 is. A band without answers takes the spread of all.
    fn p90_factor(&self, ttft_s: f64) -> f64 {
        match &self.bands[band(ttft_s)] {
            Band { answers: 0, .. } => (BAND_QUANTILE * self.spread).exp(),
            band => band.factor,
        }
    }

    fn learn_band(&mut self, model_s: f64, log_ratio: f64) {
        let deviation = log_ratio.abs().min(3.0);
        self.spread += (deviation - self.spread) * 0.05;
        let band = &mut self.bands[band(model_s)];
        if band.answers == 0 {
            band.spread = self.spread;
        }
        band.answers = band.answers.saturating_add(1);
        band.spread += (deviation - band.spread) * (1.0 / f64::from(band.answers + 4)).max(0.02);
        let step = (2.0 / f64::from(band.answers).sqrt()).max(QUANTILE_STEP) * band.spread.max(0.01);
        let moved = match (band.answers <= BAND_WARM, log_ratio > band.q) {
            (true, _) => BAND_QUANTILE * band.spread,
            (false, true) => band.q + step * QUANTILE,
            (false, false) => band.q - step * (1.0 - QUANTILE),
        };
        band.q = moved.clamp(0.0, 5.0);
        band.factor = band.q.exp();
    }

    fn learn_theta(&mut self, features: &Features, actual_s: f64) {
        let expected_s = dot(&self.theta, features);
        let floor_s = actual_s.max(TTFT_FLOOR_S);
        let residual = (actual_s - expected_s) / expected_s.max(TTFT_FLOOR_S);
        let clip = CLIP_SIGMAS * self.sigma;
        let target_s = expected_s + residual.clamp(-clip, clip) * expected_s.max(TTFT_FLOOR_S);
        // Median tracking by sign: half of the residuals are larger. 1.4826 turns a median into a sigma.
        let larger = if residual.abs() * 1.4826 > self.sigma { 1.1 } else { 1.0 / 1.1 };
        self.sigma = (self.sigma * larger).clamp(0.05, 3.0);
        let weight = 1.0 / floor_s;
        for (row, (x_row, moment)) in self.gram.iter_mut().zip(features.iter().zip(&mut self.moment)) {
            for (cell, x) in row.iter_mut().zip(features) {
                *cell = *cell * DECAY + weight * x_row * x;
            }
            *moment = *moment * DECAY + weight * x_row * target_s;
        }
        self.descend();
    }

    fn descend(&mut self) {
        for _ in 0..SWEEPS {
            for at in 0..FEATURES {
                let ridge = RIDGE / self.prior[at].max(1e-9);
                let others = dot(&self.gram[at], &self.theta) - self.gram[at][at] * self.theta[at];
                let pulled = self.moment[at] - others + ridge * self.prior[at];
                self.theta[at] = (pulled / (self.gram[at][at] + ridge)).max(0.0);
            }
        }
    }
}

fn dot(a: &Features, b: &Features) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

/// Bands double from 20 ms on: the binary exponent of the ratio, read from its bits.
fn band(ttft_s: f64) -> usize {
    let ratio = (ttft_s / TTFT_FLOOR_S).max(1.0);
    ((ratio.to_bits() >> 52) as usize).saturating_sub(1_023).min(BANDS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(prompt: u32, cached: u32, ahead: f64) -> Load {
        Load {
            work: Work::new(prompt, cached),
            ahead_new_tokens: ahead,
            ahead_attention: 0.0,
            step_left: if ahead > 0.0 { 1.0 } else { 0.0 },
            decoding: 0.0,
            decoding_tokens: 0.0,
            others_tokens: 0.0,
            kv_capacity_tokens: Some(100_000.0),
            max_batched_tokens: 8_192.0,
        }
    }

    /// One answer that took `actual_s(model)`.
    fn answer(kind: &mut Kind, scale: &mut Scale, load: &Load, actual_s: impl Fn(f64) -> f64) {
        let features = load.engine();
        let predicted = kind.predict(*scale, load, 0, &features);
        let model_s = kind.model_s(*scale, &features);
        let observed = Observed {
            predicted_us: predicted.ttft_us,
            p90_us: predicted.p90_us,
            actual_us: micros(actual_s(model_s)),
        };
        kind.learn(scale, &features, micros(model_s), &observed);
    }

    #[test]
    fn features_are_those_of_the_design() {
        let load = Load {
            ahead_attention: 8_192.0 * 8_192.0,
            decoding: 10.0,
            decoding_tokens: 95_904.0,
            others_tokens: 8_192.0,
            ..load(4_096, 0, 4_096.0)
        };
        // new = 8,192 of which a part is ahead: one full step, so two steps, after the one in progress; attention of the own prompt is half of its square.
        assert_eq!(load.engine(), [1.0, 1.0, 1.125, 3.0, 2.87712, 10.0 * (1.0 - 0.9), 1.0, 1.0, 0.5]);
        assert_eq!(load.provider(), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5]);
    }

    #[test]
    fn the_prior_is_a_tenth_of_a_millisecond_a_token_and_twenty_milliseconds() {
        let kind = Kind::new(Prior::default());
        let load = load(1_000, 0, 0.0);
        let seconds = kind.model_s(Scale::default(), &load.engine());
        assert!((0.12..0.13).contains(&seconds), "{seconds}");
        let (eight_b, h100) = (Prior::from_hardware(8e9, 1e15), Prior::from_hardware(f64::NAN, 0.0));
        assert!((eight_b.seconds_per_token - 3.2e-5).abs() < 1e-9);
        assert_eq!(h100, Prior::default());
    }

    #[test]
    fn bands_double_from_twenty_milliseconds_on() {
        let bands = [0.0, 0.019, 0.0201, 0.0399, 0.0401, 0.0801, 40.0, 41.0, 1e9, f64::NAN].map(band);
        assert_eq!(bands, [0, 0, 0, 0, 1, 2, 10, 11, 11, 0]);
    }

    #[test]
    fn one_stalled_answer_moves_its_endpoint_little_and_its_kind_not() {
        let (mut kind, mut scale) = (Kind::new(Prior::default()), Scale::default());
        let at = |step: u32| load(500 + step * 37 % 3_000, 0, 0.0);
        for step in 0..200 {
            let actual_s = 0.03 + f64::from(at(step).work.prompt_tokens()) * 1e-4;
            answer(&mut kind, &mut scale, &at(step), |_| actual_s);
        }
        let seconds = |kind: &Kind, scale| kind.model_s(scale, &at(7).engine());
        let before = (seconds(&kind, scale), seconds(&kind, Scale::default()));
        answer(&mut kind, &mut scale, &at(7), |_| 100.0);
        let after = (seconds(&kind, scale), seconds(&kind, Scale::default()));
        assert!(after.0 / before.0 < 1.04, "{before:?} {after:?}");
        assert!((after.1 / before.1 - 1.0).abs() < 1e-3, "{before:?} {after:?}");
    }

    #[test]
    fn coefficients_stay_finite_and_not_negative_whatever_comes() {
        let (mut kind, mut scale) = (Kind::new(Prior::default()), Scale::default());
        let times = [0.0, 1e-9, 1e9, f64::MAX, 0.5, 1e-3];
        for step in 0..3_000_u32 {
            let ahead = f64::from(step % 7) * 1e6;
            let load = Load { decoding: f64::from(step % 1_000), ..load(1 << (step % 23), 0, ahead) };
            answer(&mut kind, &mut scale, &load, |_| times[step as usize % times.len()]);
            assert!(kind.theta().iter().all(|theta| theta.is_finite() && *theta >= 0.0), "{:?}", kind.theta());
            assert!(scale.factor().is_finite() && scale.factor() > 0.0);
            let prediction = kind.predict(scale, &load, 3, &load.engine());
            assert!(prediction.p90_us >= prediction.ttft_us && prediction.error_ratio.is_finite());
        }
    }

    #[test]
    fn a_model_that_errs_by_half_gives_way_to_the_fallback_and_comes_back() {
        let (mut kind, mut scale) = (Kind::new(Prior::default()), Scale::default());
        assert_eq!(kind.basis(), Basis::Learning);
        let light = load(1_000, 0, 0.0);
        // Nothing in the features tells the two apart.
        for step in 0..400_u32 {
            let factor = if step.is_multiple_of(2) { 30.0 } else { 0.03 };
            answer(&mut kind, &mut scale, &light, |_| 0.1 * factor);
        }
        assert_eq!(kind.basis(), Basis::Fallback);
        let predict =
            |ahead, in_flight| kind.predict(scale, &load(1_000, 0, ahead), in_flight, &light.engine()).cost_us;
        assert_eq!(predict(0.0, 0), 100_000);
        assert_eq!(predict(1_000.0, 2), 600_000);
        for _ in 0..400 {
            answer(&mut kind, &mut scale, &light, |_| 0.1);
        }
        assert_eq!(kind.basis(), Basis::Learned);
    }

    #[test]
    fn courtesy_charges_a_twentieth_of_the_own_prefill_for_each_answer_that_runs() {
        let kind = Kind::new(Prior { seconds_per_token: 1e-4, base_s: 0.02 });
        let load = Load { decoding: 10.0, ..load(1_000, 0, 0.0) };
        let prediction = kind.predict(Scale::default(), &load, 10, &load.engine());
        let courtesy_us = prediction.cost_us - prediction.ttft_us;
        assert!((50_000..52_000).contains(&courtesy_us), "{courtesy_us}");
    }

    #[test]
    fn a_provider_is_learned_from_the_length_of_the_prompt() {
        let (mut kind, mut scale) = (Kind::new(Prior::default()), Scale::default());
        for step in 0..300_u32 {
            let load = load(100 + step * 331 % 8_000, 0, 0.0);
            let features = load.provider();
            let model_us = micros(kind.model_s(scale, &features));
            let actual_us = 300_000 + u64::from(load.work.prompt_tokens()) * 20;
            let observed = Observed { predicted_us: model_us, p90_us: model_us, actual_us };
            kind.learn(&mut scale, &features, model_us, &observed);
        }
        let seconds = kind.model_s(scale, &load(4_000, 0, 0.0).provider());
        assert!((seconds - 0.38).abs() < 0.02, "{seconds}");
    }
}
