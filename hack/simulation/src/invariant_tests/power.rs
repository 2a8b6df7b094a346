//! Judges of whoever cuts nodes off as a whole.

use std::sync::Arc;

use bulkhead::api::fence_request::{Desired, FenceRequest};
use bulkhead::api::names;
use serde_json::json;

use crate::api::Op;
use crate::chance::Prompt;
use crate::faults::Fault;
use crate::others::{POWER, Power};
use crate::run::settle;
use crate::shape::{PowerShape, Shape, handle, policy};
use crate::stories::by_fabric;
use crate::time::{MINUTE, SECOND};
use crate::world::World;

use super::moments::planned;
use super::{assert_broken, befalls, detaches, end_all, failed_over, fence_of, for_volumes, incarnation, well, writes};

/// The first node was cut off from the API and has been switched off, and its pods have moved.
pub(super) fn switched_off() -> World {
    let mut shape = Shape::plain();
    let external = json!({ "type": "External", "external": { "fencerName": POWER } });
    let spec = json!({ "fencing": { "minimumProof": "PowerOff", "methods": [external] } });
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    shape.power = Some(PowerShape { gives_back: false, reports: false, leaves_power: false });
    let mut world = World::new(Arc::new(shape));
    befalls(&mut world, 40 * SECOND, Fault::Disconnect("n0".into()));
    assert!(world.run_until(4 * MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
    assert_eq!((world.counts.released, world.counts.powered_off), (2, 3));
    world
}

#[test]
fn i2_a_node_that_is_called_switched_off_runs_on() {
    let mut world = switched_off();
    let machine = world.machines.get_mut("n0").unwrap();
    machine.power = Power::Running;
    machine.running.push(incarnation("v0", 1));
    world.arrays.values_mut().next().unwrap().publish(&handle("v0"), "id-n0");
    detaches(&mut world);
    assert_broken(&world, "I2");
}

#[test]
fn i3_a_node_that_is_well_is_switched_off_for_the_sake_of_its_volumes() {
    let mut world = failed_over();
    let fence = for_volumes(&world, "n1");
    let _ = world.api.create(*fence, world.now);
    let mut request = FenceRequest::clone(world.api.requests.values().next().expect("a request"));
    request.spec.node_name = "n1".into();
    world.judge_power_off(&request);
    assert_broken(&world, "I3");
}

/// The first node was cut off from the API, its fencer has taken it off the fabric of its storages, and its pod has moved.
pub(super) fn kept_out() -> World {
    let mut world = planned(by_fabric());
    assert!(world.run_until(4 * MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
    assert_eq!((world.counts.kept_out > 0, world.counts.released), (true, 1));
    assert!(world.machines["n0"].is_off_fabric && !world.machines["n0"].running.is_empty());
    world
}

fn is_broken(world: &World, invariant: &str) -> bool {
    world.oracle.violations.iter().any(|it| it.invariant == invariant)
}

#[test]
fn i5_a_fencer_lets_a_machine_in_while_its_pod_runs_on() {
    for runs_on in [true, false] {
        let mut world = kept_out();
        end_all(&mut world);
        if !runs_on {
            world.machines.get_mut("n0").unwrap().running.clear();
        }
        let request = names::fence_request("n0", POWER);
        world.api.update::<FenceRequest>(&request, |request| request.spec.desired = Desired::Unfenced);
        world.run_until(world.now + 20 * SECOND, &mut Prompt);
        assert!(!world.machines["n0"].is_off_fabric, "nobody let it in: this shows nothing");
        let broken = (is_broken(&world, "I5"), is_broken(&world, "I1"));
        assert_eq!(broken, (runs_on, runs_on), "{:?}", world.oracle.violations);
    }
}

/// Only one whose Node is gone is left to a person, and holds up no other.
#[test]
fn i4_a_node_that_is_kept_out_counts_while_its_node_is_there() {
    for is_deleted in [false, true] {
        let mut world = kept_out();
        if is_deleted {
            befalls(&mut world, 4 * MINUTE, Fault::DeleteNode("n0".into()));
        }
        assert!(world.run_until(6 * MINUTE, &mut Prompt), "{:?}", world.oracle.violations);
        assert!(world.machines["n0"].is_off_fabric, "{is_deleted}");
        let machine = world.machines.get_mut("n1").unwrap();
        (machine.power, machine.well_since) = (Power::Off, None);
        let fence = fence_of(&world, "n1");
        writes(&mut world, Op::CreateFence(fence));
        assert_eq!(is_broken(&world, "I4"), !is_deleted, "{:?}", world.oracle.violations);
    }
}

#[test]
fn i8_a_machine_is_left_off_the_fabric_of_its_storages() {
    let mut world = well();
    world.machines.get_mut("n2").unwrap().is_off_fabric = true;
    settle(&mut world, &mut Prompt);
    assert_broken(&world, "I8");
}
