//! How groups of digits are laid out, and which layouts can be an identifier at all.

use super::kind::Kind;
use super::numbers::WINDOW_BYTES_MAX;

/// Whether digits laid out like this can be an identifier at all, where none is marked. This is asked of every window of a table of
/// numbers, and most are closed here: no word of the slice supports a kind of this length, and no kind is known by such a layout.
pub(super) fn promising(possible: u64, chars: &[u8], layout: Layout) -> bool {
    let single = layout.0 <= 15;
    possible & WORD_KINDS[chars.len()] != 0
        || single
        || layout.is_known()
        || (chars.len() == 15 && matches!(chars[0], b'1' | b'2'))
        || (chars.len() == 18 && matches!(&chars[6..8], b"19" | b"20"))
}

/// The sizes of the runs of a window, four bits each. A run of more than 14 characters counts as one of 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout(u32);

impl Layout {
    pub(super) const EMPTY: Layout = Layout(0);

    pub(super) const fn and(self, size: usize) -> Layout {
        Layout(self.0 << 4 | if size < 15 { size as u32 } else { 15 })
    }

    const fn of(sizes: &[u8]) -> Layout {
        let (mut layout, mut at) = (Layout::EMPTY, 0);
        while at < sizes.len() {
            layout = layout.and(sizes[at] as usize);
            at += 1;
        }
        layout
    }

    /// The bit of the layout in [`SHAPE_BITS`].
    const fn bit(self) -> (usize, u64) {
        let bit = self.0.wrapping_mul(0x9e37_79b1) >> 24;
        (bit as usize / 64, 1 << (bit % 64))
    }

    /// Whether the layout is one of [`SHAPES`].
    fn is_known(self) -> bool {
        let (word, bit) = self.bit();
        SHAPE_BITS[word] & bit != 0 && SHAPES.contains(&self)
    }
}

/// Layouts that are proof of themselves, or with a check digit, where the first digit is not 0: national numbers, telephone numbers, cards.
const SHAPES: [Layout; 23] = [
    Layout::of(&[3, 2, 4]),
    Layout::of(&[6, 4]),
    Layout::of(&[3, 3, 3, 2]),
    Layout::of(&[2, 2, 2, 3, 2]),
    Layout::of(&[3, 4, 4, 2]),
    Layout::of(&[6, 7]),
    Layout::of(&[3, 3, 4]),
    Layout::of(&[1, 3, 3, 4]),
    Layout::of(&[1, 3, 3, 2, 2]),
    Layout::of(&[3, 4, 4]),
    Layout::of(&[4, 4, 4]),
    Layout::of(&[4, 4, 4, 4]),
    Layout::of(&[4, 4, 4, 4, 3]),
    Layout::of(&[4, 4, 4, 1]),
    Layout::of(&[4, 4, 4, 2]),
    Layout::of(&[4, 4, 4, 3]),
    Layout::of(&[4, 6, 5]),
    Layout::of(&[4, 6, 4]),
    Layout::of(&[6, 13]),
    Layout::of(&[8, 8]),
    Layout::of(&[4, 12]),
    Layout::of(&[6, 10]),
    Layout::of(&[2; 8]),
];

/// Most layouts are told by one bit that they are none of the shapes.
const SHAPE_BITS: [u64; 4] = {
    let (mut table, mut at) = ([0; 4], 0);
    while at < SHAPES.len() {
        let (word, bit) = SHAPES[at].bit();
        table[word] |= bit;
        at += 1;
    }
    table
};

/// For each number of digits, the kinds that a word beside them can make of them.
const WORD_KINDS: [u64; WINDOW_BYTES_MAX + 1] = {
    use Kind::{
        AuTfn, BeNn, BrCpf, CaSin, ChAhv, CreditCard, DeSteuerId, InAadhaar, KrRrn, NlBsn, Passport, Phone, PlPesel,
        SePersonnummer, UkNhs, UsDriverLicense, UsItin, UsRouting, UsSsn, ZaId,
    };
    let mut table = [0; WINDOW_BYTES_MAX + 1];
    let mut len = 0;
    while len < table.len() {
        table[len] = match len {
            7 | 8 => bits(&[UsDriverLicense, Phone]),
            9 => bits(&[UsSsn, UsItin, CaSin, AuTfn, NlBsn, UsRouting, Passport, UsDriverLicense, Phone]),
            10 => bits(&[UkNhs, SePersonnummer, Passport, Phone]),
            11 => bits(&[DeSteuerId, PlPesel, BrCpf, BeNn, Phone]),
            12 => bits(&[InAadhaar, SePersonnummer, CreditCard, Phone]),
            13 => bits(&[ZaId, ChAhv, KrRrn, CreditCard]),
            14..=19 => bits(&[CreditCard]),
            _ => 0,
        };
        len += 1;
    }
    table
};

const fn bits(kinds: &[Kind]) -> u64 {
    let (mut bits, mut at) = (0, 0);
    while at < kinds.len() {
        bits |= kinds[at].bit();
        at += 1;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_numbers_are_closed_and_known_layouts_open() {
        let open = |sizes: &[u8], possible: &[Kind]| {
            let len = sizes.iter().map(|size| usize::from(*size)).sum();
            promising(bits(possible), &b"22222222222222222222"[..len], Layout::of(sizes))
        };
        for sizes in [&[2u8, 2, 2, 2][..], &[2, 3, 2, 3], &[5, 5], &[1, 2, 3, 4], &[6, 5, 3]] {
            assert!(!open(sizes, &[]), "{sizes:?}");
        }
        for sizes in [&[4u8, 4, 4, 4][..], &[3, 2, 4], &[16], &[2; 8]] {
            assert!(open(sizes, &[]), "{sizes:?}");
        }
        assert!(open(&[5, 5], &[Kind::Phone]) && !open(&[5, 5], &[Kind::NlBsn]));
    }
}
