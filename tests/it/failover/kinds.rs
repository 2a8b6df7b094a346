//! Which pods of a dead node go, which are left alone, and which wait, each with its documented reason.

use std::collections::BTreeMap;

use bulkhead::api::node_fence::{NodeFence, PodStatusState};
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::array::{Array, ArrayOptions, Claim, Effect, Fault, Method};
use bulkhead_testbed::audit::Record;
use bulkhead_testbed::cluster::{Cluster, Workload};
use bulkhead_testbed::ledger::Access;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};
use tonic::Code;

use super::fleet::{Lane, LaneOptions, SOON};
use super::kept::Kept;
use super::look::{event, operator_records, pod_row};

/// Pods on the victim, by name, with their uid.
type Present = BTreeMap<String, Option<String>>;

async fn present(lane: &Lane<'_>) -> Result<Present, Failed> {
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    let field = format!("spec.nodeName={}", lane.victim()?.name());
    let pods = api.list(&ListParams::default().fields(&field)).await?.items;
    Ok(pods.into_iter().map(|pod| (pod.name_any(), pod.uid())).collect())
}

/// A pod or DaemonSet that is tied to the victim.
fn tied(lane: &Lane<'_>, object: Value) -> Result<DynamicObject, Failed> {
    let mut object = object;
    let node = json!({ "kubernetes.io/hostname": lane.victim()?.name() });
    let spec = match object["kind"].as_str() {
        Some("Pod") => &mut object["spec"],
        _ => &mut object["spec"]["template"]["spec"],
    };
    spec["nodeSelector"] = node;
    spec["automountServiceAccountToken"] = json!(false);
    spec["containers"] = json!([{ "name": "main", "image": "app" }]);
    Ok(serde_json::from_value(object)?)
}

pub fn pod(lane: &Lane<'_>, name: &str, metadata: &Value, spec: Value) -> Result<DynamicObject, Failed> {
    let mut metadata = metadata.clone();
    metadata["name"] = json!(format!("{}-{name}", lane.name));
    metadata["namespace"] = json!("default");
    metadata["labels"] = json!({ "lane": lane.name });
    tied(lane, json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }))
}

fn daemon_set(lane: &Lane<'_>, name: &str, volumes: Value) -> Result<DynamicObject, Failed> {
    let labels = json!({ "lane": lane.name, "daemon": name });
    tied(
        lane,
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": format!("{}-{name}", lane.name), "namespace": "default" },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": { "volumes": volumes } },
            },
        }),
    )
}

pub fn volume(claim: &str) -> Value {
    json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }])
}

/// The row of the pod whose name begins so.
fn row(fence: &NodeFence, name: &str) -> (PodStatusState, String, String) {
    let row = pod_row(fence, name).unwrap_or_else(|| panic!("no row for {name}"));
    (row.state, row.reason.clone().unwrap_or_default(), row.message.clone().unwrap_or_default())
}

pub async fn pods_that_nobody_asked_for_are_left_alone(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "kept", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let plain = Workload { volumes: Vec::new(), ..lane.workload("novolume") };
    lane.run(&plain).await?;
    lane.array().claim(&lane.client(), &Claim::new("default", "kept-bare")).await?;
    let mirror =
        json!({ "annotations": { "kubernetes.io/config.mirror": "0123", "kubernetes.io/config.source": "file" } });
    let objects = vec![
        pod(&lane, "bare", &json!({}), json!({ "volumes": volume("kept-bare") }))?,
        pod(&lane, "done", &json!({}), json!({ "restartPolicy": "Never" }))?,
        pod(&lane, "static", &mirror, json!({ "nodeName": lane.victim()?.name() }))?,
        daemon_set(&lane, "agent", json!([]))?,
    ];
    cluster.testbed.apply(objects).await?;
    let running = cluster.wait("all pods run", SOON, async || {
        let api: Api<Pod> = Api::default_namespaced(cluster.client.clone());
        let pods = api.list(&ListParams::default().labels("lane=kept")).await?.items;
        let running = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        Ok(if pods.len() == 6 && pods.iter().all(running) { Ok(pods) } else { Err(format!("{} pods", pods.len())) })
    });
    let agent = running.await?.into_iter().map(|pod| pod.name_any()).find(|name| name.starts_with("kept-agent"));
    let agent = agent.ok_or("no DaemonSet pod")?;
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    let done = json!({ "status": { "phase": "Succeeded" } });
    api.patch_status("kept-done", &PatchParams::default(), &Patch::Merge(done)).await?;
    let before = present(&lane).await?;
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    let fence = lane.fence("the only pod is released", |fence| {
        fence.status.as_ref().and_then(|s| s.progress.as_ref()).and_then(|p| p.pods.as_deref()) == Some("1/1")
    });
    let fence = fence.await?;
    let expected = [
        ("kept-novolume-0", "NoVolumes"),
        ("kept-bare", "BarePod"),
        ("kept-done", "Completed"),
        ("kept-static", "StaticPod"),
        (agent.as_str(), "DaemonSet"),
    ];
    for (name, reason) in expected {
        let (state, told, _) = row(&fence, name);
        assert_eq!((state, told.as_str()), (PodStatusState::Kept, reason), "{name}");
    }
    let mut left = before;
    left.remove("kept-db-0");
    assert_eq!(present(&lane).await?, left);
    lane.end().await
}

/// The Job controller holds its pods with a finalizer until they have ended: nobody is there to end them.
pub async fn a_pod_with_a_finalizer_is_failed_first(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "job", LaneOptions::default()).await?;
    lane.array().claim(&lane.client(), &Claim::new("default", "job-data")).await?;
    let nodes: Vec<_> = lane.nodes.iter().map(|node| node.name()).collect();
    let on = |nodes: &[&str]| json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": nodes }] });
    let victim = lane.victim()?;
    let job = serde_json::from_value(json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": "job-batch", "namespace": "default" },
        "spec": { "template": {
            "metadata": { "labels": { "lane": "job" } },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "affinity": { "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [on(&nodes)] },
                    "preferredDuringSchedulingIgnoredDuringExecution":
                        [{ "weight": 100, "preference": on(&[victim.name()]) }],
                } },
                "containers": [{ "name": "main", "image": "app" }],
                "volumes": volume("job-data"),
            },
        } },
    }))?;
    cluster.testbed.apply(vec![job]).await?;
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    let running_on = async |node: &str| {
        let pods = api.list(&ListParams::default().labels("lane=job")).await?.items;
        let runs = |pod: &&Pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
                && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        };
        Ok(pods.iter().find(runs).map(ResourceExt::name_any).ok_or_else(|| format!("{} pods", pods.len())))
    };
    let first = cluster.wait("the Job's pod runs", SOON, async || running_on(victim.name()).await).await?;
    victim.kill().await;
    cluster.wait("the Job's next pod runs", SOON, async || running_on(nodes[1]).await).await?;
    // The Job controller writes the pod too once it has failed: a deletion that it overtakes is refused and sent anew.
    let is_step =
        |record: &Record| record.resource == "pods" && record.name == first && record.is_write() && record.succeeded();
    let ours = operator_records(cluster, is_step)?;
    let steps: Vec<_> = ours.iter().map(|record| (record.verb.as_str(), record.subresource.as_str())).collect();
    assert_eq!(steps, [("patch", "status"), ("delete", "")]);
    lane.end().await
}

/// Waits until the lane's policy says that no proof can move some of its pods.
async fn told_at_noon(lane: &Lane<'_>) -> Result<(), Failed> {
    let policies: Api<ResiliencyPolicy> = Api::all(lane.client());
    // Pods are counted once a minute, and at once for a policy that was edited.
    let edit = json!({ "spec": { "recovery": { "warnAfter": "16m" } } });
    policies.patch(&lane.name, &PatchParams::default(), &Patch::Merge(&edit)).await?;
    let told = async || {
        let status = policies.get(&lane.name).await?.status.unwrap_or_default();
        let ready = status.conditions.iter().find(|condition| condition.type_ == "FenceReady");
        let is_told = ready.is_some_and(|it| it.status == "False" && it.reason == "PodsUnmovable");
        Ok(if is_told { Ok(()) } else { Err(format!("{ready:?}")) })
    };
    lane.cluster.wait("the policy says so before the node dies", SOON, told).await?;
    event(lane.cluster, "ResiliencyPolicy", &lane.name, "FenceNotReady", "would be held whatever is proved").await?;
    Ok(())
}

pub async fn pods_that_no_proof_can_move_wait_by_name(cluster: &Cluster) -> Result<(), Failed> {
    let unattached =
        ArrayOptions { driver_name: "waiting-unattached.csi.test".into(), attaches: false, ..ArrayOptions::default() };
    let unattached = cluster.add_array(&unattached).await?;
    let other = ArrayOptions { driver_name: "waiting-other.csi.test".into(), ..ArrayOptions::default() };
    let other = cluster.add_array(&other).await?;
    let _sidecar = Kept::new(cluster.sidecar(&other.array)?);
    let lane = Lane::new(cluster, "waiting", LaneOptions::default()).await?;
    let arrays: [&Array; 3] = [lane.array(), &unattached.array, &other.array];
    let host_path = json!({ "name": "host", "hostPath": { "path": "/var/lib/host" } });
    let inline = json!({ "name": "inline", "csi": { "driver": lane.array().driver_name() } });
    let workload = |name: &str, volumes: &[usize], more: &[&Value]| Workload {
        volumes: volumes.to_vec(),
        more_volumes: more.iter().map(|volume| (*volume).clone()).collect(),
        ..lane.workload(name)
    };
    let shared = Workload { access: Access::MultiWriter, ..lane.workload("shared") };
    let two = workload("two", &[0, 2], &[]);
    let goes = lane.workload("db");
    let sets = [
        workload("local", &[0], &[&host_path]),
        workload("inline", &[0], &[&inline]),
        workload("unattached", &[1], &[]),
        shared.clone(),
        two.clone(),
        goes.clone(),
    ];
    for set in &sets {
        lane.run_on(&arrays, set).await?;
    }
    cluster.testbed.apply(vec![daemon_set(&lane, "agent", volume(&shared.claim_name(0, 0)))?]).await?;
    let agent = cluster.wait("the DaemonSet's pod", SOON, async || {
        let pods = present(&lane).await.unwrap_or_default();
        Ok(pods.into_keys().find(|name| name.starts_with("waiting-agent")).ok_or_else(|| "not there".to_owned()))
    });
    let agent = agent.await?;
    let refused = Fault::on(Method::ControllerUnpublishVolume, Effect::Fail(Code::PermissionDenied));
    let refused = other.array.faults().add(refused);
    told_at_noon(&lane).await?;
    let before = present(&lane).await?;
    lane.victim()?.kill().await;
    lane.moved(&goes).await?;
    let fence = lane
        .fence("all others wait", |fence| {
            let waits = |set: &Workload| {
                pod_row(fence, &format!("{}-0", set.name)).is_some_and(|row| row.state == PodStatusState::Waiting)
            };
            sets.iter().filter(|set| set.name != goes.name).all(waits)
        })
        .await?;
    let expected = [
        ("waiting-local-0", "LocalVolume", "cannot move"),
        ("waiting-inline-0", "UnknownVolumeKind", "inline volume of driver waiting.csi.test"),
        ("waiting-unattached-0", "UnknownVolumeKind", "attachRequired: false"),
        ("waiting-shared-0", "SharerHeld", agent.as_str()),
        ("waiting-two-0", "ProofTooWeak", "pv-default-data1-waiting-two-0"),
    ];
    for (name, reason, words) in expected {
        let (_, told, message) = row(&fence, name);
        assert_eq!(told, reason, "{name}");
        assert!(message.contains(words), "{name}: {message}");
        lane.event("FenceHeld", &format!("{name}: {reason}")).await?;
    }
    let told = async |claim: String, reason: &str, note: &str| {
        event(cluster, "PersistentVolumeClaim", &claim, reason, note).await
    };
    told(two.claim_name(0, 1), "FenceHeld", "waiting-two-0: ProofTooWeak").await?;
    told(goes.claim_name(0, 0), "VolumeFenced", "proof Verified").await?;
    let handle = shared.handle(0, 0);
    let victim = lane.victim()?.csi_node_id().to_owned();
    assert!(
        lane.array().published_nodes(&handle).contains(&victim),
        "the shared volume was cut off from the one who stays"
    );
    let mut left = before;
    left.remove("waiting-db-0");
    assert_eq!(present(&lane).await?, left);
    other.array.faults().remove(refused);
    lane.moved(&two).await?;
    lane.end().await
}
