//! Tenants and classifiers: who calls, and what is known of their prompts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crds::Document;
use crds::classifier::{ClassifierTag, ClassifierType, InferenceClassifierSpec, OnError as WrittenOnError};
use crds::secret::SecretValue;
use crds::tenant::{ApiKey, InferenceTenantSpec};
use policy::{Code, Diagnostic};
use predictor::classify::{Boundary, Builtin, ExamplesSpec, KEYWORDS_MAX, KeywordsSpec, Quorum, RegexSpec, Scopes};
use sha2::{Digest, Sha256};

use super::Checked;
use super::destinations::{credential, is_loopback, rate_limits};
use crate::node::Path;
use crate::secret::Lookup;
use crate::snapshot::{
    Classifier, ClassifierKind, ExampleTag, Jwt, KeySource, KeywordTag, OnError, Scope, Snapshot, Tenant, Tls,
    WordBoundary, comparable_name,
};
use crate::url::parse_base_url;

pub(super) fn tenant(
    c: &Checked,
    spec: &InferenceTenantSpec,
    lookup: &Lookup<'_>,
    findings: &mut Vec<Diagnostic>,
) -> Tenant {
    let mut key_sha256 = Vec::new();
    for (i, key) in spec.api_keys.iter().enumerate() {
        let path = Path::spec().key("apiKeys").index(i);
        key_sha256.extend(key_hash(c, &path, key, lookup, findings));
    }
    if let Some(url) = spec.jwt.as_ref().and_then(|jwt| jwt.jwks_url.as_deref())
        && let Ok(parsed) = parse_base_url(url)
        && parsed.tls == Tls::No
        && !is_loopback(&parsed)
    {
        let message = "the issuer's keys come without encryption: whoever stands between can put in keys of their own";
        let finding = c.finding(Code::PlainTextCredential, &Path::spec().key("jwt").key("jwksUrl"), message);
        findings.push(finding.expected("an `https://` URL, or `jwksFile`"));
    }
    Tenant {
        id: c.id.clone(),
        key_sha256,
        key_files: spec.api_keys.iter().filter_map(|key| key_file(c, key)).collect(),
        jwt: spec.jwt.as_ref().and_then(|jwt| {
            Some(Jwt {
                issuer: jwt.issuer.clone(),
                audience: jwt.audience.clone(),
                claim: jwt.claim.clone(),
                equals: jwt.equals.clone(),
                keys: match (&jwt.jwks_file, &jwt.jwks_url) {
                    (Some(file), _) => KeySource::File(c.beside(file)),
                    (None, Some(url)) => KeySource::Url(url.clone()),
                    // The schema check has told of it.
                    (None, None) => return None,
                },
            })
        }),
        client_certificate_san: spec.client_certificate.as_ref().map(|cert| cert.san.clone()),
        limits: rate_limits(&spec.limits),
        priority: spec.priority,
    }
}

/// The file of a key, to be watched.
fn key_file(c: &Checked, key: &ApiKey) -> Option<PathBuf> {
    key.from_file.as_ref().map(|file| c.beside(file))
}

/// The hash of a key, written or computed; `None` when the key cannot be found.
fn key_hash(
    c: &Checked,
    path: &Path,
    key: &ApiKey,
    lookup: &Lookup<'_>,
    findings: &mut Vec<Diagnostic>,
) -> Option<[u8; 32]> {
    if let Some(hex) = &key.sha256 {
        return hex_32(hex);
    }
    let ApiKey { sha256: _, from_env, from_file, secret_ref } = key.clone();
    let written = SecretValue { from_env, from_file, secret_ref };
    let found = credential(c, path, &written, "nobody is known by this key", lookup, findings)?;
    found.value.ok().map(|secret| Sha256::digest(secret.expose().as_bytes()).into())
}

fn hex_32(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// A key must name one tenant.
pub(super) fn check_keys(snapshot: &Snapshot, checked: &[Checked], findings: &mut Vec<Diagnostic>) {
    let mut owner: BTreeMap<[u8; 32], &Tenant> = BTreeMap::new();
    for tenant in &snapshot.tenants {
        for key in &tenant.key_sha256 {
            if let Some(first) = owner.insert(*key, tenant).filter(|first| first.id != tenant.id) {
                let document = checked.iter().find(|c| c.id == tenant.id && matches!(c.document, Document::Tenant(_)));
                let message = format!("one of the keys also belongs to the tenant `{}`", first.id);
                findings
                    .extend(document.map(|c| c.finding(Code::DuplicateName, &Path::spec().key("apiKeys"), message)));
            }
        }
    }
}

/// A certificate must name one tenant.
pub(super) fn check_certificates(snapshot: &Snapshot, checked: &[Checked], findings: &mut Vec<Diagnostic>) {
    let mut owner: BTreeMap<String, &Tenant> = BTreeMap::new();
    for tenant in &snapshot.tenants {
        let Some(name) = &tenant.client_certificate_san else { continue };
        if let Some(first) = owner.insert(comparable_name(name), tenant) {
            let document = checked.iter().find(|c| c.id == tenant.id && matches!(c.document, Document::Tenant(_)));
            let message = format!("the same name also belongs to the tenant `{}`", first.id);
            let path = Path::spec().key("clientCertificate").key("san");
            findings.extend(document.map(|c| c.finding(Code::DuplicateName, &path, message)));
        }
    }
}

/// A token must name one tenant: as far as that can be told from what they ask of it.
pub(super) fn check_tokens(snapshot: &Snapshot, checked: &[Checked], findings: &mut Vec<Diagnostic>) {
    let mut owner: BTreeMap<[&str; 4], &Tenant> = BTreeMap::new();
    for tenant in &snapshot.tenants {
        let Some(jwt) = &tenant.jwt else { continue };
        let audience = jwt.audience.as_deref().unwrap_or_default();
        if let Some(first) = owner.insert([&jwt.issuer, audience, &jwt.claim, &jwt.equals], tenant) {
            let document = checked.iter().find(|c| c.id == tenant.id && matches!(c.document, Document::Tenant(_)));
            let message = format!("the same tokens also belong to the tenant `{}`", first.id);
            let path = Path::spec().key("jwt").key("equals");
            findings.extend(document.map(|c| c.finding(Code::DuplicateName, &path, message)));
        }
    }
}

pub(super) fn classifier(
    c: &Checked,
    spec: &InferenceClassifierSpec,
    findings: &mut Vec<Diagnostic>,
) -> Option<Classifier> {
    check_fields(c, spec, findings);
    let on_error = match (spec.on_error, spec.classifier) {
        (Some(WrittenOnError::AddTag), _) => OnError::AddTag,
        (Some(WrittenOnError::Ignore), _) => OnError::Ignore,
        (None, ClassifierType::HTTP) => {
            let message = "an HTTP classifier must say what happens when the service does not answer";
            let finding = c.finding(Code::MissingField, &Path::spec().key("onError"), message);
            findings.push(finding.expected("`AddTag` or `Ignore`"));
            return None;
        }
        (
            None,
            ClassifierType::PII
            | ClassifierType::Complexity
            | ClassifierType::Secrets
            | ClassifierType::Keywords
            | ClassifierType::Regex
            | ClassifierType::Examples,
        ) => OnError::AddTag,
    };
    let scope = spec.scope.iter().map(|s| match s {
        crds::classifier::Scope::System => Scope::System,
        crds::classifier::Scope::User => Scope::User,
        crds::classifier::Scope::Assistant => Scope::Assistant,
        crds::classifier::Scope::Tool => Scope::Tool,
    });
    Some(Classifier { id: c.id.clone(), kind: kind(c, spec, findings)?, scope: scope.collect(), on_error })
}

fn kind(c: &Checked, spec: &InferenceClassifierSpec, findings: &mut Vec<Diagnostic>) -> Option<ClassifierKind> {
    Some(match spec.classifier {
        ClassifierType::PII => ClassifierKind::Pii { kinds: spec.kinds.clone() },
        ClassifierType::Secrets => ClassifierKind::Secrets,
        ClassifierType::Complexity => {
            ClassifierKind::Complexity { model_file: spec.model_file.as_ref().map(|f| c.beside(f)) }
        }
        ClassifierType::Keywords => {
            for (i, tag) in spec.tags.iter().enumerate() {
                for (field, words) in [("any", &tag.any), ("all", &tag.all)].into_iter().filter(|(_, w)| !w.is_empty())
                {
                    let (tag, words) = (tag.tag.clone(), words.clone());
                    let (quorum, boundary) = (Quorum::Any(1), Boundary::Word);
                    let builtin = Builtin::Keywords(KeywordsSpec { tag, words, quorum, boundary, scopes: Scopes::ALL });
                    findings.extend(oversize(c, i, &builtin, |_| field));
                }
                if tag.any.len() <= KEYWORDS_MAX && tag.all.len() <= KEYWORDS_MAX {
                    findings.extend(too_many_words(c, i, tag));
                }
            }
            ClassifierKind::Keywords { tags: spec.tags.iter().map(keyword_tag).collect() }
        }
        ClassifierType::Regex => {
            for (i, tag) in spec.tags.iter().enumerate() {
                let mut bad = false;
                for (j, pattern) in tag.patterns.iter().enumerate() {
                    if let Err(reason) = policy::HeaderTest::regex(pattern) {
                        let path = Path::spec().key("tags").index(i).key("patterns").index(j);
                        findings.push(c.finding(
                            Code::BadRegex,
                            &path,
                            format!("the expression does not compile: {reason}"),
                        ));
                        bad = true;
                    }
                }
                if !bad && !tag.patterns.is_empty() {
                    let (tag, patterns) = (tag.tag.clone(), tag.patterns.clone());
                    let builtin = Builtin::Regex(RegexSpec { tag, patterns, scopes: Scopes::ALL });
                    findings.extend(oversize(c, i, &builtin, |_| "patterns"));
                }
            }
            let tags = spec.tags.iter().map(|t| (t.tag.clone(), t.patterns.clone()));
            ClassifierKind::Regex { tags: tags.collect() }
        }
        ClassifierType::Examples => {
            for (i, tag) in
                spec.tags.iter().enumerate().filter(|(_, t)| !t.positive.is_empty() && !t.negative.is_empty())
            {
                let (tag, positive, negative) = (tag.tag.clone(), tag.positive.clone(), tag.negative.clone());
                let builtin = Builtin::Examples(ExamplesSpec { tag, positive, negative, scopes: Scopes::ALL });
                let side = |field: &str| if field.starts_with("positive") { "positive" } else { "negative" };
                findings.extend(oversize(c, i, &builtin, side));
            }
            let tags = spec.tags.iter().map(|t| ExampleTag {
                tag: t.tag.clone(),
                positive: t.positive.clone(),
                negative: t.negative.clone(),
            });
            ClassifierKind::Examples { tags: tags.collect() }
        }
        ClassifierType::HTTP => {
            let http = spec.http.as_ref()?;
            ClassifierKind::Http {
                url: parse_base_url(&http.url).ok()?,
                timeout: http.timeout.0,
                in_flight_max: http.max_in_flight,
                cache_entries_max: http.cache,
                tags: spec.tags.iter().map(|t| t.tag.clone()).collect(),
            }
        }
    })
}

/// That the two lists of a tag are together more words than one classifier can hold.
fn too_many_words(c: &Checked, index: usize, tag: &ClassifierTag) -> Option<Diagnostic> {
    let words = tag.any.len() + tag.all.len();
    (words > KEYWORDS_MAX).then(|| {
        let message = format!("`any` and `all` have {words} words together, of at most {KEYWORDS_MAX}");
        c.finding(Code::OutOfRange, &Path::spec().key("tags").index(index), message)
    })
}

/// What of the tag at `index` is more than a classifier can hold: too many words, patterns or sentences, or too long ones. `field` names the
/// document's field for that of the compiler.
fn oversize(c: &Checked, index: usize, builtin: &Builtin, field: impl Fn(&str) -> &'static str) -> Option<Diagnostic> {
    let error = builtin.check().err()?;
    let path = Path::spec().key("tags").index(index);
    if error.field == "tag" {
        return Some(c.finding(Code::OutOfRange, &path.key("tag"), error.reason));
    }
    let path = path.key(field(&error.field));
    let place = error.field.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']')?.parse::<usize>().ok());
    let path = match place {
        Some(place) => path.index(place),
        None => path,
    };
    Some(c.finding(Code::OutOfRange, &path, error.reason))
}

fn keyword_tag(tag: &ClassifierTag) -> KeywordTag {
    KeywordTag {
        tag: tag.tag.clone(),
        any: tag.any.clone(),
        all: tag.all.clone(),
        count_min: tag.min_count,
        boundary: if tag.whole_word { WordBoundary::Whole } else { WordBoundary::Anywhere },
    }
}

/// Fields that make no sense for the type, and those the type cannot do without.
fn check_fields(c: &Checked, spec: &InferenceClassifierSpec, findings: &mut Vec<Diagnostic>) {
    let kind = spec.classifier;
    let tagged = matches!(
        kind,
        ClassifierType::Keywords | ClassifierType::Regex | ClassifierType::Examples | ClassifierType::HTTP
    );
    let rows = [
        ("kinds", !spec.kinds.is_empty(), kind == ClassifierType::PII, Need::May),
        ("modelFile", spec.model_file.is_some(), kind == ClassifierType::Complexity, Need::May),
        ("http", spec.http.is_some(), kind == ClassifierType::HTTP, Need::Must),
        ("tags", !spec.tags.is_empty(), tagged, Need::Must),
    ];
    for (field, given, sensible, need) in rows {
        let path = Path::spec().key(field);
        if given && !sensible {
            let message = format!("`{field}` makes no sense for the type {kind:?}");
            findings.push(c.finding(Code::UnknownField, &path, message));
        } else if sensible && !given && need == Need::Must {
            let message = format!("the type {kind:?} needs `{field}`");
            findings.push(c.finding(Code::MissingField, &path, message));
        }
    }
    for (i, tag) in spec.tags.iter().enumerate() {
        let path = Path::spec().key("tags").index(i);
        if spec.tags.iter().take(i).any(|earlier| earlier.tag == tag.tag) {
            let message = format!("the tag `{}` is here twice", tag.tag);
            findings.push(c.finding(Code::DuplicateName, &path.key("tag"), message));
        }
        let missing = match kind {
            ClassifierType::Keywords if tag.any.is_empty() && tag.all.is_empty() => "`any` or `all`",
            ClassifierType::Regex if tag.patterns.is_empty() => "`patterns`",
            ClassifierType::Examples if tag.positive.is_empty() || tag.negative.is_empty() => {
                "`positive` and `negative`"
            }
            ClassifierType::Keywords
            | ClassifierType::Regex
            | ClassifierType::Examples
            | ClassifierType::PII
            | ClassifierType::Complexity
            | ClassifierType::Secrets
            | ClassifierType::HTTP => continue,
        };
        findings.push(c.finding(Code::MissingField, &path, format!("a tag of the type {kind:?} needs {missing}")));
    }
}

/// Whether a field may or must be given where it makes sense.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    May,
    Must,
}
