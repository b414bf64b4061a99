//! Warnings about classifiers: such that never run, and examples that tell nothing apart.

use crds::Document;
use policy::{Code, Diagnostic};
use predictor::classify::{Accuracy, ExamplesSpec, Scopes, leave_one_out};

use super::Checked;
use crate::node::Path;
use crate::snapshot::{Classifier, ClassifierKind, ExampleTag, OnError, ResourceId, Snapshot};

/// Share of sentences that the others must judge rightly. Guessing gives a half.
const ACCURACY_RATIO_MIN: f64 = 0.8;

pub(super) fn warn(checked: &[Checked], snapshot: &Snapshot, findings: &mut Vec<Diagnostic>) {
    for classifier in &snapshot.classifiers {
        let Some(c) = checked.iter().find(|c| c.id == classifier.id && matches!(c.document, Document::Classifier(_)))
        else {
            continue;
        };
        unused(c, classifier, snapshot, findings);
        unread(c, classifier, snapshot, findings);
        findings.extend(idle_scope(c, classifier));
        match &classifier.kind {
            ClassifierKind::Examples { tags } => {
                tags.iter().enumerate().for_each(|(i, tag)| findings.extend(poor(c, i, tag)));
            }
            ClassifierKind::Pii { .. }
            | ClassifierKind::Secrets
            | ClassifierKind::Complexity { .. }
            | ClassifierKind::Keywords { .. }
            | ClassifierKind::Regex { .. }
            | ClassifierKind::Http { .. } => {}
        }
    }
}

fn unused(c: &Checked, classifier: &Classifier, snapshot: &Snapshot, findings: &mut Vec<Diagnostic>) {
    let mut pools = snapshot.pools.iter().filter(|pool| pool.id.namespace == classifier.id.namespace).peekable();
    if pools.peek().is_some() && !pools.any(|pool| classifier.runs_for(&pool.program)) {
        let path = Path::default().key("metadata").key("name");
        let message =
            format!("no rule of an attached policy refers to a tag of `{}`: it never runs", classifier.id.name);
        findings.push(c.finding(Code::ClassifierUnused, &path, message));
    }
}

/// That what cannot be read, and so may be personal, can leave the cluster.
fn unread(c: &Checked, classifier: &Classifier, snapshot: &Snapshot, findings: &mut Vec<Diagnostic>) {
    let personal = |c: &Classifier| matches!(c.kind, ClassifierKind::Pii { .. });
    let namespace = &classifier.id.namespace;
    // One that adds the tag does so for all of the namespace.
    let kept = snapshot
        .classifiers
        .iter()
        .any(|c| c.id.namespace == *namespace && personal(c) && c.on_error == OnError::AddTag);
    if !personal(classifier) || kept {
        return;
    }
    let mut pools = snapshot.pools.iter().filter(|pool| pool.id.namespace == *namespace);
    if let Some(pool) = pools.find(|pool| pool.program.external_in_play()) {
        let message = format!(
            "a prompt that cannot be read (an image, token ids, bytes that are no text) gets no tag with `onError: Ignore`, and \
             requests of the pool `{}` can leave the cluster: whatever keeps `pii` Local does not keep such a prompt; leave \
             `onError` out, or write `AddTag`",
            pool.id.name
        );
        findings.push(c.finding(Code::PersonalDataMayLeave, &Path::spec().key("onError"), message));
    }
}

/// A scope of a classifier that reads the last turn of the user, whatever is written.
fn idle_scope(c: &Checked, classifier: &Classifier) -> Option<Diagnostic> {
    let complexity = matches!(classifier.kind, ClassifierKind::Complexity { .. });
    (complexity && !classifier.scope.is_empty()).then(|| {
        let message = "`scope` has no effect with the type Complexity: it reads the last turn of the user";
        c.finding(Code::NoEffect, &Path::spec().key("scope"), message)
    })
}

/// How well the sentences of each tag of `snapshot` tell each other apart, with the classifier and the tag.
pub fn example_accuracies(snapshot: &Snapshot) -> impl Iterator<Item = (&ResourceId, &str, Accuracy)> {
    snapshot.classifiers.iter().flat_map(|classifier| {
        let tags = match &classifier.kind {
            ClassifierKind::Examples { tags } => tags.as_slice(),
            ClassifierKind::Pii { .. }
            | ClassifierKind::Secrets
            | ClassifierKind::Complexity { .. }
            | ClassifierKind::Keywords { .. }
            | ClassifierKind::Regex { .. }
            | ClassifierKind::Http { .. } => &[],
        };
        tags.iter().map(|tag| (&classifier.id, tag.tag.as_str(), accuracy(tag)))
    })
}

fn accuracy(tag: &ExampleTag) -> Accuracy {
    let (positive, negative) = (tag.positive.clone(), tag.negative.clone());
    leave_one_out(&ExamplesSpec { tag: tag.tag.clone(), positive, negative, scopes: Scopes::ALL })
}

fn poor(c: &Checked, index: usize, tag: &ExampleTag) -> Option<Diagnostic> {
    let accuracy = accuracy(tag);
    (accuracy.ratio() < ACCURACY_RATIO_MIN).then(|| {
        let message = format!(
            "each sentence of the tag `{}` judged by all others: {} of {} come out right; give more sentences, and such that differ",
            tag.tag, accuracy.right, accuracy.all
        );
        c.finding(Code::PoorExamples, &Path::spec().key("tags").index(index), message)
    })
}
