//! A scan: it cuts the pieces into slices, runs the lanes over each and collects the finds.

use regex_automata::meta;

use super::classes::Classes;
use super::complexity::features::Features;
use super::context::Context;
use super::custom::{KeywordState, Patterns};
use super::examples::Bag;
use super::findings::{Findings, Hit};
use super::kind::{Group, Kind, KindSet};
use super::landmarks::Landmark;
use super::lane::{Found, Lane};
use super::memory::{Memory, PieceKey, Remembered};
use super::normal::{Buffer, Plain};
use super::outermost::keep_outermost;
use super::runs::Runs;
use super::scanner::Scanner;
use super::second_look::{Decoding, run_lanes, second_look};
use super::spec::OnUnknown;
use super::tag::{Tag, TagSet};
use super::topics::Topics;
use super::turn::Turn;
use super::{Piece, Scope, Shape};

/// Bytes of text that one step reads. About 25 us of work, below 500 us for texts made to be slow: other connections of the core wait no
/// longer. What a slice shares with the next one is read twice, so shorter ones cost more in all.
pub const SLICE_BYTES: usize = 6 * 1024;
/// Bytes a slice shares with the one before it, so that no identifier with its context falls between two.
pub const SLICE_OVERLAP_BYTES: usize = 384;
/// Bytes that the last slice of a piece may be longer.
const REST_BYTES_MAX: usize = 1024;
/// Bytes of prompt from which it is tagged `long-context`: about 8000 tokens of English.
pub const LONG_CONTEXT_BYTES_MIN: usize = 32 * 1024;
/// Bytes a cut may be moved to fall between words.
const CUT_BYTES_MAX: usize = 128;

/// User turns above which a request is never `complexity-low`.
const LOW_TURNS_MAX: u32 = 6;

/// The buffers of one thread, and the findings of its last scan. It serves any scanner and adapts to a new one at its first scan.
#[derive(Debug, Default)]
pub struct Scratch {
    normal: Buffer,
    classes: Classes,
    decoded_classes: Classes,
    context: Context,
    decoded_context: Context,
    runs: Runs,
    marks: Vec<Landmark>,
    decoded_marks: Vec<Landmark>,
    found: Vec<Found>,
    /// The finds as numbers, to sort them.
    order: Vec<u64>,
    decoded_found: Vec<Found>,
    values: Vec<(usize, usize)>,
    decoded: Vec<u8>,
    turn: Turn,
    pub(super) features: Features,
    keyword_states: Vec<KeywordState>,
    /// The last turn that each classifier by examples reads.
    example_turns: Vec<Turn>,
    bag: Bag,
    /// Kinds, and tags of the operator, found in the piece at hand.
    piece_kinds: KindSet,
    piece_tags: TagSet,
    caches: Vec<meta::Cache>,
    fingerprint: Option<u64>,
    pub(super) findings: Findings,
}

/// Whether a piece has more slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There is more to read.
    More,
    /// The piece has been read to its end.
    Done,
}

/// A scan under way.
#[derive(Debug)]
pub struct Scan<'a, 't> {
    scanner: &'a Scanner,
    scratch: &'a mut Scratch,
    shape: Shape,
    piece: Option<Piece<'t>>,
    last_scope: Option<Scope>,
    pieces: u32,
    at: usize,
    bytes: usize,
}

impl Scanner {
    /// Reads `pieces` to the end.
    pub fn scan<'s, 't>(
        &self,
        scratch: &'s mut Scratch,
        pieces: impl IntoIterator<Item = Piece<'t>>,
        shape: &Shape,
    ) -> &'s Findings {
        let mut scan = self.start(scratch, shape);
        for piece in pieces {
            scan.begin(piece);
            while scan.step() == Progress::More {}
        }
        scan.finish();
        &scratch.findings
    }

    /// Starts a scan that the caller moves on.
    pub fn start<'a, 't>(&'a self, scratch: &'a mut Scratch, shape: &Shape) -> Scan<'a, 't> {
        scratch.adapt(self);
        scratch.findings.clear();
        scratch.turn.start();
        scratch.context.work = 0;
        scratch.decoded_context.work = 0;
        for (keywords, state) in self.keywords.iter().zip(&mut scratch.keyword_states) {
            keywords.start(state);
        }
        scratch.example_turns.iter_mut().for_each(Turn::start);
        Scan { scanner: self, scratch, shape: *shape, piece: None, last_scope: None, pieces: 0, at: 0, bytes: 0 }
    }
}

impl Scratch {
    /// The findings of the last scan.
    #[must_use]
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Makes the caches fit `scanner`. Allocates once per scanner.
    fn adapt(&mut self, scanner: &Scanner) {
        if self.fingerprint != Some(scanner.fingerprint) {
            self.fingerprint = Some(scanner.fingerprint);
            self.caches = scanner.patterns.iter().map(Patterns::cache).collect();
            self.keyword_states.clear();
            self.keyword_states.resize_with(scanner.keywords.len(), KeywordState::default);
            self.example_turns.resize_with(scanner.examples.len(), Turn::default);
        }
    }
}

impl<'t> Scan<'_, 't> {
    /// Begins the next piece. The one before must have been read to its end, or the rest of it counts as unread.
    pub fn begin(&mut self, piece: Piece<'t>) {
        self.settle_piece();
        self.bytes += piece.text.len();
        self.hear(piece.scope, Some(piece.text));
        self.scratch.piece_kinds = KindSet::EMPTY;
        self.scratch.piece_tags = TagSet::EMPTY;
        self.piece = Some(piece);
        self.at = 0;
        self.scratch.context.start_piece();
    }

    /// Takes a piece as read that a [`Memory`] knows. `text` is needed when it belongs to the last turn of its scope: that is judged as
    /// a whole.
    pub fn recall(&mut self, found: Remembered, scope: Scope, text: Option<&str>) {
        self.settle_piece();
        self.bytes += found.bytes as usize;
        self.hear(scope, text);
        self.scratch.findings.add(found.kinds, &found.tags);
        self.pieces += 1;
    }

    /// Keeps what the piece just read to its end holds.
    pub fn remember(&mut self, memory: &mut Memory, key: PieceKey, bytes: usize) {
        if self.piece.is_none() {
            let (kinds, tags) = (self.scratch.piece_kinds, self.scratch.piece_tags);
            memory.keep(key, Remembered { kinds, tags, bytes: u32::try_from(bytes).unwrap_or(u32::MAX) });
        }
    }

    /// Keeps the last turns. Parts of one turn come one after the other; anything between two begins a new turn.
    fn hear(&mut self, scope: Scope, text: Option<&str>) {
        let new = self.last_scope != Some(scope);
        let user = (scope == Scope::User).then_some(&mut self.scratch.turn);
        let examples = self.scanner.examples.iter().zip(&mut self.scratch.example_turns);
        let own = examples.filter(|(examples, _)| examples.reads(scope)).map(|(_, turn)| turn);
        for turn in user.into_iter().chain(own) {
            if new {
                turn.start();
            }
            if let Some(text) = text {
                turn.push(text);
            }
        }
        self.last_scope = Some(scope);
    }

    /// Reads one slice of the piece.
    pub fn step(&mut self) -> Progress {
        let Some(piece) = self.piece else { return Progress::Done };
        let start = self.at;
        // A short rest is read along: it would cost a slice of its own, with what that shares with this one.
        let rest = piece.text.len() - start;
        let end =
            if rest <= SLICE_BYTES + REST_BYTES_MAX { piece.text.len() } else { cut(piece.text, start + SLICE_BYTES) };
        let next = if end < piece.text.len() { cut(piece.text, end - SLICE_OVERLAP_BYTES).max(start + 1) } else { end };
        let slice = Slice { text: piece.text, piece: self.pieces, start, end, next };
        let kinds = self.scanner.kinds_in(piece.scope);
        if !kinds.is_empty() {
            self.scratch.read(self.scanner, kinds, &slice);
        }
        self.scratch.read_own(self.scanner, piece.scope, &slice);
        self.at = next;
        if end < piece.text.len() {
            return Progress::More;
        }
        self.piece = None;
        self.pieces += 1;
        Progress::Done
    }

    /// Ends the scan and settles the tags.
    pub fn finish(mut self) {
        self.settle_piece();
        let shape = self.shape;
        let findings = &mut self.scratch.findings;
        findings.work_steps = self.scratch.context.work + self.scratch.decoded_context.work;
        group_tags(findings);
        shape_tags(findings, &shape, self.bytes);
        self.scratch.judge_turn(self.scanner, &shape);
        self.scratch.judge_examples(self.scanner);
        let findings = &mut self.scratch.findings;
        let unread = shape.unscannable || shape.image || shape.audio;
        if unread && self.scanner.on_unknown == OnUnknown::AddTag {
            findings.tags.insert(Tag::PII_UNSCANNED);
        }
        findings.effective = findings.tags;
        if findings.tags.contains(Tag::PII_UNSCANNED) {
            findings.effective = findings.tags.iter().chain(self.scanner.unknown_tags.iter()).collect();
        }
    }

    fn settle_piece(&mut self) {
        if self.piece.take().is_some() {
            self.shape.unscannable = true;
            self.pieces += 1;
        }
    }
}

fn group_tags(findings: &mut Findings) {
    for kind in Kind::ALL {
        if findings.count(*kind) > 0 {
            findings.tags.insert(match kind.group() {
                Group::Contact | Group::Financial | Group::Health | Group::Government => Tag::PII,
                Group::Secret => Tag::SECRET,
                Group::Network => Tag::NETWORK,
                Group::Crypto => Tag::CRYPTO,
            });
            if kind.group() == Group::Government {
                findings.tags.insert(Tag::PII_NATIONAL_ID);
            }
        }
    }
}

fn shape_tags(findings: &mut Findings, shape: &Shape, bytes: usize) {
    let tags = [
        (shape.tools, Tag::TOOLS),
        (shape.image, Tag::IMAGE),
        (shape.audio, Tag::AUDIO),
        (shape.json_schema, Tag::JSON_SCHEMA),
        (shape.turns > 1, Tag::MULTI_TURN),
        (bytes >= LONG_CONTEXT_BYTES_MIN, Tag::LONG_CONTEXT),
    ];
    for (_, tag) in tags.into_iter().filter(|(holds, _)| *holds) {
        findings.tags.insert(tag);
    }
}

/// A place to cut at or shortly before `at`: behind a space if one is near, else between two characters.
fn cut(text: &str, at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    let bytes = text.as_bytes();
    let from = at.saturating_sub(CUT_BYTES_MAX);
    let space = bytes[from..at].iter().rposition(u8::is_ascii_whitespace).map(|space| from + space + 1);
    space.unwrap_or_else(|| (from..=at).rev().find(|place| text.is_char_boundary(*place)).unwrap_or(at))
}

/// A slice of a piece.
#[derive(Debug)]
struct Slice<'t> {
    text: &'t str,
    piece: u32,
    start: usize,
    end: usize,
    /// Where the next slice begins.
    next: usize,
}

impl Slice<'_> {
    /// Whether a find at `start..end` of the piece is one that a neighbouring slice sees better: it touches a cut inside a token.
    fn is_cut(&self, start: usize, end: usize) -> bool {
        let bytes = self.text.as_bytes();
        let cut_left = start == self.start && start > 0 && bytes[start - 1].is_ascii_alphanumeric();
        let cut_right = end == self.end && end < bytes.len() && start >= self.next;
        cut_left || cut_right
    }
}

impl Scratch {
    fn read(&mut self, scanner: &Scanner, kinds: KindSet, slice: &Slice<'_>) {
        let plain = self.normal.normalise(&slice.text[slice.start..slice.end]);
        self.context.start_slice();
        self.context.work += plain.bytes.len() as u64;
        self.found.clear();
        self.classes.read(plain.bytes);
        scanner.landmarks.find(plain.bytes, &self.classes, &mut self.marks, &mut self.context.words);
        let mut lane = Lane {
            text: plain.bytes,
            classes: &self.classes,
            marks: &self.marks,
            context: &mut self.context,
            kinds,
            found: &mut self.found,
            covered: 0,
        };
        run_lanes(&mut lane, &mut self.runs, &mut self.values);
        second_look(
            &mut lane,
            scanner,
            Decoding {
                runs: &mut self.runs,
                values: &mut self.values,
                bytes: &mut self.decoded,
                classes: &mut self.decoded_classes,
                marks: &mut self.decoded_marks,
                context: &mut self.decoded_context,
                found: &mut self.decoded_found,
            },
        );
        if slice.end < slice.text.len() {
            let next = plain_offset(&plain, slice.next - slice.start);
            self.context.carry_to(plain.bytes, next);
        }
        keep_outermost(&mut self.found, &mut self.order);
        let before = self.findings.hits.len();
        for found in &self.found {
            let start = slice.start + plain.source(found.start as usize);
            let end = (slice.start + plain.source(found.end as usize)).min(slice.end);
            let hit = Hit { kind: found.kind, piece: slice.piece, start: start as u32, end: end as u32 };
            if !slice.is_cut(start, end) && !seen(&self.findings.hits[..before], &hit, slice.start) {
                self.findings.record(hit);
                self.piece_kinds = self.piece_kinds.union(KindSet(hit.kind.bit()));
            }
        }
    }
}

impl Scratch {
    /// Runs the operator's own classifiers over a slice.
    fn read_own(&mut self, scanner: &Scanner, scope: Scope, slice: &Slice<'_>) {
        let range = (slice.start, slice.end);
        for (keywords, state) in scanner.keywords.iter().zip(&mut self.keyword_states) {
            if !keywords.scopes.contains(scope) || self.piece_tags.contains(keywords.tag) {
                continue;
            }
            // One occurrence is enough: every piece is judged by itself, so that what is remembered of it holds alone.
            if !keywords.counts() {
                keywords.start(state);
            }
            if keywords.read(state, slice.text, range, slice.next) {
                self.findings.tags.insert(keywords.tag);
                self.piece_tags.insert(keywords.tag);
            }
        }
        for (patterns, cache) in scanner.patterns.iter().zip(&mut self.caches) {
            let open = patterns.scopes.contains(scope) && !self.piece_tags.contains(patterns.tag);
            if open && patterns.matches(cache, slice.text, range) {
                self.findings.tags.insert(patterns.tag);
                self.piece_tags.insert(patterns.tag);
            }
        }
    }

    /// Judges the last turns by the operator's examples.
    fn judge_examples(&mut self, scanner: &Scanner) {
        for (examples, turn) in scanner.examples.iter().zip(&mut self.example_turns) {
            if examples.matches(&mut self.bag, turn.text()) {
                self.findings.tags.insert(examples.tag);
            }
        }
    }

    /// Judges topics and complexity of the last user turn.
    fn judge_turn(&mut self, scanner: &Scanner, shape: &Shape) {
        if scanner.complexity.is_none() && scanner.topics.is_none() {
            return;
        }
        let text = self.turn.text();
        if text.trim_ascii().is_empty() {
            return;
        }
        self.features.read(&scanner.lexicon, text);
        let topics = Topics::of(&self.features.counts, text);
        if scanner.topics.is_some() {
            topics.tag(&mut self.findings.tags);
        }
        let Some(complexity) = scanner.complexity.as_ref().filter(|_| topics.is_english()) else { return };
        let score = complexity.model.score(&self.features);
        self.findings.complexity = Some(score);
        let never_low = shape.tools || shape.image || topics.code || topics.math || shape.turns > LOW_TURNS_MAX;
        if score < complexity.low && !never_low {
            self.findings.tags.insert(Tag::COMPLEXITY_LOW);
        } else if score > complexity.high {
            self.findings.tags.insert(Tag::COMPLEXITY_HIGH);
        }
    }
}

/// The plain offset of a source offset, by bisection.
fn plain_offset(plain: &Plain<'_>, source: usize) -> usize {
    let (mut low, mut high) = (0, plain.bytes.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if plain.source(middle) < source { low = middle + 1 } else { high = middle }
    }
    low
}

/// Whether a hit is among `recorded`, by the slice before.
fn seen(recorded: &[Hit], hit: &Hit, slice_start: usize) -> bool {
    if hit.start as usize > slice_start + SLICE_OVERLAP_BYTES + CUT_BYTES_MAX {
        return false;
    }
    let overlapping =
        recorded.iter().rev().take_while(|other| other.piece == hit.piece && other.end as usize > slice_start);
    overlapping
        .take(SLICE_OVERLAP_BYTES)
        .any(|other| other.kind == hit.kind && other.start < hit.end && hit.start < other.end)
}
