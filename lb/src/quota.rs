//! What this process may ask of one provider, exact over all its threads: requests in flight, requests and tokens of a minute.
//!
//! The one value that data threads share and write. A provider's own limit is one number for all of us, so a share for each
//! thread would either waste it or break it ([ADR 0013](../../docs/adr/0013-hosted-providers.md)). It costs nothing where no
//! limit is written down; else a count, and for limits of a minute a lock that is held for some additions.
//!
//! A minute is the last sixty whole seconds and the one that runs: no sixty seconds, wherever they begin, hold more than the
//! limit. Tokens are reserved when a request is to be sent and corrected when it is over; what an answer costs beyond its
//! reservation may pass the limit, and the next requests wait for it. A request that was never sent does not count.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use config::snapshot::RateLimits;

/// Whole seconds that count, and the one that runs.
const SECONDS: usize = 61;

const SECOND_US: u64 = 1_000_000;

/// The limits in force for one provider, and what is used of them.
#[derive(Debug, Clone)]
pub(crate) struct Metered {
    /// What is written down.
    pub(crate) limits: RateLimits,
    /// What is used; outlives changes of the limits.
    pub(crate) quota: Arc<Quota>,
}

/// What is used of one provider's limits.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    in_flight: AtomicU32,
    /// A [`KnownFull`].
    known_full: AtomicU64,
    minute: Mutex<Minute>,
}

/// Until which second no request has room in the minute, as far as is known, under which limit. The limit stands with it
/// because threads learn of a new one at different times: what one of them finds full under the old one says nothing of it.
#[derive(Debug, Clone, Copy, Default)]
struct KnownFull {
    until_s: u32,
    requests_max: u32,
}

/// What was begun in each of the last seconds.
#[derive(Debug)]
struct Minute {
    seconds: [Second; SECONDS],
}

#[derive(Debug, Clone, Copy, Default)]
struct Second {
    /// Which one, on the process clock; a slot of a second long past is empty.
    number: u64,
    requests: u32,
    tokens: u64,
}

impl Default for Minute {
    fn default() -> Self {
        Self { seconds: [Second::default(); SECONDS] }
    }
}

/// There is no room for a request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    /// When there is room at the earliest, on the process clock. Nobody can say when a request in flight ends: now, where only
    /// those are in the way.
    pub(crate) until_us: u64,
}

/// A request that was let through: in flight until it is dropped. Dropped before it is settled, it was never sent: then
/// nothing of it stays counted.
#[derive(Debug)]
pub(crate) struct Permit {
    quota: Arc<Quota>,
    /// Where it counts in the minute; `None` where nothing of a minute is limited.
    reserved: Option<Reserved>,
    in_flight: Counted,
    settled: Settled,
}

/// A request's part in the minute.
#[derive(Debug, Clone, Copy)]
struct Reserved {
    /// The second it is counted in.
    second: u64,
    /// Tokens that it holds there; `None` where tokens are not limited.
    tokens: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    Yes,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settled {
    Yes,
    No,
}

impl Metered {
    /// `None` where nothing is limited.
    pub(crate) fn new(limits: RateLimits) -> Option<Self> {
        (limits != RateLimits::default()).then(|| Self { limits, quota: Arc::default() })
    }

    /// Until when it is known that no request has room; `None` where one may have. Costs two reads of memory that is seldom
    /// written.
    pub(crate) fn known_full(&self, now_us: u64) -> Option<Full> {
        let Self { limits, quota } = self;
        let known = quota.known_full();
        if limits.requests_per_minute.is_some_and(|max| known.holds(now_us, max)) {
            return Some(Full { until_us: u64::from(known.until_s) * SECOND_US });
        }
        let at_once = limits.in_flight_max.is_some_and(|max| quota.in_flight.load(Ordering::Relaxed) >= max);
        at_once.then_some(Full { until_us: now_us })
    }

    /// Requests and tokens that count in the minute now; each counted only where it is limited.
    pub(crate) fn used(&self, now_us: u64) -> (u32, u64) {
        let minute = self.quota.minute.lock().unwrap_or_else(PoisonError::into_inner);
        let used = minute.used(now_us / SECOND_US);
        (used.requests, used.tokens)
    }

    /// Lets a request of about so many tokens through, or not. More tokens than the limit count as the limit: else such a
    /// request could never be sent.
    ///
    /// # Errors
    /// When a limit would be passed.
    pub(crate) fn admit(&self, now_us: u64, tokens: u64) -> Result<Permit, Full> {
        let Self { limits, quota } = self;
        let mut permit = Permit { quota: quota.clone(), reserved: None, in_flight: Counted::No, settled: Settled::No };
        if let Some(max) = limits.in_flight_max {
            let counted =
                quota.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < max).then_some(n + 1));
            counted.map_err(|_| Full { until_us: now_us })?;
            permit.in_flight = Counted::Yes;
        }
        if limits.requests_per_minute.is_some() || limits.tokens_per_minute.is_some() {
            let second = now_us / SECOND_US;
            let tokens = limits.tokens_per_minute.map_or(0, |max| tokens.min(max));
            let mut minute = quota.minute.lock().unwrap_or_else(PoisonError::into_inner);
            let used = minute.used(second);
            if let Some(max) = limits.requests_per_minute
                && used.requests >= max
            {
                let until = minute.first_second(second, |used| used.requests < max);
                quota.tell_full(KnownFull { until_s: u32::try_from(until).unwrap_or(u32::MAX), requests_max: max });
                return Err(Full { until_us: until * SECOND_US });
            }
            let fits = |used: &Second, max: u64| used.tokens.saturating_add(tokens) <= max;
            if let Some(max) = limits.tokens_per_minute.filter(|max| !fits(&used, *max)) {
                return Err(Full { until_us: minute.first_second(second, |used| fits(used, max)) * SECOND_US });
            }
            let slot = minute.slot(second);
            slot.requests += 1;
            slot.tokens = slot.tokens.saturating_add(tokens);
            permit.reserved = Some(Reserved { second, tokens: limits.tokens_per_minute.map(|_| tokens) });
        }
        Ok(permit)
    }
}

impl Quota {
    fn known_full(&self) -> KnownFull {
        KnownFull::unpack(self.known_full.load(Ordering::Relaxed))
    }

    fn tell_full(&self, known: KnownFull) {
        self.known_full.store(known.pack(), Ordering::Relaxed);
    }
}

impl KnownFull {
    fn pack(self) -> u64 {
        u64::from(self.until_s) << 32 | u64::from(self.requests_max)
    }

    fn unpack(packed: u64) -> Self {
        Self { until_s: (packed >> 32) as u32, requests_max: packed as u32 }
    }

    /// Whether it tells a limit of so many requests full. Under a lower one the minute is full too, but for longer.
    fn holds(self, now_us: u64, requests_max: u32) -> bool {
        requests_max == self.requests_max && u64::from(self.until_s) * SECOND_US > now_us
    }
}

impl Minute {
    /// Requests and tokens of the minute that ends with `second`.
    fn used(&self, second: u64) -> Second {
        let counted = self.seconds.iter().filter(|slot| slot.number + SECONDS as u64 > second);
        counted.fold(Second::default(), |sum, slot| Second {
            number: second,
            requests: sum.requests.saturating_add(slot.requests),
            tokens: sum.tokens.saturating_add(slot.tokens),
        })
    }

    /// The first second after `second` in which what counts of the past has room.
    fn first_second(&self, second: u64, has_room: impl Fn(&Second) -> bool) -> u64 {
        let later = (second + 1)..=(second + SECONDS as u64);
        later.clone().find(|later| has_room(&self.used(*later))).unwrap_or(*later.end())
    }

    fn slot(&mut self, second: u64) -> &mut Second {
        let slot = &mut self.seconds[(second % SECONDS as u64) as usize];
        // A thread that is late by a second finds its slot as it was.
        if slot.number < second {
            *slot = Second { number: second, ..Second::default() };
        }
        slot
    }
}

impl Permit {
    /// It was sent, and came to so many tokens in the end.
    pub(crate) fn settle(&mut self, tokens: u64) {
        self.settled = Settled::Yes;
        self.correct(|slot, reserved| {
            if let Some(reserved) = &mut reserved.tokens {
                slot.tokens = slot.tokens.saturating_sub(*reserved).saturating_add(tokens);
                *reserved = tokens;
            }
        });
    }

    /// It was never sent.
    fn withdraw(&mut self) {
        self.correct(|slot, reserved| {
            slot.requests = slot.requests.saturating_sub(1);
            slot.tokens = slot.tokens.saturating_sub(reserved.tokens.take().unwrap_or(0));
        });
        if self.reserved.is_some() {
            // Whoever was told since then that the minute is full may find room.
            self.quota.tell_full(KnownFull::default());
        }
    }

    /// Changes what its second counts, as long as that counts at all.
    fn correct(&mut self, change: impl FnOnce(&mut Second, &mut Reserved)) {
        let Some(reserved) = &mut self.reserved else { return };
        let mut minute = self.quota.minute.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut minute.seconds[(reserved.second % SECONDS as u64) as usize];
        if slot.number == reserved.second {
            change(slot, reserved);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match self.settled {
            Settled::Yes => {}
            Settled::No => self.withdraw(),
        }
        match self.in_flight {
            Counted::Yes => _ = self.quota.in_flight.fetch_sub(1, Ordering::Relaxed),
            Counted::No => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicUsize;

    const S: u64 = 1_000_000;

    fn is_full(metered: &Metered, now_us: u64) -> bool {
        metered.known_full(now_us).is_some()
    }

    /// A request that is sent and comes to what was reserved.
    fn send(metered: &Metered, now_us: u64, tokens: u64) -> Result<(), Full> {
        metered.admit(now_us, tokens).map(|mut permit| permit.settle(tokens))
    }

    fn limits(requests: Option<u32>, tokens: Option<u64>, in_flight: Option<u32>) -> Metered {
        let limits = RateLimits { requests_per_minute: requests, tokens_per_minute: tokens, in_flight_max: in_flight };
        Metered::new(limits).unwrap()
    }

    #[test]
    fn without_limits_nothing_is_counted() {
        assert!(Metered::new(RateLimits::default()).is_none());
    }

    #[test]
    fn a_request_is_in_flight_until_its_permit_is_dropped() {
        let metered = limits(None, None, Some(2));
        let first = metered.admit(0, 0).unwrap();
        let _second = metered.admit(0, 0).unwrap();
        assert!(is_full(&metered, 0) && metered.admit(0, 0).is_err());
        drop(first);
        assert!(!is_full(&metered, 0) && metered.admit(0, 0).is_ok());
    }

    #[test]
    fn a_full_minute_has_room_again_when_its_first_second_has_passed() {
        let metered = limits(Some(2), None, None);
        assert!(send(&metered, 10 * S, 0).is_ok() && send(&metered, 12 * S, 0).is_ok());
        assert!(!is_full(&metered, 13 * S), "nobody has asked yet");
        assert!(send(&metered, 13 * S, 0).is_err() && is_full(&metered, 13 * S));
        assert!(is_full(&metered, 71 * S - 1) && send(&metered, 71 * S - 1, 0).is_err());
        assert!(!is_full(&metered, 71 * S) && send(&metered, 71 * S, 0).is_ok());
        assert!(send(&metered, 72 * S, 0).is_err());
    }

    #[test]
    fn who_finds_no_room_is_told_when_there_is_some() {
        let metered = limits(Some(2), Some(100), Some(9));
        assert!(send(&metered, 10 * S, 30).is_ok());
        assert_eq!(send(&metered, 12 * S, 80), Err(Full { until_us: 71 * S }), "tokens of the first second pass first");
        assert!(send(&metered, 13 * S, 60).is_ok());
        assert_eq!(send(&metered, 20 * S, 1), Err(Full { until_us: 71 * S }));
        assert_eq!(metered.known_full(21 * S), Some(Full { until_us: 71 * S }));
        assert_eq!(metered.known_full(71 * S), None);
        assert_eq!(send(&metered, 71 * S, 70), Err(Full { until_us: 74 * S }), "and of the second one");
        let metered = limits(None, None, Some(1));
        let _held = metered.admit(5 * S, 0).unwrap();
        let (told, known) = (metered.admit(6 * S, 0).err(), metered.known_full(6 * S));
        assert_eq!((told, known), (Some(Full { until_us: 6 * S }), Some(Full { until_us: 6 * S })), "nobody can say");
    }

    #[test]
    fn tokens_are_reserved_and_settled() {
        let metered = limits(None, Some(100), None);
        let mut first = metered.admit(5 * S, 80).unwrap();
        assert!(send(&metered, 5 * S, 21).is_err() && !is_full(&metered, 5 * S), "a smaller one may have room");
        first.settle(10);
        assert!(send(&metered, 6 * S, 90).is_ok());
        first.settle(30);
        assert!(send(&metered, 7 * S, 1).is_err(), "what is settled twice counts once, and by the last word");
        assert!(send(&metered, 66 * S, 5).is_ok());
    }

    #[test]
    fn a_request_that_was_never_sent_does_not_count() {
        let metered = limits(Some(1), Some(100), Some(1));
        let permit = metered.admit(5 * S, 100).unwrap();
        assert!(metered.admit(6 * S, 1).is_err());
        drop(permit);
        assert_eq!(metered.used(6 * S), (0, 0));
        let mut sent = metered.admit(6 * S, 100).unwrap();
        assert!(metered.admit(6 * S, 1).is_err());
        sent.settle(7);
        drop(sent);
        assert_eq!(metered.used(6 * S), (1, 7));
        // What a full minute was told for is void with it.
        let metered = limits(Some(1), None, None);
        let permit = metered.admit(5 * S, 0).unwrap();
        assert!(metered.admit(5 * S, 0).is_err() && is_full(&metered, 5 * S));
        drop(permit);
        assert!(!is_full(&metered, 5 * S) && send(&metered, 5 * S, 0).is_ok());
    }

    #[test]
    fn a_request_larger_than_the_limit_takes_all_of_it() {
        let metered = limits(None, Some(100), None);
        assert!(send(&metered, 0, 1_000).is_ok());
        assert!(send(&metered, 0, 1).is_err());
    }

    #[test]
    fn a_raised_limit_is_in_force_at_once() {
        let mut metered = limits(Some(1), None, None);
        assert!(send(&metered, 0, 0).is_ok() && send(&metered, 0, 0).is_err() && is_full(&metered, 0));
        let old = metered.clone();
        metered.limits.requests_per_minute = Some(2);
        assert!(send(&old, 0, 0).is_err() && is_full(&old, 0), "a thread that has not heard of it yet");
        assert!(!is_full(&metered, 0) && send(&metered, 0, 0).is_ok() && send(&metered, 0, 0).is_err());
        metered.limits.requests_per_minute = Some(1);
        let until = |metered: &Metered| metered.admit(0, 0).map(drop).expect_err("full").until_us;
        // Both that count must have left, and not only the first.
        assert_eq!((is_full(&metered, 0), until(&metered)), (false, 61 * S));
        assert!(is_full(&metered, 0));
        metered.limits.requests_per_minute = None;
        assert!(!is_full(&metered, 0));
    }

    #[test]
    fn threads_together_pass_no_limit() {
        let metered = limits(Some(100), Some(1_000), Some(7));
        let (let_through, in_flight, most) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        if let Ok(mut permit) = metered.admit(S, 10) {
                            let now = in_flight.fetch_add(1, Ordering::SeqCst) + 1;
                            most.fetch_max(now, Ordering::SeqCst);
                            let_through.fetch_add(1, Ordering::SeqCst);
                            in_flight.fetch_sub(1, Ordering::SeqCst);
                            permit.settle(10);
                        }
                    }
                });
            }
        });
        assert_eq!(let_through.load(Ordering::SeqCst), 100);
        assert!(most.load(Ordering::SeqCst) <= 7);
        assert_eq!(metered.quota.in_flight.load(Ordering::SeqCst), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_sixty_seconds_hold_more_than_the_limit(
            requests_max in 1_u32..6,
            gaps_us in proptest::collection::vec(0_u64..40 * S, 1..200),
        ) {
            let metered = limits(Some(requests_max), None, None);
            let (mut now_us, mut let_through) = (0, Vec::new());
            for gap_us in gaps_us {
                now_us += gap_us;
                let known_full = is_full(&metered, now_us);
                let admitted = send(&metered, now_us, 0).is_ok();
                prop_assert!(!(known_full && admitted), "what is known to be full is");
                if admitted {
                    let_through.push(now_us);
                }
                let inside = let_through.iter().filter(|at| now_us - **at < 60 * S).count();
                prop_assert!(inside <= requests_max as usize);
                // Nor is anybody refused for what happened more than 61 seconds ago.
                let counted = let_through.iter().filter(|at| now_us - **at < 61 * S).count();
                prop_assert!(admitted || counted >= requests_max as usize);
            }
        }
    }
}
