//! Pauses, and budgets per topology domain.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::api::conditions;
use crate::api::names;
use crate::api::node_fence::Phase;
use crate::api::resiliency_policy::RestraintType;
use crate::api::slim::Node;
use crate::controllers::testing::*;

use super::World;

fn pause(object: &mut ObjectMeta, reason: Option<&str>) {
    let annotations = object.annotations.get_or_insert_default();
    match reason {
        Some(reason) => annotations.insert(names::PAUSED_ANNOTATION.into(), reason.into()),
        None => annotations.remove(names::PAUSED_ANNOTATION),
    };
}

fn pause_policy(world: &mut World, reason: Option<&str>) {
    pause(&mut Arc::make_mut(&mut world.seen.policies[0]).metadata, reason);
}

fn held(world: &mut World) -> Vec<(String, &'static str, Option<String>)> {
    world.decide().restrained.into_iter().map(|it| (it.node, it.brake, it.about)).collect()
}

#[test]
fn a_paused_policy_opens_nothing_until_it_is_resumed() {
    for reason in ["array upgrade", ""] {
        let mut world = World::with_failed(3, 1, &json!({}));
        pause_policy(&mut world, Some(reason));
        assert_eq!(held(&mut world), [("n0".into(), "Paused", Some(reason.into()))]);
        world.rest();
        assert_eq!((world.opened(), world.restraints()), (0, vec![RestraintType::Paused]));
        let since = world.seen.policies[0].status.clone().unwrap().restraints[0].since;
        world.wait(3600.0);
        world.rest();
        assert_eq!(world.seen.policies[0].status.clone().unwrap().restraints[0].since, since);
        pause_policy(&mut world, None);
        world.rest();
        assert_eq!((world.opened(), world.restraints()), (1, vec![]));
    }
}

#[test]
fn a_paused_node_is_left_alone_and_the_others_are_not() {
    let mut world = World::with_failed(10, 2, &json!({ "limits": { "maxNodes": "100%" } }));
    let mut paused = unreachable("n0");
    pause(&mut paused.metadata, Some("on call is on it"));
    world.node_becomes(paused);
    assert_eq!(held(&mut world), [("n0".into(), "Paused", Some("on call is on it".into()))]);
    world.rest();
    assert!(world.fence("n0").is_none() && world.fence("n1").is_some());
    assert_eq!(world.restraints(), [], "the policy is not paused");
    world.node_becomes(unreachable("n0"));
    world.rest();
    assert!(world.fence("n0").is_some());
}

#[test]
fn a_pause_is_told_before_an_outage() {
    let mut world = World::with_failed(10, 6, &json!({}));
    pause_policy(&mut world, Some("wait"));
    world.rest();
    assert_eq!(world.restraints(), [RestraintType::Paused, RestraintType::CorrelatedOutage]);
    let status = world.seen.policies[0].status.clone().unwrap();
    let restrained = conditions::find(&status.conditions, "Restrained").unwrap();
    assert_eq!(restrained.reason, "Paused");
    assert!(restrained.message.contains("Paused (wait), CorrelatedOutage"), "{}", restrained.message);
}

const ZONE: &str = "topology.kubernetes.io/zone";

fn in_zone(mut node: Node, zone: &str) -> Node {
    node.metadata.labels.get_or_insert_default().insert(ZONE.into(), zone.into());
    node
}

/// Twelve nodes, six in each zone; the first `failed` of each are unreachable.
fn zones(max_nodes: &Value, failed: usize) -> World {
    let limits = json!({ "maxNodes": "100%", "ceiling": 100, "maxUnhealthy": "100%", "window": "0s",
        "topology": [{ "topologyKey": ZONE, "maxNodes": max_nodes }] });
    let mut world = World::with_failed(12, 0, &json!({ "limits": limits }));
    for number in 0..12 {
        let (name, zone) = (format!("n{number}"), if number < 6 { "a" } else { "b" });
        let made = if number % 6 < failed { unreachable(&name) } else { node(&name) };
        world.node_becomes(in_zone(made, zone));
    }
    world
}

#[test]
fn a_domain_has_a_budget_of_its_own() {
    for (max_nodes, in_each) in [(json!(1), 1), (json!(2), 2), (json!("20%"), 2), (json!("1%"), 1), (json!("100%"), 3)]
    {
        let mut world = zones(&max_nodes, 3);
        world.rest();
        assert_eq!(world.opened(), 2 * in_each, "{max_nodes}");
        let names: Vec<_> = world.seen.policies[0].status.clone().unwrap().restraints;
        let names: Vec<_> = names.into_iter().map(|it| (it.type_, it.name.unwrap_or_default())).collect();
        let exhausted = |zone: &str| (RestraintType::BudgetExhausted, format!("{ZONE}={zone}"));
        assert_eq!(names, if in_each < 3 { vec![exhausted("a"), exhausted("b")] } else { vec![] }, "{max_nodes}");
    }
}

#[test]
fn a_domain_is_free_again_when_its_node_is_recovered() {
    let mut world = zones(&json!(1), 2);
    world.rest();
    assert!(world.fence("n0").is_some() && world.fence("n1").is_none() && world.fence("n6").is_some());
    world.reach("n0", Phase::Recovered);
    world.node_becomes(in_zone(node("n0"), "a"));
    world.rest();
    assert!(world.fence("n1").is_some() && world.fence("n7").is_none());
}

#[test]
fn nodes_without_the_label_are_one_domain_and_those_that_are_gone_count_in_all() {
    let mut world = zones(&json!(1), 1);
    world.node_becomes(unreachable("n1"));
    world.node_becomes(unreachable("n2"));
    world.rest();
    assert_eq!(world.opened(), 3, "one of each zone, and one of those without");
    // The Node of one is deleted: it counts on, in every zone.
    world.seen.nodes.retain(|(node, _)| node.metadata.name.as_deref() != Some("n0"));
    world.node_becomes(in_zone(unreachable("n3"), "a"));
    world.rest();
    assert!(world.fence("n3").is_none());
}
