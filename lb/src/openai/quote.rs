//! Where a JSON string ends.
//!
//! Three ways, by what the string is like: most keys and values end within a few bytes; long text has its next quote or backslash far
//! away, where `memchr` is fastest; and text full of escapes (code, JSON within JSON) is looked through 64 bytes at a time, whatever is
//! in it.

/// This much of a string is looked through without a call: most keys and short values end in it.
const NEAR_BYTES: usize = 24;

/// Escapes after which a string is taken for one that is full of them.
const ESCAPES_FEW: usize = 8;

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// Where in `bytes` the quote stands that ends a string which has begun before them.
pub(super) fn closing_quote(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    for _ in 0..ESCAPES_FEW {
        let found = from + quote_or_backslash(bytes.get(from..)?)?;
        if bytes[found] == b'"' {
            return Some(found);
        }
        from = found + 2;
    }
    Some(from + closing_quote_among_escapes(bytes.get(from..)?)?)
}

fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    let (near, _) = bytes.as_chunks::<8>();
    let mut passed = 0;
    for eight in near.iter().take(NEAR_BYTES / 8) {
        let word = u64::from_le_bytes(*eight);
        // Hacker's Delight, 6-1: of the marked bytes the lowest is one that was searched for.
        let marked = |byte: u8| {
            let zero = word ^ (ONES * u64::from(byte));
            zero.wrapping_sub(ONES) & !zero & TOPS
        };
        let marks = marked(b'"') | marked(b'\\');
        if marks != 0 {
            return Some(passed + marks.trailing_zeros() as usize / 8);
        }
        passed += 8;
    }
    Some(passed + memchr::memchr2(b'"', b'\\', &bytes[passed..])?)
}

fn closing_quote_among_escapes(bytes: &[u8]) -> Option<usize> {
    let (blocks, tail) = bytes.as_chunks::<64>();
    // Whether a backslash at the end of the block before escapes the first byte: one bit.
    let mut carried = 0;
    for (at, block) in blocks.iter().enumerate() {
        let (quotes, backslashes) = (places(block, b'"'), places(block, b'\\'));
        let closing = quotes & !escaped(backslashes, &mut carried);
        if closing != 0 {
            return Some(at * 64 + closing.trailing_zeros() as usize);
        }
    }
    let mut at = carried as usize;
    loop {
        match tail.get(at)? {
            b'"' => return Some(blocks.len() * 64 + at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The places that are behind an odd number of backslashes. A run of them that begins at an even place and ends before an odd one is odd,
/// and so is one that begins at an odd place and ends before an even one; adding the beginnings to the runs carries a bit to where they end.
fn escaped(backslashes: u64, carried: &mut u64) -> u64 {
    const EVEN: u64 = 0x5555_5555_5555_5555;
    let first = *carried;
    // A backslash that is escaped escapes nothing.
    let runs = backslashes & !first;
    let begins = runs & !(runs << 1);
    let ends = |begins: u64| runs.wrapping_add(begins) & !runs;
    *carried = u64::from(runs.leading_ones() % 2);
    (ends(begins & EVEN) & !EVEN) | (ends(begins & !EVEN) & EVEN) | first
}

/// One bit for each byte: whether it is `byte`.
fn places(block: &[u8; 64], byte: u8) -> u64 {
    let (words, _) = block.as_chunks::<8>();
    words.iter().enumerate().fold(0, |places, (at, word)| {
        let zero = u64::from_le_bytes(*word) ^ (ONES * u64::from(byte));
        // The top bit of each byte that is zero, and of no other.
        let tops = !(((zero & !TOPS) + !TOPS) | zero) & TOPS;
        // Brought together in the highest byte.
        let gathered = (tops >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        places | gathered << (at * 8)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A byte at a time.
    fn plainly(bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            match bytes.get(at)? {
                b'"' => return Some(at),
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_string_ends_where_a_byte_at_a_time_says(text in "(\\\\{0,5}|\\\\{60,70}|\\\\\"|[a-zé]{1,9}|[a-z]{50,90}){0,30}\"?[a\"\\\\]{0,4}") {
            prop_assert_eq!(closing_quote(text.as_bytes()), plainly(text.as_bytes()), "{}", text);
            prop_assert_eq!(closing_quote_among_escapes(text.as_bytes()), plainly(text.as_bytes()), "{}", text);
        }

        #[test]
        fn all_bytes_are_told_apart(bytes in prop::collection::vec(any::<u8>(), 64), byte: u8) {
            let block: &[u8; 64] = bytes.as_slice().try_into().expect("64 bytes");
            let plainly = (0..64).filter(|at| block[*at] == byte).fold(0, |places, at| places | 1_u64 << at);
            prop_assert_eq!(places(block, byte), plainly);
        }
    }
}
