//! What has been read of the cluster: the newest state of each object, Secret and pod that is followed.

use std::collections::{BTreeMap, BTreeSet};

use super::item::{Item, Key, Pod, PodSelector, SecretData, Subject};
use super::set::Objects;
use crate::snapshot::ResourceId;
use crate::source::cluster::PodEndpoint;

/// The newest state of everything.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub objects: Objects,
    pub secrets: BTreeMap<ResourceId, SecretData>,
    pods: BTreeMap<PodSelector, BTreeMap<ResourceId, Pod>>,
}

/// Whether something said what was not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Yes,
    No,
}

impl Changed {
    fn when(changed: bool) -> Self {
        if changed { Changed::Yes } else { Changed::No }
    }

    fn or(self, other: Self) -> Self {
        if self == Changed::Yes { self } else { other }
    }
}

impl Known {
    /// Takes in a list: what it no longer has is gone.
    pub(super) fn list(&mut self, subject: &Subject, items: Vec<Item>) -> Changed {
        let gone = self.keep_only(subject, &items);
        items.into_iter().fold(gone, |change, item| self.put(subject, item).or(change))
    }

    fn keep_only(&mut self, subject: &Subject, items: &[Item]) -> Changed {
        match subject {
            Subject::Objects { kind, namespace } => {
                let kept: BTreeSet<&Key> = items
                    .iter()
                    .filter_map(|item| match item {
                        Item::Object(object) => Some(&object.key),
                        Item::Pod(_) | Item::Secret(_) => None,
                    })
                    .collect();
                let before = self.objects.len();
                self.objects.retain(|key, _| {
                    let listed = key.kind == *kind && (namespace.is_empty() || key.id.namespace == *namespace);
                    !listed || kept.contains(key)
                });
                Changed::when(self.objects.len() != before)
            }
            Subject::Pods(selector) => {
                self.pods.insert(selector.clone(), BTreeMap::new());
                Changed::Yes
            }
            Subject::Secret(id) => Changed::when(items.is_empty() && self.secrets.remove(id).is_some()),
        }
    }

    /// Takes in what came or changed.
    pub(super) fn put(&mut self, subject: &Subject, item: Item) -> Changed {
        match (item, subject) {
            (Item::Object(object), Subject::Objects { .. }) => {
                let same = self.objects.get(&object.key).is_some_and(|had| {
                    had.spec == object.spec && had.uid == object.uid && had.generation == object.generation
                });
                self.objects.insert(object.key.clone(), object);
                Changed::when(!same)
            }
            (Item::Pod(pod), Subject::Pods(selector)) => {
                let pods = self.pods.entry(selector.clone()).or_default();
                Changed::when(pods.insert(pod.id.clone(), pod.clone()) != Some(pod))
            }
            (Item::Secret(secret), Subject::Secret(id)) => {
                let same = self.secrets.get(id) == Some(&secret);
                self.secrets.insert(id.clone(), secret);
                Changed::when(!same)
            }
            (Item::Object(_) | Item::Pod(_) | Item::Secret(_), _) => Changed::No,
        }
    }

    /// Takes in what is gone.
    pub(super) fn remove(&mut self, subject: &Subject, item: &Item) {
        match (item, subject) {
            (Item::Object(object), Subject::Objects { .. }) => _ = self.objects.remove(&object.key),
            (Item::Pod(pod), Subject::Pods(selector)) => {
                if let Some(pods) = self.pods.get_mut(selector) {
                    pods.remove(&pod.id);
                }
            }
            (Item::Secret(_), Subject::Secret(id)) => _ = self.secrets.remove(id),
            (Item::Object(_) | Item::Pod(_) | Item::Secret(_), _) => {}
        }
    }

    /// Forgets what is no longer followed. Objects always are.
    pub(super) fn forget(&mut self, subject: &Subject) {
        match subject {
            Subject::Secret(id) => _ = self.secrets.remove(id),
            Subject::Pods(selector) => _ = self.pods.remove(selector),
            Subject::Objects { .. } => {}
        }
    }

    /// The pods of a selector that have an address, as endpoints; `None` before any were told of.
    pub(super) fn endpoints(&self, selector: &PodSelector) -> Option<Vec<PodEndpoint>> {
        let listed = self.pods.get(selector)?.values().filter_map(|pod| {
            let (name, uid) = (pod.id.name.clone(), pod.uid.clone());
            Some(PodEndpoint { name, uid, ip: pod.ip?, state: pod.state })
        });
        Some(listed.collect())
    }
}
