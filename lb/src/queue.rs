//! Requests that wait for room: those whose rule has a `queue`, when `exclude` and limits have dropped every candidate.
//!
//! Each data thread has a queue for each rule of each plan, and looks at it by itself: fair shares and order hold on one thread, while
//! all threads look at the same endpoints and so find room at the same time, give or take the 5 ms in which they hear of each
//! other. The bound on who waits holds over all threads.
//!
//! A look lets the first ones decide anew, in the order of their turn; who finds room leaves, and lets the next one look.
//! There is a look when a request of this thread ends, when news of endpoints come, and every [`LOOK_EVERY`]. Whoever comes while others wait
//! joins them, even if there is room at that moment.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Poll, Waker};
use std::time::Duration;

use admission::{FairQueue, Ticket};
use config::limits::QUEUE_LOOKS_MAX;
use config::snapshot::Pool;
use policy::{Action, Queue, RuleIndex};

use crate::allowance::answer_tokens;
use crate::ask;
use crate::body::Message;
use crate::conn::Client;
use crate::decide::Choice;
use crate::error::Refused;
use crate::io::{self, Stop, until};
use crate::plan::{LocalPlan, Plan};
use crate::record::Record;
use crate::routed::Routed;
use crate::shard::Shard;

/// Between two looks without another reason: what keeps requests back may be a mean over time.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// There was room.
    Served,
    /// There was none in time.
    TimedOut,
    /// As many waited as may.
    Full,
    /// The client left.
    ClientGone,
    /// Nobody could answer it any more, or a rule or limit turned it away.
    Refused,
}

impl Outcome {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 5] = [Self::Served, Self::TimedOut, Self::Full, Self::ClientGone, Self::Refused];

    /// The label in metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::TimedOut => "timed_out",
            Self::Full => "full",
            Self::ClientGone => "client_gone",
            Self::Refused => "refused",
        }
    }
}

/// Which queue: the plan that all who wait there have pinned, its pool, the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    plan: usize,
    pool: usize,
    rule: u16,
}

/// The queues of one data thread. Those that nobody waits in are not kept.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_rule: RefCell<BTreeMap<Key, FairQueue<usize, Rc<Turn>>>>,
}

/// The turn of one request.
#[derive(Debug, Default)]
struct Turn {
    come: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Turn {
    fn call(&self) {
        self.come.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    async fn comes(&self) {
        poll_fn(|cx| {
            if self.come.replace(false) {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Queues {
    /// Lets the first of every queue look for room.
    pub(crate) fn look(&self, most: usize) {
        let queues = self.by_rule.borrow();
        for queue in queues.values() {
            queue.next_ones(most).into_iter().for_each(|turn| turn.call());
        }
    }

    fn has_waiting(&self, key: Key) -> bool {
        self.by_rule.borrow().contains_key(&key)
    }

    fn leave(&self, key: Key, ticket: Ticket, how: Leave) {
        let mut queues = self.by_rule.borrow_mut();
        let Some(queue) = queues.get_mut(&key) else { return };
        match how {
            Leave::Served => _ = queue.serve(ticket),
            Leave::GaveUp => _ = queue.remove(ticket),
        }
        if queue.is_empty() {
            queues.remove(&key);
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Leave {
    Served,
    GaveUp,
}

/// How many wait under each rule of each pool, over all data threads.
#[derive(Debug, Default)]
pub(crate) struct WaitingCounts {
    pools: Vec<Vec<AtomicU32>>,
}

impl WaitingCounts {
    /// Nobody waits in these pools.
    pub(crate) fn of(pools: &[Pool]) -> Self {
        let counts = |pool: &Pool| pool.program.rules().iter().map(|_| AtomicU32::new(0)).collect();
        Self { pools: pools.iter().map(counts).collect() }
    }

    fn count(&self, pool: usize, rule: RuleIndex) -> Option<&AtomicU32> {
        self.pools.get(pool)?.get(usize::from(rule.0))
    }

    /// How many wait under a rule, by its place in its pool.
    pub(crate) fn waiting(&self, pool: usize, rule: usize) -> u32 {
        self.pools.get(pool).and_then(|rules| rules.get(rule)).map_or(0, |count| count.load(Relaxed))
    }
}

/// The queue of a rule.
fn queue_of(pool: &Pool, rule: RuleIndex) -> Option<Queue> {
    match &pool.program.rule(rule).action {
        Action::Route(route) => route.queue,
        Action::Deny(_) => None,
    }
}

/// What a request is told by its first decision: it waits where its rule has a queue, and nobody has room or others wait already.
pub(crate) async fn join<'p>(
    shard: &Rc<Shard>,
    client: &Client,
    routed: &Routed<'p>,
    message: &Message,
    decided: Result<Choice<'p>, NotServed>,
    record: &mut Record<'p>,
) -> Result<Choice<'p>, NotServed> {
    let overloaded = matches!(decided, Err(NotServed::Refused(Refused::Overloaded { .. })));
    let Some(rule) = record.rule.filter(|_| decided.is_ok() || overloaded) else { return decided };
    let key = Key { plan: Rc::as_ptr(routed.plan) as usize, pool: routed.pool_index, rule: rule.0 };
    let queue = queue_of(routed.pool, rule).filter(|_| overloaded || shard.queues.has_waiting(key));
    let Some(queue) = queue else { return decided };
    let place = Place::take(shard, routed, key, queue, record);
    let Some(place) = place else {
        shard.metrics.borrow_mut().queued(&routed.pool.id.name, rule_name(routed, rule), Outcome::Full, 0);
        let rule = rule_name(routed, rule).to_owned();
        return decided.and(Err(NotServed::Refused(Refused::Overloaded { rule, exclude: None, retry_after_s: 1 })));
    };
    if let Ok(choice) = decided {
        // There is room, and somebody else may have a better right to it: all look, in the order of their turn.
        shard.memory.borrow_mut().recycle(choice.chain);
        shard.queues.look(QUEUE_LOOKS_MAX);
    }
    // In a box: few requests need it, and every connection would hold the room for it.
    Box::pin(wait(shard, client, routed, message, queue, place, record)).await
}

/// Why a request got no endpoint.
#[derive(Debug)]
pub(crate) enum NotServed {
    /// It is told why.
    Refused(Refused),
    /// Its client has left.
    ClientGone,
}

fn rule_name<'p>(routed: &Routed<'p>, rule: RuleIndex) -> &'p str {
    &routed.pool.program.rule(rule).name
}

/// A place in a queue, left on drop.
struct Place<'p> {
    shard: Rc<Shard>,
    plan: &'p Plan,
    key: Key,
    ticket: Ticket,
    turn: Rc<Turn>,
    since_us: u64,
    left: bool,
}

impl<'p> Place<'p> {
    /// `None` when as many wait as may.
    fn take(shard: &Rc<Shard>, routed: &Routed<'p>, key: Key, queue: Queue, record: &Record<'_>) -> Option<Self> {
        let plan: &'p Rc<LocalPlan> = routed.plan;
        let count = plan.waiting.count(key.pool, RuleIndex(key.rule))?;
        let room = |n: u32| (n < queue.length_max).then(|| n + 1);
        count.fetch_update(Relaxed, Relaxed, room).ok()?;
        let tenant = routed.caller.tenant;
        let priority = tenant.and_then(|index| plan.snapshot.tenants.get(index)).map_or(0, |tenant| tenant.priority);
        let tokens = u64::from(record.prompt_tokens).saturating_add(answer_tokens(&routed.request));
        let turn = Rc::<Turn>::default();
        let ticket = {
            let mut queues = shard.queues.by_rule.borrow_mut();
            // Callers that are no tenants are one.
            queues.entry(key).or_default().push(priority, tenant.unwrap_or(usize::MAX), tokens, turn.clone())
        };
        let since_us = io::now_us();
        Some(Self { shard: shard.clone(), plan, key, ticket, turn, since_us, left: false })
    }

    fn leave(&mut self, how: Leave) {
        if !std::mem::replace(&mut self.left, true) {
            self.shard.queues.leave(self.key, self.ticket, how);
            if let Some(count) = self.plan.waiting.count(self.key.pool, RuleIndex(self.key.rule)) {
                count.fetch_sub(1, Relaxed);
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave(Leave::GaveUp);
    }
}

async fn wait<'p>(
    shard: &Rc<Shard>,
    client: &Client,
    routed: &Routed<'p>,
    message: &Message,
    queue: Queue,
    mut place: Place<'p>,
    record: &mut Record<'p>,
) -> Result<Choice<'p>, NotServed> {
    let deadline = shard.reactor.deadline(queue.wait_max);
    // Ends with the deadline at the latest.
    let (result, outcome) = loop {
        let woken = until(place.turn.comes(), Some(client.conn.watch()), deadline.watch()).await;
        if let Err(Stop::Gone) = woken {
            break (Err(NotServed::ClientGone), Outcome::ClientGone);
        }
        match (ask::decide_again(shard, client, routed, message, record), woken) {
            (Ok(choice), _) => break (Ok(choice), Outcome::Served),
            (Err(Refused::Overloaded { .. }), Ok(())) => {}
            (Err(refused @ Refused::Overloaded { .. }), Err(_)) => {
                break (Err(NotServed::Refused(refused)), Outcome::TimedOut);
            }
            (Err(refused), _) => break (Err(NotServed::Refused(refused)), Outcome::Refused),
        }
    };
    place.leave(if outcome == Outcome::Served { Leave::Served } else { Leave::GaveUp });
    let waited_us = io::now_us().saturating_sub(place.since_us);
    record.entry.queued_us = Some(waited_us);
    let rule = rule_name(routed, RuleIndex(place.key.rule));
    shard.metrics.borrow_mut().queued(&routed.pool.id.name, rule, outcome, waited_us);
    result
}
