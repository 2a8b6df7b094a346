//! Who is asked about.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::api::slim::{CsiNode, Namespace, PersistentVolume, Pod};
use crate::controllers::testing;

use super::super::observe::{Stores, Wanted};
use super::*;

/// What is read of the cluster, and the means to put something in.
struct Cluster(Stores);

impl Cluster {
    /// Three nodes, and on the first a pod with a volume of the driver.
    fn new() -> Self {
        let cluster = Self(Stores::new_detached());
        for name in ["n0", "n1", "n2"] {
            cluster.node(json!({
                "metadata": { "name": name, "uid": format!("uid-{name}") },
                "spec": { "drivers": [{ "name": DRIVER, "nodeID": format!("id-{name}") }] },
            }));
        }
        let namespace: Namespace =
            serde_json::from_value(json!({ "metadata": { "name": "shop", "labels": { "tier": "1" } } })).unwrap();
        cluster.0.namespaces.insert(namespace);
        cluster.volume("pv-0", "data", DRIVER);
        cluster.pod(json!({ "metadata": { "name": "db" } }), "data", "n0");
        cluster
    }

    fn node(&self, node: Value) {
        let node: CsiNode = serde_json::from_value(node).unwrap();
        self.0.volumes.nodes.insert(node);
    }

    fn volume(&self, name: &str, claim: &str, driver: &str) {
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "csi": { "driver": driver, "volumeHandle": name }, "claimRef": { "namespace": "shop", "name": claim },
            },
        }))
        .unwrap();
        self.0.volumes.volumes.insert(volume);
    }

    fn pod(&self, more: Value, claim: &str, node: &str) {
        let mut pod = json!({
            "metadata": { "namespace": "shop", "labels": { "app": "db" } },
            "spec": {
                "nodeName": node, "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }],
            },
        });
        json_patch::merge(&mut pod, &more);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.0.pods.insert(pod);
    }

    fn policy(&self, name: &str, spec: Value) {
        let policy = testing::policy(name, &spec);
        self.0.policies.insert(policy);
    }

    fn wanted(&self, lost: &[&str]) -> Wanted {
        let lost: BTreeSet<_> = lost.iter().map(|node| (*node).to_owned()).collect();
        self.0.wanted(DRIVER, &lost)
    }

    fn nodes(&self, lost: &[&str]) -> Vec<String> {
        self.wanted(lost).nodes.into_keys().collect()
    }
}

#[test]
fn nodes_with_pods_that_a_policy_selects_and_volumes_of_the_driver() {
    let off = json!({ "detection": { "storage": { "connectivityCheck": "Disabled" } } });
    let none: &[&str] = &[];
    type Case = (&'static str, fn(&Cluster), &'static [&'static str]);
    let cases: Vec<Case> = vec![
        ("no policy", |_| {}, &[]),
        ("selected", |c| c.policy("a", json!({})), &["n0"]),
        (
            "by its namespace",
            |c| {
                let selector = json!({ "namespaceSelector": { "matchLabels": { "tier": "1" } }, "podSelector": null });
                c.policy("a", json!({ "selector": selector }));
            },
            &["n0"],
        ),
        (
            "another namespace",
            |c| c.policy("a", json!({ "selector": { "namespaceSelector": { "matchLabels": { "tier": "2" } } } })),
            &[],
        ),
        (
            "other labels",
            |c| c.policy("a", json!({ "selector": { "podSelector": { "matchLabels": { "app": "web" } } } })),
            &[],
        ),
        ("this driver", |c| c.policy("a", json!({ "selector": { "drivers": [DRIVER] } })), &["n0"]),
        ("another driver", |c| c.policy("a", json!({ "selector": { "drivers": ["other.example.com"] } })), &[]),
        (
            "volumes of another driver",
            |c| {
                c.policy("a", json!({}));
                c.pod(json!({ "metadata": { "name": "web" } }), "elsewhere", "n1");
            },
            &["n0"],
        ),
        (
            "a pod that has ended",
            |c| {
                c.policy("a", json!({}));
                c.pod(json!({ "metadata": { "name": "db" }, "status": { "phase": "Succeeded" } }), "data", "n0");
            },
            &[],
        ),
        (
            "a pod of its node",
            |c| {
                c.policy("a", json!({}));
                let owner = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true }]);
                c.pod(json!({ "metadata": { "name": "db", "ownerReferences": owner } }), "data", "n0");
            },
            &[],
        ),
        (
            "a generic ephemeral volume",
            |c| {
                c.policy("a", json!({}));
                c.volume("pv-1", "web-v", DRIVER);
                let volumes = json!([{ "name": "v", "ephemeral": {} }]);
                c.pod(json!({ "metadata": { "name": "web" }, "spec": { "volumes": volumes } }), "x", "n2");
            },
            &["n0", "n2"],
        ),
    ];
    for (name, prepare, wanted) in cases {
        let cluster = Cluster::new();
        prepare(&cluster);
        assert_eq!(cluster.nodes(&[]), wanted, "{name}");
    }
    let cluster = Cluster::new();
    cluster.policy("off", off.clone());
    assert_eq!(cluster.nodes(&["n1"]), none, "where nobody wants to know nobody is asked");
    cluster.policy("on", json!({}));
    assert_eq!(cluster.nodes(&[]), none, "of two policies the stricter one holds");
    assert_eq!(cluster.nodes(&["n1"]), ["n1"], "a path that was lost is asked about until it is back");
}

#[test]
fn a_lost_path_is_asked_about_though_its_pods_have_gone() {
    let cluster = Cluster::new();
    cluster.policy("a", json!({ "detection": { "storage": { "period": "20s", "recoveryThreshold": 5 } } }));
    assert_eq!(cluster.nodes(&["n1", "gone"]), ["n0", "n1"], "but for a node that is gone");
    cluster.pod(json!({ "metadata": { "name": "db" }, "status": { "phase": "Failed" } }), "data", "n0");
    let wanted = cluster.wanted(&["n1"]);
    assert_eq!(wanted.nodes.keys().collect::<Vec<_>>(), ["n1"]);
    assert_eq!(wanted.settings.map(|it| (it.period.as_secs(), it.recovery)), Some((20, 5)));
    assert_eq!(cluster.wanted(&[]).settings, None, "nobody is to be asked about");
}

#[test]
fn a_node_with_two_ids_is_not_asked_about() {
    let id = |cluster: &Cluster| cluster.wanted(&[]).nodes["n0"].node_id.clone();
    let cluster = Cluster::new();
    cluster.policy("a", json!({}));
    assert_eq!(id(&cluster).as_deref(), Some("id-n0"));
    let published = testing::attachment("pv-0", "n0");
    cluster.0.volumes.attachments.insert(published);
    assert_eq!(id(&cluster).as_deref(), Some("id-n0"));
    cluster.node(json!({
        "metadata": { "name": "n0", "uid": "uid-n0" },
        "spec": { "drivers": [{ "name": DRIVER, "nodeID": "another" }] },
    }));
    assert_eq!(id(&cluster), None);
    cluster.node(json!({ "metadata": { "name": "n0", "uid": "uid-n0" }, "spec": { "drivers": [] } }));
    assert_eq!(id(&cluster).as_deref(), Some("id-n0"), "the id that volumes were published to");
}
