//! What the model sees of a text: plain features from one pass over the bytes, and hashed words and pairs of words from one over the words.

use super::super::tag::LANGUAGES;
use super::cues::{CUES, Cue, cue_words, stop_words};

/// Buckets of hashed words, as a power of two.
pub(crate) const GRAM_BITS: u32 = 16;
/// Most words that are hashed. 3 KB hold at most half as many words as bytes.
const WORDS_MAX: usize = 1536;
/// Slots of the table of cue and stop words, a power of two, more than twice the words.
const SLOTS: usize = 4096;

macro_rules! plain {
    ($($name:ident $text:literal;)*) => {
        /// The plain features, in the order of the model's weights.
        #[derive(Debug, Clone, Copy)]
        #[repr(u8)]
        #[allow(dead_code, reason = "the features of the cue groups are reached by their order")]
        pub(crate) enum Plain { $($name,)* Count }
        /// Their names in reports.
        pub(crate) const PLAIN_NAMES: &[&str] = &[$($text,)*];
    };
}

plain! {
    Bytes "length"; Words "words"; Sentences "sentences"; Lines "lines"; Numbers "numbers"; Questions "question marks"; EndsInQuestion "ends in a question mark";
    WordLength "mean word length"; LongWords "long words"; CapitalWords "capitalised words"; AllCapitals "words in capitals"; StartsSmall "starts in lower case";
    Commas "commas"; Semicolons "semicolons"; Colons "colons"; Quotes "quotation marks"; Brackets "round brackets"; Braces "braces and square brackets";
    Operators "operators"; Equals "equals signs"; Backslashes "backslashes"; Dollars "dollar signs"; Percent "percent signs"; Fences "code fences";
    ListItems "list items"; Options "lettered options"; CodeLines "lines of code"; Indented "indented lines"; Snake "snake or camel case words";
    Caret "carets"; NonAscii "letters beyond ASCII"; Exclamations "exclamation marks"; FirstWh "first word is a question word"; FirstCommand "first word is a command";
    FirstDemand "first word is a demand"; FirstRewrite "first word is a rewriting task"; Short "under ten words"; Medium "ten to thirty words"; Repeats "share of repeated words";
    CueWh "question words"; CueDemand "demanding words"; CueCode "programming words"; CueTongue "programming languages"; CueMath "mathematical words"; CueQuantity "quantity words";
    CueConstraint "constraint words"; CueFormat "format words"; CueCreative "creative words"; CueRewrite "rewriting words"; CuePassage "passage words"; CueChat "small talk";
    CueCommand "command words"; CueSequence "sequence words"; CueRole "role words"; CueReason "reasoning words"; CueSelf "the asker";
}

/// How many plain features there are.
pub(crate) const PLAIN: usize = Plain::Count as usize;

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    hash: u32,
    cues: u32,
    languages: u32,
}

/// Cue and stop words, by hash.
#[derive(Debug)]
pub(crate) struct Lexicon {
    slots: Vec<Slot>,
    /// One bit per hash value modulo their number: most words are known not to be here without a look at the slots.
    present: Vec<u64>,
}

/// Bits of [`Lexicon::present`]: 4 KB, sixteen times the words.
const PRESENT_BITS: u32 = 1 << 15;

/// FNV-1a, 32 bits, over lower-cased bytes.
const fn mix(hash: u32, byte: u8) -> u32 {
    (hash ^ byte as u32).wrapping_mul(0x0100_0193)
}

const EMPTY_HASH: u32 = 0x811c_9dc5;

/// The hash of a pair of words.
const fn pair(first: u32, second: u32) -> u32 {
    (first.rotate_left(15) ^ second).wrapping_mul(0x9e37_79b1)
}

/// The bucket of a hash: the high bits are the mixed ones.
const fn bucket(hash: u32) -> u32 {
    hash.wrapping_mul(0x85eb_ca6b) >> (32 - GRAM_BITS)
}

fn hash_phrase(phrase: &str) -> u32 {
    let word = |text: &str| text.bytes().fold(EMPTY_HASH, |hash, byte| mix(hash, byte.to_ascii_lowercase()));
    match phrase.split_once(' ') {
        Some((first, second)) => pair(word(first), word(second)),
        None => word(phrase),
    }
}

impl Lexicon {
    /// The table of all cue and stop words.
    pub(crate) fn compile() -> Lexicon {
        let mut lexicon = Lexicon { slots: vec![Slot::default(); SLOTS], present: vec![0; PRESENT_BITS as usize / 64] };
        for (cue, word) in cue_words() {
            lexicon.slot_for(word).cues |= 1 << cue as u8;
        }
        for (language, word) in stop_words() {
            let Some(index) = LANGUAGES.iter().position(|known| *known == language) else { continue };
            lexicon.slot_for(word).languages |= 1 << index;
        }
        lexicon
    }

    fn slot_for(&mut self, phrase: &str) -> &mut Slot {
        let hash = hash_phrase(phrase);
        let index = self.probe(hash);
        self.present[(hash % PRESENT_BITS / 64) as usize] |= 1 << (hash % 64);
        let slot = &mut self.slots[index];
        slot.hash = hash;
        slot
    }

    /// The slot of `hash`, or the free one where it would go. The table is never more than half full, so the search ends.
    fn probe(&self, hash: u32) -> usize {
        let mut index = bucket(hash) as usize % SLOTS;
        while self.slots[index].hash != hash && self.slots[index].hash != 0 {
            index = (index + 1) % SLOTS;
        }
        index
    }

    fn look_up(&self, hash: u32) -> Slot {
        if self.present[(hash % PRESENT_BITS / 64) as usize] >> (hash % 64) & 1 == 0 {
            return Slot::default();
        }
        self.slots[self.probe(hash)]
    }
}

/// What was seen of a text. Buffers are reused.
#[derive(Debug)]
pub(crate) struct Features {
    /// Plain features.
    pub(crate) plain: [f32; PLAIN],
    /// Buckets of words and pairs, with repetition.
    pub(crate) grams: Vec<u32>,
    /// Counts behind the features, for the topics.
    pub(crate) counts: Counts,
}

impl Default for Features {
    fn default() -> Features {
        Features { plain: [0.0; PLAIN], grams: Vec::new(), counts: Counts::default() }
    }
}

/// Counts over a text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// By [`Cue`].
    pub(crate) cues: [u32; CUES],
    /// Stop words, by the order of [`LANGUAGES`].
    pub(crate) stop_words: [u32; LANGUAGES.len()],
    pub(crate) words: u32,
    pub(crate) bytes: u32,
    pub(crate) numbers: u32,
    pub(crate) fences: u32,
    pub(crate) code_lines: u32,
    pub(crate) cased_words: u32,
    pub(crate) braces: u32,
    pub(crate) operators: u32,
    pub(crate) equals: u32,
    pub(crate) carets: u32,
    pub(crate) backslashes: u32,
    pub(crate) dollars: u32,
    pub(crate) question_marks: u32,
    pub(crate) backticks: u32,
    pub(crate) options: u32,
    pub(crate) list_items: u32,
    pub(crate) first_cues: u32,
}

impl Counts {
    pub(crate) fn cue(&self, cue: Cue) -> u32 {
        self.cues[cue as usize]
    }
}

impl Features {
    /// Reads `text`.
    pub(crate) fn read(&mut self, lexicon: &Lexicon, text: &str) {
        self.counts = Counts::default();
        self.plain = [0.0; PLAIN];
        let bytes = Bytes::count(text.as_bytes());
        let words = self.read_words(lexicon, text.as_bytes());
        self.read_lines(text.as_bytes());
        self.settle(text.as_bytes(), &bytes, &words);
    }

    fn read_words(&mut self, lexicon: &Lexicon, text: &[u8]) -> Words {
        self.grams.clear();
        let mut words = Words::default();
        let mut last: Option<u32> = None;
        let mut at = 0;
        while at < text.len() && (words.count as usize) < WORDS_MAX {
            if CLASS[text[at] as usize] == 0 {
                at += 1;
                continue;
            }
            let mut hash = EMPTY_HASH;
            let mut word = Word::default();
            while at < text.len() {
                let byte = text[at];
                let class = CLASS[byte as usize];
                if class == 0 && !(byte == b'\'' && text.get(at + 1).is_some_and(u8::is_ascii_alphabetic)) {
                    break;
                }
                word.add(class);
                hash = mix(hash, byte.to_ascii_lowercase());
                at += 1;
            }
            // All numbers are one word: their values say nothing about the task.
            let hash = if word.classes == DIGIT { 1 } else { hash };
            words.note(&word);
            self.note_hash(lexicon, hash);
            self.grams.push(bucket(hash));
            if let Some(last) = last {
                let both = pair(last, hash);
                self.note_hash(lexicon, both);
                if words.count == 2 {
                    self.counts.first_cues |= lexicon.look_up(both).cues;
                }
                self.grams.push(bucket(both));
            } else {
                self.counts.first_cues |= lexicon.look_up(hash).cues;
            }
            last = Some(hash);
        }
        self.counts.words = words.count;
        self.counts.numbers = words.numbers;
        self.counts.cased_words = words.cased;
        words
    }

    fn note_hash(&mut self, lexicon: &Lexicon, hash: u32) {
        let slot = lexicon.look_up(hash);
        let mut cues = slot.cues;
        while cues != 0 {
            self.counts.cues[cues.trailing_zeros() as usize] += 1;
            cues &= cues - 1;
        }
        let mut languages = slot.languages;
        while languages != 0 {
            self.counts.stop_words[languages.trailing_zeros() as usize] += 1;
            languages &= languages - 1;
        }
    }

    fn read_lines(&mut self, text: &[u8]) {
        for line in text.split(|byte| *byte == b'\n') {
            let trimmed = line.trim_ascii();
            let indent = line.len() - line.trim_ascii_start().len();
            self.plain[Plain::Lines as usize] += 1.0;
            if trimmed.starts_with(b"```") {
                self.counts.fences += 1;
            }
            self.counts.list_items += u32::from(list_item(trimmed));
            self.counts.options += u32::from(option(trimmed));
            if indent >= 2 && !trimmed.is_empty() {
                self.plain[Plain::Indented as usize] += 1.0;
            }
            self.counts.code_lines += u32::from(code_line(trimmed));
        }
    }

    fn settle(&mut self, text: &[u8], bytes: &Bytes, words: &Words) {
        use Plain as P;
        let counts = &mut self.counts;
        counts.bytes = text.len() as u32;
        counts.braces = bytes.of(b"{}[]");
        counts.operators = bytes.of(b"+*/<>|&~");
        counts.equals = bytes.of(b"=");
        counts.carets = bytes.of(b"^");
        counts.backslashes = bytes.of(b"\\");
        counts.dollars = bytes.of(b"$");
        counts.question_marks = bytes.of(b"?");
        counts.backticks = bytes.of(b"`");
        let log = |count: u32| (count as f32).ln_1p();
        let per_word = |count: u32| count as f32 / words.count.max(1) as f32;
        let yes = |holds: bool| f32::from(u8::from(holds));
        let first = |cue: Cue| yes(counts.first_cues & 1 << cue as u8 != 0);
        let lines = self.plain[P::Lines as usize];
        let values = [
            (P::Bytes, log(counts.bytes)),
            (P::Words, log(words.count)),
            (P::Sentences, log(bytes.of(b".!?"))),
            (P::Lines, lines.ln()),
            (P::Numbers, log(words.numbers)),
            (P::Questions, log(counts.question_marks)),
            (P::EndsInQuestion, yes(text.trim_ascii_end().ends_with(b"?"))),
            (P::WordLength, per_word(words.bytes)),
            (P::LongWords, per_word(words.long)),
            (P::CapitalWords, per_word(words.capitals)),
            (P::AllCapitals, log(words.shouted)),
            (P::StartsSmall, yes(text.first().is_some_and(u8::is_ascii_lowercase))),
            (P::Commas, log(bytes.of(b","))),
            (P::Semicolons, log(bytes.of(b";"))),
            (P::Colons, log(bytes.of(b":"))),
            (P::Quotes, log(bytes.of(b"\"'"))),
            (P::Brackets, log(bytes.of(b"()"))),
            (P::Braces, log(counts.braces)),
            (P::Operators, log(counts.operators)),
            (P::Equals, log(counts.equals)),
            (P::Backslashes, log(counts.backslashes)),
            (P::Dollars, log(counts.dollars)),
            (P::Percent, log(bytes.of(b"%"))),
            (P::Fences, log(counts.fences)),
            (P::ListItems, log(counts.list_items)),
            (P::Options, log(counts.options)),
            (P::CodeLines, log(counts.code_lines)),
            (P::Indented, self.plain[P::Indented as usize].ln_1p()),
            (P::Snake, log(words.cased)),
            (P::Caret, log(counts.carets)),
            (P::NonAscii, bytes.beyond as f32 / text.len().max(1) as f32),
            (P::Exclamations, log(bytes.of(b"!"))),
            (P::FirstWh, first(Cue::Wh)),
            (P::FirstCommand, first(Cue::Command)),
            (P::FirstDemand, first(Cue::Demand)),
            (P::FirstRewrite, first(Cue::Rewrite)),
            (P::Short, yes(words.count < 10)),
            (P::Medium, yes((10..30).contains(&words.count))),
            (P::Repeats, repeats(&self.grams)),
        ];
        for (which, value) in values {
            self.plain[which as usize] = value;
        }
        for (index, count) in counts.cues.iter().enumerate() {
            self.plain[P::CueWh as usize + index] = log(*count);
        }
    }
}

/// Share of the first 128 grams that were there before.
fn repeats(grams: &[u32]) -> f32 {
    let mut seen = [0u64; 16];
    let grams = &grams[..grams.len().min(128)];
    let mut repeated = 0;
    for gram in grams {
        let (word, bit) = ((gram >> 6) as usize % 16, gram & 63);
        repeated += u32::from(seen[word] >> bit & 1 == 1);
        seen[word] |= 1 << bit;
    }
    repeated as f32 / grams.len().max(1) as f32
}

const DIGIT: u8 = 1;
const CAPITAL: u8 = 2;
const SMALL: u8 = 4;
const UNDERSCORE: u8 = 8;
const OTHER: u8 = 16;
/// What kind of word character each byte is; 0 for all others.
const CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'0'..=b'9' => DIGIT,
            b'A'..=b'Z' => CAPITAL,
            b'a'..=b'z' => SMALL,
            b'_' => UNDERSCORE,
            b'+' | 0x80.. => OTHER,
            _ => 0,
        };
        byte += 1;
    }
    table
};

/// What is noted of a word while its bytes go by.
#[derive(Debug, Default)]
struct Word {
    len: u32,
    capitals: u32,
    classes: u8,
    first: u8,
    last: u8,
    /// A capital behind a small letter, or an underscore between two characters.
    joined: bool,
}

impl Word {
    fn add(&mut self, class: u8) {
        self.joined |= class == CAPITAL && self.last == SMALL || self.last == UNDERSCORE && self.len > 1;
        self.capitals += u32::from(class == CAPITAL);
        self.classes |= class;
        self.first = if self.len == 0 { class } else { self.first };
        self.last = class;
        self.len += 1;
    }
}

/// How often each byte value occurs.
struct Bytes {
    counts: [u32; 256],
    beyond: u32,
}

impl Bytes {
    fn count(text: &[u8]) -> Bytes {
        let mut counts = [0; 256];
        text.iter().for_each(|byte| counts[*byte as usize] += 1);
        let beyond = counts[0x80..].iter().sum();
        Bytes { counts, beyond }
    }

    fn of(&self, set: &[u8]) -> u32 {
        set.iter().map(|byte| self.counts[*byte as usize]).sum()
    }
}

#[derive(Debug, Default)]
struct Words {
    count: u32,
    bytes: u32,
    long: u32,
    numbers: u32,
    capitals: u32,
    shouted: u32,
    cased: u32,
}

impl Words {
    fn note(&mut self, word: &Word) {
        self.count += 1;
        self.bytes += word.len;
        self.long += u32::from(word.len >= 9);
        self.numbers += u32::from(word.classes == DIGIT);
        self.capitals += u32::from(word.first == CAPITAL && word.classes & SMALL != 0);
        self.shouted += u32::from(word.capitals >= 2 && word.classes & SMALL == 0);
        self.cased += u32::from(word.joined);
    }
}

/// `- item`, `* item`, `1. item`, `2) item`.
fn list_item(line: &[u8]) -> bool {
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    line.starts_with(b"- ")
        || line.starts_with(b"* ")
        || line.starts_with("•".as_bytes())
        || ((1..=2).contains(&digits) && matches!(line.get(digits), Some(b'.' | b')')))
}

/// `A) 12`, `(b) 12`.
fn option(line: &[u8]) -> bool {
    let line = line.strip_prefix(b"(").unwrap_or(line);
    matches!(line, [b'A'..=b'E' | b'a'..=b'e', b')' | b'.', ..])
}

/// Whether a line looks like program text by its first word or its end.
fn code_line(line: &[u8]) -> bool {
    const STARTS: [&[u8]; 30] = [
        b"def ",
        b"class ",
        b"import ",
        b"from ",
        b"#include",
        b"return ",
        b"if (",
        b"for (",
        b"while (",
        b"else",
        b"public ",
        b"private ",
        b"const ",
        b"let ",
        b"var ",
        b"fn ",
        b"func ",
        b"function ",
        b"function(",
        b"SELECT ",
        b"INSERT ",
        b"UPDATE ",
        b"CREATE TABLE",
        b"</",
        b"<div",
        b"print(",
        b"assert ",
        b"using ",
        b"@",
        b"//",
    ];
    let ends = matches!(line.last(), Some(b';' | b'{' | b'}'))
        || line.ends_with(b"):")
        || line.ends_with(b");")
        || line.ends_with(b"/>");
    let calls = memchr::memmem::find(line, b"(").is_some()
        && (memchr::memmem::find(line, b") =").is_some() || memchr::memmem::find(line, b" = ").is_some());
    let starts = STARTS.iter().any(|start| line.starts_with(start))
        && line.iter().any(|byte| matches!(byte, b'(' | b'{' | b'=' | b';' | b'<' | b'*' | b'"'));
    ends || calls || starts
}
