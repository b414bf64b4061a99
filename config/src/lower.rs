//! Documents to a snapshot. The one place where configuration is judged: what passes here is in force.
//!
//! Every document is checked against its schema, then lowered on its own, then references are
//! resolved, then the rules are compiled pool by pool. All findings are gathered; with one error among
//! them there is no snapshot.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use crds::{Document, Kind};
use policy::{Code, Diagnostic, PoolDestination, Program, Rule, Severity};
use serde_json::Value;

use crate::check::{Checker, listing, nearest};
use crate::limits::{DOCUMENTS_MAX, FINDINGS_MAX};
use crate::load::{SourceFile, about_file, documents};
use crate::node::{Content, Path, RawDocument};
use crate::secret::Lookup;
use crate::snapshot::{Destination, Pool, ResourceId, ResponseModel, Snapshot};

mod classifiers;
mod destinations;
mod effect;
mod lint;
mod rules;
mod subjects;

pub use classifiers::example_accuracies;
pub(crate) use lint::unknown_tags;
pub(crate) use rules::{api, streaming};

/// A document with its nodes, for findings about it.
pub(crate) struct Checked {
    raw: RawDocument,
    document: Document,
    id: ResourceId,
}

impl Checked {
    fn finding(&self, code: Code, path: &Path, message: impl Into<String>) -> Diagnostic {
        self.raw.finding(code, path, message)
    }

    /// A file named in the document, relative to the document's folder.
    fn beside(&self, file: &str) -> PathBuf {
        let folder = std::path::Path::new(&*self.raw.file).parent().unwrap_or(std::path::Path::new(""));
        folder.join(file)
    }
}

/// Where documents come from, as far as it changes what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Files: a set is one whole, and what is referred to must be in it.
    Files,
    /// A cluster: objects come and go one by one. A destination that is not there is left out until it comes; a pool without
    /// one of its policies is not served, as it might then do what the policy forbids. There are pods for selectors.
    #[cfg_attr(not(any(test, feature = "kubernetes")), expect(dead_code, reason = "made by that source alone"))]
    Cluster,
}

impl Origin {
    /// Whether the document that a finding is about cannot be in force.
    pub(crate) fn is_fatal(self, finding: &Diagnostic) -> bool {
        let waits = match self {
            Origin::Files => false,
            Origin::Cluster => finding.code == Code::UnknownReference,
        };
        finding.severity == Severity::Error && !waits
    }
}

/// A `PolicyTest` document, with its nodes for findings about its cases.
#[derive(Clone, Debug)]
pub struct TestDocument {
    /// The nodes.
    pub raw: RawDocument,
    /// The test.
    pub test: crds::document::PolicyTest,
}

/// What a set of files says.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What would be in force, with the warnings.
    pub snapshot: Snapshot,
    /// The policy tests among the documents.
    pub tests: Vec<TestDocument>,
}

/// Reads a set of files into one snapshot.
///
/// # Errors
/// Every finding, warnings too, ordered by place, when one of them is an error.
pub fn load(files: &[SourceFile], lookup: &Lookup<'_>) -> Result<Loaded, Vec<Diagnostic>> {
    let mut findings = Vec::new();
    let mut raw = Vec::new();
    for file in files {
        raw.append(&mut documents(file, &mut findings));
    }
    if raw.len() > DOCUMENTS_MAX
        && let Some(file) = files.first()
    {
        let message = format!("there are {} documents; at most {DOCUMENTS_MAX} are possible", raw.len());
        findings.push(about_file(Code::OverLimit, &file.name, message));
        return Err(findings);
    }
    let mut broken = Vec::new();
    let mut checked = check_all(raw, &mut broken, &mut findings);
    let tests = checked
        .extract_if(.., |c| c.document.kind() == Kind::PolicyTest)
        .filter_map(|c| match c.document {
            Document::Test(test) => Some(TestDocument { raw: c.raw, test }),
            Document::Policy(_)
            | Document::Pool(_)
            | Document::WorkerSet(_)
            | Document::Provider(_)
            | Document::Tenant(_)
            | Document::Classifier(_) => None,
        })
        .collect();
    let mut snapshot = lower(&checked, lookup, Origin::Files, &mut findings);
    drop_echoes(&broken, &mut findings);
    settle(&mut findings);
    if findings.iter().any(|f| f.severity == Severity::Error) {
        return Err(findings);
    }
    snapshot.warnings = findings;
    Ok(Loaded { snapshot, tests })
}

/// Lowers documents of a cluster, each of which may fail for itself. With a finding that is fatal by [`Origin::is_fatal`] the
/// snapshot lacks what it is about, and is not to be used before that document was left out.
#[cfg(any(test, feature = "kubernetes"))]
pub(crate) fn load_objects(raw: Vec<RawDocument>, lookup: &Lookup<'_>) -> (Snapshot, Vec<Diagnostic>) {
    let mut findings = Vec::new();
    let checked = check_all(raw, &mut Vec::new(), &mut findings);
    let snapshot = lower(&checked, lookup, Origin::Cluster, &mut findings);
    (snapshot, findings)
}

/// Drops what is only the echo of another finding: a reference to a document that is there and broken, or that stands behind
/// a syntax error. Whoever mends the document mends the reference.
fn drop_echoes(broken: &[String], findings: &mut Vec<Diagnostic>) {
    let unread = findings.iter().any(|f| f.code == Code::Syntax);
    findings.retain(|f| {
        let names_broken = || broken.iter().any(|name| f.message.contains(&format!("`{name}`")));
        f.code != Code::UnknownReference || !(unread || names_broken())
    });
}

/// Orders findings by place, drops repetitions, and keeps no more than a person reads.
pub(crate) fn settle(findings: &mut Vec<Diagnostic>) {
    findings.sort_by(|a, b| (&a.span, a.code, &a.path, &a.message).cmp(&(&b.span, b.code, &b.path, &b.message)));
    findings.dedup();
    if findings.len() > FINDINGS_MAX {
        // Errors are kept before warnings: dropping the last error would put a broken set in force.
        findings.sort_by_key(|f| f.severity);
        let more = findings.len() - FINDINGS_MAX;
        findings.truncate(FINDINGS_MAX);
        let severity = findings.first().map_or(Severity::Warning, |f| f.severity);
        let mut last = Diagnostic::new(Code::OverLimit, format!("and {more} more findings"));
        last.severity = severity;
        findings.push(last);
    }
}

/// The schemas, made once: a process reads its documents again and again.
static SCHEMAS: LazyLock<BTreeMap<Kind, Value>> =
    LazyLock::new(|| Kind::ALL.into_iter().map(|k| (k, crds::schema::document(k))).collect());

/// Schema and kind of every document; those that pass, read; the names of the others go to `broken`.
fn check_all(raw: Vec<RawDocument>, broken: &mut Vec<String>, findings: &mut Vec<Diagnostic>) -> Vec<Checked> {
    let mut checker = Checker::default();
    let mut checked: Vec<Checked> = Vec::new();
    for raw in raw {
        let name = raw.root.field("metadata").and_then(|metadata| metadata.field("name")?.text());
        let name = name.unwrap_or_default().to_owned();
        let Some(kind) = kind_of(&raw, findings) else {
            broken.push(name);
            continue;
        };
        let before = findings.len();
        if let Some(schema) = SCHEMAS.get(&kind) {
            checker.check(&raw, schema, findings);
        }
        if findings.len() > before {
            broken.push(name);
            continue;
        }
        match Document::from_value(kind, raw.root.to_value()) {
            Ok(document) => {
                let metadata = document.metadata();
                let id = ResourceId { namespace: metadata.namespace.clone(), name: metadata.name.clone() };
                checked.push(Checked { raw, document, id });
            }
            Err(error) => findings.push(raw.finding(Code::WrongType, &Path::default(), error.to_string())),
        }
    }
    checked.sort_by(|a, b| (a.document.kind(), &a.id).cmp(&(b.document.kind(), &b.id)));
    for pair in checked.windows(2) {
        if let [first, second] = pair
            && first.document.kind() == second.document.kind()
            && first.id == second.id
            && first.document.kind() != Kind::PolicyTest
        {
            let at = &first.raw;
            let place = at.root.place_of(&Path::default().key("metadata").key("name")).in_file(&at.file);
            let kind = second.document.kind();
            let message = format!("there are two {kind} of the name `{}`; the other is at {place}", second.id);
            findings.push(second.finding(Code::DuplicateName, &Path::default().key("metadata").key("name"), message));
        }
    }
    checked
}

fn kind_of(raw: &RawDocument, findings: &mut Vec<Diagnostic>) -> Option<Kind> {
    let path = Path::default().key("kind");
    let names = || Kind::ALL.into_iter().map(Kind::as_str);
    if !matches!(raw.root.content, Content::Mapping(_)) {
        let message = format!("a document is a mapping with a `kind`, found {}", raw.root.describe());
        findings.push(raw.finding(Code::UnknownKind, &path, message).expected("a mapping"));
        return None;
    }
    let Some(node) = raw.root.field("kind") else {
        let message = "the document has no `kind`";
        findings.push(raw.finding(Code::UnknownKind, &path, message).expected(listing(names())));
        return None;
    };
    let kind = node.text().and_then(Kind::from_name);
    if kind.is_none() {
        let message = format!("{} is not a kind of this product", node.describe());
        let finding = raw.finding(Code::UnknownKind, &path, message).expected(listing(names()));
        findings.push(finding.suggest(node.text().and_then(|text| nearest(text, names()))));
    }
    let version = raw.root.field("apiVersion");
    if let Some(node) = version.filter(|n| n.text() != Some(crds::API_VERSION)) {
        let message = format!("{} is not a version this product understands", node.describe());
        let finding = raw.finding(Code::UnknownApiVersion, &Path::default().key("apiVersion"), message);
        findings.push(finding.suggest(Some(crds::API_VERSION)));
        return None;
    }
    kind
}

/// Lowers documents that passed the schema. The result is in force only when no error was found.
fn lower(checked: &[Checked], lookup: &Lookup<'_>, origin: Origin, findings: &mut Vec<Diagnostic>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    // `checked` is ordered by kind and id, so every list comes out ordered.
    for c in checked {
        match &c.document {
            Document::WorkerSet(r) => {
                snapshot.worker_sets.push(destinations::worker_set(c, &r.spec, lookup, findings));
            }
            Document::Provider(r) => snapshot.providers.extend(destinations::provider(c, &r.spec, lookup, findings)),
            Document::Tenant(r) => snapshot.tenants.push(subjects::tenant(c, &r.spec, lookup, findings)),
            Document::Classifier(r) => snapshot.classifiers.extend(subjects::classifier(c, &r.spec, findings)),
            Document::Policy(_) | Document::Pool(_) | Document::Test(_) => {}
        }
    }
    subjects::check_keys(&snapshot, checked, findings);
    subjects::check_certificates(&snapshot, checked, findings);
    subjects::check_tokens(&snapshot, checked, findings);
    let policies: BTreeMap<&ResourceId, rules::Policy<'_>> = checked
        .iter()
        .filter_map(|c| match &c.document {
            Document::Policy(r) => Some((&c.id, rules::Policy::new(c, &r.spec))),
            Document::Pool(_)
            | Document::WorkerSet(_)
            | Document::Provider(_)
            | Document::Tenant(_)
            | Document::Classifier(_)
            | Document::Test(_) => None,
        })
        .collect();
    for policy in policies.values() {
        policy.check(&snapshot, findings);
    }
    for c in checked {
        if let Document::Pool(r) = &c.document {
            snapshot.pools.extend(pool(c, &r.spec, &snapshot, &policies, findings));
        }
    }
    if !findings.iter().any(|f| origin.is_fatal(f)) {
        lint::warn(&snapshot, &policies, findings);
        classifiers::warn(checked, &snapshot, findings);
        effect::warn(checked, origin, findings);
        effect::idle_priorities(&snapshot, checked, findings);
        if snapshot.pools.is_empty() && !checked.is_empty() {
            let message = "there is no InferencePool: every request is refused";
            findings.push(Diagnostic::new(Code::NothingServed, message));
        }
    }
    snapshot.indexed()
}

fn pool(
    c: &Checked,
    spec: &crds::pool::InferencePoolSpec,
    snapshot: &Snapshot,
    policies: &BTreeMap<&ResourceId, rules::Policy<'_>>,
    findings: &mut Vec<Diagnostic>,
) -> Option<Pool> {
    let mut destinations: Vec<Destination> = Vec::new();
    for (i, reference) in spec.destinations.iter().enumerate() {
        let path = Path::spec().key("destinations").index(i);
        match rules::resolve(snapshot, &c.id.namespace, reference) {
            Ok(kind) if destinations.iter().any(|d| d.kind == kind) => {
                let message = format!("the destination `{}` is here twice", reference.name);
                findings.push(c.finding(Code::DuplicateName, &path, message));
            }
            Ok(kind) => destinations.push(Destination { kind, name: reference.name.clone() }),
            Err(finding) => findings.push(finding.about(c, &path.key("name"))),
        }
    }
    let mut attached = Vec::new();
    for (i, reference) in spec.policy_ref.iter().enumerate() {
        let path = Path::spec().key("policyRef").index(i).key("name");
        let id = ResourceId { namespace: c.id.namespace.clone(), name: reference.name.clone() };
        match policies.get(&id) {
            Some(_) if spec.policy_ref.iter().take(i).any(|earlier| earlier.name == reference.name) => {
                let message = format!("the policy `{}` is here twice", reference.name);
                findings.push(c.finding(Code::DuplicateName, &path, message));
            }
            Some(policy) => attached.push(policy),
            None => {
                let names = policies.keys().filter(|p| p.namespace == id.namespace).map(|p| p.name.as_str());
                let message = format!("there is no InferencePolicy `{}` in namespace `{}`", id.name, id.namespace);
                let finding = c.finding(Code::UnknownReference, &path, message);
                findings.push(finding.suggest(nearest(&id.name, names)));
            }
        }
    }
    if attached.len() < spec.policy_ref.len() {
        return None;
    }
    let shape = shape(&destinations, snapshot);
    let rules: Vec<Rule> = attached.iter().flat_map(|p| p.bind(&shape)).collect();
    match Program::new(shape, rules) {
        Ok(program) => {
            let response_model = match spec.response_model {
                crds::pool::ResponseModel::Requested => ResponseModel::Requested,
                crds::pool::ResponseModel::Actual => ResponseModel::Actual,
            };
            Some(Pool { id: c.id.clone(), destinations, program, response_model })
        }
        Err(error) => {
            findings.push(c.finding(Code::OverLimit, &Path::spec().key("policyRef"), error.to_string()));
            None
        }
    }
}

/// What a program must know of a pool's destinations.
fn shape(destinations: &[Destination], snapshot: &Snapshot) -> Vec<PoolDestination> {
    destinations
        .iter()
        .map(|d| PoolDestination {
            name: d.name.clone(),
            backend: d.kind.backend(),
            models: snapshot.models(d.kind).iter().map(|m| m.names.clone()).collect(),
        })
        .collect()
}
