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
use crate::kubectl::foresee::tests::{lease, live_of, unreached};
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
    explained_by(found, |_| None)
}

/// The same with what the Leases of the fencers tell.
fn explained_by(found: &Found, renewed: impl Fn(&str) -> Option<TimeDelta>) -> NodeExplanation {
    let (present, failure) = (present(found), failure(found));
    let simulation = simulate::node(NODE, &failure, None, &[], now());
    let node = found.nodes.first().map(Arc::as_ref);
    let facts = Facts {
        name: NODE,
        node,
        lease: found.leases.first().map(Arc::as_ref),
        fence: None,
        present: &present,
        failure: &failure,
        simulation: &simulation,
    };
    explain_by_leases(&facts, renewed, now())
}

/// An hour ago for these fencers, and just now for all others.
fn silent(fencers: &[&str]) -> impl Fn(&str) -> Option<TimeDelta> {
    move |fencer| Some(if fencers.contains(&fencer) { TimeDelta::hours(1) } else { TimeDelta::seconds(4) })
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

/// Two pods of the node, each of another driver and under another policy; both paths are lost. The array of one was out for everyone,
/// and its policy is still calm.
fn with_one_of_two_policies_calm() -> Found {
    let of = |app: &str| json!({ "selector": { "podSelector": { "matchLabels": { "app": app } } } });
    let mut calm = policy("web", &of("web"));
    calm.status = serde_json::from_value(json!({ "restraints": [
        { "type": "ArrayOutage", "name": FILES, "since": at(99_000), "until": at(110_000) },
    ] }))
    .unwrap();
    let mut found = found(json!({}), &[(DRIVER, NODE), (FILES, NODE)]);
    found.pods[1] = but(found.pods[1].clone(), |pod| pod.spec.node_name = Some(NODE.into()));
    found.policies = vec![Arc::new(policy("databases", &of("pg"))), Arc::new(calm)];
    found
}

#[test]
fn what_begins_is_told_before_the_brake_that_holds_others() {
    let found = with_one_of_two_policies_calm();
    let simulation = simulate::node(NODE, &failure(&found), None, &[], now());
    assert_eq!(simulation.outcome, Outcome::Opens);
    let explained = explained(&found);
    assert_eq!(
        explained.verdict,
        "pods of node n0 are to move, for a lost path to storage or a tainted volume, and their incident is about to begin; \
         nothing is begun for others of its pods: ArrayOutage of policy web"
    );
    assert!(explained.next.contains("does bulkhead-controller run"), "{}", explained.next);
    assert_eq!(holding(&explained), ["ArrayOutage"]);
}

#[test]
fn the_report_of_a_silent_sidecar_is_not_believed_and_nothing_is_begun_for_it() {
    let explained = explained_by(&found(json!({}), &[(DRIVER, NODE)]), silent(&[DRIVER]));
    assert_eq!(
        explained.verdict,
        "nothing is done for node n0: the report of block.example.com is not believed, since its sidecar is silent: its \
         Lease was renewed 60m00s ago, by its own clock"
    );
    assert!(explained.next.starts_with("look at the sidecar's pod and log"), "{}", explained.next);
    let is_told = |why: &&String| why.starts_with("the report of block.example.com is not believed");
    assert_eq!(explained.why.iter().filter(is_told).count(), 1, "{:#?}", explained.why);
}

#[test]
fn the_report_of_a_sidecar_that_was_heard_lately_is_believed() {
    let found = found(json!({}), &[(DRIVER, NODE)]);
    let minute_ago = |_: &str| Some(TimeDelta::seconds(60));
    for explained in [explained_by(&found, silent(&[])), explained_by(&found, minute_ago), explained(&found)] {
        assert!(explained.verdict.ends_with("their incident is about to begin"), "{}", explained.verdict);
        assert!(!explained.why.iter().any(|why| why.contains("not believed")), "{:#?}", explained.why);
    }
}

#[test]
fn what_silent_sidecars_say_of_other_nodes_makes_no_outage() {
    let found = found(json!({}), &[(DRIVER, NODE), (FILES, "n1")]);
    let alone = explained_by(&found, silent(&[FILES]));
    assert!(alone.verdict.ends_with("their incident is about to begin"), "{}", alone.verdict);
    assert!(holding(&alone).is_empty(), "{:?}", alone.brakes);
    let none = explained_by(&found, silent(&[DRIVER, FILES]));
    assert!(
        none.verdict.starts_with("nothing is done for node n0: the report of block.example.com"),
        "{}",
        none.verdict
    );
    assert!(holding(&none).is_empty(), "{:?}", none.brakes);
}

#[test]
fn a_silent_sidecar_that_says_nothing_of_a_node_is_told_and_no_verdict() {
    let mut found = found(json!({}), &[]);
    found.reports = vec![Arc::new(able(DRIVER)), Arc::new(able(FILES))];
    let explained = explained_by(&found, silent(&[DRIVER, FILES]));
    assert_eq!(explained.verdict, "node n0 is well: nothing is done");
    let told: Vec<_> = explained.why.iter().filter(|why| why.contains("not believed")).collect();
    assert_eq!(told.len(), 1, "that of the driver of its pod alone: {:#?}", explained.why);
}

/// The node was given up by Kubernetes, and its kubelet renewed its Lease at that time.
fn given_up(spec: Value, renewed: i64) -> Found {
    let mut found = found(spec, &[]);
    found.nodes[0] = Arc::new(unreachable(NODE));
    found.leases = vec![lease(NODE, renewed)];
    found
}

#[test]
fn a_node_whose_kubelet_renews_its_lease_has_not_failed_before_the_next_renewal_is_overdue() {
    let renews =
        |why: &String| why.contains("the kubelet renews its Lease, by its own clock") && why.contains("lags behind");
    let renewing = explained(&given_up(json!({}), 99_996));
    assert!(renewing.verdict.ends_with("nothing is done until the next renewal is overdue"), "{}", renewing.verdict);
    assert!(renewing.next.contains("kube-controller-manager"), "{}", renewing.next);
    assert_eq!(renewing.why.iter().filter(|why| renews(why)).count(), 1, "{:#?}", renewing.why);
    assert!(!renewing.why.iter().any(|why| why.contains("decisiveAfter")), "{:#?}", renewing.why);
    assert!(renewing.suspected && renewing.evidence.is_empty(), "{:?}", renewing.evidence);

    let overdue = explained(&given_up(json!({}), 99_900));
    assert_eq!(overdue.verdict, "node n0 has failed, and its incident is about to begin");
    assert!(!overdue.why.iter().any(renews), "{:#?}", overdue.why);

    let ignored = explained(&given_up(json!({ "triggers": { "nodeFailure": "Ignore" } }), 99_996));
    assert!(ignored.verdict.ends_with("not declared failed: nothing is done"), "{}", ignored.verdict);
}

#[test]
fn what_would_move_for_its_taint_is_told_though_a_brake_holds_it() {
    let triggers = json!({ "triggers": { "nodeFailure": "Ignore", "volumeTaints": ["VolumeNotUsable"] } });
    let mut found = found(triggers, &[]);
    found.reports = vec![Arc::new(able(DRIVER)), Arc::new(able(FILES))];
    let tainted = [("v0", NODE), ("v1", "n1")].map(|(volume, node)| tainted(volume, "VolumeNotUsable", &[node]));
    found.healths = tainted.map(Arc::new).into();
    let explained = explained(&found);
    assert!(explained.verdict.ends_with("nothing is begun: ArrayOutage of policy databases"), "{}", explained.verdict);
    let told = "when ArrayOutage of policy databases lets go, these pods move: shop/pg (VolumeTaint)";
    assert!(explained.why.iter().any(|why| why == told), "{:#?}", explained.why);
    let simulation = simulate::node(NODE, &present(&found), None, &[], now());
    assert_eq!(simulation.outcome, Outcome::Restrained);
    let rows: Vec<_> = simulation.pods.iter().map(|row| (row.plan.name.as_str(), row.plan.reason.as_str())).collect();
    assert_eq!(rows, [("pg", "VolumeTaint")]);
}
