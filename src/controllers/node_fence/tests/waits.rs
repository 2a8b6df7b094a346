//! Pods that stay and why; holds; how pods go and how attachments go.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use serde_json::json;

use crate::api::names;
use crate::api::node_fence::{PodAction, PodStatusState};
use crate::api::time;
use crate::controllers::testing::*;

use super::super::decide::Effect;
use super::build::planned;
use super::world::{Fencer, World};

fn waiting(reason: &str) -> (PodStatusState, String) {
    (PodStatusState::Waiting, reason.into())
}

fn order_of_deletes(world: &World) -> Vec<&str> {
    world.log.iter().filter_map(|entry| entry.strip_prefix("delete ")?.split(' ').next()).collect()
}

#[test]
fn what_cannot_move_stays_with_all_that_share_a_volume_with_it() {
    let pods = vec![
        pod("free", "n1", &[csi("v0")]),
        pod("on-disk", "n1", &[local("l1"), csi("v1")]),
        pod("on-nfs", "n1", &[unknown("u1"), csi("v2")]),
        pod("friend", "n1", &[csi("v1"), csi("v3")]),
        pod("friends-friend", "n1", &[csi("v3")]),
    ];
    let mut world = World::new(pods, &json!({}));
    world.run();
    assert_eq!(order_of_deletes(&world), ["free"]);
    assert_eq!(world.pod("on-disk"), waiting("LocalVolume"));
    assert_eq!(world.pod("on-nfs"), waiting("UnknownVolumeKind"));
    assert_eq!(world.pod("friend"), waiting("SharerHeld"));
    assert_eq!(world.pod("friends-friend"), waiting("SharerHeld"));
    assert!(!world.log.iter().any(|entry| entry.contains("ask") && entry.contains("v1")), "{:#?}", world.log);
    world.wait(5.0);
    world.run();
    assert!(world.did("detach v0") && !world.did("taint out-of-service"), "{:#?}", world.log);
    assert!(!world.did("detach v1") && !world.did("detach v2") && !world.did("detach v3"));
}

#[test]
fn a_pod_that_is_put_back_on_the_failed_node_holds_nothing() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.seen.pods.push(but(pod("again", "n1", &[csi("v1")]), |pod| pod.status.conditions.clear()));
    world.run();
    assert_eq!(order_of_deletes(&world), ["pg"]);
    assert!(world.did("detach v1"), "the attacher would give the node its access back: {:#?}", world.log);
}

#[test]
fn a_pod_that_a_kubelet_may_have_started_while_it_was_back_keeps_its_attachment() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.attacher = false;
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.node_returns();
    world.run_controller();
    world.remove_pod("pg");
    world.fencers.clear();
    world.seen.pods.push(but(pod("again", "n1", &[csi("v1")]), |pod| pod.status.conditions.clear()));
    world.run();
    world.node_fails();
    world.run();
    assert!(!world.did("detach"), "{:#?}", world.log);
}

#[test]
fn an_unselected_user_holds_the_volume_by_name_until_it_ends() {
    let users = [
        ("a DaemonSet pod", owned_by(pod("user", "n1", &[csi("v1")]), Some("DaemonSet"))),
        ("a bare pod", owned_by(pod("user", "n1", &[csi("v1")]), None)),
        ("a pod that came after the plan", pod("user", "n1", &[csi("v1")])),
    ];
    for (name, user) in users {
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
        world.seen.pods.push(user);
        world.run();
        assert_eq!(world.pod("pg"), waiting("SharerHeld"), "{name}");
        let rows = &world.seen.fence.status.as_ref().unwrap().pods;
        assert!(rows[0].message.as_ref().unwrap().contains("shop/user"), "{name}: {rows:?}");
        assert!(!world.did("ask") && !world.did("delete"), "{name}: {:#?}", world.log);
        world.remove_pod("user");
        world.run();
        assert_eq!(order_of_deletes(&world), ["pg"], "{name}");
    }
}

#[test]
fn pods_that_the_plan_keeps_are_never_touched() {
    let mut world = World::new(
        vec![
            pod("pg", "n1", &[csi("v1")]),
            owned_by(pod("daemon", "n1", &[]), Some("DaemonSet")),
            owned_by(pod("bare", "n1", &[csi("v2")]), None),
        ],
        &json!({}),
    );
    let bare = world.plan().pods.iter_mut().find(|row| row.name == "bare").unwrap();
    (bare.action, bare.reason) = (PodAction::Keep, "BarePod".into());
    world.run();
    world.wait(5.0);
    world.run();
    assert_eq!(order_of_deletes(&world), ["pg"]);
    assert_eq!(world.pod("bare"), (PodStatusState::Kept, "BarePod".into()));
    assert!(!world.did("detach v2") && !world.did("taint out-of-service"), "{:#?}", world.log);
}

#[test]
fn the_highest_priority_goes_first() {
    let pods = [("low", 1), ("high", 1000), ("none", 0), ("middle", 10)];
    let pods = pods.map(|(name, priority)| {
        but(pod(name, "n1", &[csi(&format!("v-{name}"))]), |pod| pod.spec.priority = Some(priority))
    });
    let mut world = World::new(pods.to_vec(), &json!({}));
    world.run();
    assert_eq!(order_of_deletes(&world), ["high", "middle", "low", "none"]);
}

#[test]
fn a_pod_with_finalizers_that_somebody_force_deleted_is_failed_all_the_same() {
    let job = but(pod("job", "n1", &[csi("v1")]), |pod| {
        pod.metadata.finalizers = Some(vec!["batch.kubernetes.io/job-tracking".into()]);
        pod.metadata.deletion_timestamp = Some(time::to_k8s(at(99_000)));
        pod.metadata.deletion_grace_period_seconds = Some(0);
    });
    let mut world = World::new(vec![job], &json!({}));
    world.run();
    // Whoever counts it lets go only of what has ended.
    assert!(world.did("fail job"), "{:#?}", world.log);
}

#[test]
fn pods_with_finalizers_are_failed_first_and_one_that_never_goes_delays_no_detach() {
    let held = but(pod("job", "n1", &[csi("v1")]), |pod| {
        pod.metadata.finalizers = Some(vec!["batch.kubernetes.io/job-tracking".into()]);
    });
    let stranger = owned_by(pod("daemon", "n1", &[csi("v9")]), Some("DaemonSet"));
    let mut world = World::new(vec![held, pod("pg", "n1", &[csi("v2")]), stranger], &json!({}));
    world.run();
    world.assert_order(&["Fenced v1", "job is Releasing", "fail job", "delete job grace 0"]);
    assert_eq!(world.pod("job").0, PodStatusState::Releasing);
    world.wait(3.0);
    world.run();
    assert!(world.did("detach v2"), "{:#?}", world.log);
    world.remove_pod("job");
    world.run();
    assert_eq!(world.pod("job").0, PodStatusState::Released);
}

#[test]
fn a_pod_that_is_terminating_loses_its_grace_period_once_it_is_proved() {
    let evicted = but(pod("pg", "n1", &[csi("v1")]), |pod| {
        pod.metadata.deletion_timestamp = Some(time::to_k8s(at(99_990)));
        pod.metadata.deletion_grace_period_seconds = Some(30);
    });
    let mut world = World::new(vec![evicted], &json!({}));
    world.run();
    world.assert_order(&["v1 is Fenced", "delete pg grace 0", "pg is Released"]);
}

#[test]
fn what_others_release_is_recorded_as_such_and_believed_of_the_api_only() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    world.run();
    let pods = std::mem::take(&mut world.seen.pods);
    let decision = super::super::decide::decide(&world.seen, world.now);
    assert!(decision.look_live && decision.effects.is_empty(), "a store may lag");
    world.seen.pods = pods;
    world.remove_pod("pg");
    world.run();
    assert_eq!(world.pod("pg"), (PodStatusState::Released, "ReleasedByOthers".into()));
    assert!(!world.did("detach"), "nothing is proved: {:#?}", world.log);
}

#[test]
fn a_doubtful_identity_holds_the_whole_incident_and_begins_nothing() {
    for (name, spec) in [("Unpublish", "Verified"), ("Detach", "Acknowledged")] {
        let spec =
            json!({ "fencing": { "minimumProof": spec, "methods": [{ "type": "Unpublish" }, { "type": "Detach" }] } });
        let pods = vec![pod("pg", "n1", &[csi("v1")]), pod("other", "n1", &[csi("v2")])];
        let mut world = World::new(pods, &spec);
        if name == "Detach" {
            world.seen.reports.clear();
        }
        world.plan().volumes[0].node_id = None;
        // Tainted already: the plan grew by the doubtful volume.
        world.node_becomes(|node| with_taint(node, names::FENCED_TAINT, "1", "NoSchedule"));
        world.run();
        assert_eq!(world.condition("Held"), Some(("True".into(), "IdentityAmbiguous".into())), "{name}");
        assert!(!world.did("ask") && !world.did("delete") && !world.did("detach"), "{name}: {:#?}", world.log);
        world.node_returns();
        world.run();
        assert!(world.did("untaint fenced"), "{name}: {:#?}", world.log);
    }
}

#[test]
fn our_out_of_service_taint_goes_when_its_time_is_up_or_the_node_moves_even_under_a_hold() {
    type Case = (&'static str, fn(&mut World), bool);
    let cases: [Case; 4] = [
        ("59 s", |world| world.wait(59.0), false),
        ("60 s", |world| world.wait(60.0), true),
        ("the Lease moves", |world| world.seen.lease_is_still = false, true),
        ("the node is back", World::node_returns, true),
    ];
    for held in [false, true] {
        for (name, happens, removed) in &cases {
            let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
            world.attacher = false;
            world.run();
            assert!(world.did("taint out-of-service"));
            if held {
                let new = pod("late", "n1", &[csi("v2")]);
                world.plan().pods.push(planned(&new));
                let row = world.plan().volumes[0].clone();
                world.plan().volumes.push(crate::api::node_fence::PlannedVolume {
                    name: "v2".into(),
                    node_id: None,
                    ..row
                });
                world.seen.pods.push(new);
            }
            happens(&mut world);
            world.run_controller();
            assert_eq!(world.did("untaint out-of-service"), *removed, "{name}, held {held}: {:#?}", world.log);
        }
    }
}

#[test]
fn once_its_time_was_up_the_rest_is_detached_one_by_one() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.attacher = false;
    world.run();
    world.wait(61.0);
    world.run();
    world.assert_order(&["taint out-of-service", "untaint out-of-service", "detach v1"]);
    assert_eq!(world.log.iter().filter(|entry| *entry == "taint out-of-service").count(), 1);
}

#[test]
fn somebody_elses_out_of_service_taint_is_never_touched() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.node_becomes(|mut node| {
        node.spec.taints.get_or_insert_default().push(Taint {
            key: names::OUT_OF_SERVICE_TAINT.into(),
            value: Some("nodeshutdown".into()),
            effect: "NoExecute".into(),
            time_added: None,
        });
        node
    });
    world.run();
    world.wait(5.0);
    world.run();
    assert!(world.did("detach v1") && !world.did("taint out-of-service"), "{:#?}", world.log);
    world.node_reboots();
    world.run();
    assert!(!world.did("untaint out-of-service"), "{:#?}", world.log);
}

#[test]
fn a_policy_may_forbid_the_out_of_service_taint() {
    let spec = json!({ "release": { "detach": "VolumeAttachments" } });
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &spec);
    world.run();
    assert!(world.did("detach v1") && !world.did("taint out-of-service"), "{:#?}", world.log);
}

#[test]
fn an_attachment_waits_while_any_pod_uses_its_volume() {
    let mut world = World::new(vec![pod("a", "n1", &[csi("v1")])], &json!({}));
    while !world.did("delete a grace 0") {
        if !world.pass() {
            world.fencers_act();
        }
    }
    world.seen.pods.push(pod("late", "n1", &[csi("v1")]));
    world.wait(5.0);
    world.run();
    world.assert_order(&["taint out-of-service", "delete a grace 0", "untaint out-of-service"]);
    assert!(!world.did("detach v1") && world.seen.attachments.len() == 1, "{:#?}", world.log);
}

#[test]
fn a_terminating_pod_that_nobody_planned_ends_the_out_of_service_taint() {
    let mut world = World::new(vec![pod("a", "n1", &[csi("v1")]), pod("b", "n1", &[csi("v2")])], &json!({}));
    while !world.did("taint out-of-service") {
        if !world.pass() {
            world.fencers_act();
        }
    }
    let mut late = pod("late", "n1", &[csi("v3")]);
    Arc::make_mut(&mut late.pod).metadata.deletion_timestamp = Some(time::to_k8s(world.now.wall));
    world.seen.pods.push(late);
    world.pass();
    assert_eq!(world.log.last().map(String::as_str), Some("untaint out-of-service"), "{:#?}", world.log);
}

#[test]
fn a_driver_that_an_episode_did_not_need_is_asked_again_by_steps() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.run();
    let fence = Arc::make_mut(&mut world.seen.fence);
    fence.spec.episode = 3;
    fence.spec.plan.decided_at = at(100_500);
    let new = pod("new", "n1", &[csi("v1")]);
    fence.spec.plan.pods = vec![crate::api::node_fence::PlannedPod { episode: 3, ..planned(&new) }];
    let carried = fence.spec.plan.volumes[0].clone();
    fence.spec.plan.volumes.push(crate::api::node_fence::PlannedVolume { episode: 3, ..carried });
    world.seen.pods = vec![new];
    world.seen.asked.clear();
    world.attach("v1", "va-v1", true);
    world.wait(500.0);
    world.run();
    world.assert_order(&["ask Fenced v1 round 1", "delete pg grace 0", "ask Fenced v1 round 1", "delete new grace 0"]);
    assert_eq!(world.seen.fence.status.as_ref().unwrap().history.len(), 1);
}

/// An admission policy of the cluster may refuse what comes next, for as long as it likes.
#[test]
fn what_has_happened_is_told_though_the_next_step_is_refused_again_and_again() {
    let spec = json!({ "release": { "detach": "VolumeAttachments" } });
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &spec);
    world.run_until("delete pg");
    let records = |world: &World| matches!(world.decide().effects.as_slice(), [Effect::Record(_)]);
    world.seen.recorded_for = Duration::from_secs(1);
    assert!(!records(&world), "the next step waits for no record");
    world.seen.recorded_for = Duration::from_secs(5);
    assert!(records(&world), "that the pod is gone is not told");
}
