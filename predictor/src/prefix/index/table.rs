//! What an index is kept in: items at stable places, and a table that finds them by their keys.

use xxhash_rust::xxh3::xxh3_64;

/// Items at stable places, at most `len_max` of them.
pub(super) struct Slab<T> {
    pub(super) items: Vec<T>,
    pub(super) free: Vec<u32>,
    pub(super) len: u32,
    pub(super) len_max: u32,
}

impl<T> Slab<T> {
    pub(super) fn new(len_max: u32) -> Self {
        Slab {
            items: Vec::with_capacity(len_max as usize),
            free: Vec::with_capacity(len_max as usize),
            len: 0,
            len_max,
        }
    }

    pub(super) fn add(&mut self, item: T) -> u32 {
        self.len += 1;
        if let Some(at) = self.free.pop() {
            self.items[at as usize] = item;
            return at;
        }
        self.items.push(item);
        self.items.len() as u32 - 1
    }

    pub(super) fn free(&mut self, at: u32) {
        self.len -= 1;
        self.free.push(at);
    }
}

/// Open-addressed hash table of places in a slab, linear probing, deletion by shifting back: no tombstones, so it does
/// not age. A slot holds half of the mixed key above place + 1, so that what lies elsewhere in memory is looked at only
/// when it is (all but surely) the one that is sought, and never to find out where a neighbour belongs. 0 is empty, so fresh pages need no
/// writing.
pub(super) struct Table {
    pub(super) slots: Vec<u64>,
    multiplier: u64,
    shift: u32,
    #[cfg(test)]
    pub(super) looked_up: std::cell::Cell<u32>,
}

pub(super) const SLOT_BYTES: usize = size_of::<u64>();

impl Table {
    pub(super) fn new(slots: usize, seed: u64) -> Table {
        Table {
            slots: vec![0; slots],
            multiplier: xxh3_64(&seed.to_le_bytes()) | 1,
            shift: 64 - slots.trailing_zeros(),
            #[cfg(test)]
            looked_up: std::cell::Cell::new(0),
        }
    }

    /// Empty again, with so many slots.
    pub(super) fn restart(&mut self, slots: usize) {
        self.slots = vec![0; slots];
        self.shift = 64 - slots.trailing_zeros();
    }

    /// What a slot holds of a key: the upper half of a word, of which the uppermost bits are its home.
    fn mark(&self, key: u64) -> u64 {
        (key ^ key >> 32).wrapping_mul(self.multiplier) & MARK_BITS
    }

    fn home(&self, mark: u64) -> usize {
        (mark >> self.shift) as usize
    }

    pub(super) fn find(&self, key: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        #[cfg(test)]
        self.looked_up.set(self.looked_up.get() + 1);
        let (mask, mark) = (self.slots.len() - 1, self.mark(key));
        let mut slot = self.home(mark);
        while self.slots[slot] != 0 {
            let at = place(self.slots[slot]);
            if self.slots[slot] & MARK_BITS == mark && is_it(at) {
                return Some(at);
            }
            slot = (slot + 1) & mask;
        }
        None
    }

    pub(super) fn insert(&mut self, key: u64, at: u32) {
        let (mask, mark) = (self.slots.len() - 1, self.mark(key));
        let mut slot = self.home(mark);
        while self.slots[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = mark | u64::from(at + 1);
    }

    pub(super) fn remove(&mut self, key: u64, at: u32) {
        let (mask, mark) = (self.slots.len() - 1, self.mark(key));
        let mut hole = self.home(mark);
        while self.slots[hole] != mark | u64::from(at + 1) {
            if self.slots[hole] == 0 {
                return;
            }
            hole = (hole + 1) & mask;
        }
        let mut slot = (hole + 1) & mask;
        while self.slots[slot] != 0 {
            let home = self.home(self.slots[slot] & MARK_BITS);
            if slot.wrapping_sub(home) & mask >= slot.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[slot];
                hole = slot;
            }
            slot = (slot + 1) & mask;
        }
        self.slots[hole] = 0;
    }
}

/// The bits of a slot that are of the key.
const MARK_BITS: u64 = !0 << 32;

/// Where the item of a slot in use lies.
fn place(slot: u64) -> u32 {
    slot as u32 - 1
}
