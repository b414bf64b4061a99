//! Which resources can be read, which cannot, and what is told of it. Pure: news in, what is to be said out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use super::item::Subject;
use super::watch::Failure;
use crate::source::cluster::Contact;

/// What a person does about definitions that are not there.
const INSTALL: &str = "install them: kinfctl schema --crds | kubectl apply --server-side -f -";

/// What is known of each resource that is followed.
#[derive(Debug)]
pub(super) struct Reach {
    /// The server's address, for people.
    server: String,
    /// Whether it has had the time in which any server answers.
    overdue: bool,
    /// Resources that were listed, and those that failed since without being reached again.
    listed: BTreeSet<Subject>,
    failing: BTreeMap<Subject, Failure>,
    /// What was last told; `None` before anything was.
    contact: Option<Contact>,
    waiting: Vec<String>,
}

impl Reach {
    /// Of a server of which nothing is known but its address.
    pub(super) fn of(server: String) -> Self {
        Self {
            server,
            overdue: false,
            listed: BTreeSet::new(),
            failing: BTreeMap::new(),
            contact: None,
            waiting: Vec::new(),
        }
    }

    /// Takes in that the time in which any server answers is over.
    pub(super) fn is_overdue(&mut self) {
        self.overdue = true;
    }

    /// Takes in a list; whether it is the first.
    pub(super) fn list(&mut self, subject: &Subject) -> bool {
        self.listed.insert(subject.clone())
    }

    /// Whether it was ever listed.
    pub(super) fn has_listed(&self, subject: &Subject) -> bool {
        self.listed.contains(subject)
    }

    /// Whether anything was heard, be it that it cannot be read.
    pub(super) fn has_heard_of(&self, subject: &Subject) -> bool {
        self.listed.contains(subject) || self.failing.contains_key(subject)
    }

    /// Takes in that a resource can be read; what is to be noted.
    pub(super) fn reached(&mut self, subject: &Subject) -> Option<String> {
        self.failing.remove(subject).map(|_| format!("{subject}: can be read again"))
    }

    /// Takes in that it cannot; what is to be noted: nothing that was noted before, and nothing that [`Reach::contact`] tells.
    pub(super) fn failed(&mut self, subject: Subject, failure: &Failure) -> Option<String> {
        let note = match failure {
            Failure::Absent | Failure::Refused(_) | Failure::Invalid(_) => Some(format!("{subject}: {failure}")),
            Failure::Expired | Failure::Away(_) => None,
        };
        let before = self.failing.insert(subject, failure.clone());
        note.filter(|_| before.as_ref() != Some(failure))
    }

    /// Forgets a resource that is no longer followed.
    pub(super) fn forget(&mut self, subject: &Subject) {
        self.listed.remove(subject);
        self.failing.remove(subject);
    }

    /// Whether the server is there, when that has changed: it is away while any of our kinds cannot be read for want of an
    /// answer.
    pub(super) fn contact(&mut self) -> Option<Contact> {
        let lost = self.failing.iter().find_map(|(subject, failure)| match (subject, failure) {
            (Subject::Objects { .. }, Failure::Away(why)) => Some(format!("{}: {subject}: {why}", self.server)),
            (Subject::Objects { .. } | Subject::Pods(_) | Subject::Secret(_), _) => None,
        });
        let contact = match (lost, &self.contact) {
            (None, Some(Contact::With)) | (Some(_), Some(Contact::Without { .. })) => return None,
            (None, Some(Contact::Without { .. }) | None) => Contact::With,
            (Some(why), Some(Contact::With) | None) => Contact::Without { since: SystemTime::now(), why },
        };
        self.contact = Some(contact.clone());
        Some(contact)
    }

    /// What holds up the first snapshot, once all of `kinds` were heard of or should have been, and when it has changed.
    pub(super) fn waiting<'s>(&mut self, kinds: impl Iterator<Item = &'s Subject> + Clone) -> Option<Vec<String>> {
        if !self.overdue && !kinds.clone().all(|subject| self.has_heard_of(subject)) {
            return None;
        }
        let mut absent = Vec::new();
        let mut reasons = BTreeSet::new();
        for subject in kinds.filter(|subject| !self.listed.contains(subject)) {
            match self.failing.get(subject) {
                Some(Failure::Absent) => absent.push(subject.to_string()),
                Some(Failure::Away(why)) => {
                    _ = reasons.insert(format!("the API server {} does not answer: {why}", self.server));
                }
                Some(failure @ (Failure::Refused(_) | Failure::Invalid(_) | Failure::Expired)) => {
                    reasons.insert(format!("{}: {subject}: {failure}", self.server));
                }
                None => _ = reasons.insert(format!("the API server {} has not answered yet", self.server)),
            }
        }
        let mut waiting: Vec<String> = reasons.into_iter().collect();
        if !absent.is_empty() {
            let listed = absent.join(", ");
            waiting.push(format!("CustomResourceDefinitions are not installed ({listed}); {INSTALL}"));
        }
        if waiting == self.waiting {
            return None;
        }
        self.waiting.clone_from(&waiting);
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use crds::Kind;

    use super::*;

    fn reach() -> Reach {
        Reach::of("https://10.0.0.1:6443".into())
    }

    fn subjects() -> Vec<Subject> {
        let kinds = [Kind::InferencePool, Kind::InferenceTenant, Kind::InferenceWorkerSet];
        kinds.map(|kind| Subject::Objects { kind, namespace: String::new() }).to_vec()
    }

    #[test]
    fn a_failure_is_noted_once_and_again_when_it_is_another() {
        let mut reach = reach();
        let subject = subjects()[0].clone();
        let refused = |why: &str| Failure::Refused(why.to_owned());
        assert_eq!(reach.failed(subject.clone(), &refused("no")).as_deref(), Some("inferencepools: no"));
        assert_eq!(reach.failed(subject.clone(), &refused("no")), None);
        assert!(reach.failed(subject.clone(), &refused("never")).is_some());
        assert_eq!(reach.reached(&subject).as_deref(), Some("inferencepools: can be read again"));
        assert_eq!(reach.reached(&subject), None);
    }

    #[test]
    fn what_is_waited_for_is_told_when_all_was_heard_of_and_again_when_it_changes() {
        let (mut reach, subjects) = (reach(), subjects());
        reach.failed(subjects[0].clone(), &Failure::Absent);
        reach.failed(subjects[1].clone(), &Failure::Absent);
        assert_eq!(reach.waiting(subjects.iter()), None);
        reach.failed(subjects[2].clone(), &Failure::Refused("forbidden".into()));
        let told = reach.waiting(subjects.iter()).expect("all were heard of");
        assert_eq!(told[0], "https://10.0.0.1:6443: inferenceworkersets: forbidden");
        assert!(
            told[1].contains("(inferencepools, inferencetenants)") && told[1].contains("kubectl apply"),
            "{told:?}"
        );
        assert_eq!(reach.waiting(subjects.iter()), None);
        subjects.iter().for_each(|subject| _ = reach.list(subject));
        assert_eq!(reach.waiting(subjects.iter()), Some(Vec::new()));
    }

    #[test]
    fn a_server_that_says_nothing_is_waited_for_by_its_address_once_it_is_overdue() {
        let (mut reach, subjects) = (reach(), subjects());
        assert_eq!(reach.waiting(subjects.iter()), None);
        reach.is_overdue();
        let told = ["the API server https://10.0.0.1:6443 has not answered yet".to_owned()];
        assert_eq!(reach.waiting(subjects.iter()).as_deref(), Some(&told[..]));
        subjects[1..].iter().for_each(|subject| _ = reach.list(subject));
        assert_eq!(reach.waiting(subjects.iter()), None, "one is still waited for");
        reach.list(&subjects[0]);
        assert_eq!(reach.waiting(subjects.iter()), Some(Vec::new()));
    }

    #[test]
    fn the_server_is_away_only_while_a_kind_of_ours_gets_no_answer() {
        let (mut reach, subjects) = (reach(), subjects());
        assert_eq!(reach.contact(), Some(Contact::With));
        reach.failed(subjects[0].clone(), &Failure::Absent);
        assert_eq!(reach.contact(), None);
        reach.failed(subjects[1].clone(), &Failure::Away("refused".into()));
        assert!(matches!(reach.contact(), Some(Contact::Without { why, .. }) if why.contains("refused")));
        reach.reached(&subjects[1]);
        assert_eq!(reach.contact(), Some(Contact::With));
    }
}
