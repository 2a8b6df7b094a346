//! `MountpointS3PodAttachment`: which workloads share which Mountpoint Pods. Drop-in for the Scality CSI driver: group,
//! version and spec are upstream's, to the letter; status is ours.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::s3::Mount;
use super::schema;

/// The definition as it is shipped. Upstream's does not ask for a spec.
pub(super) fn definition() -> CustomResourceDefinition {
    let mut definition = schema::definition::<MountpointS3PodAttachment>();
    for version in &mut definition.spec.versions {
        if let Some(root) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            root.required = None;
        }
    }
    definition
}

/// Which workloads use which Mountpoint Pod. Schema as in the Scality driver: upstream's programs write these objects, so
/// nothing is limited here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "s3.csi.scality.com",
    version = "v2",
    kind = "MountpointS3PodAttachment",
    plural = "mountpoints3podattachments",
    shortname = "s3pa",
    category = "bulkhead",
    status = "MountpointS3PodAttachmentStatus",
    doc = "MountpointS3PodAttachment records which workloads share which Mountpoint Pods of one node, volume, options and fsGroup.",
    derive = "PartialEq",
    derive = "Default",
    selectable = ".spec.nodeName",
    selectable = ".spec.persistentVolumeName",
    selectable = ".spec.volumeID",
    selectable = ".spec.mountOptions",
    selectable = ".spec.workloadFSGroup",
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "PV Name", type_ = "string", json_path = ".spec.persistentVolumeName"),
    printcolumn(name = "Mount Options", type_ = "string", json_path = ".spec.mountOptions"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Workloads", type_ = "integer", json_path = ".status.workloads", priority = 1),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    ),
    printcolumn(
        name = "Mountpoint Pods",
        type_ = "string",
        json_path = ".status.mountpointPods[*].name",
        priority = 1
    ),
    printcolumn(name = "Oldest", type_ = "date", json_path = ".status.oldestAttachment", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct MountpointS3PodAttachmentSpec {
    /// Node of the workload and Mountpoint Pods.
    pub node_name: String,
    /// PersistentVolume name.
    pub persistent_volume_name: String,
    /// spec.csi.volumeHandle of the PersistentVolume.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// spec.mountOptions of the PersistentVolume joined with commas; empty when none.
    pub mount_options: String,
    /// fsGroup of the workload as decimal text; empty when unset.
    #[serde(rename = "workloadFSGroup")]
    pub workload_fs_group: String,
    /// Mountpoint Pod name to the workloads it serves.
    #[serde(rename = "mountpointS3PodAttachments")]
    pub mountpoint_s3_pod_attachments: BTreeMap<String, Vec<WorkloadAttachment>>,
}

/// One workload that a Mountpoint Pod serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadAttachment {
    /// Uid of the workload pod.
    #[serde(rename = "workloadPodUID")]
    pub workload_pod_uid: String,
    /// When it was attached.
    pub attachment_time: DateTime<Utc>,
}

impl MountpointS3PodAttachmentSpec {
    /// The mount that it is about.
    pub fn mount(&self) -> Mount {
        Mount {
            node_name: self.node_name.clone(),
            persistent_volume_name: self.persistent_volume_name.clone(),
            volume_id: self.volume_id.clone(),
            mount_options: self.mount_options.clone(),
            workload_fs_group: self.workload_fs_group.clone(),
        }
    }

    /// The Mountpoint Pod that serves a workload. The first, where upstream's programs wrote several.
    pub fn mountpoint_pod_of(&self, workload_uid: &str) -> Option<&str> {
        let serves = |workloads: &[WorkloadAttachment]| workloads.iter().any(|it| it.workload_pod_uid == workload_uid);
        let found = self.mountpoint_s3_pod_attachments.iter().find(|(_, workloads)| serves(workloads));
        found.map(|(pod, _)| pod.as_str())
    }

    /// Uids of all workloads, sorted, each once.
    pub fn workloads(&self) -> Vec<&str> {
        let all = self.mountpoint_s3_pod_attachments.values().flatten();
        let mut uids: Vec<_> = all.map(|workload| workload.workload_pod_uid.as_str()).collect();
        uids.sort_unstable();
        uids.dedup();
        uids
    }
}

/// Added by Bulkhead; other programs ignore it. Written only by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MountpointS3PodAttachmentStatus {
    /// Generation of spec this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Attached workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub workloads: Option<i32>,
    /// Oldest attachmentTime in spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_attachment: Option<DateTime<Utc>>,
    /// Mountpoint Pods and their state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub mountpoint_pods: Vec<MountpointPodStatus>,
}

/// One Mountpoint Pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MountpointPodStatus {
    /// Pod name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Pod uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 36))]
    pub uid: Option<String>,
    /// State.
    pub state: MountpointPodState,
    /// Workloads it serves.
    #[schemars(range(min = 0))]
    pub workloads: i32,
}

/// State of a Mountpoint Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MountpointPodState {
    /// It does not run yet.
    Pending,
    /// It runs.
    Serving,
    /// It is to unmount.
    Draining,
    /// It ended, or is gone, while workloads are attached.
    Failed,
}
