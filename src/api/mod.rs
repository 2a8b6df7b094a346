//! The public API: one file per custom resource, and what they share. Types, defaults and pure helpers only; imports
//! nothing else of ours.
#![allow(clippy::duplicated_attributes, reason = "printer columns of one type")]

pub mod affinity;
pub mod cidr;
pub mod conditions;
pub mod driver_report;
pub mod endpoint;
pub mod fence_request;
pub mod fencing;
pub mod hysteresis;
pub mod limits;
pub mod mountpoint_pod;
pub mod mountpoint_s3_pod_attachment;
pub mod names;
pub mod network_fence;
pub mod node_fence;
pub mod node_volume_report;
pub mod plugin_folder;
pub mod pod_affinity;
pub mod proof;
pub mod provider_volume;
pub mod quantity;
pub mod resiliency_policy;
pub mod s3;
pub mod s3_cache;
mod schema;
pub mod selector;
pub mod shared_volume;
pub mod shared_volume_provider;
pub mod slim;
pub mod text;
pub mod time;
pub mod units;
pub mod usage;
pub mod volume;
pub mod volume_health;
pub mod volume_health_policy;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// Definitions of all kinds, as they are shipped in `crds/`.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![
        schema::definition::<driver_report::DriverReport>(),
        schema::definition::<fence_request::FenceRequest>(),
        mountpoint_s3_pod_attachment::definition(),
        schema::definition::<node_fence::NodeFence>(),
        schema::definition::<node_volume_report::NodeVolumeReport>(),
        schema::awaited::<resiliency_policy::ResiliencyPolicy>(),
        schema::awaited::<shared_volume::SharedVolume>(),
        schema::awaited::<shared_volume_provider::SharedVolumeProvider>(),
        schema::awaited::<volume_health::VolumeHealth>(),
        schema::awaited::<volume_health_policy::VolumeHealthPolicy>(),
    ]
}
