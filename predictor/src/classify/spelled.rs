//! Digits written as English words: "four one one one". Seven or more in a row are read as the number they spell.

use aho_corasick::{AhoCorasick, MatchKind};

/// Fewest words in a row that are read.
const DIGITS_MIN: usize = 7;
/// Most words in a row that are read; an IBAN has 34 characters.
const DIGITS_MAX: usize = 40;
/// Longest gap between two words: ", " or " - ".
const GAP_BYTES_MAX: usize = 3;

/// The words for the ten digits; the last stands for 0 as well.
const WORDS: [&str; 11] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "oh"];

/// The compiled words.
#[derive(Debug)]
pub(super) struct DigitWords(AhoCorasick);

impl DigitWords {
    pub(super) fn compile() -> Result<DigitWords, aho_corasick::BuildError> {
        let title = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
        let forms = WORDS.iter().map(|word| (*word).to_owned());
        let forms =
            forms.chain(WORDS.iter().map(|word| title(word))).chain(WORDS.iter().map(|word| word.to_ascii_uppercase()));
        AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(forms).map(DigitWords)
    }

    /// Calls `each` with every number spelled in `text` and where its words begin and end.
    pub(super) fn each(&self, text: &[u8], mut each: impl FnMut(&[u8], usize, usize)) {
        let mut digits = [0u8; DIGITS_MAX];
        let (mut len, mut start, mut end) = (0usize, 0usize, 0usize);
        for found in self.0.find_iter(text) {
            let letter = |at: Option<&u8>| at.is_some_and(u8::is_ascii_alphabetic);
            if letter(found.start().checked_sub(1).and_then(|at| text.get(at))) || letter(text.get(found.end())) {
                continue;
            }
            let gap = &text[end..found.start()];
            let joined = len > 0
                && len < DIGITS_MAX
                && gap.len() <= GAP_BYTES_MAX
                && gap.iter().all(|byte| matches!(byte, b' ' | b'-' | b',' | b'.'));
            if !joined {
                if len >= DIGITS_MIN {
                    each(&digits[..len], start, end);
                }
                (len, start) = (0, found.start());
            }
            digits[len] = b'0' + (found.pattern().as_usize() % WORDS.len() % 10) as u8;
            len += 1;
            end = found.end();
        }
        if len >= DIGITS_MIN {
            each(&digits[..len], start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_rows_of_digit_words_are_numbers() {
        let words = DigitWords::compile().expect("the words compile");
        let read = |text: &str| {
            let mut all = Vec::new();
            words.each(text.as_bytes(), |digits, start, end| {
                all.push((String::from_utf8_lossy(digits).into_owned(), text[start..end].to_owned()));
            });
            all
        };
        let text = "ring Two one two, six oh six - four seven on Monday";
        assert_eq!(read(text), [("21260647".to_owned(), "Two one two, six oh six - four seven".to_owned())]);
        assert!(read("one two three four five six").is_empty());
        assert!(read("phone two stone one bone").is_empty());
    }
}
