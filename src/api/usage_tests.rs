//! What the volumes of a pod are, as far as fencing is concerned.

use serde_json::{Value, json};

use super::*;

/// One claim, bound to one volume of one driver.
struct Bound {
    volume: PersistentVolume,
    attach_required: Option<bool>,
}

impl Lookup for Bound {
    fn claim(&self, _: &str, _: &str) -> Option<Arc<PersistentVolumeClaim>> {
        Some(Arc::new(serde_json::from_value(json!({ "spec": { "volumeName": "pv" } })).unwrap()))
    }

    fn volume(&self, _: &str) -> Option<Arc<PersistentVolume>> {
        Some(Arc::new(self.volume.clone()))
    }

    fn driver(&self, _: &str) -> Option<Arc<CsiDriver>> {
        let spec = json!({ "spec": { "attachRequired": self.attach_required } });
        Some(Arc::new(serde_json::from_value(spec).unwrap()))
    }
}

fn kind(source: &Value, of_volume: Value, attach_required: Option<bool>) -> VolumeKind {
    let mut volume = source.clone();
    volume["name"] = "data".into();
    let pod: Pod = serde_json::from_value(json!({ "spec": { "volumes": [volume] } })).unwrap();
    let volume = serde_json::from_value(json!({ "metadata": { "uid": "u" }, "spec": of_volume })).unwrap();
    let view = PodView::new(Arc::new(pod), &Bound { volume, attach_required });
    view.volumes[0].kind.clone()
}

#[test]
fn what_is_mounted_without_being_attached_is_a_kind_of_its_own() {
    let claim = json!({ "persistentVolumeClaim": { "claimName": "data" } });
    let csi =
        |attributes: Value| json!({ "csi": { "driver": "d", "volumeHandle": "h", "volumeAttributes": attributes } });
    let volume = CsiVolume { uid: "u".into(), driver: "d".into(), handle: "h".into() };
    for attach_required in [None, Some(true)] {
        let found = kind(&claim, csi(json!({ "clusterID": "a" })), attach_required);
        assert_eq!(found, VolumeKind::Csi(volume.clone()), "{attach_required:?}");
    }
    for (attributes, cluster_id) in [(json!({ "clusterID": "a" }), Some("a")), (json!({}), None)] {
        let expected = UnattachedVolume { csi: Some(volume.clone()), cluster_id: cluster_id.map(str::to_owned) };
        assert_eq!(kind(&claim, csi(attributes), Some(false)), VolumeKind::Unattached(expected));
    }
    let nfs = json!({ "nfs": { "server": "s", "path": "/" } });
    let in_tree = VolumeKind::Unattached(UnattachedVolume { csi: None, cluster_id: None });
    assert_eq!(kind(&claim, nfs.clone(), None), in_tree);
    let inline_csi = json!({ "csi": { "driver": "d" } });
    // What whoever makes the pod writes: no node is switched off for it.
    for (source, of_volume) in [(&claim, json!({ "iscsi": {} })), (&inline_csi, json!({})), (&nfs, json!({}))] {
        assert!(matches!(kind(source, of_volume, Some(false)), VolumeKind::Unknown(_)), "{source}");
    }
}

#[test]
fn what_covers_an_unattached_volume() {
    use FenceMethodType::{Detach, External, NetworkFence, Unpublish};
    let volume = |cluster_id: Option<&str>| UnattachedVolume {
        csi: Some(CsiVolume { uid: "u".into(), driver: "d".into(), handle: "h".into() }),
        cluster_id: cluster_id.map(str::to_owned),
    };
    let nfs = UnattachedVolume { csi: None, cluster_id: None };
    let long = "x".repeat(254);
    for (name, volume, by_network) in [
        ("without a cluster", volume(None), true),
        ("with one", volume(Some("a")), true),
        ("with none that can be written down", volume(Some(long.as_str())), false),
        ("with an empty one", volume(Some("")), false),
        ("without a driver", nfs, false),
    ] {
        let covered: Vec<_> = [Unpublish, Detach, NetworkFence, External].map(|it| volume.is_covered_by(it)).into();
        assert_eq!(covered, [false, false, by_network, true], "{name}");
    }
}
