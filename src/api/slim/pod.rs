//! Pods: where they are bound, what they use, how they do.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::api::selector::LabelSelector;

use super::{StatusCondition, metadata, nullable, part, slim};

slim! {
    /// A Pod.
    Pod: core::Pod {
        /// Spec.
        spec: PodSpec,
        /// Status.
        status: PodStatus,
    }
}

part! {
    /// Spec of a Pod.
    PodSpec {
        /// Node it is bound to.
        node_name: Option<String>,
        /// Its priority, resolved from the PriorityClass.
        priority: Option<i32>,
        /// Its volumes.
        volumes: Vec<Volume>,
        /// What it waits for before it is scheduled.
        scheduling_gates: Vec<SchedulingGate>,
        /// As whom its containers run.
        security_context: PodSecurity,
        /// Beside whom it must run.
        affinity: Affinity,
        /// Whether it may be bound to a fenced node.
        tolerations: Tolerations,
    }
}

part! {
    /// Beside whom a pod must run.
    Affinity {
        /// Other pods.
        pod_affinity: PodAffinity,
    }
}

part! {
    /// Beside which pods a pod must run.
    PodAffinity {
        /// All of them must be there.
        required_during_scheduling_ignored_during_execution: Vec<PodAffinityTerm>,
    }
}

part! {
    /// A pod that must be in the same place.
    PodAffinityTerm {
        /// Its labels; absent: none.
        label_selector: Option<LabelSelector>,
        /// Its namespace is one of these.
        namespaces: Vec<String>,
        /// Or has these labels.
        namespace_selector: Option<LabelSelector>,
        /// The label of the node whose value is the place.
        topology_key: String,
    }
}

part! {
    /// As whom the containers of a pod run.
    PodSecurity {
        /// Group that owns its volumes.
        fs_group: Option<i64>,
    }
}

part! {
    /// What a pod waits for before it is scheduled.
    SchedulingGate {
        /// Its name.
        name: String,
    }
}

part! {
    /// Status of a Pod.
    PodStatus {
        /// Pending, Running, Succeeded, Failed or Unknown.
        phase: Option<String>,
        /// Its conditions.
        conditions: Vec<StatusCondition>,
        /// Its containers.
        container_statuses: Vec<ContainerStatus>,
        /// Its init containers.
        init_container_statuses: Vec<ContainerStatus>,
    }
}

part! {
    /// Status of a container.
    ContainerStatus {
        /// Its name.
        name: String,
        /// What it does now.
        state: ContainerState,
    }
}

part! {
    /// What a container does now, as far as it does not run.
    ContainerState {
        /// Why it does not run.
        waiting: Option<Waiting>,
    }
}

part! {
    /// Why a container does not run.
    Waiting {
        /// In CamelCase.
        reason: String,
    }
}

/// The tolerations of a pod: of each of very many pods one answer is kept, not the lists that all of them are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Toleration>", into = "Vec<Toleration>")]
pub struct Tolerations {
    /// Whether a scheduler may bind it to a node with the taint of a fenced one.
    pub fence: bool,
}

part! {
    /// A taint that a pod tolerates, as the API has it.
    Toleration {
        /// Key of the taint; empty: all of them.
        key: String,
        /// Exists or Equal; empty: Equal.
        operator: String,
        /// Effect of the taint; empty: all of them.
        effect: String,
    }
}

impl From<Vec<Toleration>> for Tolerations {
    fn from(all: Vec<Toleration>) -> Self {
        let fence = all.iter().any(|it| {
            // The taint has another value in each episode: what is Equal to one is not meant.
            it.operator == "Exists"
                && (it.key.is_empty() || it.key == crate::api::names::FENCED_TAINT)
                && (it.effect.is_empty() || it.effect == "NoSchedule")
        });
        Self { fence }
    }
}

impl From<Tolerations> for Vec<Toleration> {
    fn from(tolerations: Tolerations) -> Self {
        let fence = Toleration {
            key: crate::api::names::FENCED_TAINT.into(),
            operator: "Exists".into(),
            effect: "NoSchedule".into(),
        };
        if tolerations.fence { vec![fence] } else { Vec::new() }
    }
}

/// A volume of a pod and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "RawVolume", into = "RawVolume")]
pub struct Volume {
    /// Name inside the pod.
    pub name: String,
    /// Where it comes from.
    pub source: VolumeSource,
}

/// Where a volume comes from, as far as fencing is concerned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeSource {
    /// A PersistentVolumeClaim of that name.
    Claim(String),
    /// A generic ephemeral volume: its claim is named after pod and volume.
    Ephemeral,
    /// An inline volume of that CSI driver.
    InlineCsi(String),
    /// That directory of the node.
    HostPath(String),
    /// Lives and dies with the pod (emptyDir, configMap, secret, projected, downwardAPI, image).
    PodLocal,
    /// Anything else, by the name of its field.
    Other(String),
}

/// Whether a volume lives and dies with its pod, by the name of the field that says where it comes from.
pub fn is_pod_local(source: &str) -> bool {
    matches!(source, "emptyDir" | "configMap" | "secret" | "projected" | "downwardAPI" | "image")
}

#[derive(Serialize, Deserialize)]
struct RawVolume {
    name: String,
    #[serde(flatten)]
    sources: BTreeMap<String, serde_json::Value>,
}

impl From<RawVolume> for Volume {
    fn from(raw: RawVolume) -> Self {
        let text = |value: &serde_json::Value, field: &str| {
            value.get(field).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
        };
        let source = match raw.sources.iter().next() {
            None => VolumeSource::PodLocal,
            Some((kind, value)) => match kind.as_str() {
                "persistentVolumeClaim" => VolumeSource::Claim(text(value, "claimName")),
                "ephemeral" => VolumeSource::Ephemeral,
                "csi" => VolumeSource::InlineCsi(text(value, "driver")),
                "hostPath" => VolumeSource::HostPath(text(value, "path")),
                local if is_pod_local(local) => VolumeSource::PodLocal,
                other => VolumeSource::Other(other.to_owned()),
            },
        };
        Self { name: raw.name, source }
    }
}

impl From<Volume> for RawVolume {
    fn from(volume: Volume) -> Self {
        let (kind, value) = match volume.source {
            VolumeSource::Claim(name) => ("persistentVolumeClaim".to_owned(), json!({ "claimName": name })),
            VolumeSource::Ephemeral => ("ephemeral".to_owned(), json!({})),
            VolumeSource::InlineCsi(driver) => ("csi".to_owned(), json!({ "driver": driver })),
            VolumeSource::HostPath(path) => ("hostPath".to_owned(), json!({ "path": path })),
            VolumeSource::PodLocal => ("emptyDir".to_owned(), json!({})),
            VolumeSource::Other(kind) => (kind, json!({})),
        };
        Self { name: volume.name, sources: [(kind, value)].into() }
    }
}

impl Pod {
    /// Status of the condition of that type.
    pub fn condition(&self, type_: &str) -> Option<&StatusCondition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// Whether the condition of that type is True.
    pub fn is(&self, type_: &str) -> bool {
        self.condition(type_).is_some_and(|condition| condition.status == "True")
    }

    /// Whether all its containers have ended for good.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// Whether a scheduler that had not heard of the taint bound it to a fenced node. The condition comes with the binding; a
    /// pod whose template names its node gets it from its kubelet at the earliest.
    pub fn was_bound_past_the_fence(&self) -> bool {
        self.is("PodScheduled") && !self.spec.tolerations.fence
    }

    /// Whether it is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether this is a later version of that pod, which was ready, and tells nothing new but that it is not any more. To take an earlier
    /// one for later would do no harm, as the API server takes the current one only: that versions can be compared is promised since
    /// Kubernetes 1.35 (KEP-5504).
    pub fn has_only_become_unready(&self, before: &Self) -> bool {
        let version = |pod: &Self| pod.metadata.resource_version.as_deref()?.parse::<u64>().ok();
        let is_later = version(self).zip(version(before)).is_some_and(|(now, then)| now > then);
        let without_it = |pod: &Self| {
            let mut pod = pod.clone();
            pod.metadata.resource_version = None;
            pod.status.conditions.retain(|condition| condition.type_ != "Ready");
            pod
        };
        is_later && before.is("Ready") && !self.is("Ready") && without_it(self) == without_it(before)
    }

    /// Whether it waits for a tainted volume.
    pub fn is_held(&self) -> bool {
        self.spec.scheduling_gates.iter().any(|gate| gate.name == crate::api::names::VOLUME_TAINTED_GATE)
    }

    /// Its controller, as kind.
    pub fn controller_kind(&self) -> Option<&str> {
        self.controller().map(|owner| owner.kind.as_str())
    }

    /// Its controller.
    pub fn controller(&self) -> Option<&OwnerReference> {
        let owners = self.metadata.owner_references.as_deref().unwrap_or_default();
        owners.iter().find(|owner| owner.controller == Some(true))
    }

    /// The container, or init container, that fails again and again, so that the kubelet starts it ever more seldom.
    pub fn crash_looping(&self) -> Option<&str> {
        let all = self.status.init_container_statuses.iter().chain(&self.status.container_statuses);
        let mut loops = all.filter(|it| it.state.waiting.as_ref().is_some_and(|it| it.reason == "CrashLoopBackOff"));
        loops.next().map(|container| container.name.as_str())
    }

    /// Whether it is the image of a static pod of the kubelet.
    pub fn is_static(&self) -> bool {
        self.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(crate::api::names::MIRROR_POD_ANNOTATION))
    }
}
