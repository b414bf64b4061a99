//! The few system calls that neither the runtime nor the standard library offers.
//!
//! With `io/` this is the only place where `unsafe` is allowed; each block says what holds it true.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Turns a -1 of libc into the error that `errno` holds.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An epoll instance that reports peers that closed or reset (`EPOLLRDHUP`), edge-triggered, and one wake-up descriptor.
///
/// A data thread polls this one descriptor instead of arming a poll per waiting request: a request costs no operation
/// to be watched, a connection one `epoll_ctl` in its whole life.
#[derive(Debug)]
pub(crate) struct Departures {
    epoll: OwnedFd,
}

/// How many events one [`Departures::drain`] call of the kernel takes.
const EVENTS_PER_CALL: usize = 256;

impl Departures {
    /// A new, empty instance.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` was just created and nobody else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { epoll })
    }

    /// The descriptor to poll: readable when [`Self::drain`] has something to say.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Reports the closing of `socket` once, as `token`. The kernel forgets it when the socket is closed.
    pub(crate) fn watch_closing(&self, socket: RawFd, token: u64) -> io::Result<()> {
        self.add(socket, libc::EPOLLRDHUP | libc::EPOLLET, token)
    }

    /// Reports every wake-up of `waker` as `token`.
    pub(crate) fn watch_waker(&self, waker: &Waker, token: u64) -> io::Result<()> {
        self.add(waker.fd.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, token)
    }

    fn add(&self, fd: RawFd, events: libc::c_int, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: token };
        // SAFETY: `event` lives through the call, which copies it.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) })?;
        Ok(())
    }

    /// Calls `each` with the token of every event that is there; never waits. At most 64 rounds of 256 events.
    pub(crate) fn drain(&self, mut each: impl FnMut(u64)) {
        for _ in 0..64 {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_CALL];
            // SAFETY: the array has room for the number of events that is passed.
            let n = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), EVENTS_PER_CALL as i32, 0) };
            let n = usize::try_from(n).unwrap_or(0);
            for event in &events[..n] {
                each(event.u64);
            }
            if n < EVENTS_PER_CALL {
                return;
            }
        }
    }
}

/// Wakes a data thread from any other thread (an eventfd). Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Waker {
    fd: Arc<OwnedFd>,
}

impl Waker {
    /// A new waker with nothing pending.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: `fd` was just created and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd: Arc::new(fd) })
    }

    /// Wakes the thread that watches. Never blocks: a full counter means that it is awake already.
    pub(crate) fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the buffer is valid for its 8 bytes; the result is of no interest (see above).
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes what is pending, so that the next [`Self::wake`] is seen as new.
    pub(crate) fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: the buffer is valid for its 8 bytes; EAGAIN (nothing pending) is fine.
        unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

/// Microseconds of the kernel's coarse monotonic clock: a few nanoseconds to read, a few milliseconds coarse, never 0.
pub(crate) fn coarse_us() -> u64 {
    clock_us(libc::CLOCK_MONOTONIC_COARSE)
}

/// Microseconds of the kernel's monotonic clock, never 0.
pub(crate) fn monotonic_us() -> u64 {
    clock_us(libc::CLOCK_MONOTONIC)
}

fn clock_us(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writes during the call, which cannot fail for the clocks that are asked for.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    (now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1_000).max(1)
}

/// What waits to be received on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Nothing.
    Nothing,
    /// Bytes.
    Bytes,
    /// The end of the stream, or an error.
    End,
}

/// Looks at what waits on a socket, and leaves it there. Never waits.
pub(crate) fn waiting(socket: RawFd) -> Waiting {
    let mut byte = 0_u8;
    // SAFETY: the buffer is valid for its one byte; a descriptor that is closed already only gives an error.
    let n = unsafe { libc::recv(socket, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    if n > 0 {
        Waiting::Bytes
    } else if n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock {
        Waiting::Nothing
    } else {
        Waiting::End
    }
}

/// Takes what waits on a socket, as much as there is room for; says how many bytes. Never waits.
pub(crate) fn take_waiting(socket: RawFd, into: &mut [u8]) -> (Waiting, usize) {
    // SAFETY: the buffer is valid for its whole length; a descriptor that is closed already only gives an error.
    let n = unsafe { libc::recv(socket, into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
    match usize::try_from(n) {
        Ok(0) => (Waiting::End, 0),
        Ok(n) => (Waiting::Bytes, n),
        Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => (Waiting::Nothing, 0),
        Err(_) => (Waiting::End, 0),
    }
}

/// Ends a connection both ways: what waits on it ends with an error or with the end of the stream.
pub(crate) fn shut_down(socket: RawFd) {
    // SAFETY: no pointers are passed; a descriptor that is closed already only gives an error.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

/// Takes one connection that waits at a listening socket; never waits. `None`: there is none.
pub(crate) fn accept_waiting(listener: RawFd) -> Option<std::net::TcpStream> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no address is asked for, so no memory is written.
    let fd = unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    // SAFETY: `fd` was just created by the call and nobody else owns it.
    (fd >= 0).then(|| unsafe { std::net::TcpStream::from_raw_fd(fd) })
}

/// Stops a listening socket: a pending accept on it ends with an error, and no new connection is taken.
pub(crate) fn stop_listening(fd: RawFd) {
    // SAFETY: no pointers are passed; a descriptor that is closed already only gives an error.
    unsafe { libc::shutdown(fd, libc::SHUT_RD) };
}

/// Gives the calling thread a lower priority than others have: where it shares a core with a data thread, that one goes first.
/// Failing is harmless.
pub(crate) fn lower_priority() {
    // SAFETY: no pointers are passed. On Linux a process of 0 means the calling thread alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, HELPER_NICENESS) };
}

/// How much other threads are preferred: a share of about a third beside one that is as busy.
const HELPER_NICENESS: libc::c_int = 5;

/// Pins the calling thread to the `index`-th core that this process may use. Failing is harmless.
pub(crate) fn pin_to_core(index: usize) {
    // SAFETY: cpu_set_t is plain data for which all zeroes is the empty set, and the size passed is its own.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed) != 0 {
            return;
        }
        let cores: Vec<usize> =
            (0..libc::CPU_SETSIZE.cast_unsigned() as usize).filter(|&core| libc::CPU_ISSET(core, &allowed)).collect();
        if cores.is_empty() {
            return;
        }
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cores[index % cores.len()], &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one);
    }
}

/// Freed memory up to this much stays with the process.
#[cfg(target_env = "gnu")]
const MEMORY_KEPT_BYTES: libc::c_int = 64 << 20;
/// Larger pieces come from the kernel one by one and go back to it when they are freed.
#[cfg(target_env = "gnu")]
const PIECE_OF_ITS_OWN_BYTES: libc::c_int = 1 << 20;

/// Keeps glibc from giving back the top of a data thread's memory whenever another thread frees something there (a batch of
/// log lines): the data thread would ask for it again page by page, with up to four `mprotect` calls a request.
pub(crate) fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: two numbers are passed; where one is refused, nothing changes.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, MEMORY_KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, PIECE_OF_ITS_OWN_BYTES);
    }
}

/// Raises the soft limit of open files to the hard one; returns the limit that now holds.
pub(crate) fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes and reads during both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 0;
        }
        let before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) != 0 {
            limit.rlim_cur = before;
        }
    }
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_closing_peer_is_reported_once_and_a_waker_each_time() {
        let departures = Departures::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        departures.watch_closing(server.as_raw_fd(), 7).unwrap();
        let waker = Waker::new().unwrap();
        departures.watch_waker(&waker, 9).unwrap();

        let mut seen = Vec::new();
        departures.drain(|token| seen.push(token));
        assert!(seen.is_empty(), "nothing has happened yet: {seen:?}");

        waker.wake();
        departures.drain(|token| seen.push(token));
        waker.clear();
        waker.wake();
        departures.drain(|token| seen.push(token));
        assert_eq!(seen, [9, 9]);

        drop(client);
        seen.clear();
        departures.drain(|token| seen.push(token));
        departures.drain(|token| seen.push(token));
        assert_eq!(seen, [7]);
    }
}
