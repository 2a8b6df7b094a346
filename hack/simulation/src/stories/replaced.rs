//! The stories of another machine under the name of one that runs on: the node that failed is cut off from the API only, and then spare
//! hardware joins under its name. Its Node is the same, or somebody has deleted that before.

use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead::api::slim::Node;

use crate::array::Mood;
use crate::chance::Prompt;
use crate::faults::Fault;
use crate::others::first_of;
use crate::people::Person;
use crate::shape::Shape;
use crate::time::{Millis, SECOND};
use crate::world::World;

use super::network::by_network;
use super::{DRIVER, FAILS, at, by_fabric, world};

/// When the other machine joins.
const JOINS: Millis = FAILS + 120 * SECOND;
/// When somebody finds the first one.
const FOUND: Millis = FAILS + 260 * SECOND;
/// By when all is over after that.
const OVER: Millis = FOUND + 200 * SECOND;

fn another_machine_joins(shape: Shape, is_anew: bool) -> World {
    let mut world = world(shape);
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, JOINS, Fault::Replace("n0".into(), is_anew));
    world
}

/// Its driver has taken its volumes from it.
fn its_driver_has_cut_off_the_first(is_anew: bool) -> World {
    another_machine_joins(Shape::plain(), is_anew)
}

/// A pod is put on the other machine, and then that one is cut off from the API too.
fn a_pod_comes_to_the_other_one() -> World {
    let mut world = its_driver_has_cut_off_the_first(false);
    at(&mut world, FOUND, Fault::Delete("db".into()));
    at(&mut world, FOUND + 40 * SECOND, Fault::Disconnect("n0".into()));
    world
}

/// Its fencer has taken it off the fabric of its storages, and left it its power.
fn its_fencer_keeps_out_the_first(is_anew: bool) -> World {
    is_found(another_machine_joins(by_fabric(), is_anew))
}

/// Its storage shuts it out.
fn its_storage_shuts_out_the_first(is_anew: bool) -> World {
    is_found(another_machine_joins(by_network(false), is_anew))
}

/// Its storage shuts it out too, but does not say so: its pod is held. (gRPC's Internal.)
fn its_storage_shuts_out_the_first_and_says_that_it_failed(is_anew: bool) -> World {
    let mut world = its_storage_shuts_out_the_first(is_anew);
    let fails = Mood { fails: Some((1, 13)), fails_after_effect: true, ..Mood::default() };
    at(&mut world, SECOND, Fault::Mood(DRIVER.into(), fails));
    at(&mut world, JOINS + 60 * SECOND, Fault::Mood(DRIVER.into(), Mood::default()));
    world
}

/// Somebody finds the first one, switches it off for good, and says so.
fn is_found(mut world: World) -> World {
    at(&mut world, FOUND, Fault::PowerOff(first_of("n0")));
    at(&mut world, FOUND + SECOND, Fault::Person(Person::SayOff("n0".into())));
    world
}

fn runs_until(world: &mut World, time: Millis) {
    let is_clean = world.run_until(time, &mut Prompt);
    assert!(is_clean, "{:#?}\n{}", world.oracle.violations, trace(world));
}

fn trace(world: &World) -> String {
    world.trace.clone().unwrap_or_default().join("\n")
}

/// Its pods have moved, its processes run on, and its storages take nothing from them; the other one has another boot and address.
fn assert_first_writes_nothing(world: &World) {
    assert_eq!(world.counts.replaced, 1, "nobody has its name: {}", trace(world));
    let (first, other) = (&world.machines[&first_of("n0")], &world.machines["n0"]);
    assert!(!first.running.is_empty(), "nothing runs on: this shows nothing");
    let mut volumes = first.running.iter().flat_map(|it| &it.volumes);
    assert!(!volumes.any(|volume| world.accepts(&first_of("n0"), volume)), "{}", trace(world));
    assert!(first.boot_id() != other.boot_id() && first.address != other.address, "{}", trace(world));
}

/// The other one is not given back, and the NodeFence says for whose word it waits.
fn assert_word_is_awaited(world: &World) {
    let fence = world.api.get::<NodeFence>("n0").expect("a NodeFence");
    let phase = fence.status.as_ref().and_then(|status| status.phase);
    assert_eq!((phase, fence.spec.episode), (Some(Phase::Cleaning), 1), "{}", trace(world));
    assert!(fence.waits_for_word_of_its_machine(), "{}", trace(world));
    let node = world.api.get::<Node>("n0").expect("a Node");
    assert!(node.taints().iter().any(|taint| taint.key == names::FENCED_TAINT), "{}", trace(world));
}

/// Only a publish gives access, so the other one is given back in its own boot, and what the first lost it does not get with that.
#[test]
fn what_its_driver_took_from_the_first_stays_taken_when_another_machine_joins() {
    for is_anew in [false, true] {
        let mut world = its_driver_has_cut_off_the_first(is_anew);
        runs_until(&mut world, FOUND);
        assert_first_writes_nothing(&world);
        assert_eq!(world.unrecovered(), [] as [String; 0], "{is_anew}: {}", trace(&world));
        assert_eq!(world.counts.released, 2, "{is_anew}: {}", trace(&world));
    }
}

/// Where nodes are published to by their names, what the other one gets the first gets too: both write, and nobody can keep that one from
/// it (docs/safety.md). It is taken from both before a third node has it.
#[test]
fn what_is_published_to_the_other_one_by_its_name_is_taken_from_both() {
    let mut world = a_pod_comes_to_the_other_one();
    runs_until(&mut world, FOUND + 39 * SECOND);
    let accepts = |world: &World| (world.accepts("n0", "v0"), world.accepts(&first_of("n0"), "v0"));
    assert_eq!(accepts(&world), (true, true), "no pod is there, this shows nothing: {}", trace(&world));
    runs_until(&mut world, OVER);
    assert_eq!(accepts(&world), (false, false), "{}", trace(&world));
    assert_eq!(world.counts.released, 3, "{}", trace(&world));
}

#[test]
fn the_first_is_kept_off_the_fabric_beside_another_machine_until_it_is_said_to_be_off() {
    for is_anew in [false, true] {
        let mut world = its_fencer_keeps_out_the_first(is_anew);
        runs_until(&mut world, FOUND - SECOND);
        assert_first_writes_nothing(&world);
        assert_word_is_awaited(&world);
        let is_off_fabric = |machine: &str| world.machines[machine].is_off_fabric;
        assert_eq!((is_off_fabric("n0"), is_off_fabric(&first_of("n0"))), (false, true), "{}", trace(&world));
        assert_eq!((world.counts.released, world.counts.given_back), (1, 0), "{is_anew}: {}", trace(&world));
        runs_until(&mut world, OVER);
        assert_eq!(world.counts.given_back, 1, "{is_anew}: {}", trace(&world));
        assert_eq!(world.unrecovered(), [] as [String; 0], "{is_anew}: {}", trace(&world));
    }
}

#[test]
fn the_first_is_shut_out_beside_another_machine_until_it_is_said_to_be_off() {
    for is_anew in [false, true] {
        let mut world = its_storage_shuts_out_the_first(is_anew);
        runs_until(&mut world, FOUND - SECOND);
        assert_first_writes_nothing(&world);
        assert_word_is_awaited(&world);
        assert!(!world.is_shut_out("n0", &world.arrays[DRIVER]), "{is_anew}: {}", trace(&world));
        assert_eq!((world.counts.released, world.counts.let_in), (1, 0), "{is_anew}: {}", trace(&world));
        runs_until(&mut world, OVER);
        assert_eq!(world.unrecovered(), [] as [String; 0], "{is_anew}: {}", trace(&world));
        assert!(world.counts.let_in > 0, "{is_anew}: {}", trace(&world));
    }
}

/// The kubelet of the other one ends the pod, which may have started there; the first is not let in with that.
#[test]
fn a_pod_that_was_held_moves_when_another_machine_joins_and_the_first_stays_shut_out() {
    for is_anew in [false, true] {
        let mut world = its_storage_shuts_out_the_first_and_says_that_it_failed(is_anew);
        runs_until(&mut world, JOINS - SECOND);
        assert_eq!((world.counts.opened, world.counts.released), (1, 0), "{is_anew}: {}", trace(&world));
        runs_until(&mut world, FOUND - SECOND);
        assert_first_writes_nothing(&world);
        assert_word_is_awaited(&world);
        let counts = &world.counts;
        assert_eq!((counts.released, counts.released_gracefully), (0, 1), "{is_anew}: {}", trace(&world));
        assert!(world.api.pods.values().all(|pod| pod.spec.node_name.as_deref() != Some("n0")), "{}", trace(&world));
        runs_until(&mut world, OVER);
        assert_eq!(world.unrecovered(), [] as [String; 0], "{is_anew}: {}", trace(&world));
    }
}
