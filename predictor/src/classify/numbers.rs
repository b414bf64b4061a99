//! The number lane: identifiers made of digit groups, and the short mixed ones (`KB 66 51 03 C`).
//!
//! One pass cuts the text into runs of letters and digits, and strings neighbouring runs into clusters. Every window of whole runs of a
//! cluster is then judged by digit count and layout. So a card is found beside other numbers, which one greedy expression per kind is not
//! able to do. Cost: a window is extended run by run up to [`WINDOW_BYTES_MAX`] characters and [`WINDOW_RUNS_MAX`] runs, and sequences of
//! one-digit runs are judged once as a whole, so each byte takes part in a bounded number of windows.

use std::ops::Range;

use super::checksum;
use super::kind::{Kind, KindSet};
use super::lane::Lane;
use super::layout::{Layout, promising};
use super::phone;
use super::runs::{DASH, DOT, LIST, OTHER, Run, Runs, SPACE, Shape, cut};
use super::{cards, cells, tokens};

/// Longest identifier without separators that windows are built for (a 19-digit card).
pub(super) const WINDOW_BYTES_MAX: usize = 20;
/// Shortest one: a local telephone number.
const WINDOW_BYTES_MIN: usize = 7;
/// Most runs of a window that are not all of one digit. A French NIR has seven.
const WINDOW_RUNS_MAX: usize = 8;
/// A window of whole runs, with its characters put together.
#[derive(Debug)]
pub(super) struct Window<'a> {
    /// Upper-case letters and digits, separators left out.
    pub(super) chars: &'a [u8],
    /// Bit `i` is set when character `i` is a letter.
    pub(super) letters: u64,
    /// Characters of each run.
    pub(super) sizes: &'a [u8],
    seps: u8,
    /// Offsets in the text.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Digits of the neighbouring runs of the cluster; 0 when there is none.
    pub(super) before_size: usize,
    pub(super) after_size: usize,
    /// The kinds that something may support here, as bits.
    pub(super) possible: u64,
}

impl Window<'_> {
    pub(super) fn is_single(&self) -> bool {
        self.sizes.len() == 1
    }

    /// Whether the runs have these sizes.
    pub(super) fn layout(&self, sizes: &[u8]) -> bool {
        self.sizes == sizes
    }

    /// Whether every separator is a dash, and there is one.
    pub(super) fn dashed(&self) -> bool {
        self.seps == DASH
    }

    /// Whether every separator is a dot, and there is one.
    pub(super) fn dotted(&self) -> bool {
        self.seps == DOT
    }

    /// Whether there are only spaces between the runs.
    pub(super) fn spaced(&self) -> bool {
        self.seps == SPACE
    }

    /// Whether no separator but space, dash and dot stands inside.
    pub(super) fn plainly_separated(&self) -> bool {
        self.seps & OTHER == 0
    }

    /// Whether the digits stand one by one.
    pub(super) fn spelled(&self) -> bool {
        self.sizes.len() > 2 && self.sizes.iter().all(|size| *size == 1)
    }
}

/// Looks for every identifier of digits and short mixed tokens.
pub(super) fn scan(lane: &mut Lane<'_>, runs: &mut Runs) {
    cut(lane, runs);
    lane.context.prepare();
    lane.covered = 0;
    let runs = &*runs;
    let mut first = 0;
    while first < runs.all.len() {
        let (mut end, mut digits) = (first, false);
        loop {
            let run = &runs.all[end];
            digits |= run.shape != Shape::Letters;
            end += 1;
            if matches!(run.gap, 0 | LIST) || end == runs.all.len() {
                break;
            }
        }
        if digits {
            for index in first..end {
                lone(lane, &runs.all[index..]);
                windows(lane, runs, first..end, index);
            }
        }
        first = end;
    }
    cells::scan(lane, &runs.all);
    bank_codes(lane);
}

/// Letters of a bank identifier code without digits, without and with its branch.
const BANK_CODE_BYTES: [usize; 2] = [8, 11];

/// Looks for bank identifier codes that are letters alone, where a word may support one: rows of capitals, which are rare.
fn bank_codes(lane: &mut Lane<'_>) {
    let mut next = 0;
    while let Some(start) = lane.classes.next_capitals(next).filter(|_| lane.may_be_supported_somewhere(Kind::SwiftBic))
    {
        let end = lane.classes.next_no_capital(start);
        next = end;
        let apart = !lane.before(start).is_ascii_alphanumeric() && !lane.byte(end).is_ascii_alphanumeric();
        if apart && BANK_CODE_BYTES.contains(&(end - start)) && checksum::swift_bic(&lane.text[start..end]) {
            lane.take_if_supported(Kind::SwiftBic, start, end);
        }
    }
}

/// Judges every window that begins with run `first` of `cluster`.
fn windows(lane: &mut Lane<'_>, runs: &Runs, cluster: Range<usize>, first: usize) {
    let all = &runs.all[..cluster.end];
    let one_digit = |index: usize| all.get(index).is_some_and(Run::is_one_digit);
    if one_digit(first) && one_digit(first + 1) {
        if first == cluster.start || !one_digit(first - 1) {
            spelled(lane, runs, cluster.end, first);
        }
        return;
    }
    // Words of one or two letters in a row begin nothing.
    let words = |index: usize| all.get(index).is_some_and(|run: &Run| run.shape == Shape::Letters && run.len() <= 2);
    if words(first) && (words(first + 1) || first + 1 == cluster.end) {
        return;
    }
    let digits_of = |index: usize| all.get(index).filter(|run| run.shape == Shape::Digits).map_or(0, Run::len);
    let before_size = if first > cluster.start { digits_of(first - 1) } else { 0 };
    let start = all[first].start as usize;
    let (marked, possible) = (marked(lane, start), lane.possible(start));
    let (mut len, mut seps, mut letters, mut layout) = (0usize, 0u8, 0u64, Layout::EMPTY);
    for last in first..cluster.end.min(first + WINDOW_RUNS_MAX) {
        let run = &all[last];
        let size = run.len();
        if len + size > WINDOW_BYTES_MAX {
            return;
        }
        letters |= u64::from(run.letters) << len;
        len += size;
        layout = layout.and(size);
        if last > first {
            seps |= all[last - 1].gap;
        }
        let sizes = runs.sizes(first..last + 1);
        // Inside a card or an IBAN nothing else is of interest.
        let end = run.end as usize;
        if end <= lane.covered || len < WINDOW_BYTES_MIN {
            continue;
        }
        let chars = runs.chars(first, len);
        let window = |after_size| Window { chars, letters, sizes, seps, start, end, before_size, after_size, possible };
        if letters != 0 {
            if matches!(len, 8..=11 | 15 | 16 | 18) {
                lane.work(4);
                mixed(lane, &window(digits_of(last + 1)));
            }
            continue;
        }
        let open = promising(possible, chars, layout);
        if (open || marked) && (sizes.len() <= 5 || many_runs_fit(lane, sizes, start)) {
            lane.work(4);
            let window = window(digits_of(last + 1));
            if open {
                digits(lane, &window, Glue::Apart);
            }
            phone::judge(lane, &window);
        }
    }
}

/// What the place of a window says: whether a telephone number is marked there, by a sign in front or a 0.
fn marked(lane: &Lane<'_>, start: usize) -> bool {
    lane.text[start] == b'0' || matches!(lane.before(start), b'+' | b'(')
}

/// Whether six or more runs of digits can be one identifier: a NIR, a card in pairs, or a telephone number with its country code.
fn many_runs_fit(lane: &Lane<'_>, sizes: &[u8], start: usize) -> bool {
    matches!(sizes, [1, 2, 2, 2, 3, 3, 2] | [2, 2, 2, 2, 2, 2, 2, 2])
        || matches!(lane.before(start), b'+' | b'(')
        || lane.text[start..].starts_with(b"00")
}

/// Judges the whole sequence of one-digit runs that begins at `first`, in a cluster that ends at `end`.
fn spelled(lane: &mut Lane<'_>, runs: &Runs, end: usize, first: usize) {
    let sequence = runs.all[first..end].iter().take_while(|run| run.is_one_digit()).count();
    lane.work(sequence);
    if sequence > WINDOW_BYTES_MAX {
        return;
    }
    let window = Window {
        chars: runs.chars(first, sequence),
        letters: 0,
        sizes: runs.sizes(first..first + sequence),
        seps: SPACE,
        start: runs.all[first].start as usize,
        end: runs.all[first + sequence - 1].end as usize,
        before_size: 0,
        after_size: 0,
        possible: lane.possible(runs.all[first].start as usize),
    };
    digits(lane, &window, Glue::Apart);
    phone::judge(lane, &window);
}

/// How much a window must have going for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// The shape is proof.
    Shape,
    /// A context word is needed.
    Word,
}

/// Takes the window as `kind` if it passes `check` and has its proof. The cheapest question is asked first.
pub(super) fn take_if(lane: &mut Lane<'_>, window: &Window<'_>, kind: Kind, proof: Proof, check: Check) {
    let open = match proof {
        Proof::Shape => lane.kinds.contains(kind),
        Proof::Word => window.possible & kind.bit() != 0,
    };
    if open && check(window.chars) {
        take(lane, window, kind, proof);
    }
}

pub(super) fn take(lane: &mut Lane<'_>, window: &Window<'_>, kind: Kind, proof: Proof) {
    match proof {
        Proof::Shape => lane.take(kind, window.start, window.end),
        Proof::Word => lane.take_if_supported(kind, window.start, window.end),
    }
}

pub(super) fn shape_if(proven: bool) -> Proof {
    if proven { Proof::Shape } else { Proof::Word }
}

/// A checksum over digits.
pub(super) type Check = fn(&[u8]) -> bool;

/// Whether digits stand alone or end a word (`ssn078051120`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Glue {
    Apart,
    Word,
}

/// Whether the window is a piece of a decimal fraction: `3.14159`, `0.411111`.
fn fraction(lane: &Lane<'_>, window: &Window<'_>) -> bool {
    let dot_in_front =
        lane.before(window.start) == b'.' && window.start > 1 && lane.before(window.start - 1).is_ascii_digit();
    let dot_behind = lane.byte(window.end) == b'.' && lane.byte(window.end + 1).is_ascii_digit();
    window.is_single() && (dot_in_front || dot_behind)
}

fn digits(lane: &mut Lane<'_>, window: &Window<'_>, glue: Glue) {
    use Kind::{
        AuTfn, BeNn, BrCpf, CaSin, ChAhv, CnRic, DeSteuerId, FiHetu, FrNir, InAadhaar, KrRrn, NlBsn, Passport, PlPesel,
        SePersonnummer, UkNhs, UsDriverLicense, UsItin, UsRouting, UsSsn, ZaId,
    };
    if fraction(lane, window) {
        return;
    }
    let grouped = |sizes: &[u8]| window.layout(sizes) && window.plainly_separated();
    let dashed = |sizes: &[u8]| window.layout(sizes) && window.dashed();
    let mut check = |kind, proof, check| take_if(lane, window, kind, proof, check);
    let any: Check = |_| true;
    match window.chars.len() {
        7 | 8 if window.is_single() => check(UsDriverLicense, Proof::Word, any),
        9 => {
            let classic = shape_if(dashed(&[3, 2, 4]));
            check(UsSsn, classic, checksum::us_ssn);
            check(UsItin, classic, checksum::us_itin);
            check(CaSin, Proof::Word, checksum::ca_sin);
            check(AuTfn, Proof::Word, checksum::au_tfn);
            check(NlBsn, Proof::Word, checksum::nl_bsn);
            check(UsRouting, Proof::Word, checksum::us_routing);
            if window.is_single() {
                check(Passport, Proof::Word, any);
                check(UsDriverLicense, Proof::Word, any);
            }
        }
        10 => {
            check(UkNhs, Proof::Word, checksum::uk_nhs);
            check(SePersonnummer, Proof::Word, checksum::se_personnummer);
            if window.is_single() {
                check(Passport, Proof::Word, checksum::icao_9303);
            }
            if dashed(&[6, 4]) {
                check(FiHetu, Proof::Shape, checksum::fi_hetu);
            }
        }
        11 => {
            check(DeSteuerId, Proof::Word, checksum::de_steuer_id);
            check(PlPesel, Proof::Word, checksum::pl_pesel);
            check(BrCpf, shape_if(grouped(&[3, 3, 3, 2])), checksum::br_cpf);
            check(BeNn, shape_if(grouped(&[2, 2, 2, 3, 2])), checksum::be_nn);
        }
        12 => {
            check(InAadhaar, Proof::Word, checksum::aadhaar);
            check(SePersonnummer, Proof::Word, checksum::se_personnummer);
        }
        13 => {
            check(ZaId, Proof::Word, checksum::za_id);
            check(ChAhv, shape_if(grouped(&[3, 4, 4, 2])), checksum::ch_ahv);
            check(KrRrn, shape_if(dashed(&[6, 7])), checksum::kr_rrn);
            // Numbers given since October 2020 have no check digit.
            if dashed(&[6, 7]) {
                check(KrRrn, Proof::Word, checksum::kr_rrn_shape);
            }
        }
        15 => check(FrNir, shape_if(glue == Glue::Apart), checksum::fr_nir),
        18 => check(CnRic, Proof::Shape, checksum::cn_ric),
        _ => {}
    }
    if (12..=19).contains(&window.chars.len()) {
        cards::judge(lane, window);
    }
}

const fn mask(positions: &[u32]) -> u64 {
    let (mut bits, mut at) = (0, 0);
    while at < positions.len() {
        bits |= 1 << positions[at];
        at += 1;
    }
    bits
}

/// Whether the letters of a window are all capitals in the text, or all small.
fn one_case(lane: &Lane<'_>, window: &Window<'_>) -> bool {
    let text = &lane.text[window.start..window.end];
    !(text.iter().any(u8::is_ascii_lowercase) && text.iter().any(u8::is_ascii_uppercase))
}

fn mixed(lane: &mut Lane<'_>, window: &Window<'_>) {
    use Kind::{CnRic, EsDni, EsNie, FiHetu, FrNir, InPan, ItCodiceFiscale, MxCurp, SgNric, SwiftBic, UkNino, UsMbi};
    const LAST_OF_NINE: u64 = mask(&[8]);
    const LAST_OF_TEN: u64 = mask(&[9]);
    const LAST_OF_EIGHTEEN: u64 = mask(&[17]);
    const SEVENTH: u64 = mask(&[6]);
    const CENTURY_AND_CHECK: u64 = mask(&[6, 10]);
    const NINO: u64 = mask(&[0, 1, 8]);
    const FIRST_AND_LAST: u64 = mask(&[0, 8]);
    const PAN: u64 = mask(&[0, 1, 2, 3, 4, 9]);
    const TAX_CODE: u64 = mask(&[0, 1, 2, 3, 4, 5, 8, 11, 15]);
    const CURP: u64 = mask(&[0, 1, 2, 3, 10, 11, 12, 13, 14, 15]);
    const MBI: u64 = mask(&[1, 4, 7, 8]);
    const BIC: u64 = mask(&[0, 1, 2, 3, 4, 5]);
    let (chars, letters) = (window.chars, window.letters);
    let has = |wanted: u64| letters & wanted == wanted;
    if matches!(chars.len(), 15 | 16) {
        cards::misread(lane, window);
    }
    let shape_fits = match chars.len() {
        8 => has(BIC),
        9 => letters == NINO || letters == FIRST_AND_LAST || letters == LAST_OF_NINE,
        10 => letters == PAN || letters == LAST_OF_TEN,
        11 => has(BIC) || has(MBI) || letters & !CENTURY_AND_CHECK == 0,
        15 => letters == SEVENTH,
        16 => has(TAX_CODE),
        18 => has(CURP) || letters == LAST_OF_EIGHTEEN,
        _ => false,
    };
    if !shape_fits || !one_case(lane, window) {
        return;
    }
    let single = window.is_single();
    match chars.len() {
        9 if letters == NINO && checksum::uk_nino(chars) => {
            take(
                lane,
                window,
                UkNino,
                shape_if(single || matches!(window.sizes, [2, 2, 2, 2, 1] | [2, 6, 1] | [8, 1] | [2, 7])),
            );
        }
        9 if letters == LAST_OF_NINE && checksum::es_dni(chars) => {
            take(lane, window, EsDni, shape_if(single || matches!(window.sizes, [8, 1] | [2, 3, 3, 1] | [2, 3, 4])));
        }
        9 if letters == FIRST_AND_LAST => {
            if checksum::es_nie(chars) {
                take(lane, window, EsNie, shape_if(single || matches!(window.sizes, [1, 7, 1] | [1, 8] | [8, 1])));
            }
            if checksum::sg_nric(chars) {
                take(lane, window, SgNric, shape_if(single));
            }
        }
        10 if letters == PAN && checksum::in_pan(chars) => take(lane, window, InPan, Proof::Word),
        10 if letters == LAST_OF_TEN && window.layout(&[6, 4]) && checksum::fi_hetu(chars) => {
            take(lane, window, FiHetu, Proof::Shape);
        }
        11 if single && matches!(chars[6], b'A'..=b'F' | b'U'..=b'Y') && letters & !CENTURY_AND_CHECK == 0 => {
            let mut without_century = [0u8; 10];
            without_century[..6].copy_from_slice(&chars[..6]);
            without_century[6..].copy_from_slice(&chars[7..]);
            if checksum::fi_hetu(&without_century) {
                take(lane, window, FiHetu, Proof::Shape);
            }
        }
        11 if checksum::us_mbi(chars) => {
            take(lane, window, UsMbi, shape_if(window.layout(&[4, 3, 4]) && window.dashed()));
        }
        15 if checksum::fr_nir(chars) => take(lane, window, FrNir, Proof::Shape),
        16 if checksum::it_codice_fiscale(chars) => take(lane, window, ItCodiceFiscale, Proof::Shape),
        18 if checksum::mx_curp(chars) => take(lane, window, MxCurp, Proof::Shape),
        18 if checksum::cn_ric(chars) => take(lane, window, CnRic, Proof::Shape),
        _ => {}
    }
    if single && matches!(chars.len(), 8 | 11) && checksum::swift_bic(chars) {
        take(lane, window, SwiftBic, Proof::Word);
    }
}

/// Whether the first of `runs` may begin an IBAN: two letters and a digit behind each other, whatever joins them, or its name.
fn begins_iban(runs: &[Run]) -> bool {
    let (run, next) = (runs[0], runs.get(1).filter(|_| runs[0].gap != 0));
    match run.shape {
        Shape::Digits => false,
        Shape::Mixed => run.letters & 0b111 == 0b011 || run.letters & 0b1111 == 0b1111,
        Shape::Letters => next.is_some_and(|next| match run.len() {
            1 => next.letters & 0b11 == 0b01,
            _ => next.letters & 1 == 0,
        }),
    }
}

/// Looks at the first of `runs` on its own: what has a prefix, weak shapes beside a word, and digits glued to a word.
fn lone(lane: &mut Lane<'_>, runs: &[Run]) {
    let Some(run) = runs.first() else { return };
    let (start, end) = (run.start as usize, run.end as usize);
    let text = &lane.text[start..end];
    if begins_iban(runs) && lane.kinds.contains(Kind::Iban) {
        tokens::iban(lane, start);
    }
    if run.shape != Shape::Mixed {
        return;
    }
    if (26..=74).contains(&text.len()) {
        tokens::wallet(lane, start, end);
    }
    if (7..=16).contains(&text.len()) && lane.wants(KindSet(Kind::Passport.bit() | Kind::UsDriverLicense.bit())) {
        tokens::licence(lane, start, end);
    }
    cards::glued(lane, start, end);
    let word = text.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let tail = &text[word..];
    if word >= 2 && (7..=19).contains(&tail.len()) && tail.iter().all(u8::is_ascii_digit) {
        let mut chars = [0u8; WINDOW_BYTES_MAX];
        chars[..tail.len()].copy_from_slice(tail);
        let window = Window {
            chars: &chars[..tail.len()],
            letters: 0,
            sizes: &[tail.len() as u8],
            seps: 0,
            start: start + word,
            end,
            before_size: 0,
            after_size: 0,
            possible: lane.possible(start + word),
        };
        digits(lane, &window, Glue::Word);
        phone::judge_supported(lane, &window);
    }
}
