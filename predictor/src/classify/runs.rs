//! Runs of letters and digits, and what joins them: the raw material of the number lane.

use super::classes::{Digits, Edges};
use super::lane::Lane;
use super::numbers::WINDOW_BYTES_MAX;

/// Longest separator between two runs of a cluster: ` - `, `) `.
const GAP_BYTES_MAX: usize = 3;
/// Longest separator between two runs of a list: `", "`, `** **`.
const LIST_GAP_BYTES_MAX: usize = 5;
/// Bytes copied for a run, of which its length is kept.
const CHUNK_BYTES: usize = WINDOW_BYTES_MAX + 4;
/// Digits of the extension of a telephone number: `415-555-0100x2374`.
const EXTENSION_DIGITS_MAX: usize = 6;

/// A maximal run of ASCII letters and digits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) start: u32,
    pub(super) end: u32,
    /// Where its characters begin in [`Runs`].
    chars: u32,
    /// Bit `i` is set when character `i` is a letter. Of use for runs that a window can hold.
    pub(super) letters: u32,
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

    /// Whether the run is one digit.
    pub(super) fn is_one_digit(&self) -> bool {
        self.shape == Shape::Digits && self.len() == 1
    }
}

/// The runs of a slice, with the characters of the short ones put together, so that a window over several runs is a range of them.
#[derive(Debug, Default)]
pub(super) struct Runs {
    pub(super) all: Vec<Run>,
    /// Upper-case letters and digits of all runs that a window can hold.
    chars: Vec<u8>,
    /// The length of each run; [`u8::MAX`] for one that no window can hold.
    sizes: Vec<u8>,
}

impl Runs {
    fn clear(&mut self) {
        self.all.clear();
        self.chars.clear();
        self.sizes.clear();
    }

    fn push(&mut self, lane: &Lane<'_>, start: usize, end: usize, shape: Shape) {
        let (text, len) = (lane.text, end - start);
        if let Some(last) = self.all.last_mut() {
            last.gap = gap(&text[last.end as usize..start]);
        }
        let chars = self.chars.len();
        let fits = len <= WINDOW_BYTES_MAX;
        if fits {
            // A copy of a fixed size is a few instructions, where one of any size is a call.
            match text[start..].first_chunk::<CHUNK_BYTES>() {
                Some(chunk) => self.chars.extend_from_slice(chunk),
                None => self.chars.extend_from_slice(&text[start..end]),
            }
            self.chars.truncate(chars + len);
            if shape != Shape::Digits {
                self.chars[chars..].make_ascii_uppercase();
            }
        }
        let all = u32::MAX >> (32 - len.clamp(1, WINDOW_BYTES_MAX));
        let letters = if shape == Shape::Digits { 0 } else { all & !(lane.classes.digits_from(start) as u32) };
        self.sizes.push(if fits { len as u8 } else { u8::MAX });
        self.all.push(Run { start: start as u32, end: end as u32, chars: chars as u32, letters, shape, gap: 0 });
    }

    /// The characters of the runs from `first` on, `len` of them. All of these runs must fit a window.
    pub(super) fn chars(&self, first: usize, len: usize) -> &[u8] {
        let from = self.all[first].chars as usize;
        &self.chars[from..from + len]
    }

    /// The lengths of runs.
    pub(super) fn sizes(&self, runs: std::ops::Range<usize>) -> &[u8] {
        &self.sizes[runs]
    }
}

pub(super) const SPACE: u8 = 1;
pub(super) const DASH: u8 = 2;
pub(super) const DOT: u8 = 4;
pub(super) const OTHER: u8 = 8;
/// What stands between the elements of a list, or hides that they are one. Runs it joins are of one cluster only to those who ask.
pub(super) const LIST: u8 = 16;

/// Whether a byte may stand between two runs of one identifier, and as what; 0 when it may not.
pub(super) const fn joins(byte: u8) -> u8 {
    JOINS[byte as usize]
}

const JOINS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b' ' => SPACE,
            b'-' => DASH,
            b'.' => DOT,
            b'/' | b'(' | b')' | b'_' => OTHER,
            b',' | b'|' | b'*' | b'+' | b'"' | b'\'' | b'\n' | b'\r' | b'\t' | b':' | b';' | b'~' | b'#' => LIST,
            b'[' | b']' | b'{' | b'}' | b'<' | b'>' => LIST,
            _ => 0,
        };
        byte += 1;
    }
    table
};

/// Length of a UUID that begins at `start`, if one does.
fn uuid(text: &[u8], start: usize) -> Option<usize> {
    let token = text.get(start..start + 36)?;
    let fits = token.iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    let ends = text.get(start + 36).is_none_or(|byte| !byte.is_ascii_alphanumeric());
    (fits && ends).then_some(36)
}

/// How far in front of its first digit an identifier may begin, or end behind its last, in runs of one or two letters: `D E 8 9`, `23 94 D`.
const NEAR_DIGIT_BYTES: usize = 16;
/// Where the word around `at` begins, not in front of `floor`.
fn word_start(text: &[u8], at: usize, floor: usize) -> usize {
    at - text[floor..at].iter().rev().take_while(|byte| byte.is_ascii_alphanumeric()).count()
}

/// Cuts the text into the runs that can be part of an identifier.
pub(super) fn cut(lane: &mut Lane<'_>, runs: &mut Runs) {
    runs.clear();
    lane.work(lane.text.len());
    let (text, classes) = (lane.text, lane.classes);
    // Where the identifier of the last digit may end.
    let (mut at, mut tail) = (0, 0);
    let mut edges = Edges::new(classes, 0);
    loop {
        if at >= tail {
            let digit = classes.next_digit(at);
            if digit == text.len() {
                return;
            }
            if digit > at + 2 * NEAR_DIGIT_BYTES {
                edges.seek(word_start(text, digit - NEAR_DIGIT_BYTES, at));
            }
        }
        let start = edges.next();
        if start == text.len() {
            return;
        }
        let end = edges.next();
        at = end;
        let len = end - start;
        let digits = classes.digits_in(start, end);
        if digits != Digits::None {
            tail = end + NEAR_DIGIT_BYTES;
        }
        if len == 8
            && text.get(end) == Some(&b'-')
            && let Some(skipped) = uuid(text, start)
        {
            at = start + skipped;
            edges.seek(at);
            continue;
        }
        let (shape, end) = match digits {
            Digits::All => (Shape::Digits, end),
            Digits::Some => {
                extended(&text[start..end]).map_or((Shape::Mixed, end), |digits| (Shape::Digits, start + digits))
            }
            Digits::None if len <= 2 => (Shape::Letters, end),
            Digits::None => continue,
        };
        runs.push(lane, start, end, shape);
    }
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
    match between {
        [byte] => return joins(*byte),
        // A dash at the end of a line goes on with the number.
        b"-\n" => return DASH,
        _ => {}
    }
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
