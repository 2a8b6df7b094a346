//! When a node is suspected and when it is declared failed.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::names;
use crate::api::schema::empty_default;
use crate::api::time::Duration;

use super::StorageDetection;

/// When a node is suspected and when it is declared failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.decisiveChannels) || !has(self.taints) || 'Kubelet' in self.decisiveChannels || ('Taint' in self.decisiveChannels ? size(self.taints) > 0 : self.taints.exists(t, !(t.key in ['node.kubernetes.io/unreachable', 'node.kubernetes.io/not-ready'])))").message("no node could ever be declared failed: add Kubelet to decisiveChannels, or list a taint that somebody other than the node lifecycle controller sets").field_path(".decisiveChannels"))]
pub struct Detection {
    /// Independent evidence channels that must agree before a node is declared failed; there are five: Kubelet, Taint, Storage,
    /// Agent and Power (an external fencer that fencing.methods names reports the node off).
    #[serde(default = "Detection::default_required_channels")]
    #[schemars(range(min = 2, max = 3))]
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
    /// Channel Storage: what the array says about the node, through the driver. Unknown never counts.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub storage: StorageDetection,
    /// Channel Agent: heartbeats of the node agent over the host network, confirmed by its peers. It counts only beside the
    /// taint unreachable, a lost storage path, a node without power or two missed renewals of the Lease, and never alone.
    /// Where agents send no heartbeats it is unknown.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub agent: AgentDetection,
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
            storage: StorageDetection::default(),
            agent: AgentDetection::default(),
        }
    }
}

/// A channel that may declare a node alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DecisiveChannel {
    /// What the kubelet reports to the API: Ready condition, unreachable taint and Lease.
    Kubelet,
    /// A listed taint on a node whose protected pod is not Ready.
    Taint,
}

/// One taint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaintMatch {
    /// Taint key such as example.com/broken, or * for any.
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = r"^(\*|([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$")
    )]
    pub key: String,
    /// Effect that the taint must have. Absent: either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TaintEffect")]
    pub effect: Option<TaintEffect>,
}

/// Effect of a taint that counts as evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// New pods stay away.
    NoSchedule,
    /// Running pods are evicted.
    NoExecute,
}

/// Channel Kubelet: Ready condition, unreachable taint and Lease; three signals of one source, so one channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletDetection {
    /// Lease age that makes the node suspected, as a duration from 11s to 10m.
    #[serde(default = "KubeletDetection::default_suspect_after")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('11s') && duration(self) <= duration('10m')").message("must be between 11s and 10m"))]
    pub suspect_after: Duration,
    /// Time with Ready=Unknown and the unreachable NoSchedule taint, both re-read live, after which this channel is
    /// decisive, as a duration from 0s to 24h.
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

/// Channel Agent: heartbeats of the node agent, confirmed by its peers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentDetection {
    /// Silence that makes the node suspected, as a duration from 2s to 10m.
    #[serde(default = "AgentDetection::default_suspect_after")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('2s') && duration(self) <= duration('10m')").message("must be between 2s and 10m"))]
    pub suspect_after: Duration,
}

impl AgentDetection {
    fn default_suspect_after() -> Duration {
        Duration::seconds(3)
    }
}

impl Default for AgentDetection {
    fn default() -> Self {
        Self { suspect_after: Self::default_suspect_after() }
    }
}

impl Detection {
    /// Whether the taint counts as evidence. Cordons and our own taints never do.
    pub fn counts_taint(&self, taint: &k8s_openapi::api::core::v1::Taint) -> bool {
        let value = taint.value.as_deref().unwrap_or_default();
        let ours = taint.key.starts_with("bulkhead.dev/")
            || taint.key.contains(".bulkhead.dev/")
            || taint.key == names::OUT_OF_SERVICE_TAINT && value.starts_with("bulkhead-");
        let cordon = taint.key == names::UNSCHEDULABLE_TAINT;
        !ours && !cordon && self.taints.iter().any(|wanted| wanted.matches(taint))
    }
}

impl TaintMatch {
    fn matches(&self, taint: &k8s_openapi::api::core::v1::Taint) -> bool {
        let key = self.key == "*" || self.key == taint.key;
        key && match self.effect {
            None => matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"),
            Some(TaintEffect::NoSchedule) => taint.effect == "NoSchedule",
            Some(TaintEffect::NoExecute) => taint.effect == "NoExecute",
        }
    }
}
