//! Bulkhead keeps stateful workloads running when a node, an array, a volume or a mount fails.
#![forbid(unsafe_code)]

pub mod api;
pub mod csi;
