//! The paged KV cache of the step model: blocks with reference counts and a prefix index.
//!
//! As in vLLM, a block whose last user leaves keeps its contents and goes to the end of a free queue; it can be found
//! by its hash until the queue's head is taken for other tokens. So "free" and "cached" overlap, and the order of the
//! queue is least recently used first.
//!
//! One difference to vLLM: when two requests compute the same block at once, only the first copy is indexed.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// Index of a block; `NONE` ends the linked lists.
type Index = u32;
const NONE: Index = u32::MAX;

#[derive(Clone, Debug)]
struct Block {
    /// Chained hash by which the block can be found, once its tokens are computed.
    hash: Option<u64>,
    users: u32,
    /// Neighbours in the free queue; meaningless while `users > 0`.
    before: Index,
    after: Index,
}

/// Block hashes are hashes already; one multiplication spreads those that callers number by hand. Simulations look up
/// hundreds of blocks for each prompt.
#[derive(Clone, Copy, Debug, Default)]
struct Prehashed(u64);

impl Hasher for Prehashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // Golden-ratio hashing (Knuth 6.4); the rotation brings the well-mixed upper bits to the table's index.
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// A fixed number of blocks. Memory grows with the blocks ever used, not with the capacity.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    blocks_max: u32,
    in_use: u32,
    by_hash: HashMap<u64, Index, BuildHasherDefault<Prehashed>>,
    /// Least recently used end of the free queue: the next to be overwritten.
    oldest: Index,
    newest: Index,
    /// What became findable or not since it was last asked for, when anybody asks.
    changes: Option<Vec<BlockChange>>,
}

/// A change of what the prefix cache finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChange {
    /// The block with this hash is found from now on.
    Stored(u64),
    /// It no longer is.
    Removed(u64),
    /// None is.
    Cleared,
}

impl Blocks {
    pub(super) fn new(blocks_max: u32) -> Self {
        Self {
            blocks: Vec::new(),
            blocks_max,
            in_use: 0,
            by_hash: HashMap::default(),
            oldest: NONE,
            newest: NONE,
            changes: None,
        }
    }

    /// Keeps changes from now on, for [`Self::take_changes`].
    pub(super) fn record_changes(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// The changes since this was last called.
    pub(super) fn take_changes(&mut self, into: &mut Vec<BlockChange>) {
        if let Some(changes) = &mut self.changes {
            into.append(changes);
        }
    }

    fn changed(&mut self, change: BlockChange) {
        if let Some(changes) = &mut self.changes {
            changes.push(change);
        }
    }

    /// Blocks held by at least one request.
    pub(super) fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Blocks that can be taken now.
    pub(super) fn available(&self) -> u32 {
        self.blocks_max - self.in_use
    }

    /// How many of `hashes`, from the first on, are in the cache. The second number says how many of those are free
    /// now, so that taking them lowers [`Self::available`].
    pub(super) fn cached_prefix(&self, hashes: &[u64]) -> (u32, u32) {
        let mut found = 0;
        let mut idle = 0;
        for hash in hashes {
            let Some(&index) = self.by_hash.get(hash) else { break };
            found += 1;
            idle += u32::from(self.blocks[index as usize].users == 0);
        }
        (found, idle)
    }

    /// Takes the cached block with this hash for one more user.
    pub(super) fn share(&mut self, hash: u64) -> Option<u32> {
        let index = *self.by_hash.get(&hash)?;
        if self.blocks[index as usize].users == 0 {
            self.unlink(index);
            self.in_use += 1;
        }
        self.blocks[index as usize].users += 1;
        Some(index)
    }

    /// Takes a block for new tokens, overwriting the least recently used one when no fresh one is left.
    pub(super) fn take(&mut self) -> Option<u32> {
        let fresh = Index::try_from(self.blocks.len()).ok()?;
        let index = if fresh < self.blocks_max {
            self.blocks.push(Block { hash: None, users: 0, before: NONE, after: NONE });
            fresh
        } else {
            let oldest = self.oldest;
            if oldest == NONE {
                return None;
            }
            self.unlink(oldest);
            if let Some(hash) = self.blocks[oldest as usize].hash.take() {
                self.by_hash.remove(&hash);
                self.changed(BlockChange::Removed(hash));
            }
            oldest
        };
        self.blocks[index as usize].users = 1;
        self.in_use += 1;
        Some(index)
    }

    /// Makes a full block findable.
    pub(super) fn publish(&mut self, index: u32, hash: u64) {
        let block = &mut self.blocks[index as usize];
        if block.hash.is_none() && !self.by_hash.contains_key(&hash) {
            block.hash = Some(hash);
            self.by_hash.insert(hash, index);
            self.changed(BlockChange::Stored(hash));
        }
    }

    /// Gives up one user's hold. Called from a request's last block to its first, so that the tail is overwritten
    /// before the shared head.
    pub(super) fn release(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        debug_assert!(block.users > 0, "block {index} released more often than taken");
        block.users -= 1;
        if block.users == 0 {
            self.in_use -= 1;
            self.link_newest(index);
        }
    }

    /// Forgets all contents. Blocks in use stay with their requests but can no longer be found.
    pub(super) fn forget(&mut self) {
        for block in &mut self.blocks {
            block.hash = None;
        }
        self.by_hash.clear();
        self.changed(BlockChange::Cleared);
    }

    fn link_newest(&mut self, index: Index) {
        let before = self.newest;
        let block = &mut self.blocks[index as usize];
        block.before = before;
        block.after = NONE;
        if before == NONE {
            self.oldest = index;
        } else {
            self.blocks[before as usize].after = index;
        }
        self.newest = index;
    }

    fn unlink(&mut self, index: Index) {
        let Block { before, after, .. } = self.blocks[index as usize];
        if before == NONE {
            self.oldest = after;
        } else {
            self.blocks[before as usize].after = after;
        }
        if after == NONE {
            self.newest = before;
        } else {
            self.blocks[after as usize].before = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_least_recently_used_block_is_overwritten_first() {
        let mut blocks = Blocks::new(2);
        let first = blocks.take().unwrap();
        let second = blocks.take().unwrap();
        blocks.publish(first, 11);
        blocks.publish(second, 22);
        blocks.release(first);
        blocks.release(second);
        assert_eq!(blocks.take(), Some(first));
        assert_eq!(blocks.cached_prefix(&[11]), (0, 0));
        assert_eq!(blocks.cached_prefix(&[22]), (1, 1));
    }

    #[test]
    fn a_shared_block_stays_until_its_last_user_leaves() {
        let mut blocks = Blocks::new(1);
        let block = blocks.take().unwrap();
        blocks.publish(block, 7);
        assert_eq!(blocks.share(7), Some(block));
        blocks.release(block);
        assert_eq!(blocks.take(), None);
        assert_eq!(blocks.cached_prefix(&[7]), (1, 0));
        blocks.release(block);
        assert_eq!(blocks.available(), 1);
        assert_eq!(blocks.cached_prefix(&[7]), (1, 1));
    }

    #[test]
    fn forgotten_blocks_are_not_found() {
        let mut blocks = Blocks::new(4);
        let block = blocks.take().unwrap();
        blocks.publish(block, 7);
        blocks.forget();
        assert_eq!(blocks.cached_prefix(&[7]), (0, 0));
        assert_eq!(blocks.share(7), None);
        assert_eq!(blocks.in_use(), 1);
    }
    /// The same cache without links and index: a list of blocks, and the free ones in order of their release.
    #[derive(Default)]
    struct Twin {
        hashes: Vec<Option<u64>>,
        users: Vec<u32>,
        free: Vec<u32>,
    }

    impl Twin {
        fn find(&self, hash: u64) -> Option<u32> {
            self.hashes.iter().position(|found| *found == Some(hash)).map(|at| at as u32)
        }

        fn take(&mut self, blocks_max: u32) -> Option<u32> {
            let index = if self.users.len() < blocks_max as usize {
                self.hashes.push(None);
                self.users.push(0);
                self.users.len() as u32 - 1
            } else if self.free.is_empty() {
                return None;
            } else {
                self.free.remove(0)
            };
            self.hashes[index as usize] = None;
            self.users[index as usize] = 1;
            Some(index)
        }

        fn share(&mut self, hash: u64) -> Option<u32> {
            let index = self.find(hash)?;
            self.free.retain(|free| *free != index);
            self.users[index as usize] += 1;
            Some(index)
        }

        fn release(&mut self, index: u32) {
            self.users[index as usize] -= 1;
            if self.users[index as usize] == 0 {
                self.free.push(index);
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Take,
        Share(u64),
        Publish(usize, u64),
        Release(usize),
        Forget,
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            4 => Just(Operation::Take),
            4 => (0..6_u64).prop_map(Operation::Share),
            4 => (0..8_usize, 0..6_u64).prop_map(|(at, hash)| Operation::Publish(at, hash)),
            6 => (0..8_usize).prop_map(Operation::Release),
            1 => Just(Operation::Forget),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_sequence_of_operations_equals_that_on_a_plain_list(
            operations in prop::collection::vec(operation(), 0..80),
            blocks_max in 1..6_u32,
        ) {
            let mut blocks = Blocks::new(blocks_max);
            let mut twin = Twin::default();
            let mut held = Vec::new();
            for operation in operations {
                match operation {
                    Operation::Take => {
                        let taken = blocks.take();
                        prop_assert_eq!(taken, twin.take(blocks_max));
                        held.extend(taken);
                    }
                    Operation::Share(hash) => {
                        let shared = blocks.share(hash);
                        prop_assert_eq!(shared, twin.share(hash));
                        held.extend(shared);
                    }
                    Operation::Publish(at, hash) => {
                        if let Some(&index) = held.get(at) {
                            blocks.publish(index, hash);
                            if twin.hashes[index as usize].is_none() && twin.find(hash).is_none() {
                                twin.hashes[index as usize] = Some(hash);
                            }
                        }
                    }
                    Operation::Release(at) => {
                        if at < held.len() {
                            let index = held.remove(at);
                            blocks.release(index);
                            twin.release(index);
                        }
                    }
                    Operation::Forget => {
                        blocks.forget();
                        twin.hashes.fill(None);
                    }
                }
                let in_use = twin.users.iter().filter(|users| **users > 0).count();
                prop_assert_eq!(blocks.in_use() as usize, in_use);
                for hash in 0..6 {
                    let expected = twin.find(hash).map_or((0, 0), |at| (1, u32::from(twin.users[at as usize] == 0)));
                    prop_assert_eq!(blocks.cached_prefix(&[hash]), expected);
                }
            }
        }
    }
}
