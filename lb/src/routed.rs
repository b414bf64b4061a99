//! From a received message to a request that belongs to a pool: path, caller, body, tags (steps 2 to 4).

use std::rc::Rc;

use config::snapshot::Pool;
use policy::Api;
use predictor::prefix::chain::Chain;

use crate::body::{self, Inspection, Message};
use crate::conn::Client;
use crate::decide;
use crate::error::Refused;
use crate::exact::ExactPrompt;
use crate::http1::target::{origin_form, path_of, upstream_target};
use crate::http1::{Method, Name};
use crate::local;
use crate::openai::edit::{UsageAsked, usage_asked};
use crate::openai::prompt;
use crate::openai::request::{Delivery, Request, api_of_path, has_stream_options, purpose_of};
use crate::pace::{Breath, Pace};
use crate::plan::{LocalPlan, Plan};
use crate::record::Record;
use crate::shard::Shard;
use crate::tenant::{Caller, caller_of};

/// Longest model name in a log line; clients send anything.
const MODEL_LOGGED_BYTES_MAX: usize = 200;

/// A request that is read and belongs to a pool.
pub(crate) struct Routed<'a> {
    pub(crate) plan: &'a Rc<LocalPlan>,
    pub(crate) pool_index: usize,
    pub(crate) pool: &'a Pool,
    pub(crate) api: Api,
    pub(crate) request: Request,
    pub(crate) caller: Caller<'a>,
    pub(crate) tags: Vec<&'a str>,
    /// What the upstream is asked for, where it is not what the client sent.
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) usage_asked: UsageAsked,
    /// The prefix chain of a long prompt.
    pub(crate) chain: Option<Chain>,
    /// The prompt in the tokens of worker sets that have a tokenizer; see [`crate::exact`].
    pub(crate) exact: Vec<ExactPrompt>,
}

/// What a request turns out to be.
pub(crate) enum Read<'a> {
    Route(Box<Routed<'a>>),
    Local(local::Answer),
}

/// Steps 2 to 4: path, caller, body, pool, tags.
pub(crate) async fn read<'a>(
    shard: &Shard,
    client: &Client,
    plan: &'a Rc<LocalPlan>,
    message: &mut Message,
    record: &mut Record<'a>,
) -> Result<Read<'a>, Refused> {
    let caller = caller_of(shard, plan, client, &message.bytes).await?;
    record.entry.tenant = caller.name;
    if let Some(answer) = read_head(client, plan, message, record)? {
        return Ok(Read::Local(answer));
    }
    let inspection = if record.api == Api::Other { Inspection::WherePossible } else { Inspection::Needed };
    body::decode(shard, client, message, inspection).await?;
    let mut routed = Box::new(read_body(client, plan, message, caller, record)?);
    let body = message.body();
    let mut breath = Breath::new(Pace::Turns(shard));
    breath.after_search(body.len()).await;
    if let Some(tagger) = plan.taggers.get(routed.pool_index) {
        routed.tags = tagger.tags_in_turns(routed.api, &routed.request, body, &mut breath).await;
        record.entry.tags.clone_from(&routed.tags);
    }
    if body.len() >= LONG_BODY_BYTES {
        let block_bytes = shard.settings.block_bytes;
        // In a box of its own: the others' futures do not carry it.
        let chain = Box::pin(prompt::chain_in_turns(&routed.request, body, block_bytes, &mut breath)).await;
        routed.chain = Some(chain);
    }
    Ok(Read::Route(routed))
}

/// From here on a prompt is hashed in turns, before a decision asks for it; what is shorter takes some 20 us.
const LONG_BODY_BYTES: usize = 64 << 10;

/// The path; the answer where it needs no upstream.
fn read_head<'a>(
    client: &Client,
    plan: &'a Plan,
    message: &Message,
    record: &mut Record<'a>,
) -> Result<Option<local::Answer>, Refused> {
    let bytes = &message.bytes;
    let path = path_of(origin_form(client.head.target.of(bytes)));
    if let Some(answer) = local::answer(&plan.snapshot, client, path)? {
        return Ok(Some(answer));
    }
    record.api = api_of_path(path);
    match client.head.method {
        Method::Post => {}
        // What follows a tunnel's head is no HTTP, and there are no tunnels through here.
        Method::Other if client.head.method_name.of(bytes) == b"CONNECT" => {
            return Err(Refused::Method("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
        }
        Method::Get | Method::Head | Method::Options | Method::Other if record.api == Api::Other => {}
        Method::Get | Method::Head | Method::Options | Method::Other => return Err(Refused::Method("POST")),
    }
    Ok(None)
}

/// Body and pool.
fn read_body<'a>(
    client: &Client,
    plan: &'a Rc<LocalPlan>,
    message: &Message,
    caller: Caller<'a>,
    record: &mut Record<'a>,
) -> Result<Routed<'a>, Refused> {
    let target = origin_form(client.head.target.of(&message.bytes));
    let path = path_of(target);
    let api = record.api;
    let content_type = client.head.headers.first(&message.bytes, Name::ContentType).unwrap_or_default();
    let request = match Request::read(api, content_type, message.body()) {
        Ok(request) => Request { purpose: purpose_of(api, path), ..request },
        // Other paths need no model: any ready endpoint may know what to do with them.
        Err(_) if api == Api::Other => Request::default(),
        Err(unreadable) => return Err(Refused::Unreadable(unreadable)),
    };
    record.entry.model = request.model[..request.model.floor_char_boundary(MODEL_LOGGED_BYTES_MAX)].to_owned();
    record.entry.stream = request.delivery == Delivery::Streamed;
    let (pool_index, pool) = if request.model.is_empty() {
        local::first_pool(&plan.snapshot, &client.scope).ok_or(Refused::NoEndpointForPath)?
    } else {
        decide::pool_of(&plan.snapshot, &request.model, &client.scope)?
    };
    record.entry.pool = Some(&pool.id);
    record.known_model = !request.model.is_empty();
    let usage_asked = usage_asked(&request, message.body(), has_stream_options(api));
    let target = upstream_target(api, target, path);
    Ok(Routed {
        plan,
        pool_index,
        pool,
        api,
        request,
        caller,
        tags: Vec::new(),
        target,
        usage_asked,
        chain: None,
        exact: Vec::new(),
    })
}
