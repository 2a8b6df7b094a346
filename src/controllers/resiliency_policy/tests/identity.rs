//! Who a failed node is.

use std::sync::Arc;

use serde_json::json;

use crate::controllers::testing::*;

use super::super::identity::identity;
use super::{live_node, silence};

/// The addresses that are frozen of a node with these, whose agent reported those.
fn frozen(internal: &[&str], reported_by: &str, reported: &[&str]) -> Vec<String> {
    let mut node = unreachable("n1");
    let addresses = internal.iter().map(|address| json!({ "type": "InternalIP", "address": address }));
    let names = [json!({ "type": "Hostname", "address": "n1" })];
    node.status.addresses = serde_json::from_value(addresses.chain(names).collect()).unwrap();
    let silence = silence(&node);
    let mut live = live_node(node, silence, Vec::new());
    let report = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeVolumeReport", "metadata": { "name": "n1" }, "spec": {},
        "status": { "nodeUID": reported_by, "addresses": reported },
    });
    live.node_report = Some(Arc::new(serde_json::from_value(report).unwrap()));
    identity(&live).addresses
}

#[test]
fn addresses_are_frozen_where_none_that_the_node_has_is_missing() {
    let both = ["10.0.0.1", "10.9.0.1"];
    assert_eq!(frozen(&["10.0.0.1"], "uid-n1", &both), both);
    assert_eq!(frozen(&["10.0.0.1", "fd00::1"], "uid-n1", &["fd00:0::1", "10.0.0.1"]).len(), 2);
    assert_eq!(frozen(&[], "uid-n1", &both), both);
    // Such as the /32 of a cloud's machine.
    assert_eq!(frozen(&["10.0.0.1"], "uid-n1", &["10.9.0.1"]), [] as [&str; 0]);
    assert_eq!(frozen(&["10.0.0.1", "10.0.0.2"], "uid-n1", &both), [] as [&str; 0]);
    assert_eq!(frozen(&["10.0.0.1"], "uid-of-another", &both), [] as [&str; 0]);
    assert_eq!(frozen(&["10.0.0.1", "none"], "uid-n1", &both), [] as [&str; 0]);
}
