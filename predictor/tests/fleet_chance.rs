//! Endpoints are not passed over for what is believed of them and not known.

mod fixtures;

use fixtures::{decided, spec};
use predictor::fleet::{Ended, Fleet, Limits, Plan};
use predictor::prefix::chain::{Chain, ChainBuilder, Seed};
use predictor::ttft::Basis;

const MS_US: u64 = 1_000;
const SECOND_US: u64 = 1_000 * MS_US;
const COMPLETED: Ended = Ended::Completed { prompt_tokens: None, cached_tokens: None, completion_tokens: None };

/// Prompts that nobody has seen before go to endpoints one at a time; each has its first token after what is said.
struct Served {
    fleet: Fleet,
    now_us: u64,
    prompts: u32,
}

impl Served {
    /// Endpoints of these kinds, which serve the same model.
    fn by(kinds: &[&str]) -> Self {
        let limits = Limits { endpoints_max: 8, requests_max: 64, index_bytes_max: 1 << 20, ..Limits::default() };
        let mut fleet = Fleet::new(limits);
        for (endpoint, kind) in (0..).zip(kinds) {
            fleet.add_endpoint(0, endpoint, &spec(kind));
        }
        Self { fleet, now_us: SECOND_US, prompts: 0 }
    }

    fn prompt(&mut self) -> Chain {
        self.prompts += 1;
        let mut builder = ChainBuilder::new(&Seed { model: "m", lora: None, cache_salt: None }, 256, Chain::default());
        builder.text(&self.prompts.to_le_bytes().repeat(1_000));
        builder.finish()
    }

    fn serve(&mut self, endpoint: u32, first_token_ms: u64) {
        let chain = self.prompt();
        self.fleet.decided(self.now_us, &decided(u64::from(self.prompts), endpoint, &chain));
        self.now_us += first_token_ms * MS_US;
        self.fleet.first_token(self.now_us, u64::from(self.prompts), endpoint);
        self.now_us += MS_US;
        self.fleet.ended(self.now_us, u64::from(self.prompts), endpoint, COMPLETED);
    }

    /// What the next prompt would cost there, and what stands behind that.
    fn next(&mut self, endpoint: u32) -> (u64, Basis) {
        let (chain, mut plan) = (self.prompt(), Plan::default());
        self.fleet.plan(&mut plan, &chain, chain.bytes() / 4, self.now_us);
        let prediction = self.fleet.predict(&plan, endpoint).expect("known");
        (prediction.cost_us, prediction.basis)
    }
}

#[test]
fn a_late_first_answer_does_not_keep_a_kind_from_being_learned() {
    let mut served = Served::by(&["known", "new"]);
    (0..30).for_each(|_| served.serve(0, 40));
    // A server's first answers come late.
    served.serve(1, 2_000);
    let (known, new) = (served.next(0), served.next(1));
    assert_eq!((known.1, new.1), (Basis::Learned, Basis::Learning));
    assert!(new.0 as f64 <= 1.05 * known.0 as f64, "{new:?} beside {known:?}");
    // After a number of answers it is judged by them.
    (0..30).for_each(|_| served.serve(1, 400));
    let (known, new) = (served.next(0), served.next(1));
    assert!(new.0 > 3 * known.0, "{new:?} beside {known:?}");
}

#[test]
fn an_endpoint_that_was_slow_and_gets_no_requests_is_tried_again_in_time() {
    let mut served = Served::by(&["same", "same"]);
    for _ in 0..40 {
        served.serve(0, 40);
        served.serve(1, 160);
    }
    let cost_ratio = |served: &mut Served| served.next(1).0 as f64 / served.next(0).0 as f64;
    assert!(cost_ratio(&mut served) > 2.0);
    served.now_us += 20 * SECOND_US;
    assert!(cost_ratio(&mut served) > 2.0, "a pause is no reason to forget");
    served.now_us += 300 * SECOND_US;
    let after = cost_ratio(&mut served);
    assert!((0.95..1.05).contains(&after), "{after}");
    // If it is slow still, that is soon known again.
    (0..10).for_each(|_| served.serve(1, 160));
    assert!(cost_ratio(&mut served) > 1.2);
}
