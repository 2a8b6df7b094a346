//! The guard of the out-of-service taint: every reason for refusal.

use std::sync::Arc;

use serde_json::json;

use crate::api::fence_request::FenceOutcome;
use crate::api::names;
use crate::api::node_fence::{PodAction, PodStatusState, STORAGE_PATH_LOSS, VolumeStatusState};
use crate::api::slim::{AttachedVolume, Node};
use crate::api::time;
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::super::detach::why_one_by_one;
use super::super::guard::{may_add_out_of_service, take_out_of_service_back};
use super::super::rows::Rows;
use super::build::planned;
use super::world::World;

/// All is proved and released, and the attachment is still there; nobody else's pods are.
fn ready() -> World {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.attacher = false;
    world.run();
    assert!(world.did("taint out-of-service"), "{:#?}", world.log);
    world.node_becomes(|mut node| {
        node.spec.taints.as_mut().unwrap().retain(|taint| taint.key != names::OUT_OF_SERVICE_TAINT);
        node
    });
    world.seen.live = true;
    world
}

/// Declared failed by heartbeats: Ready for Kubernetes.
fn ahead(world: &mut World) -> &mut World {
    world.heartbeats_tell();
    world
}

fn refusal(world: &World) -> Option<String> {
    let rows = Rows::advance(&world.seen, world.now);
    may_add_out_of_service(&world.seen, &rows).err()
}

fn changed(world: &mut World, change: fn(&mut Node)) {
    world.node_becomes(|mut node| {
        change(&mut node);
        node
    });
}

fn add(world: &mut World, pod: PodView, in_plan: bool) {
    if in_plan {
        world.plan().pods.push(planned(&pod));
    }
    world.seen.pods.push(pod);
}

fn daemon(volumes: &[crate::api::usage::VolumeUse]) -> PodView {
    owned_by(pod("daemon", "n1", volumes), Some("DaemonSet"))
}

fn terminating(view: PodView) -> PodView {
    but(view, |pod| pod.metadata.deletion_timestamp = Some(time::to_k8s(at(99_000))))
}

fn completed(view: PodView) -> PodView {
    but(view, |pod| pod.status.phase = Some("Succeeded".into()))
}

#[test]
fn it_refuses_whatever_is_unproved_and_says_so() {
    type Case = (&'static str, fn(&mut World), Option<&'static str>);
    let cases: [Case; 31] = [
        ("all is proved", |_| {}, None),
        ("the Node is gone", |world| world.seen.node = None, Some("gone")),
        ("another Node", |world| changed(world, |node| node.metadata.uid = Some("x".into())), Some("another")),
        ("Ready", |world| world.node_becomes(|node| with_ready(node, "True")), Some("back")),
        ("the Lease moved", |world| world.seen.lease_is_still = false, Some("back")),
        (
            "somebody else's taint",
            |world| world.node_becomes(|node| with_taint(node, names::OUT_OF_SERVICE_TAINT, "x", "NoExecute")),
            Some("somebody else"),
        ),
        ("a pod that is not planned", |world| add(world, pod("new", "n1", &[]), false), Some("shop/new is not in")),
        (
            "a finished pod that is not planned, with a volume",
            |world| add(world, completed(pod("job", "n1", &[csi("v9")])), false),
            Some("job"),
        ),
        ("and without one", |world| add(world, completed(pod("job", "n1", &[])), false), None),
        (
            "a pod that is still there on a proof that has grown too old",
            |world| {
                world.seen.pods.push(pod("pg", "n1", &[csi("v1")]));
                world.seen.asked.clear();
            },
            Some("too old"),
        ),
        (
            "a machine that has rebooted",
            |world| changed(world, |node| node.status.node_info.boot_id = "another".into()),
            Some("rebooted"),
        ),
        (
            "a planned pod that is not released",
            |world| add(world, pod("other", "n1", &[csi("v9")]), true),
            Some("other"),
        ),
        ("a running DaemonSet pod", |world| add(world, daemon(&[]), false), None),
        ("with a directory of the node", |world| add(world, daemon(&[local("l")]), false), None),
        ("with a volume that is attached", |world| add(world, daemon(&[csi("v9")]), true), Some("v9")),
        ("with one that is proved", |world| add(world, daemon(&[csi("v1")]), true), None),
        (
            "a DaemonSet pod that is Terminating",
            |world| add(world, terminating(daemon(&[])), true),
            Some("Terminating"),
        ),
        ("and not planned", |world| add(world, terminating(daemon(&[])), false), Some("not in the plan")),
        ("a finished DaemonSet pod", |world| add(world, completed(daemon(&[])), false), None),
        ("an unproved attachment", |world| world.attach("v9", "va-v9", true), Some("v9")),
        (
            "volumesInUse",
            |world| changed(world, |node| node.status.volumes_in_use.push("kubernetes.io/csi/x^y".into())),
            Some("x^y"),
        ),
        (
            "volumesAttached",
            |world| {
                changed(world, |node| {
                    node.status.volumes_attached.push(AttachedVolume { name: "kubernetes.io/aws-ebs/z".into() });
                });
            },
            Some("aws-ebs"),
        ),
        (
            "a record below the minimum",
            |world| {
                let status = Arc::make_mut(&mut world.seen.fence).status.as_mut().unwrap();
                status.volumes[0].state = VolumeStatusState::Failed;
                world.seen.asked.clear();
            },
            Some("v1"),
        ),
        (
            "a proof of an earlier episode",
            |world| {
                let mut row = world.plan().volumes[0].clone();
                row.episode = 2;
                world.plan().volumes.push(row);
                Arc::make_mut(&mut world.seen.fence).spec.episode = 2;
            },
            Some("v1"),
        ),
        ("Ready, and declared failed before Kubernetes knew", World::heartbeats_tell, None),
        ("whose Lease moved", |world| ahead(world).seen.lease_is_still = false, Some("back")),
        ("whose Lease had moved", |world| ahead(world).seen.renewed_at = Some(at(100_000)), Some("back")),
        ("whose Lease had not", |world| ahead(world).seen.renewed_at = Some(at(99_990)), None),
        ("that Kubernetes had given up meanwhile", |world| ahead(world).ready_turns(), Some("back")),
        (
            "that was well when the incident began",
            |world| ahead(world).plan().pods[0].reason = STORAGE_PATH_LOSS.into(),
            Some("back"),
        ),
        (
            "that has booted",
            |world| changed(ahead(world), |node| node.status.node_info.boot_id = "another".into()),
            Some("rebooted"),
        ),
    ];
    for (name, change, wanted) in cases {
        let mut world = ready();
        change(&mut world);
        let found = refusal(&world);
        match wanted {
            None => assert_eq!(found, None, "{name}"),
            Some(text) => assert!(found.as_ref().is_some_and(|it| it.contains(text)), "{name}: {found:?}"),
        }
    }
}

#[test]
fn the_live_list_decides_not_the_store() {
    let mut world = ready();
    world.seen.live = false;
    let rows = Rows::advance(&world.seen, world.now);
    assert!(rows.pods.iter().all(|row| row.state == PodStatusState::Released));
    let decision = super::super::decide::decide(&world.seen, world.now);
    assert!(decision.look_live, "{}", decision.reason);
}

#[test]
fn the_taint_goes_before_a_late_deletion_could_let_it_act_on_what_is_not_proved_any_more() {
    type Case = (&'static str, fn(&mut World), bool);
    let cases: [Case; 4] = [
        ("the proof still counts", |_| {}, false),
        ("it has grown too old", |world| world.wait(11.0), true),
        (
            "a later answer says less",
            |world| {
                for row in &mut Arc::make_mut(&mut world.seen.requests[0]).status.as_mut().unwrap().volumes {
                    row.result = FenceOutcome::Failed;
                }
            },
            true,
        ),
        (
            "what was released is attached again",
            |world| {
                world.remove_pod("pg");
                world.wait(1.0);
                world.attach("v1", "va-again", true);
            },
            true,
        ),
    ];
    for (name, happens, removed) in cases {
        let pods = vec![pod("pg", "n1", &[csi("v1")]), pod("quick", "n1", &[csi("v2")])];
        let mut world = World::new(pods, &json!({}));
        world.run_until("taint out-of-service");
        assert!(world.did("delete pg grace 0") && world.pod("pg").0 == PodStatusState::Releasing);
        // That deletion is lost, or late.
        world.seen.pods.push(pod("pg", "n1", &[csi("v1")]));
        happens(&mut world);
        let before = world.log.len();
        world.pass();
        let now = world.log[before..].iter().any(|entry| entry == "untaint out-of-service");
        assert_eq!(now, removed, "{name}: {:#?}", world.log);
        world.run();
        let set = world.log.iter().filter(|entry| *entry == "taint out-of-service");
        assert_eq!(set.count(), 1, "{name}: once it was taken off, attachments go one by one");
    }
}

/// A pod that stays, and whose row is in the plan.
fn keep(world: &mut World, pod: PodView) {
    let mut row = planned(&pod);
    (row.action, row.reason, row.policy) = (PodAction::Keep, "NotSelected".into(), None);
    world.plan().pods.push(row);
    world.seen.pods.push(pod);
}

#[test]
fn the_taint_of_a_node_that_kubernetes_calls_ready_goes_when_that_is_true_or_pods_that_stay_may_be_collected() {
    type Case = (&'static str, fn(&mut World), bool);
    let cases: [Case; 9] = [
        ("nothing happens", |_| {}, false),
        ("Kubernetes gives it up", given_up, false),
        ("the Lease moves", |world| world.seen.lease_is_still = false, true),
        ("the next leader sees a Lease that has moved", |world| world.seen.renewed_at = Some(at(100_010)), true),
        ("its kubelet tells that it is well", World::ready_turns, true),
        ("a pod stays", |world| keep(world, pod("web", "n1", &[])), false),
        ("which is asked to end", |world| keep(world, terminating(pod("web", "n1", &[]))), true),
        (
            "a pod stays, and Kubernetes gives the node up",
            |world| {
                keep(world, pod("web", "n1", &[]));
                given_up(world);
            },
            true,
        ),
        (
            "a pod of the node's, and Kubernetes gives that up",
            |world| {
                add(world, daemon(&[]), true);
                given_up(world);
            },
            false,
        ),
    ];
    for (name, happens, goes) in cases {
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
        world.heartbeats_tell();
        world.attacher = false;
        world.run();
        assert!(world.did("taint out-of-service"), "{name}: {:#?}", world.log);
        happens(&mut world);
        let rows = Rows::advance(&world.seen, world.now);
        let step = take_out_of_service_back(&world.seen, &rows, world.now);
        assert_eq!(step.is_some(), goes, "{name}");
    }
}

fn given_up(world: &mut World) {
    world.node_fails();
    world.ready_turns();
}

#[test]
fn people_are_told_what_kept_the_taint_away() {
    let mut world = ready();
    assert_eq!(why_one_by_one(&world.seen, world.now), None, "nothing did");
    changed(&mut world, |node| node.status.volumes_in_use.push("kubernetes.io/csi/x^y".into()));
    let why = why_one_by_one(&world.seen, world.now);
    assert_eq!(why.as_deref(), Some("volume kubernetes.io/csi/x^y of the node's status is not proved"));
}
