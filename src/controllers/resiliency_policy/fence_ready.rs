//! Tells at noon what would be held at night: the proof that each driver of a policy's pods can have today.

use std::collections::BTreeSet;

use crate::api::conditions::State;
use crate::api::fencing::{FenceMethod, FenceMethodType, Proof};
use crate::api::names;
use crate::api::resiliency_policy::{DriverProof, ResiliencyPolicy};

use super::status::Facts;
use super::storage;

/// Why a method can give no proof now, in CamelCase, and what to do about it.
type Lacks = (&'static str, String);

/// Condition FenceReady.
pub(super) fn fence_ready(policy: &ResiliencyPolicy, facts: &Facts) -> (State, &'static str, String) {
    if facts.drivers.is_empty() {
        return (State::True, "NothingSelected", String::new());
    }
    let (mut lacking, mut remedies, mut reasons) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (driver, pods) in &facts.drivers {
        let minimum = policy.spec.fencing.minimum_proof_for(driver);
        let best = driver_proof(policy, driver, facts);
        if best.best_proof >= minimum {
            continue;
        }
        let why = best.reason.unwrap_or_default();
        let which = if *pods == 1 { "its pod would be held".into() } else { format!("its {pods} pods would be held") };
        lacking.push(format!("{driver}: {why}, best proof {:?}, {minimum:?} is required; {which}", best.best_proof));
        for (reason, remedy) in policy.spec.fencing.methods_for(driver).iter().filter_map(|it| lacks(it, driver, facts))
        {
            reasons.insert(reason);
            remedies.insert(remedy);
        }
    }
    if lacking.is_empty() {
        return (State::True, "ProofReachable", String::new());
    }
    let documented = ["FencerMissing", "FencerSilent"].into_iter().find(|reason| reasons.contains(reason));
    let mut message = lacking.join("; ");
    if !remedies.is_empty() {
        message = format!("{message} ({})", remedies.into_iter().collect::<Vec<_>>().join("; "));
    }
    (State::False, documented.unwrap_or("ProofUnreachable"), message)
}

/// The strongest proof that the policy's methods can give for a driver today.
pub fn driver_proof(policy: &ResiliencyPolicy, driver: &str, facts: &Facts) -> DriverProof {
    let minimum = policy.spec.fencing.minimum_proof_for(driver);
    let mut best = (Proof::None, None);
    let mut reason = None;
    for method in policy.spec.fencing.methods_for(driver) {
        let lacks = lacks(method, driver, facts);
        let proof = if lacks.is_some() { Proof::None } else { proof_of(method, driver, facts) };
        reason = lacks.map(|(why, _)| why).or(reason);
        if proof > best.0 {
            best = (proof, Some(method.type_));
        }
    }
    let weak = best.0 < minimum;
    let reason = reason.unwrap_or("ProofUnreachable");
    let report = facts.reports.get(driver).map(AsRef::as_ref);
    DriverProof {
        name: driver.into(),
        best_proof: best.0,
        method: best.1,
        reason: weak.then(|| reason.to_owned()),
        storage_evidence: Some(storage::support(report, facts.silent_fencers.contains(driver))),
    }
}

fn proof_of(method: &FenceMethod, driver: &str, facts: &Facts) -> Proof {
    match method.type_ {
        FenceMethodType::Unpublish => facts.reports.get(driver).map_or(Proof::None, |it| it.unpublish_proof()),
        FenceMethodType::Detach | FenceMethodType::External => method.type_.best_proof(),
    }
}

fn lacks(method: &FenceMethod, driver: &str, facts: &Facts) -> Option<Lacks> {
    let external = method.external.as_ref().map(|external| external.fencer_name.as_str());
    match (method.type_, external) {
        (FenceMethodType::Unpublish, _) if !facts.reports.contains_key(driver) => {
            Some(("FencerMissing", "run bulkhead-csi-sidecar beside the driver's controller".into()))
        }
        (FenceMethodType::Unpublish, _) if facts.silent_fencers.contains(driver) => {
            Some(("FencerSilent", "its Lease has not moved for 20 s: look at the pod of bulkhead-csi-sidecar".into()))
        }
        (FenceMethodType::External, Some(fencer)) if facts.missing_fencers.contains(fencer) => {
            let lease = names::fencer_lease(fencer);
            Some(("FencerMissing", format!("start fencer {fencer}: it has no Lease {lease}")))
        }
        (FenceMethodType::External, Some(fencer)) if facts.silent_fencers.contains(fencer) => {
            Some(("FencerSilent", format!("look at fencer {fencer}: its Lease has not moved for 20 s")))
        }
        _ => None,
    }
}
