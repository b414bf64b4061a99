//! A prompt as a chain of block hashes.
//!
//! The canonical bytes of a prompt, in the order the chat template sees them, are cut into blocks of a fixed number of
//! bytes. The hash of a block covers its own bytes and the hash of the block before it, so equal hashes at position `i`
//! mean equal prompts up to and including block `i`. All are seeded with model, LoRA adapter and cache salt: engines never
//! share blocks across those. A chain of bytes may be made once, without a seed, and be seeded for each model it is asked for
//! ([`ChainBuilder::unseeded`], [`Chain::seed`]).
//!
//! Role changes and other structure are *marks*: they take no bytes and are folded into the hash at their offset, so no
//! text can imitate one. A media item is a block of its own, hashed over its full content. The last, partial block
//! counts: a repeated prompt overlaps to its end.
//!
//! A chain of token ids may be that of the engine's own blocks ([`ChainBuilder::finish_engine_blocks`]): then only whole blocks
//! are in it, as only those are cached, and the last token is always computed anew.
//!
//! Cost: one XXH3 pass over the bytes plus about 5 ns a block. Whole blocks are hashed where they lie; only the bytes
//! left over between two calls are copied. XXH3 is not a keyed hash: whoever crafts a collision gets a wrong estimate of
//! what is cached, never another prompt's answer.

use xxhash_rust::xxh3::xxh3_64;

/// Default block size in bytes: about 64 tokens of English text, or exactly 64 token ids.
pub const BLOCK_BYTES_DEFAULT: u32 = 256;
/// Smallest block size in bytes accepted; smaller values are raised to it.
pub const BLOCK_BYTES_MIN: u32 = 16;
/// Largest block size in bytes accepted; larger values are lowered to it.
pub const BLOCK_BYTES_MAX: u32 = 16_384;
/// Most blocks in a chain. At 256 bytes that is 16 MiB of text, four million tokens: beyond any context length. Bytes
/// past it count in the weight of the last block and are not hashed.
pub const BLOCKS_MAX: usize = 1 << 16;
/// Weight in bytes of one media item, whatever its size on the wire: an image becomes some hundred tokens.
pub const MEDIA_WEIGHT_BYTES: u32 = 2_048;

/// Bytes of a token id in a chain.
pub const TOKEN_ID_BYTES: u32 = 4;

const LANE_TEXT: u64 = 0x7465_7874;
const LANE_IDS: u64 = 0x6964_7300;
const MARK_SEPARATOR: u64 = 0x7365_7000;
const MARK_MEDIA: u64 = 0x6d65_6400;
const TURN_END: u64 = 0x656e_6400;
const MARK_SEED: u64 = 0x7365_6564;

/// What must be equal before two prompts can share any block.
#[derive(Clone, Copy, Debug)]
pub struct Seed<'a> {
    /// Model name as the engine knows it (after aliases).
    pub model: &'a str,
    /// LoRA adapter, when the request names one.
    pub lora: Option<&'a str>,
    /// `cache_salt` of the request.
    pub cache_salt: Option<&'a [u8]>,
}

impl Seed<'_> {
    /// Hash that stands before the first block.
    #[must_use]
    pub fn root(&self) -> u64 {
        let field = |parent: u64, field: Option<&[u8]>| match field {
            Some(bytes) => mix(parent, xxh3_64(bytes), 1),
            None => mix(parent, 0, 0),
        };
        let model = field(0, Some(self.model.as_bytes()));
        field(field(model, self.lora.map(str::as_bytes)), self.cache_salt)
    }
}

/// What the blocks of a chain are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// Our own, of bytes.
    #[default]
    Bytes,
    /// Blocks of one size that hold token ids and nothing else: the engine's own, where that is its size.
    Tokens,
}

/// A finished chain: one hash and one weight per block. Its allocations are reused by passing it to
/// [`ChainBuilder::new`].
#[derive(Clone, Debug, Default)]
pub struct Chain {
    blocks: Vec<u64>,
    /// Bytes of the prompt up to the end of each block; never falls.
    ends_bytes: Vec<u32>,
    /// In a chain of the engine's own blocks: bytes behind the last of them. `None` in any other.
    rest_bytes: Option<u32>,
    /// Where turns end, the last ones, and at last where the prompt does.
    turn_ends: Vec<TurnEnd>,
    /// Bytes of the block being filled; empty in a finished chain, kept for its allocation.
    partial: Vec<u8>,
    cut: Cut,
}

/// A place between two turns of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnEnd {
    /// Equal keys mean equal prompts up to there, however the blocks lie.
    pub key: u64,
    /// Bytes of the prompt up to there.
    pub bytes: u32,
}

/// Turn ends kept of one prompt: the last ones, where the conversation may have been before.
pub const TURN_ENDS_MAX: usize = 8;

impl PartialEq for Chain {
    fn eq(&self, other: &Self) -> bool {
        self.blocks == other.blocks && self.ends_bytes == other.ends_bytes && self.rest_bytes == other.rest_bytes
    }
}

impl Eq for Chain {}

impl Chain {
    /// Chained hash of each block, first block first.
    #[must_use]
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// Whether its turn ends are known: of token ids only where they were noted.
    #[must_use]
    pub fn tells_turns(&self) -> bool {
        match self.cut {
            Cut::Bytes => true,
            Cut::Tokens => self.has_engine_blocks() && !self.turn_ends.is_empty(),
        }
    }

    /// What its blocks are.
    #[must_use]
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// Weight of the whole prompt in bytes.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.ends_bytes.last().copied().unwrap_or(0).saturating_add(self.rest_bytes.unwrap_or(0))
    }

    /// Whether its blocks are the engine's own, made of token ids.
    #[must_use]
    pub fn has_engine_blocks(&self) -> bool {
        self.rest_bytes.is_some()
    }

    /// Weight in bytes of what need not be computed again when the first `depth` blocks are cached. Engines compute the last
    /// token in any case, and with it its block.
    #[must_use]
    pub fn reusable_bytes(&self, depth: u32) -> u32 {
        let ends_with_a_block = self.rest_bytes == Some(0);
        match ends_with_a_block && depth as usize >= self.blocks.len() {
            true => self.prefix_bytes(depth.min(self.blocks.len() as u32).saturating_sub(1)),
            false => self.prefix_bytes(depth),
        }
    }

    /// Weight in bytes of the first `depth` blocks; of the whole prompt when `depth` is beyond the end.
    #[must_use]
    pub fn prefix_bytes(&self, depth: u32) -> u32 {
        match depth as usize {
            0 => 0,
            depth => self.ends_bytes.get(depth - 1).copied().unwrap_or_else(|| self.bytes()),
        }
    }

    /// The last places where a turn ends, in their order; the last one is the end of the prompt.
    #[must_use]
    pub fn turn_ends(&self) -> &[TurnEnd] {
        &self.turn_ends
    }

    /// Takes over the content of `other`, keeping the allocations of `self`.
    pub fn copy_from(&mut self, other: &Chain) {
        self.clear();
        self.blocks.extend_from_slice(&other.blocks);
        self.ends_bytes.extend_from_slice(&other.ends_bytes);
        self.rest_bytes = other.rest_bytes;
        self.turn_ends.extend_from_slice(&other.turn_ends);
        self.cut = other.cut;
    }

    /// Makes a chain that was built unseeded that of a seed.
    pub fn seed(&mut self, seed: &Seed<'_>) {
        self.under(seed.root());
    }

    fn under(&mut self, root: u64) {
        let keys = self.turn_ends.iter_mut().map(|end| &mut end.key);
        keys.chain(&mut self.blocks).for_each(|key| *key = mix(root, *key, MARK_SEED));
    }

    fn clear(&mut self) {
        self.cut = Cut::Bytes;
        self.blocks.clear();
        self.ends_bytes.clear();
        self.rest_bytes = None;
        self.turn_ends.clear();
        self.partial.clear();
    }
}

/// How the bytes of a block came in; text and token ids never share a block hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Text,
    Ids,
}

impl Lane {
    const fn mark(self) -> u64 {
        match self {
            Lane::Text => LANE_TEXT,
            Lane::Ids => LANE_IDS,
        }
    }
}

/// Whether all blocks are of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    /// The engine's own blocks, by token ids.
    Uniform,
    /// Twice as large each time that the place in the prompt doubles, from [`BLOCKS_BEFORE_GROWTH`] on; a block also ends
    /// where a turn does.
    Growing,
}

/// Blocks of the smallest size: the first 8 KiB of a prompt are told apart by 256 bytes, what follows by 3 to 6 % of its place.
const BLOCKS_BEFORE_GROWTH: usize = 32;
/// Blocks grow to this many times the smallest size: 16 KiB.
const GROWTH_MAX: usize = 64;
/// A turn ends a block that has this many bytes: shorter turns share one with the next.
pub const TURN_BYTES_MIN: usize = 64;

/// Builds a [`Chain`] from a prompt that comes in pieces. However the text is split, the chain is the same.
#[derive(Debug)]
pub struct ChainBuilder {
    chain: Chain,
    sizes: Sizes,
    block_bytes: usize,
    /// What all hashes are seeded with at the end, where the first block was not.
    root: Option<u64>,
    parent: u64,
    mark: u64,
    lane: Lane,
    ids_alone: bool,
}

impl ChainBuilder {
    /// Starts a chain in the allocations of `recycled` (`Chain::default()` when there is none to reuse). `block_bytes`
    /// is brought into range and up to a multiple of four, so that a block holds whole token ids.
    #[must_use]
    pub fn new(seed: &Seed<'_>, block_bytes: u32, mut recycled: Chain) -> Self {
        recycled.clear();
        ChainBuilder {
            chain: recycled,
            sizes: Sizes::Uniform,
            block_bytes: block_bytes.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX).next_multiple_of(4) as usize,
            root: None,
            parent: seed.root(),
            mark: Lane::Text.mark(),
            lane: Lane::Text,
            ids_alone: true,
        }
    }

    /// Makes blocks grow with their place in the prompt and end with its turns: a conversation that goes on overlaps to the
    /// end of what was said, elsewhere what matters is the share of the whole where two long prompts part, and what a block
    /// costs (to hash, to record, to forget) does not depend on its size.
    #[must_use]
    pub fn growing(self) -> Self {
        let root = Some(self.parent);
        Self { sizes: Sizes::Growing, root, parent: 0, ..self }
    }

    /// Starts a chain of growing blocks that has no seed yet; [`Chain::seed`] makes it what [`ChainBuilder::growing`] gives.
    #[must_use]
    pub fn unseeded(block_bytes: u32, recycled: Chain) -> Self {
        let nobody = Seed { model: "", lora: None, cache_salt: None };
        Self { root: None, ..Self::new(&nobody, block_bytes, recycled).growing() }
    }

    /// Appends canonical text.
    pub fn text(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.ids_alone = false;
            self.enter(Lane::Text);
            self.absorb(bytes);
        }
    }

    /// Appends token ids of a prompt that is already tokenized: four bytes each, little endian.
    pub fn token_ids(&mut self, ids: impl Iterator<Item = u32>) {
        for id in ids {
            self.enter(Lane::Ids);
            self.absorb(&id.to_le_bytes());
        }
    }

    /// Appends a media item (image, audio) as one block of [`MEDIA_WEIGHT_BYTES`], told apart by its full content.
    pub fn media(&mut self, content: &[u8]) {
        self.ids_alone = false;
        self.seal_partial();
        self.mark = mix(self.mark, MARK_MEDIA, 0);
        self.seal(xxh3_64(content), MEDIA_WEIGHT_BYTES);
    }

    /// Marks a change of structure here: the role of the message that follows, the start of a tool, an end of turn.
    pub fn separator(&mut self, tag: u8) {
        self.end_turn();
        self.ids_alone = false;
        if self.sizes == Sizes::Growing && self.chain.partial.len() >= TURN_BYTES_MIN {
            self.seal_partial();
        }
        self.mark = mix(self.mark, MARK_SEPARATOR | u64::from(tag), self.chain.partial.len() as u64);
    }

    /// The chain, its last partial block included.
    #[must_use]
    pub fn finish(mut self) -> Chain {
        self.end_turn();
        self.seal_partial();
        self.chain.cut = match (self.ids_alone, self.sizes) {
            (true, Sizes::Uniform) if !self.chain.blocks.is_empty() => Cut::Tokens,
            (true | false, Sizes::Uniform | Sizes::Growing) => Cut::Bytes,
        };
        if let Some(root) = self.root {
            self.chain.under(root);
        }
        self.chain
    }

    /// The chain of the engine's own blocks: what is left behind the last whole one has its weight and is in no block. Where there is
    /// more than token ids, only the blocks before it are the engine's.
    #[must_use]
    pub fn finish_engine_blocks(mut self) -> Chain {
        self.chain.rest_bytes = Some(self.chain.partial.len() as u32);
        self.chain.partial.clear();
        self.chain.cut = if self.ids_alone { Cut::Tokens } else { Cut::Bytes };
        self.chain
    }

    /// Notes this place as one where a turn ends, when there is anything new before it. Blocks do not change by it.
    pub fn end_turn(&mut self) {
        let bytes = self.chain.bytes().saturating_add(self.chain.partial.len() as u32);
        if self.chain.turn_ends.last().map_or(0, |end| end.bytes) == bytes {
            return;
        }
        if self.chain.turn_ends.len() == TURN_ENDS_MAX {
            self.chain.turn_ends.remove(0);
        }
        let key = mix(self.parent, xxh3_64(&self.chain.partial), self.mark ^ TURN_END);
        self.chain.turn_ends.push(TurnEnd { key, bytes });
    }

    fn enter(&mut self, lane: Lane) {
        if self.lane == lane {
            return;
        }
        let unmarked = self.chain.partial.is_empty() && self.mark == self.lane.mark();
        self.mark = match unmarked {
            true => lane.mark(),
            false => mix(self.mark, lane.mark(), self.chain.partial.len() as u64),
        };
        self.lane = lane;
    }

    fn next_block_bytes(&self) -> usize {
        match self.sizes {
            Sizes::Uniform => self.block_bytes,
            Sizes::Growing => {
                let place = self.chain.bytes() as usize / (self.block_bytes * BLOCKS_BEFORE_GROWTH / 2);
                let growth = place.checked_ilog2().map_or(1, |doublings| 1 << doublings);
                self.block_bytes * growth.min(GROWTH_MAX)
            }
        }
    }

    fn absorb(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let size = self.next_block_bytes();
            if self.chain.partial.is_empty() && bytes.len() >= size {
                let (block, rest) = bytes.split_at(size);
                if self.chain.blocks.len() < BLOCKS_MAX {
                    self.seal(xxh3_64(block), size as u32);
                } else {
                    self.weigh(size as u32);
                }
                bytes = rest;
                continue;
            }
            let (head, rest) = bytes.split_at(bytes.len().min(size - self.chain.partial.len()));
            self.chain.partial.extend_from_slice(head);
            bytes = rest;
            if self.chain.partial.len() == size {
                self.seal_partial();
            }
        }
    }

    fn seal_partial(&mut self) {
        if !self.chain.partial.is_empty() {
            let (content, weight_bytes) = (xxh3_64(&self.chain.partial), self.chain.partial.len() as u32);
            self.seal(content, weight_bytes);
            self.chain.partial.clear();
        }
    }

    fn seal(&mut self, content: u64, weight_bytes: u32) {
        if self.chain.blocks.len() == BLOCKS_MAX {
            return self.weigh(weight_bytes);
        }
        let end_bytes = self.chain.bytes().saturating_add(weight_bytes);
        self.parent = mix(self.parent, content, self.mark);
        self.mark = self.lane.mark();
        self.chain.blocks.push(self.parent);
        self.chain.ends_bytes.push(end_bytes);
    }

    fn weigh(&mut self, weight_bytes: u32) {
        if let Some(end_bytes) = self.chain.ends_bytes.last_mut() {
            *end_bytes = end_bytes.saturating_add(weight_bytes);
        }
    }
}

/// Hash of one block of token ids after the block `parent` ([`Seed::root`] before the first), equal to what
/// [`ChainBuilder::token_ids`] gives for the same ids when a block holds exactly that many. Engines that publish the
/// ids of the blocks they store are brought into the index with it.
#[must_use]
pub fn token_block(parent: u64, ids: impl Iterator<Item = u32>) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    for id in ids {
        hasher.update(&id.to_le_bytes());
    }
    mix(parent, hasher.digest(), Lane::Ids.mark())
}

/// One hash of three numbers.
fn mix(parent: u64, content: u64, mark: u64) -> u64 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&parent.to_le_bytes());
    bytes[8..16].copy_from_slice(&content.to_le_bytes());
    bytes[16..].copy_from_slice(&mark.to_le_bytes());
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEED: Seed<'static> = Seed { model: "m", lora: None, cache_salt: None };

    fn chain(build: impl FnOnce(&mut ChainBuilder)) -> Chain {
        let mut builder = ChainBuilder::new(&SEED, 64, Chain::default());
        build(&mut builder);
        builder.finish()
    }

    fn shared(a: &Chain, b: &Chain) -> usize {
        a.blocks().iter().zip(b.blocks()).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn only_blocks_of_token_ids_and_nothing_else_are_the_engines_own() {
        let cut = |build: fn(&mut ChainBuilder)| chain(build).cut();
        assert_eq!(cut(|builder| builder.token_ids(0..100)), Cut::Tokens);
        assert_eq!(cut(|builder| builder.text(b"text")), Cut::Bytes);
        assert_eq!(cut(|_| ()), Cut::Bytes);
        let mixed: [fn(&mut ChainBuilder); 3] =
            [|builder| builder.text(b"t"), |builder| builder.separator(1), |builder| builder.media(b"m")];
        for more in mixed {
            let mut builder = ChainBuilder::new(&SEED, 64, chain(|builder| builder.token_ids(0..9)));
            builder.token_ids(0..100);
            more(&mut builder);
            assert_eq!(builder.finish().cut(), Cut::Bytes);
        }
        let mut growing = ChainBuilder::new(&SEED, 64, Chain::default()).growing();
        growing.token_ids(0..100);
        assert_eq!(growing.finish().cut(), Cut::Bytes);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn text_split_anywhere_equals_whole(text in prop::collection::vec(any::<u8>(), 0..600), cuts in prop::collection::vec(0usize..600, 0..8)) {
            let whole = chain(|builder| { builder.text(&text); builder.separator(1); builder.text(&text) });
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (text.len() + 1)).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let split = chain(|builder| {
                cuts.windows(2).for_each(|cut| builder.text(&text[cut[0]..cut[1]]));
                builder.separator(1);
                cuts.windows(2).for_each(|cut| builder.text(&text[cut[0]..cut[1]]));
            });
            prop_assert_eq!(&whole, &split);
            prop_assert_eq!(whole.bytes() as usize, 2 * text.len());
        }

        #[test]
        fn growing_blocks_do_not_depend_on_the_split(bytes in 0usize..30_000, cuts in prop::collection::vec(0usize..30_000, 0..6)) {
            let text: Vec<u8> = (0..bytes).map(|i| (i * i % 251) as u8).collect();
            let build = |pieces: &[&[u8]]| {
                let mut builder = ChainBuilder::new(&SEED, 16, Chain::default()).growing();
                pieces.iter().for_each(|piece| builder.text(piece));
                builder.finish()
            };
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (bytes + 1)).chain([0, bytes]).collect();
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            let (whole, split) = (build(&[&text]), build(&pieces));
            prop_assert_eq!(&whole, &split);
            prop_assert_eq!(whole.bytes() as usize, bytes);
            let doublings = (bytes / 512).checked_ilog2().map_or(0, |n| n as usize + 1);
            prop_assert!(whole.blocks().len() <= BLOCKS_BEFORE_GROWTH * (doublings + 2) / 2 + 1);
        }

        #[test]
        fn a_change_at_a_byte_changes_its_block_and_all_after(text in prop::collection::vec(any::<u8>(), 1..600), at in 0usize..600) {
            let at = at % text.len();
            let mut other = text.clone();
            other[at] ^= 1;
            let (a, b) = (chain(|builder| builder.text(&text)), chain(|builder| builder.text(&other)));
            prop_assert_eq!(shared(&a, &b), at / 64);
            prop_assert!(a.blocks()[at / 64..].iter().zip(&b.blocks()[at / 64..]).all(|(a, b)| a != b));
        }
    }

    #[test]
    fn a_chain_seeded_late_is_the_same() {
        let other = Seed { cache_salt: Some(b"salt"), ..SEED };
        let feed = |mut builder: ChainBuilder| {
            builder.separator(1);
            builder.text(&[7; 9_000]);
            builder.media(b"picture");
            builder.separator(2);
            builder.token_ids(0..300);
            builder.finish()
        };
        for seed in [SEED, other] {
            let early = feed(ChainBuilder::new(&seed, 64, Chain::default()).growing());
            let mut late = feed(ChainBuilder::unseeded(64, Chain::default()));
            assert_eq!(shared(&early, &late), 0);
            late.seed(&seed);
            assert_eq!((&early, early.turn_ends()), (&late, late.turn_ends()));
        }
    }

    #[test]
    fn a_conversation_that_goes_on_overlaps_to_the_end_of_what_was_said() {
        let conversation = |turns: usize| {
            let mut builder = ChainBuilder::new(&SEED, 256, Chain::default()).growing();
            for turn in 0..turns {
                builder.separator(1);
                builder.text(&vec![turn as u8; 100 + 977 * turn]);
            }
            builder.finish()
        };
        for turns in 1..40 {
            let (before, after) = (conversation(turns), conversation(turns + 1));
            let unshared = before.bytes() - before.prefix_bytes(shared(&before, &after) as u32);
            assert!((unshared as usize) < TURN_BYTES_MIN, "{unshared} bytes after {turns} turns");
        }
    }

    #[test]
    fn model_lora_and_salt_seed_the_first_block_and_are_not_confused() {
        let roots = [
            SEED,
            Seed { model: "n", ..SEED },
            Seed { lora: Some("x"), ..SEED },
            Seed { lora: Some(""), ..SEED },
            Seed { cache_salt: Some(b"x"), ..SEED },
            Seed { cache_salt: Some(b""), ..SEED },
        ]
        .map(|seed| seed.root());
        for (at, root) in roots.iter().enumerate() {
            assert!(!roots[..at].contains(root), "seed {at} equals an earlier one");
        }
    }

    #[test]
    fn no_text_imitates_a_separator() {
        let marked = chain(|builder| {
            builder.text(b"a");
            builder.separator(1);
            builder.text(b"b");
        });
        let moved = chain(|builder| {
            builder.separator(1);
            builder.text(b"ab");
        });
        let other = chain(|builder| {
            builder.text(b"a");
            builder.separator(2);
            builder.text(b"b");
        });
        let plain = chain(|builder| builder.text(b"ab"));
        let all = [&marked, &moved, &other, &plain].map(|chain| chain.blocks()[0]);
        for (at, block) in all.iter().enumerate() {
            assert!(!all[..at].contains(block), "{at}");
        }
    }

    #[test]
    fn a_media_item_is_one_block_by_its_full_content() {
        let image = vec![7; 100_000];
        let mut changed = image.clone();
        changed[99_999] = 8;
        let with = |image: &[u8]| {
            chain(|builder| {
                builder.text(b"look");
                builder.media(image);
                builder.text(b"what is it?");
            })
        };
        let (a, b) = (with(&image), with(&changed));
        assert_eq!(a.blocks().len(), 3);
        assert_eq!(shared(&a, &b), 1);
        assert_eq!(a.bytes(), 4 + MEDIA_WEIGHT_BYTES + 11);
    }

    #[test]
    fn a_media_item_is_not_the_text_of_the_same_bytes() {
        let (media, text) = (chain(|builder| builder.media(b"x")), chain(|builder| builder.text(b"x")));
        assert_ne!(media.blocks(), text.blocks());
    }

    #[test]
    fn the_last_partial_block_counts() {
        let chain = chain(|builder| builder.text(&[b'x'; 65]));
        assert_eq!(chain.blocks().len(), 2);
        assert_eq!([0, 1, 2, 9].map(|depth| chain.prefix_bytes(depth)), [0, 64, 65, 65]);
    }

    #[test]
    fn token_ids_are_not_text_and_can_be_hashed_block_by_block() {
        let ids: Vec<u32> = (0..40).collect();
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let chained = chain(|builder| builder.token_ids(ids.iter().copied()));
        assert_ne!(chained.blocks()[0], chain(|builder| builder.text(&bytes)).blocks()[0]);
        let mut parent = SEED.root();
        for (block, ids) in chained.blocks().iter().zip(ids.chunks(16)) {
            parent = token_block(parent, ids.iter().copied());
            assert_eq!(*block, parent);
        }
    }

    #[test]
    fn a_recycled_chain_leaves_no_trace_and_keeps_its_allocation() {
        let old = chain(|builder| builder.text(&[1; 1_000]));
        let capacity = old.blocks.capacity();
        let mut builder = ChainBuilder::new(&SEED, 64, old);
        builder.text(b"new");
        let new = builder.finish();
        assert_eq!(new, chain(|builder| builder.text(b"new")));
        assert_eq!(new.blocks.capacity(), capacity);
    }

    #[test]
    fn a_chain_is_bounded_and_weighs_what_it_does_not_hash() {
        let text = vec![b'x'; BLOCKS_MAX * 16 + 1_000];
        let mut builder = ChainBuilder::new(&SEED, 16, Chain::default());
        builder.text(&text);
        let chain = builder.finish();
        assert_eq!(chain.blocks().len(), BLOCKS_MAX);
        assert_eq!(chain.bytes() as usize, text.len());
    }

    #[test]
    fn engine_blocks_are_whole_and_the_last_token_is_always_computed() {
        let blocks = |ids: u32| {
            let mut builder = ChainBuilder::new(&SEED, 16 * 4, Chain::default());
            builder.token_ids(0..ids);
            builder.finish_engine_blocks()
        };
        let (short, whole, long) = (blocks(31), blocks(32), blocks(33));
        assert_eq!([&short, &whole, &long].map(|chain| chain.blocks().len()), [1, 2, 2]);
        assert_eq!([&short, &whole, &long].map(Chain::bytes), [124, 128, 132]);
        assert_eq!(whole.blocks(), long.blocks());
        assert_eq!(
            [&short, &whole, &long].map(|chain| chain.reusable_bytes(chain.blocks().len() as u32)),
            [64, 64, 128]
        );
        assert_eq!((whole.reusable_bytes(1), whole.reusable_bytes(0), blocks(0).reusable_bytes(0)), (64, 0, 0));
        let first = token_block(SEED.root(), 0..16);
        assert_eq!(long.blocks(), [first, token_block(first, 16..32)]);
        assert!(long.has_engine_blocks());
    }
}
