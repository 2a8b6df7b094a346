//! A node with an active NodeFence is being cut off from its volumes: whatever its server answers, no client is sent there.

use bulkhead::api::shared_volume::SharedVolume;
use bulkhead_testbed::nfs_server::{Mode, Server};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::{Lane, is};
use crate::api::objects::api;

/// A driver with no fencer: what is asked of it is never answered, so the incident stays open.
const NOBODY: &str = "csi.nobody.example.com";

/// A node that is silent, with a pod that has a volume.
struct SilentNode {
    name: String,
    uid: String,
    pod: Pod,
    volume: String,
    volume_uid: String,
}

const BOOT: &str = "5e2d7a50-1f0b-4a8e-8d5a-4f6f0f2f9b3a";

async fn silent_node(lane: &Lane<'_>, name: &str) -> Result<SilentNode, Failed> {
    let name = format!("{}-{name}", lane.name);
    let node: Node = lane.create(None, json!({ "metadata": { "name": name } })).await?;
    let ready = json!({ "type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let status = json!({ "status": { "conditions": [ready], "nodeInfo": {
        "bootID": BOOT, "machineID": "", "systemUUID": "", "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "",
        "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
    } } });
    Api::<Node>::all(lane.client()).patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await?;
    let claim = format!("on-{name}");
    lane.claim(&claim).await?;
    let volume = lane.volume_name(&claim);
    let source = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
    let spec = json!({
        "nodeName": name, "automountServiceAccountToken": false, "volumes": source,
        "containers": [{ "name": "c", "image": "none" }],
    });
    let pod = json!({ "metadata": { "name": format!("user-{name}") }, "spec": spec });
    let pod: Pod = lane
        .eventually("a pod is taken", async || {
            Ok(lane.here::<Pod>(pod.clone()).await.map_err(|error| error.message().unwrap_or_default().to_owned()))
        })
        .await?;
    let object = Api::<k8s_openapi::api::core::v1::PersistentVolume>::all(lane.client()).get(&volume).await?;
    Ok(SilentNode {
        uid: node.uid().unwrap_or_default(),
        volume_uid: object.uid().unwrap_or_default(),
        name,
        pod,
        volume,
    })
}

/// Opens an incident as the controller does.
async fn fence(lane: &Lane<'_>, node: &SilentNode) -> Result<(), Failed> {
    let pod = json!({
        "episode": 1, "uid": node.pod.uid(), "namespace": lane.name, "name": node.pod.name_any(), "policy": "p",
        "action": "Release", "reason": "NodeFailure", "volumes": [node.volume],
    });
    let volume = json!({
        "episode": 1, "name": node.volume, "uid": node.volume_uid, "driver": NOBODY, "volumeHandle": node.volume,
        "nodeID": node.name, "minimumProof": "Verified", "methods": [{ "type": "Unpublish" }],
    });
    let fence: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeFence",
        "metadata": {
            "name": node.name, "labels": { "bulkhead.dev/active": "true" }, "finalizers": ["bulkhead.dev/node-clean"],
        },
        "spec": {
            "episode": 1, "node": { "uid": node.uid, "bootID": BOOT },
            "policies": [{ "name": "p", "uid": "3d0f6c0a-0c4e-4a65-9a4c-9f0a8d2b1c55", "generation": 1, "mode": "Enforce" }],
            "plan": {
                "decidedAt": chrono::Utc::now(), "digest": "sha256:9c1e55d0a7b3", "pods": [pod], "volumes": [volume],
                "evidence": [{ "channel": "Kubelet", "state": "Failed", "since": chrono::Utc::now(), "reason": "NodeUnreachable" }],
            },
        },
    }))?;
    api(&lane.client(), "NodeFence").create(&PostParams::default(), &fence).await?;
    Ok(())
}

/// The incident is over.
async fn unfence(lane: &Lane<'_>, node: &SilentNode) -> Result<(), Failed> {
    let fences = api(&lane.client(), "NodeFence");
    lane.all::<Pod>().delete(&node.pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
    fences.delete(&node.name, &DeleteParams::default()).await?;
    let unguarded = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    lane.eventually("the NodeFence is gone", async || {
        let found = fences.get_opt(&node.name).await?;
        if found.is_some() {
            // It may be gone between the two.
            let _ = fences.patch(&node.name, &PatchParams::default(), &unguarded).await;
        }
        Ok(if found.is_none() { Ok(()) } else { Err("there".into()) })
    })
    .await?;
    // Its requests would stand in the way of the next incident of that node.
    let requests = api(&lane.client(), "FenceRequest");
    for request in requests.list(&ListParams::default()).await? {
        if request.data["spec"]["nodeName"] == json!(node.name) {
            let _ = requests.patch(&request.name_any(), &PatchParams::default(), &unguarded).await;
            let _ = requests.delete(&request.name_any(), &DeleteParams::default()).await;
        }
    }
    Ok(())
}

/// Candidates `a` and `b` on these two nodes.
fn on(lane: &Lane<'_>, servers: [&Server; 2]) -> serde_json::Value {
    let mut spec = super::lane::candidates(&servers);
    for (number, name) in ["a", "b"].into_iter().enumerate() {
        let candidate = format!("/backend/static/candidates/{number}/nodeName");
        if let Some(node) = spec.pointer_mut(&candidate) {
            *node = json!(format!("{}-{name}", lane.name));
        }
    }
    spec
}

/// At once, before any probe fails; and nobody takes over before the fence is proved, for the old server may
/// still write. Nobody proves this one.
pub async fn moves_clients_off_the_node(lane: &Lane<'_>) -> Result<(), Failed> {
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    let node = silent_node(lane, "a").await?;
    lane.claim("data").await?;
    let mut spec = on(lane, [&a, &b]);
    // No probe would notice anything for an hour.
    spec["probe"] = json!({ "period": "5m", "timeout": "500ms", "failureThreshold": 20 });
    lane.volume("data", spec).await?;
    lane.active("data", &a).await?;
    fence(lane, &node).await?;
    lane.condition("data", "BackendAvailable", "False", "NodeFenced").await?;
    lane.sent_to("data", &[]).await?;
    // Nor for a person who asks for the other one.
    lane.patch::<SharedVolume>("data", json!({ "spec": { "failover": { "activeCandidate": "b" } } })).await?;
    lane.barrier("after").await?;
    lane.sent_to("data", &[]).await.map_err(|_| Failed::from("sent to a second writer"))?;
    unfence(lane, &node).await?;
    let volume = lane.active("data", &b).await?;
    let last = volume.status.and_then(|status| status.last_failover).ok_or("no lastFailover")?;
    assert_eq!((last.from.as_deref(), last.to.as_deref(), last.reason.as_str()), (Some("a"), Some("b"), "NodeFenced"));
    Ok(())
}

/// Where there is no other node nobody is sent anywhere, with `Keep` too.
pub async fn leaves_nobody_where_there_is_no_other(lane: &Lane<'_>) -> Result<(), Failed> {
    let node = silent_node(lane, "a").await?;
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    for (name, lost) in [("withdrawn", "Withdraw"), ("kept", "Keep")] {
        lane.claim(name).await?;
        let server = if name == "kept" { &b } else { &a };
        let mut spec = super::lane::candidates(&[server]);
        spec["backend"]["static"]["candidates"][0]["nodeName"] = json!(node.name);
        spec["failover"] = json!({ "onBackendLost": lost });
        lane.volume(name, spec).await?;
        lane.active(name, server).await?;
    }
    fence(lane, &node).await?;
    for name in ["withdrawn", "kept"] {
        lane.condition(name, "BackendAvailable", "False", "NodeFenced").await?;
        lane.sent_to(name, &[]).await?;
    }
    // One that begins on a fenced node is not published either.
    lane.claim("late").await?;
    let mut spec = super::lane::candidates(&[&a]);
    spec["backend"]["static"]["candidates"][0]["nodeName"] = json!(node.name);
    spec["probe"] = json!({ "gate": "Never", "type": "None" });
    lane.volume("late", spec).await?;
    let late = lane.condition("late", "BackendAvailable", "False", "NodeFenced").await?;
    assert!(!late.status.is_some_and(|status| is(&status, "Ready", "True", "Serving")));
    assert_eq!(lane.history("late").concat(), Vec::<u16>::new());
    unfence(lane, &node).await?;
    lane.active("withdrawn", &a).await?;
    lane.active("kept", &b).await?;
    lane.active("late", &a).await?;
    Ok(())
}
