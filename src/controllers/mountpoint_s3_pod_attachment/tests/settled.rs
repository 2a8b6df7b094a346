//! What an attachment says of itself, once things are quiet.

use serde_json::json;

use crate::api::mountpoint_s3_pod_attachment::{MountpointPodState, MountpointS3PodAttachmentStatus};
use crate::api::s3::NEEDS_UNMOUNT;

use super::super::decide::{self, Effect, Patience};
use super::super::status::status;
use super::world::World;

fn told(world: &World) -> MountpointS3PodAttachmentStatus {
    status(&world.seen(), world.attachment(), world.now)
}

fn reason(world: &World) -> (String, String, String) {
    let status = told(world);
    let ready = status.conditions[0].clone();
    (ready.status, ready.reason, ready.message)
}

#[test]
fn it_serves() {
    let mut world = World::with(&["a", "b"]);
    world.settle();
    assert_eq!(reason(&world).1, "MountpointPodPending");
    world.kubelet();
    let status = told(&world);
    assert_eq!(status.workloads, Some(2));
    assert_eq!(status.mountpoint_pods[0].state, MountpointPodState::Serving);
    assert_eq!(status.mountpoint_pods[0].workloads, 2);
    assert!(status.oldest_attachment.is_some() && status.mountpoint_pods[0].uid.is_some());
    assert_eq!(reason(&world), ("True".into(), "Serving".into(), String::new()));
}

#[test]
fn the_words_of_scheduler_and_kubelet_are_told() {
    let mut world = World::with(&["a"]);
    world.settle();
    let name = world.serves("a").unwrap();
    let condition = json!([{ "type": "PodScheduled", "status": "False", "message": "0/3 nodes: too many pods" }]);
    world.pod(&name).status.conditions = serde_json::from_value(condition).unwrap();
    let (_, why, words) = reason(&world);
    assert_eq!((why.as_str(), words), ("MountpointPodUnschedulable", format!("{name}: 0/3 nodes: too many pods")));
    world.pod(&name).status.conditions.clear();
    let waiting = json!([{ "state": { "waiting": { "reason": "ErrImagePull" } } }]);
    world.pod(&name).status.container_statuses = serde_json::from_value(waiting).unwrap();
    assert_eq!(
        (reason(&world).1.as_str(), reason(&world).2),
        ("MountpointPodPending", format!("{name}: ErrImagePull"))
    );
    let first = json!([{ "name": "install-ca-cert", "state": { "waiting": { "reason": "CrashLoopBackOff" } },
        "lastState": { "terminated": { "reason": "Error", "exitCode": 1 } } }]);
    world.pod(&name).status.init_container_statuses = serde_json::from_value(first).unwrap();
    world.pod(&name).status.container_statuses.clear();
    assert_eq!(reason(&world).2, format!("{name}: install-ca-cert Error (exit code 1)"));
    let done =
        json!([{ "name": "install-ca-cert", "state": { "terminated": { "reason": "Completed", "exitCode": 0 } } }]);
    world.pod(&name).status.init_container_statuses = serde_json::from_value(done).unwrap();
    assert_eq!(reason(&world).2, "");
    world.pod(&name).status.phase = Some("Failed".into());
    world.pod(&name).status.reason = Some("Evicted".into());
    let (state, why, words) = reason(&world);
    assert_eq!((state.as_str(), why.as_str()), ("False", "MountpointPodFailed"));
    assert!(words.contains("Evicted"), "{words}");
}

#[test]
fn one_that_drains_says_so() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.kubelet();
    let name = world.serves("a").unwrap();
    world.annotate(&name, NEEDS_UNMOUNT);
    assert_eq!(reason(&world).1, "Draining");
}

/// Never in the way of an attachment, and once only.
#[test]
fn it_is_written_when_things_are_quiet() {
    let mut world = World::with(&["a"]);
    world.settle();
    world.kubelet();
    let decide = |world: &World, is_quiet| {
        let mut seen = world.seen();
        seen.is_quiet = is_quiet;
        decide::decide(&seen, &world.settings, Patience::default(), world.now)
    };
    let busy = decide(&world, false);
    assert!(busy.effects.is_empty() && busy.status_waits);
    let quiet = decide(&world, true);
    let [Effect::Record { status, .. }] = quiet.effects.as_slice() else { panic!("{quiet:?}") };
    let name = world.mount.attachment_name();
    world.attachments.get_mut(&name).unwrap().status = Some(status.as_ref().clone());
    let after = decide(&world, true);
    assert!(after.effects.is_empty() && !after.status_waits);
    world.start("b");
    let joins = decide(&world, true);
    assert!(matches!(joins.effects.as_slice(), [Effect::Replace { .. }]), "{joins:?}");
}
