//! Channel Power in the world: what a fencer reports before anybody asks it, and what a node makes of it.

use std::sync::Arc;

use crate::chance::Prompt;
use crate::faults::Fault;
use crate::others::{FencerMood, Lie};
use crate::shape::Clusters;
use crate::stories::{five_that_beat, with_power_reported};
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
