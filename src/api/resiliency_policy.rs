//! `ResiliencyPolicy`: which pods are failed over, on what evidence, and what must be proved first.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::empty_default;
use super::fencing::{FenceMethod, FenceMethodType, PolicyMode, Proof};
use super::limits::IntOrPercent;
use super::names;
use super::selector::LabelSelector;
use super::time::Duration;
/// What the controller sees and does. Written only by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResiliencyPolicyStatus {
    /// Generation of spec this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled, FenceReady, Restrained, Conflict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// Selected pods; written at most once a minute and only when changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub protected_pods: Option<i32>,
    /// limits.maxNodes resolved against the number of nodes and ceiling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_nodes: Option<i32>,
    /// Nodes counted against maxNodes now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub nodes_acted_on: Option<i32>,
    /// NodeFences of this policy that are not Recovered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub active_fences: Vec<String>,
    /// Drivers of the selected pods and the proof each can give today.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub drivers: Vec<DriverProof>,
    /// Brakes that hold the policy now, most severe first; absent when none does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub restraints: Vec<Restraint>,
}

/// One brake.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restraint {
    /// Which brake.
    #[serde(rename = "type")]
    pub type_: RestraintType,
    /// Window, backend or person's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Since when.
    pub since: DateTime<Utc>,
    /// Until when, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
}

/// Which brake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RestraintType {
    /// BudgetExhausted.
    BudgetExhausted,
    /// CorrelatedOutage.
    CorrelatedOutage,
    /// Cooldown.
    Cooldown,
}

/// One driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriverProof {
    /// CSI driver name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"))]
    pub name: String,
    /// Strongest proof reachable now with the policy's methods.
    pub best_proof: Proof,
    /// Method that gives it; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<FenceMethodType>,
    /// Why it is not stronger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: Option<String>,
}

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
    doc = "ResiliencyPolicy says which pods are failed over when their node or storage path dies, and what must be proved first.",
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
pub struct ResiliencyPolicySpec {
    /// What the policy may do. Enforce: act.
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
    /// Which pods are released and how.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub release: Release,
    /// How much may be acted on at once, and when the observer must be wrong.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub limits: Limits,
}

/// How much may be acted on at once, and when the observer must be wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.maxNodes) || !has(self.ceiling) || type(self.maxNodes) != int || self.maxNodes <= self.ceiling").message("maxNodes as a number must not exceed ceiling").field_path(".maxNodes"))]
pub struct Limits {
    /// Nodes this policy may act on within window, in progress included; a percentage is of all nodes, rounded up.
    #[serde(default = "Limits::default_max_nodes")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 5000 : self.matches('^([1-9][0-9]?|100)%$')").message("must be a whole number from 1 to 5000 or a percentage from 1% to 100%"))]
    pub max_nodes: IntOrPercent,
    /// Absolute ceiling: never more nodes than this, whatever maxNodes says.
    #[serde(default = "Limits::default_ceiling")]
    #[schemars(range(min = 1, max = 5000))]
    pub ceiling: i32,
    /// Sliding window of maxNodes.
    #[serde(default = "Limits::default_window")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('0s') && duration(self) <= duration('24h')").message("must be between 0s and 24h"))]
    pub window: Duration,
    /// When more nodes than this are suspected at once, nothing is done at all: the observer or the network is at
    /// fault.
    #[serde(default = "Limits::default_max_unhealthy")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 5000 : self.matches('^([1-9][0-9]?|100)%$')").message("must be a whole number from 1 to 5000 or a percentage from 1% to 100%"))]
    pub max_unhealthy: IntOrPercent,
    /// Calm time required after maxUnhealthy was exceeded.
    #[serde(default = "Limits::default_cooldown")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('0s') && duration(self) <= duration('24h')").message("must be between 0s and 24h"))]
    pub cooldown: Duration,
}

impl Limits {
    fn default_max_nodes() -> IntOrPercent {
        IntOrPercent::Percent("10%".into())
    }

    fn default_ceiling() -> i32 {
        10
    }

    fn default_window() -> Duration {
        Duration::minutes(10)
    }

    fn default_max_unhealthy() -> IntOrPercent {
        IntOrPercent::Percent("50%".into())
    }

    fn default_cooldown() -> Duration {
        Duration::minutes(10)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_nodes: Self::default_max_nodes(),
            ceiling: Self::default_ceiling(),
            window: Self::default_window(),
            max_unhealthy: Self::default_max_unhealthy(),
            cooldown: Self::default_cooldown(),
        }
    }
}

/// Which pods are released and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// Automatic uses the node.kubernetes.io/out-of-service taint once every volume is proved, else
    /// VolumeAttachments; VolumeAttachments never sets that taint.
    #[serde(default = "Release::default_detach")]
    pub detach: DetachMode,
}

impl Release {
    fn default_detach() -> DetachMode {
        DetachMode::Automatic
    }
}

impl Default for Release {
    fn default() -> Self {
        Self { detach: Self::default_detach() }
    }
}

/// Automatic uses the node.kubernetes.io/out-of-service taint once every volume is proved, else
/// VolumeAttachments; VolumeAttachments never sets that taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DetachMode {
    /// Automatic.
    Automatic,
    /// VolumeAttachments.
    VolumeAttachments,
}

/// How the old writer is cut off and how that must be proved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.minimumProof) || self.minimumProof != 'None' || has(self.acknowledgeRisk)").message("minimumProof None lets two nodes write one volume; set acknowledgeRisk: DoubleWriters to accept that").field_path(".minimumProof"))]
#[x_kube(validation = Rule::new("!has(self.drivers) || has(self.acknowledgeRisk) || self.drivers.all(d, !has(d.minimumProof) || d.minimumProof != 'None')").message("minimumProof None lets two nodes write one volume; set acknowledgeRisk: DoubleWriters to accept that").field_path(".drivers"))]
#[x_kube(validation = Rule::new("!has(self.minimumProof) || !has(self.methods) || self.minimumProof != 'Verified' || self.methods.exists(m, m.type != 'Detach')").message("minimumProof cannot be reached by any listed method: Verified needs Unpublish").field_path(".methods"))]
#[x_kube(validation = Rule::new("!has(self.drivers) || !has(self.minimumProof) || !has(self.methods) || self.drivers.all(d, has(d.minimumProof) ? has(d.methods) || (d.minimumProof != 'Verified' || self.methods.exists(m, m.type != 'Detach')) : !has(d.methods) || (self.minimumProof != 'Verified' || d.methods.exists(m, m.type != 'Detach')))").message("minimumProof cannot be reached by any listed method: Verified needs Unpublish").field_path(".drivers"))]
pub struct Fencing {
    /// Weakest proof at which a pod may be released: None < Acknowledged < Verified.
    #[serde(default = "Fencing::default_minimum_proof")]
    pub minimum_proof: Proof,
    /// Methods in order of preference; the next is tried when one is unavailable or refused.
    #[serde(default = "Fencing::default_methods")]
    #[schemars(length(min = 1, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub methods: Vec<FenceMethod>,
    /// Overrides per CSI driver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub drivers: Vec<DriverFencing>,
    /// Deadline of one fence call.
    #[serde(default = "Fencing::default_call_timeout")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('5m')").message("must be between 1s and 5m"))]
    pub call_timeout: Duration,
    /// Time without proof after which the fence is reported as Stalled; retries go on.
    #[serde(default = "Fencing::default_give_up_after")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('10s') && duration(self) <= duration('24h')").message("must be between 10s and 24h"))]
    pub give_up_after: Duration,
    /// Must be DoubleWriters when any minimumProof is None. There is no other use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledge_risk: Option<AcknowledgeRisk>,
}

impl Fencing {
    fn default_minimum_proof() -> Proof {
        Proof::Verified
    }

    fn default_methods() -> Vec<FenceMethod> {
        vec![FenceMethod { type_: FenceMethodType::Unpublish }, FenceMethod { type_: FenceMethodType::Detach }]
    }

    fn default_call_timeout() -> Duration {
        Duration::seconds(30)
    }

    fn default_give_up_after() -> Duration {
        Duration::minutes(5)
    }
}

impl Default for Fencing {
    fn default() -> Self {
        Self {
            minimum_proof: Self::default_minimum_proof(),
            methods: Self::default_methods(),
            drivers: Vec::new(),
            call_timeout: Self::default_call_timeout(),
            give_up_after: Self::default_give_up_after(),
            acknowledge_risk: None,
        }
    }
}

/// Must be DoubleWriters when any minimumProof is None. There is no other use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AcknowledgeRisk {
    /// DoubleWriters.
    DoubleWriters,
}

/// Override for one driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.minimumProof) || has(self.methods)").message("set minimumProof or methods; an empty override does nothing"))]
#[x_kube(validation = Rule::new("!has(self.minimumProof) || !has(self.methods) || self.minimumProof != 'Verified' || self.methods.exists(m, m.type != 'Detach')").message("minimumProof cannot be reached by any listed method: Verified needs Unpublish"))]
pub struct DriverFencing {
    /// CSI driver name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"))]
    pub name: String,
    /// Replaces fencing.minimumProof for this driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_proof: Option<Proof>,
    /// Replaces fencing.methods for this driver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub methods: Vec<FenceMethod>,
}

/// When a node is suspected and when it is declared failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Detection {
    /// Independent evidence channels that must agree before a node is declared failed.
    #[serde(default = "Detection::default_required_channels")]
    #[schemars(range(min = 2, max = 2))]
    pub required_channels: i32,
    /// Channels that may declare a node alone. Write [] to demand requiredChannels always.
    #[serde(default = "Detection::default_decisive_channels")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub decisive_channels: Vec<DecisiveChannel>,
    /// Channel Taint: a protected pod that is Initialized but not Ready on a node with one of these taints, effect
    /// NoSchedule or NoExecute. Cordons and our own taints never count.
    #[serde(default = "Detection::default_taints")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub taints: Vec<TaintMatch>,
    /// Channel Kubelet: Ready condition, unreachable taint and Lease; three signals of one source, so one channel.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub kubelet: KubeletDetection,
}

impl Detection {
    fn default_required_channels() -> i32 {
        2
    }

    fn default_decisive_channels() -> Vec<DecisiveChannel> {
        vec![DecisiveChannel::Kubelet, DecisiveChannel::Taint]
    }

    fn default_taints() -> Vec<TaintMatch> {
        [names::UNREACHABLE_TAINT, names::OUT_OF_SERVICE_TAINT]
            .map(|key| TaintMatch { key: key.into(), effect: None })
            .into()
    }
}

impl Default for Detection {
    fn default() -> Self {
        Self {
            required_channels: Self::default_required_channels(),
            decisive_channels: Self::default_decisive_channels(),
            taints: Self::default_taints(),
            kubelet: KubeletDetection::default(),
        }
    }
}

/// Channel Kubelet: Ready condition, unreachable taint and Lease; three signals of one source, so one channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletDetection {
    /// Lease age that makes the node suspected.
    #[serde(default = "KubeletDetection::default_suspect_after")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('11s') && duration(self) <= duration('10m')").message("must be between 11s and 10m"))]
    pub suspect_after: Duration,
    /// Time with Ready=Unknown and the unreachable NoSchedule taint, both re-read live, after which this channel is
    /// decisive.
    #[serde(default = "KubeletDetection::default_decisive_after")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('0s') && duration(self) <= duration('24h')").message("must be between 0s and 24h"))]
    pub decisive_after: Duration,
}

impl KubeletDetection {
    fn default_suspect_after() -> Duration {
        Duration::seconds(20)
    }

    fn default_decisive_after() -> Duration {
        Duration::seconds(0)
    }
}

impl Default for KubeletDetection {
    fn default() -> Self {
        Self { suspect_after: Self::default_suspect_after(), decisive_after: Self::default_decisive_after() }
    }
}

/// One taint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaintMatch {
    /// Taint key, or * for any.
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = r"^(\*|([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$")
    )]
    pub key: String,
    /// Absent: either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// Absent: either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// NoSchedule.
    NoSchedule,
    /// NoExecute.
    NoExecute,
}

/// Evidence channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DecisiveChannel {
    /// Kubelet.
    Kubelet,
    /// Taint.
    Taint,
}

/// Which failures make the policy act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Triggers {
    /// The node is declared failed by detection.
    #[serde(default = "Triggers::default_node_failure")]
    pub node_failure: NodeFailureAction,
}

impl Triggers {
    fn default_node_failure() -> NodeFailureAction {
        NodeFailureAction::Release
    }
}

impl Default for Triggers {
    fn default() -> Self {
        Self { node_failure: Self::default_node_failure() }
    }
}

/// The node is declared failed by detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NodeFailureAction {
    /// Release.
    Release,
    /// Ignore.
    Ignore,
}

/// Which pods are protected. A pod is selected when every part that is set matches it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.namespaceSelector) || has(self.podSelector)").message("set namespaceSelector or podSelector; write podSelector: {} to select every pod on purpose"))]
pub struct PodSelection {
    /// Labels of the pod's namespace. Absent: any namespace. Use kubernetes.io/metadata.name to select by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Labels of the pod. Absent: any pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
