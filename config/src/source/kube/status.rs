//! What is told of an object in its status. Pure: what is wanted, and whether it differs from what is there.

use std::collections::BTreeMap;

use crds::Kind;
use crds::status::{Condition, Status};
use policy::{Code, Diagnostic};

use super::item::Key;
use super::set::{InForce, Verdict};
use crate::limits::STATUS_MESSAGE_BYTES_MAX;
use crate::snapshot::{DestinationKind, ResourceId, Snapshot};
use crate::source::cluster::Counts;

/// Whether the snapshot that the verdicts are about has been taken over by the data threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Over,
    NotYet,
}

/// The endpoints of each worker set and pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    worker_sets: BTreeMap<ResourceId, Counts>,
    pools: BTreeMap<ResourceId, Counts>,
}

impl Tally {
    /// Adds up what the gateway told for the destinations of a snapshot.
    pub(super) fn new(
        snapshot: &Snapshot,
        endpoints: &BTreeMap<ResourceId, Counts>,
        providers: &BTreeMap<ResourceId, Counts>,
    ) -> Self {
        let sets = snapshot.worker_sets.iter().map(|set| &set.id);
        let worker_sets: BTreeMap<ResourceId, Counts> =
            sets.map(|id| (id.clone(), endpoints.get(id).copied().unwrap_or_default())).collect();
        let pools = snapshot.pools.iter().map(|pool| {
            let counts = pool.destinations.iter().map(|destination| match destination.kind {
                DestinationKind::WorkerSet(index) => {
                    snapshot.worker_sets.get(index).and_then(|s| worker_sets.get(&s.id))
                }
                DestinationKind::Provider(index) => snapshot.providers.get(index).and_then(|p| providers.get(&p.id)),
            });
            let sum = counts.flatten().fold(Counts::default(), |sum, counts| Counts {
                ready: sum.ready.saturating_add(counts.ready),
                all: sum.all.saturating_add(counts.all),
            });
            (pool.id.clone(), sum)
        });
        Self { pools: pools.collect(), worker_sets }
    }

    fn of(&self, key: &Key) -> Option<Counts> {
        match key.kind {
            Kind::InferencePool => self.pools.get(&key.id).copied(),
            Kind::InferenceWorkerSet => self.worker_sets.get(&key.id).copied(),
            Kind::InferencePolicy
            | Kind::InferenceProvider
            | Kind::InferenceTenant
            | Kind::InferenceClassifier
            | Kind::PolicyTest => None,
        }
    }
}

/// The status an object should have. Conditions that stay keep their time; the others have `now`, by RFC 3339.
pub(super) fn wanted(key: &Key, verdict: &Verdict, tally: &Tally, taken: Taken, had: &Status, now: &str) -> Status {
    let condition = |kind: &str, (status, reason, message): (&str, &str, String)| {
        let before = had.conditions.iter().find(|condition| condition.condition == kind && condition.status == status);
        Condition {
            condition: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: shortened(&message),
            last_transition_time: before.map_or_else(|| now.to_owned(), |before| before.last_transition_time.clone()),
            observed_generation: Some(verdict.generation),
        }
    };
    let conditions = vec![
        condition("Accepted", accepted(verdict)),
        condition("ResolvedRefs", resolved(verdict)),
        condition("Programmed", programmed(key, verdict, taken)),
    ];
    let counts = tally.of(key);
    let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    Status {
        observed_generation: Some(verdict.generation),
        conditions,
        ready_endpoints: counts.map(|counts| number(counts.ready)),
        endpoints: counts.map(|counts| number(counts.all)),
    }
}

/// Status, reason and message; none is empty: some servers take an empty text for none, and refuse the whole status.
type Told = (&'static str, &'static str, String);

fn accepted(verdict: &Verdict) -> Told {
    if verdict.errors.is_empty() {
        let message = match verdict.warnings.len() {
            0 => "the object is valid".to_owned(),
            _ => format!("with warnings: {}", listed(&verdict.warnings)),
        };
        return ("True", "Accepted", message);
    }
    ("False", "Invalid", listed(&verdict.errors))
}

fn resolved(verdict: &Verdict) -> Told {
    if !verdict.errors.is_empty() {
        return ("Unknown", "Invalid", "the object is not accepted".to_owned());
    }
    match verdict.unresolved.first().map(|finding| finding.code) {
        None => ("True", "ResolvedRefs", "all that it names is there".to_owned()),
        Some(Code::SecretMissing) => ("False", "SecretNotFound", listed(&verdict.unresolved)),
        Some(_) => ("False", "RefNotFound", listed(&verdict.unresolved)),
    }
}

fn programmed(key: &Key, verdict: &Verdict, taken: Taken) -> Told {
    match (verdict.in_force, taken) {
        (InForce::Current, Taken::Over) => ("True", "Programmed", "in force".to_owned()),
        (InForce::Current, Taken::NotYet) => ("False", "Pending", "on its way into force".to_owned()),
        (InForce::Earlier(generation), _) => {
            ("False", "Invalid", format!("generation {generation}, the last good one, stays in force"))
        }
        (InForce::No, _) if verdict.errors.is_empty() && key.kind == Kind::InferencePool => {
            ("False", "RefNotFound", "the pool is not served without what it needs; see ResolvedRefs".to_owned())
        }
        (InForce::No, _) => ("False", "Invalid", "nothing of it is in force".to_owned()),
    }
}

/// Findings in one line: `spec.port: 0 is out of range; expected a whole number from 1 to 65535`.
pub(super) fn listed(findings: &[Diagnostic]) -> String {
    let texts: Vec<String> = findings.iter().map(line).collect();
    texts.join(". ")
}

/// One finding in one line.
pub(super) fn line(finding: &Diagnostic) -> String {
    let mut text = if finding.path.is_empty() { String::new() } else { format!("{}: ", finding.path) };
    text.push_str(&finding.message);
    if let Some(expected) = &finding.expected {
        text.push_str(&format!("; expected {expected}"));
    }
    if let Some(suggestion) = &finding.suggestion {
        text.push_str(&format!("; did you mean `{suggestion}`?"));
    }
    text
}

/// At most as long as a message may be, cut between characters.
pub(super) fn shortened(text: &str) -> String {
    if text.len() <= STATUS_MESSAGE_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=STATUS_MESSAGE_BYTES_MAX - 4).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{} ...", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(in_force: InForce) -> Verdict {
        Verdict { generation: 7, errors: Vec::new(), unresolved: Vec::new(), warnings: Vec::new(), in_force }
    }

    fn key(kind: Kind) -> Key {
        Key { kind, id: ResourceId { namespace: "n".into(), name: "x".into() } }
    }

    fn conditions(status: &Status) -> Vec<(&str, &str, &str)> {
        status.conditions.iter().map(|c| (c.condition.as_str(), c.status.as_str(), c.reason.as_str())).collect()
    }

    #[test]
    fn a_status_that_stays_keeps_its_times_and_equals_itself() {
        let (key, tally) = (key(Kind::InferencePool), Tally::default());
        let first = wanted(&key, &verdict(InForce::Current), &tally, Taken::Over, &Status::default(), "then");
        let second = wanted(&key, &verdict(InForce::Current), &tally, Taken::Over, &first, "now");
        assert_eq!(first, second);
        let third = wanted(&key, &verdict(InForce::Earlier(3)), &tally, Taken::Over, &second, "now");
        let times: Vec<&str> = third.conditions.iter().map(|c| c.last_transition_time.as_str()).collect();
        assert_eq!(times, ["then", "then", "now"]);
        assert_eq!(third.observed_generation, Some(7));
    }

    #[test]
    fn conditions_say_what_became_of_the_object() {
        let key = key(Kind::InferencePolicy);
        let tally = Tally::default();
        let had = Status::default();
        let mut bad = verdict(InForce::No);
        bad.errors.push(Diagnostic::new(Code::OutOfRange, "0 is out of range").at("spec.port", None).expected("more"));
        let status = wanted(&key, &bad, &tally, Taken::Over, &had, "now");
        assert_eq!(
            conditions(&status),
            [
                ("Accepted", "False", "Invalid"),
                ("ResolvedRefs", "Unknown", "Invalid"),
                ("Programmed", "False", "Invalid")
            ]
        );
        assert_eq!(status.conditions[0].message, "spec.port: 0 is out of range; expected more");
        let mut waiting = verdict(InForce::Current);
        waiting.unresolved.push(Diagnostic::new(Code::UnknownReference, "there is no InferenceWorkerSet `b`"));
        let status = wanted(&key, &waiting, &tally, Taken::NotYet, &had, "now");
        assert_eq!(
            conditions(&status),
            [
                ("Accepted", "True", "Accepted"),
                ("ResolvedRefs", "False", "RefNotFound"),
                ("Programmed", "False", "Pending")
            ]
        );
    }

    #[test]
    fn messages_are_cut_between_characters() {
        let long = "é".repeat(STATUS_MESSAGE_BYTES_MAX);
        let cut = shortened(&long);
        assert!(cut.len() <= STATUS_MESSAGE_BYTES_MAX && cut.ends_with(" ..."), "{}", cut.len());
        assert_eq!(shortened("short"), "short");
    }
}
