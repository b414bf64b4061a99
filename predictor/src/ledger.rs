//! What this balancer knows by itself: the requests it sent and which of them still wait for their first token.
//!
//! One [`Ledger`] per endpoint holds sums; the [`Book`] holds the ledgers and every open request. A request is opened at
//! the decision, leaves the pending queue at its first token and is closed at its end, abort or error, each in O(1) and
//! each harmless when repeated or unknown. Sums are integers: when all requests are closed they are exactly zero.
//!
//! First tokens arrive out of order, so the queue is a list threaded through the open requests and a request leaves it
//! from any place. Where the first token cannot be seen (an answer sent whole) it is presumed: when a request behind it
//! in the queue has its own, or at a time given at the opening, whichever is first.

use ahash::RandomState;
use std::collections::HashMap;

/// Most tokens a prompt is counted with. Together with [`REQUESTS_MAX`] it keeps every sum inside 64 bits.
pub const PROMPT_TOKENS_MAX: u32 = 1 << 22;
/// Most open requests a book can be asked to hold.
pub const REQUESTS_MAX: u32 = 1 << 18;
const NONE: u32 = u32::MAX;

/// The prefill a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    prompt_tokens: u32,
    cached_tokens: u32,
}

impl Work {
    /// Both numbers brought into range; at least one token is always computed.
    #[must_use]
    pub fn new(prompt_tokens: u32, cached_tokens: u32) -> Work {
        let prompt_tokens = prompt_tokens.clamp(1, PROMPT_TOKENS_MAX);
        Work { prompt_tokens, cached_tokens: cached_tokens.min(prompt_tokens - 1) }
    }

    /// Tokens in the prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Of these, tokens expected in the endpoint's cache.
    #[must_use]
    pub fn cached_tokens(&self) -> u32 {
        self.cached_tokens
    }

    /// Tokens to compute.
    #[must_use]
    pub fn new_tokens(&self) -> u32 {
        self.prompt_tokens - self.cached_tokens
    }

    /// Twice the pairs of tokens attention must look at: `new * (2 * cached + new)`. Twice, to stay an integer.
    #[must_use]
    pub fn attention_x2(&self) -> u64 {
        let new = u64::from(self.new_tokens());
        new * (2 * u64::from(self.cached_tokens) + new)
    }
}

/// Whether the first token of an answer can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstToken {
    /// The answer streams.
    Seen,
    /// The answer comes whole; its first token is presumed at this time at the latest.
    PresumedAt {
        /// Monotonic microseconds.
        now_us: u64,
    },
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Sent, no first token yet.
    Pending,
    /// First token seen or presumed.
    Decoding {
        /// When.
        since_us: u64,
    },
}

/// Sums over the open requests of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Requests open.
    pub in_flight: u32,
    /// Of these, without a first token.
    pub pending: u32,
    /// Of these, with one.
    pub decoding: u32,
    /// Uncached prompt tokens of the pending.
    pub pending_new_tokens: u64,
    /// Twice the attention pairs of the pending, see [`Work::attention_x2`].
    pub pending_attention_x2: u64,
    /// Prompt tokens of the decoding.
    pub decoding_tokens: u64,
    /// Prompt tokens of all, a measure of the KV cache in use by own requests.
    pub in_flight_tokens: u64,
}

/// One endpoint's side of the book.
#[derive(Clone, Copy, Debug)]
pub struct Ledger {
    sums: Sums,
    /// Work of the first pending, kept here so that a prediction touches no request.
    first_work: Option<Work>,
    first_decided_us: u64,
    first: u32,
    last: u32,
    last_progress_us: u64,
}

impl Ledger {
    const EMPTY: Ledger = Ledger {
        sums: Sums {
            in_flight: 0,
            pending: 0,
            decoding: 0,
            pending_new_tokens: 0,
            pending_attention_x2: 0,
            decoding_tokens: 0,
            in_flight_tokens: 0,
        },
        first_work: None,
        first_decided_us: 0,
        first: NONE,
        last: NONE,
        last_progress_us: 0,
    };

    /// The sums.
    #[must_use]
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// The work of the request at the head of the pending queue.
    #[must_use]
    pub fn first_work(&self) -> Option<Work> {
        self.first_work
    }

    /// When the endpoint was chosen for that request; meaningless while none is pending.
    #[must_use]
    pub fn first_decided_us(&self) -> u64 {
        self.first_decided_us
    }

    /// When the endpoint last finished a prefill of ours, or began one on an empty queue.
    #[must_use]
    pub fn last_progress_us(&self) -> u64 {
        self.last_progress_us
    }
}

/// An open request. `T` is what the owner of the book wants to find again at the first token and the end.
#[derive(Clone, Debug)]
pub struct Open<T> {
    /// Request id, unique over the process.
    pub id: u64,
    /// Endpoint slot.
    pub endpoint: u32,
    /// Its prefill.
    pub work: Work,
    /// When the endpoint was chosen.
    pub decided_us: u64,
    /// Where it is.
    pub phase: Phase,
    /// The owner's.
    pub note: T,
    first_token: FirstToken,
    ahead: u32,
    behind: u32,
}

/// What became of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Counted.
    Counted,
    /// This request is open already; nothing changed.
    Duplicate,
    /// The endpoint slot is out of range; nothing changed.
    UnknownEndpoint,
    /// The book is full; nothing changed. The request goes uncounted.
    Full,
}

/// Every open request and the ledger of each endpoint.
#[derive(Debug)]
pub struct Book<T> {
    open: Vec<Option<Open<T>>>,
    free: Vec<u32>,
    by_id: HashMap<u64, u32, RandomState>,
    requests_max: usize,
    ledgers: Vec<Ledger>,
}

impl<T> Book<T> {
    /// An empty book for `endpoints_max` slots and `requests_max` open requests (at most [`REQUESTS_MAX`]).
    #[must_use]
    pub fn new(endpoints_max: u32, requests_max: u32, seed: u64) -> Book<T> {
        Book {
            open: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::with_hasher(RandomState::with_seeds(
                seed,
                !seed,
                seed.rotate_left(17),
                seed.rotate_left(41),
            )),
            requests_max: requests_max.clamp(1, REQUESTS_MAX) as usize,
            ledgers: vec![Ledger::EMPTY; endpoints_max as usize],
        }
    }

    /// The ledger of an endpoint slot.
    #[must_use]
    pub fn ledger(&self, endpoint: u32) -> Option<&Ledger> {
        self.ledgers.get(endpoint as usize)
    }

    /// Requests open over all endpoints.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether no request is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The open request with this id.
    #[must_use]
    pub fn request(&self, id: u64) -> Option<&Open<T>> {
        self.open.get(*self.by_id.get(&id)? as usize)?.as_ref()
    }

    /// The request at the head of the pending queue of an endpoint.
    #[must_use]
    pub fn first_pending(&self, endpoint: u32) -> Option<&Open<T>> {
        self.at(self.ledgers.get(endpoint as usize)?.first)
    }

    /// Opens a request.
    pub fn open(
        &mut self,
        now_us: u64,
        id: u64,
        endpoint: u32,
        work: Work,
        first_token: FirstToken,
        note: T,
    ) -> Opening {
        if self.by_id.contains_key(&id) {
            return Opening::Duplicate;
        }
        if self.by_id.len() >= self.requests_max {
            return Opening::Full;
        }
        let Some(ledger) = self.ledgers.get_mut(endpoint as usize) else {
            return Opening::UnknownEndpoint;
        };
        if ledger.sums.pending == 0 {
            ledger.last_progress_us = ledger.last_progress_us.max(now_us);
        }
        ledger.sums.in_flight += 1;
        ledger.sums.in_flight_tokens += u64::from(work.prompt_tokens);
        let open = Open {
            id,
            endpoint,
            work,
            decided_us: now_us,
            phase: Phase::Pending,
            note,
            first_token,
            ahead: NONE,
            behind: NONE,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.open[at as usize] = Some(open);
                at
            }
            None => {
                self.open.push(Some(open));
                self.open.len() as u32 - 1
            }
        };
        self.by_id.insert(id, at);
        self.queue(at, endpoint, work, now_us);
        Opening::Counted
    }

    /// The first token of a request: it leaves the queue, and so do the unseen requests at the head of the queue that
    /// were sent before it. Gives the request when this was news.
    pub fn first_token(&mut self, now_us: u64, id: u64, endpoint: u32) -> Option<&Open<T>> {
        let at = *self.by_id.get(&id)?;
        let open = self.at(at)?;
        if open.endpoint != endpoint || open.phase != Phase::Pending {
            return None;
        }
        let decided_us = open.decided_us;
        while let Some((head, before)) = self.unseen_head(endpoint) {
            if head == at || before.decided_us > decided_us {
                break;
            }
            self.decode(now_us, head);
        }
        self.decode(now_us, at);
        self.at(at)
    }

    /// Moves unseen requests at the head of the queue whose presumed time has come. Gives how many moved.
    pub fn presume(&mut self, now_us: u64, endpoint: u32) -> u32 {
        let mut moved = 0;
        while let Some((head, open)) = self.unseen_head(endpoint) {
            match open.first_token {
                FirstToken::PresumedAt { now_us: due_us } if due_us <= now_us => {
                    self.decode(now_us, head);
                }
                FirstToken::PresumedAt { .. } | FirstToken::Seen => break,
            }
            moved += 1;
        }
        moved
    }

    /// Closes a request and gives it back. Nothing happens when it is unknown or open at another endpoint.
    pub fn close(&mut self, now_us: u64, id: u64, endpoint: u32) -> Option<Open<T>> {
        let at = *self.by_id.get(&id)?;
        if self.at(at)?.endpoint != endpoint {
            return None;
        }
        self.remove(now_us, at)
    }

    /// Closes every request of an endpoint. Walks all open requests.
    pub fn close_all(&mut self, now_us: u64, endpoint: u32) {
        for at in 0..self.open.len() as u32 {
            if self.at(at).is_some_and(|open| open.endpoint == endpoint) {
                self.remove(now_us, at);
            }
        }
    }

    fn at(&self, at: u32) -> Option<&Open<T>> {
        self.open.get(at as usize)?.as_ref()
    }

    fn unseen_head(&self, endpoint: u32) -> Option<(u32, &Open<T>)> {
        let head = self.ledgers.get(endpoint as usize)?.first;
        self.at(head).filter(|open| open.first_token != FirstToken::Seen).map(|open| (head, open))
    }

    fn remove(&mut self, now_us: u64, at: u32) -> Option<Open<T>> {
        let open = self.at(at)?;
        let (endpoint, work, phase) = (open.endpoint as usize, open.work, open.phase);
        match phase {
            Phase::Pending => {
                let headed = self.ledgers[endpoint].first == at;
                self.unqueue(at);
                if headed {
                    self.ledgers[endpoint].last_progress_us = self.ledgers[endpoint].last_progress_us.max(now_us);
                }
            }
            Phase::Decoding { .. } => {
                self.ledgers[endpoint].sums.decoding -= 1;
                self.ledgers[endpoint].sums.decoding_tokens -= u64::from(work.prompt_tokens);
            }
        }
        self.ledgers[endpoint].sums.in_flight -= 1;
        self.ledgers[endpoint].sums.in_flight_tokens -= u64::from(work.prompt_tokens);
        let open = self.open[at as usize].take()?;
        self.by_id.remove(&open.id);
        self.free.push(at);
        Some(open)
    }

    fn decode(&mut self, now_us: u64, at: u32) {
        self.unqueue(at);
        let Some(open) = self.open[at as usize].as_mut() else {
            return;
        };
        open.phase = Phase::Decoding { since_us: now_us };
        let ledger = &mut self.ledgers[open.endpoint as usize];
        ledger.sums.decoding += 1;
        ledger.sums.decoding_tokens += u64::from(open.work.prompt_tokens);
        ledger.last_progress_us = ledger.last_progress_us.max(now_us);
    }

    fn queue(&mut self, at: u32, endpoint: u32, work: Work, decided_us: u64) {
        let ledger = &mut self.ledgers[endpoint as usize];
        ledger.sums.pending += 1;
        ledger.sums.pending_new_tokens += u64::from(work.new_tokens());
        ledger.sums.pending_attention_x2 += work.attention_x2();
        let ahead = std::mem::replace(&mut ledger.last, at);
        if ahead == NONE {
            ledger.first = at;
            ledger.first_work = Some(work);
            ledger.first_decided_us = decided_us;
        }
        self.set_behind(ahead, at);
        self.set_ahead(at, ahead);
    }

    fn unqueue(&mut self, at: u32) {
        let Some(open) = self.at(at) else { return };
        let (ahead, behind, endpoint, work) = (open.ahead, open.behind, open.endpoint, open.work);
        let next = self.at(behind).map(|open| (open.work, open.decided_us));
        let ledger = &mut self.ledgers[endpoint as usize];
        ledger.sums.pending -= 1;
        ledger.sums.pending_new_tokens -= u64::from(work.new_tokens());
        ledger.sums.pending_attention_x2 -= work.attention_x2();
        if ahead == NONE {
            ledger.first = behind;
            ledger.first_work = next.map(|(work, _)| work);
            ledger.first_decided_us = next.map_or(0, |(_, decided_us)| decided_us);
        }
        if behind == NONE {
            ledger.last = ahead;
        }
        self.set_behind(ahead, behind);
        self.set_ahead(behind, ahead);
    }

    fn set_behind(&mut self, at: u32, behind: u32) {
        if let Some(Some(open)) = self.open.get_mut(at as usize) {
            open.behind = behind;
        }
    }

    fn set_ahead(&mut self, at: u32, ahead: u32) {
        if let Some(Some(open)) = self.open.get_mut(at as usize) {
            open.ahead = ahead;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAMED: FirstToken = FirstToken::Seen;

    fn work(prompt: u32, cached: u32) -> Work {
        Work::new(prompt, cached)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Open(u64, u32, u32, u32, bool),
        First(u64, u32),
        Close(u64, u32),
        Presume(u32),
        CloseAll(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u64..24, 0u32..4, any::<u32>(), any::<u32>(), any::<bool>())
                .prop_map(|(id, endpoint, prompt, cached, whole)| Step::Open(id, endpoint, prompt, cached, whole)),
            4 => (0u64..24, 0u32..4).prop_map(|(id, endpoint)| Step::First(id, endpoint)),
            4 => (0u64..24, 0u32..4).prop_map(|(id, endpoint)| Step::Close(id, endpoint)),
            1 => (0u32..4).prop_map(Step::Presume),
            1 => (0u32..4).prop_map(Step::CloseAll),
        ]
    }

    /// The sums, added up from every open request.
    fn slow_sums(book: &Book<()>, endpoint: u32) -> Sums {
        let mut sums = Sums::default();
        for open in book.open.iter().flatten().filter(|open| open.endpoint == endpoint) {
            sums.in_flight += 1;
            sums.in_flight_tokens += u64::from(open.work.prompt_tokens());
            match open.phase {
                Phase::Pending => {
                    sums.pending += 1;
                    sums.pending_new_tokens += u64::from(open.work.new_tokens());
                    sums.pending_attention_x2 += open.work.attention_x2();
                }
                Phase::Decoding { .. } => {
                    sums.decoding += 1;
                    sums.decoding_tokens += u64::from(open.work.prompt_tokens());
                }
            }
        }
        sums
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn sums_are_those_of_the_open_requests_and_return_to_zero(steps in prop::collection::vec(step(), 1..150)) {
            let mut book = Book::new(3, 16, 1);
            for (now_us, step) in (1_u64..).zip(steps) {
                match step {
                    Step::Open(id, endpoint, prompt, cached, whole) => {
                        let first_token = if whole { FirstToken::PresumedAt { now_us: now_us + 5 } } else { STREAMED };
                        let known = book.request(id).is_some();
                        let opening = book.open(now_us, id, endpoint, work(prompt, cached), first_token, ());
                        prop_assert_eq!(known, opening == Opening::Duplicate);
                    }
                    Step::First(id, endpoint) => {
                        let news = book.request(id).is_some_and(|open| open.endpoint == endpoint && open.phase == Phase::Pending);
                        prop_assert_eq!(book.first_token(now_us, id, endpoint).is_some(), news);
                    }
                    Step::Close(id, endpoint) => {
                        let known = book.request(id).is_some_and(|open| open.endpoint == endpoint);
                        prop_assert_eq!(book.close(now_us, id, endpoint).is_some(), known);
                    }
                    Step::Presume(endpoint) => { book.presume(now_us, endpoint); }
                    Step::CloseAll(endpoint) => book.close_all(now_us, endpoint),
                }
                prop_assert!(book.len() <= 16 && book.open.len() <= 16);
                for endpoint in 0..3 {
                    let ledger = book.ledger(endpoint).expect("in range");
                    prop_assert_eq!(*ledger.sums(), slow_sums(&book, endpoint));
                    prop_assert_eq!(ledger.first_work(), book.first_pending(endpoint).map(|open| open.work));
                }
            }
            (0..3).for_each(|endpoint| book.close_all(1_000, endpoint));
            prop_assert!(book.is_empty());
            for endpoint in 0..3 {
                let ledger = book.ledger(endpoint).expect("in range");
                prop_assert_eq!((*ledger.sums(), ledger.first, ledger.last), (Sums::default(), NONE, NONE));
            }
        }
    }

    #[test]
    fn first_tokens_out_of_order_keep_the_queue_in_order() {
        let mut book = Book::new(1, 16, 1);
        for id in 0..4 {
            book.open(id, id, 0, work(100, 0), STREAMED, ());
        }
        book.first_token(10, 2, 0);
        assert_eq!(book.first_pending(0).map(|open| open.id), Some(0));
        book.first_token(11, 0, 0);
        assert_eq!(book.first_pending(0).map(|open| open.id), Some(1));
        book.close(12, 1, 0);
        assert_eq!(book.first_pending(0).map(|open| open.id), Some(3));
        assert_eq!(book.ledger(0).map(Ledger::last_progress_us), Some(12));
    }

    #[test]
    fn an_unseen_first_token_is_presumed_when_a_later_request_has_its_own() {
        let mut book = Book::new(1, 16, 1);
        book.open(0, 0, 0, work(100, 0), FirstToken::PresumedAt { now_us: 1_000_000 }, ());
        book.open(1, 1, 0, work(100, 0), STREAMED, ());
        book.first_token(50, 1, 0);
        assert_eq!(book.ledger(0).map(|ledger| (ledger.sums().pending, ledger.sums().decoding)), Some((0, 2)));
    }

    #[test]
    fn an_unseen_first_token_is_presumed_when_its_time_has_come() {
        let mut book = Book::new(1, 16, 1);
        book.open(0, 0, 0, work(100, 0), FirstToken::PresumedAt { now_us: 500 }, ());
        assert_eq!((book.presume(499, 0), book.presume(500, 0), book.presume(501, 0)), (0, 1, 0));
    }

    #[test]
    fn a_full_book_refuses_and_a_close_makes_room() {
        let mut book = Book::new(1, 2, 1);
        let open = |book: &mut Book<()>, id| book.open(0, id, 0, work(1, 0), STREAMED, ());
        assert_eq!([0, 1, 2].map(|id| open(&mut book, id)), [Opening::Counted, Opening::Counted, Opening::Full]);
        book.close(1, 0, 0);
        assert_eq!(open(&mut book, 2), Opening::Counted);
    }

    #[test]
    fn work_is_never_negative_and_at_least_one_token_is_computed() {
        assert_eq!(work(0, 9).new_tokens(), 1);
        assert_eq!(work(10, 99).new_tokens(), 1);
        assert_eq!(work(u32::MAX, 0).prompt_tokens(), PROMPT_TOKENS_MAX);
        assert_eq!(work(10, 4).attention_x2(), 6 * (8 + 6));
    }
}
