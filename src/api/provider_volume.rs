//! What a provider reports of one volume. It is observed, never wanted: it goes into no spec.

use std::sync::Arc;

/// A volume as its provider reported it last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderVolume {
    /// Its id at the provider.
    pub id: String,
    /// Id of its namespace at the provider.
    pub namespace_id: String,
    /// Version that a write must name; it changes with every write.
    pub version: String,
    /// Where its NFS server is bound, as reported; see [`Endpoint`](super::endpoint::Endpoint).
    pub endpoint: Option<String>,
    /// The mount endpoint that is published; empty if none is.
    pub mount_endpoint: String,
    /// Health of its master.
    pub health: String,
    /// PersistentVolume, from its label; empty without.
    pub volume_name: String,
    /// PersistentVolumeClaim, from its label; empty without.
    pub claim_name: String,
    /// Namespace of the claim, from its label; empty without.
    pub claim_namespace: String,
}

/// What is known of a volume at its provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The provider was not asked yet, or there is none of that name.
    NotPolled,
    /// The last list that would have the volume failed. What was reported before, if anything.
    Unreachable(Option<Arc<ProviderVolume>>),
    /// The provider does not have it.
    Gone,
    /// As in the last list.
    Reported(Arc<ProviderVolume>),
}

impl Observation {
    /// What was reported last.
    pub fn last(&self) -> Option<&Arc<ProviderVolume>> {
        match self {
            Self::Reported(volume) | Self::Unreachable(Some(volume)) => Some(volume),
            Self::NotPolled | Self::Unreachable(None) | Self::Gone => None,
        }
    }
}
