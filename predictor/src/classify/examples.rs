//! Examples of the operator: sentences that should have a tag, and sentences that should not.
//!
//! A text is a bag of hashed words, pairs of words and three-letter pieces of words. Each side is the mean direction of its sentences;
//! a text gets the tag when it lies nearer to the positive side by more than the half-way mark between the two, as measured with every
//! sentence left out of its own side once. Reads the head and tail of the last turn in scope. No model, no language, some microseconds.

use super::Scope;
use super::spec::{EXAMPLE_BYTES_MAX, EXAMPLES_MAX, ExamplesSpec, Scopes, SpecError};
use super::tag::Tag;

/// Hash buckets. A power of two.
const BUCKETS: usize = 1 << 13;
/// Letters of the shortest word that is also read in pieces.
const PIECES_WORD_MIN: usize = 4;
const PIECE_CHARS: usize = 3;
/// Most letters of a word that are read.
const WORD_CHARS_MAX: usize = 32;

/// Compiled examples.
#[derive(Debug)]
pub(super) struct Examples {
    /// For each bucket, how much it speaks for the tag.
    weights: Box<[f32]>,
    /// Scores above it have the tag.
    mark: f32,
    pub(super) tag: Tag,
    pub(super) scopes: Scopes,
}

/// How many sentences would be judged rightly by the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accuracy {
    /// Judged rightly.
    pub right: usize,
    /// All of them.
    pub all: usize,
}

impl Accuracy {
    /// 0 to 1.
    #[must_use]
    pub fn ratio(self) -> f64 {
        f64::from(self.right as u32) / f64::from(self.all.max(1) as u32)
    }
}

/// The buckets of a text while it is read. Reused.
#[derive(Debug, Default)]
pub(super) struct Bag {
    counts: Vec<u16>,
    touched: Vec<u16>,
}

impl Bag {
    fn add(&mut self, hash: u64) {
        let bucket = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BUCKETS.trailing_zeros())) as usize;
        if self.counts[bucket] == 0 {
            self.touched.push(bucket as u16);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
    }

    /// The text as a direction: buckets, and weights whose squares add up to 1.
    fn read(&mut self, text: &str) -> Vec<(u16, f32)> {
        self.fill(text);
        let weight = |count: u16| 1.0 + f32::from(count).ln();
        let length = self.touched.iter().map(|at| weight(self.counts[*at as usize]).powi(2)).sum::<f32>().sqrt();
        let vector =
            self.touched.iter().map(|at| (*at, weight(self.counts[*at as usize]) / length.max(1e-6))).collect();
        self.clear();
        vector
    }

    fn fill(&mut self, text: &str) {
        self.counts.resize(BUCKETS, 0);
        let mut word: Vec<char> = Vec::with_capacity(WORD_CHARS_MAX);
        let mut last = 0;
        for char in text.chars().chain([' ']) {
            // Scripts without spaces: every character is a word, pairs do the rest.
            let alone = ('\u{2e80}'..='\u{9fff}').contains(&char) || ('\u{ac00}'..='\u{d7af}').contains(&char);
            if char.is_alphanumeric() && !alone && word.len() < WORD_CHARS_MAX {
                word.extend(char.to_lowercase());
                continue;
            }
            self.word(&mut word, &mut last);
            if char.is_alphanumeric() {
                word.push(char);
                if alone {
                    self.word(&mut word, &mut last);
                }
            }
        }
    }

    fn word(&mut self, word: &mut Vec<char>, last: &mut u64) {
        if word.is_empty() {
            return;
        }
        let whole = hash(1, word);
        self.add(whole);
        if *last != 0 {
            self.add(last.rotate_left(21) ^ whole);
        }
        *last = whole;
        if word.len() >= PIECES_WORD_MIN {
            for piece in word.windows(PIECE_CHARS) {
                self.add(hash(2, piece));
            }
        }
        word.clear();
    }

    fn clear(&mut self) {
        for at in self.touched.drain(..) {
            self.counts[at as usize] = 0;
        }
    }
}

/// FNV-1a over characters.
fn hash(seed: u64, chars: &[char]) -> u64 {
    chars.iter().fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, char| {
        (hash ^ u64::from(*char as u32)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// One side: the sum of its sentences, and the square of its length.
struct Side {
    sum: Vec<f32>,
    square: f32,
}

impl Side {
    fn new(vectors: &[Vec<(u16, f32)>]) -> Side {
        let mut sum = vec![0.0f32; BUCKETS];
        vectors.iter().flatten().for_each(|(at, weight)| sum[*at as usize] += weight);
        let square = sum.iter().map(|value| value * value).sum();
        Side { sum, square }
    }

    fn dot(&self, vector: &[(u16, f32)]) -> f32 {
        vector.iter().map(|(at, weight)| self.sum[*at as usize] * weight).sum()
    }

    /// How near `vector` is, -1 to 1.
    fn near(&self, vector: &[(u16, f32)]) -> f32 {
        self.dot(vector) / self.square.sqrt().max(1e-6)
    }

    /// The same without `vector`, which is one of its own.
    fn near_without(&self, vector: &[(u16, f32)]) -> f32 {
        let dot = self.dot(vector);
        let square = (self.square - 2.0 * dot + 1.0).max(0.0);
        if square < 1e-6 { 0.0 } else { (dot - 1.0) / square.sqrt() }
    }
}

/// The sides, and the score of each sentence by the others.
struct Trained {
    positive: Side,
    negative: Side,
    positive_scores: Vec<f32>,
    negative_scores: Vec<f32>,
}

impl Trained {
    fn new(spec: &ExamplesSpec) -> Trained {
        let mut bag = Bag::default();
        let mut read = |texts: &[String]| texts.iter().map(|text| bag.read(text)).collect::<Vec<_>>();
        let (positives, negatives) = (read(&spec.positive), read(&spec.negative));
        let (positive, negative) = (Side::new(&positives), Side::new(&negatives));
        let positive_scores = positives.iter().map(|v| positive.near_without(v) - negative.near(v)).collect();
        let negative_scores = negatives.iter().map(|v| positive.near(v) - negative.near_without(v)).collect();
        Trained { positive, negative, positive_scores, negative_scores }
    }

    /// Half-way between the means of both sides.
    fn mark(&self) -> f32 {
        let mean = |scores: &[f32]| scores.iter().sum::<f32>() / scores.len().max(1) as f32;
        (mean(&self.positive_scores) + mean(&self.negative_scores)) / 2.0
    }
}

/// How well the sentences of `spec` tell each other apart: each is judged by all others.
#[must_use]
pub fn leave_one_out(spec: &ExamplesSpec) -> Accuracy {
    let trained = Trained::new(spec);
    let mark = trained.mark();
    let right = trained.positive_scores.iter().filter(|score| **score > mark).count()
        + trained.negative_scores.iter().filter(|score| **score <= mark).count();
    Accuracy { right, all: spec.positive.len() + spec.negative.len() }
}

impl Examples {
    pub(super) fn compile(index: usize, spec: &ExamplesSpec, tag: Tag) -> Result<Examples, SpecError> {
        for (field, texts) in [("positive", &spec.positive), ("negative", &spec.negative)] {
            if texts.is_empty() || texts.len() > EXAMPLES_MAX {
                return Err(SpecError::new(index, field, format!("must be 1 to {EXAMPLES_MAX} sentences")));
            }
            if let Some(at) = texts.iter().position(|text| text.trim().is_empty() || text.len() > EXAMPLE_BYTES_MAX) {
                let reason = format!("must be 1 to {EXAMPLE_BYTES_MAX} bytes");
                return Err(SpecError::new(index, format!("{field}[{at}]"), reason));
            }
        }
        let trained = Trained::new(spec);
        let (positive, negative) = (&trained.positive, &trained.negative);
        let (p, n) = (positive.square.sqrt().max(1e-6), negative.square.sqrt().max(1e-6));
        let weights = positive.sum.iter().zip(&negative.sum).map(|(yes, no)| yes / p - no / n).collect();
        Ok(Examples { weights, mark: trained.mark(), tag, scopes: spec.scopes })
    }

    /// Whether pieces of `scope` are read. Without a scope of its own it reads what the user says.
    pub(super) fn reads(&self, scope: Scope) -> bool {
        if self.scopes == Scopes::ALL { scope == Scope::User } else { self.scopes.contains(scope) }
    }

    /// Whether `text` has the tag.
    pub(super) fn matches(&self, bag: &mut Bag, text: &str) -> bool {
        bag.fill(text);
        let weight = |at: &u16| 1.0 + f32::from(bag.counts[*at as usize]).ln();
        let square: f32 = bag.touched.iter().map(|at| weight(at).powi(2)).sum();
        let dot: f32 = bag.touched.iter().map(|at| weight(at) * self.weights[*at as usize]).sum();
        let score = dot / square.sqrt().max(1e-6);
        let any = !bag.touched.is_empty();
        bag.clear();
        any && score > self.mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(positive: &[&str], negative: &[&str]) -> ExamplesSpec {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        ExamplesSpec {
            tag: "own".to_owned(),
            positive: owned(positive),
            negative: owned(negative),
            scopes: Scopes::ALL,
        }
    }

    const REFUNDS: [&str; 6] = [
        "I want my money back for the broken kettle",
        "please refund my order, it never arrived",
        "how do I return these shoes and get a refund",
        "the jacket is too small, can I get my money back",
        "refund me, the parcel was damaged",
        "I was charged twice, please return the money",
    ];
    const OTHERS: [&str; 6] = [
        "what is the weather in Lisbon tomorrow",
        "write a poem about the harbour at night",
        "translate this sentence into Dutch",
        "which bus goes to the museum",
        "explain how photosynthesis works",
        "summarise the meeting notes below",
    ];

    #[test]
    fn a_text_like_the_positive_sentences_gets_the_tag() {
        let examples = Examples::compile(0, &spec(&REFUNDS, &OTHERS), Tag::PII).expect("compiles");
        let mut bag = Bag::default();
        for text in ["can you refund the broken shoes please", "I'd like my money back"] {
            assert!(examples.matches(&mut bag, text), "{text}");
        }
        for text in ["which weather is it in Dutch towns", "write notes about the museum", "", "..."] {
            assert!(!examples.matches(&mut bag, text), "{text}");
        }
    }

    #[test]
    fn sentences_that_do_not_differ_are_told_by_their_accuracy() {
        let good = leave_one_out(&spec(&REFUNDS, &OTHERS));
        assert_eq!(good.all, 12);
        assert!(good.right >= 10, "{good:?}");
        let mixed =
            spec(&[REFUNDS[0], OTHERS[0], REFUNDS[1], OTHERS[1]], &[REFUNDS[2], OTHERS[2], REFUNDS[3], OTHERS[3]]);
        assert!(leave_one_out(&mixed).ratio() <= 0.7);
    }

    #[test]
    fn scripts_without_spaces_are_read_too() {
        let spec =
            spec(&["我要退款", "请把钱退给我", "怎么申请退款"], &["今天天气怎么样", "写一首诗", "去博物馆坐几路车"]);
        let examples = Examples::compile(0, &spec, Tag::PII).expect("compiles");
        assert!(examples.matches(&mut Bag::default(), "可以退款吗"));
    }
}
