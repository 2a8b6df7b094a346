//! Bulkhead keeps stateful workloads running when a node, an array, a volume or a mount fails.
//!
//! Layers: `error` and `runtime` know Kubernetes but none of our decisions. Nothing here is unsafe.
#![forbid(unsafe_code)]

pub mod error;
pub mod runtime;
