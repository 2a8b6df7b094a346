//! Does what cuts nodes off outlive the node that it runs on? The sidecar and the attacher are in the pods of a driver's
//! controller.

use crate::kubectl::gather::Gathered;

use super::attachers::{Attacher, serving};
use super::workloads::Workload;
use super::{Finding, drivers};

const CHECK: &str = "Replicas";
/// Program of the sidecar, after which its container and its image are called.
const SIDECAR: &str = "bulkhead-csi-sidecar";

/// Looks at every workload that fences or detaches for a driver of protected pods.
pub fn check(gathered: &Gathered, workloads: &[Workload], attachers: &[Attacher]) -> Vec<Finding> {
    let drivers = drivers(gathered);
    let detaches = |workload: &Workload| {
        let of = |driver: &String| serving(attachers, driver, &drivers);
        drivers.iter().flat_map(of).any(|attacher| std::ptr::eq(attacher.workload, workload))
    };
    let concerned = |it: &&Workload| !it.is_daemon_set && (runs_sidecar(it) || detaches(it));
    workloads.iter().filter(concerned).map(finding).collect()
}

fn runs_sidecar(workload: &Workload) -> bool {
    workload.containers.iter().any(|(name, image, _)| name.contains(SIDECAR) || image.contains(SIDECAR))
}

fn finding(workload: &Workload) -> Finding {
    let about = workload.about.clone();
    let remedy = "run two replicas, never both on one node: podAntiAffinity with topologyKey kubernetes.io/hostname";
    if workload.replicas < 2 {
        let elsewhere = match workload.evicted_after() {
            Some(seconds) => format!("which begins {seconds} s after the node is unreachable"),
            None => "which never happens: its pods tolerate node.kubernetes.io/unreachable for ever".to_owned(),
        };
        let message = format!(
            "replicas: {}: with the node that it runs on dies who fences or detaches for the driver, until it is elsewhere, {elsewhere}",
            workload.replicas
        );
        return Finding::warning(CHECK, about, message, remedy);
    }
    if !workload.is_spread {
        let message = format!("its {} replicas may run on one node, and die with it", workload.replicas);
        return Finding::warning(CHECK, about, message, remedy);
    }
    Finding::ok(CHECK, about, format!("{} replicas that are kept apart", workload.replicas))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Severity;
    use super::*;

    fn deployment(replicas: Option<i32>, spec: &Value) -> Workload {
        let mut pod = json!({ "containers": [{ "name": SIDECAR, "image": "registry.example.com/sidecar:1" }] });
        json_patch::merge(&mut pod, spec);
        let template = json!({ "spec": pod });
        let deployment = json!({
            "metadata": { "name": "csi-controller", "namespace": "csi" },
            "spec": { "replicas": replicas, "selector": {}, "template": template },
        });
        Workload::of_deployment(&serde_json::from_value(deployment).unwrap())
    }

    fn apart() -> Value {
        let term = json!({ "topologyKey": "kubernetes.io/hostname", "labelSelector": {} });
        json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } })
    }

    #[test]
    fn who_fences_must_outlive_its_node() {
        let preferred = json!([{ "weight": 1, "podAffinityTerm": { "topologyKey": "kubernetes.io/hostname" } }]);
        let preferred = json!({ "affinity": { "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        } } });
        let spread =
            json!({ "topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule" });
        let spread = json!({ "topologySpreadConstraints": [spread] });
        let soon = json!([{ "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30 }]);
        let cases = [
            (deployment(None, &apart()), Severity::Warning, "begins 300 s after"),
            (deployment(Some(0), &apart()), Severity::Warning, "replicas: 0"),
            (deployment(Some(1), &json!({ "tolerations": soon })), Severity::Warning, "begins 30 s after"),
            (
                deployment(Some(1), &json!({ "tolerations": [{ "operator": "Exists" }] })),
                Severity::Warning,
                "never happens",
            ),
            (deployment(Some(2), &json!({})), Severity::Warning, "may run on one node"),
            (deployment(Some(2), &apart()), Severity::Ok, "2 replicas"),
            (deployment(Some(2), &preferred), Severity::Ok, "2 replicas"),
            (deployment(Some(3), &spread), Severity::Ok, "3 replicas"),
        ];
        for (workload, severity, words) in &cases {
            let found = finding(workload);
            assert_eq!(found.severity, *severity, "{found:?}");
            assert!(found.message.contains(words), "{found:?}");
        }
    }

    #[test]
    fn a_sidecar_is_known_by_its_container_or_by_its_image() {
        let of = |name: &str, image: &str| {
            runs_sidecar(&deployment(None, &json!({ "containers": [{ "name": name, "image": image }] })))
        };
        assert!(of("fencer", "registry.example.com/bulkhead/bulkhead-csi-sidecar:0.1.0"));
        assert!(of(SIDECAR, "registry.example.com/sidecar:1"));
        assert!(!of("csi-attacher", "registry.example.com/csi-attacher:v4"));
    }
}
