//! Pods that hang together by their volumes, or must run on one node: all of them go in one step, or none.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::node_fence::{Channel, PodStatusState, VOLUME_TAINT};
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::world::{Fencer, World};

const OTHER: &str = "file.example.com";

fn deleted(world: &World) -> Vec<&str> {
    let mut all: Vec<_> =
        world.log.iter().filter_map(|entry| entry.strip_prefix("delete ")?.split(' ').next()).collect();
    all.sort_unstable();
    all
}

/// Two pods with one volume in common; the second has one of another driver besides.
fn unit() -> Vec<PodView> {
    vec![
        pod("a", "n1", &[csi("v1"), csi("v2")]),
        pod("b", "n1", &[csi("v2"), csi_of(OTHER, "v3")]),
        pod("free", "n1", &[csi("v4")]),
    ]
}

#[test]
fn a_volume_that_cannot_be_proved_holds_the_whole_unit_and_nobody_else() {
    let mut world = World::new(unit(), &json!({}));
    world.fencers.insert(OTHER.into(), Fencer::Fails("Internal"));
    world.run();
    world.wait(5.0);
    world.run();
    assert_eq!(deleted(&world), ["free"]);
    for name in ["a", "b"] {
        assert_eq!(world.pod(name), (PodStatusState::Waiting, "ProofTooWeak".into()), "{name}");
        let status = world.seen.fence.status.as_ref().unwrap();
        let row = status.pods.iter().find(|row| row.uid == format!("uid-{name}")).unwrap();
        assert_eq!(row.message.as_deref(), Some("v3"), "{name}");
    }
    // It can be proved after all: both go, in one step.
    world.fencers.clear();
    world.restart();
    world.run();
    assert_eq!(deleted(&world), ["a", "b", "free"]);
    let place = |entry: &str| world.log.iter().position(|it| it.starts_with(entry)).unwrap();
    assert!(place("v3 is Fenced").max(place("a is Releasing")) < place("delete a"), "{:#?}", world.log);
    assert!(place("b is Releasing") < place("delete a"), "{:#?}", world.log);
}

#[test]
fn a_unit_of_which_one_cannot_move_stays() {
    let mut pods = unit();
    pods[1].volumes.push(local("disk"));
    let mut world = World::new(pods, &json!({}));
    world.run();
    assert_eq!(deleted(&world), ["free"]);
    assert_eq!(world.pod("a").1, "SharerHeld");
    assert_eq!(world.pod("b").1, "LocalVolume");
    assert!(!world.log.iter().any(|entry| entry.contains("Fenced v2")), "{:#?}", world.log);
}

/// The second must run where the first does.
fn bound(second: &[crate::api::usage::VolumeUse]) -> Vec<PodView> {
    let term = json!([{ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "a" } } }]);
    let second = but(pod("b", "n1", second), |pod| {
        pod.spec.affinity.pod_affinity.required_during_scheduling_ignored_during_execution =
            serde_json::from_value(term).unwrap();
    });
    vec![pod("a", "n1", &[csi("v1")]), second, pod("free", "n1", &[csi("v4")])]
}

fn together() -> Value {
    json!({ "release": { "affinityGroups": "Together" } })
}

#[test]
fn pods_that_must_run_on_one_node_go_together_where_that_is_asked_for() {
    for (spec, expected) in [(json!({}), vec!["a", "free"]), (together(), vec!["free"])] {
        let mut world = World::new(bound(&[csi_of(OTHER, "v2")]), &spec);
        world.fencers.insert(OTHER.into(), Fencer::Fails("Internal"));
        world.run();
        world.wait(5.0);
        world.run();
        assert_eq!(deleted(&world), expected, "{spec}");
        world.fencers.clear();
        world.restart();
        world.run();
        assert_eq!(deleted(&world), ["a", "b", "free"], "{spec}");
    }
}

#[test]
fn one_that_stays_holds_those_that_must_run_beside_it() {
    let mut world = World::new(bound(&[local("disk")]), &together());
    world.run();
    assert_eq!(deleted(&world), ["free"]);
    assert_eq!(world.pod("a").1, "SharerHeld");
    let status = world.seen.fence.status.as_ref().unwrap();
    let message = status.pods[0].message.clone().unwrap_or_default();
    assert!(message.contains("must run beside shop/b"), "{message}");
}

#[test]
fn pods_that_run_on_every_node_bind_nobody() {
    let mut pods = bound(&[csi("v2")]);
    pods[0] = owned_by(pods[0].clone(), Some("DaemonSet"));
    let mut world = World::new(pods, &together());
    world.run();
    assert_eq!(deleted(&world), ["b", "free"]);
}

/// On a node that is well they are in the plan for the sake of the first, whose volume is tainted.
#[test]
fn a_group_leaves_a_node_that_is_well_in_one_step() {
    const KEY: &str = "VolumeNotUsable";
    for (second, driver) in [(vec![csi_of(OTHER, "v2")], OTHER), (vec![], DRIVER)] {
        let mut spec = together();
        json_patch::merge(&mut spec, &json!({ "triggers": { "volumeTaints": [KEY] } }));
        let mut pods = bound(&second);
        pods.truncate(2);
        let mut world = World::new(pods, &spec);
        world.plan().evidence.iter_mut().for_each(|it| it.channel = Channel::Volume);
        world.plan().pods.iter_mut().for_each(|row| row.reason = VOLUME_TAINT.into());
        world.seen.healths = Some(BTreeMap::from([("v1".into(), Arc::new(tainted("v1", KEY, &["n1"])))]));
        world.node_returns();
        world.fencers.insert(driver.into(), Fencer::Fails("Internal"));
        world.run();
        world.wait(5.0);
        world.run();
        assert_eq!(deleted(&world), [""; 0], "{second:?}: no volume of either is proved without the other's");
        world.fencers.clear();
        world.restart();
        world.run();
        assert_eq!(deleted(&world), ["a", "b"], "{second:?}");
        world.assert_order(&["a is Releasing", "delete a graceful"]);
        world.assert_order(&["b is Releasing", "delete a graceful"]);
        world.assert_order(&["b is Releasing", "delete b graceful"]);
    }
}

/// Opted in by `podsWithoutVolumes`: nothing is to be proved.
#[test]
fn a_pod_without_volumes_goes_after_taint_and_record() {
    let mut world = World::new(vec![pod("web", "n1", &[])], &json!({}));
    world.run();
    world.assert_order(&["taint fenced", "web is Releasing", "delete web grace 0", "web is Released"]);
    world.node_reboots();
    world.run();
    assert!(world.did("untaint fenced"), "{:#?}", world.log);
}
