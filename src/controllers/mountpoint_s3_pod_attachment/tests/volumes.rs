//! Which S3 volumes a pod has.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::s3::DRIVER;
use crate::api::slim::{CsiDriver, PersistentVolume, PersistentVolumeClaim, Pod};
use crate::api::usage::Lookup;

use super::super::volumes::{complaints, has, mounts};

#[derive(Default)]
struct Cluster {
    claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    volumes: BTreeMap<String, Arc<PersistentVolume>>,
}

impl Lookup for Cluster {
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(&format!("{namespace}/{name}")).cloned()
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(name).cloned()
    }

    fn driver(&self, _: &str) -> Option<Arc<CsiDriver>> {
        None
    }
}

impl Cluster {
    /// A claim and the volume that it is bound to.
    fn bound(mut self, claim: &str, volume: &str, change: Value) -> Self {
        let mut object = json!({
            "metadata": { "name": volume },
            "spec": {
                "csi": { "driver": DRIVER, "volumeHandle": format!("handle-{volume}") },
                "claimRef": { "namespace": "default", "name": claim, "uid": format!("uid-{claim}") },
            },
        });
        json_patch::merge(&mut object, &change);
        self.volumes.insert(volume.to_owned(), Arc::new(serde_json::from_value(object).unwrap()));
        self.claim(claim, json!({ "spec": { "volumeName": volume } }))
    }

    fn claim(mut self, claim: &str, change: Value) -> Self {
        let mut object = json!({
            "metadata": { "name": claim, "namespace": "default", "uid": format!("uid-{claim}") }, "spec": {},
        });
        json_patch::merge(&mut object, &change);
        self.claims.insert(format!("default/{claim}"), Arc::new(serde_json::from_value(object).unwrap()));
        self
    }
}

fn pod(volumes: Value) -> Pod {
    let pod = json!({
        "metadata": { "name": "pod", "namespace": "default", "uid": "uid-pod" },
        "spec": { "nodeName": "node", "volumes": volumes, "securityContext": { "fsGroup": 1000 } },
    });
    serde_json::from_value(pod).unwrap()
}

fn of_claims(claims: &[&str]) -> Pod {
    let volume = |claim: &&str| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } });
    pod(claims.iter().map(volume).collect())
}

#[test]
fn the_key_is_what_upstream_shares_by() {
    let cluster = Cluster::default().bound("a", "pv-a", json!({ "spec": { "mountOptions": ["b", "a=1,2"] } }));
    let found = mounts(&of_claims(&["a", "a"]), &cluster);
    assert_eq!(found.len(), 1);
    let mount = &found[0];
    assert_eq!((mount.node_name.as_str(), mount.persistent_volume_name.as_str()), ("node", "pv-a"));
    assert_eq!((mount.volume_id.as_str(), mount.mount_options.as_str()), ("handle-pv-a", "b,a=1,2"));
    assert_eq!(mount.workload_fs_group, "1000");
}

#[test]
fn volumes_are_independent() {
    let cluster = Cluster::default()
        .bound("good", "pv-good", json!({}))
        .claim("unbound", json!({}))
        .claim("lost", json!({ "spec": { "volumeName": "pv-gone" } }));
    let found = mounts(&of_claims(&["missing", "unbound", "lost", "good"]), &cluster);
    assert_eq!(found.len(), 1);
}

#[test]
fn both_sides_of_a_binding_must_agree() {
    for change in [
        json!({ "claimRef": { "uid": "uid-of-before" } }),
        json!({ "claimRef": { "uid": null } }),
        json!({ "claimRef": { "namespace": "other" } }),
        json!({ "claimRef": { "name": "other" } }),
        json!({ "claimRef": null }),
        json!({ "csi": { "driver": "csi.example.com" } }),
        json!({ "csi": null }),
    ] {
        let cluster = Cluster::default().bound("a", "pv-a", json!({ "spec": change }));
        assert_eq!(mounts(&of_claims(&["a"]), &cluster), [], "{change}");
    }
}

/// Whatever it was mounted with: its options may have changed since.
#[test]
fn a_pod_has_the_volume_that_its_claim_leads_to() {
    let pod = of_claims(&["other", "a"]);
    let cluster = Cluster::default().bound("a", "pv-a", json!({ "spec": { "mountOptions": ["new"] } }));
    assert!(has(&pod, "pv-a", &cluster) && !has(&pod, "pv-b", &cluster));
    let anothers =
        Cluster::default().bound("a", "pv-a", json!({ "spec": { "claimRef": { "uid": "uid-of-another" } } }));
    assert!(!has(&pod, "pv-a", &anothers));
}

#[test]
fn a_pod_without_a_node_mounts_nothing() {
    let cluster = Cluster::default().bound("a", "pv-a", json!({}));
    let mut pod = of_claims(&["a"]);
    pod.spec.node_name = None;
    assert_eq!(mounts(&pod, &cluster), []);
}

#[test]
fn an_ephemeral_volume_is_its_own_claim() {
    let owned = |uid: &str| {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": uid });
        let claim = json!({ "metadata": { "ownerReferences": [owner] }, "spec": { "volumeName": "pv-e" } });
        Cluster::default().bound("pod-e", "pv-e", json!({})).claim("pod-e", claim)
    };
    let pod = pod(json!([{ "name": "e", "ephemeral": {} }]));
    assert_eq!(mounts(&pod, &owned("uid-pod")).len(), 1);
    assert_eq!(mounts(&pod, &owned("uid-another")), []);
}

#[test]
fn what_cannot_be_served_is_said() {
    let same = json!({ "spec": { "csi": { "volumeHandle": "same" } } });
    let cluster = Cluster::default().bound("a", "pv-a", same.clone()).bound("b", "pv-b", same);
    assert!(complaints(&of_claims(&["a"]), &cluster).is_empty());
    let found = complaints(&of_claims(&["a", "b"]), &cluster);
    assert!(found.len() == 1 && found[0].contains("pv-a and pv-b have the same volumeHandle same"), "{found:?}");
    let inline = pod(json!([
        { "name": "i", "csi": { "driver": DRIVER } }, { "name": "other", "csi": { "driver": "csi.example.com" } },
    ]));
    let found = complaints(&inline, &cluster);
    assert!(found.len() == 1 && found[0].contains("volume i names the driver"), "{found:?}");
}
