//! Opening, growing and opening again; what a pass must not do.

use std::sync::Arc;

use serde_json::json;

use crate::api::fencing::Proof;
use crate::api::names;
use crate::api::node_fence::{PODS_MAX, Phase, PlannedPod, VolumeStatus, VolumeStatusState};
use crate::api::time;
use crate::controllers::testing::*;

use super::super::decide::Effect;
use super::World;

fn failed() -> World {
    World::with_failed(3, 1, &json!({}))
}

#[test]
fn a_failed_node_gets_one_plan_with_its_frozen_identity() {
    let mut world = failed();
    world.rest();
    let fence = world.fence("n0").unwrap();
    assert_eq!(fence.spec.episode, 1);
    assert_eq!((fence.spec.node.uid.as_str(), fence.spec.node.boot_id.as_deref()), ("uid-n0", Some("boot-1")));
    assert_eq!(fence.metadata.finalizers.as_deref(), Some(&[names::NODE_CLEAN_FINALIZER.to_owned()][..]));
    assert_eq!((fence.spec.plan.pods.len(), fence.spec.plan.volumes.len()), (1, 1));
    assert_eq!(fence.spec.plan.volumes[0].node_id.as_deref(), Some("id-n0"));
    assert_eq!(world.opened(), 1);
}

#[test]
fn suspicion_alone_writes_nothing() {
    let mut world = World::with_failed(3, 0, &json!({}));
    world.rest();
    world.node_becomes(with_ready(node("n0"), "Unknown"));
    let decision = world.decide();
    assert!(decision.suspected.contains("n0"));
    assert_eq!(decision.effects, []);
    assert!(decision.look_again.is_some());
}

#[test]
fn what_the_api_says_live_wins() {
    type Case = (&'static str, fn(&mut super::LiveNode));
    let cases: [Case; 3] = [
        ("the Lease moved", |live| live.lease_is_still = false),
        ("Ready again", |live| live.node = Arc::new(node("n0"))),
        ("the pod is gone", |live| live.pods.clear()),
    ];
    for (name, change) in cases {
        let mut world = failed();
        let mut live = world.look_at("n0").unwrap();
        change(&mut live);
        world.live.insert("n0".into(), live);
        world.rest();
        assert_eq!(world.opened(), 0, "{name}");
    }
}

#[test]
fn a_failed_node_without_a_pod_to_release_is_left_alone() {
    let mut world = World::new(
        vec![unreachable("n0"), node("n1"), node("n2")],
        vec![owned_by(pod("bare", "n0", &[csi("v")]), None), pod("empty", "n0", &[])],
        vec![policy("db", &json!({}))],
    );
    world.rest();
    assert_eq!(world.opened(), 0);
}

fn row(state: VolumeStatusState, episode: i64, name: &str) -> VolumeStatus {
    VolumeStatus {
        episode,
        name: name.into(),
        state,
        proof: Proof::None,
        method: None,
        external_proof: None,
        committed_at: None,
        proved_at: None,
        reason: None,
        message: None,
        refences: None,
    }
}

#[test]
fn failing_again_is_one_further_episode_of_the_same_object() {
    for phase in [Phase::Cleaning, Phase::Recovered] {
        let mut world = failed();
        world.rest();
        world.reach("n0", phase);
        world.wait(1.0);
        world.rest();
        let fence = world.fence("n0").unwrap();
        assert_eq!((world.opened(), fence.spec.episode), (1, 2), "{phase:?}: its status is still that of the last one");
        assert!(fence.spec.plan.pods.iter().all(|row| row.episode == 2));
        world.reach("n0", Phase::Fencing);
        world.rest();
        assert_eq!(world.fence("n0").unwrap().spec.episode, 2, "{phase:?}");
        let status = world.seen.policies[0].status.clone().unwrap();
        assert_eq!((status.nodes_acted_on, status.active_fences), (Some(1), vec!["n0".to_owned()]), "{phase:?}");
    }
}

#[test]
fn a_running_incident_is_left_alone() {
    for phase in [Phase::Planned, Phase::Fencing, Phase::PodsReleased, Phase::Detached] {
        let mut world = failed();
        world.rest();
        world.reach("n0", phase);
        world.wait(3600.0);
        world.rest();
        assert_eq!(world.fence("n0").unwrap().spec.episode, 1, "{phase:?}");
    }
}

#[test]
fn rows_that_are_not_clean_are_carried_over_under_their_number() {
    use VolumeStatusState::{Clean, Detached, Failed, Fenced, Fencing, Pending, Undone};
    let states = [
        (Pending, false),
        (Fencing, true),
        (Fenced, true),
        (Detached, true),
        (Failed, true),
        (Clean, false),
        (Undone, false),
    ];
    for (state, carried) in states {
        let mut world = failed();
        world.rest();
        world.reach("n0", Phase::Cleaning);
        Arc::make_mut(&mut world.seen.fences[0]).status.as_mut().unwrap().volumes = vec![row(state, 1, "v0")];
        world.wait(1.0);
        world.rest();
        let volumes = &world.fence("n0").unwrap().spec.plan.volumes;
        assert!(volumes.iter().any(|row| row.episode == 2), "{state:?}");
        assert_eq!(volumes.iter().any(|row| row.episode == 1 && row.name == "v0"), carried, "{state:?}");
    }
}

#[test]
fn the_plan_of_a_running_incident_grows() {
    let mut world = failed();
    world.rest();
    world.reach("n0", Phase::Fencing);
    world.seen.pods.get_mut("n0").unwrap().push(pod("late", "n0", &[csi("v9")]));
    let effects = world.pass();
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Replan(_))), "{effects:?}");
    world.rest();
    let fence = world.fence("n0").unwrap();
    assert_eq!((fence.spec.episode, fence.spec.plan.pods.len(), fence.spec.plan.volumes.len()), (1, 2, 2));
}

/// A template with nodeName puts the replacement where its predecessor was: it must not be deleted several times a
/// second, nor fill the plan.
#[test]
fn a_pod_that_comes_back_is_planned_after_twice_as_long_each_time() {
    let mut world = failed();
    world.rest();
    world.reach("n0", Phase::Fencing);
    for (number, wait) in [(1, 0.0), (2, 2.0), (3, 4.0)] {
        let created = time::to_k8s(world.now.wall);
        let back = but(pod("p0", "n0", &[csi("v0")]), |pod| {
            pod.metadata.uid = Some(format!("uid-p0-{number}"));
            pod.metadata.creation_timestamp = Some(created);
        });
        world.seen.pods.insert("n0".into(), vec![back]);
        if number > 1 {
            world.wait(wait - 1.0);
            world.rest();
            assert_eq!(world.fence("n0").unwrap().spec.plan.pods.len(), number, "{wait} s have not passed");
            world.wait(1.0);
        }
        world.rest();
        assert_eq!(world.fence("n0").unwrap().spec.plan.pods.len(), number + 1, "{wait} s have passed");
    }
}

/// The API server would refuse it, and with it the pass over all other nodes would fail.
#[test]
fn a_plan_that_is_full_grows_no_more_and_nobody_is_read_for_it() {
    for (rows, grows) in [(PODS_MAX - 1, true), (PODS_MAX, false)] {
        let mut world = failed();
        world.rest();
        world.reach("n0", Phase::Fencing);
        let plan = &mut Arc::make_mut(&mut world.seen.fences[0]).spec.plan;
        let gone = plan.pods[0].clone();
        plan.pods.extend((1..rows).map(|number| PlannedPod { uid: format!("gone-{number}"), ..gone.clone() }));
        for name in ["late", "later"] {
            world.seen.pods.get_mut("n0").unwrap().push(pod(name, "n0", &[csi(name)]));
        }
        world.rest();
        assert_eq!(world.fence("n0").unwrap().spec.plan.pods.len(), PODS_MAX, "{rows}");
        let late = world.fence("n0").unwrap().spec.plan.pods.iter().any(|row| row.name == "late");
        assert_eq!(late, grows, "{rows}");
        assert_eq!(world.reads, [""; 0], "{rows}");
    }
}

#[test]
fn a_pod_that_is_put_back_on_the_failed_node_is_not_released_for_ever() {
    let mut world = failed();
    world.rest();
    world.reach("n0", Phase::Fencing);
    let put_back = but(pod("again", "n0", &[csi("v0")]), |pod| pod.status.conditions.clear());
    world.seen.pods.get_mut("n0").unwrap().push(put_back);
    let effects = world.pass();
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Replan(_))), "{effects:?}");
}

#[test]
fn a_policy_gets_its_finalizer_and_keeps_it_while_its_fences_have_work() {
    let mut world = failed();
    Arc::make_mut(&mut world.seen.policies[0]).metadata.finalizers = None;
    let effects = world.pass();
    assert!(matches!(effects[0], Effect::AddFinalizer(_)), "before anything else: {effects:?}");
    world.rest();
    Arc::make_mut(&mut world.seen.policies[0]).metadata.deletion_timestamp = Some(time::to_k8s(world.now.wall));
    for (phase, waits) in [
        (None, true),
        (Some(Phase::Planned), true),
        (Some(Phase::Fencing), true),
        (Some(Phase::PodsReleased), true),
        (Some(Phase::Detached), false),
        (Some(Phase::Cleaning), false),
        (Some(Phase::Recovered), false),
    ] {
        if let Some(phase) = phase {
            world.reach("n0", phase);
        }
        let unguards = world.decide().effects.iter().any(|effect| matches!(effect, Effect::RemoveFinalizer(_)));
        assert_eq!(unguards, !waits, "{phase:?}");
    }
    world.reach("n0", Phase::Fencing);
    world.rest();
    let ready = world.seen.policies[0].status.clone().unwrap().conditions;
    let ready = ready.iter().find(|condition| condition.type_ == "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "FencesOpen"));
}

#[test]
fn a_policy_that_is_being_deleted_begins_nothing() {
    let mut world = failed();
    Arc::make_mut(&mut world.seen.policies[0]).metadata.deletion_timestamp = Some(time::to_k8s(world.now.wall));
    world.pass();
    assert_eq!(world.opened(), 0);
}

#[test]
fn the_policy_tells_at_noon_what_would_be_held_at_night() {
    let cases = [
        ("a sidecar that reads back", vec![able(DRIVER)], json!({}), "True", "ProofReachable"),
        ("no sidecar", vec![], json!({}), "False", "FencerMissing"),
        ("it cannot read back", vec![report(DRIVER, &["Unpublish"])], json!({}), "False", "ProofUnreachable"),
        (
            "Detach is enough",
            vec![],
            json!({ "fencing": { "minimumProof": "Acknowledged" } }),
            "True",
            "ProofReachable",
        ),
    ];
    for (name, drivers, spec, status, reason) in cases {
        let mut world = World::with_failed(3, 0, &spec);
        world.seen.reports = reports(drivers);
        world.rest();
        let conditions = world.seen.policies[0].status.clone().unwrap().conditions;
        let ready = conditions.iter().find(|condition| condition.type_ == "FenceReady").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), (status, reason), "{name}");
    }
}

#[test]
fn a_sidecar_that_fell_silent_is_told_at_noon_too() {
    let mut world = World::with_failed(3, 0, &json!({}));
    world.seen.reports = reports(vec![able(DRIVER)]);
    world.seen.silent_fencers.insert(DRIVER.into());
    world.rest();
    let status = world.seen.policies[0].status.clone().unwrap();
    let ready = status.conditions.iter().find(|condition| condition.type_ == "FenceReady").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "FencerSilent"));
    assert_eq!(status.drivers[0].reason.as_deref(), Some("FencerSilent"));
}

#[test]
fn pods_that_come_and_go_are_counted_once_a_minute() {
    let mut world = World::with_failed(3, 0, &json!({}));
    world.seen.reports.clear();
    world.rest();
    world.seen.counts_due = false;
    world.seen.pods.get_mut("n1").unwrap().push(pod("late", "n1", &[csi("v9")]));
    assert_eq!(world.decide().effects, [], "not now");
    world.seen.counts_due = true;
    world.rest();
    assert_eq!(world.seen.policies[0].status.clone().unwrap().protected_pods, Some(4));
}
