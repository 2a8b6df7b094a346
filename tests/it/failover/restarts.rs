//! `kill -9` in the middle. Incidents are held at four points, each by refusing the next write or call; then the
//! programs are killed at once, and others carry all incidents through to the same end.

use bulkhead::api::fence_request::{FenceOutcome, FenceRequest};
use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, Phase, VolumeStatusState};
use bulkhead_testbed::Identity;
use bulkhead_testbed::array::{Array, Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterOptions, Workload};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use crate::rest::{at_rest, nothing_is_read};

use super::fleet::{SOON, create_policy, options};
use super::look::{answer, is_released, operator_records, phase, volume_row};

const LANE: &str = "restart";

/// What is refused to the controller for one node, so that its incident stands still there.
pub struct Gate {
    pub name: &'static str,
    pub resources: [&'static str; 2],
    pub group: &'static str,
    pub operation: &'static str,
    /// The name of the node that a request is about, in CEL.
    pub node: &'static str,
}

const AFTER_PLAN: Gate = Gate {
    name: "after-plan",
    resources: ["nodefences", "nodefences/status"],
    group: "bulkhead.dev",
    operation: "UPDATE",
    node: "object.metadata.name",
};
const AFTER_TAINT: Gate = Gate {
    name: "after-taint",
    resources: ["fencerequests", "fencerequests/status"],
    group: "bulkhead.dev",
    operation: "CREATE",
    node: "object.spec.nodeName",
};
const AFTER_FENCED: Gate = Gate {
    name: "after-fenced",
    resources: ["pods", "pods/eviction"],
    group: "",
    operation: "DELETE",
    node: "oldObject.spec.nodeName",
};

impl Gate {
    fn objects(&self, node: &str) -> Result<Vec<DynamicObject>, Failed> {
        let name = format!("{}-{node}", self.name);
        let from_us = format!("request.userInfo.username == '{}'", Identity::OperatorController.user());
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [self.group], "apiVersions": ["*"], "resources": self.resources,
                    "operations": [self.operation],
                }] },
                "matchConditions": [{ "name": "from-us", "expression": from_us }],
                "validations": [{ "expression": format!("{} != '{node}'", self.node) }],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name },
            "spec": { "policyName": name, "validationActions": ["Deny"] },
        });
        Ok(vec![serde_json::from_value(policy)?, serde_json::from_value(binding)?])
    }

    pub async fn shut(&self, cluster: &Cluster, node: &str) -> Result<(), Failed> {
        Ok(cluster.testbed.apply(self.objects(node)?).await?)
    }

    pub async fn open(&self, cluster: &Cluster, node: &str) -> Result<(), Failed> {
        let name = format!("{}-{node}", self.name);
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            cluster.testbed.kubectl(&["delete", kind, &name]).await?;
        }
        Ok(())
    }
}

/// Four nodes that fail together, each with a pod that may move to one of the spare nodes.
struct Squad {
    sets: Vec<(String, Workload)>,
}

impl Squad {
    async fn new(cluster: &Cluster, numbers: std::ops::Range<usize>) -> Result<Self, Failed> {
        let mut sets = Vec::new();
        for number in numbers {
            let node = format!("node-{number}");
            let set = Workload {
                labels: [("lane".to_owned(), LANE.to_owned())].into(),
                nodes: vec![node.clone(), "node-9".into(), "node-10".into()],
                node: Some(node.clone()),
                ..Workload::new(&format!("db{number}"))
            };
            cluster.stateful_set(&set).await?;
            let placed = cluster.pods_ready(&set, SOON).await?;
            assert_eq!(placed.values().collect::<Vec<_>>(), [&node]);
            sets.push((node, set));
        }
        Ok(Self { sets })
    }

    fn node(&self, position: usize) -> &str {
        &self.sets[position].0
    }

    fn volume(&self, position: usize) -> String {
        self.sets[position].1.volume_name(0, 0)
    }

    /// Kills the nodes and returns when each incident stands at its point.
    async fn die(&self, cluster: &Cluster, array: &Array) -> Result<(), Failed> {
        AFTER_PLAN.shut(cluster, self.node(0)).await?;
        AFTER_TAINT.shut(cluster, self.node(1)).await?;
        let hang = Fault::on(Method::ControllerUnpublishVolume, Effect::Hang);
        array.faults().add(hang.volume(&self.sets[2].1.handle(0, 0)));
        AFTER_FENCED.shut(cluster, self.node(3)).await?;
        for (node, _) in &self.sets {
            cluster.node(node)?.kill().await;
        }
        cluster.fence(self.node(0), "planned", SOON, |fence| fence.status.is_none()).await?;
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let tainted = async || {
            let node = nodes.get(self.node(1)).await?;
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            let ours = taints.iter().any(|taint| taint.key == names::FENCED_TAINT);
            Ok(if ours { Ok(()) } else { Err(format!("{taints:?}")) })
        };
        cluster.wait("tainted", SOON, tainted).await?;
        let requests: Api<FenceRequest> = Api::all(cluster.client.clone());
        let name = names::fence_request(self.node(2), array.driver_name());
        let started = async || {
            let request = requests.get_opt(&name).await?;
            let row = request.as_ref().and_then(|request| answer(request, &self.volume(2)));
            let begun = row.is_some_and(|row| row.result == FenceOutcome::Started && row.started_at.is_some());
            Ok(if begun { Ok(()) } else { Err(format!("{row:?}")) })
        };
        cluster.wait("Started", SOON, started).await?;
        let fenced = |fence: &NodeFence| {
            volume_row(fence, &self.volume(3)).is_some_and(|row| row.state == VolumeStatusState::Fenced)
        };
        cluster.fence(self.node(3), "Fenced", SOON, fenced).await?;
        Ok(())
    }

    async fn let_go(&self, cluster: &Cluster, array: &Array) -> Result<(), Failed> {
        array.faults().clear();
        AFTER_PLAN.open(cluster, self.node(0)).await?;
        AFTER_TAINT.open(cluster, self.node(1)).await?;
        AFTER_FENCED.open(cluster, self.node(3)).await
    }

    /// All pods run elsewhere, everything is detached, and each pod was deleted once.
    async fn end(&self, cluster: &Cluster) -> Result<(), Failed> {
        let attachments: Api<VolumeAttachment> = Api::all(cluster.client.clone());
        for (node, set) in &self.sets {
            let pod = format!("{}-0", set.name);
            let done = |fence: &NodeFence| phase(fence) == Some(Phase::Detached) && is_released(fence, &pod);
            cluster.fence(node, "Detached", SOON, done).await?;
            let placed = cluster.pods_ready(set, SOON).await?;
            assert!(placed.values().all(|there| there != node), "{placed:?}");
            let deleted = operator_records(cluster, |record| {
                record.verb == "delete" && record.resource == "pods" && record.name == pod && record.succeeded()
            })?;
            assert_eq!(deleted.len(), 1, "{deleted:?}");
            let left = attachments.list(&ListParams::default()).await?.items;
            let left: Vec<_> =
                left.iter().filter(|left| left.spec.node_name == *node).map(ResourceExt::name_any).collect();
            assert_eq!(left, [""; 0], "attachments of {node}");
        }
        Ok(())
    }
}

pub async fn what_was_begun_is_carried_through_by_others() -> Result<(), Failed> {
    let mut cluster = Cluster::start(ClusterOptions { nodes: 10, ..options() }).await?;
    create_policy(&cluster.client, LANE, LANE, &json!({})).await?;
    let array = cluster.arrays.first().ok_or("no array")?.clone();

    // Both programs die; new ones come.
    let first = Squad::new(&cluster, 1..5).await?;
    first.die(&cluster, &array).await?;
    cluster.controllers.remove(0).kill().await;
    let sidecar = cluster.sidecars.remove(array.driver_name()).ok_or("no sidecar")?;
    sidecar.kill().await;
    first.let_go(&cluster, &array).await?;
    cluster.start_controller().await?;
    cluster.start_sidecar(array.driver_name()).await?;
    first.end(&cluster).await?;

    // The leader dies; the one that waits takes over.
    cluster.controllers.push(cluster.controller("bulkhead-controller-standby")?);
    let second = Squad::new(&cluster, 5..9).await?;
    second.die(&cluster, &array).await?;
    cluster.controllers.remove(0).kill().await;
    second.let_go(&cluster, &array).await?;
    second.end(&cluster).await?;

    // All nodes come back, and then nobody writes anything, nor does the controller read.
    for (node, _) in first.sets.iter().chain(&second.sets) {
        cluster.node(node)?.reboot().await?;
    }
    for (node, _) in first.sets.iter().chain(&second.sets) {
        cluster.fence(node, "Recovered", SOON, |fence| phase(fence) == Some(Phase::Recovered)).await?;
    }
    at_rest(&cluster, &[Identity::OperatorController, Identity::CsiSidecar], SOON).await?;
    nothing_is_read(&cluster, &[Identity::OperatorController], SOON).await?;
    cluster.judge()?;
    Ok(())
}
