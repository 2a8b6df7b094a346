use std::collections::BTreeSet;
use std::time::Instant;

use chrono::DateTime;

use super::super::decide::{Incident, Key};
use super::super::tests::first_seen;
use super::*;
use crate::api::node_volume_report::{NodeVolumeReport, NodeVolumeReportSpec};
use crate::api::volume::{Check, Finding};

fn now() -> Now {
    Now { wall: DateTime::from_timestamp(1_700_000_000, 0).unwrap(), mono: Instant::now() }
}

fn row(name: &str, state: VolumeState) -> ReportedVolume {
    let finding = Finding {
        check: Check::ReadOnly,
        state,
        reason: "ReadOnlyRemount".into(),
        message: None,
        since: DateTime::UNIX_EPOCH,
        pod_uids: Vec::new(),
    };
    ReportedVolume {
        name: name.into(),
        driver: None,
        volume_handle: None,
        device: None,
        state,
        mounts: Vec::new(),
        findings: Some(finding).filter(|_| state != VolumeState::Healthy).into_iter().collect(),
    }
}

fn private(name: &str, state: VolumeState) -> ReportedVolume {
    let mount = ReportedMount { kind: MountKind::Private, path: "/driver/own".into(), pod_uid: None };
    ReportedVolume { mounts: vec![mount], device: Some("0:50".into()), ..row(name, state) }
}

/// What an agent sees that has just started, and what was reported before.
fn seen(before: NodeVolumeReportStatus) -> Seen {
    let mut report = NodeVolumeReport::new("n", NodeVolumeReportSpec {});
    report.status = Some(before);
    let key = Key { fence_uid: "f".into(), episode: 1, digest: "sha256:00000000".into(), boot_id: "boot-1".into() };
    let incident = Incident { key, wanted: Vec::new(), unusable: Vec::new() };
    let fenced = BTreeSet::from(["private".to_owned()]);
    Seen { node_uid: "new".into(), fenced, ..first_seen(report, incident) }
}

fn names(status: &NodeVolumeReportStatus) -> Vec<(&str, VolumeState)> {
    status.volumes.iter().map(|row| (row.name.as_str(), row.state)).collect()
}

#[test]
fn what_was_said_under_an_earlier_node_object_is_not_published_under_the_new_one() {
    use VolumeState::{Inaccessible, Unknown};
    let all = [("disk", Inaccessible), ("private", Inaccessible)];
    for (node, boot, expected, of_incident) in [
        (Some("new"), "boot-1", &all[..], true),
        (None, "boot-1", &all[..], true),
        (Some("old"), "boot-1", &[("private", Unknown)][..], true),
        (Some("old"), "boot-0", &[][..], false),
    ] {
        let before = NodeVolumeReportStatus {
            node_uid: node.map(str::to_owned),
            boot_id: Some(boot.to_owned()),
            checked: Some(2),
            unhealthy: Some(2),
            volumes: vec![row("disk", Inaccessible), private("private", Inaccessible)],
            cleanup: Some(Cleanup {
                fence_uid: "f".into(),
                episode: 1,
                digest: "sha256:00000000".into(),
                state: CleanupState::Inventory,
                clean_passes: 0,
                boot_id: boot.to_owned(),
                finished_at: None,
                remaining: Vec::new(),
            }),
            ..NodeVolumeReportStatus::default()
        };
        let status = compute(&seen(before), None, now());
        assert_eq!(names(&status), expected, "{node:?} {boot}");
        assert_eq!(status.checked, (expected.len() == 2).then_some(2), "{node:?} {boot}");
        assert_eq!(status.node_uid.as_deref(), Some("new"));
        assert_eq!(status.cleanup.is_some(), of_incident, "{node:?} {boot}");
    }
}

#[test]
fn an_incident_displaces_healthy_volumes_first() {
    let healthy = |number| row(&format!("a-{number:04}"), VolumeState::Healthy);
    let ill = [row("z-1", VolumeState::Inaccessible), row("z-2", VolumeState::Unknown)];
    let health = (0..VOLUMES_MAX - 2).map(healthy).chain(ill).collect();
    let of_incident = (0..5).map(|number| private(&format!("p-{number}"), VolumeState::Unknown)).collect();
    let rows = together(health, of_incident);
    assert_eq!(rows.len(), VOLUMES_MAX);
    for name in ["z-1", "z-2", "p-0", "p-4", "a-0000"] {
        assert!(rows.iter().any(|row| row.name == name), "{name}");
    }
    assert!(rows.is_sorted_by(|one, other| one.name < other.name));
}
