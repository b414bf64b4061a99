//! A request between its decision and its end: in the predictor's books, and in the budget of retries.

use std::rc::Rc;

use predictor::fleet::{Answer, Attempt, Decided, Ended};

use crate::decide::Choice;
use crate::endpoints::Lease;
use crate::forward::Output;
use crate::io;
use crate::metrics::PREDICTION_ERROR_BOUNDS;
use crate::openai::request::Delivery;
use crate::peer::PeerWhat;
use crate::quota::Permit;
use crate::shard::Shard;

/// A request in the books of the predictor, from its decision to its end on whatever path.
pub(crate) struct Flight {
    shard: Rc<Shard>,
    lease: Lease,
    /// Its place in a provider's limits.
    permit: Option<Permit>,
    id: u64,
    ended: bool,
    /// The endpoint's divided clock at the beginning, then what it went on by until the end.
    share_us: f64,
    /// Tokens of its prompt, as estimated.
    prompt_tokens: u32,
}

/// What a request counts in the limits of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Used {
    /// Nothing, not even as a request: it was never sent.
    Unsent,
    /// Its prompt, which may have been read.
    Prompt,
    /// So many tokens.
    Tokens(u64),
}

impl Flight {
    pub(crate) fn begin(shard: &Rc<Shard>, choice: &mut Choice<'_>, delivery: Delivery, attempt: Attempt) -> Self {
        let id = shard.next_request_id();
        let now_us = io::now_us();
        let answer = match delivery {
            Delivery::Streamed => Answer::Streamed,
            Delivery::Whole => Answer::Whole,
        };
        let decided = Decided {
            request_id: id,
            endpoint: choice.endpoint.spec.id.0,
            chain: &choice.chain,
            prompt_tokens: choice.prompt_tokens,
            overlap_tokens: choice.overlap_tokens,
            answer,
            attempt,
        };
        shard.fleet.borrow_mut().decided(now_us, &decided);
        shard.tell_peers(&choice.endpoint, id, now_us, || PeerWhat::Decided {
            chain: choice.chain.clone(),
            prompt_tokens: choice.prompt_tokens,
            overlap_tokens: choice.overlap_tokens,
            answer,
            attempt,
        });
        let (lease, permit) = (Lease::new(choice.endpoint.clone()), choice.permit.take());
        let share_us = lease.endpoint().shared_by(shard.fleet.borrow().in_flight(lease.endpoint().spec.id.0), now_us);
        Self { shard: shard.clone(), lease, permit, id, ended: false, share_us, prompt_tokens: choice.prompt_tokens }
    }

    /// The time at the endpoint, divided among all that were there with it; `None` while it is not over.
    pub(crate) fn share_us(&self) -> Option<f64> {
        self.ended.then_some(self.share_us)
    }

    /// Output of its answer came.
    pub(crate) fn heard(&self, at_us: u64, output: Output) {
        match output {
            Output::First => self.first_token(at_us),
            Output::More => self.shard.fleet.borrow().heard_step(at_us, self.lease.endpoint().spec.id.0),
        }
    }

    fn first_token(&self, at_us: u64) {
        let endpoint = self.lease.endpoint();
        let observed = self.shard.fleet.borrow_mut().first_token(at_us, self.id, endpoint.spec.id.0);
        if let Some(observed) = observed {
            let actual = observed.actual_us.max(1) as f64;
            let error = (observed.predicted_us as f64 - actual).abs() / actual;
            let bucket = PREDICTION_ERROR_BOUNDS.iter().position(|&bound| error <= bound);
            self.shard.metrics.borrow_mut().prediction_error[bucket.unwrap_or(PREDICTION_ERROR_BOUNDS.len())] += 1;
        }
        self.shard.tell_peers(endpoint, self.id, at_us, || PeerWhat::FirstToken);
    }

    /// It is over; whatever is said later does not count.
    pub(crate) fn end(&mut self, ended: Ended, used: Used) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Some(mut permit) = self.permit.take() {
            match used {
                Used::Unsent => drop(permit),
                Used::Prompt => permit.settle(u64::from(self.prompt_tokens)),
                Used::Tokens(tokens) => permit.settle(tokens),
            }
        }
        let now_us = io::now_us();
        let endpoint = self.lease.endpoint();
        let left = {
            let mut fleet = self.shard.fleet.borrow_mut();
            fleet.ended(now_us, self.id, endpoint.spec.id.0, ended);
            fleet.in_flight(endpoint.spec.id.0)
        };
        self.share_us = endpoint.shared_by(left, now_us) - self.share_us;
        self.shard.tell_peers(endpoint, self.id, now_us, || PeerWhat::Ended(ended));
        self.shard.queues.look(1);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.end(Ended::Aborted, Used::Prompt);
    }
}

/// A retry under way because an endpoint was busy: at most a fifth of the live requests, and a few more. Attempts after a
/// connection that failed are not counted here: they are as many as the requests that the dead endpoint had, once.
pub(crate) struct Retry {
    shard: Rc<Shard>,
}

impl Retry {
    pub(crate) fn allowed(shard: &Rc<Shard>) -> Option<Self> {
        let live = shard.metrics.borrow().exchanges_open;
        let budget = live / 5 + config::limits::RETRIES_FLOOR;
        if u64::from(shard.retries_live.get()) >= budget {
            shard.metrics.borrow_mut().retries_refused += 1;
            return None;
        }
        shard.retries_live.set(shard.retries_live.get() + 1);
        Some(Self { shard: shard.clone() })
    }
}

impl Drop for Retry {
    fn drop(&mut self) {
        self.shard.retries_live.set(self.shard.retries_live.get().saturating_sub(1));
    }
}
