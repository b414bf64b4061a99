//! One run from start to report: starts the threads, shows progress, merges the results.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use crate::{
    load::{self, Live, Plan},
    report::Report,
    tally::Tally,
};

/// Time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Whether progress goes to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// One line a second; on a terminal always the same one.
    Shown,
    /// Nothing.
    Hidden,
}

/// Runs a plan to its end, or to an interrupt (SIGINT), and sums it up. A second interrupt does not wait for the
/// requests in flight and is an error.
pub fn run(plan: &Plan, progress: Progress) -> io::Result<Report> {
    let begun = Instant::now();
    let live = Arc::new(Live::default());
    let (ended, mut ends) = mpsc::channel::<()>(1);
    let threads: Vec<_> = (0..plan.threads)
        .map(|share| {
            let (plan, live, ended) = (plan.clone(), Arc::clone(&live), ended.clone());
            thread::Builder::new().name(format!("load-{share}")).spawn(move || {
                // Dropped when the thread ends, even by a panic: the last one ends the wait below.
                let _ended = ended;
                load::run_share(&plan, share, &live)
            })
        })
        .collect::<io::Result<_>>()?;
    drop(ended);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if runtime.block_on(watch(&live, begun, progress, &mut ends)) == Watched::Abandoned {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted twice, without a report"));
    }
    let elapsed = begun.elapsed();
    let mut tally = Tally::default();
    for thread in threads {
        let share = thread.join().map_err(|_| io::Error::other("a load thread panicked"))??;
        tally.merge(&share);
    }
    Ok(Report::new(&tally, elapsed))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watched {
    ThreadsEnded,
    Abandoned,
}

/// Shows progress until all threads have ended; an interrupt ends them.
async fn watch(live: &Live, begun: Instant, progress: Progress, ends: &mut mpsc::Receiver<()>) -> Watched {
    let mut ticks = tokio::time::interval(PROGRESS_EVERY);
    let mut before = (0, 0);
    ticks.tick().await;
    loop {
        tokio::select! {
            // Nothing is ever sent: this is the end of the last thread.
            _ = ends.recv() => break,
            // When signals cannot be had, the run goes on without them.
            Ok(()) = tokio::signal::ctrl_c() => {
                if live.stop.swap(true, Ordering::Relaxed) {
                    return Watched::Abandoned;
                }
            }
            _ = ticks.tick() => {
                if progress == Progress::Shown {
                    before = show(live, begun, before);
                }
            }
        }
    }
    if progress == Progress::Shown && io::stderr().is_terminal() {
        eprintln!();
    }
    Watched::ThreadsEnded
}

fn show(live: &Live, begun: Instant, before: (u64, u64)) -> (u64, u64) {
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let (right, failed, events) = (load(&live.right), load(&live.failed), load(&live.events));
    let open = load(&live.begun).saturating_sub(right + failed);
    let line = format!(
        "{:5.0} s  {right} ok ({}/s)  {failed} failed  {open} open  {} events/s",
        begun.elapsed().as_secs_f64(),
        right - before.0,
        events - before.1
    );
    let mut out = io::stderr().lock();
    // Progress that cannot be shown is no reason to stop.
    let _ = if out.is_terminal() {
        write!(out, "\r\x1b[2K{line}").and_then(|()| out.flush())
    } else {
        writeln!(out, "{line}")
    };
    (right, events)
}
