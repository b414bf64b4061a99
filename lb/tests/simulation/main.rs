//! Seeded simulation: the real gateway, clients that behave badly, engines that fail, documents that change. Each seed is a
//! story drawn from its number; what must hold of every story is checked.
//!
//! `KINFERENCE_SIM_SEED=17` plays one seed, `KINFERENCE_SIM_SEEDS=1000..5000` as many as wanted. The story is the same each
//! time, the order in which threads get to run is not: a finding that depends on it takes some replays.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

#[macro_use]
#[path = "../gateway"]
#[allow(dead_code, unused_imports, reason = "shared with the gateway tests, which use the rest")]
mod gateway {
    #[macro_use]
    pub(crate) mod support;
}
use gateway::support;

mod check;
mod client;
mod content;
mod draw;
mod engine;
mod script;
mod sockets;
mod wave;

use std::fmt::Write as _;
use std::ops::Range;

use script::Script;
use support::Driver;
use support::gateway::io_uring_works;

on_both_drivers![every_request_has_one_answer_or_a_reason_for_none];

/// Seeds that are always played, half of them by each driver.
const SEEDS: Range<u64> = 0..256;
/// Seeds played at once.
const WAVE: usize = 32;
/// Findings that are shown.
const SHOWN_MAX: usize = 10;

fn seeds() -> Range<u64> {
    let number = |text: &str| text.trim().parse::<u64>().expect("a number of a seed");
    if let Ok(seed) = std::env::var("KINFERENCE_SIM_SEED") {
        let seed = number(&seed);
        return seed..seed + 1;
    }
    match std::env::var("KINFERENCE_SIM_SEEDS") {
        Ok(range) => {
            let (from, to) = range.split_once("..").expect("FROM..TO");
            number(from)..number(to)
        }
        Err(_) => SEEDS,
    }
}

/// Even seeds are played with the one driver, odd ones with the other; all with the one that works where only one does.
fn driver_of(seed: u64) -> Driver {
    if seed.is_multiple_of(2) && io_uring_works() { Driver::IoUring } else { Driver::Epoll }
}

fn every_request_has_one_answer_or_a_reason_for_none(driver: Driver) {
    let scripts: Vec<Script> = seeds().filter(|&seed| driver_of(seed) == driver).map(Script::of).collect();
    let mut wrong = Vec::new();
    for wave in scripts.chunks(WAVE) {
        wrong.extend(wave::play_all(driver, wave));
    }
    let mut told = String::new();
    for (seed, what) in wrong.iter().take(SHOWN_MAX) {
        let _ = writeln!(
            told,
            "\n{what}\n    script: {:?}\n    replay: KINFERENCE_SIM_SEED={seed} cargo test -p lb --test simulation",
            Script::of(*seed)
        );
    }
    assert!(wrong.is_empty(), "{} findings with {}:\n{told}", wrong.len(), driver.name());
}

#[test]
fn a_seed_is_the_same_story_each_time() {
    for seed in SEEDS {
        assert_eq!(format!("{:?}", Script::of(seed)), format!("{:?}", Script::of(seed)));
    }
    assert_ne!(format!("{:?}", Script::of(1).connections), format!("{:?}", Script::of(2).connections));
}
