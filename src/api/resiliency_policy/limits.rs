//! The brakes: how much may be acted on at once.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::api::limits::IntOrPercent;
use crate::api::time::Duration;

/// How much may be acted on at once, and when the observer must be wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.maxNodes) || !has(self.ceiling) || type(self.maxNodes) != int || self.maxNodes <= self.ceiling").message("maxNodes as a number must not exceed ceiling").field_path(".maxNodes"))]
pub struct Limits {
    /// Nodes this policy may act on within window, in progress included: a number or a percentage of all nodes, rounded
    /// up.
    #[serde(default = "Limits::default_max_nodes")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 5000 : self.matches('^([1-9][0-9]?|100)%$')").message("must be a whole number from 1 to 5000 or a percentage from 1% to 100%"))]
    pub max_nodes: IntOrPercent,
    /// Absolute ceiling: never more nodes than this within window, whatever maxNodes says.
    #[serde(default = "Limits::default_ceiling")]
    #[schemars(range(min = 1, max = 5000))]
    pub ceiling: i32,
    /// Sliding window of maxNodes, as a duration from 0s to 24h.
    #[serde(default = "Limits::default_window")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('0s') && duration(self) <= duration('24h')").message("must be between 0s and 24h"))]
    pub window: Duration,
    /// Further limits per topology domain, such as a zone. Nodes without the label are one domain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["topologyKey".into()]))]
    pub topology: Vec<TopologyLimit>,
    /// When more nodes than this number, or percentage of all nodes, are suspected at once, nothing is done at all: the
    /// observer or the network is at fault.
    #[serde(default = "Limits::default_max_unhealthy")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 5000 : self.matches('^([1-9][0-9]?|100)%$')").message("must be a whole number from 1 to 5000 or a percentage from 1% to 100%"))]
    pub max_unhealthy: IntOrPercent,
    /// Calm time required after maxUnhealthy was exceeded, as a duration from 0s to 24h.
    #[serde(default = "Limits::default_cooldown")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('0s') && duration(self) <= duration('24h')").message("must be between 0s and 24h"))]
    pub cooldown: Duration,
}

/// Limit for one topology key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyLimit {
    /// Node label whose values are the domains.
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: String,
    /// As maxNodes, within one domain: a percentage is of its nodes.
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 5000 : self.matches('^([1-9][0-9]?|100)%$')").message("must be a whole number from 1 to 5000 or a percentage from 1% to 100%"))]
    pub max_nodes: IntOrPercent,
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
            topology: Vec::new(),
            max_unhealthy: Self::default_max_unhealthy(),
            cooldown: Self::default_cooldown(),
        }
    }
}
