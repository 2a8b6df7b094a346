//! How the old writer is cut off and what must be proved.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::fencing::{FenceMethod, FenceMethodType, Proof};
use crate::api::time::Duration;

/// How the old writer is cut off and how that must be proved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.minimumProof) || self.minimumProof != 'None' || has(self.acknowledgeRisk)").message("minimumProof None lets two nodes write one volume; set acknowledgeRisk: DoubleWriters to accept that").field_path(".minimumProof"))]
#[x_kube(validation = Rule::new("!has(self.drivers) || has(self.acknowledgeRisk) || self.drivers.all(d, !has(d.minimumProof) || d.minimumProof != 'None')").message("minimumProof None lets two nodes write one volume; set acknowledgeRisk: DoubleWriters to accept that").field_path(".drivers"))]
#[x_kube(validation = Rule::new("!has(self.minimumProof) || !has(self.methods) || (self.minimumProof == 'PowerOff' ? self.methods.exists(m, m.type == 'External') : (self.minimumProof == 'Verified' ? self.methods.exists(m, m.type in ['Unpublish', 'External']) : true))").message("minimumProof cannot be reached by any listed method: Verified needs Unpublish or External; PowerOff needs External").field_path(".methods"))]
#[x_kube(validation = Rule::new("!has(self.drivers) || !has(self.minimumProof) || !has(self.methods) || self.drivers.all(d, has(d.minimumProof) ? has(d.methods) || (d.minimumProof == 'PowerOff' ? self.methods.exists(m, m.type == 'External') : (d.minimumProof == 'Verified' ? self.methods.exists(m, m.type in ['Unpublish', 'External']) : true)) : !has(d.methods) || (self.minimumProof == 'PowerOff' ? d.methods.exists(m, m.type == 'External') : (self.minimumProof == 'Verified' ? d.methods.exists(m, m.type in ['Unpublish', 'External']) : true)))").message("minimumProof cannot be reached by any listed method: Verified needs Unpublish or External; PowerOff needs External").field_path(".drivers"))]
#[x_kube(validation = Rule::new("!has(self.methods) || size(self.methods.filter(m, m.type == 'NetworkFence')) <= 1").message("methods may list NetworkFence once: what is answered names the method, not the class").field_path(".methods"))]
pub struct Fencing {
    /// Weakest proof at which a pod may be released: None < Acknowledged < Verified <
    /// PowerOff.
    #[serde(default = "Fencing::default_minimum_proof")]
    pub minimum_proof: Proof,
    /// Methods in order of preference; the next is tried when one is unavailable or refused. NetworkFence and External are
    /// tried only where the node failed, never for the sake of volumes of a node that is well.
    #[serde(default = "Fencing::default_methods")]
    #[schemars(length(min = 1, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub methods: Vec<FenceMethod>,
    /// Overrides per CSI driver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub drivers: Vec<DriverFencing>,
    /// Deadline of one fence call, as a duration from 1s to 5m. A call of a driver's sidecar ends with what is left of its
    /// Lease at the latest, 5 to 10 s after it was sent, and is sent again.
    #[serde(default = "Fencing::default_call_timeout")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('5m')").message("must be between 1s and 5m"))]
    pub call_timeout: Duration,
    /// Time without proof after which the fence is reported as Stalled, as a duration from 10s to 24h;
    /// retries go on.
    #[serde(default = "Fencing::default_give_up_after")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('10s') && duration(self) <= duration('24h')").message("must be between 10s and 24h"))]
    pub give_up_after: Duration,
    /// Must be DoubleWriters when any minimumProof is None. There is no other use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AcknowledgeRisk")]
    pub acknowledge_risk: Option<AcknowledgeRisk>,
}

impl Fencing {
    fn default_minimum_proof() -> Proof {
        Proof::Verified
    }

    fn default_methods() -> Vec<FenceMethod> {
        vec![FenceMethodType::Unpublish.into(), FenceMethodType::Detach.into()]
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

/// Override for one driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.minimumProof) || has(self.methods)").message("set minimumProof or methods; an empty override does nothing"))]
#[x_kube(validation = Rule::new("!has(self.minimumProof) || !has(self.methods) || (self.minimumProof == 'PowerOff' ? self.methods.exists(m, m.type == 'External') : (self.minimumProof == 'Verified' ? self.methods.exists(m, m.type in ['Unpublish', 'External']) : true))").message("minimumProof cannot be reached by any listed method: Verified needs Unpublish or External; PowerOff needs External"))]
#[x_kube(validation = Rule::new("!has(self.methods) || size(self.methods.filter(m, m.type == 'NetworkFence')) <= 1").message("methods may list NetworkFence once: what is answered names the method, not the class"))]
pub struct DriverFencing {
    /// CSI driver name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"))]
    pub name: String,
    /// Replaces fencing.minimumProof for this driver. Absent: fencing.minimumProof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Proof")]
    pub minimum_proof: Option<Proof>,
    /// Replaces fencing.methods for this driver. Absent: fencing.methods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub methods: Vec<FenceMethod>,
}

/// What a policy with minimumProof None accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AcknowledgeRisk {
    /// Two nodes may write one volume at the same time.
    DoubleWriters,
}

impl Fencing {
    /// The minimum proof for a volume of that driver.
    pub fn minimum_proof_for(&self, driver: &str) -> Proof {
        let own = self.drivers.iter().find(|d| d.name == driver).and_then(|d| d.minimum_proof);
        own.unwrap_or(self.minimum_proof)
    }

    /// The external fencers that any of its methods names.
    pub fn external_fencers(&self) -> impl Iterator<Item = &str> {
        let methods = self.methods.iter().chain(self.drivers.iter().flat_map(|driver| &driver.methods));
        methods.filter_map(|method| method.external.as_ref()).map(|external| external.fencer_name.as_str())
    }

    /// The methods for a volume of that driver.
    pub fn methods_for(&self, driver: &str) -> &[FenceMethod] {
        let own = self.drivers.iter().find(|d| d.name == driver).map(|d| d.methods.as_slice());
        own.filter(|methods| !methods.is_empty()).unwrap_or(&self.methods)
    }
}
