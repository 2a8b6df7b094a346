//! The strongest proof that fence methods can give for the volumes of a driver as things are.

use std::collections::BTreeSet;

use super::driver_report::DriverReport;
use super::fencing::{FenceMethodType, PlannedMethod, Proof};

/// csi-addons has no NetworkFenceClass for a driver, or is not installed.
pub const CLASS_NOT_FOUND: &str = "ClassNotFound";

/// The NetworkFenceClass shuts addresses out of another cluster of the storage than the one that a volume is of, or does not say which.
pub const CLASS_OF_ANOTHER_CLUSTER: &str = "ClassOfAnotherCluster";

/// The NetworkFenceClass is not of the driver.
pub const CLASS_OF_ANOTHER_DRIVER: &str = "ClassOfAnotherDriver";

/// The NetworkFenceClass was made a moment ago, and csi-addons may still go by one of that name that was there before.
pub const CLASS_TOO_NEW: &str = "ClassTooNew";

/// [`CLASS_OF_ANOTHER_CLUSTER`] as a sentence that says what to do. The cluster is that of the volume, empty where it names none.
pub fn class_of_another_cluster(class: &str, cluster: &str) -> String {
    if cluster.is_empty() {
        return format!(
            "NetworkFenceClass {class} names a cluster (parameter clusterID), and the volume none: name a class that names none either"
        );
    }
    format!(
        "NetworkFenceClass {class} does not name cluster {cluster} (parameter clusterID), which the volume is of: name a class \
         that does"
    )
}

/// The same by what the driver's sidecar says, which may be nothing.
pub fn class_of_other_cluster(report: &DriverReport, driver: &str, class: &str, cluster: &str) -> String {
    if report.is_cluster_untold(class) {
        return format!(
            "which cluster NetworkFenceClass {class} is of is not known: the sidecar of driver {driver} does not say it \
             (DriverReport.status.networkFenceClusters). Bring the definitions and the sidecar to this release"
        );
    }
    class_of_another_cluster(class, cluster)
}

/// What can be proved, and why not more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BestProof {
    /// The strongest proof.
    pub proof: Proof,
    /// The method that gives it, the first of those that do.
    pub method: Option<FenceMethodType>,
    /// `FencerMissing`, `FencerSilent`, `ClassNotFound` or `ProofUnreachable`: why it is not enough, where it is not.
    pub lacking: &'static str,
}

/// What is known of those who carry out fences for the volumes of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Fencers<'a> {
    /// The driver.
    pub driver: &'a str,
    /// What its sidecar says of it.
    pub report: Option<&'a DriverReport>,
    /// Those whose Lease has not moved lately, by driver for the sidecars. They say nothing any more, whatever their last
    /// report has.
    pub silent: &'a BTreeSet<String>,
    /// External fencers that have no Lease.
    pub missing: &'a BTreeSet<String>,
}

impl Fencers<'_> {
    /// The best of these methods.
    pub fn best_proof(&self, methods: impl IntoIterator<Item = impl Into<PlannedMethod>>) -> BestProof {
        let mut best = BestProof { proof: Proof::None, method: None, lacking: "ProofUnreachable" };
        for method in methods.into_iter().map(Into::into) {
            if let Some(absence) = self.absence(&method) {
                best.lacking = absence;
                continue;
            }
            let proof = match (method.type_, self.report) {
                (FenceMethodType::Unpublish, Some(report)) => report.unpublish_proof(),
                (FenceMethodType::NetworkFence, Some(report)) => report.network_fence_proof(method.class()),
                (FenceMethodType::Unpublish | FenceMethodType::NetworkFence, None) => Proof::None,
                (FenceMethodType::Detach | FenceMethodType::External, _) => method.type_.best_proof(),
            };
            if method.type_ == FenceMethodType::NetworkFence && proof == Proof::None {
                best.lacking = CLASS_NOT_FOUND;
            }
            if proof > best.proof {
                (best.proof, best.method) = (proof, Some(method.type_));
            }
        }
        best
    }

    /// `FencerMissing` or `FencerSilent`, where there is nobody to carry out a method.
    pub fn absence(&self, method: &PlannedMethod) -> Option<&'static str> {
        let fencer = method.fencer(self.driver)?;
        let is_missing = match method.type_ {
            FenceMethodType::External => self.missing.contains(fencer),
            FenceMethodType::Unpublish | FenceMethodType::NetworkFence | FenceMethodType::Detach => {
                self.report.is_none()
            }
        };
        match (is_missing, self.silent.contains(fencer)) {
            (true, _) => Some("FencerMissing"),
            (false, true) => Some("FencerSilent"),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(capabilities: &[&str], ready: &str) -> DriverReport {
        let condition = serde_json::json!({
            "type": "Ready", "status": ready, "reason": "Reported", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = serde_json::json!({ "capabilities": capabilities, "conditions": [condition] });
        let mut report = DriverReport::new("d", Default::default());
        report.status = Some(serde_json::from_value(status).unwrap());
        report
    }

    #[test]
    fn a_network_fence_needs_the_class_that_is_named() {
        let mut report = report(&["NetworkFence"], "True");
        report.status.as_mut().unwrap().network_fence_classes = vec!["file-fence".into()];
        let none = BTreeSet::new();
        let fencers = Fencers { driver: "d", report: Some(&report), silent: &none, missing: &none };
        for (class, proof, lacking) in
            [("file-fence", Proof::Acknowledged, "ProofUnreachable"), ("file-fnece", Proof::None, CLASS_NOT_FOUND)]
        {
            let type_ = FenceMethodType::NetworkFence;
            let best = fencers.best_proof([PlannedMethod { type_, class_name: Some(class.into()), fencer_name: None }]);
            assert_eq!((best.proof, best.lacking), (proof, lacking), "{class}");
        }
    }

    #[test]
    fn the_strongest_method_counts_and_a_silent_fencer_gives_none() {
        let method = |type_, fencer: Option<&str>| PlannedMethod {
            type_,
            class_name: None,
            fencer_name: fencer.map(str::to_owned),
        };
        let unpublish = method(FenceMethodType::Unpublish, None);
        let both = [method(FenceMethodType::Detach, None), unpublish.clone()];
        let power = [unpublish, method(FenceMethodType::External, Some("power.example.com"))];
        let good = report(&["Unpublish", "ListPublishedNodes"], "True");
        let weak = report(&["Unpublish"], "True");
        let down = report(&["Unpublish", "ListPublishedNodes"], "False");
        let is = |methods: &[PlannedMethod], report: Option<&DriverReport>, silent: &[&str], missing: &[&str]| {
            let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
            let (silent, missing) = (set(silent), set(missing));
            let fencers = Fencers { driver: "d", report, silent: &silent, missing: &missing };
            let best = fencers.best_proof(methods.iter().cloned());
            (best.proof, best.method, best.lacking)
        };
        let (by_unpublish, by_detach) = (Some(FenceMethodType::Unpublish), Some(FenceMethodType::Detach));
        assert_eq!(is(&both, Some(&good), &[], &[]), (Proof::Verified, by_unpublish, "ProofUnreachable"));
        assert_eq!(is(&both, Some(&good), &["d"], &[]), (Proof::Acknowledged, by_detach, "FencerSilent"));
        assert_eq!(is(&both, None, &[], &[]), (Proof::Acknowledged, by_detach, "FencerMissing"));
        assert_eq!(is(&both, Some(&weak), &[], &[]), (Proof::Acknowledged, by_detach, "ProofUnreachable"));
        assert_eq!(is(&both[1..], Some(&weak), &[], &[]), (Proof::Acknowledged, by_unpublish, "ProofUnreachable"));
        assert_eq!(is(&both[1..], Some(&good), &["d"], &[]), (Proof::None, None, "FencerSilent"));
        assert_eq!(is(&both[1..], Some(&down), &[], &[]), (Proof::None, None, "ProofUnreachable"));
        assert_eq!(is(&[], Some(&good), &[], &[]), (Proof::None, None, "ProofUnreachable"));
        let (by_external, fencer) = (Some(FenceMethodType::External), "power.example.com");
        assert_eq!(is(&power, Some(&good), &[], &[]), (Proof::PowerOff, by_external, "ProofUnreachable"));
        assert_eq!(is(&power, Some(&good), &[fencer], &[]), (Proof::Verified, by_unpublish, "FencerSilent"));
        assert_eq!(is(&power, Some(&good), &[], &[fencer]), (Proof::Verified, by_unpublish, "FencerMissing"));
        assert_eq!(is(&power, None, &[], &[]), (Proof::PowerOff, by_external, "FencerMissing"));
    }
}
