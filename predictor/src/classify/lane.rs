//! What every lane works on: one slice of plain text, the words in it, and the place where finds go.

use super::classes::Classes;
use super::context::Context;
use super::kind::{Kind, KindSet};
use super::landmarks::Landmark;

/// Most finds of one slice that are kept. A slice has at most 16 KiB, so more than this is a table, and the tags are certain.
pub(super) const FOUND_MAX: usize = 1024;

/// A find, in offsets of the plain text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) kind: Kind,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// One slice under examination.
#[derive(Debug)]
pub(super) struct Lane<'a> {
    pub(super) text: &'a [u8],
    pub(super) classes: &'a Classes,
    pub(super) marks: &'a [Landmark],
    pub(super) context: &'a mut Context,
    pub(super) kinds: KindSet,
    pub(super) found: &'a mut Vec<Found>,
    /// The end of the last card or IBAN that the number lane took: it comes by where they begin, so this one covers what ends in front.
    pub(super) covered: usize,
}

impl Lane<'_> {
    /// Whether any of `kinds` is wanted.
    pub(super) fn wants(&self, kinds: KindSet) -> bool {
        self.kinds.intersects(kinds)
    }

    /// Takes a find that needs no context word.
    pub(super) fn take(&mut self, kind: Kind, start: usize, end: usize) {
        if !self.kinds.contains(kind) {
            return;
        }
        self.context.confirm(kind, end);
        if matches!(kind, Kind::CreditCard | Kind::Iban) {
            self.covered = self.covered.max(end);
        }
        if self.found.len() < FOUND_MAX {
            self.found.push(Found { kind, start: start as u32, end: end as u32 });
        }
    }

    /// Takes a find if a context word supports it.
    pub(super) fn take_if_supported(&mut self, kind: Kind, start: usize, end: usize) {
        if self.supported(kind, start, end) {
            self.take(kind, start, end);
        }
    }

    /// Whether `kind` is wanted and something could support it somewhere in the slice.
    pub(super) fn may_be_supported_somewhere(&mut self, kind: Kind) -> bool {
        self.kinds.contains(kind) && self.context.may_support_somewhere(kind)
    }

    /// All kinds that may be supported at `start`, as bits, once the context is prepared.
    pub(super) fn possible(&self, start: usize) -> u64 {
        self.kinds.0 & self.context.possible(start)
    }

    /// Whether `kind` is wanted and has a context word.
    pub(super) fn supported(&mut self, kind: Kind, start: usize, end: usize) -> bool {
        self.kinds.contains(kind) && self.context.supports(self.text, kind, start, end)
    }

    /// The byte in front of `at`; a space at the beginning.
    pub(super) fn before(&self, at: usize) -> u8 {
        at.checked_sub(1).and_then(|before| self.text.get(before)).copied().unwrap_or(b' ')
    }

    /// The byte at `at`; a space at the end.
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(b' ')
    }

    /// Notes `steps` of work, for the tests of linearity.
    pub(super) fn work(&mut self, steps: usize) {
        self.context.work += steps as u64;
    }
}
