//! The printed words, as recorded.

use std::sync::Arc;

use futures::executor::block_on;
use serde_json::json;

use crate::api::fencing::FenceMethodType;
use crate::api::node_fence::{NodeFence, Phase};
use crate::api::slim::Namespace;
use crate::controllers::resiliency_policy::evidence::Silence;
use crate::controllers::resiliency_policy::memory::Found;
use crate::controllers::resiliency_policy::plan::LiveNode;
use crate::controllers::testing::*;
use crate::error::Error;

use super::foresee::tests::live_of;
use super::foresee::{self, Foreseen};
use super::print::{Output, Report};
use super::{explain_node, explain_pod, simulate};

const NODE: &str = "worker-3";

/// Three nodes; on one of them a pod that can go, one that shares a local volume, a bare one, and one of a driver without a
/// sidecar.
fn found() -> Found {
    let shop: Namespace = serde_json::from_value(json!({ "metadata": { "name": "shop" } })).unwrap();
    let ready = |view| but(view, |pod| pod.status.conditions[1].status = "True".into());
    Found {
        nodes: [NODE, "worker-4", "worker-5"].map(|name| Arc::new(node(name))).into(),
        pods: vec![
            ready(pod("pg-0", NODE, &[csi("pvc-1")])),
            ready(pod("cache-0", NODE, &[local("pvc-2")])),
            ready(owned_by(pod("tool", NODE, &[csi("pvc-3")]), None)),
            ready(pod("files-0", NODE, &[csi_of("file.example.com", "pvc-4")])),
        ],
        policies: vec![Arc::new(policy("databases", &json!({})))],
        namespaces: vec![Arc::new(shop)],
        reports: vec![Arc::new(able(DRIVER))],
        ..Found::default()
    }
}

/// A node as the API has it, without its CSINode.
fn live(found: &Found, name: &str) -> Option<LiveNode> {
    Some(LiveNode { csi_node: None, ..live_of(found, name)? })
}

fn failure(found: &Found) -> Foreseen {
    block_on(foresee::failure(found.clone(), NODE, now(), async |name: &str, _: Silence| {
        Ok::<_, Error>(live(found, name))
    }))
    .unwrap()
}

fn present(found: &Found) -> Foreseen {
    block_on(foresee::present(found.clone(), NODE, now(), async |name: &str, _: Silence| {
        Ok::<_, Error>(live(found, name))
    }))
    .unwrap()
}

fn explained(found: &Found) -> explain_node::NodeExplanation {
    let fence = found.fences.first().map(Arc::as_ref);
    let (present, failure) = (present(found), failure(found));
    let simulation = simulate::node(NODE, &failure, fence, &[], now());
    let node = found.nodes.first().map(Arc::as_ref);
    let facts = explain_node::Facts {
        name: NODE,
        node,
        lease: None,
        fence,
        present: &present,
        failure: &failure,
        simulation: &simulation,
    };
    explain_node::explain_by_leases(&facts, |_| None, now())
}

/// An incident that waits for a proof.
fn incident(found: &Found) -> NodeFence {
    let mut fence = NodeFence::clone(failure(found).fence.as_ref().unwrap());
    let pods: Vec<_> = fence.spec.plan.pods.iter().map(|row| match row.name.as_str() {
        "pg-0" => json!({ "episode": 1, "uid": row.uid, "state": "Waiting", "reason": "ProofTooWeak", "message": "pvc-1" }),
        "files-0" => {
            json!({ "episode": 1, "uid": row.uid, "state": "Waiting", "reason": "ProofTooWeak", "message": "pvc-4" })
        }
        "cache-0" => json!({ "episode": 1, "uid": row.uid, "state": "Waiting", "reason": "LocalVolume", "message": "volume pvc-2 lives on the node and cannot move" }),
        _ => json!({ "episode": 1, "uid": row.uid, "state": "Kept", "reason": row.reason }),
    }).collect();
    let decided = fence.spec.plan.decided_at;
    fence.status = serde_json::from_value(json!({
        "phase": "Fencing",
        "timeline": { "decidedAt": decided },
        "conditions": [{
            "type": "Ready", "status": "False", "reason": "ProofTooWeak", "lastTransitionTime": at(100_000),
            "message": "volume pvc-1 has proof None, Verified is required (StillPublished: listed still)",
        }],
        "volumes": [{
            "episode": 1, "name": "pvc-1", "state": "Failed", "proof": "None", "committedAt": decided,
            "reason": "StillPublished", "message": "listed still",
        }],
        "pods": pods,
        "history": [],
    }))
    .unwrap();
    fence
}

#[test]
fn a_simulation_in_words() {
    let simulation = simulate::node(NODE, &failure(&found()), None, &[], now());
    insta::assert_snapshot!(simulation.text());
}

#[test]
fn a_simulation_for_programs() {
    let simulation = simulate::node(NODE, &failure(&found()), None, &[], now());
    insta::assert_snapshot!(Output::Yaml.render(&simulation).unwrap());
}

#[test]
fn a_brake_that_holds_in_words() {
    let mut found = found();
    found.nodes = found
        .nodes
        .iter()
        .map(|it| {
            let name = it.metadata.name.as_deref().unwrap();
            Arc::new(if name == NODE { node(name) } else { with_ready(node(name), "False") })
        })
        .collect();
    insta::assert_snapshot!(simulate::node(NODE, &failure(&found), None, &[], now()).text());
}

#[test]
fn a_node_that_is_well_in_words() {
    insta::assert_snapshot!(explained(&found()).text());
}

#[test]
fn a_node_with_a_held_incident_in_words() {
    let mut found = found();
    found.fences = vec![Arc::new(incident(&found))];
    found.nodes[0] = Arc::new(unreachable(NODE));
    insta::assert_snapshot!(explained(&found).text());
}

#[test]
fn what_holds_another_machine_is_told_beside_the_open_incident() {
    let mut found = found();
    let mut fence = incident(&found);
    let status = fence.status.as_mut().unwrap();
    status.phase = Some(Phase::Cleaning);
    status.volumes[0].method = Some(FenceMethodType::NetworkFence);
    found.fences = vec![Arc::new(fence)];
    let mut another = unreachable(NODE);
    another.status.node_info.boot_id = "boot-2".into();
    found.nodes[0] = Arc::new(another);
    let explained = explained(&found);
    assert!(explained.verdict.contains("open incident"), "{}", explained.verdict);
    let is_told = |why: &&String| why.contains("MachineMayRun") && why.ends_with("bulkhead.dev/machine-is-off=1");
    assert_eq!(explained.why.iter().filter(is_told).count(), 1, "{:#?}", explained.why);
}

#[test]
fn pods_in_words() {
    let mut found = found();
    let failure = failure(&found);
    let simulation = simulate::node(NODE, &failure, None, &[], now());
    found.fences = vec![Arc::new(incident(&found))];
    let told: Vec<_> = found
        .pods
        .iter()
        .map(|pod| {
            let facts =
                explain_pod::Facts { pod, seen: &failure.seen, simulation: Some(&simulation), fences: &found.fences };
            explain_pod::explain(&facts, now()).text()
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn why_a_policy_does_not_select_a_pod() {
    let mut found = found();
    let selector = json!({
        "namespaceSelector": { "matchLabels": { "tier": "1" } }, "podSelector": { "matchLabels": { "app": "x" } }, "drivers": ["file.example.com"],
    });
    found.policies.push(Arc::new(policy("tier1", &json!({ "selector": selector }))));
    let failure = failure(&found);
    let facts = explain_pod::Facts { pod: &found.pods[0], seen: &failure.seen, simulation: None, fences: &[] };
    let explained = explain_pod::explain(&facts, now());
    let [yes, no] = explained.policies.as_slice() else { panic!("{:?}", explained.policies) };
    assert!(yes.selects && yes.name == "databases");
    assert_eq!(no.mismatches.len(), 3, "{no:?}");
}
