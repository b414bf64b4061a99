//! Payment cards: in groups as printed, as lists, and misread.

use super::checksum;
use super::kind::Kind;
use super::lane::Lane;
use super::numbers::{Proof, WINDOW_BYTES_MAX, Window, shape_if, take, take_if};
use super::runs::{LIST, Run, Shape};

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

/// Judges the runs that only commas, line ends, bars and the like join: cards written as lists. The word must be there, as one list of
/// numbers in ten passes the check; but the cells of one row or column that stand alone are read as if there were spaces.
pub(super) fn listed(lane: &mut Lane<'_>, runs: &[Run]) {
    if !lane.kinds.contains(Kind::CreditCard) {
        return;
    }
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
    let Some(card) = runs.get(first..first + sizes.len()) else { return };
    let fits = card.iter().zip(sizes).all(|(run, size)| run.shape == Shape::Digits && run.len() == *size as usize)
        && card[..card.len() - 1].iter().all(|run| run.gap != 0);
    if !fits {
        return;
    }
    let mut chars = [0u8; WINDOW_BYTES_MAX];
    let mut len = 0;
    for run in card {
        let text = &lane.text[run.start as usize..run.end as usize];
        chars[len..len + text.len()].copy_from_slice(text);
        len += text.len();
    }
    let chars = &chars[..len];
    if !checksum::luhn(chars) || !checksum::card_range(chars) {
        return;
    }
    let (start, end) = (card[0].start as usize, card[card.len() - 1].end as usize);
    if alone(lane, runs, first, sizes.len()) {
        lane.take(Kind::CreditCard, start, end);
    } else {
        lane.take_if_supported(Kind::CreditCard, start, end);
    }
}

/// Whether these runs are four or five groups that only tabs join, or only line ends, and no part of a larger table.
fn alone(lane: &Lane<'_>, runs: &[Run], first: usize, count: usize) -> bool {
    let card = &runs[first..first + count];
    let between = |pair: &[Run]| &lane.text[pair[0].end as usize..pair[1].start as usize];
    let sep = between(&card[..2]);
    let number = |run: Option<&Run>| run.is_some_and(|run| run.shape != Shape::Letters);
    let follows = first.checked_sub(1).and_then(|before| runs.get(before)).filter(|before| before.gap != 0);
    let goes_on = runs.get(first + count).filter(|_| card[count - 1].gap != 0);
    (3..=5).contains(&count)
        && card[0].len() == 4
        && matches!(sep, b"\t" | b"\n" | b"\r\n")
        && card.windows(2).all(|pair| between(pair) == sep)
        && !number(follows)
        && !number(goes_on)
        && ![b'\t', b'|'].contains(&lane.before(card[0].start as usize))
        && ![b'\t', b'|'].contains(&lane.byte(card[count - 1].end as usize))
}
