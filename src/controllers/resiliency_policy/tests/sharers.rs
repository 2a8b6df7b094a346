//! Pods outside every policy that share volumes with protected ones: they hold the unit by name, or go with it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::node_fence::{Plan, PodAction};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::super::decide::Seen;
use super::super::plan::draft;
use super::super::storage::Paths;
use super::{live_node, silence};

/// A pod that no policy selects.
fn outside(name: &str, volumes: &[&str]) -> PodView {
    but(protected(name, volumes), |pod| pod.metadata.labels = Some([("skip".to_owned(), String::new())].into()))
}

fn protected(name: &str, volumes: &[&str]) -> PodView {
    let volumes: Vec<_> = volumes.iter().map(|volume| csi(volume)).collect();
    pod(name, "n1", &volumes)
}

fn policy_of(spec: &Value) -> ResiliencyPolicy {
    let unlabelled = json!({ "matchExpressions": [{ "key": "skip", "operator": "DoesNotExist" }] });
    let mut whole = json!({ "selector": { "podSelector": unlabelled } });
    json_patch::merge(&mut whole, spec);
    policy("db", &whole)
}

fn planned(pods: Vec<PodView>, policies: &[ResiliencyPolicy]) -> Plan {
    let node = unreachable("n1");
    let silence = silence(&node);
    let (live, seen, none) = (live_node(node, silence, pods), Seen::default(), BTreeMap::new());
    draft(&live, policies, &none, &Paths::new(&seen, &BTreeMap::new(), now()), 1, now()).expect("a plan").plan
}

fn rows(plan: &Plan) -> Vec<(&str, PodAction, &str)> {
    plan.pods.iter().map(|row| (row.name.as_str(), row.action, row.reason.as_str())).collect()
}

#[test]
fn who_stays_and_who_goes() {
    use PodAction::{Keep, Release};
    let clean = || json!({ "sharers": "CleanAll" });
    let chain =
        || vec![protected("a", &["v1"]), outside("b", &["v1", "v2"]), outside("c", &["v2"]), outside("d", &["v9"])];
    type Case = (&'static str, Vec<PodView>, Value, Vec<(&'static str, PodAction, &'static str)>);
    let cases: Vec<Case> = vec![
        (
            "by default they hold the unit, however far it goes",
            chain(),
            json!({}),
            vec![
                ("a", Release, "NodeFailure"),
                ("b", Keep, "UnselectedSharer"),
                ("c", Keep, "UnselectedSharer"),
                ("d", Keep, "NoPolicy"),
            ],
        ),
        (
            "or go with it",
            chain(),
            clean(),
            vec![
                ("a", Release, "NodeFailure"),
                ("b", Release, "UnselectedSharer"),
                ("c", Release, "UnselectedSharer"),
                ("d", Keep, "NoPolicy"),
            ],
        ),
        (
            "nobody creates a bare pod again",
            vec![protected("a", &["v1"]), owned_by(outside("b", &["v1"]), None)],
            clean(),
            vec![("a", Release, "NodeFailure"), ("b", Keep, "BarePod")],
        ),
        (
            "but where that is wanted",
            vec![protected("a", &["v1"]), owned_by(outside("b", &["v1"]), None)],
            json!({ "sharers": "CleanAll", "release": { "barePods": "Delete" } }),
            vec![("a", Release, "NodeFailure"), ("b", Release, "UnselectedSharer")],
        ),
        (
            "a pod of a DaemonSet stays, and with it the others",
            vec![protected("a", &["v1"]), outside("b", &["v1"]), owned_by(protected("c", &["v1"]), Some("DaemonSet"))],
            clean(),
            vec![("a", Release, "NodeFailure"), ("b", Keep, "UnselectedSharer"), ("c", Keep, "DaemonSet")],
        ),
        (
            "one that has ended shares nothing any more",
            vec![
                protected("a", &["v1"]),
                but(outside("b", &["v1", "v2"]), |pod| pod.status.phase = Some("Succeeded".into())),
                outside("c", &["v2"]),
            ],
            clean(),
            vec![("a", Release, "NodeFailure"), ("b", Keep, "Completed"), ("c", Keep, "NoPolicy")],
        ),
    ];
    for (name, pods, spec, expected) in cases {
        assert_eq!(rows(&planned(pods, &[policy_of(&spec)])), expected, "{name}");
    }
}

#[test]
fn what_is_cleaned_with_others_needs_the_proof_that_they_need() {
    let plan = planned(
        vec![protected("a", &["v1"]), outside("b", &["v1", "v2"])],
        &[policy_of(&json!({ "sharers": "CleanAll" }))],
    );
    let volume = |name: &str| plan.volumes.iter().find(|row| row.name == name).expect(name);
    assert_eq!(volume("v2").minimum_proof, volume("v1").minimum_proof);
    assert_eq!(volume("v2").methods, volume("v1").methods);
    assert_eq!(volume("v2").node_id.as_deref(), Some("id-n1"));
    assert_eq!(plan.pods[1].policy.as_deref(), Some("db"));
    assert_eq!(plan.pods[1].volumes, ["v1", "v2"]);
}

#[test]
fn every_policy_of_the_unit_must_want_it() {
    let mut strict = policy_of(&json!({}));
    strict.metadata.name = Some("strict".into());
    strict.spec.selector.pod_selector =
        Some(serde_json::from_value(json!({ "matchLabels": { "app": "second" } })).unwrap());
    let pods = vec![protected("first", &["v1"]), protected("second", &["v2"]), outside("between", &["v1", "v2"])];
    let plan = planned(pods, &[policy_of(&json!({ "sharers": "CleanAll" })), strict]);
    let row = plan.pods.iter().find(|row| row.name == "between").expect("a row");
    assert_eq!((row.action, row.reason.as_str()), (PodAction::Keep, "UnselectedSharer"));
}

/// Rows never change: the sharer's comes when all protected pods of its unit are declared.
#[test]
fn a_sharer_waits_for_the_last_of_its_unit() {
    let clean = policy_of(&json!({ "sharers": "CleanAll" }));
    let slow =
        json!({ "sharers": "CleanAll", "detection": { "decisiveChannels": [], "taints": [{ "key": "broken" }] } });
    let mut slow = policy_of(&slow);
    slow.metadata.name = Some("slow".into());
    slow.spec.selector.pod_selector =
        Some(serde_json::from_value(json!({ "matchLabels": { "app": "second" } })).unwrap());
    let pods = vec![protected("first", &["v1"]), protected("second", &["v2"]), outside("between", &["v1", "v2"])];
    let plan = planned(pods, &[clean, slow]);
    assert_eq!(rows(&plan), [("first", PodAction::Release, "NodeFailure")]);
}
