//! Mountpoint Pods that fail again and again.

use std::time::Duration;

use crate::api::s3::FAILURES_ANNOTATION;

use super::world::World;

/// All that have not ended are turned away.
fn turn_away(world: &mut World) {
    let names: Vec<_> = world.pods.keys().cloned().collect();
    names.iter().for_each(|name| world.pod_becomes(name, "Failed"));
}

fn made(world: &World) -> usize {
    world.writes.iter().filter(|write| **write == "create pod").count()
}

/// So long is every one turned away, the moment it is there; and somebody looks all the time.
fn pressure(world: &mut World, lasts: Duration, tick: Duration) {
    let until = world.now.mono + lasts;
    while world.now.mono < until {
        world.settle();
        turn_away(world);
        world.wait(tick);
    }
}

fn failures(world: &World) -> Option<String> {
    let pod = world.pods.values().next().unwrap();
    pod.annotation(FAILURES_ANNOTATION).map(str::to_owned)
}

#[test]
fn a_node_that_turns_all_away_is_not_asked_all_the_time() {
    let mut world = World::with(&["a", "b"]);
    pressure(&mut world, Duration::from_secs(60), Duration::from_millis(100));
    // The first, its replacement, and after 1, 2, 4, 8 and 16 s another.
    assert_eq!(made(&world), 7);
    assert_eq!(world.writes.len(), 3 * 7 - 1, "{:?}", world.writes);
    pressure(&mut world, Duration::from_secs(3540), Duration::from_secs(1));
    assert!(made(&world) < 25, "{}", made(&world));
    // Workloads that come meanwhile hurry nothing.
    let before = made(&world);
    world.start("c");
    world.settle();
    assert!(made(&world) <= before && world.serves("c").is_none());
    assert!(world.decide().look_again.is_some_and(|after| after <= Duration::from_secs(300)));
    world.wait(Duration::from_secs(300));
    world.settle();
    assert!(world.serves("c").is_some());
    world.converge();
    world.check().unwrap();
}

#[test]
fn the_first_replacement_comes_at_once_and_so_does_that_of_one_that_lasted() {
    let mut world = World::with(&["a"]);
    world.settle();
    turn_away(&mut world);
    world.settle();
    assert_eq!((made(&world), failures(&world)), (2, Some("1".to_owned())));
    turn_away(&mut world);
    world.settle();
    assert_eq!(made(&world), 2);
    world.wait(Duration::from_secs(1));
    world.settle();
    assert_eq!((made(&world), failures(&world)), (3, Some("2".to_owned())));
    // It serves for long; what was before is forgotten.
    world.kubelet();
    world.wait(Duration::from_secs(600));
    turn_away(&mut world);
    world.settle();
    assert_eq!((made(&world), failures(&world)), (4, Some("1".to_owned())));
}

/// Who waits stays where the failed one is named, so its reason can be read there.
#[test]
fn what_failed_is_kept_until_its_replacement_is_made() {
    let mut world = World::with(&["a"]);
    world.settle();
    turn_away(&mut world);
    world.settle();
    turn_away(&mut world);
    world.settle();
    let failed = world.serves("a").unwrap();
    assert!(world.pod(&failed).has_ended());
    world.gone("a", true);
    world.settle();
    assert!(world.pods.is_empty() && world.attachments.is_empty());
}

/// The attachment names the replacement, the pod is not made: the next pass counts all the same.
#[test]
fn a_crash_forgets_nothing() {
    let mut world = World::with(&["a"]);
    world.settle();
    turn_away(&mut world);
    world.pass(1);
    assert_eq!((made(&world), world.writes.last()), (1, Some(&"replace")));
    world.settle();
    assert_eq!(failures(&world), Some("1".to_owned()));
    world.converge();
    world.check().unwrap();
}

/// It ended because it was told to.
#[test]
fn an_ordinary_end_is_no_failure() {
    let mut world = World::with(&["a"]);
    world.settle();
    turn_away(&mut world);
    world.settle();
    world.kubelet();
    world.gone("a", true);
    world.settle();
    world.kubelet();
    world.start("b");
    world.settle();
    assert_eq!(failures(&world), None);
}
