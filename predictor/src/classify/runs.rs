//! Runs of letters and digits, and what joins them: the raw material of the number lane.

use super::kind::Kind;
use super::lane::Lane;

/// Longest separator between two runs of a cluster: ` - `, `) `.
const GAP_BYTES_MAX: usize = 3;
/// Longest separator between two runs of a list: `", "`, `** **`.
const LIST_GAP_BYTES_MAX: usize = 5;
/// Digits of the extension of a telephone number: `415-555-0100x2374`.
const EXTENSION_DIGITS_MAX: usize = 6;

/// A maximal run of ASCII letters and digits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) shape: Shape,
    /// The separators between this run and the next one; 0 when they belong to different clusters.
    pub(super) gap: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Digits,
    Letters,
    Mixed,
}

impl Run {
    pub(super) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

pub(super) const SPACE: u8 = 1;
pub(super) const DASH: u8 = 2;
pub(super) const DOT: u8 = 4;
pub(super) const OTHER: u8 = 8;
/// What stands between the elements of a list, or hides that they are one. Runs it joins are of one cluster only to those who ask.
pub(super) const LIST: u8 = 16;

/// Whether a byte may stand between two runs of one identifier.
pub(super) const fn joins(byte: u8) -> u8 {
    match byte {
        b' ' => SPACE,
        b'-' => DASH,
        b'.' => DOT,
        b'/' | b'(' | b')' | b'_' => OTHER,
        b',' | b'|' | b'*' | b'+' | b'"' | b'\'' | b'\n' | b'\r' | b'\t' | b':' | b';' | b'~' | b'#' => LIST,
        _ => 0,
    }
}

/// Length of a UUID that begins at `start`, if one does.
fn uuid(text: &[u8], start: usize) -> Option<usize> {
    let token = text.get(start..start + 36)?;
    let fits = token.iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    fits.then_some(36)
}

const DIGIT: u8 = 1;
const CAPITAL: u8 = 2;
const SMALL: u8 = 4;
/// What kind of letter or digit each byte is; 0 for all others.
const CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'0'..=b'9' => DIGIT,
            b'A'..=b'Z' => CAPITAL,
            b'a'..=b'z' => SMALL,
            _ => 0,
        };
        byte += 1;
    }
    table
};

/// Which runs are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Those with digits, and what may belong to the same identifier.
    NearDigits,
    /// Those of letters alone too.
    Everywhere,
}

/// How far in front of its first digit an identifier may begin, or end behind its last, in runs of one or two letters: `D E 8 9`, `23 94 D`.
const NEAR_DIGIT_BYTES: usize = 16;
/// Bytes that are looked at together.
const BLOCK_BYTES: usize = 16;

/// Where the next digit is, at or behind `from`; the end when there is none.
fn next_digit(text: &[u8], from: usize) -> usize {
    let rest = &text[from..];
    let blocks = rest.chunks_exact(BLOCK_BYTES);
    let plain = blocks.take_while(|block| !block.iter().fold(false, |any, byte| any | byte.is_ascii_digit())).count();
    let at = plain * BLOCK_BYTES;
    rest[at..].iter().position(u8::is_ascii_digit).map_or(text.len(), |digit| from + at + digit)
}

/// Where the word around `at` begins, not in front of `floor`; the end where there is no digit any more.
fn word_start(text: &[u8], at: usize, floor: usize) -> usize {
    if at + NEAR_DIGIT_BYTES >= text.len() {
        return text.len();
    }
    let word = text[floor..at].iter().rev().take_while(|byte| CLASS[**byte as usize] != 0).count();
    at - word
}

/// Cuts the text into the runs that can be part of an identifier.
pub(super) fn cut(lane: &mut Lane<'_>, runs: &mut Vec<Run>) {
    runs.clear();
    let text = lane.text;
    let reach = if lane.may_be_supported(Kind::SwiftBic) { Reach::Everywhere } else { Reach::NearDigits };
    // The next digit, and where the identifier of the last one may end.
    let (mut at, mut digit, mut tail) = (0, 0, 0);
    while at < text.len() {
        if reach == Reach::NearDigits && digit <= at {
            digit = next_digit(text, at);
        }
        if reach == Reach::NearDigits && at >= tail && digit > at + 2 * NEAR_DIGIT_BYTES {
            at = word_start(text, digit - NEAR_DIGIT_BYTES, at);
            if at >= text.len() {
                break;
            }
        }
        let mut classes = CLASS[text[at] as usize];
        if classes == 0 {
            at += 1;
            continue;
        }
        let start = at;
        at += 1;
        while at < text.len() {
            let class = CLASS[text[at] as usize];
            if class == 0 {
                break;
            }
            classes |= class;
            at += 1;
        }
        let len = at - start;
        if classes & DIGIT != 0 {
            tail = at + NEAR_DIGIT_BYTES;
        }
        if len == 8
            && text.get(at) == Some(&b'-')
            && let Some(skipped) = uuid(text, start)
        {
            at = start + skipped;
            continue;
        }
        let shape = match classes {
            DIGIT => Shape::Digits,
            CAPITAL if len <= 2 || matches!(len, 8 | 11) => Shape::Letters,
            _ if classes & DIGIT != 0 => Shape::Mixed,
            _ if len <= 2 => Shape::Letters,
            _ => continue,
        };
        if let Some(last) = runs.last_mut() {
            last.gap = gap(&text[last.end as usize..start]);
        }
        let (shape, end) = match extended(&text[start..at]) {
            Some(digits) if shape == Shape::Mixed => (Shape::Digits, start + digits),
            Some(_) | None => (shape, at),
        };
        runs.push(Run { start: start as u32, end: end as u32, shape, gap: 0 });
    }
    lane.work(text.len());
}

/// The digits in front of the extension of a telephone number, when the run is one with such an extension.
fn extended(run: &[u8]) -> Option<usize> {
    let digits = run.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (mark, extension) = run.get(digits..)?.split_first()?;
    let fits = matches!(mark, b'x' | b'X')
        && matches!(digits, 4 | 10 | 11)
        && (1..=EXTENSION_DIGITS_MAX).contains(&extension.len())
        && extension.iter().all(u8::is_ascii_digit);
    fits.then_some(digits)
}

/// The separators in `between`; 0 when it is too long or holds something else.
fn gap(between: &[u8]) -> u8 {
    if between.len() > LIST_GAP_BYTES_MAX {
        return 0;
    }
    let mut seps = 0;
    for byte in between {
        match joins(*byte) {
            0 => return 0,
            sep => seps |= sep,
        }
    }
    if seps & LIST != 0 {
        return LIST;
    }
    if between.len() > GAP_BYTES_MAX {
        return 0;
    }
    // " - " and ". " count as what they hold besides the spaces.
    if seps & !SPACE == 0 { seps } else { seps & !SPACE }
}
