//! Can each driver of a protected pod be fenced, with the proof that its policy requires?

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;

use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::names;
use crate::api::proof::Fencers;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::controllers::resiliency_policy::decide::Seen;
use crate::controllers::resiliency_policy::unattached::useless_class;
use crate::kubectl::gather::Gathered;
use crate::runtime::store::ObjectKey;

use super::{Finding, drivers, install, protected_drivers, unattached_drivers};

/// Looks at every policy and driver.
pub fn check(gathered: &Gathered) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (policy, driver, pods) in protected_drivers(gathered) {
        findings.extend(proof(gathered, &policy, &driver, pods, true));
    }
    let unattached = unattached_drivers(gathered);
    for (policy, driver, pods) in &unattached {
        findings.extend(proof(gathered, policy, driver, *pods, false));
    }
    findings.extend(classes(&gathered.seen()));
    for driver in drivers(gathered) {
        findings.extend(sidecar(gathered, &driver, true));
    }
    for driver in unattached.iter().map(|(_, driver, _)| driver).collect::<BTreeSet<_>>() {
        findings.extend(sidecar(gathered, driver, false));
    }
    let policies = gathered.stores.policies.list();
    let known = |driver: &str| gathered.stores.csi_drivers.get(&ObjectKey::cluster(driver));
    findings.extend(uncovered(&policies, |driver| {
        known(driver).is_none_or(|driver| driver.spec.attach_required != Some(false))
    }));
    let named = policies.iter().flat_map(|policy| policy.spec.fencing.external_fencers());
    findings.extend(named.collect::<BTreeSet<_>>().into_iter().map(|fencer| external(gathered, fencer)));
    findings
}

/// Whether a fencer has a Lease, and does not renew it.
pub fn is_silent(gathered: &Gathered, fencer: &str) -> bool {
    gathered.operator_lease_age(&names::fencer_lease(fencer)).is_some_and(|it| install::is_old(it.num_seconds()))
}

/// `attaches`: of a driver that does not, pods that no method covers are told one by one.
fn proof(gathered: &Gathered, policy: &str, driver: &str, pods: usize, attaches: bool) -> Option<Finding> {
    const CHECK: &str = "Proof";
    let stores = &gathered.stores;
    let fencing = &stores.policies.get(&ObjectKey::cluster(policy))?.spec.fencing;
    let minimum = fencing.minimum_proof_for(driver).max(if attaches { Proof::None } else { Proof::Acknowledged });
    let methods = fencing.methods_for(driver).iter().filter(|method| attaches || !method.type_.needs_attachment());
    let methods: Vec<_> = methods.cloned().collect();
    if !attaches && methods.is_empty() {
        return None;
    }
    let report = stores.reports.get(&ObjectKey::cluster(driver));
    let is_silent = |fencer: &str| is_silent(gathered, fencer);
    let external = || fencing.external_fencers();
    let known = Fencers {
        driver,
        report: report.as_deref(),
        silent: &external().chain([driver]).filter(|it| is_silent(it)).map(str::to_owned).collect(),
        missing: &external()
            .filter(|it| gathered.operator_lease_age(&names::fencer_lease(it)).is_none())
            .map(str::to_owned)
            .collect(),
    };
    let found = known.best_proof(methods);
    let (best, method) = (found.proof, found.method);
    let about = format!("policy {policy}, driver {driver}");
    if best >= minimum {
        let method = method.map_or_else(String::new, |method| format!(" by {method:?}"));
        return Some(Finding::ok(CHECK, about, format!("{best:?}{method}, {minimum:?} is required")));
    }
    let why = match &report {
        None => "no DriverReport: no sidecar speaks for the driver",
        Some(_) if is_silent(driver) => "its sidecar has fallen silent",
        Some(report) if !report.is_ready() => "the driver does not answer its sidecar",
        Some(_) => "the driver cannot give more with these methods",
    };
    let remedy = match &report {
        None => {
            "run bulkhead-csi-sidecar beside the driver's controller; kubectl bulkhead sidecar prints it and its rights"
        }
        Some(_) => {
            "kubectl describe driverreport; else give the policy another method or a weaker proof for this driver: spec.fencing.drivers"
        }
    };
    let message = format!("best proof {best:?}, {minimum:?} is required: its {pods} pods would be held ({why})");
    Some(Finding::warning(CHECK, about, message, remedy))
}

/// Classes that policies list, and that are of no use for volumes of their pods: a node may be switched off that csi-addons could have
/// shut out, or nobody may shut it out at all.
fn classes(seen: &Seen) -> Vec<Finding> {
    let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for pod in seen.pods.values().flatten() {
        let Some((volume, why)) = useless_class(seen, pod) else { continue };
        let (_, pods) = found.entry(why).or_insert_with(|| (format!("volume {} of {}", volume.name, pod.display()), 0));
        *pods += 1;
    }
    let remedy = "kubectl describe driverreport; list a class of the volumes' cluster, of a new name: docs/fencers.md";
    let finding = |(why, (first, pods)): (String, (String, usize))| {
        Finding::warning("NetworkFenceClass", first, format!("{why} ({pods} pods)"), remedy)
    };
    found.into_iter().map(finding).collect()
}

/// Drivers in selectors that attach nothing, where the policy has no method that covers their volumes: its pods would be held.
fn uncovered(policies: &[Arc<ResiliencyPolicy>], attaches: impl Fn(&str) -> bool) -> Vec<Finding> {
    let finding = |policy: &ResiliencyPolicy, driver: &str| {
        let about = format!("policy {}, driver {driver}", policy.name_any());
        let message = "attachRequired: false: no method of the policy covers its volumes: pods that it selects by them would \
                       be held";
        let remedy =
            "give it NetworkFence (with minimumProof Acknowledged) or External for this driver: spec.fencing.drivers";
        Finding::warning("CSIDriver", about, message, remedy)
    };
    let named = policies.iter().flat_map(|policy| policy.spec.selector.drivers.iter().map(move |it| (policy, it)));
    let is_covered = |policy: &ResiliencyPolicy, driver: &str| {
        policy.spec.fencing.methods_for(driver).iter().any(|method| !method.type_.needs_attachment())
    };
    let lacking = named.filter(|(policy, driver)| !attaches(driver) && !is_covered(policy, driver));
    lacking.map(|(policy, driver)| finding(policy, driver)).collect()
}

/// The sidecar holds a Lease of its own, where a method needs it.
fn sidecar(gathered: &Gathered, driver: &str, attaches: bool) -> Option<Finding> {
    const CHECK: &str = "Sidecar";
    let policies = gathered.stores.policies.list();
    let asks = |method: FenceMethodType| {
        policies.iter().any(|policy| policy.spec.fencing.methods_for(driver).iter().any(|it| it.type_ == method))
    };
    let lease = names::fencer_lease(driver);
    let age = gathered.operator_lease_age(&lease).map(|age| age.num_seconds());
    let remedy = "look at the pod and the log of bulkhead-csi-sidecar beside the driver's controller";
    let is_needed = asks(FenceMethodType::NetworkFence) || attaches && asks(FenceMethodType::Unpublish);
    match age {
        _ if !is_needed => None,
        None => Some(Finding::warning(CHECK, driver, format!("its sidecar has no Lease {lease}"), remedy)),
        Some(age) if install::is_old(age) => {
            let message =
                format!("its sidecar's Lease was renewed {age} s ago, by the sidecar's clock: it does not answer");
            Some(Finding::warning(CHECK, driver, message, remedy))
        }
        Some(_) => Some(Finding::ok(CHECK, driver, "its sidecar leads")),
    }
}

/// An external fencer holds a Lease too, by which it is known to be there.
fn external(gathered: &Gathered, fencer: &str) -> Finding {
    const CHECK: &str = "Fencer";
    const REMEDY: &str = "look at the program that answers for it: docs/fencers.md";
    let lease = names::fencer_lease(fencer);
    match gathered.operator_lease_age(&lease).map(|age| age.num_seconds()) {
        None => Finding::warning(CHECK, fencer, format!("it has no Lease {lease}"), REMEDY),
        Some(age) if install::is_old(age) => {
            let message = format!("its Lease was renewed {age} s ago, by its own clock: it does not answer");
            Finding::warning(CHECK, fencer, message, REMEDY)
        }
        Some(_) => Finding::ok(CHECK, fencer, "it leads"),
    }
}

#[cfg(test)]
#[path = "fencers_tests.rs"]
mod tests;
