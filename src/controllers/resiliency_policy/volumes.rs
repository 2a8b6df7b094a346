//! VolumeHealth taints that move pods off a node that is well (docs/adr/0014). A taint that names nodes says that the
//! volume works elsewhere; one that holds everywhere says that to move helps nobody. Nothing is begun that can be seen to
//! have no end: whoever cannot move stays where it is, by name and with the reason, and its node is left alone.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;

use crate::api::fencing::Proof;
use crate::api::node_fence::{
    Channel, EVIDENCE_OF_STORAGE_MAX, Evidence, EvidenceState, NodeFence, PodAction, VOLUME_TAINT,
};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::Node;
use crate::api::time::{self, Now};
use crate::api::usage::{PodView, VolumeKind};
use crate::api::volume::Source;
use crate::api::volume_health::{Extent, VolumeTaint};

use super::decide::{Seen, effective};
use super::movers::{self, Trouble};
use super::plan::{Draft, Drafting, LiveNode, PodDecision};
use super::select::Effective;
use super::{brakes, lately};

/// The volumes with a taint that a policy asks for, and the nodes where pods use them.
pub struct Troubles<'a> {
    seen: &'a Seen,
    users: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

/// A pod that is to move, and why.
#[derive(Clone)]
pub struct Mover<'a> {
    /// The pod.
    pub pod: &'a PodView,
    /// Its policies.
    pub policies: Effective<'a>,
    pub(super) evidence: Evidence,
    /// The pod whose storage is in trouble: itself, or one that it goes along with.
    pub(super) sake: &'a PodView,
}

/// A pod that would move, and cannot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unmoved {
    /// Its policies.
    pub policies: Vec<String>,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Why it stays, in CamelCase.
    pub reason: &'static str,
    /// Why it stays, in words.
    pub message: String,
}

/// What the taints mean for the pods of a node.
#[derive(Default)]
pub struct OnNode<'a> {
    /// Those that are to move.
    pub movers: Vec<Mover<'a>>,
    /// Those that stay, though their volumes are tainted.
    pub unmoved: Vec<Unmoved>,
}

/// Why a pod stays, in CamelCase and in words.
pub(super) type Stays = (&'static str, String);

impl<'a> Troubles<'a> {
    /// Looks at every volume. Without a policy that asks there are none.
    pub fn new(seen: &'a Seen) -> Self {
        let asked: Vec<_> = seen.policies.iter().flat_map(|policy| &policy.spec.triggers.volume_taints).collect();
        let tainted = seen.healths.iter().filter(|(_, health)| health.taints().iter().any(|t| asked.contains(&&t.key)));
        let mut users: BTreeMap<_, BTreeSet<&str>> =
            tainted.map(|(name, _)| (name.as_str(), BTreeSet::new())).collect();
        if !users.is_empty() {
            for (node, pod) in seen.pods.iter().flat_map(|(node, pods)| pods.iter().map(move |pod| (node, pod))) {
                for volume in pod.volumes.iter().filter(|_| !pod.pod.is_finished()) {
                    if let Some(nodes) = users.get_mut(volume.name.as_str()) {
                        nodes.insert(node.as_str());
                    }
                }
            }
        }
        Self { seen, users }
    }

    /// Nodes where volumes carry a taint that the policy asks for, whoever uses them: when these are too many, it is the
    /// array, or whoever looks at it, that is at fault.
    pub fn nodes(&self, policy: &ResiliencyPolicy) -> BTreeSet<String> {
        let keys = &policy.spec.triggers.volume_taints;
        let mut nodes = BTreeSet::new();
        for (volume, users) in &self.users {
            let taints = self.seen.healths.get(*volume).map(|health| health.taints()).unwrap_or_default();
            for taint in taints.iter().filter(|taint| keys.contains(&taint.key) && is_seen(taint)) {
                nodes.extend(taint.nodes.iter().cloned());
                nodes.extend(users.iter().filter(|_| taint.nodes.is_empty()).map(|node| (*node).to_owned()));
            }
        }
        nodes
    }

    /// Nodes with pods that use such volumes.
    pub(super) fn places(&self) -> BTreeSet<&str> {
        self.users.values().flatten().copied().collect()
    }

    /// What the taints mean for these pods of a node. `running` is the incident that moves pods off it already: what it
    /// has moved does not count against it.
    pub fn on_node<'p>(
        &'p self,
        node: &Node,
        pods: &'p [PodView],
        running: Option<&NodeFence>,
        now: Now,
    ) -> OnNode<'p> {
        let is_well = node.ready() == "True" && !node.is_unreachable() && node.metadata.deletion_timestamp.is_none();
        if self.users.is_empty() || !is_well {
            return OnNode::default();
        }
        let (mut movers, mut held) = (Vec::new(), Vec::new());
        for pod in pods.iter().filter(|pod| !pod.pod.is_terminating() && !pod.pod.is_finished()) {
            let Some(policies) = effective(self.seen, pod) else { continue };
            let Some((volume, taint, _)) = self.tainted(node, pod, &policies) else { continue };
            match self.obstacle(node, pod, &policies, running, now) {
                Some(stays) => held.push((pod, policies, stays)),
                None => movers.push(Mover { pod, policies, evidence: evidence(volume, taint, node), sake: pod }),
            }
        }
        let moves = |pod: &PodView, policies: &Effective| {
            self.tainted(node, pod, policies).is_some_and(|(.., extent)| extent == Extent::Nodes)
        };
        let may_go = |pod: &PodView, policies: &Effective| {
            !pod.pod.is_terminating() && self.obstacle(node, pod, policies, running, now).is_none()
        };
        let trouble = Trouble { reason: VOLUME_TAINT, moves: &moves, may_go: &may_go };
        movers::settle(self.seen, &trouble, movers, held, pods)
    }

    /// The plan that moves pods off the node; `None` when there is none to move.
    pub fn draft(&self, live: &LiveNode, running: Option<&NodeFence>, episode: i64, now: Now) -> Option<Draft> {
        let found = self.on_node(&live.node, &live.pods, running, now);
        let mut drafting = Drafting::new(live, episode);
        let mut evidence: Vec<Evidence> = Vec::new();
        for mover in &found.movers {
            drafting.add_pod(mover.pod, Some(&mover.policies), &PodDecision::Move(VOLUME_TAINT));
            if evidence.len() < EVIDENCE_OF_STORAGE_MAX && !evidence.contains(&mover.evidence) {
                evidence.push(mover.evidence.clone());
            }
        }
        (!evidence.is_empty()).then(|| drafting.finish(evidence, now))
    }

    /// The first volume of the pod with a taint that all its policies ask for and that holds on the node.
    fn tainted<'b>(
        &self,
        node: &Node,
        pod: &'b PodView,
        policies: &Effective,
    ) -> Option<(&'b str, &'a VolumeTaint, Extent)> {
        let keys = policies.volume_taints();
        let node = node.metadata.name.as_deref().unwrap_or_default();
        let of = |volume: &'b crate::api::usage::VolumeUse| {
            let uid = match &volume.kind {
                VolumeKind::Csi(csi) => csi.uid.as_str(),
                _ => "",
            };
            let (taint, extent) = self.seen.healths.get(&volume.name)?.trouble(&keys, uid, node)?;
            let users = self.users.get(volume.name.as_str());
            let no_way_out =
                users.is_some_and(|users| users.len() > 1 && users.iter().all(|user| taint.holds_on(user)));
            Some((volume.name.as_str(), taint, if no_way_out { Extent::Everywhere } else { extent }))
        };
        pod.volumes.iter().filter_map(of).max_by_key(|(_, _, extent)| *extent == Extent::Everywhere)
    }

    /// Why the pod stays though its volume is tainted, or that of one that it would go along with.
    fn obstacle(
        &self,
        node: &Node,
        pod: &PodView,
        policies: &Effective,
        running: Option<&NodeFence>,
        now: Now,
    ) -> Option<Stays> {
        if let Some(stays) = unmovable(self.seen, pod, policies) {
            return Some(stays);
        }
        if let Some((volume, taint, Extent::Everywhere)) = self.tainted(node, pod, policies) {
            let what = format!("volume {volume} is tainted {} ({}) wherever it is used", taint.key, taint.reason);
            return Some(("TaintedEverywhere", format!("{what}: to move helps nobody")));
        }
        let node = node.metadata.name.as_deref().unwrap_or_default();
        let again = || {
            let before = self.moved_lately(pod, policies, running, now)?;
            Some((
                "MovedRecently",
                format!("it was moved off {before} within limits.cooldown, and {node} is no better"),
            ))
        };
        uncovered(pod).or_else(|| unprovable(self.seen, pod, policies)).or_else(again)
    }

    /// The node that an incident moved a pod with one of these volumes off within the cool-down. NodeFences are kept for
    /// days, so it is known after a restart too.
    fn moved_lately(
        &self,
        pod: &PodView,
        policies: &Effective,
        running: Option<&NodeFence>,
        now: Now,
    ) -> Option<&'a str> {
        let cooldown = TimeDelta::from_std(policies.cooldown()).unwrap_or(TimeDelta::MAX);
        let mut others = self.seen.fences.iter().filter(|fence| {
            let same = running.is_some_and(|running| running.metadata.name == fence.metadata.name);
            !same && now.wall.signed_duration_since(fence.spec.plan.decided_at) < cooldown
        });
        let uses = |name: &String| pod.volumes.iter().any(|volume| &volume.name == name);
        let found = others.find(|fence| {
            let rows = fence.spec.plan.pods.iter();
            rows.filter(|row| row.action == PodAction::Release && row.reason == VOLUME_TAINT)
                .any(|row| row.volumes.iter().any(uses))
        });
        found.and_then(|fence| fence.metadata.name.as_deref())
    }
}

/// Why a pod stays though its storage is in trouble, whatever that is.
pub(super) fn obstacle(seen: &Seen, pod: &PodView, policies: &Effective) -> Option<Stays> {
    unmovable(seen, pod, policies).or_else(|| uncovered(pod)).or_else(|| unprovable(seen, pod, policies))
}

/// A pod that is never moved, whatever happens to its volumes.
fn unmovable(seen: &Seen, pod: &PodView, policies: &Effective) -> Option<Stays> {
    let targets = pod.pod.spec.node_name.as_ref().and_then(|node| lately::migration_targets(seen, node));
    match pod.pod.controller_kind() {
        None if !policies.deletes_bare_pods() => Some(("BarePod", "nothing would create it again".into())),
        Some("DaemonSet") => Some(("DaemonSet", "it belongs to its node".into())),
        _ if pod.pod.is_static() => Some(("StaticPod", "it belongs to its node".into())),
        _ if targets.is_some_and(|targets| targets.contains(pod.uid())) => {
            Some(("MigrationTarget", "a virtual machine is being migrated into it".into()))
        }
        _ => None,
    }
}

/// A pod with a volume that no method covers on a node that is well: what covers an unattached one cuts off the whole node.
fn uncovered(pod: &PodView) -> Option<Stays> {
    pod.unmovable().or_else(|| pod.uncovered(|_, _| false))
}

fn unprovable(seen: &Seen, pod: &PodView, policies: &Effective) -> Option<Stays> {
    let driver = pod.drivers().find(|driver| !is_provable(seen, policies, driver))?;
    Some(("ProofUnreachable", format!("no method can cut a volume of driver {driver} off now, with proof")))
}

fn is_provable(seen: &Seen, policies: &Effective, driver: &str) -> bool {
    let minimum = policies.minimum_proof(driver).max(Proof::Acknowledged);
    // What cuts off the whole node is not used on one that is well.
    let methods = policies.methods(driver).into_iter().filter(|method| !method.type_.is_of_node());
    seen.fencers(driver).best_proof(methods).proof >= minimum
}

/// Whether somebody has seen the volume in trouble. What the controller concludes from a dead node is the kubelet's word.
fn is_seen(taint: &VolumeTaint) -> bool {
    taint.source != Source::NodeLifecycle
}

/// The incident that moves pods off this node for their volumes, until it is Recovered.
pub fn running(fence: Option<&NodeFence>) -> Option<&NodeFence> {
    fence.filter(|fence| fence.spec.plan.is_by_volume() && brakes::in_progress(fence))
}

/// A pod that stays, and why; `None` for one that belongs to its node: it was never to move, and nobody waits for it.
pub(super) fn unmoved(pod: &PodView, policies: &Effective, (reason, message): Stays) -> Option<Unmoved> {
    let names = policies.policies().iter().filter_map(|policy| policy.metadata.name.clone());
    (!matches!(reason, "DaemonSet" | "StaticPod")).then(|| Unmoved {
        policies: names.collect(),
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        reason,
        message,
    })
}

fn evidence(volume: &str, taint: &VolumeTaint, node: &Node) -> Evidence {
    let node = node.metadata.name.as_deref().unwrap_or_default();
    Evidence {
        channel: Channel::Volume,
        state: EvidenceState::Failed,
        backend: None,
        since: time::stamp(taint.time_added),
        reason: "VolumeTainted".into(),
        message: Some(format!("volume {volume} is tainted {} ({}) on node {node}", taint.key, taint.reason)),
    }
}
