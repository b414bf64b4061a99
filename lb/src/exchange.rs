//! One request, in eight steps.

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use config::snapshot::ResponseModel;
use crds::server::DecisionHeaders;
use policy::Api;
use predictor::fleet::{Attempt, Ended};

use crate::allowance::Allowance;
use crate::ask;
use crate::attempt::{self, Attempted, Budget, Held, Tried};
use crate::body::{self, CODINGS_ACCEPTED, Message, NoBody};
use crate::charge;
use crate::conn::{Client, EventNames, LocalAnswer};
use crate::decide::Choice;
use crate::error::Refused;
use crate::exact;
use crate::flight::{Retry, Used};
use crate::forward::{self, Cut, End, Forwarded, Patience, Presentation};
use crate::http1::Method;
use crate::http1::rewrite::push_header;
use crate::http1::target::{origin_form, path_of};
use crate::io;
use crate::local;
use crate::mailbox::Failure;
use crate::openai::edit::UsageAsked;
use crate::openai::request::{Purpose, known_path};
use crate::plan::LocalPlan;
use crate::queue::{self, NotServed};
use crate::record::{Begun, Record};
use crate::routed::{self, Read, Routed};
use crate::shard::Shard;
use crate::verdict::{Verdict, judge};

/// What becomes of the client connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// The next request may come.
    KeepAlive,
    /// It ends.
    Close,
    /// It ends, once what the client still sends has been read for a moment.
    Linger,
    /// It ends at once: the answer is cut off and the client must see that.
    Abort,
}

/// Answers the request whose head `client` has just received.
pub(crate) async fn run(shard: &Rc<Shard>, client: &mut Client) -> After {
    let _open = OpenExchange::new(shard);
    let begun = Begun::of(client);
    let received = {
        let receiving = pin!(body::receive(shard, client));
        in_time(shard, receiving).await.unwrap_or(Err(NoBody::Refused(Refused::ShuttingDown)))
    };
    // One exchange pins one plan: what it was decided by is what it ends by.
    let plan = shard.plan();
    let mut record = Record::new(begun);
    let after = match received {
        Ok(message) => {
            record.received_us = io::now_us();
            record.entry.request_bytes = (message.body_end - message.body_start) as u64;
            answer(shard, client, plan.as_ref(), message, &mut record).await
        }
        Err(NoBody::Refused(refused)) => refuse(shard, client, &mut record, &refused).await,
        Err(NoBody::Gone) => {
            record.entry.outcome = "client_gone";
            After::Abort
        }
    };
    record.settle(shard);
    after
}

/// Answers a head that is no good.
pub(crate) async fn refuse_head(shard: &Rc<Shard>, client: &mut Client, refused: &Refused) {
    let _open = OpenExchange::new(shard);
    let mut record = Record::new(Begun::unnamed());
    client.head = Default::default();
    client.head.method = Method::Post;
    refuse(shard, client, &mut record, refused).await;
    record.settle(shard);
}

/// Counts an exchange until it is dropped.
struct OpenExchange {
    shard: Rc<Shard>,
}

impl OpenExchange {
    fn new(shard: &Rc<Shard>) -> Self {
        shard.exchange_begins();
        Self { shard: shard.clone() }
    }
}

impl Drop for OpenExchange {
    fn drop(&mut self) {
        self.shard.exchange_ends();
    }
}

async fn answer<'p>(
    shard: &Rc<Shard>,
    client: &mut Client,
    plan: Option<&'p Rc<LocalPlan>>,
    mut message: Message,
    record: &mut Record<'p>,
) -> After {
    let rest = message.take_rest();
    let path = path_of(origin_form(client.head.target.of(&message.bytes)));
    record.entry.method = method_name(client.head.method, client.head.method_name.of(&message.bytes));
    record.entry.path = path_name(path);
    let read = match plan {
        None => Err(Refused::NotConfigured),
        Some(plan) => {
            let reading = pin!(routed::read(shard, client, plan, &mut message, record));
            in_time(shard, reading).await.unwrap_or(Err(Refused::ShuttingDown))
        }
    };
    let after = match read {
        Ok(Read::Route(routed)) => route(shard, client, routed, message, record).await,
        Ok(Read::Local(answer)) => respond(shard, client, record, answer).await,
        Err(refused) => refuse(shard, client, record, &refused).await,
    };
    client.inbox = rest;
    after
}

/// Longest method and path in a log line.
const METHOD_LOGGED_BYTES_MAX: usize = 32;
const PATH_LOGGED_BYTES_MAX: usize = 256;

fn method_name(method: Method, name: &[u8]) -> Cow<'static, str> {
    match method {
        Method::Get => Cow::Borrowed("GET"),
        Method::Head => Cow::Borrowed("HEAD"),
        Method::Post => Cow::Borrowed("POST"),
        Method::Options => Cow::Borrowed("OPTIONS"),
        Method::Other => text_of(name, METHOD_LOGGED_BYTES_MAX),
    }
}

fn path_name(path: &[u8]) -> Cow<'static, str> {
    known_path(path).map_or_else(|| text_of(path, PATH_LOGGED_BYTES_MAX), Cow::Borrowed)
}

fn text_of(bytes: &[u8], bytes_max: usize) -> Cow<'static, str> {
    Cow::Owned(String::from_utf8_lossy(&bytes[..bytes.len().min(bytes_max)]).into_owned())
}

/// Steps 5 to 7, again with another endpoint until a byte of an answer has come.
async fn route<'p>(
    shard: &Rc<Shard>,
    client: &mut Client,
    mut routed: Box<Routed<'p>>,
    mut message: Message,
    record: &mut Record<'p>,
) -> After {
    record.allowance = Allowance::of(routed.plan, routed.caller.tenant);
    if let Some(Err(refused)) = record.allowance.as_mut().map(|allowance| allowance.admit(io::now_us())) {
        return Box::pin(refuse(shard, client, record, &refused)).await;
    }
    if let Some(form) = exact::wanted(&routed) {
        // In a box of its own: the others' futures do not carry it.
        routed.exact = Box::pin(exact::prompts(shard, &routed, form, &message)).await;
    }
    record.entry.shadow = ask::shadow(shard, client, &routed, &message);
    let mut tried = Tried::default();
    let mut last = Last::default();
    let mut retry = None;
    loop {
        let mut decided =
            ask::decide(shard, client, &routed, &message, tried.ids(), record).map_err(NotServed::Refused);
        if tried.ids().is_empty() {
            let joining = pin!(queue::join(shard, client, &routed, &message, decided, record));
            decided = in_time(shard, joining).await.unwrap_or(Err(NotServed::Refused(Refused::ShuttingDown)));
        }
        let choice = match decided {
            Ok(choice) => choice,
            Err(NotServed::Refused(refused)) => {
                return Box::pin(conclude(shard, client, &routed, last, refused, record)).await;
            }
            Err(NotServed::ClientGone) => {
                record.entry.outcome = "client_gone";
                record.entry.status = CLIENT_CLOSED_REQUEST;
                return After::Abort;
            }
        };
        record.chosen(routed.pool, routed.plan, &choice);
        if let Err(refused) = charge::reserve(&routed, &choice, tried.ids(), record) {
            shard.memory.borrow_mut().recycle(choice.chain);
            return Box::pin(refuse(shard, client, record, &refused)).await;
        }
        let turn = if tried.ids().is_empty() { Attempt::First } else { Attempt::Retry };
        if turn == Attempt::Retry {
            record.entry.retries += 1;
            shard.metrics.borrow_mut().retries += 1;
        }
        tried.push(choice.endpoint.spec.id);
        let made = {
            let making = pin!(attempt::make(shard, client, &routed, &mut message, choice, turn, record));
            in_time(shard, making).await.unwrap_or(Attempted::Over(Refused::ShuttingDown))
        };
        let budget = match made {
            Attempted::Answered(held) => {
                // What a busy endpoint said is of no more use, nor is the body: an answer may take an hour.
                drop((last, message));
                let status = held.answer.head.status;
                let delivered = {
                    let delivering = pin!(deliver(shard, client, &routed, held, record));
                    in_time(shard, delivering).await
                };
                return delivered.unwrap_or_else(|| {
                    record.entry.outcome = "shutting_down";
                    record.entry.status = status;
                    After::Abort
                });
            }
            Attempted::Busy(held) => {
                last.busy = Some(held);
                Budget::Needed
            }
            Attempted::Failed { why, budget } => {
                last.failed = Some(why);
                budget
            }
            Attempted::Over(refused) => return refuse(shard, client, record, &refused).await,
            Attempted::ClientGone => {
                record.entry.outcome = "client_gone";
                record.entry.status = CLIENT_CLOSED_REQUEST;
                return After::Abort;
            }
        };
        if budget == Budget::Needed {
            // Asking others on behalf of the busy is what turns an overload into a storm.
            retry = retry.or_else(|| Retry::allowed(shard));
        }
        let refused_one = budget == Budget::Needed && retry.is_none();
        if refused_one || tried.ids().len() >= config::limits::ATTEMPTS_MAX {
            return Box::pin(conclude(shard, client, &routed, last, Refused::Internal, record)).await;
        }
    }
}

/// Awaits an operation, unless the process gives up before: then `None`. Nothing is waited for
/// of which the reactor does not know, so that it can wake everybody.
async fn in_time<T>(shard: &Shard, mut operation: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_fn(|cx| match operation.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if shard.gives_up.get() => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// How attempts have ended so far.
#[derive(Default)]
struct Last<'p> {
    /// An endpoint said that it is busy; that answer is for the client if nobody else has a better one.
    busy: Option<Box<Held<'p>>>,
    /// An attempt got no answer.
    failed: Option<Refused>,
}

/// Nobody else is left to be tried: the client gets the best of what the attempts gave, or `refused` where there was none.
async fn conclude<'p>(
    shard: &Rc<Shard>,
    client: &mut Client,
    routed: &Routed<'p>,
    last: Last<'p>,
    refused: Refused,
    record: &mut Record<'p>,
) -> After {
    match (last.busy, last.failed) {
        (Some(held), _) => {
            record.chosen(routed.pool, routed.plan, &held.choice);
            deliver(shard, client, routed, held, record).await
        }
        (None, Some(why)) => refuse(shard, client, record, &why).await,
        (None, None) => {
            record.refused_by(&refused, routed.pool);
            refuse(shard, client, record, &refused).await
        }
    }
}

/// nginx's status for a client that left; only in logs and metrics.
const CLIENT_CLOSED_REQUEST: u16 = 499;

fn is_refusal(status: u16, choice: &Choice<'_>) -> bool {
    matches!(judge(status, choice.endpoint.spec.backend), Verdict::Refusal(_))
}

/// Step 7: the answer goes to the client; what it teaches is kept.
async fn deliver(
    shard: &Rc<Shard>,
    client: &mut Client,
    routed: &Routed<'_>,
    mut held: Box<Held<'_>>,
    record: &mut Record<'_>,
) -> After {
    // What stays in the box takes no room in the future.
    let Held { answer, choice, flight, deadline } = &mut *held;
    let status = answer.head.status;
    if status < 400 {
        charge::begun(routed, choice, record);
    }
    let shown = Presentation {
        backend: choice.endpoint.spec.backend,
        model_shown: shown_model(routed, choice),
        // An error of the engine is one document; nothing is hidden in it.
        usage_asked: if (200..300).contains(&status) { routed.usage_asked } else { UsageAsked::ByClient },
        event_names: event_names(routed.api),
        request_id: &record.entry.request_id,
        decision_headers: decision_headers(shard, record),
        rate_limits: record.rate_limits(),
        after: keep_alive(shard, client),
        head_only: client.head.method == Method::Head,
    };
    let idle = choice.endpoint.spec.timeouts.idle.unwrap_or(shard.settings.idle_timeout);
    let patience = Patience { idle, deadline: *deadline };
    let forwarded =
        forward::forward(shard, client, answer, &shown, patience, |now_us, output| flight.heard(now_us, output)).await;
    let Forwarded { end, usage, pieces, response_bytes, first_content_us, upstream, after, replaced_status } =
        forwarded;
    record.entry.status = replaced_status.unwrap_or(status);
    record.entry.response_bytes = response_bytes;
    record.entry.usage = usage;
    record.pieces = pieces;
    record.entry.ttft_us = first_content_us.map(|at| at.saturating_sub(record.received_us));
    let tokens = |count: Option<u64>| count.and_then(|n| u32::try_from(n).ok());
    let completed = Ended::Completed {
        prompt_tokens: tokens(usage.prompt_tokens),
        cached_tokens: tokens(usage.cached_tokens),
        completion_tokens: match routed.request.purpose {
            Purpose::Generate => tokens(usage.completion_tokens),
            Purpose::Read => Some(1),
            Purpose::Other => None,
        },
    };
    let (outcome, ended) = match end {
        End::Complete if status < 400 => ("ok", completed),
        End::Complete => ("upstream_status", if is_refusal(status, choice) { Ended::Refused } else { Ended::Failed }),
        End::ErrorEvent => ("error_event", Ended::Failed),
        End::Truncated(_) => ("truncated", Ended::Failed),
        End::ClientGone => ("client_gone", Ended::Aborted),
    };
    record.entry.outcome = outcome;
    flight.end(ended, Used::Tokens(charge::tokens(routed, choice, status, record)));
    check_tokens(shard, routed, choice, status, usage.prompt_tokens);
    record.entry.cost = charge::cost(routed, choice, flight, record);
    report_end(shard, choice, status, end);
    let Held { answer, choice, .. } = *held;
    if upstream == forward::Upstream::Keeps {
        choice.endpoint.keep(answer.conn, io::now_us());
    }
    shard.memory.borrow_mut().recycle(choice.chain);
    match end {
        End::ClientGone => After::Abort,
        End::Complete | End::ErrorEvent | End::Truncated(_) => after,
    }
}

/// Holds the length of a prompt that was told exactly against what the engine says.
fn check_tokens(shard: &Shard, routed: &Routed<'_>, choice: &Choice<'_>, status: u16, told: Option<u64>) {
    let exact = choice.chain.has_engine_blocks() && routed.exact.iter().all(|prompt| prompt.tokens.media.is_none());
    if let (true, 200, Some(told)) = (exact, status, told) {
        let differs = usize::from(told != u64::from(choice.prompt_tokens));
        shard.metrics.borrow_mut().exact_checks[differs] += 1;
    }
}

fn event_names(api: Api) -> EventNames {
    if matches!(api, Api::Responses | Api::Messages) { EventNames::Present } else { EventNames::Absent }
}

fn report_end(shard: &Shard, choice: &Choice<'_>, status: u16, end: End) {
    match end {
        End::Truncated(Cut::Reset) => shard.report_failure(&choice.endpoint, Failure::Reset),
        End::Truncated(Cut::Silent | Cut::Late) => shard.report_failure(&choice.endpoint, Failure::IdleTimeout),
        End::Truncated(Cut::Garbled) => shard.report_failure(&choice.endpoint, Failure::BadAnswer),
        End::Complete if status >= 500 && !is_refusal(status, choice) => {
            shard.report_failure(&choice.endpoint, Failure::ServerError);
        }
        End::Complete | End::ErrorEvent => choice.endpoint.answered(io::now_us()),
        End::ClientGone => {}
    }
}

/// The name that answers show in place of the upstream's own, when it differs.
fn shown_model<'a>(routed: &'a Routed<'_>, choice: &Choice<'_>) -> Option<&'a str> {
    let asked = &routed.request.model;
    let replace =
        routed.pool.response_model == ResponseModel::Requested && !asked.is_empty() && *asked != choice.upstream_model;
    replace.then_some(asked)
}

fn decision_headers(shard: &Shard, record: &Record<'_>) -> Vec<u8> {
    let mut lines = Vec::new();
    if shard.settings.decision_headers == DecisionHeaders::Shown {
        let endpoint = record.entry.endpoint.as_ref().map_or("", |endpoint| endpoint.spec.name.as_str());
        push_header(&mut lines, b"x-kinference-endpoint", endpoint.as_bytes());
        push_header(&mut lines, b"x-kinference-rule", record.entry.rule.as_bytes());
        if let Some(us) = record.entry.predicted_ttft_us {
            let ms = format!("{}.{:03}", us / 1000, us % 1000);
            push_header(&mut lines, b"x-kinference-predicted-ttft-ms", ms.as_bytes());
        }
        if !record.entry.tags.is_empty() {
            push_header(&mut lines, b"x-kinference-tags", header_value(&record.entry.tags).as_bytes());
        }
    }
    lines
}

/// Tags as the value of a header. Operators name them, so what no header can carry is left out.
fn header_value(tags: &[&str]) -> String {
    let plain = |tag: &&str| tag.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
    tags.iter().copied().filter(|tag| plain(tag)).collect::<Vec<_>>().join(", ")
}

fn keep_alive(shard: &Shard, client: &Client) -> After {
    if client.head.keep_alive && !shard.draining.get() { After::KeepAlive } else { After::Close }
}

async fn respond(shard: &Shard, client: &mut Client, record: &mut Record<'_>, answer: local::Answer) -> After {
    shard.metrics.borrow_mut().requests_local += 1;
    let after = keep_alive(shard, client);
    record.entry.status = answer.status;
    record.entry.outcome = if answer.status < 400 { "ok" } else { "not_found" };
    let headers = [("x-request-id", record.entry.request_id.as_bytes())];
    let with_body = client.head.method != Method::Head;
    client.put_answer(&LocalAnswer {
        status: answer.status,
        body: &answer.body,
        headers: &headers,
        lines: &[],
        after,
        with_body,
    });
    send_answer(shard, client, record, after).await
}

async fn refuse(shard: &Shard, client: &mut Client, record: &mut Record<'_>, refused: &Refused) -> After {
    let after = if refused.ends_connection() { After::Linger } else { keep_alive(shard, client) };
    record.entry.status = refused.status();
    record.entry.outcome = refused.outcome();
    refused.code().clone_into(&mut record.entry.error);
    let mut body = Vec::new();
    refused.push_body(&mut body);
    let retry_after = refused.retry_after_s().map(|s| s.to_string());
    let mut headers = vec![("x-request-id", record.entry.request_id.as_bytes())];
    if let Some(seconds) = &retry_after {
        headers.push(("retry-after", seconds.as_bytes()));
    }
    if let Refused::Method(allow) = refused {
        headers.push(("allow", allow.as_bytes()));
    }
    if refused.status() == 401 {
        // RFC 9110, 15.5.2: a 401 says how to be known.
        headers.push(("www-authenticate", b"Bearer"));
    }
    if *refused == Refused::ContentEncoding {
        headers.push(("accept-encoding", CODINGS_ACCEPTED.as_bytes()));
    }
    let with_body = client.head.method != Method::Head;
    let lines = record.rate_limits();
    let status = refused.status();
    client.put_answer(&LocalAnswer { status, body: &body, headers: &headers, lines: &lines, after, with_body });
    send_answer(shard, client, record, after).await
}

async fn send_answer(shard: &Shard, client: &mut Client, record: &mut Record<'_>, after: After) -> After {
    record.entry.response_bytes = client.out.len() as u64;
    match client.send(shard.settings.client_idle_timeout).await {
        Ok(()) => after,
        Err(_) => {
            record.entry.outcome = "client_gone";
            After::Abort
        }
    }
}
