//! Small builders of the objects that decisions rest on. Nothing here knows what a decision should be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

use crate::api::driver_report::DriverReport;
use crate::api::names;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{Node, Pod, VolumeAttachment};
use crate::api::time::Now;
use crate::api::usage::{CsiVolume, PodView, UnattachedVolume, VolumeKind, VolumeUse};
use crate::api::volume::Source;
use crate::api::volume_health::{
    TaintValue, VolumeHealth, VolumeHealthSpec, VolumeHealthStatus, VolumeTaint, WatchedVolume,
};

/// The CSI driver of [`csi`].
pub const DRIVER: &str = "block.example.com";
/// A driver that attaches nothing.
pub const FILES: &str = "file.example.com";
/// An external fencer.
pub const POWER: &str = "power.example.com";

/// The method that takes back what a publish gave, as a policy has it.
pub fn unpublish() -> Value {
    json!({ "type": "Unpublish" })
}

/// The method by csi-addons, of the class of [`FILES`].
pub fn network() -> Value {
    json!({ "type": "NetworkFence", "networkFence": { "className": "file-fence" } })
}

/// The method by [`POWER`].
pub fn external() -> Value {
    json!({ "type": "External", "external": { "fencerName": POWER } })
}

/// A moment of the tests, in seconds from their beginning.
pub fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
}

/// The moment when a test begins, long after its objects were created.
pub fn now() -> Now {
    Now { wall: at(100_000), mono: Instant::now() }
}

/// A healthy node, created at second 0.
pub fn node(name: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": name, "uid": format!("uid-{name}"), "creationTimestamp": at(0) },
        "status": {
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": at(10) }],
            "nodeInfo": { "bootID": "boot-1" },
        },
    }))
    .unwrap()
}

/// The node with another Ready status.
pub fn with_ready(mut node: Node, status: &str) -> Node {
    node.status.conditions[0].status = status.into();
    node
}

/// The node with one more taint.
pub fn with_taint(mut node: Node, key: &str, value: &str, effect: &str) -> Node {
    let value = Some(value.to_owned()).filter(|value| !value.is_empty());
    let taint = Taint { key: key.into(), value, effect: effect.into(), time_added: None };
    node.spec.taints.get_or_insert_default().push(taint);
    node
}

/// A node whose kubelet is silent, as the node lifecycle controller tells.
pub fn unreachable(name: &str) -> Node {
    with_taint(with_ready(node(name), "Unknown"), names::UNREACHABLE_TAINT, "", "NoSchedule")
}

/// A CSI volume that can be fenced.
pub fn csi(name: &str) -> VolumeUse {
    csi_of(DRIVER, name)
}

/// A CSI volume of that driver.
pub fn csi_of(driver: &str, name: &str) -> VolumeUse {
    let kind = CsiVolume { uid: format!("uid-{name}"), driver: driver.into(), handle: format!("handle-{name}") };
    VolumeUse { name: name.into(), kind: VolumeKind::Csi(kind) }
}

/// A CSI volume that is mounted without being attached.
pub fn unattached(driver: &str, name: &str) -> VolumeUse {
    let csi = CsiVolume { uid: format!("uid-{name}"), driver: driver.into(), handle: format!("handle-{name}") };
    let kind = VolumeKind::Unattached(UnattachedVolume { csi: Some(csi), cluster_id: None });
    VolumeUse { name: name.into(), kind }
}

/// The same in this cluster of the storage.
pub fn in_cluster(mut volume: VolumeUse, cluster_id: &str) -> VolumeUse {
    if let VolumeKind::Unattached(unattached) = &mut volume.kind {
        unattached.cluster_id = Some(cluster_id.into());
    }
    volume
}

/// An NFS export, in-tree.
pub fn nfs(name: &str) -> VolumeUse {
    let kind = VolumeKind::Unattached(UnattachedVolume { csi: None, cluster_id: None });
    VolumeUse { name: name.into(), kind }
}

/// A volume that is bound to its node.
pub fn local(name: &str) -> VolumeUse {
    VolumeUse { name: name.into(), kind: VolumeKind::Local }
}

/// A volume that no method covers.
pub fn unknown(name: &str) -> VolumeUse {
    VolumeUse { name: name.into(), kind: VolumeKind::Unknown("nfs volume".into()) }
}

/// A pod of a StatefulSet, Initialized and not Ready, created at second 100.
pub fn pod(name: &str, node: &str, volumes: &[VolumeUse]) -> PodView {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "1",
            "creationTimestamp": at(100), "labels": { "app": name },
            "ownerReferences": [
                { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": true },
            ],
        },
        "spec": { "nodeName": node, "priority": 0 },
        "status": {
            "phase": "Running",
            "conditions": [{ "type": "Initialized", "status": "True" }, { "type": "Ready", "status": "False" }],
        },
    }))
    .unwrap();
    PodView { pod: Arc::new(pod), volumes: volumes.to_vec() }
}

/// The pod with changes.
pub fn but(mut view: PodView, change: impl FnOnce(&mut Pod)) -> PodView {
    change(Arc::make_mut(&mut view.pod));
    view
}

/// The pod under another kind of controller; `None` for a bare one.
pub fn owned_by(view: PodView, kind: Option<&str>) -> PodView {
    but(view, |pod| match kind {
        Some(kind) => pod.metadata.owner_references.as_mut().unwrap()[0].kind = kind.into(),
        None => pod.metadata.owner_references = None,
    })
}

/// A completed attachment with the attacher's note and finalizer, created at second 100.
pub fn attachment(volume: &str, node: &str) -> VolumeAttachment {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("csi-{volume}"), "uid": format!("va-{volume}"), "creationTimestamp": at(100),
            "annotations": { names::ATTACHED_NODE_ID_ANNOTATION: format!("id-{node}") },
            "finalizers": [names::attacher_finalizer(DRIVER)],
        },
        "spec": { "attacher": DRIVER, "nodeName": node, "source": { "persistentVolumeName": volume } },
        "status": { "attached": true },
    }))
    .unwrap()
}

/// A policy that selects every pod, with that spec merged in.
pub fn policy(name: &str, spec: &Value) -> ResiliencyPolicy {
    let mut whole = json!({ "mode": "Enforce", "selector": { "podSelector": {} } });
    json_patch::merge(&mut whole, spec);
    serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "ResiliencyPolicy",
        "metadata": {
            "name": name, "uid": format!("uid-{name}"), "generation": 1,
            "finalizers": [names::POLICY_FINALIZER],
        },
        "spec": whole,
    }))
    .unwrap()
}

/// What a driver says through its sidecar.
pub fn report(driver: &str, capabilities: &[&str]) -> DriverReport {
    serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "DriverReport", "metadata": { "name": driver },
        "status": {
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Serving", "message": "", "lastTransitionTime": at(0),
            }],
            "capabilities": capabilities,
        },
    }))
    .unwrap()
}

/// Reports by driver.
pub fn reports(reports: impl IntoIterator<Item = DriverReport>) -> BTreeMap<String, Arc<DriverReport>> {
    reports.into_iter().map(|report| (report.metadata.name.clone().unwrap(), Arc::new(report))).collect()
}

/// A driver that can unpublish and be read back.
pub fn able(driver: &str) -> DriverReport {
    report(driver, &["Unpublish", "ListPublishedNodes"])
}

/// The moment `seconds` later, on both clocks.
pub fn later(now: Now, seconds: f64) -> Now {
    let millis = TimeDelta::milliseconds((seconds * 1000.0) as i64);
    Now { wall: now.wall + millis, mono: now.mono + millis.to_std().unwrap() }
}

/// The health of a volume that is tainted on these nodes; on none by name: everywhere.
pub fn tainted(volume: &str, key: &str, nodes: &[&str]) -> VolumeHealth {
    let mut health = VolumeHealth::new(volume, VolumeHealthSpec::default());
    let taint = VolumeTaint {
        key: key.into(),
        value: TaintValue::True,
        effect: None,
        source: Source::NodeAgent,
        reason: "IOError".into(),
        message: None,
        time_added: at(99_000),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
    };
    health.status = Some(VolumeHealthStatus {
        taints: vec![taint],
        volume: Some(watched(&format!("uid-{volume}"))),
        ..VolumeHealthStatus::default()
    });
    health
}

/// A CSI volume with that uid, as its VolumeHealth knows it.
pub fn watched(uid: &str) -> WatchedVolume {
    serde_json::from_value(json!({ "uid": uid, "source": "CSI" })).unwrap()
}
