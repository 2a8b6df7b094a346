//! The use cases of the PV Health Monitor proposal, from the report to the taint and back.

use bulkhead::api::volume_health::Phase;
use kube::ResourceExt;
use libtest_mimic::Failed;
use serde_json::json;

use super::world::{World, abnormal, bad, good};

/// U1, U2, U4–U8 (U3 is about nodes): what is said, and the taint.
pub async fn every_use_case_taints_and_clears(world: &World) -> Result<(), Failed> {
    world.node("uses-1").await?;
    let of_agent = [
        ("u1-directory-deleted", "PathExists", "PathMissing", "VolumeNotUsable"),
        ("u2-no-mount-point", "MountPoint", "NotMountPoint", "VolumeNotMounted"),
        ("u6-wrong-file-system", "FilesystemType", "FilesystemTypeMismatch", "VolumeNotUsable"),
    ];
    for (volume, ..) in of_agent {
        world.local(volume, "uses-1").await?;
    }
    world.csi("u8-unmounted", json!({})).await?;
    world.user("u8", "uses-1", "u8-unmounted").await?;
    let of_driver = [
        ("u4-deleted-in-the-backend", "BackendDeleted", "VolumeNotUsable"),
        ("u5-unreachable", "BackendUnreachable", "VolumeNotUsable"),
        ("u7-detached", "PublishedNodeMismatch", "VolumeNotAttached"),
    ];
    for (volume, ..) in of_driver {
        world.csi(volume, json!({})).await?;
    }
    let mut volumes: Vec<_> =
        of_agent.iter().map(|(volume, check, reason, _)| bad(volume, check, "Inaccessible", reason)).collect();
    volumes.push(bad("u8-unmounted", "CSIMounts", "Inaccessible", "NotMounted"));
    world.report("uses-1", json!(volumes)).await?;
    let groups: Vec<_> = of_driver.iter().map(|(volume, reason, _)| abnormal(volume, "Inaccessible", reason)).collect();
    world.driver("uses", json!(groups)).await?;

    let of_agent = of_agent.map(|(volume, _, reason, key)| (volume, reason, key, "NodeAgent"));
    let of_driver = of_driver.map(|(volume, reason, key)| (volume, reason, key, "CSIController"));
    let unmounted = ("u8-unmounted", "NotMounted", "VolumeNotMounted", "NodeAgent");
    let all: Vec<_> = of_agent.into_iter().chain(of_driver).chain([unmounted]).collect();
    for (volume, reason, key, source) in &all {
        let health = world.tainted(volume, key).await?;
        let status = health.status.as_ref().ok_or("no status")?;
        let taint = &status.taints[0];
        assert_eq!((taint.reason.as_str(), format!("{:?}", taint.source).as_str()), (*reason, *source), "{volume}");
        let effect = if *key == "VolumeNotUsable" { "NoAttachOrMount" } else { "NoEffect" };
        assert_eq!(format!("{:?}", taint.effect()), effect, "{volume}");
        assert_eq!(status.phase, Some(Phase::Unhealthy), "{volume}");
        assert_eq!(health.owner_references()[0].name, *volume);
    }
    let table = world.cluster.testbed.kubectl(&["get", "volumehealth", "u1-directory-deleted"]).await?;
    for shown in ["Unhealthy", "VolumeNotUsable", "PathMissing", "1/1", "Observe"] {
        assert!(table.contains(shown), "{shown} is not in\n{table}");
    }

    let volumes: Vec<_> = of_agent.iter().map(|(volume, ..)| good(volume)).chain([good("u8-unmounted")]).collect();
    world.report("uses-1", json!(volumes)).await?;
    world.driver("uses", json!([])).await?;
    for (volume, ..) in &all {
        let health = world.tainted(volume, "").await?;
        assert_eq!(health.status.ok_or("no status")?.phase, Some(Phase::Healthy), "{volume}");
    }
    Ok(())
}

/// Operators hear of taints, users of what it means for them: each once per transition.
pub async fn users_of_a_volume_are_told_once(world: &World) -> Result<(), Failed> {
    world.node("told-1").await?;
    world.csi("told", json!({})).await?;
    world.user("told", "told-1", "told").await?;
    let broken = bad("told", "ReadOnly", "Inaccessible", "ReadOnlyRemount");
    world.report("told-1", json!([broken])).await?;
    let health = world.tainted("told", "VolumeNotUsable").await?;
    assert_eq!(health.status.ok_or("no status")?.users, ["default/told"]);
    for kind in ["VolumeHealth", "PersistentVolume"] {
        world.told(kind, "told", &["VolumeTainted"]).await?;
    }
    for kind in ["PersistentVolumeClaim", "Pod"] {
        world.told(kind, "told", &["VolumeConditionAbnormal"]).await?;
    }
    world.report("told-1", json!([good("told")])).await?;
    world.tainted("told", "").await?;
    for kind in ["VolumeHealth", "PersistentVolume"] {
        world.told(kind, "told", &["VolumeTaintRemoved", "VolumeTainted"]).await?;
    }
    for kind in ["PersistentVolumeClaim", "Pod"] {
        world.told(kind, "told", &["VolumeConditionAbnormal", "VolumeConditionNormal"]).await?;
    }
    Ok(())
}
