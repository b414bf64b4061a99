//! What every test needs: a gateway process, engines, a client that speaks bytes, and waits that end.

// The paths are written out so that other test binaries can include this file too.
#[path = "support/client.rs"]
pub(crate) mod client;
#[path = "support/engines.rs"]
pub(crate) mod engines;
#[path = "support/gateway.rs"]
pub(crate) mod gateway;
#[path = "support/scripted.rs"]
pub(crate) mod scripted;

use std::time::{Duration, Instant};

pub(crate) use client::{Answer, Client, get, post};
pub(crate) use engines::{chat, engine, fleet, model_requests, stream};
pub(crate) use gateway::{Gateway, Setup};

/// The longest wait for anything that must happen; only a failing test ever takes so long. A busy machine may be ten times
/// as slow as the one that a test was written on.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Between two looks at something that cannot be waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What the data threads run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// The kernel's rings.
    IoUring,
    /// Readiness.
    Epoll,
}

impl Driver {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Epoll => "epoll",
        }
    }
}

/// Makes two tests of each named function: one for each driver.
macro_rules! on_both_drivers {
    ($($name:ident),* $(,)?) => {
        mod io_uring {
            $(#[test]
            fn $name() {
                if crate::support::gateway::io_uring_works() {
                    super::$name(crate::support::Driver::IoUring);
                }
            })*
        }
        mod epoll {
            $(#[test]
            fn $name() {
                super::$name(crate::support::Driver::Epoll);
            })*
        }
    };
}

/// Asks until there is an answer; `what` is told when there is none in time.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}
