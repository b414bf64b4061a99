//! A request that is read, put to the decision with everything this thread knows (step 5).

use config::snapshot::Pool;
use policy::Streaming;

use crate::body::Message;
use crate::conn::Client;
use crate::decide::{self, Choice, HeadersOf, Knowledge, Question, Shadowed};
use crate::error::Refused;
use crate::io;
use crate::openai::prompt;
use crate::openai::request::Delivery;
use crate::plan::EndpointId;
use crate::routed::Routed;
use crate::shard::Shard;

/// Step 5 of an exchange.
pub(crate) fn decide<'p>(
    shard: &Shard,
    client: &Client,
    routed: &Routed<'p>,
    message: &Message,
    tried: &[EndpointId],
) -> Result<Choice<'p>, Refused> {
    ask(shard, client, routed, message, tried, decide::decide)
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
    ask(shard, client, routed, message, &[], decide::shadow)
}

/// Asks `judge` about the request, with what this thread knows.
fn ask<'p, T>(
    shard: &Shard,
    client: &Client,
    routed: &Routed<'p>,
    message: &Message,
    tried: &[EndpointId],
    judge: fn(&'p Pool, &Question<'_>, &mut Knowledge<'_, 'p>) -> T,
) -> T {
    let headers = HeadersOf { headers: &client.head.headers, buffer: &message.bytes };
    let now_us = io::now_us();
    let question = Question {
        request: &routed.request,
        body: message.body(),
        facts: policy::Request {
            model: &routed.request.model,
            tenant: routed.tenant,
            tags: &routed.tags,
            api: routed.api,
            stream: match routed.request.delivery {
                Delivery::Streamed => Streaming::Yes,
                Delivery::Whole => Streaming::No,
            },
            prompt_tokens: f64::NAN,
            headers: &headers,
            conversation: match routed.pool.program.splits_conversations() {
                true => prompt::conversation(&routed.request, message.body(), routed.tenant),
                false => None,
            },
        },
        now_us,
        seed: shard.next_request_id(),
        tried,
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
