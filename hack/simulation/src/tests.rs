//! The world at work: the main path, a crash at every write and call, and many schedules.

use std::sync::Arc;

use bulkhead::api::node_fence::{NodeFence, Phase};

use crate::batch::Batch;
use crate::chance::Prompt;
use crate::faults::Fault;
use crate::run::{play, settle};
use crate::schedule::Schedule;
use crate::shape::Shape;
use crate::shrink::tell;
use crate::time::{MINUTE, SECOND};
use crate::world::{CrashPoint, Task, World};

/// What `hack/test` runs; `cargo xtask bench simulate` runs many more.
const SCHEDULES: u64 = 10_000;

fn failing(crash_point: Option<CrashPoint>) -> World {
    let mut world = World::new(Arc::new(Shape::plain()));
    world.trace = Some(Vec::new());
    world.crash_point = crash_point;
    world.schedule(40 * SECOND, Task::Fault(Box::new(Fault::PowerOff("n0".into()))));
    world
}

fn phase(world: &World, node: &str) -> Option<Phase> {
    world.api.fences.get(node)?.status.as_ref()?.phase
}

#[test]
fn a_node_dies_and_its_pods_move_and_it_is_given_back() {
    let mut world = failing(None);
    let clean = world.run_until(5 * MINUTE, &mut Prompt);
    let trace = world.trace.clone().unwrap().join("\n");
    assert!(clean, "{:#?}\n{trace}", world.oracle.violations);
    assert_eq!(phase(&world, "n0"), Some(Phase::Detached), "{trace}");
    assert_eq!((world.counts.released, world.counts.verified), (2, 3), "{trace}");
    assert_eq!(world.machines.values().map(|machine| machine.running.len()).sum::<usize>(), 2, "{trace}");
    world.schedule(6 * MINUTE, Task::Fault(Box::new(Fault::Reboot("n0".into()))));
    assert!(world.run_until(8 * MINUTE, &mut Prompt));
    assert_eq!(phase(&world, "n0"), Some(Phase::Recovered), "{}", world.trace.clone().unwrap().join("\n"));
}

/// What is left of an incident, without the moments of its steps.
fn end_of(world: &World) -> String {
    let fence = world.api.get::<NodeFence>("n0").unwrap();
    let status = fence.status.clone().unwrap();
    let volumes: Vec<_> = status.volumes.iter().map(|row| (&row.name, row.state, row.proof)).collect();
    let pods: Vec<_> = status.pods.iter().map(|row| (row.state, row.reason.as_deref())).collect();
    format!("{:?} {} {volumes:?} {pods:?} {:?}", status.phase, fence.spec.episode, world.unrecovered())
}

/// I8: whoever ends at whichever write or call, sent or not, the end is the same.
#[test]
fn a_crash_at_any_write_or_call_leads_to_the_same_end() {
    let run = |point: Option<CrashPoint>| {
        let mut world = failing(point);
        assert!(world.run_until(3 * MINUTE, &mut Prompt), "{point:?}: {:?}", world.oracle.violations);
        assert!(settle(&mut world, &mut Prompt), "{point:?}: {:?}", world.oracle.violations);
        world
    };
    let calm = run(None);
    let wanted = end_of(&calm);
    let (mut crashed, mut calls) = (0, 0);
    for pid in 0..calm.processes.len() {
        for sent in [false, true] {
            for after in 0.. {
                let world = run(Some(CrashPoint { pid, after, sent }));
                if world.counts.crashes == 0 {
                    break;
                }
                crashed += 1;
                calls += u32::from(world.counts.unpublishes > calm.counts.unpublishes);
                assert_eq!(end_of(&world), wanted, "process {pid} ends at its write {after}, sent: {sent}");
            }
        }
    }
    assert!(crashed > 40, "{crashed} places are not all writes of a failover and a recovery");
    assert!(calls > 0, "no crash was in a call");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 14, 159] {
        let schedule = Schedule::new(seed);
        let (first, second) = (play(&schedule, true), play(&schedule, true));
        assert_eq!(first.trace, second.trace);
        assert_eq!(first.counts, second.counts);
    }
}

#[test]
fn every_invariant_holds_in_ten_thousand_schedules() {
    let batch = Batch::run(0, SCHEDULES);
    if let Some(first) = batch.broken.first() {
        let seeds: Vec<_> = batch.broken.iter().map(|outcome| outcome.seed).collect();
        panic!("seeds {seeds:?}; the first, made short:\n{}", tell(first.seed));
    }
    assert_eq!(batch.schedules, SCHEDULES);
    println!("{SCHEDULES} schedules in {:?}", batch.took);
    let with = batch.schedules_with;
    let mut never = Vec::new();
    for (name, schedules) in with.all() {
        println!("{schedules:>7} {name}");
        if schedules == 0 && name != "too_late" {
            never.push(name);
        }
    }
    assert_eq!(never, Vec::<&str>::new(), "a simulator in which these never happen does not test them");
    // The main path must not drown in faults.
    assert!(with.released > SCHEDULES / 4 && with.recovered > SCHEDULES / 2, "{with:?}");
}
