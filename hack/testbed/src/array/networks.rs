//! Which clients the array shuts out by their address, whatever is published to them.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead::api::cidr::Cidr;

use super::Array;
use crate::lock::lock;

/// Addresses of clients, and those that are shut out.
#[derive(Debug, Default)]
pub(super) struct Networks {
    clients: BTreeMap<String, Cidr>,
    shut_out: BTreeSet<Cidr>,
}

impl Networks {
    /// Whether the node is shut out by its address.
    pub fn shuts_out(&self, node: &str) -> bool {
        self.clients.get(node).is_some_and(|client| self.shut_out.iter().any(|cidr| cidr.overlaps(*client)))
    }
}

impl Array {
    /// The address by which the array sees a node, by its CSI node id.
    ///
    /// # Errors
    ///
    /// When it is no address.
    pub fn set_client_address(&self, node: &str, address: &str) -> Result<(), String> {
        lock(&self.driver.state).networks.clients.insert(node.to_owned(), address.parse()?);
        Ok(())
    }

    /// Shuts addresses out, or lets them in, as `FenceClusterNetwork` and `UnfenceClusterNetwork` do: what is asked again is
    /// done already.
    ///
    /// # Errors
    ///
    /// When one of them is no block of addresses.
    pub fn fence_network(&self, cidrs: &[String], shut_out: bool) -> Result<(), String> {
        let cidrs = cidrs.iter().map(|cidr| cidr.parse()).collect::<Result<Vec<Cidr>, String>>()?;
        let mut state = lock(&self.driver.state);
        for cidr in cidrs {
            if shut_out {
                state.networks.shut_out.insert(cidr);
            } else {
                state.networks.shut_out.remove(&cidr);
            }
        }
        Ok(())
    }

    /// The addresses that are shut out now.
    pub fn shut_out(&self) -> Vec<String> {
        lock(&self.driver.state).networks.shut_out.iter().map(Cidr::to_string).collect()
    }
}
