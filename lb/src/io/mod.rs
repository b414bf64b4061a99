//! The kernel's edge of a data thread: runtime, buffers, connections, deadlines.
//!
//! The only place that names the io_uring runtime; no type of it leaves this module, so that another driver can take
//! its place. Everything here is for one thread: nothing is `Send`, nothing is locked.
#![allow(unsafe_code)]

mod buf;
mod conn;
mod guard;
mod out;
mod runtime;
mod watch;

pub(crate) use buf::{Buf, SizeClass};
pub(crate) use conn::{Accepted, Conn, Listener, adopt, connect};
pub(crate) use guard::catching;
pub(crate) use out::Out;
pub use runtime::{Driver, DriverInUse};
pub(crate) use runtime::{now_us, run, sleep, spawn};
pub(crate) use watch::{Reactor, Stop, Watch, speaks, unless, until};
