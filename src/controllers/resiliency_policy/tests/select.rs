//! Which policies protect a pod, and what several demand together.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::resiliency_policy::DecisiveChannel;
use crate::controllers::testing::*;

use super::super::select::{Effective, selects};

#[test]
fn a_pod_is_selected_when_every_part_that_is_set_matches() {
    let namespace: BTreeMap<String, String> = [("tier".to_owned(), "1".to_owned())].into();
    let pod = pod("pg", "n1", &[csi("v1"), csi_of("file.example.com", "f1"), local("l1")]);
    let cases: [(&str, Value, bool); 9] = [
        ("all pods", json!({ "podSelector": {} }), true),
        ("its label", json!({ "podSelector": { "matchLabels": { "app": "pg" } } }), true),
        ("another label", json!({ "podSelector": { "matchLabels": { "app": "web" } } }), false),
        ("its namespace", json!({ "namespaceSelector": { "matchLabels": { "tier": "1" } } }), true),
        ("another namespace", json!({ "namespaceSelector": { "matchLabels": { "tier": "2" } } }), false),
        (
            "namespace but not label",
            json!({ "namespaceSelector": {}, "podSelector": { "matchLabels": { "app": "web" } } }),
            false,
        ),
        ("one of its drivers", json!({ "podSelector": {}, "drivers": ["file.example.com", "x"] }), true),
        ("none of its drivers", json!({ "podSelector": {}, "drivers": ["x"] }), false),
        ("no driver listed", json!({ "podSelector": {}, "drivers": [] }), true),
    ];
    for (name, selector, wanted) in cases {
        let mut policy = policy("db", &json!({}));
        policy.spec.selector = serde_json::from_value(selector).unwrap();
        assert_eq!(selects(&policy, &pod, &namespace), wanted, "{name}");
    }
}

#[test]
fn of_several_policies_the_strictest_value_of_each_field_holds() {
    let lax = policy(
        "a-lax",
        &json!({
            "detection": { "requiredChannels": 2, "taints": [{ "key": "*" }] },
            "fencing": { "minimumProof": "Acknowledged", "methods": [{ "type": "Detach" }, { "type": "Unpublish" }] },
        }),
    );
    let strict = policy(
        "b-strict",
        &json!({
            "detection": { "decisiveChannels": ["Kubelet"], "kubelet": { "decisiveAfter": "90s" } },
            "fencing": { "methods": [{ "type": "Unpublish" }] },
            "release": { "detach": "VolumeAttachments" },
        }),
    );
    let pod = pod("pg", "n1", &[csi("v1")]);
    for policies in [[&lax, &strict], [&strict, &lax]] {
        let both = Effective::of(&pod, &BTreeMap::new(), policies).unwrap();
        assert_eq!(both.deciding(), "b-strict");
        assert_eq!(both.minimum_proof(DRIVER), Proof::Verified);
        assert_eq!(both.methods(DRIVER).iter().map(|it| it.type_).collect::<Vec<_>>(), [FenceMethodType::Unpublish]);
        assert!(both.is_decisive(DecisiveChannel::Kubelet) && !both.is_decisive(DecisiveChannel::Taint));
        assert_eq!(both.decisive_after(), Duration::from_secs(90));
        assert!(!both.may_use_out_of_service());
        let taint = |key: &str| with_taint(node("n"), key, "", "NoExecute").taints()[0].clone();
        assert!(both.counts_taint(&taint("node.kubernetes.io/out-of-service")), "in both lists");
        assert!(!both.counts_taint(&taint("example.com/broken")), "in one list only");
    }
    let none: [&crate::api::resiliency_policy::ResiliencyPolicy; 0] = [];
    assert!(Effective::of(&pod, &BTreeMap::new(), none).is_none());
}

#[test]
fn a_method_whose_best_proof_is_too_weak_is_never_listed() {
    let pod = pod("pg", "n1", &[csi("v1")]);
    for (minimum, wanted) in [
        ("Verified", &[FenceMethodType::Unpublish][..]),
        ("Acknowledged", &[FenceMethodType::Unpublish, FenceMethodType::Detach]),
    ] {
        let policy = policy("db", &json!({ "fencing": { "minimumProof": minimum } }));
        let effective = Effective::of(&pod, &BTreeMap::new(), [&policy]).unwrap();
        let methods: Vec<_> = effective.methods(DRIVER).iter().map(|it| it.type_).collect();
        assert_eq!(methods, wanted, "{minimum}");
    }
}

#[test]
fn one_policy_that_ignores_node_failure_keeps_the_pod() {
    let release = policy("a", &json!({}));
    let ignore = policy("b", &json!({ "triggers": { "nodeFailure": "Ignore" } }));
    let pod = pod("pg", "n1", &[csi("v1")]);
    let one = Effective::of(&pod, &BTreeMap::new(), [&release]).unwrap();
    assert!(one.releases_on_node_failure());
    let both = Effective::of(&pod, &BTreeMap::new(), [&release, &ignore]).unwrap();
    assert!(!both.releases_on_node_failure());
}
