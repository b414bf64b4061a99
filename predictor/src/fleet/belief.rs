//! What the engine itself says, and everything that is believed of one endpoint in one record.

use super::{Evidence, Fleet, Phase, Scrape, Sums};
use crate::ttft::Basis;

/// Scrapes in a row that may fail before what was scraped is void.
const MISSED_MAX: u32 = 3;

/// The last reading of an engine's metrics.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scraped {
    /// None yet, or void.
    Never,
    /// Read, and not yet failed three times since.
    Read(Reading),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    at_us: u64,
    waiting: f64,
    running: f64,
    kv_usage_ratio: Option<f64>,
    own_pending: u32,
    /// Requests there that this balancer did not send and that wait.
    others_waiting: f64,
    missed: u32,
}

impl Scraped {
    pub(super) fn fresh(now_us: u64, scrape: &Scrape, sums: &Sums, of_peers: u32) -> Scraped {
        let own_in_flight = f64::from(scrape.own_in_flight_at_scrape.unwrap_or(sums.in_flight)) + f64::from(of_peers);
        let (waiting, running) = (sane(scrape.waiting), sane(scrape.running));
        Scraped::Read(Reading {
            at_us: now_us,
            waiting,
            running,
            kv_usage_ratio: scrape.kv_usage_ratio.map(|ratio| sane(ratio).min(1.0)),
            own_pending: sums.pending,
            others_waiting: (waiting + running - own_in_flight).max(0.0).min(waiting),
            missed: 0,
        })
    }

    pub(super) fn missed(self) -> Scraped {
        match self {
            Scraped::Read(reading) if reading.missed + 1 < MISSED_MAX => {
                Scraped::Read(Reading { missed: reading.missed + 1, ..reading })
            }
            Scraped::Read(_) | Scraped::Never => Scraped::Never,
        }
    }

    /// Scraped waiting, plus own sends and minus own first tokens since, never below zero; own pending when void.
    pub(super) fn queued(&self, own_pending: u32) -> f64 {
        match self {
            Scraped::Never => f64::from(own_pending),
            Scraped::Read(reading) => {
                (reading.waiting + f64::from(own_pending) - f64::from(reading.own_pending)).max(0.0)
            }
        }
    }

    pub(super) fn running(&self) -> Option<f64> {
        match self {
            Scraped::Never => None,
            Scraped::Read(reading) => Some(reading.running),
        }
    }

    pub(super) fn kv_usage_ratio(&self) -> Option<f64> {
        match self {
            Scraped::Never => None,
            Scraped::Read(reading) => reading.kv_usage_ratio,
        }
    }

    /// Tokens waiting that others sent, less what the engine did since at `rate` tokens a second.
    pub(super) fn others_tokens(&self, now_us: u64, new_tokens_mean: f64, rate: f64) -> f64 {
        match self {
            Scraped::Never => 0.0,
            Scraped::Read(reading) => {
                let age_s = now_us.saturating_sub(reading.at_us) as f64 / 1e6;
                (reading.others_waiting * new_tokens_mean - age_s * rate).max(0.0)
            }
        }
    }
}

fn sane(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, 1e6) } else { 0.0 }
}

/// Everything believed of one endpoint, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointBelief {
    /// Sums over own open requests.
    pub sums: Sums,
    /// Queued prompts now.
    pub queued_prompts_now: f64,
    /// Mean of the queued prompts over 30 s; unknown when seen for under 5 s.
    pub queued_prompts_mean: Option<f64>,
    /// Age of the last good scrape in microseconds; `None` when there is none or it is void.
    pub scrape_age_us: Option<u64>,
    /// Requests running by the last scrape.
    pub running: Option<f64>,
    /// KV cache usage by the last scrape, 0 to 1.
    pub kv_usage_ratio: Option<f64>,
    /// Tokens the KV cache holds.
    pub kv_capacity_tokens: Option<u64>,
    /// Blocks recorded as cached there.
    pub blocks_held: u32,
    /// What the overlap rests on.
    pub evidence: Evidence,
    /// Part of the overlap estimates that turned out true.
    pub overlap_trust_ratio: f64,
    /// How many times slower than its kind.
    pub slowness_ratio: f64,
    /// Prefill speed, tokens a second.
    pub prefill_tokens_per_s: f64,
    /// Microseconds since own requests there last made progress; `None` when none waits.
    pub stalled_us: Option<u64>,
    /// Open requests there that other balancers told of.
    pub others_in_flight: u32,
    /// What stands behind predictions.
    pub basis: Basis,
    /// Median relative error of the kind's predictions.
    pub error_ratio: f64,
    /// Answers the kind has learned from.
    pub answers: u64,
}

impl Fleet {
    /// Everything believed of an endpoint.
    #[must_use]
    pub fn snapshot(&self, now_us: u64, endpoint: u32) -> Option<EndpointBelief> {
        let known = self.endpoint(endpoint)?;
        let ledger = self.book.ledger(endpoint)?;
        let kind = &self.kinds[known.kind].1;
        let scale = self.scale(now_us, endpoint, known);
        let waits = self.book.first_pending(endpoint).is_some_and(|open| open.phase == Phase::Pending);
        Some(EndpointBelief {
            sums: *ledger.sums(),
            queued_prompts_now: self.queued_prompts_now(endpoint)?,
            queued_prompts_mean: self.queued_prompts_mean(now_us, endpoint, crate::window::WINDOW_S_MAX),
            scrape_age_us: match known.scraped {
                Scraped::Never => None,
                Scraped::Read(reading) => Some(now_us.saturating_sub(reading.at_us)),
            },
            running: known.scraped.running(),
            kv_usage_ratio: known.scraped.kv_usage_ratio(),
            kv_capacity_tokens: known.kv_capacity_tokens,
            blocks_held: self.index.held(endpoint),
            evidence: known.cache.evidence(),
            overlap_trust_ratio: known.trust.mean(),
            slowness_ratio: scale.factor(),
            prefill_tokens_per_s: kind.tokens_per_s(scale),
            stalled_us: waits.then(|| now_us.saturating_sub(ledger.last_progress_us())),
            others_in_flight: known.peers.in_flight(),
            basis: kind.basis(),
            error_ratio: kind.error_ratio(),
            answers: kind.answers(),
        })
    }
}
