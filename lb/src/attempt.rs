//! One attempt at a request: it goes to the endpoint chosen, and what comes of it is told apart (step 6).

use std::rc::Rc;

use policy::{Api, Backend};
use predictor::fleet::{self, Ended};

use crate::body::Message;
use crate::charge;
use crate::conn::Client;
use crate::decide::Choice;
use crate::error::UpstreamError;
use crate::flight::Flight;
use crate::mailbox::Failure;
use crate::openai::edit::Edits;
use crate::openai::request::{Delivery, Purpose, Request};
use crate::plan::EndpointId;
use crate::record::Record;
use crate::routed::Routed;
use crate::shard::{Shard, unix_ms};
use crate::upstream::{self, Answer, Deadline, Encoding, NoAnswer, Upstream};
use crate::verdict::{Verdict, back_off, judge};

/// An answer that has begun to come, and what it belongs to.
pub(crate) struct Held<'p> {
    pub(crate) answer: Answer,
    pub(crate) choice: Choice<'p>,
    pub(crate) flight: Flight,
    /// When the answer must be over.
    pub(crate) deadline: Deadline,
}

/// What came of an attempt.
pub(crate) enum Attempted<'p> {
    /// An answer for the client.
    Answered(Box<Held<'p>>),
    /// The endpoint said that it is busy; that answer is for the client if nobody else has a better one.
    Busy(Box<Held<'p>>),
    /// A provider's answer is nothing for the client. Another provider may be asked.
    Unusable(UpstreamError),
    /// There was no answer, and nothing came of the request. Another endpoint may be asked.
    Failed(UpstreamError),
    /// There was no answer, and there must be no other attempt.
    Lost(UpstreamError),
    /// The client has gone.
    ClientGone,
}

/// The endpoints that a request was sent to.
#[derive(Default)]
pub(crate) struct Tried {
    ids: [EndpointId; config::limits::ATTEMPTS_MAX],
    count: usize,
}

impl Tried {
    pub(crate) fn push(&mut self, id: EndpointId) {
        if let Some(slot) = self.ids.get_mut(self.count) {
            *slot = id;
            self.count += 1;
        }
    }

    pub(crate) fn ids(&self) -> &[EndpointId] {
        &self.ids[..self.count]
    }
}

/// Sends the request where `choice` says, and counts it there. `message` stays with the caller unless it is lost.
pub(crate) async fn make<'p>(
    shard: &Rc<Shard>,
    client: &mut Client,
    routed: &Routed<'p>,
    message: &mut Message,
    mut choice: Choice<'p>,
    turn: fleet::Attempt,
    record: &mut Record<'p>,
) -> Attempted<'p> {
    let mut flight = Flight::begin(shard, &mut choice, taught_by(&routed.request), turn);
    let deadline = Deadline::after(choice.endpoint.spec.timeouts.total);
    let (rewrites, headers) = choice.changes(routed.pool);
    let edits = Edits::new(&routed.request, message.body(), choice.upstream_model, routed.usage_asked);
    let edits = edits.rewriting(rewrites, routed.api, &routed.request, message.body());
    let upstream = Upstream {
        endpoint: &choice.endpoint,
        edits: &edits,
        request_id: &record.entry.request_id,
        target: routed.target.as_deref(),
        encoding: if routed.api == Api::Other { Encoding::AsAsked } else { Encoding::Plain },
        deadline,
        headers,
    };
    let failed = |flight: &mut Flight, error: UpstreamError| {
        flight.end(Ended::Failed);
        if let Some(failure) = failure_of(error) {
            shard.report_failure(&choice.endpoint, failure);
        }
    };
    let answer = match upstream::attempt(shard, client, &upstream, message).await {
        Ok(answer) => answer,
        Err(NoAnswer::ClientGone) => {
            flight.end(Ended::Aborted);
            charge::begun(routed, &choice, record);
            record.entry.cost = charge::cost(routed, &choice, &flight, record);
            return Attempted::ClientGone;
        }
        Err(NoAnswer::Failed(error)) => {
            failed(&mut flight, error);
            return Attempted::Failed(error);
        }
        Err(NoAnswer::Lost(error)) => {
            failed(&mut flight, error);
            charge::begun(routed, &choice, record);
            return Attempted::Lost(error);
        }
    };
    match judge(answer.head.status, choice.endpoint.spec.backend) {
        Verdict::Deliver => Attempted::Answered(Box::new(Held { answer, choice, flight, deadline })),
        Verdict::Refusal(failure) => {
            refused_by(shard, &choice, failure, &answer);
            flight.end(Ended::Refused);
            Attempted::Busy(Box::new(Held { answer, choice, flight, deadline }))
        }
        Verdict::Unusable(error, failure) => {
            shard.report_failure(&choice.endpoint, failure);
            flight.end(Ended::Refused);
            Attempted::Unusable(error)
        }
    }
}

/// How the answer comes, for the predictor: only the stream of a prompt tells when prompts are read.
fn taught_by(request: &Request) -> Delivery {
    match request.purpose {
        Purpose::Generate => request.delivery,
        Purpose::Read | Purpose::Other => Delivery::Whole,
    }
}

/// The endpoint says it is busy or broken, before anything of an answer. A provider that is busy is left alone for a while; an
/// engine is judged by its metrics.
fn refused_by(shard: &Shard, choice: &Choice<'_>, failure: Failure, answer: &Answer) {
    shard.report_failure(&choice.endpoint, failure);
    match (choice.endpoint.spec.backend, failure == Failure::Busy) {
        (Backend::External, true) => {
            shard.back_off(&choice.endpoint, back_off(&answer.head.headers, &answer.received, unix_ms()));
        }
        (Backend::External | Backend::Local, _) => {}
    }
}

/// What it says about the endpoint; `None` when the fault is ours.
fn failure_of(error: UpstreamError) -> Option<Failure> {
    Some(match error {
        UpstreamError::Connect => Failure::Connect,
        UpstreamError::Reset => Failure::Reset,
        UpstreamError::Timeout => Failure::FirstByteTimeout,
        UpstreamError::BadAnswer => Failure::BadAnswer,
        UpstreamError::Tls(fault) => Failure::Tls(fault),
        UpstreamError::Redirect => Failure::Redirect,
        UpstreamError::Unauthorized => Failure::Unauthorized,
        UpstreamError::Forbidden => Failure::Forbidden,
        UpstreamError::OutOfSockets => return None,
    })
}
