//! Which bytes of a slice are letters, digits and signs: one bit each, worked out once for all lanes.
//!
//! The class of a byte is worked out without a branch, so that many are done at a time, and the verdicts of eight bytes are gathered into
//! eight bits by one multiplication. The lanes then jump from one place of interest to the next by counting zero bits, where a loop over bytes would guess wrong at every
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
    /// The signs of ASCII that a landmark begins with, and first bytes of characters that are not ASCII.
    pub(super) signs: u64,
    /// Characters of base64, in either alphabet: letters, digits, and the signs `+/-_`.
    pub(super) sextets: u64,
}

/// How many of some bytes are digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Digits {
    None,
    Some,
    All,
}

/// The blocks of a slice. There is always one more than the text needs, all of it zero, so that a search ends in it.
#[derive(Debug, Default)]
pub(super) struct Classes {
    blocks: Vec<Block>,
    len: usize,
}

/// Characters of base64 in a row that [`Classes::next_sextets`] looks for: eleven bytes of text, a US social security number.
pub(super) const SEXTETS_MIN: usize = 15;

/// Capitals in a row that [`Classes::next_capitals`] looks for: a bank identifier code.
pub(super) const CAPITALS_MIN: usize = 8;

const ONES: u64 = 0x0101_0101_0101_0101;

// The classes of a byte, one bit each.
const ALNUM: u8 = 1;
const DIGIT: u8 = 2;
const CAPITAL: u8 = 4;
const SIGN: u8 = 8;
const SEXTET: u8 = 16;

/// Whether `byte` is one of `from..=to`, as 1 or 0. There is no branch in it, so that a loop of it becomes vector instructions.
const fn within(byte: u8, from: u8, to: u8) -> u8 {
    (byte.wrapping_sub(from) <= to - from) as u8
}

/// Whether `byte` is `other`, as 1 or 0.
const fn is(byte: u8, other: u8) -> u8 {
    (byte == other) as u8
}

/// The classes of a byte.
const fn class(byte: u8) -> u8 {
    let (digit, capital, small) = (within(byte, b'0', b'9'), within(byte, b'A', b'Z'), within(byte, b'a', b'z'));
    let alnum = digit | capital | small;
    let bracket = is(byte, b'(') | is(byte, b'<') | is(byte | 0x20, b'{');
    let sign = bracket | is(byte, b'-') | is(byte, b':') | is(byte, b'@') | is(byte, b'_') | within(byte, 0xc0, 0xff);
    let sextet = alnum | is(byte, b'+') | is(byte | 2, b'/') | is(byte, b'_');
    let verdicts = [(alnum, ALNUM), (digit, DIGIT), (capital, CAPITAL), (sign, SIGN), (sextet, SEXTET)];
    let (mut class, mut at) = (0, 0);
    while at < verdicts.len() {
        class |= verdicts[at].0 * verdicts[at].1;
        at += 1;
    }
    class
}

/// The lowest bit of each of 64 bytes.
fn gather(bytes: &[u8; BLOCK_BYTES], shift: u32) -> u64 {
    bytes.as_chunks::<8>().0.iter().zip((0..).step_by(8)).fold(0, |bits, (eight, at)| {
        let ones = u64::from_le_bytes(*eight) >> shift & ONES;
        bits | (ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) << at
    })
}

fn block(bytes: &[u8; BLOCK_BYTES]) -> Block {
    let mut classes = [0; BLOCK_BYTES];
    classes.iter_mut().zip(bytes).for_each(|(to, byte)| *to = class(*byte));
    let bits = |class: u8| gather(&classes, class.trailing_zeros());
    Block { alnum: bits(ALNUM), digits: bits(DIGIT), capitals: bits(CAPITAL), signs: bits(SIGN), sextets: bits(SEXTET) }
}

/// One bit for each of the first 64 bytes of `text` for which `test` gives 1.
fn places(text: &[u8], test: impl Fn(u8) -> u8) -> u64 {
    if let Some(block) = text.first_chunk::<BLOCK_BYTES>() {
        let mut verdicts = [0; BLOCK_BYTES];
        verdicts.iter_mut().zip(block).for_each(|(to, byte)| *to = test(*byte));
        return gather(&verdicts, 0);
    }
    text.iter().zip(0..).fold(0, |bits, (byte, at)| bits | u64::from(test(*byte)) << at)
}

/// The places among the first 64 bytes of `text` of bytes that begin what may have a plain form: an escape (backslash, percent sign,
/// ampersand, equals sign), or a character of other blocks than Latin, Greek, Cyrillic, Hebrew, Han and Hangul, of which most text is that is not ASCII.
pub(super) fn specials(text: &[u8]) -> u64 {
    places(text, |byte| {
        let two = is(byte, 0xc2) | within(byte, 0xca, 0xcd) | within(byte, 0xd8, 0xdf);
        let more = within(byte, 0xe0, 0xe3) | within(byte, 0xed, 0xff);
        two | more | is(byte, b'\\') | within(byte, b'%', b'&') | is(byte, b'=')
    })
}

/// The places among the first 64 bytes of `text` of line ends, and of bytes that separate the columns of a table.
pub(super) fn separators(text: &[u8]) -> u64 {
    places(text, |byte| {
        let line_or_tab = within(byte, b'\t', b'\n');
        line_or_tab | is(byte, b'|') | is(byte, b';') | is(byte, b',')
    })
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

    /// The first place at or behind `from` where as many bits of `mask` stand in a row as `doublings` says: each adds its number to one.
    fn next_row(&self, from: usize, doublings: &[usize], mask: impl Fn(&Block) -> u64) -> Option<usize> {
        let first = from / BLOCK_BYTES;
        let mut open = u64::MAX << (from % BLOCK_BYTES);
        for index in first..self.blocks.len().saturating_sub(1) {
            // Two blocks as one number: a row may go on in the next one.
            let mut rows =
                u128::from(mask(&self.blocks[index])) | u128::from(mask(&self.blocks[index + 1])) << BLOCK_BYTES;
            for shift in doublings {
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

    /// The first place at or behind `from` where [`SEXTETS_MIN`] characters of base64 stand in a row.
    pub(super) fn next_sextets(&self, from: usize) -> Option<usize> {
        self.next_row(from, &[1, 2, 4, SEXTETS_MIN - 8], |block| block.sextets)
    }

    /// The first place at or behind `from` where [`CAPITALS_MIN`] capitals stand in a row.
    pub(super) fn next_capitals(&self, from: usize) -> Option<usize> {
        self.next_row(from, &[1, 2, CAPITALS_MIN - 4], |block| block.capitals)
    }

    /// The next byte at or behind `from` that is no capital.
    pub(super) fn next_no_capital(&self, from: usize) -> usize {
        self.next(from, |block| !block.capitals)
    }

    /// The next byte at or behind `from` that is no character of base64.
    pub(super) fn next_no_sextet(&self, from: usize) -> usize {
        self.next(from, |block| !block.sextets)
    }

    /// Which of the 64 bytes from `start` on are digits.
    pub(super) fn digits_from(&self, start: usize) -> u64 {
        let of = |index: usize| self.blocks.get(index).map_or(0, |block| block.digits);
        let index = start / BLOCK_BYTES;
        let two = u128::from(of(index)) | u128::from(of(index + 1)) << BLOCK_BYTES;
        (two >> (start % BLOCK_BYTES)) as u64
    }

    /// What of `start..end`, a row of letters and digits, are digits.
    pub(super) fn digits_in(&self, start: usize, end: usize) -> Digits {
        let len = end - start;
        if len > BLOCK_BYTES {
            return match self.next_digit(start) {
                digit if digit >= end => Digits::None,
                digit if digit == start && self.next(start, |block| !block.digits) >= end => Digits::All,
                _ => Digits::Some,
            };
        }
        let all = u64::MAX >> (BLOCK_BYTES - len);
        match self.digits_from(start) & all {
            0 => Digits::None,
            digits if digits == all => Digits::All,
            _ => Digits::Some,
        }
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

    /// Goes to `from`, which is not inside a row. The next edge is where a row begins, even if another ends at `from`.
    pub(super) fn seek(&mut self, from: usize) {
        self.index = from / BLOCK_BYTES;
        let here = 1 << (from % BLOCK_BYTES);
        let ends = here & !self.blocks.get(self.index).map_or(0, |block| block.alnum);
        self.bits = self.of(self.index) & !(here - 1) & !ends;
    }

    fn of(&self, index: usize) -> u64 {
        let alnum = self.blocks.get(index).map_or(0, |block| block.alnum);
        let before =
            index.checked_sub(1).and_then(|before| self.blocks.get(before)).map_or(0, |block| block.alnum >> 63);
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
            let block = block(&[byte; BLOCK_BYTES]);
            let all = |holds: bool| if holds { u64::MAX } else { 0 };
            assert_eq!(block.sextets, all(byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte)), "{byte}");
            assert_eq!(separators(&[byte; BLOCK_BYTES]), all(b"\n|\t;,".contains(&byte)), "{byte}");
            assert_eq!(block.alnum, all(byte.is_ascii_alphanumeric()), "{byte}");
            assert_eq!(block.digits, all(byte.is_ascii_digit()), "{byte}");
            assert_eq!(block.capitals, all(byte.is_ascii_uppercase()), "{byte}");
            assert_eq!(block.signs, all(b"(<[{-:@_".contains(&byte) || byte >= 0xc0), "{byte}");
        }
    }

    #[test]
    fn escapes_and_characters_that_may_have_another_form_are_special() {
        let text: Vec<u8> = (0..=u8::MAX).collect();
        for (start, bytes) in (0..).zip(text.chunks(BLOCK_BYTES)) {
            let common = |byte: u8| matches!(byte, 0x80..=0xc1 | 0xc3..=0xc9 | 0xce..=0xd7 | 0xe4..=0xec);
            let special = |byte: u8| byte >= 0x80 && !common(byte) || matches!(byte, b'\\' | b'%' | b'&' | b'=');
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
            if !(alnum(from) && from > 0 && alnum(from - 1)) {
                edges.seek(from);
                prop_assert_eq!(edges.next(), (from..bytes.len()).find(|at| alnum(*at)).unwrap_or(bytes.len()));
            }
            prop_assert_eq!(classes.next_digit(from), slow(u8::is_ascii_digit));
            for end in from + 1..=bytes.len() {
                let digits = bytes[from..end].iter().filter(|byte| byte.is_ascii_digit()).count();
                let expected = match digits {
                    0 => Digits::None,
                    digits if digits == end - from => Digits::All,
                    _ => Digits::Some,
                };
                prop_assert_eq!(classes.digits_in(from, end), expected);
            }
        }
    }
}
