//! What data threads are told of caches, a little at a time: a data thread must answer requests meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::control::status::CacheNewsStatus;
use crate::mailbox::{CacheNews, CacheWhat, ShardHandle, ToShard};

/// Keys that a data thread is given at a time: 10 to 30 us of its work.
pub(crate) const SWEEP_KEYS_MAX: usize = 384;
/// Between two times: at most 200,000 blocks a second, more than a hundred large engines compute.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_millis(2);
/// Keys that wait before no more is taken in.
const WAITING_KEYS_MAX: usize = 16 * SWEEP_KEYS_MAX;
/// What news without keys counts as.
const NEWS_KEYS: usize = 16;

/// News for the data threads, in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: VecDeque<CacheNews>,
    keys: usize,
    lost: u64,
}

impl Outbox {
    /// Whether more can be put in.
    pub(crate) fn has_room(&self) -> bool {
        self.keys < WAITING_KEYS_MAX
    }

    /// Whether anything waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// For people.
    pub(crate) fn status(&self) -> CacheNewsStatus {
        CacheNewsStatus { keys_waiting: self.keys, sweeps_lost: self.lost }
    }

    /// Puts news at the end.
    pub(crate) fn push(&mut self, news: CacheNews) {
        self.keys += weight(&news.what);
        self.waiting.push_back(news);
    }

    /// Takes what is to be told next.
    fn sweep(&mut self) -> Vec<CacheNews> {
        let (mut swept, mut keys) = (Vec::new(), 0);
        while let Some(news) = self.waiting.front() {
            let more = weight(&news.what);
            if keys > 0 && keys + more > SWEEP_KEYS_MAX {
                break;
            }
            keys += more;
            swept.extend(self.waiting.pop_front());
        }
        self.keys -= keys;
        swept
    }

    /// Tells all data threads what is next.
    pub(crate) fn flush(&mut self, shards: &[ShardHandle]) {
        let swept = self.sweep();
        if swept.is_empty() {
            return;
        }
        let swept = Arc::new(swept);
        for shard in shards {
            self.lost += u64::from(shard.send(ToShard::Cache(swept.clone())).is_err());
        }
    }
}

fn weight(what: &CacheWhat) -> usize {
    match what {
        CacheWhat::Stored(keys) | CacheWhat::Removed(keys) => keys.len().max(NEWS_KEYS),
        CacheWhat::Evidence { .. } | CacheWhat::Cleared | CacheWhat::Evicted { .. } => NEWS_KEYS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::EndpointId;

    fn news(what: CacheWhat) -> CacheNews {
        CacheNews { endpoint: EndpointId(1), incarnation: 1, what }
    }

    #[test]
    fn a_sweep_is_bounded_and_nothing_is_lost_or_reordered() {
        let mut outbox = Outbox::default();
        for first in 0..40 {
            outbox.push(news(CacheWhat::Stored((first * 1_000..first * 1_000 + 200).collect())));
            outbox.push(news(CacheWhat::Removed(vec![first])));
        }
        outbox.push(news(CacheWhat::Cleared));
        assert!(!outbox.has_room());
        let mut told = Vec::new();
        while !outbox.is_empty() {
            let swept = outbox.sweep();
            assert!(!swept.is_empty() && swept.iter().map(|news| weight(&news.what)).sum::<usize>() <= SWEEP_KEYS_MAX);
            told.extend(swept);
        }
        assert_eq!((told.len(), outbox.keys), (81, 0));
        for (first, pair) in told.chunks(2).enumerate().take(40) {
            assert!(matches!(&pair[0].what, CacheWhat::Stored(keys) if keys[0] == first as u64 * 1_000));
            assert!(matches!(&pair[1].what, CacheWhat::Removed(keys) if *keys == [first as u64]));
        }
        assert!(matches!(told[80].what, CacheWhat::Cleared));
    }
}
