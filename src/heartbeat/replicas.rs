//! What the controller's replicas tell the agents: one ConfigMap in the operator's namespace, an entry for each replica
//! under its identity, `<public key> <address>:<port>`. Nothing in it is secret; that only the controllers may write it is
//! what the agents rely on.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::keys::PublicKey;

/// The ConfigMap's name, in the operator's namespace.
pub const CONFIG_MAP: &str = "bulkhead-heartbeat";
/// An agent sends to no more replicas than this.
pub const REPLICAS_MAX: usize = 16;

/// Where a replica listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its key.
    pub key: PublicKey,
    /// Where it listens.
    pub at: SocketAddr,
}

/// An entry of the ConfigMap.
pub fn entry(replica: Replica) -> String {
    format!("{} {}", replica.key, replica.at)
}

/// The replicas that the ConfigMap tells of. An entry that cannot be read is none.
pub fn read(data: &BTreeMap<String, String>) -> Vec<Replica> {
    let entry = |text: &String| {
        let (key, at) = text.split_once(' ')?;
        Some(Replica { key: PublicKey::parse(key)?, at: at.parse().ok()? })
    };
    data.values().filter_map(entry).take(REPLICAS_MAX).collect()
}
