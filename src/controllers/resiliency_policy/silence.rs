//! How long each kubelet has been silent, by our own monotonic clock: never by the time stamps of another machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use crate::api::slim::{Lease, Node};
use crate::api::time;

use super::evidence::Silence;
use super::heartbeat::Heartbeat;

/// Time within which half of the other Leases must have moved for the watch to be proved live; kubelets renew every
/// 10 s.
const PROOF_OF_LIFE: Duration = Duration::from_secs(12);

/// Whether the API has the Lease of a node as it was seen when that silence was told. What the watch brings while the API is
/// read is no measure: nobody has decided on it.
pub fn is_still(live: Option<&Lease>, silence: Silence) -> bool {
    live.and_then(Lease::renewed_at) == silence.renewed_at
}

/// A fencer renews its Lease every 5 s and loses it after 15 s.
const FENCER_SILENT_AFTER: Duration = Duration::from_secs(20);

/// Which fencers are heard of, by their Leases. A released Lease does not move either.
#[derive(Clone, Debug, Default)]
pub struct FencerTracker {
    leases: BTreeMap<String, FencerSeen>,
    term: Option<u64>,
}

#[derive(Clone, Debug)]
struct FencerSeen {
    renewed: Option<MicroTime>,
    /// When it last moved, or was found.
    moved: Instant,
    /// It was seen to move in this leadership term, not only found.
    has_moved: bool,
}

impl FencerTracker {
    /// Takes in what the store holds. In a new leadership term a Lease that is another one than it was is only found: nobody was
    /// looking.
    pub fn update<'a>(&mut self, leases: impl IntoIterator<Item = (&'a str, &'a Lease)>, term: u64, now: Instant) {
        let was_looking = self.term.replace(term) == Some(term);
        let before = std::mem::take(&mut self.leases);
        for (name, lease) in leases {
            let renewed = lease.spec.renew_time.clone();
            let known = before.get(name);
            let seen = match known.filter(|seen| seen.renewed == renewed) {
                Some(seen) => FencerSeen { renewed, moved: seen.moved, has_moved: seen.has_moved && was_looking },
                None => FencerSeen { renewed, moved: now, has_moved: known.is_some() && was_looking },
            };
            self.leases.insert(name.to_owned(), seen);
        }
    }

    /// Whether the Lease of that name was seen to move. That of a fencer which is gone is found as well.
    pub fn has_moved(&self, lease: &str) -> bool {
        self.leases.get(lease).is_some_and(|seen| seen.has_moved)
    }

    /// Those whose Lease is there, and whether they are silent.
    pub fn heard(&self, now: Instant) -> BTreeMap<String, bool> {
        self.leases.keys().map(|lease| (lease.clone(), self.is_silent(lease, now))).collect()
    }

    /// Whether the Lease of that name is there.
    pub fn knows(&self, lease: &str) -> bool {
        self.leases.contains_key(lease)
    }

    /// Whether the Lease of that name is there and has not moved for too long. One that is not there tells nothing.
    pub fn is_silent(&self, lease: &str, now: Instant) -> bool {
        let moved = self.leases.get(lease).map(|seen| seen.moved);
        moved.is_some_and(|moved| now.saturating_duration_since(moved) >= FENCER_SILENT_AFTER)
    }
}

/// What was seen of Leases and of unreachable nodes since the last reset.
#[derive(Clone, Debug, Default)]
pub struct SilenceTracker {
    leases: BTreeMap<String, LeaseSeen>,
    unreachable: BTreeMap<String, Instant>,
    epoch: Option<(u64, u64)>,
    /// Leases that moved lately.
    moving: usize,
}

#[derive(Clone, Debug)]
struct LeaseSeen {
    renewed: Option<MicroTime>,
    /// When it last moved, as far as that is proved.
    moved: Instant,
    /// When it last moved, as far as was seen.
    stood_since: Instant,
    /// It was seen to move, not only found.
    has_moved: bool,
    /// How long after one renewal the next would have been seen.
    next_renewal: Duration,
}

impl LeaseSeen {
    fn new(lease: &Lease, has_moved: bool, now: Instant) -> Self {
        Self {
            renewed: lease.spec.renew_time.clone(),
            moved: now,
            stood_since: now,
            has_moved,
            next_renewal: lease.next_renewal(),
        }
    }

    fn is_moving(&self, now: Instant) -> bool {
        self.has_moved && now.saturating_duration_since(self.moved) < PROOF_OF_LIFE
    }

    /// Whether the watch is proved live for this Lease: at least half of the others moved lately, one at least.
    fn is_live(&self, all: usize, moving: usize, now: Instant) -> bool {
        let others = all.saturating_sub(1);
        let moving = moving.saturating_sub(usize::from(self.is_moving(now)));
        others > 0 && moving * 2 >= others
    }
}

impl SilenceTracker {
    /// Takes in what the stores hold. `epoch` is relists and leadership term: a change of either forgets all ages,
    /// since nobody was looking.
    ///
    /// Also how long a Lease stood still, though one that is the same afterwards did so all the while: an outage of the API server
    /// ends in a relist or a new term, and in it no kubelet can renew anything. What stood still then says nothing of its kubelet,
    /// and to read it once more ([`is_still`]) does not help either before that kubelet has had its time. (What a list from an old
    /// cache hides would be seen by that.)
    pub fn update<'a>(
        &mut self,
        leases: impl IntoIterator<Item = (&'a str, &'a Lease)>,
        nodes: impl IntoIterator<Item = &'a Node>,
        epoch: (u64, u64),
        now: Instant,
    ) {
        if self.epoch != Some(epoch) {
            *self = Self { epoch: Some(epoch), ..Self::default() };
        }
        self.take_leases(leases, now);
        self.take_nodes(nodes, now);
    }

    fn take_leases<'a>(&mut self, leases: impl IntoIterator<Item = (&'a str, &'a Lease)>, now: Instant) {
        let mut present = BTreeSet::new();
        for (name, lease) in leases {
            present.insert(name);
            match self.leases.get_mut(name) {
                Some(seen) if seen.renewed == lease.spec.renew_time => {}
                Some(seen) => *seen = LeaseSeen::new(lease, true, now),
                None => {
                    self.leases.insert(name.to_owned(), LeaseSeen::new(lease, false, now));
                }
            }
        }
        self.leases.retain(|name, _| present.contains(name.as_str()));
        // While the watch is not proved live no age may grow.
        self.moving = self.leases.values().filter(|seen| seen.is_moving(now)).count();
        let (all, moving) = (self.leases.len(), self.moving);
        for seen in self.leases.values_mut().filter(|seen| !seen.is_live(all, moving, now)) {
            seen.moved = seen.moved.max(now.checked_sub(PROOF_OF_LIFE).unwrap_or(now));
        }
    }

    fn take_nodes<'a>(&mut self, nodes: impl IntoIterator<Item = &'a Node>, now: Instant) {
        let mut still = BTreeMap::new();
        for node in nodes.into_iter().filter(|node| node.is_unreachable()) {
            let uid = node.metadata.uid.clone().unwrap_or_default();
            let since = self.unreachable.get(&uid).copied().unwrap_or(now);
            still.insert(uid, since);
        }
        self.unreachable = still;
    }

    /// How silent a node's kubelet is, at the moment of the last update.
    pub fn of(&self, node: &Node, now: Instant) -> Silence {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let uid = node.metadata.uid.as_deref().unwrap_or_default();
        let seen = self.leases.get(name);
        let lease = seen.filter(|seen| seen.is_live(self.leases.len(), self.moving, now));
        Silence {
            has_moved: seen.is_some_and(|seen| seen.has_moved),
            next_renewal: seen.map_or(Duration::ZERO, |seen| seen.next_renewal),
            still_for: seen.map(|seen| now.saturating_duration_since(seen.stood_since)),
            renewed_at: seen.and_then(|seen| seen.renewed.as_ref()).map(time::from_micro),
            lease_age: lease.map(|seen| now.saturating_duration_since(seen.moved)),
            heartbeat: Heartbeat::default(),
            unreachable_for: self.unreachable.get(uid).map(|since| now.saturating_duration_since(*since)),
        }
    }
}
