//! A pod without volumes, which only a look at the API shows, holds those that lost their path: that is known for a while. The node
//! is not read in every pass, takes no place of others, and is told of as between two looks as in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::super::World;
use super::together::{beside, is_there_too, together};
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
