//! The numbers of the fields that are read of Kubernetes' kinds, of those that come by the ten thousand or every few seconds. Who
//! reads a further field of one of them adds it here: a trial on the API server compares both forms.

use super::{Kind, Message, field};

/// A Pod, as [`Pod`](crate::api::slim::Pod) reads it.
pub static POD: Message = Message::of(&[
    field(1, "metadata", Kind::Object(&METADATA)),
    field(2, "spec", Kind::Object(&POD_SPEC)),
    field(3, "status", Kind::Object(&POD_STATUS)),
]);

/// A Node, as [`Node`](crate::api::slim::Node) reads it.
pub static NODE: Message = Message::of(&[
    field(1, "metadata", Kind::Object(&METADATA)),
    field(2, "spec", Kind::Object(&NODE_SPEC)),
    field(3, "status", Kind::Object(&NODE_STATUS)),
]);

/// A Lease, as [`Lease`](crate::api::slim::Lease) reads it.
pub static LEASE: Message =
    Message::of(&[field(1, "metadata", Kind::Object(&METADATA)), field(2, "spec", Kind::Object(&LEASE_SPEC))]);

/// A CSINode, as [`CsiNode`](crate::api::slim::CsiNode) reads it.
pub static CSI_NODE: Message =
    Message::of(&[field(1, "metadata", Kind::Object(&METADATA)), field(2, "spec", Kind::Object(&CSI_NODE_SPEC))]);

/// A PersistentVolume, as [`PersistentVolume`](crate::api::slim::PersistentVolume) reads it.
pub static PERSISTENT_VOLUME: Message = Message::of(&[
    field(1, "metadata", Kind::Object(&METADATA)),
    field(2, "spec", Kind::Object(&PERSISTENT_VOLUME_SPEC)),
    field(3, "status", Kind::Object(&PHASE)),
]);

/// A PersistentVolumeClaim, as [`PersistentVolumeClaim`](crate::api::slim::PersistentVolumeClaim) reads it.
pub static PERSISTENT_VOLUME_CLAIM: Message = Message::of(&[
    field(1, "metadata", Kind::Object(&METADATA)),
    field(2, "spec", Kind::Object(&CLAIM_SPEC)),
    field(3, "status", Kind::Object(&PHASE)),
]);

/// A VolumeAttachment, as [`VolumeAttachment`](crate::api::slim::VolumeAttachment) reads it.
pub static VOLUME_ATTACHMENT: Message = Message::of(&[
    field(1, "metadata", Kind::Object(&METADATA)),
    field(2, "spec", Kind::Object(&ATTACHMENT_SPEC)),
    field(3, "status", Kind::Object(&ATTACHMENT_STATUS)),
]);

static METADATA: Message = Message::of(&[
    field(1, "name", Kind::Text),
    field(2, "generateName", Kind::Text),
    field(3, "namespace", Kind::Text),
    field(5, "uid", Kind::Text),
    field(6, "resourceVersion", Kind::Text),
    field(7, "generation", Kind::Number),
    field(8, "creationTimestamp", Kind::Time),
    field(9, "deletionTimestamp", Kind::Time),
    field(10, "deletionGracePeriodSeconds", Kind::OptionalNumber),
    field(11, "labels", Kind::TextMap),
    field(12, "annotations", Kind::TextMap),
    field(13, "ownerReferences", Kind::Objects(&OWNER)),
    field(14, "finalizers", Kind::Texts),
]);

static OWNER: Message = Message::of(&[
    field(1, "kind", Kind::Text),
    field(3, "name", Kind::Text),
    field(4, "uid", Kind::Text),
    field(5, "apiVersion", Kind::Text),
    field(6, "controller", Kind::OptionalFlag),
    field(7, "blockOwnerDeletion", Kind::OptionalFlag),
]);

/// Status of a volume or a claim.
static PHASE: Message = Message::of(&[field(1, "phase", Kind::Text)]);

/// A condition of a Pod or of a Node: what is read has the same numbers.
static CONDITION: Message = Message::of(&[
    field(1, "type", Kind::Text),
    field(2, "status", Kind::Text),
    field(4, "lastTransitionTime", Kind::Time),
]);

static POD_SPEC: Message = Message::of(&[
    field(1, "volumes", Kind::Objects(&VOLUME)),
    field(10, "nodeName", Kind::Text),
    field(14, "securityContext", Kind::Object(&POD_SECURITY)),
    field(18, "affinity", Kind::Object(&AFFINITY)),
    field(22, "tolerations", Kind::Objects(&TOLERATION)),
    field(25, "priority", Kind::OptionalNumber),
    field(38, "schedulingGates", Kind::Objects(&NAMED)),
]);

static POD_SECURITY: Message = Message::of(&[field(5, "fsGroup", Kind::OptionalNumber)]);
static NAMED: Message = Message::of(&[field(1, "name", Kind::Text)]);
static TOLERATION: Message =
    Message::of(&[field(1, "key", Kind::Text), field(2, "operator", Kind::Text), field(4, "effect", Kind::Text)]);
static VOLUME: Message =
    Message::of(&[field(1, "name", Kind::Text), field(2, "volumeSource", Kind::Inline(&VOLUME_SOURCE))]);

/// Where a volume comes from decides what is done with its pod: one that is not known must not look like none.
static VOLUME_SOURCE: Message = Message::telling_unknown(&[
    field(1, "hostPath", Kind::Object(&HOST_PATH)),
    field(2, "emptyDir", Kind::Presence),
    field(3, "gcePersistentDisk", Kind::Presence),
    field(4, "awsElasticBlockStore", Kind::Presence),
    field(5, "gitRepo", Kind::Presence),
    field(6, "secret", Kind::Presence),
    field(7, "nfs", Kind::Presence),
    field(8, "iscsi", Kind::Presence),
    field(9, "glusterfs", Kind::Presence),
    field(10, "persistentVolumeClaim", Kind::Object(&CLAIM_SOURCE)),
    field(11, "rbd", Kind::Presence),
    field(12, "flexVolume", Kind::Presence),
    field(13, "cinder", Kind::Presence),
    field(14, "cephfs", Kind::Presence),
    field(15, "flocker", Kind::Presence),
    field(16, "downwardAPI", Kind::Presence),
    field(17, "fc", Kind::Presence),
    field(18, "azureFile", Kind::Presence),
    field(19, "configMap", Kind::Presence),
    field(20, "vsphereVolume", Kind::Presence),
    field(21, "quobyte", Kind::Presence),
    field(22, "azureDisk", Kind::Presence),
    field(23, "photonPersistentDisk", Kind::Presence),
    field(24, "portworxVolume", Kind::Presence),
    field(25, "scaleIO", Kind::Presence),
    field(26, "projected", Kind::Presence),
    field(27, "storageos", Kind::Presence),
    field(28, "csi", Kind::Object(&INLINE_CSI)),
    field(29, "ephemeral", Kind::Presence),
    field(30, "image", Kind::Presence),
]);

static CLAIM_SOURCE: Message = Message::of(&[field(1, "claimName", Kind::Text)]);
static INLINE_CSI: Message = Message::of(&[field(1, "driver", Kind::Text)]);
static HOST_PATH: Message = Message::of(&[field(1, "path", Kind::Text), field(2, "type", Kind::Text)]);
static AFFINITY: Message = Message::of(&[field(2, "podAffinity", Kind::Object(&POD_AFFINITY))]);
static POD_AFFINITY: Message =
    Message::of(&[field(1, "requiredDuringSchedulingIgnoredDuringExecution", Kind::Objects(&POD_AFFINITY_TERM))]);

static POD_AFFINITY_TERM: Message = Message::of(&[
    field(1, "labelSelector", Kind::Object(&LABEL_SELECTOR)),
    field(2, "namespaces", Kind::Texts),
    field(3, "topologyKey", Kind::Text),
    field(4, "namespaceSelector", Kind::Object(&LABEL_SELECTOR)),
]);

static LABEL_SELECTOR: Message =
    Message::of(&[field(1, "matchLabels", Kind::TextMap), field(2, "matchExpressions", Kind::Objects(&REQUIREMENT))]);

/// A requirement of labels, of a selector of pods or of nodes.
static REQUIREMENT: Message =
    Message::of(&[field(1, "key", Kind::Text), field(2, "operator", Kind::Text), field(3, "values", Kind::Texts)]);

static POD_STATUS: Message = Message::of(&[
    field(1, "phase", Kind::Text),
    field(2, "conditions", Kind::Objects(&CONDITION)),
    field(8, "containerStatuses", Kind::Objects(&CONTAINER_STATUS)),
    field(10, "initContainerStatuses", Kind::Objects(&CONTAINER_STATUS)),
]);

static CONTAINER_STATUS: Message =
    Message::of(&[field(1, "name", Kind::Text), field(2, "state", Kind::Object(&CONTAINER_STATE))]);
static CONTAINER_STATE: Message = Message::of(&[field(1, "waiting", Kind::Object(&WAITING))]);
static WAITING: Message = Message::of(&[field(1, "reason", Kind::Text)]);

static NODE_SPEC: Message =
    Message::of(&[field(3, "providerID", Kind::Text), field(5, "taints", Kind::Objects(&TAINT))]);

static TAINT: Message = Message::of(&[
    field(1, "key", Kind::Text),
    field(2, "value", Kind::Text),
    field(3, "effect", Kind::Text),
    field(4, "timeAdded", Kind::Time),
]);

static NODE_STATUS: Message = Message::of(&[
    field(4, "conditions", Kind::Objects(&CONDITION)),
    field(5, "addresses", Kind::Objects(&NODE_ADDRESS)),
    field(7, "nodeInfo", Kind::Object(&NODE_INFO)),
    field(9, "volumesInUse", Kind::Texts),
    field(10, "volumesAttached", Kind::Objects(&NAMED)),
]);

static NODE_ADDRESS: Message = Message::of(&[field(1, "type", Kind::Text), field(2, "address", Kind::Text)]);
static NODE_INFO: Message = Message::of(&[field(3, "bootID", Kind::Text)]);
static LEASE_SPEC: Message =
    Message::of(&[field(2, "leaseDurationSeconds", Kind::OptionalNumber), field(4, "renewTime", Kind::MicroTime)]);
static CSI_NODE_SPEC: Message = Message::of(&[field(1, "drivers", Kind::Objects(&CSI_NODE_DRIVER))]);
static CSI_NODE_DRIVER: Message = Message::of(&[field(1, "name", Kind::Text), field(2, "nodeID", Kind::Text)]);

static PERSISTENT_VOLUME_SPEC: Message = Message::of(&[
    field(1, "capacity", Kind::QuantityMap),
    field(2, "persistentVolumeSource", Kind::Inline(&PERSISTENT_VOLUME_SOURCE)),
    field(3, "accessModes", Kind::Texts),
    field(4, "claimRef", Kind::Object(&OBJECT_REFERENCE)),
    field(6, "storageClassName", Kind::Text),
    field(7, "mountOptions", Kind::Texts),
    field(8, "volumeMode", Kind::Text),
    field(9, "nodeAffinity", Kind::Object(&VOLUME_NODE_AFFINITY)),
]);

static PERSISTENT_VOLUME_SOURCE: Message = Message::of(&[
    field(3, "hostPath", Kind::Object(&HOST_PATH)),
    field(5, "nfs", Kind::Object(&NFS)),
    field(20, "local", Kind::Object(&LOCAL)),
    field(22, "csi", Kind::Object(&CSI)),
]);

static NFS: Message =
    Message::of(&[field(1, "server", Kind::Text), field(2, "path", Kind::Text), field(3, "readOnly", Kind::Flag)]);

static LOCAL: Message = Message::of(&[field(1, "path", Kind::Text), field(2, "fsType", Kind::Text)]);

static CSI: Message = Message::of(&[
    field(1, "driver", Kind::Text),
    field(2, "volumeHandle", Kind::Text),
    field(3, "readOnly", Kind::Flag),
    field(4, "fsType", Kind::Text),
    field(5, "volumeAttributes", Kind::TextMap),
    field(6, "controllerPublishSecretRef", Kind::Object(&SECRET_REFERENCE)),
]);

static SECRET_REFERENCE: Message = Message::of(&[field(1, "name", Kind::Text), field(2, "namespace", Kind::Text)]);

static OBJECT_REFERENCE: Message = Message::of(&[
    field(1, "kind", Kind::Text),
    field(2, "namespace", Kind::Text),
    field(3, "name", Kind::Text),
    field(4, "uid", Kind::Text),
    field(5, "apiVersion", Kind::Text),
    field(6, "resourceVersion", Kind::Text),
    field(7, "fieldPath", Kind::Text),
]);

static VOLUME_NODE_AFFINITY: Message = Message::of(&[field(1, "required", Kind::Object(&NODE_SELECTOR))]);
static NODE_SELECTOR: Message = Message::of(&[field(1, "nodeSelectorTerms", Kind::Objects(&NODE_SELECTOR_TERM))]);

static NODE_SELECTOR_TERM: Message = Message::of(&[
    field(1, "matchExpressions", Kind::Objects(&REQUIREMENT)),
    field(2, "matchFields", Kind::Objects(&REQUIREMENT)),
]);

static CLAIM_SPEC: Message = Message::of(&[field(3, "volumeName", Kind::Text)]);

static ATTACHMENT_SPEC: Message = Message::of(&[
    field(1, "attacher", Kind::Text),
    field(2, "source", Kind::Object(&ATTACHMENT_SOURCE)),
    field(3, "nodeName", Kind::Text),
]);

static ATTACHMENT_SOURCE: Message = Message::of(&[field(1, "persistentVolumeName", Kind::Text)]);
static ATTACHMENT_STATUS: Message = Message::of(&[field(1, "attached", Kind::Flag)]);
