//! A pod without volumes, which only a look at the API shows, holds those that lost their path: that is known for a while. The node
//! is not read in every pass, takes no place of others, and is told of as between two looks as in them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::super::World;
use super::together::{beside, is_there_too, only_for, together};
use super::{asked, world};

/// What holds the database of a node, and which no store has.
fn holder(node: &str) -> PodView {
    but(beside("pg", "web", &[]), |pod| {
        pod.metadata.uid = Some(format!("uid-web-{node}"));
        pod.spec.node_name = Some(node.to_owned());
    })
}

/// One of six nodes, with a database that is held.
fn held() -> World {
    let mut world = world(vec![pod("pg", "n0", &[csi("v1")])], &together(&json!({})));
    world.loses(&["n0"]);
    is_there_too(&mut world, "n0", holder("n0"));
    world
}

/// So many of thirty nodes, and one more with a database that nothing holds and that is less important. One may be acted on.
fn many_held(count: usize) -> World {
    let database = |number: usize, priority: i32| {
        but(pod("pg", &format!("n{number}"), &[csi(&format!("v{number}"))]), |pod| {
            pod.metadata.uid = Some(format!("uid-pg-{number}"));
            pod.spec.priority = Some(priority);
            pod.status.conditions[1].status = "True".into();
        })
    };
    let pods = (0..count).map(|number| database(number, 1000)).chain([database(count, 0)]).collect();
    let nodes = (0..30).map(|number| node(&format!("n{number}"))).collect();
    let spec = together(&json!({ "limits": { "maxNodes": 1 } }));
    let mut world = World::new(nodes, pods, vec![policy("db", &spec)]);
    world.seen.reports = reports([asked(DRIVER, 30)]);
    let names: Vec<_> = (0..=count).map(|number| format!("n{number}")).collect();
    world.loses(&names.iter().map(String::as_str).collect::<Vec<_>>());
    names.iter().take(count).for_each(|name| is_there_too(&mut world, name, holder(name)));
    world
}

#[test]
fn it_is_read_now_and_then_and_told_of_all_the_time() {
    let mut world = held();
    let mut read_at = Vec::new();
    for second in 0..=20 {
        let told: Vec<_> = world.decide().unmoved.into_iter().map(|it| (it.name, it.reason)).collect();
        assert_eq!(told, [("pg".to_owned(), "SharerHeld")], "after {second} s");
        world.pass();
        read_at.extend((!world.reads.is_empty()).then_some(second));
        world.wait(1.0);
    }
    assert_eq!((read_at, world.opened()), (vec![0, 10, 20], 0));
}

#[test]
fn a_change_that_frees_its_pods_is_not_waited_for() {
    let mut world = held();
    world.pass();
    world.wait(3.0);
    world.seen.policies[0] = Arc::new(policy("db", &json!({})));
    world.rest();
    assert_eq!(world.opened(), 1);
}

#[test]
fn that_the_holder_has_gone_is_seen_after_a_while() {
    let mut world = held();
    world.pass();
    world.live.clear();
    world.wait(9.0);
    world.rest();
    assert_eq!(world.opened(), 0, "no store shows it");
    world.wait(1.0);
    world.rest();
    assert_eq!(world.opened(), 1);
}

#[test]
fn what_is_over_is_forgotten() {
    type Case = (&'static str, fn(&mut World));
    let cases: [Case; 2] = [
        ("the path is back", |world| world.loses(&[])),
        ("it is another Node", |world| {
            let mut another = node("n0");
            another.metadata.uid = Some("uid-of-another".into());
            world.node_becomes(another);
        }),
    ];
    for (name, change) in cases {
        let mut world = held();
        world.pass();
        assert_eq!(world.seen.lately.keys().collect::<Vec<_>>(), ["n0"], "{name}");
        world.live.clear();
        change(&mut world);
        world.pass();
        assert!(world.seen.lately.is_empty(), "{name}: {:?}", world.seen.lately);
    }
}

/// Into whom a machine is being migrated the API alone says.
#[test]
fn a_migration_is_asked_about_now_and_then_too() {
    let mut world = world(vec![pod("pg", "n0", &[csi("v1")])], &json!({}));
    world.loses(&["n0"]);
    let mut live = world.look_at("n0").expect("it is there");
    live.migration_targets.insert("uid-pg".into());
    world.live.insert("n0".into(), live);
    let mut read_at = Vec::new();
    for second in 0..=10 {
        let told: Vec<_> = world.decide().unmoved.into_iter().map(|it| it.reason).collect();
        assert_eq!(told, ["MigrationTarget"], "after {second} s");
        world.pass();
        read_at.extend((!world.reads.is_empty()).then_some(second));
        world.wait(1.0);
    }
    assert_eq!(read_at, [0, 10]);
}

#[test]
fn however_many_are_held_the_others_have_their_turn() {
    let mut world = many_held(9);
    let mut passes = 0;
    while world.fence("n9").is_none() {
        world.pass();
        world.wait(1.0);
        passes += 1;
        assert!(passes < 5, "four are read in a pass");
    }
    assert_eq!(world.opened(), 1);
}

#[test]
fn however_many_are_held_each_is_looked_at_again() {
    let mut world = many_held(9);
    // The budget is there for those that are held alone.
    world.seen.pods.remove("n9");
    let mut read: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..12 {
        world.pass();
        world.reads.iter().for_each(|name| *read.entry(name.clone()).or_default() += 1);
        world.wait(5.0);
    }
    assert_eq!(read.len(), 9, "{read:?}");
    assert!(read.values().all(|times| (3..=6).contains(times)), "{read:?}");
}

#[test]
fn nothing_of_it_is_known_of_another_node_of_that_name() {
    let mut world = held();
    world.pass();
    world.live.clear();
    let mut another = node("n0");
    another.metadata.uid = Some("uid-of-another".into());
    world.node_becomes(another);
    world.pass();
    assert_eq!(world.opened(), 1);
}

/// Its pod goes along, and the brake of its policy holds all of them: as long as it is there.
#[test]
fn one_that_brings_a_brake_holds_until_the_next_look_shows_that_it_has_gone() {
    for is_gone in [false, true] {
        let mut world = world(vec![pod("pg", "n0", &[csi("v1")])], &together(&json!({})));
        only_for(&mut world, "web", &json!({ "release": { "podsWithoutVolumes": "Release" } }));
        let paused = &mut Arc::make_mut(&mut world.seen.policies[1]).metadata;
        paused.annotations.get_or_insert_default().insert("bulkhead.dev/paused".into(), "on call is on it".into());
        world.loses(&["n0"]);
        is_there_too(&mut world, "n0", holder("n0"));
        let mut read_at = Vec::new();
        for second in 0..=20 {
            if is_gone && second == 1 {
                world.live.clear();
            }
            let held: Vec<_> = world.decide().restrained.into_iter().map(|it| (it.policy, it.brake)).collect();
            let is_held = !is_gone || second < 10;
            assert_eq!(held, if is_held { vec![("apart".to_owned(), "Paused")] } else { vec![] }, "after {second} s");
            world.pass();
            read_at.extend((!world.reads.is_empty()).then_some(second));
            world.wait(1.0);
        }
        assert_eq!(read_at, if is_gone { vec![0, 10] } else { vec![0, 10, 20] });
        assert_eq!(world.opened(), usize::from(is_gone));
    }
}

/// Else a status and Events would be written each time that they are looked at again.
#[test]
fn however_many_are_held_nothing_is_written_of_it() {
    let mut world = many_held(9);
    world.seen.pods.remove("n9");
    // Before it has been read each takes a place.
    for _ in 0..4 {
        world.pass();
        world.wait(5.0);
    }
    let mut reads = 0;
    for pass in 0..12 {
        let decision = world.decide();
        assert!(decision.restrained.is_empty(), "pass {pass}: {:?}", decision.restrained);
        let effects = world.pass();
        assert!(effects.is_empty(), "pass {pass}: {effects:?}");
        reads += world.reads.len();
        world.wait(5.0);
    }
    assert!(reads >= 40, "and they are looked at: {reads}");
}

#[test]
fn of_very_many_that_are_held_a_few_are_looked_at_again_in_each_pass() {
    let mut world = many_held(12);
    world.seen.pods.remove("n12");
    for _ in 0..4 {
        world.pass();
    }
    world.wait(10.0);
    let mut read = BTreeSet::new();
    for _ in 0..2 {
        world.pass();
        assert!(world.reads.len() <= 8, "{:?}", world.reads);
        read.extend(world.reads.iter().cloned());
    }
    assert_eq!(read.len(), 12, "the others come next: {read:?}");
}

#[test]
fn one_into_which_a_machine_was_being_migrated_takes_no_place() {
    let important = but(pod("pg", "n0", &[csi("v1")]), |pod| pod.spec.priority = Some(1000));
    let pods = vec![important, pod("other", "n1", &[csi("v2")])];
    let mut world = world(pods, &json!({ "limits": { "maxNodes": 1 } }));
    world.loses(&["n0"]);
    let mut live = world.look_at("n0").expect("it is there");
    live.migration_targets.insert("uid-pg".into());
    world.live.insert("n0".into(), live);
    world.pass();
    world.wait(10.0);
    world.unreadable.insert("n0".into());
    world.loses(&["n0", "n1"]);
    world.pass();
    assert!(world.fence("n1").is_some() && world.fence("n0").is_none());
}

/// What time alone decides of other nodes is not kept waiting for it.
#[test]
fn where_one_cannot_be_read_the_next_pass_comes_soon() {
    let mut world = world(vec![pod("pg", "n0", &[csi("v1")])], &json!({}));
    world.loses(&["n0"]);
    for (is_unreadable, wanted) in [(false, 5), (true, 2)] {
        if is_unreadable {
            world.unreadable.insert("n0".into());
        }
        assert_eq!(world.decide().look_again, Some(Duration::from_secs(wanted)), "unreadable: {is_unreadable}");
    }
}
