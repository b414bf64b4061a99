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
use config::snapshot::{Classifier, ClassifierKind, OnError, Pool, ResourceId, Scope as ConfigScope, WordBoundary};
use crds::classifier::PiiKind;
use policy::Api;
use predictor::classify::complexity::{MODEL_BYTES, Model};
use predictor::classify::{
    Boundary, Builtin, ComplexitySpec, ExamplesSpec, Group, KeywordsSpec, Kind, KindSet, OnUnknown, PiiSpec, Quorum,
    RegexSpec, Scanner, Scope, Scopes,
};

use crate::openai::Request;
use crate::pace::{Breath, Pace, at_once};
use remote::Service;
use text::Sources;

/// Stands for "could not be read" and matches wherever `pii` does.
const UNSCANNED: &str = "pii-unscanned";

/// The classifiers of one pool.
#[derive(Debug)]
pub(crate) enum Tagger {
    /// No rule asks for a tag.
    Idle,
    /// Compiled, and services that are asked besides.
    Active(Active),
    /// A classifier did not compile: every prompt counts as unread.
    Broken,
}

/// What is in force for a pool.
#[derive(Debug)]
pub(crate) struct Active {
    /// What was compiled. Whoever asks for the same shares the scanner.
    asked: Vec<Builtin>,
    scanner: Arc<Scanner>,
    services: Vec<Arc<Service>>,
}

impl Tagger {
    /// The classifiers of each pool, in its order. What one of `before`, or an earlier pool, has compiled is not compiled again: plans are
    /// made anew whenever a name resolves to other addresses. The texts are why classifiers do not compile, with their pools.
    pub(crate) fn for_pools<'s>(
        snapshot: &'s Snapshot,
        before: &[Tagger],
    ) -> (Vec<Tagger>, Vec<(&'s ResourceId, String)>) {
        let (mut taggers, mut faults) = (Vec::with_capacity(snapshot.pools.len()), Vec::new());
        for pool in &snapshot.pools {
            let known: Vec<&Active> = before.iter().chain(&taggers).filter_map(Tagger::active).collect();
            let (tagger, fault) = Tagger::of(snapshot, pool, &known);
            faults.extend(fault.map(|why| (&pool.id, why)));
            taggers.push(tagger);
        }
        (taggers, faults)
    }

    /// What the rules of `pool` need. The text is why a classifier does not compile.
    pub(crate) fn for_pool(snapshot: &Snapshot, pool: &Pool) -> (Self, Option<String>) {
        Tagger::of(snapshot, pool, &[])
    }

    fn active(&self) -> Option<&Active> {
        match self {
            Tagger::Active(active) => Some(active),
            Tagger::Idle | Tagger::Broken => None,
        }
    }

    fn of(snapshot: &Snapshot, pool: &Pool, known: &[&Active]) -> (Self, Option<String>) {
        let needed: Vec<&Classifier> = snapshot
            .classifiers
            .iter()
            .filter(|c| c.id.namespace == pool.id.namespace && c.runs_for(&pool.program))
            .collect();
        let mut asked = match builtins_of_all(&needed) {
            Ok(asked) => asked,
            Err(why) => return (Self::Broken, Some(why)),
        };
        let topics =
            |tag: &String| matches!(tag.as_str(), "code" | "math" | "factual-question") || tag.starts_with("language-");
        let referenced = pool.program.tags_referenced();
        if referenced.iter().any(topics) {
            asked.push(Builtin::Topics);
        }
        if referenced.iter().any(|tag| tag == "injection-suspect") {
            asked.push(Builtin::Injection);
        }
        if asked.is_empty() && referenced.is_empty() {
            return (Self::Idle, None);
        }
        let services = needed.iter().filter_map(|classifier| Service::of(classifier)).collect();
        if let Some(same) = known.iter().find(|active| active.asked == asked) {
            return (Self::Active(Active { asked, scanner: same.scanner.clone(), services }), None);
        }
        match Scanner::compile(&asked) {
            Ok(scanner) => (Self::Active(Active { asked, scanner: Arc::new(scanner), services }), None),
            Err(error) => (Self::Broken, Some(error.to_string())),
        }
    }

    /// The tags of a prompt, at once.
    pub(crate) fn tags<'a>(&'a self, api: Api, request: &Request, body: &[u8]) -> Vec<&'a str> {
        let mut breath = Breath::new(Pace::AtOnce);
        at_once(self.tags_in_turns(api, request, body, &mut breath)).unwrap_or_else(|| vec![UNSCANNED])
    }

    /// The tags of a prompt, read in turns with the other requests of the thread.
    pub(crate) async fn tags_in_turns<'a>(
        &'a self,
        api: Api,
        request: &Request,
        body: &[u8],
        breath: &mut Breath<'_>,
    ) -> Vec<&'a str> {
        let (scanner, services) = match self {
            Self::Idle => return Vec::new(),
            Self::Broken => return vec![UNSCANNED],
            Self::Active(active) => (&active.scanner, &active.services),
        };
        let sources = Sources::of(api, request, body, breath).await;
        let tags = turns::tags(scanner, &sources, breath).await;
        let mut tags: Vec<&str> = tags.into_iter().filter_map(|tag| scanner.tag_name(tag)).collect();
        let answers = match breath.pace() {
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

/// All classifiers of a set, and what is built in besides, as one scanner; and the services that a command does not ask.
pub(crate) fn scanner_of(snapshot: &Snapshot) -> Result<(Scanner, Vec<&ResourceId>), String> {
    let all: Vec<&Classifier> = snapshot.classifiers.iter().collect();
    let mut builtins = builtins_of_all(&all)?;
    builtins.extend([Builtin::Topics, Builtin::Injection]);
    let services = all.iter().filter(|classifier| matches!(classifier.kind, ClassifierKind::Http { .. }));
    let scanner = Scanner::compile(&builtins).map_err(|error| error.to_string())?;
    Ok((scanner, services.map(|classifier| &classifier.id).collect()))
}

fn builtins_of_all(classifiers: &[&Classifier]) -> Result<Vec<Builtin>, String> {
    let mut all = Vec::new();
    for classifier in classifiers {
        all.extend(builtins_of(classifier).map_err(|why| format!("{}: {why}", classifier.id))?);
    }
    Ok(all)
}

/// What a document's word for personal data stands for.
fn kinds_of(kind: PiiKind) -> KindSet {
    let these = |kinds: &[Kind]| kinds.iter().copied().collect();
    match kind {
        PiiKind::Email => these(&[Kind::Email]),
        PiiKind::Phone => these(&[Kind::Phone]),
        PiiKind::CreditCard => these(&[Kind::CreditCard]),
        PiiKind::IBAN => these(&[Kind::Iban]),
        PiiKind::BankCode => these(&[Kind::SwiftBic, Kind::UsRouting]),
        PiiKind::NationalID => KindSet::of_groups(&[Group::Government]),
        PiiKind::Passport => these(&[Kind::Passport]),
        PiiKind::DriverLicense => these(&[Kind::UsDriverLicense]),
        PiiKind::HealthID => KindSet::of_groups(&[Group::Health]),
        PiiKind::NetworkAddress => KindSet::of_groups(&[Group::Network]),
        PiiKind::CryptoWallet => KindSet::of_groups(&[Group::Crypto]),
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
            let named = kinds.iter().map(|kind| kinds_of(*kind));
            let kinds = if kinds.is_empty() { KindSet::personal() } else { named.fold(KindSet::EMPTY, KindSet::union) };
            let on_unknown = match classifier.on_error {
                OnError::AddTag => OnUnknown::AddTag,
                OnError::Ignore => OnUnknown::Ignore,
            };
            vec![Builtin::Pii(PiiSpec { kinds, on_unknown, scopes: scopes() })]
        }
        ClassifierKind::Secrets => vec![Builtin::Secrets(scopes())],
        ClassifierKind::Complexity { model_file } => {
            let model = model_file.as_deref().map(model_of).transpose()?;
            vec![Builtin::Complexity(ComplexitySpec { model, ..ComplexitySpec::default() })]
        }
        ClassifierKind::Keywords { tags } => tags
            .iter()
            .map(|own| {
                let any = own.count_min.max(1);
                let quorum = match (own.all.len(), own.any.len()) {
                    (0, _) => Quorum::Any(any),
                    (_, 0) => Quorum::All,
                    (all, _) => Quorum::AllAndAny { all, any },
                };
                let words = own.all.iter().chain(&own.any).cloned().collect();
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

#[cfg(test)]
mod tests {
    use config::{Lookup, SourceFile};

    use super::*;

    /// Two pools whose rules ask for the tag of one word.
    fn snapshot(word: &str) -> Snapshot {
        let documents = [
            ("InferenceWorkerSet", "w", "{model: {name: m}, endpoints: [{address: 10.0.0.1, port: 1}]}"),
            ("InferenceClassifier", "c", &format!("{{type: Keywords, tags: [{{tag: merger, any: [{word}]}}]}}")),
            (
                "InferencePolicy",
                "p",
                "{rules: [{name: r, matches: [{tags: [merger]}], deny: {status: 403, code: no, message: No.}}]}",
            ),
            ("InferencePool", "one", "{destinations: [{kind: InferenceWorkerSet, name: w}], policyRef: [{name: p}]}"),
            ("InferencePool", "two", "{destinations: [{kind: InferenceWorkerSet, name: w}], policyRef: [{name: p}]}"),
        ];
        let document = |(kind, name, spec): (&str, &str, &str)| {
            format!(
                "{{apiVersion: kinference.buoyant.io/v1alpha1, kind: {kind}, metadata: {{name: {name}}}, spec: {spec}}}\n---\n"
            )
        };
        let bytes = documents.map(document).concat().into_bytes();
        let files = [SourceFile { name: "set.yaml".into(), bytes }];
        config::load(&files, &Lookup::Skip).expect("a valid set").snapshot
    }

    #[test]
    fn every_word_of_a_document_finds_its_kind_and_together_they_are_all_that_is_not_a_secret() {
        let words = [
            "Email",
            "Phone",
            "CreditCard",
            "IBAN",
            "BankCode",
            "NationalID",
            "Passport",
            "DriverLicense",
            "HealthID",
            "NetworkAddress",
            "CryptoWallet",
        ];
        let mut all = KindSet::EMPTY;
        for word in words {
            let kind: PiiKind = serde_json::from_value(word.into()).expect("a word of the schema");
            let kinds = kinds_of(kind);
            assert!(!kinds.is_empty(), "{word}");
            all = all.union(kinds);
        }
        let everything = KindSet::personal().union(KindSet::of_groups(&[Group::Network, Group::Crypto]));
        assert_eq!(all, everything, "a kind that no word stands for cannot be asked for");
    }

    #[test]
    fn a_kind_that_is_named_is_found() {
        let texts = [
            ("HealthID", "NHS number 943 476 5919", "pii-uk-nhs"),
            ("BankCode", "SWIFT/BIC code DEUTDEFF500", "pii-swift-bic"),
            ("NetworkAddress", "the host 81.2.69.142 answers", "network-ip-address"),
        ];
        for (word, text, tag) in texts {
            let kind: PiiKind = serde_json::from_value(word.into()).expect("a word of the schema");
            let spec = PiiSpec { kinds: kinds_of(kind), on_unknown: OnUnknown::AddTag, scopes: Scopes::ALL };
            let scanner = Scanner::compile(&[Builtin::Pii(spec)]).expect("it compiles");
            let piece = predictor::classify::Piece { scope: Scope::User, text };
            let mut scratch = predictor::classify::Scratch::default();
            let tags = scanner.scan(&mut scratch, [piece], &predictor::classify::Shape::default()).tags();
            let found: Vec<&str> = tags.iter().filter_map(|tag| scanner.tag_name(tag)).collect();
            assert!(found.contains(&tag), "{word}: {found:?}");
        }
    }

    #[test]
    fn both_lists_of_a_tag_count() {
        let set = snapshot("heron], all: [wader");
        let asked = builtins_of(&set.classifiers[0]).expect("no file is read");
        let [Builtin::Keywords(spec)] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!(
            (spec.words.clone(), spec.quorum),
            (vec!["wader".into(), "heron".into()], Quorum::AllAndAny { all: 1, any: 1 })
        );
    }

    fn scanner_of_pool(tagger: &Tagger) -> &Arc<Scanner> {
        &tagger.active().expect("the rule asks for a tag").scanner
    }

    #[test]
    fn what_is_compiled_is_shared_by_pools_and_plans_until_it_changes() {
        let set = snapshot("heron");
        let (first, faults) = Tagger::for_pools(&set, &[]);
        assert!(faults.is_empty());
        assert!(Arc::ptr_eq(scanner_of_pool(&first[0]), scanner_of_pool(&first[1])), "two pools, one scanner");
        let again = snapshot("heron");
        let (again, _) = Tagger::for_pools(&again, &first);
        assert!(Arc::ptr_eq(scanner_of_pool(&first[0]), scanner_of_pool(&again[0])), "a plan made anew");
        let changed = snapshot("egret");
        let (changed, _) = Tagger::for_pools(&changed, &again);
        assert!(!Arc::ptr_eq(scanner_of_pool(&first[0]), scanner_of_pool(&changed[0])), "another word");
    }
}
