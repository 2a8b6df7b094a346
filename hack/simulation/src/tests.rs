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
