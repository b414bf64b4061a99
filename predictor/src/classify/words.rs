//! The context words of tier B kinds, from `data/context-words.txt`.
//!
//! A word supports the kinds in its row. Words of Latin letters must begin where a word begins (`bsnNummer` and `my_bsn` count, `absn`
//! does not); short ones must also end there, or be followed by a word for "number". Words of other scripts may stand anywhere.

use super::kind::Kind;

/// Where a context word must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// At the end of a word.
    Whole,
    /// Anywhere: the word may be the first part of a compound.
    Open,
}

impl Ending {
    fn from_name(name: &str) -> Option<Ending> {
        match name {
            "whole" => Some(Ending::Whole),
            "open" => Some(Ending::Open),
            _ => None,
        }
    }
}

/// Every kind a national number can be: what the bare words "ID number" support.
const NATIONAL: [Kind; 23] = [
    Kind::UsSsn,
    Kind::UsItin,
    Kind::CaSin,
    Kind::AuTfn,
    Kind::DeSteuerId,
    Kind::FrNir,
    Kind::EsDni,
    Kind::EsNie,
    Kind::ItCodiceFiscale,
    Kind::NlBsn,
    Kind::BeNn,
    Kind::ChAhv,
    Kind::PlPesel,
    Kind::SePersonnummer,
    Kind::FiHetu,
    Kind::InAadhaar,
    Kind::InPan,
    Kind::BrCpf,
    Kind::CnRic,
    Kind::KrRrn,
    Kind::SgNric,
    Kind::ZaId,
    Kind::UkNino,
];

const TABLE: &str = include_str!("../../data/context-words.txt");

/// Every word, with the kinds it supports as bits, and where it must end. A row that cannot be read has no words; a test finds it.
pub(super) fn all() -> impl Iterator<Item = (u64, Ending, &'static str)> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with("# "));
    let words = lines.scan(None, |row, line| match line.strip_prefix("  ") {
        Some(words) => Some(row.map(|row| (row, words))),
        None => {
            *row = heading(line);
            Some(None)
        }
    });
    let split = |words: &'static str| words.split(',').map(str::trim_ascii).filter(|word| !word.is_empty());
    words.flatten().flat_map(move |((kinds, ending), words)| split(words).map(move |word| (kinds, ending, word)))
}

/// The kinds and the ending above a row of words.
fn heading(line: &str) -> Option<(u64, Ending)> {
    let (kinds, ending) = line.rsplit_once(' ')?;
    let bits = |name: &str| match name {
        "national" => Some(NATIONAL.iter().fold(0, |bits, kind| bits | kind.bit())),
        _ => Kind::from_name(name).map(Kind::bit),
    };
    let kinds = kinds.split(' ').try_fold(0, |all, name| Some(all | bits(name)?))?;
    Some((kinds, Ending::from_name(ending)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_names_kinds_and_an_ending_and_has_words_in_lower_case() {
        let headings = || TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with([' ', '#']));
        for line in headings() {
            assert!(heading(line).is_some(), "{line}");
        }
        assert!(headings().count() > 50 && all().count() > 649);
        for (kinds, _, word) in all() {
            assert!(kinds != 0 && word.len() >= 2, "{word}");
            assert_eq!(word, word.to_ascii_lowercase());
        }
    }
}
