//! The runtime of a data thread: which driver runs, its clock, its tasks.

use std::fmt;
use std::future::Future;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};

/// Which driver is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// io_uring where the kernel and the sandbox allow it, else epoll.
    #[default]
    Auto,
    /// io_uring, or refuse to start.
    IoUring,
    /// epoll.
    Epoll,
}

impl FromStr for Driver {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "io_uring" => Ok(Self::IoUring),
            "epoll" => Ok(Self::Epoll),
            other => Err(format!("unknown driver {other:?}: expected auto, io_uring or epoll")),
        }
    }
}

/// Which driver runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverInUse {
    /// io_uring; with completions run when the thread asks for them (kernel 6.1 and later), which saves 14-35 % of CPU.
    IoUring {
        /// `IORING_SETUP_DEFER_TASKRUN` is on.
        defer_taskrun: TaskRun,
    },
    /// epoll.
    Epoll,
}

/// When the kernel runs the completion work of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskRun {
    /// When the thread enters the kernel to wait.
    Deferred,
    /// At the thread's next transition into the kernel.
    Cooperative,
}

impl fmt::Display for DriverInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IoUring { .. } => "io_uring",
            Self::Epoll => "epoll",
        })
    }
}

impl Driver {
    /// Finds out, by trying, what this machine allows.
    ///
    /// # Errors
    /// When io_uring was asked for and a ring cannot be made; the message says why and what to do.
    pub fn choose(self) -> Result<DriverInUse, String> {
        if self == Self::Epoll {
            return Ok(DriverInUse::Epoll);
        }
        let tried = [TaskRun::Deferred, TaskRun::Cooperative].map(|run| (run, ring(run).build(8)));
        let mut refusal = None;
        for (run, result) in tried {
            match result {
                Ok(_) => return Ok(DriverInUse::IoUring { defer_taskrun: run }),
                Err(error) => refusal = Some(error),
            }
        }
        match (self, refusal) {
            (Self::IoUring, Some(error)) => Err(format!(
                "io_uring is not available here ({error}): allow the io_uring_setup, io_uring_enter and \
                 io_uring_register system calls (seccomp, sysctl kernel.io_uring_disabled, RLIMIT_MEMLOCK), or use --driver epoll"
            )),
            (Self::Auto | Self::Epoll | Self::IoUring, _) => Ok(DriverInUse::Epoll),
        }
    }
}

fn ring(run: TaskRun) -> io_uring::Builder {
    let mut builder = io_uring::IoUring::builder();
    builder.setup_single_issuer();
    match run {
        TaskRun::Deferred => builder.setup_defer_taskrun(),
        TaskRun::Cooperative => builder.setup_coop_taskrun(),
    };
    builder
}

/// Entries of the submission queue.
const RING_ENTRIES: u32 = 4096;

/// Runs `main` on this thread until it ends. It should not end before the process does: the kernel may still hold
/// buffers of operations in flight.
///
/// # Errors
/// When the ring or the epoll instance cannot be made.
pub(crate) fn run(driver: DriverInUse, main: impl Future<Output = ()>) -> io::Result<()> {
    match driver {
        DriverInUse::IoUring { defer_taskrun } => {
            let builder = RuntimeBuilder::<IoUringDriver>::new().uring_builder(ring(defer_taskrun));
            builder.with_entries(RING_ENTRIES).enable_timer().build()?.block_on(main);
        }
        DriverInUse::Epoll => {
            RuntimeBuilder::<LegacyDriver>::new().with_entries(RING_ENTRIES).enable_timer().build()?.block_on(main);
        }
    }
    Ok(())
}

/// Starts a task on this thread.
pub(crate) fn spawn(task: impl Future<Output = ()> + 'static) {
    drop(monoio::spawn(task));
}

/// Waits.
pub(crate) async fn sleep(duration: Duration) {
    monoio::time::sleep(duration).await;
}

/// Microseconds of the kernel's monotonic clock: the same on every thread, never 0.
pub(crate) fn now_us() -> u64 {
    crate::sys::monotonic_us()
}
