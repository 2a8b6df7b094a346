//! What the report says pass by pass, and what of it is news.

use std::time::Instant;

use chrono::DateTime;

use crate::api::node_volume_report::{CleanupState, NodeVolumeReportStatus, Remnant, RemnantKind};
use crate::api::time::Now;

use super::mounts::inventory::{Holder, Remains, Unknown};
use super::status;
use super::tests::{Case, zombie};

#[test]
fn the_report_is_the_same_while_nothing_changes() {
    let mut case = Case::new(Remains { unknown: vec![Unknown::new("a\nb", "RecordUnreadable")], ..zombie() });
    case.at(0);
    case.at(5);
    let told = case.seen.report.status.clone().unwrap();
    assert_eq!(told.cleanup.as_ref().unwrap().remaining[0].id, "a?b");
    assert_eq!(told.volumes[0].mounts.len(), 2);
    for seconds in 6..30 {
        case.at(seconds);
        assert_eq!(case.seen.report.status.as_ref(), Some(&told), "after {seconds} s");
    }
}

#[test]
fn processes_that_come_and_go_are_told_once_per_name() {
    let holder = |pid, name: &str| Holder { pid, name: name.into(), of_the_host: false };
    let of = |holders: Vec<Holder>| Remains { holders, ..zombie() };
    let mut case = Case::new(of(vec![holder(9, "postgres"), holder(7, "postgres"), holder(8, "sh")]));
    case.at(0);
    case.at(30);
    let told = case.seen.report.status.clone().unwrap();
    let ids = |status: &NodeVolumeReportStatus| {
        let remaining = status.cleanup.clone().unwrap().remaining;
        remaining.into_iter().map(|left| left.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&told), ["pid 7 (postgres)", "pid 8 (sh)"]);
    case.finds(of(vec![holder(107, "postgres"), holder(108, "sh"), holder(109, "sh")]));
    case.at(31);
    assert_eq!(case.seen.report.status.as_ref(), Some(&told), "others of the same names");
    case.finds(of(vec![holder(107, "postgres")]));
    case.at(32);
    assert_eq!(ids(case.seen.report.status.as_ref().unwrap()), ["pid 107 (postgres)"]);
}

#[test]
fn what_is_left_of_the_same_kind_is_written_once_a_minute() {
    let mut case = Case::new(Remains { unknown: vec![Unknown::new("/x", "RecordUnreadable")], ..zombie() });
    case.at(0);
    case.at(5);
    let before = case.seen.report.status.clone().unwrap();
    let after = |change: &dyn Fn(&mut NodeVolumeReportStatus), seconds: i64| {
        let mut wanted = before.clone();
        change(&mut wanted);
        let wall = DateTime::from_timestamp(1_700_000_000 + seconds, 0).unwrap();
        status::is_news(Some(&before), &wanted, Now { wall, mono: Instant::now() })
    };
    let remnant = |status: &mut NodeVolumeReportStatus, change: &dyn Fn(&mut Remnant)| {
        change(&mut status.cleanup.as_mut().unwrap().remaining[0]);
    };
    let id = |status: &mut NodeVolumeReportStatus| remnant(status, &|left| left.id = "/y".into());
    let one_more = |status: &mut NodeVolumeReportStatus| {
        let remaining = &mut status.cleanup.as_mut().unwrap().remaining;
        let left = remaining[0].clone();
        remaining.push(Remnant { id: "/z".into(), ..left });
    };
    assert!(!after(&|_| {}, 600), "nothing new");
    assert!(!after(&id, 59) && !after(&one_more, 59));
    assert!(after(&id, 60) && after(&one_more, 60));
    assert!(after(&|status| remnant(status, &|left| left.reason = "MountBusy".into()), 1));
    assert!(after(&|status| remnant(status, &|left| left.kind = RemnantKind::Mount), 1));
    assert!(after(&|status| remnant(status, &|left| left.volume = Some("pvc-2".into())), 1));
    assert!(after(&|status| status.cleanup.as_mut().unwrap().state = CleanupState::Cleaning, 1));
    assert!(after(&|status| status.volumes.clear(), 1));
    assert!(status::is_news(None, &before, Now { wall: DateTime::UNIX_EPOCH, mono: Instant::now() }));
}

#[test]
fn a_boot_id_that_is_not_the_kubelets_is_told() {
    let ready = |node_boot_id: &str| {
        let mut case = Case::new(zombie());
        case.seen.node_boot_id = node_boot_id.into();
        case.at(0);
        let ready = case.seen.report.status.clone().unwrap().conditions.remove(0);
        (ready.status, ready.reason, ready.message.contains("--boot-id-file"))
    };
    assert_eq!(ready("boot-0"), ("False".into(), "BootIdMismatch".into(), true));
    for fine in ["boot-1", ""] {
        assert_eq!(ready(fine), ("True".into(), "Reporting".into(), false));
    }
}
