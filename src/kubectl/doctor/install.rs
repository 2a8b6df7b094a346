//! Is Bulkhead itself in order: the cluster's version, the leading controller, the admission policies.

use kube::ResourceExt;

use crate::api::slim::AdmissionBinding;
use crate::controllers::resiliency_policy::status::other_triggers;
use crate::error::Error;
use crate::kubectl::gather::Gathered;

use super::{Finding, Severity};

/// The oldest version that Bulkhead is made for. Tests run on a newer one: docs/install.md.
const OLDEST: (u32, u32) = (1, 33);
/// A Lease lasts 15 s; clocks differ.
const LEASE_OLD_AFTER: i64 = 60;
/// The controller's Lease.
const CONTROLLER_LEASE: &str = "bulkhead-controller";
/// Bindings of the admission policies that failover rests on.
pub const POLICIES: [&str; 12] = [
    "controller-nodes.bulkhead.dev",
    "controller-volumes.bulkhead.dev",
    "controller-writes.bulkhead.dev",
    "driver-report.bulkhead.dev",
    "fence-attest.bulkhead.dev",
    "fence-request-incident.bulkhead.dev",
    "fenced-node-attachments.bulkhead.dev",
    "frozen-plan.bulkhead.dev",
    "frozen-request.bulkhead.dev",
    "node-report.bulkhead.dev",
    "nodefence-approval.bulkhead.dev",
    "nodefence-people.bulkhead.dev",
];

/// The API server's version.
pub fn version(asked: Result<k8s_openapi::apimachinery::pkg::version::Info, Error>) -> Option<Finding> {
    const CHECK: &str = "Kubernetes";
    let info = match asked {
        Ok(info) => info,
        Err(error) => {
            let remedy = "see whether kubectl version answers".to_owned();
            let (severity, about) = (Severity::Unknown, "version".to_owned());
            return Some(Finding { severity, check: CHECK, about, message: error.to_string(), remedy });
        }
    };
    let digits = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or(0);
    let found = (digits(&info.major), digits(&info.minor));
    let old = format!("Bulkhead needs {}.{} or newer", OLDEST.0, OLDEST.1);
    Some(if found < OLDEST {
        Finding::warning(CHECK, "version", format!("{}: {old}", info.git_version), "upgrade the cluster")
    } else {
        Finding::ok(CHECK, "version", info.git_version)
    })
}

/// Policies that ignore failed nodes and act otherwise. That is no warning: it may be what somebody wants.
pub fn triggers(gathered: &Gathered) -> Vec<Finding> {
    let policies = gathered.stores.policies.list();
    let told = policies.iter().filter_map(|policy| Some((policy.name_any(), other_triggers(policy)?)));
    told.map(|(name, on)| Finding::ok("Triggers", format!("policy {name}"), on)).collect()
}

/// Whether a controller leads.
pub fn controller(gathered: &Gathered) -> Vec<Finding> {
    const CHECK: &str = "Controller";
    let remedy = "look at its pods and logs; --operator-namespace names another namespace";
    let policies = gathered.stores.policies.len();
    let mut findings = vec![if policies == 0 {
        let remedy = "create one, for instance config/samples/resiliencypolicy-first.yaml";
        Finding::warning("Policies", "ResiliencyPolicy", "there is none: no pod is protected", remedy)
    } else {
        Finding::ok("Policies", "ResiliencyPolicy", format!("{policies} of them"))
    }];
    let age = gathered.operator_lease_age(CONTROLLER_LEASE).map(|age| age.num_seconds());
    findings.push(match age {
        None => Finding::warning(
            CHECK,
            CONTROLLER_LEASE,
            "no controller holds or held its Lease: nothing is done at all",
            remedy,
        ),
        Some(age) if age > LEASE_OLD_AFTER => {
            let message = format!("its Lease was renewed {age} s ago, by its clock: nothing is done while none leads");
            Finding::warning(CHECK, CONTROLLER_LEASE, message, remedy)
        }
        Some(_) => Finding::ok(CHECK, CONTROLLER_LEASE, "it leads"),
    });
    findings
}

/// Whether our admission policies are in force.
pub fn policies(bindings: &[AdmissionBinding]) -> Vec<Finding> {
    const CHECK: &str = "Admission";
    let is_in_force = |name: &str| bindings.iter().any(|binding| binding.name_any() == name && binding.denies());
    let lacking: Vec<_> = POLICIES.into_iter().filter(|name| !is_in_force(name)).collect();
    if lacking.is_empty() {
        return vec![Finding::ok(CHECK, "policies", format!("{} policies are in force", POLICIES.len()))];
    }
    let finding = |name: &str| {
        Finding::warning(CHECK, name, "its binding is missing or does not deny", "kubectl apply -k config/policies")
    };
    lacking.into_iter().map(finding).collect()
}

/// How old a Lease of a sidecar or controller may be.
pub fn is_old(seconds: i64) -> bool {
    seconds > LEASE_OLD_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policies_that_are_looked_for_are_those_that_are_shipped() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config/policies");
        let texts: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
            .collect();
        for name in POLICIES {
            let named = format!("  policyName: {name}\n");
            assert!(texts.iter().any(|text| text.contains(&named)), "{name} is not shipped");
        }
    }

    #[test]
    fn a_policy_that_only_warns_is_not_in_force() {
        let binding = |name: &str, actions: serde_json::Value| -> AdmissionBinding {
            let spec = serde_json::json!({ "validationActions": actions });
            serde_json::from_value(serde_json::json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
        };
        let mut all: Vec<_> = POLICIES.iter().map(|name| binding(name, serde_json::json!(["Deny"]))).collect();
        assert!(policies(&all).iter().all(|finding| finding.severity == Severity::Ok));
        all[0] = binding(POLICIES[0], serde_json::json!(["Audit"]));
        let found = policies(&all);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].severity, found[0].about.as_str()), (Severity::Warning, POLICIES[0]));
    }

    #[test]
    fn an_old_cluster_is_told() {
        let info = |major: &str, minor: &str| k8s_openapi::apimachinery::pkg::version::Info {
            major: major.into(),
            minor: minor.into(),
            git_version: format!("v{major}.{minor}"),
            ..Default::default()
        };
        assert_eq!(version(Ok(info("1", "32"))).unwrap().severity, Severity::Warning);
        assert_eq!(version(Ok(info("1", "33+"))).unwrap().severity, Severity::Ok);
        let unreachable = Error::from(kube::Error::Service("refused".into()));
        assert_eq!(version(Err(unreachable)).unwrap().severity, Severity::Unknown);
    }
}
