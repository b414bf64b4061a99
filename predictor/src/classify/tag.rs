//! Tags: the words a prompt gets. Built-in ones have fixed numbers, the operator's own follow them.

use super::kind::Kind;

/// Most tags one scanner can know, built-in ones included. One prompt's tags are then four machine words.
pub const TAGS_MAX: usize = 256;

/// A tag, as a number valid for the scanner that gave it (built-in tags have the same number in every scanner).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub(crate) u16);

macro_rules! fixed {
    ($($name:ident $text:literal $doc:literal;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "numbers the constants below")]
        enum Fixed { $($name,)* COUNT }
        const FIXED: &[&str] = &[$($text,)*];
        impl Tag { $(#[doc = $doc] pub const $name: Tag = Tag(Fixed::$name as u16);)* }
    };
}

fixed! {
    PII "pii" "Personal data was found.";
    PII_UNSCANNED "pii-unscanned" "Part of the request could not be read: it must be treated as personal.";
    SECRET "secret" "A credential was found.";
    NETWORK "network" "A public machine address was found.";
    CRYPTO "crypto" "A wallet address was found.";
    PII_NATIONAL_ID "pii-national-id" "Any number a state gives to a person was found.";
    COMPLEXITY_LOW "complexity-low" "A one-step request.";
    COMPLEXITY_HIGH "complexity-high" "A request of many steps.";
    FACTUAL_QUESTION "factual-question" "A short question for a fact.";
    CODE "code" "Program text, or a request for it.";
    MATH "math" "Mathematics.";
    TOOLS "tools" "The request offers tools.";
    IMAGE "image" "The request holds an image.";
    AUDIO "audio" "The request holds audio.";
    JSON_SCHEMA "json-schema" "The answer must follow a JSON schema.";
    MULTI_TURN "multi-turn" "More than one user turn.";
    LONG_CONTEXT "long-context" "A long prompt.";
    INJECTION_SUSPECT "injection-suspect" "A phrase that tries to talk a model out of its instructions.";
}

/// Languages that have a tag, in the order of their numbers.
pub(crate) const LANGUAGES: [&str; 24] = [
    "ar", "bn", "cs", "de", "el", "en", "es", "fr", "he", "hi", "id", "it", "ja", "ko", "nl", "pl", "pt", "ru", "sv",
    "th", "tr", "uk", "vi", "zh",
];
const LANGUAGE_TAGS: [&str; 24] = [
    "language-ar",
    "language-bn",
    "language-cs",
    "language-de",
    "language-el",
    "language-en",
    "language-es",
    "language-fr",
    "language-he",
    "language-hi",
    "language-id",
    "language-it",
    "language-ja",
    "language-ko",
    "language-nl",
    "language-pl",
    "language-pt",
    "language-ru",
    "language-sv",
    "language-th",
    "language-tr",
    "language-uk",
    "language-vi",
    "language-zh",
];

const FIXED_LEN: usize = Fixed::COUNT as usize;
const KINDS_END: usize = FIXED_LEN + Kind::ALL.len();

impl Tag {
    /// How many tags are built in. The operator's own have numbers from here on.
    pub const BUILT_IN: usize = KINDS_END + LANGUAGES.len();

    /// The tag of one kind of identifier.
    #[must_use]
    pub const fn of_kind(kind: Kind) -> Tag {
        Tag((FIXED_LEN + kind as usize) as u16)
    }

    pub(crate) const fn of_language(index: usize) -> Tag {
        Tag((KINDS_END + index) as u16)
    }

    /// The number, below [`TAGS_MAX`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The word of a built-in tag.
    #[must_use]
    pub fn built_in_name(self) -> Option<&'static str> {
        let index = self.index();
        if index < FIXED_LEN {
            Some(FIXED[index])
        } else if index < KINDS_END {
            Some(Kind::ALL[index - FIXED_LEN].tag())
        } else {
            LANGUAGE_TAGS.get(index - KINDS_END).copied()
        }
    }

    /// The built-in tag called `name`.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Tag> {
        (0..Tag::BUILT_IN).map(|index| Tag(index as u16)).find(|tag| tag.built_in_name() == Some(name))
    }
}

/// The tags of one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TagSet([u64; TAGS_MAX / 64]);

impl TagSet {
    /// No tag.
    pub const EMPTY: TagSet = TagSet([0; TAGS_MAX / 64]);

    /// Adds `tag`.
    pub fn insert(&mut self, tag: Tag) {
        self.0[tag.index() / 64] |= 1 << (tag.index() % 64);
    }

    /// Whether `tag` is in the set.
    #[must_use]
    pub fn contains(&self, tag: Tag) -> bool {
        self.0[tag.index() / 64] & (1 << (tag.index() % 64)) != 0
    }

    /// Whether the sets share a tag.
    #[must_use]
    pub fn intersects(&self, other: &TagSet) -> bool {
        self.0.iter().zip(other.0).any(|(mine, theirs)| mine & theirs != 0)
    }

    /// Whether every tag of `other` is in this set.
    #[must_use]
    pub fn contains_all(&self, other: &TagSet) -> bool {
        self.0.iter().zip(other.0).all(|(mine, theirs)| mine & theirs == theirs)
    }

    /// Whether there is no tag.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The tags, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Tag> + '_ {
        (0..TAGS_MAX as u16).map(Tag).filter(|tag| self.contains(*tag))
    }
}

impl FromIterator<Tag> for TagSet {
    fn from_iter<I: IntoIterator<Item = Tag>>(tags: I) -> TagSet {
        let mut set = TagSet::EMPTY;
        for tag in tags {
            set.insert(tag);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_names_and_numbers_agree_both_ways() {
        const { assert!(Tag::BUILT_IN < TAGS_MAX / 2) };
        for index in 0..Tag::BUILT_IN {
            let tag = Tag(index as u16);
            let name = tag.built_in_name().expect("a name");
            assert_eq!(Tag::built_in(name), Some(tag), "{name}");
        }
        for (index, language) in LANGUAGES.iter().enumerate() {
            assert_eq!(Tag::of_language(index).built_in_name(), Some(format!("language-{language}").as_str()));
        }
    }
}
