//! What the limits of tenants cost a request: let in, reserve, settle, leave.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use admission::{Account, Limits, Rate};

/// Tenants with limits, and the threads that all work for all of them.
const TENANTS: usize = 64;
const THREADS: usize = 8;
/// Requests of each thread in one round.
const REQUESTS: usize = 100_000;
const ROUNDS: usize = 5;

/// Each request is timed by itself, for the slow ones matter. The time of looking at the clock is in it: the first row tells it.
pub(crate) fn limits() {
    println!("limits of tenants, {TENANTS} tenants, {THREADS} threads, {REQUESTS} requests each a round");
    for _ in 0..ROUNDS {
        report("clock alone", &round(|_, _| 0));
        let accounts: Vec<Account> = (0..TENANTS).map(|_| Account::default()).collect();
        let limits = Limits {
            requests: Some(Rate::per_minute(1_000_000)),
            tokens: Some(Rate::per_minute(100_000_000)),
            in_flight_max: Some(1_000),
        };
        report(
            "let in, reserve, settle, leave",
            &round(|number, now_ns| one(&accounts[number % TENANTS], limits, now_ns)),
        );
    }
}

fn one(account: &Account, limits: Limits, now_ns: u64) -> u64 {
    match account.admit(limits, now_ns) {
        Ok(mut admitted) => {
            let reserved = admitted.reserve(1_200, now_ns);
            admitted.settle(700, now_ns);
            u64::from(reserved.is_ok())
        }
        Err(_) => 2,
    }
}

/// Nanoseconds of each request of all threads, sorted.
fn round(work: impl Fn(usize, u64) -> u64 + Sync) -> Vec<u64> {
    let (barrier, begun) = (Barrier::new(THREADS), Instant::now());
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let thread = |thread: usize| {
            let (work, barrier) = (&work, &barrier);
            scope.spawn(move || {
                let mut times = Vec::with_capacity(REQUESTS);
                barrier.wait();
                for number in 0..REQUESTS {
                    let from = Instant::now();
                    let now_ns = (from - begun).as_nanos() as u64;
                    black_box(work(number.wrapping_mul(31) + thread, now_ns));
                    times.push(from.elapsed().as_nanos() as u64);
                }
                times
            })
        };
        let threads: Vec<_> = (0..THREADS).map(thread).collect();
        // A thread that panicked has nothing to tell.
        threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    });
    all.sort_unstable();
    all
}

fn report(name: &str, times: &[u64]) {
    let at = |quantile: f64| times.get((times.len() as f64 * quantile) as usize).copied().unwrap_or(0) as f64 / 1e3;
    println!("  {name:<32} p50 {:>7.3} us  p99 {:>7.3} us  p99.9 {:>8.3} us", at(0.5), at(0.99), at(0.999));
}
