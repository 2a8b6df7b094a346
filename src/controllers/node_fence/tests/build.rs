//! The NodeFence of a failed node, as it is planned.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;

use crate::api::fencing::{NodeIdentity, PlannedMethod, Proof};
use crate::api::names;
use crate::api::node_fence::{
    Channel, Evidence, EvidenceState, NodeFence, NodeFenceSpec, Plan, PlannedPod, PlannedPolicy, PlannedVolume,
    PodAction,
};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{AttachedVolume, Node};
use crate::api::usage::{PodView, VolumeKind};
use crate::controllers::testing::*;

use super::super::memory::Found;

/// The NodeFence of node `n1` with these pods.
pub fn fence(pods: &[PodView], policy: &ResiliencyPolicy) -> NodeFence {
    let fencing = &policy.spec.fencing;
    let mut volumes: BTreeMap<String, PlannedVolume> = BTreeMap::new();
    for volume in pods.iter().flat_map(|pod| &pod.volumes) {
        let unattached = match &volume.kind {
            VolumeKind::Unattached(unattached) => Some(unattached),
            _ => None,
        };
        let csi = match &volume.kind {
            VolumeKind::Csi(csi) => Some(csi),
            VolumeKind::Unattached(unattached) => unattached.csi.as_ref(),
            VolumeKind::Local | VolumeKind::Unknown(_) => None,
        };
        let (driver, handle) = (csi.map(|csi| csi.driver.clone()), csi.map(|csi| csi.handle.clone()));
        let minimum_proof = fencing.minimum_proof_for(driver.as_deref().unwrap_or_default());
        let least = if unattached.is_some_and(|it| it.csi.is_none()) { Proof::PowerOff } else { minimum_proof };
        let methods = fencing.methods_for(driver.as_deref().unwrap_or_default()).iter();
        let row = PlannedVolume {
            episode: 1,
            name: volume.name.clone(),
            uid: None,
            node_id: driver.as_ref().map(|_| "id-n1".into()).or(unattached.map(|_| "n1".into())),
            attachment_uid: driver.as_ref().filter(|_| unattached.is_none()).map(|_| format!("va-{}", volume.name)),
            attach_required: unattached.map(|_| false),
            cluster_id: unattached.and_then(|it| it.cluster_id.clone()),
            methods: methods
                .filter(|m| unattached.map_or(driver.is_some(), |it| it.is_covered_by(m.type_)))
                .filter(|m| m.type_.best_proof() >= minimum_proof)
                .cloned()
                .map(PlannedMethod::from)
                .collect(),
            driver,
            volume_handle: handle,
            minimum_proof: least,
        };
        volumes.insert(volume.name.clone(), row);
    }
    let evidence = Evidence {
        channel: Channel::Kubelet,
        state: EvidenceState::Failed,
        backend: None,
        since: at(99_960),
        reason: "NodeUnreachable".into(),
        message: None,
    };
    let plan = Plan {
        decided_at: at(100_000),
        digest: "sha256:00000000".into(),
        evidence: vec![evidence],
        pods: pods.iter().map(planned).collect(),
        volumes: volumes.into_values().collect(),
    };
    let policies = vec![PlannedPolicy {
        name: policy.name_any(),
        uid: policy.uid().unwrap(),
        generation: 1,
        mode: policy.spec.mode,
    }];
    let node =
        NodeIdentity { uid: "uid-n1".into(), boot_id: Some("boot-1".into()), provider_id: None, addresses: Vec::new() };
    let mut fence =
        NodeFence::new("n1", NodeFenceSpec { episode: 1, node, policies, plan, approval: None, hold: None });
    fence.metadata.uid = Some("uid-fence".into());
    fence.metadata.generation = Some(1);
    fence.metadata.finalizers = Some(vec![names::NODE_CLEAN_FINALIZER.into()]);
    fence
}

/// A pod's row: DaemonSet pods are kept, all others released.
pub fn planned(pod: &PodView) -> PlannedPod {
    let keep = pod.pod.controller_kind() == Some("DaemonSet");
    PlannedPod {
        episode: 1,
        uid: pod.uid().into(),
        namespace: pod.namespace().into(),
        name: pod.name().into(),
        policy: (!keep).then(|| "db".into()),
        action: if keep { PodAction::Keep } else { PodAction::Release },
        reason: if keep { "DaemonSet" } else { "NodeFailure" }.into(),
        priority: pod.pod.spec.priority,
        returns: None,
        volumes: pod.volumes.iter().map(|volume| volume.name.clone()).collect(),
    }
}

/// The node with the volumes of the plan attached and in use.
pub fn node_using(mut node: Node, fence: &NodeFence) -> Node {
    let used = fence.spec.plan.volumes.iter().filter(|row| row.attachment_uid.is_some());
    let used = used.map(|row| unique_name(&row.name));
    node.status.volumes_in_use = used.collect();
    node.status.volumes_attached =
        node.status.volumes_in_use.iter().map(|name| AttachedVolume { name: name.clone() }).collect();
    node
}

/// The name of a volume in the node's status.
pub fn unique_name(volume: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^handle-{volume}")
}

/// Stores that show a NodeFence, and nothing else yet.
pub fn found(fence: &Arc<NodeFence>) -> Found {
    Found {
        fence: fence.clone(),
        node: None,
        lease: None,
        pods: Vec::new(),
        attachments: Vec::new(),
        requests: Vec::new(),
        reports: BTreeMap::new(),
        node_report: None,
        healths: None,
        policies: Vec::new(),
    }
}
