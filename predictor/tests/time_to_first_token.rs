//! The model of time to first token against engines in virtual time.

mod step_engine;

use predictor::ttft::{Basis, Prior};
use step_engine::{Answered, BASE_S, Choice, Run, TOKEN_S, median};

const TRUE_PRIOR: Prior = Prior { seconds_per_token: TOKEN_S, base_s: BASE_S };
const SEEDS: std::ops::Range<u64> = 1..4;

fn errors(answered: &[Answered]) -> f64 {
    median(answered.iter().map(Answered::error).collect())
}

#[test]
fn a_prior_five_times_off_is_forgotten_within_twenty_answers() {
    for factor in [5.0, 0.2] {
        let prior = Prior { seconds_per_token: TOKEN_S * factor, base_s: BASE_S * factor };
        let mut all = Vec::new();
        for seed in SEEDS {
            let mut run = Run::new(4, prior, Choice::LeastCost, seed);
            run.send(80, 12.0);
            run.drain();
            all.extend(run.answered[20..50].iter().map(Answered::error));
        }
        let error = median(all);
        eprintln!("prior {factor}: {error}");
        assert!(error <= 0.12, "prior off by {factor}: {error}");
    }
}

#[test]
fn the_model_settles_and_nine_in_ten_are_under_p90() {
    for rate in [8.0, 20.0] {
        let (mut all, mut covered) = (Vec::new(), 0);
        for seed in SEEDS {
            let mut run = Run::new(4, Prior::default(), Choice::LeastCost, seed);
            run.send(1_000, rate);
            run.drain();
            assert_eq!(run.basis_seen[999], Basis::Learned);
            covered += run.answered[50..].iter().filter(|answer| answer.actual_us <= answer.p90_us).count();
            all.extend_from_slice(&run.answered[50..]);
        }
        let (error, coverage) = (errors(&all), covered as f64 / all.len() as f64);
        let mean = all.iter().map(|a| a.actual_us as f64).sum::<f64>() / all.len() as f64 / 1e6;
        eprintln!("rate {rate}: error {error} coverage {coverage} mean {mean}");
        assert!(error <= 0.11, "rate {rate}: {error}");
        assert!((0.87..=0.93).contains(&coverage), "rate {rate}: {coverage}");
    }
}

#[test]
fn an_endpoint_that_turns_twice_as_slow_is_known_after_fifty_of_its_answers() {
    let mut all = Vec::new();
    for seed in SEEDS {
        let mut run = Run::new(4, TRUE_PRIOR, Choice::LeastCost, seed);
        run.send(600, 12.0);
        let before = run.answered.len();
        run.slow_down(2, 2.0);
        run.send(800, 12.0);
        run.drain();
        let its: Vec<_> = run.answered[before..].iter().filter(|answer| answer.endpoint == 2).copied().collect();
        let slowness = run.fleet.snapshot(0, 2).expect("a known endpoint").slowness_ratio;
        assert!((1.7..2.5).contains(&slowness), "{slowness}");
        all.extend_from_slice(&its[50..]);
    }
    let error = errors(&all);
    assert!(error < 0.15, "{error}");
}

#[test]
fn choosing_by_the_model_beats_round_robin() {
    let mean = |choice| {
        let mut run = Run::new(4, TRUE_PRIOR, choice, 7);
        run.send(1_500, 16.0);
        run.drain();
        run.answered.iter().map(|answer| answer.actual_us as f64).sum::<f64>() / run.answered.len() as f64
    };
    let (ours, round_robin) = (mean(Choice::LeastCost), mean(Choice::RoundRobin));
    eprintln!("{ours} {round_robin}");
    assert!(ours < 0.7 * round_robin, "{ours} against {round_robin}");
}
