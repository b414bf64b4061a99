//! Telephone numbers. An international prefix, a bracketed area code or a national layout nobody uses for anything else is proof;
//! other numbers of a plausible length need a word such as "phone" beside them.

use super::kind::Kind;
use super::lane::Lane;
use super::numbers::Window;

/// Digits of an international number, country code included (ITU-T E.164 allows 15; 14 keeps clear of neighbours).
const INTERNATIONAL: std::ops::RangeInclusive<usize> = 8..=14;
/// Digits of a national number.
const NATIONAL: std::ops::RangeInclusive<usize> = 7..=12;

/// Bytes in front of a number that are read for a word such as "order".
const NAME_BYTES: usize = 20;

/// Judges a window of digits.
pub(super) fn judge(lane: &mut Lane<'_>, window: &Window<'_>) {
    let len = window.chars.len();
    // Windows come by where they begin: what ends in front of the last number's end is a part of it.
    let part = window.end <= lane.context.last_end(Kind::Phone);
    if part || !lane.kinds.contains(Kind::Phone) || !(7..=16).contains(&len) {
        return;
    }
    // What no layout can fit is most of a table of numbers.
    let marked = matches!(lane.before(window.start), b'+' | b'(');
    let open = marked || matches!(window.chars[0], b'0' | b'1' | b'8') || window.layout(&[3, 3, 4]);
    if open && international(lane, window) {
        lane.take(Kind::Phone, plus(lane, window).unwrap_or(window.start), window.end);
    } else if open && national(lane, window) {
        let bracket = usize::from(lane.before(window.start) == b'(');
        lane.take(Kind::Phone, window.start - bracket, window.end);
    } else {
        judge_supported(lane, window);
    }
}

/// Takes a number of plausible length and layout if a word supports it.
pub(super) fn judge_supported(lane: &mut Lane<'_>, window: &Window<'_>) {
    if !NATIONAL.contains(&window.chars.len()) || window.possible & Kind::Phone.bit() == 0 {
        return;
    }
    let (chars, sizes) = (window.chars, window.sizes);
    let date = matches!(sizes, [4, 2, 2] | [2, 2, 4] | [1, 2, 4] | [2, 1, 4]);
    let years =
        matches!(sizes, [4, 4]) && chars.chunks_exact(4).all(|year| year.starts_with(b"19") || year.starts_with(b"20"));
    let dotted_quad = sizes.len() == 4 && window.dotted() && sizes.iter().all(|size| *size <= 3);
    let unix_time = window.is_single() && chars[0] == b'1' && matches!(chars.len(), 10 | 13);
    let one_digit_runs = sizes.iter().filter(|size| **size == 1).count();
    let whole = window.spelled() || (sizes.len() <= 6 && one_digit_runs <= 2);
    let part_of_fours =
        (window.before_size == 4 || window.after_size == 4) && sizes.iter().all(|size| *size == 4) && sizes.len() > 1;
    let part_of_fraction = lane.before(window.start) == b'.' && window.is_single();
    let plausible = whole && !date && !years && !dotted_quad && !unix_time && !part_of_fraction && !part_of_fours;
    let supported = plausible && lane.supported(Kind::Phone, window.start, window.end);
    if supported && !named(lane, window.start) && !(window.is_single() && counted(lane, window.end)) {
        lane.take(Kind::Phone, window.start, window.end);
    }
}

/// Words right in front of numbers that are no telephone numbers.
const NAMES: Words<58> = Words::new([
    b"account",
    b"address",
    b"amount",
    b"article",
    b"artikel",
    b"asset",
    b"batch",
    b"bestell",
    b"booking",
    b"build",
    b"case",
    b"chapter",
    b"commande",
    b"cost",
    b"count",
    b"ean",
    b"epoch",
    b"figure",
    b"flat",
    b"gate",
    b"id ",
    b"id:",
    b"invoice",
    b"isbn",
    b"item",
    b"lot",
    b"model",
    b"objedn",
    b"order",
    b"ordine",
    b"page",
    b"parcel",
    b"part",
    b"pedido",
    b"pid",
    b"port",
    b"postal",
    b"price",
    b"rate ",
    b"rechnung",
    b"ref ",
    b"reference",
    b"room",
    b"score",
    b"seat",
    b"section",
    b"serial",
    b"size",
    b"sku",
    b"ticket",
    b"tid",
    b"total",
    b"tracking",
    b"users",
    b"version",
    b"volume",
    b"zamow",
    b"zip",
]);

/// Words right behind numbers that count something.
const UNITS: Words<40> = Words::new([
    b"byte",
    b"call",
    b"contact",
    b"customer",
    b"device",
    b"dollar",
    b"download",
    b"eur",
    b"euro",
    b"gbp",
    b"ghz",
    b"hour",
    b"hz",
    b"item",
    b"khz",
    b"km",
    b"mah",
    b"mb",
    b"message",
    b"meter",
    b"mhz",
    b"minute",
    b"ms",
    b"people",
    b"person",
    b"phone",
    b"record",
    b"request",
    b"row",
    b"rpm",
    b"sample",
    b"second",
    b"subscri",
    b"time",
    b"token",
    b"unit",
    b"usd",
    b"user",
    b"view",
    b"visit",
]);

/// Words that are compared with the front of a text, by their first letter.
struct Words<const N: usize> {
    /// Small letters, sorted.
    words: [&'static [u8]; N],
    /// Where the words begin that begin with the letter of this place in the alphabet, or a later one.
    first: [u8; 27],
}

impl<const N: usize> Words<N> {
    const fn new(words: [&'static [u8]; N]) -> Words<N> {
        let (mut first, mut letter) = ([0; 27], 0);
        while letter < 27 {
            let mut at = 0;
            while at < N && words[at][0] - b'a' < letter {
                at += 1;
            }
            first[letter as usize] = at as u8;
            letter += 1;
        }
        Words { words, first }
    }

    /// Whether `text` begins with one of the words, in either case.
    fn begin(&self, text: &[u8]) -> bool {
        let Some(letter) = text.first().map(|first| (first | 0x20).wrapping_sub(b'a') as usize) else { return false };
        let Some(&[from, to]) = self.first.get(letter..).and_then(<[u8]>::first_chunk) else { return false };
        self.words[from as usize..to as usize]
            .iter()
            .any(|word| text.len() >= word.len() && text.iter().zip(*word).all(|(byte, letter)| byte | 0x20 == *letter))
    }
}

/// Whether the word right in front says that the number is something else.
fn named(lane: &mut Lane<'_>, start: usize) -> bool {
    if lane.before(start) == b'#' {
        return true;
    }
    let tail = &lane.text[start.saturating_sub(NAME_BYTES)..start];
    lane.work(NAME_BYTES / 4);
    let clause =
        tail.iter().rposition(|byte| matches!(byte, b'.' | b',' | b';' | b'\n' | b'(' | b'"')).map_or(0, |at| at + 1);
    let mut inside = false;
    tail[clause..].iter().enumerate().any(|(at, byte)| {
        let letter = byte.is_ascii_alphabetic();
        let begins = letter && !inside;
        inside = letter;
        begins && NAMES.begin(&tail[clause + at..])
    })
}

/// Whether the word right behind says that the number counts something.
fn counted(lane: &mut Lane<'_>, end: usize) -> bool {
    lane.work(8);
    lane.text.get(end..).and_then(|rest| rest.strip_prefix(b" ")).is_some_and(|word| UNITS.begin(word))
}

/// Where the plus sign of the number is, if it has one.
fn plus(lane: &Lane<'_>, window: &Window<'_>) -> Option<usize> {
    let bracket = usize::from(lane.before(window.start) == b'(');
    let sign = (window.start - bracket).checked_sub(1)?;
    let in_sum = lane.before(sign).is_ascii_alphanumeric() || lane.before(sign) == b')';
    (lane.text[sign] == b'+' && !in_sum).then_some(sign)
}

fn international(lane: &Lane<'_>, window: &Window<'_>) -> bool {
    let chars = window.chars;
    if window.dotted() && window.sizes.len() == 2 {
        return false;
    }
    let grouped = window.sizes.len() >= 3 && chars.starts_with(b"00") && (11..=16).contains(&chars.len());
    if grouped && window.before_size == 0 && !in_code(lane, window.start) && dials_out(window) {
        return true;
    }
    let known = match chars {
        [b'1', rest @ ..] => north_american(rest),
        [b'0', ..] => false,
        _ => INTERNATIONAL.contains(&chars.len()),
    };
    known && plus(lane, window).is_some()
}

/// Whether the group at `start` is a part of a longer code: `SN4C-0078-1123`.
fn in_code(lane: &Lane<'_>, start: usize) -> bool {
    let joined = matches!(lane.before(start), b'-' | b'/' | b'_' | b'.') && start > 0;
    joined && matches!(lane.before(start - 1), b'0'..=b'9' | b'A'..=b'Z')
}

/// Whether the digits behind 00 begin with a country code (ITU-T E.164), and its group, where it stands alone, is no shorter.
fn dials_out(window: &Window<'_>) -> bool {
    let digits = &window.chars[2..];
    let code = match &digits[..3] {
        [b'1' | b'7', ..] => 1,
        [b'2', b'0' | b'7', _]
        | [b'3', b'0'..=b'4' | b'6' | b'9', _]
        | [b'4', b'0' | b'1' | b'3'..=b'9', _]
        | [b'5', b'1'..=b'8', _]
        | [b'6', b'0'..=b'6', _]
        | [b'8', b'1' | b'2' | b'4' | b'6', _]
        | [b'9', b'0'..=b'5' | b'8', _] => 2,
        [b'0', ..] => return false,
        _ => 3,
    };
    let group = match window.sizes {
        [2, code, ..] => *code as usize,
        [first, ..] => *first as usize - 2,
        [] => 0,
    };
    group >= code
}

/// Ten digits with an area code and an exchange that the North American plan can give out.
fn north_american(chars: &[u8]) -> bool {
    chars.len() == 10 && chars[0] >= b'2' && chars[3] >= b'2'
}

/// Layouts of national numbers that begin with the trunk 0, in the countries that write them so. Dates, amounts and part numbers
/// have others.
const TRUNK_LAYOUTS: [&[u8]; 19] = [
    &[3, 4, 4],
    &[3, 3, 4],
    &[4, 3, 3],
    &[4, 3, 4],
    &[4, 4, 4],
    &[4, 3, 2, 2],
    &[3, 3, 2, 2],
    &[4, 2, 2, 2],
    &[2, 4, 4],
    &[2, 4, 3],
    &[2, 3, 4],
    &[3, 7],
    &[3, 8],
    &[4, 6],
    &[4, 7],
    &[5, 5],
    &[5, 6],
    &[5, 3, 3],
    &[2, 8],
];

fn national(lane: &Lane<'_>, window: &Window<'_>) -> bool {
    let (chars, sizes) = (window.chars, window.sizes);
    let glued = window.start > 1 && lane.before(window.start - 1).is_ascii_alphanumeric();
    let bracketed = lane.before(window.start) == b'(' && !glued && lane.byte(window.start + sizes[0] as usize) == b')';
    let pairs_around = window.before_size == 2 || window.after_size == 2;
    if bracketed && area_code(window) {
        return true;
    }
    match sizes {
        [3, 3, 4] if north_american(chars) => bracketed || (!window.spaced() && !pairs_around),
        [1, 3, 3, 4] if chars[0] == b'1' => north_american(&chars[1..]) && lane.before(window.start) != b'.',
        // France: five pairs, the first 01 to 09.
        [2, 2, 2, 2, 2] if chars[0] == b'0' && chars[1] != b'0' => window.plainly_separated() && !pairs_around,
        // Russia: 8 916 123-45-67. China: 138-1234-5678.
        [1, 3, 3, 2, 2] => chars.starts_with(b"8") && window.before_size == 0,
        [3, 4, 4] if chars[0] == b'1' && chars[1] >= b'3' => !window.dotted() && window.before_size == 0,
        _ => trunk(window) && !in_code(lane, window.start),
    }
}

/// Whether the first group, which stands in brackets, is an area code and the rest a subscriber's number.
fn area_code(window: &Window<'_>) -> bool {
    let (chars, sizes) = (window.chars, window.sizes);
    let area = match sizes[0] {
        2 | 3 => true,
        4 | 5 => chars[0] == b'0',
        _ => false,
    };
    area && (9..=12).contains(&chars.len())
        && (2..=5).contains(&sizes.len())
        && sizes[1..].iter().all(|size| *size >= 2)
}

/// Whether the number begins with a trunk 0 and is grouped like a telephone number, apart from other numbers.
fn trunk(window: &Window<'_>) -> bool {
    let (chars, sizes) = (window.chars, window.sizes);
    chars[0] == b'0'
        && chars[1] != b'0'
        && !window.dotted()
        && window.before_size <= 1
        && window.after_size <= 1
        && (9..=12).contains(&chars.len())
        && TRUNK_LAYOUTS.contains(&sizes)
}
