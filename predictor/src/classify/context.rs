//! Which context words stand where, and whether a candidate has one near it.
//!
//! A candidate is supported by a word within [`BEFORE_BYTES`] in front of it or [`AFTER_BYTES`] behind it; by a word at the head of its
//! column, when its line belongs to a table; or by a supported neighbour of the same kind with nothing but separators between (lists).
//! The words of a slice are found once, with the other landmarks.

use super::classes::{BLOCK_BYTES, separators};
use super::kind::Kind;

/// How far in front of a candidate a word counts.
pub(super) const BEFORE_BYTES: usize = 70;
/// How far behind it.
pub(super) const AFTER_BYTES: usize = 40;
/// Longest gap between two neighbours of a list.
const CHAIN_BYTES: usize = 40;
/// Columns of a table whose headings are remembered across slices.
const COLUMNS_MAX: usize = 32;
/// Bytes of one heading that are read.
const HEADING_BYTES_MAX: usize = 96;
/// What separates the columns of a table, the least ambiguous first.
const DELIMITERS: [u8; 4] = [b'|', b'\t', b';', b','];
/// Words that are stepped over one by one before the rest is bisected.
const STEPS_MAX: usize = 8;

/// A word of the slice, and the kinds it supports.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordAt {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) kinds: u64,
}

#[derive(Debug, Clone, Copy)]
struct Line {
    start: u32,
    /// Index into [`DELIMITERS`], or none.
    delimiter: Option<u8>,
    delimiters: u32,
    /// Index of the first line of its table; `CARRIED` when that line was in an earlier slice.
    head: u32,
}

const CARRIED: u32 = u32::MAX;

/// The headings of a table that began in an earlier slice.
#[derive(Debug, Clone, Copy, Default)]
struct Carry {
    delimiter: Option<u8>,
    delimiters: u32,
    columns: [u64; COLUMNS_MAX],
    chained: u64,
}

/// The words in front of one place.
#[derive(Debug, Clone, Copy)]
struct Front {
    start: usize,
    /// Index of the first word that is not too far in front.
    first: usize,
    /// Index of the first word behind them.
    next: usize,
    kinds: u64,
}

/// The words, lines and supported neighbours of the slice at hand. All buffers are reused.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// By where they begin.
    pub(super) words: Vec<WordAt>,
    lines: Vec<Line>,
    delimiters: [Vec<u32>; 4],
    /// End of the last supported candidate, by kind; 0 when there is none.
    chain: Vec<u32>,
    chained: u64,
    /// Behind this place nothing leans on a neighbour: the last end in `chain`, and the longest gap.
    chain_reach: usize,
    carry: Carry,
    outer: u64,
    front: Option<Front>,
    /// The place whose heading was looked for last, and what it supports.
    headed: Option<(usize, u64)>,
    /// Every kind that anything in the slice can support.
    present: u64,
    ready: bool,
    lines_ready: bool,
    /// Steps taken, for the tests of linearity.
    pub(super) work: u64,
}

impl Context {
    /// Forgets everything: a new piece begins.
    pub(super) fn start_piece(&mut self) {
        self.carry = Carry::default();
        self.start_slice();
    }

    /// A new slice of the same piece begins.
    pub(super) fn start_slice(&mut self) {
        self.ready = false;
        self.front = None;
        self.headed = None;
        self.lines_ready = false;
        self.outer = 0;
        self.chain.clear();
        self.chain.resize(Kind::ALL.len(), 0);
        self.chained = self.carry.chained;
        self.chain_reach = if self.chained == 0 { 0 } else { CHAIN_BYTES };
    }

    /// Words that count wherever the candidate is: those around the token this text was decoded from.
    pub(super) fn set_outer(&mut self, kinds: u64) {
        self.outer = kinds;
    }

    /// The words of the slice that support a kind in `kinds`, as (start, end).
    pub(super) fn words_of(&self, kinds: u64) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.words
            .iter()
            .filter(move |word| word.kinds & kinds != 0)
            .map(|word| (word.start as usize, word.end as usize))
    }

    /// The kinds of the words that begin within `start..end`.
    pub(super) fn within(&self, start: usize, end: usize) -> u64 {
        let from = self.words.partition_point(|word| (word.start as usize) < start);
        let inside = self.words[from..].iter().take_while(|word| (word.start as usize) < end);
        inside.fold(0, |kinds, word| kinds | word.kinds)
    }

    /// The kinds that words near `start..end` support.
    pub(super) fn near(&mut self, start: usize, end: usize) -> u64 {
        self.prepare();
        self.near_prepared(start, end)
    }

    fn near_prepared(&mut self, start: usize, end: usize) -> u64 {
        // Candidates come in order, several from one place: what stands in front of them is looked up once.
        let (first, in_front) = match self.front {
            Some(front) if front.start == start => (front.next, front.kinds),
            Some(_) | None => self.look_in_front(start),
        };
        let mut kinds = self.outer | in_front;
        for word in &self.words[first..] {
            self.work += 1;
            if word.start as usize >= end + AFTER_BYTES {
                break;
            }
            if word.start as usize >= end && word.end as usize <= end + AFTER_BYTES {
                kinds |= word.kinds;
            }
        }
        kinds
    }

    /// The first word that does not end in front of `start`, and the kinds of those near that do.
    fn look_in_front(&mut self, start: usize) -> (usize, u64) {
        let from = start.saturating_sub(BEFORE_BYTES);
        let far = |word: &WordAt| (word.start as usize) < from;
        // Places come in order, lane by lane.
        let known = self.front.filter(|front| front.start <= start).map_or(0, |front| front.first);
        let near = known + self.words[known..].iter().take(STEPS_MAX).take_while(|word| far(word)).count();
        let first = if near < known + STEPS_MAX { near } else { near + self.words[near..].partition_point(far) };
        let (mut kinds, mut next) = (0, first);
        for (at, word) in self.words.iter().enumerate().skip(first) {
            self.work += 1;
            if word.start as usize >= start {
                break;
            }
            next = at + 1;
            // A word that reaches into the candidate is none of either side.
            kinds |= if word.end as usize <= start { word.kinds } else { 0 };
        }
        self.front = Some(Front { start, first, next, kinds });
        (next, kinds)
    }

    /// Whether `kind` at `start..end` has support; if so, a neighbour of the same kind may lean on it.
    pub(super) fn supports(&mut self, text: &[u8], kind: Kind, start: usize, end: usize) -> bool {
        self.prepare();
        if self.possible(start) & kind.bit() == 0 {
            return false;
        }
        let supported = self.near_prepared(start, end) & kind.bit() != 0
            || self.heading(text, start) & kind.bit() != 0
            || self.follows_supported(text, kind, start);
        if supported {
            self.confirm(kind, end);
        }
        supported
    }

    /// The kinds that something may support at `start`, once the context was prepared. Cheap, so it is asked before checksums are worked out.
    pub(super) fn possible(&self, start: usize) -> u64 {
        self.present | if start <= self.chain_reach { self.chained } else { 0 }
    }

    /// The kinds that something may support somewhere in the slice, once the context was prepared.
    pub(super) fn possible_somewhere(&self) -> u64 {
        self.present | self.chained
    }

    /// Whether anything can support `kind` somewhere in the slice.
    pub(super) fn may_support_somewhere(&mut self, kind: Kind) -> bool {
        self.prepare();
        self.possible_somewhere() & kind.bit() != 0
    }

    /// Notes that `kind` ends at `end` for certain.
    pub(super) fn confirm(&mut self, kind: Kind, end: usize) {
        if let Some(last) = self.chain.get_mut(kind as usize) {
            *last = end as u32;
            self.chained |= kind.bit();
            self.chain_reach = self.chain_reach.max(end + CHAIN_BYTES);
        }
    }

    /// Where the last find of `kind` ends; 0 when there is none.
    pub(super) fn last_end(&self, kind: Kind) -> usize {
        self.chain.get(kind as usize).copied().unwrap_or(0) as usize
    }

    fn follows_supported(&mut self, text: &[u8], kind: Kind, start: usize) -> bool {
        if self.chained & kind.bit() == 0 {
            return false;
        }
        let last = self.last_end(kind);
        self.work += CHAIN_BYTES as u64 / 4;
        last <= start && start - last <= CHAIN_BYTES && text[last..start].iter().all(|byte| !byte.is_ascii_alphabetic())
    }

    /// Puts together what the words of the slice can support, once.
    pub(super) fn prepare(&mut self) {
        if self.ready {
            return;
        }
        self.ready = true;
        self.present = self
            .words
            .iter()
            .map(|word| word.kinds)
            .chain(self.carry.columns)
            .fold(self.outer, |all, kinds| all | kinds);
    }

    /// Finds lines and their delimiters, once per slice, when a heading is asked for.
    fn find_lines(&mut self, text: &[u8]) {
        if self.lines_ready {
            return;
        }
        self.lines_ready = true;
        self.lines.clear();
        self.delimiters.iter_mut().for_each(Vec::clear);
        let (mut line, mut counts) = (0, [0u32; 4]);
        for start in (0..text.len()).step_by(BLOCK_BYTES) {
            let mut places = separators(&text[start..]);
            while places != 0 {
                let at = start + places.trailing_zeros() as usize;
                places &= places - 1;
                match DELIMITERS.iter().position(|delimiter| *delimiter == text[at]) {
                    Some(which) => {
                        counts[which] += 1;
                        self.delimiters[which].push(at as u32);
                    }
                    None => {
                        self.add_line(line, std::mem::take(&mut counts));
                        line = at + 1;
                    }
                }
            }
        }
        if line < text.len() {
            self.add_line(line, counts);
        }
        self.work += text.len() as u64;
    }

    /// Adds a line to the table it continues, or as the head of a new one.
    fn add_line(&mut self, start: usize, counts: [u32; 4]) {
        let delimiter = counts.iter().position(|count| *count > 0).map(|which| which as u8);
        let delimiters = delimiter.map_or(0, |which| counts[which as usize]);
        let index = self.lines.len() as u32;
        let head = match self.lines.last() {
            Some(last) if delimiter.is_some() && last.delimiter == delimiter && last.delimiters == delimiters => {
                last.head
            }
            // The first line of a later slice is cut, so only its successor shows whether the table goes on.
            Some(last)
                if last.head == CARRIED
                    && self.lines.len() == 1
                    && delimiter == self.carry.delimiter
                    && delimiters == self.carry.delimiters =>
            {
                CARRIED
            }
            None if self.carry.delimiter.is_some() => CARRIED,
            Some(_) | None => index,
        };
        self.lines.push(Line { start: start as u32, delimiter, delimiters, head });
    }

    fn line_of(&self, at: usize) -> Option<usize> {
        self.lines.partition_point(|line| line.start as usize <= at).checked_sub(1)
    }

    /// The kinds supported by the heading of the column that `at` is in. Several kinds ask for one place.
    fn heading(&mut self, text: &[u8], at: usize) -> u64 {
        if let Some((place, kinds)) = self.headed
            && place == at
        {
            return kinds;
        }
        let kinds = self.find_heading(text, at);
        self.headed = Some((at, kinds));
        kinds
    }

    fn find_heading(&mut self, text: &[u8], at: usize) -> u64 {
        self.find_lines(text);
        let Some(index) = self.line_of(at) else { return 0 };
        let line = self.lines[index];
        let delimiter = if line.head == CARRIED { self.carry.delimiter } else { line.delimiter };
        let Some(which) = delimiter else { return 0 };
        if line.head as usize == index {
            return 0;
        }
        let places = &self.delimiters[which as usize];
        let before_line = places.partition_point(|place| *place < line.start);
        let column = places.partition_point(|place| (*place as usize) < at) - before_line;
        if line.head == CARRIED {
            return self.carry.columns.get(column).copied().unwrap_or(0);
        }
        self.column_words(line.head as usize, which as usize, column)
    }

    /// The kinds of the words in column `column` of line `head`.
    fn column_words(&self, head: usize, which: usize, column: usize) -> u64 {
        let line_start = self.lines[head].start as usize;
        let places = &self.delimiters[which];
        let first = places.partition_point(|place| (*place as usize) < line_start);
        let start = if column == 0 {
            line_start
        } else {
            places.get(first + column - 1).map_or(line_start, |place| *place as usize)
        };
        let line_end = self.lines.get(head + 1).map_or(usize::MAX, |next| next.start as usize);
        let end = places
            .get(first + column)
            .map_or(line_end, |place| *place as usize)
            .min(line_end)
            .min(start + HEADING_BYTES_MAX);
        let from = self.words.partition_point(|word| (word.start as usize) < start);
        self.words[from..]
            .iter()
            .take_while(|word| (word.start as usize) < end)
            .fold(0, |kinds, word| kinds | word.kinds)
    }

    /// Keeps what the slice that begins at `next` must know: the headings of the table around it, and the kinds just supported.
    pub(super) fn carry_to(&mut self, text: &[u8], next: usize) {
        let mut carry = Carry::default();
        for (kind, end) in Kind::ALL.iter().zip(&self.chain) {
            if *end as usize >= next {
                carry.chained |= kind.bit();
            }
        }
        let headings = !self.words.is_empty() || self.carry.columns.iter().any(|kinds| *kinds != 0);
        if headings {
            self.find_lines(text);
        }
        if let Some(index) = self.line_of(next).filter(|_| headings) {
            let line = self.lines[index];
            if line.head == CARRIED {
                carry = Carry { chained: carry.chained, ..self.carry };
            } else if let Some(which) = line.delimiter {
                carry.delimiter = line.delimiter;
                carry.delimiters = line.delimiters;
                for (column, kinds) in carry.columns.iter_mut().enumerate().take(line.delimiters as usize + 1) {
                    *kinds = self.column_words(line.head as usize, which as usize, column);
                }
            }
        }
        self.carry = carry;
    }
}

#[cfg(test)]
mod tests {
    use super::super::classes::Classes;
    use super::super::kind::KindSet;
    use super::super::landmarks::Landmarks;
    use super::*;

    fn supported(text: &str, kind: Kind, value: &str) -> bool {
        let mut context = Context::default();
        context.start_piece();
        let classes = Classes::of(text.as_bytes());
        Landmarks::compile(KindSet(u64::MAX)).find(text.as_bytes(), &classes, &mut Vec::new(), &mut context.words);
        let start = text.find(value).expect("the value is in the text");
        context.supports(text.as_bytes(), kind, start, start + value.len())
    }

    #[test]
    fn words_count_in_camel_case_with_suffixes_and_glued_to_other_scripts() {
        for text in ["bsn 1", "my_bsn=1", "bsnNummer: 1", "klantBsn: 1", "BSNNummer 1", "bsnnummer 1", "号bsn1"] {
            assert!(supported(text, Kind::NlBsn, "1"), "{text}");
        }
        for text in ["absn 1", "bsnx 1", "the sun 1"] {
            assert!(!supported(text, Kind::NlBsn, "1"), "{text}");
        }
    }

    #[test]
    fn a_word_counts_only_near() {
        let far = format!("bsn {} 1", "x ".repeat(60));
        assert!(!supported(&far, Kind::NlBsn, "1"));
        assert!(supported("1 is my bsn", Kind::NlBsn, "1"));
    }

    #[test]
    fn the_heading_of_a_column_counts_for_every_row_and_no_other_column() {
        let mut table = String::from("id,bsn,amount\n");
        for row in 0..20 {
            table.push_str(&format!("{row},some filler text for row,77{row}\n"));
        }
        table.push_str("x,VALUE,OTHER\n");
        assert!(supported(&table, Kind::NlBsn, "VALUE"));
        assert!(!supported(&table, Kind::NlBsn, "OTHER"));
    }
}
