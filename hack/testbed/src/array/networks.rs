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
        self.client(node).is_some_and(|client| self.shut_out.iter().any(|cidr| cidr.overlaps(client)))
    }

    /// The address by which the array sees a node, by its CSI node id.
    pub fn client(&self, node: &str) -> Option<Cidr> {
        self.clients.get(node).copied()
    }

    /// Shuts addresses out, or lets them in. What is asked again is done already.
    pub fn fence(&mut self, cidrs: &[String], shut_out: bool) -> Result<(), String> {
        for cidr in cidrs.iter().map(|cidr| cidr.parse()).collect::<Result<Vec<Cidr>, String>>()? {
            if shut_out {
                self.shut_out.insert(cidr);
            } else {
                self.shut_out.remove(&cidr);
            }
        }
        Ok(())
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

    /// Shuts addresses out, or lets them in, as `FenceClusterNetwork` and `UnfenceClusterNetwork` do.
    ///
    /// # Errors
    ///
    /// When one of them is no block of addresses.
    pub fn fence_network(&self, cidrs: &[String], shut_out: bool) -> Result<(), String> {
        lock(&self.driver.state).networks.fence(cidrs, shut_out)
    }

    /// The addresses that are shut out now.
    pub fn shut_out(&self) -> Vec<String> {
        lock(&self.driver.state).networks.shut_out.iter().map(Cidr::to_string).collect()
    }
}
