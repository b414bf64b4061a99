//! Many threads at the same accounts.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use admission::{Account, Limits, Rate};

fn limits(requests: u64, tokens: u64, in_flight: u32) -> Limits {
    Limits {
        requests: Some(Rate::per_minute(requests)),
        tokens: Some(Rate::per_minute(tokens)),
        in_flight_max: Some(in_flight),
    }
}

/// 8 threads for 64 callers at one moment of a clock that then moves: each limit is used up to the unit, none is passed.
#[test]
fn over_all_threads_no_limit_is_exceeded() {
    const CALLERS: usize = 64;
    const THREADS: usize = 8;
    let accounts: Vec<Account> = (0..CALLERS).map(|_| Account::default()).collect();
    let admitted: Vec<AtomicU64> = (0..CALLERS).map(|_| AtomicU64::default()).collect();
    let barrier = Barrier::new(THREADS);
    let limits_of = |caller: usize| limits(10 + caller as u64, (10 + caller as u64) * 7, 3);
    let now_ns = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (accounts, admitted, barrier, now_ns) = (&accounts, &admitted, &barrier, &now_ns);
            scope.spawn(move || {
                for minute in 0..3_u64 {
                    barrier.wait();
                    // A little more than a minute: what comes back is rounded down.
                    now_ns.store(minute * 61_000_000_000, Relaxed);
                    barrier.wait();
                    for round in 0..200 {
                        let caller = (round * 13 + thread * 7) % CALLERS;
                        let at_ns = now_ns.load(Relaxed);
                        for caller in [caller, (caller + 1) % CALLERS, 0, 1] {
                            let Ok(mut request) = accounts[caller].admit(limits_of(caller), at_ns) else {
                                continue;
                            };
                            assert!(accounts[caller].in_flight() <= 3);
                            if request.reserve(7, at_ns).is_ok() {
                                request.settle(7, at_ns);
                                admitted[caller].fetch_add(1, Relaxed);
                            }
                        }
                    }
                }
            });
        }
    });
    for (caller, admitted) in admitted.iter().enumerate() {
        let per_minute = 10 + caller as u64;
        let admitted = admitted.load(Relaxed);
        assert!(admitted <= 3 * per_minute, "caller {caller}: {admitted} of {per_minute} a minute");
        assert_eq!(accounts[caller].in_flight(), 0);
    }
    // The two that everybody asked for all the time got all that they may have.
    assert_eq!([admitted[0].load(Relaxed), admitted[1].load(Relaxed)], [30, 33]);
}
