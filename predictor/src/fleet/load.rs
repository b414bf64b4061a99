//! What an endpoint has to do before a newcomer's first token, and what that gives for the prediction.

use super::{Backend, Endpoint, Fleet, PeerSums};
use crate::ledger::{Ledger, Sums, Work};
use crate::ttft::{Basis, Features, Load, Prediction, Scale};

/// Of a step in progress whose end is not known.
const STEP_LEFT_UNKNOWN: f64 = 0.5;
/// At most this part of the first waiting request is taken as done while its first token is not seen.
const HEAD_DONE_MAX: f64 = 0.9;

/// How far an endpoint is with the first of its pending requests.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    /// Whether the step in progress computes it.
    begun: bool,
    done_tokens: f64,
    done_attention: f64,
}

impl Fleet {
    /// What other balancers are to be told of an endpoint: the open requests, less what the endpoint did of the first.
    #[must_use]
    pub fn sums_to_tell(&self, now_us: u64, endpoint: u32) -> PeerSums {
        let (Some(known), Some(ledger)) = (self.endpoint(endpoint), self.book.ledger(endpoint)) else {
            return PeerSums::default();
        };
        let (head, sums) = (self.head(now_us, endpoint, known, ledger), PeerSums::from(ledger.sums()));
        PeerSums {
            pending_new_tokens: sums.pending_new_tokens.saturating_sub(head.done_tokens as u64),
            pending_attention_x2: sums.pending_attention_x2.saturating_sub((2.0 * head.done_attention) as u64),
            ..sums
        }
    }

    /// Features, the model's own time in microseconds and the prediction.
    pub(super) fn expect(&self, now_us: u64, endpoint: u32, work: Work) -> Option<(Features, u64, Prediction)> {
        let known = self.endpoint(endpoint)?;
        let kind = &self.kinds[known.kind].1;
        let scale = self.scale(now_us, endpoint, known);
        let load = self.load(now_us, endpoint, known, scale, work)?;
        let features = match known.backend {
            Backend::Engine => load.engine(),
            Backend::Provider => load.provider(),
        };
        let own = kind.predict(scale, &load, self.in_flight(endpoint), &features);
        let prediction = Prediction { cost_us: self.cost_with_a_chance(&own, known, &load, &features), ..own };
        let model_us = match prediction.basis {
            Basis::Learning | Basis::Learned => prediction.ttft_us,
            Basis::Fallback => (kind.model_s(scale, &features) * 1e6) as u64,
        };
        Some((features, model_us, prediction))
    }

    fn load(&self, now_us: u64, endpoint: u32, known: &Endpoint, scale: Scale, work: Work) -> Option<Load> {
        let kind = &self.kinds[known.kind].1;
        let rate = kind.tokens_per_s(scale);
        let ledger = self.book.ledger(endpoint)?;
        let sums = ledger.sums();
        let head = self.head(now_us, endpoint, known, ledger);
        let peers = known.peers.load(now_us, |tokens, attention| kind.work_s(scale, tokens, attention));
        let step_left = match self.step_in_progress(now_us, endpoint, sums) {
            _ if head.begun || peers.new_tokens > 0.0 => 1.0,
            Some((_, left)) => left,
            None if f64::from(sums.decoding) + peers.decoding > 0.0 => STEP_LEFT_UNKNOWN,
            None => 0.0,
        };
        Some(Load {
            work,
            step_left,
            ahead_new_tokens: (sums.pending_new_tokens as f64 - head.done_tokens).max(0.0) + peers.new_tokens,
            ahead_attention: (sums.pending_attention_x2 as f64 / 2.0 - head.done_attention).max(0.0) + peers.attention,
            decoding: f64::from(sums.decoding) + peers.decoding,
            decoding_tokens: sums.decoding_tokens as f64 + peers.decoding_tokens,
            others_tokens: known.scraped.others_tokens(now_us, known.new_tokens_mean, rate),
            kv_capacity_tokens: known.kv_capacity_tokens.map(|tokens| tokens as f64),
            max_batched_tokens: known.max_batched_tokens as f64,
        })
    }

    /// The step in progress, where own answers tell of it.
    fn step_in_progress(&self, now_us: u64, endpoint: u32, sums: &Sums) -> Option<(u64, f64)> {
        if sums.decoding > 0 { self.steps.in_progress(now_us, endpoint) } else { None }
    }

    /// How far the endpoint is with the first of its pending requests.
    fn head(&self, now_us: u64, endpoint: u32, known: &Endpoint, ledger: &Ledger) -> Head {
        let Some(first) = ledger.first_work() else { return Head::default() };
        // What came after the step in progress began is not part of it.
        let step = self.step_in_progress(now_us, endpoint, ledger.sums());
        if step.is_some_and(|(since_us, _)| ledger.first_decided_us() >= since_us) {
            return Head::default();
        }
        let idle_s = now_us.saturating_sub(ledger.last_progress_us()) as f64 / 1e6;
        let done_ratio = (idle_s / self.kinds[known.kind].1.prefill_s(known.scale, first)).min(HEAD_DONE_MAX);
        Head {
            begun: true,
            done_tokens: f64::from(first.new_tokens()) * done_ratio,
            done_attention: first.attention_x2() as f64 / 2.0 * done_ratio,
        }
    }
}
