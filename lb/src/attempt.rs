//! One attempt at a request: it goes to the endpoint chosen, and what comes of it is told apart (step 6).

use std::rc::Rc;

use config::snapshot::ResponseModel;
use policy::{Api, Backend};
use predictor::fleet::{self, Ended};

use crate::body::Message;
use crate::charge;
use crate::conn::Client;
use crate::decide::Choice;
use crate::endpoints::Endpoint;
use crate::error::{Refused, UpstreamError};
use crate::flight::{Flight, Used};
use crate::forward::{self, Patience};
use crate::io;
use crate::mailbox::Failure;
use crate::openai::edit::Edits;
use crate::openai::request::{Delivery, Purpose, Request};
use crate::plan::EndpointId;
use crate::provider::{self, Ask, Dialect, Shown, Translated};
use crate::record::Record;
use crate::routed::Routed;
use crate::shard::{Shard, unix_ms};
use crate::upstream::{self, Answer, Content, Deadline, Encoding, NoAnswer, Passed, Upstream};
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
    /// There is no answer for the client. Another endpoint may be asked.
    Failed {
        /// For the client if nobody else has anything better.
        why: Refused,
        /// Whether asking another endpoint counts in the budget of retries.
        budget: Budget,
    },
    /// There is no answer, and there must be no other attempt; this is for the client.
    Over(Refused),
    /// The client has gone.
    ClientGone,
}

/// Whether another attempt counts in the budget of retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Budget {
    /// The endpoint answered: whoever asks another one does so on its behalf.
    Needed,
    /// Nothing was asked of it.
    NotNeeded,
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
    choice: Choice<'p>,
    turn: fleet::Attempt,
    record: &mut Record<'p>,
) -> Attempted<'p> {
    let held_bytes = message.held_bytes();
    let made = put(shard, client, routed, message, choice, turn, record).await;
    // What was made of the body for this endpoint is gone again.
    message.let_go(held_bytes);
    made
}

async fn put<'p>(
    shard: &Rc<Shard>,
    client: &mut Client,
    routed: &Routed<'p>,
    message: &mut Message,
    mut choice: Choice<'p>,
    turn: fleet::Attempt,
    record: &mut Record<'p>,
) -> Attempted<'p> {
    let (rewrites, headers) = choice.changes(routed.pool);
    let edits = Edits::new(&routed.request, message.body(), choice.upstream_model, routed.usage_asked);
    let edits = edits.rewriting(rewrites, routed.api, &routed.request, message.body());
    let translated = match choice.endpoint.spec.dialect {
        Dialect::OpenAi => None,
        // In a box: few requests go there, and every connection would hold the room for it.
        Dialect::Bedrock => match Box::pin(translated(&choice, routed, &edits, message)).await {
            Ok(translated) => Some(translated),
            Err((why, None)) => return Attempted::Over(why),
            Err((why, Some(budget))) => return Attempted::Failed { why, budget },
        },
    };
    let content = match &translated {
        None => Content::Passed(Passed {
            edits: &edits,
            target: routed.target.as_deref(),
            encoding: if routed.api == Api::Other { Encoding::AsAsked } else { Encoding::Plain },
            headers,
        }),
        Some(translated) => Content::Translated(translated),
    };
    let mut flight = Flight::begin(shard, &mut choice, taught_by(&routed.request), turn);
    let deadline = Deadline::after(choice.endpoint.spec.timeouts.total);
    let upstream = Upstream { endpoint: &choice.endpoint, content, request_id: &record.entry.request_id, deadline };
    let mut answer = match upstream::attempt(shard, client, &upstream, message).await {
        Ok(answer) => answer,
        Err(none) => return unanswered(shard, routed, &choice, &mut flight, none, record),
    };
    if let Some(translated) = &translated {
        answer.translation = Some(translated.answer(shown(routed, &choice, record)));
        let idle = choice.endpoint.spec.timeouts.idle.unwrap_or(shard.settings.idle_timeout);
        match Box::pin(said_instead(client, &mut answer, Patience { idle, deadline })).await {
            Ok(None) => {}
            Ok(Some(failure)) => return refused_in_other_words(shard, &choice, flight, answer, &failure),
            Err(none) => return unanswered(shard, routed, &choice, &mut flight, none, record),
        }
    }
    judged(shard, Held { answer, choice, flight, deadline })
}

/// Nothing came of it.
fn unanswered<'p>(
    shard: &Shard,
    routed: &Routed<'_>,
    choice: &Choice<'_>,
    flight: &mut Flight,
    none: NoAnswer,
    record: &mut Record<'_>,
) -> Attempted<'p> {
    let mut failed = |error: UpstreamError| {
        flight.end(Ended::Failed, used_by(error));
        if let Some(failure) = failure_of(error) {
            shard.report_failure(&choice.endpoint, failure);
        }
        Refused::Upstream(error)
    };
    match none {
        NoAnswer::ClientGone => {
            flight.end(Ended::Aborted, Used::Prompt);
            charge::begun(routed, choice, record);
            record.entry.cost = charge::cost(routed, choice, flight, record);
            Attempted::ClientGone
        }
        NoAnswer::Failed(error) => Attempted::Failed { why: failed(error), budget: Budget::NotNeeded },
        NoAnswer::Lost(error) => {
            let why = failed(error);
            charge::begun(routed, choice, record);
            Attempted::Over(why)
        }
    }
}

/// What the head of an answer means.
fn judged<'p>(shard: &Shard, mut held: Held<'p>) -> Attempted<'p> {
    let endpoint = held.choice.endpoint.clone();
    let verdict = judge(held.answer.head.status, endpoint.spec.backend);
    // Who is asked with a signature may say what is wrong with it, or with the account.
    if verdict != Verdict::Deliver
        && endpoint.spec.signer.is_some()
        && let Some(name) = provider::aws_error_name(&held.answer.head.headers, &held.answer.received)
    {
        shard.tell_operator(&endpoint, name);
    }
    match verdict {
        Verdict::Deliver => Attempted::Answered(Box::new(held)),
        Verdict::Refusal(failure) => {
            refused_by(shard, &endpoint, failure, &held.answer);
            held.flight.end(Ended::Refused, Used::Tokens(0));
            Attempted::Busy(Box::new(held))
        }
        Verdict::Unusable(error, failure) => {
            shard.report_failure(&endpoint, failure);
            held.flight.end(Ended::Refused, Used::Tokens(0));
            Attempted::Failed { why: Refused::Upstream(error), budget: Budget::Needed }
        }
    }
}

/// The request in the words of the endpoint's own API, in memory that is counted; or what the client is told, and the budget
/// under which another endpoint may be asked.
async fn translated(
    choice: &Choice<'_>,
    routed: &Routed<'_>,
    edits: &Edits,
    message: &mut Message,
) -> Result<Translated, (Refused, Option<Budget>)> {
    let (held_bytes, body_bytes) = (message.held_bytes(), edits.body_bytes(message.body().len()));
    let elsewhere = |why| (why, Some(Budget::NotNeeded));
    // The edited body while it is read, and as much again for what is made of it.
    message.hold(held_bytes + 2 * body_bytes).await.map_err(elsewhere)?;
    let (_, headers) = choice.changes(routed.pool);
    let translated = Translated::to_bedrock(&Ask {
        spec: &choice.endpoint.spec,
        api: routed.api,
        body: &edits.applied(message.body()),
        model: choice.upstream_model,
        headers,
        now_unix_s: unix_ms() / 1_000,
    });
    let translated = translated.map_err(|refusal| match refusal.retry() {
        bedrock::Retry::Never => (provider::refused(&refusal), None),
        // What cannot be put in this endpoint's words may be put in another's.
        bedrock::Retry::Elsewhere | bedrock::Retry::Again => elsewhere(provider::refused(&refusal)),
    })?;
    message.hold(held_bytes + translated.body_bytes()).await.map_err(elsewhere)?;
    Ok(translated)
}

fn shown(routed: &Routed<'_>, choice: &Choice<'_>, record: &Record<'_>) -> Shown {
    let model = match routed.pool.response_model {
        ResponseModel::Requested => &routed.request.model,
        ResponseModel::Actual => choice.upstream_model,
    };
    let id = format!("chatcmpl-{}", record.entry.request_id);
    Shown { id, created_unix_s: unix_ms() / 1_000, model: model.to_owned() }
}

/// What an endpoint that speaks another API says in place of an answer; `None` where it answers, or says what is none of its
/// API's words: a redirect. Whether the connection can be kept stands in the head then.
async fn said_instead(
    client: &Client,
    answer: &mut Answer,
    patience: Patience,
) -> Result<Option<bedrock::Failure>, NoAnswer> {
    match answer.head.status {
        200 => forward::beginning(client, answer, patience).await,
        300..=399 => Ok(None),
        status => {
            let error_type = answer.head.headers.named(&answer.received, "x-amzn-errortype").next();
            let error_type = error_type.and_then(|value| std::str::from_utf8(value).ok()).map(str::to_owned);
            let (body, upstream) = forward::collect(client, answer, patience).await.ok_or(NoAnswer::ClientGone)?;
            answer.head.keep_alive = upstream == forward::Upstream::Keeps;
            Ok(Some(bedrock::Failure::of_answer(status, error_type.as_deref(), &body)))
        }
    }
}

/// An error of an endpoint that speaks another API, in our words.
fn refused_in_other_words<'p>(
    shard: &Shard,
    choice: &Choice<'_>,
    mut flight: Flight,
    answer: Answer,
    failure: &bedrock::Failure,
) -> Attempted<'p> {
    let endpoint = &choice.endpoint;
    let used = if provider::unreadable(failure.fault()) { Used::Prompt } else { Used::Tokens(0) };
    flight.end(Ended::Refused, used);
    if let Some(text) = failure.operator_detail() {
        shard.tell_operator(endpoint, text);
    }
    let mut retry_after_s = None;
    if let Some(failure) = provider::failure_of(failure.fault()) {
        shard.report_failure(endpoint, failure);
        if failure == Failure::Busy {
            let pause = back_off(&answer.head.headers, &answer.received, unix_ms());
            shard.back_off(endpoint, pause);
            retry_after_s = u32::try_from(pause.as_secs().max(1)).ok();
        }
    }
    if answer.head.keep_alive {
        endpoint.keep(answer.conn, io::now_us());
    }
    let why = provider::failed(failure, retry_after_s);
    match failure.retry() {
        bedrock::Retry::Never => Attempted::Over(why),
        bedrock::Retry::Elsewhere | bedrock::Retry::Again => Attempted::Failed { why, budget: Budget::Needed },
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
fn refused_by(shard: &Shard, endpoint: &Endpoint, failure: Failure, answer: &Answer) {
    shard.report_failure(endpoint, failure);
    match (endpoint.spec.backend, failure == Failure::Busy) {
        (Backend::External, true) => {
            shard.back_off(endpoint, back_off(&answer.head.headers, &answer.received, unix_ms()));
        }
        (Backend::External | Backend::Local, _) => {}
    }
}

/// What a failed attempt counts in the limits of a provider.
fn used_by(error: UpstreamError) -> Used {
    match error {
        // Nothing of the request had been sent.
        UpstreamError::Connect | UpstreamError::OutOfSockets | UpstreamError::Tls(_) => Used::Unsent,
        UpstreamError::Reset | UpstreamError::Timeout | UpstreamError::BadAnswer => Used::Prompt,
        UpstreamError::Redirect | UpstreamError::Unauthorized | UpstreamError::Forbidden => Used::Tokens(0),
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
