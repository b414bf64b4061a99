//! The scanner: classifiers compiled from their specifications.

use super::Scope;
use super::complexity::features::Lexicon;
use super::complexity::{Model, Term};
use super::custom::{Keywords, Patterns};
use super::examples::Examples;
use super::kind::{Group, Kind, KindSet};
use super::landmarks::Landmarks;
use super::scan::Scratch;
use super::spec::{
    BUILTINS_MAX, Boundary, Builtin, ComplexitySpec, KeywordsSpec, OnUnknown, Quorum, Scopes, SpecError,
};
use super::tag::{TAGS_MAX, Tag, TagSet};

/// The compiled classifiers. Immutable, shared by all threads.
#[derive(Debug)]
pub struct Scanner {
    /// What is looked for in the text of each scope.
    kinds: [KindSet; Scopes::COUNT],
    pub(super) on_unknown: OnUnknown,
    pub(super) landmarks: Landmarks,
    pub(super) unknown_tags: TagSet,
    pub(super) complexity: Option<Complexity>,
    pub(super) topics: Option<Tagged>,
    pub(super) lexicon: Lexicon,
    pub(super) keywords: Vec<Keywords>,
    pub(super) patterns: Vec<Patterns>,
    pub(super) examples: Vec<Examples>,
    pub(super) own_tags: Vec<String>,
    /// Tells scratch spaces of another scanner.
    pub(super) fingerprint: u64,
}

/// That the topics were asked for as tags.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tagged;

/// The complexity model and its thresholds.
#[derive(Debug)]
pub(super) struct Complexity {
    pub(super) model: Model,
    pub(super) low: f32,
    pub(super) high: f32,
}

/// What the compiler has seen so far.
struct Draft {
    personal: KindSet,
    kinds: [KindSet; Scopes::COUNT],
    on_unknown: OnUnknown,
    complexity: Option<Complexity>,
    topics: Option<Tagged>,
    keywords: Vec<Keywords>,
    patterns: Vec<Patterns>,
    examples: Vec<Examples>,
    own_tags: Vec<String>,
}

impl Default for Draft {
    fn default() -> Draft {
        Draft {
            personal: KindSet::EMPTY,
            kinds: [KindSet::EMPTY; Scopes::COUNT],
            on_unknown: OnUnknown::Ignore,
            complexity: None,
            topics: None,
            keywords: Vec::new(),
            patterns: Vec::new(),
            examples: Vec::new(),
            own_tags: Vec::new(),
        }
    }
}

impl Draft {
    fn add(&mut self, index: usize, builtin: &Builtin) -> Result<(), SpecError> {
        match builtin {
            Builtin::Pii(spec) if spec.kinds.is_empty() => {
                return Err(SpecError::new(index, "kinds", "is empty: nothing would be found"));
            }
            Builtin::Pii(spec) => {
                self.personal = self.personal.union(spec.kinds);
                self.look_for(spec.kinds, spec.scopes);
                if spec.on_unknown == OnUnknown::AddTag {
                    self.on_unknown = OnUnknown::AddTag;
                }
            }
            Builtin::Secrets(scopes) => self.look_for(KindSet::secrets(), *scopes),
            Builtin::Complexity(spec) => self.complexity = Some(complexity(index, spec)?),
            Builtin::Topics => self.topics = Some(Tagged),
            Builtin::Keywords(spec) => {
                let tag = self.own_tag(index, &spec.tag)?;
                self.keywords.push(Keywords::compile(index, spec, tag)?);
            }
            Builtin::Regex(spec) => {
                let tag = self.own_tag(index, &spec.tag)?;
                self.patterns.push(Patterns::compile(index, spec, tag)?);
            }
            Builtin::Examples(spec) => {
                let tag = self.own_tag(index, &spec.tag)?;
                self.examples.push(Examples::compile(index, spec, tag)?);
            }
            Builtin::Injection => self.keywords.push(Keywords::compile(index, &injection(), Tag::INJECTION_SUSPECT)?),
        }
        Ok(())
    }

    /// Looks for `kinds` in the text of `scopes`, and in what belongs to no message.
    fn look_for(&mut self, kinds: KindSet, scopes: Scopes) {
        for scope in [Scope::System, Scope::User, Scope::Assistant, Scope::Tool, Scope::Rest] {
            if scopes.contains(scope) || scope == Scope::Rest {
                let here = &mut self.kinds[scope as usize];
                *here = here.union(kinds);
            }
        }
    }

    /// The number of a tag of the operator: that of a built-in one if the name is the same, else a new one.
    fn own_tag(&mut self, index: usize, name: &str) -> Result<Tag, SpecError> {
        if name.is_empty() {
            return Err(SpecError::new(index, "tag", "is empty"));
        }
        if let Some(tag) = Tag::built_in(name) {
            return Ok(tag);
        }
        let place = self.own_tags.iter().position(|known| known == name).unwrap_or(self.own_tags.len());
        if place == self.own_tags.len() {
            self.own_tags.push(name.to_owned());
        }
        if Tag::BUILT_IN + place >= TAGS_MAX {
            return Err(SpecError::new(
                index,
                "tag",
                format!("more than {} tags of one's own", TAGS_MAX - Tag::BUILT_IN),
            ));
        }
        Ok(Tag((Tag::BUILT_IN + place) as u16))
    }
}

fn complexity(index: usize, spec: &ComplexitySpec) -> Result<Complexity, SpecError> {
    if !(0.0..=1.0).contains(&spec.low) {
        return Err(SpecError::new(index, "low", "must be 0 to 1"));
    }
    if !(spec.low..=1.0).contains(&spec.high) {
        return Err(SpecError::new(index, "high", "must be 0 to 1 and not below `low`"));
    }
    let model = spec.model.as_deref().map_or_else(Model::built_in, Model::from_bytes);
    let model = model.map_err(|error| SpecError::new(index, "model", error.to_string()))?;
    Ok(Complexity { model, low: spec.low, high: spec.high })
}

impl Builtin {
    /// Whether the compiler would take it: every field is within its bounds, every pattern compiles.
    ///
    /// # Errors
    /// The first field that is not.
    pub fn check(&self) -> Result<(), SpecError> {
        Draft::default().add(0, self)
    }
}

impl Scanner {
    /// What is looked for in the text of `scope`.
    pub(super) fn kinds_in(&self, scope: Scope) -> KindSet {
        self.kinds[scope as usize]
    }

    /// Compiles `builtins`.
    ///
    /// # Errors
    /// When a field is out of bounds or does not compile; the error names the classifier and the field.
    pub fn compile(builtins: &[Builtin]) -> Result<Scanner, SpecError> {
        if builtins.len() > BUILTINS_MAX {
            return Err(SpecError::new(BUILTINS_MAX, "type", format!("more than {BUILTINS_MAX} classifiers")));
        }
        let mut draft = Draft::default();
        for (index, builtin) in builtins.iter().enumerate() {
            draft.add(index, builtin)?;
        }
        let kinds = draft.kinds.into_iter().fold(KindSet::EMPTY, KindSet::union);
        Ok(Scanner {
            kinds: draft.kinds,
            on_unknown: draft.on_unknown,
            landmarks: Landmarks::compile(kinds),
            unknown_tags: unknown_tags(draft.personal),
            complexity: draft.complexity,
            topics: draft.topics,
            lexicon: Lexicon::compile(),
            keywords: draft.keywords,
            patterns: draft.patterns,
            examples: draft.examples,
            own_tags: draft.own_tags,
            fingerprint: xxhash_rust::xxh3::xxh3_64(format!("{builtins:?}").as_bytes()),
        })
    }

    /// Whether what one piece holds says nothing without the others: words that must occur several times.
    pub(super) fn counts_across_pieces(&self) -> bool {
        self.keywords.iter().any(Keywords::counts)
    }

    /// The word of a tag.
    #[must_use]
    pub fn tag_name(&self, tag: Tag) -> Option<&str> {
        match tag.index().checked_sub(Tag::BUILT_IN) {
            Some(own) => self.own_tags.get(own).map(String::as_str),
            None => tag.built_in_name(),
        }
    }

    /// The tag called `name`, built in or of this scanner.
    #[must_use]
    pub fn tag(&self, name: &str) -> Option<Tag> {
        let own = || self.own_tags.iter().position(|known| known == name).map(|own| Tag((Tag::BUILT_IN + own) as u16));
        Tag::built_in(name).or_else(own)
    }

    /// The terms of the complexity score of the last scan in `scratch`, the largest first. For reports: it allocates.
    #[must_use]
    pub fn complexity_terms(&self, scratch: &Scratch) -> Vec<Term> {
        match (&self.complexity, scratch.findings.complexity) {
            (Some(complexity), Some(_)) => complexity.model.terms(&scratch.features),
            (None | Some(_), _) => Vec::new(),
        }
    }
}

/// Phrases of prompt injections, in the languages they are mostly written in. Tool results carry them as often as users do.
fn injection() -> KeywordsSpec {
    const PHRASES: [&str; 34] = [
        "ignore previous instructions",
        "ignore all previous",
        "ignore the previous",
        "ignore your previous",
        "ignore any previous",
        "ignore the above",
        "ignore all prior",
        "ignore your instructions",
        "ignore all instructions",
        "disregard previous",
        "disregard the above",
        "disregard all",
        "disregard your",
        "forget your instructions",
        "forget all previous",
        "forget everything above",
        "override your instructions",
        "bypass your",
        "reveal your system prompt",
        "print your system prompt",
        "show me your system prompt",
        "repeat the words above",
        "your hidden instructions",
        "you are now dan",
        "do anything now",
        "developer mode enabled",
        "you have no restrictions",
        "without any restrictions",
        "pretend you have no",
        "ignoriere alle vorherigen",
        "ignore les instructions",
        "ignora las instrucciones",
        "ignora le istruzioni",
        "忽略之前的指令",
    ];
    KeywordsSpec {
        tag: String::new(),
        words: PHRASES.map(str::to_owned).to_vec(),
        quorum: Quorum::Any(1),
        boundary: Boundary::Anywhere,
        scopes: [Scope::User, Scope::Tool].into_iter().collect(),
    }
}

/// What an unreadable request may hold, for rules that match on it.
fn unknown_tags(personal: KindSet) -> TagSet {
    let mut tags: TagSet =
        Kind::ALL.iter().filter(|kind| personal.contains(**kind)).map(|kind| Tag::of_kind(*kind)).collect();
    tags.insert(Tag::PII);
    if personal.intersects(KindSet::of_groups(&[Group::Government])) {
        tags.insert(Tag::PII_NATIONAL_ID);
    }
    tags
}
