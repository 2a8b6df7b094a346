//! Whose address it is: one SharedVolume for one claim, and for the claim that was seen first. Pure.

use std::cmp::Ordering;

use kube::ResourceExt;

use crate::api::provider_volume::Observation;
use crate::api::shared_volume::{ClaimIdentity, SharedVolume};
use crate::api::slim::PersistentVolumeClaim;
use crate::api::time;

use super::decide::Seen;
use super::objects;
use super::status::Finding;

/// Another SharedVolume that was there first.
pub fn rival(seen: &Seen) -> Option<&SharedVolume> {
    seen.rivals.iter().map(AsRef::as_ref).find(|rival| is_first(rival, &seen.shared_volume))
}

/// The older one wins; of two of the same second the one with the lower uid.
fn is_first(one: &SharedVolume, other: &SharedVolume) -> bool {
    let age = |it: &SharedVolume| (it.metadata.creation_timestamp.as_ref().map(time::from_k8s), it.uid());
    age(one).cmp(&age(other)) == Ordering::Less
}

/// The claim, if it is the one that this address belongs to; else what is wrong.
pub fn check(seen: &Seen) -> Result<ClaimIdentity, Finding> {
    let name = &seen.shared_volume.spec.claim_name;
    let Some(claim) = &seen.claim else {
        return Err(Finding::no("ClaimNotFound", format!("there is no claim {name}: create it")));
    };
    let uid = claim.uid().unwrap_or_default();
    if let Some(pinned) = pinned(seen).filter(|pinned| *pinned != uid) {
        let message = format!(
            "claim {name} has uid {uid}, and the address belongs to the one with uid {pinned}: \
             delete this SharedVolume, and create another for the new claim"
        );
        return Err(Finding::no("ClaimReplaced", message));
    }
    // A claim may name any volume, also that of another; only Kubernetes binds it.
    let is_bound = claim.status.phase.as_deref() == Some("Bound");
    let Some(volume) = claim.spec.volume_name.clone().filter(|volume| is_bound && !volume.is_empty()) else {
        return Err(Finding::no("ClaimPending", format!("claim {name} is not bound to a volume yet")));
    };
    if is_of_another(seen, &volume) {
        // Whose it is, is nobody's business here.
        let message = format!(
            "claim {name} is bound to {volume}, and the provider's volume is not labelled as that one: \
             correct backend.provider.volumeID in a new SharedVolume"
        );
        return Err(Finding::no("VolumeMismatch", message));
    }
    Ok(ClaimIdentity { uid, volume_name: Some(volume) })
}

/// The claim, when it is seen for the first time.
pub fn first_sight(seen: &Seen) -> Option<ClaimIdentity> {
    let claim = seen.claim.as_ref().filter(|_| pinned(seen).is_none())?;
    Some(ClaimIdentity { uid: claim.uid()?, volume_name: claim.spec.volume_name.clone() })
}

/// Uid of the claim that was seen first. A crash may come between our Service and the status: then the Service tells.
fn pinned(seen: &Seen) -> Option<String> {
    let recorded = seen.status().and_then(|status| status.claim.as_ref()).map(|claim| claim.uid.clone());
    recorded.or_else(|| {
        let service =
            seen.service.as_ref().filter(|service| objects::is_ours(&service.metadata, &seen.shared_volume))?;
        let owners = service.owner_references().iter();
        let mut claims =
            owners.filter(|owner| owner.kind == "PersistentVolumeClaim" && owner.name == *claim_name(seen));
        claims.next().map(|owner| owner.uid.clone())
    })
}

fn claim_name(seen: &Seen) -> &String {
    &seen.shared_volume.spec.claim_name
}

/// Whether the provider's volume is, by its labels, not this claim's: its server is that of somebody else's data.
fn is_of_another(seen: &Seen, volume: &str) -> bool {
    let Some(report) = seen.observation.as_ref().and_then(Observation::last) else { return false };
    let namespace = seen.shared_volume.namespace().unwrap_or_default();
    let is_named = !report.claim_name.is_empty() && !report.claim_namespace.is_empty();
    let is_other = is_named && (&report.claim_name, &report.claim_namespace) != (claim_name(seen), &namespace);
    report.volume_name != volume || is_other
}

/// An annotation of the claim.
pub fn annotation<'a>(claim: &'a PersistentVolumeClaim, name: &str) -> Option<&'a str> {
    claim.annotations().get(name).map(String::as_str)
}
