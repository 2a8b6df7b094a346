//! The strongest proof that fence methods can give for the volumes of a driver as things are.

use super::driver_report::DriverReport;
use super::fencing::{FenceMethod, FenceMethodType, Proof};

/// What can be proved, and why not more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BestProof {
    /// The strongest proof.
    pub proof: Proof,
    /// The method that gives it, the first of those that do.
    pub method: Option<FenceMethodType>,
    /// `FencerMissing`, `FencerSilent` or `ProofUnreachable`: why it is not enough, where it is not.
    pub lacking: &'static str,
}

/// The best of these methods. `report` is what the driver's sidecar says of the driver; one that is silent says nothing any
/// more, whatever its last report has.
pub fn best_proof(methods: &[FenceMethod], report: Option<&DriverReport>, is_silent: bool) -> BestProof {
    let mut best = BestProof { proof: Proof::None, method: None, lacking: "ProofUnreachable" };
    for method in methods {
        let proof = match (method.type_, report) {
            (FenceMethodType::Detach, _) => Proof::Acknowledged,
            (FenceMethodType::Unpublish, None) => {
                best.lacking = "FencerMissing";
                Proof::None
            }
            (FenceMethodType::Unpublish, Some(_)) if is_silent => {
                best.lacking = "FencerSilent";
                Proof::None
            }
            (FenceMethodType::Unpublish, Some(report)) => report.unpublish_proof(),
        };
        if proof > best.proof {
            (best.proof, best.method) = (proof, Some(method.type_));
        }
    }
    best
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
    fn the_strongest_method_counts_and_a_silent_sidecar_gives_none() {
        let method = |type_| FenceMethod { type_ };
        let (unpublish, detach) = (method(FenceMethodType::Unpublish), method(FenceMethodType::Detach));
        let both = [detach.clone(), unpublish.clone()];
        let good = report(&["Unpublish", "ListPublishedNodes"], "True");
        let weak = report(&["Unpublish"], "True");
        let down = report(&["Unpublish", "ListPublishedNodes"], "False");
        let is = |methods: &[FenceMethod], report: Option<&DriverReport>, is_silent| {
            let best = best_proof(methods, report, is_silent);
            (best.proof, best.method, best.lacking)
        };
        let (by_unpublish, by_detach) = (Some(FenceMethodType::Unpublish), Some(FenceMethodType::Detach));
        assert_eq!(is(&both, Some(&good), false), (Proof::Verified, by_unpublish, "ProofUnreachable"));
        assert_eq!(is(&both, Some(&good), true), (Proof::Acknowledged, by_detach, "FencerSilent"));
        assert_eq!(is(&both, None, false), (Proof::Acknowledged, by_detach, "FencerMissing"));
        assert_eq!(is(&both, Some(&weak), false), (Proof::Acknowledged, by_detach, "ProofUnreachable"));
        assert_eq!(is(&both[1..], Some(&weak), false), (Proof::Acknowledged, by_unpublish, "ProofUnreachable"));
        assert_eq!(is(&both[1..], Some(&good), true), (Proof::None, None, "FencerSilent"));
        assert_eq!(is(&both[1..], Some(&down), false), (Proof::None, None, "ProofUnreachable"));
        assert_eq!(is(&[], Some(&good), false), (Proof::None, None, "ProofUnreachable"));
    }
}
