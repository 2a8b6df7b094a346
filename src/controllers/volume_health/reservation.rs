//! The reservation that steers claims to other volumes. The binder passes over a volume whose `claimRef` names another
//! claim, and at once takes the next that fits. Pure.
//!
//! Never with a uid: a uid without its claim makes a volume Released, and its reclaim policy may delete the data.

use k8s_openapi::api::core::v1::ObjectReference;

use crate::api::names;
use crate::api::slim::PersistentVolume;

/// What happens to the `claimRef` of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRef {
    /// It stays as it is: nobody's, a real claim's, or ours where that is right.
    Keep,
    /// It becomes ours.
    Reserve,
    /// Ours goes.
    Release,
}

/// What is to be done, at the version of the volume that was seen: if somebody has bound it meanwhile, it has another.
/// A `claimRef` that is not ours is never touched.
pub fn next(volume: &PersistentVolume, wanted: bool) -> ClaimRef {
    let free = volume.spec.claim_ref.is_none() && volume.metadata.deletion_timestamp.is_none();
    match (is_reserved(volume), wanted) {
        (true, false) => ClaimRef::Release,
        (false, true) if free => ClaimRef::Reserve,
        _ => ClaimRef::Keep,
    }
}

/// Whether the volume is reserved by us.
pub fn is_reserved(volume: &PersistentVolume) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|claim| {
        claim.uid.is_none()
            && claim.namespace.as_deref() == Some(names::OPERATOR_NAMESPACE)
            && claim.name.as_deref() == Some(names::RESERVED_CLAIM)
    })
}

/// The claim that is never made.
pub fn reserved() -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        namespace: Some(names::OPERATOR_NAMESPACE.into()),
        name: Some(names::RESERVED_CLAIM.into()),
        ..ObjectReference::default()
    }
}
