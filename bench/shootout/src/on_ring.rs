//! A ring of our own on `io-uring` 0.7: one multishot accept, one multishot receive per connection, buffers that the kernel picks
//! from a ring they all share, so that a connection that waits holds none. No tasks: completions drive the relay.
//!
//! Life of a connection: a slot in a slab while it or an operation of it lives. To close is to shut the socket down; its operations
//! then complete, and with the last one the descriptor is closed and the slot is free again. So no completion meets a stranger.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::relay::{Broken, Keep, Relay, Send, Way};

mod buffers;

use buffers::{BUFFER_GROUP, Buffers};

const ENTRIES: u32 = 4096;

/// What a completion belongs to; with the slot it makes up the 64 bits that the kernel hands back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Accept,
    Connect,
    Recv,
    Send,
}

fn token(operation: Operation, slot: usize) -> u64 {
    (operation as u64) << 56 | slot as u64
}

fn operation_of(token: u64) -> (Operation, usize) {
    let operation = match token >> 56 {
        0 => Operation::Accept,
        1 => Operation::Connect,
        2 => Operation::Recv,
        // Only this module makes tokens.
        _ => Operation::Send,
    };
    (operation, (token & ((1 << 56) - 1)) as usize)
}

/// Bytes on their way out.
enum Piece {
    /// Of a shared buffer, which goes back when they are sent.
    Received(u16, Range<usize>),
    Written(Vec<u8>),
}

/// What a connection is for.
enum Role {
    Client { relay: Relay, upstream: Option<usize>, keep: Keep },
    Upstream { client: Option<usize> },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    Open,
    /// What is queued is sent, then it is shut.
    Ending,
    Shut,
}

struct Link {
    fd: OwnedFd,
    role: Role,
    phase: Phase,
    /// Bounded by the shared buffers: none is written without one received.
    queue: VecDeque<Piece>,
    /// The first of the queue is with the kernel.
    sending: bool,
    receiving: bool,
    /// Operations that have not completed.
    operations: u8,
    /// Where it is being connected to; the kernel reads it.
    address: Option<Box<SockAddr>>,
}

struct Server {
    ring: IoUring,
    buffers: Buffers,
    listener: TcpListener,
    addresses: Vec<SocketAddr>,
    next: usize,
    links: Vec<Option<Link>>,
    free: Vec<usize>,
    /// Open upstream connections without a client.
    idle: Vec<usize>,
    /// Connections whose receive ended because there was no buffer.
    starved: Vec<usize>,
}

/// Serves until the process ends.
pub fn serve(listener: TcpListener, upstreams: Vec<SocketAddr>) -> io::Result<()> {
    let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES)?;
    let buffers = Buffers::register(&ring)?;
    let mut server = Server {
        ring,
        buffers,
        listener,
        addresses: upstreams,
        next: 0,
        links: Vec::new(),
        free: Vec::new(),
        idle: Vec::new(),
        starved: Vec::new(),
    };
    server.accept();
    let mut completions: Vec<cqueue::Entry> = Vec::with_capacity(ENTRIES as usize);
    loop {
        match server.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        completions.extend(server.ring.completion());
        for completion in completions.drain(..) {
            server.completed(&completion);
        }
        for slot in std::mem::take(&mut server.starved) {
            server.receive(slot);
        }
    }
}

impl Server {
    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: what an entry points to lives until its completion: shared buffers and the first piece of a queue stay where they are
        // until then, addresses are boxed, and a link is dropped with its last operation.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            if let Err(error) = self.ring.submit() {
                // Nothing can be asked of the kernel any more.
                eprintln!("shootout: {error}");
                std::process::exit(1);
            }
        }
    }

    fn accept(&mut self) {
        let entry =
            opcode::AcceptMulti::new(Fd(self.listener.as_raw_fd())).build().user_data(token(Operation::Accept, 0));
        self.push(&entry);
    }

    fn receive(&mut self, slot: usize) {
        let Some(link) = self.links[slot].as_mut().filter(|link| link.phase == Phase::Open && !link.receiving) else {
            return;
        };
        link.receiving = true;
        link.operations += 1;
        let entry = opcode::RecvMulti::new(Fd(link.fd.as_raw_fd()), BUFFER_GROUP).build();
        self.push(&entry.user_data(token(Operation::Recv, slot)));
    }

    fn add(&mut self, link: Link) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.links[slot] = Some(link);
                slot
            }
            None => {
                self.links.push(Some(link));
                self.links.len() - 1
            }
        }
    }

    fn connect(&mut self, client: usize) -> io::Result<usize> {
        let address = self.addresses[self.next % self.addresses.len()];
        self.next = self.next.wrapping_add(1);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_tcp_nodelay(true)?;
        let slot = self.add(Link {
            address: Some(Box::new(address.into())),
            operations: 1,
            ..Link::new(socket.into(), Role::Upstream { client: Some(client) }, Phase::Connecting)
        });
        if let Some(Link { fd, address: Some(address), .. }) = &self.links[slot] {
            let entry = opcode::Connect::new(Fd(fd.as_raw_fd()), address.as_ptr().cast(), address.len()).build();
            self.push(&entry.user_data(token(Operation::Connect, slot)));
        }
        Ok(slot)
    }

    fn completed(&mut self, completion: &cqueue::Entry) {
        let (operation, slot) = operation_of(completion.user_data());
        let (result, flags) = (completion.result(), completion.flags());
        match operation {
            Operation::Accept => {
                if result >= 0 {
                    // SAFETY: the kernel has just made this descriptor for us.
                    let fd = unsafe { OwnedFd::from_raw_fd(result) };
                    let role = Role::Client { relay: Relay::new(Way::Request), upstream: None, keep: Keep::Open };
                    let slot = self.add(Link::new(fd, role, Phase::Open));
                    self.receive(slot);
                }
                if !cqueue::more(flags) {
                    self.accept();
                }
            }
            Operation::Connect => {
                let Some(link) = &mut self.links[slot] else { return };
                link.operations -= 1;
                link.address = None;
                if result < 0 || link.phase != Phase::Connecting {
                    self.close_both(slot);
                } else {
                    link.phase = Phase::Open;
                    self.receive(slot);
                    self.send(slot);
                }
            }
            Operation::Recv => self.received(slot, result, flags),
            Operation::Send => {
                let Some(link) = &mut self.links[slot] else { return };
                link.operations -= 1;
                link.sending = false;
                let sent = link.queue.pop_front();
                let whole = sent.as_ref().is_some_and(|piece| usize::try_from(result) == Ok(piece.len()));
                if let Some(Piece::Received(id, _)) = sent {
                    self.buffers.give_back(id);
                }
                if whole { self.send(slot) } else { self.close_both(slot) }
            }
        }
        self.forget(slot, operation);
    }

    fn received(&mut self, slot: usize, result: i32, flags: u32) {
        let id = cqueue::buffer_select(flags);
        let Some(link) = &mut self.links[slot] else { return };
        let open = link.phase == Phase::Open;
        if !cqueue::more(flags) {
            link.operations -= 1;
            link.receiving = false;
        }
        let received = usize::try_from(result).unwrap_or(0);
        match id {
            Some(id) if open && received > 0 => {
                if self.relay(slot, id, received).is_err() {
                    self.close_both(slot);
                }
            }
            id => {
                if let Some(id) = id {
                    self.buffers.give_back(id);
                }
                if result == -libc::ENOBUFS {
                    self.starved.push(slot);
                } else if open && result <= 0 {
                    self.ended(slot);
                }
            }
        }
        if !cqueue::more(flags) && result > 0 {
            self.receive(slot);
        }
    }

    /// Bytes have come: they go to the other side.
    fn relay(&mut self, slot: usize, id: u16, received: usize) -> Result<(), Broken> {
        // The client's link holds the message on its way.
        let (client, way) = match self.links[slot].as_ref().map(|link| &link.role) {
            Some(Role::Client { .. }) => (slot, Way::Request),
            Some(Role::Upstream { client: Some(client) }) => (*client, Way::Response),
            Some(Role::Upstream { client: None }) | None => {
                self.buffers.give_back(id);
                return Err(Broken::Overrun);
            }
        };
        let Some(Link { role: Role::Client { relay, upstream, .. }, .. }) = &mut self.links[client] else {
            self.buffers.give_back(id);
            return Err(Broken::Overrun);
        };
        let (known_upstream, mut out) = (*upstream, Vec::new());
        // A client that sends before its answer has ended is not served.
        let sent = if relay.way() == way {
            relay.feed(self.buffers.bytes(id, 0..received), &mut out)
        } else {
            Err(Broken::Overrun)
        };
        let (done, keep) = (relay.is_done(), relay.keep());
        let piece = match sent {
            Ok(Send::Received(range)) => Some(Piece::Received(id, range)),
            other => {
                self.buffers.give_back(id);
                match other? {
                    Send::Written => Some(Piece::Written(out)),
                    Send::Nothing | Send::Received(_) => None,
                }
            }
        };
        let to = match (way, known_upstream) {
            (Way::Response, _) => client,
            (Way::Request, Some(upstream)) => upstream,
            (Way::Request, None) => self.upstream_for(client).map_err(|_| Broken::Overrun)?,
        };
        if let (Some(piece), Some(link)) = (piece, &mut self.links[to]) {
            link.queue.push_back(piece);
            self.send(to);
        }
        if done {
            self.message_done(client, way, keep);
        }
        Ok(())
    }

    fn upstream_for(&mut self, client: usize) -> io::Result<usize> {
        let slot = match self.idle.pop() {
            Some(slot) => slot,
            None => self.connect(client)?,
        };
        if let Some(Link { role: Role::Upstream { client: of }, .. }) = &mut self.links[slot] {
            *of = Some(client);
        }
        if let Some(Link { role: Role::Client { upstream, .. }, .. }) = &mut self.links[client] {
            *upstream = Some(slot);
        }
        Ok(slot)
    }

    fn message_done(&mut self, client: usize, way: Way, keep_connection: Keep) {
        let Some(Link { role: Role::Client { relay, upstream, keep }, .. }) = &mut self.links[client] else { return };
        match way {
            Way::Request => {
                *keep = keep_connection;
                *relay = Relay::new(Way::Response);
            }
            Way::Response => {
                *relay = Relay::new(Way::Request);
                let (upstream, keep) = (upstream.take(), *keep);
                if let Some(slot) = upstream {
                    self.release(slot, keep_connection);
                }
                if keep == Keep::Close {
                    self.end(client);
                }
            }
        }
    }

    /// The upstream has answered: it is kept for the next request, or closed.
    fn release(&mut self, slot: usize, keep: Keep) {
        if let Some(Link { role: Role::Upstream { client }, .. }) = &mut self.links[slot] {
            *client = None;
        }
        match keep {
            Keep::Open => self.idle.push(slot),
            Keep::Close => self.shut(slot),
        }
    }

    /// The peer has ended its side.
    fn ended(&mut self, slot: usize) {
        let client = match self.links[slot].as_ref().map(|link| &link.role) {
            Some(Role::Upstream { client }) => *client,
            Some(Role::Client { .. }) | None => None,
        };
        if let Some(client) = client
            && let Some(Link { role: Role::Client { relay, upstream, .. }, .. }) = &mut self.links[client]
            && relay.way() == Way::Response
            && relay.may_end()
        {
            *upstream = None;
            self.end(client);
            self.shut(slot);
        } else {
            self.close_both(slot);
        }
    }

    fn send(&mut self, slot: usize) {
        let Some(link) = &mut self.links[slot] else { return };
        if link.sending || matches!(link.phase, Phase::Connecting | Phase::Shut) {
            return;
        }
        let Some(piece) = link.queue.front() else {
            if link.phase == Phase::Ending {
                self.shut(slot);
            }
            return;
        };
        let bytes = match piece {
            Piece::Received(id, range) => self.buffers.bytes(*id, range.clone()),
            Piece::Written(bytes) => bytes.as_slice(),
        };
        let entry = opcode::Send::new(Fd(link.fd.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32);
        let entry = entry.flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL).build();
        link.sending = true;
        link.operations += 1;
        self.push(&entry.user_data(token(Operation::Send, slot)));
    }

    /// Closes when all is sent.
    fn end(&mut self, slot: usize) {
        if let Some(link) = self.links[slot].as_mut().filter(|link| link.phase == Phase::Open) {
            link.phase = Phase::Ending;
            self.send(slot);
        }
    }

    fn close_both(&mut self, slot: usize) {
        let other = match self.links[slot].as_mut().map(|link| &mut link.role) {
            Some(Role::Client { upstream, .. }) => upstream.take(),
            Some(Role::Upstream { client }) => client.take(),
            None => None,
        };
        self.idle.retain(|idle| *idle != slot);
        self.shut(slot);
        if let Some(other) = other {
            self.shut(other);
        }
    }

    fn shut(&mut self, slot: usize) {
        let Some(link) = &mut self.links[slot] else { return };
        if link.phase != Phase::Shut {
            link.phase = Phase::Shut;
            // SAFETY: the descriptor is open: the link owns it. That it is not connected any more is no harm.
            unsafe { libc::shutdown(link.fd.as_raw_fd(), libc::SHUT_RDWR) };
        }
        self.free_if_over(slot);
    }

    /// After a completion: a link that was shut is dropped with its last operation.
    fn forget(&mut self, slot: usize, operation: Operation) {
        if operation != Operation::Accept {
            self.free_if_over(slot);
        }
    }

    fn free_if_over(&mut self, slot: usize) {
        let over = |link: &Link| link.phase == Phase::Shut && link.operations == 0;
        if !self.links[slot].as_ref().is_some_and(over) {
            return;
        }
        for piece in self.links[slot].take().into_iter().flat_map(|link| link.queue) {
            if let Piece::Received(id, _) = piece {
                self.buffers.give_back(id);
            }
        }
        self.free.push(slot);
    }
}

impl Link {
    fn new(fd: OwnedFd, role: Role, phase: Phase) -> Self {
        let queue = VecDeque::new();
        Self { fd, role, phase, queue, sending: false, receiving: false, operations: 0, address: None }
    }
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Received(_, range) => range.len(),
            Self::Written(bytes) => bytes.len(),
        }
    }
}
