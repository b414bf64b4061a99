//! The number lane: identifiers made of digit groups, and the short mixed ones (`KB 66 51 03 C`).
//!
//! One pass cuts the text into runs of letters and digits, and strings neighbouring runs into clusters. Every window of whole runs of a
//! cluster is then judged by digit count and layout. So a card is found beside other numbers, which one greedy expression per kind is not
//! able to do. Cost: a window is extended run by run up to [`WINDOW_BYTES_MAX`] characters and [`WINDOW_RUNS_MAX`] runs, and sequences of
//! one-digit runs are judged once as a whole, so each byte takes part in a bounded number of windows.

use super::checksum;
use super::kind::{Kind, KindSet};
use super::lane::Lane;
use super::phone;

/// Longest identifier without separators that windows are built for (a 19-digit card).
pub(super) const WINDOW_BYTES_MAX: usize = 20;
/// Most runs of a window that are not all of one digit. A French NIR has seven.
const WINDOW_RUNS_MAX: usize = 8;
/// Longest separator between two runs of a cluster: ` - `, `) `.
const GAP_BYTES_MAX: usize = 3;

/// A maximal run of ASCII letters and digits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    start: u32,
    end: u32,
    shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Digits,
    Letters,
    Mixed,
}

impl Run {
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

const SPACE: u8 = 1;
const DASH: u8 = 2;
const DOT: u8 = 4;
const OTHER: u8 = 8;

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
    fn spelled(&self) -> bool {
        self.sizes.len() > 2 && self.sizes.iter().all(|size| *size == 1)
    }
}

/// Whether a byte may stand between two runs of one identifier.
const fn joins(byte: u8) -> u8 {
    match byte {
        b' ' => SPACE,
        b'-' => DASH,
        b'.' => DOT,
        b'/' | b'(' | b')' | b'_' => OTHER,
        _ => 0,
    }
}

/// Length of a UUID that begins at `start`, if one does.
fn uuid(text: &[u8], start: usize) -> Option<usize> {
    let token = text.get(start..start + 36)?;
    let fits = token.iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    fits.then_some(36)
}

/// Cuts the text into the runs that can be part of an identifier.
fn cut(lane: &mut Lane<'_>, runs: &mut Vec<Run>) {
    runs.clear();
    let text = lane.text;
    let mut at = 0;
    while at < text.len() {
        if !text[at].is_ascii_alphanumeric() {
            at += 1;
            continue;
        }
        let start = at;
        let (mut digits, mut capitals) = (0usize, 0usize);
        while at < text.len() && text[at].is_ascii_alphanumeric() {
            digits += usize::from(text[at].is_ascii_digit());
            capitals += usize::from(text[at].is_ascii_uppercase());
            at += 1;
        }
        let len = at - start;
        if len == 8 && text.get(at) == Some(&b'-') {
            if let Some(skipped) = uuid(text, start) {
                at = start + skipped;
                continue;
            }
        }
        let shape = match digits {
            0 if len <= 2 || (capitals == len && matches!(len, 8 | 11)) => Shape::Letters,
            0 => continue,
            _ if digits == len => Shape::Digits,
            _ => Shape::Mixed,
        };
        runs.push(Run { start: start as u32, end: at as u32, shape });
    }
    lane.work(text.len());
}

/// The separators between two runs, or nothing when they belong to different clusters.
fn gap(text: &[u8], left: &Run, right: &Run) -> Option<u8> {
    let between = &text[left.end as usize..right.start as usize];
    if between.len() > GAP_BYTES_MAX {
        return None;
    }
    let seps = between.iter().map(|byte| joins(*byte)).try_fold(0, |all, sep| (sep != 0).then_some(all | sep))?;
    // " - " and ". " count as what they hold besides the spaces.
    Some(if seps & !SPACE == 0 { seps } else { seps & !SPACE })
}

/// Looks for every identifier of digits and short mixed tokens.
pub(super) fn scan(lane: &mut Lane<'_>, runs: &mut Vec<Run>) {
    cut(lane, runs);
    let mut first = 0;
    while first < runs.len() {
        let mut last = first;
        while last + 1 < runs.len() && gap(lane.text, &runs[last], &runs[last + 1]).is_some() {
            last += 1;
        }
        let cluster = &runs[first..=last];
        if cluster.iter().any(|run| run.shape != Shape::Letters || run.len() > 2) {
            for index in 0..cluster.len() {
                lone(lane, &cluster[index]);
                windows(lane, cluster, index);
            }
        }
        first = last + 1;
    }
}

/// Judges every window that begins with run `first`.
fn windows(lane: &mut Lane<'_>, cluster: &[Run], first: usize) {
    let one_digit = |index: usize| cluster.get(index).is_some_and(|run: &Run| run.len() == 1 && run.shape == Shape::Digits);
    if one_digit(first) && one_digit(first + 1) {
        if first == 0 || !one_digit(first - 1) {
            spelled(lane, cluster, first);
        }
        return;
    }
    let mut chars = [0u8; WINDOW_BYTES_MAX];
    let mut sizes = [0u8; WINDOW_RUNS_MAX];
    let (mut len, mut letters, mut seps) = (0usize, 0u64, 0u8);
    for (count, run) in cluster[first..].iter().enumerate().take(WINDOW_RUNS_MAX) {
        if len + run.len() > WINDOW_BYTES_MAX {
            return;
        }
        if count > 0 {
            seps |= gap(lane.text, &cluster[first + count - 1], run).unwrap_or(OTHER);
        }
        for byte in &lane.text[run.start as usize..run.end as usize] {
            chars[len] = byte.to_ascii_uppercase();
            letters |= u64::from(!byte.is_ascii_digit()) << len;
            len += 1;
        }
        sizes[count] = run.len() as u8;
        let neighbour = |index: Option<usize>| index.and_then(|index| cluster.get(index)).filter(|run| run.shape == Shape::Digits).map_or(0, Run::len);
        lane.work(4);
        judge(lane, &Window {
            chars: &chars[..len],
            letters,
            sizes: &sizes[..=count],
            seps,
            start: cluster[first].start as usize,
            end: run.end as usize,
            before_size: neighbour(first.checked_sub(1)),
            after_size: neighbour(Some(first + count + 1)),
        });
    }
}

/// Judges the whole sequence of one-digit runs that begins at `first`.
fn spelled(lane: &mut Lane<'_>, cluster: &[Run], first: usize) {
    let sequence = cluster[first..].iter().take_while(|run| run.len() == 1 && run.shape == Shape::Digits).count();
    lane.work(sequence);
    if sequence > WINDOW_BYTES_MAX {
        return;
    }
    let mut chars = [0u8; WINDOW_BYTES_MAX];
    for (at, run) in cluster[first..first + sequence].iter().enumerate() {
        chars[at] = lane.text[run.start as usize];
    }
    let last = cluster[first + sequence - 1];
    judge(lane, &Window {
        chars: &chars[..sequence],
        letters: 0,
        sizes: &[1; WINDOW_BYTES_MAX][..sequence],
        seps: SPACE,
        start: cluster[first].start as usize,
        end: last.end as usize,
        before_size: 0,
        after_size: 0,
    });
}

/// How much a window must have going for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// The shape is proof.
    Shape,
    /// A context word is needed.
    Word,
}

fn take(lane: &mut Lane<'_>, window: &Window<'_>, kind: Kind, proof: Proof) {
    match proof {
        Proof::Shape => lane.take(kind, window.start, window.end),
        Proof::Word => lane.take_if_supported(kind, window.start, window.end),
    }
}

fn shape_if(proven: bool) -> Proof {
    if proven { Proof::Shape } else { Proof::Word }
}

fn judge(lane: &mut Lane<'_>, window: &Window<'_>) {
    if window.letters == 0 {
        digits(lane, window, Glue::Apart);
        phone::judge(lane, window);
    } else {
        mixed(lane, window);
    }
}

/// Whether digits stand alone or end a word (`ssn078051120`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Glue {
    Apart,
    Word,
}

/// Whether the window is a piece of a decimal fraction: `3.14159`, `0.411111`.
fn fraction(lane: &Lane<'_>, window: &Window<'_>) -> bool {
    let dot_in_front = lane.before(window.start) == b'.' && window.start > 1 && lane.before(window.start - 1).is_ascii_digit();
    let dot_behind = lane.byte(window.end) == b'.' && lane.byte(window.end + 1).is_ascii_digit();
    window.is_single() && (dot_in_front || dot_behind)
}

fn digits(lane: &mut Lane<'_>, window: &Window<'_>, glue: Glue) {
    use Kind::{
        AuTfn, BeNn, BrCpf, CaSin, ChAhv, CnRic, DeSteuerId, FiHetu, FrNir, InAadhaar, KrRrn, NlBsn, Passport, PlPesel, SePersonnummer,
        UkNhs, UsDriverLicense, UsItin, UsRouting, UsSsn, ZaId,
    };
    let chars = window.chars;
    if fraction(lane, window) {
        return;
    }
    let apart = glue == Glue::Apart;
    if (12..=19).contains(&chars.len()) {
        card(lane, window);
    }
    let word_kinds: &[(Kind, fn(&[u8]) -> bool)] = match chars.len() {
        9 => &[(CaSin, checksum::ca_sin), (AuTfn, checksum::au_tfn), (NlBsn, checksum::nl_bsn), (UsRouting, checksum::us_routing)],
        10 => &[(UkNhs, checksum::uk_nhs), (SePersonnummer, checksum::se_personnummer)],
        11 => &[(DeSteuerId, checksum::de_steuer_id), (PlPesel, checksum::pl_pesel)],
        12 => &[(InAadhaar, checksum::aadhaar), (SePersonnummer, checksum::se_personnummer)],
        13 => &[(ZaId, checksum::za_id)],
        _ => &[],
    };
    for (kind, check) in word_kinds {
        if lane.kinds.contains(*kind) && check(chars) {
            take(lane, window, *kind, Proof::Word);
        }
    }
    match chars.len() {
        7 | 8 if window.is_single() => take(lane, window, UsDriverLicense, Proof::Word),
        9 => {
            let classic = window.layout(&[3, 2, 4]) && window.dashed();
            if checksum::us_ssn(chars) {
                take(lane, window, UsSsn, shape_if(classic));
            } else if checksum::us_itin(chars) {
                take(lane, window, UsItin, shape_if(classic));
            }
            if window.is_single() {
                take(lane, window, Passport, Proof::Word);
                take(lane, window, UsDriverLicense, Proof::Word);
            }
        }
        10 if window.layout(&[6, 4]) && window.dashed() && checksum::fi_hetu(chars) => take(lane, window, FiHetu, Proof::Shape),
        11 => {
            if checksum::br_cpf(chars) {
                take(lane, window, BrCpf, shape_if(window.layout(&[3, 3, 3, 2]) && window.plainly_separated()));
            }
            if checksum::be_nn(chars) {
                take(lane, window, BeNn, shape_if(window.layout(&[2, 2, 2, 3, 2]) && window.plainly_separated()));
            }
        }
        13 => {
            let (dashed, checked) = (window.layout(&[6, 7]) && window.dashed(), checksum::kr_rrn(chars));
            if checksum::kr_rrn_shape(chars) && (dashed || checked) {
                take(lane, window, KrRrn, shape_if(dashed && checked));
            }
            if checksum::ch_ahv(chars) {
                take(lane, window, ChAhv, shape_if(window.layout(&[3, 4, 4, 2])));
            }
        }
        15 if checksum::fr_nir(chars) => take(lane, window, FrNir, shape_if(apart)),
        18 if checksum::cn_ric(chars) => take(lane, window, CnRic, Proof::Shape),
        _ => {}
    }
}

/// A payment card: issuer range, length and Luhn; groups as printed on cards, or a word.
fn card(lane: &mut Lane<'_>, window: &Window<'_>) {
    if !lane.kinds.contains(Kind::CreditCard) || !checksum::card_range(window.chars) || !checksum::luhn(window.chars) {
        return;
    }
    let printed = window.is_single()
        || window.spelled()
        || matches!(
            window.sizes,
            [4, 4, 4] | [4, 4, 4, 4] | [4, 4, 4, 4, 3] | [4, 4, 4, 1] | [4, 4, 4, 2] | [4, 4, 4, 3] | [4, 6, 5] | [4, 6, 4] | [6, 13] | [8, 8] | [4, 12] | [6, 10] | [6, 4, 4, 2]
        );
    let pairs = window.layout(&[2; 8]) && window.before_size != 2 && window.after_size != 2;
    // 13 digits were Visa's old length and are also every EAN that begins with 4.
    take(lane, window, Kind::CreditCard, shape_if((printed || pairs) && window.chars.len() != 13));
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
    const NINO: u64 = mask(&[0, 1, 8]);
    const FIRST_AND_LAST: u64 = mask(&[0, 8]);
    const PAN: u64 = mask(&[0, 1, 2, 3, 4, 9]);
    let (chars, letters) = (window.chars, window.letters);
    if !matches!(chars.len(), 8 | 9 | 10 | 11 | 15 | 16 | 18) || !one_case(lane, window) {
        return;
    }
    let single = window.is_single();
    match chars.len() {
        9 if letters == NINO && checksum::uk_nino(chars) => {
            take(lane, window, UkNino, shape_if(single || matches!(window.sizes, [2, 2, 2, 2, 1] | [2, 6, 1] | [8, 1] | [2, 7])));
        }
        9 if letters == mask(&[8]) && checksum::es_dni(chars) => {
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
        10 if letters == mask(&[9]) && window.layout(&[6, 4]) && checksum::fi_hetu(chars) => take(lane, window, FiHetu, Proof::Shape),
        11 if single && matches!(chars[6], b'A'..=b'F' | b'U'..=b'Y') && letters & !mask(&[6, 10]) == 0 => {
            let mut without_century = [0u8; 10];
            without_century[..6].copy_from_slice(&chars[..6]);
            without_century[6..].copy_from_slice(&chars[7..]);
            if checksum::fi_hetu(&without_century) {
                take(lane, window, FiHetu, Proof::Shape);
            }
        }
        11 if checksum::us_mbi(chars) => take(lane, window, UsMbi, shape_if(window.layout(&[4, 3, 4]) && window.dashed())),
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

/// Looks at one run on its own: what has a prefix, weak shapes beside a word, and digits glued to a word.
fn lone(lane: &mut Lane<'_>, run: &Run) {
    let (start, end) = (run.start as usize, run.end as usize);
    let text = &lane.text[start..end];
    if text.len() <= 34 && lane.kinds.contains(Kind::Iban) {
        iban(lane, start);
    }
    if run.shape != Shape::Mixed {
        return;
    }
    if (26..=74).contains(&text.len()) {
        wallet(lane, start, end);
    }
    if (7..=16).contains(&text.len()) && lane.wants(KindSet(Kind::Passport.bit() | Kind::UsDriverLicense.bit())) {
        licence(lane, start, end);
    }
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
        };
        digits(lane, &window, Glue::Word);
        phone::judge_supported(lane, &window);
    }
}

/// Passport and licence numbers have no checksum: a capital or two and digits, beside the word.
fn licence(lane: &mut Lane<'_>, start: usize, end: usize) {
    let text = &lane.text[start..end];
    let digits = text.iter().filter(|byte| byte.is_ascii_digit()).count();
    if text.iter().any(u8::is_ascii_lowercase) || (digits < 2 && text.len() != 9) {
        return;
    }
    let leading = text.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    let serial = digits + leading == text.len();
    // German and some other passports mix letters and digits in nine places.
    if matches!(text.len(), 7..=9) && ((serial && leading <= 3) || text.len() == 9) {
        lane.take_if_supported(Kind::Passport, start, end);
    }
    let british = text.len() == 16 && leading == 5 && text[5..11].iter().all(u8::is_ascii_digit);
    if (serial && leading <= 3) || british {
        lane.take_if_supported(Kind::UsDriverLicense, start, end);
    }
}

/// An IBAN that begins at `start`, in one piece or in groups with single separators.
fn iban(lane: &mut Lane<'_>, start: usize) {
    let text = lane.text;
    let start = if text.get(start..start + 4).is_some_and(|word| word.eq_ignore_ascii_case(b"IBAN")) { start + 4 } else { start };
    let mut chars = [0u8; 34];
    let (mut len, mut wanted, mut at, mut gap_len) = (0, chars.len(), start, 0);
    while len < wanted && at < text.len() {
        let byte = text[at];
        if byte.is_ascii_alphanumeric() {
            chars[len] = byte.to_ascii_uppercase();
            len += 1;
            gap_len = 0;
            if len == 2 {
                let Some(country_len) = checksum::iban_len([chars[0], chars[1]]) else { return };
                wanted = country_len;
            }
            if (len <= 2) != byte.is_ascii_alphabetic() && len <= 4 {
                return;
            }
        } else {
            gap_len += 1;
            if gap_len > 1 || joins(byte) == 0 {
                return;
            }
        }
        at += 1;
    }
    lane.work(at - start);
    if len == wanted && !lane.byte(at).is_ascii_alphanumeric() && checksum::iban(&chars[..len]) {
        lane.take(Kind::Iban, start, at);
    }
}

/// Bitcoin (base58 by its alphabet and mix, bech32 by checksum) and Ethereum (40 hexadecimal digits) addresses.
fn wallet(lane: &mut Lane<'_>, start: usize, end: usize) {
    let text = &lane.text[start..end];
    let inside_base64 = |byte: u8| matches!(byte, b'+' | b'/' | b'=' | b'_');
    if inside_base64(lane.before(start)) || inside_base64(lane.byte(end)) {
        return;
    }
    let ethereum = text.len() == 42 && text.starts_with(b"0x") && text[2..].iter().all(u8::is_ascii_hexdigit);
    let mixed_case = text.iter().any(u8::is_ascii_uppercase) && text.iter().any(u8::is_ascii_lowercase);
    let base58 = text.len() <= 35
        && matches!(text[0], b'1' | b'3')
        && mixed_case
        && !text.iter().any(|byte| matches!(byte, b'0' | b'O' | b'I' | b'l'));
    if ethereum || base58 || checksum::bech32(text) {
        lane.take(Kind::CryptoWallet, start, end);
    }
}
