//! What one data thread decides, the others know: placements, first tokens and ends travel in batches, within 5 ms.

use predictor::fleet::{Answer, Attempt, Ended};
use predictor::prefix::chain::Chain;

use crate::plan::EndpointId;

/// Most events that wait for the next batch; what comes after is not told (and counted).
pub(crate) const BATCH_EVENTS_MAX: usize = 8_192;

/// One event of a request, as the other threads must apply it.
#[derive(Debug, Clone)]
pub(crate) struct PeerEvent {
    /// Which request: unique over the process.
    pub(crate) request: u64,
    /// Where it is.
    pub(crate) endpoint: EndpointId,
    /// Ignored by those for whom the number means another endpoint.
    pub(crate) incarnation: u64,
    /// When, on the process clock.
    pub(crate) at_us: u64,
    /// What happened.
    pub(crate) what: PeerWhat,
}

/// What happened to a request.
#[derive(Debug, Clone)]
pub(crate) enum PeerWhat {
    /// It was sent.
    Decided {
        /// Its blocks.
        chain: Chain,
        /// Estimated tokens of the prompt.
        prompt_tokens: u32,
        /// Of these, estimated to be cached there.
        overlap_tokens: u32,
        /// How the answer comes.
        answer: Answer,
        /// Which attempt it is.
        attempt: Attempt,
    },
    /// Its first output came.
    FirstToken,
    /// It is over.
    Ended(Ended),
    /// The endpoint, a provider, is busy: nobody asks it before this time of the process clock. No request's event.
    BacksOff {
        /// Until then.
        until_us: u64,
    },
}

/// The events of one thread since its last batch.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerBatch {
    /// In the order they happened.
    pub(crate) events: Vec<PeerEvent>,
}
