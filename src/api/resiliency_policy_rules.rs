//! What the fields of a policy say about a driver or a taint.

use k8s_openapi::api::core::v1::Taint;

use super::fencing::{FenceMethod, Proof};
use super::names;
use super::resiliency_policy::{Detection, Fencing, TaintEffect, TaintMatch};

impl Fencing {
    /// The minimum proof for a volume of that driver.
    pub fn minimum_proof_for(&self, driver: &str) -> Proof {
        let own = self.drivers.iter().find(|d| d.name == driver).and_then(|d| d.minimum_proof);
        own.unwrap_or(self.minimum_proof)
    }

    /// The methods for a volume of that driver.
    pub fn methods_for(&self, driver: &str) -> &[FenceMethod] {
        let own = self.drivers.iter().find(|d| d.name == driver).map(|d| d.methods.as_slice());
        own.filter(|methods| !methods.is_empty()).unwrap_or(&self.methods)
    }
}

impl Detection {
    /// Whether the taint counts as evidence. Cordons and our own taints never do.
    pub fn counts_taint(&self, taint: &Taint) -> bool {
        let value = taint.value.as_deref().unwrap_or_default();
        let ours = taint.key.starts_with("bulkhead.dev/")
            || taint.key.contains(".bulkhead.dev/")
            || taint.key == names::OUT_OF_SERVICE_TAINT && value.starts_with("bulkhead-");
        let cordon = taint.key == names::UNSCHEDULABLE_TAINT;
        !ours && !cordon && self.taints.iter().any(|wanted| wanted.matches(taint))
    }
}

impl TaintMatch {
    fn matches(&self, taint: &Taint) -> bool {
        let key = self.key == "*" || self.key == taint.key;
        key && match self.effect {
            None => matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"),
            Some(TaintEffect::NoSchedule) => taint.effect == "NoSchedule",
            Some(TaintEffect::NoExecute) => taint.effect == "NoExecute",
        }
    }
}
