//! Gives the NFS server behind a claim one address that survives failover: a Service without a selector, our own
//! EndpointSlices, and the mount endpoint told to whoever needs it. Keyed by namespace and name.

pub mod decide;
pub mod objects;
