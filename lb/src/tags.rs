//! Which classifiers a pool's rules need, and the tags of a prompt.
//!
//! A classifier runs only if a rule in force refers to one of its tags; the one for personal data also if a request of the
//! pool may leave the cluster at all. What cannot be read counts as personal: a leak by omission is the unforgivable fault.

use std::cell::RefCell;

use config::Snapshot;
use config::snapshot::{Classifier, ClassifierKind, OnError, Pool, Scope as ConfigScope, WordBoundary};
use policy::Api;
use predictor::classify::{
    Boundary, Builtin, ComplexitySpec, KeywordsSpec, KindSet, OnUnknown, Piece as Text, PiiSpec, Quorum, RegexSpec,
    Scanner, Scope, Scopes, Scratch, Shape, Tag,
};

use crate::openai::prompt::{Media, Piece, Role, walk};
use crate::openai::{Request, scan};

/// Stands for "could not be read" and matches wherever `pii` does.
const UNSCANNED: &str = "pii-unscanned";

/// The classifiers of one pool.
#[derive(Debug)]
pub(crate) enum Tagger {
    /// No rule asks for a tag.
    Idle,
    /// Compiled.
    Active(Box<Scanner>),
    /// A classifier did not compile: every prompt counts as unread.
    Broken,
}

impl Tagger {
    /// What the rules of `pool` need. The text is why a classifier does not compile, for the log.
    pub(crate) fn for_pool(snapshot: &Snapshot, pool: &Pool) -> (Self, Option<String>) {
        let needed: Vec<&Classifier> =
            snapshot.classifiers.iter().filter(|c| c.id.namespace == pool.id.namespace && is_needed(c, pool)).collect();
        let mut builtins: Vec<Builtin> = needed.iter().flat_map(|classifier| builtins_of(classifier)).collect();
        let topics =
            |tag: &String| matches!(tag.as_str(), "code" | "math" | "factual-question") || tag.starts_with("language-");
        let referenced = pool.program.tags_referenced();
        if referenced.iter().any(topics) {
            builtins.push(Builtin::Topics);
        }
        if builtins.is_empty() && referenced.is_empty() {
            return (Self::Idle, None);
        }
        match Scanner::compile(&builtins) {
            Ok(scanner) => (Self::Active(Box::new(scanner)), None),
            Err(error) => (Self::Broken, Some(error.to_string())),
        }
    }

    /// The tags of a prompt.
    pub(crate) fn tags<'a>(&'a self, api: Api, request: &Request, body: &[u8]) -> Vec<&'a str> {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        let scanner = match self {
            Self::Idle => return Vec::new(),
            Self::Broken => return vec![UNSCANNED],
            Self::Active(scanner) => scanner,
        };
        let (pieces, shape) = read(api, request, body);
        SCRATCH.with_borrow_mut(|scratch| {
            let texts = pieces.iter().map(|(scope, text)| Text { scope: *scope, text });
            let findings = scanner.scan(scratch, texts, &shape);
            findings.tags().iter().filter_map(|tag: Tag| scanner.tag_name(tag)).collect()
        })
    }
}

/// The text of a prompt, decoded, and what is known besides.
fn read<'a>(api: Api, request: &Request, body: &'a [u8]) -> (Vec<(Scope, std::borrow::Cow<'a, str>)>, Shape) {
    let mut pieces = Vec::new();
    let mut shape = Shape {
        json_schema: request
            .response_format
            .as_ref()
            .is_some_and(|format| memchr::memmem::find(format.of(body), b"json_schema").is_some()),
        // Nothing is known of the text of a path that is only passed on.
        unscannable: api == Api::Other && !body.is_empty(),
        audio: matches!(api, Api::Transcriptions | Api::Translations),
        ..Shape::default()
    };
    let mut scope = Scope::User;
    walk(request, body, &mut |piece| match piece {
        Piece::Turn(role) => {
            scope = match role {
                Role::Tools => {
                    shape.tools = true;
                    Scope::System
                }
                Role::System => Scope::System,
                Role::User => Scope::User,
                Role::Assistant => Scope::Assistant,
                Role::Tool => Scope::Tool,
            };
            if matches!(role, Role::User | Role::Assistant) {
                shape.turns += 1;
            }
        }
        Piece::Text(raw) => pieces.push((scope, scan::unescape(raw))),
        Piece::Plain(raw) => pieces.push((scope, String::from_utf8_lossy(raw))),
        // Strings inside keep their escapes; identifiers have none but in disguise, which is looked through by decoding.
        Piece::Json(raw) => pieces.push((Scope::Tool, scan::unescape(raw))),
        Piece::Media(Media::Image, _) => shape.image = true,
        Piece::Media(Media::Audio, _) => shape.audio = true,
        Piece::Media(Media::Other, _) | Piece::TokenIds(_) => shape.unscannable = true,
    });
    (pieces, shape)
}

fn is_needed(classifier: &Classifier, pool: &Pool) -> bool {
    let referenced = pool.program.tags_referenced();
    let any = |test: &dyn Fn(&str) -> bool| referenced.iter().any(|tag| test(tag));
    match &classifier.kind {
        ClassifierKind::Pii { .. } => {
            pool.program.external_in_play()
                || any(&|tag| tag == "pii" || tag.starts_with("pii-") || matches!(tag, "network" | "crypto"))
        }
        ClassifierKind::Secrets => any(&|tag| tag == "secret" || tag.starts_with("secret-")),
        ClassifierKind::Complexity { .. } => any(&|tag| tag.starts_with("complexity-")),
        ClassifierKind::Keywords { tags } => tags.iter().any(|own| any(&|tag| tag == own.tag)),
        ClassifierKind::Regex { tags } => tags.iter().any(|(own, _)| any(&|tag| tag == own)),
        // Not run yet; loading says so.
        ClassifierKind::Examples { .. } | ClassifierKind::Http { .. } => false,
    }
}

fn builtins_of(classifier: &Classifier) -> Vec<Builtin> {
    let scopes = || match classifier.scope.is_empty() {
        true => Scopes::ALL,
        false => classifier.scope.iter().map(|&scope| scope_of(scope)).collect(),
    };
    match &classifier.kind {
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
        ClassifierKind::Complexity { .. } => vec![Builtin::Complexity(ComplexitySpec::default())],
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
        ClassifierKind::Examples { .. } | ClassifierKind::Http { .. } => Vec::new(),
    }
}

fn scope_of(scope: ConfigScope) -> Scope {
    match scope {
        ConfigScope::System => Scope::System,
        ConfigScope::User => Scope::User,
        ConfigScope::Assistant => Scope::Assistant,
        ConfigScope::Tool => Scope::Tool,
    }
}
