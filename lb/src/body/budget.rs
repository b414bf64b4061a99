//! Memory for request bodies: one account per data thread. A body takes its bytes before they are read and gives them
//! back when it is dropped; where there are none left, it waits.
//!
//! What is made of a body for an endpoint that speaks another API takes its bytes in the same way. What is kept of such an
//! endpoint's answer is counted without waiting: it is bounded, and the work is done. Bodies that come then wait for it.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::error::Refused;
use crate::io;

/// How long a body waits for memory to become free.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How often it looks meanwhile: other bodies end by themselves and tell nobody.
const LOOK: Duration = Duration::from_millis(20);

/// The account of one data thread, in bytes.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    held: Cell<usize>,
    max: usize,
    waits: Cell<u64>,
}

impl BodyMemory {
    /// An account of `bytes_max`.
    pub(crate) fn new(bytes_max: usize) -> Rc<Self> {
        Rc::new(Self { held: Cell::new(0), max: bytes_max, waits: Cell::new(0) })
    }

    /// Bytes taken now.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.get()
    }

    /// Times that a body had to wait.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.get()
    }
}

/// Bytes taken from an account; given back when dropped.
pub(crate) struct Budget {
    memory: Rc<BodyMemory>,
    bytes: usize,
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Budget {
    /// Nothing yet.
    pub(crate) fn new(memory: &Rc<BodyMemory>) -> Self {
        Self { memory: memory.clone(), bytes: 0 }
    }

    /// Bytes taken.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more, waiting for a while when there is none.
    pub(super) async fn grow(&mut self, bytes: usize) -> Result<(), Refused> {
        if self.try_grow(bytes) {
            return Ok(());
        }
        self.memory.waits.set(self.memory.waits.get() + 1);
        for _ in 0..WAIT_MAX.as_millis() / LOOK.as_millis() {
            io::sleep(LOOK).await;
            if self.try_grow(bytes) {
                return Ok(());
            }
        }
        Err(Refused::BodyBudget)
    }

    /// Takes more, or says that there is none. A body larger than the whole account may go alone: else it never could.
    fn try_grow(&mut self, bytes: usize) -> bool {
        let held = self.memory.held.get();
        let fits = held.checked_add(bytes).is_some_and(|sum| sum <= self.memory.max);
        let alone = held == self.bytes;
        if fits || alone {
            self.memory.held.set(held.saturating_add(bytes));
            self.bytes = self.bytes.saturating_add(bytes);
        }
        fits || alone
    }

    /// Has so many from now on, whether they are there or not.
    pub(crate) fn set(&mut self, bytes: usize) {
        let others = self.memory.held.get().saturating_sub(self.bytes);
        self.memory.held.set(others.saturating_add(bytes));
        self.bytes = bytes;
    }

    /// Gives back what is above `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        self.memory.held.set(self.memory.held.get().saturating_sub(freed));
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Begin,
        Grow(usize, usize),
        Shrink(usize, usize),
        Set(usize, usize),
        End(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Begin),
            (0_usize..8, 0_usize..2_000).prop_map(|(which, bytes)| Step::Grow(which, bytes)),
            (0_usize..8, 0_usize..2_000).prop_map(|(which, bytes)| Step::Shrink(which, bytes)),
            (0_usize..8, 0_usize..2_000).prop_map(|(which, bytes)| Step::Set(which, bytes)),
            (0_usize..8).prop_map(Step::End),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn what_is_taken_is_given_back_and_only_a_lone_body_grows_above_the_bound(steps in proptest::collection::vec(step(), 0..80)) {
            let memory = BodyMemory::new(1_000);
            let mut budgets = Vec::new();
            for step in steps {
                match step {
                    Step::Begin => budgets.push(Budget::new(&memory)),
                    Step::Grow(which, bytes) => if let Some(budget) = budgets.get_mut(which) {
                        let (before, others) = (budget.bytes(), memory.held_bytes() - budget.bytes());
                        let grown = budget.try_grow(bytes);
                        prop_assert_eq!(grown, before + others + bytes <= 1_000 || others == 0);
                        prop_assert_eq!(budget.bytes(), if grown { before + bytes } else { before });
                    },
                    Step::Shrink(which, bytes) => if let Some(budget) = budgets.get_mut(which) {
                        let before = budget.bytes();
                        budget.shrink_to(bytes);
                        prop_assert_eq!(budget.bytes(), before.min(bytes));
                    },
                    Step::Set(which, bytes) => if let Some(budget) = budgets.get_mut(which) {
                        budget.set(bytes);
                        prop_assert_eq!(budget.bytes(), bytes);
                    },
                    Step::End(which) => if which < budgets.len() { budgets.swap_remove(which); },
                }
                prop_assert_eq!(memory.held_bytes(), budgets.iter().map(Budget::bytes).sum::<usize>());
            }
            drop(budgets);
            prop_assert_eq!(memory.held_bytes(), 0);
        }
    }
}
