//! Method NetworkFence: csi-addons, played with its habits, shuts the addresses of a node out of the array, and lets them in.

use std::sync::Arc;

use bulkhead::api::driver_report::{Capability, DriverReport};
use bulkhead::api::fence_request::{FenceOutcome, FenceRequest};
use bulkhead::api::fencing::{FenceMethodType, Proof};
use bulkhead::api::names;
use bulkhead::api::network_fence::{CsiAddonsNode, FenceState, NetworkFence};
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::array::{Array, ArrayOptions, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterOptions, Workload};
use bulkhead_testbed::csi_addons::{CsiAddons, Faults, tell_clients};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::fleet::{Lane, LaneOptions, SOON, options};
use super::kept::Kept;
use super::look::{Before, answer, condition, volume_row};
use super::volume_taints::agent_says;

pub(super) fn by(class: &str) -> Value {
    let method = json!({ "type": "NetworkFence", "networkFence": { "className": class } });
    json!({ "fencing": { "minimumProof": "Acknowledged", "methods": [method], "callTimeout": "5s", "giveUpAfter": "10s" } })
}

/// A lane whose nodes the array knows by an address, with a workload on the victim.
pub(super) struct Scene<'a> {
    pub(super) lane: Lane<'a>,
    pub(super) set: Workload,
    pub(super) before: Before,
    pub(super) csi_addons: CsiAddons,
}

impl<'a> Scene<'a> {
    pub(super) async fn new(cluster: &'a Cluster, name: &str, net: u8) -> Result<Self, Failed> {
        Self::with(cluster, name, net, by(name)).await
    }

    async fn with(cluster: &'a Cluster, name: &str, net: u8, policy: Value) -> Result<Self, Failed> {
        Self::on(cluster, name, net, LaneOptions { policy, ..LaneOptions::default() }).await
    }

    /// The same in a lane that is made so.
    pub(super) async fn on(cluster: &'a Cluster, name: &str, net: u8, options: LaneOptions) -> Result<Self, Failed> {
        let mut lane = Lane::new(cluster, name, LaneOptions { sidecar: false, ..options }).await?;
        let csi_addons =
            CsiAddons::start(&cluster.testbed, cluster.client.clone(), lane.storage.array.clone(), name).await?;
        lane.sidecar = Some(Kept::new(cluster.sidecar(lane.array())?));
        for (number, node) in (1..).zip(&lane.nodes) {
            let address = format!("10.77.{net}.{number}");
            lane.array().set_client_address(node.csi_node_id(), &address)?;
            has_address(cluster, node.name(), &address).await?;
        }
        can_fence(cluster, lane.array().driver_name()).await?;
        let set = lane.workload("db");
        lane.run(&set).await?;
        let before = lane.before(&set).await?;
        Ok(Self { lane, set, before, csi_addons })
    }

    pub(super) fn volume(&self) -> String {
        self.set.volume_name(0, 0)
    }

    /// Waits until the sidecar has answered with this reason.
    async fn answered(&self, outcome: FenceOutcome, reason: &str) -> Result<FenceRequest, Failed> {
        self.lane.answered(&self.volume(), outcome, reason).await
    }

    /// The pods are where they were, and nobody is shut out.
    pub(super) async fn assert_held(&self) -> Result<(), Failed> {
        assert!(self.lane.array().shut_out().is_empty(), "somebody is shut out");
        self.lane.assert_untouched(&self.set, &self.before).await
    }

    /// NetworkFences of ours for the victim.
    pub(super) async fn fences(&self) -> Result<Vec<NetworkFence>, Failed> {
        let all = Api::<NetworkFence>::all(self.lane.client()).list(&ListParams::default()).await?;
        let victim = self.lane.victim()?.name().to_owned();
        let is_ours = |fence: &NetworkFence| fence.annotations().get(names::FENCED_NODE_ANNOTATION) == Some(&victim);
        Ok(all.items.into_iter().filter(is_ours).collect())
    }

    /// The victim comes back from a reboot and gets its access back.
    pub(super) async fn comes_back(&self) -> Result<(), Failed> {
        self.lane.victim()?.reboot().await?;
        self.lane.recovered().await?;
        assert_eq!(self.lane.array().shut_out(), [] as [String; 0]);
        let gone = async || {
            let left = self.fences().await.map_err(|error| format!("{error:?}"));
            Ok(left.and_then(|left| if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }))
        };
        Ok(self.lane.cluster.wait("the NetworkFence is gone", SOON, gone).await?)
    }

    /// There is one NetworkFence, whatever has come of it.
    pub(super) async fn is_made(&self) -> Result<(), Failed> {
        let made = async || {
            let made = self.fences().await.map_err(|error| format!("{error:?}"));
            Ok(made.and_then(|made| if made.len() == 1 { Ok(()) } else { Err(format!("{made:?}")) }))
        };
        Ok(self.lane.cluster.wait("a NetworkFence is made", SOON, made).await?)
    }

    /// Somebody lets in whom we shut out: it is asked for again, and carried out when they are done.
    pub(super) async fn is_made_again(&self, class: &str, address: &str) -> Result<(), Failed> {
        let round = |request: &FenceRequest| request.spec.volumes.iter().map(|volume| volume.round).max();
        let before = round(&self.lane.request("it is still fenced", FenceRequest::shuts_out).await?);
        let fences: Api<NetworkFence> = Api::all(self.lane.client());
        let name = format!("{class}-let-in");
        let theirs: NetworkFence = serde_json::from_value(json!({
            "apiVersion": "csiaddons.openshift.io/v1alpha1", "kind": "NetworkFence", "metadata": { "name": name },
            "spec": { "networkFenceClassName": class, "fenceState": "Unfenced", "cidrs": [address] },
        }))?;
        fences.create(&PostParams::default(), &theirs).await?;
        self.lane.request("asked for again", |request| round(request) > before).await?;
        assert_eq!(clients_out(self.lane.array()), [] as [String; 0], "shut out while somebody lets it in");
        fences.delete(&name, &DeleteParams::default()).await?;
        let again = async || {
            let out = clients_out(self.lane.array());
            Ok(if out == [address] { Ok(()) } else { Err(format!("{out:?}")) })
        };
        Ok(self.lane.cluster.wait("it is shut out again", SOON, again).await?)
    }
}

/// The agent of a node reports this address, by which the array sees it, beside that of the Node.
pub(super) async fn has_address(cluster: &Cluster, node: &str, address: &str) -> Result<(), Failed> {
    has_addresses(cluster, node, &[address]).await
}

/// The agent of a node reports these addresses beside those of the Node.
pub(super) async fn has_addresses(cluster: &Cluster, node: &str, further: &[&str]) -> Result<(), Failed> {
    let status = Api::<Node>::all(cluster.client.clone()).get(node).await?.status.unwrap_or_default();
    let addresses = status.addresses.unwrap_or_default().into_iter();
    let internal = addresses.filter(|it| it.type_ == "InternalIP").map(|it| it.address);
    let all: Vec<_> = further.iter().map(|address| (*address).to_owned()).chain(internal).collect();
    agent_says(cluster, node, json!({ "addresses": all })).await
}

/// The addresses that are shut out, without those of the Nodes, by which the array does not see them.
pub(super) fn clients_out(array: &Array) -> Vec<String> {
    array.shut_out().into_iter().filter(|cidr| !cidr.starts_with("172.16.")).collect()
}

/// Waits until the sidecar has found a class for its driver.
pub(super) async fn can_fence(cluster: &Cluster, driver: &str) -> Result<(), Failed> {
    let reports: Api<DriverReport> = Api::all(cluster.client.clone());
    let look = async || {
        let status = reports.get_opt(driver).await?.and_then(|report| report.status).unwrap_or_default();
        let can = status.capabilities.contains(&Capability::NetworkFence);
        Ok(if can { Ok(()) } else { Err(format!("{:?}", status.capabilities)) })
    };
    Ok(cluster.wait("a NetworkFenceClass is found", SOON, look).await?)
}

/// Waits until the sidecar has put on record by what the array knows a node.
pub(super) async fn is_on_record(cluster: &Cluster, driver: &str, node: &str, address: &str) -> Result<(), Failed> {
    let reports: Api<DriverReport> = Api::all(cluster.client.clone());
    let look = async || {
        let status = reports.get_opt(driver).await?.and_then(|report| report.status).unwrap_or_default();
        let known = status.network_fence_clients;
        let is_known = known.iter().any(|it| it.node == node && it.addresses == [address]);
        Ok(if is_known { Ok(()) } else { Err(format!("{known:?}")) })
    };
    Ok(cluster.wait("the clients of the node are on record", SOON, look).await?)
}

pub async fn a_node_is_shut_out_and_let_in_again(cluster: &Cluster) -> Result<(), Failed> {
    let scene = Scene::new(cluster, "netfence", 1).await?;
    // Cut off from the API, and still writing.
    scene.lane.victim()?.kill().await;
    scene.lane.moved(&scene.set).await?;
    let fence = scene.lane.detached().await?;
    let row = volume_row(&fence, &scene.volume()).ok_or("no row")?;
    assert_eq!((row.method, row.proof), (Some(FenceMethodType::NetworkFence), Proof::Acknowledged));
    assert_eq!(clients_out(scene.lane.array()), ["10.77.1.1/32"]);
    assert!(fence.spec.node.addresses.iter().any(|address| address == "10.77.1.1"), "{:?}", fence.spec.node);
    // Every object is worked on again, and that changes nothing.
    let fenced = || scene.csi_addons.operations().iter().filter(|it| it.fenced).count();
    let before = fenced();
    scene.csi_addons.restart();
    let again = async || Ok(if fenced() > before { Ok(()) } else { Err(format!("{before} operations")) });
    cluster.wait("every object is worked on again", SOON, again).await?;
    scene.comes_back().await?;
    let operations = scene.csi_addons.operations();
    assert!(operations.first().is_some_and(|first| first.fenced), "{operations:?}");
    assert_eq!(operations.iter().filter(|it| !it.fenced).count(), 1, "{operations:?}");
    assert!(operations.last().is_some_and(|last| !last.fenced), "{operations:?}");
    scene.lane.end().await
}

pub async fn a_fence_that_fails_holds_the_pods(cluster: &Cluster) -> Result<(), Failed> {
    let scene = Scene::new(cluster, "netfails", 2).await?;
    scene.csi_addons.set_faults(Faults { fails: true, ..Faults::default() });
    scene.lane.victim()?.kill().await;
    let request = scene.answered(FenceOutcome::Failed, "NetworkFenceFailed").await?;
    assert!(answer(&request, &scene.volume()).is_some_and(|row| row.started_at.is_some()));
    scene.assert_held().await?;
    scene.csi_addons.set_faults(Faults::default());
    scene.lane.moved(&scene.set).await?;
    scene.comes_back().await?;
    scene.lane.end().await
}

pub async fn an_address_of_another_node_is_not_shut_out(cluster: &Cluster) -> Result<(), Failed> {
    let scene = Scene::new(cluster, "netclaim", 3).await?;
    let other = scene.lane.nodes.get(1).ok_or("no other node")?.name().to_owned();
    agent_says(cluster, &other, json!({ "addresses": ["10.77.3.1", "10.77.3.2"] })).await?;
    scene.lane.victim()?.kill().await;
    let request = scene.answered(FenceOutcome::Failed, "AddressClaimed").await?;
    let message = answer(&request, &scene.volume()).and_then(|row| row.message.clone()).unwrap_or_default();
    assert!(message.contains(&other) && message.contains("10.77.3.1"), "{message}");
    assert_eq!(scene.fences().await?.len(), 0);
    scene.assert_held().await?;
    agent_says(cluster, &other, json!({ "addresses": ["10.77.3.2"] })).await?;
    scene.lane.moved(&scene.set).await?;
    scene.comes_back().await?;
    scene.lane.end().await
}

/// Behind a NAT the array knows the node by none of its own addresses, and csi-addons forgets the plugin of a node that fails.
pub async fn the_address_that_the_array_sees_is_shut_out(cluster: &Cluster) -> Result<(), Failed> {
    let mut scene = Scene::new(cluster, "netnat", 4).await?;
    let driver = scene.lane.array().driver_name().to_owned();
    let victim = scene.lane.victim()?.name().to_owned();
    scene.lane.array().set_client_address(scene.lane.victim()?.csi_node_id(), "192.0.2.4")?;
    let plugin = tell_clients(cluster.client.clone(), &driver, &victim, "netnat", &["192.0.2.4/32"]).await?;
    is_on_record(cluster, &driver, &victim, "192.0.2.4/32").await?;
    scene.lane.victim()?.kill().await;
    let plugins: Api<CsiAddonsNode> = Api::namespaced(cluster.client.clone(), "default");
    plugins.delete(&plugin.name_any(), &DeleteParams::default()).await?;
    // The record outlives who wrote it.
    scene.lane.sidecar = None;
    scene.lane.sidecar = Some(Kept::new(cluster.sidecar(scene.lane.array())?));
    scene.lane.moved(&scene.set).await?;
    assert_eq!(scene.lane.array().shut_out(), ["192.0.2.4/32"]);
    scene.comes_back().await?;
    scene.lane.end().await
}

pub async fn an_address_that_others_want_out_stays_out(cluster: &Cluster) -> Result<(), Failed> {
    let scene = Scene::new(cluster, "netshared", 5).await?;
    scene.lane.victim()?.kill().await;
    scene.lane.moved(&scene.set).await?;
    scene.lane.detached().await?;
    let fences: Api<NetworkFence> = Api::all(scene.lane.client());
    let theirs: NetworkFence = serde_json::from_value(json!({
        "apiVersion": "csiaddons.openshift.io/v1alpha1", "kind": "NetworkFence", "metadata": { "name": "of-a-person" },
        "spec": { "networkFenceClassName": "netshared", "fenceState": "Fenced", "cidrs": ["10.77.5.0/24"] },
    }))?;
    fences.create(&PostParams::default(), &theirs).await?;
    scene.lane.victim()?.reboot().await?;
    scene.answered(FenceOutcome::Fenced, "AddressShared").await?;
    let tainted = scene.lane.taints().await?.into_iter().any(|taint| taint.key == names::FENCED_TAINT);
    assert!(tainted, "a node that is shut out was untainted");
    assert!(scene.fences().await?.iter().all(|fence| fence.spec.fence_state == FenceState::Fenced));
    assert!(scene.csi_addons.operations().iter().all(|operation| operation.fenced));
    // The person lifts theirs.
    scene.lane.array().fence_network(&["10.77.5.0/24".to_owned()], false)?;
    fences.delete("of-a-person", &DeleteParams::default()).await?;
    scene.lane.recovered().await?;
    assert_eq!(scene.lane.array().shut_out(), [] as [String; 0]);
    scene.lane.end().await
}

/// The sidecar dies while csi-addons is at work, and again while it lifts: one object, and the same end.
pub async fn a_sidecar_that_died_goes_on_where_it_was(cluster: &Cluster) -> Result<(), Failed> {
    let mut scene = Scene::new(cluster, "netdies", 6).await?;
    scene.csi_addons.set_faults(Faults { hangs: true, ..Faults::default() });
    scene.lane.victim()?.kill().await;
    scene.lane.begun(&scene.volume()).await?;
    scene.is_made().await?;
    let first: Vec<_> = scene.fences().await?.iter().map(ResourceExt::name_any).collect();
    scene.lane.sidecar = None;
    scene.lane.sidecar = Some(Kept::new(cluster.sidecar(scene.lane.array())?));
    scene.csi_addons.set_faults(Faults::default());
    scene.lane.moved(&scene.set).await?;
    scene.lane.detached().await?;
    let now: Vec<_> = scene.fences().await?.iter().map(ResourceExt::name_any).collect();
    assert_eq!(now, first, "it was made twice");
    scene.csi_addons.set_faults(Faults { hangs: true, ..Faults::default() });
    scene.lane.victim()?.reboot().await?;
    let volume = scene.volume();
    let unfencing = |request: &FenceRequest| {
        answer(request, &volume).is_some_and(|row| row.reason.as_deref() == Some("NetworkUnfencing"))
    };
    scene.lane.request("csi-addons is waited for", unfencing).await?;
    scene.lane.sidecar = None;
    scene.lane.sidecar = Some(Kept::new(cluster.sidecar(scene.lane.array())?));
    scene.csi_addons.set_faults(Faults::default());
    scene.lane.recovered().await?;
    assert_eq!(scene.lane.array().shut_out(), [] as [String; 0]);
    scene.lane.end().await
}

/// Deleting the object lifts nothing. It is lifted all the same when the node is back.
pub async fn a_fence_that_somebody_deleted_is_lifted(cluster: &Cluster) -> Result<(), Failed> {
    let scene = Scene::new(cluster, "netdeleted", 7).await?;
    scene.lane.victim()?.kill().await;
    scene.lane.moved(&scene.set).await?;
    scene.lane.detached().await?;
    let fences: Api<NetworkFence> = Api::all(scene.lane.client());
    for fence in scene.fences().await? {
        fences.delete(&fence.name_any(), &DeleteParams::default()).await?;
    }
    assert_eq!(clients_out(scene.lane.array()), ["10.77.7.1/32"]);
    scene.comes_back().await?;
    scene.lane.end().await
}

/// The node is back and not clean: nobody waits for a proof any more, and what ran there would write on.
pub async fn a_fence_that_somebody_lifts_too_early_is_made_again(cluster: &Cluster) -> Result<(), Failed> {
    let scene = Scene::new(cluster, "netlifted", 11).await?;
    scene.lane.victim()?.kill().await;
    scene.lane.moved(&scene.set).await?;
    scene.lane.detached().await?;
    scene.lane.victim()?.revive().await?;
    let unclean = |fence: &NodeFence| condition(fence, "NodeClean") == Some(("False", "AgentMissing"));
    scene.lane.fence("back, not clean", unclean).await?;
    scene.is_made_again("netlifted", "10.77.11.1/32").await?;
    scene.comes_back().await?;
    scene.lane.end().await
}

/// Two drivers shut the same node out by the same addresses: neither waits for the other to let it in again.
pub async fn two_drivers_of_a_node_let_it_in_again(cluster: &Cluster) -> Result<(), Failed> {
    let (driver, class) = ("nettwo-other.csi.test", "nettwo-other");
    let other = ArrayOptions { driver_name: driver.into(), ..ArrayOptions::default() };
    let other = cluster.add_array(&other).await?;
    let method = json!({ "type": "NetworkFence", "networkFence": { "className": class } });
    let mut policy = by("nettwo");
    policy["fencing"]["drivers"] = json!([{ "name": driver, "methods": [method] }]);
    let scene = Scene::with(cluster, "nettwo", 10, policy).await?;
    let _csi_addons = CsiAddons::start(&cluster.testbed, cluster.client.clone(), other.array.clone(), class).await?;
    let _sidecar = Kept::new(cluster.sidecar(&other.array)?);
    for (number, node) in (1..).zip(&scene.lane.nodes) {
        other.array.set_client_address(node.csi_node_id(), &format!("10.77.10.{number}"))?;
    }
    can_fence(cluster, driver).await?;
    let second = scene.lane.workload("second");
    scene.lane.run_on(&[&other.array], &second).await?;
    scene.lane.victim()?.kill().await;
    scene.lane.moved(&scene.set).await?;
    scene.lane.moved(&second).await?;
    scene.lane.detached().await?;
    assert_eq!(clients_out(scene.lane.array()), ["10.77.10.1/32"]);
    assert_eq!(clients_out(&other.array), ["10.77.10.1/32"]);
    scene.comes_back().await?;
    assert_eq!(other.array.shut_out(), [] as [String; 0]);
    scene.lane.end().await
}

/// Told at noon, waited for at night, and used as soon as it is there.
pub async fn without_csi_addons_the_pods_wait() -> Result<(), Failed> {
    let cluster = Cluster::start(ClusterOptions { arrays: Vec::new(), nodes: 2, ..options() }).await?;
    let (lane, set, before) =
        Lane::open(&cluster, "netless", LaneOptions { policy: by("netless"), ..LaneOptions::default() }).await?;
    let policies: Api<ResiliencyPolicy> = Api::all(cluster.client.clone());
    let told = async || {
        let status = policies.get("netless").await?.status.unwrap_or_default();
        let ready = status.conditions.iter().find(|condition| condition.type_ == "FenceReady");
        let is_told = ready.is_some_and(|it| it.reason == "ClassNotFound" && it.message.contains("netless"));
        Ok(if is_told { Ok(()) } else { Err(format!("{ready:?}")) })
    };
    cluster.wait("the policy says what is missing", SOON, told).await?;
    let victim = lane.victim()?;
    lane.array().set_client_address(victim.csi_node_id(), "10.77.8.1")?;
    has_address(&cluster, victim.name(), "10.77.8.1").await?;
    victim.kill().await;
    let volume = set.volume_name(0, 0);
    let held = lane.fence("held by name", |fence| {
        volume_row(fence, &volume).is_some_and(|row| row.reason.as_deref() == Some("ClassNotFound"))
    });
    held.await?;
    lane.assert_untouched(&set, &before).await?;
    let array: Arc<_> = lane.storage.array.clone();
    let _csi_addons = CsiAddons::start(&cluster.testbed, cluster.client.clone(), array, "netless").await?;
    lane.moved(&set).await?;
    assert_eq!(clients_out(lane.array()), ["10.77.8.1/32"]);
    let calls = lane.array().calls().count(Method::ControllerPublishVolume);
    assert!(calls >= 2, "it did not move");
    lane.end().await
}
