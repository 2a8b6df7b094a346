//! A node that is back in the same boot: what its agent says, and what it must not be believed.

use std::sync::Arc;

use serde_json::json;

use crate::api::conditions;
use crate::api::node_fence::{Phase, VolumeStatusState};
use crate::api::node_volume_report::{
    Cleanup, CleanupState, NodeVolumeReport, NodeVolumeReportStatus, Remnant, RemnantKind,
};
use crate::controllers::testing::*;

use super::super::report;
use super::world::World;

/// A node whose pod was moved, back in the same boot.
fn back() -> World {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")]), pod("web", "n1", &[csi("v2")])], &json!({}));
    world.run();
    world.node_returns();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{:#?}", world.log);
    world
}

/// What an honest agent says once nothing is left.
pub fn clean(world: &World) -> NodeVolumeReportStatus {
    NodeVolumeReportStatus {
        node_uid: Some("uid-n1".into()),
        boot_id: Some("boot-1".into()),
        cleanup: Some(Cleanup {
            fence_uid: "uid-fence".into(),
            episode: 1,
            digest: world.seen.fence.cleanup_digest(),
            state: CleanupState::Clean,
            clean_passes: 2,
            boot_id: "boot-1".into(),
            finished_at: None,
            remaining: Vec::new(),
        }),
        ..NodeVolumeReportStatus::default()
    }
}

pub fn says(world: &mut World, status: NodeVolumeReportStatus) {
    let node = world.seen.node.clone().expect("a node");
    let mut report = report::missing(Some(&node), None).expect("a node without a report lacks one");
    report.status = Some(status);
    world.seen.node_report = Some(Arc::new(report));
}

/// Status, reason and message of a condition.
pub fn condition(world: &World, type_: &str) -> (String, String, String) {
    let status = world.seen.fence.status.as_ref().expect("a status");
    let found = conditions::find(&status.conditions, type_).unwrap_or_else(|| panic!("no {type_}"));
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

#[test]
fn two_clean_passes_give_the_node_back_without_a_reboot() {
    let mut world = back();
    let status = clean(&world);
    says(&mut world, status);
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    world.assert_order(&["ask Unfenced", "untaint fenced", "inactive"]);
    assert_eq!(condition(&world, "NodeClean").1, "TwoCleanPasses");
    assert_eq!(world.volume("v1").state, VolumeStatusState::Clean);
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "the same boot id later opens nothing again");
}

/// A change to what an honest agent says, by name.
type Lie = (&'static str, fn(&mut NodeVolumeReportStatus, &mut Cleanup));

#[test]
fn what_is_said_of_anything_else_proves_nothing() {
    let lies: [Lie; 9] = [
        ("another node of that name", |status, _| status.node_uid = Some("uid-before".into())),
        ("a node that did not say which it is", |status, _| status.node_uid = None),
        ("another boot of the agent", |status, _| status.boot_id = Some("boot-0".into())),
        ("passes made in another boot", |_, cleanup| cleanup.boot_id = "boot-0".into()),
        ("another NodeFence of that name", |_, cleanup| cleanup.fence_uid = "uid-before".into()),
        ("another episode", |_, cleanup| cleanup.episode = 2),
        ("fewer volumes than were cut off", |_, cleanup| cleanup.digest = "sha256:00000000".into()),
        ("one pass", |_, cleanup| cleanup.clean_passes = 1),
        ("not that it is clean", |_, cleanup| cleanup.state = CleanupState::Cleaning),
    ];
    for (name, lie) in lies {
        let mut world = back();
        let mut status = clean(&world);
        let mut cleanup = status.cleanup.take().expect("a clean-up");
        lie(&mut status, &mut cleanup);
        status.cleanup = Some(cleanup);
        says(&mut world, status);
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{name}: {:#?}", world.log);
        assert!(world.seen.our_taint().is_some() && !world.did("ask Unfenced"), "{name}: {:#?}", world.log);
    }
}

#[test]
fn a_clean_node_that_is_silent_again_keeps_its_taint() {
    let mut world = back();
    let status = clean(&world);
    says(&mut world, status);
    world.node_fails();
    world.run();
    assert!(world.seen.our_taint().is_some(), "{:#?}", world.log);
}

#[test]
fn the_digest_tells_one_set_of_volumes_from_another() {
    let world = back();
    let mut fewer = world.seen.fence.as_ref().clone();
    let all = fewer.cleanup_digest();
    assert_eq!(fewer.volumes_to_clean().count(), 2);
    fewer.status.as_mut().expect("a status").volumes.last_mut().expect("a row").committed_at = None;
    assert_eq!(fewer.volumes_to_clean().count(), 1);
    assert_ne!(fewer.cleanup_digest(), all);
}

#[test]
fn what_is_left_is_named_with_the_remedy_and_becomes_a_warning_after_the_policys_time() {
    let mut world = back();
    assert_eq!(condition(&world, "NodeClean").1, "AgentMissing");
    let mut status = clean(&world);
    let cleanup = status.cleanup.as_mut().expect("a clean-up");
    cleanup.state = CleanupState::Blocked;
    cleanup.clean_passes = 0;
    let process = Remnant {
        kind: RemnantKind::Process,
        id: "pid 4127 (postgres)".into(),
        volume: Some("v1".into()),
        reason: "ProcessHoldsMount".into(),
    };
    cleanup.remaining = vec![process];
    says(&mut world, status);
    world.wait(3.0);
    world.run();
    let (state, reason, message) = condition(&world, "NodeClean");
    assert_eq!((state.as_str(), reason.as_str()), ("False", "CleanupBlocked"));
    assert!(message.contains("pid 4127 (postgres)") && message.contains("reboot"), "{message}");
    let stalled = |world: &World| {
        let status = world.seen.fence.status.as_ref().expect("a status");
        conditions::is_true(&status.conditions, "Stalled")
    };
    assert!(!stalled(&world), "the policy waits for 15 minutes");
    world.wait(16.0 * 60.0);
    world.run();
    assert!(stalled(&world));
    assert_eq!(condition(&world, "Stalled").1, "CleanupBlocked");
    assert_eq!(condition(&world, "Ready").1, "CleanupBlocked");
}

#[test]
fn a_report_is_made_for_a_node_and_not_for_one_that_is_going() {
    let mut going = node("n1");
    let made = report::missing(Some(&going), None).expect("a report");
    let owner = made.metadata.owner_references.as_ref().and_then(|owners| owners.first()).expect("an owner");
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "uid-n1"));
    assert!(report::missing(Some(&going), Some(&made)).is_none() && report::missing(None, None).is_none());
    going.metadata.deletion_timestamp =
        made.metadata.creation_timestamp.clone().or(Some(crate::api::time::to_k8s(chrono::DateTime::UNIX_EPOCH)));
    assert!(report::missing(Some(&going), None::<&NodeVolumeReport>).is_none());
}
