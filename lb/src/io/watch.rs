//! Waiting with an end: every operation is raced against the peers that may leave and the deadline of its phase.
//!
//! A [`Watch`] belongs to one connection. Deadlines are checked by one sweep of the thread every 20 ms, not by a timer per
//! operation: arming one costs a store. Departed peers are told by the thread's [`crate::sys::Departures`].

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{FromRawFd, RawFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker as TaskWaker};
use std::time::Duration;

use monoio::net::TcpStream;

use super::runtime::sleep;
use crate::sys::{Departures, Waiting, Waker, coarse_us, shut_down, waiting};

/// How often deadlines are checked; one may be seen two of these late.
const SWEEP: Duration = Duration::from_millis(20);

/// The token of the thread's own waker; connection tokens count from 0.
const MAILBOX: u64 = u64::MAX;

/// Why a wait ended before its operation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A watched peer closed or reset its connection.
    Gone,
    /// The deadline passed.
    TimedOut,
}

/// How often a deadline was found passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overdue {
    No,
    Once,
    Yes,
}

/// What is known about one connection besides its bytes.
#[derive(Debug)]
pub(crate) struct Watch {
    gone: Cell<bool>,
    /// In microseconds of [`coarse_us`]; 0 is none.
    deadline_us: Cell<u64>,
    /// What was armed, in microseconds; 0 is nothing.
    timeout_us: Cell<u64>,
    /// Whether sweeps have found the deadline passed.
    overdue: Cell<Overdue>,
    waiting: RefCell<Option<TaskWaker>>,
}

impl Watch {
    /// Whether the peer has closed its side (it will send nothing more, and most likely reads nothing more).
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Sets the deadline of what is awaited next. It is seen by the second sweep after it.
    pub(crate) fn arm(&self, timeout: Duration) {
        self.timeout_us.set(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX));
        self.progressed();
    }

    /// What is awaited goes on: the time that was armed begins anew.
    pub(super) fn progressed(&self) {
        let timeout_us = self.timeout_us.get();
        if timeout_us != 0 {
            self.deadline_us.set(coarse_us().saturating_add(timeout_us));
        }
        self.overdue.set(Overdue::No);
    }

    /// No deadline.
    pub(crate) fn disarm(&self) {
        self.deadline_us.set(0);
        self.timeout_us.set(0);
        self.overdue.set(Overdue::No);
    }

    fn wait(&self, waker: &TaskWaker) {
        let mut waiting = self.waiting.borrow_mut();
        match waiting.as_ref() {
            Some(known) if known.will_wake(waker) => {}
            Some(_) | None => *waiting = Some(waker.clone()),
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waiting.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// Awaits `operation`, unless the peer of `peer` leaves or the deadline of `deadline` passes before.
///
/// Ending early drops the operation: a receive may lose bytes, so the connection must then be closed.
pub(crate) fn until<'a, F: Future>(operation: F, peer: Option<&'a Watch>, deadline: &'a Watch) -> Until<'a, F> {
    Until { operation, peer, deadline }
}

/// Awaits `operation`, unless `stop` ends before: then the operation is dropped.
pub(crate) async fn unless<T>(operation: impl Future<Output = T>, stop: impl Future<Output = ()>) -> Option<T> {
    let (mut operation, mut stop) = (pin!(operation), pin!(stop));
    poll_fn(|cx| {
        if let Poll::Ready(done) = operation.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        stop.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Ends when there are bytes to be received on a socket that is being written to; looks every [`SWEEP`]. Where the peer has
/// ended its side without a word, the connection is ended instead, so that the write fails and gives its buffer back.
pub(crate) async fn speaks(socket: RawFd) {
    loop {
        sleep(SWEEP).await;
        match waiting(socket) {
            Waiting::Nothing => {}
            Waiting::Bytes => return,
            Waiting::End => {
                shut_down(socket);
                return std::future::pending().await;
            }
        }
    }
}

/// See [`until`]. (No `async fn`: it would hold the operation twice, as its argument and while it is awaited.)
#[derive(Debug)]
pub(crate) struct Until<'a, F> {
    operation: F,
    peer: Option<&'a Watch>,
    deadline: &'a Watch,
}

impl<T, F: Future<Output = T>> Future for Until<'_, F> {
    type Output = Result<T, Stop>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: `operation` is never moved out of the pinned value; the other fields are shared references.
        let (operation, peer, deadline) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.operation), this.peer, this.deadline)
        };
        if let Poll::Ready(done) = operation.poll(cx) {
            return Poll::Ready(Ok(done));
        }
        if let Some(peer) = peer {
            if peer.is_gone() {
                return Poll::Ready(Err(Stop::Gone));
            }
            peer.wait(cx.waker());
        }
        if deadline.overdue.get() == Overdue::Yes {
            return Poll::Ready(Err(Stop::TimedOut));
        }
        if deadline.deadline_us.get() != 0 {
            deadline.wait(cx.waker());
        }
        Poll::Pending
    }
}

/// The watches of one data thread, and the task that serves them.
#[derive(Debug)]
pub(crate) struct Reactor {
    departures: Departures,
    waker: Waker,
    slots: RefCell<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    entries: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Tells a late event for a closed connection from one for the connection that has the slot now.
    generation: u32,
    watch: Option<Rc<Watch>>,
}

fn token_of(slot: u32, generation: u32) -> u64 {
    // The top bit stays clear, so that no token is `MAILBOX`.
    (u64::from(generation & 0x7FFF_FFFF) << 32) | u64::from(slot)
}

impl Reactor {
    /// A reactor that is woken by `waker`.
    pub(crate) fn new(waker: Waker) -> io::Result<Rc<Self>> {
        let departures = Departures::new()?;
        departures.watch_waker(&waker, MAILBOX)?;
        Ok(Rc::new(Self { departures, waker, slots: RefCell::default() }))
    }

    /// A deadline that belongs to no connection (yet).
    pub(crate) fn deadline(self: &Rc<Self>, timeout: Duration) -> Registration {
        let registration = self.enter();
        registration.watch.arm(timeout);
        registration
    }

    /// Starts watching the peer of `socket`.
    pub(super) fn register(self: &Rc<Self>, socket: RawFd) -> io::Result<Registration> {
        let registration = self.enter();
        self.departures.watch_closing(socket, registration.token)?;
        Ok(registration)
    }

    fn enter(self: &Rc<Self>) -> Registration {
        let watch = Rc::new(Watch {
            gone: Cell::new(false),
            deadline_us: Cell::new(0),
            timeout_us: Cell::new(0),
            overdue: Cell::new(Overdue::No),
            waiting: RefCell::new(None),
        });
        let token = {
            let mut slots = self.slots.borrow_mut();
            let slot = slots.free.pop().unwrap_or_else(|| {
                slots.entries.push(Slot::default());
                u32::try_from(slots.entries.len() - 1).unwrap_or(u32::MAX)
            });
            let entry = &mut slots.entries[slot as usize];
            entry.generation = entry.generation.wrapping_add(1);
            entry.watch = Some(watch.clone());
            token_of(slot, entry.generation)
        };
        Registration { reactor: self.clone(), token, watch }
    }

    /// Serves departures and wake-ups for ever; `on_wake` is called after each wake-up of the thread's [`Waker`].
    pub(crate) async fn serve(self: Rc<Self>, mut on_wake: impl FnMut()) -> io::Result<()> {
        // SAFETY: the descriptor stays open as long as `self`; `pollable` gives it back before it would close it.
        let std_stream = unsafe { std::net::TcpStream::from_raw_fd(self.departures.raw_fd()) };
        let pollable = match TcpStream::from_std(std_stream) {
            Ok(stream) => std::mem::ManuallyDrop::new(stream),
            Err(error) => return Err(error),
        };
        loop {
            pollable.readable(false).await?;
            let mut woken = false;
            self.departures.drain(|token| {
                if token == MAILBOX {
                    woken = true;
                } else {
                    self.departed(token);
                }
            });
            if woken {
                self.waker.clear();
                on_wake();
            }
        }
    }

    /// Wakes whoever waits for anything; most find that nothing has come.
    pub(crate) fn wake_all(&self) {
        let slots = self.slots.borrow();
        slots.entries.iter().filter_map(|slot| slot.watch.as_ref()).for_each(|watch| watch.wake());
    }

    /// Has `on_wake` called in a later turn.
    pub(crate) fn wake_again(&self) {
        self.waker.wake();
    }

    /// Wakes everything whose deadline has passed, every [`SWEEP`], for ever.
    pub(crate) async fn sweep(self: Rc<Self>) {
        loop {
            sleep(SWEEP).await;
            let now_us = coarse_us();
            let slots = self.slots.borrow();
            for watch in slots.entries.iter().filter_map(|slot| slot.watch.as_ref()) {
                let deadline_us = watch.deadline_us.get();
                if deadline_us == 0 || deadline_us > now_us {
                    continue;
                }
                // After a stall of the thread the sweep may come before what has happened meanwhile is seen: the second sweep
                // that finds a deadline passed believes it.
                match watch.overdue.get() {
                    Overdue::No => watch.overdue.set(Overdue::Once),
                    Overdue::Once | Overdue::Yes => {
                        watch.overdue.set(Overdue::Yes);
                        watch.wake();
                    }
                }
            }
        }
    }

    fn departed(&self, token: u64) {
        let slot = (token & u64::from(u32::MAX)) as usize;
        let slots = self.slots.borrow();
        let Some(entry) = slots.entries.get(slot) else { return };
        if let Some(watch) = &entry.watch
            && token_of(slot as u32, entry.generation) == token
        {
            watch.gone.set(true);
            watch.wake();
        }
    }

    fn release(&self, token: u64) {
        let slot = (token & u64::from(u32::MAX)) as u32;
        let mut slots = self.slots.borrow_mut();
        slots.entries[slot as usize].watch = None;
        slots.free.push(slot);
    }
}

/// A watch in the reactor's table; leaves it when dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    reactor: Rc<Reactor>,
    token: u64,
    pub(super) watch: Rc<Watch>,
}

impl Registration {
    /// The watch.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.reactor.release(self.token);
    }
}
