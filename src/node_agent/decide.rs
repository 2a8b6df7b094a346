//! What to do next about what fenced pods left behind. Pure: no kernel, no disk, no driver, no clock.
//!
//! A volume is cleaned when it is the incident's, none of its pods is the kubelet's any more, no process that is not the
//! host's holds it, nothing about it is unknown, and the kubelet has had its chance. Everything else waits, visibly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::names;
use crate::api::node_fence::NodeFence;
use crate::api::node_volume_report::{
    Cleanup, CleanupState, HeartbeatEndpoint, NodeVolumeReport, Remnant, RemnantKind,
};

use super::memory::{BETWEEN_PASSES, Memory};
use super::mounts::inventory::{Elsewhere, Inventory, Place, Remains, Unknown};
use super::mounts::layout::Wanted;
use super::remnants::{self, remnant};
use super::verdict::{Verdict, verdict};
use super::volumes::report::NodeHealth;

/// How soon waiting is looked after again: at first, and when it takes long.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(5);
/// What takes longer than this is looked after less often.
const LONG: Duration = Duration::from_secs(60);
/// A pod that is the kubelet's may take this long to end; a container that stops in peace has minutes.
pub const ENDING: Duration = Duration::from_secs(120);

/// Which clean-up: what is known of another proves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Uid of the NodeFence.
    pub fence_uid: String,
    /// Its episode.
    pub episode: i64,
    /// Digest of its volumes.
    pub digest: String,
    /// The boot it is about.
    pub boot_id: String,
}

impl Key {
    /// That of an active NodeFence.
    pub fn of(fence: &NodeFence, boot_id: &str) -> Option<Self> {
        let labels = fence.metadata.labels.as_ref();
        labels.filter(|labels| labels.contains_key(names::ACTIVE_LABEL))?;
        Some(Self {
            fence_uid: fence.metadata.uid.clone()?,
            episode: fence.spec.episode,
            digest: fence.cleanup_digest(),
            boot_id: boot_id.to_owned(),
        })
    }

    /// Whether what was said of a clean-up is about the same NodeFence in the same boot, whatever the episode: a mount
    /// that was there then is there still.
    pub fn is_same_incident(&self, cleanup: &Cleanup) -> bool {
        cleanup.fence_uid == self.fence_uid && cleanup.boot_id == self.boot_id
    }
}

/// The incident, while it is active and something was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// Which clean-up.
    pub key: Key,
    /// Its volumes, by which they are looked for.
    pub wanted: Vec<Wanted>,
    /// Names of volumes that cannot be looked for: without driver or handle, or with a name that is none.
    pub unusable: Vec<String>,
}

/// An inventory.
#[derive(Clone, Debug)]
pub struct Looked {
    /// When it began.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
    /// What is left, or why that cannot be told, in CamelCase.
    pub found: Result<Arc<Inventory>, String>,
}

impl Looked {
    /// The pods in whose folders something is left.
    pub fn pods(&self) -> impl Iterator<Item = &str> {
        let inventory = self.found.as_ref().ok();
        let volumes = inventory.into_iter().flat_map(|found| found.volumes.iter().flat_map(pods_of));
        let unreadable = inventory.into_iter().flat_map(|found| found.unreadable.iter().map(|(pod, _)| pod.as_str()));
        volumes.chain(unreadable)
    }
}

/// The pods in whose folders something of a volume is left.
pub(super) fn pods_of(remains: &Remains) -> impl Iterator<Item = &str> {
    let targets = remains.targets.iter().filter_map(|place| place.pod.as_deref());
    targets.chain(remains.elsewhere.iter().filter_map(|elsewhere| elsewhere.pod.as_deref()))
}

/// What a pass sees.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The node's uid.
    pub node_uid: String,
    /// Whether the kubelet says that the node is Ready.
    pub kubelet_is_up: bool,
    /// Boot id of the kernel.
    pub boot_id: String,
    /// Boot id that the kubelet reports; empty before it does.
    pub node_boot_id: String,
    /// Addresses of the host.
    pub addresses: Vec<String>,
    /// By what our heartbeats are known.
    pub heartbeat: Option<HeartbeatEndpoint>,
    /// Whether self-fencing is over, and what is told of it; none where nothing was stopped in this boot.
    pub self_fencing: Option<(bool, String)>,
    /// Our report, as it is.
    pub report: Arc<NodeVolumeReport>,
    /// The incident, if there is one to clean up after.
    pub fence: Option<Incident>,
    /// Whether there is a NodeFence at all.
    pub has_fence: bool,
    /// Names of the volumes that it is or was about.
    pub fenced: BTreeSet<String>,
    /// What is known of the health of the node's volumes; none before all of them were looked at once.
    pub health: Option<Arc<NodeHealth>>,
    /// Pods bound to the node by uid, and whether each has ended for good.
    pub pods: BTreeMap<String, bool>,
    /// What is left, once it was looked for.
    pub looked: Option<Looked>,
    /// Children of ours that were killed and have not ended.
    pub hung: usize,
    /// Whether they have taken all places.
    pub probes_hung: bool,
    /// How long the kubelet may take after a pod is gone.
    pub patience: Duration,
    /// How often a clean node is looked at again.
    pub check_interval: Duration,
}

impl Seen {
    /// Whether a pod is the kubelet's: the API has it, and it has not ended.
    pub fn is_live(&self, pod: &str) -> bool {
        self.pods.get(pod).is_some_and(|finished| !finished)
    }

    /// The volumes of which something is left.
    pub fn left(&self) -> impl Iterator<Item = (&str, &Remains)> {
        let found = self.looked.as_ref().and_then(|looked| looked.found.as_ref().ok());
        let wanted = self.fence.iter().flat_map(|fence| &fence.wanted);
        let remains = found.into_iter().flat_map(|found| &found.volumes);
        wanted
            .zip(remains)
            .filter(|(_, remains)| !remains.is_nothing())
            .map(|(volume, left)| (volume.name.as_str(), left))
    }

    /// The incident's pods that are the kubelet's.
    pub fn bound(&self) -> impl Iterator<Item = &str> {
        let pods = self.fence.iter().flat_map(|fence| &fence.wanted).flat_map(|volume| &volume.pods);
        pods.map(String::as_str).filter(|pod| self.is_live(pod))
    }

    /// Whether a look has answered for every volume.
    pub fn is_complete(&self) -> bool {
        let found = self.looked.as_ref().and_then(|looked| looked.found.as_ref().ok());
        self.fence.as_ref().zip(found).is_some_and(|(fence, found)| found.volumes.len() == fence.wanted.len())
    }

    /// Why it cannot be told what is left on the node as a whole.
    pub fn unsure(&self) -> Vec<Unknown> {
        let Some((fence, looked)) = self.fence.as_ref().zip(self.looked.as_ref()) else { return Vec::new() };
        let mut unknown: Vec<_> = fence.unusable.iter().map(|name| Unknown::new(name, "UnknownVolumeKind")).collect();
        if self.hung > 0 {
            // The mount is gone from the list, and may still be in the kernel.
            unknown.push(Unknown::new("child process of the agent", "UnmountHangs"));
        }
        match &looked.found {
            Err(reason) => unknown.push(Unknown::new("inventory", reason)),
            Ok(found) => {
                unknown.extend(found.unknown.iter().cloned());
                let dead = found.unreadable.iter().filter(|(pod, _)| !self.is_live(pod));
                unknown.extend(dead.map(|(_, unknown)| unknown.clone()));
                if found.volumes.len() != fence.wanted.len() && unknown.is_empty() {
                    unknown.push(Unknown::new("inventory", "InventoryIncomplete"));
                }
            }
        }
        unknown
    }

    /// Whether it cannot be told.
    pub fn is_unsure(&self) -> bool {
        !self.unsure().is_empty()
    }
}

/// Why something failed: what it was about, why in CamelCase, and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind of thing is left.
    pub kind: RemnantKind,
    /// Path, device or driver.
    pub id: String,
    /// Why, in CamelCase.
    pub reason: String,
    /// In words.
    pub message: String,
}

impl Failure {
    pub(super) fn is_of_something_that_hangs(&self) -> bool {
        self.reason == "UnmountHangs" || self.reason.ends_with("DeadlineExceeded")
    }
}

/// What to remove of a volume, in CSI order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Of which clean-up it is.
    pub key: Key,
    /// The volume.
    pub volume: Wanted,
    /// What is left in pods that are gone.
    pub targets: Vec<Place>,
    /// All the rest, once nothing of it is in a pod: staging, mounts elsewhere, loop devices.
    pub rest: Option<Remains>,
    /// Sub-paths of those pods.
    pub elsewhere: Vec<Elsewhere>,
    /// Whether requests to a FUSE server may be cut off: one has hung before, and the volume is proved to be fenced.
    pub force: bool,
}

/// What a pass decides.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Look at what is left first, and decide again.
    pub look: bool,
    /// Where the clean-up stands; none when there is none.
    pub cleanup: Option<Stand>,
    /// Volumes to clean now.
    pub work: Vec<Work>,
    /// When to look again at the latest.
    pub look_again: Duration,
}

/// Where a clean-up stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// Which one.
    pub key: Key,
    /// Its state.
    pub state: CleanupState,
    /// Passes in a row that found nothing.
    pub passes: i32,
    /// What is left and cannot be removed.
    pub remaining: Vec<Remnant>,
}

/// Decides.
pub fn decide(seen: &Seen, memory: &Memory, now: Instant) -> Decision {
    let Some(fence) = &seen.fence else {
        return Decision { look_again: seen.check_interval, ..Decision::default() };
    };
    if seen.looked.is_none() {
        return Decision { look: true, ..Decision::default() };
    }
    let mut decision = Decision::default();
    let mut remaining = remnants::unsure(seen, memory, now);
    remaining.extend(remnants::bound(seen, memory, now));
    let began = seen.looked.as_ref().map(|looked| looked.began);
    let mut working = memory.work.values().any(|work| work.failure.is_none() && work.is_newer_than(began));
    for (volume, remains) in fence.wanted.iter().filter_map(|volume| Some((volume, left_of(seen, volume)?))) {
        match verdict(seen, memory, volume, remains, now) {
            Verdict::Wait => {}
            Verdict::Blocked(remnants) => remaining.extend(remnants),
            Verdict::Clean(work) => {
                // What failed stays told while it is tried again.
                match memory.failure(&volume.name) {
                    Some((failure, _)) => remaining.push(remnant(volume, failure)),
                    None => working = true,
                }
                decision.work.push(*work);
            }
        }
    }
    let passes = memory.passes.map_or(0, |(passes, _)| passes);
    let is_left = memory.unsure.is_some() || seen.left().next().is_some();
    let state = if working {
        CleanupState::Cleaning
    } else if !remaining.is_empty() {
        CleanupState::Blocked
    } else if is_left || passes == 0 {
        CleanupState::Inventory
    } else if passes >= 2 || was_clean(seen, &fence.key) {
        CleanupState::Clean
    } else {
        CleanupState::Cleaning
    };
    let passes = if state == CleanupState::Clean { 2 } else { passes };
    remaining.sort();
    remaining.dedup();
    decision.cleanup = Some(Stand { key: fence.key.clone(), state, passes, remaining });
    decision.look_again = look_again(seen, memory, state, now);
    decision
}

fn left_of<'a>(seen: &'a Seen, volume: &Wanted) -> Option<&'a Remains> {
    seen.left().find(|(name, _)| *name == volume.name).map(|(_, remains)| remains)
}

/// What was found clean twice in this boot stays so while nothing is found, over a restart too.
fn was_clean(seen: &Seen, key: &Key) -> bool {
    let cleanup = seen.report.status.as_ref().and_then(|status| status.cleanup.as_ref());
    cleanup.is_some_and(|cleanup| {
        cleanup.is_clean()
            && cleanup.fence_uid == key.fence_uid
            && cleanup.episode == key.episode
            && cleanup.digest == key.digest
            && cleanup.boot_id == key.boot_id
    })
}

fn look_again(seen: &Seen, memory: &Memory, state: CleanupState, now: Instant) -> Duration {
    match state {
        CleanupState::Clean => seen.check_interval,
        CleanupState::Blocked => {
            let since = memory.left.values().copied().chain(memory.unsure).min().unwrap_or(now);
            if now.saturating_duration_since(since) < LONG { SOON } else { LATER }
        }
        CleanupState::Cleaning | CleanupState::Inventory => match memory.passes {
            Some((_, last)) => (last + BETWEEN_PASSES).saturating_duration_since(now),
            None => SOON.min(seen.patience.max(Duration::from_millis(100))),
        },
    }
}
