//! `SharedVolume`: one address for the NFS server behind a claim, which survives failover.

mod backend;
mod behaviour;
mod service;
mod status;

pub use backend::*;
pub use behaviour::*;
pub use service::*;
pub use status::*;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::empty_default;

/// Label on Services, slices and Endpoints: name of the SharedVolume they belong to.
pub const SHARED_VOLUME_LABEL: &str = "bulkhead.dev/shared-volume";
/// Value of `endpointslice.kubernetes.io/managed-by` on our slices.
pub const SLICE_MANAGER: &str = "sharedvolume.bulkhead.dev";
/// Annotation on a Service or Endpoints object that allows a SharedVolume to take it over, with the value `true`.
pub const ADOPT_ANNOTATION: &str = "bulkhead.dev/adopt";
/// Annotation of a claim: its mount endpoint, for `publish.targets: [ClaimAnnotation]`.
pub const MOUNT_ENDPOINT_ANNOTATION: &str = "bulkhead.dev/mount-endpoint";
/// Finalizer of a SharedVolume: what it published is taken back before it goes.
pub const UNPUBLISH_FINALIZER: &str = "bulkhead.dev/unpublish";
/// Annotation of a SharedVolume that gives up on a provider that is gone, with the value `true`.
pub const SKIP_UNPUBLISH_ANNOTATION: &str = "bulkhead.dev/skip-unpublish";
/// Field manager of Services, slices and Endpoints.
pub const SERVICE_MANAGER: &str = "bulkhead-controller/service";

/// What address to offer, for which server, and when to switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "SharedVolume",
    plural = "sharedvolumes",
    shortname = "shv",
    category = "bulkhead",
    namespaced,
    status = "SharedVolumeStatus",
    doc = "SharedVolume gives the NFS server behind one claim one address that survives failover.",
    derive = "PartialEq",
    printcolumn(name = "PVC", type_ = "string", json_path = ".spec.claimName"),
    printcolumn(name = "READY", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "MOUNT", type_ = "string", json_path = ".status.mountEndpoint"),
    printcolumn(name = "BACKEND", type_ = "string", json_path = ".status.active.name"),
    printcolumn(name = "NODE", type_ = "string", json_path = ".status.active.nodeName"),
    printcolumn(name = "FAILOVERS", type_ = "integer", json_path = ".status.failovers"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "REASON",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    ),
    printcolumn(name = "PROVIDER", type_ = "string", json_path = ".spec.backend.provider.name", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.service) || !has(self.service.ports) || !has(self.mountPort) || self.service.ports.exists_one(p, p.name == self.mountPort)").message("mountPort must name one of service.ports").field_path(".mountPort"))]
#[x_kube(validation = Rule::new("!has(self.backend.static) || !has(self.service) || !has(self.service.ports) || self.service.ports.all(p, self.backend.static.candidates.all(c, c.ports.exists(q, q.name == p.name)))").message("every candidate must have a port for every service port").field_path(".backend.static.candidates"))]
#[x_kube(validation = Rule::new("!has(self.failover) || !has(self.failover.mode) || self.failover.mode != 'Manual' || !has(self.backend.static) || has(self.failover.activeCandidate)").message("activeCandidate is required with mode Manual and backend.static").field_path(".failover"))]
#[x_kube(validation = Rule::new("!has(self.failover) || !has(self.failover.activeCandidate) || (has(self.backend.static) && self.backend.static.candidates.exists(c, c.name == self.failover.activeCandidate))").message("activeCandidate must name a candidate of backend.static").field_path(".failover.activeCandidate"))]
#[x_kube(validation = Rule::new("!has(self.publish) || !has(self.publish.targets) || !self.publish.targets.exists(t, t == 'Provider') || has(self.backend.provider)").message("target Provider needs backend.provider").field_path(".publish.targets"))]
pub struct SharedVolumeSpec {
    /// PersistentVolumeClaim in the same namespace.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    #[x_kube(validation = Rule::new("self == oldSelf").message("claimName is immutable"))]
    pub claim_name: String,
    /// Suspended writes nothing and probes nothing; what is published stays.
    #[serde(default)]
    pub mode: SharedVolumeMode,
    /// On deletion of this object: Delete removes Service and slices, Retain hands them to the claim.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Service port that clients mount.
    #[serde(default = "SharedVolumeSpec::default_mount_port")]
    #[schemars(length(min = 1, max = 15), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub mount_port: String,
    /// The Service that carries the stable address.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub service: ServiceSpec,
    /// Where the NFS server is. Exactly one of the three.
    pub backend: Backend,
    /// When the active server changes.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub failover: Failover,
    /// How the server is asked whether it serves.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub probe: Probe,
    /// Who is told the mount endpoint.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub publish: Publish,
}

impl SharedVolumeSpec {
    /// Port name of NFS, as StorageOS has it.
    pub fn default_mount_port() -> String {
        "nfs".to_owned()
    }

    /// Who is told the mount endpoint; with a provider it is told unless the spec says otherwise.
    pub fn targets(&self) -> Vec<PublishTarget> {
        match (&self.publish.targets, &self.backend.provider) {
            (Some(targets), _) => targets.clone(),
            (None, Some(_)) => vec![PublishTarget::Provider],
            (None, None) => Vec::new(),
        }
    }

    /// The Service port that clients mount; the schema sees to it that there is one.
    pub fn mount_service_port(&self) -> Option<&ServicePort> {
        self.service.ports.iter().find(|port| port.name == self.mount_port)
    }
}

/// Whether anything is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SharedVolumeMode {
    /// It is.
    #[default]
    Active,
    /// Nothing is written or probed; what is published stays.
    Suspended,
}

/// What becomes of Service and slices when the SharedVolume is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// They are deleted.
    #[default]
    Delete,
    /// They stay with the claim.
    Retain,
}
