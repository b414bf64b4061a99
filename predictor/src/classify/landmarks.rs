//! Landmarks: the fixed byte strings that several lanes look for, found in one pass of one automaton.
//!
//! They are prefixes of credentials, words for digits, and the marks of a disguised e-mail address. The automaton ignores the case of
//! ASCII letters; prefixes, whose case counts, are compared again. One table look-up a byte, whatever the text is.

use aho_corasick::automaton::Automaton;
use aho_corasick::{Anchored, dfa};

use super::{mail, secrets, spelled};

/// What a landmark is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The prefix of a credential, by its place in the table of `secrets`.
    Prefix(u8),
    /// A word for a digit, or for a repetition of the next one.
    Digit(spelled::Word),
    /// Something that stands for `@` or a dot.
    Disguise,
}

/// A landmark in a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landmark {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) meaning: Meaning,
}

/// The compiled strings.
#[derive(Debug)]
pub(super) struct Landmarks {
    automaton: dfa::DFA,
    strings: Vec<(Meaning, &'static str)>,
}

impl Landmarks {
    pub(super) fn compile() -> Result<Landmarks, aho_corasick::BuildError> {
        let mut strings: Vec<(Meaning, &'static str)> = Vec::new();
        strings.extend(secrets::prefixes().map(|(index, prefix)| (Meaning::Prefix(index), prefix)));
        strings.extend(spelled::words().map(|(word, text)| (Meaning::Digit(word), text)));
        strings.extend(mail::marks().map(|text| (Meaning::Disguise, text)));
        let automaton = dfa::Builder::new()
            .ascii_case_insensitive(true)
            .prefilter(false)
            .build(strings.iter().map(|(_, text)| *text))?;
        Ok(Landmarks { automaton, strings })
    }

    /// Puts the landmarks of `text` into `found`, by where they begin, the longest first.
    pub(super) fn find(&self, text: &[u8], found: &mut Vec<Landmark>) {
        found.clear();
        let Ok(mut state) = self.automaton.start_state(Anchored::No) else { return };
        for (at, byte) in text.iter().enumerate() {
            state = self.automaton.next_state(Anchored::No, state, *byte);
            if self.automaton.is_special(state) && self.automaton.is_match(state) {
                self.note(text, at + 1, state, found);
            }
        }
        // Nearly sorted already: a sort that knows runs costs about one comparison each.
        found.sort_by_key(|mark| (mark.start, std::cmp::Reverse(mark.end)));
    }

    fn note(&self, text: &[u8], end: usize, state: aho_corasick::automaton::StateID, found: &mut Vec<Landmark>) {
        for index in 0..self.automaton.match_len(state) {
            let pattern = self.automaton.match_pattern(state, index);
            let (meaning, string) = self.strings[pattern.as_usize()];
            let start = end - string.len();
            let exact = !matches!(meaning, Meaning::Prefix(_)) || &text[start..end] == string.as_bytes();
            if exact {
                found.push(Landmark { start: start as u32, end: end as u32, meaning });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn landmarks_come_in_order_the_longest_first_and_prefixes_keep_their_case() {
        let landmarks = Landmarks::compile().expect("the strings compile");
        let mut found = Vec::new();
        landmarks.find(b"SK-ANT- sk-ant- Four [DOT]", &mut found);
        let places: Vec<(u32, u32)> = found.iter().map(|mark| (mark.start, mark.end)).collect();
        assert_eq!(places, [(8, 15), (8, 11), (16, 20), (21, 26)]);
    }
}
