//! When a VolumeHealth comes and goes, and what the policies tell of it.

use bulkhead::api::conditions;
use bulkhead::api::volume_health::Phase;
use bulkhead::api::volume_health_policy::{VolumeHealthPolicy, VolumeHealthPolicyStatus};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::world::{DRIVER, SOON, World, abnormal};

pub async fn a_policy_that_changes_selects_anew(world: &World) -> Result<(), Failed> {
    world.csi("selected", json!({ "lane": "selects" })).await?;
    world.driver("selects", json!([abnormal("selected", "Inaccessible", "BackendDeleted")])).await?;
    let health = world.tainted("selected", "VolumeNotUsable").await?;
    let status = health.status.as_ref().ok_or("no status")?;
    assert_eq!(status.policy.as_deref(), Some("default"));
    let selector = json!({ "volumeSelector": { "matchLabels": { "lane": "selects" } } });
    let effects = json!([{ "key": "VolumeNotUsable", "effect": "NoEffect" }]);
    world.policy("selects", json!({ "selector": selector, "priority": 7, "effects": effects })).await?;
    let ruled =
        world.health("selected", "ruled by another", |status| status.policy.as_deref() == Some("selects")).await?;
    assert_eq!(format!("{:?}", ruled.taints()[0].effect()), "NoEffect");
    assert_eq!(ruled.taints()[0].time_added, health.taints()[0].time_added, "it is the same taint");
    // Or it makes less of what this driver says.
    let states = json!([{ "driver": DRIVER, "reason": "BackendDeleted", "state": "Degraded" }]);
    world.policy("selects", json!({ "selector": selector, "priority": 7, "states": states })).await?;
    let degraded = world.tainted("selected", "").await?;
    assert_eq!(degraded.status.ok_or("no status")?.phase, Some(Phase::Degraded));
    world.drop_policy("selects").await?;
    world.health("selected", "ruled by the first again", |status| status.policy.as_deref() == Some("default")).await?;
    world.tainted("selected", "VolumeNotUsable").await?;
    world.driver("selects", json!([])).await
}

pub async fn a_volume_goes_and_returns_anew(world: &World) -> Result<(), Failed> {
    world.csi("returning", json!({})).await?;
    world.driver("returns", json!([abnormal("returning", "DataLoss", "DataLoss")])).await?;
    let first = world.tainted("returning", "VolumeNotUsable").await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.admin.clone(), "default");
    let volumes: Api<PersistentVolume> = Api::all(world.admin.clone());
    volumes.delete("returning", &DeleteParams::default()).await?;
    claims.delete("returning", &DeleteParams::default()).await?;
    let gone = async || {
        let left =
            (volumes.get_opt("returning").await?.is_some(), world.healths().get_opt("returning").await?.is_some());
        Ok(if left == (false, false) { Ok(()) } else { Err(format!("volume and VolumeHealth: {left:?}")) })
    };
    world.cluster.wait("volume and VolumeHealth are gone", SOON, gone).await?;
    world.driver("returns", json!([])).await?;
    world.csi("returning", json!({})).await?;
    let second = world.tainted("returning", "").await?;
    assert_ne!(first.uid(), second.uid());
    Ok(())
}

pub async fn one_that_a_person_made_is_completed(world: &World) -> Result<(), Failed> {
    let health = serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "VolumeHealth", "metadata": { "name": "made-first" },
        "spec": { "manualTaints": [{ "key": "example.com/new", "reason": "not yet" }] },
    }))?;
    world.healths().create(&PostParams::default(), &health).await?;
    let ready = |status: &bulkhead::api::volume_health::VolumeHealthStatus| {
        conditions::find(&status.conditions, "Ready").map(|ready| ready.reason.clone())
    };
    world.health("made-first", "no volume", |status| ready(status).as_deref() == Some("PersistentVolumeGone")).await?;
    world.csi("made-first", json!({})).await?;
    let health = world.tainted("made-first", "example.com/new").await?;
    assert_eq!(health.owner_references()[0].kind, "PersistentVolume");
    assert_eq!(health.status.as_ref().and_then(ready).as_deref(), Some("Monitored"));
    Ok(())
}

pub async fn policies_tell_what_they_rule(world: &World) -> Result<(), Failed> {
    let policies: Api<VolumeHealthPolicy> = Api::all(world.admin.clone());
    let told = async |name: &str, what: &str, holds: &dyn Fn(&VolumeHealthPolicyStatus) -> bool| {
        let look = async || {
            let found = policies.get(name).await?.status.unwrap_or_default();
            Ok(if holds(&found) { Ok(()) } else { Err(serde_json::to_string(&found)?) })
        };
        world.cluster.wait(&format!("VolumeHealthPolicy {name}: {what}"), SOON, look).await
    };
    let is = |type_: &'static str, reason: &'static str| {
        move |status: &VolumeHealthPolicyStatus| {
            conditions::find(&status.conditions, type_).is_some_and(|condition| condition.reason == reason)
        }
    };
    world.csi("told-of", json!({ "lane": "tells" })).await?;
    let selector = json!({ "volumeSelector": { "matchLabels": { "lane": "tells" } } });
    let stored = world.policy("tells-none", json!({ "selector": { "storageClasses": ["none"] } })).await?;
    let spec = &stored.data["spec"];
    assert_eq!((&spec["interval"], &spec["enforcement"]), (&json!("60s"), &json!("Observe")), "the server's defaults");
    told("tells-none", "nothing selected", &is("Ready", "NothingSelected")).await?;
    world.policy("tells", json!({ "selector": selector, "priority": 3 })).await?;
    told("tells", "accepted", &|status| is("Ready", "Accepted")(status) && status.volumes == Some(1)).await?;
    world.policy("tells-b", json!({ "selector": selector, "priority": 3 })).await?;
    told("tells-b", "conflict", &|status| is("Conflict", "SamePriority")(status) && status.overruled == Some(1))
        .await?;
    told("tells", "conflict", &is("Conflict", "SamePriority")).await?;
    world.told("VolumeHealthPolicy", "tells", &["PolicyAccepted", "SamePriority"]).await?;
    for name in ["tells-none", "tells", "tells-b"] {
        world.drop_policy(name).await?;
    }
    Ok(())
}
