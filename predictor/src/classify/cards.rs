//! Payment cards: in groups as printed, glued to a word, and misread.

use super::checksum;
use super::kind::Kind;
use super::lane::Lane;
use super::numbers::{Proof, WINDOW_BYTES_MAX, Window, shape_if, take, take_if};

/// A payment card: issuer range, length and Luhn; groups as printed on cards, or a word.
pub(super) fn judge(lane: &mut Lane<'_>, window: &Window<'_>) {
    if !checksum::luhn(window.chars) {
        return;
    }
    let printed = window.is_single()
        || window.spelled()
        || matches!(
            window.sizes,
            [4, 4, 4]
                | [4, 4, 4, 4]
                | [4, 4, 4, 4, 3]
                | [4, 4, 4, 1]
                | [4, 4, 4, 2]
                | [4, 4, 4, 3]
                | [4, 6, 5]
                | [4, 6, 4]
                | [6, 13]
                | [8, 8]
                | [4, 12]
                | [6, 10]
                | [6, 4, 4, 2]
        );
    let pairs = window.layout(&[2; 8]) && window.before_size != 2 && window.after_size != 2;
    // 13 digits were Visa's old length and are also every EAN that begins with 4.
    let article = window.chars.len() == 13 && (!window.is_single() || checksum::ean_13(window.chars));
    // Groups of whole hundreds are amounts and sizes; one card in a hundred million has only such.
    let round = window.sizes.len() > 1 && window.chars.chunks(4).all(|group| group.ends_with(b"00"));
    let proof = shape_if((printed || pairs) && !article && !round);
    take_if(lane, window, Kind::CreditCard, proof, checksum::card_range);
    take_if(lane, window, Kind::CreditCard, Proof::Word, checksum::card_range_wide);
}

/// A card whose digits end where a word begins without a space: `card:4012888888881881exp:0929`. A word must stand by, as hashes look like it.
pub(super) fn glued(lane: &mut Lane<'_>, start: usize, end: usize) {
    let text = &lane.text[start..end];
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, word) = text.split_at(digits);
    let fits = (13..=19).contains(&digits) && word.len() >= 2 && word.iter().all(u8::is_ascii_alphabetic);
    if fits && checksum::card_range(number) && checksum::luhn(number) {
        lane.take_if_supported(Kind::CreditCard, start, start + digits);
    }
}

/// A card whose digits were read or typed as letters that look like them: `4O12 8888 l234 ...`. A word must stand by.
pub(super) fn misread(lane: &mut Lane<'_>, window: &Window<'_>) {
    let grouped = window.is_single() || matches!(window.sizes, [4, 4, 4, 4] | [4, 6, 5]);
    if !grouped || window.letters.count_ones() > 5 || !lane.kinds.contains(Kind::CreditCard) {
        return;
    }
    let mut chars = [0u8; WINDOW_BYTES_MAX];
    for (digit, byte) in chars.iter_mut().zip(window.chars) {
        *digit = match byte {
            b'0'..=b'9' => *byte,
            b'O' | b'Q' => b'0',
            b'I' | b'L' => b'1',
            b'S' => b'5',
            b'B' => b'8',
            _ => return,
        };
    }
    let chars = &chars[..window.chars.len()];
    if checksum::card_range(chars) && checksum::luhn(chars) {
        take(lane, window, Kind::CreditCard, Proof::Word);
    }
}
