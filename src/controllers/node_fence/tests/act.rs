//! What a write rests on.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;

use crate::api::names;
use crate::api::slim::{Pod, StatusCondition};
use crate::api::time;
use crate::controllers::testing::{at, node};

use super::super::act::precondition_for;
use super::super::pods;

#[test]
fn the_key_is_for_the_node_as_it_was_read() {
    let mut node = node("n1");
    node.metadata.resource_version = Some("7".into());
    for (key, version) in [(names::OUT_OF_SERVICE_TAINT, Some("7")), (names::FENCED_TAINT, None)] {
        let taint = Taint { key: key.into(), ..Taint::default() };
        assert_eq!(precondition_for(&taint, &node).version, version, "{key}");
    }
}

#[test]
fn a_pod_is_deleted_at_a_later_version_only_where_it_has_become_unready_and_nothing_else() {
    let decided = Arc::new(version_of_pod("9", "True"));
    let is_taken = |change: fn(&mut Pod)| {
        let mut stored = version_of_pod("10", "False");
        change(&mut stored);
        let stored = Arc::new(stored);
        Arc::ptr_eq(&pods::latest(decided.clone(), Some(stored.clone())), &stored)
    };
    assert!(is_taken(|_| {}));
    for (what, change) in [
        ("earlier", (|pod| pod.metadata.resource_version = Some("8".into())) as fn(&mut Pod)),
        ("of another server", |pod| pod.metadata.resource_version = Some("x10".into())),
        ("ready", |pod| pod.status.conditions = vec![condition("Ready", "True")]),
        ("another pod", |pod| pod.metadata.uid = Some("other".into())),
        ("kept", |pod| pod.metadata.finalizers = Some(vec!["a/b".into()])),
        ("being deleted", |pod| pod.metadata.deletion_timestamp = Some(time::to_k8s(at(1)))),
        ("labelled", |pod| pod.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into())),
        ("annotated", |pod| pod.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into())),
        ("elsewhere", |pod| pod.spec.node_name = Some("n2".into())),
        ("finished", |pod| pod.status.phase = Some("Succeeded".into())),
        ("disrupted", |pod| pod.status.conditions.push(condition("DisruptionTarget", "True"))),
    ] {
        assert!(!is_taken(change), "{what}");
    }
    assert!(Arc::ptr_eq(&pods::latest(decided.clone(), None), &decided));
}

/// What its kubelet writes of its containers looks the same here: of such a pod nobody can tell who wrote.
#[test]
fn one_that_was_not_ready_before_is_deleted_at_the_version_that_was_decided_on() {
    let decided = Arc::new(version_of_pod("9", "False"));
    let stored = Arc::new(version_of_pod("10", "False"));
    assert!(Arc::ptr_eq(&pods::latest(decided.clone(), Some(stored)), &decided));
}

fn version_of_pod(version: &str, ready: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some("uid".into());
    pod.metadata.resource_version = Some(version.into());
    pod.status.conditions = vec![condition("Ready", ready)];
    pod
}

fn condition(type_: &str, status: &str) -> StatusCondition {
    StatusCondition { type_: type_.into(), status: status.into(), last_transition_time: None }
}
