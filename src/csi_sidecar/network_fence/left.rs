//! NetworkFences that are left when their FenceRequest is gone. Who stands still while it makes one, or whose write something between
//! it and the API server keeps back, makes it when the incident is over; and a create names no version that would refuse it. Then
//! a node is shut out that is well, and nobody else would let it in. Pure.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use kube::api::ObjectMeta;

use crate::api::fence_request::{Desired, FenceRequest, FenceRequestSpec};
use crate::api::fencing::NodeIdentity;
use crate::api::names::{self, FENCE_REQUEST_LABEL, FENCED_NODE_ANNOTATION};
use crate::api::network_fence::NetworkFence;
use crate::api::resiliency_policy::CheckSwitch;
use crate::api::slim::Node;
use crate::api::time::Duration;
use crate::mutants::{self, Mutant};

use super::clients;

/// Whether a fence was made for a FenceRequest.
pub fn is_ours(fence: &NetworkFence) -> bool {
    fence.labels().contains_key(FENCE_REQUEST_LABEL)
}

/// What is left behind by fences of these classes, as requests that stand in for those that are gone and ask for the end. The fences
/// were listed before the requests. Where a request names the node, whoever made it, that one comes first.
pub fn behind(
    driver: &str,
    classes: &[String],
    fences: &[NetworkFence],
    requests: &[FenceRequest],
) -> Vec<FenceRequest> {
    let mut left = BTreeMap::new();
    let is_of =
        |fence: &&NetworkFence| fence.spec.network_fence_class_name.as_ref().is_some_and(|it| classes.contains(it));
    for fence in fences.iter().filter(is_of) {
        let (uid, node) = (fence.labels().get(FENCE_REQUEST_LABEL), fence.annotations().get(FENCED_NODE_ANNOTATION));
        let Some((uid, node)) = uid.zip(node) else { continue };
        let is_asked_for = |it: &FenceRequest| it.metadata.uid.as_ref() == Some(uid) || it.spec.node_name == *node;
        if !requests.iter().any(is_asked_for) && !mutants::is_on(Mutant::LateFenceLeft) {
            left.entry(uid).or_insert_with(|| stand_in(driver, uid, node));
        }
    }
    left.into_values().collect()
}

/// Whether the node is well and has no taint of ours: so long as it may have something of before, or may not be the machine that
/// failed, nobody is let in.
pub fn is_over(request: &FenceRequest, nodes: &[Node]) -> bool {
    let mut nodes = nodes.iter().filter(|node| node.metadata.name.as_ref() == Some(&request.spec.node_name));
    nodes.any(clients::is_well)
}

fn stand_in(driver: &str, uid: &str, node: &str) -> FenceRequest {
    let spec = FenceRequestSpec {
        fencer_name: driver.to_owned(),
        node_name: node.to_owned(),
        episode: 1,
        node: NodeIdentity { uid: String::new(), boot_id: None, provider_id: None, addresses: Vec::new() },
        desired: Desired::Unfenced,
        call_timeout: Duration::seconds(30),
        io_in_progress_check: CheckSwitch::Disabled,
        volumes: Vec::new(),
    };
    let mut request = FenceRequest::new(&names::fence_request(node, driver), spec);
    request.metadata = ObjectMeta { uid: Some(uid.to_owned()), ..request.metadata };
    request
}
