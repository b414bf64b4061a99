//! Cue words: what a request asks for, and the language it is in, from `data/cue-words.txt` and `data/stop-words.txt`.

const CUE_WORDS: &str = include_str!("../../../data/cue-words.txt");
const STOP_WORDS: &str = include_str!("../../../data/stop-words.txt");

/// A group of cue words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cue {
    /// Questions for a fact.
    Wh,
    /// Work with many steps.
    Demand,
    /// Program text.
    Code,
    /// Names of programming languages and tools.
    Tongue,
    /// Mathematics.
    Math,
    /// How many, how much.
    Quantity,
    /// Conditions on the answer.
    Constraint,
    /// Forms of the answer.
    Format,
    /// Long creative work.
    Creative,
    /// One-step work on a given text.
    Rewrite,
    /// A given text.
    Passage,
    /// Greetings and small talk.
    Chat,
    /// Commands to an assistant.
    Command,
    /// Order of steps.
    Sequence,
    /// A part to play.
    Role,
    /// Reasons.
    Reason,
    /// The asker.
    Self_,
}

/// How many groups there are.
pub(crate) const CUES: usize = Cue::Self_ as usize + 1;

impl Cue {
    /// Every group and its name in the file.
    const NAMES: [(Cue, &str); CUES] = [
        (Cue::Wh, "wh"),
        (Cue::Demand, "demand"),
        (Cue::Code, "code"),
        (Cue::Tongue, "tongue"),
        (Cue::Math, "math"),
        (Cue::Quantity, "quantity"),
        (Cue::Constraint, "constraint"),
        (Cue::Format, "format"),
        (Cue::Creative, "creative"),
        (Cue::Rewrite, "rewrite"),
        (Cue::Passage, "passage"),
        (Cue::Chat, "chat"),
        (Cue::Command, "command"),
        (Cue::Sequence, "sequence"),
        (Cue::Role, "role"),
        (Cue::Reason, "reason"),
        (Cue::Self_, "self"),
    ];

    fn from_name(name: &str) -> Option<Cue> {
        Cue::NAMES.iter().find(|(_, known)| *known == name).map(|(cue, _)| *cue)
    }
}

/// Every word and pair of words, with its group. A group that is not known has no words; a test finds it.
pub(crate) fn cue_words() -> impl Iterator<Item = (Cue, &'static str)> {
    rows(CUE_WORDS).filter_map(|(name, word)| Some((Cue::from_name(name)?, word)))
}

/// Every stop word, with the code of its language.
pub(crate) fn stop_words() -> impl Iterator<Item = (&'static str, &'static str)> {
    rows(STOP_WORDS)
}

/// The words of a file, each with the line above its row.
fn rows(file: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = file.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rows = lines.scan("", |name, line| match line.strip_prefix("  ") {
        Some(words) => Some((*name, words)),
        None => {
            *name = line;
            Some((line, ""))
        }
    });
    let split = |words: &'static str| words.split(',').map(str::trim_ascii).filter(|word| !word.is_empty());
    rows.flat_map(move |(name, words)| split(words).map(move |word| (name, word)))
}

#[cfg(test)]
mod tests {
    use super::super::super::tag::LANGUAGES;
    use super::*;

    #[test]
    fn every_group_and_language_has_words_and_no_other_is_named() {
        for (cue, name) in Cue::NAMES {
            assert!(cue_words().any(|(of, _)| of == cue), "{name}");
        }
        assert_eq!(cue_words().count(), rows(CUE_WORDS).count(), "a group that is not known");
        for (language, word) in stop_words() {
            assert!(LANGUAGES.contains(&language) && !word.is_empty(), "{language}");
        }
    }
}
