//! A volume is in trouble on a node that is well: its pod moves, fenced first; nobody else does, and the node is given back.

use bulkhead::api::node_fence::{NodeFence, PodAction};
use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead::api::volume::NOT_USABLE;
use bulkhead::api::volume_health::VolumeHealth;
use bulkhead::api::volume_health_policy::VolumeHealthPolicy;
use bulkhead_testbed::Identity;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterOptions, Workload};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, ServiceAccount};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::brakes::policy_says;
use super::fleet::{Lane, LaneOptions, SOON, create_policy, options};
use super::look::{condition, event, is_released, operator_records, pod_row};
use super::order::taintings;

/// What a policy that moves pods for their volumes says beside the rest.
fn moving() -> Value {
    json!({ "triggers": { "volumeTaints": [NOT_USABLE] } })
}

/// Has the volumes of a driver watched; returns once the volume is.
async fn watch(cluster: &Cluster, volume: &str) -> Result<(), Failed> {
    let client = cluster.testbed.client(&Identity::Admin).await?;
    let found = Api::<PersistentVolume>::all(client.clone()).get(volume).await?;
    let driver = found.spec.and_then(|spec| spec.csi).ok_or("no CSI volume")?.driver;
    let spec = serde_json::from_value(json!({ "selector": { "drivers": [&driver] } }))?;
    let policies: Api<VolumeHealthPolicy> = Api::all(client.clone());
    if policies.get_opt(&driver).await?.is_none() {
        policies.create(&PostParams::default(), &VolumeHealthPolicy::new(&driver, spec)).await?;
    }
    let healths: Api<VolumeHealth> = Api::all(client);
    let watched = async || {
        let health = healths.get_opt(volume).await?;
        Ok(if health.is_some_and(|health| health.status.is_some()) { Ok(()) } else { Err("no VolumeHealth".into()) })
    };
    Ok(cluster.wait(&format!("{volume} is watched"), SOON, watched).await?)
}

/// The agent of a node finds that a volume has turned read-only there.
async fn taint(cluster: &Cluster, volume: &str, node: &str) -> Result<(), Failed> {
    watch(cluster, volume).await?;
    Agent::of(cluster, node).await?.finds(volume, true).await
}

/// The agent of a node says this.
pub async fn agent_says(cluster: &Cluster, node: &str, status: Value) -> Result<(), Failed> {
    Agent::of(cluster, node).await?.says(status).await
}

/// What speaks for the agent of a node.
struct Agent<'a> {
    cluster: &'a Cluster,
    api: Api<NodeVolumeReport>,
    node: Node,
}

impl<'a> Agent<'a> {
    async fn of(cluster: &'a Cluster, node: &str) -> Result<Self, Failed> {
        let api = Api::all(agent_of(cluster, node).await?);
        Ok(Self { cluster, api, node: Api::<Node>::all(cluster.client.clone()).get(node).await? })
    }

    fn boot_id(&self) -> Option<String> {
        self.node.status.as_ref().and_then(|status| status.node_info.as_ref()).map(|info| info.boot_id.clone())
    }

    /// A volume is read-only, or well.
    async fn finds(&self, volume: &str, trouble: bool) -> Result<(), Failed> {
        let finding = json!({
            "check": "ReadOnly", "state": "Inaccessible", "reason": "ReadOnlyRemount", "since": "2026-11-21T02:14:31Z",
        });
        let row = match trouble {
            true => json!({ "name": volume, "state": "Inaccessible", "findings": [finding] }),
            false => json!({ "name": volume, "state": "Healthy" }),
        };
        self.says(json!({ "checked": 1, "unhealthy": u8::from(trouble), "volumes": [row] })).await
    }

    async fn says(&self, mut status: Value) -> Result<(), Failed> {
        status["nodeUID"] = json!(self.node.uid());
        status["bootID"] = json!(self.boot_id());
        status["conditions"] = json!([{
            "type": "Ready", "status": "True", "reason": "Reporting", "message": "",
            "lastTransitionTime": "2026-11-21T02:14:31Z",
        }]);
        let patch = json!({ "status": status });
        let name = self.node.name_any();
        let told = async || {
            let written = self.api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            Ok(written.map(|_| ()).map_err(|error| error.to_string()))
        };
        Ok(self.cluster.wait("the agent's word is taken", SOON, told).await?)
    }
}

/// A client that speaks for the agent of a node: its token is bound to that Node.
async fn agent_of(cluster: &Cluster, node: &str) -> Result<Client, Failed> {
    const NAMESPACE: &str = "default";
    let admin = cluster.testbed.client(&Identity::Admin).await?;
    let name = format!("agent-of-{node}");
    let account: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": NAMESPACE },
    }))?;
    let binding: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": NAMESPACE }],
    }))?;
    cluster.testbed.apply(vec![account, binding]).await?;
    let uid = Api::<Node>::all(admin.clone()).get(node).await?.uid();
    let bound = json!({ "kind": "Node", "apiVersion": "v1", "name": node, "uid": uid });
    let request: TokenRequest =
        serde_json::from_value(json!({ "spec": { "audiences": [], "boundObjectRef": bound } }))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(admin, NAMESPACE);
    let answer = accounts.create_token_request(&name, &PostParams::default(), &request).await?;
    let token = answer.status.ok_or("no token")?.token;
    let mut kubeconfig = Kubeconfig::read_from(cluster.testbed.kubeconfig(&Identity::Admin)?)?;
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(serde_json::from_value(json!({ "token": token }))?);
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// The agent has looked for the volumes of the incident twice, and found nothing.
pub async fn agent_finds_nothing(cluster: &Cluster, fence: &NodeFence) -> Result<(), Failed> {
    let agent = Agent::of(cluster, &fence.name_any()).await?;
    let cleanup = json!({
        "fenceUID": fence.uid(), "episode": fence.spec.episode, "digest": fence.cleanup_digest(), "state": "Clean",
        "cleanPasses": 2, "bootID": agent.boot_id(),
    });
    agent.says(json!({ "cleanup": cleanup })).await
}

pub async fn its_pod_moves_and_nothing_else(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "tainted", LaneOptions { policy: moving(), ..LaneOptions::default() }).await?;
    let (set, other) = (lane.workload("db"), lane.workload("web"));
    lane.run(&set).await?;
    lane.run(&other).await?;
    let before = lane.before(&other).await?;
    let victim = lane.victim()?.name().to_owned();
    let volume = set.volume_name(0, 0);
    taint(cluster, &volume, &victim).await?;
    lane.moved(&set).await?;
    let pod = format!("{}-0", set.name);
    let fence =
        lane.fence("back, not clean", |it| condition(it, "NodeClean") == Some(("False", "AgentMissing"))).await?;
    assert!(is_released(&fence, &pod));
    assert_eq!(pod_row(&fence, &pod).and_then(|row| row.reason.as_deref()), Some("VolumeTaint"));
    let planned: Vec<_> = fence.spec.plan.pods.iter().map(|row| (row.name.as_str(), row.action)).collect();
    assert_eq!(planned, [(pod.as_str(), PodAction::Release)]);
    let deleted = lane.deletions(&[])?;
    assert!(!deleted.is_empty());
    let graces = deleted.iter().filter_map(|record| record.body.as_ref()).map(|body| &body["gracePeriodSeconds"]);
    assert!(graces.clone().all(Value::is_null), "a kubelet that is well is asked: {deleted:?}");
    assert_eq!(taintings(&lane, bulkhead::api::names::OUT_OF_SERVICE_TAINT)?, [], "the key acts on the whole node");
    // The volume works where it is now: what was said of the node goes with its last pod there.
    let healths: Api<VolumeHealth> = Api::all(cluster.client.clone());
    let well = async || {
        let health = healths.get(&volume).await?;
        Ok(if health.taints().is_empty() { Ok(()) } else { Err(format!("{:?}", health.taints())) })
    };
    cluster.wait("the volume is not tainted any more", SOON, well).await?;
    agent_finds_nothing(cluster, &fence).await?;
    let fence = lane.recovered().await?;
    assert_eq!(condition(&fence, "NodeClean"), Some(("True", "TwoCleanPasses")));
    assert_eq!(lane.pod(&other, 0).await?.uid(), before.uid, "another pod of the node was moved");
    // A pod can be scheduled there again.
    let next = Workload { nodes: vec![victim], ..lane.workload("next") };
    lane.run(&next).await?;
    lane.end().await
}

pub async fn one_that_is_tainted_everywhere_moves_nobody(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) =
        Lane::open(cluster, "everywhere", LaneOptions { policy: moving(), ..LaneOptions::default() }).await?;
    let volume = set.volume_name(0, 0);
    watch(cluster, &volume).await?;
    let healths: Api<VolumeHealth> = Api::all(cluster.testbed.client(&Identity::Admin).await?);
    let by_a_person = json!({ "spec": { "manualTaints": [{ "key": NOT_USABLE, "reason": "the array is replaced" }] } });
    healths.patch(&volume, &PatchParams::default(), &Patch::Merge(by_a_person)).await?;
    policy_says(cluster, "everywhere", "VolumesHeld", "True", "TaintedEverywhere").await?;
    event(cluster, "Pod", &format!("{}-0", set.name), "FenceHeld", "TaintedEverywhere").await?;
    let fences: Api<NodeFence> = Api::all(lane.client());
    assert!(fences.get_opt(lane.victim()?.name()).await?.is_none(), "an incident was opened");
    lane.assert_untouched(&set, &before).await?;
    lane.end().await
}

pub async fn no_more_nodes_than_the_budget_are_left(cluster: &Cluster) -> Result<(), Failed> {
    let policy = json!({ "triggers": { "volumeTaints": [NOT_USABLE] }, "limits": { "maxNodes": 1 } });
    let lane = Lane::new(cluster, "spent", LaneOptions { nodes: 4, policy, ..LaneOptions::default() }).await?;
    let spare = lane.nodes.last().ok_or("no node")?.name().to_owned();
    let mut sets = Vec::new();
    for (number, node) in lane.nodes.iter().take(3).enumerate() {
        let nodes = vec![node.name().to_owned(), spare.clone()];
        let set = Workload { nodes, node: Some(node.name().to_owned()), ..lane.workload(&format!("db{number}")) };
        cluster.stateful_set_on(&[lane.array()], &set).await?;
        lane.ready_on(&set, &[node.name()]).await?;
        sets.push((set, node.name().to_owned()));
    }
    for (set, node) in &sets {
        taint(cluster, &set.volume_name(0, 0), node).await?;
    }
    policy_says(cluster, "spent", "Restrained", "True", "BudgetExhausted").await?;
    let fences: Api<NodeFence> = Api::all(lane.client());
    let all = fences.list(&ListParams::default()).await?.items;
    let acted_on: Vec<_> = all.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("spent-")).collect();
    assert_eq!(acted_on.len(), 1, "{acted_on:?}");
    for (_, node) in sets.iter().filter(|(_, node)| !acted_on.contains(node)) {
        event(cluster, "Node", node, "FenceHeld", "BudgetExhausted").await?;
    }
    let first = acted_on.first().ok_or("no NodeFence")?;
    let released = |fence: &NodeFence| fence.spec.plan.pods.iter().all(|pod| is_released(fence, &pod.name));
    cluster.fence(first, "released", SOON, released).await?;
    assert_eq!(lane.deletions(&[])?.iter().filter(|record| record.succeeded()).count(), 1);
    lane.end().await
}

/// A storm of taints is the array's fault, or the observer's. And one incident, once it is begun, survives its controller.
pub async fn a_storm_moves_nobody_and_a_killed_controller_is_replaced() -> Result<(), Failed> {
    let mut cluster = Cluster::start(ClusterOptions { nodes: 4, ..options() }).await?;
    let spec = json!({
        "triggers": { "volumeTaints": [NOT_USABLE] }, "limits": { "maxUnhealthy": "50%", "cooldown": "1s" },
    });
    create_policy(&cluster.client, "storm", "storm", &spec).await?;
    let mut sets = Vec::new();
    for node in ["node-1", "node-2", "node-3"] {
        let set = Workload {
            labels: [("lane".to_owned(), "storm".to_owned())].into(),
            nodes: vec![node.to_owned(), "node-4".to_owned()],
            node: Some(node.to_owned()),
            ..Workload::new(&format!("storm-{node}"))
        };
        cluster.stateful_set(&set).await?;
        cluster.pods_ready(&set, SOON).await?;
        watch(&cluster, &set.volume_name(0, 0)).await?;
        sets.push((set, node));
    }
    let volumes: Vec<_> = sets.iter().map(|(set, node)| (set.volume_name(0, 0), *node)).collect();
    let agents = futures::future::try_join_all(volumes.iter().map(|(_, node)| Agent::of(&cluster, node))).await?;
    // What was begun before the last taint was there ends nothing either.
    let array = cluster.arrays.first().ok_or("no array")?.clone();
    let fault = array.faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    let told = agents.iter().zip(&volumes);
    futures::future::try_join_all(told.clone().map(|(agent, (volume, _))| agent.finds(volume, true))).await?;
    policy_says(&cluster, "storm", "Restrained", "True", "ArrayOutage").await?;
    for (agent, (volume, _)) in told.skip(1) {
        agent.finds(volume, false).await?;
    }
    drop(agents);
    let ((volume, node), (set, _)) = volumes.iter().zip(&sets).next().ok_or("no pod")?;
    let begun = |fence: &NodeFence| fence.spec.plan.volumes.iter().any(|row| &row.name == volume);
    cluster.fence(node, "begun", SOON, begun).await?;
    let deleted = operator_records(&cluster, |record| record.verb == "delete" && record.resource == "pods")?;
    assert_eq!(deleted, [], "something was moved in a storm, or without a proof");
    cluster.controllers.pop().ok_or("no controller")?.kill().await;
    array.faults().remove(fault);
    cluster.start_controller().await?;
    let pod = format!("{}-0", set.name);
    cluster.fence(node, "released", SOON, |fence| is_released(fence, &pod)).await?;
    let moved = async || {
        let placed = cluster.pods_ready(set, SOON).await?;
        Ok(if placed.get(&pod).is_none_or(|at| at == node) { Err(format!("{placed:?}")) } else { Ok(()) })
    };
    cluster.wait("the pod runs elsewhere", SOON, moved).await?;
    cluster.judge()?;
    Ok(())
}
