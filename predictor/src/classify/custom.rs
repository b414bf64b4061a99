//! The operator's own classifiers: word lists and patterns. They read the source text, not its normalised form.

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex_automata::{Input, meta};

use super::spec::{
    Boundary, KEYWORD_BYTES_MAX, KEYWORDS_MAX, KeywordsSpec, PATTERN_BYTES_MAX, PATTERNS_MAX, Quorum, RegexSpec,
    Scopes, SpecError,
};
use super::tag::Tag;

/// Bytes a compiled set of patterns may take.
const PATTERN_PROGRAM_BYTES_MAX: usize = 4 << 20;
/// Bytes of the lazily built automaton, per core.
const PATTERN_CACHE_BYTES_MAX: usize = 1 << 20;

/// A compiled word list.
#[derive(Debug)]
pub(super) struct Keywords {
    automaton: AhoCorasick,
    pub(super) tag: Tag,
    words: usize,
    needed: Needed,
    boundary: Boundary,
    pub(super) scopes: Scopes,
}

/// What must be there for the tag.
#[derive(Debug, Clone, Copy)]
struct Needed {
    /// So many words, from the first on, each at least once.
    all: usize,
    /// So many occurrences of the others.
    any: u32,
}

/// What has been seen of one word list in a scan.
#[derive(Debug, Default)]
pub(super) struct KeywordState {
    /// Occurrences of words of which any counts.
    occurrences: u32,
    /// Words that must each be there, and are.
    distinct: usize,
    seen: Vec<u64>,
}

impl KeywordState {
    fn clear(&mut self, words: usize) {
        self.occurrences = 0;
        self.distinct = 0;
        self.seen.clear();
        self.seen.resize(words.div_ceil(64), 0);
    }
}

impl Keywords {
    pub(super) fn compile(index: usize, spec: &KeywordsSpec, tag: Tag) -> Result<Keywords, SpecError> {
        if spec.words.is_empty() || spec.words.len() > KEYWORDS_MAX {
            return Err(SpecError::new(index, "words", format!("must be 1 to {KEYWORDS_MAX} words")));
        }
        for (at, word) in spec.words.iter().enumerate() {
            if word.is_empty() || word.len() > KEYWORD_BYTES_MAX {
                return Err(SpecError::new(
                    index,
                    format!("words[{at}]"),
                    format!("must be 1 to {KEYWORD_BYTES_MAX} bytes"),
                ));
            }
        }
        let needed = match spec.quorum {
            Quorum::Any(occurrences) => Needed { all: 0, any: occurrences },
            Quorum::All => Needed { all: spec.words.len(), any: 0 },
            Quorum::AllAndAny { all, any } => Needed { all, any },
        };
        if needed.all == 0 && needed.any == 0 {
            return Err(SpecError::new(index, "minCount", "must be at least 1, or every prompt would match"));
        }
        let others = spec.words.len().saturating_sub(needed.all);
        if needed.all > spec.words.len() || (needed.any == 0) != (others == 0) {
            return Err(SpecError::new(
                index,
                "quorum",
                "must leave words of which any may be there, and ask for some",
            ));
        }
        let automaton = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&spec.words)
            .map_err(|error| SpecError::new(index, "words", error.to_string()))?;
        Ok(Keywords { automaton, tag, words: spec.words.len(), needed, boundary: spec.boundary, scopes: spec.scopes })
    }

    /// Whether one occurrence is not enough.
    pub(super) fn counts(&self) -> bool {
        self.needed.all + self.needed.any as usize > 1
    }

    pub(super) fn start(&self, state: &mut KeywordState) {
        state.clear(self.words);
    }

    /// Reads `start..end` of `text`, counting words that begin before `next`, and says whether the quorum is reached.
    pub(super) fn read(&self, state: &mut KeywordState, text: &str, slice: (usize, usize), next: usize) -> bool {
        let (start, end) = slice;
        if self.reached(state) {
            return true;
        }
        for found in self.automaton.find_overlapping_iter(&text.as_bytes()[start..end]) {
            let (from, to) = (start + found.start(), start + found.end());
            if from >= next && end < text.len() || !self.bounded(text.as_bytes(), from, to) {
                continue;
            }
            let word = found.pattern().as_usize();
            if word >= self.needed.all {
                state.occurrences = state.occurrences.saturating_add(1);
            } else if let Some(bits) = state.seen.get_mut(word / 64) {
                state.distinct += usize::from(*bits >> (word % 64) & 1 == 0);
                *bits |= 1 << (word % 64);
            }
            if self.reached(state) {
                return true;
            }
        }
        false
    }

    fn bounded(&self, text: &[u8], from: usize, to: usize) -> bool {
        let letter = |at: Option<&u8>| at.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        match self.boundary {
            Boundary::Anywhere => true,
            Boundary::Word => {
                let before = from.checked_sub(1).and_then(|at| text.get(at));
                let cut_left = letter(before) && letter(text.get(from));
                let cut_right = letter(text.get(to)) && letter(text.get(to - 1));
                !cut_left && !cut_right
            }
        }
    }

    fn reached(&self, state: &KeywordState) -> bool {
        state.distinct >= self.needed.all && state.occurrences >= self.needed.any
    }
}

/// Compiled patterns.
#[derive(Debug)]
pub(super) struct Patterns {
    regex: meta::Regex,
    pub(super) tag: Tag,
    pub(super) scopes: Scopes,
}

impl Patterns {
    pub(super) fn compile(index: usize, spec: &RegexSpec, tag: Tag) -> Result<Patterns, SpecError> {
        if spec.patterns.is_empty() || spec.patterns.len() > PATTERNS_MAX {
            return Err(SpecError::new(index, "patterns", format!("must be 1 to {PATTERNS_MAX} patterns")));
        }
        if let Some(at) =
            spec.patterns.iter().position(|pattern| pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX)
        {
            return Err(SpecError::new(
                index,
                format!("patterns[{at}]"),
                format!("must be 1 to {PATTERN_BYTES_MAX} bytes"),
            ));
        }
        let config = meta::Config::new()
            .nfa_size_limit(Some(PATTERN_PROGRAM_BYTES_MAX))
            .onepass_size_limit(Some(PATTERN_PROGRAM_BYTES_MAX))
            .hybrid_cache_capacity(PATTERN_CACHE_BYTES_MAX);
        let regex = meta::Builder::new().configure(config).build_many(&spec.patterns).map_err(|error| {
            let field =
                error.pattern().map_or_else(|| "patterns".to_owned(), |at| format!("patterns[{}]", at.as_usize()));
            let reason = error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string);
            SpecError::new(index, field, reason)
        })?;
        Ok(Patterns { regex, tag, scopes: spec.scopes })
    }

    pub(super) fn cache(&self) -> meta::Cache {
        self.regex.create_cache()
    }

    /// Whether a pattern matches within `start..end` of `text`; anchors and word boundaries see the text around.
    pub(super) fn matches(&self, cache: &mut meta::Cache, text: &str, slice: (usize, usize)) -> bool {
        let input = Input::new(text).range(slice.0..slice.1).earliest(true);
        self.regex.search_half_with(cache, &input).is_some()
    }
}
