//! Exact mode: prompts in the engine's own tokens, for worker sets that have a tokenizer (ADR 0012).
//!
//! Helper threads ([`workers`]) make tokens of a request's body while its exchange waits, for a bounded time; a data thread
//! never tokenizes. What is not there in time, or cannot be told, is estimated by bytes like any other prompt, and counted.
//!
//! A request may have candidates of several kinds: each looks at it in its own blocks ([`crate::decide`]).

pub(crate) mod awaited;
pub(crate) mod workers;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use config::limits::{
    TOKENIZE_BODY_BYTES_MAX, TOKENIZE_BYTES_PER_MS, TOKENIZE_WAIT, TOKENIZE_WAIT_MAX, TOKENIZERS_PER_REQUEST_MAX,
};
use config::snapshot::DestinationKind;
use policy::Api;
use tokenizer::{Tokenizer, Tokens, Unfit};

use self::awaited::Ticket;
use self::workers::{Job, Refused, Workers};
use crate::body::Message;
use crate::io;
use crate::openai::request::Purpose;
use crate::plan::Plan;
use crate::routed::Routed;
use crate::shard::{Shard, duration_us};

/// A tokenizer in force, and those who work with it. Shared by all threads.
#[derive(Debug)]
pub(crate) struct Exact {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) workers: Workers,
}

/// What a body is to a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Messages, by the chat template.
    Chat,
    /// One text or one list of ids.
    Completion,
}

impl Form {
    /// Of an interface; `None` for those whose prompts are not told exactly.
    const fn of(api: Api) -> Option<Self> {
        match api {
            Api::ChatCompletions => Some(Self::Chat),
            Api::Completions => Some(Self::Completion),
            Api::Embeddings
            | Api::Responses
            | Api::Messages
            | Api::Rerank
            | Api::Score
            | Api::Tokenize
            | Api::Detokenize
            | Api::Transcriptions
            | Api::Translations
            | Api::Other => None,
        }
    }
}

/// A request in the tokens of one tokenizer.
#[derive(Debug)]
pub(crate) struct ExactPrompt {
    pub(crate) of: Arc<Exact>,
    pub(crate) tokens: Tokens,
}

/// What became of a request that was to be tokenized; the label of its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// Its tokens are known.
    Exact,
    /// They did not come in time.
    Late,
    /// Too many others were waiting.
    Busy,
    /// Its body is too long.
    TooLong,
    /// The tokenizer cannot tell.
    Unfit(&'static str),
}

impl Outcome {
    /// The label in metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Late => "late",
            Self::Busy => "busy",
            Self::TooLong => "too_long",
            Self::Unfit(why) => why,
        }
    }
}

/// What a request's body is to the tokenizers in force; `None` where there is none, or nothing for one to do.
pub(crate) fn wanted(routed: &Routed<'_>) -> Option<Form> {
    routed.plan.exact.iter().flatten().next()?;
    Form::of(routed.api).filter(|_| routed.request.purpose == Purpose::Generate)
}

/// The prompt of a request in the tokens of those worker sets of its pool that have a tokenizer. Waits at most [`longest_wait`].
pub(crate) async fn prompts(shard: &Rc<Shard>, routed: &Routed<'_>, form: Form, message: &Message) -> Vec<ExactPrompt> {
    let wanted = tokenizers_of(routed.plan, routed);
    if wanted.is_empty() {
        return Vec::new();
    }
    let body = message.body();
    if body.len() > TOKENIZE_BODY_BYTES_MAX {
        shard.count_tokenized(Outcome::TooLong);
        return Vec::new();
    }
    let began_us = io::now_us();
    let wait = longest_wait(body.len());
    let mut tickets = Vec::with_capacity(wanted.len());
    for exact in wanted {
        let ticket = Ticket::new(shard);
        let job = Job {
            exact: exact.clone(),
            form,
            body: body.to_vec(),
            until_us: began_us.saturating_add(duration_us(wait)),
            reply: shard.own(),
            ticket: ticket.number(),
        };
        match exact.workers.submit(job) {
            Ok(()) => tickets.push((exact, ticket)),
            Err(Refused::Busy) => shard.count_tokenized(Outcome::Busy),
        }
    }
    // What has come by then is taken, whatever is missing.
    let _ = io::unless(all_answered(&tickets), io::sleep(wait)).await;
    shard.metrics.borrow_mut().tokenize_wait.observe_us(io::now_us().saturating_sub(began_us));
    tickets.into_iter().filter_map(|(exact, ticket)| prompt(shard, exact, &ticket)).collect()
}

async fn all_answered(tickets: &[(Arc<Exact>, Ticket)]) {
    for (_, ticket) in tickets {
        ticket.answered().await;
    }
}

fn prompt(shard: &Shard, of: Arc<Exact>, ticket: &Ticket) -> Option<ExactPrompt> {
    let (outcome, prompt) = match ticket.take() {
        None => (Outcome::Late, None),
        Some(Ok(tokens)) => (Outcome::Exact, Some(ExactPrompt { of, tokens })),
        Some(Err(unfit)) => (Outcome::Unfit(unfit.label()), None),
    };
    shard.count_tokenized(outcome);
    prompt
}

/// How long the tokens of a body are waited for: its prefill takes many times as long.
fn longest_wait(body_bytes: usize) -> Duration {
    let longer = Duration::from_millis((body_bytes / TOKENIZE_BYTES_PER_MS) as u64);
    (TOKENIZE_WAIT + longer).min(TOKENIZE_WAIT_MAX)
}

/// The tokenizers of a pool's worker sets, those of sets that serve the model asked for first.
fn tokenizers_of(plan: &Plan, routed: &Routed<'_>) -> Vec<Arc<Exact>> {
    let sets = routed.pool.destinations.iter().filter_map(|destination| match destination.kind {
        DestinationKind::WorkerSet(set) => Some((set, plan.exact.get(set)?.as_ref()?)),
        DestinationKind::Provider(_) => None,
    });
    let serves = |set: usize| {
        let models = plan.snapshot.models(DestinationKind::WorkerSet(set));
        models.iter().any(|model| model.names.contains(&routed.request.model))
    };
    let mut found: Vec<Arc<Exact>> = Vec::new();
    for first in [true, false] {
        for (set, exact) in sets.clone().filter(|(set, _)| serves(*set) == first) {
            let has_endpoints = plan.worker_sets.get(set).is_some_and(|endpoints| !endpoints.is_empty());
            let known = found.iter().any(|known| Arc::ptr_eq(known, exact));
            if has_endpoints && !known && found.len() < TOKENIZERS_PER_REQUEST_MAX {
                found.push(exact.clone());
            }
        }
    }
    found
}

/// The answer of a helper thread.
pub(crate) type Answer = Result<Tokens, Unfit>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_prompt_is_waited_for_longer_within_a_bound() {
        assert_eq!(longest_wait(0), Duration::from_millis(20));
        assert_eq!(longest_wait(100 << 10), Duration::from_millis(120));
        assert_eq!(longest_wait(usize::MAX), TOKENIZE_WAIT_MAX);
    }
}
