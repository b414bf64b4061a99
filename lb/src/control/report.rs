//! Collects what the data threads count and believe, without waiting for one that is stuck.

use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::mailbox::{ShardHandle, ToShard};
use crate::metrics::{Metrics, ShardReport};

/// A data thread that has not answered by then is stuck.
const WITHIN: Duration = Duration::from_millis(500);

/// How often the answers are looked for: a data thread answers within its loop turn.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What could be collected.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// One for each thread that answered, by its number.
    pub shards: Vec<ShardReport>,
    /// Numbers of those that did not.
    pub stuck: Vec<usize>,
}

impl Reports {
    /// Asks all threads at once.
    pub(crate) async fn collect(shards: &[ShardHandle]) -> Self {
        let (sender, receiver) = std_mpsc::sync_channel(shards.len().max(1));
        for shard in shards {
            // A full box is that of a thread that is stuck, which shows below.
            let _ = shard.send(ToShard::Report(sender.clone()));
        }
        drop(sender);
        let mut reports = answers(receiver, shards.len()).await;
        reports.sort_by_key(|report| report.shard);
        let stuck = (0..shards.len()).filter(|&index| !reports.iter().any(|report| report.shard == index)).collect();
        Self { shards: reports, stuck }
    }

    /// The counts of all threads together.
    pub(crate) fn totals(&self) -> Metrics {
        let mut totals = Metrics::default();
        self.shards.iter().for_each(|report| totals.merge(&report.metrics));
        totals
    }
}

/// Up to `count` answers of data threads, as they come within [`WITHIN`].
pub(super) async fn answers<T>(receiver: std_mpsc::Receiver<T>, count: usize) -> Vec<T> {
    let deadline = Instant::now() + WITHIN;
    let mut answers = Vec::with_capacity(count);
    while answers.len() < count {
        match receiver.try_recv() {
            Ok(answer) => answers.push(answer),
            Err(std_mpsc::TryRecvError::Disconnected) => break,
            Err(std_mpsc::TryRecvError::Empty) if Instant::now() >= deadline => break,
            Err(std_mpsc::TryRecvError::Empty) => sleep(LOOK_EVERY).await,
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Waker;

    #[tokio::test]
    async fn counts_are_added_up_and_a_silent_thread_is_named() {
        let (answering, mailbox) = ShardHandle::new(Waker::new().unwrap());
        let (silent, _kept) = ShardHandle::new(Waker::new().unwrap());
        let (other, mailbox2) = ShardHandle::new(Waker::new().unwrap());
        let answer = |mailbox: crossbeam_channel::Receiver<ToShard>, shard: usize| {
            std::thread::spawn(move || {
                let Ok(ToShard::Report(to)) = mailbox.recv() else { panic!("asked for a report") };
                let metrics = Metrics { retries: 2, ..Metrics::default() };
                to.send(ShardReport { shard, metrics, endpoints: Vec::new() }).unwrap();
            })
        };
        let threads = [answer(mailbox, 0), answer(mailbox2, 2)];
        let reports = Reports::collect(&[answering, silent, other]).await;
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(reports.stuck, [1]);
        assert_eq!(reports.totals().retries, 4);
    }
}
