//! Volumes, claims, attachments and drivers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::{metadata, nullable, part, slim};

slim! {
    /// A PersistentVolume.
    PersistentVolume: core::PersistentVolume {
        /// Spec.
        spec: PersistentVolumeSpec,
        /// Status.
        status: PersistentVolumeStatus,
    }
}

part! {
    /// Status of a PersistentVolume.
    PersistentVolumeStatus {
        /// Pending, Available, Bound, Released or Failed.
        phase: Option<String>,
    }
}

part! {
    /// Spec of a PersistentVolume.
    PersistentVolumeSpec {
        /// CSI source.
        csi: Option<CsiSource>,
        /// A directory or device of one node.
        local: Option<core::LocalVolumeSource>,
        /// An NFS export.
        nfs: Option<core::NFSVolumeSource>,
        /// StorageClass.
        storage_class_name: Option<String>,
        /// Filesystem or Block; absent means Filesystem.
        volume_mode: Option<String>,
        /// How it may be used.
        access_modes: Option<Vec<String>>,
        /// The claim it is bound to or reserved for.
        claim_ref: Option<core::ObjectReference>,
        /// Nodes it can be reached from.
        node_affinity: Option<core::VolumeNodeAffinity>,
        /// Options it is mounted with.
        mount_options: Option<Vec<String>>,
        /// Its size.
        capacity: BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
        /// A directory of whichever node.
        host_path: Option<serde_json::Value>,
    }
}

part! {
    /// CSI source of a PersistentVolume.
    CsiSource {
        /// Driver name.
        driver: String,
        /// Volume handle.
        volume_handle: String,
        /// File system it is to have.
        fs_type: Option<String>,
        /// Whether it is published for reading only.
        read_only: bool,
        /// Secret for ControllerPublish and ControllerUnpublish.
        controller_publish_secret_ref: Option<core::SecretReference>,
        /// What the driver wants to know of the volume.
        volume_attributes: BTreeMap<String, String>,
    }
}

slim! {
    /// A PersistentVolumeClaim.
    PersistentVolumeClaim: core::PersistentVolumeClaim {
        /// Spec.
        spec: ClaimSpec,
        /// Status.
        status: ClaimStatus,
    }
}

part! {
    /// Spec of a PersistentVolumeClaim.
    ClaimSpec {
        /// The PersistentVolume it is bound to, or that it wants: who creates it may name any.
        volume_name: Option<String>,
    }
}

part! {
    /// Status of a PersistentVolumeClaim.
    ClaimStatus {
        /// Pending, Bound or Lost. Only Bound says that the volume is its own.
        phase: Option<String>,
    }
}

slim! {
    /// A VolumeAttachment.
    VolumeAttachment: storage::VolumeAttachment {
        /// Spec.
        spec: AttachmentSpec,
        /// Status.
        status: AttachmentStatus,
    }
}

part! {
    /// Spec of a VolumeAttachment.
    AttachmentSpec {
        /// CSI driver.
        attacher: String,
        /// Node.
        node_name: String,
        /// What is attached.
        source: AttachmentSource,
    }
}

part! {
    /// What is attached.
    AttachmentSource {
        /// PersistentVolume; absent for an inline volume.
        persistent_volume_name: Option<String>,
    }
}

part! {
    /// Status of a VolumeAttachment.
    AttachmentStatus {
        /// Whether the attacher has published the volume.
        attached: bool,
    }
}

impl VolumeAttachment {
    /// Name of the PersistentVolume; empty for an inline volume.
    pub fn volume(&self) -> &str {
        self.spec.source.persistent_volume_name.as_deref().unwrap_or_default()
    }

    /// The CSI node id that was really published, as the attacher noted it.
    pub fn node_id(&self) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(crate::api::names::ATTACHED_NODE_ID_ANNOTATION).map(String::as_str)
    }

    /// Whether the attacher of its driver holds it with a finalizer.
    pub fn has_attacher_finalizer(&self) -> bool {
        let wanted = crate::api::names::attacher_finalizer(&self.spec.attacher);
        self.metadata.finalizers.as_ref().is_some_and(|finalizers| finalizers.contains(&wanted))
    }
}

slim! {
    /// A CSIDriver.
    CsiDriver: storage::CSIDriver {
        /// Spec.
        spec: CsiDriverSpec,
    }
}

part! {
    /// Spec of a CSIDriver.
    CsiDriverSpec {
        /// Whether volumes are attached before they are mounted; absent means yes.
        attach_required: Option<bool>,
    }
}
