//! What these tests do to a lane and look at: its DriverReport, the path of a node, and the array's call log.

use std::time::Duration;

use bulkhead::api::driver_report::{DriverReport, DriverReportStatus, PathState};
use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::resiliency_policy::{ResiliencyPolicy, StorageEvidence};
use bulkhead_testbed::array::{Array, Call, Link, Method};
use bulkhead_testbed::nodes::SimulatedNode;
use kube::Api;
use libtest_mimic::Failed;
use serde_json::{Value, json};

use crate::failover::fleet::{Lane, SOON};

/// How often the array is asked in these tests.
pub const PERIOD: Duration = Duration::from_secs(1);

/// A policy that asks often, with more of it.
pub fn asking(more: &Value) -> Value {
    let mut policy = json!({
        "detection": { "storage": { "period": "1s", "lossThreshold": 2, "recoveryThreshold": 3 } },
    });
    bulkhead_testbed::cluster::merge(&mut policy, more);
    policy
}

/// What the array was asked about a node.
pub fn questions(array: &Array, node: &SimulatedNode) -> Vec<Call> {
    let calls = array.calls().all().into_iter();
    calls.filter(|it| it.method == Method::ValidateVolumeHostConnectivity && it.node == node.csi_node_id()).collect()
}

impl Lane<'_> {
    /// Cuts the path between a node and the lane's array, or mends it.
    pub fn path(&self, node: &SimulatedNode, link: Link) {
        self.array().set_link(node.csi_node_id(), link);
    }

    /// Waits for something about the lane's DriverReport.
    pub async fn reported(
        &self,
        what: &str,
        holds: impl Fn(&DriverReportStatus) -> bool,
    ) -> Result<DriverReportStatus, Failed> {
        let api: Api<DriverReport> = Api::all(self.client());
        let look = async || {
            let status = api.get_opt(self.array().driver_name()).await?.and_then(|report| report.status);
            Ok(match status {
                Some(status) if holds(&status) => Ok(status),
                other => Err(serde_json::to_string(&other)?),
            })
        };
        Ok(self.cluster.wait(&format!("DriverReport: {what}"), SOON, look).await?)
    }

    /// Waits until so many nodes are asked about.
    pub async fn asks_about(&self, nodes: u32) -> Result<DriverReportStatus, Failed> {
        let asked = |it: &DriverReportStatus| it.backends.first().is_some_and(|known| known.nodes == Some(nodes));
        self.reported(&format!("{nodes} nodes asked about"), asked).await
    }

    /// Waits until the array was asked so many times more about a node.
    pub async fn asked_again(&self, node: &SimulatedNode, times: usize) -> Result<(), Failed> {
        let before = questions(self.array(), node).len();
        let asked = async || {
            let now = questions(self.array(), node).iter().filter(|call| call.answer.is_some()).count();
            Ok(if now >= before + times { Ok(()) } else { Err(format!("{now} of {}", before + times)) })
        };
        Ok(self.cluster.wait(&format!("asked {times} times more about {}", node.name()), SOON, asked).await?)
    }

    /// Waits until the policy says this of the lane's driver.
    pub async fn storage_evidence(&self, wanted: StorageEvidence) -> Result<(), Failed> {
        let api: Api<ResiliencyPolicy> = Api::all(self.client());
        let look = async || {
            let status = api.get(&self.name).await?.status.unwrap_or_default();
            let found = status.drivers.iter().find(|driver| driver.name == self.array().driver_name());
            let found = found.and_then(|driver| driver.storage_evidence);
            Ok(if found == Some(wanted) { Ok(()) } else { Err(format!("{found:?}")) })
        };
        // Drivers are counted with the pods, at most once a minute.
        Ok(self.cluster.wait(&format!("storageEvidence {wanted:?}"), 2 * SOON, look).await?)
    }

    /// Whether our taint is on the victim.
    pub async fn is_tainted(&self) -> Result<bool, Failed> {
        Ok(self.taints().await?.iter().any(|taint| taint.key == names::FENCED_TAINT))
    }

    /// No incident was opened for a node of the lane.
    pub async fn assert_no_incident(&self) -> Result<(), Failed> {
        let fences: Api<NodeFence> = Api::all(self.client());
        for node in &self.nodes {
            assert!(fences.get_opt(node.name()).await?.is_none(), "an incident was opened for {}", node.name());
        }
        Ok(())
    }
}

/// The state of a node's path in a report, if it has a row.
pub fn path_of(status: &DriverReportStatus, node: &SimulatedNode) -> Option<PathState> {
    status.unreachable.iter().find(|pair| pair.node == node.name()).map(|pair| pair.state)
}
