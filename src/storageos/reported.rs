//! What one provider reported last: its namespaces, their volumes, and what that says of a volume.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use crate::api::provider_volume::{Observation, ProviderVolume};
use crate::runtime::clock::monotonic;

use super::providers::{ControlPlane, Intervals};

/// How a provider answered last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reach {
    #[default]
    NotPolled,
    Answers,
    Silent,
}

/// A provider, as it was set up and as its last lists left it.
#[derive(Default)]
pub(super) struct Provider {
    pub(super) control_plane: Option<Arc<dyn ControlPlane>>,
    pub(super) intervals: Intervals,
    pub(super) reach: Reach,
    /// By id.
    namespaces: BTreeMap<String, Namespace>,
    /// By id.
    pub(super) volumes: HashMap<String, Arc<ProviderVolume>>,
    /// Volumes that somebody asked for, whether or not there are such.
    pub(super) asked: HashSet<String>,
    /// Those of them that their namespace does not hold any more.
    gone: HashSet<String>,
    /// What was published, and when: a list that began before does not know of it.
    published: HashMap<String, (String, Instant)>,
    pub(super) round: Option<Round>,
}

/// A namespace of a provider, as its last list left it.
#[derive(Default)]
struct Namespace {
    state: Listing,
    volumes: HashSet<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listing {
    #[default]
    NotListed,
    Listed,
    Failing,
}

/// A poll, until the last of the volumes that it changed is settled.
pub(super) struct Round {
    pub(super) began: Instant,
    pub(super) pending: HashSet<String>,
    /// More may come.
    pub(super) is_open: bool,
}

impl Provider {
    pub(super) fn observe(&self, id: &str) -> Observation {
        let known = self.volumes.get(id);
        let listing = |volume: &Arc<ProviderVolume>| self.namespaces.get(&volume.namespace_id).map(|it| it.state);
        let has = |state| self.namespaces.values().any(|namespace| namespace.state == state);
        match (self.reach, known) {
            (Reach::NotPolled, _) => Observation::NotPolled,
            (Reach::Silent, known) => Observation::Unreachable(known.cloned()),
            (Reach::Answers, Some(volume)) if listing(volume) == Some(Listing::Listed) => {
                Observation::Reported(volume.clone())
            }
            (Reach::Answers, Some(volume)) => Observation::Unreachable(Some(volume.clone())),
            (Reach::Answers, None) if self.gone.contains(id) => Observation::Gone,
            // It may be in a namespace that cannot be listed.
            (Reach::Answers, None) if has(Listing::Failing) => Observation::Unreachable(None),
            (Reach::Answers, None) if has(Listing::NotListed) => Observation::NotPolled,
            (Reach::Answers, None) => Observation::Gone,
        }
    }

    pub(super) fn unasked(&mut self, id: &str) {
        self.asked.remove(id);
        self.gone.remove(id);
        if let Some(round) = &mut self.round {
            round.pending.remove(id);
        }
    }

    pub(super) fn all(&self) -> HashSet<String> {
        self.volumes.keys().chain(&self.asked).cloned().collect()
    }

    /// What was asked for and is not there: it may be in any namespace.
    fn missing(&self) -> impl Iterator<Item = String> {
        self.asked.iter().filter(|id| !self.volumes.contains_key(*id)).cloned()
    }

    pub(super) fn has_namespaces(&mut self, ids: &[String]) -> HashSet<String> {
        let mut affected = match std::mem::replace(&mut self.reach, Reach::Answers) {
            Reach::Answers => HashSet::new(),
            Reach::NotPolled | Reach::Silent => self.all(),
        };
        let current: HashSet<&String> = ids.iter().collect();
        let vanished: Vec<_> = self.namespaces.keys().filter(|id| !current.contains(id)).cloned().collect();
        for id in vanished {
            let namespace = self.namespaces.remove(&id).unwrap_or_default();
            affected.extend(namespace.volumes.iter().cloned());
            affected.extend(self.missing());
            namespace.volumes.iter().for_each(|volume| self.lose(volume));
        }
        for id in ids {
            self.namespaces.entry(id.clone()).or_default();
        }
        affected
    }

    pub(super) fn has_failed(&mut self, namespace_id: &str) -> HashSet<String> {
        let namespace = self.namespaces.entry(namespace_id.to_owned()).or_default();
        if std::mem::replace(&mut namespace.state, Listing::Failing) == Listing::Failing {
            return HashSet::new();
        }
        let volumes = namespace.volumes.clone();
        volumes.into_iter().chain(self.missing()).collect()
    }

    pub(super) fn has_volumes(
        &mut self,
        namespace_id: &str,
        volumes: Vec<ProviderVolume>,
        began: Instant,
    ) -> HashSet<String> {
        let ids = volumes.iter().map(|volume| volume.id.clone()).collect();
        let namespace = self.namespaces.entry(namespace_id.to_owned()).or_default();
        let before = std::mem::replace(namespace, Namespace { state: Listing::Listed, volumes: ids });
        let vanished: Vec<_> = before.volumes.difference(&namespace.volumes).cloned().collect();
        let mut affected = HashSet::new();
        if before.state != Listing::Listed {
            affected.extend(namespace.volumes.iter().cloned());
            affected.extend(self.missing());
        }
        for id in vanished {
            self.lose(&id);
            affected.insert(id);
        }
        for volume in volumes {
            let volume = self.as_published(volume, began);
            if self.volumes.get(&volume.id).is_some_and(|known| **known == volume) {
                continue;
            }
            self.gone.remove(&volume.id);
            affected.insert(volume.id.clone());
            self.volumes.insert(volume.id.clone(), Arc::new(volume));
        }
        affected
    }

    fn lose(&mut self, id: &str) {
        self.volumes.remove(id);
        self.published.remove(id);
        if self.asked.contains(id) {
            self.gone.insert(id.to_owned());
        }
    }

    /// The volume, with what was published since the list began.
    fn as_published(&mut self, mut volume: ProviderVolume, began: Instant) -> ProviderVolume {
        match self.published.get(&volume.id) {
            Some((endpoint, at)) if *at >= began => volume.mount_endpoint.clone_from(endpoint),
            Some(_) => drop(self.published.remove(&volume.id)),
            None => {}
        }
        volume
    }

    pub(super) fn has_published(&mut self, id: &str, endpoint: &str) {
        self.published.insert(id.to_owned(), (endpoint.to_owned(), monotonic()));
        if let Some(volume) = self.volumes.get_mut(id) {
            Arc::make_mut(volume).mount_endpoint = endpoint.to_owned();
        }
    }
}
