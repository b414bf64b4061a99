//! Sends the load: threads, connections, and one exchange after the other.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::Semaphore, task::LocalSet, time::timeout};

use crate::{
    http::{Broken, Connection, Media, Target, Usage},
    pace::{Arrivals, Schedule, Timer},
    random::Random,
    replay::{Replay, Said},
    sse::Events,
    tally::{Outcome, Tally},
    verify::{Check, Seen, Strictness},
    workload::{Ask, Delivery, Source, Workload},
};

/// How load arises.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Requests are due at their times, whether or not earlier ones are answered. Latency counts from the due time.
    Open {
        /// Requests a second, of all threads.
        rate: f64,
        /// How they are spread.
        arrivals: Arrivals,
    },
    /// So many requests at a time, each followed by the next. Latency counts from the sending.
    Closed {
        /// Requests in flight, of all threads.
        concurrency: u32,
    },
    /// As a trace says: sessions begin at their times, and each turn waits for the answer before it.
    Trace(Replay),
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where to; requests take turns.
    pub targets: Vec<Target>,
    /// What to ask.
    pub workload: Workload,
    /// How load arises.
    pub shape: Shape,
    /// No request is begun after this time.
    pub duration: Duration,
    /// No more requests than this.
    pub requests_max: Option<u64>,
    /// Longest time for one exchange, and after the end of the run for all.
    pub timeout: Duration,
    /// Connections open at a time, of all threads. Requests beyond wait; the wait counts.
    pub connections_max: u32,
    /// Threads, each with its share of everything.
    pub threads: u32,
    /// How closely answers are checked.
    pub strictness: Strictness,
    /// Further header lines, each ending in CR LF.
    pub headers: String,
    /// Clients that leave before they have their answer.
    pub abandon: Abandon,
    /// Seed of prompts and arrivals.
    pub seed: u64,
}

/// Some clients leave early: they close their connection at a random moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Abandon {
    /// Share of the requests, 0 to 1.
    pub share: f64,
    /// From the sending to the leaving at most, evenly spread. Who has the answer before does not leave.
    pub within: Duration,
}

/// Counts that can be read while the load runs.
#[derive(Debug, Default)]
pub struct Live {
    /// Requests begun.
    pub begun: AtomicU64,
    /// Requests answered rightly.
    pub right: AtomicU64,
    /// Requests ended otherwise.
    pub failed: AtomicU64,
    /// Events received.
    pub events: AtomicU64,
    /// Set to end the run early.
    pub stop: AtomicBool,
}

/// Requests that may wait for a connection on each thread; beyond, they count as unsent.
const WAITING_MAX: u64 = 100_000;

/// Longest time in which a waiting thread does not notice the end of the run.
const STOP_NOTICED_WITHIN: Duration = Duration::from_millis(200);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Due,
    Stopped,
}

/// Runs one thread's share of a plan to its end. `share` counts from 0.
pub fn run_share(plan: &Plan, share: u32, live: &Arc<Live>) -> io::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worker = Rc::new(Worker::new(plan, share, Arc::clone(live)));
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        match &plan.shape {
            &Shape::Open { rate, arrivals } => worker.open_loop(rate / f64::from(plan.threads), arrivals).await,
            &Shape::Closed { concurrency } => {
                worker.closed_loop(share_of(concurrency.into(), plan.threads, share)).await;
                Ok(())
            }
            Shape::Trace(replay) => worker.replay(replay, share).await,
        }
    })?;
    let tally = worker.tally.take();
    Ok(tally)
}

/// Splits a number among threads; the first ones take what is left over.
fn share_of(total: u64, threads: u32, share: u32) -> u64 {
    total / u64::from(threads) + u64::from(u64::from(share) < total % u64::from(threads))
}

struct Worker {
    plan: Plan,
    /// For each target: request head up to the content length.
    heads: Vec<String>,
    /// Idle connections of each target, the freshest last.
    idle: Vec<RefCell<Vec<Connection>>>,
    next_target: Cell<usize>,
    connections: Semaphore,
    source: RefCell<Source>,
    /// Who leaves, and when.
    leaving: RefCell<Random>,
    tally: RefCell<Tally>,
    live: Arc<Live>,
    end: Instant,
    requests_left: Cell<u64>,
    seed: u64,
}

impl Worker {
    fn new(plan: &Plan, share: u32, live: Arc<Live>) -> Self {
        let path = plan.workload.api.path();
        let head = |target: &Target| {
            format!(
                "POST {}{path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{}content-length: ",
                target.base_path, target.authority, plan.headers
            )
        };
        let connections = share_of(plan.connections_max.into(), plan.threads, share).max(1);
        let seed = plan.seed.wrapping_mul(1000).wrapping_add(share.into());
        Self {
            heads: plan.targets.iter().map(head).collect(),
            idle: plan.targets.iter().map(|_| RefCell::default()).collect(),
            next_target: Cell::new(share as usize),
            connections: Semaphore::new(usize::try_from(connections).unwrap_or(Semaphore::MAX_PERMITS)),
            source: RefCell::new(Source::new(plan.workload.clone(), seed)),
            leaving: RefCell::new(Random::new(seed ^ u64::MAX)),
            tally: RefCell::default(),
            live,
            end: Instant::now() + plan.duration,
            requests_left: Cell::new(plan.requests_max.map_or(u64::MAX, |max| share_of(max, plan.threads, share))),
            seed,
            plan: plan.clone(),
        }
    }

    /// Whether one more request may begin at `due`; counts it.
    fn begins(&self, due: Instant) -> bool {
        if due >= self.end || self.live.stop.load(Ordering::Relaxed) {
            return false;
        }
        let left = self.requests_left.get();
        self.requests_left.set(left.saturating_sub(1));
        left > 0
    }

    async fn open_loop(self: &Rc<Self>, rate: f64, arrivals: Arrivals) -> io::Result<()> {
        let timer = Timer::new()?;
        // All tasks hold a permit; at the end the worker takes them all.
        let tasks = Arc::new(Semaphore::new(WAITING_MAX as usize));
        for due in Schedule::new(Instant::now(), rate, arrivals, self.seed) {
            if !self.begins(due) {
                break;
            }
            if self.wait(&timer, due).await? == Waited::Stopped {
                break;
            }
            match Arc::clone(&tasks).try_acquire_owned() {
                Ok(permit) => {
                    let worker = Rc::clone(self);
                    tokio::task::spawn_local(async move {
                        worker.exchange(due).await;
                        drop(permit);
                    });
                }
                Err(_) => self.settle(Outcome::Unsent),
            }
        }
        // Every exchange ends within its own time limit.
        let all = u32::try_from(WAITING_MAX).unwrap_or(u32::MAX);
        let _ = tasks.acquire_many(all).await;
        Ok(())
    }

    /// This thread's sessions of a trace.
    async fn replay(self: &Rc<Self>, replay: &Replay, share: u32) -> io::Result<()> {
        let timer = Timer::new()?;
        let begun = Instant::now();
        let mut sessions = Vec::new();
        let mine = |place: &usize| *place as u64 % u64::from(self.plan.threads) == u64::from(share);
        for (_, (due_us, row)) in replay.beginnings().into_iter().enumerate().filter(|(place, _)| mine(place)) {
            let due = begun + Duration::from_micros(due_us);
            if !self.begins(due) || self.wait(&timer, due).await? == Waited::Stopped {
                break;
            }
            let (worker, replay) = (Rc::clone(self), replay.clone());
            sessions.push(tokio::task::spawn_local(async move { worker.session(&replay, row, due).await }));
        }
        for session in sessions {
            // A panic has been printed; the other sessions go on.
            let _ = session.await;
        }
        Ok(())
    }

    /// The turns of one session. It ends with the trace, the run, or a turn that has no right answer.
    async fn session(&self, replay: &Replay, mut row: u32, mut due: Instant) {
        let mut said = Said::default();
        loop {
            let ask = replay.ask(row, &mut said, &self.plan.workload.model);
            let Some(answer) = self.answer(due, &ask).await else { break };
            let Some((next, gap_us)) = replay.next(row) else { break };
            said.say("assistant", &answer);
            tokio::time::sleep(Duration::from_micros(gap_us)).await;
            (row, due) = (next, Instant::now());
            if !self.begins(due) {
                break;
            }
        }
    }

    /// Waits until `due`, but notices soon when the run is stopped.
    async fn wait(&self, timer: &Timer, due: Instant) -> io::Result<Waited> {
        while !self.live.stop.load(Ordering::Relaxed) {
            let soon = Instant::now() + STOP_NOTICED_WITHIN;
            timer.until(due.min(soon)).await?;
            if due <= soon {
                return Ok(Waited::Due);
            }
        }
        Ok(Waited::Stopped)
    }

    async fn closed_loop(self: &Rc<Self>, concurrency: u64) {
        let tasks: Vec<_> = (0..concurrency)
            .map(|_| {
                let worker = Rc::clone(self);
                tokio::task::spawn_local(async move {
                    loop {
                        let now = Instant::now();
                        if !worker.begins(now) {
                            break;
                        }
                        worker.exchange(now).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            // A panic has been printed; the other tasks go on.
            let _ = task.await;
        }
    }

    /// One request from its due time to the end of its answer.
    async fn exchange(&self, due: Instant) {
        let mut ask = self.source.borrow_mut().ask();
        let conversation = ask.conversation.take();
        let answer = self.answer(due, &ask).await;
        if let Some(conversation) = conversation {
            self.source.borrow_mut().give_back(conversation, answer.as_deref());
        }
    }

    /// Sends one request; gives the text of its answer when it was right.
    async fn answer(&self, due: Instant, ask: &Ask) -> Option<String> {
        self.live.begun.fetch_add(1, Ordering::Relaxed);
        let mut check = Check::new(self.plan.strictness, self.plan.workload.api, ask);
        let (patience, otherwise) = self.patience();
        let outcome = timeout(patience, self.converse(due, ask, &mut check)).await.unwrap_or(otherwise);
        if outcome == Outcome::Right {
            let mut tally = self.tally.borrow_mut();
            tally.duration.record(due.elapsed());
            if let Some((prompt, cached, output)) = check.reported() {
                tally.prompt_tokens += prompt;
                tally.cached_tokens += cached;
                tally.output_tokens += output;
            }
        }
        let answer = if outcome == Outcome::Right { check.text().map(str::to_owned) } else { None };
        self.settle(outcome);
        answer
    }

    /// How long this client waits, and what it is then.
    fn patience(&self) -> (Duration, Outcome) {
        let Abandon { share, within } = self.plan.abandon;
        let mut random = self.leaving.borrow_mut();
        if share > 0.0 && random.unit() < share {
            (within.mul_f64(random.unit()).min(self.plan.timeout), Outcome::Abandoned)
        } else {
            (self.plan.timeout, Outcome::Timeout)
        }
    }

    fn settle(&self, outcome: Outcome) {
        let counter = if outcome == Outcome::Right { &self.live.right } else { &self.live.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        self.tally.borrow_mut().count(outcome);
    }

    async fn converse(&self, due: Instant, ask: &Ask, check: &mut Check) -> Outcome {
        let Ok(_permit) = self.connections.acquire().await else { return Outcome::Unsent };
        let at = self.next_target.get() % self.plan.targets.len();
        self.next_target.set(at + 1);
        let mut request = Vec::with_capacity(self.heads[at].len() + ask.body.len() + 16);
        request.extend_from_slice(self.heads[at].as_bytes());
        request.extend_from_slice(ask.body.len().to_string().as_bytes());
        request.extend_from_slice(b"\r\n\r\n");
        request.extend_from_slice(&ask.body);
        self.tally.borrow_mut().lag.record(due.elapsed());
        let (mut connection, head) = match self.send(at, &request).await {
            Ok(begun) => begun,
            Err(broken) => return Outcome::Broken(broken),
        };
        let outcome = if head.status != 200 {
            self.skip_body(&mut connection).await.map_or_else(Outcome::Broken, |()| Outcome::Status(head.status))
        } else {
            match (ask.delivery, head.media) {
                (Delivery::Stream, Media::Events) => self.stream(due, &mut connection, check).await,
                (Delivery::Whole, Media::Other) => self.whole(&mut connection, check).await,
                (Delivery::Stream, Media::Other) => Outcome::Wrong("a stream was asked for, a body came".to_owned()),
                (Delivery::Whole, Media::Events) => Outcome::Wrong("a body was asked for, a stream came".to_owned()),
            }
        };
        if connection.reusable() {
            connection.usage = Usage::Reused;
            self.idle[at].borrow_mut().push(connection);
        }
        outcome
    }

    /// Sends a request and waits for the head of its answer. A kept connection that turns out to be closed is replaced
    /// by a fresh one, once.
    async fn send(&self, target: usize, request: &[u8]) -> Result<(Connection, crate::http::Head), Broken> {
        let kept = self.idle[target].borrow_mut().pop();
        if let Some(mut connection) = kept {
            let sent = match connection.send(request).await {
                Ok(()) => connection.head().await,
                Err(broken) => Err(broken),
            };
            match sent {
                Ok(head) => return Ok((connection, head)),
                Err(Broken::Reset | Broken::Closed) if connection.unanswered() => self.tally.borrow_mut().resent += 1,
                Err(broken) => return Err(broken),
            }
        }
        let mut connection = Connection::open(&self.plan.targets[target].authority).await?;
        self.tally.borrow_mut().connections += 1;
        connection.send(request).await?;
        let head = connection.head().await?;
        Ok((connection, head))
    }

    async fn skip_body(&self, connection: &mut Connection) -> Result<(), Broken> {
        while let Some(piece) = connection.piece().await? {
            self.tally.borrow_mut().body_bytes += piece.len() as u64;
        }
        Ok(())
    }

    async fn whole(&self, connection: &mut Connection, check: &mut Check) -> Outcome {
        let mut body = Vec::new();
        loop {
            match connection.piece().await {
                Ok(Some(piece)) => body.extend_from_slice(piece),
                Ok(None) => break,
                Err(broken) => return Outcome::Broken(broken),
            }
        }
        self.tally.borrow_mut().body_bytes += body.len() as u64;
        match check.body(&body).and_then(|seen| check.end().map(|()| seen)) {
            Ok(_) => Outcome::Right,
            Err(fault) => Outcome::Wrong(fault),
        }
    }

    async fn stream(&self, due: Instant, connection: &mut Connection, check: &mut Check) -> Outcome {
        let mut events = Events::default();
        let mut last_text: Option<Instant> = None;
        let mut error = false;
        loop {
            let piece = match connection.piece().await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(broken) => return Outcome::Broken(broken),
            };
            let now = Instant::now();
            let mut fault = None;
            let mut tally = self.tally.borrow_mut();
            tally.body_bytes += piece.len() as u64;
            let mut count = 0;
            let fed = events.feed(piece, |data| {
                count += 1;
                match check.event(data) {
                    Ok(Seen::Text) => {
                        match last_text {
                            None => tally.first_token.record(now - due),
                            Some(last) => tally.gap.record(now - last),
                        }
                        last_text = Some(now);
                    }
                    Ok(Seen::Error) => error = true,
                    Ok(Seen::Other) => {}
                    Err(what) => fault = fault.take().or(Some(what)),
                }
            });
            tally.events += count;
            drop(tally);
            self.live.events.fetch_add(count, Ordering::Relaxed);
            if fed.is_err() {
                fault = Some("an event is too large".to_owned());
            }
            if let Some(fault) = fault {
                return Outcome::Wrong(fault);
            }
        }
        if error {
            return Outcome::ErrorEvent;
        }
        if !events.at_boundary() {
            return Outcome::Wrong("the stream ended within an event".to_owned());
        }
        check.end().map_or_else(Outcome::Wrong, |()| Outcome::Right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_whole() {
        for (total, threads) in [(10, 3), (2, 4), (0, 2), (7, 1)] {
            let sum: u64 = (0..threads).map(|share| share_of(total, threads, share)).sum();
            assert_eq!(sum, total, "{total} among {threads}");
        }
    }
}
