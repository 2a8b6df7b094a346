//! How long things take, in virtual time: outages of every length, and fences that are slow.

use std::sync::Arc;

use bulkhead::api::node_fence::Phase;
use kube::ResourceExt;
use serde_json::json;

use crate::chance::Prompt;
use crate::faults::Fault;
use crate::run::rest;
use crate::shape::{Driver, Owner, Placement, Shape, VolumeShape, Workload, policy};
use crate::stories::five_that_beat;
use crate::time::{MINUTE, Millis, SECOND};
use crate::world::{Task, World};

/// When the node falls silent.
const FAILS: Millis = 40 * SECOND;

fn at(world: &mut World, at: Millis, fault: Fault) {
    world.schedule(at, Task::Fault(Box::new(fault)));
}

/// A node that is away for so long and then goes on where it was, its writers included: whatever has happened by then is undone
/// or brought to its end, the taint goes without a reboot or a person, and every workload runs.
#[test]
fn an_outage_of_any_length_leaves_nothing() {
    let (mut undone, mut released) = (0, 0);
    for seconds in 1..=120 {
        let mut world = World::new(Arc::new(Shape::plain()));
        world.trace = Some(Vec::new());
        at(&mut world, FAILS, Fault::Disconnect("n0".into()));
        at(&mut world, FAILS + seconds * SECOND, Fault::Reconnect("n0".into()));
        let clean = world.run_until(FAILS + seconds * SECOND + 5 * MINUTE, &mut Prompt);
        let trace = world.trace.clone().unwrap().join("\n");
        assert!(clean, "{seconds} s: {:?}\n{trace}", world.oracle.violations);
        assert_eq!(world.unrecovered(), Vec::<String>::new(), "{seconds} s\n{trace}");
        assert!(rest(&mut world, &mut Prompt), "{seconds} s: {:?}", world.oracle.violations);
        let phases = world.api.fences.values().filter_map(|fence| fence.status.as_ref()?.phase);
        assert!(phases.into_iter().all(|phase| phase == Phase::Recovered), "{seconds} s\n{trace}");
        undone += u64::from(world.counts.opened > 0 && world.counts.released + world.counts.released_gracefully == 0);
        released += u64::from(world.counts.released > 0);
    }
    assert!(released > 30, "of 120 outages {released} were failed over");
    println!("of 120 outages {released} were failed over, and {undone} undone");
}

/// A pod with as many volumes as that, on an array that takes 10 s for each.
fn slow(volumes: usize) -> World {
    let driver = Driver {
        name: "block.example.com".into(),
        has_sidecar: true,
        lists: true,
        tells_io: false,
        latency: 10 * SECOND,
    };
    let names: Vec<_> = (0..volumes).map(|number| format!("v{number}")).collect();
    let shape = |name: &String| (name.clone(), VolumeShape { driver: driver.name.clone(), shared: false });
    let shapes = names.iter().map(shape).collect();
    let db = Workload {
        name: "db".into(),
        owner: Owner::StatefulSet,
        volumes: names,
        placement: Placement::Scheduled,
        home: 0,
        priority: 0,
        is_protected: true,
    };
    let policies = vec![policy("all", &["db"], &json!({}))];
    let mut world = World::new(Arc::new(Shape::new(3, vec![driver], shapes, vec![db], policies)));
    at(&mut world, FAILS, Fault::PowerOff("n0".into()));
    world
}

/// From the first fence call to the deletion of the pod.
fn fence_time(volumes: usize) -> Millis {
    let mut world = slow(volumes);
    while world.counts.unpublishes == 0 && world.now < 3 * MINUTE {
        assert!(world.step(&mut Prompt), "{:?}", world.oracle.violations);
    }
    let began = world.now;
    while world.counts.released == 0 && world.now < 10 * MINUTE {
        assert!(world.step(&mut Prompt), "{:?}", world.oracle.violations);
    }
    let fence = world.api.fences.get("n0").expect("an incident");
    assert_eq!(world.counts.released, 1, "{:?}", fence.name_any());
    world.now - began
}

/// A call lasts no longer than its sidecar leads for sure, which is 5 to 10 s: it is sent once more, and answered soon after
/// the array has done what the first one asked for.
#[test]
fn twenty_volumes_of_ten_seconds_take_no_longer_than_one() {
    let (one, twenty) = (fence_time(1), fence_time(20));
    println!("a fence of 10 s: 1 volume in {one} ms, 20 volumes in {twenty} ms");
    assert!((10 * SECOND..=20 * SECOND).contains(&one), "{one} ms");
    assert!(twenty <= one + SECOND, "20 volumes take {twenty} ms, one takes {one} ms");
}

/// A node whose network is cut for so long, its way to the storage aside.
fn cut_off(seconds: u64) -> World {
    let mut world = World::new(Arc::new(five_that_beat()));
    at(&mut world, FAILS, Fault::Mute("n0".into()));
    at(&mut world, FAILS, Fault::Disconnect("n0".into()));
    at(&mut world, FAILS + seconds * SECOND, Fault::Reconnect("n0".into()));
    world
}

#[test]
fn a_network_that_is_cut_for_ten_seconds_fails_nobody() {
    for seconds in 1..=10 {
        let mut world = cut_off(seconds);
        assert!(world.run_until(FAILS + 2 * MINUTE, &mut Prompt), "{seconds} s: {:?}", world.oracle.violations);
        assert_eq!(world.counts.opened, 0, "{seconds} s");
    }
}

#[test]
fn pods_of_a_node_that_nobody_hears_of_go_before_kubernetes_gives_it_up() {
    let mut world = cut_off(120);
    while world.counts.released < 2 && world.now < FAILS + MINUTE {
        assert!(world.step(&mut Prompt), "{:?}", world.oracle.violations);
    }
    println!("released {} ms after the cut", world.now - FAILS);
    assert!(world.now <= FAILS + 25 * SECOND, "{} ms", world.now - FAILS);
    assert_eq!(world.counts.declared_early, 1);
}

/// Kubernetes calls it Ready for another half a minute.
#[test]
fn the_key_is_set_before_kubernetes_gives_the_node_up() {
    let mut world = cut_off(120);
    while world.counts.out_of_service == 0 && world.now < FAILS + MINUTE {
        assert!(world.step(&mut Prompt), "{:?}", world.oracle.violations);
    }
    assert_eq!((world.counts.out_of_service_early, world.counts.declared_early), (1, 1), "{}", world.now - FAILS);
}
