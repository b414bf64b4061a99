//! Runs the step model in real time: requests in, tokens out, gauges and histograms on the side.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use crate::{
    kv_events::Publisher,
    metrics::Histograms,
    step::{Event, Parameters, Refusal, Request, RequestId, Timed, Timeline, Totals},
};

/// A step that ends later than this after the start, 30 years, never ends.
const DUE_S_MAX: f64 = 1e9;

/// What a request hears from the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Admitted { cached_tokens: u32 },
    Token,
    LastToken,
}

/// Gauges as of the last step. Like vLLM's they stand still during a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) kv_usage_ratio: f64,
}

struct Reply {
    progress: mpsc::Sender<Progress>,
    prompt_tokens: u32,
    output_tokens: u32,
    arrived_us: u64,
    admitted_us: Option<u64>,
    first_token_us: Option<u64>,
    last_token_us: u64,
}

struct State {
    timeline: Timeline,
    replies: HashMap<RequestId, Reply>,
    next_id: RequestId,
    gauges: Gauges,
    histograms: Histograms,
    refused: u64,
    scratch: Vec<Timed>,
    publisher: Option<Arc<Publisher>>,
}

/// The engine behind the sockets.
pub(crate) struct Pump {
    state: Mutex<State>,
    wake: Notify,
    origin: Instant,
    /// Real seconds per virtual second; 0 runs as fast as possible.
    time_scale: f64,
}

impl Pump {
    pub(crate) fn new(parameters: Parameters, time_scale: f64, publisher: Option<Arc<Publisher>>) -> Arc<Self> {
        let mut timeline = Timeline::new(parameters);
        if publisher.is_some() {
            timeline.record_block_changes();
        }
        let state = State {
            timeline,
            replies: HashMap::new(),
            next_id: 0,
            gauges: Gauges::default(),
            histograms: Histograms::default(),
            refused: 0,
            scratch: Vec::new(),
            publisher,
        };
        let time_scale = if time_scale.is_finite() { time_scale.max(0.0) } else { 1.0 };
        Arc::new(Self { state: Mutex::new(state), wake: Notify::new(), origin: Instant::now(), time_scale })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Present virtual time; without a clock, the time of the last step.
    fn now_us(&self, state: &State) -> u64 {
        if self.time_scale == 0.0 {
            state.timeline.now_us()
        } else {
            (self.origin.elapsed().as_secs_f64() / self.time_scale * 1e6) as u64
        }
    }

    /// Runs steps until dropped.
    pub(crate) async fn run(&self) {
        loop {
            let next_us = {
                let state = &mut *self.lock();
                let now_us = if self.time_scale == 0.0 {
                    state.timeline.next_us().unwrap_or_default()
                } else {
                    self.now_us(state)
                };
                state.advance(now_us);
                state.timeline.next_us()
            };
            match next_us {
                None => self.wake.notified().await,
                Some(_) if self.time_scale == 0.0 => tokio::task::yield_now().await,
                Some(next_us) => {
                    let due_s = (next_us as f64 * 1e-6 * self.time_scale).min(DUE_S_MAX);
                    let due = self.origin + Duration::from_secs_f64(due_s);
                    tokio::time::sleep_until(due).await;
                }
            }
        }
    }

    /// Hands a request to the engine. Dropping the ticket before the last token aborts it.
    pub(crate) fn submit(self: &Arc<Self>, mut request: Request) -> Result<Ticket, Refusal> {
        let state = &mut *self.lock();
        let now_us = self.now_us(state);
        state.advance(now_us);
        state.next_id += 1;
        let id = state.next_id;
        request.id = id;
        let (prompt_tokens, output_tokens) = (request.prompt_tokens, request.output_tokens);
        state.timeline.submit(request).inspect_err(|_| state.refused += 1)?;
        // Holds everything the request can ever hear, so a slow client never stops the engine.
        let (progress, receiver) = mpsc::channel(output_tokens.max(1) as usize + 1);
        let reply = Reply {
            progress,
            prompt_tokens,
            output_tokens,
            arrived_us: now_us,
            admitted_us: None,
            first_token_us: None,
            last_token_us: now_us,
        };
        state.replies.insert(id, reply);
        self.wake.notify_one();
        Ok(Ticket { id, pump: Arc::clone(self), receiver })
    }

    fn abort(&self, id: RequestId) {
        let state = &mut *self.lock();
        if state.replies.remove(&id).is_some() {
            state.timeline.abort(id);
            state.observe_gauges();
        }
    }

    pub(crate) fn reset_prefix_cache(&self) {
        self.lock().timeline.reset_prefix_cache();
    }

    pub(crate) fn gauges(&self) -> Gauges {
        self.lock().gauges
    }

    pub(crate) fn totals(&self) -> Totals {
        self.lock().timeline.model().totals()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.lock().refused
    }

    pub(crate) fn histograms(&self) -> Histograms {
        self.lock().histograms.clone()
    }
}

impl State {
    fn advance(&mut self, now_us: u64) {
        let mut events = std::mem::take(&mut self.scratch);
        self.timeline.advance_to(now_us, &mut events);
        if let Some(publisher) = &self.publisher {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            publisher.publish(&self.timeline.take_block_changes(), since.as_secs_f64());
        }
        if !events.is_empty() {
            self.observe_gauges();
        }
        for timed in events.drain(..) {
            self.deliver(timed);
        }
        self.scratch = events;
    }

    fn observe_gauges(&mut self) {
        let model = self.timeline.model();
        self.gauges =
            Gauges { running: model.running(), waiting: model.waiting(), kv_usage_ratio: model.kv_usage_ratio() };
    }

    fn deliver(&mut self, Timed { at_us, event }: Timed) {
        let (id, progress) = match event {
            Event::Admitted { id, cached_tokens } => (id, Progress::Admitted { cached_tokens }),
            Event::Token { id, .. } => (id, Progress::Token),
            Event::Finished { id } => {
                if let Some(reply) = self.replies.remove(&id) {
                    self.histograms.finished(&reply.timing());
                }
                return;
            }
            Event::Preempted { .. } => return,
        };
        let Some(reply) = self.replies.get_mut(&id) else { return };
        let progress = match progress {
            Progress::Admitted { .. } if reply.admitted_us.is_some() => return,
            Progress::Admitted { .. } => {
                reply.admitted_us = Some(at_us);
                progress
            }
            Progress::Token | Progress::LastToken => {
                let gap_us = at_us - reply.last_token_us;
                if reply.first_token_us.is_none() {
                    reply.first_token_us = Some(at_us);
                    self.histograms.first_token(gap_us);
                } else {
                    self.histograms.next_token(gap_us);
                }
                reply.last_token_us = at_us;
                reply.output_tokens -= 1;
                if reply.output_tokens == 0 { Progress::LastToken } else { Progress::Token }
            }
        };
        // Fails only when the ticket is being dropped.
        let _ = reply.progress.try_send(progress);
    }
}

/// When the stations of a finished request were, for the histograms; virtual microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) prompt_tokens: u32,
    pub(crate) arrived_us: u64,
    pub(crate) admitted_us: u64,
    pub(crate) first_token_us: u64,
    pub(crate) last_token_us: u64,
}

impl Reply {
    fn timing(&self) -> Timing {
        let admitted_us = self.admitted_us.unwrap_or(self.arrived_us);
        Timing {
            prompt_tokens: self.prompt_tokens,
            arrived_us: self.arrived_us,
            admitted_us,
            first_token_us: self.first_token_us.unwrap_or(admitted_us),
            last_token_us: self.last_token_us,
        }
    }
}

/// A request in the engine.
pub(crate) struct Ticket {
    id: RequestId,
    pump: Arc<Pump>,
    receiver: mpsc::Receiver<Progress>,
}

impl Ticket {
    /// The next news; `None` after the last token.
    pub(crate) async fn progress(&mut self) -> Option<Progress> {
        self.receiver.recv().await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.pump.abort(self.id);
    }
}
