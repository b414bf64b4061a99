//! Buffers that the kernel picks from when bytes come.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::io;
use std::mem::size_of;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

/// Buffers of the shared ring; a power of two. 4 MiB in all.
const BUFFERS: u16 = 1024;
const BUFFER_BYTES: usize = 4 << 10;
/// Their number with the kernel.
pub(super) const BUFFER_GROUP: u16 = 0;
const PAGE_BYTES: usize = 4096;

/// The buffers that the kernel receives into.
pub(super) struct Buffers {
    /// Shared with the kernel; [`BUFFERS`] entries, never freed.
    ring: NonNull<BufRingEntry>,
    /// Their memory, [`BUFFER_BYTES`] each.
    memory: Box<[u8]>,
    tail: u16,
}

impl Buffers {
    /// Makes them and tells the kernel of them.
    pub(super) fn register(ring: &IoUring) -> io::Result<Self> {
        let bytes = usize::from(BUFFERS) * size_of::<BufRingEntry>();
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).map_err(io::Error::other)?;
        // SAFETY: the layout is not of size zero.
        let Some(entries) = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<BufRingEntry>()) else {
            handle_alloc_error(layout)
        };
        // SAFETY: the entries are page-aligned, as many as said, and are never freed, so they outlive the ring.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries.as_ptr() as u64, BUFFERS, BUFFER_GROUP, 0)? };
        let memory = vec![0; usize::from(BUFFERS) * BUFFER_BYTES].into_boxed_slice();
        let mut buffers = Self { ring: entries, memory, tail: 0 };
        (0..BUFFERS).for_each(|id| buffers.give_back(id));
        Ok(buffers)
    }

    fn place(id: u16) -> usize {
        usize::from(id) * BUFFER_BYTES
    }

    /// Bytes of one.
    pub(super) fn bytes(&self, id: u16, range: Range<usize>) -> &[u8] {
        let begin = Self::place(id);
        &self.memory[begin + range.start..begin + range.end]
    }

    /// Lets the kernel receive into this buffer again.
    pub(super) fn give_back(&mut self, id: u16) {
        let address = self.memory[Self::place(id)..].as_ptr() as u64;
        let at = usize::from(self.tail & (BUFFERS - 1));
        // SAFETY: `at` is within the entries, which live as long as the process; the kernel reads an entry only once the tail is past
        // it, and there are as many entries as buffers, so this one is not in its hands.
        let entry = unsafe { &mut *self.ring.as_ptr().add(at) };
        entry.set_addr(address);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the address of the first entry is given, which is initialised; the tail is 16 bits, aligned, and only written here.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.ring.as_ptr()).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}
