//! What `VolumeHealth`, its policy and the reports of agents and sidecars share: checks, states, sources and taints.

use chrono::{DateTime, Utc};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Key of the taint of a volume that should be attached and is not.
pub const NOT_ATTACHED: &str = "VolumeNotAttached";
/// Key of the taint of a volume that should be mounted and is not.
pub const NOT_MOUNTED: &str = "VolumeNotMounted";
/// Key of the taint of a volume that cannot be used, whatever the cause.
pub const NOT_USABLE: &str = "VolumeNotUsable";

/// What is looked at. Names of policy overrides and of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Check {
    /// The path of a local volume is there.
    PathExists,
    /// The path of a local volume is a mount point.
    MountPoint,
    /// What is mounted is what was mounted before: device and file-system UUID.
    MountIdentity,
    /// Nothing else is mounted over it.
    Overmount,
    /// The block device is there, running and not shrunk.
    Device,
    /// The file system is of the type that the PersistentVolume names.
    FilesystemType,
    /// The file system has not turned read-only.
    ReadOnly,
    /// The file system counts no new errors.
    FilesystemErrors,
    /// Space and inodes are left.
    Capacity,
    /// A block can be read.
    ReadProbe,
    /// A canary file can be written and read back.
    WriteProbe,
    /// Nothing waits for an answer for ever.
    HungIO,
    /// The kernel log names no error of the device.
    KernelLog,
    /// The kernel knows no bad block of the device.
    BadBlocks,
    /// Every block can be read, slowly.
    Scrub,
    /// The device does not announce its failure: an eMMC its end of life.
    DeviceHealth,
    /// The NFS server answers and the handle is valid.
    NFS,
    /// The FUSE server is alive.
    FUSE,
    /// Staging and pod mounts of a CSI volume are there.
    CSIMounts,
    /// What the CSI driver's controller or node plugin says of the volume.
    ControllerHealth,
    /// The volume is published where it is attached.
    PublishedNodes,
}

impl Check {
    /// All, in the order of the API.
    pub const ALL: [Self; 21] = [
        Self::PathExists,
        Self::MountPoint,
        Self::MountIdentity,
        Self::Overmount,
        Self::Device,
        Self::FilesystemType,
        Self::ReadOnly,
        Self::FilesystemErrors,
        Self::Capacity,
        Self::ReadProbe,
        Self::WriteProbe,
        Self::HungIO,
        Self::KernelLog,
        Self::BadBlocks,
        Self::Scrub,
        Self::DeviceHealth,
        Self::NFS,
        Self::FUSE,
        Self::CSIMounts,
        Self::ControllerHealth,
        Self::PublishedNodes,
    ];

    /// How it runs unless a policy says otherwise: what does I/O of its own has to be asked for.
    pub fn default_mode(self) -> CheckMode {
        match self {
            Self::ReadProbe | Self::WriteProbe | Self::Scrub => CheckMode::Disabled,
            _ => CheckMode::Passive,
        }
    }
}

/// How a check runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CheckMode {
    /// Not at all.
    Disabled,
    /// Reads state only.
    Passive,
    /// Does I/O of its own.
    Active,
}

/// What a check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum VolumeState {
    /// Nothing is wrong.
    Healthy,
    /// It cannot be told; counts in neither direction.
    #[default]
    Unknown,
    /// It works, but something is wrong; no taint.
    Degraded,
    /// It cannot be used, at least from there.
    Inaccessible,
    /// What was written is lost.
    DataLoss,
}

/// Who saw or set something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Source {
    /// The agent of a node.
    NodeAgent,
    /// The controller of the CSI driver, through its sidecar.
    CSIController,
    /// The node plugin of the CSI driver, through the agent.
    CSINode,
    /// The controller of ours that watches nodes.
    NodeLifecycle,
    /// A person, in `spec.manualTaints`.
    Manual,
}

/// What a taint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// Informs only.
    NoEffect,
    /// Keeps new claims, attachments and pods off where the policy enforces.
    NoAttachOrMount,
}

/// A taint that Bulkhead sets by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TaintKey {
    /// Should be attached and is not.
    VolumeNotAttached,
    /// Should be mounted and is not.
    VolumeNotMounted,
    /// Cannot be used.
    VolumeNotUsable,
}

impl TaintKey {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::VolumeNotAttached => NOT_ATTACHED,
            Self::VolumeNotMounted => NOT_MOUNTED,
            Self::VolumeNotUsable => NOT_USABLE,
        }
    }

    /// What it does unless a policy says otherwise (the values of the PV Health Monitor proposal).
    pub fn default_effect(self) -> TaintEffect {
        match self {
            Self::VolumeNotUsable => TaintEffect::NoAttachOrMount,
            _ => TaintEffect::NoEffect,
        }
    }
}

/// What a reporter found wrong with a volume. A settled state: the reporter has counted samples against the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What was looked at.
    pub check: Check,
    /// What was found; never Healthy.
    #[x_kube(validation = Rule::new("self != 'Healthy'").message("a finding is not Healthy: leave it out"))]
    pub state: VolumeState,
    /// CamelCase cause.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Detail, cleaned of control characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
    /// When it began.
    pub since: DateTime<Utc>,
    /// Uids of the pods it touches.
    #[serde(default, rename = "podUIDs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 36)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub pod_uids: Vec<String>,
}
