//! The controllers, one folder each, all of one shape: `observe` gathers what is seen, `decide` (pure) says the next
//! step, `act` carries it out, `status` (pure) says what is reported, `mod` wires them to the informers. Controllers
//! meet in the API, never in each other.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;

use crate::runtime::client::Clients;
use crate::runtime::clock::Clock;
use crate::runtime::events::Events;
use crate::runtime::telemetry::Telemetry;
use crate::runtime::writer::Writer;

#[cfg(test)]
pub(crate) mod feed_tests;
pub mod indexes;
mod listed;
#[cfg(test)]
mod metrics_tests;
pub mod mountpoint_s3_pod_attachment;
pub mod node_fence;
pub mod resiliency_policy;
pub mod shared_volume;
pub mod shared_volume_provider;
mod stores;
#[cfg(test)]
pub(crate) mod testing;
pub mod volume_health;
pub mod volume_health_policy;

pub use indexes::{ANY_HOST, BY_CLAIM, BY_DRIVER, BY_HANDLE, BY_HOST, BY_NODE, BY_VOLUME};
pub use indexes::{BY_MOUNT, BY_MOUNTPOINT_POD, BY_PLACE, BY_UID, BY_WORKLOAD};
pub use indexes::{BY_PROVIDER_VOLUME, BY_SERVICE, BY_SHARED_VOLUME};
pub use indexes::{BY_TROUBLE, CRASH_LOOP};
pub use listed::Unread;
pub use stores::{Informers, ProviderStores, S3Stores, SharedVolumeStores, Stores};

/// Where kubelets keep their Leases.
pub const NODE_LEASES: &str = "kube-node-lease";

/// What every controller works with.
#[derive(Clone)]
pub struct Context {
    /// What is known of the cluster.
    pub stores: Stores,
    /// Clients, for what must be read live.
    pub clients: Clients,
    /// Writes, each asking for leadership.
    pub writer: Writer,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub telemetry: Telemetry,
    /// Clocks.
    pub clock: Clock,
}

/// A reference for Events. Slim types do not carry their own kind, so it comes from the type.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    object.object_ref(&())
}
