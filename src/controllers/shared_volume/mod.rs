//! Gives the NFS server behind a claim one address that survives failover: a Service without a selector, our own
//! EndpointSlices, and the mount endpoint told to whoever needs it. Keyed by namespace and name.

pub mod choose;
pub mod claim;
pub mod decide;
pub mod deletion;
pub mod endpoints;
pub mod failover;
pub mod memory;
pub mod objects;
pub mod publish;
pub mod serve;
pub mod servers;
pub mod service;
pub mod slices;
pub mod status;
