//! The driver's extension: whether it is there, whether a node is connected, and whether it is doing I/O. Every call has a deadline.

use std::collections::BTreeSet;
use std::time::Duration;

use tonic::transport::Channel;

use crate::csi::podmon::ValidateVolumeHostConnectivityRequest;
use crate::csi::podmon::podmon_client::PodmonClient;

use super::super::decide::Failure;
use super::super::driver::{Driver, call, timed};

/// The driver, asked about its nodes.
#[derive(Clone)]
pub struct Extension {
    driver: Driver,
}

impl Extension {
    /// The extension of this driver.
    pub fn new(driver: Driver) -> Self {
        Self { driver }
    }

    fn client(&self) -> PodmonClient<Channel> {
        PodmonClient::new(self.driver.channel())
    }

    /// Whether there is one: an empty request is a probe. An error other than Unimplemented says nothing about that.
    pub async fn is_supported(&self, deadline: Duration) -> Option<bool> {
        let probe = timed(ValidateVolumeHostConnectivityRequest::default(), deadline);
        match call(deadline, self.client().validate_volume_host_connectivity(probe)).await {
            Ok(_) => Some(true),
            Err(failure) if failure.code == "Unimplemented" => Some(false),
            Err(failure) => {
                tracing::debug!(
                    code = failure.code,
                    failure.message,
                    "the driver does not say whether it can be asked"
                );
                None
            }
        }
    }

    /// Whether a node, by its CSI node id, is connected to the array.
    pub async fn is_connected(&self, node_id: &str, deadline: Duration) -> Result<bool, Failure> {
        let request = ValidateVolumeHostConnectivityRequest { node_id: node_id.to_owned(), ..Default::default() };
        let answer = call(deadline, self.client().validate_volume_host_connectivity(timed(request, deadline))).await?;
        tracing::debug!(node_id, answer.connected, messages = ?answer.messages, "asked about a node");
        Ok(answer.connected)
    }

    /// Whether there was I/O lately on any of these volumes: from that node, or from any, as the driver counts.
    pub async fn is_doing_io(
        &self,
        node_id: &str,
        handles: &BTreeSet<String>,
        deadline: Duration,
    ) -> Result<bool, Failure> {
        let volume_ids = handles.iter().cloned().collect();
        let request =
            ValidateVolumeHostConnectivityRequest { node_id: node_id.to_owned(), volume_ids, ..Default::default() };
        let answer = call(deadline, self.client().validate_volume_host_connectivity(timed(request, deadline))).await?;
        tracing::debug!(node_id, answer.ios_in_progress, messages = ?answer.messages, "asked about the I/O of a node");
        Ok(answer.ios_in_progress)
    }
}
