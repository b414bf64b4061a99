//! Which data thread takes a connection: the one that accepted it, or a lighter one.
//!
//! The kernel spreads connections over the listening sockets of an address by a hash, blindly: of 64 connections over 8
//! threads the fullest gets 1.5 times the mean. So the thread that accepts one compares itself with one other, drawn by
//! lot, and passes the socket on, before anything is read from it, when that one has clearly less to do (two choices:
//! 1.19). A socket is passed on once at most.
//!
//! Each thread shows its [`Load`] in a [`SharedLoad`], which it alone writes; the request path pays one relaxed store for
//! it. A thread that drains shuts its door first and stays until everything that was let in before has arrived.

use std::cell::Cell;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::mailbox::ShardHandle;

/// How much less another thread must have to do for a connection to be passed on. With 1, a thread with one request would
/// wake an idle one for nothing; with 3, 64 streams over 8 threads are off by a quarter.
const LIGHTER_BY: u32 = 2;

/// What a data thread has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Load {
    /// Requests being worked on, and connections that have yet to bring their first one.
    pub(crate) requests: u32,
    /// Client connections, idle ones included.
    pub(crate) connections: u32,
}

/// Where a connection is to be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// By the thread that accepted it.
    Here,
    /// By the other one.
    There,
}

/// Chooses between the thread that accepted a connection and another one; each takes `connections_max` at most.
///
/// Requests count first, connections where the other has no more requests.
pub(crate) fn place(here: Load, there: Load, connections_max: u32) -> Place {
    let fewer = |there: u32, here: u32| there.saturating_add(LIGHTER_BY) <= here;
    if there.connections >= connections_max {
        Place::Here
    } else if here.connections >= connections_max
        || fewer(there.requests, here.requests)
        || (there.requests <= here.requests && fewer(there.connections, here.connections))
    {
        Place::There
    } else {
        Place::Here
    }
}

/// Draws the other thread: any will do, but not always the same one (xorshift64).
#[derive(Debug)]
pub(crate) struct Lot {
    state: Cell<u64>,
}

impl Lot {
    /// Draws that depend on `seed` alone.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: Cell::new(seed | 1) }
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&self, bound: usize) -> usize {
        let mut state = self.state.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.state.set(state);
        usize::try_from(state >> 33).unwrap_or_default() % bound
    }
}

/// What a data thread weighs itself and others with.
#[derive(Debug)]
pub(crate) struct Scales {
    /// Where it shows what it has to do.
    pub(crate) shared: Arc<SharedLoad>,
    /// Its connections that have yet to bring their first request.
    first_requests: Cell<u32>,
    lot: Lot,
}

impl Scales {
    /// Shows in `shared`; draws others as `seed` says.
    pub(crate) fn new(shared: Arc<SharedLoad>, seed: u64) -> Self {
        Self { shared, first_requests: Cell::new(0), lot: Lot::new(seed) }
    }

    /// The one of `peers` that a connection accepted now is to go to; `None` when it stays. Each takes `connections_max`.
    pub(crate) fn lighter<'a>(&self, peers: &'a [ShardHandle], connections_max: usize) -> Option<&'a ShardHandle> {
        if peers.is_empty() {
            return None;
        }
        let other = &peers[self.lot.below(peers.len())];
        let connections_max = u32::try_from(connections_max).unwrap_or(u32::MAX);
        match place(self.shared.seen(), other.load.seen(), connections_max) {
            Place::Here => None,
            Place::There => Some(other),
        }
    }

    /// A connection has come, and will bring a request.
    pub(crate) fn first_request_awaited(&self) {
        self.first_requests.set(self.first_requests.get().saturating_add(1));
    }

    /// It has brought one, or has ended.
    pub(crate) fn first_request_no_more_awaited(&self) {
        self.first_requests.set(self.first_requests.get().saturating_sub(1));
    }

    /// Shows what there is to do from now on.
    pub(crate) fn show(&self, exchanges_open: u64, connections_open: u64) {
        let part = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let requests = part(exchanges_open).saturating_add(self.first_requests.get());
        self.shared.show(Load { requests, connections: part(connections_open) });
    }
}

/// A connection on its way from the thread that accepted it to another.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Which listener it came in by, by its place in the options.
    pub(crate) listener: usize,
    /// Nothing has been read from it.
    pub(crate) stream: TcpStream,
    /// Who is at its other end.
    pub(crate) peer: SocketAddr,
}

/// The load of one thread, for the others to see. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct SharedLoad {
    /// A [`Load`]: requests in the upper half, connections in the lower. Written by its thread alone.
    open: AtomicU64,
    /// Connections passed to this thread that it has not taken yet. Raised by those who pass one, lowered by this thread.
    arriving: AtomicU32,
    /// Nothing may be passed to this thread any more.
    shut: AtomicBool,
}

impl SharedLoad {
    /// Shows what the thread has to do from now on.
    fn show(&self, load: Load) {
        self.open.store(u64::from(load.requests) << 32 | u64::from(load.connections), Ordering::Relaxed);
    }

    /// What the thread has to do, with what is on its way there: each will bring a request.
    pub(crate) fn seen(&self) -> Load {
        let open = self.open.load(Ordering::Relaxed);
        let arriving = self.arriving.load(Ordering::Relaxed);
        let half = |half: u64| u32::try_from(half & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        Load { requests: half(open >> 32).saturating_add(arriving), connections: half(open).saturating_add(arriving) }
    }

    /// Announces a connection to the thread; false when its door is shut. What is announced must arrive or be recalled.
    ///
    /// Announcing writes `arriving`, then reads `shut`; the thread writes `shut`, then reads `arriving`. In the one order that
    /// sequential consistency gives all four, either the thread waits for the connection or the door is seen shut.
    pub(crate) fn announce(&self) -> bool {
        self.arriving.fetch_add(1, Ordering::SeqCst);
        let open = !self.shut.load(Ordering::SeqCst);
        if !open {
            self.arrived();
        }
        open
    }

    /// An announced connection is counted among the thread's own, or is not coming.
    pub(crate) fn arrived(&self) {
        self.arriving.fetch_sub(1, Ordering::SeqCst);
    }

    /// From now on nothing is passed to the thread.
    pub(crate) fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
    }

    /// Whether a connection is on its way to the thread.
    pub(crate) fn expects(&self) -> bool {
        self.arriving.load(Ordering::SeqCst) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::ToShard;
    use crate::sys::Waker;
    use proptest::prelude::*;

    const NO_LIMIT: u32 = u32::MAX;

    #[derive(Clone, Copy, PartialEq)]
    enum Spread {
        Blind,
        ByTwoChoices,
    }

    /// The fullest of 8 threads over the mean, after 64 connections that stay.
    fn fullest_over_mean(lot: &Lot, spread: Spread) -> f64 {
        const THREADS: usize = 8;
        const CONNECTIONS: u32 = 64;
        let mut loads = [Load::default(); THREADS];
        for _ in 0..CONNECTIONS {
            let accepting = lot.below(THREADS);
            let other = (accepting + 1 + lot.below(THREADS - 1)) % THREADS;
            let taking = match place(loads[accepting], loads[other], NO_LIMIT) {
                Place::There if spread == Spread::ByTwoChoices => other,
                Place::Here | Place::There => accepting,
            };
            loads[taking].requests += 1;
            loads[taking].connections += 1;
        }
        let fullest = loads.iter().map(|load| load.requests).max().unwrap();
        f64::from(fullest) / (f64::from(CONNECTIONS) / THREADS as f64)
    }

    #[test]
    fn sixty_four_streams_over_eight_threads_come_close_to_even() {
        let mean = |spread| {
            let lot = Lot::new(1);
            (0..2_000).map(|_| fullest_over_mean(&lot, spread)).sum::<f64>() / 2_000.0
        };
        let (blind, chosen) = (mean(Spread::Blind), mean(Spread::ByTwoChoices));
        assert!(blind > 1.45, "{blind}");
        assert!(chosen < 1.25, "{chosen}");
    }

    #[test]
    fn a_thread_with_one_request_does_not_wake_an_idle_one() {
        let load = |requests, connections| Load { requests, connections };
        assert_eq!(place(load(1, 1), load(0, 0), NO_LIMIT), Place::Here);
        assert_eq!(place(load(2, 2), load(0, 0), NO_LIMIT), Place::There);
    }

    #[test]
    fn connections_decide_between_equal_requests_and_never_for_more_of_them() {
        let load = |requests, connections| Load { requests, connections };
        assert_eq!(place(load(3, 9), load(3, 4), NO_LIMIT), Place::There);
        assert_eq!(place(load(3, 9), load(4, 4), NO_LIMIT), Place::Here);
        assert_eq!(place(load(9, 9), load(3, 90), NO_LIMIT), Place::There);
    }

    #[test]
    fn a_full_thread_passes_connections_on_and_gets_none() {
        let load = |requests, connections| Load { requests, connections };
        assert_eq!(place(load(0, 10), load(7, 9), 10), Place::There);
        assert_eq!(place(load(9, 9), load(0, 10), 10), Place::Here);
        assert_eq!(place(load(0, 10), load(0, 10), 10), Place::Here);
    }

    proptest! {
        #[test]
        fn what_was_passed_on_would_not_be_passed_back(here: (u16, u16), there: (u16, u16), max in 1_u32..70_000) {
            let load = |(requests, connections): (u16, u16)| Load { requests: requests.into(), connections: connections.into() };
            let (here, there) = (load(here), load(there));
            if here.connections < max && place(here, there, max) == Place::There {
                let taken = Load { requests: there.requests + 1, connections: there.connections + 1 };
                prop_assert_eq!(place(taken, here, max), Place::Here);
            }
        }

        #[test]
        fn what_is_shown_is_seen_and_what_is_on_its_way_counts(requests: u32, connections: u32, arriving in 0_u32..9) {
            let shared = SharedLoad::default();
            shared.show(Load { requests, connections });
            (0..arriving).for_each(|_| assert!(shared.announce()));
            let seen = shared.seen();
            prop_assert_eq!(seen.requests, requests.saturating_add(arriving));
            prop_assert_eq!(seen.connections, connections.saturating_add(arriving));
        }
    }

    #[test]
    fn a_draining_thread_gets_all_that_was_let_in_and_nothing_after() {
        for _ in 0..200 {
            let (handle, mailbox) = ShardHandle::new(Waker::new().unwrap());
            let senders: Vec<_> = (0..3)
                .map(|_| {
                    let handle = handle.clone();
                    std::thread::spawn(move || {
                        (0..50).filter(|_| handle.load.announce() && handle.send(ToShard::Drain).is_ok()).count()
                    })
                })
                .collect();
            let mut taken = 0;
            let mut take = || {
                while mailbox.try_recv().is_ok() {
                    taken += 1;
                    handle.load.arrived();
                }
            };
            take();
            handle.load.shut();
            while handle.load.expects() {
                take();
            }
            // The thread says that it is done: nothing may come any more.
            take();
            let passed: usize = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
            assert_eq!(passed, taken);
            assert!(mailbox.is_empty());
        }
    }
}
