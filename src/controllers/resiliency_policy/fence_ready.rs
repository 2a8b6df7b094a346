//! Tells at noon what would be held at night: the proof that each driver of a policy's pods can have today, and the pods for
//! which no proof is enough.

use std::collections::BTreeSet;

use crate::api::conditions::State;
use crate::api::fencing::{FenceMethod, Proof};
use crate::api::names;
use crate::api::proof::{CLASS_NOT_FOUND, Fencers};
use crate::api::resiliency_policy::{DriverProof, ResiliencyPolicy};

use super::status::Facts;
use super::storage;

/// Why a method can give no proof now, in CamelCase, and what to do about it.
type Lacks = (&'static str, String);

/// Condition FenceReady. A class that is of no use is told also where another method does.
pub(super) fn fence_ready(policy: &ResiliencyPolicy, facts: &Facts) -> (State, &'static str, String) {
    let (state, reason, message) = judged(policy, facts);
    let parts = [Some(message).filter(|message| !message.is_empty()), facts.unmovable.warning()];
    (state, reason, parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
}

fn judged(policy: &ResiliencyPolicy, facts: &Facts) -> (State, &'static str, String) {
    if facts.protected == 0 {
        return (State::True, "NothingSelected", String::new());
    }
    let (mut lacking, mut remedies, mut reasons) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (driver, pods) in &facts.drivers {
        let minimum = minimum(policy, driver, facts);
        let best = driver_proof(policy, driver, facts);
        let is_uncovered = facts.unattached.contains(driver) && methods(policy, driver, facts).next().is_none();
        if best.best_proof >= minimum || is_uncovered {
            // Of those that nothing covers the pods are told, one by one.
            continue;
        }
        let why = best.reason.unwrap_or_default();
        let which = if *pods == 1 { "its pod would be held".into() } else { format!("its {pods} pods would be held") };
        lacking.push(format!("{driver}: {why}, best proof {:?}, {minimum:?} is required; {which}", best.best_proof));
        for (reason, remedy) in methods(policy, driver, facts).filter_map(|it| lacks(it, driver, facts)) {
            reasons.insert(reason);
            remedies.insert(remedy);
        }
    }
    let unmovable = facts.unmovable.describe();
    if lacking.is_empty() {
        return match unmovable {
            Some(message) => (State::False, "PodsUnmovable", message),
            None => (State::True, "ProofReachable", String::new()),
        };
    }
    let documented =
        ["FencerMissing", "FencerSilent", CLASS_NOT_FOUND].into_iter().find(|reason| reasons.contains(reason));
    let mut message = lacking.join("; ");
    if !remedies.is_empty() {
        message = format!("{message} ({})", remedies.into_iter().collect::<Vec<_>>().join("; "));
    }
    message.extend(unmovable.map(|unmovable| format!("; {unmovable}")));
    (State::False, documented.unwrap_or("ProofUnreachable"), message)
}

/// The strongest proof that the policy's methods can give for a driver today.
pub fn driver_proof(policy: &ResiliencyPolicy, driver: &str, facts: &Facts) -> DriverProof {
    let minimum = minimum(policy, driver, facts);
    let best = fencers(driver, facts).best_proof(methods(policy, driver, facts).cloned());
    let report = facts.reports.get(driver).map(AsRef::as_ref);
    DriverProof {
        name: driver.into(),
        best_proof: best.proof,
        method: best.method,
        reason: (best.proof < minimum).then(|| best.lacking.to_owned()),
        storage_evidence: Some(storage::support(report, facts.silent_fencers.contains(driver))),
    }
}

/// The methods of the policy that cover volumes of a driver.
fn methods<'a>(policy: &'a ResiliencyPolicy, driver: &str, facts: &Facts) -> impl Iterator<Item = &'a FenceMethod> {
    let attaches = !facts.unattached.contains(driver);
    let methods = policy.spec.fencing.methods_for(driver).iter();
    methods.filter(move |method| attaches || !method.type_.needs_attachment())
}

/// The proof that the policy demands. For a driver that attaches nothing time alone is none (docs/adr/0029).
fn minimum(policy: &ResiliencyPolicy, driver: &str, facts: &Facts) -> Proof {
    let least = if facts.unattached.contains(driver) { Proof::Acknowledged } else { Proof::None };
    policy.spec.fencing.minimum_proof_for(driver).max(least)
}

fn fencers<'a>(driver: &'a str, facts: &'a Facts) -> Fencers<'a> {
    let report = facts.reports.get(driver).map(AsRef::as_ref);
    Fencers { driver, report, silent: facts.silent_fencers, missing: facts.missing_fencers }
}

fn lacks(method: &FenceMethod, driver: &str, facts: &Facts) -> Option<Lacks> {
    let fencers = fencers(driver, facts);
    let Some(absence) = fencers.absence(&method.clone().into()) else {
        let class = method.network_fence.as_ref().map(|settings| settings.class_name.as_str())?;
        let is_unknown =
            facts.reports.get(driver).is_some_and(|report| report.network_fence_proof(class) == Proof::None);
        let remedy =
            format!("NetworkFenceClass {class}: make it, of driver {driver}, and install csi-addons if need be");
        return is_unknown.then_some((CLASS_NOT_FOUND, remedy));
    };
    let remedy = match (method.external.as_ref().map(|external| &external.fencer_name), absence) {
        (None, "FencerMissing") => "run bulkhead-csi-sidecar beside the driver's controller".into(),
        (None, _) => "its Lease has not moved for 20 s: look at the pod of bulkhead-csi-sidecar".into(),
        (Some(fencer), "FencerMissing") => {
            format!("start fencer {fencer}: it has no Lease {}", names::fencer_lease(fencer))
        }
        (Some(fencer), _) => format!("look at fencer {fencer}: its Lease has not moved for 20 s"),
    };
    Some((absence, remedy))
}
