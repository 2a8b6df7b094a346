//! Volumes that are mounted without being attached: how they are planned, who selects them, and what is told of them at noon.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::driver_report::{DriverReport, NetworkFenceCluster};
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::PlannedVolume;
use crate::api::slim::CsiNode;
use crate::api::usage::{PodView, VolumeUse};
use crate::controllers::testing::*;

use super::super::decide::Seen;
use super::super::plan::{LiveNode, draft};
use super::super::select::selects;
use super::super::storage::Paths;
use super::{World, live_node, silence};

fn fencing(minimum: &str, methods: &[Value]) -> Value {
    let risk = (minimum == "None").then_some("DoubleWriters");
    json!({ "fencing": { "minimumProof": minimum, "methods": methods, "acknowledgeRisk": risk } })
}

fn live(pods: Vec<PodView>) -> LiveNode {
    let node = unreachable("n1");
    let silence = silence(&node);
    let mut live = live_node(node, silence, pods);
    let drivers = json!([{ "name": DRIVER, "nodeID": "id-n1" }, { "name": FILES, "nodeID": "file-n1" }]);
    let csi_node: CsiNode = serde_json::from_value(json!({ "spec": { "drivers": drivers } })).unwrap();
    live.csi_node = Some(Arc::new(csi_node));
    live
}

/// The row of the one volume of the one pod of the node.
fn planned(live: &LiveNode, minimum: &str, methods: &[Value]) -> PlannedVolume {
    let (seen, policies) = (Seen::default(), [policy("db", &fencing(minimum, methods))]);
    let paths = Paths::new(&seen, &BTreeMap::new(), now());
    let mut plan = draft(live, &policies, &BTreeMap::new(), &paths, 1, now()).unwrap().plan;
    plan.volumes.remove(0)
}

fn share() -> VolumeUse {
    unattached(FILES, "share")
}

fn of(volume: VolumeUse) -> LiveNode {
    live(vec![pod("files", "n1", &[volume])])
}

fn types(row: &PlannedVolume) -> Vec<FenceMethodType> {
    row.methods.iter().map(|method| method.type_).collect()
}

#[test]
fn only_what_cuts_off_the_node_as_a_whole_is_planned() {
    use FenceMethodType::{External, NetworkFence};
    let all = [unpublish(), network(), external()];
    for (name, volume, minimum, methods, expected, least) in [
        ("all", share(), "Acknowledged", &all[..], &[NetworkFence, External][..], Proof::Acknowledged),
        ("no weak ones", share(), "Verified", &all[..], &[External][..], Proof::Verified),
        ("time is none", share(), "None", &all[..], &[NetworkFence, External][..], Proof::Acknowledged),
        ("no driver", nfs("export"), "Acknowledged", &all[..], &[External][..], Proof::PowerOff),
    ] {
        let row = planned(&of(volume), minimum, methods);
        assert_eq!((types(&row).as_slice(), row.minimum_proof), (expected, least), "{name}");
        assert!(row.is_unattached_and_covered() && row.attachment_uid.is_none(), "{name}");
    }
    for (name, volume, methods) in [
        ("nothing covers it", share(), &all[..1]),
        ("nor NFS in-tree", nfs("export"), &all[..2]),
        ("a cluster that cannot be written down", in_cluster(share(), ""), &all[..2]),
    ] {
        let row = planned(&of(volume), "Acknowledged", methods);
        let unfenceable = (None, None, None, Vec::new());
        assert_eq!((row.driver.clone(), row.node_id.clone(), row.attach_required, types(&row)), unfenceable, "{name}");
    }
}

#[test]
fn the_row_has_what_the_node_was_known_by_and_the_cluster() {
    let row = planned(&of(in_cluster(share(), "a")), "Acknowledged", &[network(), external()]);
    assert_eq!((row.node_id.as_deref(), row.cluster_id.as_deref()), (Some("file-n1"), Some("a")));
    assert_eq!((row.driver.as_deref(), row.volume_handle.as_deref()), (Some(FILES), Some("handle-share")));
    let mut unregistered = of(in_cluster(share(), "a"));
    unregistered.csi_node = None;
    let row = planned(&unregistered, "Acknowledged", &[network(), external()]);
    assert_eq!(types(&row), [FenceMethodType::External], "whose addresses csi-addons says cannot be told");
    assert_eq!((row.node_id.as_deref(), row.cluster_id.as_deref()), (Some("n1"), None));
    let mut older = of(nfs("export"));
    older.pods[0] = but(older.pods[0].clone(), |pod| pod.metadata.creation_timestamp = None);
    let row = planned(&older, "Verified", &[external()]);
    assert_eq!(row.node_id, None, "the pod may be older than the Node");
}

#[test]
fn a_selector_finds_pods_by_a_driver_that_attaches_nothing() {
    let mut policy = policy("files", &json!({}));
    policy.spec.selector.drivers = vec![FILES.into()];
    assert!(selects(&policy, &pod("files", "n1", &[share()]), &BTreeMap::new()));
    assert!(!selects(&policy, &pod("web", "n1", &[nfs("export")]), &BTreeMap::new()));
}

/// What the sidecar says; not every one tells that the class names no cluster.
fn files_report(tells_clusters: bool) -> DriverReport {
    let mut files = report(FILES, &["NetworkFence"]);
    let status = files.status.as_mut().unwrap();
    status.network_fence_classes = vec!["file-fence".into()];
    let none = NetworkFenceCluster { class_name: "file-fence".into(), cluster_id: None };
    status.network_fence_clusters = Some(none).filter(|_| tells_clusters).into_iter().collect();
    files
}

#[test]
fn what_would_be_held_is_told_at_noon() {
    let told = |volume: VolumeUse, minimum: &str, methods: &[Value], change: fn(&mut World)| {
        let nodes = (0..3).map(|i| node(&format!("n{i}"))).collect();
        let policy = policy("db", &fencing(minimum, methods));
        let mut world = World::new(nodes, vec![pod("files", "n0", &[volume])], vec![policy]);
        world.seen.reports = reports([able(DRIVER), files_report(true)]);
        change(&mut world);
        world.rest();
        let (_, reason, message) = world.fence_ready();
        (reason, message)
    };
    let as_is: fn(&mut World) = |_| {};
    let no_fencer: fn(&mut World) = |world| world.seen.missing_fencers = [POWER.to_owned()].into();
    let untold: fn(&mut World) = |world| world.seen.reports = reports([able(DRIVER), files_report(false)]);
    let (all, no_power) = ([unpublish(), network(), external()], [unpublish(), network()]);
    let cases = [
        ("covered", share(), "Acknowledged", &all[..], as_is, "ProofReachable", ""),
        ("by power alone", share(), "Verified", &all[..], as_is, "ProofReachable", ""),
        ("nobody to switch it off", share(), "Verified", &all[2..], no_fencer, "FencerMissing", FILES),
        ("nor for NFS", nfs("x"), "Verified", &all[..], no_fencer, "PodsUnmovable", "FencerMissing 1"),
        ("not covered", share(), "Verified", &all[..1], as_is, "PodsUnmovable", "attachRequired: false"),
        ("NFS", nfs("x"), "Acknowledged", &no_power[..], as_is, "PodsUnmovable", "UnknownVolumeKind 1"),
        (
            "another cluster",
            in_cluster(share(), "a"),
            "Acknowledged",
            &no_power[..],
            as_is,
            "PodsUnmovable",
            "cluster a",
        ),
        ("but power", in_cluster(share(), "a"), "Acknowledged", &all[..], as_is, "ProofReachable", "cluster a"),
        ("nobody says which", share(), "Acknowledged", &no_power[..], untold, "PodsUnmovable", "is not known"),
        ("the same, but power", share(), "Acknowledged", &all[..], untold, "ProofReachable", "is not known"),
        ("no class that is strong enough", share(), "Verified", &all[..], untold, "ProofReachable", ""),
    ];
    for (name, volume, minimum, methods, change, reason, words) in cases {
        let (told, message) = told(volume, minimum, methods, change);
        assert!(told == reason && message.contains(words), "{name}: {told}: {message}");
    }
}
