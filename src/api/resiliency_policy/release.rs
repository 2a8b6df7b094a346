//! Which pods are released and how.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which pods are released and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// Pods without a controller: nothing would re-create them.
    #[serde(default = "Release::default_bare_pods")]
    pub bare_pods: BarePods,
    /// Selected pods with nothing to fence; nothing proves that they stopped.
    #[serde(default = "Release::default_pods_without_volumes")]
    pub pods_without_volumes: PodsWithoutVolumes,
    /// Together releases pods bound by required pod affinity on kubernetes.io/hostname in one step or not at all.
    #[serde(default = "Release::default_affinity_groups")]
    pub affinity_groups: AffinityGroups,
    /// How attachments are removed once pods are gone. Automatic uses the node.kubernetes.io/out-of-service taint once every volume is proved, else
    /// VolumeAttachments; VolumeAttachments never sets that taint.
    #[serde(default = "Release::default_detach")]
    pub detach: DetachMode,
}

impl Release {
    fn default_bare_pods() -> BarePods {
        BarePods::Keep
    }

    fn default_pods_without_volumes() -> PodsWithoutVolumes {
        PodsWithoutVolumes::Keep
    }

    fn default_affinity_groups() -> AffinityGroups {
        AffinityGroups::Independent
    }

    fn default_detach() -> DetachMode {
        DetachMode::Automatic
    }
}

impl Default for Release {
    fn default() -> Self {
        Self {
            bare_pods: Self::default_bare_pods(),
            pods_without_volumes: Self::default_pods_without_volumes(),
            affinity_groups: Self::default_affinity_groups(),
            detach: Self::default_detach(),
        }
    }
}

/// What happens to pods without a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum BarePods {
    /// They are deleted as others are.
    Delete,
    /// They stay.
    Keep,
}

/// What happens to pods with nothing to fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PodsWithoutVolumes {
    /// They are released without any proof.
    Release,
    /// They stay.
    Keep,
}

/// How pods that must run on one node are released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AffinityGroups {
    /// In one step or not at all.
    Together,
    /// Each when its own volumes are proved.
    Independent,
}

/// How attachments are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DetachMode {
    /// By the out-of-service taint where everything on the node is proved, else one by one.
    Automatic,
    /// One by one; the out-of-service taint is never set.
    VolumeAttachments,
}

/// What happens to pods outside every policy that share a volume with a protected pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Sharers {
    /// They stay, and hold whoever shares a volume with them.
    Hold,
    /// They are released too.
    CleanAll,
}
