//! Which endpoint holds which block.
//!
//! A block maps to the set of endpoints that hold it (a bitset). Chained hashes make presence monotone: an endpoint that
//! holds block `i` holds every block before it. So the depth of every endpoint is found by galloping along the chain
//! until no endpoint is left and then halving, all endpoints at once: about ten look-ups, never a walk.
//!
//! What is held is the own record of placements: per endpoint the least recently placed blocks go first once its
//! capacity (what its KV cache holds) is reached, and over all endpoints once the byte cap is. A chain is placed last
//! block first, so a block is always older than the one before it and eviction takes chains from their ends, as vLLM
//! does. Where an engine publishes its stores and removals, these hold pairs, and own requests while they are in flight
//! ([`Index::stored`], [`Index::claim`]).
//!
//! Memory: slabs of a size fixed by the byte cap, whose pages are touched only as they fill; open-addressed tables
//! and bitsets as wide as the endpoints need, both grown only when an endpoint is given room, never by a prompt: what
//! is looked at for a request stays as small as the caches of the engines are, and mostly in the processor's. One pair
//! (block, endpoint) costs at most about 200 bytes at the widest.

use super::chain::Chain;
use grounds::Grounds;
pub use grounds::Placement;
use table::{SLOT_BYTES, Slab, Table};

mod grounds;
mod table;

/// Most endpoints an index can tell apart.
pub const ENDPOINTS_MAX: u32 = 1_024;
const WORDS_MAX: usize = ENDPOINTS_MAX as usize / 64;
const NONE: u32 = u32::MAX;

/// Sizes of an [`Index`].
#[derive(Clone, Copy, Debug)]
pub struct IndexLimits {
    /// Endpoint slots, 1 to [`ENDPOINTS_MAX`]; brought into range.
    pub endpoints_max: u32,
    /// Hard cap in bytes on everything the index holds.
    pub bytes_max: usize,
    /// Secret of this process; keeps crafted prompts from piling up in one part of the tables.
    pub seed: u64,
}

/// Set of endpoint slots.
#[derive(Clone, Copy)]
struct Set([u64; WORDS_MAX]);

impl Set {
    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn and(mut self, words: &[u64]) -> Set {
        let (head, tail) = self.0.split_at_mut(words.len());
        head.iter_mut().zip(words).for_each(|(word, other)| *word &= other);
        tail.fill(0);
        self
    }

    fn without(mut self, other: &Set) -> Set {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= !other);
        self
    }

    fn for_each(&self, mut each: impl FnMut(usize)) {
        for (at, mut word) in self.0.iter().copied().enumerate() {
            while word != 0 {
                each(at * 64 + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
    }
}

/// A block held by at least one endpoint; its set lies at the same place in `Index::sets`.
#[derive(Clone, Copy)]
struct Block {
    hash: u64,
    holders: u32,
}

/// A block held by an endpoint, in two lists ordered by last placement: the endpoint's and everyone's.
#[derive(Clone, Copy)]
struct Pair {
    block: u32,
    endpoint: u32,
    own: Link,
    all: Link,
    grounds: Grounds,
    /// When it was last placed, see [`Index::turn_to`].
    epoch: u32,
    /// The endpoint's count of placements then, see [`List::placed`].
    placed: u32,
}

#[derive(Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
}

#[derive(Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
    len: u32,
    len_max: u32,
    /// Placements of blocks that were new, or came from far back: by so many an untouched one was moved towards the end. Wraps.
    placed: u32,
}

impl List {
    const fn new(len_max: u32) -> List {
        List { newest: NONE, oldest: NONE, len: 0, len_max, placed: 0 }
    }

    /// How far back the order of use goes to what was placed at this count: 0 for the latest, 1 for the last that has room.
    fn age_ratio(&self, placed: u32) -> f64 {
        f64::from(self.placed.wrapping_sub(placed)) / f64::from(self.len_max.max(1))
    }
}

/// A block from nearer than this part of the order of use moves nobody when it is used again.
const NEAR_RATIO: f64 = 1.0 / 16.0;

/// Slots of a table before any endpoint has room.
const SLOTS_MIN: usize = 4;

/// Which of the two links of a pair.
#[derive(Clone, Copy)]
enum Order {
    Own,
    All,
}

/// Block -> endpoints, with least-recently-placed eviction per endpoint and over all.
pub struct Index {
    /// Words of a block's bitset: enough for the endpoints that were given room.
    words: usize,
    /// The most that `words` can become.
    words_max: usize,
    /// Slots that the tables may have at most.
    slots_max: usize,
    blocks: Slab<Block>,
    sets: Vec<u64>,
    pairs: Slab<Pair>,
    block_table: Table,
    pair_table: Table,
    lists: Vec<List>,
    /// One past the highest endpoint that was ever given room: what a look-up tells about.
    endpoints_used: usize,
    all: List,
    epoch: u32,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("pairs", &self.pairs.len).field("pairs_max", &self.pairs.len_max).finish()
    }
}

impl Index {
    /// An empty index. Nothing is reserved beyond `limits.bytes_max`.
    #[must_use]
    pub fn new(limits: IndexLimits) -> Index {
        let endpoints = limits.endpoints_max.clamp(1, ENDPOINTS_MAX);
        let words = endpoints.div_ceil(64) as usize;
        let (pairs_max, slots) = size(limits.bytes_max, words);
        Index {
            words: 1,
            words_max: words,
            slots_max: slots,
            blocks: Slab::new(pairs_max),
            sets: vec![0; pairs_max as usize],
            pairs: Slab::new(pairs_max),
            block_table: Table::new(SLOTS_MIN.min(slots), limits.seed),
            pair_table: Table::new(SLOTS_MIN.min(slots), limits.seed.rotate_left(32)),
            lists: vec![List::new(0); endpoints as usize],
            endpoints_used: 0,
            all: List::new(pairs_max),
            epoch: 0,
        }
    }

    /// Bytes reserved, used or not. Changes only with the room that endpoints are given.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pairs.len_max as usize * pair_bytes(self.words)
            + (self.block_table.slots.len() + self.pair_table.slots.len()) * SLOT_BYTES
    }

    /// Pairs (block, endpoint) held, and the most that can be.
    #[must_use]
    pub fn pairs(&self) -> (u32, u32) {
        (self.pairs.len, self.pairs.len_max)
    }

    /// Blocks held by `endpoint`; 0 for an unknown one.
    #[must_use]
    pub fn held(&self, endpoint: u32) -> u32 {
        self.lists.get(endpoint as usize).map_or(0, |list| list.len)
    }

    /// Sets how many blocks `endpoint` can hold; drops the oldest above it. A new endpoint can hold none.
    pub fn resize_endpoint(&mut self, endpoint: u32, blocks_max: u32) {
        let Some(list) = self.lists.get_mut(endpoint as usize) else {
            return;
        };
        list.len_max = blocks_max.min(self.all.len_max);
        if list.len_max > 0 {
            self.endpoints_used = self.endpoints_used.max(endpoint as usize + 1);
        }
        self.widen();
        self.enlarge_tables();
        while self.lists[endpoint as usize].len > self.lists[endpoint as usize].len_max {
            self.drop_pair(self.lists[endpoint as usize].oldest);
        }
    }

    /// Makes the bitsets wide enough for all endpoints that were given room.
    fn widen(&mut self) {
        let words = self.endpoints_used.div_ceil(64).next_power_of_two().min(self.words_max);
        if words <= self.words {
            return;
        }
        let mut wider = vec![0; self.blocks.len_max as usize * words];
        for (to, from) in wider.chunks_exact_mut(words).zip(self.sets.chunks_exact(self.words)) {
            to[..self.words].copy_from_slice(from);
        }
        (self.sets, self.words) = (wider, words);
    }

    /// Makes room in the tables for what all endpoints can hold, at most half full.
    fn enlarge_tables(&mut self) {
        let pairs: u64 = self.lists.iter().map(|list| u64::from(list.len_max)).sum();
        let pairs = usize::try_from(pairs.min(u64::from(self.all.len_max))).unwrap_or(usize::MAX);
        let slots = (pairs * 2).next_power_of_two().min(self.slots_max);
        if slots <= self.pair_table.slots.len() {
            return;
        }
        self.block_table.restart(slots);
        self.pair_table.restart(slots);
        let mut at = self.all.newest;
        while at != NONE {
            let Pair { block, endpoint, all, .. } = self.pairs.items[at as usize];
            let hash = self.blocks.items[block as usize].hash;
            self.pair_table.insert(pair_key(hash, endpoint), at);
            if self.find_block(hash).is_none() {
                self.block_table.insert(hash, block);
            }
            at = all.older;
        }
    }

    /// Forgets everything `endpoint` held. Its capacity stays. Takes about 50 ns a block.
    pub fn remove_endpoint(&mut self, endpoint: u32) {
        if (endpoint as usize) < self.lists.len() {
            while self.lists[endpoint as usize].len > 0 {
                self.drop_pair(self.lists[endpoint as usize].oldest);
            }
        }
    }

    /// Records that `endpoint` is given this prompt: its blocks become the newest ones. Of a chain longer than the
    /// endpoint can hold, the beginning is recorded.
    pub fn insert(&mut self, chain: &Chain, endpoint: u32) {
        let Some(list) = self.lists.get(endpoint as usize) else {
            return;
        };
        let count = chain.blocks().len().min(list.len_max as usize);
        for hash in chain.blocks()[..count].iter().rev() {
            self.touch(*hash, endpoint);
        }
    }

    /// Writes for every endpoint slot that was ever given room how many blocks from the start of `chain` it holds.
    pub fn overlap(&self, chain: &Chain, depths: &mut Vec<u32>) {
        depths.clear();
        depths.resize(self.endpoints_used, 0);
        let blocks = chain.blocks();
        let (mut low, mut holders) = (0, Set([u64::MAX; WORDS_MAX]));
        while low < blocks.len() {
            let high = (low * 2).max(1).min(blocks.len());
            let further = self.holders(blocks[high - 1], holders);
            self.halve(blocks, low, high, holders.without(&further), depths);
            if further.is_empty() {
                return;
            }
            (low, holders) = (high, further);
        }
        holders.for_each(|endpoint| note(depths, endpoint, low));
    }

    /// How many blocks from the start of `chain` one endpoint holds.
    #[must_use]
    pub fn depth(&self, chain: &Chain, endpoint: u32) -> u32 {
        let blocks = chain.blocks();
        let holds = |at: usize| self.find_pair(blocks[at - 1], endpoint).is_some();
        let (mut low, mut high) = (0, 1);
        while high <= blocks.len() && holds(high) {
            (low, high) = (high, high * 2);
        }
        high = high.min(blocks.len() + 1);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if holds(middle) { low = middle } else { high = middle }
        }
        low as u32
    }

    /// How far back in the order of use of its endpoint a block is: 0 for the latest, 1 and more for what is about to be
    /// dropped. 0 for one that is not held.
    #[must_use]
    pub fn age_ratio(&self, hash: u64, endpoint: u32) -> f64 {
        match (self.find_pair(hash, endpoint), self.lists.get(endpoint as usize)) {
            (Some(pair), Some(list)) => list.age_ratio(self.pairs.items[pair as usize].placed),
            (None, _) | (_, None) => 0.0,
        }
    }

    /// Endpoints in `among` hold `low` blocks and not `high`: finds how many each. Recursion depth is the logarithm of
    /// the chain's length, at most 16.
    fn halve(&self, blocks: &[u64], low: usize, high: usize, among: Set, depths: &mut [u32]) {
        if low == 0 && high == 1 || among.is_empty() {
            return;
        }
        if high - low == 1 {
            return among.for_each(|endpoint| note(depths, endpoint, low));
        }
        let middle = low.midpoint(high);
        let further = self.holders(blocks[middle - 1], among);
        self.halve(blocks, middle, high, further, depths);
        self.halve(blocks, low, middle, among.without(&further), depths);
    }

    fn holders(&self, hash: u64, among: Set) -> Set {
        match self.find_block(hash) {
            Some(block) => among.and(&self.sets[block as usize * self.words..][..self.words]),
            None => Set([0; WORDS_MAX]),
        }
    }

    fn find_block(&self, hash: u64) -> Option<u32> {
        self.block_table.find(hash, |at| self.blocks.items[at as usize].hash == hash)
    }

    fn find_pair(&self, hash: u64, endpoint: u32) -> Option<u32> {
        self.pair_table.find(pair_key(hash, endpoint), |at| {
            let pair = &self.pairs.items[at as usize];
            pair.endpoint == endpoint && self.blocks.items[pair.block as usize].hash == hash
        })
    }

    /// Makes a pair the newest, new or not. The endpoint must have room.
    fn touch(&mut self, hash: u64, endpoint: u32) -> u32 {
        if let Some(pair) = self.find_pair(hash, endpoint) {
            let list = &mut self.lists[endpoint as usize];
            if list.age_ratio(self.pairs.items[pair as usize].placed) > NEAR_RATIO {
                list.placed = list.placed.wrapping_add(1);
            }
            self.pairs.items[pair as usize].placed = list.placed;
            for order in [Order::Own, Order::All] {
                self.unlink(pair, order);
                self.link_newest(pair, order);
            }
            self.pairs.items[pair as usize].epoch = self.epoch;
            return pair;
        }
        let list = self.lists[endpoint as usize];
        if list.len == list.len_max {
            self.drop_pair(list.oldest);
        }
        if self.all.len == self.all.len_max {
            self.drop_pair(self.all.oldest);
        }
        let block = self.hold(hash, endpoint);
        let list = &mut self.lists[endpoint as usize];
        list.placed = list.placed.wrapping_add(1);
        let placed = list.placed;
        let unlinked = Link { newer: NONE, older: NONE };
        let pair = Pair {
            block,
            endpoint,
            own: unlinked,
            all: unlinked,
            grounds: Grounds::default(),
            epoch: self.epoch,
            placed,
        };
        let pair = self.pairs.add(pair);
        self.pair_table.insert(pair_key(hash, endpoint), pair);
        self.link_newest(pair, Order::Own);
        self.link_newest(pair, Order::All);
        pair
    }

    fn hold(&mut self, hash: u64, endpoint: u32) -> u32 {
        let block = match self.find_block(hash) {
            Some(block) => block,
            None => {
                let block = self.blocks.add(Block { hash, holders: 0 });
                self.block_table.insert(hash, block);
                block
            }
        };
        self.blocks.items[block as usize].holders += 1;
        self.sets[block as usize * self.words + endpoint as usize / 64] |= 1 << (endpoint % 64);
        block
    }

    fn drop_pair(&mut self, at: u32) {
        self.unlink(at, Order::Own);
        self.unlink(at, Order::All);
        let Pair { block, endpoint, .. } = self.pairs.items[at as usize];
        let hash = self.blocks.items[block as usize].hash;
        self.pair_table.remove(pair_key(hash, endpoint), at);
        self.pairs.free(at);
        self.sets[block as usize * self.words + endpoint as usize / 64] &= !(1 << (endpoint % 64));
        self.blocks.items[block as usize].holders -= 1;
        if self.blocks.items[block as usize].holders == 0 {
            self.block_table.remove(hash, block);
            self.blocks.free(block);
        }
    }

    fn list(&mut self, at: u32, order: Order) -> &mut List {
        match order {
            Order::Own => &mut self.lists[self.pairs.items[at as usize].endpoint as usize],
            Order::All => &mut self.all,
        }
    }

    fn link(&mut self, at: u32, order: Order) -> &mut Link {
        match order {
            Order::Own => &mut self.pairs.items[at as usize].own,
            Order::All => &mut self.pairs.items[at as usize].all,
        }
    }

    fn unlink(&mut self, at: u32, order: Order) {
        let Link { newer, older } = *self.link(at, order);
        match newer {
            NONE => self.list(at, order).newest = older,
            newer => self.link(newer, order).older = older,
        }
        match older {
            NONE => self.list(at, order).oldest = newer,
            older => self.link(older, order).newer = newer,
        }
        self.list(at, order).len -= 1;
    }

    fn link_newest(&mut self, at: u32, order: Order) {
        let list = self.list(at, order);
        let older = std::mem::replace(&mut list.newest, at);
        list.len += 1;
        if older == NONE {
            list.oldest = at;
        } else {
            self.link(older, order).newer = at;
        }
        *self.link(at, order) = Link { newer: NONE, older };
    }
}

fn note(depths: &mut [u32], endpoint: usize, depth: usize) {
    if let Some(slot) = depths.get_mut(endpoint) {
        *slot = depth as u32;
    }
}

fn pair_key(hash: u64, endpoint: u32) -> u64 {
    hash ^ (u64::from(endpoint) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Bytes a pair takes in the slabs, their free lists and the sets when no two pairs share a block.
fn pair_bytes(words: usize) -> usize {
    size_of::<Block>() + size_of::<Pair>() + words * 8 + 2 * size_of::<u32>()
}

/// Pairs and table slots that fit in `bytes_max`: tables are powers of two and at most three quarters full.
fn size(bytes_max: usize, words: usize) -> (u32, usize) {
    let pair_bytes = pair_bytes(words);
    (2..=30)
        .map(|log| 1_usize << log)
        .map(|slots| ((slots * 3 / 4).min(bytes_max.saturating_sub(slots * 2 * SLOT_BYTES) / pair_bytes) as u32, slots))
        .max_by_key(|(pairs, slots)| (*pairs, std::cmp::Reverse(*slots)))
        .unwrap_or((0, 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::chain::{ChainBuilder, Seed};
    use proptest::prelude::*;

    const ENDPOINTS: u32 = 70;

    /// A chain that follows `path`: chains share blocks as far as their paths agree.
    fn chain(path: &[u8]) -> Chain {
        let seed = Seed { model: "m", lora: None, cache_salt: None };
        let mut builder = ChainBuilder::new(&seed, 16, Chain::default());
        path.iter().for_each(|step| builder.text(&[*step; 16]));
        builder.finish()
    }

    fn index(bytes_max: usize) -> Index {
        Index::new(IndexLimits { endpoints_max: ENDPOINTS, bytes_max, seed: 7 })
    }

    fn depths(index: &Index, chain: &Chain) -> Vec<u32> {
        let mut depths = Vec::new();
        index.overlap(chain, &mut depths);
        // Endpoints that were never given room are not told about: they hold nothing.
        depths.resize(ENDPOINTS as usize, 0);
        depths
    }

    /// The same rules on plain lists, newest first, and a walk block by block.
    struct Twin {
        all: Vec<(u64, u32)>,
        len_max: [usize; ENDPOINTS as usize],
        pairs_max: usize,
    }

    impl Twin {
        fn trim(&mut self) {
            for endpoint in 0..ENDPOINTS {
                let mut left = self.len_max[endpoint as usize];
                self.all.retain(|pair| {
                    let kept = pair.1 != endpoint || left > 0;
                    left -= usize::from(pair.1 == endpoint && left > 0);
                    kept
                });
            }
            self.all.truncate(self.pairs_max);
        }

        fn insert(&mut self, chain: &Chain, endpoint: u32) {
            let count = chain.blocks().len().min(self.len_max[endpoint as usize]).min(self.pairs_max);
            let blocks = &chain.blocks()[..count];
            self.all.retain(|(hash, at)| *at != endpoint || !blocks.contains(hash));
            let pairs: Vec<_> = blocks.iter().map(|hash| (*hash, endpoint)).collect();
            self.all.splice(0..0, pairs);
            self.trim();
        }

        fn depth(&self, chain: &Chain, endpoint: u32) -> u32 {
            chain.blocks().iter().take_while(|hash| self.all.contains(&(**hash, endpoint))).count() as u32
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Vec<u8>, u32),
        Remove(u32),
        Resize(u32, u32),
        Look(Vec<u8>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let path = || prop::collection::vec(0u8..2, 0..24);
        let endpoint = || prop_oneof![Just(0u32), Just(1), Just(2), Just(63), Just(64), Just(69)];
        prop_oneof![
            8 => (path(), endpoint()).prop_map(|(path, endpoint)| Step::Insert(path, endpoint)),
            1 => endpoint().prop_map(Step::Remove),
            1 => (endpoint(), 0u32..40).prop_map(|(endpoint, len)| Step::Resize(endpoint, len)),
            4 => path().prop_map(Step::Look),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn the_index_agrees_with_its_slow_twin(steps in prop::collection::vec(step(), 1..120), bytes_max in 2_000usize..20_000) {
            let mut index = index(bytes_max);
            let mut twin = Twin { all: Vec::new(), len_max: [0; 70], pairs_max: index.pairs().1 as usize };
            for step in steps {
                match step {
                    Step::Insert(path, endpoint) => {
                        index.insert(&chain(&path), endpoint);
                        twin.insert(&chain(&path), endpoint);
                    }
                    Step::Remove(endpoint) => {
                        index.remove_endpoint(endpoint);
                        twin.all.retain(|pair| pair.1 != endpoint);
                    }
                    Step::Resize(endpoint, len) => {
                        index.resize_endpoint(endpoint, len);
                        twin.len_max[endpoint as usize] = len as usize;
                        twin.trim();
                    }
                    Step::Look(path) => {
                        let chain = chain(&path);
                        let seen = depths(&index, &chain);
                        for endpoint in 0..ENDPOINTS {
                            prop_assert_eq!(seen[endpoint as usize], twin.depth(&chain, endpoint), "endpoint {}", endpoint);
                        }
                    }
                }
                prop_assert_eq!(index.pairs().0 as usize, twin.all.len());
            }
            for endpoint in 0..ENDPOINTS {
                index.remove_endpoint(endpoint);
            }
            prop_assert_eq!(index.pairs().0, 0);
            prop_assert!(index.block_table.slots.iter().chain(&index.pair_table.slots).all(|slot| *slot == 0));
            prop_assert!(index.sets.iter().all(|word| *word == 0));
        }
    }

    #[test]
    fn memory_stays_flat_and_under_the_cap_under_endless_unique_prompts() {
        let mut index = index(100_000);
        (0..ENDPOINTS).for_each(|endpoint| index.resize_endpoint(endpoint, u32::MAX));
        let capacities = |index: &Index| {
            (
                index.pairs.items.capacity(),
                index.pairs.free.capacity(),
                index.blocks.items.capacity(),
                index.sets.capacity(),
            )
        };
        let before = (index.bytes(), capacities(&index));
        for prompt in 0..4_000_u32 {
            let [a, b, c, _] = prompt.to_le_bytes();
            index.insert(&chain(&[a, b, c, 1, 2, 3, 4, 5]), prompt % ENDPOINTS);
        }
        assert_eq!((index.bytes(), capacities(&index)), before);
        assert!(index.bytes() <= 100_000);
        assert_eq!(index.pairs().0, index.pairs().1);
    }

    #[test]
    fn what_is_held_survives_every_growth() {
        let mut index = index(1 << 20);
        for endpoint in 0..ENDPOINTS {
            index.resize_endpoint(endpoint, 8 * (endpoint + 1));
            index.insert(&chain(&[1, 2, 3, endpoint as u8 + 4]), endpoint);
            for known in 0..=endpoint {
                assert_eq!(
                    depths(&index, &chain(&[1, 2, 3, known as u8 + 4]))[known as usize],
                    4,
                    "{known} of {endpoint}"
                );
            }
        }
        assert!(index.bytes() <= 1 << 20);
    }

    #[test]
    fn a_chain_is_evicted_from_its_end() {
        let mut index = index(100_000);
        index.resize_endpoint(3, 6);
        index.insert(&chain(&[1, 2, 3, 4]), 3);
        index.insert(&chain(&[9, 9, 9, 9]), 3);
        assert_eq!(depths(&index, &chain(&[1, 2, 3, 4]))[3], 2);
        assert_eq!(depths(&index, &chain(&[9, 9, 9, 9]))[3], 4);
    }

    #[test]
    fn stores_and_removals_told_by_the_engine_correct_the_record() {
        let mut index = index(100_000);
        index.resize_endpoint(0, 100);
        let path = chain(&[1, 2, 3, 4]);
        index.stored(path.blocks(), 0);
        index.removed(&path.blocks()[2..], 0);
        index.removed(&[1, 2, 3], 0);
        assert_eq!(depths(&index, &path)[0], 2);
    }

    #[test]
    fn a_block_goes_when_neither_the_engine_nor_a_request_holds_it() {
        let mut index = index(100_000);
        index.resize_endpoint(0, 100);
        let (path, shared) = (chain(&[1, 2, 3, 4]), chain(&[1, 2]));
        index.claim(path.blocks(), 0);
        index.claim(shared.blocks(), 0);
        index.stored(&path.blocks()[..1], 0);
        index.release(path.blocks(), 0, Placement::Void);
        assert_eq!(depths(&index, &path)[0], 2, "another request is in flight with the first two");
        index.removed(path.blocks(), 0);
        assert_eq!(depths(&index, &path)[0], 2, "a request in flight brings them back");
        index.stored(&path.blocks()[..1], 0);
        index.release(shared.blocks(), 0, Placement::Void);
        assert_eq!(depths(&index, &path)[0], 1);
        index.removed(&path.blocks()[..1], 0);
        assert_eq!((depths(&index, &path)[0], index.pairs().0), (0, 0));
    }

    #[test]
    fn placements_count_until_they_are_void() {
        let mut index = index(100_000);
        index.resize_endpoint(0, 100);
        index.resize_endpoint(1, 100);
        let (placed, ended, told) = (chain(&[1, 1]), chain(&[2, 2]), chain(&[3, 3]));
        index.insert(&placed, 0);
        index.insert(&placed, 1);
        index.claim(ended.blocks(), 0);
        index.release(ended.blocks(), 0, Placement::Counts);
        index.stored(told.blocks(), 0);
        assert_eq!([&placed, &ended, &told].map(|chain| depths(&index, chain)[0]), [2, 2, 2]);
        index.void_placements(0);
        assert_eq!([&placed, &ended, &told].map(|chain| depths(&index, chain)[0]), [0, 0, 2]);
        assert_eq!(depths(&index, &placed)[1], 2);
    }

    #[test]
    fn what_was_last_placed_before_an_epoch_is_forgotten_unless_in_flight() {
        let mut index = index(100_000);
        index.resize_endpoint(0, 100);
        let (old, used_again, running, new) = (chain(&[1, 1]), chain(&[2, 2]), chain(&[3, 3]), chain(&[4, 4]));
        index.turn_to(5);
        index.insert(&old, 0);
        index.insert(&used_again, 0);
        index.claim(running.blocks(), 0);
        index.turn_to(7);
        index.insert(&used_again, 0);
        index.insert(&new, 0);
        index.forget_before(0, 7);
        let held = [&old, &used_again, &running, &new].map(|chain| depths(&index, chain)[0]);
        assert_eq!(held, [0, 2, 2, 2]);
    }

    #[test]
    fn unknown_endpoints_and_no_memory_at_all_do_no_harm() {
        let mut tiny = index(0);
        tiny.resize_endpoint(0, 100);
        tiny.insert(&chain(&[1, 2]), 0);
        tiny.insert(&chain(&[1, 2]), 9_999);
        tiny.remove_endpoint(9_999);
        tiny.resize_endpoint(9_999, 1);
        assert_eq!((tiny.pairs(), tiny.held(9_999)), ((0, 0), 0));
        assert_eq!(depths(&tiny, &chain(&[])), vec![0; ENDPOINTS as usize]);
    }

    #[test]
    fn thirty_two_depths_of_a_long_chain_take_few_look_ups() {
        let mut index = index(1 << 20);
        let path: Vec<u8> = (0..128).collect();
        for endpoint in 0..32 {
            index.resize_endpoint(endpoint, 1_000);
            index.insert(&chain(&path[..4 * (endpoint as usize % 4 + 1)]), endpoint);
        }
        index.block_table.looked_up.set(0);
        let seen = depths(&index, &chain(&path));
        assert_eq!(seen[..4], [4, 8, 12, 16]);
        assert!(index.block_table.looked_up.get() <= 20, "{}", index.block_table.looked_up.get());
    }
}
