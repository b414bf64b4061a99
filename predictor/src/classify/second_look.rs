//! The lanes over a slice, and the second look: long tokens are decoded, spelled numbers written in digits, what is said to stand backwards
//! turned round, and the lanes run over what comes out.

use super::classes::Classes;
use super::context::Context;
use super::kind::{Kind, KindSet};
use super::landmarks::{Landmark, Meaning};
use super::lane::{Found, Lane};
use super::runs::Runs;
use super::scanner::Scanner;
use super::{encoded, mail, network, numbers, secrets, spelled};

pub(super) fn run_lanes(lane: &mut Lane<'_>, runs: &mut Runs, values: &mut Vec<(usize, usize)>) {
    lane.work(lane.text.len() + lane.marks.len());
    secrets::scan(lane, values);
    numbers::scan(lane, runs);
    mail::scan(lane);
    network::scan(lane);
}

/// The buffers of the second look.
pub(super) struct Decoding<'a> {
    pub(super) runs: &'a mut Runs,
    pub(super) values: &'a mut Vec<(usize, usize)>,
    pub(super) bytes: &'a mut Vec<u8>,
    pub(super) classes: &'a mut Classes,
    pub(super) marks: &'a mut Vec<Landmark>,
    pub(super) context: &'a mut Context,
    pub(super) found: &'a mut Vec<Found>,
}

/// Decodes long tokens and spelled numbers, and scans what comes out; a find takes the place of the whole token. What is said to stand
/// backwards is turned round.
pub(super) fn second_look(lane: &mut Lane<'_>, scanner: &Scanner, mut decoding: Decoding<'_>) {
    let text = lane.text;
    lane.work(2 * text.len());
    let mut from = 0;
    while let Some((start, end)) = encoded::next_token(text, lane.classes, from) {
        from = end;
        if encoded::decode(&text[start..end], decoding.bytes) {
            decoding.scan(lane, scanner, start, end);
        }
    }
    let marks = lane.marks;
    spelled::each(text, marks, |digits, start, end| {
        decoding.bytes.clear();
        decoding.bytes.extend_from_slice(digits);
        decoding.scan(lane, scanner, start, end);
    });
    let mut done = 0;
    for mark in marks.iter().filter(|mark| mark.meaning == Meaning::Reversed) {
        let start = done.max((mark.start as usize).saturating_sub(REVERSED_BEFORE_BYTES));
        let end = text.len().min(mark.end as usize + REVERSED_BEHIND_BYTES);
        if start < end {
            decoding.turn_round(lane, scanner, start, end);
            done = end;
        }
    }
}

/// How far in front of a word such as "backwards" a thing may stand that is meant, and how far behind.
const REVERSED_BEFORE_BYTES: usize = 64;
const REVERSED_BEHIND_BYTES: usize = 128;

impl Decoding<'_> {
    /// Scans the decoded bytes of `start..end`. The words around it count inside, too.
    fn scan(&mut self, lane: &mut Lane<'_>, scanner: &Scanner, start: usize, end: usize) {
        let words = lane.context.near(start, end);
        self.read(lane, scanner, words);
        let kinds: KindSet = self.found.iter().map(|found| found.kind).collect();
        for kind in Kind::ALL.iter().copied().filter(|kind| kinds.contains(*kind)) {
            lane.take(kind, start, end);
        }
    }

    /// Scans the bytes of `start..end` from the last to the first.
    fn turn_round(&mut self, lane: &mut Lane<'_>, scanner: &Scanner, start: usize, end: usize) {
        self.bytes.clear();
        self.bytes.extend(lane.text[start..end].iter().rev());
        let words = lane.context.near(start, end) | lane.context.within(start, end);
        self.read(lane, scanner, words);
        for found in self.found.iter() {
            lane.take(found.kind, end - found.end as usize, end - found.start as usize);
        }
    }

    /// Runs the lanes over the decoded bytes, where the words of `words` stand near everything.
    fn read(&mut self, lane: &mut Lane<'_>, scanner: &Scanner, words: u64) {
        lane.work(self.bytes.len());
        self.found.clear();
        self.context.start_piece();
        self.context.set_outer(words);
        self.classes.read(self.bytes);
        scanner.landmarks.find(self.bytes, self.classes, self.marks, &mut self.context.words);
        let mut inner = Lane {
            text: self.bytes,
            classes: self.classes,
            marks: self.marks,
            context: self.context,
            kinds: lane.kinds,
            found: self.found,
            covered: 0,
        };
        run_lanes(&mut inner, self.runs, self.values);
    }
}
