//! A request that is read, put to the decision with everything this thread knows (step 5).

use config::snapshot::Pool;
use policy::Streaming;

use crate::body::Message;
use crate::conn::Client;
use crate::decide::{self, Choice, HeadersOf, Knowledge, Question, Shadowed};
use crate::decisions::Asked;
use crate::error::Refused;
use crate::io;
use crate::openai::prompt;
use crate::openai::request::Delivery;
use crate::plan::EndpointId;
use crate::quota;
use crate::record::Record;
use crate::routed::Routed;
use crate::shard::Shard;

/// Step 5 of an exchange. The decision is kept with its reasons, and `record` told which one it is.
pub(crate) fn decide<'p>(
    shard: &Shard,
    client: &Client,
    routed: &Routed<'p>,
    message: &Message,
    tried: &[EndpointId],
    record: &mut Record<'p>,
) -> Result<Choice<'p>, Refused> {
    let decided = ask_with_room(shard, client, routed, message, tried);
    keep(shard, routed, tried, record);
    decided
}

/// Step 5 for a request that waits. Only what ends the wait is kept: a hundred looks in vain would push out all other decisions.
pub(crate) fn decide_again<'p>(
    shard: &Shard,
    client: &Client,
    routed: &Routed<'p>,
    message: &Message,
    record: &mut Record<'p>,
) -> Result<Choice<'p>, Refused> {
    let decided = ask_with_room(shard, client, routed, message, &[]);
    if !matches!(decided, Err(Refused::Overloaded { .. })) {
        keep(shard, routed, &[], record);
    }
    decided
}

/// Asks until somebody is chosen who has room, or nobody is.
fn ask_with_room<'p>(
    shard: &Shard,
    client: &Client,
    routed: &Routed<'p>,
    message: &Message,
    tried: &[EndpointId],
) -> Result<Choice<'p>, Refused> {
    let mut passed = PassedOver { tried, full: Vec::new() };
    // Each turn ends it, or notes another provider, which is chosen no more.
    loop {
        let choice = ask(shard, client, routed, message, &passed, decide::decide)?;
        if let Some(choice) = admitted(shard, routed, choice, &mut passed.full) {
            return Ok(choice);
        }
    }
}

fn keep<'p>(shard: &Shard, routed: &Routed<'p>, tried: &[EndpointId], record: &mut Record<'p>) {
    let asked = Asked {
        request_id: &record.entry.request_id,
        tenant: routed.caller.name,
        model: &record.entry.model,
        tags: &routed.tags,
        shadow_rule: record.entry.shadow.map(|shadow| shadow.rule),
        attempt: u32::try_from(tried.len()).unwrap_or(u32::MAX),
        at_us: io::now_us(),
    };
    let mut memory = shard.memory.borrow_mut();
    record.rule = memory.reasons().rule;
    record.prompt_tokens = memory.reasons().prompt_tokens;
    let number = shard.decisions.borrow_mut().keep(routed.plan, routed.pool_index, &asked, memory.reasons());
    record.decision = Some(number);
}

/// What a rule in shadow would do.
pub(crate) fn shadow<'p>(
    shard: &Shard,
    client: &Client,
    routed: &Routed<'p>,
    message: &Message,
) -> Option<Shadowed<'p>> {
    if !routed.pool.program.has_shadow() {
        return None;
    }
    let nobody = PassedOver { tried: &[], full: Vec::new() };
    ask(shard, client, routed, message, &nobody, decide::shadow)
}

/// Endpoints that this request does not go to.
struct PassedOver<'a> {
    /// They have failed it.
    tried: &'a [EndpointId],
    /// Their limits turned out to have no room for it. At most one for each destination of the pool.
    full: Vec<(EndpointId, quota::Full)>,
}

/// Counts the request in the limits of the provider that was chosen. `None`: there is no room, which is noted in `full`, and the
/// decision is to be made again.
fn admitted<'p>(
    shard: &Shard,
    routed: &Routed<'p>,
    choice: Choice<'p>,
    full: &mut Vec<(EndpointId, quota::Full)>,
) -> Option<Choice<'p>> {
    let Some(metered) = &choice.endpoint.spec.metered else { return Some(choice) };
    let answer = routed.request.output_tokens_max.unwrap_or(0);
    let tokens = u64::from(choice.prompt_tokens).saturating_add(answer);
    match metered.admit(io::now_us(), tokens) {
        Ok(permit) => Some(Choice { permit: Some(permit), ..choice }),
        Err(until) => {
            full.push((choice.endpoint.spec.id, until));
            shard.memory.borrow_mut().recycle(choice.chain);
            None
        }
    }
}

/// Asks `judge` about the request, with what this thread knows.
fn ask<'p, T>(
    shard: &Shard,
    client: &Client,
    routed: &Routed<'p>,
    message: &Message,
    passed: &PassedOver<'_>,
    judge: fn(&'p Pool, &Question<'_>, &mut Knowledge<'_, 'p>) -> T,
) -> T {
    let headers = HeadersOf { headers: &client.head.headers, buffer: &message.bytes };
    let now_us = io::now_us();
    let question = Question {
        request: &routed.request,
        body: message.body(),
        chain: routed.chain.as_ref(),
        exact: &routed.exact,
        facts: policy::Request {
            model: &routed.request.model,
            tenant: routed.caller.name,
            tags: &routed.tags,
            api: routed.api,
            stream: match routed.request.delivery {
                Delivery::Streamed => Streaming::Yes,
                Delivery::Whole => Streaming::No,
            },
            prompt_tokens: f64::NAN,
            headers: &headers,
            conversation: match routed.pool.program.splits_conversations() {
                true => prompt::conversation(&routed.request, message.body(), routed.caller.name),
                false => None,
            },
        },
        now_us,
        seed: shard.next_request_id(),
        tried: passed.tried,
        full: &passed.full,
    };
    let mut knowledge = Knowledge {
        plan: routed.plan,
        table: &shard.table.borrow(),
        fleet: &mut shard.fleet.borrow_mut(),
        memory: &mut shard.memory.borrow_mut(),
        block_bytes: shard.settings.block_bytes,
    };
    judge(routed.pool, &question, &mut knowledge)
}
