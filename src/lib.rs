//! Bulkhead keeps stateful workloads running when a node, an array, a volume or a mount fails.
#![forbid(unsafe_code)]

pub mod api;
pub mod controllers;
pub mod csi;
pub mod csi_sidecar;
pub mod error;
pub mod heartbeat;
pub mod kubectl;
pub mod mutants;
pub mod nfs;
pub mod node_agent;
pub mod rights;
pub mod runtime;
pub mod s3;
pub mod scratch_volume;
pub mod storageos;
