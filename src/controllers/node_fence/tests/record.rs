//! What the record says of who proved a volume, and of a plan that takes in no more.

use std::sync::Arc;

use serde_json::json;

use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::{NodeFence, PODS_MAX, PlannedPod, PodAction, VolumeStatusState};
use crate::controllers::testing::*;

use super::super::change::Change;
use super::super::memory::Incident;
use super::super::rows::Rows;
use super::build::{found, planned};
use super::cleaning::condition;
use super::world::{Fencer, World};

/// A failed node whose volume these methods cut off, at rest when its pod has gone.
fn moved(methods: &serde_json::Value, proof: Proof) -> World {
    let fencing = json!({ "minimumProof": "Verified", "methods": methods, "callTimeout": "5s" });
    let mut world = World::new(vec![pod("a", "n1", &[csi("v1")])], &json!({ "fencing": fencing }));
    world.fencers.insert(POWER.into(), Fencer::Proves(proof));
    world.run();
    assert!(world.did("delete a grace 0"), "{:#?}", world.log);
    assert_eq!(world.volume("v1").state, VolumeStatusState::Detached, "{:#?}", world.log);
    world
}

/// A pod of it that comes into the plan later goes on another's word than the first.
#[test]
fn a_detached_volume_that_is_needed_again_records_who_proves_it() {
    let mut world = moved(&json!([unpublish(), external()]), Proof::Verified);
    assert_eq!(world.volume("v1").method, Some(FenceMethodType::Unpublish), "{:#?}", world.log);
    // Until the first proof is too old to act on.
    world.wait(20.0);
    world.run();
    let late = pod("late", "n1", &[csi("v1")]);
    world.plan().pods.push(planned(&late));
    world.seen.pods.push(late);
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    for _ in 0..15 {
        world.wait(2.0);
        world.run();
    }
    assert!(world.did("delete late grace 0"), "{:#?}", world.log);
    let row = world.volume("v1");
    let by = (row.method, row.external_proof);
    assert_eq!(by, (Some(FenceMethodType::External), Some(Proof::Verified)), "{:#?}", world.log);
    assert_eq!(row.state, VolumeStatusState::Detached, "{:#?}", world.log);
}

#[test]
fn who_proves_a_detached_volume_is_recorded_before_anything_rests_on_it() {
    let world = moved(&json!([external()]), Proof::Verified);
    let recorded = world.seen.fence.status.clone().unwrap();
    let mut rows = Rows::advance(&world.seen, world.now);
    assert_eq!(rows.change_from(&recorded), Change::None);
    rows.volumes[0].status.external_proof = Some(Proof::Acknowledged);
    assert_eq!(rows.change_from(&recorded), Change::Intent);
}

/// One of the release before: it drops what it does not know without a word.
#[test]
fn an_external_proof_that_an_older_definition_does_not_keep_this_process_does() {
    let mut world = moved(&json!([external()]), Proof::Verified);
    let sent = world.seen.fence.clone();
    let proof = |fence: &NodeFence| fence.status.as_ref().unwrap().volumes[0].external_proof;
    assert_eq!(proof(&sent), Some(Proof::Verified), "{:#?}", world.log);
    let mut stored = sent.clone();
    Arc::make_mut(&mut stored).status.as_mut().unwrap().volumes[0].external_proof = None;
    world.seen.fence = stored.clone();
    assert_ne!(world.decide().effects, [], "it would be written for ever");

    let (mut incident, settings, now) = (Incident::default(), world.seen.settings, world.now);
    assert_eq!(proof(&incident.look(found(&stored), settings, now).fence), None);
    incident.recorded(sent.status.as_ref().unwrap(), now);
    world.seen.fence = incident.look(found(&stored), settings, now).fence;
    assert_eq!(proof(&world.seen.fence), Some(Proof::Verified));
    assert_eq!(world.decide().effects, [], "nothing waits for it");
}

/// A scheduler that does not go by the taint would have it grow for ever.
#[test]
fn a_plan_that_is_full_says_that_it_takes_in_no_more() {
    for (rows, is_told) in [(PODS_MAX - 1, false), (PODS_MAX, true)] {
        let mut world = World::new(vec![pod("a", "n1", &[csi("v1")])], &json!({}));
        let kept = PlannedPod {
            action: PodAction::Keep,
            reason: "Completed".into(),
            volumes: Vec::new(),
            ..planned(&pod("kept", "n1", &[]))
        };
        let kept = (1..rows).map(|number| PlannedPod { uid: format!("uid-kept-{number}"), ..kept.clone() });
        world.plan().pods.extend(kept);
        world.run();
        assert!(world.did("delete a grace 0"), "{:#?}", world.log);
        let (_, _, message) = condition(&world, "Released");
        assert_eq!(message.contains("the plan has all the 512 pods"), is_told, "{rows}: {message}");
    }
}
