//! Which classifiers a pool's rules need, and the tags of a prompt.
//!
//! A classifier runs only if a rule in force refers to one of its tags; the one for personal data also if a request of the
//! pool may leave the cluster at all. What cannot be read counts as personal: a leak by omission is the unforgivable fault.

pub(crate) mod remote;
mod text;
mod turns;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use config::Snapshot;
use config::snapshot::{Classifier, ClassifierKind, OnError, Pool, Scope as ConfigScope, WordBoundary};
use policy::Api;
use predictor::classify::complexity::{MODEL_BYTES, Model};
use predictor::classify::{
    Boundary, Builtin, ComplexitySpec, ExamplesSpec, KeywordsSpec, KindSet, OnUnknown, PiiSpec, Quorum, RegexSpec,
    Scanner, Scope, Scopes,
};

use crate::openai::Request;
use crate::shard::Shard;
use remote::Service;
use text::Sources;
use turns::Pace;

/// Stands for "could not be read" and matches wherever `pii` does.
const UNSCANNED: &str = "pii-unscanned";

/// The classifiers of one pool.
#[derive(Debug)]
pub(crate) enum Tagger {
    /// No rule asks for a tag.
    Idle,
    /// Compiled, and services that are asked besides.
    Active(Box<Scanner>, Vec<Arc<Service>>),
    /// A classifier did not compile: every prompt counts as unread.
    Broken,
}

impl Tagger {
    /// What the rules of `pool` need. The text is why a classifier does not compile, for the log.
    pub(crate) fn for_pool(snapshot: &Snapshot, pool: &Pool) -> (Self, Option<String>) {
        let needed: Vec<&Classifier> = snapshot
            .classifiers
            .iter()
            .filter(|c| c.id.namespace == pool.id.namespace && c.runs_for(&pool.program))
            .collect();
        let mut builtins: Vec<Builtin> = Vec::new();
        for classifier in &needed {
            match builtins_of(classifier) {
                Ok(more) => builtins.extend(more),
                Err(why) => return (Self::Broken, Some(format!("{}: {why}", classifier.id))),
            }
        }
        let topics =
            |tag: &String| matches!(tag.as_str(), "code" | "math" | "factual-question") || tag.starts_with("language-");
        let referenced = pool.program.tags_referenced();
        if referenced.iter().any(topics) {
            builtins.push(Builtin::Topics);
        }
        if referenced.iter().any(|tag| tag == "injection-suspect") {
            builtins.push(Builtin::Injection);
        }
        if builtins.is_empty() && referenced.is_empty() {
            return (Self::Idle, None);
        }
        let services = needed.iter().filter_map(|classifier| Service::of(classifier)).collect();
        match Scanner::compile(&builtins) {
            Ok(scanner) => (Self::Active(Box::new(scanner), services), None),
            Err(error) => (Self::Broken, Some(error.to_string())),
        }
    }

    /// The tags of a prompt, at once.
    pub(crate) fn tags<'a>(&'a self, api: Api, request: &Request, body: &[u8]) -> Vec<&'a str> {
        turns::at_once(self.read(api, request, body, Pace::AtOnce)).unwrap_or_else(|| vec![UNSCANNED])
    }

    /// The tags of a prompt, read in turns with the other requests of the thread.
    pub(crate) async fn tags_in_turns<'a>(
        &'a self,
        shard: &Shard,
        api: Api,
        request: &Request,
        body: &[u8],
    ) -> Vec<&'a str> {
        self.read(api, request, body, Pace::Turns(shard)).await
    }

    async fn read<'a>(&'a self, api: Api, request: &Request, body: &[u8], pace: Pace<'_>) -> Vec<&'a str> {
        let (scanner, services) = match self {
            Self::Idle => return Vec::new(),
            Self::Broken => return vec![UNSCANNED],
            Self::Active(scanner, services) => (scanner, services),
        };
        let sources = Sources::of(api, request, body);
        let tags = turns::tags(scanner, &sources, pace).await;
        let mut tags: Vec<&str> = tags.into_iter().filter_map(|tag| scanner.tag_name(tag)).collect();
        let answers = match pace {
            // A command asks no service.
            Pace::AtOnce => vec![None; services.len()],
            // Nor does a prompt with no service pay for a list of them.
            Pace::Turns(_) if services.is_empty() => Vec::new(),
            Pace::Turns(shard) => remote::all(services.iter().map(|service| service.ask(&sources, shard))).await,
        };
        for (service, given) in services.iter().zip(answers) {
            match given {
                Some(places) => {
                    tags.extend(places.iter().filter_map(|at| service.tags.get(usize::from(*at)).map(String::as_str)));
                }
                None => tags.extend(service.unanswered()),
            }
        }
        tags
    }
}

/// What the predictor compiles for a classifier; the error is a model file that cannot be read.
fn builtins_of(classifier: &Classifier) -> Result<Vec<Builtin>, String> {
    let scopes = || match classifier.scope.is_empty() {
        true => Scopes::ALL,
        false => classifier.scope.iter().map(|&scope| scope_of(scope)).collect(),
    };
    Ok(match &classifier.kind {
        ClassifierKind::Pii { kinds } => {
            let named = kinds.iter().filter_map(|kind| KindSet::from_word(&format!("{kind:?}")));
            let kinds = if kinds.is_empty() { KindSet::personal() } else { named.fold(KindSet::EMPTY, KindSet::union) };
            let on_unknown = match classifier.on_error {
                OnError::AddTag => OnUnknown::AddTag,
                OnError::Ignore => OnUnknown::Ignore,
            };
            vec![Builtin::Pii(PiiSpec { kinds, on_unknown })]
        }
        ClassifierKind::Secrets => vec![Builtin::Secrets],
        ClassifierKind::Complexity { model_file } => {
            let model = model_file.as_deref().map(model_of).transpose()?;
            vec![Builtin::Complexity(ComplexitySpec { model, ..ComplexitySpec::default() })]
        }
        ClassifierKind::Keywords { tags } => tags
            .iter()
            .map(|own| {
                let (words, quorum) = match own.all.is_empty() {
                    true => (own.any.clone(), Quorum::Any(own.count_min.max(1))),
                    false => (own.all.clone(), Quorum::All),
                };
                let boundary = match own.boundary {
                    WordBoundary::Whole => Boundary::Word,
                    WordBoundary::Anywhere => Boundary::Anywhere,
                };
                Builtin::Keywords(KeywordsSpec { tag: own.tag.clone(), words, quorum, boundary, scopes: scopes() })
            })
            .collect(),
        ClassifierKind::Regex { tags } => tags
            .iter()
            .map(|(tag, patterns)| {
                Builtin::Regex(RegexSpec { tag: tag.clone(), patterns: patterns.clone(), scopes: scopes() })
            })
            .collect(),
        ClassifierKind::Examples { tags } => tags
            .iter()
            .map(|own| {
                let (positive, negative) = (own.positive.clone(), own.negative.clone());
                Builtin::Examples(ExamplesSpec { tag: own.tag.clone(), positive, negative, scopes: scopes() })
            })
            .collect(),
        ClassifierKind::Http { .. } => Vec::new(),
    })
}

/// The bytes of a model file. Longer files than a model has are not read: they are none.
fn model_of(path: &Path) -> Result<Vec<u8>, String> {
    let told = |why: &dyn std::fmt::Display| format!("modelFile {}: {why}", path.display());
    let file = File::open(path).map_err(|error| told(&error))?;
    let mut bytes = Vec::new();
    file.take(MODEL_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| told(&error))?;
    // The same check that the compiler makes, with the name of the file.
    Model::from_bytes(&bytes).map_err(|error| told(&error))?;
    Ok(bytes)
}

fn scope_of(scope: ConfigScope) -> Scope {
    match scope {
        ConfigScope::System => Scope::System,
        ConfigScope::User => Scope::User,
        ConfigScope::Assistant => Scope::Assistant,
        ConfigScope::Tool => Scope::Tool,
    }
}
