//! Byte buffers that are taken from the thread's pool and go back to it when dropped.

use std::cell::RefCell;
use std::ops::Deref;

use monoio::buf::{IoBufMut, SliceMut};

/// The sizes that are pooled. A receive starts small, so that a waiting connection holds little, and grows with what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SizeClass {
    /// 2 KiB: a connection that waits.
    Small,
    /// 16 KiB: a head, a burst of SSE events.
    Medium,
    /// 64 KiB: a large body. Half the system calls of 16 KiB.
    Large,
    /// 256 KiB: a long prompt. Memory of this size that is freed goes back to the kernel, and is zeroed page by page when it
    /// is asked for again.
    Huge,
}

impl SizeClass {
    const ALL: [Self; 4] = [Self::Small, Self::Medium, Self::Large, Self::Huge];

    /// The capacity in bytes.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Small => 2 << 10,
            Self::Medium => 16 << 10,
            Self::Large => 64 << 10,
            Self::Huge => 256 << 10,
        }
    }

    /// How many buffers of this size a thread keeps (4 MiB at most of each).
    const fn pooled_max(self) -> usize {
        (4 << 20) / self.bytes()
    }

    /// The next size up from a capacity, for a stream: up to [`Self::Large`].
    pub(crate) const fn larger_than(bytes: usize) -> Self {
        if bytes < Self::Medium.bytes() { Self::Medium } else { Self::Large }
    }
}

thread_local! {
    static POOL: RefCell<[Vec<Vec<u8>>; SizeClass::ALL.len()]> = const { RefCell::new([const { Vec::new() }; SizeClass::ALL.len()]) };
}

/// A contiguous buffer: `len` bytes of content, room up to the capacity.
#[derive(Debug, Default)]
pub(crate) struct Buf {
    bytes: Vec<u8>,
}

impl Buf {
    /// A buffer of a pooled size.
    pub(crate) fn pooled(class: SizeClass) -> Self {
        let pooled = POOL.with(|pool| pool.borrow_mut()[class as usize].pop());
        Self { bytes: pooled.unwrap_or_else(|| Vec::with_capacity(class.bytes())) }
    }

    /// A buffer with room for at least `bytes`; of a pooled size where one is large enough.
    pub(crate) fn with_room(bytes: usize) -> Self {
        match SizeClass::ALL.into_iter().find(|class| class.bytes() >= bytes) {
            Some(class) => Self::pooled(class),
            None => Self { bytes: Vec::with_capacity(bytes) },
        }
    }

    /// Bytes that can still be received.
    pub(crate) fn room(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    /// Makes room to receive into where there is none: of the smallest size at first.
    pub(crate) fn make_room(&mut self) {
        if self.room() == 0 {
            self.reserve(self.bytes.len().max(SizeClass::Small.bytes()));
        }
    }

    /// Makes room for at least `extra` more bytes, by moving to a larger buffer where needed.
    pub(crate) fn reserve(&mut self, extra: usize) {
        if self.room() >= extra {
            return;
        }
        // At least twice as large: what grows piece by piece must not be copied each time.
        let mut larger = Self::with_room((self.bytes.len() + extra).max(self.bytes.capacity().saturating_mul(2)));
        larger.bytes.extend_from_slice(&self.bytes);
        *self = larger;
    }

    /// Appends.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Forgets the content, keeps the room.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Keeps the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Drops the first `n` bytes; the rest moves to the front.
    pub(crate) fn consume(&mut self, n: usize) {
        self.bytes.drain(..n.min(self.bytes.len()));
    }

    /// The free part, for a receive.
    pub(super) fn into_spare(mut self) -> SliceMut<Vec<u8>> {
        let bytes = std::mem::take(&mut self.bytes);
        let (begin, end) = (bytes.len(), bytes.capacity());
        bytes.slice_mut(begin..end)
    }

    /// Back from a receive.
    pub(super) fn from_spare(spare: SliceMut<Vec<u8>>) -> Self {
        Self { bytes: spare.into_inner() }
    }
}

impl From<Vec<u8>> for Buf {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let capacity = self.bytes.capacity();
        let Some(class) = SizeClass::ALL.into_iter().find(|class| class.bytes() == capacity) else { return };
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        // A buffer that outlives its thread's pool is simply freed.
        let _ = POOL.try_with(|pool| {
            let free = &mut pool.borrow_mut()[class as usize];
            if free.len() < class.pooled_max() {
                free.push(bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_used_again_and_comes_back_empty() {
        let mut first = Buf::pooled(SizeClass::Medium);
        first.extend(b"secret");
        let address = first.as_ptr();
        drop(first);
        let second = Buf::pooled(SizeClass::Medium);
        assert_eq!(second.as_ptr(), address);
        assert!(second.is_empty());
    }

    #[test]
    fn growing_keeps_the_content() {
        let mut buf = Buf::pooled(SizeClass::Small);
        for round in 0..100_000_u32 {
            buf.extend(&round.to_le_bytes());
        }
        assert_eq!(buf.len(), 400_000);
        assert!(buf.chunks(4).enumerate().all(|(i, four)| four == (i as u32).to_le_bytes()));
        buf.consume(4);
        assert_eq!(buf[..4], 1_u32.to_le_bytes());
    }
}
