//! When requests are due, and waiting for that moment more exactly than the runtime's timer of 1 ms does.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::unix::AsyncFd;

use crate::random::Random;

/// How arrivals are spread over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrivals {
    /// Independent of each other: exponential gaps, as from many users.
    Poisson,
    /// Equal gaps.
    Constant,
}

/// Times at which requests are due, independent of how long any of them takes.
#[derive(Debug)]
pub struct Schedule {
    next: Instant,
    mean_gap: Duration,
    arrivals: Arrivals,
    random: Random,
}

impl Schedule {
    /// `rate` is in requests a second, above 0.
    pub fn new(start: Instant, rate: f64, arrivals: Arrivals, seed: u64) -> Self {
        Self { next: start, mean_gap: Duration::from_secs_f64(1.0 / rate), arrivals, random: Random::new(seed) }
    }
}

impl Iterator for Schedule {
    type Item = Instant;

    fn next(&mut self) -> Option<Instant> {
        let gap = match self.arrivals {
            Arrivals::Poisson => self.random.exponential(self.mean_gap),
            Arrivals::Constant => self.mean_gap,
        };
        self.next += gap;
        Some(self.next)
    }
}

/// A timer of the kernel, exact to some tens of microseconds.
pub struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    /// Needs a runtime with I/O.
    #[expect(deprecated, reason = "unsound only for types whose descriptor changes; an OwnedFd's does not")]
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(AsyncFd::new(rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?)?))
    }

    /// Waits until `due`. Returns at once when that is past.
    pub async fn until(&self, due: Instant) -> io::Result<()> {
        let wait = due.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            },
        };
        rustix::time::timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0_u8; 8])?));
            match read {
                Ok(read) => return read.map(|_| ()),
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_schedules_keep_the_rate() {
        let start = Instant::now();
        for arrivals in [Arrivals::Poisson, Arrivals::Constant] {
            let last = Schedule::new(start, 1000.0, arrivals, 5).nth(9999).unwrap();
            let seconds = last.duration_since(start).as_secs_f64();
            assert!((9.5..10.5).contains(&seconds), "{arrivals:?}: {seconds}");
        }
    }

    #[test]
    fn the_timer_never_fires_early() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = Timer::new().unwrap();
            for us in [0, 50, 300] {
                let due = Instant::now() + Duration::from_micros(us);
                timer.until(due).await.unwrap();
                assert!(Instant::now() >= due);
            }
        });
    }
}
