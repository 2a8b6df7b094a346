//! The public API: one file per custom resource, and what they share. Types, defaults and pure helpers only; imports
//! nothing else of ours.

pub mod conditions;
pub mod driver_report;
pub mod fence_request;
pub mod fencing;
pub mod limits;
pub mod names;
pub mod node_fence;
pub mod resiliency_policy;
mod resiliency_policy_rules;
pub mod selector;
pub mod slim;
pub mod time;
pub mod usage;

/// Definitions of all kinds, as they are shipped in `crds/`.
pub fn definitions() -> Vec<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>
{
    use kube::CustomResourceExt;
    vec![
        driver_report::DriverReport::crd(),
        fence_request::FenceRequest::crd(),
        node_fence::NodeFence::crd(),
        resiliency_policy::ResiliencyPolicy::crd(),
    ]
}

/// Transform for objects with defaulted properties: the default is `{}`, so that each constant stands once in the
/// schema, at its property.
pub(crate) fn empty_default(schema: &mut schemars::Schema) {
    schema.insert("default".into(), serde_json::json!({}));
}
