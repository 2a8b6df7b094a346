//! The world at work: the main path, a crash at every write and call, and many schedules.

use std::sync::Arc;

use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead::api::volume::NOT_USABLE;
use serde_json::json;

use crate::batch::Batch;
use crate::chance::Prompt;
use crate::faults::Fault;
use crate::run::{play, settle};
use crate::schedule::Schedule;
use crate::shape::{Shape, policy};
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

/// The first node is well; a volume of one of its two pods is in trouble there.
fn troubled(crash_point: Option<CrashPoint>) -> World {
    let spec = json!({
        "triggers": { "volumeTaints": [NOT_USABLE] }, "limits": { "maxNodes": 1, "window": "60s" },
    });
    let mut shape = Shape::plain();
    shape.policies = vec![policy("all", &["db", "queue"], &spec)];
    let mut world = World::new(Arc::new(shape));
    world.trace = Some(Vec::new());
    world.crash_point = crash_point;
    at(&mut world, 40, Fault::TaintVolume("v1".into(), vec!["n0".into()]));
    world
}

fn at(world: &mut World, second: u64, fault: Fault) {
    world.schedule(second * SECOND, Task::Fault(Box::new(fault)));
}

/// What runs on a node, by workload.
fn runs_on(world: &World, node: &str) -> Vec<String> {
    let mut apps: Vec<_> =
        world.machines[node].running.iter().filter_map(|it| Some(it.pod.split('-').next()?.to_owned())).collect();
    apps.sort();
    apps
}

#[test]
fn a_pod_leaves_a_node_that_is_well_and_the_node_is_given_back_without_a_reboot() {
    let mut world = troubled(None);
    let clean = world.run_until(3 * MINUTE, &mut Prompt);
    let trace = world.trace.clone().unwrap().join("\n");
    assert!(clean, "{:#?}\n{trace}", world.oracle.violations);
    assert_eq!(phase(&world, "n0"), Some(Phase::Recovered), "{trace}");
    assert_eq!(runs_on(&world, "n0"), ["db"], "{trace}");
    let counts = &world.counts;
    assert_eq!((counts.released, counts.released_gracefully, counts.verified), (0, 1, 2), "{trace}");
    assert_eq!((counts.out_of_service, counts.cleaned), (0, 1), "{trace}");
    assert!(settle(&mut world, &mut Prompt), "{:?}", world.oracle.violations);
}

#[test]
fn a_pod_that_waits_for_its_volume_for_ever_is_ended_on_a_new_proof() {
    let mut world = troubled(None);
    at(&mut world, 39, Fault::HangVolume("v1".into(), "n0".into()));
    let clean = world.run_until(3 * MINUTE, &mut Prompt);
    let trace = world.trace.clone().unwrap().join("\n");
    assert!(clean, "{:#?}\n{trace}", world.oracle.violations);
    let counts = &world.counts;
    assert_eq!((counts.released_gracefully, counts.released, counts.ended), (1, 1, 1), "{trace}");
    assert_eq!(phase(&world, "n0"), Some(Phase::Cleaning), "what hangs is not clean: {trace}");
    assert_eq!(runs_on(&world, "n0"), ["db", "queue"], "{trace}");
    assert!(runs_on(&world, "n1").len() + runs_on(&world, "n2").len() == 1, "{trace}");
    at(&mut world, 181, Fault::HealVolume("v1".into()));
    assert!(world.run_until(4 * MINUTE, &mut Prompt));
    assert_eq!(phase(&world, "n0"), Some(Phase::Recovered), "{}", world.trace.clone().unwrap().join("\n"));
}

#[test]
fn a_crash_at_any_write_of_an_incident_of_volumes_leads_to_the_same_end() {
    let run = |point: Option<CrashPoint>| {
        let mut world = troubled(point);
        assert!(world.run_until(3 * MINUTE, &mut Prompt), "{point:?}: {:?}", world.oracle.violations);
        assert!(settle(&mut world, &mut Prompt), "{point:?}: {:?}", world.oracle.violations);
        world
    };
    let calm = run(None);
    let (wanted, mut crashed) = (end_of(&calm), 0);
    for pid in 0..calm.processes.len() {
        for sent in [false, true] {
            for after in 0.. {
                let world = run(Some(CrashPoint { pid, after, sent }));
                if world.counts.crashes == 0 {
                    break;
                }
                crashed += 1;
                assert_eq!(end_of(&world), wanted, "process {pid} ends at its write {after}, sent: {sent}");
            }
        }
    }
    assert!(crashed > 30, "{crashed} places are not all writes of an incident");
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
    // A brake that comes to hold between a request and its first call takes more schedules than these: the tables of
    // `node_fence/tests/outage.rs` show it. So does a NetworkFence that arrives when all is over: its mutant's story shows it. A look at
    // a node takes no time here, so that hardly any pod is marked between that and its deletion: `node_fence/tests/act.rs` shows it.
    let rare = ["too_late", "held_for_outage", "left_behind", "marked_meanwhile"];
    for (name, schedules) in with.all() {
        println!("{schedules:>7} {name}");
        if schedules == 0 && !rare.contains(&name) {
            never.push(name);
        }
    }
    assert_eq!(never, Vec::<&str>::new(), "a simulator in which these never happen does not test them");
    // The main path must not drown in faults.
    assert!(with.released > SCHEDULES / 4 && with.recovered > SCHEDULES / 2, "{with:?}");
    // One in eight has storages that are left by their network only, and of the others half of those whose drivers attach nothing.
    assert!(with.shut_out > SCHEDULES / 40 && with.let_in > SCHEDULES / 60, "{with:?}");
    // One in four has such drivers.
    assert!(with.released_unattached > SCHEDULES / 60 && with.of_another_cluster > SCHEDULES / 200, "{with:?}");
}
