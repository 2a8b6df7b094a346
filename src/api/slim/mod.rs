//! Views of Kubernetes' own kinds with only the fields that are read: a cached Pod costs about 3 KB instead of 67 KB.
//! They are read, never written back.

pub mod network;
mod node;
mod pod;
pub mod protobuf;
mod volume;

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1 as admission;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer, Serialize};

pub use self::node::*;
pub use self::pod::*;
pub use self::volume::*;

/// What `kubectl apply` sent last: a second copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What is read of an object's metadata. Field ownership is the largest part of it and of no use to us: left out here, it is
/// skipped in the text. [`ObjectMeta`] itself would make a tree of it, field by field, to be thrown away at once: of a Lease,
/// which comes every ten seconds from each node, most of the work.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    uid: Option<String>,
}

/// Metadata without field ownership, and without the second copy of the object. The annotation that has the copy stays, empty: who
/// adds another must know that the map is there, or would make it anew and take the copy from the object.
pub(in crate::api) fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut read = Metadata::deserialize(deserializer)?;
    if let Some(copy) = read.annotations.as_mut().and_then(|annotations| annotations.get_mut(LAST_APPLIED)) {
        *copy = String::new();
    }
    Ok(ObjectMeta {
        annotations: read.annotations,
        creation_timestamp: read.creation_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        deletion_timestamp: read.deletion_timestamp,
        finalizers: read.finalizers,
        generate_name: read.generate_name,
        generation: read.generation,
        labels: read.labels,
        name: read.name,
        namespace: read.namespace,
        owner_references: read.owner_references,
        resource_version: read.resource_version,
        uid: read.uid,
        managed_fields: None,
        self_link: None,
    })
}

/// Kubernetes writes an empty list or map without `omitempty` as null, such as `drivers` of a CSINode without drivers.
pub(in crate::api) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

macro_rules! slim {
    ($(#[$doc:meta])* $name:ident: $of:ty { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Resource)]
        #[resource(inherit = $of)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            /// Metadata without field ownership.
            #[serde(default, deserialize_with = "metadata")]
            pub metadata: ObjectMeta,
            $($(#[$field_doc])* #[serde(default, deserialize_with = "nullable")] pub $field: $type,)*
        }
    };
}

macro_rules! part {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name { $($(#[$field_doc])* #[serde(default, deserialize_with = "nullable")] pub $field: $type,)* }
    };
}

pub(in crate::api) use {part, slim};

part! {
    /// A condition of a Pod or Node.
    StatusCondition {
        /// Which one.
        #[serde(rename = "type")]
        type_: String,
        /// True, False or Unknown.
        status: String,
        /// When status changed.
        last_transition_time: Option<Time>,
    }
}

slim! {
    /// A Namespace.
    Namespace: core::Namespace {}
}

slim! {
    /// What puts a ValidatingAdmissionPolicy in force.
    AdmissionBinding: admission::ValidatingAdmissionPolicyBinding {
        /// Spec.
        spec: AdmissionBindingSpec,
    }
}

part! {
    /// Spec of a ValidatingAdmissionPolicyBinding.
    AdmissionBindingSpec {
        /// Deny, Warn or Audit.
        validation_actions: Vec<String>,
    }
}

impl AdmissionBinding {
    /// Whether what the policy forbids is refused, not only told.
    pub fn denies(&self) -> bool {
        self.spec.validation_actions.iter().any(|action| action == "Deny")
    }
}

#[cfg(test)]
mod tests;
