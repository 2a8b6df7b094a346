//! kstatus itself, by which Flux, Helm and kpt wait, and Argo CD with our health checks say of our objects what their conditions
//! mean.

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead::api::time::Now;
use bulkhead::controllers::mountpoint_s3_pod_attachment::decide::Seen;
use bulkhead::controllers::mountpoint_s3_pod_attachment::status::status;
use bulkhead_testbed::binaries::{Binaries, Program};
use chrono::Utc;
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::argo_cd;
use super::world::{World, feed, told};
use crate::api::objects::one;
use crate::api::world::samples;
use crate::failover::fleet::{Lane, LaneOptions};
use crate::failover::look::{condition, phase};

/// What a test expects of an object: in words, and as kstatus calls it.
type Case = (&'static str, &'static str, Value);

/// What kstatus computes for each object: its status, and why.
fn compute(objects: &[Value]) -> Result<Vec<(String, String)>, Failed> {
    let binaries = Binaries::ensure_all(None, &[Program::Kstatus])?;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let answer = feed(&mut Command::new(binaries.path(Program::Kstatus)), &list)?;
    let results: Vec<Value> = serde_json::from_slice(&answer)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(results.iter().map(|it| (text(&it["status"]), text(&it["message"]))).collect())
}

pub async fn and_argo_cd_read_our_conditions_as_we_mean_them(world: &World) -> Outcome {
    let (declared, held, stalled, recovered) = tokio::try_join!(
        declared(world),
        incident_that_is_held(world),
        incident_without_a_fencer(world),
        incident_to_its_end(world),
    )?;
    // Agents alone write reports, with a token of their node; what is there is all that a definition demands.
    let report = ("an agent reports", "Current", one(&samples().join("nodevolumereport.yaml"))?);
    let cases = [declared, held, stalled, recovered, attachments()?, vec![report]].concat();
    let objects: Vec<_> = cases.iter().map(|(_, _, object)| object.clone()).collect();
    let opinions =
        tokio::task::spawn_blocking(move || Ok::<_, Failed>((compute(&objects)?, argo_cd::health(&objects)?)));
    let (computed, health) = opinions.await??;
    assert_eq!((computed.len(), health.len()), (cases.len(), cases.len()));
    for (((what, expected, object), (status, message)), opinion) in cases.iter().zip(computed).zip(health) {
        let told = format!("{what} ({}): {message}; {}: {:#}", told(object), opinion.message, object["status"]);
        assert_eq!(status, *expected, "{told}");
        let expected = match *expected {
            "Current" => "Healthy",
            "Failed" => "Degraded",
            _ => "Progressing",
        };
        assert_eq!(opinion.health, expected, "{told}");
    }
    Ok(())
}

/// Kinds that people declare.
async fn declared(world: &World) -> Result<Vec<Case>, Failed> {
    let policy = |name: &str, spec: Value| object("ResiliencyPolicy", name, spec);
    let selector = json!({"podSelector": {"matchLabels": {"none": "such"}}});
    let good = policy("kstatus-good", json!({"mode": "Enforce", "selector": selector}));
    let schedule = json!([{"name": "w", "schedule": "61 2 * * *", "duration": "1h", "timeZone": "UTC"}]);
    let bad = policy("kstatus-bad", json!({"mode": "Enforce", "selector": selector, "maintenanceWindows": schedule}));
    let mut kept = policy("kstatus-kept", json!({"mode": "Enforce", "selector": selector}));
    kept["metadata"]["finalizers"] = json!(["example.com/kept"]);
    let health = policy_of_health();
    let shared = |name: &str| {
        let mut it = object(
            "SharedVolume",
            name,
            json!({"claimName": "kstatus", "backend": {"pods": {"matchLabels": {"a": "b"}}}}),
        );
        it["metadata"]["namespace"] = "default".into();
        it
    };
    let provider = object(
        "SharedVolumeProvider",
        "kstatus",
        json!({
            "type": "StorageOS", "endpoints": ["https://192.0.2.1:5705"],
            "credentialsRef": {"namespace": "bulkhead-system", "name": "none-such"},
        }),
    );
    let mut cases = vec![("nobody has looked at it", "InProgress", applied(world, &good, true).await?)];
    for wanted in [
        &good,
        &bad,
        &kept,
        &health,
        &object("VolumeHealth", "kstatus-gone", json!({})),
        &shared("kstatus-a"),
        &provider,
    ] {
        applied(world, wanted, false).await?;
    }
    let accepted = ready(world, &good, "True").await?;
    let mut changed = accepted.clone();
    changed["metadata"]["generation"] = json!(changed["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
    ready(world, &kept, "True").await?;
    world.testbed().kubectl(&["delete", "resiliencypolicy", "kstatus-kept", "--wait=false"]).await?;
    let waiting = ready(world, &shared("kstatus-a"), "False").await?;
    applied(world, &shared("kstatus-b"), false).await?;
    cases.extend([
        ("accepted", "Current", accepted),
        ("its spec has changed since", "InProgress", changed),
        ("a schedule that nobody understands", "Failed", ready(world, &bad, "False").await?),
        ("it is being deleted", "Terminating", look(world, &kept).await?),
        ("watches volumes", "Current", ready(world, &health, "True").await?),
        (
            "its volume is not there",
            "InProgress",
            ready(world, &object("VolumeHealth", "kstatus-gone", json!({})), "False").await?,
        ),
        ("waits for its claim", "InProgress", waiting),
        ("another has its claim", "Failed", ready(world, &shared("kstatus-b"), "False").await?),
        ("no credentials", "Failed", ready(world, &provider, "False").await?),
    ]);
    world
        .testbed()
        .kubectl(&[
            "patch",
            "resiliencypolicy",
            "kstatus-kept",
            "--type=json",
            "-p",
            r#"[{"op":"remove","path":"/metadata/finalizers"}]"#,
        ])
        .await?;
    Ok(cases)
}

fn policy_of_health() -> Value {
    object("VolumeHealthPolicy", "kstatus", json!({"priority": 77, "selector": {"storageClasses": ["none-such"]}}))
}

/// In a rehearsal it waits for nobody to lift it.
async fn incident_that_is_held(world: &World) -> Result<Vec<Case>, Failed> {
    let options = LaneOptions { policy: json!({"mode": "DryRun"}), ..LaneOptions::default() };
    let (lane, _, _) = Lane::open(&world.cluster, "gitops-held", options).await?;
    lane.victim()?.kill().await;
    let fence = lane.fence("held", |fence| condition(fence, "Held") == Some(("True", "DryRun"))).await?;
    lane.end().await?;
    Ok(vec![("held", "InProgress", of_fence(&fence)?)])
}

async fn incident_without_a_fencer(world: &World) -> Result<Vec<Case>, Failed> {
    let options = LaneOptions { sidecar: false, ..LaneOptions::default() };
    let (lane, _, _) = Lane::open(&world.cluster, "gitops-stalled", options).await?;
    lane.victim()?.kill().await;
    let fence = lane.fence("stalled", |fence| condition(fence, "Stalled").is_some()).await?;
    lane.end().await?;
    Ok(vec![("nobody can fence", "Failed", of_fence(&fence)?)])
}

async fn incident_to_its_end(world: &World) -> Result<Vec<Case>, Failed> {
    let (lane, set, _) = Lane::open(&world.cluster, "gitops-moves", LaneOptions::default()).await?;
    let victim = lane.victim()?.clone();
    victim.kill().await;
    let detached = lane.detached().await?;
    let request = lane.request("fenced", |_| true).await?;
    lane.moved(&set).await?;
    let report = world.testbed().kubectl(&["get", "driverreport", lane.array().driver_name(), "-o", "json"]).await?;
    victim.reboot().await?;
    let recovered = lane.fence("recovered", |fence| phase(fence) == Some(Phase::Recovered)).await?;
    lane.end().await?;
    Ok(vec![
        ("the node is away", "InProgress", of_fence(&detached)?),
        ("cut off and proved", "Current", of(&request, "FenceRequest")?),
        ("a driver says what it can", "Current", serde_json::from_str(&report)?),
        ("over", "Current", of_fence(&recovered)?),
    ])
}

/// Their controller does not run here: the status is what it would write.
fn attachments() -> Result<Vec<Case>, Failed> {
    Ok(vec![
        ("its Mountpoint Pods serve", "Current", attachment("Running")?),
        ("a Mountpoint Pod waits", "InProgress", attachment("Pending")?),
        ("a Mountpoint Pod failed", "InProgress", attachment("Failed")?),
    ])
}

/// One with a Mountpoint Pod in this phase.
fn attachment(phase: &str) -> Result<Value, Failed> {
    let name = "mp-kstatus";
    let workload = json!({"workloadPodUID": "uid-1", "attachmentTime": "2026-01-01T00:00:00Z"});
    let mut attachment: MountpointS3PodAttachment = serde_json::from_value(json!({
        "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment",
        "metadata": {"name": "kstatus", "generation": 1},
        "spec": {
            "nodeName": "node-1", "persistentVolumeName": "data", "volumeID": "data", "mountOptions": "", "workloadFSGroup": "",
            "mountpointS3PodAttachments": {name: [workload]},
        },
    }))?;
    let pod = serde_json::from_value(json!({"metadata": {"name": name, "uid": "uid-2"}, "status": {"phase": phase}}))?;
    let seen = Seen { pods: [(name.to_owned(), Arc::new(pod))].into(), ..Seen::default() };
    let now = Now { wall: Utc::now(), mono: Instant::now() };
    attachment.status = Some(status(&seen, &attachment, now));
    Ok(serde_json::to_value(attachment)?)
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn of_fence(fence: &NodeFence) -> Result<Value, Failed> {
    of(fence, "NodeFence")
}

/// As the server has it: a list leaves the kind of its items out.
fn of(object: &impl serde::Serialize, kind: &str) -> Result<Value, Failed> {
    let mut value = serde_json::to_value(object)?;
    value["kind"] = kind.into();
    value["apiVersion"] = "bulkhead.dev/v1alpha1".into();
    Ok(value)
}

/// Applies an object, or asks what would be stored.
async fn applied(world: &World, object: &Value, dry: bool) -> Result<Value, Failed> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("object.json");
    std::fs::write(&path, object.to_string())?;
    let path = path.to_string_lossy();
    let dry: &[&str] = if dry { &["--dry-run=server"] } else { &[] };
    let answer =
        world.testbed().kubectl(&[&["apply", "--server-side", "-o", "json", "-f", &path], dry].concat()).await?;
    Ok(serde_json::from_str(&answer)?)
}

async fn look(world: &World, object: &Value) -> Result<Value, Failed> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("default").to_owned();
    let (kind, name, namespace) = (text("/kind"), text("/metadata/name"), text("/metadata/namespace"));
    Ok(serde_json::from_str(&world.testbed().kubectl(&["get", &kind, &name, "-n", &namespace, "-o", "json"]).await?)?)
}

/// The object once its controller has said so of what is stored.
async fn ready(world: &World, object: &Value, state: &str) -> Result<Value, Failed> {
    world
        .wait(&format!("{}: Ready={state}", told(object)), async || {
            let live = look(world, object).await.map_err(|error| format!("{error:?}"))?;
            let conditions = live["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_said = conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == state);
            let is_new = live["status"]["observedGeneration"] == live["metadata"]["generation"];
            if is_said && is_new { Ok(live) } else { Err(live["status"].to_string()) }
        })
        .await
}
