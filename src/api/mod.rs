//! The public API: one file per custom resource, and what they share. Types, defaults and pure helpers only; imports
//! nothing else of ours.
#![allow(clippy::duplicated_attributes, reason = "printer columns of one type")]

pub mod conditions;
pub mod driver_report;
pub mod fence_request;
pub mod fencing;
pub mod limits;
pub mod names;
pub mod node_fence;
pub mod resiliency_policy;
mod schema;
pub mod selector;
pub mod slim;
pub mod time;
pub mod usage;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// Definitions of all kinds, as they are shipped in `crds/`.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![
        schema::definition::<driver_report::DriverReport>(),
        schema::definition::<fence_request::FenceRequest>(),
        schema::definition::<node_fence::NodeFence>(),
        schema::definition::<resiliency_policy::ResiliencyPolicy>(),
    ]
}
