//! What happens to a victim, from the beginning of its incident to the end, and how that end looks.

use bulkhead::api::fence_request::{Desired, FenceRequest};
use bulkhead::api::names;
use bulkhead::api::network_fence::NetworkFence;
use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::array::{Array, Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterError};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::SOON;
use super::outcome::outcome;
use super::victim::Victim;
use crate::failover::look::{condition, phase};

/// The NetworkFenceClass of the array's driver, where csi-addons runs.
pub const CLASS: &str = "crash-fence";

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// The failover; then the node boots and is clean.
    Failover,
    /// The node is back before anything was begun.
    Return,
    /// A pod stays, so that attachments go one by one; the other has a finalizer, so that it is failed first. The node is
    /// back as it was, and only then it boots.
    Awkward,
    /// The policy is deleted while the fence is under way; the failover is finished, then the policy goes.
    Deletion,
    /// A failover by csi-addons, which shuts the node out by its address, and lets it in when it is clean.
    ShutOut,
}

impl Story {
    /// For names of objects.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failover => "failover",
            Self::Return => "return",
            Self::Awkward => "awkward",
            Self::Deletion => "deletion",
            Self::ShutOut => "shutout",
        }
    }

    /// Plays it on a victim, and returns what is left. The calls of `Deletion` count from the deletion on: `counting` is
    /// called then, as it is at the beginning of the others.
    pub async fn play(self, scene: &Scene<'_>, counting: impl Fn()) -> Result<Value, Failed> {
        if self != Self::Deletion {
            counting();
        }
        match self {
            Self::Failover => {
                scene.victim.protect(scene.cluster).await?;
                scene.moved().await?;
            }
            Self::Return => scene.returned().await?,
            Self::Awkward => scene.awkward().await?,
            Self::Deletion => scene.deleted(counting).await?,
            Self::ShutOut => scene.shut_out().await?,
        }
        if self != Self::Return {
            scene.victim.node.reboot().await?;
        }
        scene.recovered().await?;
        if self == Self::ShutOut {
            scene.let_in().await?;
        }
        outcome(scene.cluster, scene.victim).await
    }
}

/// Where it happens.
pub struct Scene<'a> {
    pub cluster: &'a Cluster,
    pub array: &'a Array,
    pub victim: &'a Victim,
    /// Cancelled when a program is frozen: it is not waited for.
    pub frozen: CancellationToken,
}

impl Scene<'_> {
    async fn fence(&self, what: &str, holds: impl Fn(&NodeFence) -> bool) -> Result<NodeFence, Failed> {
        Ok(self.cluster.fence(self.victim.name(), what, SOON, holds).await?)
    }

    /// Waits for something about the request for the victim; `None` when there is none.
    async fn request(&self, what: &str, holds: impl Fn(Option<&FenceRequest>) -> bool) -> Result<(), Failed> {
        let requests: Api<FenceRequest> = Api::all(self.cluster.client.clone());
        let name = names::fence_request(self.victim.name(), self.array.driver_name());
        let look = async || {
            let request = requests.get_opt(&name).await?;
            let there = request.as_ref().map(|request| (&request.spec, &request.status));
            Ok(if holds(request.as_ref()) { Ok(()) } else { Err(serde_json::to_string(&there)?) })
        };
        Ok(self.cluster.wait(&format!("FenceRequest {name}: {what}"), SOON, look).await?)
    }

    /// How far the incident got, for messages.
    async fn incident(&self) -> Result<String, ClusterError> {
        let fence = Api::<NodeFence>::all(self.cluster.client.clone()).get_opt(self.victim.name()).await?;
        let policy = Api::<ResiliencyPolicy>::all(self.cluster.client.clone()).get_opt(self.victim.name()).await?;
        let fence = fence.and_then(|fence| fence.status);
        Ok(serde_json::to_string(&(fence, policy.and_then(|policy| policy.status)))?)
    }

    /// The pod runs on another node, and the failover is over.
    async fn moved(&self) -> Result<(), Failed> {
        let pods: Api<Pod> = Api::default_namespaced(self.cluster.client.clone());
        let look = async || {
            let pod = pods.get_opt(&self.victim.pod()).await?;
            let uid = pod.as_ref().and_then(ResourceExt::uid);
            let replaced = uid.as_deref().is_some_and(|uid| uid != self.victim.first_pod());
            Ok(if replaced { Ok(()) } else { Err(self.incident().await?) })
        };
        self.cluster.wait("the pod is replaced", SOON, look).await?;
        self.cluster.pods_ready(&self.victim.set, SOON).await?;
        self.fence("Detached", |fence| phase(fence) == Some(Phase::Detached)).await?;
        Ok(())
    }

    async fn shut_out(&self) -> Result<(), Failed> {
        self.victim.has_address(self.cluster, self.array).await?;
        let method = json!({ "type": "NetworkFence", "networkFence": { "className": CLASS } });
        let fencing = json!({ "minimumProof": "Acknowledged", "methods": [method], "callTimeout": "5s" });
        self.victim.protect_by(self.cluster, &json!({ "fencing": fencing })).await?;
        self.moved().await?;
        assert_eq!(self.array.shut_out().len(), 1, "the node is not shut out, or not alone");
        Ok(())
    }

    /// Nobody is shut out, and no object is left of it.
    async fn let_in(&self) -> Result<(), Failed> {
        assert_eq!(self.array.shut_out(), [] as [String; 0]);
        let fences: Api<NetworkFence> = Api::all(self.cluster.client.clone());
        let look = async || {
            let left = fences.list(&ListParams::default()).await?.items;
            Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
        };
        Ok(self.cluster.wait("no NetworkFence is left", SOON, look).await?)
    }

    async fn awkward(&self) -> Result<(), Failed> {
        self.victim.protect(self.cluster).await?;
        let pods: Api<Pod> = Api::default_namespaced(self.cluster.client.clone());
        let look = async || {
            let pod = pods.get_opt(&self.victim.pod()).await?;
            let status = pod.as_ref().and_then(|pod| pod.status.as_ref());
            let failed = status.is_some_and(|status| status.phase.as_deref() == Some("Failed"));
            let deleted = pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
            Ok(if failed && deleted { Ok(()) } else { Err(self.incident().await?) })
        };
        self.cluster.wait("the pod is failed and deleted", SOON, look).await?;
        let let_go = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        pods.patch(&self.victim.pod(), &PatchParams::default(), &let_go).await?;
        self.moved().await?;
        self.victim.node.revive().await?;
        self.fence("back, not clean", |fence| condition(fence, "NodeClean") == Some(("False", "AgentMissing"))).await?;
        Ok(())
    }

    async fn returned(&self) -> Result<(), Failed> {
        // Without the read before it the sidecar begins nothing.
        let hang = self.array.faults().add(Fault::on(Method::ListVolumes, Effect::Hang));
        self.victim.protect(self.cluster).await?;
        self.request("asked", |request| request.is_some_and(|request| request.spec.volumes.len() == 1)).await?;
        self.victim.node.revive().await?;
        let undone = |request: Option<&FenceRequest>| request.is_none_or(|it| it.spec.desired == Desired::Unfenced);
        self.request("turned round", undone).await?;
        // What the sidecar reads now is news of yesterday.
        self.array.faults().remove(hang);
        Ok(())
    }

    /// The node is back when it was asked for, or when the leader that was to ask was frozen.
    pub async fn come_back(&self, counting: impl Fn()) -> Result<(), Failed> {
        counting();
        let hang = self.array.faults().add(Fault::on(Method::ListVolumes, Effect::Hang));
        self.victim.protect(self.cluster).await?;
        let asked = self.request("asked", |request| request.is_some_and(|request| request.spec.volumes.len() == 1));
        tokio::select! {
            asked = asked => asked?,
            () = self.frozen.cancelled() => {}
        }
        self.victim.node.revive().await?;
        let undone = |request: Option<&FenceRequest>| request.is_none_or(|it| it.spec.desired == Desired::Unfenced);
        self.request("turned round", undone).await?;
        self.array.faults().remove(hang);
        self.at_peace().await
    }

    /// Nothing of ours is on the node, and its pod is the one that it had.
    pub async fn at_peace(&self) -> Result<(), Failed> {
        let (name, client) = (self.victim.name(), || self.cluster.client.clone());
        self.cluster.nodes_usable(&[name.to_owned()]).await?;
        let look = async || {
            let fence = Api::<NodeFence>::all(client()).get_opt(name).await?;
            let active = |fence: &NodeFence| {
                phase(fence) != Some(Phase::Recovered) || fence.labels().contains_key(names::ACTIVE_LABEL)
            };
            let open = fence.filter(active).map(|fence| fence.status);
            Ok(open.map_or(Ok(()), |status| Err(format!("{status:?}"))))
        };
        self.cluster.wait("no incident is open", SOON, look).await?;
        self.request("gone", |request| request.is_none()).await?;
        let placed = self.cluster.pods_ready(&self.victim.set, SOON).await?;
        assert_eq!(placed.values().collect::<Vec<_>>(), [name]);
        let pod = Api::<Pod>::default_namespaced(client()).get(&self.victim.pod()).await?;
        assert_eq!(pod.uid().as_deref(), Some(self.victim.first_pod()), "the pod is another one");
        Ok(())
    }

    async fn deleted(&self, counting: impl Fn()) -> Result<(), Failed> {
        let hang = self.array.faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang));
        self.victim.protect(self.cluster).await?;
        let begun = |request: &FenceRequest| request.status.as_ref().is_some_and(|status| !status.volumes.is_empty());
        self.request("begun", |request| request.is_some_and(begun)).await?;
        counting();
        let policies: Api<ResiliencyPolicy> = Api::all(self.cluster.client.clone());
        policies.delete(self.victim.name(), &DeleteParams::default()).await?;
        let waits = |policy: &ResiliencyPolicy| {
            let conditions = policy.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|condition| condition.reason == "FencesOpen")
        };
        let look = async || {
            let policy = policies.get_opt(self.victim.name()).await?;
            Ok(if policy.as_ref().is_some_and(waits) { Ok(()) } else { Err(format!("{policy:?}")) })
        };
        self.cluster.wait("the policy waits for its fence", SOON, look).await?;
        self.array.faults().remove(hang);
        self.moved().await?;
        let look = async || {
            let policy = policies.get_opt(self.victim.name()).await?;
            Ok(policy.map_or(Ok(()), |policy| Err(format!("{policy:?}"))))
        };
        Ok(self.cluster.wait("the policy is gone", SOON, look).await?)
    }

    /// The incident is over and nothing of it is left but the record.
    async fn recovered(&self) -> Result<(), Failed> {
        let over = |fence: &NodeFence| {
            phase(fence) == Some(Phase::Recovered) && !fence.labels().contains_key(names::ACTIVE_LABEL)
        };
        self.fence("Recovered", over).await?;
        self.request("gone", |request| request.is_none()).await?;
        self.cluster.nodes_usable(&[self.victim.name().to_owned()]).await?;
        self.cluster.pods_ready(&self.victim.set, SOON).await?;
        // The last write.
        let policies: Api<ResiliencyPolicy> = Api::all(self.cluster.client.clone());
        let look = async || {
            let status = policies.get_opt(self.victim.name()).await?.and_then(|policy| policy.status);
            let told = status.as_ref().is_none_or(|status| status.active_fences.is_empty());
            Ok(if told { Ok(()) } else { Err(format!("{status:?}")) })
        };
        Ok(self.cluster.wait("the policy has no fence", SOON, look).await?)
    }
}
