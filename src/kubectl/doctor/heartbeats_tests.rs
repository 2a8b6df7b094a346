//! What is said of heartbeats that nobody sends.

use serde_json::json;

use crate::controllers::testing::node;

use super::super::Severity;
use super::*;

#[test]
fn an_agent_that_sends_none_is_told() {
    let agents = |sends: &[bool]| -> Vec<_> {
        sends.iter().enumerate().map(|(number, sends)| (format!("n{number}"), *sends)).collect()
    };
    assert_eq!(finding(&agents(&[])), None, "no agent at all");
    assert_eq!(finding(&agents(&[true, true])).unwrap().severity, Severity::Ok);
    let found = finding(&agents(&[true, false, false])).unwrap();
    assert_eq!(found.severity, Severity::Warning);
    assert!(found.message.starts_with("2 of 3 send no heartbeats, that of n1 "), "{}", found.message);
}

#[test]
fn a_report_that_no_agent_of_the_node_wrote_says_nothing() {
    let node = node("n0");
    let report = |uid: Option<&str>, heartbeat: serde_json::Value| -> NodeVolumeReport {
        let status = json!({ "nodeUID": uid, "heartbeat": heartbeat });
        serde_json::from_value(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeVolumeReport", "metadata": { "name": "n0" },
            "status": status,
        }))
        .unwrap()
    };
    let endpoint = || json!({ "publicKey": "00", "address": "192.0.2.1", "port": 9811 });
    let own = node.metadata.uid.as_deref();
    assert_eq!(sends(&node, &report(own, endpoint())), Some(true));
    assert_eq!(sends(&node, &report(own, json!(null))), Some(false), "its heartbeats are off");
    assert_eq!(sends(&node, &report(Some("another"), endpoint())), None, "of a Node before it");
    assert_eq!(sends(&node, &report(None, json!(null))), None, "as the controller makes it");
}

#[test]
fn four_agents_that_send_can_miss_one() {
    let agents = |sending: usize, mute: usize| {
        let names = (0..sending + mute).map(|number| (format!("worker-{number}"), number < sending));
        names.collect::<Vec<_>>()
    };
    assert!(are_enough(&agents(4, 0)) && are_enough(&agents(4, 9)));
    assert!(!are_enough(&agents(3, 9)) && !are_enough(&[]));
}
