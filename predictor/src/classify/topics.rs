//! What a request is about, from counts over the last user turn: program text, mathematics, the language, a question for a fact.

use super::complexity::cues::Cue;
use super::complexity::features::Counts;
use super::tag::{LANGUAGES, Tag, TagSet};

/// Letters of a script that decide without stop words.
const SCRIPT_LETTERS_MIN: u32 = 4;
/// Words of a question for a fact.
const QUESTION_WORDS_MAX: u32 = 30;

/// The topics of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Topics {
    pub(super) code: bool,
    pub(super) math: bool,
    pub(super) factual: bool,
    /// Index into [`LANGUAGES`], when it is clear.
    pub(super) language: Option<usize>,
}

impl Topics {
    /// Judges `counts` and the letters of `text`.
    pub(super) fn of(counts: &Counts, text: &str) -> Topics {
        let code = is_code(counts);
        let math = is_math(counts);
        let asks =
            counts.first_cues & (1 << Cue::Wh as u8) != 0 || (counts.question_marks > 0 && counts.cue(Cue::Wh) > 0);
        let plain = counts.cue(Cue::Constraint) <= 2 && counts.cue(Cue::Demand) == 0 && counts.cue(Cue::Creative) == 0;
        let personal = counts.cue(Cue::Self_) > 0;
        let factual = asks && plain && !personal && !code && !math && (3..=QUESTION_WORDS_MAX).contains(&counts.words);
        Topics { code, math, factual, language: language(counts, text) }
    }

    pub(super) fn tag(&self, tags: &mut TagSet) {
        for (_, tag) in [(self.code, Tag::CODE), (self.math, Tag::MATH), (self.factual, Tag::FACTUAL_QUESTION)]
            .into_iter()
            .filter(|(holds, _)| *holds)
        {
            tags.insert(tag);
        }
        if let Some(index) = self.language {
            tags.insert(Tag::of_language(index));
        }
    }

    /// Whether the complexity model knows the language.
    pub(super) fn is_english(&self) -> bool {
        self.language.is_some_and(|index| LANGUAGES[index] == "en")
    }
}

/// Fenced code, several lines that look like code, or a request for a program.
fn is_code(counts: &Counts) -> bool {
    let words = counts.cue(Cue::Code) + 2 * counts.cue(Cue::Tongue);
    let marks = counts.braces.min(6) / 2 + counts.cased_words.min(4) + counts.equals.min(4) / 2;
    let dense = words * 8 >= counts.words;
    counts.fences > 0
        || counts.code_lines >= 2
        || (counts.backticks >= 2 && words + marks >= 2)
        || (counts.code_lines >= 1 && words + marks >= 3)
        || (words >= 4 && dense)
        || (words >= 3 && marks >= 1 && dense)
        || marks >= 7
}

/// Formulas, or a problem in words with numbers in it.
fn is_math(counts: &Counts) -> bool {
    let formula = counts.carets.min(2) + counts.backslashes.min(3) + counts.equals.min(2) + counts.dollars.min(2) / 2;
    let words = counts.cue(Cue::Math);
    let problem = counts.numbers >= 2 && counts.cue(Cue::Quantity) + words >= 2;
    (formula >= 3 && counts.fences == 0 && counts.code_lines == 0)
        || (formula >= 1 && words >= 1)
        || (words >= 3 && words * 12 >= counts.words)
        || problem
        || counts.options >= 3
}

/// The language, by script or by stop words, when nothing else is near.
fn language(counts: &Counts, text: &str) -> Option<usize> {
    if let Some(by_script) = script(text) {
        return Some(by_script);
    }
    let (mut best, mut second, mut which) = (0, 0, None);
    for (index, hits) in counts.stop_words.iter().enumerate() {
        if *hits > best {
            (second, best, which) = (best, *hits, Some(index));
        } else if *hits > second {
            second = *hits;
        }
    }
    let enough = best > counts.words.min(40) / 10;
    (enough && best * 2 >= second * 3 && best > second).then_some(which).flatten()
}

/// The language of a script that has one, or a clear main one.
fn script(text: &str) -> Option<usize> {
    if text.is_ascii() {
        return None;
    }
    let mut counts = [0u32; 14];
    let (mut latin, mut ukrainian) = (0u32, 0u32);
    for char in text.chars() {
        let code = char as u32;
        let script = match code {
            0x41..=0x5a | 0x61..=0x7a | 0xc0..=0x24f | 0x1e00..=0x1eff => {
                latin += 1;
                continue;
            }
            0x370..=0x3ff => 0,
            0x400..=0x4ff => {
                ukrainian += u32::from(matches!(char, 'і' | 'ї' | 'є' | 'ґ' | 'І' | 'Ї' | 'Є'));
                1
            }
            0x590..=0x5ff => 2,
            0x600..=0x6ff => 3,
            0x900..=0x97f => 4,
            0x980..=0x9ff => 5,
            0xe00..=0xe7f => 6,
            0x3040..=0x30ff => 7,
            0xac00..=0xd7af | 0x1100..=0x11ff => 8,
            0x4e00..=0x9fff | 0x3400..=0x4dbf => 9,
            _ => continue,
        };
        counts[script] += 1;
    }
    // A Chinese letter says as much as two or three Latin ones.
    let name = if counts[7] >= 3 && counts[7] + counts[9] >= SCRIPT_LETTERS_MIN && (counts[7] + counts[9]) * 2 > latin {
        "ja"
    } else {
        let (index, most) = counts.iter().enumerate().max_by_key(|(_, count)| **count)?;
        let weight = if index >= 7 { 2 } else { 1 };
        if *most < SCRIPT_LETTERS_MIN / weight || *most * weight <= latin {
            return None;
        }
        match index {
            0 => "el",
            1 if ukrainian * 50 >= *most => "uk",
            1 => "ru",
            2 => "he",
            3 => "ar",
            4 => "hi",
            5 => "bn",
            6 => "th",
            8 => "ko",
            9 => "zh",
            _ => return None,
        }
    };
    LANGUAGES.iter().position(|known| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::complexity::features::{Features, Lexicon};

    fn topics(text: &str) -> Topics {
        let mut features = Features::default();
        features.read(&Lexicon::compile(), text);
        Topics::of(&features.counts, text)
    }

    #[test]
    fn languages_are_named_only_when_they_are_clear() {
        for (text, wanted) in [
            ("Can you tell me where the nearest station is?", Some("en")),
            ("Kannst du mir bitte einen Brief an die Bank schreiben?", Some("de")),
            ("Pouvez-vous écrire une lettre pour la banque avec ce montant ?", Some("fr")),
            ("¿Puedes escribir una carta para el banco con los datos?", Some("es")),
            ("Напиши письмо в банк, пожалуйста", Some("ru")),
            ("Напишіть, будь ласка, листа до банку і поясніть", Some("uk")),
            ("请给银行写一封信", Some("zh")),
            ("銀行に手紙を書いてください", Some("ja")),
            ("은행에 편지를 써 주세요", Some("ko")),
            ("12 34 56", None),
            ("Kubernetes OOMKilled", None),
        ] {
            assert_eq!(topics(text).language.map(|index| LANGUAGES[index]), wanted, "{text}");
        }
    }

    #[test]
    fn code_and_mathematics_are_told_from_prose() {
        for text in [
            "```\nlet x = 1;\n```",
            "Write a Python function that sorts an array",
            "def f(x):\n    return x + 1\nprint(f(2))",
            "SELECT name FROM users WHERE id = 3;\nINSERT INTO t VALUES (1);\nUPDATE t SET a = 1;",
        ] {
            assert!(topics(text).code, "{text}");
        }
        for text in [
            "Solve x^2 - 4 = 0",
            "Tom has 12 apples and buys 30 more, how many apples does he have in total?",
            "Evaluate \\int_0^1 x^2 dx",
        ] {
            assert!(topics(text).math, "{text}");
        }
        for text in [
            "Tell me a joke about parrots.",
            "What is the capital of France?",
            "Please book a table for two at the blue olive",
            "Translate 'good morning' into Dutch",
        ] {
            assert!(!topics(text).code && !topics(text).math, "{text}");
        }
    }

    #[test]
    fn a_short_impersonal_question_asks_for_a_fact() {
        assert!(topics("who discovered that plants were made of cells").factual);
        assert!(topics("What is the capital of France?").factual);
        assert!(!topics("where is my order").factual);
        assert!(!topics("Write a story about a dragon").factual);
    }
}
