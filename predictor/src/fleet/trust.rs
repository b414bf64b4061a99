//! How much of what is recorded as cached turns out to be there, by how recently it was used.
//!
//! An engine drops what was used least recently, and its cache is never quite as large as the record: others use it too, answers fill
//! it, blocks are of other sizes. So what was used just now is there, what was used long ago is gone, and a mean over both
//! would be wrong about each. Where a prompt stands in the order of use is [`Index::age_ratio`](crate::prefix::index::Index::age_ratio).

/// Ranks of the order of use, the latest first.
const RANKS: usize = 32;
/// Weight of a new truth; the first ones of a rank weigh more.
const STEP: f64 = 0.05;
/// Trust above it is noise: all of the record is believed.
const WHOLE: f64 = 0.9;
const MIN: f64 = 0.05;

/// Parts of the record that turned out true, 0 to 1, by rank.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    ranks: [Rank; RANKS],
    all: Rank,
}

#[derive(Clone, Copy, Debug)]
struct Rank {
    ratio: f64,
    seen: u32,
}

impl Rank {
    const NEW: Rank = Rank { ratio: 1.0, seen: 0 };

    fn learn(&mut self, ratio: f64) {
        self.seen = self.seen.saturating_add(1);
        let step = (1.0 / f64::from(self.seen + 1)).max(STEP);
        self.ratio = (self.ratio + (ratio - self.ratio) * step).clamp(MIN, 1.0);
    }
}

impl Default for Trust {
    fn default() -> Self {
        Trust { ranks: [Rank::NEW; RANKS], all: Rank::NEW }
    }
}

impl Trust {
    /// What is believed of a prompt that was last used so long ago, as [`Self::learn`] will have it back.
    pub(super) fn of(&self, age_ratio: f64) -> f64 {
        let ratio = self.ranks[rank(age_ratio)].ratio;
        if ratio > WHOLE { 1.0 } else { ratio }
    }

    /// Over all.
    pub(super) fn mean(&self) -> f64 {
        self.all.ratio
    }

    /// Of what was recorded, this part was there.
    pub(super) fn learn(&mut self, age_ratio: f64, ratio: f64) {
        self.ranks[rank(age_ratio)].learn(ratio.clamp(0.0, 1.0));
        self.all.learn(ratio.clamp(0.0, 1.0));
    }
}

fn rank(age_ratio: f64) -> usize {
    ((age_ratio.max(0.0) * RANKS as f64) as usize).min(RANKS - 1)
}
