//! The world at work.

use std::sync::Arc;

use bulkhead::api::node_fence::Phase;

use crate::chance::Prompt;
use crate::faults::Fault;
use crate::shape::Shape;
use crate::time::{MINUTE, SECOND};
use crate::world::{Task, World};

fn plain() -> World {
    let mut world = World::new(Arc::new(Shape::plain()));
    world.trace = Some(Vec::new());
    world
}

fn phase(world: &World, node: &str) -> Option<Phase> {
    world.api.fences.get(node)?.status.as_ref()?.phase
}

#[test]
fn a_node_dies_and_its_pods_move_and_it_is_given_back() {
    let mut world = plain();
    world.schedule(40 * SECOND, Task::Fault(Box::new(Fault::PowerOff("n0".into()))));
    let clean = world.run_until(5 * MINUTE, &mut Prompt);
    let trace = world.trace.clone().unwrap().join("\n");
    assert!(clean, "{:#?}\n{trace}", world.oracle.violations);
    assert_eq!(phase(&world, "n0"), Some(Phase::Detached), "{trace}");
    assert!(world.machines.values().map(|machine| machine.running.len()).sum::<usize>() == 2, "{trace}");
    world.schedule(6 * MINUTE, Task::Fault(Box::new(Fault::Reboot("n0".into()))));
    assert!(world.run_until(8 * MINUTE, &mut Prompt));
    let trace = world.trace.clone().unwrap().join("\n");
    assert_eq!(phase(&world, "n0"), Some(Phase::Recovered), "{trace}");
}

#[test]
fn zz_print() {
    let mut world = plain();
    world.schedule(40 * SECOND, Task::Fault(Box::new(Fault::PowerOff("n0".into()))));
    world.run_until(5 * MINUTE, &mut Prompt);
    world.schedule(6 * MINUTE, Task::Fault(Box::new(Fault::Reboot("n0".into()))));
    world.run_until(8 * MINUTE, &mut Prompt);
    println!("{}", world.trace.clone().unwrap().join("\n"));
    println!("{:?}", world.counts);
}

#[test]
fn zz_many() {
    let n: u64 = std::env::var("N").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let s: u64 = std::env::var("S").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let start = std::time::Instant::now();
    let mut total = crate::counts::Counts::default();
    let mut broken = Vec::new();
    for seed in s..s + n {
        let t = std::time::Instant::now();
        let outcome = crate::run(seed);
        if t.elapsed().as_millis() > 400 {
            println!(
                "slow {seed} {:?} steps {} passes {} released {} grown {}",
                t.elapsed(),
                outcome.counts.steps,
                outcome.counts.passes,
                outcome.counts.released,
                outcome.counts.grown
            );
        }
        total.add(&outcome.counts);
        if !outcome.is_clean() {
            broken.push((seed, outcome.violations[0].to_string()));
        }
    }
    println!("{:?} {:?}", start.elapsed(), total);
    println!("{} broken", broken.len());
    let mut kinds = std::collections::BTreeMap::new();
    for (seed, what) in &broken {
        let kind = what[..2].to_owned()
            + &what
                .split("s: ")
                .nth(1)
                .unwrap_or("")
                .chars()
                .filter(|c| !c.is_ascii_digit())
                .take(40)
                .collect::<String>();
        kinds.entry(kind).or_insert_with(Vec::new).push((seed, what));
    }
    for (kind, them) in kinds {
        println!("{:>4} {kind}\n      {:?}", them.len(), &them[..them.len().min(3)]);
    }
}

#[test]
fn zz_seed() {
    let s: u64 = std::env::var("S").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let schedule = crate::schedule::Schedule::new(s);
    for event in &schedule.events {
        println!("{event:?}");
    }
    println!("{:?} {:#?} {:?}", schedule.crash_point, schedule.shape.workloads, schedule.shape.volumes);
    println!(
        "{:?}",
        schedule.shape.policies.iter().map(|p| serde_json::to_string(&p.spec).unwrap()).collect::<Vec<_>>()
    );
    println!("{:?}", schedule.shape.drivers);
    let outcome = crate::play(&schedule, true);
    println!("{}\n{:?}\n{:?}", outcome.trace.join("\n"), outcome.violations, outcome.counts);
}
