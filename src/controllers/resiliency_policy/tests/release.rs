//! Bare pods, pods without volumes, migration targets: kept unless a policy says otherwise.

use serde_json::{Value, json};

use crate::api::node_fence::PodAction;
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::World;

/// Four nodes of which the first has failed, with these pods.
fn world(pods: Vec<PodView>, spec: &Value) -> World {
    let nodes = (0..4).map(|i| if i == 0 { unreachable("n0") } else { node(&format!("n{i}")) });
    World::new(nodes.collect(), pods, vec![policy("db", spec)])
}

fn released(world: &World) -> Vec<&str> {
    let rows = world.fence("n0").map(|fence| fence.spec.plan.pods.as_slice()).unwrap_or_default();
    rows.iter().filter(|row| row.action == PodAction::Release).map(|row| row.name.as_str()).collect()
}

#[test]
fn bare_pods_are_deleted_where_all_policies_say_so() {
    let bare = || owned_by(pod("bare", "n0", &[csi("v1")]), None);
    for (spec, second, expected) in [
        (json!({}), None, 0),
        (json!({ "release": { "barePods": "Delete" } }), None, 1),
        (json!({ "release": { "barePods": "Delete" } }), Some(json!({})), 0),
    ] {
        let mut world = world(vec![bare()], &spec);
        world.seen.policies.extend(second.iter().map(|spec| std::sync::Arc::new(policy("other", spec))));
        world.rest();
        assert_eq!(released(&world).len(), expected, "{spec} {second:?}");
    }
}

/// They are in no store: the failed node is looked at for them, and not at every moment.
#[test]
fn pods_without_volumes_are_found_on_a_failed_node() {
    let release = json!({ "release": { "podsWithoutVolumes": "Release" } });
    for (spec, expected) in [(json!({}), vec![]), (release, vec!["web"])] {
        let mut world = world(vec![], &spec);
        let live = super::live_node(unreachable("n0"), super::silence(&unreachable("n0")), vec![pod("web", "n0", &[])]);
        world.live.insert("n0".into(), live);
        world.rest();
        assert_eq!(released(&world), expected, "{spec}");
    }
}

#[test]
fn nobody_looks_for_them_without_a_reason() {
    let spec = json!({ "release": { "podsWithoutVolumes": "Release" } });
    let look = |world: &World| super::decide(&world.seen, world.now).look_at;
    let mut calm = world(vec![], &spec);
    assert_eq!(look(&calm), ["n0"]);
    calm.seen.looked_for_volumeless.insert("n0".into());
    assert_eq!(look(&calm), [""; 0], "it was looked at a moment ago");
    calm.seen.looked_for_volumeless.clear();
    calm.node_becomes(node("n0"));
    assert_eq!(look(&calm), [""; 0], "no node has failed");
    let mut outage = world(vec![], &spec);
    (1..4).for_each(|i| outage.node_becomes(unreachable(&format!("n{i}"))));
    assert_eq!(look(&outage), [""; 0], "an outage");
}

#[test]
fn a_machine_that_is_being_migrated_is_spared_where_it_goes() {
    let pods = vec![pod("launcher", "n0", &[csi("disk")]), pod("pg", "n0", &[csi("v1")])];
    let mut world = world(pods, &json!({}));
    let mut live = world.look_at("n0").expect("the node");
    live.migration_targets.insert("uid-launcher".into());
    world.live.insert("n0".into(), live);
    world.rest();
    assert_eq!(released(&world), ["pg"]);
    let rows = &world.fence("n0").expect("planned").spec.plan.pods;
    assert!(rows.iter().any(|row| row.name == "launcher" && row.reason == "MigrationTarget"), "{rows:?}");
}
