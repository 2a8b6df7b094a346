//! The NodeVolumeReport of each node. The controller creates it, since its agent may write nothing but the status: so it
//! cannot choose another name, owner or label. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use crate::api::node_volume_report::{NodeVolumeReport, NodeVolumeReportSpec};
use crate::api::slim::Node;

/// The report that is to be created for a node. One of an earlier Node of that name goes with it: the garbage collector
/// removes it, and that is seen.
pub fn missing(node: Option<&Node>, report: Option<&NodeVolumeReport>) -> Option<NodeVolumeReport> {
    let node = node.filter(|node| report.is_none() && node.metadata.deletion_timestamp.is_none())?;
    let name = node.metadata.name.clone()?;
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.clone(),
        uid: node.metadata.uid.clone()?,
        ..OwnerReference::default()
    };
    let metadata = ObjectMeta { name: Some(name), owner_references: Some(vec![owner]), ..ObjectMeta::default() };
    Some(NodeVolumeReport { metadata, spec: NodeVolumeReportSpec {}, status: None })
}
