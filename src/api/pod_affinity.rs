//! Pods that must run on one node: required pod affinity by host name.

use std::collections::BTreeMap;

use super::slim::{Pod, PodAffinityTerm};

/// The label of a node that names it.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Whether one of them may run only where the other does. Pods that belong to their node are on every node: they bind nobody.
pub fn are_bound(one: &Pod, other: &Pod) -> bool {
    !is_elsewhere_too(one) && !is_elsewhere_too(other) && (requires(one, other) || requires(other, one))
}

/// Whether the pod has any such term.
pub fn is_binding(pod: &Pod) -> bool {
    terms(pod).next().is_some()
}

fn is_elsewhere_too(pod: &Pod) -> bool {
    pod.controller_kind() == Some("DaemonSet") || pod.is_static()
}

fn terms(pod: &Pod) -> impl Iterator<Item = &PodAffinityTerm> {
    let all = &pod.spec.affinity.pod_affinity.required_during_scheduling_ignored_during_execution;
    all.iter().filter(|term| term.topology_key == HOSTNAME)
}

fn requires(pod: &Pod, other: &Pod) -> bool {
    let no_labels = BTreeMap::new();
    let labels = other.metadata.labels.as_ref().unwrap_or(&no_labels);
    terms(pod).any(|term| {
        // A selector selects nothing where it is absent. One of namespaces is taken to select all: rather too many pods are
        // held together than too few.
        let own = || term.namespaces.is_empty() && pod.metadata.namespace == other.metadata.namespace;
        let listed = || other.metadata.namespace.as_ref().is_some_and(|namespace| term.namespaces.contains(namespace));
        let in_scope = term.namespace_selector.is_some() || own() || listed();
        in_scope && term.label_selector.as_ref().is_some_and(|selector| selector.matches(labels))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(namespace: &str, app: &str, term: &Value) -> Pod {
        let terms = if term.is_null() { json!([]) } else { json!([term]) };
        serde_json::from_value(json!({
            "metadata": { "namespace": namespace, "name": app, "labels": { "app": app } },
            "spec": { "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } } },
        }))
        .unwrap()
    }

    #[test]
    fn who_must_run_beside_whom() {
        let selector = json!({ "matchLabels": { "app": "b" } });
        let term = |more: Value| {
            let mut term = json!({ "topologyKey": "kubernetes.io/hostname", "labelSelector": selector });
            json_patch::merge(&mut term, &more);
            term
        };
        let cases = [
            ("required", term(json!({})), "x", true),
            ("in another namespace", term(json!({})), "y", false),
            ("that is listed", term(json!({ "namespaces": ["y"] })), "y", true),
            ("the list has another", term(json!({ "namespaces": ["y"] })), "x", false),
            ("namespaces by label", term(json!({ "namespaceSelector": {} })), "y", true),
            ("of a zone", term(json!({ "topologyKey": "topology.kubernetes.io/zone" })), "x", false),
            (
                "of another",
                term(json!({ "labelSelector": { "matchLabels": { "app": null, "name": "b" } } })),
                "x",
                false,
            ),
            ("of none", term(json!({ "labelSelector": null })), "x", false),
            ("nothing is required", Value::Null, "x", false),
        ];
        for (name, term, namespace, bound) in cases {
            let (one, other) = (pod("x", "a", &term), pod(namespace, "b", &Value::Null));
            assert_eq!(are_bound(&one, &other), bound, "{name}");
            assert_eq!(are_bound(&other, &one), bound, "{name}, the other way round");
        }
    }
}
