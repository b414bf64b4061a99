//! The scanner: it cuts the pieces into slices, runs the lanes over each and collects the finds.

use super::context::{Context, Words};
use super::encoded;
use super::findings::{Findings, Hit};
use super::kind::{Group, Kind, KindSet};
use super::lane::{Found, Lane};
use super::normal::{Buffer, Plain};
use super::numbers::{self, Run};
use super::secrets::{self, Prefixes};
use super::spec::{BUILTINS_MAX, Builtin, OnUnknown, SpecError};
use super::tag::{Tag, TagSet};
use super::{Piece, Shape, mail, network};

/// Bytes of text that one step reads. About 100 us of work: other connections of the core wait no longer.
pub const SLICE_BYTES: usize = 16 * 1024;
/// Bytes a slice shares with the one before it, so that no identifier with its context falls between two.
pub const SLICE_OVERLAP_BYTES: usize = 512;
/// Bytes of prompt from which it is tagged `long-context`: about 8000 tokens of English.
pub const LONG_CONTEXT_BYTES_MIN: usize = 32 * 1024;
/// Bytes a cut may be moved to fall between words.
const CUT_BYTES_MAX: usize = 128;

/// The compiled classifiers. Immutable, shared by all threads.
#[derive(Debug)]
pub struct Scanner {
    kinds: KindSet,
    personal: KindSet,
    on_unknown: OnUnknown,
    words: Words,
    prefixes: Prefixes,
    unknown_tags: TagSet,
}

/// The buffers of one thread, and the findings of its last scan.
#[derive(Debug, Default)]
pub struct Scratch {
    normal: Buffer,
    context: Context,
    decoded_context: Context,
    runs: Vec<Run>,
    found: Vec<Found>,
    decoded_found: Vec<Found>,
    values: Vec<(usize, usize)>,
    decoded: Vec<u8>,
    findings: Findings,
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
    pieces: u32,
    at: usize,
    bytes: usize,
}

impl Scanner {
    /// Compiles `builtins`.
    ///
    /// # Errors
    /// When a field is out of bounds or does not compile; the error names the classifier and the field.
    pub fn compile(builtins: &[Builtin]) -> Result<Scanner, SpecError> {
        if builtins.len() > BUILTINS_MAX {
            return Err(SpecError::new(BUILTINS_MAX, "type", format!("more than {BUILTINS_MAX} classifiers")));
        }
        let mut personal = KindSet::EMPTY;
        let mut kinds = KindSet::EMPTY;
        let mut on_unknown = OnUnknown::Ignore;
        for (index, builtin) in builtins.iter().enumerate() {
            match builtin {
                Builtin::Pii(spec) => {
                    if spec.kinds.is_empty() {
                        return Err(SpecError::new(index, "kinds", "is empty: nothing would be found"));
                    }
                    personal = personal.union(spec.kinds);
                    if spec.on_unknown == OnUnknown::AddTag {
                        on_unknown = OnUnknown::AddTag;
                    }
                }
                Builtin::Secrets => kinds = kinds.union(KindSet::secrets()),
                Builtin::Complexity(_) | Builtin::Topics | Builtin::Keywords(_) | Builtin::Regex(_) => {}
            }
        }
        kinds = kinds.union(personal);
        let failed = |error: aho_corasick::BuildError| SpecError::new(0, "kinds", error.to_string());
        Ok(Scanner {
            kinds,
            personal,
            on_unknown,
            words: Words::compile(kinds.0).map_err(failed)?,
            prefixes: Prefixes::compile().map_err(failed)?,
            unknown_tags: unknown_tags(personal),
        })
    }

    /// Reads `pieces` to the end.
    pub fn scan<'s, 't>(&self, scratch: &'s mut Scratch, pieces: impl IntoIterator<Item = Piece<'t>>, shape: &Shape) -> &'s Findings {
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
        scratch.findings.clear();
        scratch.context.work = 0;
        scratch.decoded_context.work = 0;
        Scan { scanner: self, scratch, shape: *shape, piece: None, pieces: 0, at: 0, bytes: 0 }
    }
}

impl Scratch {
    /// The findings of the last scan.
    #[must_use]
    pub fn findings(&self) -> &Findings {
        &self.findings
    }
}

/// What an unreadable request may hold, for rules that match on it.
fn unknown_tags(personal: KindSet) -> TagSet {
    let mut tags: TagSet = Kind::ALL.iter().filter(|kind| personal.contains(**kind)).map(|kind| Tag::of_kind(*kind)).collect();
    tags.insert(Tag::PII);
    if personal.intersects(KindSet::of_groups(&[Group::Government])) {
        tags.insert(Tag::PII_NATIONAL_ID);
    }
    tags
}

impl<'t> Scan<'_, 't> {
    /// Begins the next piece. The one before must have been read to its end, or the rest of it counts as unread.
    pub fn begin(&mut self, piece: Piece<'t>) {
        self.settle_piece();
        self.bytes += piece.text.len();
        self.piece = Some(piece);
        self.at = 0;
        self.scratch.context.start_piece();
    }

    /// Reads one slice of the piece.
    pub fn step(&mut self) -> Progress {
        let Some(piece) = self.piece else { return Progress::Done };
        let start = self.at;
        let end = cut(piece.text, start + SLICE_BYTES);
        let next = if end < piece.text.len() { cut(piece.text, end - SLICE_OVERLAP_BYTES).max(start + 1) } else { end };
        let slice = Slice { text: piece.text, piece: self.pieces, start, end, next };
        if !self.scanner.kinds.is_empty() {
            self.scratch.read(self.scanner, &slice);
        }
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
    fn read(&mut self, scanner: &Scanner, slice: &Slice<'_>) {
        let plain = self.normal.normalise(&slice.text[slice.start..slice.end]);
        self.context.start_slice();
        self.context.work += plain.bytes.len() as u64;
        self.found.clear();
        let mut lane =
            Lane { text: plain.bytes, words: &scanner.words, context: &mut self.context, kinds: scanner.kinds, found: &mut self.found };
        run_lanes(&mut lane, scanner, &mut self.runs, &mut self.values);
        second_look(
            &mut lane,
            scanner,
            Decoding {
                runs: &mut self.runs,
                values: &mut self.values,
                bytes: &mut self.decoded,
                context: &mut self.decoded_context,
                found: &mut self.decoded_found,
            },
        );
        if slice.end < slice.text.len() {
            let next = plain_offset(&plain, slice.next - slice.start);
            self.context.carry_to(&scanner.words, plain.bytes, next);
        }
        keep_outermost(&mut self.found);
        for found in &self.found {
            let start = slice.start + plain.source(found.start as usize);
            let end = (slice.start + plain.source(found.end as usize)).min(slice.end);
            let hit = Hit { kind: found.kind, piece: slice.piece, start: start as u32, end: end as u32 };
            if !slice.is_cut(start, end) && !seen(&self.findings, &hit, slice.start) {
                self.findings.record(hit);
            }
        }
    }
}

fn run_lanes(lane: &mut Lane<'_>, scanner: &Scanner, runs: &mut Vec<Run>, values: &mut Vec<(usize, usize)>) {
    secrets::scan(lane, &scanner.prefixes, values);
    numbers::scan(lane, runs);
    mail::scan(lane);
    network::scan(lane);
}

/// The buffers of the second look.
struct Decoding<'a> {
    runs: &'a mut Vec<Run>,
    values: &'a mut Vec<(usize, usize)>,
    bytes: &'a mut Vec<u8>,
    context: &'a mut Context,
    found: &'a mut Vec<Found>,
}

/// Decodes long tokens and scans what is readable; a find takes the place of the whole token.
fn second_look(lane: &mut Lane<'_>, scanner: &Scanner, decoding: Decoding<'_>) {
    let text = lane.text;
    lane.work(text.len());
    let mut from = 0;
    while let Some((start, end)) = encoded::next_token(text, from) {
        from = end;
        if !encoded::decode(&text[start..end], decoding.bytes) {
            continue;
        }
        lane.work(end - start);
        decoding.found.clear();
        decoding.context.start_piece();
        decoding.context.set_outer(lane.context.near(lane.words, text, start, end));
        let mut inner = Lane {
            text: decoding.bytes,
            words: lane.words,
            context: decoding.context,
            kinds: lane.kinds,
            found: decoding.found,
        };
        run_lanes(&mut inner, scanner, decoding.runs, decoding.values);
        let kinds: KindSet = decoding.found.iter().map(|found| found.kind).collect();
        for kind in Kind::ALL.iter().copied().filter(|kind| kinds.contains(*kind)) {
            lane.take(kind, start, end);
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

/// Drops finds that lie inside another: the pieces of a card number are not a second identifier. A telephone number, whose layout proves
/// least, gives way to everything and hides only other telephone numbers.
fn keep_outermost(found: &mut Vec<Found>) {
    found.sort_unstable_by_key(|find| (find.start, std::cmp::Reverse(find.end), find.kind));
    let (mut firm, mut phone): (Option<Found>, Option<Found>) = (None, None);
    found.retain(|find| {
        let inside = |outer: &Option<Found>| outer.is_some_and(|outer| find.end <= outer.end && (find.start, find.end) != (outer.start, outer.end));
        let is_phone = find.kind == Kind::Phone;
        let hidden = inside(&firm) || (is_phone && inside(&phone));
        let outer = if is_phone { &mut phone } else { &mut firm };
        if outer.is_none_or(|outer| find.end > outer.end) {
            *outer = Some(*find);
        }
        !hidden
    });
}

/// Whether a hit was recorded already, by the slice before.
fn seen(findings: &Findings, hit: &Hit, slice_start: usize) -> bool {
    let recent = findings.hits.iter().rev().take_while(|other| other.piece == hit.piece && other.end as usize > slice_start);
    slice_start > 0 && recent.take(SLICE_OVERLAP_BYTES).any(|other| other.kind == hit.kind && other.start < hit.end && hit.start < other.end)
}
