//! What a scan found.

use super::kind::{Kind, KindSet};
use super::tag::{Tag, TagSet};

/// Most hits of one prompt that are kept with their place. The tags and the counts are exact beyond it.
pub const HITS_MAX: usize = 512;

/// A place where an identifier stands. The text itself is never kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// What it is.
    pub kind: Kind,
    /// Index of the piece, in the order they were given.
    pub piece: u32,
    /// First byte, in the UTF-8 text of the piece.
    pub start: u32,
    /// The byte behind the last.
    pub end: u32,
}

/// Whether something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was found.
    Yes,
    /// All text was read and it is not there.
    No,
    /// Something could not be read. Treat it as [`Verdict::Yes`] where a leak would do harm.
    Unknown,
}

/// The result of one scan. It lives in the scratch space and is valid until the next scan.
#[derive(Debug, Default)]
pub struct Findings {
    pub(super) tags: TagSet,
    pub(super) effective: TagSet,
    pub(super) hits: Vec<Hit>,
    pub(super) counts: Vec<u32>,
    pub(super) complexity: Option<f32>,
    pub(super) work_steps: u64,
}

impl Findings {
    /// The tags of the prompt, as shown in logs and reports.
    #[must_use]
    pub fn tags(&self) -> &TagSet {
        &self.tags
    }

    /// The tags rules are matched against: the same, and with `pii-unscanned` also `pii` and the tag of every kind in question.
    #[must_use]
    pub fn effective_tags(&self) -> &TagSet {
        &self.effective
    }

    /// Whether `tag` holds for the prompt, an unreadable part counting as personal.
    #[must_use]
    pub fn matches(&self, tag: Tag) -> bool {
        self.effective.contains(tag)
    }

    /// Whether personal data is there.
    #[must_use]
    pub fn pii(&self) -> Verdict {
        if self.tags.contains(Tag::PII) {
            Verdict::Yes
        } else if self.tags.contains(Tag::PII_UNSCANNED) {
            Verdict::Unknown
        } else {
            Verdict::No
        }
    }

    /// The places, in the order they were met; at most [`HITS_MAX`].
    #[must_use]
    pub fn hits(&self) -> &[Hit] {
        &self.hits
    }

    /// How many identifiers of `kind` were found.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u32 {
        self.counts.get(kind as usize).copied().unwrap_or(0)
    }

    /// The kinds that were found.
    #[must_use]
    pub fn kinds(&self) -> KindSet {
        Kind::ALL.iter().copied().filter(|kind| self.count(*kind) > 0).collect()
    }

    /// The complexity score, 0 (one step) to 1; none when it was not asked for or the text does not allow one.
    #[must_use]
    pub fn complexity(&self) -> Option<f32> {
        self.complexity
    }

    /// Steps the scan took, about one per byte and lane. It grows linearly with the text, whatever the text is; tests hold it to that.
    #[must_use]
    pub fn work_steps(&self) -> u64 {
        self.work_steps
    }

    pub(super) fn clear(&mut self) {
        self.tags = TagSet::EMPTY;
        self.effective = TagSet::EMPTY;
        self.hits.clear();
        self.counts.clear();
        self.counts.resize(Kind::ALL.len(), 0);
        self.complexity = None;
        self.work_steps = 0;
    }

    /// Adds what is known of a piece without reading it.
    pub(super) fn add(&mut self, kinds: KindSet, tags: &TagSet) {
        for kind in Kind::ALL.iter().copied().filter(|kind| kinds.contains(*kind)) {
            self.tags.insert(Tag::of_kind(kind));
            if let Some(count) = self.counts.get_mut(kind as usize) {
                *count = count.saturating_add(1);
            }
        }
        for tag in tags.iter() {
            self.tags.insert(tag);
        }
    }

    pub(super) fn record(&mut self, hit: Hit) {
        self.tags.insert(Tag::of_kind(hit.kind));
        if let Some(count) = self.counts.get_mut(hit.kind as usize) {
            *count = count.saturating_add(1);
        }
        if self.hits.len() < HITS_MAX {
            self.hits.push(hit);
        }
    }
}
