//! Whether a node that is alone cuts itself off.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::time::Duration;

/// Optional cut-off by the node itself: never a proof, and never instead of the fence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelfFencing {
    /// Enabled lets the node agent stop protected pods' access when it has lost the API and all its peers: their containers are
    /// killed, and what the kubelet starts anew does not get their volumes. Needs heartbeats, and three nodes.
    #[serde(default = "SelfFencing::default_mode")]
    pub mode: SelfFencingMode,
    /// Loss of the API and of all peers after which the agent acts; must end before the node can be declared failed, so where
    /// it is Enabled lost heartbeats declare no node sooner. A duration from 5s to 1h.
    #[serde(default = "SelfFencing::default_after")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('5s') && duration(self) <= duration('1h')").message("must be between 5s and 1h"))]
    pub after: Duration,
}

impl SelfFencing {
    fn default_mode() -> SelfFencingMode {
        SelfFencingMode::Disabled
    }

    fn default_after() -> Duration {
        Duration::seconds(15)
    }

    /// After which loss the agent acts; none where it does not.
    pub fn deadline(&self) -> Option<std::time::Duration> {
        (self.mode == SelfFencingMode::Enabled).then(|| self.after.get())
    }
}

impl Default for SelfFencing {
    fn default() -> Self {
        Self { mode: Self::default_mode(), after: Self::default_after() }
    }
}

/// Whether the agent acts by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SelfFencingMode {
    /// It does.
    Enabled,
    /// It does not.
    Disabled,
}
