//! Channel Storage: what the array says about a node, through its CSI driver.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::time::Duration;

/// Channel Storage: what the array says about the node, through the driver. Unknown never counts. Only drivers with the
/// connectivity extension can be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageDetection {
    /// Ask whether the node reaches the backend. Disabled: no call is made.
    #[serde(default = "StorageDetection::default_connectivity_check")]
    pub connectivity_check: CheckSwitch,
    /// Time between two questions per node and backend, as a duration from 1s to 10m.
    #[serde(default = "StorageDetection::default_period")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('10m')").message("must be between 1s and 10m"))]
    pub period: Duration,
    /// Consecutive answers "disconnected" before the path counts as lost.
    #[serde(default = "StorageDetection::default_threshold")]
    #[schemars(range(min = 1, max = 20))]
    pub loss_threshold: i32,
    /// Consecutive answers "connected" before the path counts as back.
    #[serde(default = "StorageDetection::default_threshold")]
    #[schemars(range(min = 1, max = 20))]
    pub recovery_threshold: i32,
    /// Ask before the fence whether the node's volumes are doing I/O, where whenIOInProgress would stop the decision.
    /// Disabled: no call is made.
    #[serde(default = "StorageDetection::default_io_in_progress_check")]
    pub io_in_progress_check: CheckSwitch,
    /// What I/O in progress stops. VetoUnlessNodeFailed: a decision that rests on storage or on heartbeats, never a decisive
    /// node failure. Veto: every decision. Only a driver's sidecar can ask: an external fencer that is listed before it is
    /// not held, nor is method Detach.
    #[serde(default, rename = "whenIOInProgress")]
    pub when_io_in_progress: WhenIoInProgress,
}

impl StorageDetection {
    fn default_connectivity_check() -> CheckSwitch {
        CheckSwitch::Enabled
    }

    fn default_period() -> Duration {
        Duration::seconds(15)
    }

    fn default_threshold() -> i32 {
        3
    }

    fn default_io_in_progress_check() -> CheckSwitch {
        CheckSwitch::Enabled
    }
}

impl Default for StorageDetection {
    fn default() -> Self {
        Self {
            connectivity_check: Self::default_connectivity_check(),
            period: Self::default_period(),
            loss_threshold: Self::default_threshold(),
            recovery_threshold: Self::default_threshold(),
            io_in_progress_check: Self::default_io_in_progress_check(),
            when_io_in_progress: WhenIoInProgress::default(),
        }
    }
}

/// Whether something is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CheckSwitch {
    /// It is.
    Enabled,
    /// It is not: no call is made.
    Disabled,
}

/// Which decisions I/O in progress stops, while it lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum WhenIoInProgress {
    /// Those that rest on storage or on heartbeats. A node that is cut off from the API goes on writing: it would never be
    /// failed over.
    #[default]
    VetoUnlessNodeFailed,
    /// Every one.
    Veto,
}

/// What a lost path to a storage backend means for the protected pods that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StoragePathLossAction {
    /// They are released once their volumes are fenced, though the node may be well.
    Release,
    /// They stay.
    Ignore,
}
