//! What to scan for, as plain data. Documents are lowered to these types; [`Scanner::compile`](super::Scanner::compile) checks them.

use std::fmt;

use super::Scope;
use super::kind::KindSet;

/// Longest word of a keyword list, bytes.
pub const KEYWORD_BYTES_MAX: usize = 256;
/// Most words of one keyword list.
pub const KEYWORDS_MAX: usize = 4096;
/// Longest pattern, bytes. Longer ones compile slowly and say little.
pub const PATTERN_BYTES_MAX: usize = 2048;
/// Most patterns of one classifier.
pub const PATTERNS_MAX: usize = 64;
/// Most sentences of one side of a classifier by examples.
pub const EXAMPLES_MAX: usize = 1024;
/// Longest of them, bytes.
pub const EXAMPLE_BYTES_MAX: usize = 4096;
/// Most classifiers of one scanner.
pub const BUILTINS_MAX: usize = 64;

/// One classifier.
#[derive(Debug, Clone, PartialEq)]
pub enum Builtin {
    /// Personal data.
    Pii(PiiSpec),
    /// Credentials, in the text of these scopes.
    Secrets(Scopes),
    /// How many steps the request takes, and whether it asks for a fact.
    Complexity(ComplexitySpec),
    /// Program text, mathematics, the language.
    Topics,
    /// Words of the operator.
    Keywords(KeywordsSpec),
    /// Patterns of the operator.
    Regex(RegexSpec),
    /// Sentences of the operator.
    Examples(ExamplesSpec),
    /// Phrases that try to talk a model out of its instructions. A hint for routing, no protection.
    Injection,
}

/// Which personal data counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PiiSpec {
    /// The kinds. [`KindSet::personal`] is the usual choice; network and crypto kinds have tags of their own.
    pub kinds: KindSet,
    /// What an unreadable request counts as. Whose text could not be read is not known, so this holds whatever the scopes are.
    pub on_unknown: OnUnknown,
    /// Whose text is read. [`Scope::Rest`] is, whatever this says: no one can leave it out by its author.
    pub scopes: Scopes,
}

/// What a request counts as that could not be read in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknown {
    /// It gets `pii-unscanned`, which matches wherever `pii` does.
    AddTag,
    /// It gets no tag.
    Ignore,
}

/// Where the complexity score becomes a tag.
#[derive(Debug, Clone, PartialEq)]
pub struct ComplexitySpec {
    /// Scores below get `complexity-low`, 0 to 1.
    pub low: f32,
    /// Scores above get `complexity-high`, 0 to 1, at least `low`.
    pub high: f32,
    /// The bytes of an override model file; none uses the model in the binary.
    pub model: Option<Vec<u8>>,
}

impl Default for ComplexitySpec {
    /// The thresholds of the training report, on sources the model had not seen: 4 % of complex requests score below `low`, and no source
    /// more than 10 %; 5 % of simple ones score above `high`.
    fn default() -> ComplexitySpec {
        ComplexitySpec { low: 0.114, high: 0.69, model: None }
    }
}

/// Words of the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeywordsSpec {
    /// The tag to add.
    pub tag: String,
    /// The words, compared without regard to the case of ASCII letters.
    pub words: Vec<String>,
    /// How many of them must be there.
    pub quorum: Quorum,
    /// Where a word may begin and end.
    pub boundary: Boundary,
    /// Whose text is read.
    pub scopes: Scopes,
}

/// How many words of a list must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quorum {
    /// This many occurrences in all, of any word. At least 1.
    Any(u32),
    /// Every word at least once.
    All,
    /// Each of the first `all` words at least once, and of the others `any` occurrences. Neither may be none.
    AllAndAny {
        /// How many words, from the first on, must each be there.
        all: usize,
        /// Occurrences of any of the other words. At least 1.
        any: u32,
    },
}

/// Where a keyword may begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// Only where a word does: no letter or digit beside it.
    Word,
    /// Anywhere.
    Anywhere,
}

/// Patterns of the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegexSpec {
    /// The tag to add when any pattern matches.
    pub tag: String,
    /// The patterns, in the syntax of Rust's `regex` (no look-around, no back-references: linear time).
    pub patterns: Vec<String>,
    /// Whose text is read.
    pub scopes: Scopes,
}

/// Sentences of the operator that should have a tag, and such that should not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExamplesSpec {
    /// The tag to add.
    pub tag: String,
    /// Sentences like those that should have it.
    pub positive: Vec<String>,
    /// Sentences like those that should not.
    pub negative: Vec<String>,
    /// Whose last turn is read; all: the user's.
    pub scopes: Scopes,
}

/// A set of [`Scope`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Text of every origin.
    pub const ALL: Scopes = Scopes(0b1_1111);

    /// How many scopes there are.
    pub(super) const COUNT: usize = 5;

    /// Whether `scope` is in the set.
    #[must_use]
    pub const fn contains(self, scope: Scope) -> bool {
        self.0 & 1 << scope as u8 != 0
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Scopes {
        Scopes(scopes.into_iter().fold(0, |bits, scope| bits | 1 << scope as u8))
    }
}

/// A specification that does not compile: which classifier, which field of it, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// Index of the classifier in the list given to the compiler.
    pub index: usize,
    /// The field, as in the types of this module: `words`, `patterns[2]`.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

impl SpecError {
    pub(super) fn new(index: usize, field: impl Into<String>, reason: impl Into<String>) -> SpecError {
        SpecError { index, field: field.into(), reason: reason.into() }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "classifier {}: {}: {}", self.index, self.field, self.reason)
    }
}

impl std::error::Error for SpecError {}
