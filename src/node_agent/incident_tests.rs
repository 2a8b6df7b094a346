//! Which volumes an incident has and what is known of them, over restarts, failed looks and episodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use chrono::DateTime;
use serde_json::{Value, json};

use crate::api::names;
use crate::api::node_fence::NodeFence;
use crate::api::node_volume_report::{NodeVolumeReport, NodeVolumeReportSpec};
use crate::api::slim::Pod;
use crate::api::time::Now;

use super::decide::{Incident, Key, Looked, Seen, Work, decide};
use super::live;
use super::memory::Memory;
use super::mounts::inventory::{Elsewhere, Inventory, Mounted, Place, Remains};
use super::mounts::mountinfo::Device;
use super::observe::incident;
use super::status;
use super::tests::first_seen;

const DEVICE: Device = Device { major: 0, minor: 50 };

/// An active NodeFence of that episode, with these volumes (name, episode) cut off and these pods (uid, volume).
fn fence(episode: i64, volumes: &[(&str, i64)], pods: &[(&str, &str)]) -> NodeFence {
    let plan = |(name, episode): &(&str, i64)| {
        json!({ "episode": episode, "name": name, "driver": "csi.example.com", "volumeHandle": name,
                "minimumProof": "Verified" })
    };
    let row = |(name, episode): &(&str, i64)| {
        json!({ "episode": episode, "name": name, "state": "Detached", "proof": "Verified", "method": "Unpublish",
                "committedAt": "2026-11-21T02:40:00Z", "provedAt": "2026-11-21T02:40:01Z" })
    };
    let pod = |(uid, volume): &(&str, &str)| {
        json!({ "episode": episode, "uid": uid, "namespace": "shop", "name": uid, "action": "Release",
                "reason": "NodeFailure", "volumes": [volume] })
    };
    let fence: Value = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeFence",
        "metadata": { "name": "n", "uid": "f", "labels": { names::ACTIVE_LABEL: "true" } },
        "spec": {
            "episode": episode, "node": { "uid": "n" },
            "policies": [{ "name": "p", "uid": "u", "generation": 1, "mode": "Enforce" }],
            "plan": {
                "decidedAt": "2026-11-21T02:39:00Z", "digest": "sha256:00000000", "evidence": [],
                "pods": pods.iter().map(pod).collect::<Vec<_>>(),
                "volumes": volumes.iter().map(plan).collect::<Vec<_>>(),
            },
        },
        "status": { "volumes": volumes.iter().map(row).collect::<Vec<_>>() },
    });
    serde_json::from_value(fence).unwrap()
}

fn private() -> Remains {
    let mount = Mounted { path: "/run/driver/1".into(), device: DEVICE, root: "/".into(), fs_type: "ext4".into() };
    Remains { elsewhere: vec![Elsewhere { mount, pod: None, below_root: None }], ..Remains::default() }
}

/// The report of an agent that was started a moment ago, after its first pass.
fn reported(report: &NodeVolumeReport, incident: Incident, found: Result<Inventory, &str>) -> NodeVolumeReport {
    let now = Now { wall: DateTime::from_timestamp(1_700_000_000, 0).unwrap(), mono: Instant::now() };
    let found = found.map(Arc::new).map_err(str::to_owned);
    let seen = Seen {
        node_boot_id: String::new(),
        looked: Some(Looked { began: now.mono, ended: now.mono, found }),
        ..first_seen(report.clone(), incident)
    };
    let mut memory = Memory::default();
    memory.note(&seen, now.mono);
    let decision = decide(&seen, &memory, now.mono);
    let mut next = report.clone();
    next.status = Some(status::compute(&seen, decision.cleanup.as_ref(), now));
    next
}

fn of(volumes: Vec<Remains>) -> Inventory {
    Inventory { volumes, ..Inventory::default() }
}

/// The report that tells of a driver's own mount, in boot-1 and episode 1.
fn told() -> (NodeFence, NodeVolumeReport) {
    let fence = fence(1, &[("pvc-1", 1)], &[("u-1", "pvc-1")]);
    let report = NodeVolumeReport::new("n", NodeVolumeReportSpec {});
    let incident = incident(&fence, &report, "boot-1", &[]).unwrap();
    (fence, reported(&report, incident, Ok(of(vec![private()]))))
}

fn known(fence: &NodeFence, report: &NodeVolumeReport, boot_id: &str) -> Vec<(Device, String)> {
    incident(fence, report, boot_id, &[]).unwrap().wanted.remove(0).known
}

fn mount() -> Vec<(Device, String)> {
    vec![(DEVICE, "/run/driver/1".to_owned())]
}

#[test]
fn a_look_that_failed_takes_no_mount_from_the_record() {
    let (fence, first) = told();
    assert_eq!(known(&fence, &first, "boot-1"), mount());
    for found in [Err("InventoryTimedOut"), Ok(Inventory::default())] {
        let failed = reported(&first, incident(&fence, &first, "boot-1", &[]).unwrap(), found);
        assert_eq!(known(&fence, &failed, "boot-1"), mount());
        let gone =
            reported(&failed, incident(&fence, &failed, "boot-1", &[]).unwrap(), Ok(of(vec![Remains::default()])));
        assert_eq!(known(&fence, &gone, "boot-1"), [], "a whole look found it gone");
    }
}

#[test]
fn a_record_outlives_the_episode_and_not_the_boot_nor_the_fence() {
    let (_, first) = told();
    let second = fence(2, &[("pvc-1", 1)], &[]);
    assert_eq!(known(&second, &first, "boot-1"), mount());
    let failed = reported(&first, incident(&second, &first, "boot-1", &[]).unwrap(), Err("InventoryTimedOut"));
    assert_eq!(known(&second, &failed, "boot-1"), mount());
    let rebooted = reported(&first, incident(&second, &first, "boot-2", &[]).unwrap(), Err("InventoryTimedOut"));
    assert_eq!(known(&second, &rebooted, "boot-2"), [], "device numbers of another boot mean nothing");
    let mut other = second.clone();
    other.metadata.uid = Some("g".into());
    assert_eq!(known(&other, &first, "boot-1"), []);
}

#[test]
fn of_a_row_of_an_earlier_episode_any_unknown_pod_may_be() {
    let report = NodeVolumeReport::new("n", NodeVolumeReportSpec {});
    // The plan of the second episode has only the pods of the second, here one that uses the old volume too.
    let fence = fence(2, &[("old", 1), ("new", 2), ("twice", 1), ("twice", 2)], &[("u-2", "new"), ("u-2", "old")]);
    let wanted = incident(&fence, &report, "boot-1", &["u-3".to_owned()]).unwrap().wanted;
    let may_be = |name: &str, pod: &str| {
        let volume = wanted.iter().find(|volume| volume.name == name).unwrap();
        volume.may_be_of(&BTreeSet::from([pod.to_owned()]))
    };
    for (volume, pod, expected) in [
        ("old", "u-1", true),
        ("old", "u-2", true),
        ("old", "u-3", false),
        ("new", "u-1", false),
        ("new", "u-2", true),
        ("twice", "u-1", true),
        ("twice", "u-3", false),
    ] {
        assert_eq!(may_be(volume, pod), expected, "{volume} {pod}");
    }
}

#[test]
fn what_the_api_says_itself_decides_at_last() {
    let fence = fence(1, &[("pvc-1", 1)], &[("u-1", "pvc-1"), ("u-2", "pvc-2")]);
    let report = NodeVolumeReport::new("n", NodeVolumeReportSpec {});
    let volume = incident(&fence, &report, "boot-1", &[]).unwrap().wanted.remove(0);
    let place = |pod: &str| Place { pod: Some(pod.to_owned()), ..Place::default() };
    let key = Key::of(&fence, "boot-1").unwrap();
    let work = |pod: &str, rest: Option<Remains>| {
        let (key, volume) = (key.clone(), volume.clone());
        Work { key, volume, targets: vec![place(pod)], rest, elsewhere: Vec::new(), force: false }
    };
    let all = work("u-1", Some(Remains::default()));
    let pod = |uid: &str, volume: Value, phase: &str| -> Pod {
        let pod = json!({ "metadata": { "name": uid, "namespace": "shop", "uid": uid },
                          "spec": { "volumes": [volume] }, "status": { "phase": phase } });
        serde_json::from_value(pod).unwrap()
    };
    let claim = || json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    let judge = |work: &Work, fence: Option<&NodeFence>, pods: &[Pod]| match live::judge(work, fence, pods) {
        Ok(None) => "all".to_owned(),
        Ok(Some(forbids)) => format!("no rest: {}", forbids.reason),
        Err(refusal) => refusal.reason,
    };
    assert_eq!(judge(&all, Some(&fence), &[]), "all");
    for (uid, volume, phase, expected) in [
        ("u-1", claim(), "Running", "PodNotGone"),
        ("u-1", claim(), "Failed", "all"),
        ("u-2", claim(), "Running", "all"),
        ("u-3", claim(), "Pending", "no rest: PodMayUseVolume"),
        ("u-3", json!({ "name": "data", "ephemeral": {} }), "Running", "no rest: PodMayUseVolume"),
        ("u-3", json!({ "name": "tmp", "emptyDir": {} }), "Running", "all"),
    ] {
        assert_eq!(judge(&all, Some(&fence), &[pod(uid, volume, phase)]), expected, "{uid} {phase}");
    }
    let of_another = work("u-9", None);
    assert_eq!(judge(&of_another, Some(&fence), &[pod("u-1", claim(), "Running")]), "all", "it is not taken from it");
    assert_eq!(judge(&all, None, &[]), "IncidentChanged");
    for change in [
        (|fence: &mut NodeFence| fence.metadata.uid = Some("g".into())) as fn(&mut NodeFence),
        |fence| fence.spec.episode = 2,
        |fence| fence.metadata.labels = None,
        |fence| fence.status.as_mut().unwrap().volumes.clear(),
    ] {
        let mut other = fence.clone();
        change(&mut other);
        assert_eq!(judge(&all, Some(&other), &[]), "IncidentChanged");
    }
}
