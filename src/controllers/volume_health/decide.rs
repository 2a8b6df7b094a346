//! The next step for one volume. A chain of named checks, first match wins. What is known is recorded before anything
//! follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use crate::api::driver_report::DriverReport;
use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::slim::{Node, PersistentVolume, Pod, VolumeAttachment};
use crate::api::time::Now;
use crate::api::volume_health::{VolumeHealth, VolumeHealthSpec, VolumeHealthStatus};
use crate::api::volume_health_policy::{VolumeHealthPolicy, ruling};

use super::projection::{self, Marks};
use super::status;

/// What a pass sees.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The name of the PersistentVolume and of its VolumeHealth.
    pub name: String,
    /// The volume.
    pub volume: Option<Arc<PersistentVolume>>,
    /// Its VolumeHealth.
    pub health: Option<Arc<VolumeHealth>>,
    /// All policies.
    pub policies: Vec<Arc<VolumeHealthPolicy>>,
    /// Every node that has to do with the volume, by name.
    pub places: BTreeMap<String, Place>,
    /// Since when so many nodes fail together that it looks like a partition.
    pub storm: Option<DateTime<Utc>>,
    /// What its CSI driver says.
    pub driver_report: Option<Arc<DriverReport>>,
    /// The sidecar of that driver renews its Lease.
    pub driver_is_heard: bool,
    /// Pods that use the claim the volume is bound to.
    pub pods: Vec<Arc<Pod>>,
    /// Those of them, as `namespace/name`, that another volume holds at our gate too.
    pub held_elsewhere: BTreeSet<String>,
    /// Attachments of the volume.
    pub attachments: Vec<Arc<VolumeAttachment>>,
    /// The admission policies that enforce a taint are in force.
    pub can_enforce: bool,
}

/// A node that has to do with the volume.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The Node; nothing when there is none of that name.
    pub node: Option<Arc<Node>>,
    /// The local volume lives there.
    pub is_host: bool,
    /// What its agent says.
    pub report: Option<Arc<NodeVolumeReport>>,
    /// A Ready pod of our agent runs there.
    pub agent_ready: bool,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Create the VolumeHealth.
    Create(Box<VolumeHealth>),
    /// Complete one that a person has created, at its resourceVersion.
    Own {
        /// The VolumeHealth as it was seen.
        health: Arc<VolumeHealth>,
        /// Its owner: the PersistentVolume.
        owner: Box<OwnerReference>,
    },
    /// Write the status at the resourceVersion of the VolumeHealth.
    Record {
        /// The VolumeHealth as it was seen.
        health: Arc<VolumeHealth>,
        /// The status that it should have.
        status: Box<VolumeHealthStatus>,
    },
    /// Delete the VolumeHealth with this uid.
    Delete(Arc<VolumeHealth>),
    /// Give the VolumeHealth label and finalizer, or take them, at its resourceVersion.
    Mark {
        /// The VolumeHealth as it was seen.
        health: Arc<VolumeHealth>,
        /// It keeps new attachments and pods off.
        closed: bool,
        /// Something has to be taken back before it goes.
        guarded: bool,
    },
    /// Give the PersistentVolume its marks, at its resourceVersion.
    Project {
        /// The volume as it was seen.
        volume: Arc<PersistentVolume>,
        /// What it is to show.
        marks: Marks,
    },
}

/// What to do next, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Which check decided.
    pub reason: &'static str,
    /// What to do, in order.
    pub effects: Vec<Effect>,
    /// When time alone may change the decision.
    pub look_again: Option<Duration>,
}

impl Decision {
    fn new(reason: &'static str, effects: Vec<Effect>) -> Self {
        Self { reason, effects, look_again: None }
    }

    fn nothing(reason: &'static str) -> Self {
        Self::new(reason, Vec::new())
    }
}

/// Says the next step. When there is nothing else to do, what is recorded is shown where it works.
pub fn decide(seen: &Seen, now: Now) -> Decision {
    let decision = of_record(seen, now);
    if !decision.effects.is_empty() {
        return decision;
    }
    match projection::steps(seen) {
        steps if steps.is_empty() => decision,
        effects => Decision { reason: "NotShown", effects, ..decision },
    }
}

/// What is to be recorded.
fn of_record(seen: &Seen, now: Now) -> Decision {
    match (&seen.volume, &seen.health) {
        (None, None) => Decision::nothing("NoVolume"),
        (None, Some(health)) => without_volume(health, now),
        (Some(volume), None) => match policy_of(seen, volume) {
            Some(_) => Decision::new("Missing", vec![Effect::Create(Box::new(new(volume)))]),
            None => Decision::nothing("NotSelected"),
        },
        (Some(volume), Some(health)) => with_both(seen, volume, health, now),
    }
}

fn policy_of<'a>(seen: &'a Seen, volume: &PersistentVolume) -> Option<&'a VolumeHealthPolicy> {
    ruling(seen.policies.iter().map(Arc::as_ref), volume)
}

/// One of ours goes with its volume: the garbage collector removes it. A person's waits for a volume of that name.
fn without_volume(health: &Arc<VolumeHealth>, now: Now) -> Decision {
    if health.metadata.deletion_timestamp.is_some() || owners(health).next().is_some() {
        return Decision::nothing("GoesWithItsVolume");
    }
    record("VolumeGone", health, status::gone(health, now)).unwrap_or_else(|| Decision::nothing("VolumeGone"))
}

fn with_both(seen: &Seen, volume: &PersistentVolume, health: &Arc<VolumeHealth>, now: Now) -> Decision {
    if health.metadata.deletion_timestamp.is_some() {
        return Decision::nothing("BeingDeleted");
    }
    if is_of_another(health, volume) {
        return Decision::new("AnotherVolume", vec![Effect::Delete(health.clone())]);
    }
    let is_owned = owners(health).next().is_some();
    let Some(policy) = policy_of(seen, volume) else {
        if is_owned && !is_of_people(health) {
            return Decision::new("NoLongerSelected", vec![Effect::Delete(health.clone())]);
        }
        let status = status::not_selected(health, now);
        return record("NotSelected", health, status).unwrap_or_else(|| Decision::nothing("NotSelected"));
    };
    if !is_owned {
        let owner = Box::new(owner(volume));
        return Decision::new("NotOwned", vec![Effect::Own { health: health.clone(), owner }]);
    }
    let (status, look_again) = status::compute(seen, volume, health, policy, now);
    let decision = record("Changed", health, status).unwrap_or_else(|| Decision::nothing("Settled"));
    Decision { look_again, ..decision }
}

fn record(reason: &'static str, health: &Arc<VolumeHealth>, status: VolumeHealthStatus) -> Option<Decision> {
    if health.status.as_ref() == Some(&status) {
        return None;
    }
    Some(Decision::new(reason, vec![Effect::Record { health: health.clone(), status: Box::new(status) }]))
}

fn new(volume: &PersistentVolume) -> VolumeHealth {
    let mut health = VolumeHealth::new(&volume.name_any(), VolumeHealthSpec::default());
    health.metadata.owner_references = Some(vec![owner(volume)]);
    health
}

fn owner(volume: &PersistentVolume) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "PersistentVolume".into(),
        name: volume.name_any(),
        uid: volume.uid().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

/// The volumes that a VolumeHealth belongs to.
fn owners(health: &VolumeHealth) -> impl Iterator<Item = &OwnerReference> {
    health.owner_references().iter().filter(|owner| owner.kind == "PersistentVolume" && owner.api_version == "v1")
}

/// Whether it holds what a person has written, or has still to see: a slip in a policy's selector must not lose that.
fn is_of_people(health: &VolumeHealth) -> bool {
    let is_lost = health.status.as_ref().is_some_and(|status| status.data_loss_token.is_some());
    is_lost || !health.spec.manual_taints.is_empty() || !health.spec.suppress_taints.is_empty()
}

/// Whether it tells of an earlier volume of that name: nothing of that holds for this one.
fn is_of_another(health: &VolumeHealth, volume: &PersistentVolume) -> bool {
    let uid = volume.uid().unwrap_or_default();
    let recorded = health.status.as_ref().and_then(|status| status.volume.as_ref());
    owners(health).any(|owner| owner.uid != uid) || recorded.is_some_and(|recorded| recorded.uid != uid)
}

impl Seen {
    /// What is recorded.
    pub fn status(&self) -> Option<&VolumeHealthStatus> {
        self.health.as_ref()?.status.as_ref()
    }

    /// The token of the data loss that a person has acknowledged.
    pub fn acknowledged(&self) -> Option<&str> {
        self.health.as_ref()?.spec.acknowledge_data_loss.as_deref()
    }

    /// Whether the volume is a directory or device of one node.
    pub fn is_local(&self) -> bool {
        self.volume.as_ref().is_some_and(|volume| volume.spec.local.is_some())
    }

    /// Pods that run with the volume, as `namespace/name`.
    pub fn users(&self) -> BTreeSet<String> {
        let using = self.pods.iter().filter(|pod| pod.spec.node_name.is_some() && !pod.is_finished());
        using.map(|pod| named(pod)).collect()
    }
}

/// `namespace/name` of a pod.
pub fn named(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}
