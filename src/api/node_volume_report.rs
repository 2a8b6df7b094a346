//! `NodeVolumeReport`: what the agent of one node says about it and about its clean-up after a fence.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cidr::{Cidr, readable};
use super::node_fence::NodeFence;
use super::schema;
use super::slim::NodeAddress;
use super::volume::{Finding, VolumeState};

/// NodeVolumeReport has no spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "NodeVolumeReport",
    plural = "nodevolumereports",
    shortname = "nvr",
    category = "bulkhead",
    status = "NodeVolumeReportStatus",
    doc = "NodeVolumeReport is what the agent of one node says about its volumes and its clean-up. Named after the node; it has no spec.",
    derive = "PartialEq",
    no_spec,
    printcolumn(name = "READY", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "REASON", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "CHECKED", type_ = "integer", json_path = ".status.checked"),
    printcolumn(name = "UNHEALTHY", type_ = "integer", json_path = ".status.unhealthy"),
    printcolumn(name = "CLEANUP", type_ = "string", json_path = ".status.cleanup.state"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "BOOT", type_ = "string", json_path = ".status.bootID", priority = 1),
    printcolumn(name = "AGENT", type_ = "string", json_path = ".status.agentVersion", priority = 1)
)]
pub struct NodeVolumeReportSpec {}

/// Everything the agent says. It may write nothing else, and only for its own node. Written on change only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.unhealthy) || (has(self.checked) && self.unhealthy <= self.checked)").message("unhealthy cannot exceed checked").field_path(".unhealthy"))]
pub struct NodeVolumeReportStatus {
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Uid of the Node the agent runs on; the report is ignored when it is not the current one.
    #[serde(default, rename = "nodeUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 36))]
    pub node_uid: Option<String>,
    /// Boot id of the running kernel.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub boot_id: Option<String>,
    /// Host addresses from which the node reaches its storage, for network fences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 2, max = 45)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub addresses: Vec<String>,
    /// By what the controller and the agents of other nodes know the heartbeats of this agent; absent where they are off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HeartbeatEndpoint")]
    pub heartbeat: Option<HeartbeatEndpoint>,
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub agent_version: Option<String>,
    /// Volumes it looks at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4096))]
    pub checked: Option<u32>,
    /// Of these, not Healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4096))]
    pub unhealthy: Option<u32>,
    /// Every PersistentVolume seen on the node. An absent one is not seen here, which never means healthy. Mounts are
    /// listed of volumes that are not Healthy or of an incident: those of the others change with every pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub volumes: Vec<ReportedVolume>,
    /// Clean-up after a fence; absent when the node has no NodeFence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Cleanup")]
    pub cleanup: Option<Cleanup>,
}

/// By what an agent's heartbeats are known: made anew at each of its starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatEndpoint {
    /// Public X25519 key of the agent's process, as 64 hexadecimal digits.
    #[schemars(length(min = 64, max = 64), regex(pattern = r"^[0-9a-f]{64}$"))]
    pub public_key: String,
    /// Address at which the agents of other nodes reach it.
    #[schemars(length(min = 2, max = 45))]
    pub address: String,
    /// UDP port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.state != 'Healthy' || !has(self.findings) || size(self.findings) == 0").message("a Healthy volume has no findings").field_path(".findings"))]
pub struct ReportedVolume {
    /// PersistentVolume name.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
    /// CSI driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub driver: Option<String>,
    /// CSI handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub volume_handle: Option<String>,
    /// major:minor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub device: Option<String>,
    /// Worst state of its checks.
    pub state: VolumeState,
    /// Mounts of the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub mounts: Vec<ReportedMount>,
    /// Checks that are not Healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["check".to_string()]))]
    pub findings: Vec<Finding>,
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedMount {
    /// Pod target, kubelet staging, or driver-private.
    pub kind: MountKind,
    /// Host path.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Pod uid.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 36))]
    pub pod_uid: Option<String>,
}

/// Whose a mount is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MountKind {
    /// In a pod's folder: NodePublishVolume made it.
    Target,
    /// In the kubelet's staging folder: NodeStageVolume made it.
    Staging,
    /// Anywhere else: the driver's own.
    Private,
}

/// What has become of the volumes of one episode of a NodeFence on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.state != 'Clean' || (self.cleanPasses == 2 && (!has(self.remaining) || size(self.remaining) == 0))")
        .message("Clean needs two passes and nothing remaining")
)]
pub struct Cleanup {
    /// Uid of the NodeFence.
    #[serde(rename = "fenceUID")]
    #[schemars(length(min = 1, max = 36))]
    pub fence_uid: String,
    /// Its episode.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// Digest of the volumes that were looked for: what is said of fewer than were cut off proves nothing.
    #[schemars(length(min = 8, max = 71), regex(pattern = r"^sha256:[0-9a-f]{8,64}$"))]
    pub digest: String,
    /// Where it stands.
    pub state: CleanupState,
    /// Consecutive passes that found nothing; two are required.
    #[schemars(range(min = 0, max = 2))]
    pub clean_passes: i32,
    /// Boot id in which the passes were made.
    #[serde(rename = "bootID")]
    #[schemars(length(min = 1, max = 64))]
    pub boot_id: String,
    /// End of the last pass that changed something here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<DateTime<Utc>>,
    /// What is left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub remaining: Vec<Remnant>,
}

/// Where a clean-up stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CleanupState {
    /// What is left is being looked for, or waited for while it is the kubelet's to remove.
    Inventory,
    /// It is being removed.
    Cleaning,
    /// Two passes in a row found nothing.
    Clean,
    /// Something cannot be removed, or cannot be told; `remaining` says what and why. It is tried again.
    Blocked,
}

/// Something that is left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Remnant {
    /// Kind of remnant.
    pub kind: RemnantKind,
    /// Path, device or pid; cleaned of control characters.
    #[schemars(length(min = 1, max = 1024))]
    pub id: String,
    /// PersistentVolume, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub volume: Option<String>,
    /// Why it could not be removed.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
}

/// What kind of thing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RemnantKind {
    /// A mount or its folder.
    Mount,
    /// A block device file in a pod's or the kubelet's folder.
    Device,
    /// A loop device.
    Loop,
    /// A process that holds the volume.
    Process,
    /// A container that holds the volume.
    Container,
    /// Something that cannot be told: it counts as left.
    Unknown,
}

impl RemnantKind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Mount, Self::Device, Self::Loop, Self::Process, Self::Container, Self::Unknown];

    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mount => "Mount",
            Self::Device => "Device",
            Self::Loop => "Loop",
            Self::Process => "Process",
            Self::Container => "Container",
            Self::Unknown => "Unknown",
        }
    }
}

/// The first InternalIP in the status of a Node that its agent did not report, or that is no address. Where there is one, others may
/// be missing too.
pub fn unreported<'a>(of_node: &'a [NodeAddress], reported: &[String]) -> Option<&'a str> {
    let reported = readable(reported);
    let is_reported = |text: &str| text.parse::<Cidr>().is_ok_and(|address| reported.contains(&address));
    let internal = of_node.iter().filter(|it| it.type_ == "InternalIP");
    internal.map(|it| it.address.as_str()).find(|text| !is_reported(text))
}

impl NodeVolumeReport {
    /// What is said of this episode, by the agent that runs on the node with this uid and under this boot id. What was
    /// said of another episode, machine or boot, or of other volumes, proves nothing.
    pub fn cleanup_of(&self, fence: &NodeFence, node_uid: &str, boot_id: &str) -> Option<&Cleanup> {
        let status = self.status.as_ref()?;
        let by_the_node = status.node_uid.as_deref() == Some(node_uid) && status.boot_id.as_deref() == Some(boot_id);
        let of_episode = |cleanup: &&Cleanup| {
            Some(&cleanup.fence_uid) == fence.metadata.uid.as_ref()
                && cleanup.episode == fence.spec.episode
                && cleanup.boot_id == boot_id
                && cleanup.digest == fence.cleanup_digest()
        };
        status.cleanup.as_ref().filter(|_| by_the_node && !boot_id.is_empty()).filter(of_episode)
    }
}

impl Cleanup {
    /// Whether nothing is left, seen twice.
    pub fn is_clean(&self) -> bool {
        self.state == CleanupState::Clean && self.clean_passes >= 2 && self.remaining.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_remnant_is_spelled_as_the_api_does() {
        for it in RemnantKind::ALL {
            assert_eq!(serde_json::json!(it), it.as_str());
        }
    }
}
