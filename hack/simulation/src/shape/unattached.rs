//! Drivers that attach nothing: nobody gives a node access, so whoever has power and is not shut out writes. Their volumes are of
//! clusters of the storage, and a network fence shuts nobody out but of the one that its class names.

use std::sync::Arc;

use bulkhead::api::slim::PersistentVolume;
use bulkhead::api::usage::CLUSTER_ID;

use super::Shape;

/// Clusters of the storage behind a driver that attaches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clusters {
    /// The one that its volumes are of, where they say so.
    pub of_volumes: Option<String>,
    /// The one that its NetworkFenceClass is of, where that says so.
    pub of_class: Option<String>,
}

impl Shape {
    /// The same, with a driver that attaches nothing.
    pub fn attaching_nothing(mut self, driver: &str, clusters: Clusters) -> Self {
        if let Some(object) = self.statics.drivers.get_mut(driver) {
            Arc::make_mut(object).spec.attach_required = Some(false);
        }
        for (name, volume) in &self.volumes {
            if volume.driver == driver
                && let Some(cluster) = &clusters.of_volumes
            {
                put_into(cluster, self.statics.volumes.get_mut(name));
            }
        }
        self.unattached.insert(driver.to_owned(), clusters.of_class);
        self
    }

    /// The same, with a volume that is of that cluster of its storage.
    pub fn in_cluster(mut self, volume: &str, cluster: &str) -> Self {
        put_into(cluster, self.statics.volumes.get_mut(volume));
        self
    }

    /// Whether a volume is attached before it is mounted.
    pub fn attaches(&self, volume: &str) -> bool {
        self.driver_of(volume).is_none_or(|driver| !self.unattached.contains_key(driver))
    }

    /// Whether whom the driver's NetworkFenceClass shuts out is shut out of that volume.
    pub fn is_of_class(&self, volume: &str) -> bool {
        let of_class = || self.cluster_of_class(self.driver_of(volume)?);
        self.attaches(volume) || self.cluster_of(volume) == of_class()
    }

    /// The cluster that the driver's NetworkFenceClass names.
    pub fn cluster_of_class(&self, driver: &str) -> Option<&str> {
        self.unattached.get(driver)?.as_deref()
    }

    /// The cluster that a volume names.
    fn cluster_of(&self, volume: &str) -> Option<&str> {
        let csi = self.statics.volumes.get(volume)?.spec.csi.as_ref()?;
        csi.volume_attributes.get(CLUSTER_ID).map(String::as_str)
    }
}

fn put_into(cluster: &str, volume: Option<&mut Arc<PersistentVolume>>) {
    let csi = volume.and_then(|volume| Arc::make_mut(volume).spec.csi.as_mut());
    if let Some(csi) = csi {
        csi.volume_attributes.insert(CLUSTER_ID.into(), cluster.to_owned());
    }
}
