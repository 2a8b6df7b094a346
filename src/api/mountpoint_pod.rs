//! A view of Mountpoint Pods with only the fields that decide about them. They are read, never written back.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::s3::{
    DRIVER_VERSION_LABEL, MOUNT_ANNOTATION, MOUNTPOINT_POD_LABEL, Mount, NEEDS_UNMOUNT, NO_NEW_WORKLOAD,
    VOLUME_UID_ANNOTATION,
};
use super::slim::{metadata, nullable};

/// A Mountpoint Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Resource)]
#[resource(inherit = core::Pod)]
pub struct MountpointPod {
    /// Metadata without field ownership.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Status.
    #[serde(default, deserialize_with = "nullable")]
    pub status: Status,
}

/// Status of a Mountpoint Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Pending, Running, Succeeded, Failed or Unknown.
    pub phase: Option<String>,
    /// Why the whole pod is in this phase, in a word: `Evicted`.
    pub reason: Option<String>,
    /// The same in a sentence.
    pub message: Option<String>,
    /// Its conditions.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<PodCondition>,
    /// The containers that run before it, such as the one that joins certificates.
    #[serde(deserialize_with = "nullable")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Its containers.
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<ContainerStatus>,
}

/// A condition of a Mountpoint Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodCondition {
    /// Which one.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// Why.
    pub message: Option<String>,
}

/// State of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// How often it was started again.
    pub restart_count: i32,
    /// Its present state.
    #[serde(deserialize_with = "nullable")]
    pub state: core::ContainerState,
    /// Its state before.
    #[serde(deserialize_with = "nullable")]
    pub last_state: core::ContainerState,
}

impl ContainerStatus {
    fn succeeded(&self) -> bool {
        self.state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0)
    }

    /// Why it ended, or does not run.
    fn trouble(&self) -> Option<String> {
        let ended = self.state.terminated.as_ref().or(self.last_state.terminated.as_ref());
        let ended = ended.map(|it| format!("{} (exit code {})", it.reason.as_deref().unwrap_or("ended"), it.exit_code));
        ended.or_else(|| self.state.waiting.as_ref().and_then(|waiting| waiting.reason.clone()))
    }
}

impl MountpointPod {
    /// Whether it is a Mountpoint Pod at all, of ours or of upstream's controller, and no stranger in its namespace.
    pub fn is_one(&self) -> bool {
        [MOUNTPOINT_POD_LABEL, DRIVER_VERSION_LABEL].iter().any(|label| self.label(label).is_some())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its uid.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// What it mounts; `None` for one of upstream's.
    pub fn mount(&self) -> Option<Mount> {
        serde_json::from_str(self.annotation(MOUNT_ANNOTATION)?).ok()
    }

    /// Whether it ended for good.
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// Whether it is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it was told that no workload uses it any more.
    pub fn needs_unmount(&self) -> bool {
        self.annotation(NEEDS_UNMOUNT) == Some("true")
    }

    /// Whether its container has ever run: then something may be mounted.
    pub fn has_run(&self) -> bool {
        let ran = |state: &core::ContainerState| state.running.is_some() || state.terminated.is_some();
        let has_run = |it: &ContainerStatus| it.restart_count > 0 || ran(&it.state) || ran(&it.last_state);
        !matches!(self.status.phase.as_deref(), None | Some("Pending"))
            || self.status.container_statuses.iter().any(has_run)
    }

    /// Whether workloads may be assigned to it, by what people and controllers said of it.
    pub fn takes_workloads(&self, driver_version: &str, volume_uid: &str) -> bool {
        self.label(DRIVER_VERSION_LABEL) == Some(driver_version)
            && self.annotation(VOLUME_UID_ANNOTATION) == Some(volume_uid)
            && self.annotation(NO_NEW_WORKLOAD) != Some("true")
            && !self.needs_unmount()
            && !self.has_ended()
            && !self.is_terminating()
    }

    /// The scheduler's words, while it finds no place on the node.
    pub fn why_unscheduled(&self) -> Option<&str> {
        let scheduled = self.status.conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
        (scheduled.status == "False").then(|| scheduled.message.as_deref().unwrap_or("no reason is given"))
    }

    /// Why it ended or does not run, in the kubelet's words.
    pub fn trouble(&self) -> Option<String> {
        let of_pod = [&self.status.reason, &self.status.message].into_iter().flatten().cloned();
        // Those that did their work are no trouble.
        let before = self.status.init_container_statuses.iter().filter(|container| !container.succeeded());
        let before = before.filter_map(|container| Some(format!("{} {}", container.name, container.trouble()?)));
        let of_containers = self.status.container_statuses.iter().filter_map(ContainerStatus::trouble);
        let words: Vec<_> = of_pod.chain(before).chain(of_containers).collect();
        (!words.is_empty()).then(|| words.join(": "))
    }

    /// A label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// An annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }
}
