//! What is said of a node that is well while arrays say that paths are lost.

use std::sync::Arc;

use futures::executor::block_on;
use serde_json::{Value, json};

use crate::api::slim::Namespace;
use crate::api::usage::PodView;
use crate::controllers::resiliency_policy::evidence::Silence;
use crate::controllers::resiliency_policy::memory::Found;
use crate::controllers::resiliency_policy::plan::LiveNode;
use crate::controllers::testing::*;
use crate::error::Error;
use crate::kubectl::foresee;
use crate::kubectl::foresee::tests::{live_of, unreached};
use crate::kubectl::simulate::report::Outcome;

use super::*;

const NODE: &str = "n0";

/// Four nodes that are well. On two of them a pod, each of another driver, whose arrays say of these nodes that they do not reach
/// them. More than one node in trouble is an outage.
fn found(spec: Value, unreachable: &[(&str, &str)]) -> Found {
    let shop: Namespace = serde_json::from_value(json!({ "metadata": { "name": "shop" } })).unwrap();
    let ready = |view: PodView| but(view, |pod| pod.status.conditions[1].status = "True".into());
    let mut whole = json!({ "limits": { "maxUnhealthy": 1 } });
    json_patch::merge(&mut whole, &spec);
    Found {
        nodes: [NODE, "n1", "n2", "n3"].map(|name| Arc::new(node(name))).into(),
        pods: vec![ready(pod("pg", NODE, &[csi("v0")])), ready(pod("web", "n1", &[csi_of(FILES, "v1")]))],
        policies: vec![Arc::new(policy("databases", &whole))],
        namespaces: vec![Arc::new(shop)],
        reports: unreachable.iter().map(|(driver, node)| Arc::new(unreached(driver, node))).collect(),
        ..Found::default()
    }
}

/// A node as the API has it, with what the arrays say there.
fn live(found: &Found, name: &str) -> Option<LiveNode> {
    let reports = found.reports.iter().map(|report| (report.name_any(), report.clone())).collect();
    Some(LiveNode { reports, ..live_of(found, name)? })
}

fn present(found: &Found) -> Foreseen {
    block_on(foresee::present(found.clone(), NODE, now(), async |name: &str, _: Silence| {
        Ok::<_, Error>(live(found, name))
    }))
    .unwrap()
}

fn failure(found: &Found) -> Foreseen {
    block_on(foresee::failure(found.clone(), NODE, now(), async |name: &str, _: Silence| {
        Ok::<_, Error>(live(found, name))
    }))
    .unwrap()
}

fn explained(found: &Found) -> NodeExplanation {
    let (present, failure) = (present(found), failure(found));
    let simulation = simulate::node(NODE, &failure, None, &[], now());
    let node = found.nodes.first().map(Arc::as_ref);
    let facts = Facts {
        name: NODE,
        node,
        lease: None,
        fence: None,
        present: &present,
        failure: &failure,
        simulation: &simulation,
    };
    explain(&facts, now())
}

fn holding(explained: &NodeExplanation) -> Vec<&str> {
    explained.brakes.iter().filter(|brake| brake.holds).map(|brake| brake.type_.as_str()).collect()
}

#[test]
fn a_node_whose_path_is_lost_together_with_those_of_others_is_held_for_the_arrays() {
    let explained = explained(&found(json!({}), &[(DRIVER, NODE), (FILES, "n1")]));
    let verdict = &explained.verdict;
    assert!(verdict.starts_with("pods of node n0 are to move"), "{verdict}");
    assert!(verdict.ends_with("nothing is begun: ArrayOutage of policy databases"), "{verdict}");
    assert!(explained.next.starts_with("look at the array"), "{}", explained.next);
    assert_eq!(holding(&explained), ["ArrayOutage"]);
}

#[test]
fn a_node_that_alone_has_lost_its_path_is_about_to_be_left() {
    let explained = explained(&found(json!({}), &[(DRIVER, NODE)]));
    assert!(explained.verdict.ends_with("their incident is about to begin"), "{}", explained.verdict);
    assert!(holding(&explained).is_empty(), "{:?}", explained.brakes);
}

#[test]
fn the_lost_path_of_another_node_is_nothing_to_a_node() {
    let explained = explained(&found(json!({}), &[(FILES, "n1")]));
    assert_eq!(explained.verdict, "node n0 is well: nothing is done");
    assert!(holding(&explained).is_empty(), "{:?}", explained.brakes);
}

#[test]
fn what_would_move_for_its_path_is_told_though_a_brake_holds_it() {
    let ignored = json!({ "triggers": { "nodeFailure": "Ignore" } });
    let failure = failure(&found(ignored, &[(DRIVER, NODE), (FILES, "n1")]));
    let simulation = simulate::node(NODE, &failure, None, &[], now());
    assert_eq!(simulation.outcome, Outcome::Restrained);
    let rows: Vec<_> = simulation.pods.iter().map(|row| (row.plan.name.as_str(), row.plan.reason.as_str())).collect();
    assert_eq!(rows, [("pg", "StoragePathLoss")]);
}
