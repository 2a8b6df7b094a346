//! Judges of whoever switches nodes off.

use std::sync::Arc;

use bulkhead::api::fence_request::FenceRequest;
use serde_json::json;

use crate::chance::Prompt;
use crate::faults::Fault;
use crate::others::{POWER, Power};
use crate::shape::{PowerShape, Shape, handle, policy};
use crate::time::{MINUTE, SECOND};
use crate::world::World;

use super::{assert_broken, befalls, detaches, failed_over, for_volumes, incarnation};

/// The first node was cut off from the API and has been switched off, and its pods have moved.
pub(super) fn switched_off() -> World {
    let mut shape = Shape::plain();
    let external = json!({ "type": "External", "external": { "fencerName": POWER } });
    let spec = json!({ "fencing": { "minimumProof": "PowerOff", "methods": [external] } });
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    shape.power = Some(PowerShape { gives_back: false, reports: false });
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
