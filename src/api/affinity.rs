//! Which nodes a volume can be reached from, by its node affinity. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

use super::slim::{Node, PersistentVolume};

/// The label by which local volumes name their node. Mostly, but not always, its value is the node's name.
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
const NAME_FIELD: &str = "metadata.name";

/// The hosts that the affinity names, by host name or node name: also those that do not exist (any more).
pub fn hosts(volume: &PersistentVolume) -> Vec<String> {
    let mut hosts: Vec<_> = terms(volume).iter().flat_map(hosts_of).collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

fn hosts_of(term: &NodeSelectorTerm) -> Vec<String> {
    let named = |requirements: &Option<Vec<NodeSelectorRequirement>>, key: &str| -> Vec<String> {
        let of_key = requirements.iter().flatten().filter(|it| it.key == key && it.operator == "In");
        of_key.flat_map(|it| it.values.iter().flatten().cloned()).collect()
    };
    [named(&term.match_expressions, HOSTNAME_LABEL), named(&term.match_fields, NAME_FIELD)].concat()
}

/// Whether the affinity lets the volume be used on this node; a volume without one can be used anywhere.
pub fn allows(volume: &PersistentVolume, node: &Node) -> bool {
    terms(volume).is_empty() || Host::of(node).is_selected(volume)
}

fn terms(volume: &PersistentVolume) -> &[NodeSelectorTerm] {
    let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    required.map(|selector| selector.node_selector_terms.as_slice()).unwrap_or_default()
}

/// What an affinity can ask of a node.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
}

impl<'a> Host<'a> {
    /// Of a Node.
    pub fn of(node: &'a Node) -> Self {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let name = node.metadata.name.as_deref().unwrap_or_default();
        Self { name, labels: node.metadata.labels.as_ref().unwrap_or(&NONE) }
    }

    /// Whether the affinity of the volume selects it: one without any selects nothing.
    pub fn is_selected(&self, volume: &PersistentVolume) -> bool {
        terms(volume).iter().any(|term| self.matches(term, |_| true))
    }

    /// Whether it could be selected if its labels were others, all but its hostname: what is not kept because of this is
    /// never this node's.
    pub fn may_be_selected(&self, volume: &PersistentVolume) -> bool {
        terms(volume).iter().any(|term| self.matches(term, |key| key == HOSTNAME_LABEL))
    }

    /// Terms are alternatives. As in Kubernetes one without any requirement matches nothing.
    fn matches(&self, term: &NodeSelectorTerm, counts: impl Fn(&str) -> bool) -> bool {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let label = |key: &str| self.labels.get(key).map(String::as_str);
        let field = |key: &str| (key == NAME_FIELD).then_some(self.name);
        !(expressions.is_empty() && fields.is_empty())
            && expressions.iter().filter(|it| counts(&it.key)).all(|it| holds(it, label(&it.key)))
            && fields.iter().all(|it| holds(it, field(&it.key)))
    }
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|it| it == value));
    let compared = |holds: fn(i64, i64) -> bool| {
        let wanted = values.first().and_then(|it| it.parse().ok());
        value.and_then(|it| it.parse().ok()).zip(wanted).is_some_and(|(value, wanted)| holds(value, wanted))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(|value, wanted| value > wanted),
        "Lt" => compared(|value, wanted| value < wanted),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(terms: Value) -> PersistentVolume {
        let affinity = json!({ "required": { "nodeSelectorTerms": terms } });
        serde_json::from_value(json!({ "spec": { "local": { "path": "/x" }, "nodeAffinity": affinity } })).unwrap()
    }

    fn node(name: &str, labels: Value) -> Node {
        serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } })).unwrap()
    }

    fn one(key: &str, operator: &str, values: &[&str]) -> Value {
        json!([{ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }])
    }

    #[test]
    fn every_operator_follows_the_kubernetes_rules() {
        let here = node("n1", json!({ HOSTNAME_LABEL: "host-1", "slots": "5" }));
        for (terms, allowed) in [
            (one(HOSTNAME_LABEL, "In", &["host-1", "host-2"]), true),
            (one(HOSTNAME_LABEL, "In", &["n1"]), false),
            (one(HOSTNAME_LABEL, "NotIn", &["host-1"]), false),
            (one("zone", "NotIn", &["a"]), true),
            (one("slots", "Exists", &[]), true),
            (one("slots", "DoesNotExist", &[]), false),
            (one("slots", "Gt", &["4"]), true),
            (one("slots", "Lt", &["4"]), false),
            (one("slots", "Gt", &["many"]), false),
            (json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }]), true),
            (json!([{}]), false),
        ] {
            assert_eq!(allows(&volume(terms.clone()), &here), allowed, "{terms}");
        }
        assert!(allows(&PersistentVolume::default(), &here), "no affinity: anywhere");
    }

    #[test]
    fn hosts_are_those_that_are_named() {
        let named = json!([
            { "matchExpressions": [{ "key": HOSTNAME_LABEL, "operator": "In", "values": ["b", "a"] }] },
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["b"] }] },
        ]);
        assert_eq!(hosts(&volume(named)), ["a", "b"]);
        assert_eq!(hosts(&volume(one("zone", "In", &["a"]))), [""; 0]);
        assert_eq!(hosts(&volume(one(HOSTNAME_LABEL, "NotIn", &["a"]))), [""; 0]);
    }

    fn is(required: Value) -> (bool, bool) {
        let labels = [(HOSTNAME_LABEL, "host-1"), ("zone", "a"), ("disks", "4")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let host = Host { name: "worker-1", labels: &labels };
        let volume = volume(required);
        (host.is_selected(&volume), host.may_be_selected(&volume))
    }

    #[test]
    fn a_place_is_selected_or_may_be_under_other_labels() {
        for (key, operator, values, expected) in [
            (HOSTNAME_LABEL, "In", &["host-1"][..], (true, true)),
            (HOSTNAME_LABEL, "In", &["worker-1"], (false, false)),
            (HOSTNAME_LABEL, "NotIn", &["host-1"], (false, false)),
            ("zone", "In", &["b", "a"], (true, true)),
            ("zone", "In", &["b"], (false, true)),
            ("zone", "NotIn", &["b"], (true, true)),
            ("rack", "NotIn", &["b"], (true, true)),
            ("rack", "Exists", &[], (false, true)),
            ("zone", "Exists", &[], (true, true)),
            ("rack", "DoesNotExist", &[], (true, true)),
            ("disks", "Gt", &["3"], (true, true)),
            ("disks", "Lt", &["3"], (false, true)),
            ("zone", "Gt", &["3"], (false, true)),
            ("zone", "Like", &["a"], (false, true)),
        ] {
            assert_eq!(is(one(key, operator, values)), expected, "{key} {operator} {values:?}");
        }
    }

    #[test]
    fn terms_are_alternatives_and_their_requirements_are_not() {
        let expression = |key: &str, value: &str| json!({ "key": key, "operator": "In", "values": [value] });
        let both = json!([{ "matchExpressions": [expression("zone", "a"), expression(HOSTNAME_LABEL, "host-2")] }]);
        assert_eq!(is(both), (false, false));
        let either = json!([{ "matchExpressions": [expression("zone", "b")] }, { "matchExpressions": [expression(HOSTNAME_LABEL, "host-1")] }]);
        assert_eq!(is(either), (true, true));
        let name = |name: &str| json!([{ "matchFields": [expression(NAME_FIELD, name)] }]);
        assert_eq!((is(name("worker-1")), is(name("host-1"))), ((true, true), (false, false)));
        assert_eq!(is(json!([{}])), (false, false));
        assert_eq!(is(json!([])), (false, false));
    }

    #[test]
    fn without_affinity_a_local_volume_is_nobodys() {
        let (host, volume) = (Host { name: "n", labels: &BTreeMap::new() }, PersistentVolume::default());
        assert!(!host.is_selected(&volume) && !host.may_be_selected(&volume));
    }
}
