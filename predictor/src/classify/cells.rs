//! Numbers whose groups stand in cells or lines of their own, or in a list: what a window of the number lane does not reach, as anything
//! may stand between the elements of a list.

use super::checksum;
use super::kind::Kind;
use super::lane::Lane;
use super::numbers::{Check, WINDOW_BYTES_MAX};
use super::runs::{LIST, Run, Shape};

/// Judges the runs that are not of one cluster.
pub(super) fn scan(lane: &mut Lane<'_>, runs: &[Run]) {
    numbers(lane, runs);
    if lane.kinds.contains(Kind::CreditCard) {
        cards(lane, runs);
    }
}

/// Digits of groups, and the kinds they may be with a word beside them.
type Groups = (&'static [u8], &'static [(Kind, Check)]);

const GROUPS: [Groups; 6] = [
    (&[3, 2, 4], &[(Kind::UsSsn, checksum::us_ssn)]),
    (&[3, 3, 3], &[(Kind::CaSin, checksum::ca_sin), (Kind::AuTfn, checksum::au_tfn), (Kind::NlBsn, checksum::nl_bsn)]),
    (&[3, 3, 4], &[(Kind::UkNhs, checksum::uk_nhs)]),
    (&[4, 4, 4], &[(Kind::InAadhaar, checksum::aadhaar)]),
    (&[2, 3, 3, 3], &[(Kind::DeSteuerId, checksum::de_steuer_id)]),
    (&[3, 3, 3, 2], &[(Kind::BrCpf, checksum::br_cpf)]),
];

/// Judges groups in cells or lines of their own as numbers that need a word.
fn numbers(lane: &mut Lane<'_>, runs: &[Run]) {
    let kinds = GROUPS.iter().flat_map(|(_, kinds)| *kinds).fold(0, |bits, (kind, _)| bits | kind.bit());
    if kinds & lane.kinds.0 & lane.context.possible_somewhere() == 0 {
        return;
    }
    for (first, run) in runs.iter().enumerate() {
        let cell = run.gap == LIST && run.shape == Shape::Digits && (2..=4).contains(&run.len());
        if !cell || !matches!(lane.byte(run.end as usize), b'\t' | b'\r' | b'\n') {
            continue;
        }
        lane.work(GROUPS.len());
        for (sizes, kinds) in GROUPS {
            let Some(number) = Cells::of(lane, runs, first, sizes).filter(|number| number.one_separator) else {
                continue;
            };
            for (kind, _) in kinds.iter().filter(|(_, check)| check(number.chars())) {
                lane.take_if_supported(*kind, number.start, number.end);
            }
        }
    }
}

/// Runs of these sizes, with their digits put together.
struct Cells {
    digits: [u8; WINDOW_BYTES_MAX],
    len: usize,
    start: usize,
    end: usize,
    /// Only tabs, or only line ends, join them.
    one_separator: bool,
}

impl Cells {
    fn of(lane: &Lane<'_>, runs: &[Run], first: usize, sizes: &[u8]) -> Option<Cells> {
        let cells = runs.get(first..first + sizes.len())?;
        let fits = cells.iter().zip(sizes).all(|(run, size)| run.shape == Shape::Digits && run.len() == *size as usize)
            && cells[..cells.len() - 1].iter().all(|run| run.gap != 0);
        if !fits {
            return None;
        }
        let (mut digits, mut len) = ([0u8; WINDOW_BYTES_MAX], 0);
        for run in cells {
            let text = &lane.text[run.start as usize..run.end as usize];
            digits[len..len + text.len()].copy_from_slice(text);
            len += text.len();
        }
        let between = |pair: &[Run]| &lane.text[pair[0].end as usize..pair[1].start as usize];
        let sep = between(&cells[..2]);
        let one_separator = matches!(sep, b"\t" | b"\n" | b"\r\n") && cells.windows(2).all(|pair| between(pair) == sep);
        let (start, end) = (cells[0].start as usize, cells[cells.len() - 1].end as usize);
        Some(Cells { digits, len, start, end, one_separator })
    }

    fn chars(&self) -> &[u8] {
        &self.digits[..self.len]
    }
}

/// Judges the runs that only commas, line ends, bars and the like join: cards written as lists. The word must be there, as one list of
/// numbers in ten passes the check; but the cells of one row or column that stand alone are read as if there were spaces.
fn cards(lane: &mut Lane<'_>, runs: &[Run]) {
    let named = lane.may_be_supported_somewhere(Kind::CreditCard);
    let mut at = 0;
    while at < runs.len() {
        let first = runs[at];
        let mut taken = 1;
        if first.gap == 0 || first.shape != Shape::Digits {
            at += taken;
            continue;
        }
        // The first line of a card that goes on in the next one has spaces in it.
        let listed = || runs[at..].iter().take(3).any(|run| run.gap == LIST);
        match first.len() {
            4 if (named || matches!(lane.byte(first.end as usize), b'\t' | b'\r' | b'\n')) && listed() => {
                [&[4, 4, 4, 4, 3][..], &[4, 4, 4, 4], &[4, 6, 5], &[4, 6, 4]]
                    .into_iter()
                    .for_each(|sizes| listed_card(lane, runs, at, sizes));
            }
            1 if named && first.gap == LIST => {
                taken = one_digit_runs(&runs[at..]);
                lane.work(taken);
                if (13..=19).contains(&taken) {
                    listed_card(lane, runs, at, &[1; 19][..taken]);
                }
            }
            len @ 5..=14 if named && first.gap == LIST => {
                // A number that was broken where the line was full.
                let rest = runs.get(at + 1).map_or(0, Run::len);
                if (13..=19).contains(&(len + rest)) {
                    listed_card(lane, runs, at, &[len as u8, rest as u8]);
                }
            }
            _ => {}
        }
        at += taken;
    }
}

/// How many runs of one digit follow each other, whatever joins them.
fn one_digit_runs(runs: &[Run]) -> usize {
    let one_digit = |run: &Run| run.len() == 1 && run.shape == Shape::Digits;
    let joined = runs.iter().take_while(|run| one_digit(run) && run.gap != 0).count();
    joined + usize::from(runs.get(joined).is_some_and(one_digit))
}

/// Takes the runs from `first` on as a card if they have these sizes, it passes and a word supports it, or they stand alone.
fn listed_card(lane: &mut Lane<'_>, runs: &[Run], first: usize, sizes: &[u8]) {
    let Some(card) = Cells::of(lane, runs, first, sizes) else { return };
    if !checksum::luhn(card.chars()) || !checksum::card_range(card.chars()) {
        return;
    }
    if card.one_separator && alone(lane, runs, first, sizes) {
        lane.take(Kind::CreditCard, card.start, card.end);
    } else {
        lane.take_if_supported(Kind::CreditCard, card.start, card.end);
    }
}

/// Whether these runs are three to five groups as printed on a card, and no part of a larger table.
fn alone(lane: &Lane<'_>, runs: &[Run], first: usize, sizes: &[u8]) -> bool {
    let last = first + sizes.len() - 1;
    let number = |run: Option<&Run>| run.is_some_and(|run| run.shape != Shape::Letters);
    let follows = first.checked_sub(1).and_then(|before| runs.get(before)).filter(|before| before.gap != 0);
    let goes_on = runs.get(last + 1).filter(|_| runs[last].gap != 0);
    let cell = |byte: u8| matches!(byte, b'\t' | b'|');
    (3..=5).contains(&sizes.len())
        && sizes[0] == 4
        && !number(follows)
        && !number(goes_on)
        && !cell(lane.before(runs[first].start as usize))
        && !cell(lane.byte(runs[last].end as usize))
}
