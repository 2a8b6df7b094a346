//! How much may be acted on at once, and when nothing is.

use serde_json::{Value, json};

use crate::api::node_fence::{MACHINE_MAY_RUN, Phase};
use crate::api::resiliency_policy::RestraintType::{BudgetExhausted, Cooldown, CorrelatedOutage};
use crate::controllers::testing::*;

use super::super::brakes::{Cluster, is_outage, limit};
use super::World;

fn limits(value: Value) -> Value {
    json!({ "limits": value })
}

#[test]
fn max_nodes_is_rounded_up_and_cut_by_the_ceiling() {
    let cases = [
        (json!({}), 3, 1),
        (json!({}), 11, 2),
        (json!({}), 1000, 10),
        (json!({ "maxNodes": "100%", "ceiling": 4 }), 10, 4),
        (json!({ "maxNodes": 3 }), 100, 3),
        (json!({ "maxNodes": "1%" }), 1, 1),
    ];
    for (spec, nodes, wanted) in cases {
        let policy = policy("db", &limits(spec.clone()));
        assert_eq!(limit(&policy.spec.limits, nodes), wanted, "{spec} of {nodes}");
    }
}

#[test]
fn an_outage_is_strictly_more_than_max_unhealthy_and_always_all_nodes() {
    let cases = [
        ("a 2-node cluster fails over", json!({}), 2, 1, false),
        ("a 1-node cluster never", json!({}), 1, 1, true),
        ("a 1-node cluster never, whatever it says", json!({ "maxUnhealthy": "100%" }), 1, 1, true),
        ("all nodes at once never", json!({ "maxUnhealthy": "100%" }), 5, 5, true),
        ("all but one, if so allowed", json!({ "maxUnhealthy": "100%" }), 5, 4, false),
        ("half of an even number", json!({}), 10, 5, false),
        ("more than half", json!({}), 10, 6, true),
        ("more than half of an odd number", json!({}), 3, 2, true),
        ("an absolute number", json!({ "maxUnhealthy": 2 }), 100, 2, false),
        ("more than an absolute number", json!({ "maxUnhealthy": 2 }), 100, 3, true),
        ("nothing suspected", json!({}), 10, 0, false),
        ("nothing suspected of nothing", json!({}), 0, 0, false),
    ];
    for (name, spec, nodes, suspected, wanted) in cases {
        let policy = policy("db", &limits(spec));
        assert_eq!(is_outage(&policy.spec.limits, Cluster { nodes, suspected }), wanted, "{name}");
    }
}

#[test]
fn only_so_many_nodes_are_opened_in_one_pass_and_the_rest_is_told() {
    let mut world = World::with_failed(30, 5, &limits(json!({ "maxNodes": 2, "ceiling": 2 })));
    let decision = world.decide();
    assert_eq!(decision.restrained.len(), 3);
    assert!(decision.restrained.iter().all(|it| it.brake == "BudgetExhausted" && it.policy == "db"));
    world.rest();
    assert_eq!(world.opened(), 2);
    assert_eq!(world.restraints(), [BudgetExhausted]);
    let since = world.seen.policies[0].status.clone().unwrap().restraints[0].since;
    world.wait(30.0);
    world.rest();
    assert_eq!(world.seen.policies[0].status.clone().unwrap().restraints[0].since, since);
    assert_eq!(world.seen.policies[0].status.clone().unwrap().nodes_acted_on, Some(2));
}

#[test]
fn the_pods_with_the_highest_priority_go_first() {
    let mut world = World::with_failed(30, 5, &limits(json!({ "maxNodes": 1 })));
    let pods = world.seen.pods.get_mut("n3").unwrap();
    pods[0] = but(pods[0].clone(), |pod| pod.spec.priority = Some(1000));
    world.rest();
    assert!(world.fence("n3").is_some() && world.opened() == 1);
}

#[test]
fn a_node_counts_while_in_progress_and_within_the_window() {
    let mut world = World::with_failed(30, 1, &limits(json!({ "maxNodes": 1, "window": "10m" })));
    world.rest();
    world.reach("n0", Phase::Recovered);
    world.node_becomes(node("n0"));
    world.node_becomes(unreachable("n1"));
    world.wait(599.0);
    world.rest();
    assert!(world.fence("n1").is_none(), "declared 599 s ago");
    world.wait(2.0);
    world.rest();
    assert!(world.fence("n1").is_some(), "declared 601 s ago and Recovered");
    world.node_becomes(unreachable("n2"));
    world.wait(3600.0);
    world.rest();
    assert!(world.fence("n2").is_none(), "n1 is in progress, however long");
}

/// Autoscalers delete the Nodes of dead machines: ten forgotten incidents would stop all failover.
#[test]
fn a_node_whose_machine_awaits_a_word_counts_by_the_window_alone() {
    for (phase, reason, counts) in [
        (Phase::Cleaning, MACHINE_MAY_RUN, false),
        // Its fencer has begun with one volume, and is silent about another.
        (Phase::Detached, MACHINE_MAY_RUN, false),
        (Phase::PodsReleased, MACHINE_MAY_RUN, false),
        (Phase::Cleaning, "AgentMissing", true),
        (Phase::Fencing, MACHINE_MAY_RUN, true),
    ] {
        let mut world = World::with_failed(30, 1, &limits(json!({ "maxNodes": 1, "window": "10m" })));
        world.rest();
        world.reach("n0", phase);
        world.node_clean("n0", reason);
        world.node_becomes(node("n0"));
        world.node_becomes(unreachable("n1"));
        world.wait(599.0);
        world.rest();
        assert!(world.fence("n1").is_none(), "declared 599 s ago");
        world.wait(2.0);
        world.rest();
        assert_eq!(world.fence("n1").is_none(), counts, "{phase:?} {reason}");
    }
}

#[test]
fn an_outage_holds_everything_and_its_cooldown_survives_a_restart() {
    let mut world = World::with_failed(10, 6, &limits(json!({ "maxNodes": "100%", "cooldown": "10m" })));
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (0, vec![CorrelatedOutage]));
    for i in 1..6 {
        world.node_becomes(node(&format!("n{i}")));
    }
    // Another process, which saw no outage.
    world.seen.outage_seen.clear();
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (0, vec![Cooldown]));
    world.wait(599.0);
    world.seen.outage_seen.clear();
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (0, vec![Cooldown]));
    world.wait(2.0);
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (1, vec![]));
}

#[test]
fn an_outage_that_is_not_recorded_yet_holds_all_the_same() {
    let mut world = World::with_failed(10, 6, &limits(json!({ "maxNodes": "100%" })));
    let decision = world.decide();
    assert!(decision.outage.contains("db") && decision.restrained.len() == 6);
    world.seen.outage_seen.insert("db".into(), std::time::Duration::from_secs(1));
    for i in 1..6 {
        world.node_becomes(node(&format!("n{i}")));
    }
    let decision = world.decide();
    assert_eq!(decision.restrained.iter().map(|it| it.brake).collect::<Vec<_>>(), ["Cooldown"]);
}

#[test]
fn a_taint_put_on_every_node_by_mistake_moves_nothing() {
    let spec = json!({ "detection": { "taints": [{ "key": "*" }] }, "limits": { "maxNodes": "100%" } });
    let mut world = World::with_failed(10, 0, &spec);
    for i in 0..10 {
        world.node_becomes(with_taint(node(&format!("n{i}")), "example.com/oops", "", "NoSchedule"));
    }
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (0, vec![CorrelatedOutage]));
}

#[test]
fn the_size_of_the_cluster_decides() {
    for (nodes, failed, opened) in [(1, 1, 0), (2, 1, 1), (2, 2, 0), (3, 1, 1), (3, 2, 0), (4, 2, 1), (5, 5, 0)] {
        let mut world = World::with_failed(nodes, failed, &json!({}));
        world.rest();
        assert_eq!(world.opened(), opened, "{failed} of {nodes}");
    }
}

#[test]
fn most_leases_standing_still_are_an_outage_before_kubernetes_says_so() {
    // One node is unreachable already, five more have only fallen silent: no age is proved, for the watch is not.
    let mut world = World::with_failed(10, 1, &json!({}));
    for (_, silence) in world.seen.nodes.iter_mut().take(6) {
        silence.still_for = Some(std::time::Duration::from_secs(20));
    }
    world.rest();
    assert_eq!((world.opened(), world.restraints()), (0, vec![CorrelatedOutage]));
}

#[test]
fn a_plan_does_not_grow_past_a_brake() {
    let grown = |brake: fn(&mut World)| {
        let mut world = World::with_failed(10, 1, &json!({}));
        world.rest();
        world.reach("n0", Phase::Fencing);
        world.seen.pods.get_mut("n0").unwrap().push(pod("late", "n0", &[csi("v99")]));
        brake(&mut world);
        world.rest();
        world.fence("n0").unwrap().spec.plan.pods.len()
    };
    assert_eq!(grown(|_| {}), 2, "it grows where nothing holds");
    let outage = |world: &mut World| (1..7).for_each(|i| world.node_becomes(unreachable(&format!("n{i}"))));
    assert_eq!(grown(outage), 1, "in an outage nothing grows");
}
