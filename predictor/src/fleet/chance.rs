//! Chances for endpoints that would be passed over for what is believed of them and not known.
//!
//! Who is always sent to the best of what is believed never learns better of the others: one answer that came late, as the first of a
//! server often does, or a slowness of an hour ago, would keep an endpoint without requests for as long as another has time. So
//! an endpoint is thought no slower than the best known kind of its model until its own kind has answered some requests, and its own
//! slowness is forgotten while it has none.

use super::{Backend, Endpoint, Fleet};
use crate::ttft::{Basis, Features, Load, Prediction, Scale};

/// How long an endpoint without requests is believed to be as slow as it was, seconds.
const SLOWNESS_KEPT_S: f64 = 30.0;

/// Which kinds compare with each other: those of engines that serve the same model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kin {
    pub(super) model: usize,
    pub(super) backend: Backend,
}

impl Fleet {
    /// How many times slower than its kind the endpoint is believed to be now.
    pub(super) fn scale(&self, now_us: u64, endpoint: u32, known: &Endpoint) -> Scale {
        let quiet_s = now_us.saturating_sub(known.quiet_since_us) as f64 / 1e6;
        match quiet_s > SLOWNESS_KEPT_S && self.in_flight(endpoint) == 0 {
            true => known.scale.forgotten(quiet_s / SLOWNESS_KEPT_S - 1.0),
            false => known.scale,
        }
    }

    /// From here on the endpoint has requests again, and is taken for what it is believed to be now.
    pub(super) fn ends_quiet(&mut self, now_us: u64, endpoint: u32) {
        let scale = self.endpoint(endpoint).map(|known| self.scale(now_us, endpoint, known));
        if let (Some(Some(known)), Some(scale)) = (self.endpoints.get_mut(endpoint as usize), scale) {
            (known.scale, known.quiet_since_us) = (scale, now_us);
        }
    }

    /// The cost by which an endpoint of a kind that is still learning is compared: at most what it would be for the fastest kind that
    /// serves the same model.
    pub(super) fn cost_with_a_chance(
        &self,
        own: &Prediction,
        known: &Endpoint,
        load: &Load,
        features: &Features,
    ) -> u64 {
        match (own.basis, known.backend) {
            (Basis::Learning, Backend::Engine) => {}
            (Basis::Learning | Basis::Learned | Basis::Fallback, _) => return own.cost_us,
        }
        let mine = self.kin[known.kind];
        let others = self.kinds.iter().zip(&self.kin).filter(|(_, kin)| **kin == mine).map(|((_, kind), _)| kind);
        let learned = others.filter(|kind| kind.basis() == Basis::Learned);
        let theirs = learned.map(|kind| kind.predict(Scale::default(), load, 0, features).cost_us);
        theirs.fold(own.cost_us, u64::min)
    }
}
