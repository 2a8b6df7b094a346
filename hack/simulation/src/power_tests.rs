//! Channel Power in the world: what a fencer reports before anybody asks it, and what a node makes of it. And a fencer that leaves nodes
//! their power.

use std::sync::Arc;

use bulkhead::api::slim::Pod;

use crate::chance::{Chance, Choice, Prompt};
use crate::faults::Fault;
use crate::others::{FencerMood, Lie};
use crate::people::Person;
use crate::shape::Clusters;
use crate::stories::{by_fabric, five_that_beat, with_power_reported};
use crate::time::SECOND;
use crate::world::{Task, World};

/// When the first node falls silent: its kubelet has just renewed its Lease.
const FAILS: u64 = 42;

fn world(faults: Vec<(u64, Fault)>) -> World {
    let mut world = World::new(Arc::new(with_power_reported()));
    world.trace = Some(Vec::new());
    for (second, fault) in faults {
        world.schedule(second * SECOND, Task::Fault(Box::new(fault)));
    }
    world
}

fn runs_until(world: &mut World, second: u64) {
    let is_clean = world.run_until(second * SECOND, &mut Prompt);
    assert!(is_clean, "{:#?}\n{}", world.oracle.violations, trace(world));
}

fn trace(world: &World) -> String {
    world.trace.clone().unwrap_or_default().join("\n")
}

fn wrong(lie: Lie) -> Fault {
    Fault::Fencer(FencerMood { lies: Some(("n0".into(), lie)), ..FencerMood::default() })
}

#[test]
fn a_node_that_lost_its_power_is_declared_before_kubernetes_gives_it_up() {
    let mut world = world(vec![(FAILS, Fault::PowerOff("n0".into())), (200, Fault::Reboot("n0".into()))]);
    runs_until(&mut world, FAILS + 36);
    assert_eq!((world.counts.declared_off, world.counts.declared_early), (1, 1), "{}", trace(&world));
    runs_until(&mut world, 199);
    assert_eq!((world.counts.released, world.counts.contradicted), (2, 0), "{}", trace(&world));
    runs_until(&mut world, 400);
    assert_eq!(world.unrecovered(), [] as [String; 0], "{}", trace(&world));
}

/// Nothing is attached, so nothing but the end of its power frees its pods: also of one that writes on.
#[test]
fn a_node_is_switched_off_for_volumes_that_are_not_attached() {
    for fault in [Fault::PowerOff("n0".into()), Fault::Disconnect("n0".into())] {
        let shape = with_power_reported().attaching_nothing("block.example.com", Clusters::default());
        let mut world = World::new(Arc::new(shape));
        world.trace = Some(Vec::new());
        world.schedule(FAILS * SECOND, Task::Fault(Box::new(fault)));
        world.schedule(240 * SECOND, Task::Fault(Box::new(Fault::Reboot("n0".into()))));
        runs_until(&mut world, 239);
        assert_eq!(world.counts.released, 2, "{}", trace(&world));
        runs_until(&mut world, 440);
        assert_eq!(world.unrecovered(), [] as [String; 0], "{}", trace(&world));
    }
}

/// It writes on, and nobody lets it in before it has booted, though all has moved; nor while nobody knows its machine.
#[test]
fn a_machine_that_keeps_its_power_is_kept_out_until_it_has_booted() {
    let deleted = (300, Fault::DeleteNode("n0".into()));
    for faults in [vec![], vec![deleted]] {
        let mut world = World::new(Arc::new(by_fabric()));
        world.trace = Some(Vec::new());
        let cut_off = (FAILS, Fault::Disconnect("n0".into()));
        for (second, fault) in [cut_off, (420, Fault::Reboot("n0".into()))].into_iter().chain(faults) {
            world.schedule(second * SECOND, Task::Fault(Box::new(fault)));
        }
        runs_until(&mut world, 419);
        assert!(!world.machines["n0"].running.is_empty(), "nothing writes on: this shows nothing");
        assert!(world.machines["n0"].is_off_fabric, "{}", trace(&world));
        assert_eq!((world.counts.released, world.counts.given_back), (1, 0), "{}", trace(&world));
        runs_until(&mut world, 620);
        assert_eq!(world.counts.given_back, 1, "{}", trace(&world));
        assert_eq!(world.unrecovered(), [] as [String; 0], "{}", trace(&world));
    }
}

/// It comes back by another address, so it may be another machine; a scheduler that has not heard of the taint puts a pod there, and it
/// fails. Nothing is begun for it before somebody says that the first one is off: the end of that would let both in.
#[test]
fn a_node_that_may_be_another_machine_than_the_one_that_is_kept_out_is_not_failed_over() {
    struct Unheard;
    impl Chance for Unheard {
        fn pick(&mut self, choice: Choice, _: u64) -> u64 {
            u64::from(choice == Choice::Scheduler)
        }
    }
    let mut world = World::new(Arc::new(by_fabric()));
    world.trace = Some(Vec::new());
    for (second, fault) in [
        (FAILS, Fault::Disconnect("n0".into())),
        (150, Fault::Renumber("n0".into())),
        (200, Fault::Reboot("n0".into())),
        (300, Fault::Delete("db".into())),
        (330, Fault::Disconnect("n0".into())),
        (430, Fault::Person(Person::SayOff("n0".into()))),
        (540, Fault::Reboot("n0".into())),
    ] {
        world.schedule(second * SECOND, Task::Fault(Box::new(fault)));
    }
    runs_until(&mut world, 299);
    assert!(world.run_until(310 * SECOND, &mut Unheard), "{:#?}\n{}", world.oracle.violations, trace(&world));
    let bound = world.api.get::<Pod>("db-0").and_then(|pod| pod.spec.node_name.clone());
    assert_eq!(bound.as_deref(), Some("n0"), "nobody fails there, this shows nothing: {}", trace(&world));
    runs_until(&mut world, 429);
    assert!(world.counts.restrained > 0, "{}", trace(&world));
    let counts = &world.counts;
    assert_eq!((counts.released, counts.reopened, counts.given_back), (1, 0, 0), "{}", trace(&world));
    runs_until(&mut world, 539);
    assert_eq!((world.counts.released, world.counts.reopened), (2, 1), "{}", trace(&world));
    runs_until(&mut world, 740);
    assert_eq!(world.unrecovered(), [] as [String; 0], "{}", trace(&world));
}

/// That its storages take nothing from it frees nothing that is not attached: such pods wait.
#[test]
fn a_node_that_keeps_its_power_holds_what_is_not_attached() {
    let shape = by_fabric().attaching_nothing("block.example.com", Clusters::default());
    let mut world = World::new(Arc::new(shape));
    world.trace = Some(Vec::new());
    world.schedule(FAILS * SECOND, Task::Fault(Box::new(Fault::Disconnect("n0".into()))));
    world.schedule(240 * SECOND, Task::Fault(Box::new(Fault::Reboot("n0".into()))));
    runs_until(&mut world, 239);
    assert!(world.counts.kept_out > 0 && world.counts.released == 0, "{}", trace(&world));
    assert_eq!(world.held_back(), [] as [String; 0], "no proof can be had: {}", trace(&world));
    runs_until(&mut world, 440);
    assert_eq!(world.unrecovered(), [] as [String; 0], "{}", trace(&world));
}

/// With agents that beat it takes seconds, where the pass that is shown the last renewal comes before the silence.
#[test]
fn beside_a_heartbeat_that_is_lost_two_renewals_need_not_be_missed() {
    let fails = 49;
    let mut shape = five_that_beat();
    let reported = with_power_reported();
    (shape.policies, shape.power) = (reported.policies, reported.power);
    let mut world = World::new(Arc::new(shape));
    world.trace = Some(Vec::new());
    world.schedule(fails * SECOND, Task::Fault(Box::new(Fault::PowerOff("n0".into()))));
    runs_until(&mut world, fails + 10);
    assert_eq!((world.counts.declared_off, world.counts.declared_early), (1, 1), "{}", trace(&world));
}

/// The machine runs, and is cut off from the API only: as long as it is away, somebody reports that it has no power.
#[test]
fn a_word_that_the_node_denied_declares_nobody() {
    let dead = Fault::Fencer(FencerMood { is_dead: true, ..FencerMood::default() });
    let away = || (FAILS, Fault::Disconnect("n0".into()));
    for (name, faults, declared) in [
        ("right when it falls silent", vec![(FAILS, wrong(Lie::ThisBoot)), away()], 1),
        ("while it is heard", vec![(10, wrong(Lie::ThisBoot)), away()], 0),
        (
            "again, of another boot in between",
            vec![(10, wrong(Lie::ThisBoot)), (25, wrong(Lie::BootBefore)), (FAILS, wrong(Lie::ThisBoot)), away()],
            0,
        ),
        (
            "again, and taken back in between",
            vec![
                (10, wrong(Lie::ThisBoot)),
                (25, Fault::Fencer(FencerMood::default())),
                (FAILS, wrong(Lie::ThisBoot)),
                away(),
            ],
            0,
        ),
        ("of the boot before", vec![(10, wrong(Lie::BootBefore)), away()], 0),
        ("and its fencer ends", vec![(FAILS, wrong(Lie::ThisBoot)), away(), (FAILS + 1, dead)], 0),
    ] {
        let mut world = world(faults);
        runs_until(&mut world, FAILS + 36);
        let counts = &world.counts;
        assert_eq!((counts.opened, counts.declared_off), (declared, declared), "{name}\n{}", trace(&world));
    }
}
