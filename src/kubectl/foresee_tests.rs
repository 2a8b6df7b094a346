//! What is foreseen is what happens: in random clusters the NodeFence that the controller's passes write, second by second
//! after a node has failed, is the one that was foreseen while the node was well.

use futures::executor::block_on;
use proptest::prelude::*;
use serde_json::json;

use crate::api::names::UNREACHABLE_TAINT;
use crate::api::node_fence::{NodeFenceStatus, Phase, Timeline};
use crate::api::slim::{CsiNode, Lease, Namespace};
use crate::api::usage::VolumeKind;
use crate::controllers::resiliency_policy::plan;
use crate::controllers::resiliency_policy::storage::Paths;
use crate::controllers::testing::*;

use super::*;

const OTHER: &str = "file.example.com";
/// The node that fails.
const VICTIM: &str = "n0";

/// A cluster, in small numbers.
#[derive(Clone, Debug)]
struct Shape {
    nodes: Vec<u8>,
    pods: Vec<(u8, u8, u8, bool, u8)>,
    policies: Vec<(u8, u8, u8, u8)>,
    past: u8,
}

fn shape() -> impl Strategy<Value = Shape> {
    let nodes = prop::collection::vec(0..6u8, 2..5);
    let pods =
        prop::collection::vec((prop_oneof![2 => Just(0), 1 => 1..4u8], 0..8u8, 0..4u8, any::<bool>(), 0..4u8), 0..7);
    let policies = prop::collection::vec((0..4u8, 0..3u8, 0..4u8, 0..6u8), 1..4);
    (nodes, pods, policies, 0..6u8).prop_map(|(nodes, pods, policies, past)| Shape { nodes, pods, policies, past })
}

fn other_node(name: &str, state: u8) -> Node {
    match state {
        0 => with_ready(node(name), "False"),
        1 => unreachable(name),
        2 => with_taint(node(name), "example.com/broken", "", "NoSchedule"),
        _ => node(name),
    }
}

fn some_pod(index: usize, (place, volumes, owner, ready, kind): (u8, u8, u8, bool, u8), nodes: usize) -> PodView {
    let shared = format!("v{}", index % 2);
    let own = format!("own-{index}");
    let volumes = match volumes {
        0 => vec![],
        1 => vec![local(&own)],
        2 => vec![unknown(&own)],
        3 => vec![csi(&shared)],
        4 => vec![csi(&own), csi_of(OTHER, &format!("file-{index}"))],
        _ => vec![csi(&own)],
    };
    let on = format!("n{}", usize::from(place) % nodes);
    let view = pod(&format!("p{index}"), &on, &volumes);
    let view = match owner {
        0 => owned_by(view, Some("DaemonSet")),
        1 => owned_by(view, None),
        _ => view,
    };
    but(view, |pod| {
        pod.metadata.labels.get_or_insert_default().insert("app".into(), if kind % 2 == 0 { "a" } else { "b" }.into());
        pod.spec.priority = Some(i32::from(kind));
        if ready {
            pod.status.conditions[1].status = "True".into();
        }
        if kind == 3 && owner == 3 {
            pod.status.phase = Some("Succeeded".into());
        }
    })
}

fn some_policy(
    index: usize,
    (selects, detection, fencing, limits): (u8, u8, u8, u8),
) -> Arc<crate::api::resiliency_policy::ResiliencyPolicy> {
    let selector = match selects {
        0 => json!({ "podSelector": { "matchLabels": { "app": "a" } } }),
        1 => json!({ "podSelector": { "matchLabels": { "app": "b" } } }),
        2 => json!({ "podSelector": {}, "drivers": [OTHER] }),
        _ => json!({ "podSelector": {} }),
    };
    let detection = match detection {
        0 => json!({ "kubelet": { "decisiveAfter": "3s" } }),
        1 => json!({ "kubelet": { "decisiveAfter": "5s" }, "taints": [{ "key": "*" }] }),
        _ => json!({}),
    };
    let fencing = match fencing {
        0 => json!({ "minimumProof": "Acknowledged" }),
        1 => {
            json!({ "drivers": [{ "name": OTHER, "minimumProof": "Acknowledged", "methods": [{ "type": "Detach" }] }] })
        }
        _ => json!({}),
    };
    let limits = match limits {
        0 => json!({ "maxNodes": 1, "maxUnhealthy": "100%" }),
        1 => json!({ "maxUnhealthy": "50%" }),
        _ => json!({ "maxNodes": "100%", "maxUnhealthy": "100%", "cooldown": "0s", "window": "0s" }),
    };
    let spec = json!({ "selector": selector, "detection": detection, "fencing": fencing, "limits": limits });
    Arc::new(policy(&format!("policy-{index}"), &spec))
}

/// An earlier incident of the victim, long ago or open.
fn past(which: u8, found: &Found) -> Option<NodeFence> {
    let phase = match which {
        0 => Phase::Recovered,
        1 => Phase::Cleaning,
        2 => Phase::Detached,
        _ => return None,
    };
    let failing = LiveNode { node: Arc::new(unreachable(VICTIM)), ..live_of(found, VICTIM)? };
    let policies = found.policies.iter().map(Arc::as_ref);
    let long_ago = Now { wall: at(10_000), ..now() };
    let seen = Seen::default();
    let paths = Paths::unrestrained(&seen, long_ago);
    let draft = plan::draft(&failing, policies, &BTreeMap::new(), &paths, 1, long_ago)?;
    let spec = crate::api::node_fence::NodeFenceSpec {
        episode: 1,
        node: plan::identity(&failing),
        policies: draft.policies,
        plan: draft.plan,
        approval: None,
        hold: None,
    };
    let mut fence = NodeFence::new(VICTIM, spec);
    let timeline = Timeline { decided_at: Some(fence.spec.plan.decided_at), ..Timeline::default() };
    fence.status = Some(NodeFenceStatus { phase: Some(phase), timeline: Some(timeline), ..NodeFenceStatus::default() });
    Some(fence)
}

fn lease(name: &str, renewed: i64) -> Arc<Lease> {
    let lease = json!({ "metadata": { "name": name, "namespace": "kube-node-lease" }, "spec": { "renewTime": format!("{}", at(renewed).format("%Y-%m-%dT%H:%M:%S%.6fZ")) } });
    Arc::new(serde_json::from_value::<Lease>(lease).unwrap())
}

fn cluster(shape: &Shape) -> Found {
    let count = shape.nodes.len();
    let nodes = shape.nodes.iter().enumerate().map(|(index, state)| {
        Arc::new(if index == 0 { node(VICTIM) } else { other_node(&format!("n{index}"), *state) })
    });
    let shop: Namespace = serde_json::from_value(json!({ "metadata": { "name": "shop" } })).unwrap();
    let mut found = Found {
        nodes: nodes.collect(),
        pods: shape.pods.iter().enumerate().map(|(index, pod)| some_pod(index, *pod, count)).collect(),
        policies: shape.policies.iter().enumerate().map(|(index, policy)| some_policy(index, *policy)).collect(),
        namespaces: vec![Arc::new(shop)],
        reports: vec![Arc::new(able(DRIVER))],
        ..Found::default()
    };
    found.fences = past(shape.past, &found).map(Arc::new).into_iter().collect();
    found
}

/// A node as the API of that cluster has it.
pub(in crate::kubectl) fn live_of(found: &Found, name: &str) -> Option<LiveNode> {
    let node = found.nodes.iter().find(|node| node.name_any() == name)?.clone();
    let pods: Vec<_> =
        found.pods.iter().filter(|pod| pod.pod.spec.node_name.as_deref() == Some(name)).cloned().collect();
    let volumes = pods.iter().flat_map(|pod| &pod.volumes).filter_map(|volume| match &volume.kind {
        VolumeKind::Csi(csi) => Some((volume.name.clone(), csi.clone())),
        _ => None,
    });
    let attached_volumes: BTreeMap<_, _> = volumes.collect();
    let csi_node: CsiNode = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "drivers": [{ "name": DRIVER, "nodeID": format!("id-{name}") }, { "name": OTHER, "nodeID": format!("id-{name}") }] },
    }))
    .unwrap();
    Some(LiveNode {
        silence: Silence::default(),
        migration_targets: Default::default(),
        node_report: None,
        reports: Default::default(),
        is_shut_out: false,
        lease_is_still: node.is_unreachable(),
        node,
        pods,
        attachments: attached_volumes.keys().map(|volume| Arc::new(attachment(volume, name))).collect(),
        attached_volumes,
        csi_node: Some(Arc::new(csi_node)),
    })
}

/// The controller's passes, one a second.
struct Executor {
    found: Found,
    memory: Memory,
    begun: Now,
    passed: u32,
}

impl Executor {
    fn pass(&mut self) {
        let now = later(self.begun, f64::from(self.passed));
        let names: Vec<_> = self.found.nodes.iter().map(|node| (node.name_any(), node.is_unreachable())).collect();
        let renewed = |name: &str, silent: bool| lease(name, if silent { 0 } else { i64::from(self.passed / 10) });
        self.found.leases = names.iter().map(|(name, silent)| renewed(name, *silent)).collect();
        let mut seen = self.memory.look(self.found.clone(), (1, 1), now);
        let mut decision = decide(&seen, now);
        for name in decision.look_at.clone() {
            let (_, silence) = seen.nodes.iter().find(|(node, _)| node.name_any() == name).cloned().unwrap();
            let live = live_of(&self.found, &name).unwrap();
            seen.live.insert(name, LiveNode { silence: silence.read_live(&live.node), ..live });
        }
        if !seen.live.is_empty() {
            decision = decide(&seen, now);
        }
        self.memory.note(&decision, now);
        decision.effects.into_iter().for_each(|effect| apply(&mut self.found, effect));
        self.passed += 1;
    }

    /// What the node lifecycle controller does with the victim.
    fn fail(&mut self) {
        let victim = self.found.nodes.iter_mut().find(|node| node.name_any() == VICTIM).unwrap();
        *victim = Arc::new(with_taint(with_ready(Node::clone(victim), "Unknown"), UNREACHABLE_TAINT, "", "NoSchedule"));
        for pod in self.found.pods.iter_mut().filter(|pod| pod.pod.spec.node_name.as_deref() == Some(VICTIM)) {
            *pod = but(pod.clone(), |pod| pod.status.conditions[1].status = "False".into());
        }
    }

    fn fence(&self) -> Option<&Arc<NodeFence>> {
        self.found.fences.iter().find(|fence| fence.name_any() == VICTIM)
    }
}

fn foreseen(found: &Found, now: Now) -> Foreseen {
    let look = async |name: &str, _: Silence| Ok::<_, Error>(live_of(found, name));
    block_on(failure(found.clone(), VICTIM, now, look)).unwrap()
}

/// What an incident will do.
fn deed(fence: Option<&Arc<NodeFence>>) -> Option<(i64, serde_json::Value)> {
    let spec = &fence?.spec;
    let policies: Vec<_> = spec.policies.iter().map(|policy| &policy.name).collect();
    Some((
        spec.episode,
        json!({ "digest": spec.plan.digest, "pods": spec.plan.pods, "volumes": spec.plan.volumes, "policies": policies }),
    ))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_foreseen_is_what_the_controller_does(shape in shape()) {
        foreseen_is_done(&shape);
    }
}

/// Was not so once.
#[test]
fn what_was_foreseen_of_nodes_without_pods_is_what_the_controller_does() {
    foreseen_is_done(&Shape { nodes: vec![0, 0], pods: vec![], policies: vec![(0, 0, 0, 0)], past: 0 });
}

fn foreseen_is_done(shape: &Shape) {
    let mut executor = Executor { found: cluster(shape), memory: Memory::default(), begun: now(), passed: 0 };
    (0..25).for_each(|_| executor.pass());
    let before = deed(executor.fence());
    let moment = later(executor.begun, f64::from(executor.passed));
    let foreseen = foreseen(&executor.found, moment);
    executor.fail();
    (0..8).for_each(|_| executor.pass());
    let after = deed(executor.fence());
    assert_eq!(deed(foreseen.fence.as_ref()), after.clone());
    assert_eq!(foreseen.written.is_empty(), before == after);
    let (_, last) = foreseen.written.last().map(|(after, fence)| (after, fence.spec.plan.digest.clone())).unzip();
    assert!(last.is_none_or(|digest| after.is_some_and(|(_, deed)| deed["digest"] == json!(digest))));
}

#[test]
fn the_random_clusters_reach_every_outcome() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut opened, mut grown, mut restrained, mut reopened) = (0, 0, 0, 0);
    for _ in 0..300 {
        let shape = shape().new_tree(&mut runner).unwrap().current();
        let mut executor = Executor { found: cluster(&shape), memory: Memory::default(), begun: now(), passed: 0 };
        (0..25).for_each(|_| executor.pass());
        let moment = later(executor.begun, f64::from(executor.passed));
        let before = executor.fence().is_some();
        let foreseen = foreseen(&executor.found, moment);
        opened += usize::from(!before && !foreseen.written.is_empty());
        grown += usize::from(foreseen.written.len() > 1);
        reopened += usize::from(before && !foreseen.written.is_empty());
        restrained += usize::from(foreseen.decision.restrained.iter().any(|held| held.node == VICTIM));
    }
    assert!(opened > 20 && grown > 5 && restrained > 5 && reopened > 5, "{opened} {grown} {restrained} {reopened}");
}

#[test]
fn to_foresee_changes_nothing_and_needs_no_controller() {
    let nodes = vec![Arc::new(node(VICTIM)), Arc::new(node("n1")), Arc::new(node("n2"))];
    let found = Found {
        nodes,
        pods: vec![pod("p0", VICTIM, &[csi("v0")])],
        policies: vec![Arc::new(policy("db", &json!({})))],
        ..Found::default()
    };
    let first = foreseen(&found, now());
    let fence = first.fence.expect("a plan");
    assert_eq!(fence.spec.plan.pods.len(), 1);
    assert_eq!(deed(foreseen(&found, now()).fence.as_ref()), deed(Some(&fence)));
    let look = async |name: &str, _: Silence| Ok::<_, Error>(live_of(&found, name));
    let present = block_on(present(found.clone(), VICTIM, now(), look)).unwrap();
    assert!(present.fence.is_none() && present.written.is_empty() && present.decision.suspected.is_empty());
}
