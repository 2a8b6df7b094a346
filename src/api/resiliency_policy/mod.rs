//! `ResiliencyPolicy`: which pods are failed over, on what evidence, and what must be proved first.

mod crash_loop;
mod detection;
mod fencing;
mod limits;
mod plugins;
mod release;
mod self_fencing;
mod status;
mod storage;
mod windows;

pub use crash_loop::*;
pub use detection::*;
pub use fencing::*;
pub use limits::*;
pub use plugins::*;
pub use release::*;
pub use self_fencing::*;
pub use status::*;
pub use storage::*;
pub use windows::*;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fencing::PolicyMode;
use super::schema::empty_default;
use super::selector::LabelSelector;
use super::time::Duration;

/// What is protected, what counts as failure, which proof is required and what limits apply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "ResiliencyPolicy",
    plural = "resiliencypolicies",
    shortname = "rpol",
    category = "bulkhead",
    status = "ResiliencyPolicyStatus",
    doc = "ResiliencyPolicy says which pods are failed over when their node dies, and what must be proved first.",
    derive = "PartialEq",
    printcolumn(name = "MODE", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "READY", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "REASON", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(
        name = "FENCEREADY",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="FenceReady")].status"#
    ),
    printcolumn(name = "PROOF", type_ = "string", json_path = ".spec.fencing.minimumProof"),
    printcolumn(name = "PODS", type_ = "integer", json_path = ".status.protectedPods"),
    printcolumn(name = "ACTED", type_ = "integer", json_path = ".status.nodesActedOn"),
    printcolumn(name = "MAX", type_ = "integer", json_path = ".status.maxNodes"),
    printcolumn(name = "RESTRAINT", type_ = "string", json_path = ".status.restraints[*].type"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "FENCES", type_ = "string", json_path = ".status.activeFences", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.selfFencing) || !has(self.detection) || self.selfFencing.mode != 'Enabled' || duration(self.selfFencing.after) < duration(self.detection.kubelet.suspectAfter) + duration(self.detection.kubelet.decisiveAfter)").message("selfFencing.after must be shorter than detection.kubelet.suspectAfter plus decisiveAfter, or the node could still write when it is declared failed").field_path(".selfFencing.after"))]
pub struct ResiliencyPolicySpec {
    /// What the policy may do: DryRun records the plan it would execute, RequireApproval waits for spec.approval of the
    /// NodeFence, Enforce acts.
    pub mode: PolicyMode,
    /// Which pods are protected. A pod is selected when every part that is set matches it.
    pub selector: PodSelection,
    /// Which failures make the policy act.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub triggers: Triggers,
    /// When a node is suspected and when it is declared failed.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub detection: Detection,
    /// How the old writer is cut off and how that must be proved.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub fencing: Fencing,
    /// Pods outside every policy that share a volume with a protected pod that is to go: Hold keeps the whole unit, CleanAll
    /// releases them too, with the same proof.
    #[serde(default = "ResiliencyPolicySpec::default_sharers")]
    pub sharers: Sharers,
    /// Which pods are released and how.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub release: Release,
    /// What happens when the node is back.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub recovery: Recovery,
    /// How much may be acted on at once, and when the observer must be wrong.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub limits: Limits,
    /// Times in which no new fence is opened; running ones finish.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub maintenance_windows: Vec<MaintenanceWindow>,
    /// Optional cut-off by the node itself.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub self_fencing: SelfFencing,
}

impl ResiliencyPolicySpec {
    fn default_sharers() -> Sharers {
        Sharers::Hold
    }
}

/// Which pods are protected. A pod is selected when every part that is set matches it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.namespaceSelector) || has(self.podSelector)").message("set namespaceSelector or podSelector; write podSelector: {} to select every pod on purpose"))]
pub struct PodSelection {
    /// Labels of the pod's namespace. Absent: any namespace. Use kubernetes.io/metadata.name to select by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    pub namespace_selector: Option<LabelSelector>,
    /// Labels of the pod. Absent: any pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    pub pod_selector: Option<LabelSelector>,
    /// CSI drivers; a pod matches when it uses a volume of at least one. Empty: any CSI driver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub drivers: Vec<String>,
}

impl PodSelection {
    /// Whether every part that is set matches a pod. `uses` tells whether it uses a volume of a driver.
    pub fn matches(
        &self,
        labels: &BTreeMap<String, String>,
        namespace_labels: &BTreeMap<String, String>,
        uses: impl Fn(&str) -> bool,
    ) -> bool {
        self.namespace_selector.as_ref().is_none_or(|selector| selector.matches(namespace_labels))
            && self.pod_selector.as_ref().is_none_or(|selector| selector.matches(labels))
            && (self.drivers.is_empty() || self.drivers.iter().any(|driver| uses(driver)))
    }
}

/// Which failures make the policy act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Triggers {
    /// The node is declared failed by detection: Release moves its protected pods, Ignore leaves them. Ignore turns off this
    /// trigger alone: storagePathLoss and crashLoop act by default, each until its own action is Ignore.
    #[serde(default = "Triggers::default_node_failure")]
    pub node_failure: NodeFailureAction,
    /// The array reports that the node lost its path (spec.detection.storage): Release moves only pods with volumes on that
    /// backend, on this evidence alone, Ignore leaves them. Only drivers with the connectivity extension can report it.
    #[serde(default = "Triggers::default_storage_path_loss")]
    pub storage_path_loss: StoragePathLossAction,
    /// Keys of VolumeHealth taints that move the pods that use the volume on a node that the taint names, though the node is
    /// well. Empty: taints inform, and move nobody. A taint that holds everywhere moves nobody either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(
            length(min = 1, max = 253),
            regex(
                pattern = r"^(VolumeNotAttached|VolumeNotMounted|VolumeNotUsable|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$"
            )
        )
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub volume_taints: Vec<String>,
    /// The node plugin of a CSI driver that protected pods use is not ready on a node; TaintNode only keeps new pods away, by the
    /// taint driver-down.bulkhead.dev/DRIVER, and never releases one.
    #[serde(default = "Triggers::default_driver_plugin_down")]
    pub driver_plugin_down: DriverPluginDown,
    /// Protected pod in CrashLoopBackOff on a node that is well.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub crash_loop: CrashLoop,
}

impl Triggers {
    fn default_node_failure() -> NodeFailureAction {
        NodeFailureAction::Release
    }

    fn default_driver_plugin_down() -> DriverPluginDown {
        DriverPluginDown::Ignore
    }

    fn default_storage_path_loss() -> StoragePathLossAction {
        StoragePathLossAction::Release
    }
}

impl Default for Triggers {
    fn default() -> Self {
        Self {
            node_failure: Self::default_node_failure(),
            storage_path_loss: Self::default_storage_path_loss(),
            volume_taints: Vec::new(),
            driver_plugin_down: Self::default_driver_plugin_down(),
            crash_loop: CrashLoop::default(),
        }
    }
}

/// What a failed node means for the protected pods on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NodeFailureAction {
    /// They are released once their volumes are fenced.
    Release,
    /// They stay.
    Ignore,
}

/// What happens when the node is back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// How long a node that is back may keep our taint, not clean or not proved to reach its storage, before a Warning Event on
    /// the Node names what is left and the remedy; a duration from 1m to 168h.
    #[serde(default = "Recovery::default_warn_after")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1m') && duration(self) <= duration('168h')").message("must be between 1m and 168h"))]
    pub warn_after: Duration,
}

impl Recovery {
    fn default_warn_after() -> Duration {
        Duration::minutes(15)
    }
}

impl Default for Recovery {
    fn default() -> Self {
        Self { warn_after: Self::default_warn_after() }
    }
}
