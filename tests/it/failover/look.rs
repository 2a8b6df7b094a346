//! What tests look at: conditions and rows of our objects, Events, and what the operator asked of the API server.

use bulkhead::api::conditions;
use bulkhead::api::fence_request::{FenceOutcome, FenceRequest, FenceResult};
use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, Phase, PodStatus, PodStatusState, VolumeStatus};
use bulkhead_testbed::Identity;
use bulkhead_testbed::audit::Record;
use bulkhead_testbed::cluster::{Cluster, ClusterError, Workload};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;

use super::fleet::{Lane, LaneOptions, SOON};

/// A condition of a NodeFence, as (status, reason).
pub fn condition<'a>(fence: &'a NodeFence, type_: &str) -> Option<(&'a str, &'a str)> {
    let status = fence.status.as_ref()?;
    let condition: &Condition = conditions::find(&status.conditions, type_)?;
    Some((condition.status.as_str(), condition.reason.as_str()))
}

pub fn phase(fence: &NodeFence) -> Option<Phase> {
    fence.status.as_ref().and_then(|status| status.phase)
}

/// The row of a volume, by PersistentVolume name.
pub fn volume_row<'a>(fence: &'a NodeFence, volume: &str) -> Option<&'a VolumeStatus> {
    fence.status.as_ref()?.volumes.iter().find(|row| row.name == volume)
}

/// The row of a pod, by its name.
pub fn pod_row<'a>(fence: &'a NodeFence, pod: &str) -> Option<&'a PodStatus> {
    let planned = fence.spec.plan.pods.iter().find(|planned| planned.name == pod)?;
    fence.status.as_ref()?.pods.iter().find(|row| row.uid == planned.uid)
}

pub fn is_released(fence: &NodeFence, pod: &str) -> bool {
    pod_row(fence, pod).is_some_and(|row| row.state == PodStatusState::Released)
}

/// The fencer's answer for a volume.
pub fn answer<'a>(request: &'a FenceRequest, volume: &str) -> Option<&'a FenceResult> {
    request.status.as_ref()?.volumes.iter().find(|row| row.name == volume)
}

/// A workload as it was before its node died.
pub struct Before {
    /// The uid of its first pod.
    pub uid: Option<String>,
    /// The victim's attachments.
    pub attachments: Vec<String>,
}

impl<'a> Lane<'a> {
    /// A lane with one protected pod with one volume, which runs on the victim.
    pub async fn open(
        cluster: &'a Cluster,
        name: &str,
        options: LaneOptions,
    ) -> Result<(Self, Workload, Before), Failed> {
        let lane = Self::new(cluster, name, options).await?;
        let set = lane.workload("db");
        lane.run(&set).await?;
        let before = lane.before(&set).await?;
        Ok((lane, set, before))
    }
}

impl Lane<'_> {
    pub async fn before(&self, set: &Workload) -> Result<Before, Failed> {
        Ok(Before { uid: self.pod(set, 0).await?.uid(), attachments: self.attachments().await? })
    }

    /// Nothing of the workload was deleted: same pod, same attachments.
    pub async fn assert_untouched(&self, set: &Workload, before: &Before) -> Result<(), Failed> {
        assert_eq!(self.pod(set, 0).await?.uid(), before.uid, "the pod is another one");
        assert_eq!(self.attachments().await?, before.attachments);
        assert_eq!(self.deletions(&before.attachments)?, [], "the operator deleted something");
        Ok(())
    }

    /// Waits until the fencer's answer for a volume is this, with this reason.
    pub async fn answered(&self, volume: &str, outcome: FenceOutcome, reason: &str) -> Result<FenceRequest, Failed> {
        self.request(reason, |request| {
            answer(request, volume)
                .is_some_and(|row| row.result == outcome && row.reason.as_deref().unwrap_or_default() == reason)
        })
        .await
    }

    /// Waits until the sidecar has recorded that it begins with a volume.
    pub async fn begun(&self, volume: &str) -> Result<FenceRequest, Failed> {
        self.request("begun", |request| {
            answer(request, volume).is_some_and(|row| row.result == FenceOutcome::Started && row.started_at.is_some())
        })
        .await
    }

    /// Waits for something about the victim's NodeFence.
    pub async fn fence(&self, what: &str, holds: impl Fn(&NodeFence) -> bool) -> Result<NodeFence, Failed> {
        Ok(self.cluster.fence(self.victim()?.name(), what, SOON, holds).await?)
    }

    /// Waits until the failover of the whole lane is over but for the node itself.
    pub async fn detached(&self) -> Result<NodeFence, Failed> {
        self.fence("Detached", |fence| phase(fence) == Some(Phase::Detached)).await
    }

    /// Waits for something about the FenceRequest of the lane's sidecar for the victim.
    pub async fn request(&self, what: &str, holds: impl Fn(&FenceRequest) -> bool) -> Result<FenceRequest, Failed> {
        self.request_of(self.array().driver_name(), what, holds).await
    }

    /// Waits for something about a fencer's FenceRequest for the victim.
    pub async fn request_of(
        &self,
        fencer: &str,
        what: &str,
        holds: impl Fn(&FenceRequest) -> bool,
    ) -> Result<FenceRequest, Failed> {
        let api: Api<FenceRequest> = Api::all(self.client());
        let name = names::fence_request(self.victim()?.name(), fencer);
        let look = async || {
            let request = api.get_opt(&name).await?;
            Ok(match request {
                Some(request) if holds(&request) => Ok(request),
                other => Err(serde_json::to_string(&other.map(|request| (request.spec, request.status)))?),
            })
        };
        Ok(self.cluster.wait(&format!("FenceRequest {name}: {what}"), SOON, look).await?)
    }

    /// What the operator deleted of this lane: its pods, and the attachments to its nodes that are in `attachments`.
    pub fn deletions(&self, attachments: &[String]) -> Result<Vec<Record>, Failed> {
        let pods = format!("{}-", self.name);
        operator_records(self.cluster, |record| {
            record.verb == "delete"
                && (record.resource == "pods" && record.name.starts_with(&pods)
                    || record.resource == "volumeattachments" && attachments.contains(&record.name))
        })
    }

    /// Names of the attachments to the victim.
    pub async fn attachments(&self) -> Result<Vec<String>, Failed> {
        let api: Api<VolumeAttachment> = Api::all(self.client());
        let victim = self.victim()?.name();
        let all = api.list(&ListParams::default()).await?;
        let ours = all.items.into_iter().filter(|attachment| attachment.spec.node_name == victim);
        Ok(ours.map(|attachment| attachment.name_any()).collect())
    }

    pub async fn pod(&self, set: &Workload, replica: usize) -> Result<Pod, Failed> {
        let api: Api<Pod> = Api::namespaced(self.client(), &set.namespace);
        Ok(api.get(&format!("{}-{replica}", set.name)).await?)
    }

    /// Waits for an Event about the victim's NodeFence, and returns its note.
    pub async fn event(&self, reason: &str, note: &str) -> Result<String, Failed> {
        let victim = self.victim()?.name();
        event(self.cluster, "NodeFence", victim, reason, note).await
    }

    pub async fn taints(&self) -> Result<Vec<Taint>, Failed> {
        let api: Api<Node> = Api::all(self.client());
        let node = api.get(self.victim()?.name()).await?;
        Ok(node.spec.and_then(|spec| spec.taints).unwrap_or_default())
    }

    /// Waits until the incident is over and nothing of it is left but the record.
    pub async fn recovered(&self) -> Result<NodeFence, Failed> {
        let fence = self.fence("Recovered", |fence| phase(fence) == Some(Phase::Recovered)).await?;
        assert!(!fence.labels().contains_key(names::ACTIVE_LABEL), "the active label is still there");
        let ours = self.taints().await?.into_iter().find(|taint| taint.key == names::FENCED_TAINT);
        assert_eq!(ours, None, "our taint is still there");
        let requests: Api<FenceRequest> = Api::all(self.client());
        let field = format!("spec.nodeName={}", self.victim()?.name());
        let left = requests.list(&ListParams::default().fields(&field)).await?;
        assert_eq!(left.items.len(), 0, "FenceRequests are still there");
        Ok(fence)
    }
}

/// Waits for an Event about an object, with a text in its note.
pub async fn event(cluster: &Cluster, kind: &str, name: &str, reason: &str, note: &str) -> Result<String, Failed> {
    let api: Api<Event> = Api::all(cluster.client.clone());
    let look = async || -> Result<Result<String, String>, ClusterError> {
        let about = ListParams::default().fields(&format!("regarding.name={name},reason={reason}"));
        let events = api.list(&about).await?.items.into_iter();
        let notes: Vec<_> = events
            .filter(|event| event.regarding.as_ref().is_some_and(|about| about.kind.as_deref() == Some(kind)))
            .filter_map(|event| event.note)
            .collect();
        let found = notes.iter().find(|text| text.contains(note)).cloned();
        Ok(found.ok_or_else(|| format!("{notes:?}")))
    };
    Ok(cluster.wait(&format!("Event {reason} on {kind} {name} with {note:?}"), SOON, look).await?)
}

/// What the controller asked of the API server.
pub fn operator_records(cluster: &Cluster, matches: impl Fn(&Record) -> bool) -> Result<Vec<Record>, Failed> {
    let user = Identity::OperatorController.user();
    let records = cluster.testbed.audit().records()?;
    Ok(records.filter(|record| record.user == user && matches(record)).collect())
}
