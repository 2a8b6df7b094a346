//! Which pods would stay if their node failed: what `simulate node` says, asked of every node with a protected pod.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use kube::ResourceExt;
use serde::Serialize;

use crate::api::node_fence::PodAction;
use crate::controllers::resiliency_policy::decide::effective;
use crate::kubectl::error::REMEDY_VIEWER;
use crate::kubectl::gather::Gathered;
use crate::kubectl::simulate::report::{PodRow, Said, Simulation};
use crate::kubectl::words;

use super::{Finding, Severity};

const CHECK: &str = "Failure";
/// Nodes that are read from the API at the same time.
const AT_ONCE: usize = 8;
/// Whoever selects such a pod for protection wants to know that it is kept.
const BARE_POD: &str = "BarePod";
/// What a row of a pod says while a row of one of its volumes says more.
const TOO_WEAK: &str = "ProofTooWeak";

/// A pod that a policy selects and that would stay if its node failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StayingPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// The policy whose name its row in a NodeFence would have.
    pub policy: String,
    /// Why it would stay, as the API spells it.
    pub reason: String,
    /// The same in words.
    pub message: String,
}

/// Asks for every node with a protected pod that uses volumes.
pub async fn of(gathered: &Gathered) -> (Vec<StayingPod>, Vec<Finding>) {
    let (mut staying, mut findings, mut asked) = (Vec::new(), Vec::new(), 0);
    for nodes in nodes(gathered).chunks(AT_ONCE) {
        let simulations = join_all(nodes.iter().map(|node| gathered.failure_of_one(node))).await;
        for (node, simulation) in nodes.iter().zip(simulations) {
            match simulation {
                Ok(simulation) => {
                    asked += 1;
                    staying.extend(pods(&simulation));
                    findings.extend(in_doubt(&simulation));
                }
                Err(error) => findings.push(Finding {
                    severity: Severity::Unknown,
                    check: CHECK,
                    about: format!("node {node}"),
                    message: error.to_string(),
                    remedy: REMEDY_VIEWER.into(),
                }),
            }
        }
    }
    staying.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    findings.extend(by_reason(&staying));
    if findings.is_empty() && asked > 0 {
        findings.push(Finding::ok(CHECK, "nodes", format!("{asked} with protected pods: all of those would go")));
    }
    (staying, findings)
}

/// Nodes with a protected pod that uses volumes.
fn nodes(gathered: &Gathered) -> Vec<String> {
    let seen = gathered.seen();
    let is_protected =
        |node: &String| seen.pods.get(node).is_some_and(|pods| pods.iter().any(|pod| effective(&seen, pod).is_some()));
    let mut nodes: Vec<_> = gathered.stores.nodes.list().iter().map(|node| node.name_any()).collect();
    nodes.retain(is_protected);
    nodes.sort_unstable();
    nodes
}

/// The pods of a node that would stay.
fn pods(simulation: &Simulation) -> Vec<StayingPod> {
    let staying = simulation.pods.iter().filter_map(|row| {
        let said = why(row, simulation)?;
        Some(StayingPod {
            namespace: row.plan.namespace.clone(),
            name: row.plan.name.clone(),
            node: simulation.node.clone(),
            policy: row.plan.policy.clone().unwrap_or_default(),
            reason: said.reason,
            message: said.message,
        })
    });
    staying.collect()
}

fn why(row: &PodRow, simulation: &Simulation) -> Option<Said> {
    let plan = &row.plan;
    if plan.action == PodAction::Keep {
        let message = words::of_pod(BARE_POD).unwrap_or_default().to_owned();
        let is_told = plan.reason == BARE_POD && plan.policy.is_some();
        return is_told.then(|| Said { reason: plan.reason.clone(), message });
    }
    let own = row.waits.clone().filter(|said| said.reason != TOO_WEAK);
    let of_volume = || {
        let mut own = simulation.volumes.iter().filter(|volume| plan.volumes.contains(&volume.plan.name));
        own.find_map(|volume| {
            let said = volume.waits.as_ref()?;
            let message = format!("volume {}: {}", volume.plan.name, said.message);
            Some(Said { reason: said.reason.clone(), message })
        })
    };
    own.or_else(of_volume).or_else(|| row.waits.clone())
}

/// A node of which nothing could be moved, since it is not certain whom to cut off. What else holds an incident as a whole, a
/// person wants: dry-run, approval, a pause, a window.
fn in_doubt(simulation: &Simulation) -> Option<Finding> {
    let held = simulation.held.as_ref().filter(|held| held.reason == "IdentityAmbiguous")?;
    let message = format!("all its pods would stay: {}: {}", held.reason, held.message);
    let remedy =
        "drain the node and let it register again, so that its CSINode and its attachments name the same node id";
    Some(Finding::warning(CHECK, format!("node {}", simulation.node), message, remedy))
}

/// One finding for each policy and reason: the pods are listed apart.
fn by_reason(staying: &[StayingPod]) -> Vec<Finding> {
    let mut groups: BTreeMap<(&str, &str), Vec<&StayingPod>> = BTreeMap::new();
    for pod in staying {
        groups.entry((pod.policy.as_str(), pod.reason.as_str())).or_default().push(pod);
    }
    let finding = |((policy, reason), pods): ((&str, &str), Vec<&StayingPod>)| {
        let first = pods.first()?;
        let nodes: BTreeSet<_> = pods.iter().map(|pod| &pod.node).collect();
        let message = format!(
            "pods that would stay if their node failed: {}, on {} of the nodes; {}/{}: {}",
            pods.len(),
            nodes.len(),
            first.namespace,
            first.name,
            first.message
        );
        Some(Finding::warning(CHECK, format!("policy {policy}, {reason}"), message, remedy(reason)))
    };
    groups.into_iter().filter_map(finding).collect()
}

/// What to do about it while the node is well.
fn remedy(reason: &str) -> &'static str {
    match reason {
        "LocalVolume" => {
            "take the volume out of the pod, a hostPath for its convenience above all; or the pod out of the policy's selector"
        }
        "UnknownVolumeKind" => {
            "no fence covers inline, in-tree and attachRequired: false volumes, nor a claim that is not bound: take the volume out \
             of the pod, or the pod out of the policy's selector"
        }
        "SharerHeld" => {
            "see why the pod that the message names would stay: select it too, or let sharers: CleanAll take it along"
        }
        BARE_POD => {
            "let a StatefulSet or another controller own it; or release.barePods: Delete, where nothing creates it again"
        }
        TOO_WEAK => {
            "give the policy a method that can prove more for this driver, or a weaker proof: spec.fencing.drivers"
        }
        other => words::of_incident(other).map_or("kubectl bulkhead simulate node shows its row", |words| words.next),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::executor::block_on;
    use serde_json::json;

    use crate::api::slim::Namespace;
    use crate::api::usage::PodView;
    use crate::controllers::resiliency_policy::evidence::Silence;
    use crate::controllers::resiliency_policy::memory::Found;
    use crate::controllers::resiliency_policy::plan::LiveNode;
    use crate::controllers::testing::*;
    use crate::error::Error;
    use crate::kubectl::foresee::tests::live_of;
    use crate::kubectl::{foresee, simulate};

    use super::*;

    const NODE: &str = "worker-3";

    /// What is said of a node with these pods, of which a policy selects all but `outside`.
    fn simulated(pods: Vec<PodView>) -> Simulation {
        let shop: Namespace = serde_json::from_value(json!({ "metadata": { "name": "shop" } })).unwrap();
        let but_outside = json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["outside"] }] });
        let spec = json!({ "selector": { "podSelector": but_outside } });
        let found = Found {
            nodes: [NODE, "worker-4", "worker-5"].map(|name| Arc::new(node(name))).into(),
            pods,
            policies: vec![Arc::new(policy("databases", &spec))],
            namespaces: vec![Arc::new(shop)],
            reports: vec![Arc::new(able(DRIVER)), Arc::new(report("weak.example.com", &["Unpublish"]))],
            ..Found::default()
        };
        let look = async |name: &str, _: Silence| {
            let live = live_of(&found, name).map(|live| LiveNode { csi_node: None, ..live });
            Ok::<_, Error>(live)
        };
        let foreseen = block_on(foresee::failure(found.clone(), NODE, now(), look)).unwrap();
        simulate::node(NODE, &foreseen, None, &[], now())
    }

    #[test]
    fn each_pod_that_would_stay_is_named_with_its_reason() {
        let cases = [
            (pod("cache", NODE, &[local("pvc-1")]), "LocalVolume", "pvc-1 lives on the node"),
            (pod("files", NODE, &[csi("pvc-2"), unknown("pvc-3")]), "UnknownVolumeKind", "nfs volume: no fence method"),
            (owned_by(pod("tool", NODE, &[csi("pvc-4")]), None), "BarePod", "no controller would create it again"),
            (
                pod("mute", NODE, &[csi_of("mute.example.com", "pvc-5")]),
                "FencerMissing",
                "volume pvc-5: run bulkhead-csi",
            ),
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
}
