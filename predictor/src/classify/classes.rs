//! Which bytes of a slice are letters, digits and signs: one bit each, worked out once for all lanes.
//!
//! Eight bytes are classed at a time with plain arithmetic on a word, and their verdicts gathered into eight bits by one multiplication.
//! The lanes then jump from one place of interest to the next by counting zero bits, where a loop over bytes would guess wrong at every
//! end of a word.

/// Bytes, and bits, of one block.
pub(super) const BLOCK_BYTES: usize = 64;

/// The bits of 64 bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Block {
    /// ASCII letters and digits.
    pub(super) alnum: u64,
    pub(super) digits: u64,
    pub(super) capitals: u64,
    /// Signs of ASCII, and first bytes of characters that are not ASCII.
    pub(super) signs: u64,
    /// Characters of base64, in either alphabet: letters, digits, and the signs `+/-_`.
    pub(super) sextets: u64,
}

/// The blocks of a slice. There is always one more than the text needs, all of it zero, so that a search ends in it.
#[derive(Debug, Default)]
pub(super) struct Classes {
    blocks: Vec<Block>,
    len: usize,
}

/// Characters of base64 in a row that [`Classes::next_sextets`] looks for: eleven bytes of text, a US social security number.
pub(super) const SEXTETS_MIN: usize = 15;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x80 * ONES;

/// The high bit of each byte of `low`, none above 0x7f, that is `least` or more.
const fn at_least(low: u64, least: u8) -> u64 {
    low + (0x80 - least as u64) * ONES & HIGHS
}

/// The high bits of the eight bytes, as eight bits.
const fn gather(highs: u64) -> u64 {
    (highs >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The bits of eight bytes, in the low eight of each mask.
const fn eight(bytes: [u8; 8]) -> Block {
    let word = u64::from_le_bytes(bytes);
    let (high, low) = (word & HIGHS, word & !HIGHS);
    let digits = at_least(low, b'0') & !at_least(low, b'9' + 1) & !high;
    let capitals = at_least(low, b'A') & !at_least(low, b'Z' + 1) & !high;
    let small = at_least(low, b'a') & !at_least(low, b'z' + 1) & !high;
    let alnum = digits | capitals | small;
    let ascii_signs = at_least(low, b'!') & !high & !alnum;
    // The bit below the high one tells a first byte from those that follow it.
    let first_bytes = high & word << 1;
    let sextet_signs = (equal(low, b'+') | equal(low, b'-') | equal(low, b'/') | equal(low, b'_')) & !high;
    Block {
        alnum: gather(alnum),
        digits: gather(digits),
        capitals: gather(capitals),
        signs: gather(ascii_signs | first_bytes),
        sextets: gather(alnum | sextet_signs),
    }
}

/// The high bit of each byte of `low`, none above 0x7f, that is `byte`.
const fn equal(low: u64, byte: u8) -> u64 {
    HIGHS & !((low ^ byte as u64 * ONES) + (HIGHS - ONES))
}

/// One bit for each of the first 64 bytes of `text` whose high bit `test` sets.
fn masks(text: &[u8], test: impl Fn(u64) -> u64) -> u64 {
    let text = &text[..text.len().min(BLOCK_BYTES)];
    let (words, rest) = text.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let all = words.iter().chain([&last]).zip((0..BLOCK_BYTES).step_by(8));
    all.fold(0, |bits, (bytes, shift)| bits | gather(test(u64::from_le_bytes(*bytes)) & HIGHS) << shift)
}

/// The places among the first 64 bytes of `text` of bytes that are not ASCII, or begin an escape: backslash, percent sign, ampersand.
pub(super) fn specials(text: &[u8]) -> u64 {
    masks(text, |word| {
        let low = word & !HIGHS;
        word | equal(low, b'\\') | equal(low, b'%') | equal(low, b'&')
    })
}

fn block(bytes: &[u8; BLOCK_BYTES]) -> Block {
    let mut block = Block::default();
    let mut shift = 0;
    for bytes in bytes.as_chunks::<8>().0 {
        let eight = eight(*bytes);
        block.alnum |= eight.alnum << shift;
        block.digits |= eight.digits << shift;
        block.capitals |= eight.capitals << shift;
        block.signs |= eight.signs << shift;
        block.sextets |= eight.sextets << shift;
        shift += 8;
    }
    block
}

impl Classes {
    /// Classes the bytes of `text`.
    pub(super) fn read(&mut self, text: &[u8]) {
        let (blocks, rest) = text.as_chunks::<BLOCK_BYTES>();
        self.len = text.len();
        self.blocks.clear();
        self.blocks.extend(blocks.iter().map(block));
        // A zero byte is neither letter nor digit nor sign.
        let mut last = [0; BLOCK_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        self.blocks.extend([block(&last), Block::default()]);
    }

    /// The blocks that hold the text.
    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks[..self.len.div_ceil(BLOCK_BYTES)]
    }

    /// The first place at or behind `from` whose bit in `mask` is set; the end of the text when there is none.
    fn next(&self, from: usize, mask: impl Fn(&Block) -> u64) -> usize {
        let first = from / BLOCK_BYTES;
        let Some(here) = self.blocks.get(first) else { return self.len };
        let bits = mask(here) & u64::MAX << (from % BLOCK_BYTES);
        if bits != 0 {
            return (first * BLOCK_BYTES + bits.trailing_zeros() as usize).min(self.len);
        }
        let more = self.blocks[first + 1..].iter().position(|block| mask(block) != 0);
        more.map_or(self.len, |more| {
            let at = first + 1 + more;
            (at * BLOCK_BYTES + mask(&self.blocks[at]).trailing_zeros() as usize).min(self.len)
        })
    }

    /// The next digit at or behind `from`.
    pub(super) fn next_digit(&self, from: usize) -> usize {
        self.next(from, |block| block.digits)
    }

    /// The first place at or behind `from` where `SEXTETS_MIN` characters of base64 stand in a row.
    pub(super) fn next_sextets(&self, from: usize) -> Option<usize> {
        let first = from / BLOCK_BYTES;
        let mut open = u64::MAX << (from % BLOCK_BYTES);
        for index in first..self.blocks.len().saturating_sub(1) {
            // Two blocks as one number: a row may go on in the next one.
            let mut rows = u128::from(self.blocks[index].sextets) | u128::from(self.blocks[index + 1].sextets) << BLOCK_BYTES;
            for shift in [1, 2, 4, SEXTETS_MIN - 8] {
                rows &= rows >> shift;
            }
            let here = rows as u64 & open;
            if here != 0 {
                return Some(index * BLOCK_BYTES + here.trailing_zeros() as usize);
            }
            open = u64::MAX;
        }
        None
    }

    /// The next byte at or behind `from` that is no character of base64.
    pub(super) fn next_no_sextet(&self, from: usize) -> usize {
        self.next(from, |block| !block.sextets)
    }

    /// The next byte at or behind `from` that is no digit.
    pub(super) fn next_no_digit(&self, from: usize) -> usize {
        self.next(from, |block| !block.digits)
    }
}

/// The places where rows of letters and digits begin and end, in turn.
#[derive(Debug)]
pub(super) struct Edges<'a> {
    blocks: &'a [Block],
    len: usize,
    index: usize,
    /// The edges of the block that have not been given yet.
    bits: u64,
}

impl<'a> Edges<'a> {
    /// The edges of `classes` at or behind `from`, where a letter or digit must not stand before.
    pub(super) fn new(classes: &'a Classes, from: usize) -> Edges<'a> {
        let mut edges = Edges { blocks: &classes.blocks, len: classes.len, index: 0, bits: 0 };
        edges.seek(from);
        edges
    }

    /// Goes to `from`, which is not inside a row.
    pub(super) fn seek(&mut self, from: usize) {
        self.index = from / BLOCK_BYTES;
        self.bits = self.of(self.index) & u64::MAX << (from % BLOCK_BYTES);
    }

    fn of(&self, index: usize) -> u64 {
        let alnum = self.blocks.get(index).map_or(0, |block| block.alnum);
        let before = index.checked_sub(1).and_then(|before| self.blocks.get(before)).map_or(0, |block| block.alnum >> 63);
        alnum ^ (alnum << 1 | before)
    }

    /// The next edge; the end of the text when there is none.
    pub(super) fn next(&mut self) -> usize {
        while self.bits == 0 {
            self.index += 1;
            if self.index >= self.blocks.len() {
                return self.len;
            }
            self.bits = self.of(self.index);
        }
        let at = self.index * BLOCK_BYTES + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        at
    }
}

/// The places among the first 64 bytes of `text` of line ends, and of bytes that separate the columns of a table.
pub(super) fn separators(text: &[u8]) -> u64 {
    masks(text, |word| {
        let low = word & !HIGHS;
        let any = equal(low, b'\n') | equal(low, b'|') | equal(low, b'\t') | equal(low, b';') | equal(low, b',');
        any & !word
    })
}

#[cfg(test)]
impl Classes {
    /// The classes of `text`.
    pub(super) fn of(text: &[u8]) -> Classes {
        let mut classes = Classes::default();
        classes.read(text);
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_byte_has_its_class() {
        for byte in 0..=u8::MAX {
            let block = eight([byte; 8]);
            let all = |holds: bool| if holds { 0xff } else { 0 };
            assert_eq!(block.sextets, all(byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte)), "{byte}");
            assert_eq!(separators(&[byte; 8]), all(b"\n|\t;,".contains(&byte)), "{byte}");
            assert_eq!(block.alnum, all(byte.is_ascii_alphanumeric()), "{byte}");
            assert_eq!(block.digits, all(byte.is_ascii_digit()), "{byte}");
            assert_eq!(block.capitals, all(byte.is_ascii_uppercase()), "{byte}");
            assert_eq!(block.signs, all(byte.is_ascii_punctuation() || byte >= 0xc0 || byte == 0x7f), "{byte}");
        }
    }

    #[test]
    fn escapes_and_bytes_that_are_not_ascii_are_special() {
        let text: Vec<u8> = (0..=u8::MAX).collect();
        for (start, bytes) in (0..).zip(text.chunks(BLOCK_BYTES)) {
            let special = |byte: u8| byte >= 0x80 || matches!(byte, b'\\' | b'%' | b'&');
            let slow = bytes.iter().zip(0..).fold(0, |places, (byte, at)| places | u64::from(special(*byte)) << at);
            assert_eq!(specials(bytes), slow, "{start}");
            assert_eq!(specials(&bytes[..13]), slow & 0x1fff, "{start}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// The slow twin looks at one byte after the other.
        #[test]
        fn searches_end_where_a_search_by_bytes_ends(text in "[a1 .é]{0,150}|[a-z]{120,200}|[0-9]{60,70}", from in 0usize..210) {
            let (bytes, classes) = (text.as_bytes(), Classes::of(text.as_bytes()));
            let slow = |holds: fn(&u8) -> bool| {
                (from..bytes.len()).find(|at| holds(&bytes[*at])).unwrap_or(bytes.len())
            };
            prop_assert_eq!(classes.next_no_sextet(from), slow(|byte| !byte.is_ascii_alphanumeric()));
            let row = |at: usize| bytes.get(at..at + SEXTETS_MIN).is_some_and(|row| row.iter().all(u8::is_ascii_alphanumeric));
            prop_assert_eq!(classes.next_sextets(from), (from..bytes.len()).find(|at| row(*at)));
            let alnum = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
            let mut edges = Edges::new(&classes, 0);
            for at in (0..bytes.len()).filter(|at| alnum(*at) != at.checked_sub(1).is_some_and(alnum)) {
                prop_assert_eq!(edges.next(), at);
            }
            prop_assert_eq!(edges.next(), bytes.len());
            prop_assert_eq!(classes.next_digit(from), slow(u8::is_ascii_digit));
            prop_assert_eq!(classes.next_no_digit(from), slow(|byte| !byte.is_ascii_digit()));
        }
    }
}
