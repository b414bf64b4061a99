//! What other balancers have sent to an endpoint: their sums, told as they change, aged since.
//!
//! A balancer that sees a quarter of the traffic knows a quarter of the queue. Peers tell each other five numbers an endpoint;
//! between two tellings the endpoint works on what was told at the pace that was learned.

/// Balancers that are heard of at a time.
pub const PEERS_MAX: usize = 64;
/// What was told is void after this time: a peer that is gone has no requests.
const HEARD_US_MAX: u64 = 3_000_000;

/// A peer's open requests at one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerSums {
    /// Without a first token.
    pub pending: u32,
    /// Uncached prompt tokens of those.
    pub pending_new_tokens: u64,
    /// Twice their attention pairs.
    pub pending_attention_x2: u64,
    /// With a first token.
    pub decoding: u32,
    /// Prompt tokens of those.
    pub decoding_tokens: u64,
}

impl From<&crate::ledger::Sums> for PeerSums {
    fn from(sums: &crate::ledger::Sums) -> Self {
        Self {
            pending: sums.pending,
            pending_new_tokens: sums.pending_new_tokens,
            pending_attention_x2: sums.pending_attention_x2,
            decoding: sums.decoding,
            decoding_tokens: sums.decoding_tokens,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Told {
    peer: u64,
    at_us: u64,
    sums: PeerSums,
}

/// What all peers told of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Peers {
    told: Vec<Told>,
    total: PeerSums,
    /// Mean time of what was told.
    at_us: u64,
}

/// The work of peers at an endpoint, as of now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PeerLoad {
    pub(super) new_tokens: f64,
    pub(super) attention: f64,
    pub(super) decoding: f64,
    pub(super) decoding_tokens: f64,
}

impl Peers {
    /// A peer told its sums. What a peer beyond [`PEERS_MAX`] tells is not heard.
    pub(super) fn heard(&mut self, now_us: u64, peer: u64, sums: PeerSums) {
        self.told.retain(|told| told.peer != peer && now_us.saturating_sub(told.at_us) < HEARD_US_MAX);
        if self.told.len() < PEERS_MAX && sums != PeerSums::default() {
            self.told.push(Told { peer, at_us: now_us, sums });
        }
        self.total = self.told.iter().fold(PeerSums::default(), |sum, Told { sums, .. }| PeerSums {
            pending: sum.pending.saturating_add(sums.pending),
            pending_new_tokens: sum.pending_new_tokens.saturating_add(sums.pending_new_tokens),
            pending_attention_x2: sum.pending_attention_x2.saturating_add(sums.pending_attention_x2),
            decoding: sum.decoding.saturating_add(sums.decoding),
            decoding_tokens: sum.decoding_tokens.saturating_add(sums.decoding_tokens),
        });
        let ages_us: u64 = self.told.iter().map(|told| now_us.saturating_sub(told.at_us)).sum();
        self.at_us = now_us - ages_us / self.told.len().max(1) as u64;
    }

    /// Requests of peers, pending and decoding.
    pub(super) fn in_flight(&self) -> u32 {
        self.total.pending.saturating_add(self.total.decoding)
    }

    /// What is left of it; `work_s` tells how long the endpoint takes for so many tokens and attention pairs.
    pub(super) fn load(&self, now_us: u64, work_s: impl Fn(f64, f64) -> f64) -> PeerLoad {
        let age_us = now_us.saturating_sub(self.at_us);
        if self.told.is_empty() || age_us > HEARD_US_MAX {
            return PeerLoad::default();
        }
        let told = self.total.pending_new_tokens as f64;
        let attention = self.total.pending_attention_x2 as f64 / 2.0;
        let left_ratio = if told > 0.0 { (1.0 - age_us as f64 / 1e6 / work_s(told, attention)).max(0.0) } else { 0.0 };
        PeerLoad {
            new_tokens: told * left_ratio,
            attention: attention * left_ratio,
            decoding: f64::from(self.total.decoding) + f64::from(self.total.pending) * (1.0 - left_ratio),
            decoding_tokens: self.total.decoding_tokens as f64,
        }
    }
}
