//! What is said of pods that would stay if their node failed now.

use std::sync::Arc;

use futures::executor::block_on;
use serde_json::json;

use crate::api::slim::Namespace;
use crate::api::usage::PodView;
use crate::controllers::resiliency_policy::evidence::Silence;
use crate::controllers::resiliency_policy::memory::Found;
use crate::controllers::resiliency_policy::plan::LiveNode;
use crate::controllers::resiliency_policy::scope::Scope;
use crate::controllers::testing::*;
use crate::error::Error;
use crate::kubectl::foresee::tests::{live_of, unreached};
use crate::kubectl::{foresee, simulate};

use super::*;

const NODE: &str = "worker-3";

/// A cluster with these pods, of which a policy selects all but `outside`.
fn found(pods: Vec<PodView>) -> Found {
    let shop: Namespace = serde_json::from_value(json!({ "metadata": { "name": "shop" } })).unwrap();
    let but_outside = json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["outside"] }] });
    let spec = json!({ "selector": { "podSelector": but_outside } });
    Found {
        nodes: [NODE, "worker-4", "worker-5"].map(|name| Arc::new(node(name))).into(),
        pods,
        policies: vec![Arc::new(policy("databases", &spec))],
        namespaces: vec![Arc::new(shop)],
        reports: vec![Arc::new(able(DRIVER)), Arc::new(report("weak.example.com", &["Unpublish"]))],
        ..Found::default()
    }
}

/// What is said of the node of that cluster.
fn simulated_in(found: &Found) -> Simulation {
    let look = async |name: &str, _: Silence| {
        let live = live_of(found, name).map(|live| LiveNode { csi_node: None, ..live });
        Ok::<_, Error>(live)
    };
    let foreseen = block_on(foresee::failure(found.clone(), NODE, now(), look)).unwrap();
    simulate::node(NODE, &foreseen, None, &[], now())
}

/// What is said of a node with these pods.
fn simulated(pods: Vec<PodView>) -> Simulation {
    simulated_in(&found(pods))
}

#[test]
fn each_pod_that_would_stay_is_named_with_its_reason() {
    let cases = [
        (pod("cache", NODE, &[local("pvc-1")]), "LocalVolume", "pvc-1 lives on the node"),
        (pod("files", NODE, &[csi("pvc-2"), unknown("pvc-3")]), "UnknownVolumeKind", "nfs volume: no fence method"),
        (owned_by(pod("tool", NODE, &[csi("pvc-4")]), None), "BarePod", "no controller would create it again"),
        (pod("mute", NODE, &[csi_of("mute.example.com", "pvc-5")]), "FencerMissing", "volume pvc-5: run bulkhead-csi"),
        (pod("weak", NODE, &[csi_of("weak.example.com", "pvc-6")]), "ProofTooWeak", "volume pvc-6: "),
        (pod("shares", NODE, &[csi("pvc-7")]), "SharerHeld", "shares a volume with shop/outside"),
    ];
    let others = [
        pod("outside", NODE, &[csi("pvc-7")]),
        pod("goes", NODE, &[csi("pvc-8")]),
        owned_by(pod("agent", NODE, &[csi("pvc-9")]), Some("DaemonSet")),
    ];
    let all = cases.iter().map(|(pod, ..)| pod.clone()).chain(others).collect();
    let staying = pods(&simulated(all));
    for (pod, reason, words) in &cases {
        let found = staying.iter().find(|it| it.name == pod.name()).unwrap_or_else(|| panic!("{}", pod.name()));
        assert_eq!((found.reason.as_str(), found.policy.as_str()), (*reason, "databases"), "{found:?}");
        assert!(found.message.contains(words) && found.node == NODE, "{found:?}");
    }
    assert_eq!(staying.len(), cases.len(), "{staying:#?}");
    let findings = by_reason(&staying);
    assert_eq!(findings.len(), cases.len());
    assert!(findings.iter().all(|it| it.severity == Severity::Warning && !it.remedy.is_empty()), "{findings:#?}");
}

#[test]
fn pods_that_stay_for_one_reason_are_one_finding() {
    let twins = ["a", "b"].map(|name| pod(name, NODE, &[local(&format!("pvc-{name}"))]));
    let [finding]: [Finding; 1] = by_reason(&pods(&simulated(twins.into()))).try_into().unwrap();
    assert_eq!(finding.about, "policy databases, LocalVolume");
    assert!(finding.message.contains(": 2, on 1 of the nodes; shop/a: volume pvc-a"), "{}", finding.message);
}

/// Of each node only its own pods are looked at. Those of others count for the brakes, of which nothing is said.
#[test]
fn who_would_stay_does_not_hang_on_the_pods_of_other_nodes() {
    let mine = [pod("goes", NODE, &[csi("pvc-1")]), pod("cache", NODE, &[local("pvc-2")])];
    let far = pod("far", "worker-4", &[csi_of(FILES, "pvc-3")]);
    let mut all = found(mine.into_iter().chain([far]).collect());
    all.reports = vec![Arc::new(unreached(DRIVER, NODE)), Arc::new(unreached(FILES, "worker-4"))];
    let mut one = Found { scope: Scope::Nodes([NODE.to_owned()].into()), ..all.clone() };
    one.narrow();
    assert_eq!(one.pods.len(), 2);
    let (one, all) = (pods(&simulated_in(&one)), pods(&simulated_in(&all)));
    assert_eq!(all.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["cache"]);
    assert_eq!(one, all);
}

#[test]
fn nothing_is_said_of_pods_that_would_go() {
    assert!(pods(&simulated(vec![pod("goes", NODE, &[csi("pvc-1")])])).is_empty());
}

#[test]
fn a_node_whose_identity_is_in_doubt_is_told_and_what_people_hold_is_not() {
    let held = |reason: &str| Simulation {
        held: Some(Said { reason: reason.into(), message: "why".into() }),
        ..simulated(Vec::new())
    };
    assert_eq!(in_doubt(&held("IdentityAmbiguous")).map(|it| it.about), Some(format!("node {NODE}")));
    assert_eq!(in_doubt(&held("AwaitingApproval")), None);
}

#[test]
fn nobody_is_told_to_switch_off_a_node_that_is_well() {
    const REASONS: [&str; 8] = [
        "LocalVolume",
        "UnknownVolumeKind",
        "SharerHeld",
        BARE_POD,
        TOO_WEAK,
        "Unimplemented",
        "IdentityAmbiguous",
        "FencerMissing",
    ];
    for reason in REASONS {
        let remedy = remedy(reason);
        assert!(!remedy.contains("by hand") && !remedy.contains("power the node"), "{reason}: {remedy}");
    }
}
