//! Do the agents send heartbeats? Whether these arrive only the replicas of the controller know, which count it.

use kube::ResourceExt;

use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::slim::Node;
use crate::heartbeat::verdict::PEERS_MIN;
use crate::kubectl::gather::Gathered;
use crate::runtime::store::ObjectKey;

use super::Finding;

const CHECK: &str = "Heartbeats";

/// Looks at the agent of each node that is Ready. That there is no agent at all is told by another check.
pub fn check(gathered: &Gathered) -> Option<Finding> {
    finding(&agents(gathered))
}

/// Whether so many agents send that one can be missed: fewer others are not asked about it.
pub fn are_sent(gathered: &Gathered) -> bool {
    are_enough(&agents(gathered))
}

fn are_enough(agents: &[(String, bool)]) -> bool {
    agents.iter().filter(|(_, sends)| *sends).count() > PEERS_MIN
}

fn agents(gathered: &Gathered) -> Vec<(String, bool)> {
    let nodes = gathered.stores.nodes.list();
    let ready = nodes.iter().filter(|node| node.ready() == "True");
    let mut agents: Vec<_> = ready
        .filter_map(|node| {
            let name = node.name_any();
            let report = gathered.stores.node_reports.get(&ObjectKey::cluster(&name))?;
            let sends = sends(node, &report)?;
            Some((name, sends))
        })
        .collect();
    agents.sort_unstable();
    agents
}

/// Whether the agent of this very node says that it sends; `None` where no agent has written the report.
fn sends(node: &Node, report: &NodeVolumeReport) -> Option<bool> {
    let status = report.status.as_ref()?;
    let is_its_own = status.node_uid.is_some() && status.node_uid == node.metadata.uid;
    is_its_own.then_some(status.heartbeat.is_some())
}

fn finding(agents: &[(String, bool)]) -> Option<Finding> {
    if agents.is_empty() {
        return None;
    }
    let mute: Vec<_> = agents.iter().filter(|(_, sends)| !sends).map(|(node, _)| node).collect();
    let Some(first) = mute.first() else {
        let arrive = "metric bulkhead_heartbeat_nodes_missing tells whether they arrive";
        return Some(Finding::ok(CHECK, "agents", format!("{} send heartbeats; {arrive}", agents.len())));
    };
    let message = format!(
        "{} of {} send no heartbeats, that of {first} among them: such a node's death is noticed by Kubernetes' signs alone, half a \
         minute later",
        mute.len(),
        agents.len()
    );
    let remedy = "look for a warning in the log of bulkhead-node-agent there (is UDP port 9811 taken?), and for --heartbeat-address";
    Some(Finding::warning(CHECK, "agents", message, remedy))
}

#[cfg(test)]
#[path = "heartbeats_tests.rs"]
mod tests;
