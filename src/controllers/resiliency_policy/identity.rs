//! Who a failed node is, as it is frozen with its plan: by then the Node is there yet.

use crate::api::fencing::NodeIdentity;
use crate::api::node_volume_report::unreported;

use super::plan::LiveNode;

/// Frozen identity of a node. Its addresses are those that its agent reported while it was well.
pub fn identity(live: &LiveNode) -> NodeIdentity {
    let node = &live.node;
    let boot_id = node.status.node_info.boot_id.clone();
    NodeIdentity {
        addresses: reported_addresses(live),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        boot_id: (!boot_id.is_empty()).then_some(boot_id),
        provider_id: node.spec.provider_id.clone().filter(|id| !id.is_empty()),
    }
}

/// None where one that the Node has is not among them: others may be missing too, and a fence for some of a node's addresses is no
/// fence. Later the Node may be gone, or another one.
fn reported_addresses(live: &LiveNode) -> Vec<String> {
    let status = live.node_report.as_ref().and_then(|report| report.status.as_ref());
    let of_node = status.filter(|status| status.node_uid.is_some() && status.node_uid == live.node.metadata.uid);
    let reported = of_node.map(|status| status.addresses.clone()).unwrap_or_default();
    if unreported(&live.node.status.addresses, &reported).is_none() { reported } else { Vec::new() }
}
