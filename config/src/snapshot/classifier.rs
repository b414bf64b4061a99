//! Classifiers as they are in force.

use std::path::PathBuf;
use std::time::Duration;

use crds::classifier::PiiKind;

use super::{BaseUrl, ResourceId};

/// One InferenceClassifier.
#[derive(Clone, Debug)]
pub struct Classifier {
    /// Namespace and name.
    pub id: ResourceId,
    /// What it looks for.
    pub kind: ClassifierKind,
    /// Which messages it reads; empty = all.
    pub scope: Vec<Scope>,
    /// What happens when it cannot finish.
    pub on_error: OnError,
}

impl Classifier {
    /// Whether it runs for prompts that `program` judges: a rule refers to one of its tags, or personal data might leave the cluster.
    #[must_use]
    pub fn runs_for(&self, program: &policy::Program) -> bool {
        let referenced = program.tags_referenced();
        let any = |test: &dyn Fn(&str) -> bool| referenced.iter().any(|tag| test(tag));
        match &self.kind {
            ClassifierKind::Pii { .. } => {
                program.external_in_play()
                    || any(&|tag| {
                        tag == "pii"
                            || matches!(tag, "network" | "crypto")
                            || ["pii-", "network-", "crypto-"].iter().any(|family| tag.starts_with(family))
                    })
            }
            ClassifierKind::Secrets => any(&|tag| tag == "secret" || tag.starts_with("secret-")),
            ClassifierKind::Complexity { .. } => any(&|tag| tag.starts_with("complexity-")),
            ClassifierKind::Keywords { tags } => tags.iter().any(|own| any(&|tag| tag == own.tag)),
            ClassifierKind::Regex { tags } => tags.iter().any(|(own, _)| any(&|tag| tag == own)),
            ClassifierKind::Examples { tags } => tags.iter().any(|own| any(&|tag| tag == own.tag)),
            ClassifierKind::Http { tags, .. } => tags.iter().any(|own| any(&|tag| tag == own)),
        }
    }
}

/// What a classifier looks for.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassifierKind {
    /// Personal data.
    Pii {
        /// Kinds looked for; empty = all that are on by default.
        kinds: Vec<PiiKind>,
    },
    /// Credentials.
    Secrets,
    /// How demanding the prompt is.
    Complexity {
        /// A model file of the built-in format, instead of the built-in model.
        model_file: Option<PathBuf>,
    },
    /// Words.
    Keywords {
        /// For each tag, the words that give it.
        tags: Vec<KeywordTag>,
    },
    /// Regular expressions; each compiles.
    Regex {
        /// (tag, expressions any of which gives it).
        tags: Vec<(String, Vec<String>)>,
    },
    /// Sentences that do and do not belong.
    Examples {
        /// For each tag, its sentences.
        tags: Vec<ExampleTag>,
    },
    /// A service asked over HTTP.
    Http {
        /// Where the text is sent.
        url: BaseUrl,
        /// How long an answer may take.
        timeout: Duration,
        /// Requests to it at once.
        in_flight_max: u32,
        /// Answers kept, by the text's hash.
        cache_entries_max: u32,
        /// Tags it may give; others are ignored.
        tags: Vec<String>,
    },
}

/// Words that give a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeywordTag {
    /// The tag.
    pub tag: String,
    /// At least one of these, when not empty.
    pub any: Vec<String>,
    /// Every one of these.
    pub all: Vec<String>,
    /// How often words of `any` must occur together.
    pub count_min: u32,
    /// Whether a word inside a longer one counts.
    pub boundary: WordBoundary,
}

/// Whether a word inside a longer one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordBoundary {
    /// Only whole words count.
    Whole,
    /// Any occurrence counts.
    Anywhere,
}

/// Sentences that do and do not belong to a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleTag {
    /// The tag.
    pub tag: String,
    /// Sentences like those that should have it.
    pub positive: Vec<String>,
    /// Sentences like those that should not.
    pub negative: Vec<String>,
}

/// Which messages a classifier reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// System and developer messages.
    System,
    /// User messages and plain prompts.
    User,
    /// Earlier answers.
    Assistant,
    /// Tool calls' arguments and results.
    Tool,
}

/// What happens when a classifier cannot finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Its tag is given, the safe side (`pii-unscanned` for personal data).
    AddTag,
    /// Its tag is not given.
    Ignore,
}
