//! Landmarks: the fixed strings that the lanes look for, found in one pass: context words, prefixes of credentials, words for digits, and
//! the marks of a disguised e-mail address.
//!
//! A string can only begin where a word does, at a character that is not ASCII, or at one of a few signs; one that begins with a space is looked for
//! at its second byte, as spaces are too many to stop at. There the next two bytes, then the next four (two, for the shortest strings) are
//! looked up in sets of 64 Ki bits; only what passes is compared. So the tables take some tens of kilobytes, where an automaton of the same
//! strings takes four megabytes and as many cache misses, and the pass is linear: a place is compared with the few strings that share its
//! first bytes. The case of ASCII letters does not count but for prefixes.

use std::ops::Range;

use super::classes::{BLOCK_BYTES, Block, Classes};
use super::context::WordAt;
use super::kind::KindSet;
use super::words::Ending;
use super::{mail, secrets, spelled, words};

/// What a landmark is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The prefix of a credential, by its place in the table of `secrets`.
    Prefix(u8),
    /// A word for a digit, or for a repetition of the next one.
    Digit(spelled::Word),
    /// Something that stands for `@` or a dot.
    Disguise,
    /// A word that says that something stands backwards.
    Reversed,
}

/// A landmark in a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landmark {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) meaning: Meaning,
}

/// Words that say that something stands backwards.
const REVERSED: [&str; 26] = [
    "backward",
    "reversed",
    "in reverse",
    "mirror",
    "right to left",
    "rückwärts",
    "umgekehrt",
    "à l'envers",
    "al revés",
    "al reves",
    "al rovescio",
    "al contrario",
    "ao contrário",
    "achterstevoren",
    "wspak",
    "od tyłu",
    "baklänges",
    "наоборот",
    "задом наперёд",
    "倒着",
    "倒序",
    "反过来",
    "逆順",
    "逆から",
    "거꾸로",
    "tersten",
];

/// What a string is to the lanes.
#[derive(Debug, Clone, Copy)]
enum Role {
    Mark(Meaning),
    /// A word that supports these kinds, and where it must end.
    Word(u64, Ending),
}

#[derive(Debug, Clone)]
struct Entry {
    /// Lower case but for prefixes. A space in front is left out.
    text: Box<[u8]>,
    /// Its first eight bytes, and the bits of them that count: all but the bit of lower case of a letter, and none behind the end.
    head: u64,
    mask: u64,
    lead: Lead,
    role: Role,
}

/// The first eight bytes of a text; zeros where it is shorter.
fn head(text: &[u8]) -> u64 {
    let mut bytes = [0; HEAD_BYTES];
    match text.first_chunk() {
        Some(first) => bytes = *first,
        None => bytes[..text.len()].copy_from_slice(text),
    }
    u64::from_le_bytes(bytes)
}

/// What must stand in front of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    Anything,
    /// A space, which belongs to it.
    Space,
}

impl Entry {
    fn new(role: Role, text: &str) -> Entry {
        let (lead, text) = match text.strip_prefix(' ') {
            Some(rest) => (Lead::Space, rest),
            None => (Lead::Anything, text),
        };
        let text = text.as_bytes();
        let exact = matches!(role, Role::Mark(Meaning::Prefix(_)));
        let mut mask = [0; HEAD_BYTES];
        for (bits, byte) in mask.iter_mut().zip(text) {
            *bits = if byte.is_ascii_alphabetic() && !exact { !LOWER_CASE } else { u8::MAX };
        }
        let mask = u64::from_le_bytes(mask);
        Entry { text: text.into(), head: head(text) & mask, mask, lead, role }
    }

    /// What it is looked up by.
    fn key(&self) -> u32 {
        key_of(self.head, self.text.len().min(KEY_BYTES))
    }

    /// Where the string begins that has its text at `at`, if it stands there. Its head does.
    fn start(&self, text: &[u8], at: usize) -> Option<usize> {
        let here = text.get(at..at + self.text.len())?;
        if here.len() > HEAD_BYTES && !here[HEAD_BYTES..].eq_ignore_ascii_case(&self.text[HEAD_BYTES..]) {
            return None;
        }
        match (self.role, self.lead) {
            (Role::Mark(Meaning::Prefix(_)), _) if here != &*self.text => None,
            (_, Lead::Space) => at.checked_sub(1).filter(|before| text[*before] == b' '),
            (Role::Word(_, Ending::Whole), Lead::Anything) => {
                // A number of something is a count.
                let counts = here.len() >= 6
                    && here[here.len() - 6..].eq_ignore_ascii_case(b"number")
                    && text[at + here.len()..].starts_with(b" of ");
                (ends(text, at, at + here.len()) && !counts).then_some(at)
            }
            (Role::Word(_, Ending::Open) | Role::Mark(_), Lead::Anything) => Some(at),
        }
    }
}

/// Bytes of a string that are compared at once.
const HEAD_BYTES: usize = 8;
/// What small letters of ASCII have and capitals have not.
const LOWER_CASE: u8 = 0x20;
/// Bytes of the key of most strings; the shorter ones are their own.
const KEY_BYTES: usize = 4;
const BITS: usize = 1 << 16;
/// Slots of the table of keys, a power of two, more than twice the keys.
const SLOTS: usize = 4096;

/// A slot: a key, and its entries.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    key: u32,
    first: u16,
    count: u16,
}

/// Strings by their keys.
#[derive(Debug)]
struct Index {
    /// The keys there are, one bit each.
    present: Box<[u64]>,
    slots: Box<[Slot]>,
}

impl Index {
    /// The index of `entries`, which are sorted by key.
    fn new(entries: &[Entry]) -> Index {
        let mut index = Index {
            present: vec![0; BITS / 64].into_boxed_slice(),
            slots: vec![Slot::default(); SLOTS].into_boxed_slice(),
        };
        let mut at = 0;
        while at < entries.len() {
            let key = entries[at].key();
            let count = entries[at..].iter().take_while(|entry| entry.key() == key).count();
            let bit = spread(key);
            index.present[bit / 64] |= 1 << (bit % 64);
            let mut slot = bit % SLOTS;
            while index.slots[slot].count != 0 {
                slot = (slot + 1) % SLOTS;
            }
            index.slots[slot] = Slot { key, first: at as u16, count: count as u16 };
            at += count;
        }
        index
    }

    /// Whether there may be entries with `key`: one place in sixty passes that has none.
    fn may_have(&self, key: u32) -> bool {
        let bit = spread(key);
        self.present[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// The range of entries with `key`.
    fn entries(&self, key: u32) -> Range<usize> {
        let mut slot = spread(key) % SLOTS;
        while self.slots[slot].count != 0 {
            let Slot { key: here, first, count } = self.slots[slot];
            if here == key {
                return first as usize..(first + count) as usize;
            }
            slot = (slot + 1) % SLOTS;
        }
        0..0
    }
}

/// Sixteen well mixed bits of a key.
const fn spread(key: u32) -> usize {
    (key.wrapping_mul(0x9e37_79b1) >> 16) as usize
}

/// The key of the first `bytes` of a text with this [`head`]: in lower case. Bytes that are no letters change too, always to the same, so
/// that equal stays equal.
const fn key_of(head: u64, bytes: usize) -> u32 {
    (head as u32 | 0x2020_2020) & u32::MAX >> (8 * (KEY_BYTES - bytes))
}

/// The compiled strings.
#[derive(Debug)]
pub(super) struct Landmarks {
    entries: Vec<Entry>,
    index: Index,
}

/// Where a string may begin in a block, given whether the byte in front of it is a small letter, and whether it is any.
fn starts(block: &Block, before: &mut Before) -> u64 {
    let letters = block.alnum & !block.digits;
    let small = letters & !block.capitals;
    let behind_letter = letters << 1 | before.letter;
    let behind_small = small << 1 | before.small;
    *before = Before { letter: letters >> 63, small: small >> 63 };
    letters & !behind_letter | block.capitals & behind_small | block.signs
}

/// The last byte of the block before: 1 where it is a letter, and where it is a small one.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    letter: u64,
    small: u64,
}

impl Landmarks {
    /// The strings for `kinds`.
    pub(super) fn compile(kinds: KindSet) -> Landmarks {
        let mut entries: Vec<Entry> = Vec::new();
        let mut add = |role: Role, text: &str| entries.push(Entry::new(role, text));
        secrets::prefixes().for_each(|(index, prefix)| add(Role::Mark(Meaning::Prefix(index)), prefix));
        spelled::words().for_each(|(word, text)| add(Role::Mark(Meaning::Digit(word)), text));
        mail::marks().for_each(|text| add(Role::Mark(Meaning::Disguise), text));
        REVERSED.iter().for_each(|text| add(Role::Mark(Meaning::Reversed), text));
        for (row_kinds, ending, word) in words::all() {
            let mask = row_kinds & kinds.0;
            if mask != 0 {
                add(Role::Word(mask, ending), word);
                if let Some(title) = title(word) {
                    add(Role::Word(mask, ending), &title);
                }
            }
        }
        entries.sort_by_key(|entry| (entry.key(), std::cmp::Reverse(entry.text.len())));
        let index = Index::new(&entries);
        Landmarks { entries, index }
    }

    /// Puts the landmarks of `text` into `marks` and its context words into `words`, by where they begin, the longest first.
    pub(super) fn find(&self, text: &[u8], classes: &Classes, marks: &mut Vec<Landmark>, words: &mut Vec<WordAt>) {
        marks.clear();
        words.clear();
        let mut before = Before::default();
        for (index, block) in classes.blocks().iter().enumerate() {
            let mut places = starts(block, &mut before);
            let start = index * BLOCK_BYTES;
            while places != 0 {
                let at = start + places.trailing_zeros() as usize;
                places &= places - 1;
                let head = head(&text[at..]);
                // All is asked at once, as no answer can be guessed from the one before.
                let keys = [4, 3, 2].map(|bytes| key_of(head, bytes));
                let present = keys.map(|key| self.index.may_have(key));
                if present[0] | present[1] | present[2] {
                    for (key, _) in keys.into_iter().zip(present).filter(|(_, present)| *present) {
                        self.look(text, at, head, key, marks, words);
                    }
                }
            }
        }
    }

    /// Notes which strings with `key` stand at `at`, where the bytes of `head` are.
    fn look(&self, text: &[u8], at: usize, head: u64, key: u32, marks: &mut Vec<Landmark>, words: &mut Vec<WordAt>) {
        let alike = |entry: &&Entry| head & entry.mask == entry.head;
        for entry in self.entries[self.index.entries(key)].iter().filter(alike) {
            let Some(start) = entry.start(text, at) else { continue };
            let (start, end) = (start as u32, (at + entry.text.len()) as u32);
            match entry.role {
                Role::Mark(meaning) => marks.push(Landmark { start, end, meaning }),
                Role::Word(kinds, _) => words.push(WordAt { start, end, kinds }),
            }
        }
    }
}

/// A word of another script with its first letter large, if it has such a letter.
fn title(word: &str) -> Option<String> {
    let first = word.chars().next().filter(|first| !first.is_ascii())?;
    let large: String = first.to_uppercase().collect();
    (large != first.to_string()).then(|| large + &word[first.len_utf8()..])
}

/// Whether a word of Latin letters ends at `end`: at a non-letter, at a new capital, or before a word for "number".
fn ends(text: &[u8], start: usize, end: usize) -> bool {
    let rest = &text[end..];
    let Some(next) = rest.first() else { return true };
    let last = text[end - 1];
    if !next.is_ascii_alphabetic()
        || !last.is_ascii_alphabetic()
        || (last.is_ascii_lowercase() && next.is_ascii_uppercase())
    {
        return true;
    }
    let all_capitals = text[start..end].iter().all(|byte| !byte.is_ascii_lowercase());
    if all_capitals && next.is_ascii_uppercase() && rest.get(1).is_some_and(u8::is_ascii_lowercase) {
        return true;
    }
    ["num", "nr", "no", "code", "s"].iter().any(|tail| {
        rest.get(..tail.len()).is_some_and(|found| found.eq_ignore_ascii_case(tail.as_bytes()))
            && (*tail == "num" || rest.get(tail.len()).is_none_or(|byte| !byte.is_ascii_alphabetic()))
            && (*tail != "s" || end - start > 2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> Landmarks {
        Landmarks::compile(KindSet(u64::MAX))
    }

    fn find(landmarks: &Landmarks, text: &[u8], marks: &mut Vec<Landmark>, words: &mut Vec<WordAt>) {
        landmarks.find(text, &Classes::of(text), marks, words);
    }

    #[test]
    fn landmarks_come_in_order_the_longest_first_and_prefixes_keep_their_case() {
        let (mut marks, mut words) = (Vec::new(), Vec::new());
        find(&all(), b"SK-ANT- sk-ant- Four [DOT]", &mut marks, &mut words);
        let places: Vec<(u32, u32)> = marks.iter().map(|mark| (mark.start, mark.end)).collect();
        assert_eq!(places, [(8, 15), (8, 11), (16, 20), (21, 26)]);
    }

    #[test]
    fn words_of_other_scripts_are_found_in_both_cases() {
        let (mut marks, mut words) = (Vec::new(), Vec::new());
        for text in ["мой телефон", "Телефон:", "Τηλέφωνο", "我的手机号"] {
            find(&all(), text.as_bytes(), &mut marks, &mut words);
            assert!(!words.is_empty(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// The slow twin compares every string at every place.
        #[test]
        fn every_string_is_found_where_it_stands(parts in proptest::collection::vec("[a-zA-Z ]{0,5}|tel|Card |bsn|sk-|one |\\[at\\]|手机|é", 0..20)) {
            let text = parts.concat();
            let landmarks = all();
            let (mut marks, mut words) = (Vec::new(), Vec::new());
            find(&landmarks, text.as_bytes(), &mut marks, &mut words);
            let bytes = text.as_bytes();
            let mut slow = 0;
            for at in 0..bytes.len() {
                let letter = |at: usize| bytes[at].is_ascii_alphabetic();
                let inside = at > 0 && letter(at) && letter(at - 1) && !(bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase());
                let here = landmarks.entries.iter().filter(|entry| {
                    let here = bytes.get(at..at + entry.text.len());
                    here.is_some_and(|here| here.eq_ignore_ascii_case(&entry.text)) && entry.start(bytes, at).is_some()
                });
                slow += if inside { 0 } else { here.count() };
            }
            prop_assert_eq!(marks.len() + words.len(), slow);
        }
    }

    #[test]
    fn every_sign_that_begins_a_string_is_stopped_at() {
        for entry in &all().entries {
            let first = entry.text[0];
            let stops = Classes::of(&[first]).blocks()[0];
            assert!(stops.alnum | stops.signs == 1, "{:?}", char::from(first));
            assert!(entry.text.len() >= 2, "{:?}", char::from(first));
        }
    }
}
