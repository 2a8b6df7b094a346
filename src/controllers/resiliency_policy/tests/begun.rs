//! Another machine has the name of one that an external fencer has begun to cut off, and fails too.

use std::sync::Arc;

use serde_json::json;

use crate::api::fence_request::{FenceOutcome, FenceRequest, FenceResult};
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::{MACHINE_MAY_RUN, NODE_DELETED, Phase, VolumeStatus, VolumeStatusState};
use crate::controllers::testing::*;

use super::super::plan::LiveNode;
use super::World;
use super::machines::{ANOTHER, FROZEN, cut_off, episode, machine, request, say_that_it_is_off};

/// An external fencer is asked for the volume of the failed node, and has answered so; it is cut off by nobody who says so.
fn begun(result: FenceOutcome) -> (World, FenceRequest) {
    let row = (VolumeStatusState::Clean, Some(NODE_DELETED));
    let mut world = cut_off(FenceMethodType::External, Phase::Cleaning, row);
    let row = &mut Arc::make_mut(&mut world.seen.fences[0]).status.as_mut().unwrap().volumes[0];
    (row.proof, row.method, row.proved_at) = (Proof::None, None, None);
    let volume = json!({ "episode": 1, "name": "v0", "round": 1, "minimumProof": "Verified", "volumeHandle": "h",
        "nodeID": "id-n0", "methods": [{ "type": "External" }] });
    let mut request = request("n0", POWER, &json!([volume]));
    let answer = FenceResult::of(&request.spec.volumes[0], result);
    let answer = FenceResult { started_at: Some(world.now.wall), ..answer };
    request.status.get_or_insert_default().volumes = vec![answer];
    (world, request)
}

/// It may have cut the first one off all the same, and gives back what it did at the end of the one request for both.
#[test]
fn nor_does_it_get_one_while_a_fencer_has_begun_with_the_first_and_proved_nothing() {
    for (result, is_live) in
        [(FenceOutcome::Started, false), (FenceOutcome::Failed, false), (FenceOutcome::Started, true)]
    {
        let (mut world, request) = begun(result);
        world.node_becomes(machine("boot-2", ANOTHER));
        if is_live {
            let live = LiveNode { requests: vec![Arc::new(request)], ..world.look_at("n0").unwrap() };
            world.live.insert("n0".into(), live);
        } else {
            world.seen.requests.insert("n0".into(), vec![Arc::new(request)]);
        }
        world.rest();
        assert_eq!(episode(&world), 1, "{result:?} {is_live}");
        let restrained = world.decide().restrained;
        let [held] = restrained.as_slice() else { panic!("{result:?}: {restrained:?}") };
        assert_eq!(held.brake, MACHINE_MAY_RUN, "{result:?} {is_live}");
        assert!(held.about.as_deref().unwrap().starts_with("an external fencer"), "{held:?}");
        say_that_it_is_off(&mut world, "1");
        world.rest();
        assert_eq!(episode(&world), 2, "{result:?} {is_live}");
    }
}

#[test]
fn where_what_was_begun_keeps_out_nobody_another_machine_is_failed_over() {
    type Change = fn(&mut VolumeStatus);
    let as_it_is: Change = |_| {};
    let by_its_driver: Change = |row| {
        (row.method, row.proof, row.proved_at) = (Some(FenceMethodType::Unpublish), Proof::Verified, row.committed_at);
    };
    let is_off: Change = |row| (row.external_proof, row.proved_at) = (Some(Proof::PowerOff), row.committed_at);
    let rebooted = || {
        let mut node = machine("boot-2", ANOTHER);
        node.metadata.uid = machine("boot-1", FROZEN).metadata.uid;
        node
    };
    for (name, result, change, (node, is_frozen)) in [
        ("it was given back", FenceOutcome::Unfenced, as_it_is, (machine("boot-2", ANOTHER), true)),
        ("its driver has proved it", FenceOutcome::Failed, by_its_driver, (machine("boot-2", ANOTHER), true)),
        ("it has lost its power", FenceOutcome::Failed, is_off, (machine("boot-2", ANOTHER), true)),
        ("a frozen address", FenceOutcome::Failed, as_it_is, (machine("boot-2", FROZEN), true)),
        ("no address is frozen, and its Node is the same", FenceOutcome::Failed, as_it_is, (rebooted(), false)),
    ] {
        let (mut world, request) = begun(result);
        let fence = Arc::make_mut(&mut world.seen.fences[0]);
        change(&mut fence.status.as_mut().unwrap().volumes[0]);
        if !is_frozen {
            fence.spec.node.addresses.clear();
        }
        world.seen.requests.insert("n0".into(), vec![Arc::new(request)]);
        world.node_becomes(node);
        world.rest();
        assert_eq!(episode(&world), 2, "{name}");
    }
}
