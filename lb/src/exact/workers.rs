//! Helper threads that tokenize. They run at lower priority than data threads, whose cores they share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{io, thread};

use config::limits::{TOKENIZE_JOBS_MAX, TOKENIZE_QUEUED_BYTES_MAX};
use crossbeam_channel::{Receiver, Sender};
use tokenizer::Unfit;

use super::{Answer, Exact, Form};
use crate::mailbox::{ShardHandle, ToShard};
use crate::sys;

/// A body to be made tokens of.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) exact: Arc<Exact>,
    pub(crate) form: Form,
    pub(crate) body: Vec<u8>,
    /// Nobody waits after this time of the process clock.
    pub(crate) until_us: u64,
    /// The data thread that asked.
    pub(crate) reply: ShardHandle,
    /// Where it waits.
    pub(crate) ticket: u64,
}

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too many jobs, or bytes of them, are waiting.
    Busy,
}

/// The way to the helper threads.
#[derive(Debug, Clone)]
pub(crate) struct Workers {
    jobs: Sender<Job>,
    queued_bytes: Arc<AtomicUsize>,
}

impl Workers {
    /// Starts helper threads, which end when nobody can send to them any more.
    ///
    /// # Errors
    /// When not even one can be started.
    pub(crate) fn start(threads: usize) -> io::Result<Self> {
        let (jobs, waiting) = crossbeam_channel::bounded(TOKENIZE_JOBS_MAX);
        let queued_bytes = Arc::<AtomicUsize>::default();
        for index in 0..threads.max(1) {
            let (waiting, queued_bytes) = (waiting.clone(), queued_bytes.clone());
            let started = thread::Builder::new().name(format!("tokenize-{index}"));
            let started = started.spawn(move || work(&waiting, &queued_bytes));
            if index == 0 {
                started?;
            }
        }
        Ok(Self { jobs, queued_bytes })
    }

    /// Puts a job in the queue.
    ///
    /// # Errors
    /// When there is no room in it.
    pub(crate) fn submit(&self, job: Job) -> Result<(), Refused> {
        let bytes = job.body.len();
        if self.queued_bytes.fetch_add(bytes, Ordering::Relaxed) > TOKENIZE_QUEUED_BYTES_MAX
            || self.jobs.try_send(job).is_err()
        {
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Refused::Busy);
        }
        Ok(())
    }
}

fn work(jobs: &Receiver<Job>, queued_bytes: &AtomicUsize) {
    sys::lower_priority();
    for job in jobs {
        queued_bytes.fetch_sub(job.body.len(), Ordering::Relaxed);
        // Under more load than can be done, the jobs that can still be of use go first: those that come.
        if sys::monotonic_us() > job.until_us {
            continue;
        }
        let answer = catch_unwind(AssertUnwindSafe(|| tokenized(&job))).unwrap_or(Err(Unfit::NoTokens));
        // A data thread that is stuck has no use for it.
        let _ = job.reply.send(ToShard::Tokenized { ticket: job.ticket, answer });
    }
}

fn tokenized(job: &Job) -> Answer {
    match job.form {
        Form::Chat => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            job.exact.tokenizer.chat(&job.body, i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
        }
        Form::Completion => job.exact.tokenizer.completion(&job.body),
    }
}
