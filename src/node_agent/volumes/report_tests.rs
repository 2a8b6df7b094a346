use chrono::DateTime;

use super::*;
use crate::api::node_volume_report::MountKind;
use crate::api::volume::Check;

fn finding(check: Check, state: VolumeState) -> Finding {
    let message = Some("words ".repeat(80));
    Finding { check, state, reason: "Why".into(), message, since: DateTime::UNIX_EPOCH, pod_uids: Vec::new() }
}

fn mount(number: usize) -> ReportedMount {
    ReportedMount { kind: MountKind::Target, path: format!("/k/{number:03}"), pod_uid: None }
}

fn entry(name: &str, findings: Vec<Finding>) -> Entry {
    let csi = Some(("d".to_owned(), format!("handle of {name}")));
    Entry { name: name.into(), csi, mounts: vec![mount(1)], findings, known: true, ..Entry::default() }
}

#[test]
fn the_worst_finding_is_the_state_and_comes_first() {
    use VolumeState::{DataLoss, Degraded, Inaccessible, Unknown};
    for (states, expected) in [
        (vec![], VolumeState::Healthy),
        (vec![Degraded], Degraded),
        (vec![Unknown, Degraded], Degraded),
        (vec![Unknown], Unknown),
        (vec![Degraded, Inaccessible, DataLoss], DataLoss),
    ] {
        let checks = Check::ALL.into_iter();
        let findings = checks.zip(states).map(|(check, state)| finding(check, state)).collect();
        let told = health(vec![entry("v", findings)]);
        let row = &told.volumes[0];
        assert_eq!(
            (row.state, row.findings.first().map_or(VolumeState::Healthy, |first| first.state)),
            (expected, expected)
        );
        assert_eq!((told.checked, told.unhealthy), (1, u32::from(expected != VolumeState::Healthy)));
    }
    let unknown = health(vec![Entry { known: false, ..entry("v", Vec::new()) }]);
    assert_eq!((unknown.volumes[0].state, unknown.unhealthy), (Unknown, 1));
}

#[test]
fn mounts_only_with_findings_and_within_the_limits() {
    assert_eq!(health(vec![entry("v", Vec::new())]).volumes[0].mounts, []);
    let mut one = entry("v", Check::ALL.map(|check| finding(check, VolumeState::Degraded)).into());
    one.mounts = (0..100).rev().map(mount).collect();
    one.mounts.push(ReportedMount { path: "/k/\u{202e}".into(), ..mount(0) });
    one.mounts.push(ReportedMount { path: "x".repeat(2000), ..mount(0) });
    let row = health(vec![one]).volumes.remove(0);
    assert_eq!((row.mounts.len(), row.findings.len()), (32, 8));
    assert_eq!((row.mounts[0].path.as_str(), row.findings[0].check), ("/k/000", Check::PathExists));
}

#[test]
fn of_too_many_the_healthy_ones_are_left_out_and_the_order_is_by_name() {
    let mut entries: Vec<_> = (0..1500).rev().map(|number| entry(&format!("v-{number:04}"), Vec::new())).collect();
    entries[3].findings = vec![finding(Check::ReadOnly, VolumeState::Inaccessible)];
    let told = health(entries.clone());
    assert_eq!((told.checked, told.unhealthy, told.volumes.len()), (1500, 1, 1024));
    assert!(told.volumes.iter().any(|volume| volume.name == "v-1496"));
    assert!(told.volumes.is_sorted_by(|one, other| one.name < other.name));
    entries.reverse();
    assert_eq!(health(entries), told, "the order of arrival says nothing");
}

#[test]
fn whatever_happens_it_fits_into_one_object() {
    let one = |number: usize| {
        let mut one = entry(
            &format!("{:0200}", number),
            Check::ALL.map(|check| finding(check, VolumeState::Inaccessible)).into(),
        );
        one.csi = Some(("d".repeat(63), "h".repeat(1024)));
        one.mounts =
            (0..40).map(|number| ReportedMount { path: format!("/{number}{}", "p".repeat(500)), ..mount(0) }).collect();
        one
    };
    let told = health((0..1024).map(one).collect());
    assert_eq!((told.volumes.len(), told.unhealthy), (1024, 1024));
    assert!(size(&told.volumes) <= SIZE_MAX, "{}", size(&told.volumes));
    assert!(told.volumes.iter().all(|volume| volume.state == VolumeState::Inaccessible && !volume.findings.is_empty()));
    let few = health((0..20).map(one).collect());
    assert!(few.volumes.iter().all(|volume| volume.mounts.len() == 32), "few are told in full");
}
