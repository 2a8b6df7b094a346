//! Random clusters in which a node will fail, and what the API has of their nodes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proptest::prelude::*;
use serde_json::json;

use crate::api::driver_report::{Backend, BackendState, DriverReport, PathState, UnreachablePair};
use crate::api::names::PAUSED_ANNOTATION;
use crate::api::node_fence::{NodeFenceStatus, Phase, Timeline};
use crate::api::slim::{CsiNode, Lease, Namespace};
use crate::api::usage::VolumeKind;
use crate::controllers::resiliency_policy::plan;
use crate::controllers::resiliency_policy::storage::Paths;
use crate::controllers::testing::*;

use super::super::*;

const OTHER: &str = "file.example.com";
/// A driver that attaches nothing.
const LOOSE: &str = "loose.example.com";
/// The node that fails.
pub const VICTIM: &str = "n0";

/// A cluster, in small numbers.
#[derive(Clone, Debug)]
pub struct Shape {
    pub nodes: Vec<u8>,
    pub pods: Vec<(u8, u8, u8, bool, u8)>,
    pub policies: Vec<[u8; 7]>,
    pub past: u8,
    pub paused: u8,
}

/// A policy of which nothing is said.
pub const PLAIN: [u8; 7] = [3, 11, 11, 11, 11, 11, 11];

pub fn shape() -> impl Strategy<Value = Shape> {
    let nodes = prop::collection::vec(0..6u8, 2..5);
    let pods =
        prop::collection::vec((prop_oneof![3 => Just(0), 1 => 1..4u8], 0..10u8, 0..4u8, any::<bool>(), 0..4u8), 1..8);
    let policies = prop::collection::vec(prop::array::uniform7(0..12u8), 1..4);
    (nodes, pods, policies, 0..6u8, 0..16u8).prop_map(|(nodes, pods, policies, past, paused)| Shape {
        nodes,
        pods,
        policies,
        past,
        paused,
    })
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
        3 | 7 => vec![csi(&shared)],
        4 => vec![csi(&own), csi_of(OTHER, &format!("file-{index}"))],
        5 => vec![unattached(LOOSE, &own)],
        6 => vec![nfs(&own), csi(&shared)],
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
        if kind == 2 {
            let term =
                json!({ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "b" } } });
            let affinity = json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } });
            pod.spec.affinity = serde_json::from_value(affinity).unwrap();
        }
    })
}

fn some_policy(
    index: usize,
    [selects, detection, fencing, limits, mode, release, brake]: [u8; 7],
) -> Arc<ResiliencyPolicy> {
    let selector = match selects % 4 {
        0 => json!({ "podSelector": { "matchLabels": { "app": "a" } } }),
        1 => json!({ "podSelector": { "matchLabels": { "app": "b" } } }),
        2 => json!({ "podSelector": {}, "drivers": [OTHER] }),
        _ => json!({ "podSelector": {} }),
    };
    let detection = match detection {
        0..=2 => json!({ "kubelet": { "decisiveAfter": "3s" } }),
        3..=5 => json!({ "kubelet": { "decisiveAfter": "5s" }, "taints": [{ "key": "*" }] }),
        _ => json!({}),
    };
    let fencing = match fencing {
        0 => json!({ "minimumProof": "Acknowledged" }),
        1 => json!({ "methods": [unpublish(), external()] }),
        2 => json!({ "minimumProof": "Acknowledged", "methods": [unpublish(), network(), external()] }),
        3 => {
            json!({ "drivers": [{ "name": OTHER, "minimumProof": "Acknowledged", "methods": [{ "type": "Detach" }] }] })
        }
        _ => json!({}),
    };
    let limits = match limits {
        0 | 1 => json!({ "maxNodes": 1, "maxUnhealthy": "100%" }),
        2 | 3 => json!({ "maxUnhealthy": "50%" }),
        _ => json!({ "maxNodes": "100%", "maxUnhealthy": "100%", "cooldown": "0s", "window": "0s" }),
    };
    let mode = match mode {
        0 => "DryRun",
        1 => "RequireApproval",
        _ => "Enforce",
    };
    let (sharers, release) = match release {
        0 | 1 => ("CleanAll", json!({})),
        2 => ("Hold", json!({ "barePods": "Delete" })),
        3 | 4 => ("Hold", json!({ "podsWithoutVolumes": "Release" })),
        5 | 6 => {
            ("CleanAll", json!({ "barePods": "Delete", "podsWithoutVolumes": "Release", "affinityGroups": "Together" }))
        }
        7 => ("Hold", json!({ "affinityGroups": "Together" })),
        _ => ("Hold", json!({})),
    };
    let windows = match brake {
        // The tests begin at 11:46.
        0 => json!([{ "name": "open", "schedule": "0 11 * * *", "duration": "2h", "timeZone": "UTC" }]),
        1 => json!([{ "name": "over", "schedule": "0 10 * * *", "duration": "1h", "timeZone": "UTC" }]),
        _ => json!([]),
    };
    let spec = json!({
        "mode": mode, "selector": selector, "detection": detection, "fencing": fencing, "limits": limits,
        "sharers": sharers, "release": release, "maintenanceWindows": windows,
    });
    let mut policy = policy(&format!("policy-{index}"), &spec);
    if brake == 2 {
        pause(&mut policy.metadata);
    }
    Arc::new(policy)
}

fn pause(object: &mut ObjectMeta) {
    object.annotations.get_or_insert_default().insert(PAUSED_ANNOTATION.into(), "wait".into());
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

pub fn lease(name: &str, renewed: i64) -> Arc<Lease> {
    let lease = json!({ "metadata": { "name": name, "namespace": "kube-node-lease" }, "spec": { "renewTime": format!("{}", at(renewed).format("%Y-%m-%dT%H:%M:%S%.6fZ")) } });
    Arc::new(serde_json::from_value::<Lease>(lease).unwrap())
}

pub fn cluster(shape: &Shape) -> Found {
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
    if shape.paused == 0 {
        pause(&mut Arc::make_mut(&mut found.nodes[0]).metadata);
    }
    found.fences = past(shape.past, &found).map(Arc::new).into_iter().collect();
    found
}

/// A driver whose array answers for four nodes, and says that this one does not reach it.
pub(in crate::kubectl) fn unreached(driver: &str, node: &str) -> DriverReport {
    let mut told = report(driver, &["Unpublish", "ListPublishedNodes", "Connectivity"]);
    let status = told.status.as_mut().unwrap();
    let since = at(99_000);
    status.backends = vec![Backend { name: driver.into(), state: BackendState::Answering, nodes: Some(4), since }];
    status.unreachable_pairs = Some(1);
    status.unreachable = vec![UnreachablePair {
        node: node.into(),
        backend: driver.into(),
        state: PathState::Disconnected,
        reason: None,
        since,
    }];
    told
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
        requests: Vec::new(),
        lease_is_still: node.is_unreachable(),
        node,
        pods,
        attachments: attached_volumes.keys().map(|volume| Arc::new(attachment(volume, name))).collect(),
        attached_volumes,
        csi_node: Some(Arc::new(csi_node)),
    })
}
