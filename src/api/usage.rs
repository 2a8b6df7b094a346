//! Which volumes a pod uses, resolved through its claims. Pure: the caller brings the objects.

use std::sync::Arc;

use super::fencing::FenceMethodType;
use super::slim::{CsiDriver, PersistentVolume, PersistentVolumeClaim, Pod, VolumeSource};

/// Reason of a pod with a volume that no method covers.
pub const UNKNOWN_VOLUME_KIND: &str = "UnknownVolumeKind";
/// By which attribute a volume, and by which parameter a NetworkFenceClass, names the cluster of its storage, as drivers of Ceph do.
pub const CLUSTER_ID: &str = "clusterID";

/// Where claims, volumes and drivers are looked up.
pub trait Lookup {
    /// The claim of that namespace and name.
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>>;
    /// The PersistentVolume of that name.
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    /// The CSIDriver of that name.
    fn driver(&self, name: &str) -> Option<Arc<CsiDriver>>;
}

/// One volume of a pod that may hold data another node could write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUse {
    /// PersistentVolume name, or `<pod uid>/<volume name>` when there is none: as in `NodeFence.spec.plan.volumes`.
    pub name: String,
    /// What it is.
    pub kind: VolumeKind,
}

/// What a volume is, as far as fencing is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// A CSI volume that is attached before it is used: it can be fenced.
    Csi(CsiVolume),
    /// Mounted without being attached: only what cuts off the node as a whole covers it (docs/adr/0029).
    Unattached(UnattachedVolume),
    /// Bound to its node: its pod cannot move.
    Local,
    /// A kind that no method covers; the text says which.
    Unknown(String),
}

/// A CSI volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiVolume {
    /// Uid of the PersistentVolume.
    pub uid: String,
    /// Driver name.
    pub driver: String,
    /// Volume handle.
    pub handle: String,
}

/// A volume that is mounted without being attached: of a driver with `attachRequired: false`, or a PersistentVolume of NFS in-tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnattachedVolume {
    /// What its driver knows it by; `None` for NFS in-tree, which has no driver.
    pub csi: Option<CsiVolume>,
    /// Cluster of the storage that it is of, where it says so.
    pub cluster_id: Option<String>,
}

impl UnattachedVolume {
    /// The longest name of a cluster that our objects take.
    const CLUSTER_ID_MAX: usize = 253;

    /// Its driver; empty where it has none.
    pub fn driver(&self) -> &str {
        self.csi.as_ref().map(|csi| csi.driver.as_str()).unwrap_or_default()
    }

    /// The cluster of the storage that a NetworkFenceClass must be of; empty for one that names none.
    pub fn demanded_cluster(&self) -> &str {
        self.cluster_id.as_deref().unwrap_or_default()
    }

    /// Whether a method can cut it off. No publish is there to be taken back: its driver's storage shuts the node out, or the
    /// node has no power.
    pub fn is_covered_by(&self, method: FenceMethodType) -> bool {
        let has_usable_cluster =
            self.cluster_id.as_ref().is_none_or(|id| (1..=Self::CLUSTER_ID_MAX).contains(&id.len()));
        match method {
            FenceMethodType::NetworkFence => self.csi.is_some() && has_usable_cluster,
            FenceMethodType::External => true,
            FenceMethodType::Unpublish | FenceMethodType::Detach => false,
        }
    }

    /// Why no method covers it, and which would.
    pub fn why_uncovered(&self) -> String {
        match &self.csi {
            Some(csi) => format!(
                "driver {} attaches nothing (attachRequired: false): no fence method of its policies covers it; NetworkFence of that \
                 driver would, at minimumProof Acknowledged, or External, which proves PowerOff",
                csi.driver
            ),
            None => {
                "nfs volume: no fence method of its policies covers it; External would, which proves PowerOff".into()
            }
        }
    }
}

/// A pod and what it uses.
#[derive(Clone, Debug, PartialEq)]
pub struct PodView {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its volumes, without those that live and die with it.
    pub volumes: Vec<VolumeUse>,
}

impl PodView {
    /// Resolves the volumes of a pod.
    pub fn new(pod: Arc<Pod>, lookup: &dyn Lookup) -> Self {
        let volumes = pod.spec.volumes.iter().filter_map(|volume| resolve(&pod, volume, lookup)).collect();
        Self { pod, volumes }
    }

    /// Its uid; empty only for an object that never came from an API server.
    pub fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    /// `namespace/name`, for messages.
    pub fn display(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// CSI drivers of its volumes.
    pub fn drivers(&self) -> impl Iterator<Item = &str> {
        self.volumes.iter().filter_map(|volume| match &volume.kind {
            VolumeKind::Csi(csi) | VolumeKind::Unattached(UnattachedVolume { csi: Some(csi), .. }) => {
                Some(csi.driver.as_str())
            }
            _ => None,
        })
    }

    /// Its volumes that are mounted without being attached.
    pub fn unattached(&self) -> impl Iterator<Item = (&VolumeUse, &UnattachedVolume)> {
        self.volumes.iter().filter_map(|volume| match &volume.kind {
            VolumeKind::Unattached(unattached) => Some((volume, unattached)),
            _ => None,
        })
    }

    /// Why no fence lets the pod go elsewhere where its policies cover only these of its unattached volumes, in CamelCase and in words:
    /// the first that they do not.
    pub fn uncovered(
        &self,
        is_covered: impl Fn(&VolumeUse, &UnattachedVolume) -> bool,
    ) -> Option<(&'static str, String)> {
        let (volume, unattached) = self.unattached().find(|(volume, unattached)| !is_covered(volume, unattached))?;
        Some((UNKNOWN_VOLUME_KIND, format!("volume {}: {}", volume.name, unattached.why_uncovered())))
    }

    /// Why no fence lets the pod go elsewhere, whatever its policies say, in CamelCase and in words: its first volume that lives on
    /// its node, or that no method covers.
    pub fn unmovable(&self) -> Option<(&'static str, String)> {
        self.volumes.iter().find_map(|volume| match &volume.kind {
            VolumeKind::Csi(_) | VolumeKind::Unattached(_) => None,
            VolumeKind::Local => {
                Some(("LocalVolume", format!("volume {} lives on the node and cannot move", volume.name)))
            }
            VolumeKind::Unknown(what) => {
                Some((UNKNOWN_VOLUME_KIND, format!("volume {}: {what}: no fence method covers it", volume.name)))
            }
        })
    }
}

fn resolve(pod: &Pod, volume: &super::slim::Volume, lookup: &dyn Lookup) -> Option<VolumeUse> {
    let own_name = || format!("{}/{}", pod.metadata.uid.as_deref().unwrap_or_default(), volume.name);
    let unknown = |what: String| VolumeUse { name: own_name(), kind: VolumeKind::Unknown(what) };
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let claim = match &volume.source {
        VolumeSource::PodLocal => return None,
        VolumeSource::HostPath(_) => return Some(VolumeUse { name: own_name(), kind: VolumeKind::Local }),
        VolumeSource::InlineCsi(driver) => return Some(unknown(format!("inline volume of driver {driver}"))),
        // Whoever makes a pod writes these. An export of nfs too: only a PersistentVolume, which admins make, may be what a node is
        // switched off for.
        VolumeSource::Other(kind) => return Some(unknown(format!("{kind} volume"))),
        VolumeSource::Claim(claim) => claim.clone(),
        VolumeSource::Ephemeral => format!("{pod_name}-{}", volume.name),
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let Some(name) = lookup.claim(namespace, &claim).and_then(|claim| claim.spec.volume_name.clone()) else {
        return Some(unknown(format!("claim {claim} is not bound")));
    };
    let kind = match lookup.volume(&name) {
        None => VolumeKind::Unknown(format!("PersistentVolume {name} is gone")),
        Some(volume) => kind(&volume, lookup),
    };
    Some(VolumeUse { name, kind })
}

fn kind(volume: &PersistentVolume, lookup: &dyn Lookup) -> VolumeKind {
    let spec = &volume.spec;
    if spec.local.is_some() || spec.host_path.is_some() {
        return VolumeKind::Local;
    }
    let Some(csi) = &spec.csi else {
        let is_nfs = spec.nfs.is_some();
        return if is_nfs { in_tree_nfs() } else { VolumeKind::Unknown("in-tree volume".into()) };
    };
    let attached = lookup.driver(&csi.driver).is_none_or(|driver| driver.spec.attach_required != Some(false));
    let volume = CsiVolume {
        uid: volume.metadata.uid.clone().unwrap_or_default(),
        driver: csi.driver.clone(),
        handle: csi.volume_handle.clone(),
    };
    if attached {
        return VolumeKind::Csi(volume);
    }
    let cluster_id = csi.volume_attributes.get(CLUSTER_ID).cloned();
    VolumeKind::Unattached(UnattachedVolume { csi: Some(volume), cluster_id })
}

fn in_tree_nfs() -> VolumeKind {
    VolumeKind::Unattached(UnattachedVolume { csi: None, cluster_id: None })
}

/// `namespace/name` of the claims that a pod uses.
pub fn claims_of_pod(pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let claims = pod.spec.volumes.iter().filter_map(|volume| match &volume.source {
        VolumeSource::Claim(claim) => Some(format!("{namespace}/{claim}")),
        VolumeSource::Ephemeral => Some(format!("{namespace}/{name}-{}", volume.name)),
        _ => None,
    });
    claims.collect()
}

/// `namespace/name` of the claim that a volume is bound to or reserved for.
pub fn claim_of_volume(volume: &PersistentVolume) -> Option<String> {
    let claim = volume.spec.claim_ref.as_ref()?;
    Some(format!("{}/{}", claim.namespace.as_deref()?, claim.name.as_deref()?))
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
